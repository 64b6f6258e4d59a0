"""The buffer of unmatched records: in memory and on RocksDB, with and without headers, old beside new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.kstreams import (
    ChangelogRecord,
    OuterJoinBuffer,
    StoreClosed,
    StoreFormatMismatch,
    StoreLocked,
)
from headpond.kstreams.bytes.headers import SerializationError
from headpond.kstreams.bytes.join_buffer import (
    BufferFormat,
    Side,
    decode_buffer_element_with_headers,
    encode_buffer_element_with_headers,
    encode_buffer_key,
    encode_buffer_list,
    plain_list_to_headers,
)
from headpond.kstreams.join.stores import BUFFER_WITH_HEADERS_COLUMN_FAMILY, MemoryPairs, RocksPairs, Waiting
from headpond.kstreams.stores.rocks import column_families
from tests.kit.support import share_of, vector_json
from tests.kstreams.vectors import unpacked

if TYPE_CHECKING:
    from pathlib import Path

HEADER = st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=4))
TRACE = (("trace-id", b"\x01"), ("none", None))


def buffer_in(place: str, tmp_path: Path, buffer_format: BufferFormat) -> OuterJoinBuffer:
    if place == "memory":
        return OuterJoinBuffer(MemoryPairs(buffer_format))
    return OuterJoinBuffer(RocksPairs(tmp_path / "buffer", buffer_format))


def listed(buffer: OuterJoinBuffer) -> list[tuple[int, Side, bytes, list[Waiting]]]:
    return [(*key, waiting) for key, waiting in buffer.walk()]


@pytest.mark.parametrize("place", ["memory", "rocksdb"])
@pytest.mark.parametrize("buffer_format", BufferFormat)
def test_records_leave_in_order(place: str, buffer_format: BufferFormat, tmp_path: Path) -> None:
    """By time, right before left, then by key; those of one key as they came; removal while reading."""
    buffer = buffer_in(place, tmp_path, buffer_format)
    buffer.append(100, Side.LEFT, b"b", b"v1", TRACE)
    buffer.append(100, Side.LEFT, b"a", b"v2")
    buffer.append(100, Side.RIGHT, b"b", b"", TRACE)
    buffer.append(99, Side.LEFT, b"z", b"v4")
    buffer.append(100, Side.LEFT, b"b", b"v5")
    kept = TRACE if buffer_format is BufferFormat.HEADERS else ()
    assert listed(buffer) == [
        (99, Side.LEFT, b"z", [Waiting(b"v4")]),
        (100, Side.RIGHT, b"b", [Waiting(b"", kept)]),
        (100, Side.LEFT, b"a", [Waiting(b"v2")]),
        (100, Side.LEFT, b"b", [Waiting(b"v1", kept), Waiting(b"v5")]),
    ]
    buffer.remove(100, Side.LEFT, b"b")
    buffer.remove(1, Side.LEFT, b"nobody")
    for key, _ in buffer.walk():
        buffer.remove(*key)
    assert listed(buffer) == []
    buffer.close()
    buffer.close()


def test_a_directory_of_kafka_streams_goes_on_with_headers(tmp_path: Path) -> None:
    """Old elements have none; a list that grows moves as a whole; both formats come in one order."""
    vector = vector_json("window-store/handover/outer-headers.json")
    directory = unpacked("handover/outer-headers", tmp_path) / vector["config"]["directories"]["outer"]
    expected = [
        (
            each["timestamp"],
            Side[each["side"].upper()],
            each["key"].encode(),
            [Waiting(value.encode()) for value in each["values"]],
        )
        for each in vector["contents_at_cut"][vector["config"]["stores"]["outer"]]
    ]
    files = sorted(directory.iterdir())
    looked = OuterJoinBuffer(RocksPairs(directory, read_only=True))
    assert listed(looked) == expected
    with pytest.raises(StoreClosed, match="for reading only"):
        looked.remove(*expected[0][:3])
    looked.close()
    assert sorted(directory.iterdir()) == files
    with pytest.raises(StoreFormatMismatch, match="column families of no join buffer") as refused:
        RocksPairs(tmp_path / vector["config"]["directories"]["left"] / first_segment(tmp_path, vector))
    assert refused.value.facts["column_families"]

    buffer = OuterJoinBuffer(RocksPairs(directory))
    with pytest.raises(StoreLocked):
        RocksPairs(directory)
    first, second, third = expected[0], expected[1], expected[2]
    buffer.append(*first[:3], b"new", TRACE)
    buffer.append(first[0], Side.RIGHT, b"own", b"v", TRACE)
    buffer.remove(*third[:3])
    buffer.close()
    again = OuterJoinBuffer(RocksPairs(directory))
    assert listed(again) == [
        (first[0], Side.RIGHT, b"own", [Waiting(b"v", TRACE)]),
        (*first[:3], [*first[3], Waiting(b"new", TRACE)]),
        second,
        *expected[3:],
    ]
    again.close()
    assert BUFFER_WITH_HEADERS_COLUMN_FAMILY in column_families(directory)
    with pytest.raises(StoreFormatMismatch, match="keeps headers"):
        RocksPairs(directory, BufferFormat.PLAIN)


def first_segment(tmp_path: Path, vector: Any) -> str:
    directory = tmp_path / str(vector["config"]["directories"]["left"])
    return next(directory.iterdir()).name


def test_without_headers_the_bytes_are_those_of_kafka_streams(tmp_path: Path) -> None:
    """Key by key, what the application left; restored from its changelog."""
    vector = vector_json("window-store/handover/outer-headers.json")
    name = vector["config"]["stores"]["outer"]
    raw = {bytes.fromhex(key): bytes.fromhex(value) for key, value in vector["raw_at_cut"][name]["default"]}
    log = [
        ChangelogRecord(
            bytes.fromhex(each["key"]),
            None if each["value"] is None else bytes.fromhex(each["value"]),
            each["timestamp"],
        )
        for each in vector["changelog_first_half"][name]
    ]
    pairs = RocksPairs(tmp_path / "restored", BufferFormat.PLAIN)
    OuterJoinBuffer(pairs).restore(log)
    again = RocksPairs(tmp_path / "appended", BufferFormat.PLAIN)
    buffer = OuterJoinBuffer(again)
    for each in vector["contents_at_cut"][name]:
        for value in each["values"]:
            buffer.append(
                each["timestamp"], Side[each["side"].upper()], each["key"].encode(), value.encode(), TRACE
            )
    assert dict(pairs.scan()) == dict(again.scan()) == raw
    with_headers = OuterJoinBuffer(MemoryPairs())
    with_headers.restore(log)
    assert listed(with_headers) == listed(OuterJoinBuffer(pairs))
    pairs.close()
    again.close()


@given(st.sampled_from(Side), st.binary(max_size=9), st.lists(HEADER, max_size=3))
@settings(max_examples=share_of(50))
def test_an_element_with_headers_comes_back(
    side: Side, value: bytes, headers: list[tuple[str, bytes | None]]
) -> None:
    """Whatever its headers; cut anywhere before its value it is damaged or another element, never a crash."""
    data = encode_buffer_element_with_headers(side, value, headers)
    assert decode_buffer_element_with_headers(data) == (side, value, headers)
    for size in range(len(data) - len(value)):
        with pytest.raises(SerializationError):
            decode_buffer_element_with_headers(data[:size])
    assert plain_list_to_headers(encode_buffer_list([bytes((side.value,)) + value])) == encode_buffer_list(
        [encode_buffer_element_with_headers(side, value, None)]
    )


def test_damage_in_the_buffer_names_the_entry() -> None:
    """A list cut short, and an element of the other side."""
    key = encode_buffer_key(5, Side.LEFT, b"k")
    for element, reason in ((b"\x00v", "bad_side"), (b"", "empty")):
        pairs = MemoryPairs(BufferFormat.PLAIN)
        pairs.put(key, encode_buffer_list([element]))
        with pytest.raises(SerializationError, match=key.hex()) as caught:
            listed(OuterJoinBuffer(pairs))
        assert caught.value.facts["reason"] == reason
        assert caught.value.facts["buffer_key"] == key.hex()
