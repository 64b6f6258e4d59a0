"""The only room that imports pyspark, and only when something of it is used.

`headpond.spark.register(spark)` makes the sources and sinks known to a session;
`headpond.spark.follow(spark, pipeline)` starts the query that keeps a lake in step;
`headpond.spark.delta_settings({})` gives the settings of a session that merges into Delta tables;
`headpond.spark.verify(spark, records)` finds the anomalies of a QLDB journal;
`headpond.spark.ship(spark)` hands headpond to executors that lack it;
`headpond.spark.without_repeats(frame)` removes what a Kinesis sink put twice.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headpond.spark.delta_jars import delta_settings
    from headpond.spark.following import follow
    from headpond.spark.join import windowed_join
    from headpond.spark.journal import verify
    from headpond.spark.registration import register
    from headpond.spark.repeats import without_repeats
    from headpond.spark.shipping import ship

__all__ = ["delta_settings", "follow", "register", "ship", "verify", "windowed_join", "without_repeats"]

_HOMES = {
    "delta_settings": "headpond.spark.delta_jars",
    "follow": "headpond.spark.following",
    "register": "headpond.spark.registration",
    "ship": "headpond.spark.shipping",
    "verify": "headpond.spark.journal",
    "windowed_join": "headpond.spark.join",
    "without_repeats": "headpond.spark.repeats",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
