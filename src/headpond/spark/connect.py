"""Sessions of Spark Connect: a client here, Spark's driver elsewhere.

Sources, the sink and the windowed join are Spark's to run and work there as everywhere. What does its work in
the driver's own process, such as the merge into a lake, cannot: it is refused before anything is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headpond.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def over_connect(spark: SparkSession) -> bool:
    """Say whether a session is a client of Spark Connect."""
    # Its class is not imported to ask: that needs packages that a classic session does without.
    return type(spark).__module__.startswith("pyspark.sql.connect")


def refuse_connect(spark: SparkSession, what: str) -> None:
    """Refuse what works in the driver's process alone.

    Args:
        spark: a session.
        what: what was asked for, to begin the sentence with.

    Raises:
        UsageError: the session is a client of Spark Connect.
    """
    if over_connect(spark):
        raise UsageError(
            f"{what} works in the process of Spark's driver, and this session is a client of Spark Connect.",
            next_step="Run it where the driver is: with `headpond run`, or by spark-submit.",
        )
