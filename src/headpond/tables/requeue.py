"""Feed quarantined records in again, once what they were refused for is mended.

::

    quarantine rows ─ records ─ decode ─ apply ─┬─ tables, pending       row leaves the quarantine
      of a reason                               └─ quarantine            row stays, under its new reason

What a record becomes is written first and its old row removed last: after a crash in between the row is fed
in once more, which versions (or a log entry's place) make harmless.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.config import DsqlConfig
from headpond.changes.contested import CONFLICTING
from headpond.changes.decoders import decode
from headpond.changes.schemas import ORIGIN_COLUMNS, QUARANTINE_SCHEMA, whole
from headpond.formats.archive import BAD_LINE, read_lines
from headpond.formats.kinesis_records import KINESIS_RECORD_SCHEMA, open_records
from headpond.formats.rows import USER_RECORD_SCHEMA
from headpond.tables.apply import Applied, DecodedBatch
from headpond.tables.beside import apply_beside
from headpond.tables.delta import literal, quoted, same
from headpond.tables.ledger import LedgerLake
from headpond.tables.ledger_apply import apply_records
from headpond.tables.state import ORIGIN, FactTable, first_of_each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headpond.changes.decoders import Config
    from headpond.tables.apply import Chunks
    from headpond.tables.lake import Lake

ALL = "all"
"""The reason that stands for every reason."""

ROWS_AT_ONCE = 10_000
BYTES_AT_ONCE = 64 << 20

IDENTITY = (*ORIGIN, "reason")


@dataclass(slots=True)
class Requeued:
    """What became of quarantined records.

    Attributes:
        read: rows that had the reason.
        left: rows that left the quarantine.
        stayed: rows that are still there, by their reason now.
        without_data: of those, rows whose bytes were not kept, so that they cannot be fed in.
        pending: records that wait for the rest of their chunks.
        applied: figures of the tables.
    """

    read: int = 0
    left: int = 0
    stayed: Counter[str] = field(default_factory=Counter)
    without_data: int = 0
    pending: int = 0
    applied: Applied = field(default_factory=Applied)


class _Watched(FactTable):
    """A quarantine that remembers what it was given."""

    def __init__(self, table: FactTable) -> None:
        super().__init__(table.file, table.schema, table.identity)
        self.given = [QUARANTINE_SCHEMA.empty_table()]

    def add(self, rows: pa.Table, *, transaction: tuple[str, int] | None = None) -> int:
        """Write the rows that are not there yet."""
        self.given.append(rows.select(QUARANTINE_SCHEMA.names).cast(QUARANTINE_SCHEMA))
        return super().add(rows, transaction=transaction)

    def take(self) -> pa.Table:
        """Give what came since the last time."""
        found, self.given = pa.concat_tables(self.given), [QUARANTINE_SCHEMA.empty_table()]
        return first_of_each(found, IDENTITY)


class _Members:
    """Records of chunked changes, whose group may be refused in a later part than the one they are in."""

    def __init__(self) -> None:
        self._left: set[tuple[Any, ...]] = set()
        self._stayed: set[tuple[Any, ...]] = set()

    def tell(self, left: pa.Table, refused: pa.Table) -> tuple[pa.Table, int]:
        """Take in what became of one part.

        Returns:
            Rows that are refused for the first time, and how many of those that left earlier are back.
        """
        places = _places(refused, IDENTITY)
        new = refused.filter(pa.array([place not in self._stayed for place in places], pa.bool_()))
        self._stayed.update(places)
        back = self._left.intersection(_places(refused, ORIGIN))
        self._left = (self._left - back).union(_places(left, ORIGIN))
        return new, len(back)


def requeue(
    lake: Lake | LedgerLake,
    config: Config,
    reason: str,
    *,
    chunks: Chunks | None = None,
    deaggregate: bool = True,
    dry_run: bool = False,
    rows_at_once: int = ROWS_AT_ONCE,
    bytes_at_once: int = BYTES_AT_ONCE,
    between: Callable[[str], None] = lambda _: None,
) -> Requeued:
    """Feed the records of one reason in again.

    Args:
        lake: a prepared lake.
        config: tables and rules as they are now.
        reason: a reason code, or `ALL`.
        chunks: how chunked changes are put together; null leaves their records pending.
        deaggregate: whether KPL aggregates are opened.
        dry_run: only decode and count; what depends on the tables' rows (`too_late`) is not looked at.
        rows_at_once: bound on the records of one part.
        bytes_at_once: bound on their bytes; a larger record comes alone.
        between: called with the name of each write before it is done.

    Returns:
        Figures over all parts.
    """
    if isinstance(config, DsqlConfig):
        # The bytes stay with each change: one that is too late goes back with them.
        config = replace(config, keep_data=True)
    watched = _Watched(lake.quarantine)
    lake = copy.copy(lake)
    lake.quarantine = watched
    done, members = Requeued(), _Members()
    for rows in _parts(watched, reason, rows_at_once, bytes_at_once):
        done.read += rows.num_rows
        empty = pc.and_(pc.equal(rows["reason"], "too_late"), _no_data(rows))
        without = rows.filter(empty)
        done.without_data += without.num_rows
        done.stayed.update(without["reason"].to_pylist())
        # Which of two revisions stands is for their block to say: looked at whenever one of them turns up.
        contested = pc.equal(rows["reason"], CONFLICTING)
        done.stayed.update(rows.filter(contested)["reason"].to_pylist())
        fed = rows.filter(pc.invert(pc.or_(empty, contested)))
        batch = _decoded(first_of_each(fed, ORIGIN), config, deaggregate=deaggregate)
        done.pending += batch.pending.num_rows
        if dry_run:
            for name, changes in batch.tables.items():
                figures = done.applied.tables.setdefault(name, Counter())
                figures["changes"] += changes.num_rows
            refused = batch.quarantine
        else:
            done.applied.add(_apply(lake, batch, chunks, between))
            refused = watched.take()
        stays = _matching(fed, refused)
        left = fed.filter(pc.invert(_matching(fed, refused, ORIGIN)))
        told, back = (refused, 0) if batch.pending.num_rows == 0 else members.tell(left, refused)
        done.stayed.update(told["reason"].to_pylist())
        done.left += left.num_rows - back
        if dry_run:
            continue
        between("details")
        _tell_anew(watched, fed, refused)
        between("rows that left")
        watched.remove(fed.filter(pc.invert(stays)), IDENTITY)
    return done


def _apply(
    lake: Lake | LedgerLake, batch: DecodedBatch, chunks: Chunks | None, between: Callable[[str], None]
) -> Applied:
    if isinstance(lake, LedgerLake):
        return apply_records(lake, batch, between=between)
    return apply_beside(lake, batch, chunks=chunks, between=between)


def _no_data(rows: pa.Table) -> pa.ChunkedArray:
    return pc.equal(pc.fill_null(pc.binary_length(rows["data"]), 0), 0)


def _parts(quarantine: FactTable, reason: str, rows_at_once: int, bytes_at_once: int) -> Iterator[pa.Table]:
    """Read the rows of a reason as they are now, in parts; rows that come meanwhile are left."""
    if not quarantine.file.exists():
        return
    where = None if reason == ALL else f"reason = {literal(reason)}"
    # DataFusion measures no binary values, only texts.
    size_of = "octet_length(encode(\"data\", 'hex')) / 2 AS size"
    light = quarantine.file.query([*map(quoted, IDENTITY), size_of], where)
    light = light.sort_by([(name, "ascending") for name in IDENTITY])
    sizes = pc.fill_null(light["size"], 0).to_pylist()
    start, held = 0, 0
    for row, size in enumerate([*sizes, None]):
        full = row - start == rows_at_once or (size is not None and held + size > bytes_at_once)
        if row > start and (size is None or full):
            yield _whole(quarantine, light.slice(start, row - start).select(IDENTITY))
            start, held = row, 0
        held += size or 0


def _whole(quarantine: FactTable, wanted: pa.Table) -> pa.Table:
    numbers = ", ".join(literal(number) for number in wanted["sequence_number"].unique().to_pylist())
    rows = quarantine.read(None, f"sequence_number IN ({numbers})")
    return rows.filter(_matching(rows, wanted))


def _matching(rows: pa.Table, wanted: pa.Table, columns: Sequence[str] = IDENTITY) -> pa.Array:
    """Which rows equal one of the wanted ones."""
    keys = set(_places(wanted, columns))
    return pa.array([key in keys for key in _places(rows, columns)], pa.bool_())


def _places(rows: pa.Table, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(rows[name].to_pylist() for name in columns), strict=True))


def _decoded(rows: pa.Table, config: Config, *, deaggregate: bool) -> DecodedBatch:
    """Decode quarantined records as if they had come just now."""
    batch = DecodedBatch()
    tables: dict[str, list[pa.Table]] = {}
    for records in _user_records(rows, deaggregate=deaggregate):
        decoded = decode(records, config)
        for name, changes in decoded.tables.items():
            tables.setdefault(name, []).append(pa.Table.from_batches([changes]))
        batch.quarantine = pa.concat_tables([batch.quarantine, pa.Table.from_batches([decoded.quarantine])])
        batch.pending = pa.concat_tables([batch.pending, pa.Table.from_batches([decoded.pending])])
        batch.counters.update(decoded.counters)
        for name, facts in decoded.facts.items():
            known = [batch.facts[name]] if name in batch.facts else []
            batch.facts[name] = pa.concat_tables([*known, pa.Table.from_batches([facts])])
    batch.tables = {
        name: pa.concat_tables(parts, promote_options="default") for name, parts in tables.items()
    }
    return batch


def _user_records(rows: pa.Table, *, deaggregate: bool) -> Iterator[pa.RecordBatch]:
    """The user records of quarantine rows; those refused below the changes begin where they failed."""
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
    """Rows as records: their origin and bytes, and nothing else known of them."""
    count = rows.num_rows
    missing = {"aggregated": pa.repeat(False, count), "data": pc.fill_null(rows["data"], b"")}
    known = {name: rows[name] for name in ORIGIN_COLUMNS}
    columns = known | missing
    arrays = [columns.get(each.name, pa.nulls(count, each.type)) for each in schema]
    table = pa.table(
        [whole(array).cast(each.type) for array, each in zip(arrays, schema, strict=True)], schema=schema
    )
    return table.combine_chunks().to_batches()[0]


def _tell_anew(quarantine: FactTable, before: pa.Table, refused: pa.Table) -> None:
    """Write the detail of rows that were refused for the same reason, but not in the same words."""
    told = before.select([*IDENTITY, "detail"])
    again = refused.select([*IDENTITY, "detail"])
    changed = again.filter(
        pc.and_(_matching(again, told), pc.invert(_matching(again, told, columns=(*IDENTITY, "detail"))))
    )
    if changed.num_rows:
        quarantine.file.merge(changed, match=same(IDENTITY), update={quoted("detail"): quoted("detail", "s")})
