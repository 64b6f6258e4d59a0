"""The files `headpond verify` reads: what kind each is, and its pieces, which can be checked apart.

::

    JSON Lines, `data` in base64        ──► lines        a stream's archive, aggregated or not
    E0 01 00 EA … E0 01 00 EA …         ──► datums       records one after the other (Firehose, a consumer)
    F3 89 9A C2 … E0 01 00 EA …         ──► datums       the same, some still aggregated
    blocks as Ion or JSON Lines         ──► export       a journal export's object
    <export>.completed.manifest         ──► the objects that it names, beside it

The content decides, not the name; gzip is recognised.
"""

from __future__ import annotations

import gzip
import zlib
from glob import glob, has_magic
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import orjson

from headpond.cli.common import input_lines
from headpond.errors import UsageError
from headpond.formats import archive_gzip
from headpond.formats.ion import MARKER
from headpond.formats.kpl import MAGIC
from headpond.formats.qldb_export import read_export
from headpond.formats.qldb_mixed import split_mixed
from headpond.formats.qldb_model import Refused
from headpond.spark.archive_files import EXPORT_MANIFESTS, objects_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Kind = Literal["lines", "datums", "export"]

LINES_AT_ONCE = 2_000
DATUMS_AT_ONCE = 2_000
LOOK_BYTES = 1 << 20
"""How much of a file is looked at to tell what it is."""


class Piece(NamedTuple):
    """A part of a file that can be read apart from the rest."""

    file: str
    kind: Kind
    first: int
    """Number of the first line, from 1, or of the first datum, from 0."""
    parts: Sequence[bytes]
    """Lines, datums (or aggregates), or one whole object of an export."""


def files_of(names: Sequence[str]) -> list[str]:
    """Find the files that paths, folders, patterns and manifests stand for; each once, in order.

    Args:
        names: as the user gave them; `-` is standard input.

    Raises:
        UsageError: a name stands for nothing, or a manifest for objects that are not there.
    """
    found: dict[str, None] = {}
    for name in names:
        for path in _matches(name):
            found.update(dict.fromkeys(_objects(path)))
    return list(found)


def _matches(name: str) -> list[str]:
    if name == "-" or Path(name).is_file():
        return [name]
    if Path(name).is_dir():
        matches = [str(path) for path in sorted(Path(name).rglob("*")) if path.is_file() and _visible(path)]
        # A folder's manifests name what lies in it anyway.
        matches = [match for match in matches if not match.endswith(EXPORT_MANIFESTS)]
    else:
        matches = [path for path in sorted(glob(name, recursive=True)) if Path(path).is_file()]  # noqa: PTH207 - patterns may be absolute
    if not matches:
        what = (
            "matches no file"
            if has_magic(name)
            else "holds no file"
            if Path(name).is_dir()
            else "does not exist"
        )
        raise UsageError(
            f"{name} {what}.", next_step="Name a file, a folder, a pattern or a manifest.", file=name
        )
    return matches


def _visible(path: Path) -> bool:
    return not path.name.startswith((".", "_"))


def _objects(path: str) -> list[str]:
    if not path.endswith(EXPORT_MANIFESTS):
        return [path]
    return objects_of(Path(path).as_posix(), _whole(path), _Present())


class _Present:
    """The files there are."""

    def __contains__(self, name: object) -> bool:
        return Path(str(name)).is_file()


def pieces(file: str) -> Iterator[Piece]:
    """Cut a file.

    Raises:
        UsageError: it cannot be read or decompressed.
    """
    kind, data = _look(file)
    if kind == "lines":
        lines = input_lines(file) if data is None else iter(data.splitlines(keepends=True))
        first = 1
        while part := list(islice(lines, LINES_AT_ONCE)):
            yield Piece(file, "lines", first, part)
            first += len(part)
        return
    content = _whole(file) if data is None else data
    if kind == "export":
        yield Piece(file, "export", 0, [content])
        return
    datums = split_mixed(content)
    first = 0
    while part := list(islice(datums, DATUMS_AT_ONCE)):
        yield Piece(file, "datums", first, part)
        first += len(part)


def _look(file: str) -> tuple[Kind, bytes | None]:
    """Say what a file is; standard input comes back whole, since it can be read only once."""
    data = _whole(file) if file == "-" else None
    head = (data if data is not None else _head(file))[:LOOK_BYTES]
    start = head.lstrip()
    if start.startswith(b'{"') or (start[:1] == b"{" and start[1:].lstrip()[:1] == b'"'):
        return ("export" if _is_block(start) else "lines"), data
    if head.startswith(MARKER):
        return ("export" if _is_exported(head) else "datums"), data
    if MARKER in head or MAGIC in head:
        return "datums", data
    if start[:1] == b"{" or start.startswith(b"$ion_1_0"):
        return "export", data
    # Neither: as lines, each of which is told to be none.
    return ("lines" if b"\x00" not in head else "datums"), data


def _is_block(head: bytes) -> bool:
    """Is the first line of JSON an exported block? An archive's line has `data`."""
    line = head.split(b"\n", 1)[0]
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return b'"blockAddress"' in line
    return isinstance(value, dict) and "blockAddress" in value and "data" not in value


def _is_exported(head: bytes) -> bool:
    first = next(read_export(head), None)
    if first is None or isinstance(first.value, Refused):
        return b"entriesHashList" in head and b"qldbStreamArn" not in head
    return True


def _head(file: str) -> bytes:
    return _read(file, LOOK_BYTES)


def _whole(file: str) -> bytes:
    return b"".join(input_lines(file)) if file == "-" else _read(file, None)


def _read(file: str, count: int | None) -> bytes:
    try:
        with Path(file).open("rb") as raw:
            start = raw.read(2)
            raw.seek(0)
            if start != archive_gzip.MAGIC:
                return raw.read(-1 if count is None else count)
            with gzip.GzipFile(fileobj=raw) as opened:
                return opened.read(-1 if count is None else count)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(
            f"{file} cannot be read: {error}.", next_step="Fetch or compress the file again.", file=file
        ) from error


__all__ = ["Piece", "files_of", "pieces", "split_mixed"]
