"""What the Kafka test runs in processes of its own: joins over two topics, written to topics of their own.

Arguments: folder, the broker's address, the folder of the connector's jars. Each join is run to the end of
what is there now, from its checkpoint below the folder.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headpond.kstreams.join.rules import HeadersOf, JoinRules, JoinType
from headpond.spark import windowed_join
from headpond.spark.session.start import spark_session
from tests.spark.join_topics import WINDOWS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JOINS = {
    # topic of the results: rules, join tasks
    "outer-out": (JoinRules(JoinType.OUTER, WINDOWS, HeadersOf.TRIGGER), 3),
    "left-out": (JoinRules(JoinType.LEFT, WINDOWS), 2),
}
VALUE = (
    "concat_ws('|', coalesce(hex(left_value), 'null'), coalesce(hex(right_value), 'null'), "
    "unix_millis(timestamp)) AS value"
)


def topic(spark: SparkSession, address: str, name: str) -> DataFrame:
    """Read a topic with its headers, from its beginning."""
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", address)
        .option("subscribe", name)
        .option("includeHeaders", "true")
        .option("startingOffsets", "earliest")
        .load()
    )


def main(folder: Path, address: str, jars: Path) -> None:
    """Run each join to the end of its topics."""
    conf = {"spark.jars": ",".join(map(str, sorted(jars.glob("*.jar"))))}
    spark = spark_session("join", conf=conf, log_path=folder / "spark.log", quick=True)
    for name, (rules, tasks) in JOINS.items():
        left, right = (topic(spark, address, each) for each in ("left", "right"))
        joined = windowed_join(left, right, rules.windows, rules.type, tasks=tasks, headers=rules.headers)
        query = (
            joined.selectExpr("key", VALUE, "headers")
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", address)
            .option("topic", name)
            .option("includeHeaders", "true")
            .option("checkpointLocation", str(folder / name))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
