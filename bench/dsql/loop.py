"""The loop people write by hand: read, keep the newest of each key in a dict, merge every so many changes.

Run by `pipeline.py` with a folder of JSON Lines, and by `bench/kinesis/live.py` with the address of a stream,
which it reads with boto3 and aws-kinesis-agg: python loop.py ARCHIVE|http://HOST:PORT/STREAM LAKE EVERY

No check but what raises by itself, no quarantine, no tombstones (a late change would revive a deleted row),
no place kept to go on from. It is right for changes that come in the order of their commits, and only for
these.
"""

from __future__ import annotations

import base64
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable
from payloads import columns_of, keys_of

if TYPE_CHECKING:
    from collections.abc import Iterator

ARROW = {
    "bigint": pa.int64(),
    "integer": pa.int32(),
    "numeric(12,2)": pa.decimal128(12, 2),
    "numeric": pa.string(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "double precision": pa.float64(),
}


def column(values: list[Any], kind: str) -> pa.Array:
    target = ARROW.get(kind, pa.string())
    if pa.types.is_decimal(target):
        return pa.array(values, pa.string()).cast(target)
    return pa.array(values, target)


def merge(lake: Path, table: str, newest: dict[tuple[Any, ...], dict[str, Any]]) -> None:
    columns = columns_of(table)
    schema = pa.schema(
        [*((c, ARROW.get(k, pa.string())) for c, k in columns.items()), ("_ts_ns", pa.int64())]
    )
    place = str(lake / table)
    if not DeltaTable.is_deltatable(place):
        DeltaTable.create(place, schema=schema)
    changes = list(newest.values())
    rows = [change["after"] or change["before"] for change in changes]
    source = pa.table(
        [
            *(column([row.get(c) for row in rows], k) for c, k in columns.items()),
            pa.array([change["source"]["ts_ns"] for change in changes], pa.int64()),
            pa.array([change["op"] == "d" for change in changes], pa.bool_()),
        ],
        schema=schema.append(pa.field("gone", pa.bool_())),
    )
    copied = {name: f"s.{name}" for name in schema.names}
    (
        DeltaTable(place)
        .merge(
            source,
            predicate=" AND ".join(f"t.{key} = s.{key}" for key in keys_of(table)),
            source_alias="s",
            target_alias="t",
        )
        .when_matched_delete("s.gone AND t._ts_ns < s._ts_ns")
        .when_matched_update(copied, "t._ts_ns < s._ts_ns")
        .when_not_matched_insert(copied, "NOT s.gone")
        .execute()
    )


def of_archive(folder: Path) -> Iterator[bytes]:
    for file in sorted(folder.glob("*.jsonl")):
        with file.open("rb") as lines:
            for line in lines:
                yield base64.b64decode(json.loads(line)["data"])


def of_stream(address: str) -> Iterator[bytes]:
    """Read shard after shard, each to its tip: the changes of a row are in one shard."""
    import boto3  # noqa: PLC0415 - only where needed
    from aws_kinesis_agg.deaggregator import iter_deaggregate_records  # noqa: PLC0415 - the same

    endpoint, _, stream = address.rpartition("/")
    client = boto3.client(
        "kinesis",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )
    for shard in client.list_shards(StreamName=stream)["Shards"]:
        place = client.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        behind_ms = 1
        while behind_ms:
            page = client.get_records(ShardIterator=place, Limit=10_000)
            for record in iter_deaggregate_records(page["Records"], data_format="Boto3"):
                data = record["kinesis"]["data"]
                # What was in an aggregate comes in base64, what was alone as it is.
                yield data if data[:1] == b"{" else base64.b64decode(data)
            place, behind_ms = page["NextShardIterator"], page["MillisBehindLatest"]


def main() -> None:
    source, lake, every = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    newest: defaultdict[str, dict[tuple[Any, ...], dict[str, Any]]] = defaultdict(dict)

    def flush() -> None:
        for table, rows in newest.items():
            if rows:
                merge(lake, table, rows)
                rows.clear()

    found = of_stream(source) if source.startswith("http") else of_archive(Path(source))
    for count, data in enumerate(found, 1):
        change = json.loads(data)
        table = change["source"]["table"]
        image = change["after"] or change["before"]
        key = tuple(image[name] for name in keys_of(table))
        old = newest[table].get(key)
        if old is None or old["source"]["ts_ns"] < change["source"]["ts_ns"]:
            newest[table][key] = change
        if count % every == 0:
            flush()
    flush()


if __name__ == "__main__":
    main()
