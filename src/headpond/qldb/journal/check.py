"""Check a QLDB journal by its facts: which statements of the ledger hold, and which do not.

::

    one strand, cut into slices of sequence numbers        one slice needs of its neighbour
    ├── slice ──┼── slice ──┼── slice ──┤                  the hash of the block before its first

    check_slice      blocks by themselves, the chain, revisions against their blocks, gaps inside
    check_documents  revisions against each other, cut by document
    check_gaps       gaps between slices, from each slice's first and last block

Every function is a function of the *set* of facts: order, cuts and repeats of the input do not matter. The
three are what the command line runs in one go and Spark runs as joins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.arrow import distinct
from headpond.qldb.journal.facts import BLOCK, BLOCK_CHECKS, REVISION, JournalFacts, count_contents, once

ANOMALIES = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        ("strand_id", pa.string()),
        ("sequence_no", pa.int64()),  # of the block; null for kinds about a revision alone
        ("document_id", pa.string()),
        ("version", pa.int64()),
        ("first", pa.int64()),  # of missing blocks, both ends included
        ("last", pa.int64()),
        ("detail", pa.string()),
    ]
)

OTHER_TABLE = "transactionInfo.documents of the block names another table for this document"
OTHER_TRANSACTION = "transactionId of the block is not the txId of this revision"

_DOCUMENT = [*BLOCK, "document_id"]


class SliceChecked(NamedTuple):
    """What a slice of a strand says."""

    anomalies: pa.Table
    """`ANOMALIES`; without gaps at the slice's ends."""
    waiting: pa.Table
    """Facts of revisions whose block is not in the slice."""


def check_slice(
    facts: JournalFacts, before: pa.Table | None = None, *, closed: bool = True, deletes: bool = True
) -> SliceChecked:
    """Check some blocks and the revisions that claim to be in them.

    Args:
        facts: all that are known of a set of blocks.
        before: `BLOCK_FACTS` of blocks just before those, as far as known; only their hashes are read.
        closed: nothing more can come: a listed revision that is absent is missing.
        deletes: check the hash of deletes, for which no real example is known.
    """
    blocks, listed, _, revisions = facts
    earlier = blocks if before is None else pa.concat_tables([blocks, before])
    found = [
        *(_anomalies(kind, _failed(blocks, check)) for check, kind in BLOCK_CHECKS.items()),
        _anomalies("conflicting_block", count_contents(blocks, BLOCK, "block_hash").several),
        _anomalies("chain_break", _chain_breaks(blocks, earlier)),
        _anomalies("revision_hash_mismatch", _mismatched(revisions, deletes=deletes)),
        _anomalies("revision_not_in_block", _misplaced(facts)),
    ]
    if closed:
        gone = _absent(listed, revisions, _DOCUMENT)
        found.append(_anomalies("revision_missing", once(gone, _DOCUMENT)))
    return SliceChecked(pa.concat_tables(found), _absent(revisions, blocks, BLOCK))


def check_documents(revisions: pa.Table) -> pa.Table:
    """Return the revisions of one document and version that have different hashes."""
    return _anomalies("conflicting_revision", count_contents(revisions, REVISION, "hash").several)


def check_gaps(strand_id: str, known: Iterable[int], *, reach: int | None = None) -> pa.Table:
    """Return the blocks missing between those known, or up to `reach`, the last there must be."""
    have = distinct(np.fromiter(known, np.int64))
    if reach is not None and len(have) and reach > have[-1]:
        have = np.append(have, reach + 1)
    at = np.flatnonzero(np.diff(have) > 1)
    gaps = {"strand_id": pa.repeat(strand_id, len(at)), "first": have[at] + 1, "last": have[at + 1] - 1}
    return _anomalies("missing_blocks", pa.table(gaps))


def _failed(blocks: pa.Table, check: str) -> pa.Table:
    return once(blocks.filter(pc.invert(pc.fill_null(blocks[check], fill_value=True))), BLOCK)


def _chain_breaks(blocks: pa.Table, known: pa.Table) -> pa.Table:
    """Blocks that name another hash than that of any copy of the block before, where that is known."""
    link = ["strand_id", "before", "previous_block_hash"]
    later = once(blocks, [*BLOCK, "previous_block_hash"])
    later = later.append_column("before", pc.subtract(later["sequence_no"], 1))
    earlier = known.select([*BLOCK, "block_hash"]).rename_columns(link)
    earlier = earlier.set_column(2, link[2], earlier[link[2]].cast(pa.binary()))
    return once(_absent(_present(later, earlier, link[:2]), earlier, link), BLOCK)


def _mismatched(revisions: pa.Table, *, deletes: bool) -> pa.Table:
    wrong = pc.invert(pc.fill_null(revisions["revision_hash_ok"], fill_value=True))
    if not deletes:
        wrong = pc.and_(wrong, pc.not_equal(revisions["kind"], "delete"))
    return once(revisions.filter(wrong), REVISION)


def _misplaced(facts: JournalFacts) -> pa.Table:
    """Revisions which their block does not list, or of which it says otherwise; the first finding of each."""
    blocks, listed, documents, revisions = facts
    placed = _present(revisions, blocks, BLOCK)
    named = _present(placed.filter(pc.is_valid(placed["table_id"])), documents, _DOCUMENT)
    transactions = blocks.select([*BLOCK, "transaction_id"]).rename_columns([*BLOCK, "tx_id"])
    findings = {
        "": _absent(placed, listed, [*_DOCUMENT, "hash"]),
        OTHER_TABLE: _absent(named, documents, [*_DOCUMENT, "table_name", "table_id"]),
        OTHER_TRANSACTION: _absent(placed, transactions, [*BLOCK, "tx_id"]),
    }
    keys = [*BLOCK, *REVISION]
    rows = pa.concat_tables(
        found.select(keys).append_column("detail", pa.repeat(detail, found.num_rows))
        for detail, found in findings.items()
    )
    first = rows.group_by(keys).aggregate([("detail", "min")])
    detail = pc.if_else(pc.equal(first["detail_min"], ""), pa.scalar(None, pa.string()), first["detail_min"])
    return first.select(keys).append_column("detail", detail)


def _present(rows: pa.Table, others: pa.Table, keys: Sequence[str]) -> pa.Table:
    return rows.join(once(others, keys), keys=list(keys), join_type="left semi")


def _absent(rows: pa.Table, others: pa.Table, keys: Sequence[str]) -> pa.Table:
    return rows.join(once(others, keys), keys=list(keys), join_type="left anti")


def _anomalies(kind: str, rows: pa.Table) -> pa.Table:
    """Rows as anomalies: the columns they have, the rest null."""
    nulls = {field.name: pa.nulls(rows.num_rows, field.type) for field in ANOMALIES}
    columns = {name: rows[name] for name in rows.schema.names if name in nulls}
    return (
        pa.table({**nulls, **columns, "kind": pa.repeat(kind, rows.num_rows)})
        .select(ANOMALIES.names)
        .cast(ANOMALIES)
    )
