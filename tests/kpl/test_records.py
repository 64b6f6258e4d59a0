"""Kinesis records open into user records, in order, with what the record itself said."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headpond.core.schemas import USER_RECORD_SCHEMA
from headpond.kpl import MalformedAggregate, UserRecord, encode
from headpond.kpl.batch import OpenCounters
from headpond.kpl.records import (
    ENCRYPTION_TYPE,
    KINESIS_RECORD_SCHEMA,
    USER_RECORD_SCHEMA_WITH_TAGS,
    open_records,
)

AGGREGATE = encode([UserRecord("a", b"1", "7"), UserRecord("b", b"2")]).data
DAMAGED = AGGREGATE[:-1] + bytes([AGGREGATE[-1] ^ 1])


def malformed() -> bytes:
    """An aggregate whose checksum is right and whose message is no protobuf."""
    import hashlib

    return AGGREGATE[:4] + b"\xff" + hashlib.md5(b"\xff").digest()


def batch(*data: bytes, problem: str | None = None) -> pa.RecordBatch:
    rows = [
        {
            "stream": "s",
            "shard_id": "x",
            "sequence_number": str(100 + n),
            "partition_key": "own",
            "approximate_arrival_timestamp": n,
            "problem": problem,
            "data": blob,
        }
        for n, blob in enumerate(data)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=KINESIS_RECORD_SCHEMA)


def test_aggregates_open_in_place() -> None:
    """User records of an aggregate stand where it stood, numbered from 0, with its sequence number."""
    (opened,) = open_records(batch(b"plain", AGGREGATE, b"last"))
    assert opened.schema == USER_RECORD_SCHEMA
    got = [
        (
            row["sequence_number"],
            row["sub_sequence_number"],
            row["partition_key"],
            row["explicit_hash_key"],
            row["data"],
        )
        for row in opened.to_pylist()
    ]
    assert got == [
        ("100", 0, "own", None, b"plain"),
        ("101", 0, "a", "7", b"1"),
        ("101", 1, "b", None, b"2"),
        ("102", 0, "own", None, b"last"),
    ]
    assert opened["aggregated"].to_pylist() == [False, True, True, False]


@pytest.mark.parametrize(("blob", "problem"), [(DAMAGED, "kpl_checksum_mismatch"), (malformed(), "kpl_")])
def test_what_cannot_be_opened_passes_whole(blob: bytes, problem: str) -> None:
    """A damaged aggregate is one row with a problem and its untouched bytes."""
    (opened,) = open_records(batch(blob))
    (row,) = opened.to_pylist()
    assert row["data"] == blob
    assert row["problem"].startswith(problem)
    assert not row["aggregated"]


def test_fail_stops_at_a_malformed_aggregate() -> None:
    """With onMalformed=fail the error names the record."""
    with pytest.raises(MalformedAggregate, match="stream s, shard_id x, sequence_number 101"):
        list(open_records(batch(b"plain", malformed()), on_malformed="fail"))


def test_unopened_and_already_bad_records_pass() -> None:
    """Without de-aggregation, and where a record has a problem already, nothing is opened."""
    (opened,) = open_records(batch(AGGREGATE), deaggregate=False)
    assert opened["data"].to_pylist() == [AGGREGATE]
    (bad,) = open_records(batch(AGGREGATE, problem="archive_bad_line"))
    assert bad["problem"].to_pylist() == ["archive_bad_line"]
    assert list(open_records(batch())) == []


def test_bad_records_do_not_hold_up_sound_ones() -> None:
    """In a batch of both the sound ones are opened and the bad ones follow, none of them lost."""
    both = pa.Table.from_batches([batch(AGGREGATE, problem="archive_bad_line"), batch(b"x", AGGREGATE)])
    opened = pa.Table.from_batches(open_records(both.combine_chunks().to_batches()[0]))
    assert opened["data"].to_pylist() == [b"x", b"1", b"2", AGGREGATE]
    assert opened["problem"].to_pylist() == [None, None, None, "archive_bad_line"]


@pytest.mark.parametrize("deaggregate", [True, False])
def test_tags_are_added_on_demand(deaggregate: bool) -> None:  # noqa: FBT001 (a parameter of the test)
    """The column is there when asked for, empty where there are no tags."""
    (opened,) = open_records(batch(b"plain"), tags=True, deaggregate=deaggregate)
    assert opened.schema == USER_RECORD_SCHEMA_WITH_TAGS
    assert opened["tags"].to_pylist() == [[]]


@pytest.mark.parametrize("tags", [True, False])
@pytest.mark.parametrize("data", [b"plain", AGGREGATE])
def test_the_encryption_type_is_passed_on(data: bytes, tags: bool) -> None:  # noqa: FBT001 (a parameter of the test)
    """To each user record that its Kinesis record holds, behind all other columns."""
    records = batch(data, b"other")
    records = records.append_column(ENCRYPTION_TYPE, pa.array(["KMS", None]))
    opened = pa.Table.from_batches(open_records(records, tags=tags))
    assert opened.schema.names[-1] == "encryption_type"
    of_data = [] if data == b"plain" else ["KMS"]
    assert opened["encryption_type"].to_pylist() == ["KMS", *of_data, None]


NEAR_MAGIC = [b"", AGGREGATE[:1], AGGREGATE[:3], AGGREGATE[:4], AGGREGATE[1:], DAMAGED, b"x" * 40]


@pytest.mark.parametrize("tags", [True, False])
def test_plain_batches_pass_as_they_would_beside_aggregates(tags: bool) -> None:  # noqa: FBT001 (a parameter of the test)
    """A batch without aggregates takes a shorter way to the same rows, and is counted alike."""
    for cut in range(len(NEAR_MAGIC) + 1):
        short, long = OpenCounters(), OpenCounters()
        rows = [
            row
            for opened in open_records(batch(*NEAR_MAGIC).slice(cut), tags=tags, counters=short)
            for row in opened.to_pylist()
        ]
        beside = batch(*NEAR_MAGIC, AGGREGATE).slice(cut)
        (opened,) = open_records(beside, tags=tags, counters=long)
        assert rows == opened.to_pylist()[:-2]
        assert (short.plain, short.checksum_mismatch) == (long.plain, long.checksum_mismatch)
        assert short.kinesis_records == long.kinesis_records - 1
