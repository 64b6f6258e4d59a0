"""Feed quarantined records in again, once their cause is corrected.

::

    quarantine rows ─ records ─ decode ─ apply ─┬─ tables, pending       row leaves the quarantine
      of a reason                               └─ quarantine            row stays, under its new reason

What a record becomes is written first and its old row removed last: after a crash in between the row is fed
in once more, which versions (or a log entry's place) make harmless.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.formats import decoded_parts, one_batch
from headpond.core.schemas import ORIGIN_COLUMNS, USER_RECORD_SCHEMA, filled
from headpond.kinesis.archive.lines import BAD_LINE, read_lines
from headpond.kpl.records import KINESIS_RECORD_SCHEMA, open_records
from headpond.lake.apply import Applied, Chunks, DecodedBatch, apply_batch
from headpond.lake.delta import literal, quoted
from headpond.lake.engine.lookup import places
from headpond.lake.state.insert_once import ORIGIN, FactTable, first_of_each
from headpond.lake.tables import Lake
from headpond.lake.target import in_parts
from headpond.qldb.documents import CONFLICTING

ALL = "all"
"""The reason that stands for every reason."""

ROWS_AT_ONCE = 50_000
BYTES_AT_ONCE = 64 << 20

IDENTITY = (*ORIGIN, "reason")
NUMBER = "sequence_number"


@dataclass(slots=True)
class Requeued:
    """What became of quarantined records: rows `read`, `left` and, by reason, `stayed`.

    `without_data` counts those of which no bytes were kept; `pending`, records that wait for the rest.
    """

    read: int = 0
    left: int = 0
    stayed: Counter[str] = field(default_factory=Counter)
    without_data: int = 0
    pending: int = 0
    applied: Applied = field(default_factory=Applied)


class _Members:
    """Records of chunked changes, whose group may be refused in a later part than the one they are in."""

    def __init__(self) -> None:
        self._left: set[tuple[Any, ...]] = set()
        self._stayed: set[tuple[Any, ...]] = set()

    def add(self, left: pa.Table, refused: pa.Table) -> tuple[pa.Table, int]:
        """Return what one part refuses for the first time, and how many of the rows that left are back."""
        places = _places(refused, IDENTITY)
        new = refused.filter(pa.array([place not in self._stayed for place in places], pa.bool_()))
        self._stayed.update(places)
        back = self._left.intersection(_places(refused, ORIGIN))
        self._left = (self._left - back).union(_places(left, ORIGIN))
        return new, len(back)


def requeue(
    lake: Lake,
    reason: str,
    *,
    chunks: Chunks | None = None,
    deaggregate: bool = True,
    dry_run: bool = False,
    rows_at_once: int = ROWS_AT_ONCE,
    bytes_at_once: int = BYTES_AT_ONCE,
) -> Requeued:
    """Feed the records of one reason (or `ALL`) in again, under the tables and rules as they are now.

    `chunks` None leaves chunked records pending. With `dry_run` they are only decoded and counted: what
    depends on the tables' rows (`too_late`) is not looked at. A part is bounded by `rows_at_once` and
    `bytes_at_once`; a larger record comes alone.
    """
    done, members = Requeued(), _Members()
    where = None if reason == ALL else f"reason = {literal(reason)}"
    for rows in parts(lake.quarantine, where, rows_at_once, bytes_at_once):
        _feed(lake, rows, done, members, chunks=chunks, deaggregate=deaggregate, dry_run=dry_run)
    return done


def _feed(
    lake: Lake,
    rows: pa.Table,
    done: Requeued,
    members: _Members,
    *,
    chunks: Chunks | None,
    deaggregate: bool,
    dry_run: bool,
) -> None:
    """Feed one part in, and add what became of it."""
    # The bytes stay with each change: one that is too late goes back with them.
    config = lake.config.for_run(only=None, keep_data=True)
    done.read += rows.num_rows
    no_data = pc.equal(pc.fill_null(pc.binary_length(rows["data"]), 0), 0)
    empty = pc.and_(pc.equal(rows["reason"], "too_late"), no_data)
    without = rows.filter(empty)
    done.without_data += without.num_rows
    done.stayed.update(without["reason"].to_pylist())
    # Their block decides which of two revisions stands, whenever one of them turns up.
    contested = pc.equal(rows["reason"], CONFLICTING)
    done.stayed.update(rows.filter(contested)["reason"].to_pylist())
    fed = rows.filter(pc.invert(pc.or_(empty, contested)))
    records = _user_records(first_of_each(fed, ORIGIN), deaggregate=deaggregate)
    batch = DecodedBatch.of(part for each in records for part in decoded_parts(config, each))
    done.pending += batch.pending.num_rows
    if dry_run:
        for name, changes in batch.tables.items():
            figures = done.applied.tables.setdefault(name, Counter())
            figures["changes"] += changes.num_rows
        refused = batch.quarantine
    else:
        applied = apply_batch(lake, batch, chunks=chunks, shared=True)
        done.applied.add(applied)
        refused = first_of_each(pa.concat_tables(applied.quarantine), IDENTITY)
    stays = _matching(fed, refused)
    left = fed.filter(pc.invert(_matching(fed, refused, ORIGIN)))
    new, back = (refused, 0) if batch.pending.num_rows == 0 else members.add(left, refused)
    done.stayed.update(new["reason"].to_pylist())
    done.left += left.num_rows - back
    if dry_run:
        return
    lake.before_write("details")
    _update_details(lake.quarantine, fed, refused)
    lake.before_write("rows that left")
    lake.quarantine.remove(fed.filter(pc.invert(stays)), IDENTITY)


def parts(
    quarantine: FactTable,
    where: str | None,
    rows_at_once: int = ROWS_AT_ONCE,
    bytes_at_once: int = BYTES_AT_ONCE,
) -> Iterator[pa.Table]:
    """Read the rows that are `where`, as they are now, in parts; rows that come meanwhile are left."""
    if not quarantine.file.exists():
        return
    # DataFusion measures no binary values, only texts.
    size_of = "octet_length(encode(\"data\", 'hex')) / 2 AS size"
    light = quarantine.file.query([*map(quoted, IDENTITY), size_of], where)
    light = light.sort_by([(name, "ascending") for name in (NUMBER, *IDENTITY)])
    # With these sizes no part has more than `rows_at_once` rows either.
    sizes = [max(size or 0, bytes_at_once // rows_at_once) for size in light["size"].to_pylist()]
    for part in in_parts(range(len(sizes)), sizes.__getitem__, bytes_at_once):
        yield _whole(quarantine, light.slice(part[0], len(part)).select(IDENTITY))


def _whole(quarantine: FactTable, wanted: pa.Table) -> pa.Table:
    """Read some rows whole, of which it is known that they follow each other by sequence number."""
    first, last = literal(wanted[NUMBER][0].as_py()), literal(wanted[NUMBER][-1].as_py())
    rows = quarantine.read(None, f"{NUMBER} BETWEEN {first} AND {last}")
    return rows.filter(_matching(rows, wanted))


def _matching(rows: pa.Table, wanted: pa.Table, columns: Sequence[str] = IDENTITY) -> pa.Array:
    return pa.array(places(rows, wanted, columns) >= 0)


def _places(rows: pa.Table, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(rows[name].to_pylist() for name in columns), strict=True))


def _user_records(rows: pa.Table, *, deaggregate: bool) -> Iterator[pa.RecordBatch]:
    """Yield the user records of quarantine rows; those refused before decoding begin where they failed."""
    is_line = pc.equal(rows["reason"], BAD_LINE)
    is_kpl = pc.starts_with(rows["reason"], "kpl_")
    plain = rows.filter(pc.invert(pc.or_(is_line, is_kpl)))
    if plain.num_rows:
        yield _filled(plain, USER_RECORD_SCHEMA)
    if (blobs := rows.filter(is_kpl)).num_rows:
        yield from open_records(_filled(blobs, KINESIS_RECORD_SCHEMA), deaggregate=deaggregate)
    for line in rows.filter(is_line).to_pylist():
        # An archive's line is named by its file and its number.
        first = int(line["sequence_number"])
        read = read_lines([line["data"]], stream=line["stream"], file=line["shard_id"], first_line=first)
        yield from open_records(read, deaggregate=deaggregate)


def _filled(rows: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as records: their origin and bytes, and nothing else."""
    count = rows.num_rows
    missing = {"aggregated": pa.repeat(False, count), "data": pc.fill_null(rows["data"], b"")}
    columns = {name: rows[name] for name in ORIGIN_COLUMNS} | missing
    return one_batch(filled(columns, schema, count))


def _update_details(quarantine: FactTable, before: pa.Table, refused: pa.Table) -> None:
    """Write the detail of rows that were refused for the same reason, but not in the same words."""
    columns = (*IDENTITY, "detail")
    again = refused.select(columns)
    changed = again.filter(pc.and_(_matching(again, before), pc.invert(_matching(again, before, columns))))
    if changed.num_rows:
        quarantine.replace(changed, ["detail"])
