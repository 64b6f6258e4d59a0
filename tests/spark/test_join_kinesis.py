"""The join over a live Kinesis stream of database changes: what tells a change apart travels as headers."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest

from headpond.kpl import UserRecord, encode
from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.join.rules import HeadersOf, JoinRules, JoinWindows
from headpond.localkinesis.testing import local_kinesis, put_all, read_all
from headpond.spark import register, windowed_join
from tests.spark.join_streams import Event, drained, rows_of, wanted

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from headpond.localkinesis import LocalKinesis

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(600)]

STREAM = "cdc"
TABLES = {Side.LEFT: "orders", Side.RIGHT: "payments"}
RULES = JoinRules("outer", JoinWindows(30, 40, 50), HeadersOf.MERGE)
TASKS = 2
START_NS = 1_783_600_000_000_000_000
PLACE = ["shard_id", "sequence_number", "sub_sequence_number"]


def changes(first: int, count: int) -> list[bytes]:
    """Change records as Aurora DSQL writes them, out of order by up to 60 ms; two sides' keys meet often."""
    chance = random.Random(first)
    found = []
    for number in range(first, first + count):
        at = START_NS + (number * 2 + first) * 1_000_000 - chance.choice([0, 0, 0, 7, 60]) * 1_000_000
        op = chance.choice("ccud")
        row = {"id": chance.randrange(9), "n": number}
        source = {"ts_ns": at + chance.randrange(1_000_000), "txId": f"tx{number // 3}"}
        source |= {"schema": "public", "table": chance.choice(list(TABLES.values()))}
        images = {"before": row, "after": None} if op == "d" else {"before": None, "after": row}
        found.append(json.dumps({"type": "full", "op": op, **images, "source": source}).encode())
    return found


def put(kinesis: LocalKinesis, documents: list[bytes]) -> None:
    """Put them as aggregates of one to four, each to the shard that its own key falls to."""
    chance = random.Random(len(documents))
    records, rest = [], documents
    while rest:
        some, rest = rest[: (size := chance.randint(1, 4))], rest[size:]
        key = f"k{chance.randrange(50)}"
        records.append((key, encode([UserRecord(key, each) for each in some]).data))
    put_all(kinesis.client(), STREAM, records)


def put_in_place(kinesis: LocalKinesis, halves: list[list[bytes]]) -> list[list[Event]]:
    """The changes with the places that they have got, as the reference engine takes them."""
    found: list[list[Event]] = [[] for _ in halves]
    for place, record in enumerate(read_all(kinesis.client(), STREAM)):
        for number, half in enumerate(halves):
            for at, document in enumerate(half):
                if document not in record.data:
                    continue
                change = json.loads(document)
                source, after = change["source"], change["after"]
                side = Side.LEFT if source["table"] == TABLES[Side.LEFT] else Side.RIGHT
                headers = [("table", source["table"]), ("op", change["op"]), ("txId", source["txId"])]
                found[number].append(
                    Event(
                        side,
                        str((after or change["before"])["id"]).encode(),
                        after and json.dumps(after, separators=(",", ":")).encode(),
                        source["ts_ns"] // 1000,
                        tuple((name, value.encode()) for name, value in headers),
                        int(record.shard_id[-1]),
                        place * 1000 + at,
                    )
                )
    return found


def one_table(spark: SparkSession, kinesis: LocalKinesis, table: str) -> DataFrame:
    """Keyed records of one table's changes."""
    said = {"table": "$.source.table", "op": "$.op", "txId": "$.source.txId"}
    headers = [
        f"struct('{name}' AS key, CAST(get_json_object(doc, '{path}') AS BINARY) AS value)"
        for name, path in said.items()
    ]
    reader = spark.readStream.format("headpond-kinesis").options(
        streamName=STREAM, endpointUrl=kinesis.endpoint_url, startingPosition="TRIM_HORIZON"
    )
    return (
        reader.load()
        .selectExpr("CAST(data AS STRING) AS doc", *PLACE)
        .where(f"get_json_object(doc, '$.source.table') = '{table}'")
        .selectExpr(
            "coalesce(get_json_object(doc, '$.after.id'), get_json_object(doc, '$.before.id')) AS key",
            "get_json_object(doc, '$.after') AS value",
            "timestamp_micros(CAST(get_json_object(doc, '$.source.ts_ns') AS BIGINT) div 1000) AS timestamp",
            f"array({', '.join(headers)}) AS headers",
            *PLACE,
        )
    )


def run(spark: SparkSession, kinesis: LocalKinesis, folder: Path) -> None:
    """Join what is there now, from where the checkpoint of the folder stands."""
    left, right = (one_table(spark, kinesis, table) for table in TABLES.values())
    joined = windowed_join(left, right, RULES.windows, RULES.type, tasks=TASKS, headers=RULES.headers)
    binary = [f"CAST({name} AS BINARY) AS {name}" for name in ("key", "left_value", "right_value")]
    drained(joined.selectExpr(*binary, "timestamp", "headers"), folder)


def test_changes_of_two_tables_in_one_stream(spark: SparkSession, tmp_path: Path) -> None:
    """Aggregated records of two shards, a restart between: the reference engine's results, as undivided."""
    register(spark)
    halves = [changes(0, 90), changes(90, 90)]
    with local_kinesis(STREAM, shards=2) as kinesis:
        put(kinesis, halves[0])
        run(spark, kinesis, tmp_path / "divided")
        put(kinesis, halves[1])
        run(spark, kinesis, tmp_path / "divided")
        run(spark, kinesis, tmp_path / "undivided")
        placed = put_in_place(kinesis, halves)
    assert [len(half) for half in placed] == [90, 90]
    assert {event.partition for half in placed for event in half} == {0, 1}
    expected, counters = wanted(RULES, placed, TASKS)
    found = rows_of(spark, tmp_path / "divided")
    assert found == expected
    assert found == rows_of(spark, tmp_path / "undivided")
    assert counters.joined > 50
    assert counters.unmatched > 10
    assert counters.dropped_null_value > 10
    both = [headers for _, left, right, _, headers in found if left and right]
    names = [name for name, _ in both[0]]
    assert names == ["table", "op", "txId"] * 2  # merged: the left change's, then the right one's
