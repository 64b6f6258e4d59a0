"""Aggregates as JSON, on all vectors."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from headpond.core.errors import InvalidData, UsageError
from headpond.kpl import Tag, UserRecord, encode
from headpond.kpl.documents import aggregate_line, inspect_blob
from tests.kit.support import vector_json


@pytest.mark.parametrize("case", vector_json("kpl/decode.json"), ids=lambda case: case["name"])
def test_inspect(case: dict[str, Any]) -> None:
    """What is inspected shows outcome, reason and records of the specification."""
    seen = json.loads(json.dumps(inspect_blob(base64.b64decode(case["blob_b64"]))))
    expected = case["expected"]
    assert seen == {
        "outcome": expected["outcome"],
        "reason": expected.get("reason"),
        "records": [
            {
                "sub_sequence_number": record["sub_sequence_number"],
                "partition_key": record["partition_key"],
                "explicit_hash_key": record["explicit_hash_key"],
                "data": record["data_b64"],
                "tags": [],
            }
            for record in expected.get("records", [])
        ],
    }


@pytest.mark.parametrize("case", vector_json("kpl/encode.json"), ids=lambda case: case["name"])
def test_aggregate(case: dict[str, Any]) -> None:
    """A list of user records becomes the KPL's Kinesis record."""
    records = [
        {key.removesuffix("_b64"): value for key, value in record.items()} for record in case["records"]
    ]
    expected = case["expected"]
    assert aggregate_line(json.dumps({"records": records})) == {
        "partition_key": expected["api_partition_key"],
        "explicit_hash_key": expected["api_explicit_hash_key"],
        "data": expected["blob_b64"],
    }


def test_tags_both_ways() -> None:
    """Tags that inspection shows can be packed again."""
    record = UserRecord("k", b"x", "5", (Tag("a", "1"), Tag("b")))
    blob = encode([record, UserRecord("k", b"")], with_tags=True).data
    seen = inspect_blob(blob)["records"]
    assert seen[0]["tags"] == [{"key": "a", "value": "1"}, {"key": "b", "value": None}]
    lines = [{name: value for name, value in one.items() if name != "sub_sequence_number"} for one in seen]
    assert base64.b64decode(aggregate_line(json.dumps({"records": lines}))["data"]) == blob


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"{}",
        b'{"records": [{"partition_key": "k"}]}',
        b'{"records": [{"partition_key": 5, "data": ""}]}',
        b'{"records": [{"partition_key": "k", "data": "***"}]}',
        b'{"records": [{"partition_key": "k", "data": "", "hashkey": "1"}]}',
        b'\xff{"records": []}',
    ],
)
def test_refused_lines(line: bytes) -> None:
    """A line of another shape is refused with the place."""
    with pytest.raises(InvalidData) as caught:
        aggregate_line(line)
    assert caught.value.facts == {"reason": "invalid_json"}


def test_limits_reach_the_caller() -> None:
    """Records beyond a limit are the caller's mistake."""
    with pytest.raises(UsageError, match="at least one"):
        aggregate_line('{"records": []}')
    with pytest.raises(UsageError, match="256"):
        aggregate_line(json.dumps({"records": [{"partition_key": "k" * 300, "data": ""}]}))
