"""One peer in its own environment: does what standard input says and answers with CPU seconds.

Arguments: the peer's name, a workload's name, and a pickle of its blobs. Lines in: `decode`,
`encode`. Lines out: seconds of CPU and how many user records came of it. Nothing but the peer's own
work is timed: inputs are built before, results are dropped after.
"""

# ruff: noqa: PLC0415 - a peer can be imported in its own environment only

from __future__ import annotations

import hashlib
import pickle
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from payloads import WORKLOADS, user_records

if TYPE_CHECKING:
    from collections.abc import Callable

Blobs = list[bytes]
Rows = list[list[tuple[str, bytes]]]


def md5(blobs: Blobs, rows: Rows) -> dict[str, Callable[[], int]]:
    """Check every checksum, over slices of one buffer, and do nothing else."""
    import pyarrow as pa

    array = pa.array(blobs, pa.binary())
    view = memoryview(array.buffers()[2]).cast("B")
    ends, at = [], 0
    for blob in blobs:
        at += len(blob)
        ends.append(at)

    def decode() -> int:
        start = 0
        for end in ends:
            digest = hashlib.md5(view[start + 4 : end - 16], usedforsecurity=False).digest()
            assert digest == view[end - 16 : end]
            start = end
        return sum(map(len, rows))

    return {"decode": decode, "encode": decode}


def headpond(blobs: Blobs, rows: Rows) -> dict[str, Callable[[], int]]:
    """Open to an Arrow batch; pack from records."""
    import pyarrow as pa

    from headpond.kpl import UserRecord, encode
    from headpond.kpl.batch import open_batch

    data, keys = pa.array(blobs, pa.binary()), pa.array(["a"] * len(blobs))
    records = [[UserRecord(key, content) for key, content in some] for some in rows]
    assert [encode(some).data for some in records] == blobs

    def pack() -> int:
        for some in records:
            encode(some)
        return sum(map(len, records))

    return {"decode": lambda: open_batch(data, keys).batch.num_rows, "encode": pack}


def aiokpl(blobs: Blobs, rows: Rows) -> dict[str, Callable[[], int]]:
    """Decode to its objects; encode from its objects."""
    from aiokpl.aggregation import UserRecord, decode_aggregated, encode_aggregated

    records = [[UserRecord(key, content) for key, content in some] for some in rows]
    assert [encode_aggregated(some) for some in records] == blobs

    def pack() -> int:
        for some in records:
            encode_aggregated(some)
        return sum(map(len, records))

    return {"decode": lambda: sum([len(decode_aggregated(blob)) for blob in blobs]), "encode": pack}


def aws_kinesis_agg(blobs: Blobs, rows: Rows) -> dict[str, Callable[[], int]]:
    """De-aggregate records as boto3 gives them; aggregate one by one, as its documentation does."""
    from aws_kinesis_agg.aggregator import RecordAggregator
    from aws_kinesis_agg.deaggregator import iter_deaggregate_records

    replies = [
        {"SequenceNumber": str(at), "PartitionKey": "a", "ApproximateArrivalTimestamp": 0.0, "Data": blob}
        for at, blob in enumerate(blobs)
    ]

    def pack() -> int:
        for some in rows:
            aggregator = RecordAggregator()
            for key, content in some:
                aggregator.add_user_record(key, content)
            aggregator.clear_and_get().get_contents()
        return sum(map(len, rows))

    return {
        "decode": lambda: len(list(iter_deaggregate_records(replies, data_format="Boto3"))),
        "encode": pack,
    }


def upb(blobs: Blobs, rows: Rows) -> dict[str, Callable[[], int]]:
    """Parse with protobuf's C runtime, check MD5, give the values to Arrow; and the other way."""
    import pyarrow as pa
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="kpl.proto", package="kpl", syntax="proto2")
    for name, fields in {
        "Tag": [("key", 1, kinds.TYPE_STRING, 2), ("value", 2, kinds.TYPE_STRING, 1)],
        "Record": [
            ("partition_key_index", 1, kinds.TYPE_UINT64, 2),
            ("explicit_hash_key_index", 2, kinds.TYPE_UINT64, 1),
            ("data", 3, kinds.TYPE_BYTES, 2),
            ("tags", 4, ".kpl.Tag", 3),
        ],
        "AggregatedRecord": [
            ("partition_key_table", 1, kinds.TYPE_STRING, 3),
            ("explicit_hash_key_table", 2, kinds.TYPE_STRING, 3),
            ("records", 3, ".kpl.Record", 3),
        ],
    }.items():
        message = file.message_type.add(name=name)
        for field, number, kind, label in fields:
            added = message.field.add(name=field, number=number, label=label)
            if isinstance(kind, str):
                added.type, added.type_name = kinds.TYPE_MESSAGE, kind
            else:
                added.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    aggregated_record = message_factory.GetMessageClass(pool.FindMessageTypeByName("kpl.AggregatedRecord"))

    def unpack() -> int:
        keys: list[str] = []
        datas: list[bytes] = []
        subs: list[int] = []
        for blob in blobs:
            body = memoryview(blob)[4:-16]
            assert hashlib.md5(body, usedforsecurity=False).digest() == blob[-16:]
            found = aggregated_record.FromString(body)
            table = list(found.partition_key_table)
            records = found.records
            keys += [table[record.partition_key_index] for record in records]
            datas += [record.data for record in records]
            subs += range(len(records))
        batch = pa.record_batch({"key": pa.array(keys), "data": pa.array(datas), "sub": pa.array(subs)})
        return int(batch.num_rows)

    def pack() -> int:
        packed = []
        for some in rows:
            message = aggregated_record()
            table: dict[str, int] = {}
            records = message.records
            for key, content in some:
                records.add(partition_key_index=table.setdefault(key, len(table)), data=content)
            message.partition_key_table.extend(table)
            body = message.SerializeToString()
            packed.append(b"\xf3\x89\x9a\xc2" + body + hashlib.md5(body, usedforsecurity=False).digest())
        assert packed[0] == blobs[0]
        return sum(map(len, rows))

    return {"decode": unpack, "encode": pack}


def main() -> None:
    """Answer until standard input ends."""
    _, peer, name, path = sys.argv
    blobs: Any = pickle.loads(Path(path).read_bytes())
    rows = user_records(next(one for one in WORKLOADS if one.name == name))
    tasks = globals()[peer](blobs, rows)
    print("ready", flush=True)
    for line in sys.stdin:
        start = time.process_time()
        count = tasks[line.strip()]()
        print(time.process_time() - start, count, flush=True)


if __name__ == "__main__":
    main()
