"""Apply one micro-batch of decoded QLDB records to a lake; applying it again changes nothing.

The writes, in this order: facts (blocks, statements, controls, redactions), conflicts, quarantine,
tombstones, tables, contents that redactions take away, and last the tombstones and quarantine rows that these
made superfluous. A crash may fall between any two of them: the batch comes again and finishes the rest.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.contested import contested, losers_and_winners, with_listing
from headpond.changes.documents import (
    encode_versions,
    forms_of,
    keys_of,
    listed_of,
    ranked,
    without_contents,
)
from headpond.changes.latest import latest_step
from headpond.changes.qldb import JOURNAL
from headpond.changes.schemas import STATE_SCHEMA
from headpond.tables.apply import Applied
from headpond.tables.keyed import among
from headpond.tables.tombstones import TOMBSTONE_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from headpond.changes.documents import Listing
    from headpond.changes.latest import LatestOutcome
    from headpond.tables.batch import DecodedBatch
    from headpond.tables.documents import DocumentTable
    from headpond.tables.ledger import LedgerLake

_TOMBSTONE = ("table", "key", "version", "ts_ns", "tx_id")


def apply_records(
    lake: LedgerLake,
    batch: DecodedBatch,
    *,
    transaction: tuple[str, int] | None = None,
    between: Callable[[str], None] = lambda _: None,
) -> Applied:
    """Apply a batch.

    Args:
        lake: a prepared lake.
        batch: the decoded micro-batch, any part of it possibly applied before.
        transaction: query id and batch number, kept with each commit for whoever looks.
        between: called with the name of each write before it is done (tests stop the world there).

    Returns:
        Figures of this batch; a repeated batch counts its revisions as duplicates.
    """
    applied = Applied(counters=Counter(batch.counters), batches=1)
    for name, facts in lake.facts.items():
        if name in batch.facts:
            between(f"facts {name}")
            applied.counters[f"new_{name}"] += facts.add(batch.facts[name], transaction=transaction)

    blocks = batch.facts.get("blocks")
    listed_ids = _listed_ids(blocks)
    decided = {name: _decide(lake, name, batch.tables.get(name), listed_ids) for name in lake.documents}
    work = {name: each for name, each in decided.items() if each is not None}

    between("conflicts")
    for name, each in work.items():
        lake.conflicts.put(name, each.contenders, transaction=transaction)

    between("quarantine")
    refused = pa.concat_tables([batch.quarantine, *(each.losers for each in work.values())])
    lake.quarantine.add(refused, transaction=transaction)
    applied.quarantined.update(refused["reason"].to_pylist())

    between("tombstones")
    put = [_named(name, each.outcome.tombstones_put) for name, each in work.items()]
    for rows in put:
        lake.tombstones.put(rows, transaction=transaction)

    for name, each in work.items():
        between(f"table {name}")
        lake.documents[name].write(
            each.outcome.upserts, each.outcome.deletes, each.known, transaction=transaction
        )
        applied.tables[name] = Counter(each.outcome.counters)

    if lake.config.verify:
        between("journal")
        proof = {name: batch.facts[name] for name in JOURNAL if name in batch.facts}
        lake.journal.apply(proof, transaction=transaction)

    if lake.config.honour and "redactions" in batch.facts:
        between("contents")
        applied.counters["contents_removed"] += _honour(lake, batch.facts["redactions"], transaction)

    between("tombstones of documents that live again")
    for each in work.values():
        lake.tombstones.drop(each.overtaken)
    between("quarantine of revisions that their block lists")
    for each in work.values():
        lake.quarantine.remove(each.winners, lake.quarantine.identity)
    return applied


def _honour(lake: LedgerLake, redactions: pa.Table, transaction: tuple[str, int] | None) -> int:
    """Remove the contents of redacted revisions, and say how many rows lost theirs."""
    gone = redactions.group_by(["document_id", "version"]).aggregate([])
    removed = 0
    for name, table in lake.documents.items():
        removed += table.forget(gone, transaction=transaction)
        lake.conflicts.forget(name, gone)
    return removed


@dataclass(frozen=True, slots=True)
class _Decided:
    """What a batch asks of one table."""

    outcome: LatestOutcome
    known: pa.Table
    contenders: pa.Table
    losers: pa.Table
    winners: pa.Table
    overtaken: pa.Table


def _decide(lake: LedgerLake, name: str, rows: pa.Table | None, listed_ids: pa.Array) -> _Decided | None:
    table, honour = lake.documents[name], lake.config.honour
    brought = [] if rows is None else rows["m:document_id"].chunks
    # Contested revisions are decided on anew whenever their document or its block turns up.
    earlier = lake.conflicts.of(name, pa.concat_arrays([listed_ids, *brought]))
    parts = [part for part in (rows, earlier) if part is not None and part.num_rows]
    if not parts:
        return None
    rows = pa.concat_tables(parts, promote_options="default").combine_chunks()
    if honour:
        rows = without_contents(rows, _among_redacted(lake, rows["m:document_id"], rows["m:revision"]))
    documents = rows["m:document_id"]
    known = table.known(documents)
    if honour and known.num_rows:  # what the table has loses its contents after this, and counts as such
        gone = pc.or_(known["redacted"], _among_redacted(lake, known["document_id"], known["revision"]))
        known = known.set_column(known.schema.get_field_index("redacted"), "redacted", gone)
    dead = lake.tombstones.of_keys(name, pa.chunked_array([keys_of(documents)]))
    found = contested(rows, known, dead)
    listed: set[Listing] = set()
    contenders = rows.slice(0, 0)
    if found is not None:
        listed = _listed(lake, found.documents, found.blocks)
        stored = table.revisions(pa.chunked_array([pa.array(sorted(found.documents), pa.string())]))
        contenders = pa.concat_tables(
            [found.of(rows), found.of(stored), found.deleted], promote_options="default"
        )
    typed = ranked(rows, past=table.past, honour=honour, listed=listed)
    outcome = latest_step(_state(table, known, dead, listed, honour=honour), typed)
    losers, winners = losers_and_winners(contenders, listed, name)
    gone = pc.is_in(dead["key"], value_set=outcome.tombstones_drop["key"].combine_chunks())
    return _Decided(outcome, known, contenders, losers, winners, _named(name, dead.filter(gone)))


def _listed_ids(blocks: pa.Table | None) -> pa.Array:
    """The documents that blocks list."""
    if blocks is None or blocks.num_rows == 0:
        return pa.array([], pa.string())
    items = pc.list_flatten(blocks["revision_summaries"].combine_chunks())
    return pc.drop_null(pc.unique(pc.struct_field(items, "document_id")))


def _among_redacted(lake: LedgerLake, document_ids: pa.ChunkedArray, revisions: pa.ChunkedArray) -> pa.Array:
    """Say which rows are revisions whose contents were redacted, as far as is known."""
    known = lake.facts["redactions"].read(["document_id", "version"], among(document_ids, "document_id"))
    pairs = set(zip(known["document_id"].to_pylist(), known["version"].to_pylist(), strict=True))
    mine = zip(document_ids.to_pylist(), revisions.to_pylist(), strict=True)
    return pa.array([pair in pairs for pair in mine], pa.bool_())


def _listed(lake: LedgerLake, documents: AbstractSet[str], blocks: AbstractSet[int]) -> set[Listing]:
    """What the known ones of some blocks list of some documents."""
    where = among(pa.chunked_array([pa.array(sorted(blocks), pa.int64())]), "sequence_no")
    found = lake.facts["blocks"].read(["sequence_no", "revision_summaries"], where)
    return {
        (one["document_id"], one["hash"], block["sequence_no"])
        for block in found.to_pylist()
        for one in block["revision_summaries"] or ()
        if one["document_id"] in documents
    }


def _state(
    table: DocumentTable,
    known: pa.Table,
    dead: pa.Table,
    listed: AbstractSet[Listing],
    *,
    honour: bool,
) -> pa.Table:
    """What is known of a batch's documents, as `latest_step` takes it."""
    versions = encode_versions(
        known["revision"],
        listed_of(known["document_id"], known["hash"], known["block_sequence_no"], listed),
        known["hash"],
        forms_of(known["redacted"], honour=honour),
        known["block_sequence_no"],
    )
    if table.past:
        dead = dead.slice(0, 0)
    told = zip(dead["key"].to_pylist(), dead["version"].to_pylist(), strict=True)
    gone = [with_listing(json.loads(key)[0], version, listed) for key, version in told]
    keys = keys_of(known["document_id"], known["revision"] if table.past else None)
    parts = [
        [keys, versions, known["hash"], pa.repeat(True, known.num_rows)],
        [dead["key"], pa.array(gone, pa.binary()), dead["image_hash"], pa.repeat(False, dead.num_rows)],
    ]
    return pa.concat_tables([pa.table(part, names=STATE_SCHEMA.names).cast(STATE_SCHEMA) for part in parts])


def _named(table: str, rows: pa.Table) -> pa.Table:
    """Tombstones of a table, as `Tombstones` takes them."""
    columns = {name: rows[name] for name in ("key", "version")} | {"table": pa.repeat(table, rows.num_rows)}
    return pa.table(
        [
            columns.get(name, pa.nulls(rows.num_rows, TOMBSTONE_SCHEMA.field(name).type))
            for name in _TOMBSTONE
        ],
        schema=pa.schema([TOMBSTONE_SCHEMA.field(name) for name in _TOMBSTONE]),
    )
