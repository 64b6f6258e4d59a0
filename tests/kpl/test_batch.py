"""Opening many Kinesis records at once gives what the scalar codec gives for each."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.core.errors import UsageError
from headpond.kpl import (
    Aggregate,
    Malformed,
    MalformedAggregate,
    Plain,
    UserRecord,
    decode,
    encode,
    kept_by_range,
)
from headpond.kpl import batch as kpl_batch
from headpond.kpl.batch import OpenCounters, open_batch, open_batches, opened_schema
from headpond.kpl.hash_keys import FULL_RANGE, HashKeyRange
from tests.kit.support import ROOT, share_of
from tests.kpl import kpl_blobs

SHARDS = (HashKeyRange(0, 2**127 - 1), HashKeyRange(2**127, 2**128 - 1))


def expected_rows(
    blobs: list[bytes], mode: Any = "off", shard: HashKeyRange = FULL_RANGE, **bounds: int
) -> tuple[list[dict[str, Any]], OpenCounters]:
    """Say the same with the scalar codec."""
    rows: list[dict[str, Any]] = []
    counters = OpenCounters(kinesis_records=len(blobs))
    for origin, blob in enumerate(blobs):
        row = {"origin": origin, "sub_sequence_number": 0, "explicit_hash_key": None, "tags": []}
        row |= {"partition_key": f"api-{origin}", "data": blob, "aggregated": False, "problem": None}
        match decode(blob, **bounds):
            case Plain(reason):
                counters.plain += 1
                if reason == "checksum_mismatch":
                    counters.checksum_mismatch += 1
                    row["problem"] = "kpl_checksum_mismatch"
                rows.append(row)
            case Malformed(reason):
                counters.malformed[reason] = counters.malformed.get(reason, 0) + 1
                rows.append(row | {"problem": f"kpl_{reason}"})
            case Aggregate(records):
                counters.aggregates += 1
                counters.empty_aggregates += not records
                kept = kept_by_range(records, shard, mode)
                counters.user_records += len(kept)
                counters.range_filtered += len(records) - len(kept)
                for position in kept:
                    record = records[position]
                    mine = {
                        "sub_sequence_number": position,
                        "partition_key": record.partition_key,
                        "explicit_hash_key": record.explicit_hash_key,
                        "data": record.data,
                        "aggregated": True,
                        "tags": [tag._asdict() for tag in record.tags],
                    }
                    rows.append(row | mine)
    return rows, counters


COMPANY = encode([UserRecord("company", bytes(at)) for at in range(3)]).data


def opened(blobs: list[bytes], **options: Any) -> tuple[list[dict[str, Any]], OpenCounters]:
    """Open blobs at once, and again in front of so many others that all are followed in lockstep."""
    data, keys = (
        pa.array(blobs, pa.binary()),
        pa.array([f"api-{at}" for at in range(len(blobs))], pa.string()),
    )
    found = open_batch(data, keys, tags=True, **options)
    found.batch.validate(full=True)
    assert found.batch.schema == opened_schema(tags=True)
    rows = found.batch.to_pylist()
    crowd = pa.concat_arrays([data, pa.array([COMPANY] * 50, pa.binary())])
    crowd_keys = pa.concat_arrays([keys, pa.nulls(50, pa.string())])
    options.pop("max_batch_bytes", None)
    parts = [part.batch for part in open_batches(crowd, crowd_keys, tags=True, **options)]
    assert [row for part in parts for row in part.to_pylist()][: len(rows)] == rows
    return rows, found.counters


def test_all_vectors_in_one_batch() -> None:
    """Every vector opens beside all the others as it does alone."""
    blobs = kpl_blobs.VECTOR_BLOBS
    assert opened(blobs) == expected_rows(blobs)


@pytest.mark.slow
@pytest.mark.parametrize("at", range(len(kpl_blobs.VECTOR_BLOBS)))
def test_each_vector_alone(at: int) -> None:
    """A batch of one is opened by the same rules, and so is the blob between plain records."""
    blob = kpl_blobs.VECTOR_BLOBS[at]
    for blobs in ([blob], [b"", blob, bytes(5000)], [blob, blob]):
        assert opened(blobs) == expected_rows(blobs)


@settings(max_examples=share_of(150))
@given(st.lists(kpl_blobs.any_blobs, max_size=6))
@pytest.mark.slow
def test_same_as_scalar(blobs: list[bytes]) -> None:
    """Generated, mutated and truncated blobs give the scalar codec's rows and counters."""
    assert opened(blobs) == expected_rows(blobs)


@pytest.mark.thorough
@settings(max_examples=share_of(100))
@given(
    st.lists(kpl_blobs.any_blobs, max_size=5), st.sampled_from(["per_record", "kcl"]), st.sampled_from(SHARDS)
)
def test_same_filter_as_scalar(blobs: list[bytes], mode: str, shard: HashKeyRange) -> None:
    """The hash range filter keeps the same records."""
    assert opened(blobs, hash_range_filter=mode, hash_keys=shard) == expected_rows(blobs, mode, shard)


@pytest.mark.thorough
@settings(max_examples=share_of(50))
@given(st.lists(kpl_blobs.any_blobs, max_size=6), st.integers(1, 200), st.integers(1, 200))
def test_cuts_do_not_matter(blobs: list[bytes], max_batch_bytes: int, max_output_bytes: int) -> None:
    """Input and output may be cut anywhere between records; order, rows and counters stay."""
    assert opened(blobs, max_batch_bytes=max_batch_bytes, max_output_bytes=max_output_bytes) == expected_rows(
        blobs
    )


@pytest.mark.parametrize("cut", range(0, 61, 1))
def test_truncated_everywhere(cut: int) -> None:
    """An aggregate cut at any byte, with its checksum set right, opens as the scalar codec says."""
    whole = encode(
        [UserRecord("key-1", b"alpha", "7"), UserRecord("k", b"beta"), UserRecord("key-1", b"")]
    ).data
    blob = kpl_blobs.framed(whole[4:-16][:cut])
    assert opened([whole, blob, whole]) == expected_rows([whole, blob, whole])


def test_fast_path_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Aggregates in the usual shape never meet the strict parser, whatever their sizes of numbers."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the strict parser was asked")

    sizes = [0, 1, 5, 127, 128, 300, 15000, 3]
    records = [
        UserRecord(f"key-{at % 300}", bytes([at % 251]) * size, str(at) if at % 3 else None)
        for at, size in enumerate(sizes * 45)
    ]
    blobs = [
        encode(records).data,
        encode(records[:7]).data,
        encode(records[5:9]).data,
        encode(records[::3]).data,
    ]
    expected = expected_rows(blobs)
    monkeypatch.setattr(kpl_batch, "parse_aggregate", refuse)
    assert opened(blobs) == expected


def test_signatures_in_user_data_do_not_mislead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Aggregates inside aggregates never meet the strict parser and stay opaque."""
    inner = encode([UserRecord("k", b"one"), UserRecord("k", b"two")]).data
    blobs = [
        encode([UserRecord("p", inner), UserRecord("q", inner * 2)]).data,
        encode([UserRecord("p", b"x"), UserRecord(inner[4:18].decode("latin-1"), b"y")]).data,
        encode([UserRecord("a" * 10, b"x"), UserRecord("\n" * 10, b"y"), UserRecord("\n" * 9, b"y")]).data,
    ]
    expected = expected_rows(blobs)
    monkeypatch.setattr(kpl_batch, "parse_aggregate", None)
    assert opened(blobs) == expected
    assert expected[1].user_records == 7


def test_few_aggregates_among_much_plain_data() -> None:
    """Where most bytes are plain only the aggregates are walked."""
    blobs = [bytes([at]) * 3000 for at in range(20)]
    blobs[7] = encode([UserRecord("k", b"one", "5"), UserRecord("k", b"two")]).data
    blobs[13] = encode([UserRecord("k", b"one"), UserRecord("l", b"two")]).data
    assert opened(blobs) == expected_rows(blobs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("aggregates", "records", "size"),
    [
        (100, 20, 600),  # many, of few records
        (20, 200, 100),  # few, of many records
        (500, 3, 200),  # very many
        (1, 2000, 10),  # alone
        (17, 3, 20_000),  # records that the strict parser opens
    ],
)
def test_any_proportion(aggregates: int, records: int, size: int) -> None:
    """Many aggregates of few records and few of many are opened alike, between plain data."""
    blobs = [
        encode([UserRecord(f"k{at % 3}", bytes([at % 250]) * size) for at in range(records)]).data
        for _ in range(aggregates)
    ]
    blobs = [bytes(200_000), *blobs, b"plain"]
    assert opened(blobs) == expected_rows(blobs)


@pytest.mark.slow
def test_aggregates_of_very_different_lengths() -> None:
    """One aggregate that is a hundred times longer than its neighbours is followed to its end."""
    blobs = [encode([UserRecord(f"k{at}", b"x" * at) for at in range(count)]).data for count in range(2, 60)]
    blobs.insert(7, encode([UserRecord("long", bytes([at % 250])) for at in range(5000)]).data)
    assert opened(blobs) == expected_rows(blobs)


@pytest.mark.parametrize("width", [pa.binary(), pa.large_binary()])
def test_slices_and_chunks(width: Any) -> None:
    """Sliced arrays, chunked arrays and both binary types are read alike."""
    blobs = kpl_blobs.VECTOR_BLOBS[:40]
    rows, counters = expected_rows(blobs)
    keys = pa.array([f"api-{at}" for at in range(len(blobs))])
    array = pa.concat_arrays(
        [pa.array([b"before"], width), pa.array(blobs, width), pa.array([b"after"], width)]
    )
    chunked = pa.chunked_array([array.slice(1, 13), array.slice(14, 0), array.slice(14, len(blobs) - 13)])
    for data in (array.slice(1, len(blobs)), chunked):
        for api_keys in (keys, pa.chunked_array([keys.slice(0, 5), keys.slice(5)]), keys.dictionary_encode()):
            found = open_batch(data, api_keys, tags=True)
            assert found.batch.to_pylist() == rows
            assert found.counters == counters


def test_nothing_in_nothing_out() -> None:
    """No Kinesis record gives a batch of no rows."""
    found = open_batch(pa.array([], pa.binary()))
    assert found.batch.num_rows == 0
    assert found.batch.schema == opened_schema(tags=False)
    assert found.counters == OpenCounters()


def test_keys_of_plain_records() -> None:
    """A plain record keeps the keys it was put with; unknown ones are null; aggregates have their own."""
    blobs = [b"one", encode([UserRecord("k", b"1"), UserRecord("l", b"2", "9")]).data, b"two"]
    found = open_batch(pa.array(blobs), pa.array(["a", "b", None])).batch
    assert found.column("partition_key").to_pylist() == ["a", "k", "l", None]
    assert found.column("explicit_hash_key").to_pylist() == [None, None, "9", None]
    assert open_batch(pa.array(blobs)).batch.column("partition_key").to_pylist() == [None, "k", "l", None]


def test_fail_names_the_record() -> None:
    """With on_malformed="fail" the first malformed aggregate raises, and says which, where and why."""
    bad = kpl_blobs.framed(b"\x1a\x02\x08\x00")
    data = pa.array([b"plain", bad, bad])
    with pytest.raises(MalformedAggregate) as caught:
        list(
            open_batches(
                data, on_malformed="fail", where=lambda at: {"shard_id": "s-1", "sequence_number": at}
            )
        )
    assert caught.value.facts == {
        "reason": "kpl_missing_required",
        "offset": 4,
        "origin": 1,
        "shard_id": "s-1",
        "sequence_number": 1,
    }
    assert "shard_id s-1" in str(caught.value)
    assert open_batch(data).counters.malformed == {"missing_required": 2}


def test_keys_that_unfold_too_far() -> None:
    """A table entry that many records use is bounded, on the fast path, too."""
    big = encode([UserRecord("k" * 200, b"")] * 50).data
    small = encode([UserRecord("k" * 200, b"")] * 49).data
    hashed = encode([UserRecord("k" * 180, b"", "9" * 20)] * 50).data
    rows, counters = opened([big, small, hashed], max_expanded_bytes=9999)
    assert (rows, counters) == expected_rows([big, small, hashed], max_expanded_bytes=9999)
    assert counters.malformed == {"expansion_limit": 2}
    assert rows[0]["problem"] == "kpl_expansion_limit"


@pytest.mark.parametrize("most", [9, 10, 12, 16])
def test_fields_are_bounded(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Those of all messages together; the opener leaves what may have more to the strict reader."""
    monkeypatch.setattr("headpond.kpl.wire.MAX_FIELDS", most)
    monkeypatch.setattr("headpond.kpl.opener.MAX_FIELDS", most)
    usual = encode([UserRecord("k", b"x")] * 8).data
    long = encode([UserRecord("k", b"x" * 200)] * 2).data
    groups = kpl_blobs.framed(b"\x0a\x01k" + b"\x3b\x3c" * 6)
    rows, counters = opened([usual, long, groups])
    assert (rows, counters) == expected_rows([usual, long, groups])
    assert counters.malformed.get("expansion_limit", 0) == {9: 3, 10: 1, 12: 1, 16: 0}[most]


def test_a_defect_of_the_vectorised_opener_is_nobodys_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """The strict parser opens the batch instead."""
    blobs = [encode([UserRecord("k", b"a"), UserRecord("l", b"b")]).data, b"plain", kpl_blobs.framed(b"\x4b")]
    wanted = opened(blobs)
    whole = kpl_batch.open_proven

    def fails(buffer: Any, start: Any, *more: Any) -> Any:
        if len(start):
            raise IndexError("a defect")
        return whole(buffer, start, *more)

    monkeypatch.setattr(kpl_batch, "open_proven", fails)
    assert opened(blobs) == wanted


def test_a_record_that_the_parser_fails_on_is_kept_with_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reason is an internal error; those beside it are opened. Too little memory is not its fault."""
    fine, pill = kpl_blobs.framed(b"\x0a\x01k\x08\x01"), kpl_blobs.framed(b"\x0a\x01k\x10\x01")
    whole = kpl_batch.parse_aggregate
    fault: BaseException = RecursionError("too deep")

    def fails(blob: bytes, **more: Any) -> Any:
        if blob == pill:
            raise fault
        return whole(blob, **more)

    monkeypatch.setattr(kpl_batch, "parse_aggregate", fails)
    rows, counters = opened([fine, pill, b"plain"])
    assert [(row["problem"], row["data"]) for row in rows if row["problem"]] == [("kpl_internal_error", pill)]
    assert counters.malformed == {"internal_error": 1}
    assert rows[-1]["data"] == b"plain"
    fault = MemoryError()
    with pytest.raises(MemoryError):
        opened([fine, pill])


def test_depth_of_groups_is_bounded() -> None:
    """The bound of nesting reaches the parser."""
    blob = kpl_blobs.framed(b"\x4b" * 3 + b"\x4c" * 3)
    assert opened([blob], max_group_depth=2) == expected_rows([blob], max_group_depth=2)
    assert open_batch(pa.array([blob]), max_group_depth=2).counters.malformed == {"protobuf_error": 1}
    assert open_batch(pa.array([blob]), max_group_depth=3).counters.empty_aggregates == 1


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"on_malformed": "skip"}, "onMalformed"),
        ({"hash_range_filter": "all"}, "hashRangeFilter"),
        ({"partition_keys": pa.array(["a"])}, "partition_keys"),
    ],
)
def test_wrong_use(options: dict[str, Any], word: str) -> None:
    """Options that do not exist or do not fit the data are refused by name."""
    with pytest.raises(UsageError, match=word):
        open_batch(pa.array([b"x", b"y"]), **options)


@pytest.mark.parametrize("data", [pa.array(["text"]), pa.array([b"x", None])])
def test_wrong_columns(data: Any) -> None:
    """Data is binary without nulls."""
    with pytest.raises(UsageError, match="binary"):
        open_batch(data)


def test_output_beyond_one_batch() -> None:
    """What does not fit the 32-bit offsets of one batch is refused there, and given out in several."""
    blob = encode([UserRecord("k" * 256, b"")] * 1000).data
    data = pa.array([blob] * 40)
    parts = [part.batch for part in open_batches(data, max_output_bytes=1_000_000)]
    assert len(parts) > 10
    assert sum(part.num_rows for part in parts) == 40_000
    assert max(part.column("partition_key").nbytes for part in parts) < 1_100_000


@pytest.mark.thorough
def test_memory_stays_bounded() -> None:
    """Opening 192 MiB in pieces needs little more than one piece at a time."""
    code = (
        "import os, sys, pyarrow as pa\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.kit.support import peak_kib\n"
        "from headpond.kpl import UserRecord, encode\n"
        "from headpond.kpl.batch import open_batches\n"
        "blob = encode([UserRecord('k', os.urandom(1000)) for _ in range(50)]).data\n"
        "data = pa.array([blob] * (192 * 1024 * 1024 // len(blob)), pa.large_binary())\n"
        "before = peak_kib()\n"
        "rows = sum(o.batch.num_rows for o in open_batches(data, max_batch_bytes=8 << 20))\n"
        "after = peak_kib()\n"
        "print(rows // 50 == len(data), (after - before) // 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    right, grown_mib = done.stdout.split()
    assert right == "True"
    assert int(grown_mib) < 96
