"""The batch reader: on every input what the scalar reader gives."""

from __future__ import annotations

import base64
import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.dsql.batch import DECODED_SCHEMA, decode_batch, scalar_row
from tests.dsql.test_records import REFUSED, change, chunked, fragment, source
from tests.kit.support import share_of, vector_lines

SMALL = [base64.b64decode(line["data"]) for line in vector_lines("dsql/small.jsonl")]
SHORT = [record for record in SMALL if len(record) < 900]
SPLICES = [
    b'"', b"\\", b",", b":", b'"a":1,', b'"op":"c",', b"0", b"-", b"null", b"{}", b"[]", b" ", b"\\u0041",
    b"\\ud800", b'\\"', b"\\\\", b"}", b"{", b"1.5", b"1e400", b"\xc3\xa9", b"\xff", b"\x00", b"\n", b"NaN",
    b'":"', b'": "', b" :", b'"ts_ns":5,', b'"before":null,', b'"x":{"y":1,"y":2},', b'"\\"":1,',
    b'"\\u0069d":2,', b"\xed\xa0\x80", b"\xef\xbb\xbf", b"[[[[", b"]]]]", b"-Infinity",
]  # fmt: skip


def assert_as_scalar(records: list[bytes]) -> None:
    found = decode_batch(pa.array(records, pa.binary()))
    found.validate(full=True)
    expected = pa.RecordBatch.from_pylist([scalar_row(record) for record in records], schema=DECODED_SCHEMA)
    assert found.to_pylist() == expected.to_pylist()
    assert found.schema == DECODED_SCHEMA


def mutated(record: bytes, draw: random.Random) -> bytes:
    """One or two cuts, splices or changed bytes."""
    text = bytearray(record)
    for _ in range(draw.randint(1, 2)):
        at = draw.randrange(len(text) + 1)
        kind = draw.random()
        if kind < 0.5:
            text[at:at] = draw.choice(SPLICES)
        elif kind < 0.7:
            del text[at : at + draw.randint(1, 4)]
        elif kind < 0.9:
            text[at : at + 1] = bytes([draw.choice(b'"\\{}[]:,0123456789 nulltruefalse-+.eEd\x00\n\xffa')])
        else:
            del text[at:]
    return bytes(text)


@pytest.mark.parametrize("name", ["small", "stream"])
def test_the_vector_streams_are_decoded_as_one_by_one(name: str) -> None:
    """Full, chunked and fragment records, in batches of some hundred."""
    records = [base64.b64decode(line["data"]) for line in vector_lines(f"dsql/{name}.jsonl")][:1200]
    assert_as_scalar(records)


def test_every_refusal_is_the_scalar_one() -> None:
    """Bad records in one batch with good ones."""
    assert_as_scalar([*(data for data, _ in REFUSED if len(data) < 10_000), *SHORT, chunked(), fragment()])


@settings(max_examples=share_of(300))
@given(seed=st.integers(0, 2**32), base=st.integers(0, len(SHORT) - 1))
@pytest.mark.slow
def test_mutated_records_are_decoded_as_one_by_one(seed: int, base: int) -> None:
    """Broken copies of a record among whole ones."""
    draw = random.Random(seed)
    records = [SHORT[base]] * 3 + [mutated(SHORT[base], draw) for _ in range(12)]
    draw.shuffle(records)
    assert_as_scalar([SHORT[base], *records])


def test_values_of_every_kind_in_one_place() -> None:
    """Whatever stands in the place of a value, the record is read as alone."""
    plain = [
        b"1",
        b"-0",
        b"01",
        b"1.5",
        b"1e400",
        b"-",
        b"nul",
        b"null",
        b"true",
        b"False",
        b"9" * 30,
        b"{}",
        b"",
        b"1 2",
        b"1,2",
    ]
    texts = [b'"x"', b'"\\n"', b'"\\u00e9"', b'"\xc3\xa9"', b'"\xc3"', b'"\x1f"', b'"\\x"', b'" : "', b'":"']
    times = [
        b"1",
        b"9223372036854775807",
        b"9223372036854775808",
        b"-1",
        b"1.0",
        b"1e3",
        b"0" * 3,
        b"12345678901234567890",
    ]
    template = change(after={"id": 7, "v": "w"}, source=source(ts_ns=1111))
    records = [template] * 3
    records += [template.replace(b"7", token) for token in plain + texts]
    records += [template.replace(b'"w"', token) for token in plain + texts]
    records += [template.replace(b"1111", token) for token in times]
    records += [template.replace(b'"c"', token) for token in [b'""', b'"d"', b'"\\u0064"', b'"m"', b"null"]]
    records += [
        template.replace(b"kmab", b'k\\"b'),
        template.replace(b"ffth", b"\\\\"),
        template.replace(b'"1.0"', b'"1.7"'),
    ]
    assert_as_scalar(records)


def test_an_empty_batch_and_a_slice() -> None:
    """No record gives no row; a sliced array is read from its offset."""
    assert_as_scalar([])
    records = pa.array([b"junk", *SMALL[:60], b"junk"], pa.binary())
    found = decode_batch(records.slice(1, 60))
    assert found.to_pylist() == decode_batch(pa.array(SMALL[:60], pa.binary())).to_pylist()


def test_depth_is_the_same_bound() -> None:
    """A record nested deeper than asked for is refused by the batch reader too."""
    record = change(after={"a": [[[[1]]]]})
    batch = pa.array([record] * 100, pa.binary())
    assert set(decode_batch(batch, max_depth=6).column("verdict").to_pylist()) == {"full"}
    assert set(decode_batch(batch, max_depth=5).column("reason").to_pylist()) == {"invalid_json"}


@pytest.mark.parametrize(
    "twice",
    [
        change().replace(b'"id": 1', b'"id": 1, "id": 1'),
        change().replace(b'"id": 1', b'"id": "\\"", "\\u0069d": 2'),
        change().replace(b'"id": 1', b'"id": {"x": [{"y": 1, "y": 2}]}'),
        change().replace(b'"op"', b'"op": "u", "op"'),
        change().replace(b'"txId"', b'"txId": "", "txId"'),
        change().replace(b'"db": "postgres"', b'"table": "a", "db": "postgres"'),
        change().replace(b', "ts_ms": 2', b', "ts_ns": 4'),
        change(db=1).replace(b'"db": 1', b'"op": "c"'),
        b'{"after": null, ' + change()[1:],
    ],
)
def test_a_name_twice_is_found_among_regular_records(twice: bytes) -> None:
    """The last value would win, and its quotes are those of a regular record or nearly."""
    assert_as_scalar([change(), twice, change()])
    assert decode_batch(pa.array([twice], pa.binary()))["reason"].to_pylist() == ["duplicate_json_key"]


def test_records_short_of_a_member_or_with_one_more_are_read() -> None:
    """What the preview left out, and what the service may add one day."""
    less = [change(**{name: ...}) for name in ("before", "ts_ms", "ts_ns")]
    less += [change(source=source(**{name: ...})) for name in ("db", "cluster", "ts_ms")]
    assert_as_scalar([*less, change(added={"a": [1]}), change(source=source(lsn="7"))])
    found = decode_batch(pa.array(less, pa.binary()))
    assert set(found["verdict"].to_pylist()) == {"full"}


@pytest.mark.slow
def test_one_record_of_ten_mebibytes() -> None:
    """Of one text, and of a great many names."""
    wide = {f"c{number}": number for number in range(200_000)}
    assert_as_scalar([change(after={"id": "x" * (10 << 20)}), change(after=wide), change()])
