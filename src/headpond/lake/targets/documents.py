"""Documents of a ledger in a Delta table: the current revision of each, or every revision.

::

    current   _document_id │ _version  _redacted …  one row per live document; a delete removes it and leaves
                           │                        a tombstone
    history   _document_id, _version │ _kind …      one row per revision, deletes among them

A merge's comparisons repeat what `qldb.documents` and `lake.newest` decided, against whatever the table
holds by then: a higher version wins, and a revision of equal version only replaces the very one that it was
found to win against.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.formats import TableEntry
from headpond.core.schemas import OWN, STATE_SCHEMA, VALUE
from headpond.lake.engine.lookup import Wanted, places
from headpond.lake.engine.merge import Merge, with_columns
from headpond.lake.newest import COUNTERS, LatestOutcome, latest_step
from headpond.lake.target import Decision, DecodedBatch, Target, Transaction, named, overtaken
from headpond.qldb.decode import REVISION_FIELDS, TIME
from headpond.qldb.documents import DELETE as DELETE_KIND
from headpond.qldb.documents import (
    REDACTED,
    Listing,
    contested,
    decode_version,
    encode_versions,
    forms_of,
    keys_of,
    listed_of,
    losers_and_winners,
    ranked,
    with_listing,
    without_contents,
)

if TYPE_CHECKING:
    from headpond.lake.state.ledger import LedgerTables
    from headpond.lake.tables import Lake
    from headpond.lake.typed import TypedTable

_SHARED = {
    "document_id": ("_document_id", pa.string()),
    "revision": ("_version", pa.int64()),
    "tx_time": ("_tx_time", TIME),
    "tx_id": ("_tx_id", pa.string()),
    "table_id": ("_table_id", pa.string()),
    "block_sequence_no": ("_block_sequence_no", pa.int64()),
    "hash": ("_hash", pa.binary()),
}
CURRENT_OWN = _SHARED | {"redacted": ("_redacted", pa.bool_())}
"""Own columns of current documents; `_redacted`: the contents of this revision are gone."""
HISTORY_OWN = _SHARED | {"kind": ("_kind", pa.string())}
"""Own columns of a history of documents."""
ION_OWN = {"ion": ("_ion", pa.binary())}
"""The own column that `raw_ion` adds."""
JSON_OWN = {"json": ("_json", pa.string())}
"""The own column that `canonical_json` adds."""

KNOWN = pa.schema(
    [
        pa.field("document_id", pa.string()),
        pa.field("revision", pa.int64()),
        pa.field("hash", pa.binary()),
        pa.field("redacted", pa.bool_()),
        pa.field("block_sequence_no", pa.int64()),
    ]
)
"""What a table knows of documents."""

DELETE, OVER = "%delete", "%over"
"""Marks of a merge's source: a row is a delete; hash of the revision of equal version that it replaces. No
encoded column name is like them."""


class DocumentTable(Target):
    """The documents of one table of a ledger; `ledger` holds its blocks, redactions and conflicts."""

    figures = COUNTERS
    apart_by = "m:document_id"

    def newest_ns(self) -> int:
        """Return the newest commit time of its rows, as `Target.newest_ns` says."""
        times = map(datetime.fromisoformat, self.typed.file.greatest("_tx_time"))
        return max((round(each.timestamp() * 1e6) * 1000 for each in times), default=0)

    def __init__(self, typed: TypedTable, entry: TableEntry, ledger: LedgerTables) -> None:
        super().__init__(typed, entry)
        self.ledger = ledger
        self.past = entry.keep == "history"

    @property
    def order_by(self) -> list[str]:
        """The Delta column by which rows lie together that a merge looks for."""
        return ["_document_id"]

    def key_texts(self, rows: pa.Table) -> pa.Array:
        """Return the canonical keys of rows with the Delta table's columns."""
        return keys_of(rows["_document_id"], rows["_version"] if self.past else None)

    def decide(self, lake: Lake, batch: DecodedBatch) -> Decision | None:
        """Decide which revisions win; contested ones again, whenever their document or its block turns up."""
        ledger, honour = self.ledger, self.ledger.config.honour
        rows = batch.tables.get(self.name)
        brought = [] if rows is None else rows["m:document_id"].chunks
        listed_now = _listed_ids(batch.facts.get("blocks"))
        earlier = ledger.conflicts.of(self.name, pa.concat_arrays([listed_now, *brought]))
        parts = [part for part in (rows, earlier) if part]
        if not parts:
            return None
        rows = pa.concat_tables(parts, promote_options="default").combine_chunks()
        if honour:
            rows = without_contents(rows, ledger.redacted(rows["m:document_id"], rows["m:revision"]))
        documents = rows["m:document_id"]
        known = self.known(documents)
        if honour and known.num_rows:  # what the table has loses its contents after this, and counts as such
            gone = pc.or_(known["redacted"], ledger.redacted(known["document_id"], known["revision"]))
            known = known.set_column(known.schema.get_field_index("redacted"), "redacted", gone)
        dead = lake.tombstones.of_keys(self.name, keys_of(documents).unique())
        found = contested(rows, known, dead)
        listed: set[Listing] = set()
        contenders = rows.slice(0, 0)
        if found is not None:
            listed = ledger.listed(found.documents, found.blocks)
            stored = self.revisions(pa.chunked_array([pa.array(sorted(found.documents), pa.string())]))
            contenders = pa.concat_tables(
                [found.of(rows), found.of(stored), found.deleted], promote_options="default"
            )
        typed = ranked(rows, past=self.past, honour=honour, listed=listed)
        outcome = latest_step(self._state(known, dead, listed, honour=honour), typed)
        losers, winners = losers_and_winners(contenders, listed, self.name)
        return Decision(
            lambda transaction: self.write(outcome, known, transaction=transaction),
            refused=losers,
            tombstones=named(self.name, outcome.tombstones_put.select(["key", "version"])),
            overtaken=overtaken(self.name, dead, outcome.tombstones_drop["key"]),
            contenders=contenders,
            winners=winners,
        )

    def _state(
        self, known: pa.Table, dead: pa.Table, listed: AbstractSet[Listing], *, honour: bool
    ) -> pa.Table:
        """Return what is known of a batch's documents as `latest_step` expects it."""
        versions = encode_versions(
            known["revision"],
            listed_of(known["document_id"], known["hash"], known["block_sequence_no"], listed),
            known["hash"],
            forms_of(known["redacted"], honour=honour),
            known["block_sequence_no"],
        )
        if self.past:
            dead = dead.slice(0, 0)
        stored = zip(dead["key"].to_pylist(), dead["version"].to_pylist(), strict=True)
        gone = [with_listing(json.loads(key)[0], version, listed) for key, version in stored]
        keys = keys_of(known["document_id"], known["revision"] if self.past else None)
        parts = [
            [keys, versions, known["hash"], pa.repeat(True, known.num_rows)],
            [dead["key"], pa.array(gone, pa.binary()), dead["image_hash"], pa.repeat(False, dead.num_rows)],
        ]
        return pa.concat_tables(
            [pa.table(part, names=STATE_SCHEMA.names).cast(STATE_SCHEMA) for part in parts]
        )

    def known(self, document_ids: pa.ChunkedArray) -> pa.Table:
        """Read what the table holds of some documents, as `KNOWN` rows."""
        if len(document_ids) == 0:
            return KNOWN.empty_table()
        rows = self._read(
            ["_document_id", "_version", "_hash", self._form, "_block_sequence_no"], document_ids
        )
        columns = list(rows.columns)
        if self.past:
            columns[3] = pc.equal(rows[self._form], REDACTED)
        return pa.table(
            [column.cast(kind) for column, kind in zip(columns, KNOWN.types, strict=True)], schema=KNOWN
        )

    def revisions(self, document_ids: pa.ChunkedArray) -> pa.Table:
        """Read whole rows of some documents back as typed revisions."""
        rows = self._read(None, document_ids)
        kinds = rows["_kind"] if self.past else _kinds(rows)
        there = self.typed.own.items()
        own = {OWN + name: rows[column] for name, (column, _) in there if column in rows.column_names}
        own["m:kind"] = kinds
        fields = [own.get(f.name, pa.nulls(rows.num_rows, f.type)).cast(f.type) for f in REVISION_FIELDS]
        found = pa.table(fields, schema=pa.schema(REVISION_FIELDS))
        for original, column in self.typed.originals().items():
            found = found.append_column(VALUE + original, rows[column])
        return found

    def write(
        self, outcome: LatestOutcome, known: pa.Table, *, transaction: Transaction = None
    ) -> Counter[str]:
        """Write the revisions that win and remove the rows that a delete hits, in one commit."""
        upserts, deletes, figures = outcome.upserts, outcome.deletes, Counter(outcome.counters)
        layout = self.typed.fit(upserts.schema)
        if upserts.num_rows + deletes.num_rows == 0:
            return figures
        at = deletes.schema.get_field_index("m:revision")
        versions = [decode_version(version).revision for version in deletes["m:version"].to_pylist()]
        gone = deletes.set_column(at, "m:revision", pa.array(versions, pa.int64()))
        parts = [
            (rows.append_column("m:redacted", pc.equal(rows["m:kind"], REDACTED)), deleted)
            for rows, deleted in ((upserts, False), (gone, True))
        ]
        source = layout.marked(DELETE, parts)
        # The hash of the known revision of each one's document and version.
        known = known.rename_columns({"document_id": "_document_id", "revision": "_version"})
        at = places(source, known, ["_document_id", "_version"])
        source = source.append_column(OVER, known["hash"].take(pa.array(at, mask=at < 0)))
        merge = Merge(source, self._identity, ("_version", "_hash"), self._wins, gone=source[DELETE])
        self.typed.file.merge(merge, transaction=transaction)
        return figures

    def forget(self, revisions: pa.Table, *, transaction: tuple[str, int] | None = None) -> int:
        """Remove the contents of revisions (`document_id`, `version`); return how many the table had."""
        file = self.typed.file
        if revisions.num_rows == 0 or not file.exists():
            return 0
        own = [column for column, _ in self.typed.own.values()]
        kept = {*own, *self.typed.found_by} - {"_ion", "_json"}
        mark = {"_kind": REDACTED} if self.past else {"_redacted": True}
        emptied = [field.name for field in file.schema() if field.name not in kept]

        def has(t: pa.Table, _: pa.Table) -> pa.ChunkedArray:
            if self.past:
                return pc.invert(pc.is_in(t["_kind"], value_set=pa.array([DELETE_KIND, REDACTED])))
            return pc.invert(t["_redacted"])

        def without(t: pa.Table, _: pa.Table) -> pa.Table:
            columns = {name: pa.nulls(t.num_rows, t.schema.field(name).type) for name in emptied}
            columns |= {name: pa.repeat(value, t.num_rows) for name, value in mark.items()}
            return with_columns(t, pa.table(columns), columns)

        source = pa.table({"_document_id": revisions["document_id"], "_version": revisions["version"]})
        nowhere = pa.repeat(False, source.num_rows)
        on = ["_document_id", "_version"]
        merge = Merge(source, on, [self._form], has, insert=nowhere, update=without)
        return file.merge(merge, transaction=transaction).updated

    @property
    def _form(self) -> str:
        return "_kind" if self.past else "_redacted"

    @property
    def _identity(self) -> list[str]:
        return [*self.typed.found_by, "_document_id", *(["_version"] if self.past else [])]

    def _read(self, columns: list[str] | None, document_ids: pa.ChunkedArray) -> pa.Table:
        file = self.typed.file
        names = columns or file.schema().names
        on, wanted = ["_document_id"], pa.table({"_document_id": document_ids.unique()})
        reads = [*names, *self._identity, "_version", "_hash"]
        return file.look_up(Wanted(wanted, on, reads)).select(names)

    def _wins(self, t: pa.Table, s: pa.Table) -> pa.ChunkedArray:
        replaces = pc.and_(pc.equal(t["_version"], s["_version"]), pc.equal(t["_hash"], s[OVER]))
        if self.past:
            return pc.and_(replaces, pc.invert(s[DELETE]))
        return pc.or_kleene(pc.less(t["_version"], s["_version"]), replaces)


def _listed_ids(blocks: pa.Table | None) -> pa.Array:
    if not blocks:
        return pa.array([], pa.string())
    items = pc.list_flatten(blocks["revision_summaries"].combine_chunks())
    return pc.drop_null(pc.unique(pc.struct_field(items, "document_id")))


def _kinds(rows: pa.Table) -> Any:
    """Return what kind the revisions of current rows are."""
    by_version = pc.if_else(pc.equal(rows["_version"], 0), "insert", "update")
    return pc.if_else(rows["_redacted"], REDACTED, by_version)
