"""Write KPL aggregates with headpond, read them with a stock reader, and the other way round.

python examples/kpl_aggregates.py            headpond alone
pip install aws-kinesis-agg six              and the script also asks AWS's own reader and writer
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from headpond.kpl import Aggregate, UserRecord, decode, encode, pack
from headpond.kpl.batch import open_batch

RECORDS = [
    UserRecord(f"device-{number % 3}", json.dumps({"n": number, "celsius": 20 + number / 10}).encode())
    for number in range(10)
]


def with_headpond(blobs: list[bytes]) -> None:
    """Open one blob with the scalar codec, then all of them at once."""
    found = decode(blobs[0])
    assert isinstance(found, Aggregate)
    print(f"decode: {len(found.records)} user records in the first Kinesis record")
    batch, counters = open_batch(pa.array(blobs, pa.binary()))
    print(
        f"open_batch: {batch.num_rows} rows, {counters.aggregates} aggregates, columns {batch.schema.names}"
    )
    assert batch.column("data").to_pylist() == [record.data for record in RECORDS]


def with_stock_reader(blobs: list[bytes]) -> None:
    """Have aws-kinesis-agg read ours, and read what it writes."""
    try:
        from aws_kinesis_agg.aggregator import RecordAggregator  # noqa: PLC0415 - not one of our dependencies
        from aws_kinesis_agg.deaggregator import iter_deaggregate_records  # noqa: PLC0415 - as above
    except ImportError:
        print("aws-kinesis-agg is not installed: its part is left out")
        return
    replies: list[dict[str, Any]] = [
        {"SequenceNumber": str(at), "PartitionKey": "a", "ApproximateArrivalTimestamp": 0, "Data": blob}
        for at, blob in enumerate(blobs)
    ]
    rows = [row["kinesis"] for row in iter_deaggregate_records(replies, data_format="Boto3")]
    assert [row["partitionKey"] for row in rows] == [record.partition_key for record in RECORDS]
    print(f"aws-kinesis-agg read {len(rows)} user records from our aggregates")
    writer = RecordAggregator()
    for record in RECORDS:
        writer.add_user_record(record.partition_key, record.data)
    _, _, theirs = writer.clear_and_get().get_contents()
    assert decode(theirs) == Aggregate(tuple(RECORDS))
    assert theirs == encode(RECORDS).data
    print("and wrote the same bytes as we do")


def main() -> None:
    """Pack, then read."""
    packed = [encode(batch) for batch in pack(RECORDS, max_size=200)]
    for one in packed:
        print(f"put: key {one.partition_key!r}, hash key {one.explicit_hash_key}, {len(one.data)} bytes")
    blobs = [one.data for one in packed]
    with_headpond(blobs)
    with_stock_reader(blobs)


if __name__ == "__main__":
    main()
