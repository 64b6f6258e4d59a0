"""Migration in place: two column families, entry by entry, against what Kafka Streams' own did."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headpond.kstreams import (
    InconsistentStore,
    StoreSettings,
    ValueFormat,
    WindowBytesStore,
)
from headpond.kstreams.bytes.headers import SerializationError
from headpond.kstreams.bytes.window_keys import encode_store_key
from headpond.kstreams.bytes.window_values import conversion, decode_value, encode_value
from headpond.kstreams.stores.rocks import COLUMN_FAMILIES, Database, column_families
from tests.kit.support import share_of
from tests.kstreams.test_directories import expected_contents, listed, raw, without_offsets
from tests.kstreams.vectors import disk_vector, headers_of, raw_pairs, settings_of, unhex, unpacked

if TYPE_CHECKING:
    from pathlib import Path

FORMATS = list(ValueFormat)
UPGRADES = [(old, new) for old, new in product(FORMATS, FORMATS) if FORMATS.index(old) < FORMATS.index(new)]
SETTINGS = StoreSettings("win", 600_000, 60_000)
STARTS = (1_700_000_000_000, 1_700_000_100_000, 1_700_000_300_500)


def old_directory(folder: Path, value_format: ValueFormat) -> Path:
    """Three entries in two segments, in an older format."""
    store = WindowBytesStore(SETTINGS, value_format, folder / "win")
    for start in STARTS:
        store.put(b"k", encode_value(b"v%d" % start, start, [("h", b"x")], value_format), start)
    store.close()
    return folder / "win"


def expected(value: bytes, start: int, old: ValueFormat, new: ValueFormat) -> bytes | None:
    return conversion(old, new)(encode_value(value, start, [("h", b"x")], old))


def families_of(directory: Path, name: ValueFormat) -> dict[bytes, bytes]:
    """All pairs of one format's column family, over all segments."""
    found: dict[bytes, bytes] = {}
    for families in raw(directory).values():
        found.update(families.get(COLUMN_FAMILIES[name], {}))
    return found


def test_the_vectors_operations_move_the_same_entries(tmp_path: Path) -> None:
    """Fetches, puts, deletes and nothing, on a timestamped directory: contents and bytes as upstream's."""
    vector = disk_vector("migration-timestamped-to-headers")
    directory = unpacked("disk/migration-timestamped-to-headers-before", tmp_path) / "win"
    assert raw(directory) == raw_pairs(vector["raw_before"])
    store = WindowBytesStore(
        settings_of(vector), ValueFormat.TIMESTAMPED_HEADERS, directory, recover_stream_time=True
    )
    for operation in vector["operations_after"]:
        key, start = bytes.fromhex(operation["key"]), operation["window_start"]
        match operation["op"]:
            case "fetch":
                data = store.fetch_at(key, start)
                result = operation["result"]
                assert data is not None
                assert decode_value(data, store.value_format) == (
                    unhex(result["value"]),
                    result["timestamp"],
                    list(headers_of(result["headers"])),
                )
            case "put":
                value, timestamp = bytes.fromhex(operation["value"]), operation["value_timestamp"]
                store.put(
                    key,
                    encode_value(value, timestamp, headers_of(operation["headers"]), store.value_format),
                    start,
                )
            case "delete":
                store.put(key, None, start)
            case other:
                assert other == "none"
    found = ((key, decode_value(data, store.value_format)) for key, data in store.all())
    assert list(listed(found)) == expected_contents(vector["contents_after"])
    store.close()
    assert without_offsets(raw(directory)) == without_offsets(raw_pairs(vector["raw_after"]))


def test_the_vectors_result_opens_too(tmp_path: Path) -> None:
    """A directory that upstream left half migrated lists as it did, read-only and read-write."""
    vector = disk_vector("migration-timestamped-to-headers")
    directory = unpacked("disk/migration-timestamped-to-headers-after", tmp_path) / "win"
    for read_only in (True, False):
        store = WindowBytesStore(
            settings_of(vector), ValueFormat.TIMESTAMPED_HEADERS, directory, read_only=read_only
        )
        found = ((key, decode_value(data, store.value_format)) for key, data in store.all())
        assert list(listed(found)) == expected_contents(vector["contents_after"])
        store.close()


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), UPGRADES)
def test_a_fetch_moves_one_entry_and_a_scan_none(old: ValueFormat, new: ValueFormat, tmp_path: Path) -> None:
    """Point reads convert, write and delete; range reads only convert."""
    directory = old_directory(tmp_path, old)
    store = WindowBytesStore(SETTINGS, new, directory)
    assert [value for _, value in store.all()] == [expected(b"v%d" % s, s, old, new) for s in STARTS]
    assert [each.upgrading for each in store.segments().values()] == [old, old]
    store.close()
    assert len(families_of(directory, old)) == 3
    assert families_of(directory, new) == {}
    store = WindowBytesStore(SETTINGS, new, directory)
    assert store.fetch_at(b"k", STARTS[0]) == expected(b"v%d" % STARTS[0], STARTS[0], old, new)
    assert store.fetch_at(b"k", STARTS[0]) == expected(b"v%d" % STARTS[0], STARTS[0], old, new)
    store.close()
    moved = encode_store_key(b"k", STARTS[0])
    assert families_of(directory, new) == {moved: expected(b"v%d" % STARTS[0], STARTS[0], old, new)}
    assert moved not in families_of(directory, old)
    # That segment is done with; the others are not.
    store = WindowBytesStore(SETTINGS, new, directory)
    assert [each.upgrading for each in store.segments().values()] == [None, old]
    store.close()
    left = column_families(directory / "win.1699999800000")
    assert set(left) == {"default", "offsets", COLUMN_FAMILIES[new]}


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), UPGRADES)
def test_puts_and_deletes_reach_both_column_families(
    old: ValueFormat, new: ValueFormat, tmp_path: Path
) -> None:
    """A put leaves the entry in the new one only, a delete in neither; a restored record is a put."""
    directory = old_directory(tmp_path, old)
    store = WindowBytesStore(SETTINGS, new, directory)
    fresh = encode_value(b"fresh", 9, [], new)
    store.put(b"k", fresh, STARTS[0])
    store.put(b"k", None, STARTS[1])
    store.put(b"k", None, STARTS[2])
    assert [value for _, value in store.all(backward=True)] == [fresh]
    store.close()
    assert families_of(directory, old) == {}
    assert families_of(directory, new) == {encode_store_key(b"k", STARTS[0]): fresh}


@pytest.mark.parametrize(("old", "new"), UPGRADES)
@pytest.mark.slow
def test_reading_only_converts_without_writing(old: ValueFormat, new: ValueFormat, tmp_path: Path) -> None:
    """Point reads of a store opened for reading leave everything where it is."""
    directory = old_directory(tmp_path, old)
    before = raw(directory)
    store = WindowBytesStore(SETTINGS, new, directory, read_only=True)
    assert store.fetch_at(b"k", STARTS[1]) == expected(b"v%d" % STARTS[1], STARTS[1], old, new)
    assert len(list(store.all())) == 3
    store.close()
    assert raw(directory) == before


def test_entries_of_two_older_formats_are_refused(tmp_path: Path) -> None:
    """Which of them is right cannot be known; the segment is named and left as it is."""
    directory = old_directory(tmp_path, ValueFormat.TIMESTAMPED)
    segment = directory / "win.1699999800000"
    with Database(segment, column_families(segment)) as database:
        database.families["default"][encode_store_key(b"k", STARTS[0])] = b"plain"
    before = raw(directory)
    with pytest.raises(InconsistentStore, match="plain and timestamped") as caught:
        WindowBytesStore(SETTINGS, ValueFormat.PLAIN_HEADERS, directory)
    assert caught.value.facts["reason"] == "two_older_formats"
    assert raw(directory) == before


def test_damaged_old_values_are_an_error_and_stay(tmp_path: Path) -> None:
    """A value that cannot be converted is never skipped."""
    directory = tmp_path / "win"
    store = WindowBytesStore(SETTINGS, ValueFormat.TIMESTAMPED_HEADERS, directory)
    store.put(b"k", b"\x06\x00", STARTS[0])
    store.close()
    new = WindowBytesStore(SETTINGS, ValueFormat.PLAIN_HEADERS, directory)
    with pytest.raises(SerializationError):
        new.fetch_at(b"k", STARTS[0])
    with pytest.raises(SerializationError):
        list(new.all())
    new.close()
    assert len(families_of(directory, ValueFormat.TIMESTAMPED_HEADERS)) == 1


NAMES = st.sampled_from([b"a", b"b", b"c"])
OLD_ENTRIES = st.sets(st.tuples(NAMES, st.sampled_from(STARTS)))
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["put", "delete", "fetch", "reopen"]), NAMES, st.sampled_from(STARTS)),
    max_size=12,
)


@pytest.mark.thorough
@given(
    pair=st.sampled_from(UPGRADES),
    old_entries=st.sets(st.tuples(NAMES, st.sampled_from(STARTS))),
    operations=OPERATIONS,
)
@settings(max_examples=share_of(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_operations_give_what_a_migrated_store_gives(
    pair: tuple[ValueFormat, ValueFormat],
    old_entries: set[tuple[bytes, int]],
    operations: list[Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Whatever is done in whatever order, the store looks as if all had been converted before."""
    old, new = pair
    directory = tmp_path_factory.mktemp("in-place") / "win"
    model: dict[tuple[bytes, int], bytes | None] = {}
    store: Any = WindowBytesStore(SETTINGS, old, directory)
    for key, start in old_entries:
        data = encode_value(key + b"old", start, [("h", None)], old)
        store.put(key, data, start)
        model[key, start] = conversion(old, new)(data)
    store.close()
    store = WindowBytesStore(SETTINGS, new, directory)
    for number, (name, key, start) in enumerate(operations):
        if name == "put":
            model[key, start] = encode_value(b"%d" % number, start, [], new)
            store.put(key, model[key, start], start)
        elif name == "delete":
            model.pop((key, start), None)
            store.put(key, None, start)
        elif name == "fetch":
            assert store.fetch_at(key, start) == model.get((key, start))
        else:
            store.close()
            store = WindowBytesStore(SETTINGS, new, directory)
        in_order = sorted(model.items(), key=lambda each: (each[0][1] // 300_000, encode_store_key(*each[0])))
        assert [(key.key, key.timestamp) for key, _ in store.all()] == [place for place, _ in in_order]
        assert [value for _, value in store.all(backward=True)] == [value for _, value in in_order][::-1]
    store.close()
