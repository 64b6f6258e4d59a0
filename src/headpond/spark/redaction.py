"""What Spark must not show: settings that may be secret, and options of our sources that hold secrets.

::

    a setting of Spark    by its name     kept off the JVM's command line, cut out of log lines
    an option of ours     by its name     cut out of every plan, by Spark itself

Spark before 4.3 writes the options of a source into its plans, and so into its log when a query fails, into
its event log and into what `explain` prints.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET_SETTING = re.compile(r"(?i)secret|password|token|credential|access[._-]?key|private")
"""Found in the name of a setting of Spark: its value may be a secret."""

REDACTED_OPTIONS = "spark.sql.redaction.options.regex"
OURS = "(?i)roleexternalid|storageoptions"
"""Found in the name of an option of ours: what a role is assumed with, and what opens an object store."""


def redact_options(spark: SparkSession) -> None:
    """Tell a session to leave our options that hold secrets out of what it shows; again changes nothing.

    What the session leaves out already, by its own setting or by the user's, stays left out. To be called
    wherever a source of ours is registered.
    """
    redacted = spark.conf.get(REDACTED_OPTIONS) or ""  # a default given here would hide Spark's own
    if OURS not in redacted:
        spark.conf.set(REDACTED_OPTIONS, f"(?:{redacted})|{OURS}" if redacted else OURS)
