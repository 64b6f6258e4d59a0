"""Offline migration: what comes out, what is refused, what survives a kill or a failure, and what stays."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from headpond.core.errors import UsageError
from headpond.kstreams import (
    InconsistentStore,
    NotAStore,
    StoreDirectory,
    StoreLocked,
    StoreSettings,
    TimestampsWouldBeLost,
    ValueFormat,
    WindowBytesStore,
    migrate,
)
from headpond.kstreams.bytes.headers import SerializationError
from headpond.kstreams.bytes.window_keys import encode_store_key
from headpond.kstreams.bytes.window_values import conversion, encode_value
from headpond.kstreams.migration import migrate as migration
from headpond.kstreams.migration import segment_copy
from headpond.kstreams.stores.rocks import COLUMN_FAMILIES, Database, column_families
from tests.kstreams.test_directories import raw
from tests.kstreams.vectors import KINDS, disk_vector, raw_pairs, settings_of, unpacked

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = StoreSettings("win", 600_000, 60_000, retain_duplicates=True)
SEGMENT_STARTS = [1_700_000_000_000 + 300_000 * number for number in range(3)]
OLD_FORMATS = [each for each in ValueFormat if each is not ValueFormat.PLAIN_HEADERS]
HEADERS = [("trace-id", b"\x01\x02"), ("trace-id", None)]


def make_store(folder: Path, value_format: ValueFormat, *, entries: int = 30, shift_ms: int = 0) -> Path:
    """Entries in three segments with offsets; values' own timestamps are `shift_ms` after their window."""
    store = WindowBytesStore(SETTINGS, value_format, folder / "win")
    for number in range(entries):
        start = SEGMENT_STARTS[number % 3] + number
        value = encode_value(b"v%d" % number, start + shift_ms, HEADERS[: number % 3], value_format)
        store.put(b"k%d" % (number % 7), value, start)
    store.flush({"app-win-changelog-0": 99})
    store.close()
    return folder / "win"


def listing(directory: Path) -> list[Any]:
    return [(each.key, each.value, each.headers) for each in StoreDirectory(directory).entries()]


def snapshot(directory: Path) -> dict[Path, Any]:
    """Every file's bytes, but for RocksDB's own logs and locks."""
    return {
        path: path.is_dir() or path.read_bytes()
        for path in directory.rglob("*")
        if not path.name.startswith(("LOG", "LOCK"))
    }


@pytest.mark.thorough
@pytest.mark.parametrize(("value_format", "place"), list(product(OLD_FORMATS, ["in place", "elsewhere"])))
def test_entries_offsets_and_other_files_come_over(
    value_format: ValueFormat,
    place: str,
    tmp_path: Path,
) -> None:
    """In place and elsewhere: same keys, values, headers; new bytes; kept offsets."""
    directory = make_store(tmp_path, value_format)
    (directory / "notes.txt").write_text("kept")
    (tmp_path / ".checkpoint").write_text("0\n1\nwin 0 99\n")
    before, old_raw, old_files = listing(directory), raw_of_segments(directory), snapshot(directory)
    out = tmp_path / "new" / "win" if place == "elsewhere" else None
    if out:
        out.parent.mkdir()
    seen: list[int] = []
    report = migrate(directory, out=out, on_entries=seen.append)
    made = out or directory
    assert (report.segments, report.entries, sum(seen), report.dropped_timestamps) == (3, 30, 30, 0)
    assert report.path == made
    assert listing(made) == before
    convert = conversion(value_format, ValueFormat.PLAIN_HEADERS)
    assert raw_of_segments(made) == {
        segment: {
            "default": {},
            "windowKeyValueWithHeaders": {
                key: convert(value) for key, value in families[COLUMN_FAMILIES[value_format]].items()
            },
            "offsets": families["offsets"],
        }
        for segment, families in old_raw.items()
    }
    assert report.saved_bytes == sum(
        len(value) - len(convert(value) or b"")
        for families in old_raw.values()
        for value in families[COLUMN_FAMILIES[value_format]].values()
    )
    assert (made / "notes.txt").read_text() == "kept"
    assert (tmp_path / ".checkpoint").read_text().endswith("win 0 99\n")
    if out:
        assert snapshot(directory) == old_files
    assert {path.name for path in tmp_path.iterdir()} <= {"win", "new", ".checkpoint"}
    assert {path.name for path in made.iterdir()} == {*old_raw, "notes.txt"}
    store = WindowBytesStore(SETTINGS, ValueFormat.PLAIN_HEADERS, made)
    assert [each.upgrading for each in store.segments().values()] == [None] * 3
    assert len(list(store.all())) == 30
    store.close()


def raw_of_segments(directory: Path) -> dict[str, dict[str, dict[bytes, bytes]]]:
    found = {}
    for path in sorted(directory.iterdir()):
        if path.is_dir():
            with Database(path, column_families(path), read_only=True) as database:
                found[path.name] = {name: dict(family.items()) for name, family in database.families.items()}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
def test_what_kafka_streams_wrote_migrates(kind: str, tmp_path: Path) -> None:
    """Every kind of the vectors; timestamps that say something only go if told to."""
    vector = disk_vector(f"{kind}-duplicates")
    directory = unpacked(f"disk/{kind}-duplicates", tmp_path) / "win"
    before = listing(directory)
    speaking = kind in ("timestamped", "headers")  # the adapters' vectors carry the records' timestamps
    if kind == "timestamped-behind-headers-adapter":
        speaking = True
    if speaking:
        files = snapshot(directory)
        with pytest.raises(TimestampsWouldBeLost, match="timestamp"):
            migrate(directory)
        assert snapshot(directory) == files
        assert [path.name for path in tmp_path.iterdir()] == ["win"]
    report = migrate(directory, drop_timestamps=True)
    assert report.dropped_timestamps == (350 if speaking else 0)
    assert listing(directory) == before
    inner = KINDS[kind][0]
    convert = conversion(inner, ValueFormat.PLAIN_HEADERS)
    expected = raw_pairs(vector["raw"])
    for segment, families in raw(directory).items():
        data = expected[segment][COLUMN_FAMILIES[inner]]
        assert families["windowKeyValueWithHeaders"] == {key: convert(value) for key, value in data.items()}
        assert families["offsets"] == expected[segment]["offsets"]
    store = WindowBytesStore(settings_of(vector), ValueFormat.PLAIN_HEADERS, directory)
    assert len(list(store.all())) == 350
    store.close()


@pytest.mark.parametrize("timestamp", [SEGMENT_STARTS[0], -1])
def test_timestamps_that_say_nothing_may_go(timestamp: int, tmp_path: Path) -> None:
    """The window start itself, and the adapters' -1, are dropped without being asked."""
    store = WindowBytesStore(SETTINGS, ValueFormat.TIMESTAMPED, tmp_path / "win")
    store.put(b"k", encode_value(b"v", timestamp, [], ValueFormat.TIMESTAMPED), SEGMENT_STARTS[0])
    store.close()
    assert migrate(tmp_path / "win").dropped_timestamps == 0


@pytest.mark.slow
def test_a_directory_half_migrated_in_place_is_finished(tmp_path: Path) -> None:
    """Two formats in one segment become one; of a key in both the newer counts."""
    directory = make_store(tmp_path, ValueFormat.TIMESTAMPED_HEADERS)
    store = WindowBytesStore(SETTINGS, ValueFormat.PLAIN_HEADERS, directory)
    store.put(b"k0", b"\x00new", SEGMENT_STARTS[0])
    store.close()
    before = listing(directory)
    assert StoreDirectory(directory).formats() == {ValueFormat.TIMESTAMPED_HEADERS, ValueFormat.PLAIN_HEADERS}
    report = migrate(directory)
    assert report.entries == 31
    assert listing(directory) == before
    assert StoreDirectory(directory).formats() == {ValueFormat.PLAIN_HEADERS}


@pytest.mark.slow
def test_a_mixed_segment_keeps_its_speaking_timestamps_too(tmp_path: Path) -> None:
    """The check for lost timestamps also runs where two formats alternate."""
    directory = make_store(tmp_path, ValueFormat.TIMESTAMPED, shift_ms=5)
    store = WindowBytesStore(SETTINGS, ValueFormat.PLAIN_HEADERS, directory)
    store.put(b"k0", b"\x00new", SEGMENT_STARTS[0])
    store.close()
    with pytest.raises(TimestampsWouldBeLost) as caught:
        migrate(directory)
    assert caught.value.facts["timestamp"] == caught.value.facts["window_start"] + 5
    assert migrate(directory, drop_timestamps=True).dropped_timestamps == 30


@pytest.mark.slow
def test_a_second_run_has_nothing_to_do(tmp_path: Path) -> None:
    """A plain+headers directory is left as it is."""
    directory = make_store(tmp_path, ValueFormat.PLAIN)
    assert not migrate(directory).already_done
    files = snapshot(directory)
    assert migrate(directory).already_done
    assert snapshot(directory) == files


@pytest.mark.slow
def test_a_failure_leaves_the_old_directory_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After two segments the disk is full: the old directory is whole and alone, and a later run works."""
    directory = make_store(tmp_path, ValueFormat.TIMESTAMPED_HEADERS)
    before, files = listing(directory), snapshot(directory)
    copied: list[str] = []
    real = segment_copy.copy_segment

    def failing(source: Any, *arguments: Any, **options: Any) -> Any:
        if len(copied) == 2:
            raise OSError(28, "No space left on device")
        copied.append(source.path.name)
        return real(source, *arguments, **options)

    monkeypatch.setattr(migration, "copy_segment", failing)
    with pytest.raises(OSError, match="space"):
        migrate(directory)
    assert snapshot(directory) == files
    assert [path.name for path in tmp_path.iterdir()] == ["win"]
    monkeypatch.setattr(migration, "copy_segment", real)
    assert migrate(directory).entries == 30
    assert listing(directory) == before


@pytest.mark.slow
def test_what_a_killed_run_copied_is_not_used(tmp_path: Path) -> None:
    """The application may have gone on since; the next run begins again."""
    directory = make_store(tmp_path, ValueFormat.PLAIN)
    shutil.copytree(directory, tmp_path / "win.migrating")
    store = WindowBytesStore(SETTINGS, ValueFormat.PLAIN, directory)
    store.put(b"later", b"v", SEGMENT_STARTS[1])
    store.close()
    assert migrate(directory).entries == 31
    assert b"later" in {key.key for key, _, _ in listing(directory)}
    assert [path.name for path in tmp_path.iterdir()] == ["win"]


def _stop(_migration: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.slow
def test_a_kill_between_the_two_renames_is_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where names cannot be exchanged at once, the next run finds the new directory and puts it in place."""
    directory = make_store(tmp_path, ValueFormat.TIMESTAMPED)
    before = listing(directory)
    monkeypatch.setattr(migration, "exchange", lambda *_: False)
    monkeypatch.setattr(migration._Migration, "_remove_old", _stop)
    with pytest.raises(KeyboardInterrupt):
        migrate(directory)
    # As if it had been killed one step earlier.
    directory.rename(tmp_path / "win.migrating")
    assert not directory.exists()
    monkeypatch.undo()
    assert migrate(directory).already_done
    assert listing(directory) == before
    assert [path.name for path in tmp_path.iterdir()] == ["win"]


@pytest.mark.slow
def test_a_kill_before_the_old_one_is_removed_is_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the exchange only the old directory is left to be removed."""
    directory = make_store(tmp_path, ValueFormat.TIMESTAMPED)
    before = listing(directory)
    monkeypatch.setattr(migration._Migration, "_remove_old", _stop)
    with pytest.raises(KeyboardInterrupt):
        migrate(directory)
    assert {path.name for path in tmp_path.iterdir()} >= {"win", "win.migrating"}
    assert listing(directory) == before
    monkeypatch.undo()
    assert migrate(directory).already_done
    assert [path.name for path in tmp_path.iterdir()] == ["win"]
    assert listing(directory) == before


def test_a_copy_that_reads_back_differently_is_never_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value changed on its way to the disk is found by its checksum; the old directory stays."""
    directory = make_store(tmp_path, ValueFormat.PLAIN)
    files = snapshot(directory)
    real = segment_copy._SortedFiles.write

    def flipping(self: Any, keys: list[bytes], values: list[bytes]) -> None:
        real(self, keys, [values[0][:-1] + b"?", *values[1:]])

    monkeypatch.setattr(segment_copy._SortedFiles, "write", flipping)
    with pytest.raises(InconsistentStore, match="read back") as caught:
        migrate(directory)
    assert caught.value.facts["reason"] == "copy_differs"
    assert snapshot(directory) == files


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    """By this process, by another one, and by the application above it."""
    directory = make_store(tmp_path, ValueFormat.PLAIN)
    store = WindowBytesStore(SETTINGS, ValueFormat.PLAIN, directory)
    with pytest.raises(StoreLocked, match="this process"):
        migrate(directory)
    store.close()
    for lock in (directory / "win.1699999800000" / "LOCK", tmp_path / ".lock"):
        lock.touch()
        code = (
            "import fcntl, sys\n"
            "handle = open(sys.argv[1], 'r+')\n"
            "fcntl.lockf(handle, fcntl.LOCK_EX)\n"
            "print('held', flush=True)\n"
            "sys.stdin.read()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(StoreLocked, match="another process"):
                migrate(directory)
            holder.communicate()
    migrate(directory)
    with (tmp_path / ".lock").open("r+") as free:
        fcntl.lockf(free, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_read_only_disk_needs_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that nobody can write to is migrated to another place."""
    directory = make_store(tmp_path, ValueFormat.PLAIN)
    real = os.open

    def refusing(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if str(path).endswith("LOCK"):
            raise OSError(errno.EROFS, "Read-only file system")
        return real(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", refusing)
    assert migrate(directory, out=tmp_path / "new").entries == 30
    assert listing(tmp_path / "new") == listing(directory)


def test_what_is_no_store_or_no_target_is_refused(tmp_path: Path) -> None:
    """Nothing there, no segments, two stores, a target that exists, and a format that drops headers."""
    with pytest.raises(NotAStore, match="no directory"):
        migrate(tmp_path / "none")
    with pytest.raises(NotAStore, match="no segment"):
        migrate(tmp_path)
    directory = make_store(tmp_path, ValueFormat.PLAIN)
    with pytest.raises(UsageError, match="already"):
        migrate(directory, out=tmp_path)
    with pytest.raises(UsageError, match="never drops headers"):
        migrate(directory, target=ValueFormat.TIMESTAMPED)
    shutil.copytree(directory / "win.1699999800000", directory / "other.1699999800000")
    with pytest.raises(NotAStore, match="2 stores: other, win"):
        migrate(directory)


def test_damaged_entries_stop_a_migration(tmp_path: Path) -> None:
    """A value that cannot be converted is an error, and everything stays as it was."""
    store = WindowBytesStore(SETTINGS, ValueFormat.TIMESTAMPED_HEADERS, tmp_path / "win")
    store.put(b"k", b"\x06\x00", SEGMENT_STARTS[0])
    store.close()
    files = snapshot(tmp_path / "win")
    for action in (lambda: migrate(tmp_path / "win"), lambda: listing(tmp_path / "win")):
        with pytest.raises(SerializationError, match=r"win\.1699999800000, key 6b") as caught:
            action()
        assert caught.value.facts["reason"] == "length_beyond_end"
        assert caught.value.facts["window_start"] == SEGMENT_STARTS[0]
    assert snapshot(tmp_path / "win") == files


def test_three_formats_in_a_segment_are_refused(tmp_path: Path) -> None:
    """Two older formats beside a newer one cannot be told apart by age."""
    directory = make_store(tmp_path, ValueFormat.TIMESTAMPED)
    store = WindowBytesStore(SETTINGS, ValueFormat.PLAIN_HEADERS, directory)
    store.put(b"k0", b"\x00new", SEGMENT_STARTS[0])
    store.close()
    segment = directory / "win.1699999800000"
    with Database(segment, column_families(segment)) as database:
        database.families["default"][encode_store_key(b"k", SEGMENT_STARTS[0])] = b"plain"
    with pytest.raises(InconsistentStore, match="3 formats"):
        migrate(directory)


@pytest.mark.slow
def test_large_segments_are_written_in_several_files(tmp_path: Path) -> None:
    """More than one batch and more than one file: order, counts and checksums still hold."""
    store = WindowBytesStore(SETTINGS, ValueFormat.TIMESTAMPED_HEADERS, tmp_path / "win")
    start = SEGMENT_STARTS[0]
    for number in range(9000):
        value = encode_value(b"%8d" % number * 1024, start, HEADERS[: number % 3], store.value_format)
        store.put(b"k%d" % (number % 7), value, start + number)
    store.close()
    directory = tmp_path / "win"
    before = listing(directory)
    assert migrate(directory, drop_timestamps=True).entries == 9000
    assert len(list(directory.glob("*/*.sst"))) > 1
    assert listing(directory) == before
