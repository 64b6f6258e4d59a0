"""From the files that `headpond verify` reads to a journal's facts, by pieces, on all cores.

::

    JSON Lines, `data` in base64        ──► lines   ─┐     a stream's archive, aggregated or not
    E0 01 00 EA … E0 01 00 EA …         ──► datums  ─┤     records one after the other (Firehose, a consumer)
    F3 89 9A C2 … E0 01 00 EA …         ──► datums  ─┤     the same, some still aggregated
    blocks as Ion or JSON Lines         ──► export  ─┤     a journal export's object
    <export>.completed.manifest         ──► the objects that it names, beside it
                                                     └─► worker: open aggregates, decode, hash
                                                         ──► facts ──► one Journal

The content decides, not the name; gzip is recognised. A worker returns facts, which are small; records stay
where they were read.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from glob import glob, has_magic
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headpond.cli.inputs import input_parts, input_whole, whole_lines
from headpond.core.errors import UsageError
from headpond.ion.binary import MARKER
from headpond.kinesis.archive.lines import count_lines, read_text
from headpond.kpl import MAGIC
from headpond.kpl.batch import open_batch
from headpond.kpl.records import open_records
from headpond.qldb.batch import DecodedQldb, decode_export, decode_qldb
from headpond.qldb.files import read_export, split_mixed
from headpond.qldb.journal.known import Journal
from headpond.qldb.records import Refused
from headpond.spark.sources.archive_files import EXPORT_MANIFESTS, objects_of

Kind = Literal["lines", "datums", "export"]

PARTS_AT_ONCE = 2_000
LOOK_BYTES = 1 << 20
"""How much of a file decides what it is."""


class Piece(NamedTuple):
    """A part of a file that can be read apart from the rest."""

    file: str
    kind: Kind
    first: int
    """Number of the first line, from 1, or of the first datum, from 0."""
    parts: Sequence[bytes]
    """One text of lines, datums (or aggregates), or one whole object of an export."""


def files_of(names: Sequence[str]) -> list[str]:
    """Return the files that paths, folders, patterns and manifests stand for; each once, in order.

    Raises:
        UsageError: a name stands for nothing, or a manifest for objects that are not there.
    """
    found: dict[str, None] = {}
    for path in chain.from_iterable(map(_matches, names)):
        is_manifest = path.endswith(EXPORT_MANIFESTS)
        content = input_whole(path, input_parts(path)) if is_manifest else b""
        objects = objects_of(Path(path).as_posix(), content, _Present()) if is_manifest else [path]
        found.update(dict.fromkeys(objects))
    return list(found)


def _matches(name: str) -> list[str]:
    if name == "-" or Path(name).is_file():
        return [name]
    if Path(name).is_dir():
        paths = [path for path in sorted(Path(name).rglob("*")) if not path.name.startswith((".", "_"))]
        # A folder's manifests name what lies in it anyway.
        matches = [str(path) for path in paths if path.is_file() and not path.name.endswith(EXPORT_MANIFESTS)]
        what = "holds no file"
    else:
        matches = [path for path in sorted(glob(name, recursive=True)) if Path(path).is_file()]  # noqa: PTH207 - patterns may be absolute
        what = "matches no file" if has_magic(name) else "does not exist"
    if not matches:
        raise UsageError(
            f"{name} {what}.", next_step="Name a file, a folder, a pattern or a manifest.", file=name
        )
    return matches


class _Present:
    def __contains__(self, name: object) -> bool:
        return Path(str(name)).is_file()


def pieces(file: str) -> Iterator[Piece]:
    """Read a file in pieces.

    Raises:
        UsageError: it cannot be read or decompressed.
    """
    parts = input_parts(file)
    head = list(_first(parts, LOOK_BYTES))
    kind, parts = _kind(b"".join(head)[:LOOK_BYTES]), chain(head, parts)
    if kind == "lines":
        first = 1
        for text in whole_lines(parts):
            yield Piece(file, kind, first, [text])
            first += count_lines(text)
        return
    whole = input_whole(file, parts)
    if kind == "export":
        yield Piece(file, kind, 0, [whole])
        return
    datums, first = split_mixed(whole), 0
    while part := list(islice(datums, PARTS_AT_ONCE)):
        yield Piece(file, kind, first, part)
        first += len(part)


def _first(parts: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Take parts until they have this many bytes."""
    while size > 0 and (part := next(parts, None)) is not None:
        size -= len(part)
        yield part


def _kind(head: bytes) -> Kind:
    """Return what a file is by its beginning."""
    start = head.lstrip()
    if start[:1] == b"{" and start[1:].lstrip()[:1] == b'"':
        return "export" if _is_block(start) else "lines"
    if head.startswith(MARKER):
        return "export" if _is_exported(head) else "datums"
    if MARKER in head or MAGIC in head:
        return "datums"
    if start[:1] == b"{" or start.startswith(b"$ion_1_0"):
        return "export"
    # Neither: as lines, each of which is reported as malformed.
    return "lines" if b"\x00" not in head else "datums"


def _is_block(head: bytes) -> bool:
    """Return whether the first line of JSON is an exported block; an archive's line has `data`."""
    line = head.split(b"\n", 1)[0]
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return b'"blockAddress"' in line
    return isinstance(value, dict) and "blockAddress" in value and "data" not in value


def _is_exported(head: bytes) -> bool:
    first = next(read_export(head), None)
    if first is None or isinstance(first, Refused):
        return b"entriesHashList" in head and b"qldbStreamArn" not in head
    return True


ALONE_PIECES = 4
"""This many pieces are read without workers: starting those takes longer."""
AHEAD = 2
"""Pieces in work per worker; bounds what is in memory."""
MAX_EXAMPLES = 20
"""Malformed datums that are listed one by one, per piece and in all."""


@dataclass(slots=True)
class Examined:
    """What was read: the journal, and what is not part of it."""

    journal: Journal = field(default_factory=Journal)
    examples: list[dict[str, Any]] = field(default_factory=list)
    """Some malformed datums: `file`, `n` (line, or number of the datum), `verdict`, `detail`."""
    down_converted: int = 0
    """Objects of exports whose contents lost their types: their hashes cannot be computed."""

    def absorb(self, other: Examined) -> None:
        """Add what another part holds."""
        self.journal.absorb(other.journal)
        self.examples += other.examples[: MAX_EXAMPLES - len(self.examples)]
        self.down_converted += other.down_converted


def examine(pieces: Iterable[Piece], *, workers: int | None = None) -> Iterator[Examined]:
    """Read pieces with this many processes, default one per core, and yield what each holds, in order."""
    rest = iter(pieces)
    first = list(islice(rest, ALONE_PIECES + 1))
    workers = workers if workers is not None else len(os.sched_getaffinity(0))
    if len(first) <= ALONE_PIECES or workers == 1:
        yield from map(examine_piece, chain(first, rest))
        return
    context = multiprocessing.get_context("forkserver")
    # Read once, before the workers are forked: each would else read and hold the modules for itself.
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        given: deque[Future[Examined]] = deque()
        for piece in chain(first, rest):
            given.append(pool.submit(examine_piece, piece))
            if len(given) > workers * AHEAD:
                yield given.popleft().result()
        while given:
            yield given.popleft().result()


def examine_piece(piece: Piece) -> Examined:
    """Read one piece; whatever it holds, this does not raise."""
    found = Examined()
    {"lines": _lines, "export": _export, "datums": _datums}[piece.kind](piece, found)
    return found


def _lines(piece: Piece, found: Examined) -> None:
    (text,) = piece.parts
    records = read_text(text, stream=piece.file, file=piece.file, first_line=piece.first)
    # Positions of the archive may name shards: the number of the line is what leads a person to it.
    lines = [] if text.isspace() else enumerate(text.split(b"\n"), piece.first)
    numbers = pa.array([str(number) for number, one in lines if one.strip()], pa.string())
    at = records.schema.get_field_index("sequence_number")
    records = records.set_column(at, records.schema.field(at), numbers)
    for opened in open_records(records):
        _opened(found, piece.file, opened, opened["sequence_number"].cast(pa.int64()))


def _datums(piece: Piece, found: Examined) -> None:
    opened = open_batch(pa.array(piece.parts, pa.binary())).batch
    _opened(found, piece.file, opened, pc.add(opened["origin"], piece.first))


def _export(piece: Piece, found: Examined) -> None:
    (content,) = piece.parts
    read = decode_export(content)
    found.down_converted += not read.exact
    _add(found, piece.file, read, pa.array(range(read.verdicts.num_rows), pa.int64()))


def _opened(found: Examined, file: str, opened: pa.RecordBatch, numbers: pa.Array) -> None:
    bad = opened["problem"].is_valid()
    reasons = opened["problem"].filter(bad).to_pylist()
    for reason, number in zip(reasons, numbers.filter(bad).to_pylist(), strict=True):
        found.journal.counts.update({"records": 1, f"malformed.{reason}": 1})
        if len(found.examples) < MAX_EXAMPLES:
            found.examples.append({"file": file, "n": number, "verdict": reason, "detail": None})
    if len(data := opened["data"].filter(pc.invert(bad))):
        _add(found, file, decode_qldb(data), numbers.filter(pc.invert(bad)))


def _add(found: Examined, file: str, decoded: DecodedQldb, numbers: pa.Array) -> None:
    found.journal.add(decoded)
    wrong = decoded.verdicts.append_column("n", numbers).filter(
        pc.not_equal(decoded.verdicts["verdict"], "ok")
    )
    for row in wrong.slice(0, MAX_EXAMPLES - len(found.examples)).to_pylist():
        found.examples.append({"file": file} | {name: row[name] for name in ("n", "verdict", "detail")})
