"""The scalar KPL codec beyond the vectors: round trips, limits, refusals, odd input."""

from __future__ import annotations

import array
import hashlib
import subprocess
import sys
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.kpl import (
    Aggregate,
    Aggregator,
    InvalidUserRecord,
    Malformed,
    Plain,
    Tag,
    UserRecord,
    decode,
    encode,
    pack,
    validate,
)
from headpond.kpl.hash_keys import InvalidHashKey, hash_key
from tests.kit.support import share_of
from tests.kpl import kpl_blobs


@pytest.mark.slow
@settings(max_examples=share_of(200))
@given(st.lists(kpl_blobs.tagged_records, min_size=2, max_size=10))
def test_round_trip(records: list[UserRecord]) -> None:
    """What is packed comes out again, tags with and without value included."""
    packed = encode(records, with_tags=True)
    assert decode(packed.data) == Aggregate(tuple(records))
    assert packed.partition_key == "a"
    first = records[0]
    assert packed.explicit_hash_key == (first.explicit_hash_key or str(hash_key(first.partition_key)))


@settings(max_examples=share_of(100))
@given(st.lists(kpl_blobs.user_records, min_size=1, max_size=30))
def test_accurate_size_is_the_length(records: list[UserRecord]) -> None:
    """The size equals the length of the blob after every record added."""
    aggregator: Aggregator[UserRecord] = Aggregator(10 * 1024 * 1024)
    for count, record in enumerate(records, 1):
        assert not aggregator.add(record)
        if count > 1:  # a lone record whose data is an aggregate is wrapped, which the KPL does not
            assert aggregator.data_bytes == len(encode(records[:count]).data)


@pytest.mark.parametrize("length", [0, 126, 127, 128, 16_382, 16_383, 16_384, 2_097_151, 2_097_152])
def test_lengths_at_the_edges_of_varints(length: int) -> None:
    """Data lengths around each varint boundary come back, and their size is foreseen."""
    records = [UserRecord("k", bytes(length)), UserRecord("k", b"")]
    aggregator: Aggregator[UserRecord] = Aggregator(10 * 1024 * 1024)
    for record in records:
        assert not aggregator.add(record)
    blob = encode(records, max_user_record_bytes=10 << 20).data
    assert decode(blob) == Aggregate(tuple(records))
    assert aggregator.data_bytes == len(blob)


def test_lone_record_is_sent_raw() -> None:
    """One record alone is its own data under its own key, with its hash key spelled out."""
    packed = encode([UserRecord("k", b"data", "007")])
    assert (packed.partition_key, packed.explicit_hash_key, packed.data) == ("k", "7", b"data")


def test_lone_record_that_is_an_aggregate_is_wrapped() -> None:
    """Data that every consumer would open is wrapped, and so comes out unopened."""
    inner = encode([UserRecord("k", b"one"), UserRecord("k", b"two")]).data
    record = UserRecord("p", inner)
    packed = encode([record])
    assert packed.data != inner
    assert packed.partition_key == "a"
    assert decode(packed.data) == Aggregate((record,))
    damaged = UserRecord("p", inner[:-1] + bytes([inner[-1] ^ 1]))
    assert encode([damaged]).data == damaged.data


def test_lone_record_with_tags_is_wrapped() -> None:
    """Tags of a record that leaves alone are not lost."""
    record = UserRecord("p", b"x", None, (Tag("a"), Tag("b", "")))
    assert decode(encode([record], with_tags=True).data) == Aggregate((record,))


def test_tags_are_refused_unless_asked_for() -> None:
    """No other writer has tags; a record that has some is not sent without them in silence."""
    with pytest.raises(InvalidUserRecord, match="tags"):
        encode([UserRecord("k", b""), UserRecord("k", b"", None, (Tag("a"),))])


def test_tags_can_be_left_out_when_decoding() -> None:
    """Without tags wanted they are still parsed, but their text is not looked at."""
    tag = kpl_blobs.delimited(4, kpl_blobs.delimited(1, b"\xff"))
    blob = kpl_blobs.framed(b"\x0a\x01k" + kpl_blobs.delimited(3, b"\x08\x00\x1a\x01x" + tag))
    assert decode(blob, tags=False) == Aggregate((UserRecord("k", b"x"),))
    found = decode(blob)
    assert isinstance(found, Malformed)
    assert (found.reason, blob[found.offset]) == ("invalid_utf8", 0xFF)


@pytest.mark.parametrize(
    ("record", "what", "limit", "actual"),
    [
        (UserRecord("", b""), "partition_key", 256, 0),
        (UserRecord("k" * 257, b""), "partition_key", 256, 257),
        (UserRecord("\ud800", b""), "partition_key", "UTF-8", "\ud800"),
        (UserRecord(b"k", b""), "partition_key", "str", "bytes"),  # type: ignore[arg-type]
        (UserRecord("k", bytes(101)), "data", 100, 101),
        (UserRecord("k", "text"), "data", "bytes", "str"),  # type: ignore[arg-type]
    ],
    ids=["empty key", "long key", "surrogate", "bytes as key", "much data", "text as data"],
)
def test_limits_name_what_limit_and_actual(record: UserRecord, what: str, limit: Any, actual: Any) -> None:
    """A record beyond a limit is refused with the facts, alone, in company and by `validate`."""
    for attempt in (
        lambda: encode([record], max_user_record_bytes=100),
        lambda: encode([UserRecord("k", b""), record], max_user_record_bytes=100),
        lambda: validate(record, max_user_record_bytes=100),
    ):
        with pytest.raises(InvalidUserRecord) as caught:
            attempt()
        assert caught.value.facts == {"what": what, "limit": limit, "actual": actual}
        assert caught.value.next_step


@pytest.mark.parametrize("other", [bytearray(b"abcd"), memoryview(b"abcd")])
def test_data_that_stands_for_bytes(other: Any) -> None:
    """Other objects whose items are bytes are packed like bytes, alone and in company."""
    for company in ([], [UserRecord("k", b"efgh")], [UserRecord("k", b"longer")]):
        same = encode([UserRecord("k", b"abcd"), *company])
        assert encode([UserRecord("k", other), *company]) == same
        assert type(same.data) is bytes


@pytest.mark.parametrize("company", [[], [UserRecord("k", b"abcd")], [UserRecord("k", b"longer")]])
def test_data_whose_items_are_no_bytes(company: list[UserRecord]) -> None:
    """Wider items, whose count is not their size, are refused."""
    wide: Any = memoryview(array.array("H", [1, 2, 3, 4]))
    with pytest.raises(InvalidUserRecord, match="memoryview"):
        encode([UserRecord("k", wide), *company])


@settings(max_examples=share_of(100))
@given(st.integers(0, 300), st.integers(1, 200), st.integers(1, 150))
@pytest.mark.slow
def test_records_of_one_length(length: int, count: int, keys: int) -> None:
    """Records of one length, which are packed by a shorter way, come back as they are."""
    records = tuple(UserRecord(f"key-{at % keys}", bytes([at]) * length) for at in range(count + 1))
    packed = encode(records)
    assert decode(packed.data) == Aggregate(records)
    mixed = encode([*records, UserRecord("key-0", b"x" * (length + 1))])
    assert isinstance(decode(mixed.data), Aggregate)
    assert decode(mixed.data).records[:-1] == records  # type: ignore[union-attr]


def test_key_of_256_characters_counts_code_points() -> None:
    """The service counts code points: 256 of four bytes each are allowed."""
    record = UserRecord("\U0001f511" * 256, b"x")
    assert validate(record) is record
    assert decode(encode([record, record]).data) == Aggregate((record, record))


def test_validate_spells_hash_keys() -> None:
    """A record comes back with its explicit hash key in canonical form."""
    assert validate(UserRecord("k", b"", " 007")).explicit_hash_key == "7"
    with pytest.raises(InvalidHashKey):
        validate(UserRecord("k", b"", "0x7"))
    with pytest.raises(InvalidHashKey):
        encode([UserRecord("k", b"", "undefined"), UserRecord("k", b"")])


def test_spellings_of_one_hash_key_share_an_entry() -> None:
    """The hash key table holds canonical text only, each number once."""
    same = encode([UserRecord("k", b"", "7"), UserRecord("k", b"", "7")])
    assert encode([UserRecord("k", b"", "07"), UserRecord("k", b"", " 7")]) == same


@pytest.mark.parametrize("limit", [63, 10 * 1024 * 1024 + 1])
def test_setting_of_record_size_has_bounds(limit: int) -> None:
    """max_user_record_bytes lies between 64 B and 10 MiB."""
    with pytest.raises(InvalidUserRecord, match="max_user_record_bytes"):
        encode([UserRecord("k", b"")], max_user_record_bytes=limit)


def test_nothing_to_encode() -> None:
    """An aggregate has at least one record."""
    with pytest.raises(InvalidUserRecord, match="at least one"):
        encode([])


def test_works_where_md5_is_blocked_for_security(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both directions ask for MD5 as not for security."""
    real = hashlib.md5

    def guarded(data: Any = b"", *, usedforsecurity: bool = True) -> Any:
        if usedforsecurity:
            raise ValueError("disabled for FIPS")
        return real(data, usedforsecurity=False)

    monkeypatch.setattr(hashlib, "md5", guarded)
    records = (UserRecord("k", b"one"), UserRecord("k", b"two"))
    assert decode(encode(records).data) == Aggregate(records)


@pytest.mark.slow
def test_no_protobuf_runtime() -> None:
    """The codec works where protobuf cannot be imported."""
    code = (
        "import sys; sys.modules['google.protobuf'] = sys.modules['google'] = None\n"
        "import pyarrow as pa\n"
        "from headpond.kpl import UserRecord, encode, decode\n"
        "from headpond.kpl.batch import open_batch\n"
        "blob = encode([UserRecord('k', b'x')] * 2).data\n"
        "assert len(decode(blob).records) == open_batch(pa.array([blob])).batch.num_rows == 2\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


WHOLE = encode([UserRecord("key-1", b"alpha", "7"), UserRecord("k", b"beta"), UserRecord("key-1", b"")]).data


@pytest.mark.parametrize("length", range(len(WHOLE)))
def test_cut_off_blob_is_plain(length: int) -> None:
    """A prefix of an aggregate is a user's own bytes."""
    found = decode(WHOLE[:length])
    assert isinstance(found, Plain)
    assert found.reason == (
        "no_magic" if length < 4 else "too_short" if length <= 20 else "checksum_mismatch"
    )


def test_trailing_bytes_make_it_plain() -> None:
    """The checksum stands at the end, and nowhere else."""
    assert decode(WHOLE + b"\x00") == Plain("checksum_mismatch")


def test_framing_around_nothing_is_plain() -> None:
    """Magic and the MD5 of nothing are 20 bytes, no aggregate: the bytes pass, none are lost."""
    assert decode(kpl_blobs.framed(b"")) == Plain("too_short")


@pytest.mark.parametrize("text", [b"-1", b"", b"12x", b"9" * 60])
def test_hash_keys_off_the_ring_are_carried(text: bytes) -> None:
    """Explicit hash keys that are no number on the ring stay as text, and so does their record."""
    tables = kpl_blobs.delimited(1, b"k") + kpl_blobs.delimited(2, text)
    blob = kpl_blobs.framed(tables + kpl_blobs.delimited(3, b"\x08\x00\x10\x00\x1a\x01x"))
    assert decode(blob) == Aggregate((UserRecord("k", b"x", text.decode()),))


def test_unused_entries_may_be_anything() -> None:
    """A table entry that no record uses is not looked at; one in use must be UTF-8."""
    tables = kpl_blobs.delimited(1, b"k") + kpl_blobs.delimited(1, b"\xff") + kpl_blobs.delimited(2, b"\xff")
    record = kpl_blobs.delimited(3, b"\x08\x00\x1a\x01x")
    assert decode(kpl_blobs.framed(tables + record)) == Aggregate((UserRecord("k", b"x"),))
    used = decode(kpl_blobs.framed(tables + record + kpl_blobs.delimited(3, b"\x08\x01\x1a\x00")))
    assert used.reason == "invalid_utf8"


@pytest.mark.parametrize("length", range(len(WHOLE) - 20))
def test_cut_off_message(length: int) -> None:
    """A message cut anywhere is malformed, or an aggregate of the whole records before the cut."""
    found = decode(kpl_blobs.framed(WHOLE[4:-16][:length]))
    if isinstance(found, Aggregate):
        whole = decode(WHOLE)
        assert isinstance(whole, Aggregate)
        assert found.records == whole.records[: len(found.records)]
    elif length:
        assert isinstance(found, Malformed)
        assert 4 <= found.offset <= 4 + length


@pytest.mark.slow
@settings(max_examples=share_of(200))
@given(kpl_blobs.any_blobs)
def test_any_bytes_have_an_outcome(blob: bytes) -> None:
    """Decoding never raises, and names a place inside the blob if it is malformed."""
    found = decode(blob)
    if isinstance(found, Malformed):
        assert 4 <= found.offset <= len(blob)
        assert found.message.startswith(f"At byte {found.offset} ")


def test_wire_errors_come_before_missing_fields() -> None:
    """A message that breaks off is a protobuf error even if a record before lacks a field."""
    lacking = kpl_blobs.delimited(3, b"\x08\x00")
    assert decode(kpl_blobs.framed(lacking)).reason == "missing_required"
    assert decode(kpl_blobs.framed(lacking + b"\x1a")).reason == "protobuf_error"


@pytest.mark.parametrize(
    ("depth", "outcome"), [(100, "aggregate"), (101, "malformed"), (100_000, "malformed")]
)
def test_nesting_is_bounded(depth: int, outcome: str) -> None:
    """Groups nest up to 100 deep, as in protobuf; deeper ones neither pass nor exhaust the stack."""
    assert decode(kpl_blobs.framed(b"\x4b" * depth + b"\x4c" * depth)).outcome == outcome


@pytest.mark.parametrize("inside", ["record", "tag"])
def test_nesting_counts_messages(inside: str) -> None:
    """A record is one level, its tag another."""
    groups = 99 if inside == "record" else 98
    for extra, outcome in ((0, "aggregate"), (1, "malformed")):
        unknown = b"\x4b" * (groups + extra) + b"\x4c" * (groups + extra)
        if inside == "tag":
            unknown = kpl_blobs.delimited(4, b"\x0a\x01t" + unknown)
        blob = kpl_blobs.framed(b"\x0a\x01k" + kpl_blobs.delimited(3, b"\x08\x00\x1a\x00" + unknown))
        assert decode(blob).outcome == outcome


@pytest.mark.parametrize("length", [2**31, 2**32, 2**63, 2**64 - 1])
def test_absurd_lengths(length: int) -> None:
    """Lengths are compared in full width with what is left."""
    assert (
        decode(kpl_blobs.framed(b"\x1a" + kpl_blobs.varint(length) + b"\x08\x00")).reason == "protobuf_error"
    )


@pytest.mark.parametrize("index", [1, 2**32, 2**63, 2**64 - 1])
def test_absurd_indices(index: int) -> None:
    """Indices are compared before they are narrowed."""
    for record in (
        b"\x08" + kpl_blobs.varint(index) + b"\x1a\x00",
        b"\x08\x00\x10" + kpl_blobs.varint(index) + b"\x1a\x00",
    ):
        blob = kpl_blobs.framed(b"\x0a\x01k\x12\x017" + kpl_blobs.delimited(3, record))
        assert decode(blob).reason == "index_out_of_range"


def test_keys_that_unfold_too_far() -> None:
    """The keys of one aggregate, written out per record, are bounded."""
    blob = encode([UserRecord("k" * 200, b"")] * 50).data
    assert decode(blob, max_expanded_bytes=10_000).outcome == "aggregate"
    found = decode(blob, max_expanded_bytes=9_999)
    assert found.reason == "expansion_limit"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "unit", [b"\x0a\x00", b"\x1a\x00", b"\x4b\x4c", b"\x48\x00", b"\x1a\x04\x08\x00\x1a\x00", b"\x22\x00"]
)
def test_time_grows_with_length(unit: bytes) -> None:
    """Sixteen times the bytes take at most some sixty times as long: nothing is quadratic."""

    def seconds(count: int) -> float:
        blob = kpl_blobs.framed(b"\x0a\x01k" + unit * count)
        best = 1e9
        for _ in range(3):
            start = time.process_time()
            decode(blob)
            best = min(best, time.process_time() - start)
        return best

    assert seconds(32_000) < 60 * seconds(2_000) + 0.01


@settings(max_examples=share_of(100))
@given(
    st.lists(kpl_blobs.user_records, max_size=40),
    st.integers(64, 400),
    st.integers(1, 10),
)
def test_packing_holds_the_limits(records: list[UserRecord], max_size: int, max_count: int) -> None:
    """Batches keep the order and hold both limits, but for a record that is too large alone."""
    batches = pack(records, max_size, max_count)
    assert [record for batch in batches for record in batch] == records
    for batch in batches:
        assert len(batch) <= max_count
        if len(batch) > 1:
            assert len(encode(batch).data) <= max_size


def test_aggregator_keeps_what_has_not_left() -> None:
    """The record that does not fit any more opens the next aggregate, in the order of arrival."""
    aggregator: Aggregator[UserRecord] = Aggregator(max_size=64, max_count=100)
    first, second, third = (UserRecord("k", name * 14) for name in (b"x", b"y", b"z"))
    assert not aggregator.add(first)
    assert not aggregator.add(second)
    assert aggregator.add(third) == (([first, second], 63),)
    assert len(aggregator) == 1
    closed = aggregator.close()
    assert closed is not None
    assert closed == ([third], 14)
    assert aggregator.close() is None
    assert len(aggregator) == 0


@pytest.mark.parametrize(("size", "count"), [(63, 1), (10 * 1024 * 1024 + 1, 1), (64, 0)])
def test_aggregator_settings_have_bounds(size: int, count: int) -> None:
    """Sizes lie between 64 B and 10 MiB; an aggregate holds at least one record."""
    with pytest.raises(InvalidUserRecord, match="aggregation_max"):
        Aggregator(size, count)
