"""Archive lines become Kinesis records; what is no record becomes a row that says so."""

from __future__ import annotations

import base64
import binascii
import io
import json
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.kinesis.archive.lines import (
    BAD_LINE,
    cut_text,
    read_lines,
    read_text,
)
from headpond.kpl.records import KINESIS_RECORD_SCHEMA
from tests.kit.support import share_of, vector_bytes

SPLICES = [b"", b'"', b",", b"}", b'"shard":"z",', b"\\u0041", b"NaN", b" ", b"\xff", b"1"]


def read(*lines: bytes, first_line: int = 1) -> list[dict[str, object]]:
    return read_lines(lines, stream="s", file="f.jsonl", first_line=first_line).to_pylist()


def line(**fields: object) -> bytes:
    return json.dumps({"data": base64.b64encode(b"x").decode(), **fields}).encode() + b"\n"


def test_vectors_read_whole() -> None:
    """Every line of the DSQL vectors is one record with its own shard, number, key and time."""
    lines = vector_bytes("dsql/small.jsonl").splitlines(keepends=True)
    rows = read(*lines)
    said = [json.loads(text) for text in lines]
    assert [record["sequenceNumber"] for record in said] == [row["sequence_number"] for row in rows]
    assert [record["shard"] for record in said] == [row["shard_id"] for row in rows]
    assert [record["partitionKey"] for record in said] == [row["partition_key"] for row in rows]
    assert [base64.b64decode(record["data"]) for record in said] == [row["data"] for row in rows]
    arrivals = [record["approximateArrivalTimestamp"] for record in said]
    assert arrivals == [round(row["approximate_arrival_timestamp"].timestamp() * 1000) for row in rows]


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b"[]",
        b'"text"',
        b"\xff\xfe",
        b"{}",
        line(data=None),
        line(data=7),
        line(data="a"),
        line(data="YQ"),
        line(data="YQ==="),
        line(data="Y Q=="),
        line(data="é"),
        line(shard=3),
        line(sequenceNumber="12x"),
        line(sequenceNumber=-1),
        line(sequenceNumber=True),
        line(sequenceNumber="٣"),
        line(sequenceNumber="1" * 201),
        line(partitionKey={}),
        line(approximateArrivalTimestamp="yesterday"),
        line(approximateArrivalTimestamp="2026-01-01T00:00:00"),
        line(approximateArrivalTimestamp=-1),
        line(approximateArrivalTimestamp=1e18),
        line(approximateArrivalTimestamp=[]),
    ],
)
def test_bad_lines_are_kept_with_their_bytes(text: bytes) -> None:
    """A line that is no record is a row with the reason and the line, identified by file and line."""
    (row,) = read(text, first_line=41)
    assert row["problem"] == BAD_LINE
    assert row["data"] == text.rstrip(b"\n")
    assert (row["shard_id"], row["sequence_number"]) == ("f.jsonl", "41")


@pytest.mark.parametrize(
    ("shard", "number"),
    [("shard", "sequenceNumber"), ("shard_id", "sequence_number"), ("shardId", "sequenceNumber")],
)
def test_every_spelling_is_understood(shard: str, number: str) -> None:
    """Names of the service, of Python and of the vectors mean the same."""
    (row,) = read(line(**{shard: "s-1", number: "0012", "partition_key": "k"}))
    assert (row["shard_id"], row["sequence_number"], row["partition_key"]) == ("s-1", "0012", "k")
    assert row["problem"] is None


@pytest.mark.parametrize("fields", [{}, {"shard": "s-1"}, {"sequenceNumber": "12"}, {"shard": None}])
def test_identity_is_file_and_line_where_either_part_is_missing(fields: dict[str, object]) -> None:
    """Half an identity is none: two files could hold the same half."""
    rows = read(line(), b"\r\n", line(**fields), first_line=10)
    assert [(r["shard_id"], r["sequence_number"]) for r in rows] == [("f.jsonl", "10"), ("f.jsonl", "12")]


@pytest.mark.parametrize(
    "when", [1783500011001, 1783500011.001, "2026-07-08T08:40:11.001+00:00", "2026-07-08T10:40:11.001+02:00"]
)
def test_arrival_in_each_form(when: object) -> None:
    """Milliseconds, seconds and ISO 8601 with an offset name the same moment."""
    (row,) = read(line(approximateArrivalTimestamp=when))
    assert row["approximate_arrival_timestamp"].timestamp() == 1783500011.001  # type: ignore[attr-defined]


@given(st.lists(st.binary(max_size=40).filter(lambda b: b"\n" not in b), max_size=8))
@settings(max_examples=share_of(150))
def test_no_line_is_fatal_and_none_is_lost(lines: list[bytes]) -> None:
    """Whatever the bytes, each line that is not blank gives exactly one row."""
    batch = read_lines(lines, stream="s", file="f")
    assert batch.schema == KINESIS_RECORD_SCHEMA
    assert batch.num_rows == sum(bool(text.rstrip(b"\r\n").strip()) for text in lines)


def arrival_of(when: Any) -> int | None:
    """Say when a record arrived, in microseconds."""
    if isinstance(when, str):
        if not when.endswith("Z"):
            raise ValueError(when)
        when = datetime.fromisoformat(when).timestamp()
    found = None if when is None else round(when if when >= 10**11 else when * 1000) * 1000
    if found is not None and not 0 <= found < 253_402_300_800_000_000:
        raise ValueError(when)
    return found


def expected(text: bytes) -> tuple[object, ...] | None:
    """Say with the standard library what a line holds; None where it is not a record."""
    try:
        value = json.loads(text.decode(), parse_constant=lambda name: {}[name])
        data = binascii.a2b_base64(value["data"].encode(), strict_mode=True)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None

    def first(*names: str) -> Any:
        return next((value[name] for name in names if value.get(name) is not None), None)

    if len(value["data"]) % 4:  # the standard library takes "YWJj="
        return None
    shard, key = first("shard", "shard_id", "shardId"), first("partitionKey", "partition_key")
    number = first("sequenceNumber", "sequence_number")
    when = first("approximateArrivalTimestamp", "approximate_arrival_timestamp")
    is_number = type(number) is int or (isinstance(number, str) and len(number) <= 200 and number.isascii())
    if not {type(shard), type(key)} <= {str, type(None)} or isinstance(when, bool | list | dict):
        return None
    if number is not None and not (is_number and str(number).isdigit()):
        return None
    try:
        arrival = arrival_of(when)
    except ValueError:
        return None
    place = ("f", "1") if None in (shard, number) else (shard, str(number))
    return (*place, key, arrival, None, data)


@settings(max_examples=share_of(500))
@given(data=st.data())
@pytest.mark.slow
def test_a_line_is_read_as_the_standard_library_reads_it(data: st.DataObject) -> None:
    """Lines of every spelling, whole and damaged."""
    values = st.sampled_from(
        [
            "s", "", "7", "007", "12x", "٣", "YQ==", "YR==", "YQ", "a b", "\n", 7, -1, 0, True, None, 1.0,
            1e12, 1783600000000, 99999999999, 2**70, "2026-01-01T00:00:00Z", [], {}, "1" * 201,
        ]
    )  # fmt: skip
    names = [
        "data", "shard", "shard_id", "shardId", "sequenceNumber", "sequence_number", "partitionKey",
        "partition_key", "approximateArrivalTimestamp", "approximate_arrival_timestamp", "other",
    ]  # fmt: skip
    fields = {
        "data": "YWI=",
        "shard": "s",
        "sequenceNumber": "17",
        "approximateArrivalTimestamp": 1783600000000,
    }
    fields |= data.draw(st.dictionaries(st.sampled_from(names), values, max_size=3))
    text = json.dumps(fields, ensure_ascii=data.draw(st.booleans())).encode()
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(text)))
        splice = data.draw(st.sampled_from(SPLICES))
        text = text[:at] + splice + text[at + data.draw(st.integers(0, 2)) :]
    (found,) = rows_of(read_lines([text], stream="s", file="f"))
    assert found == (expected(text) or ("f", "1", None, None, BAD_LINE, text))


def rows_of(found: pa.RecordBatch) -> list[tuple[object, ...]]:
    """Rows as `read_line` returns them."""
    columns = [found[name] for name in KINESIS_RECORD_SCHEMA.names[1:]]
    columns[3] = columns[3].cast(pa.int64())
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


OBJECTS = [
    '{"data":"YWI=","shard":"s","sequenceNumber":"17"}',
    '{"data":"YWI=","shard":"s","sequenceNumber":"18","approximateArrivalTimestamp":1783600000000}',
    '{"data":"","shardId":"t","sequence_number":"19","partitionKey":"k"}',
    '{"data":"YWI=","shard":"s","shardId":"t","sequenceNumber":"20"}',
    '{"data":"YWI=","sequenceNumber":"21"}',
    '{"data":"YWI=","shard":"s","sequenceNumber":"x"}',
    '{"data":"YWI=","shard":"s","sequenceNumber":"17","more":{}',
    ',"sequenceNumber":"17"}',
    '{"data":"YWI=","shard":"s",',
    '"sequenceNumber":"17"}',
    "{}",
    "",
]


SHARD_OF = st.fixed_dictionaries(
    {},
    optional={
        "data": st.sampled_from(["", "eA==", "w6k=", "a", None]),
        "shard": st.sampled_from(["s-1", "é", None, 3]),
        "shard_id": st.sampled_from(["s-2", None]),
        "sequenceNumber": st.sampled_from(["12", "007", 12, "x", "", "1" * 201, None]),
        "sequence_number": st.sampled_from(["13", None]),
        "partitionKey": st.sampled_from(["k", "é", None, 1]),
        "partition_key": st.sampled_from(["l", None]),
        "approximateArrivalTimestamp": st.sampled_from(
            [
                1_783_600_000_000,
                1_783_600_000,
                1_783_600_000_000.5,
                "2026-01-01T00:00:00Z",
                True,
                10**30,
                None,
            ]
        ),
        "blockAddress": st.just({}),
    },
)
WHOLE = {
    "data": "eA==",
    "shard": "s-1",
    "sequenceNumber": "12",
    "approximateArrivalTimestamp": 1_783_600_000_000,
}


@pytest.mark.slow
@settings(max_examples=share_of(500))
@given(
    rows=st.lists(SHARD_OF.map(lambda fields: WHOLE | fields), max_size=4),
    ends=st.lists(st.sampled_from([b"\n", b"\r\n", b"\n\n", b" \n", b""]), min_size=4, max_size=4),
    ascii_only=st.booleans(),
)
def test_lines_read_together_are_what_they_are_one_by_one(
    rows: list[dict[str, object]], ends: list[bytes], *, ascii_only: bool
) -> None:
    """A text of lines, all good or not, whole or not, gives what each of its lines gives."""
    said = [json.dumps(row, ensure_ascii=ascii_only).encode() for row in rows]
    text = b"".join(each + end for each, end in zip(said, ends, strict=False))
    together = read_text(text, stream="s", file="f.jsonl", first_line=7)
    assert together.equals(read_lines(io.BytesIO(text), stream="s", file="f.jsonl", first_line=7))


@pytest.mark.parametrize(
    "text",
    [
        b"@@\n\n",  # two objects in a line and an empty one: as many objects as lines
        b"\n@@",
        b'@@\n{"x":\n{}}\n',
        b'@@\r\n{"x":\r\n{}}\r\n',
        b'@@\n{"x":{}\n}\n',
        b"@\n@",
        b"@\r\n@\r\n",
        b"@ \n@\n",
        b"\n",
        b"",
        b"}\n{",
    ],
)
def test_objects_and_lines_are_not_mixed_up(text: bytes) -> None:
    """Objects that share a line, or go over several, are bad lines, even where the numbers are the same."""
    text = text.replace(b"@", OBJECTS[0].encode())
    assert read_text(text, stream="s", file="f").equals(read_lines(io.BytesIO(text), stream="s", file="f"))


def test_a_line_with_a_line_end_inside_is_one_line() -> None:
    """Lines that are given one by one are not split again."""
    pretty = OBJECTS[0].encode().replace(b",", b",\n")
    assert [row["sequence_number"] for row in read(pretty, OBJECTS[1].encode())] == ["17", "18"]
    joined = read_text(pretty + b"\n" + OBJECTS[1].encode(), stream="s", file="f")
    assert [row["problem"] for row in joined.to_pylist()] == [BAD_LINE] * 3 + [None]


@settings(max_examples=share_of(200))
@given(
    st.lists(st.sampled_from([b"", b"a", b"bc\r", *(text.encode() for text in OBJECTS[:3])]), max_size=12),
    st.sampled_from([b"", b"\n"]),
    st.integers(1, 200),
)
@pytest.mark.slow
def test_a_text_is_cut_between_its_lines(lines: list[bytes], ended: bytes, size_bytes: int) -> None:
    """The pieces make up the text, count its lines, keep their bounds, and read as the whole does."""
    text = b"\n".join(lines) + (ended if lines else b"")
    pieces = list(cut_text(text, size_bytes))
    assert b"".join(piece for piece, _ in pieces) == text
    rows = []
    first = 1
    for number, (piece, count) in enumerate(pieces, 1):
        assert count == piece.count(b"\n") + (not piece.endswith(b"\n"))
        assert count
        assert len(piece) <= size_bytes or count == 1
        assert piece.endswith(b"\n") or number == len(pieces)
        rows += read_text(piece, stream="s", file="f.jsonl", first_line=first).to_pylist()
        first += count
    assert rows == read_text(text, stream="s", file="f.jsonl").to_pylist() == read(*text.split(b"\n"))


@pytest.mark.parametrize(
    ("text", "sound"),
    [
        ("9999-12-31T23:59:59-23:59", False),
        ("0001-01-01T00:00:00+00:01", False),
        ("9999-12-31T23:59:59.999999Z", True),
        ("0001-01-01T00:00:00Z", True),
    ],
)
def test_an_offset_takes_no_arrival_out_of_the_years(text: str, sound: bool) -> None:  # noqa: FBT001 - a case
    """Python and Spark have no time there; such a line once ended every run."""
    (row,) = read(line(shard="s", sequenceNumber="1", approximateArrivalTimestamp=text))
    assert row["problem"] == (None if sound else BAD_LINE)
    assert (row["approximate_arrival_timestamp"] is None) is not sound
