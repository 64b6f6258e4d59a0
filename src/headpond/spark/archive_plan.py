"""Plan an archive's micro-batches: how far into which file, bounded, and the same when asked again.

The offset is a JSON document in Spark's checkpoint, nothing else is kept::

    {"v": 1, "files": {"a.jsonl": {"bytes": 8190, "lines": 12}, "b.jsonl.gz": {"whole": 4711}}}

    bytes, lines   a plain file is done up to this byte, which follows a line end (or ends the file)
    whole          a gzip file, or one of Ion, was taken, when it was this large

A batch is what lies between two offsets. Plain files are cut at line ends; a gzip file and one of Ion values
are not cut, but taken whole. At least one line or one gzip file is taken however small the bound is.

Files may appear at any time, plain files may grow by whole lines. A last line without its end is taken
when the archive is read once (`final`), else as soon as two plans have seen the file at the same size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headpond.errors import DamagedInput, DataLoss
from headpond.formats.archive_gzip import MAGIC
from headpond.formats.archive_ion import is_ion

if TYPE_CHECKING:
    from headpond.spark.archive_files import Files

VERSION = 1
PIECE_BYTES = 16 << 20
"""How much of the archive one task reads, about."""

_READ_BYTES = 4 << 20
_LOOK_BYTES = 64  # to tell what a file is


@dataclass(frozen=True, slots=True)
class FilePosition:
    """How far a file was read: `lines` is None for one taken whole, then `size` is that of the whole file."""

    size: int
    lines: int | None


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
    files = {
        name: {"whole": at.size} if at.lines is None else {"bytes": at.size, "lines": at.lines}
        for name, at in sorted(offset.items())
    }
    return {"files": files, "v": VERSION}


def from_json(value: dict[str, Any]) -> Offset:
    """Read an offset from Spark's checkpoint.

    Raises:
        DamagedInput: It is no archive offset, or one of another version.
    """
    if value.get("v") != VERSION:
        raise DamagedInput(
            f"The checkpoint holds an archive offset of version {value.get('v')!r}; this headpond reads "
            f"version {VERSION}.",
            next_step="Open it with the headpond that wrote it, or begin with a new checkpoint.",
            reason="offset_version",
        )
    try:
        return {
            str(name): FilePosition(int(at["whole"]), None)
            if "whole" in at
            else FilePosition(int(at["bytes"]), int(at["lines"]))
            for name, at in value["files"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise DamagedInput(
            f"The checkpoint holds an archive offset that cannot be read: {exc!r}.",
            next_step="Begin with a new checkpoint.",
            reason="offset_damaged",
        ) from exc


def plan(
    files: Files,
    sizes: dict[str, int],
    start: Offset,
    max_bytes: int | None,
    *,
    settled: dict[str, int] | None = None,
) -> Offset:
    """Find the end of the next batch.

    Args:
        files: The files' bytes.
        sizes: Files and sizes to plan for; nothing beyond these is taken.
        start: Where the last batch ended.
        max_bytes: Bytes of the files, gzip files as stored, to take at most; None: all there is.
        settled: The sizes an earlier plan saw; a last line without its end is taken only from a file whose
            size is still that. None: take it, the archive is read once.

    Returns:
        The end; equal to `start` when there is nothing to take.
    """
    end = dict(start)
    left = max_bytes
    for name in sorted(sizes):
        if left is not None and left <= 0:
            break
        done = start.get(name)
        if sizes[name] <= (done.size if done else 0) or (done is not None and done.lines is None):
            continue
        if done is None and _is_whole(files, name):
            # An empty batch still takes a gzip file larger than the bound, or it would never be read.
            if left is not None and sizes[name] > left and end != start:
                continue
            end[name] = FilePosition(sizes[name], None)
            taken = sizes[name]
        else:
            at = done or FilePosition(0, 0)
            final = settled is None or settled.get(name) == sizes[name]
            end[name] = _advance(files, name, at, sizes[name], left, final=final)
            taken = end[name].size - at.size
            if not taken:
                del end[name]
                if done is not None:
                    end[name] = done
        if left is not None:
            left -= taken
    return end


def check_unchanged(offset: Offset, sizes: dict[str, int]) -> None:
    """Make sure that what was read is still what lies there.

    Raises:
        DataLoss: A file shrank, or a gzip file changed its size.
    """
    for name, at in offset.items():
        size = sizes.get(name)
        if size is not None and (size < at.size or (at.lines is None and size != at.size)):
            raise DataLoss(
                f"The archive file {name} was read when it had {at.size} bytes and has {size} now.",
                next_step="Put new records into new files; a new checkpoint reads this one again.",
                file=name,
                expected=at.size,
                found=size,
            )


def pieces(files: Files, start: Offset, end: Offset, piece_bytes: int = PIECE_BYTES) -> list[list[Piece]]:
    """Cut what lies between two offsets into tasks: a pure function of both and of the files' bytes.

    Returns:
        Lists of pieces, each list the work of one task of about `piece_bytes`.
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


def _cut(files: Files, name: str, at: FilePosition, to: FilePosition, piece_bytes: int) -> list[Piece]:
    """Cut one file's part at line ends."""
    if to.lines is None:
        return [Piece(name, 0, to.size, 1, whole=True)]
    cut: list[Piece] = []
    while at.size < to.size:
        assert at.lines is not None
        if to.size - at.size <= piece_bytes:
            ahead = to
        else:
            ahead = _advance(files, name, at, to.size, piece_bytes, final=True)
        cut.append(Piece(name, at.size, ahead.size, at.lines + 1, whole=False))
        at = ahead
    return cut


def _advance(
    files: Files, name: str, at: FilePosition, size: int, bound: int | None, *, final: bool
) -> FilePosition:
    """Go on by whole lines, by `bound` bytes at most but by one line at least.

    Args:
        files: The files' bytes.
        name: The file.
        at: A line's start.
        size: Nothing at or beyond this byte is looked at.
        bound: Bytes to take at most, however long the first line is.
        final: Whether bytes after the last line end are a line.
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
            cut, chunk_lines = chunk.rfind(b"\n"), chunk.count(b"\n")
        if cut >= 0:
            taken, lines = position + cut + 1, lines + chunk_lines
        position += len(chunk)
    if final and position >= size and taken < size and (stop == size or taken == at.size):
        taken, lines = size, lines + 1
    return FilePosition(taken, lines)


def _is_whole(files: Files, name: str) -> bool:
    # A JSON line cannot begin like this, so a name is not asked.
    head = files.read(name, 0, _LOOK_BYTES)
    return head.startswith(MAGIC) or is_ion(head)
