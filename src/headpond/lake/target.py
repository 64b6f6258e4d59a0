"""What is applied, and what a lake asks of its tables.

::

    batch ─► extras.begin ─► Target.decide, of each table ─► Decision ─► the writes of `lake.apply`
             facts, logs      reads the table, tombstones     what is to be written, nothing of it done yet
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.formats import Decoded, Newest, TableEntry, add_newest
from headpond.core.schemas import DELETED_SCHEMA, PENDING_SCHEMA, QUARANTINE_SCHEMA, filled
from headpond.lake.newest import BatchKeys

if TYPE_CHECKING:
    from headpond.lake.tables import Lake
    from headpond.lake.typed import TypedTable

Transaction = tuple[str, int] | None
_T = TypeVar("_T")

OPEN = "chunk_groups_open"
"""The one counter that tells a state, not what was done: groups of chunks that wait after the last batch."""


@dataclass(slots=True)
class DecodedBatch:
    """One micro-batch as the decoders return it: typed changes per table, and what is not a change."""

    tables: dict[str, pa.Table] = field(default_factory=dict)
    quarantine: pa.Table = field(default_factory=QUARANTINE_SCHEMA.empty_table)
    pending: pa.Table = field(default_factory=PENDING_SCHEMA.empty_table)
    counters: Counter[str] = field(default_factory=Counter)
    facts: dict[str, pa.Table] = field(default_factory=dict)
    """What is kept beside the tables, by the name of its own table (`qldb.facts`)."""
    newest_arrivals_us: dict[str, int] = field(default_factory=dict)
    """Shard → arrival of its newest record in the batch, µs since 1970."""
    newest: Newest = field(default_factory=dict)
    _keys: dict[str, BatchKeys] = field(default_factory=dict, init=False, repr=False, compare=False)

    def keys(self, table: str) -> BatchKeys:
        """Return the keys of a table's changes, found once: its rows stay as they are from then on."""
        if table not in self._keys:
            self._keys[table] = BatchKeys(self.tables[table]["m:key"])
        return self._keys[table]

    @classmethod
    def of(cls, parts: Iterable[Decoded]) -> DecodedBatch:
        """Return what some decoded parts hold together; they may have other columns of one table."""
        batch, tables, facts = cls(), dict[str, list[pa.Table]](), dict[str, list[pa.Table]]()
        for part in parts:
            for found, into in ((part.tables, tables), (part.facts, facts)):
                for name, rows in found.items():
                    into.setdefault(name, []).append(pa.Table.from_batches([rows]))
            batch.quarantine = pa.concat_tables([batch.quarantine, pa.Table.from_batches([part.quarantine])])
            batch.pending = pa.concat_tables([batch.pending, pa.Table.from_batches([part.pending])])
            batch.counters.update(part.counters)
            add_newest(batch.newest, part.newest)
        batch.tables, batch.facts = together(tables), together(facts)
        return batch


_COPIED = 8 << 20  # bytes


def together(parts: Mapping[str, list[pa.Table]]) -> dict[str, pa.Table]:
    """Return each table's parts as one; a column that only some of them have is null in the others."""
    joined = {name: pa.concat_tables(rows, promote_options="default") for name, rows in sorted(parts.items())}
    # Small ones are copied: of 100 tables in 30 parts each, each part cost every step as much as its rows.
    return {name: rows.combine_chunks() if rows.nbytes < _COPIED else rows for name, rows in joined.items()}


def in_parts(items: Iterable[_T], size_of: Callable[[_T], int], most: int) -> Iterator[list[_T]]:
    """Yield items some at a time: as many as have this many bytes, or one that has more."""
    part: list[_T] = []
    room = most
    for item in items:
        if part and size_of(item) > room:
            yield part
            part, room = [], most
        part.append(item)
        room -= size_of(item)
    if part:
        yield part


KEYS_SCHEMA = pa.schema([pa.field("table", pa.string()), *DELETED_SCHEMA])
"""Tombstones and deletes with the name of their table: `table`, `key`, `version`, `ts_ns`, `tx_id`."""


@dataclass(frozen=True, slots=True)
class Step:
    """What each write of a batch is done with: query id and batch number, and `Lake.before_write`."""

    transaction: Transaction = None
    before_write: Callable[[str], None] = lambda _: None


@dataclass(slots=True)
class Decision:
    """What a batch asks of one table, before anything is written.

    `write` writes the table's rows in one commit and returns the figures of the batch.
    """

    write: Callable[[Transaction], Counter[str]]
    refused: pa.Table = field(default_factory=QUARANTINE_SCHEMA.empty_table)  # what the table cannot take
    tombstones: pa.Table = field(default_factory=KEYS_SCHEMA.empty_table)  # of deletes that win
    deletes: pa.Table = field(default_factory=KEYS_SCHEMA.empty_table)  # that a history remembers
    overtaken: pa.Table = field(default_factory=KEYS_SCHEMA.empty_table)  # tombstones of keys that live again
    contenders: pa.Table | None = None  # typed revisions of documents that contradict each other
    winners: pa.Table = field(default_factory=QUARANTINE_SCHEMA.empty_table)  # whose revision wins after all


class Target(ABC):
    """One configured table of a lake, in the form in which it is kept."""

    figures: ClassVar[tuple[str, ...]]
    """Names of the figures that a batch has of such a table."""
    apart_by: str = "m:key"
    """The column of a batch by which it falls into parts that know nothing of each other."""

    def __init__(self, typed: TypedTable, entry: TableEntry) -> None:
        self.typed, self.entry = typed, entry
        self.name, self.keys, self.keep = entry.name, entry.keys, entry.keep
        self.known_as = entry.known_as

    @abstractmethod
    def decide(self, lake: Lake, batch: DecodedBatch) -> Decision | None:
        """Read what is known of a batch's keys and decide which versions win; None where nothing is asked."""

    @abstractmethod
    def key_texts(self, rows: pa.Table) -> pa.Array:
        """Return the canonical keys, as a batch has them, of rows with the Delta table's columns."""

    @property
    def order_by(self) -> list[str]:
        """The Delta columns by which rows lie together that a merge looks for."""
        return [self.typed.column(key) for key in self.keys]

    @abstractmethod
    def newest_ns(self) -> int:
        """Return the newest commit time of its rows, by the statistics of its files; 0 where none is known.

        A row that was deleted may count.
        """


def named(table: str, rows: pa.Table) -> pa.Table:
    """Return rows of keys as `KEYS_SCHEMA`, null where they lack a column."""
    columns = {name: rows[name] for name in rows.column_names} | {"table": pa.repeat(table, rows.num_rows)}
    return filled(columns, KEYS_SCHEMA, rows.num_rows)


def overtaken(table: str, dead: pa.Table, keys: pa.ChunkedArray) -> pa.Table:
    """Return those of the tombstones read that are of keys which live again, as `KEYS_SCHEMA`."""
    return named(table, dead.filter(pc.is_in(dead["key"], value_set=keys.unique())))
