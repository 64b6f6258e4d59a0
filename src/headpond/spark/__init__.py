"""The Spark API; pyspark is imported when you first use it.

::

    session     start · settings · java · workers · cluster (executors, Spark Connect)
    sources     kinesis · archive · archive_files · tasks · rows · decoded · cells
    sinks       kinesis
    following   query · run · parts · distributed · upkeep · checkpoint · stopping
    join        api · columns · pack · task · checkpoint
    metrics     progress · sinks · exporters
    journal     verification of a QLDB journal
    errors      headpond's errors on their way through Spark
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headpond.core.lazy import lazy

if TYPE_CHECKING:
    from headpond.spark.following.query import follow
    from headpond.spark.join.api import windowed_join
    from headpond.spark.journal import verify
    from headpond.spark.session.cluster import ship
    from headpond.spark.sinks.kinesis import without_repeats
    from headpond.spark.sources.kinesis import register

__all__ = ["follow", "register", "ship", "verify", "windowed_join", "without_repeats"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "follow": "headpond.spark.following.query",
        "register": "headpond.spark.sources.kinesis",
        "ship": "headpond.spark.session.cluster",
        "verify": "headpond.spark.journal",
        "windowed_join": "headpond.spark.join.api",
        "without_repeats": "headpond.spark.sinks.kinesis",
    },
)
