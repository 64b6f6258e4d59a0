"""The only room that imports pyspark, and only when something of it is used.

`headpond.spark.register(spark)` makes the sources and sinks known to a session;
`headpond.spark.follow(spark, pipeline)` starts the query that keeps a lake in step;
`headpond.spark.delta_settings({})` gives the settings of a session that merges into Delta tables;
`headpond.spark.verify(spark, records)` finds the anomalies of a QLDB journal;
`headpond.spark.ship(spark)` hands headpond to executors that lack it;
`headpond.spark.without_repeats(frame)` removes what a Kinesis sink put twice.
`headpond.spark.windowed_join(left, right, …)` joins two streams by key and time.

Its modules, by what they are for::

    source        source · rows · registration · redaction
    sink          sink · repeats
    archive       archive · archive_files · archive_plan
    decoding      decoding · decoding_kinesis · decoded · outline · cells · handover
    following     following · parts · spread · spread_steps · timeouts · keeper · catch_up · checkpoint
    a run         run · early · preflight · settings · log_file · stopping
    measurements  measurements · progress · metrics · metrics_prometheus · metrics_otel
    Delta jars    delta_jars · delta_sql · delta_file
    journal       journal
    join          join · join_task · join_arrivals · join_pack · join_columns · join_labels · join_checkpoint
    session       session · java · classes · daemon · workers · settled · shipping · connect · errors

What they build on that is not Spark's is in the rooms below: records in `formats` and `kinesis`, changes in
`changes`, tables in `tables`, joins in `windows`.
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
