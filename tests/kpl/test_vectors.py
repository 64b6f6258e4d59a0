"""The scalar KPL codec on every vector that the real programs wrote."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest

from headpond.kpl import Aggregate, Aggregator, UserRecord, decode, encode, kept_by_range, pack
from headpond.kpl.hash_keys import HashKeyRange
from tests.kit.support import vector_json

ENCODE = vector_json("kpl/encode.json")
DECODE = vector_json("kpl/decode.json")
BATCH = vector_json("kpl/batch.json")


def name_of(case: dict[str, Any]) -> str:
    return str(case["name"])


def user_records(rows: list[dict[str, Any]]) -> list[UserRecord]:
    return [
        UserRecord(row["partition_key"], base64.b64decode(row["data_b64"]), row["explicit_hash_key"])
        for row in rows
    ]


@pytest.mark.parametrize("case", ENCODE, ids=name_of)
def test_encode(case: dict[str, Any]) -> None:
    """The Kinesis record is the KPL's, byte for byte, with its keys."""
    packed = encode(user_records(case["records"]))
    expected = case["expected"]
    assert packed.data == base64.b64decode(expected["blob_b64"])
    assert packed.partition_key == expected["api_partition_key"]
    assert packed.explicit_hash_key == expected["api_explicit_hash_key"]


@pytest.mark.parametrize("case", ENCODE, ids=name_of)
def test_sizes(case: dict[str, Any]) -> None:
    """The size follows the KPL's accounting after every record, and is true."""
    aggregator: Aggregator[UserRecord] = Aggregator(10 * 1024 * 1024)
    sizes = []
    for record in user_records(case["records"]):
        assert not aggregator.add(record)
        sizes.append(aggregator.data_bytes)
    expected = case["expected"]
    if expected.get("sizes_are_final_only"):
        sizes = sizes[-1:]
    assert sizes == expected["accurate_size_after_each_add"]
    assert aggregator.data_bytes == len(base64.b64decode(expected["blob_b64"]))


@pytest.mark.parametrize("case", DECODE, ids=name_of)
def test_decode(case: dict[str, Any]) -> None:
    """Outcome, reason and records are those of the specification."""
    expected = case["expected"]
    found = decode(base64.b64decode(case["blob_b64"]))
    assert found.outcome == expected["outcome"]
    assert found.reason == expected.get("reason")
    if isinstance(found, Aggregate):
        assert list(found.records) == user_records(expected["records"])
    else:
        assert "records" not in expected


RANGED = [case for case in DECODE if "hash_key_range" in case]


@pytest.mark.parametrize("case", RANGED, ids=name_of)
def test_hash_range_filter(case: dict[str, Any]) -> None:
    """The filter per record keeps what is inside; the KCL's keeps what the KCL kept."""
    found = decode(base64.b64decode(case["blob_b64"]))
    assert isinstance(found, Aggregate)
    shard = HashKeyRange(*map(int, case["hash_key_range"]))
    assert kept_by_range(found.records, shard, "off") == list(range(len(found.records)))
    assert kept_by_range(found.records, shard, "per_record") == case["expected"]["kept_by_range_filter"]
    kcl = case["peers"]["kcl_3_5_1_filtered"]["records"]
    assert kept_by_range(found.records, shard, "kcl") == [row["sub_sequence_number"] for row in kcl]


@pytest.mark.parametrize("case", BATCH, ids=name_of)
def test_pack(case: dict[str, Any]) -> None:
    """Aggregates close where the KPL closes them, hold the limits and keep the order."""
    records = user_records(case["records"])
    batches = pack(records, case["aggregation_max_size"], case["aggregation_max_count"])
    assert [record for batch in batches for record in batch] == records
    packed = [encode(batch) for batch in batches]
    for batch, one in zip(batches, packed, strict=True):
        assert len(batch) <= case["aggregation_max_count"]
        assert len(one.data) <= case["aggregation_max_size"] or len(batch) == 1
    expected = case["expected_batches"]
    assert [len(batch) for batch in batches] == [len(one["record_indices"]) for one in expected]
    for one, wanted in zip(packed, expected, strict=True):
        assert len(one.data) == wanted["blob_len"]
        assert hashlib.sha256(one.data).hexdigest() == wanted["blob_sha256"]
        assert one.partition_key == wanted["api_partition_key"]
        assert one.explicit_hash_key == wanted["api_explicit_hash_key"]
