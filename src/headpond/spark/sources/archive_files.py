"""Archive files and the plan of micro-batches over them: pattern, matching files, byte ranges, offsets.

Local paths and object-store URLs go through `pyarrow.fs`. A file's name is its path below the fixed folder of
the pattern, so moving the folder changes no identity::

    records/2026-*/*.jsonl.gz              folder: records      names: 2026-01/a.jsonl.gz, …
    export/*.completed.manifest            folder: export       names: those of the objects that these name

The offset is a JSON document in Spark's checkpoint, nothing else is kept::

    {"v": 2, "written_ms": 1783600000000,
     "files": {"a.jsonl": {"bytes": 8190, "lines": 12, "head": "91c0f4…"}, "b.gz": {"whole": 4711}}}

    written_ms     when the newest file was written, of those there were; version 1 has none
    bytes, lines   a plain file is done up to this byte, which follows a line end (or ends the file); without
                   `lines`, which version 1 always has, nobody counted them
    whole          a gzip file, or one of Ion, was taken, when it was this large
    head           BLAKE2b of what was read of its first KiB; the oldest offsets have none

Plain files are cut at line ends; at least one line or one whole file is taken however small the bound is.
Files may appear at any time, plain files may grow. A last line without its end is taken if it is a whole JSON
object, which half a line never is; else when the file has rested, or the archive is read once.

Of a file that is taken as it lies, planning reads the first KiB and nothing else. Lines are counted of one
that is cut, by a batch or by a task, or that grows after it was read.
"""

from __future__ import annotations

import glob
import hashlib
import re
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import orjson
import pyarrow as pa
import pyarrow.fs as pafs

from headpond.core.errors import ConfigurationError, DataLoss, InvalidData, UsageError
from headpond.ion.binary import RefusedIon
from headpond.kinesis.archive.compressed import MAGIC
from headpond.kinesis.archive.lines import count_lines
from headpond.lake.engine.folder import Folder
from headpond.lake.object_store import is_remote
from headpond.lake.storage import storage_errors
from headpond.qldb.files import is_ion, read_manifest

MANIFEST = ".manifest"
"""Ends a pattern of manifests, which stand for what they name."""
_STARTED = ".started.manifest"
EXPORT_MANIFESTS = (_STARTED, ".completed.manifest")
MAX_KEY_LENGTH = 1024
"""Of an object that a manifest names: S3 has no longer one."""
_WILD = re.compile(r"[*?\[]")
_AT_ONCE = 32
"""How many files of an object store a process asks for at a time, where most of it is waiting."""
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(slots=True)
class Listed:
    """What a listing says of a file.

    Attributes:
        size: its bytes.
        written_ms: when it was last written to, since 1970.
        rested_ms: how long ago that was when it was listed. It may have been written to since.
    """

    size: int
    written_ms: int
    rested_ms: int = field(default=0, compare=False)


@dataclass(frozen=True)
class PatternFiles:
    """The files behind a pattern; picklable."""

    root: str  # the fixed folder, or a URL of it
    wild: str  # the rest of the pattern
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # of the object store

    def listed(self) -> dict[str, Listed]:
        """Return every file that matches now, by its name; a folder that is absent holds none."""
        if self.wild.endswith(MANIFEST):  # their objects lie somewhere below
            return self._objects(self._below(["**", "*"]))
        found = self._below(self._parts)
        return {name: file for name, file in found.items() if not name.endswith(EXPORT_MANIFESTS)}

    def each(self, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield what `work` makes of each, in their order: in an object store of many at a time."""
        if not is_remote(self.root):
            yield from map(work, items)
            return
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="headpond-archive") as pool:
            yield from pool.map(work, items)

    @cached_property
    def _folder(self) -> Folder:
        return Folder(self.root, self.options)

    @property
    def _parts(self) -> list[str]:
        parts = self.wild.split("/")
        return [*parts, "*"] if parts[-1] == "**" else parts

    def _below(self, wild: Sequence[str]) -> dict[str, Listed]:
        """List the files that match; of folders only those are looked into that can hold one."""
        filesystem, root = self._folder.files, self._folder.place("")[:-1]
        folders, found = [root], dict[str, Listed]()
        for depth, part in enumerate(wild):
            selectors = [
                pafs.FileSelector(folder, recursive=part == "**", allow_not_found=True) for folder in folders
            ]
            now_ms = _now_ms()
            with storage_errors(self.root, self.options):
                infos = list(chain.from_iterable(self.each(filesystem.get_file_info, selectors)))
            if part == "**" or depth == len(wild) - 1:
                fits = cache(lambda folder: _matches([each for each in folder.split("/") if each], wild[:-1]))
                for info in infos:
                    name = _path_of(info)[len(root) :].lstrip("/")
                    folder, _, last = name.rpartition("/")
                    if info.type == pafs.FileType.File and _matches([last], wild[-1:]) and fits(folder):
                        written_ms = info.mtime_ns // 1_000_000 if info.mtime_ns else now_ms
                        found[name] = Listed(info.size, written_ms, now_ms - written_ms)
                break
            folders = [
                _path_of(info)
                for info in infos
                if _matches(_path_of(info).split("/")[-1:], [part]) and info.type == pafs.FileType.Directory
            ]
        return found

    def _objects(self, there: Mapping[str, Listed]) -> dict[str, Listed]:
        """Return the objects that manifests name, among the files that are there."""
        objects: dict[str, Listed] = {}
        for manifest, file in there.items():
            # A started one names nothing that is known to be whole.
            if _matches(manifest.split("/"), self._parts) and not manifest.endswith(_STARTED):
                for name in objects_of(manifest, self.read(manifest, 0, file.size), there):
                    objects[name] = there[name]
        return objects

    def read(self, name: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of a file; fewer where it ends before."""
        try:
            return self._folder.read_part(name, start, end)
        except pa.ArrowInvalid as error:
            raise InvalidData(
                f"The archive has a file whose name cannot be used, {name!r}: {error}.",
                next_step="Rename it, or move it out of the archive's folder.",
                reason="file_name",
                name=name,
            ) from error


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
        parts = [part for part in key.split("/") if part] if len(key) <= MAX_KEY_LENGTH else []
        tries = ("/".join([folder, *parts[at:]] if folder else parts[at:]) for at in range(len(parts)))
        name = next((one for one in tries if ".." not in parts and one in there), None)
        if name is None:
            raise UsageError(
                f"{manifest} names the object {key[:MAX_KEY_LENGTH]}, which does not exist below its folder.",
                next_step="Fetch the whole export, or name the objects that are there.",
                file=manifest,
            )
        found.append(name)
    return found


def open_pattern(pattern: str, options: Mapping[str, str] | None = None) -> PatternFiles:
    """Split a pattern into its fixed folder and its wild rest.

    `*`, `?` and `[…]` stand for parts of one name, `**` for any folders. A folder or file on this machine
    that has such a name itself is meant where it is there.

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
    while fixed < len(parts) - 1 and (
        not _WILD.search(parts[fixed]) or (not separator and Path("/".join(parts[: fixed + 1])).is_dir())
    ):
        fixed += 1
    root = "/".join(parts[:fixed]) or ("/" if path.startswith("/") else ".")
    wild = "/".join(parts[fixed:])
    if not separator and Path(path).is_file():
        wild = glob.escape(wild)
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
    met = _beyond_any({0}, wild)  # how many parts of the pattern the name may have met so far
    for part in name:
        now = set[int]()
        for at in met - {len(wild)}:
            if wild[at].startswith(".") or not part.startswith("."):
                now |= {at} if wild[at] == "**" else {at + 1} if fnmatchcase(part, wild[at]) else set()
        met = _beyond_any(now, wild)
    return len(wild) in met


def _beyond_any(met: set[int], wild: Sequence[str]) -> set[int]:
    """Add what is met where `**` stands for no folder."""
    for at, part in enumerate(wild):
        if part == "**" and at in met:
            met.add(at + 1)
    return met


VERSION = 2
PIECE_BYTES = 32 << 20
"""How much of the archive one task reads, about."""

_READ_BYTES = 4 << 20
_HEAD_BYTES = 1024


@dataclass(slots=True)
class FilePosition:
    """How far a file was read.

    Attributes:
        size: bytes that were read.
        lines: how many these are; None where nobody counted them.
        whole: it is a file that has no lines to be cut at, and `size` is that of all of it.
        head: the hash of what was read of its first KiB; None where it was not noted.
    """

    size: int
    lines: int | None = None
    whole: bool = False
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


def to_json(offset: Offset, written_ms: int | None = None) -> dict[str, Any]:
    """Write an offset for Spark's checkpoint, with when the newest of the files was written."""
    files: dict[str, dict[str, Any]] = {}
    for name, at in sorted(offset.items()):
        files[name] = {"whole" if at.whole else "bytes": at.size}
        files[name] |= {} if at.lines is None else {"lines": at.lines}
        files[name] |= {} if at.head is None else {"head": at.head}
    return {"files": files, "v": VERSION} | ({} if written_ms is None else {"written_ms": written_ms})


def from_json(value: dict[str, Any]) -> Offset:
    """Read an offset from Spark's checkpoint.

    Raises:
        InvalidData: It is not an archive offset, or one of another version.
    """
    if value.get("v") not in (1, VERSION):
        raise InvalidData(
            f"The checkpoint holds an archive offset of version {value.get('v')!r}; this headpond reads "
            f"versions up to {VERSION}.",
            next_step="Open it with the headpond that wrote it, or begin with a new checkpoint.",
            reason="offset_version",
        )
    try:
        return {
            name: FilePosition(
                int(at["whole"] if "whole" in at else at["bytes"]),
                int(at["lines"]) if "lines" in at else None,
                "whole" in at,
                at.get("head"),
            )
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
    listed: Mapping[str, Listed],
    start: Offset,
    max_bytes: int | None,
    *,
    last_line_wait_ms: int | None = None,
) -> Offset:
    """Return the end of the next batch, which is `start` itself where there is nothing to take beyond it.

    Nothing is taken beyond what is listed, and at most `max_bytes` of the files, gzip files as stored; None:
    all there is. Half a line at the end of a file is taken when that had rested for `last_line_wait_ms`;
    None: at once, the archive is read once.
    """
    asked: dict[str, tuple[FilePosition | None, int | None]] = {}  # where each begins, and its room
    left = max_bytes
    for name in sorted(listed):
        done = start.get(name)
        beyond = listed[name].size - (done.size if done else 0)
        if beyond > 0 and (done is None or not done.whole):
            asked[name] = done, left
            left = None if left is None else left - beyond
        if left is not None and left <= 0:
            break

    def end_of(name: str) -> FilePosition | None:
        """Look how far a file goes; None where nothing is taken of it."""
        (done, room), size = asked[name], listed[name].size
        rests = last_line_wait_ms is None or listed[name].rested_ms >= last_line_wait_ms
        fits = room is None or size - (done.size if done else 0) <= room
        head = files.read(name, 0, _HEAD_BYTES)
        if done is None and _is_whole(head):
            # A batch that begins with a gzip file larger than the bound takes it, or it would never be read.
            to = FilePosition(size, whole=True) if fits or room == max_bytes else FilePosition(0)
        elif done is None and fits and (rests or files.read(name, size - 1, size) == b"\n"):
            to = FilePosition(size)
        else:
            to = _advance(files, name, _counted(files, name, done), size, room, rests=rests)
        if to.size <= (done.size if done else 0):
            return None
        return FilePosition(to.size, to.lines, to.whole, _hash(head[: to.size]))

    ends = {name: to for name, to in zip(asked, files.each(end_of, asked), strict=True) if to}
    if asked and not ends:  # each waits for the end of a line; others need not wait for that
        rest = {name: file for name, file in listed.items() if name not in asked}
        return plan(files, rest, start, max_bytes, last_line_wait_ms=last_line_wait_ms)
    # A file that is gone is forgotten with the next step: an offset grows with the archive, not with time.
    return {name: at for name, at in start.items() if name in listed} | ends if ends else start


def newest_ms(listed: Mapping[str, Listed]) -> int:
    """Return when the newest file was written, not in the future; 0 where there are none."""
    newest = max((file.written_ms for file in listed.values()), default=0)
    return min(newest, _now_ms())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def check_unchanged(
    files: PatternFiles,
    offset: Offset,
    listed: Mapping[str, Listed],
    known: Mapping[str, Listed],
    written_ms: int = 0,
) -> None:
    """Make sure that what was read is still what lies there.

    `known` is the last look, and `written_ms` when the newest file was written at the time of the offset:
    files that are still as they were then are not opened again.

    Raises:
        DataLoss: A file shrank, a gzip file changed its size, or another file has its name.
    """
    asked = [
        name
        for name, at in offset.items()
        if at.head
        and (file := listed.get(name)) is not None
        and known.get(name) != file
        and (file.size != at.size or file.written_ms >= written_ms)
    ]

    def head_of(name: str) -> str:
        return _hash(files.read(name, 0, min(offset[name].size, _HEAD_BYTES)))

    heads = dict(zip(asked, files.each(head_of, asked), strict=True))
    for name, at in offset.items():
        size = listed[name].size if name in listed else None
        if size is not None and size >= at.size and heads.get(name, at.head) != at.head:
            raise DataLoss(
                f"The archive file {name} is not the one that was read before: its beginning differs.",
                next_step="Give new files new names; a new checkpoint reads this one from its start.",
                file=name,
            )
        if size is not None and (size < at.size or (at.whole and size != at.size)):
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
        to = end[name]
        if to == done:
            continue
        for piece in _cut(files, name, done, to, piece_bytes):
            if not tasks or room < piece.end - piece.start:
                tasks.append([])
                room = piece_bytes
            tasks[-1].append(piece)
            room -= piece.end - piece.start
    return tasks


def _cut(
    files: PatternFiles, name: str, done: FilePosition | None, to: FilePosition, piece_bytes: int
) -> list[Piece]:
    """Cut one file's part at line ends."""
    if to.whole:
        return [Piece(name, 0, to.size, 1, whole=True)]
    cut: list[Piece] = []
    at = _counted(files, name, done)
    while at.size < to.size:
        assert at.lines is not None
        ahead = to if to.size - at.size <= piece_bytes else _advance(files, name, at, to.size, piece_bytes)
        cut.append(Piece(name, at.size, ahead.size, at.lines + 1, whole=False))
        at = ahead
    return cut


def _advance(
    files: PatternFiles,
    name: str,
    at: FilePosition,
    size: int,
    bound: int | None,
    *,
    rests: bool = True,
) -> FilePosition:
    """Go on by whole lines from a line's start, by `bound` bytes at most but by one line at least.

    Nothing at or beyond the byte `size` is looked at. Half a line at the end is taken where the file `rests`.
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
    is_cut = position >= size and taken < size and (stop == size or taken == at.size)
    if is_cut and (rests or _is_object(files.read(name, taken, size))):
        taken, lines = size, lines + 1
    return FilePosition(taken, lines)


def _is_object(line: bytes) -> bool:
    try:
        return line.rstrip().endswith(b"}") and isinstance(orjson.loads(line), dict)
    except orjson.JSONDecodeError:
        return False


def _counted(files: PatternFiles, name: str, done: FilePosition | None) -> FilePosition:
    """Return where a file was read to, with its lines; its beginning for one that was not begun."""
    if done is None:
        return FilePosition(0, 0)
    if done.lines is not None:
        return done
    starts = range(0, done.size, _READ_BYTES)
    ends = (min(start + _READ_BYTES, done.size) for start in starts)
    lines = sum(count_lines(files.read(name, *part)) for part in zip(starts, ends, strict=True))
    # Half a line that was taken is one, and so is the half that comes later.
    return FilePosition(done.size, lines + (files.read(name, done.size - 1, done.size) != b"\n"))


def _hash(head: bytes) -> str:
    return hashlib.blake2b(head, digest_size=8).hexdigest()


def _is_whole(head: bytes) -> bool:
    # A JSON line cannot begin like this, so a name is not asked.
    return head.startswith(MAGIC) or is_ion(head)
