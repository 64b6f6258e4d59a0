"""The layers of the KIP: values, formats, adapters, logging, serialising."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from headpond.core.errors import InvalidData, UsageError
from headpond.kstreams import (
    BytesSerde,
    ChangelogRecord,
    JsonSerde,
    RecordContext,
    StoreSettings,
    StringSerde,
    ValueAndHeaders,
    ValueFormat,
    WindowBytesStore,
    Windowed,
    WindowStoreWithHeaders,
    export_lines,
    read_export,
)
from headpond.kstreams.bytes.window_keys import encode_store_key
from headpond.kstreams.bytes.window_values import conversion, encode_value

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = StoreSettings("win", 600_000, 60_000)
START = 1_700_000_000_000
HEADERS = (("trace-id", b"1"), ("trace-id", None))
CHANGELOG = ChangelogRecord(encode_store_key(b"k", START, 3), b"value", 77, HEADERS)


def test_value_and_headers() -> None:
    """Two are equal if value and headers are, order of headers included."""
    made = ValueAndHeaders("v", HEADERS)
    assert made == ValueAndHeaders("v", HEADERS)
    assert made != ValueAndHeaders("v", HEADERS[::-1])
    assert made != ValueAndHeaders("w", HEADERS)
    assert hash(made) == hash(ValueAndHeaders("v", HEADERS))


def test_the_kips_store_keeps_values_with_headers(tmp_path: Path) -> None:
    """Put, fetch, ranges, windows and a second opening, through typed keys and values."""
    settings = StoreSettings("win", 600_000, 60_000, retain_duplicates=True)
    value = ValueAndHeaders({"amount": 3}, HEADERS)
    with WindowStoreWithHeaders.open(settings, StringSerde(), JsonSerde(), tmp_path) as store:
        assert store.settings is settings
        store.put("k", value, START)
        store.put("k", ValueAndHeaders([1]), START)
        store.put("k", None, START)
        store.put("k", ValueAndHeaders(None, HEADERS), START)
        assert list(store.fetch("k", START, START)) == [(START, value), (START, ValueAndHeaders([1]))]
    with WindowStoreWithHeaders.open(settings, StringSerde(), JsonSerde(), tmp_path) as store:
        window = Windowed("k", START, START + 60_000)
        everything = [(window, value), (window, ValueAndHeaders([1]))]
        assert list(store.all()) == list(store.fetch_all(START, START)) == everything
        assert list(store.fetch_range("a", "z", 0, START, backward=True)) == everything[::-1]
        assert list(store.fetch_range("l", None, 0, START)) == []


def test_serdes_meet_the_headers() -> None:
    """The value's serializer may change the headers before they are stored; its deserializer reads them."""

    class Tagging:
        def serialize(self, value: str, headers: list[Any]) -> bytes | None:
            headers.append(("schema", b"7"))
            return value.encode() or None

        def deserialize(self, data: bytes, headers: list[Any]) -> str:
            return f"{data.decode()} of schema {dict(headers)['schema'].decode()}"

    store = WindowStoreWithHeaders.open(SETTINGS, StringSerde(), Tagging())
    store.put("k", ValueAndHeaders("v", HEADERS), START)
    found = store.fetch_at("k", START)
    assert found == ValueAndHeaders("v of schema 7", (*HEADERS, ("schema", b"7")))
    # A serializer's null is a tombstone, whatever headers it left.
    store.put("k", ValueAndHeaders(""), START)
    assert store.fetch_at("k", START) is None


ADAPTED = {
    (ValueFormat.PLAIN, ValueFormat.PLAIN_HEADERS),
    (ValueFormat.TIMESTAMPED, ValueFormat.PLAIN_HEADERS),
    (ValueFormat.TIMESTAMPED_HEADERS, ValueFormat.PLAIN_HEADERS),
    (ValueFormat.PLAIN, ValueFormat.TIMESTAMPED_HEADERS),
    (ValueFormat.TIMESTAMPED, ValueFormat.TIMESTAMPED_HEADERS),
}
"""Format underneath, format that callers see."""


@pytest.mark.parametrize(("inner", "outer"), list(product(ValueFormat, ValueFormat)))
def test_adapters_are_chosen_by_what_a_store_has(
    inner: ValueFormat, outer: ValueFormat, tmp_path: Path
) -> None:
    """A store in memory holds what callers see; what the KIP has no adapter for is refused."""
    memory = WindowBytesStore(SETTINGS, outer, disk_format=inner)
    memory.put(b"k", b"any bytes at all", START)
    assert memory.fetch_at(b"k", START) == b"any bytes at all"
    if inner is outer or (inner, outer) in ADAPTED:
        WindowBytesStore(SETTINGS, outer, tmp_path / "win", disk_format=inner).close()
    else:
        with pytest.raises(UsageError, match="cannot be built"):
            WindowBytesStore(SETTINGS, outer, tmp_path / "win", disk_format=inner)
        assert not (tmp_path / "win").exists()


@pytest.mark.parametrize("pair", sorted(ADAPTED))
def test_adapters_translate_values_and_leave_keys(
    pair: tuple[ValueFormat, ValueFormat], tmp_path: Path
) -> None:
    """What is written below, and what is read above, for each way of reading; nulls stay nulls."""
    inner, outer = pair
    store = WindowBytesStore(SETTINGS, outer, tmp_path / "win", disk_format=inner)
    value = encode_value(b"v", 5, [("k", b"v")], outer)
    store.put(b"k", value, START)
    store.flush()
    below = conversion(outer, inner)(value)
    above = conversion(inner, outer)(below)
    assert on_disk(tmp_path, inner) == [((b"k", START, 0), below)]
    entry = [((b"k", START, 0), above)]
    assert store.fetch_at(b"k", START) == above
    for entries in (
        store.all(),
        store.fetch(b"k", 0, START),
        store.fetch_range(b"a", b"z", 0, START),
        store.fetch_all(0, START, backward=True),
    ):
        assert list(entries) == entry
    store.put(b"k", None, START)
    assert store.fetch_at(b"k", START) is None
    # A changelog is restored in the format of what lies below.
    store.restore([ChangelogRecord(encode_store_key(b"r", START), b"v", 6, (("k", b"v"),))])
    store.close()
    assert on_disk(tmp_path, inner) == [((b"r", START, 0), encode_value(b"v", 6, [("k", b"v")], inner))]


def on_disk(folder: Path, value_format: ValueFormat) -> list[Any]:
    bare = WindowBytesStore(SETTINGS, value_format, folder / "win", read_only=True)
    entries = list(bare.all())
    bare.close()
    return entries


def test_the_specs_adapter_bytes(tmp_path: Path) -> None:
    """One header k=v and the value 76: what each adapter of the KIP writes and reads back."""
    expected = {
        ValueFormat.PLAIN: ("76", "0076"),
        ValueFormat.TIMESTAMPED: ("ffffffffffffffff76", "0076"),
        ValueFormat.TIMESTAMPED_HEADERS: ("0a02026b0276ffffffffffffffff76", "0a02026b027676"),
    }
    for inner, (written, read) in expected.items():
        store = WindowBytesStore(SETTINGS, directory=tmp_path / inner / "win", disk_format=inner)
        store.put(b"k", bytes.fromhex("0a02026b027676"), START)
        assert store.fetch_at(b"k", START) == bytes.fromhex(read)
        store.close()
        assert on_disk(tmp_path / inner, inner) == [((b"k", START, 0), bytes.fromhex(written))]


@pytest.mark.parametrize("inner", list(ValueFormat))
def test_a_format_change_never_changes_the_changelog(inner: ValueFormat, tmp_path: Path) -> None:
    """Behind whatever old directory, the same is logged: plain value, context time, own headers."""
    records: list[ChangelogRecord] = []
    context = RecordContext(55, (("context", b"1"),))
    serde = BytesSerde()
    store = WindowStoreWithHeaders.open(
        SETTINGS, serde, serde, tmp_path, disk_format=inner, context=context, log=records.append
    )
    store.put(b"k", ValueAndHeaders(b"v", HEADERS), START)
    context.timestamp = 56
    store.put(b"k", None, START)
    key = encode_store_key(b"k", START)
    assert records == [
        ChangelogRecord(key, b"v", 55, HEADERS),
        ChangelogRecord(key, None, 56, (("context", b"1"),)),
    ]
    store.close()


@pytest.mark.parametrize(
    ("value_format", "timestamp", "headers"),
    [
        (ValueFormat.PLAIN, 55, ()),
        (ValueFormat.TIMESTAMPED, 7, ()),
        (ValueFormat.TIMESTAMPED_HEADERS, 7, HEADERS),
        (ValueFormat.PLAIN_HEADERS, 55, HEADERS),
    ],
)
def test_what_each_layer_logs(value_format: ValueFormat, timestamp: int, headers: tuple[Any, ...]) -> None:
    """The value's own timestamp and headers where the format has them, else the context's time and none."""
    records: list[ChangelogRecord] = []
    context = RecordContext(55, (("context", b"1"),))
    store = WindowBytesStore(SETTINGS, value_format, log=records.append, context=context)
    store.put(b"k", encode_value(b"v", 7, HEADERS, value_format), START)
    assert records == [ChangelogRecord(encode_store_key(b"k", START), b"v", timestamp, headers)]


def test_the_log_counts_for_itself(tmp_path: Path) -> None:
    """A null put raises the log's number and not the store's; both go on after a restart and a restore."""
    settings = StoreSettings("win", 600_000, 60_000, retain_duplicates=True)
    records: list[ChangelogRecord] = []

    def opened(**options: Any) -> WindowBytesStore:
        return WindowBytesStore(settings, directory=tmp_path / "win", log=records.append, **options)

    store = opened()
    for value in (b"\x00a", None, b"\x00b"):
        store.put(b"k", value, START)
    assert [int(record.key[-1]) for record in records] == [1, 2, 3]
    assert store.last_seqnum == 2
    store.close()
    store = opened(first_seqnum=3)
    store.put(b"k", b"\x00c", START)
    assert int(records[-1].key[-1]) == 4
    store.restore([ChangelogRecord(encode_store_key(b"k", START, 9), b"r", 1)])
    store.put(b"k", b"\x00d", START)
    assert int(records[-1].key[-1]) == 10
    store.close()


def test_a_typed_store_needs_its_format_below_it() -> None:
    """Another one's values would be taken apart in the wrong places."""
    memory = WindowBytesStore(SETTINGS, ValueFormat.PLAIN)
    with pytest.raises(UsageError, match="needs a plain_headers store, and win is plain"):
        WindowStoreWithHeaders(memory, StringSerde(), StringSerde())


def test_exports_of_a_changelog_are_read_back() -> None:
    """One line a record; nulls, repeated headers, and what else a line holds."""
    records = [CHANGELOG, ChangelogRecord(CHANGELOG.key, None, -1)]
    lines = list(export_lines(records))
    assert list(read_export([b"\n", *lines])) == records
    extra = lines[0].replace(b"{", b'{"offset": 7, ', 1)
    assert list(read_export([extra])) == records[:1]


@pytest.mark.parametrize(
    "line", [b"{", b"[]", b"{}", b'{"key": "0", "value": null, "timestamp": 1, "headers": []}',
             b'{"key": "00", "value": null, "timestamp": "1", "headers": []}',
             b'{"key": "00", "value": null, "timestamp": 1, "headers": [["k"]]}']
)  # fmt: skip
def test_bad_lines_of_an_export_are_named(line: bytes) -> None:
    """The line's number and its trouble are in the error."""
    with pytest.raises(InvalidData, match="Line 2") as caught:
        list(read_export([*export_lines([CHANGELOG]), line]))
    assert caught.value.facts["line"] == 2
