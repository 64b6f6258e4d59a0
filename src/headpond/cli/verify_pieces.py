"""From pieces of files to a journal's facts, on all cores.

::

    pieces ──► worker: open aggregates, decode, hash ──► facts ─┐
           ──► worker: …                             ──► facts ─┴──► one Journal

A worker gives back facts, which are small; records stay where they were read.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.journal import Journal
from headpond.formats.archive import read_lines
from headpond.formats.kinesis_records import open_records
from headpond.formats.kpl import MAGIC
from headpond.formats.kpl_batch import open_batch
from headpond.formats.qldb_batch import DecodedQldb, decode_qldb
from headpond.formats.qldb_export_batch import decode_export
from headpond.formats.qldb_tables import CONTROLS_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from concurrent.futures import Future

    from headpond.cli.verify_files import Piece

ALONE_PIECES = 4
"""So few pieces are read without workers: starting those takes longer."""
AHEAD = 2
"""Pieces given out per worker; bounds what is in memory."""
MAX_EXAMPLES = 20
"""Malformed datums that are told one by one, per piece and in all."""


@dataclass(slots=True)
class Examined:
    """What was read: the journal, and what is no part of it."""

    journal: Journal = field(default_factory=Journal)
    examples: list[dict[str, Any]] = field(default_factory=list)
    """Some malformed datums: `file`, `n` (line, or number of the datum), `verdict`, `detail`."""
    down_converted: int = 0
    """Objects of exports whose contents lost their types: their hashes cannot be computed."""

    def absorb(self, other: Examined) -> None:
        """Take in what another part holds."""
        self.journal.absorb(other.journal)
        self.examples += other.examples[: MAX_EXAMPLES - len(self.examples)]
        self.down_converted += other.down_converted


def examine(pieces: Iterable[Piece], *, workers: int | None = None) -> Iterator[Examined]:
    """Read pieces.

    Args:
        pieces: in any order.
        workers: processes; default one per core. Few pieces are read in this process.

    Yields:
        What each piece holds, in order.
    """
    rest = iter(pieces)
    first = list(islice(rest, ALONE_PIECES + 1))
    workers = workers if workers is not None else len(os.sched_getaffinity(0))
    if len(first) <= ALONE_PIECES or workers < 2:  # noqa: PLR2004 - one worker is no gain
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
    if piece.kind == "lines":
        _lines(piece, found)
    elif piece.kind == "export":
        _export(piece, found)
    else:
        _datums(piece, found)
    return found


def _lines(piece: Piece, found: Examined) -> None:
    records = read_lines(piece.parts, stream=piece.file, file=piece.file, first_line=piece.first)
    # Positions of the archive may name shards: the number of the line is what leads a person to it.
    line = pa.array(
        [str(number) for number, one in enumerate(piece.parts, piece.first) if one.strip()], pa.string()
    )
    at = records.schema.get_field_index("sequence_number")
    records = records.set_column(at, records.schema.field(at), line)
    for opened in open_records(records):
        bad = opened.filter(opened["problem"].is_valid())
        for reason, number in zip(
            bad["problem"].to_pylist(), bad["sequence_number"].to_pylist(), strict=True
        ):
            _refused(found, piece.file, int(number), reason, None)
        good = opened.filter(pc.invert(opened["problem"].is_valid()))
        _decoded(found, piece.file, good["data"], good["sequence_number"].cast(pa.int64()))


def _datums(piece: Piece, found: Examined) -> None:
    numbers = pa.array(range(piece.first, piece.first + len(piece.parts)), pa.int64())
    packed = pa.array([part.startswith(MAGIC) for part in piece.parts], pa.bool_())
    data = pa.array(piece.parts, pa.binary())
    plain = pc.invert(packed)
    _decoded(found, piece.file, data.filter(plain), numbers.filter(plain))
    if pc.any(packed, min_count=0).as_py():
        keys = pa.array([""] * pc.sum(packed).as_py(), pa.string())
        opened = open_batch(data.filter(packed), keys).batch
        numbers = numbers.filter(packed).take(opened["origin"])
        bad = opened["problem"].is_valid()
        for reason, number in zip(
            opened["problem"].filter(bad).to_pylist(), numbers.filter(bad).to_pylist(), strict=True
        ):
            _refused(found, piece.file, number, reason, None)
        _decoded(found, piece.file, opened["data"].filter(pc.invert(bad)), numbers.filter(pc.invert(bad)))


def _export(piece: Piece, found: Examined) -> None:
    (content,) = piece.parts
    read = decode_export(content)
    found.down_converted += not read.exact
    numbers = pa.array(range(read.verdicts.num_rows), pa.int64())
    _add(
        found,
        piece.file,
        DecodedQldb(read.verdicts, CONTROLS_SCHEMA.empty_table(), read.blocks, read.revisions),
        numbers,
    )


def _decoded(found: Examined, file: str, data: pa.Array, numbers: pa.Array) -> None:
    if len(data):
        _add(found, file, decode_qldb(data), numbers)


def _add(found: Examined, file: str, decoded: DecodedQldb, numbers: pa.Array) -> None:
    found.journal.add(decoded)
    wrong = decoded.verdicts.append_column("n", numbers).filter(
        pc.not_equal(decoded.verdicts["verdict"], "ok")
    )
    for row in wrong.slice(0, MAX_EXAMPLES - len(found.examples)).to_pylist():
        found.examples.append(
            {"file": file, "n": row["n"], "verdict": row["verdict"], "detail": row["detail"]}
        )


def _refused(found: Examined, file: str, number: int, verdict: str, detail: str | None) -> None:
    found.journal.counts.update({"records": 1, f"malformed.{verdict}": 1})
    if len(found.examples) < MAX_EXAMPLES:
        found.examples.append({"file": file, "n": number, "verdict": verdict, "detail": detail})
