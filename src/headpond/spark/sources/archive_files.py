"""Archive files and the plan of micro-batches over them: pattern, matching files, byte ranges, offsets.

Local paths and object-store URLs go through `pyarrow.fs`. A file's name is its path below the fixed folder of
the pattern, so moving the folder changes no identity::

    records/2026-*/*.jsonl.gz              folder: records      names: 2026-01/a.jsonl.gz, …
    export/*.completed.manifest            folder: export       names: those of the objects that these name

The offset is a JSON document in Spark's checkpoint, nothing else is kept::

    {"v": 1, "files": {"a.jsonl": {"bytes": 8190, "lines": 12, "head": "91c0f4…"}, "b.gz": {"whole": 4711}}}

    bytes, lines   a plain file is done up to this byte, which follows a line end (or ends the file)
    whole          a gzip file, or one of Ion, was taken, when it was this large
    head           BLAKE2b of what was read of its first KiB; offsets of older versions have none

Plain files are cut at line ends; at least one line or one whole file is taken however small the bound is.
Files may appear at any time, plain files may grow. A last line without its end is taken if it is a whole JSON
object, which half a line never is; else when the file has rested, or the archive is read once.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import orjson
import pyarrow.fs as pafs

from headpond.core.errors import ConfigurationError, DataLoss, InvalidData, UsageError
from headpond.ion.binary import RefusedIon
from headpond.kinesis.archive.compressed import MAGIC
from headpond.kinesis.archive.lines import count_lines
from headpond.lake.storage import file_system, storage_errors
from headpond.qldb.files import is_ion, read_manifest

MANIFEST = ".manifest"
"""Ends a pattern of manifests, which stand for what they name."""
_STARTED = ".started.manifest"
EXPORT_MANIFESTS = (_STARTED, ".completed.manifest")
_WILD = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class PatternFiles:
    """The files behind a pattern; picklable, opens its filesystem wherever it is used."""

    root: str  # the fixed folder, or a URL of it
    wild: str  # the rest of the pattern
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # of the object store

    def sizes(self) -> dict[str, int]:
        """Return name and size of every file that matches now; a folder that is absent holds none."""
        filesystem, folder = file_system(self.root, self.options)
        selector = pafs.FileSelector(folder, recursive="/" in self.wild, allow_not_found=True)
        manifests = self.wild.endswith(MANIFEST)
        if manifests:  # their objects lie somewhere below
            selector.recursive = True
        wild = self.wild.split("/")
        found: dict[str, int] = {}
        there: dict[str, int] = {}
        with storage_errors(self.root, self.options):
            infos = filesystem.get_file_info(selector)
        for info in infos:
            name = _path_of(info)[len(folder) :].lstrip("/")
            if info.type == pafs.FileType.File:
                there[name] = info.size
                if _matches(name.split("/"), wild) and (manifests or not name.endswith(EXPORT_MANIFESTS)):
                    found[name] = info.size
        return self._objects(found, there) if manifests else found

    def _objects(self, manifests: Mapping[str, int], there: Mapping[str, int]) -> dict[str, int]:
        """Return the objects that manifests name, among the files that are there."""
        objects: dict[str, int] = {}
        for manifest, size in manifests.items():
            if not manifest.endswith(_STARTED):  # which names nothing that is known to be whole
                for name in objects_of(manifest, self.read(manifest, 0, size), there):
                    objects[name] = there[name]
        return objects

    def read(self, name: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of a file; fewer where it ends before."""
        filesystem, folder = file_system(self.root, self.options)
        with (
            storage_errors(self.root, self.options),
            filesystem.open_input_file(f"{folder}/{name}") as opened,
        ):
            size = opened.size()
            start = min(start, size)
            content: bytes = opened.read_at(min(end, size) - start, start)
            return content

    def rest_ms(self, name: str) -> int:
        """Return for how long a file was not written to."""
        filesystem, folder = file_system(self.root, self.options)
        with storage_errors(self.root, self.options):
            written_ns = filesystem.get_file_info(f"{folder}/{name}").mtime_ns or 0
        return (time.time_ns() - written_ns) // 1_000_000


def _path_of(info: pafs.FileInfo) -> str:
    try:
        path: str = info.path
    except UnicodeDecodeError as error:
        raise InvalidData(
            f"The archive has a file whose name is not UTF-8: {error.object!r}.",
            next_step="Rename it, or move it out of the archive's folder.",
            reason="file_name",
            name=repr(error.object),
        ) from error
    return path


def objects_of(manifest: str, content: bytes, there: Container[str]) -> list[str]:
    """Find the objects that a manifest of a journal export names.

    A key is relative to a bucket, of which a copy may hold a part: the object is looked for below the
    manifest's folder, by the whole key first, then by less and less of it.

    Raises:
        UsageError: it is not a manifest, or an object is not there.
    """
    folder = manifest.rpartition("/")[0]
    try:
        keys = read_manifest(content)
    except RefusedIon as error:
        raise UsageError(
            f"{manifest} is not a manifest of a journal export: {error}.",
            next_step="Name the export's objects themselves.",
            file=manifest,
        ) from error
    found = []
    for key in keys:
        parts = [part for part in key.split("/") if part]
        tries = ["/".join([folder, *parts[at:]] if folder else parts[at:]) for at in range(len(parts))]
        name = next((one for one in tries if ".." not in parts and one in there), None)
        if name is None:
            raise UsageError(
                f"{manifest} names the object {key}, which does not exist below its folder.",
                next_step="Fetch the whole export, or name the objects that are there.",
                file=manifest,
            )
        found.append(name)
    return found


def open_pattern(pattern: str, options: Mapping[str, str] | None = None) -> PatternFiles:
    """Split a pattern into its fixed folder and its wild rest.

    `*`, `?` and `[…]` stand for parts of one name, `**` for any folders.

    Raises:
        ConfigurationError: It is empty, or names a folder.
    """
    if not pattern or pattern.endswith("/"):
        raise ConfigurationError(
            f"The archive pattern {pattern!r} names no files.",
            next_step="Write a pattern that ends in file names, such as records/*.jsonl.",
            option="path",
        )
    scheme, separator, path = pattern.rpartition("://")
    parts = path.split("/")
    fixed = 0
    while fixed < len(parts) - 1 and not _WILD.search(parts[fixed]):
        fixed += 1
    root = "/".join(parts[:fixed]) or ("/" if path.startswith("/") else ".")
    wild = "/".join(parts[fixed:])
    if separator:
        return PatternFiles(f"{scheme}://{root}", wild, dict(options or {}))
    if Path(path).is_dir():
        raise ConfigurationError(
            f"The archive {pattern} is a folder.",
            next_step=f"Write a pattern of the files in it, such as {pattern}/*.jsonl.",
            option="path",
        )
    return PatternFiles(str(Path(root).expanduser().absolute()), wild)


def _matches(name: Sequence[str], wild: Sequence[str]) -> bool:
    """Return whether the parts of a name fit a pattern; a dot at their beginning is met by a dot alone."""
    if not (name and wild):
        return not (name or wild)
    first, *rest = wild
    is_shown = first.startswith(".") or not name[0].startswith(".")
    if first == "**":
        return _matches(name, rest) or (is_shown and _matches(name[1:], wild))
    return is_shown and fnmatchcase(name[0], first) and _matches(name[1:], rest)


VERSION = 1
PIECE_BYTES = 32 << 20
"""How much of the archive one task reads, about."""

_READ_BYTES = 4 << 20
_HEAD_BYTES = 1024
_LOOKS_AT_ONCE = 16
_LOOK_BYTES = 64  # to detect what a file is


@dataclass(frozen=True, slots=True)
class FilePosition:
    """How far a file was read: `lines` is None for one taken whole, then `size` is that of the whole file.

    `head` is the hash of what was read of its first KiB, or None where it was not noted.
    """

    size: int
    lines: int | None
    head: str | None = field(default=None, compare=False)


Offset = dict[str, FilePosition]
"""File name → how far it was read; a file not named was not begun."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one file that one task reads: bytes [start, end)."""

    file: str
    start: int
    end: int
    first_line: int
    whole: bool  # compressed, or records that are no lines


def to_json(offset: Offset) -> dict[str, Any]:
    """Write an offset for Spark's checkpoint."""
    files: dict[str, dict[str, Any]] = {}
    for name, at in sorted(offset.items()):
        files[name] = {"whole": at.size} if at.lines is None else {"bytes": at.size, "lines": at.lines}
        files[name] |= {} if at.head is None else {"head": at.head}
    return {"files": files, "v": VERSION}


def from_json(value: dict[str, Any]) -> Offset:
    """Read an offset from Spark's checkpoint.

    Raises:
        InvalidData: It is not an archive offset, or one of another version.
    """
    if value.get("v") != VERSION:
        raise InvalidData(
            f"The checkpoint holds an archive offset of version {value.get('v')!r}; this headpond reads "
            f"version {VERSION}.",
            next_step="Open it with the headpond that wrote it, or begin with a new checkpoint.",
            reason="offset_version",
        )
    try:
        return {
            str(name): FilePosition(int(at["whole"]), None, at.get("head"))
            if "whole" in at
            else FilePosition(int(at["bytes"]), int(at["lines"]), at.get("head"))
            for name, at in value["files"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise InvalidData(
            f"The checkpoint holds an archive offset that cannot be read: {exc!r}.",
            next_step="Begin with a new checkpoint.",
            reason="offset_damaged",
        ) from exc


def plan(
    files: PatternFiles,
    sizes: dict[str, int],
    start: Offset,
    max_bytes: int | None,
    *,
    last_line_wait_ms: int | None = None,
) -> Offset:
    """Return the end of the next batch, which is `start` where there is nothing to take beyond it.

    Nothing is taken beyond `sizes`, and at most `max_bytes` of the files, gzip files as stored; None: all
    there is. Half a line at the end of a file is taken when that has rested for `last_line_wait_ms`; None: at
    once, the archive is read once.
    """
    asked: dict[str, tuple[FilePosition | None, int | None]] = {}  # where each begins, and its room
    left = max_bytes
    for name in sorted(sizes):
        done = start.get(name)
        beyond = sizes[name] - (done.size if done else 0)
        if beyond > 0 and (done is None or done.lines is not None):
            asked[name] = done, left
            left = None if left is None else left - beyond
        if left is not None and left <= 0:
            break

    def end_of(name: str) -> FilePosition | None:
        """Look how far a file goes; None where nothing is taken of it."""
        (done, room), size = asked[name], sizes[name]
        if done is None and _is_whole(files, name):
            # A batch that begins with a gzip file larger than the bound takes it, or it would never be read.
            to = FilePosition(size, None) if room in {None, max_bytes} or size <= room else FilePosition(0, 0)
        else:
            to = _advance(files, name, done or FilePosition(0, 0), size, room, last_line_wait_ms)
        return replace(to, head=_head(files, name, to.size)) if to.size > (done.size if done else 0) else None

    with ThreadPoolExecutor(_LOOKS_AT_ONCE) as pool:
        ends = {name: to for name, to in zip(asked, pool.map(end_of, asked), strict=True) if to}
    if asked and not ends:  # each waits for the end of a line; others need not wait for that
        rest = {name: size for name, size in sizes.items() if name not in asked}
        return plan(files, rest, start, max_bytes, last_line_wait_ms=last_line_wait_ms)
    return {**start, **ends}


def check_unchanged(
    files: PatternFiles, offset: Offset, sizes: dict[str, int], known: dict[str, int]
) -> None:
    """Make sure that what was read is still what lies there, of these `sizes` now.

    `known` are the sizes at the last look; files that still have theirs are not opened again.

    Raises:
        DataLoss: A file shrank, a gzip file changed its size, or another file has its name.
    """
    asked = [
        name for name, at in offset.items() if at.head and name in sizes and known.get(name) != sizes[name]
    ]
    with ThreadPoolExecutor(_LOOKS_AT_ONCE) as pool:
        heads = dict(
            zip(asked, pool.map(lambda name: _head(files, name, offset[name].size), asked), strict=True)
        )
    for name, at in offset.items():
        size = sizes.get(name)
        if size is not None and size >= at.size and heads.get(name, at.head) != at.head:
            raise DataLoss(
                f"The archive file {name} is not the one that was read before: its beginning differs.",
                next_step="Give new files new names; a new checkpoint reads this one from its start.",
                file=name,
            )
        if size is not None and (size < at.size or (at.lines is None and size != at.size)):
            raise DataLoss(
                f"The archive file {name} was read when it had {at.size} bytes and has {size} now.",
                next_step="Put new records into new files; a new checkpoint reads this one again.",
                file=name,
                expected=at.size,
                found=size,
            )


def pieces(
    files: PatternFiles, start: Offset, end: Offset, piece_bytes: int = PIECE_BYTES
) -> list[list[Piece]]:
    """Cut what lies between two offsets into tasks of about `piece_bytes`: lists of pieces.

    It is a pure function of both offsets and of the files' bytes.
    """
    tasks: list[list[Piece]] = []
    room = 0
    for name in sorted(end):
        done = start.get(name)
        at, to = done or FilePosition(0, 0), end[name]
        if to == done:
            continue
        for piece in _cut(files, name, at, to, piece_bytes):
            if not tasks or room < piece.end - piece.start:
                tasks.append([])
                room = piece_bytes
            tasks[-1].append(piece)
            room -= piece.end - piece.start
    return tasks


def _cut(files: PatternFiles, name: str, at: FilePosition, to: FilePosition, piece_bytes: int) -> list[Piece]:
    """Cut one file's part at line ends."""
    if to.lines is None:
        return [Piece(name, 0, to.size, 1, whole=True)]
    cut: list[Piece] = []
    while at.size < to.size:
        assert at.lines is not None
        if to.size - at.size <= piece_bytes:
            ahead = to
        else:
            ahead = _advance(files, name, at, to.size, piece_bytes, None)
        cut.append(Piece(name, at.size, ahead.size, at.lines + 1, whole=False))
        at = ahead
    return cut


def _advance(
    files: PatternFiles,
    name: str,
    at: FilePosition,
    size: int,
    bound: int | None,
    last_line_wait_ms: int | None,
) -> FilePosition:
    """Go on by whole lines from a line's start, by `bound` bytes at most but by one line at least.

    Nothing at or beyond the byte `size` is looked at.
    """
    stop = size if bound is None else min(size, at.size + bound)
    assert at.lines is not None
    taken, lines, position = at.size, at.lines, at.size
    while position < size and (position < stop or taken == at.size):
        # Beyond the bound only for the sake of a first line that is longer than it.
        until = min(stop if position < stop else size, position + _READ_BYTES)
        chunk = files.read(name, position, until)
        if not chunk:
            break
        if position >= stop:
            cut = chunk.find(b"\n")
            chunk_lines = 1 if cut >= 0 else 0
        else:
            cut, chunk_lines = chunk.rfind(b"\n"), count_lines(chunk)
        if cut >= 0:
            taken, lines = position + cut + 1, lines + chunk_lines
        position += len(chunk)
    if position >= size and taken < size and (stop == size or taken == at.size):
        rests = last_line_wait_ms is None or files.rest_ms(name) >= last_line_wait_ms
        if rests or _is_object(files.read(name, taken, size)):
            taken, lines = size, lines + 1
    return FilePosition(taken, lines)


def _is_object(line: bytes) -> bool:
    try:
        return line.rstrip().endswith(b"}") and isinstance(orjson.loads(line), dict)
    except orjson.JSONDecodeError:
        return False


def _head(files: PatternFiles, name: str, size: int) -> str:
    return hashlib.blake2b(files.read(name, 0, min(size, _HEAD_BYTES)), digest_size=8).hexdigest()


def _is_whole(files: PatternFiles, name: str) -> bool:
    # A JSON line cannot begin like this, so a name is not asked.
    head = files.read(name, 0, _LOOK_BYTES)
    return head.startswith(MAGIC) or is_ion(head)
