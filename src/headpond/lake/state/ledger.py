"""What a lake of a ledger's documents keeps beside its tables.

Those are facts (`qldb.decode.FACTS`), conflicts, and with `[verify]` the journal's; docs/reference/lake.md
lists them. A document's version that came with two hashes has a row of conflicts for each, with the typed row
itself: the block that lists one of them may come later, and then that one has to stand in the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.errors import UsageError
from headpond.core.formats import TableEntry
from headpond.core.schemas import QUARANTINE_SCHEMA, format_versions
from headpond.lake.delta import DeltaFile
from headpond.lake.engine.lookup import places
from headpond.lake.state.insert_once import FactTable
from headpond.lake.state.journal import JournalTables
from headpond.lake.target import Decision, DecodedBatch, Step, Transaction
from headpond.lake.targets.documents import CURRENT_OWN, HISTORY_OWN, ION_OWN, JSON_OWN, DocumentTable
from headpond.lake.typed import TypedTable
from headpond.qldb.decode import FACTS, IDENTITIES, JOURNAL, LedgerConfig
from headpond.qldb.documents import DELETE, REDACTED, Listing, without_contents

if TYPE_CHECKING:
    from headpond.lake.apply import Applied
    from headpond.lake.tables import Lake
    from headpond.lake.targets.log import LogTable


class LedgerTables:
    """The facts of a ledger, its contradictions and its proof."""

    counters: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: LedgerConfig, own: Callable[[str], DeltaFile]) -> None:
        self.config = config
        self.conflicts = Conflicts(own("conflicts"))
        self.facts = {name: FactTable(own(name), schema, IDENTITIES[name]) for name, schema in FACTS.items()}
        self.journal = JournalTables(own, deletes=config.check_deletes)
        self.documents: dict[str, DocumentTable] = {}
        self.logs: dict[str, LogTable] = {}  # an entry needs neither keys nor types: there are none

    @classmethod
    def of(cls, lake: Lake) -> LedgerTables:
        """Return a lake's; raise where it does not hold the documents of a ledger."""
        if not isinstance(lake.extras, cls):
            raise UsageError(
                f"The lake at {lake.path} does not hold the documents of a ledger.",
                next_step="Give the file of a pipeline that reads QLDB records.",
                key="source.format",
            )
        return lake.extras

    @property
    def files(self) -> list[DeltaFile]:
        """Its Delta tables, there or not."""
        return [self.conflicts.file, *(fact.file for fact in self.facts.values()), *self.journal.files]

    def target(self, entry: TableEntry, file: DeltaFile) -> DocumentTable:
        """Return the table of an entry."""
        own = HISTORY_OWN if entry.keep == "history" else CURRENT_OWN
        own = (
            own | (ION_OWN if self.config.raw_ion else {}) | (JSON_OWN if self.config.canonical_json else {})
        )
        typed = TypedTable(file, own, entry)
        self.documents[entry.name] = table = DocumentTable(typed, entry, self)
        return table

    def begin(self, batch: DecodedBatch, counters: Counter[str], step: Step) -> pa.Table:
        """Write the facts that a batch brings: which revision wins depends on what is listed."""
        for name, facts in self.facts.items():
            if name in batch.facts:
                step.before_write(f"facts {name}")
                counters[f"new_{name}"] += facts.add(batch.facts[name], transaction=step.transaction)
        return QUARANTINE_SCHEMA.empty_table()

    def decided(self, decisions: Mapping[str, Decision], step: Step) -> None:
        """Write the revisions that contradict each other, before any of them goes anywhere."""
        step.before_write("conflicts")
        for name, each in decisions.items():
            if each.contenders:
                self.conflicts.put(name, each.contenders, transaction=step.transaction)

    def end(self, batch: DecodedBatch, counters: Counter[str], step: Step) -> None:
        """Check the part of the journal that a batch touches, and remove contents that it redacts."""
        if self.config.verify:
            step.before_write("journal")
            proof = {name: batch.facts[name] for name in JOURNAL if name in batch.facts}
            self.journal.apply(proof, transaction=step.transaction)
        if self.config.honour and "redactions" in batch.facts:
            step.before_write("contents")
            gone = batch.facts["redactions"].group_by(["document_id", "version"]).aggregate([])
            removed = [self.forget(name, gone, transaction=step.transaction) for name in self.documents]
            counters["contents_removed"] += sum(removed)

    def forget(self, table: str, revisions: pa.Table, *, transaction: Transaction = None) -> int:
        """Remove the contents of revisions (`document_id`, `version`) of a table; return how many it had."""
        removed = self.documents[table].forget(revisions, transaction=transaction)
        self.conflicts.forget(table, revisions)
        return removed

    def look(self) -> None:
        """Do nothing: there are no logs."""

    def close(self, *, ended: bool) -> None:
        """Find what is missing in the journal: what is absent once nothing more will come."""
        completed = self.config.verify and self.completed()
        if self.config.verify and (ended or completed):
            self.journal.close(completed=completed)

    def completed(self) -> bool:
        """Return whether a stream has said that it ended."""
        kinds = self.facts["controls"].read(["control_record_type"])["control_record_type"]
        return "COMPLETED" in kinds.to_pylist()

    def redacted(self, document_ids: pa.ChunkedArray, revisions: pa.ChunkedArray) -> pa.Array:
        """Return which of some revisions had their contents redacted, as far as is known."""
        known = self.facts["redactions"].find("document_id", document_ids, _PAIR)
        mine = pa.table({"document_id": document_ids, "version": revisions})
        return pa.array(places(mine, known, _PAIR) >= 0)

    def listed(self, documents: AbstractSet[str], blocks: AbstractSet[int]) -> set[Listing]:
        """Return what the known ones of some blocks list of some documents."""
        numbers = pa.array(sorted(blocks), pa.int64())
        found = self.facts["blocks"].find("sequence_no", numbers, ["sequence_no", "revision_summaries"])
        return {
            (one["document_id"], one["hash"], block["sequence_no"])
            for block in found.to_pylist()
            for one in block["revision_summaries"] or ()
            if one["document_id"] in documents
        }

    def summary(self, applied: Applied | None) -> dict[str, Any]:  # noqa: ARG002 - none of its own
        """Return the figures of the journal."""
        known = {name: table.count() for name, table in self.facts.items()}
        found: dict[str, Any] = {"journal": known | {"conflicts": self.conflicts.count()}}
        if self.config.verify:
            saved = self.config.digest
            found["anomalies"] = self.journal.counts()
            found["digest"] = None if saved is None else self.journal.digest(saved).as_json()
        return found


CONFLICTS = pa.schema(
    [
        pa.field("table", pa.string()),
        pa.field("document_id", pa.string()),
        pa.field("version", pa.int64()),
        pa.field("hash", pa.binary()),
        pa.field("kind", pa.string()),
        pa.field("row", pa.binary()),  # the typed revision: an Arrow stream of one row
        pa.field("format_version", pa.int32()),
        pa.field("block_sequence_no", pa.int64()),  # that it names; null in rows written before it was kept
    ]
)
_PAIR = ("document_id", "version")
IDENTITY = ("table", *_PAIR, "hash", "kind", "block_sequence_no")


class Conflicts(FactTable):
    """The contested revisions of a lake."""

    def __init__(self, file: DeltaFile) -> None:
        super().__init__(file, CONFLICTS, IDENTITY)

    def of(self, table: str, document_ids: pa.Array | pa.ChunkedArray) -> pa.Table | None:
        """Read the contested revisions of some documents as typed rows; None where there are none."""
        rows = self.find("document_id", pc.unique(document_ids), ["table", "row"])
        cells = rows.filter(pc.equal(rows["table"], table))["row"].to_pylist()
        if not cells:
            return None
        parts = [pa.ipc.open_stream(cell).read_all() for cell in cells]
        return pa.concat_tables(parts, promote_options="default")

    def put(self, table: str, rows: pa.Table, *, transaction: tuple[str, int] | None = None) -> int:
        """Keep typed revisions of a table; return how many were new."""
        if rows.num_rows == 0:
            return 0
        cells = [_packed(rows.slice(at, 1)) for at in range(rows.num_rows)]
        columns = {
            "table": pa.repeat(table, rows.num_rows),
            "document_id": rows["m:document_id"],
            "version": rows["m:revision"],
            "hash": rows["m:hash"],
            "kind": rows["m:kind"],
            "row": pa.array(cells, pa.binary()),
            "format_version": format_versions(rows.num_rows),
            "block_sequence_no": rows["m:block_sequence_no"],
        }
        self._widen()
        return self.add(pa.table(columns, schema=CONFLICTS), transaction=transaction)

    def _widen(self) -> None:
        if self.file.exists() and len(self.file.schema()) < len(CONFLICTS):
            self.file.add_columns([CONFLICTS.field("block_sequence_no")])

    def forget(self, table: str, revisions: pa.Table) -> None:
        """Remove the contents of redacted revisions of a table; that they are contested is still known."""
        if revisions.num_rows == 0 or not self.file.exists():
            return
        self._widen()
        rows = self.find("document_id", revisions["document_id"], CONFLICTS.names)
        rows = rows.filter(pc.equal(rows["table"], table))
        named = pa.array(places(rows, revisions, _PAIR) >= 0)
        empty = pc.is_in(rows["kind"], value_set=pa.array([DELETE, REDACTED]))
        full = rows.filter(pc.and_(named, pc.invert(empty)))
        if full.num_rows == 0:
            return
        # Those without contents first: a stop in between leaves both, and the next time finds the old ones.
        typed = [pa.ipc.open_stream(cell).read_all() for cell in full["row"].to_pylist()]
        emptied = [without_contents(each, pa.repeat(True, each.num_rows)) for each in typed]
        self.put(table, pa.concat_tables(emptied, promote_options="default"))
        self.remove(full, IDENTITY)
        self.remove(full.filter(pc.is_null(full["block_sequence_no"])), IDENTITY[:-1])


def _packed(row: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as writer:
        writer.write_table(row)
    content: bytes = sink.getvalue().to_pybytes()
    return content
