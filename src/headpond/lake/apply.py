"""Apply one micro-batch of decoded changes to a lake; applying it again changes nothing.

The writes, in this order: what the format decides with (`extras.begin`: logs of unknown tables, facts of a
journal; `extras.decided`: revisions that contradict each other), quarantine, pending, tombstones and deletes,
tables, what follows from them (`extras.end`: schema changes, proof, contents that were redacted), and last
what these made superfluous (the tombstones of keys that live again, quarantine rows that their block lists,
the chunks of changes that are whole). A crash may fall between any two of them: the batch comes again and
finishes the rest, for nothing is dropped before what replaces it stands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.formats import Newest, add_newest
from headpond.dsql.chunks import Chunks
from headpond.lake.state.insert_once import first_of_each
from headpond.lake.state.pending import put_together
from headpond.lake.storage import of_each
from headpond.lake.target import KEYS_SCHEMA, OPEN, Decision, DecodedBatch, Step, Target

if TYPE_CHECKING:
    from headpond.lake.tables import Lake

    Decide = Callable[[Lake, DecodedBatch], Mapping[str, Decision]]

__all__ = ["Applied", "Chunks", "DecodedBatch", "apply_batch"]


@dataclass(slots=True)
class Applied:
    """Figures of one or more batches, per table and for all; `OPEN` is that of the last."""

    tables: dict[str, Counter[str]] = field(default_factory=dict)
    quarantined: Counter[str] = field(default_factory=Counter)
    counters: Counter[str] = field(default_factory=Counter)
    batches: int = 0
    newest: Newest = field(default_factory=dict)
    quarantine: list[pa.Table] = field(default_factory=list, compare=False)
    """Rows of one batch that went to quarantine through the driver; they are not added up."""

    def add(self, other: Applied) -> None:
        """Add another's figures to these."""
        for table, counted in other.tables.items():
            self.tables.setdefault(table, Counter()).update(counted)
        self.quarantined.update(other.quarantined)
        self.counters.update({name: n for name, n in other.counters.items() if name != OPEN})
        if OPEN in other.counters:
            self.counters[OPEN] = other.counters[OPEN]
        self.batches += other.batches
        add_newest(self.newest, other.newest)

    def figures(self, table: str, names: Iterable[str]) -> dict[str, int]:
        """Return some figures of a table, 0 where it had none."""
        counted = self.tables.get(table, Counter[str]())
        return {name: counted[name] for name in names}


def apply_batch(
    lake: Lake,
    batch: DecodedBatch,
    *,
    chunks: Chunks | None = None,
    transaction: tuple[str, int] | None = None,
    shared: bool = False,
    decide: Decide | None = None,
) -> Applied:
    """Apply a batch and return its figures; a repeated batch counts its changes as duplicates.

    Each write compares versions, so two writers of one key agree on what a table ends with, with one
    exception: a writer that read "no tombstone" just before another wrote one may bring a deleted row back.
    Applying the changes again finds the tombstone, and removes the row.

    Args:
        lake: a prepared lake.
        batch: the decoded micro-batch, any part of it possibly applied before.
        chunks: how chunked changes are put together; None leaves them pending.
        transaction: query id and batch number, kept with each commit for whoever looks.
        shared: another writer may write the same keys (a command while the pipeline runs): look again at all.
        decide: decides what the batch asks of each table; by default each table does so itself, here.
    """
    step, applied, decide = Step(transaction, lake.before_write), Applied(batches=1), decide or _decide
    whole = put_together(lake.pending, batch, chunks)
    batch = whole.batch
    beyond = pa.concat_tables([lake.admit(batch, step), lake.extras.begin(batch, applied.counters, step)])
    seen = max(lake.tombstones.version(), 0)  # making the table is a commit, too
    decided = decide(lake, batch)
    lake.extras.decided(decided, step)
    refused = whole.conclude(pa.concat_tables([beyond, *(each.refused for each in decided.values())]))
    applied.counters.update(batch.counters)
    add_newest(applied.newest, batch.newest)

    lake.before_write("quarantine")
    quarantine = pa.concat_tables([batch.quarantine, refused])
    for found in (quarantine, *whole.refused_parts()):
        # What no form of its table takes is one record all the same.
        part = first_of_each(found, lake.quarantine.identity)
        lake.quarantine.add(part, transaction=transaction)
        applied.quarantined.update(part["reason"].to_pylist())
        applied.quarantine.append(part)

    lake.before_write("pending")
    lake.pending.add(whole.to_keep(), transaction=transaction)

    lake.before_write("tombstones")
    put = lake.tombstones.put(_all(each.tombstones for each in decided.values()), transaction=transaction)
    lake.before_write("deletes")
    lake.deletes.put(_all(each.deletes for each in decided.values()), transaction=transaction)

    def write(name: str) -> Counter[str]:
        lake.before_write(f"table {name}")
        return decided[name].write(transaction)

    applied.tables.update(zip(decided, of_each(lake.path, write, decided), strict=True))

    if lake.tombstones.version() > seen + bool(put):
        # Another writer changed them since they were read: a delete that is new there must hit its row here.
        _look_again(lake, batch, step, decide)

    lake.extras.end(batch, applied.counters, step)

    lake.before_write("tombstones of keys that live again")
    lake.tombstones.drop(_all(each.overtaken for each in decided.values()))
    lake.before_write("quarantine of revisions that their block lists")
    for each in decided.values():
        lake.quarantine.remove(each.winners, lake.quarantine.identity)

    # A main record that waits must find its fragments: it is marked before they go.
    lake.before_write("chunks of whole changes")
    whole.mark()
    lake.before_write("chunks that go")
    whole.let_go()
    lake.list_new()
    if shared:
        _look_again(lake, batch, step, decide)
    return applied


def _decide(lake: Lake, batch: DecodedBatch) -> dict[str, Decision]:
    targets = lake.tables | dict(lake.extras.logs)

    def one(name: str) -> Decision | None:
        return targets[name].decide(lake, batch)

    def of_form(form: str) -> list[Target]:
        return [each for each in targets.values() if each.entry.form == form and batch.tables.get(each.name)]

    def keys(some: list[Target]) -> dict[str, pa.Array]:
        return {each.known_as: batch.keys(each.name).texts for each in some}

    if lake.config.kept_as == "documents":  # their tables share what is read of the ledger
        decided = list(map(one, targets))
    else:
        histories = of_form("history")
        times = [pc.min(batch.tables[each.name]["m:ts_ns"]).as_py() for each in histories]
        with (
            lake.tombstones.looked_up(keys(of_form("current"))),
            lake.deletes.looked_up(keys(histories), min(times, default=None)),
        ):
            decided = of_each(lake.path, one, targets)
    return {name: each for name, each in zip(targets, decided, strict=True) if each is not None}


def _look_again(lake: Lake, batch: DecodedBatch, step: Step, decide: Decide) -> None:
    """Decide and write once more: a delete that was not known the first time must hit its row."""
    step.before_write("second look")
    by_key = {name for name, table in lake.tables.items() if table.keep != "log"}
    again = DecodedBatch({name: rows for name, rows in batch.tables.items() if name in by_key})
    for each in decide(lake, again).values():
        each.write(step.transaction)


def _all(parts: Iterable[pa.Table]) -> pa.Table:
    return pa.concat_tables([KEYS_SCHEMA.empty_table(), *parts])
