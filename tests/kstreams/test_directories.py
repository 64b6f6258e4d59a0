"""Directories that Kafka Streams wrote, opened; directories that we write, compared with its bytes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from headpond.kstreams import (
    ChangelogRecord,
    RecordContext,
    StoreFormatMismatch,
    StoreLocked,
    StoreSettings,
    ValueFormat,
    WindowBytesStore,
)
from headpond.kstreams.bytes.window_values import decode_value, encode_value
from headpond.kstreams.stores.rocks import COLUMN_FAMILIES, Database, column_families
from tests.kit.support import vector_json
from tests.kstreams.vectors import (
    KINDS,
    disk_vector,
    headers_of,
    listed,
    raw_pairs,
    settings_of,
    unhex,
    unpacked,
)

if TYPE_CHECKING:
    from pathlib import Path

HANDOVERS = ["inner-headers", "left-default-segments", "outer-headers", "outer-default-segments"]
KIND_NAMES = [pytest.param(name, id=name) for name in KINDS]


def contents(store: Any) -> list[dict[str, Any]]:
    found = ((key, decode_value(data, store.value_format)) for key, data in store.all())
    return list(listed(found))


def expected_contents(vector: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The vectors leave out what a format does not have."""
    return [{"timestamp": None, "headers": [], **entry} for entry in vector]


def raw(directory: Path) -> dict[str, dict[str, dict[bytes, bytes]]]:
    """Every pair in every column family of every segment, read without changing anything."""
    found: dict[str, dict[str, dict[bytes, bytes]]] = {}
    for path in sorted(directory.iterdir()):
        with Database(path, column_families(path), read_only=True) as database:
            found[path.name] = {name: dict(family.items()) for name, family in database.families.items()}
    return found


def without_offsets(pairs: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        segment: {name: each for name, each in families.items() if name != "offsets"}
        for segment, families in pairs.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", KIND_NAMES)
def test_a_directory_lists_as_its_store_did(kind: str, tmp_path: Path) -> None:
    """Opened with its own format (and adapter), a directory gives what Kafka Streams' `all()` gave."""
    vector = disk_vector(f"{kind}-duplicates")
    directory = unpacked(f"disk/{kind}-duplicates", tmp_path) / "win"
    inner, outer = KINDS[kind]
    store = WindowBytesStore(
        settings_of(vector), outer, directory, disk_format=inner, recover_stream_time=True
    )
    assert contents(store) == expected_contents(vector["contents"])
    assert list(store.all(backward=True)) == list(store.all())[::-1]
    store.close()
    assert raw(directory) == raw_pairs(vector["raw"])


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_a_directory_can_be_read_untouched(kind: str, tmp_path: Path) -> None:
    """Opening for reading leaves every file as it was, and adds none."""
    directory = unpacked(f"disk/{kind}-duplicates", tmp_path) / "win"
    before = {path: path.is_dir() or path.read_bytes() for path in directory.rglob("*")}
    vector = disk_vector(f"{kind}-duplicates")
    store = WindowBytesStore(settings_of(vector), KINDS[kind][0], directory, read_only=True)
    # A new store object has seen no time yet, so entries beyond the retention still show.
    assert len(list(store.all())) == sum(
        len(pairs) for families in without_offsets(vector["raw"]).values() for pairs in families.values()
    )
    store.close()
    assert {path: path.is_dir() or path.read_bytes() for path in directory.rglob("*")} == before


@pytest.mark.slow
@pytest.mark.parametrize("kind", KIND_NAMES)
def test_the_same_puts_write_the_same_bytes_and_log(kind: str, tmp_path: Path) -> None:
    """Repeating the operations gives the vectors' segments, column families, pairs and changelog records."""
    vector = disk_vector(f"{kind}-duplicates")
    inner, outer = KINDS[kind]
    records: list[Any] = []
    context = RecordContext()
    store = WindowBytesStore(
        settings_of(vector), outer, tmp_path / "win", disk_format=inner, log=records.append, context=context
    )
    for operation in vector["operations"]:
        value = unhex(operation["value"])
        timestamp, headers = operation["value_timestamp"], headers_of(operation["headers"])
        context.timestamp, context.headers = operation["changelog"][0]["timestamp"], headers
        records.clear()
        store.put(
            bytes.fromhex(operation["key"]),
            None if value is None else encode_value(value, timestamp, headers, outer),
            operation["window_start"],
        )
        assert [(r.key, r.value, r.timestamp, r.headers) for r in records] == [
            (unhex(r["key"]), unhex(r["value"]), r["timestamp"], headers_of(r["headers"]))
            for r in operation["changelog"]
        ]
    assert contents(store) == expected_contents(vector["contents"])
    store.close()
    assert without_offsets(raw(tmp_path / "win")) == without_offsets(raw_pairs(vector["raw"]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KIND_NAMES)
def test_a_changelog_restores_into_every_format(kind: str, tmp_path: Path) -> None:
    """Restored plain values, timestamps and headers are the log's, as far as a format holds them."""
    vector = disk_vector(f"{kind}-duplicates")
    log = [record for operation in vector["operations"] for record in operation["changelog"]]
    records = [
        ChangelogRecord(bytes.fromhex(r["key"]), unhex(r["value"]), r["timestamp"], headers_of(r["headers"]))
        for r in log
    ]
    settings = settings_of(vector)
    kept = {}
    for record in records:
        kept[record.key] = record
    newest = max(int(key[-12:-4].hex(), 16) for key in kept)
    oldest = newest - settings.retention_ms + 1
    for value_format in ValueFormat:
        store = WindowBytesStore(settings, value_format, tmp_path / value_format / "win")
        store.restore(iter(records))
        assert store.observed_stream_time == newest
        found = {
            key.key + key.timestamp.to_bytes(8, "big") + key.seqnum.to_bytes(4, "big"): value
            for key, value in store.all()
        }
        assert found == {
            key: encode_value(record.value, record.timestamp, record.headers, value_format)
            for key, record in kept.items()
            if record.value is not None and int(key[-12:-4].hex(), 16) >= oldest
        }
        store.close()


@pytest.mark.parametrize("name", HANDOVERS)
def test_the_stores_of_a_stopped_join_list_as_on_reopening(name: str, tmp_path: Path) -> None:
    """A new store object on a join's directories sees what a new Kafka Streams application saw."""
    vector = vector_json(f"window-store/handover/{name}.json")
    config = vector["config"]
    unpacked(f"handover/{name}", tmp_path)
    expected = {**vector["contents_at_cut"], **(vector["contents_on_reopen"] or {})}
    inner = ValueFormat.TIMESTAMPED_HEADERS if config["store_format"] == "HEADERS" else ValueFormat.PLAIN
    for side in ("left", "right"):
        store_name = config["stores"][side]
        settings = StoreSettings(
            store_name, config["retention_ms"], config["window_size_ms"], retain_duplicates=True
        )
        directory = tmp_path / config["directories"][side]
        store = WindowBytesStore(settings, ValueFormat.TIMESTAMPED_HEADERS, directory, disk_format=inner)
        found = [
            {
                **entry,
                "key": bytes.fromhex(entry["key"]).decode(),
                "value": bytes.fromhex(entry["value"]).decode(),
            }
            for entry in contents(store)
        ]
        assert found == expected[store_name]
        store.close()


def test_a_plain_headers_directory_has_the_bytes_that_the_spec_predicts(tmp_path: Path) -> None:
    """One entry: its segment's name, column families, key and value, byte by byte."""
    settings = StoreSettings("win", 600_000, 60_000, retain_duplicates=True)
    store = WindowBytesStore(settings, ValueFormat.PLAIN_HEADERS, tmp_path / "win")
    store.put(b"k", encode_value(b"value", -1, [("k", b"v")], ValueFormat.PLAIN_HEADERS), 1_700_000_000_123)
    store.flush({"app-win-changelog-0": 7})
    store.close()
    segment = "win.1699999800000"
    assert raw(tmp_path / "win") == {
        segment: {
            "default": {},
            "windowKeyValueWithHeaders": {
                bytes.fromhex("6b0000018bcfe5687b00000001"): bytes.fromhex("0a02026b027676616c7565")
            },
            "offsets": {b"app-win-changelog-0": bytes(7) + b"\x07"},
        }
    }
    # No file of the binding stays behind; what lies there is RocksDB's.
    assert not (tmp_path / "win" / segment / "rocksdict-config.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("writer", list(ValueFormat))
@pytest.mark.parametrize("reader", list(ValueFormat))
def test_no_class_opens_a_newer_directory(writer: ValueFormat, reader: ValueFormat, tmp_path: Path) -> None:
    """An older class says so and changes nothing; a newer one upgrades."""
    settings = StoreSettings("win", 600_000, 60_000)
    store = WindowBytesStore(settings, writer, tmp_path / "win")
    store.put(b"k", encode_value(b"v", 5, [], writer), 1000)
    store.close()
    before = raw(tmp_path / "win")
    order = list(ValueFormat)
    if order.index(reader) < order.index(writer):
        with pytest.raises(StoreFormatMismatch, match=str(writer)):
            WindowBytesStore(settings, reader, tmp_path / "win")
        assert raw(tmp_path / "win") == before
    else:
        store = WindowBytesStore(settings, reader, tmp_path / "win")
        assert decode_value(store.fetch_at(b"k", 1000) or b"", reader)[0] == b"v"
        store.close()


def test_two_stores_cannot_share_a_directory(tmp_path: Path) -> None:
    """The second one is told that it is open; once the first is closed it may."""
    settings = StoreSettings("win", 600_000, 60_000)
    first = WindowBytesStore(settings, ValueFormat.PLAIN_HEADERS, tmp_path / "win")
    first.put(b"k", b"\x00v", 1000)
    with pytest.raises(StoreLocked, match="this process"):
        WindowBytesStore(settings, ValueFormat.PLAIN_HEADERS, tmp_path / "win")
    first.flush()
    reader = WindowBytesStore(settings, ValueFormat.PLAIN_HEADERS, tmp_path / "win", read_only=True)
    assert reader.fetch_at(b"k", 1000) == b"\x00v"
    reader.close()
    first.close()
    WindowBytesStore(settings, ValueFormat.PLAIN_HEADERS, tmp_path / "win").close()


READER = """
import os, pathlib, signal, sys
from headpond.kstreams.stores.rocks import Database, column_families
opened = Database(segment := pathlib.Path(sys.argv[1]), column_families(segment), read_only=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_reader_leaves_nothing_that_the_next_one_does_not_remove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader links the files of a store in a folder of its own."""
    store = WindowBytesStore(StoreSettings("win", 600_000, 60_000), ValueFormat.PLAIN, tmp_path / "win")
    store.put(b"k", b"v", 1000)
    store.close()
    (segment,) = (tmp_path / "win").iterdir()
    (temporary := tmp_path / "temporary").mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    command = [sys.executable, "-c", READER, str(segment)]
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    assert len(list(temporary.iterdir())) == 1
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    with Database(segment, column_families(segment), read_only=True):
        assert len(list(temporary.iterdir())) == 1
    assert not list(temporary.iterdir())


@pytest.mark.parametrize(
    ("old", "start"), [("win:1700000100000", 1_700_000_100_000), ("win-202311142215", 1_700_000_100_000)]
)
def test_older_names_of_segments_are_renamed(old: str, start: int, tmp_path: Path) -> None:
    """Both older forms are found on open and get today's name."""
    settings = StoreSettings("win", 600_000, 60_000)
    store = WindowBytesStore(settings, ValueFormat.PLAIN_HEADERS, tmp_path / "win")
    store.put(b"k", b"\x00v", start + 1)
    store.close()
    (tmp_path / "win" / f"win.{start}").rename(tmp_path / "win" / old)
    reader = WindowBytesStore(settings, ValueFormat.PLAIN_HEADERS, tmp_path / "win", read_only=True)
    assert reader.fetch_at(b"k", start + 1) == b"\x00v"
    reader.close()
    assert [path.name for path in (tmp_path / "win").iterdir()] == [old]
    store = WindowBytesStore(settings, ValueFormat.PLAIN_HEADERS, tmp_path / "win")
    assert store.fetch_at(b"k", start + 1) == b"\x00v"
    store.close()
    assert [path.name for path in (tmp_path / "win").iterdir()] == [f"win.{start}"]


def test_another_retention_is_refused(tmp_path: Path) -> None:
    """Segments of another length would be read in pieces; nothing is renamed."""
    store = WindowBytesStore(
        StoreSettings("win", 600_000, 60_000), ValueFormat.PLAIN_HEADERS, tmp_path / "win"
    )
    store.put(b"k", b"\x00v", 1_700_000_100_001)
    store.close()
    with pytest.raises(StoreFormatMismatch, match="retention"):
        WindowBytesStore(
            StoreSettings("win", 10_000_000, 60_000), ValueFormat.PLAIN_HEADERS, tmp_path / "win"
        )
    assert [path.name for path in (tmp_path / "win").iterdir()] == ["win.1700000100000"]


def test_what_a_kill_left_of_a_segment_is_removed(tmp_path: Path) -> None:
    """A segment's folder without a database, from its making or its removal, is no segment."""
    settings = StoreSettings("win", 600_000, 60_000)
    store = WindowBytesStore(settings, ValueFormat.PLAIN_HEADERS, tmp_path / "win")
    store.put(b"k", b"\x00v", 1_700_000_100_001)
    store.close()
    half = tmp_path / "win" / "win.1699999800000"
    shutil.copytree(tmp_path / "win" / "win.1700000100000", half)
    (half / "CURRENT").unlink()
    store = WindowBytesStore(settings, ValueFormat.PLAIN_HEADERS, tmp_path / "win")
    assert [key.timestamp for key, _ in store.all()] == [1_700_000_100_001]
    store.close()
    assert not half.exists()


def test_the_column_families_are_those_of_the_spec() -> None:
    """The names are what Kafka Streams looks for; the last one is ours until upstream has it."""
    assert [COLUMN_FAMILIES[each] for each in ValueFormat] == [
        "default",
        "keyValueWithTimestamp",
        "keyValueWithTimestampAndHeaders",
        "windowKeyValueWithHeaders",
    ]
