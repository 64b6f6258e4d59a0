"""The proof of a ledger's journal as tables: facts that grow with each batch, and the anomalies they show.

::

    batch ─► journal_blocks, journal_listed, journal_documents, journal_revisions    each fact once
                 │ the blocks touched and their neighbours, the documents touched
                 ▼
             anomalies: those of the blocks and documents touched are found again
    closed ─► anomalies: all found again, with what is missing

What is absent is missing only once the journal is closed: at the end of a run that ends, or after COMPLETED.
Closed, the anomalies are those of `qldb.journal` over all facts, whatever the order and cuts of batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.arrow import distinct
from headpond.core.schemas import format_versions
from headpond.lake.delta import DeltaFile
from headpond.lake.engine.lookup import places
from headpond.lake.state.insert_once import FactTable
from headpond.qldb.decode import JOURNAL
from headpond.qldb.journal.check import ANOMALIES
from headpond.qldb.journal.facts import FACT_SCHEMAS, JournalFacts
from headpond.qldb.journal.known import Checked, Journal
from headpond.qldb.journal.proof import DigestChecked, SavedDigest, check_digest

_SCHEMA = pa.schema([pa.field(f.name, f.type) for f in ANOMALIES]).append(
    pa.field("format_version", pa.int32())
)


class JournalTables:
    """The journal's facts and anomalies in a lake; `deletes`: whether the hashes of deletes are checked."""

    def __init__(self, make: Callable[[str], DeltaFile], *, deletes: bool = True) -> None:
        self.deletes = deletes
        stored = dict(zip(JOURNAL, map(_stored, FACT_SCHEMAS), strict=True))
        self.facts = {name: FactTable(make(name), schema, schema.names) for name, schema in stored.items()}
        self.anomalies = FactTable(make("anomalies"), _SCHEMA, ANOMALIES.names)

    @property
    def files(self) -> list[DeltaFile]:
        """All of them."""
        return [table.file for table in (*self.facts.values(), self.anomalies)]

    def apply(self, facts: Mapping[str, pa.Table], *, transaction: tuple[str, int] | None = None) -> None:
        """Add a batch's facts (by the names of `JOURNAL`); find the anomalies of what they touch again."""
        for name, rows in facts.items():
            self.facts[name].add(rows, transaction=transaction)
        numbers = _unique(facts.values(), "sequence_no", pa.int64())
        if len(numbers) == 0:
            return
        # A block's chain is checked at the later one: that after a touched block is looked at, too.
        touched = distinct(np.concatenate([numbers.to_numpy(), numbers.to_numpy() + 1]))
        around = distinct(np.concatenate([touched, touched - 1]))
        documents = _unique([facts[JOURNAL[3]]] if JOURNAL[3] in facts else [], "document_id", pa.string())
        near = self._read("sequence_no", pa.array(around))
        known = self._read("document_id", documents, names=JOURNAL[3:])
        found = self._checked(JournalFacts.together([near, known]), closed=False).anomalies
        self._put(found, _scope(touched, documents), transaction)

    def close(self, *, completed: bool = False) -> Checked:
        """Find all anomalies again, with what is missing: nothing more will come."""
        checked = self.checked(closed=True, completed=completed)
        self._put(checked.anomalies, lambda rows: pa.repeat(True, rows.num_rows), None)
        return checked

    def checked(self, *, closed: bool, completed: bool = False) -> Checked:
        """Check all facts without writing anything."""
        return self._checked(self._read(None, None), closed=closed, completed=completed)

    def digest(self, saved: SavedDigest) -> DigestChecked:
        """Compare a saved digest with the block that it is of."""
        return check_digest(saved, self._read("sequence_no", pa.array([saved.sequence_no], pa.int64())))

    def counts(self) -> dict[str, int]:
        """Count the anomalies by kind."""
        return dict(self.anomalies.counts_by("kind"))

    def _checked(self, facts: JournalFacts, *, closed: bool, completed: bool = False) -> Checked:
        journal = Journal(completed=completed)
        journal.add_facts(facts)
        return journal.checked(closed=closed, deletes=self.deletes)

    def _read(
        self, column: str | None, values: pa.Array | None, names: Sequence[str] = JOURNAL
    ) -> JournalFacts:
        """Read the facts whose column has one of some values; all where no column is named."""
        found = []
        for (name, table), schema in zip(self.facts.items(), FACT_SCHEMAS, strict=True):
            rows = table.schema.empty_table()
            if column is None or values is None:
                rows = table.read(rows.column_names)
            elif name in names and column in rows.column_names:
                rows = table.find(column, values, rows.column_names)
            found.append(rows.cast(schema))
        return JournalFacts(*found)

    def _put(
        self, found: pa.Table, scope: Callable[[pa.Table], pa.Array], transaction: tuple[str, int] | None
    ) -> None:
        """Make the anomalies inside a scope those that were found."""
        names = ANOMALIES.names
        found = found.select(names).append_column("format_version", format_versions(found.num_rows))
        found = found.cast(_SCHEMA).filter(scope(found))
        stored = self.anomalies.read(_SCHEMA.names).cast(_SCHEMA)
        new = found.filter(pa.array(places(found, stored, names) < 0))
        old = stored.filter(scope(stored))
        over = old.filter(pa.array(places(old, found, names) < 0))
        if new.num_rows + over.num_rows:
            self.anomalies.exchange(new, over, transaction=transaction)


def _scope(numbers: np.ndarray, documents: pa.Array) -> Callable[[pa.Table], pa.Array]:
    """Return a test of anomalies: are they of some blocks, of some documents without a block, or of a gap?"""
    touched = pa.array(numbers)

    def inside(rows: pa.Table) -> pa.Array:
        alone = pc.and_(pc.is_null(rows["sequence_no"]), pc.is_in(rows["document_id"], value_set=documents))
        gap = pc.equal(rows["kind"], "missing_blocks")
        found = pc.or_(pc.or_(pc.is_in(rows["sequence_no"], value_set=touched), alone), gap)
        return found.combine_chunks()

    return inside


def _unique(tables: Iterable[pa.Table], column: str, kind: pa.DataType) -> pa.Array:
    chunks = [chunk for table in tables for chunk in table[column].chunks]
    return pc.drop_null(pc.unique(pa.chunked_array(chunks, kind)))


def _stored(schema: pa.Schema) -> pa.Schema:
    """Return a schema as Delta keeps it: binary has no fixed width."""
    return pa.schema(
        [f.with_type(pa.binary()) if pa.types.is_fixed_size_binary(f.type) else f for f in schema]
    )
