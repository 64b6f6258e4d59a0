"""The strict scalar reader of change records: every check, in order."""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa
import pytest

from headpond.dsql.batch import decode_batch
from headpond.dsql.records import Change, Fragment, Refused, inspect_view, parse
from headpond.dsql.strict_json import MAX_NAMES, RefusedJson, check_json
from tests.kit.support import vector_lines

SOURCE = {
    "version": "1.0",
    "ts_ms": 1,
    "ts_ns": 1_783_600_000_000_000_002,
    "txId": "ffth",
    "schema": "public",
    "table": "t",
    "db": "postgres",
    "cluster": "kmab",
}
CHANGE = {
    "type": "full",
    "op": "c",
    "before": None,
    "after": {"id": 1},
    "source": SOURCE,
    "ts_ms": 2,
    "ts_ns": 3,
}
CHUNK = {"chunk_id": "i", "total_fragments": 2, "crc32c": "4294967295"}


def change(**fields: Any) -> bytes:
    """A good record with some fields changed; `...` removes one."""
    record = {**CHANGE, **fields}
    return json.dumps({name: value for name, value in record.items() if value is not ...}).encode()


def chunked(**fields: Any) -> bytes:
    return change(**{"type": "chunked", "after": None, "chunked": {"after": CHUNK}, **fields})


def source(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in {**SOURCE, **fields}.items() if value is not ...}


def fragment(**fields: Any) -> bytes:
    record = {"type": "fragment", "chunk_id": "i", "index": 0, "data": "x", **fields}
    return json.dumps({name: value for name, value in record.items() if value is not ...}).encode()


def text_of(token: str) -> bytes:
    """A record whose `after` holds one column with the given raw token."""
    return change().replace(b'{"id": 1}', f'{{"id": {token}}}'.encode())


REFUSED = [
    (b"\xff", "not_utf8"),
    (change().replace(b"ffth", b"\xed\xa0\x80"), "not_utf8"),
    (b"", "invalid_json"),
    (b" \n", "invalid_json"),
    (b"hello", "invalid_json"),
    (b"\xef\xbb\xbf" + change(), "invalid_json"),
    (change() + b"x", "invalid_json"),
    (change() * 2, "invalid_json"),
    (change()[:-1], "invalid_json"),
    (text_of("NaN"), "invalid_json"),
    (text_of("-Infinity"), "invalid_json"),
    (text_of('"\\ud800"'), "invalid_json"),
    (text_of('"\\udc00\\ud800"'), "invalid_json"),
    (text_of('"a\nb"'), "invalid_json"),
    (text_of('"\\x"'), "invalid_json"),
    (text_of("01"), "invalid_json"),
    (text_of("[1,]"), "invalid_json"),
    (text_of("\u0661"), "invalid_json"),
    (b"[" * 100_000 + b"]" * 100_000, "invalid_json"),
    (text_of('{"a":' * 100_000 + "1" + "}" * 100_000), "invalid_json"),
    (b'{"a":1,"a":2}', "duplicate_json_key"),
    (b'{"a":1,"\\u0061":2}', "duplicate_json_key"),
    (b'[{"a":1,"a":2}]', "duplicate_json_key"),
    (b'{"a":NaN,"a":2}', "duplicate_json_key"),
    (b'{"a":"\\ud800","a":2}', "duplicate_json_key"),
    (b'{"a":1,"a":2} x', "duplicate_json_key"),
    (text_of('[{"x":{"y":1,"y":1}}]'), "duplicate_json_key"),
    (b"[]", "not_an_object"),
    (b' "text" ', "not_an_object"),
    (b"null", "not_an_object"),
    (change(type="heartbeat"), "unknown_type"),
    (change(type=...), "unknown_type"),
    (change(type=1), "unknown_type"),
    (change(type="Full"), "unknown_type"),
    (fragment(chunk_id=1), "bad_fragment"),
    (fragment(chunk_id=...), "bad_fragment"),
    (fragment(index=True), "bad_fragment"),
    (fragment(index=-1), "bad_fragment"),
    (fragment(index=1.0), "bad_fragment"),
    (fragment(index="1"), "bad_fragment"),
    (fragment(data=None), "bad_fragment"),
    (change(op=""), "bad_op"),
    (change(op=..., source=None), "bad_op"),
    (change(op=1), "bad_op"),
    (change(source=...), "bad_source"),
    (change(source=[]), "bad_source"),
    (change(source=source(txId=1)), "bad_source"),
    (change(source=source(schema=None)), "bad_source"),
    (change(source=source(table=...)), "bad_source"),
    (change(source=source(version=1.0)), "bad_source"),
    (change(source=source(ts_ns="1")), "bad_source"),
    (change(source=source(ts_ns=-1)), "bad_source"),
    (change(source=source(ts_ns=2**63)), "bad_source"),
    (change().replace(b"178360000000000000", b"9" * 5000), "bad_source"),
    (change(source=source(ts_ns=1.77e18)), "bad_source"),
    (change(source=source(ts_ns=True)), "bad_source"),
    (change(source=source(version="2.0"), after=1), "unsupported_version"),
    (change(source=source(version="")), "unsupported_version"),
    (change(source=source(version="10.1")), "unsupported_version"),
    (change(after=[]), "bad_image"),
    (change(before="x"), "bad_image"),
    (change(after=False, op="d"), "bad_image"),
    (chunked(chunked=...), "bad_chunked"),
    (chunked(chunked={}), "bad_chunked"),
    (chunked(chunked=[CHUNK]), "bad_chunked"),
    (chunked(chunked={"after": CHUNK, "other": CHUNK}), "bad_chunked"),
    (chunked(chunked={"after": None}), "bad_chunked"),
    (chunked(chunked={"after": {**CHUNK, "total_fragments": 0}}), "bad_chunked"),
    (chunked(chunked={"after": {**CHUNK, "total_fragments": 2.0}}), "bad_chunked"),
    (chunked(chunked={"after": {**CHUNK, "total_fragments": True}}), "bad_chunked"),
    (chunked(chunked={"after": {**CHUNK, "crc32c": 5}}), "bad_chunked"),
    (chunked(chunked={"after": {**CHUNK, "crc32c": "4294967296"}}), "bad_chunked"),
    (chunked(chunked={"after": {**CHUNK, "crc32c": "-1"}}), "bad_chunked"),
    (chunked(chunked={"after": {**CHUNK, "crc32c": "\u0661"}}), "bad_chunked"),
    (chunked(chunked={"after": {**CHUNK, "chunk_id": None}}), "bad_chunked"),
    (chunked(after={"id": 1}), "bad_chunked"),
    (chunked(chunked={"before": CHUNK, "after": CHUNK}), "bad_chunked"),
    (change(op="d"), "delete_with_after"),
    (chunked(op="d"), "delete_with_after"),
    (change(after=None), "missing_after"),
    (change(after=..., op="t"), "missing_after"),
    (chunked(chunked={"before": CHUNK}), "missing_after"),
]


@pytest.mark.parametrize(("data", "reason"), REFUSED, ids=lambda part: repr(part)[:60])
def test_a_bad_record_is_refused_for_the_first_reason_that_holds(data: bytes, reason: str) -> None:
    """Each check of the spec that needs no configuration, and which of two wins."""
    record = parse(data)
    assert isinstance(record, Refused)
    assert (record.reason, bool(record.detail)) == (reason, True)


def test_a_full_record_keeps_its_images_to_the_byte() -> None:
    """Spaces, escapes and number spellings of an image are kept; unknown fields are ignored."""
    image = '{ "n" : 1.50 , "t":"\\u00e9\\/" ,"big":' + "9" * 5000 + "}"
    data = change(extra={"x": [1, {}]}).replace(b'{"id": 1}', image.encode())
    record = parse(b"\n\t " + data + b"\r ")
    assert isinstance(record, Change)
    assert not record.chunks
    assert record.after == image
    assert record.before is None
    assert record.source.ts_ns == 1_783_600_000_000_000_002
    assert (record.source.tx_id, record.source.cluster) == ("ffth", "kmab")


def test_a_delete_of_a_table_without_key_needs_no_image() -> None:
    """Both images null or absent are fine for op d."""
    assert isinstance(parse(change(op="d", before=..., after=...)), Change)


def test_the_greatest_commit_time_is_accepted() -> None:
    """ts_ns is an integer in 0 … 2^63 - 1."""
    for ts_ns in (0, 2**63 - 1):
        record = parse(change(source=source(ts_ns=ts_ns)))
        assert isinstance(record, Change)
        assert record.source.ts_ns == ts_ns


def test_a_main_record_tells_its_chunks() -> None:
    """A chunked record carries what reassembly needs, and the image that stayed inline."""
    record = parse(chunked(before={"id": 1}))
    assert isinstance(record, Change)
    assert record.before == '{"id": 1}'
    assert list(record.chunks) == ["after"]
    assert (record.chunks["after"].chunk_id, record.chunks["after"].crc32c) == ("i", 4_294_967_295)


def test_a_fragment_gives_its_text_unescaped() -> None:
    """A fragment's data may hold half an escape of the image; an index of any length is read."""
    assert parse(fragment(data='{"a": "\\u00')) == Fragment("i", 0, '{"a": "\\u00')
    huge = parse(fragment().replace(b'"index": 0', b'"index": ' + b"9" * 6000))
    assert huge == Fragment("i", 2**63 - 1, "x")


def test_refusals_below_routing_tell_the_table() -> None:
    """Whoever knows the tables can ask about the table before these reasons."""
    record = parse(change(after=None))
    assert isinstance(record, Refused)
    assert record.source is not None
    assert record.source.table == "t"


def test_depth_is_a_bound() -> None:
    """A record nested exactly to the bound is read, one deeper is refused."""
    nested = text_of("[" * 8 + "]" * 8)  # the record and its image are two more
    assert isinstance(parse(nested, max_depth=10), Change)
    assert isinstance(parse(nested, max_depth=9), Refused)


def test_containers_are_bounded() -> None:
    """Arrays and objects are counted outside of texts; a repeated name before the one too many outranks."""
    text = '{"a":[{},{},"[[["]}'
    assert check_json(text, max_containers=4)
    with pytest.raises(RefusedJson) as refused:
        check_json(text, max_containers=3)
    assert (refused.value.reason, refused.value.detail) == ("invalid_json", "more than 3 arrays and objects")
    with pytest.raises(RefusedJson) as refused:
        check_json('{"a":{"b":1,"b":2},"c":[[],[]]}', max_containers=3)
    assert refused.value.reason == "duplicate_json_key"


def test_names_of_an_object_are_bounded() -> None:
    """Those of each object for itself, and not what looks like one in a text."""
    text = '{"a":{"b":1,"c" : 2},"d":["\\"x\\":",{"b":1,"\\u0065":"y:","f":3}]}'
    assert check_json(text, max_names=3)
    with pytest.raises(RefusedJson) as refused:
        check_json(text, max_names=2)
    assert (refused.value.reason, refused.value.detail) == ("invalid_json", "more than 2 names in one object")
    with pytest.raises(RefusedJson) as refused:
        check_json('{"a":{"b":1,"b":2},"c":1,"d":1,"e":1}', max_names=3)
    assert refused.value.reason == "duplicate_json_key"


@pytest.mark.parametrize(("count", "wanted"), [(MAX_NAMES - 1, Change), (MAX_NAMES, Refused)])
def test_a_document_may_have_as_many_names_as_a_value_holds(count: int, wanted: type) -> None:
    """The batch path and the judge agree."""
    names = ",".join(f'"{number}":1' for number in range(count))
    data = text_of(f'{{"j":1,{names}}}')
    assert isinstance(parse(data), wanted)
    (row,) = decode_batch(pa.array([data])).to_pylist()
    assert row["reason"] == ("invalid_json" if wanted is Refused else None)


def test_inspect_shows_verdict_and_reason() -> None:
    """The view for the command line."""
    found = inspect_view(change())
    assert found == {
        "verdict": "full",
        "reason": None,
        "detail": None,
        "table": "public.t",
        "op": "c",
        "key": None,
        "row": {"id": 1},
        "committed": "2026-07-09T12:26:40.000000002Z",
        "ts_ns": SOURCE["ts_ns"],
        "tx_id": "ffth",
    }
    assert inspect_view(fragment(index=2))["index"] == 2
    whole = {"n": 2**70, "f": 0.1, "t": "é", "b": True, "x": None, "deep": [[1]]}
    deleted = inspect_view(change(op="d", before=whole, after=None))
    shown = {"n": str(2**70), "f": "0.1", "t": "é", "b": True, "x": None, "deep": "[[1]]"}
    assert (deleted["key"], deleted["row"]) == (shown, None)
    known = inspect_view(change(after=None))
    assert (known["reason"], known["table"], known["row"]) == ("missing_after", "public.t", None)
    assert inspect_view(b"{}") == {
        "verdict": "quarantine",
        "reason": "unknown_type",
        "detail": "type is absent",
    }


@pytest.mark.parametrize("name", ["small", "stream"])
def test_all_records_of_the_vector_streams_are_read(name: str) -> None:
    """Every Kinesis record of the streams is full, chunked or a fragment."""
    verdicts = {
        inspect_view(base64.b64decode(line["data"]))["verdict"] for line in vector_lines(f"dsql/{name}.jsonl")
    }
    assert verdicts <= {"full", "chunked", "fragment"}
