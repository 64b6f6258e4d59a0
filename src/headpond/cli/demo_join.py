"""The join of the demonstration: orders and their payments, from stream to stream.

::

    orders ───┐  left join, a payment at most a minute after its order,
              ├─► each record with its trace as a header ─► paid-orders (KPL aggregates)
    payments ─┘

The records are put by the producer, joined by Spark, put back by Spark's sink in aggregates, and read again.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headpond.formats import kpl
from headpond.kinesis import BlockingProducer, ConnectionSettings
from headpond.spark.session import spark_session
from headpond.windows import JoinWindows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headpond.kinesis.local import LocalKinesis

ORDERS, PAYMENTS, JOINED = "orders", "payments", "paid-orders"
SHARDS = 2
COUNT = 400
"""Orders; seven in eight are paid, one in eight of these too late."""
BEGIN_MS = 1_790_000_000_000
MINUTE_MS = 60_000
SEED = 1300


@dataclass(slots=True)
class JoinShown:
    """What the join gave.

    Attributes:
        orders: records in the one stream.
        payments: records in the other.
        joined: results with both sides.
        unmatched: orders whose minute passed without a payment.
        aggregates: Kinesis records that the results lie in.
        differences: where the results are not those of comparing every order with every payment.
    """

    orders: int
    payments: int
    joined: int
    unmatched: int
    aggregates: int
    differences: list[str]

    def as_json(self) -> dict[str, Any]:
        """Give it as plain values."""
        return {name: getattr(self, name) for name in self.__slots__}


def put_orders_and_payments(kinesis: LocalKinesis) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Make both streams and put their records with the producer; gives what was put."""
    draw = random.Random(SEED)  # noqa: S311 - no secret
    orders: list[dict[str, Any]] = []
    payments: list[dict[str, Any]] = []
    at = BEGIN_MS
    for number in range(COUNT):
        at += draw.randrange(500, 1500)
        key = f"order-{number:03}"
        orders.append({"key": key, "at_ms": at, "trace": f"{draw.getrandbits(64):016x}"})
        if number % 8:
            late = number % 8 == 1
            after = draw.randrange(MINUTE_MS + 1, 2 * MINUTE_MS) if late else draw.randrange(1, MINUTE_MS + 1)
            payments.append({"key": key, "at_ms": at + after, "trace": f"{draw.getrandbits(64):016x}"})
    payments.sort(key=lambda payment: payment["at_ms"])
    for stream in (ORDERS, PAYMENTS, JOINED):
        kinesis.engine.create_stream(stream, SHARDS)
    for stream, records in ((ORDERS, orders), (PAYMENTS, payments)):
        with BlockingProducer(ConnectionSettings(**_place(kinesis, stream))) as producer:
            producer.put_all((record["key"], json.dumps(record).encode()) for record in records)
    return orders, payments


def join_streams(kinesis: LocalKinesis, log_path: Path, say: Callable[[str], None]) -> JoinShown:
    """Put orders and payments, join them on Spark into a third stream, and read that."""
    from headpond.spark import register, windowed_join  # noqa: PLC0415 - pyspark

    orders, payments = put_orders_and_payments(kinesis)
    say("joining orders and payments")
    spark = spark_session("headpond demo", log_path=log_path, quick=True)
    try:
        register(spark)
        joined = windowed_join(
            _records(spark, kinesis, ORDERS),
            _records(spark, kinesis, PAYMENTS),
            JoinWindows(before_ms=0, after_ms=MINUTE_MS, grace_ms=MINUTE_MS),
            "left",
            tasks=SHARDS,
            headers="merge",
        )
        results = joined.selectExpr(
            "CAST(key AS STRING) AS partition_key",
            "to_json(struct(CAST(left_value AS STRING) AS left, CAST(right_value AS STRING) AS right, "
            "transform(headers, h -> CAST(h.value AS STRING)) AS traces)) AS data",
        )
        with tempfile.TemporaryDirectory(prefix="headpond-demo-join-") as checkpoint:
            writer = results.writeStream.format("headpond-kinesis")
            writer = writer.options(streamName=JOINED, endpointUrl=kinesis.endpoint_url, region="us-east-1")
            query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
            query.awaitTermination()
    finally:
        spark.stop()
    say("reading the aggregates that the join's results went out in")
    found, aggregates = _read_back(kinesis)
    both = [result for result in found if "right" in result]
    return JoinShown(
        orders=len(orders),
        payments=len(payments),
        joined=len(both),
        unmatched=len(found) - len(both),
        aggregates=aggregates,
        differences=differences(orders, payments, found),
    )


def differences(
    orders: list[dict[str, Any]], payments: list[dict[str, Any]], found: list[dict[str, Any]]
) -> list[str]:
    """Compare results with every order beside every payment; one sentence each, empty when they agree.

    An unmatched order's result carries its own trace. Orders whose minute and grace had not passed when the
    streams ended are still waiting, so they may be absent.
    """
    paid = {payment["key"]: payment for payment in payments}
    end = max(record["at_ms"] for record in orders + payments)
    wanted: Counter[str] = Counter()
    may_wait = set()
    for order in orders:
        payment = paid.get(order["key"])
        near = payment is not None and 0 <= payment["at_ms"] - order["at_ms"] <= MINUTE_MS
        told = {"left": order, "traces": [order["trace"]]}
        if near and payment is not None:
            told |= {"right": payment, "traces": [order["trace"], payment["trace"]]}
        elif order["at_ms"] + 3 * MINUTE_MS > end:
            may_wait.add(_text(told))
        wanted[_text(told)] += 1
    have = Counter(
        _text(
            {name: json.loads(result[name]) for name in ("left", "right") if name in result}
            | {"traces": result["traces"]}
        )
        for result in found
    )
    missing = [text for text in (wanted - have).elements() if text not in may_wait]
    return [f"a result is missing: {text}" for text in missing] + [
        f"a result should not be there: {text}" for text in (have - wanted).elements()
    ]


def _text(result: dict[str, Any]) -> str:
    return json.dumps(result, sort_keys=True)


def _place(kinesis: LocalKinesis, stream: str) -> dict[str, Any]:
    return {"stream_name": stream, "endpoint_url": kinesis.endpoint_url, "region": "us-east-1"}


def _records(spark: Any, kinesis: LocalKinesis, stream: str) -> Any:
    """A stream's records with their own time and their trace as a header."""
    reader = spark.readStream.format("headpond-kinesis").options(
        streamName=stream,
        endpointUrl=kinesis.endpoint_url,
        region="us-east-1",
        startingPosition="TRIM_HORIZON",
    )
    return reader.load().selectExpr(
        "partition_key AS key",
        "data AS value",
        "timestamp_millis(CAST(get_json_object(CAST(data AS STRING), '$.at_ms') AS BIGINT)) AS timestamp",
        "array(struct('trace' AS key, "
        "CAST(get_json_object(CAST(data AS STRING), '$.trace') AS BINARY) AS value)) AS headers",
        "shard_id",
        "sequence_number",
        "sub_sequence_number",
    )


def _read_back(kinesis: LocalKinesis) -> tuple[list[dict[str, Any]], int]:
    """Read the results' stream with boto3 alone and open its aggregates; gives results and aggregates."""
    client = kinesis.client()
    found, aggregates = [], 0
    for shard in client.list_shards(StreamName=JOINED)["Shards"]:
        iterator = client.get_shard_iterator(
            StreamName=JOINED, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        while True:
            reply = client.get_records(ShardIterator=iterator)
            iterator = reply["NextShardIterator"]
            for record in reply["Records"]:
                opened = kpl.decode(record["Data"])
                if isinstance(opened, kpl.Aggregate):
                    aggregates += 1
                    found += [json.loads(user_record.data) for user_record in opened.records]
                else:  # a result that had no company
                    found.append(json.loads(record["Data"]))
            if not reply["Records"] and not reply["MillisBehindLatest"]:
                break
    return found, aggregates
