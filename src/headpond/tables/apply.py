"""Apply one micro-batch of decoded changes to a lake; applying it again changes nothing.

The writes, in this order: quarantine, pending, tombstones and deletes, tables, schema changes, and last what
these made superfluous (the tombstones of keys that live again, the chunks of changes that are whole). A crash
may fall between any two of them: the batch comes again and finishes the rest, for nothing is dropped before
what replaces it stands.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.history import HistoryOutcome, history_step
from headpond.changes.latest import LatestOutcome, latest_step, too_late
from headpond.tables.batch import OPEN, Chunks, DecodedBatch
from headpond.tables.reassembly import reassemble

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from headpond.tables.lake import Lake

__all__ = ["Applied", "Chunks", "DecodedBatch", "apply_batch"]


@dataclass(slots=True)
class Applied:
    """What one or more batches did: counters per table, and for all; `OPEN` is that of the last."""

    tables: dict[str, Counter[str]] = field(default_factory=dict)
    quarantined: Counter[str] = field(default_factory=Counter)
    counters: Counter[str] = field(default_factory=Counter)
    batches: int = 0

    def add(self, other: Applied) -> None:
        """Add another's figures to these."""
        for table, counted in other.tables.items():
            self.tables.setdefault(table, Counter()).update(counted)
        self.quarantined.update(other.quarantined)
        self.counters.update({name: n for name, n in other.counters.items() if name != OPEN})
        if OPEN in other.counters:
            self.counters[OPEN] = other.counters[OPEN]
        self.batches += other.batches


def apply_batch(
    lake: Lake,
    batch: DecodedBatch,
    *,
    chunks: Chunks | None = None,
    transaction: tuple[str, int] | None = None,
    between: Callable[[str], None] = lambda _: None,
) -> Applied:
    """Apply a batch.

    Args:
        lake: a prepared lake.
        batch: the decoded micro-batch, any part of it possibly applied before.
        chunks: how chunked changes are put together; null leaves them pending.
        transaction: query id and batch number, kept with each commit for whoever looks.
        between: called with the name of each write before it is done (tests stop the world there).

    Returns:
        Figures of this batch; a repeated batch counts its changes as duplicates.
    """
    whole = reassemble(lake, batch, chunks) if chunks is not None else None
    if whole is not None:
        batch = whole.batch
    between("logs of unknown tables")
    beyond = lake.unknown.admit(batch.tables, transaction=transaction)
    logs = lake.logs | lake.unknown.logs
    seen = max(lake.tombstones.version(), 0)  # making the table is a commit, too
    decided = _decide(lake, batch)
    refused = pa.concat_tables([beyond, *decided.refused])
    if whole is not None:
        refused = whole.settle(refused)
    applied = Applied(decided.figures, counters=Counter(batch.counters), batches=1)

    between("quarantine")
    quarantine = pa.concat_tables([batch.quarantine, refused])
    for part in (quarantine, *([] if whole is None else whole.refused_parts())):
        lake.quarantine.add(part, transaction=transaction)
        applied.quarantined.update(part["reason"].to_pylist())

    between("pending")
    lake.pending.add(batch.pending, transaction=transaction)

    between("tombstones")
    put = lake.tombstones.put(
        _with_table({name: outcome.tombstones_put for name, outcome in decided.latest.items()}),
        transaction=transaction,
    )
    between("deletes")
    lake.deletes.put(
        _with_table({name: outcome.deletes for name, outcome in decided.history.items()}),
        transaction=transaction,
    )

    for name, latest in decided.latest.items():
        between(f"table {name}")
        lake.current[name].write(latest.upserts, latest.deletes, transaction=transaction)
    for name, history in decided.history.items():
        between(f"table {name}")
        lake.histories[name].write(history, transaction=transaction)
    for name, changes in _of(logs, batch):
        between(f"table {name}")
        new = logs[name].write(changes, transaction=transaction)
        applied.tables[name] = Counter(appended=new, duplicates=changes.num_rows - new)

    if lake.tombstones.version() > seen + bool(put):
        between("second look")
        # Another writer changed them since they were read: a delete that is new there must hit its row here.
        again = DecodedBatch({name: rows for name, rows in batch.tables.items() if name in lake.current})
        for name, latest in _decide(lake, again).latest.items():
            lake.current[name].write(latest.upserts, latest.deletes, transaction=transaction)

    between("schema changes")
    known = {name: rows for name, rows in batch.tables.items() if name in lake.typed}
    lake.schema_changes.record(known, transaction=transaction)

    between("tombstones of keys that live again")
    lake.tombstones.drop(_with_table(decided.overtaken))

    if whole is not None:
        # A main record that waits must find its fragments: it is marked before they go.
        between("chunks of whole changes")
        lake.pending.mark(whole.marked())
        between("chunks that go")
        lake.pending.let_go(whole.gone())
    return applied


@dataclass(slots=True)
class _Decided:
    """What a batch asks of the tables, before anything is written."""

    latest: dict[str, LatestOutcome] = field(default_factory=dict)
    history: dict[str, HistoryOutcome] = field(default_factory=dict)
    overtaken: dict[str, pa.Table] = field(default_factory=dict)
    """Per table the tombstones, as they were read, of keys that live again."""
    refused: list[pa.Table] = field(default_factory=list)
    figures: dict[str, Counter[str]] = field(default_factory=dict)


def _decide(lake: Lake, batch: DecodedBatch) -> _Decided:
    decided = _Decided()
    for name, changes in _of(lake.current, batch):
        dead = lake.tombstones.of_keys(name, changes["m:key"])
        state, rest = pa.concat_tables([lake.current[name].versions(changes), dead]), changes
        horizon = lake.tombstones.horizon_ns(name)
        if horizon is not None:
            rest, late = too_late(state, changes, horizon)
            decided.refused.append(late)
        decided.latest[name] = latest_step(state, rest)
        gone = decided.latest[name].tombstones_drop["key"]
        decided.overtaken[name] = dead.filter(pc.is_in(dead["key"], value_set=gone.unique()))
        decided.figures[name] = Counter(decided.latest[name].counters)
    for name, changes in _of(lake.histories, batch):
        known = [lake.histories[name].versions(changes), lake.deletes.of_keys(name, changes)]
        decided.history[name] = history_step(pa.concat_tables(known), changes)
        decided.figures[name] = Counter(decided.history[name].counters)
    return decided


def _of(tables: Mapping[str, Any], batch: DecodedBatch) -> Iterator[tuple[str, pa.Table]]:
    """The changes that a batch has for some tables."""
    for name in tables:
        changes = batch.tables.get(name)
        if changes is not None and changes.num_rows:
            yield name, changes


def _with_table(parts: Mapping[str, pa.Table]) -> pa.Table:
    named = [
        rows.append_column("table", pa.repeat(name, rows.num_rows))
        for name, rows in parts.items()
        if rows.num_rows
    ]
    return pa.concat_tables(named) if named else pa.table({"table": pa.array([], pa.string())})
