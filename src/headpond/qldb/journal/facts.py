"""What verification needs of a QLDB journal: flat rows that are small, order-free and can be cut anywhere.

::

    decoded blocks    ──► blocks       hashes, and the checks done on one block alone
                      ├─► listed       the revisions a block lists, those of the system left out
                      └─► documents    the tables a block's transactionInfo names
    decoded revisions ──► revisions    hash, whether the contents match it, the block it claims

A fact is a value: equal facts count once, so a repeated record changes nothing. Facts of many batches are put
together by concatenation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

HASH = pa.binary(32)
BLOCK_CHECKS = {
    "transaction_info_in_entries": "transaction_info_not_in_entries",
    "redaction_info_in_entries": "redaction_info_not_in_entries",
    "revisions_in_entries": "revisions_not_in_entries",
    "entries_hash_ok": "entries_hash_mismatch",
    "block_hash_ok": "block_hash_mismatch",
}
"""Check of one block alone → the anomaly where it fails; a null check found nothing to look at."""
BLOCK = ("strand_id", "sequence_no")
"""Identity of a block."""
REVISION = ("document_id", "version")
"""Identity of a revision."""

_PLACE = [("strand_id", pa.string()), ("sequence_no", pa.int64())]
BLOCK_FACTS = pa.schema(
    [
        *_PLACE,
        ("transaction_id", pa.string()),
        ("block_hash", HASH),
        ("previous_block_hash", pa.binary()),  # 32 bytes, or none at the beginning of a strand
        ("day", pa.date32()),  # of the block's time in UTC, which no hash covers; null beyond 64-bit ns
        *((check, pa.bool_()) for check in BLOCK_CHECKS),
    ]
)
LISTED_FACTS = pa.schema([*_PLACE, ("document_id", pa.string()), ("hash", HASH)])
DOCUMENT_FACTS = pa.schema(
    [*_PLACE, ("document_id", pa.string()), ("table_name", pa.string()), ("table_id", pa.string())]
)
REVISION_FACTS = pa.schema(
    [
        *_PLACE,
        ("document_id", pa.string()),
        ("version", pa.int64()),
        ("hash", HASH),
        ("kind", pa.string()),  # insert, update, delete, redacted
        ("revision_hash_ok", pa.bool_()),
        ("table_name", pa.string()),  # null in an export whose block does not name the table
        ("table_id", pa.string()),
        ("tx_id", pa.string()),
    ]
)


class JournalFacts(NamedTuple):
    """Facts of some part of a journal; each a table with the schema beside it."""

    blocks: pa.Table
    """`BLOCK_FACTS`."""
    listed: pa.Table
    """`LISTED_FACTS`."""
    documents: pa.Table
    """`DOCUMENT_FACTS`."""
    revisions: pa.Table
    """`REVISION_FACTS`."""

    @classmethod
    def none(cls) -> JournalFacts:
        """Return the facts of nothing."""
        return cls(*(schema.empty_table() for schema in FACT_SCHEMAS))

    @classmethod
    def together(cls, parts: Iterable[JournalFacts]) -> JournalFacts:
        """Put the facts of several parts together."""
        return cls(*(pa.concat_tables(tables) for tables in zip(cls.none(), *parts, strict=True)))

    def once(self) -> JournalFacts:
        """Drop the facts that are there before."""
        return JournalFacts(*(once(table) for table in self))

    def where(self, keep: Callable[[pa.Table], pa.Array | pa.ChunkedArray]) -> JournalFacts:
        """Keep the facts for which `keep`, given each table, is true."""
        return JournalFacts(*(table.filter(keep(table)) for table in self))


FACT_SCHEMAS = (BLOCK_FACTS, LISTED_FACTS, DOCUMENT_FACTS, REVISION_FACTS)
"""The schemas of `JournalFacts`, in its order."""


def journal_facts(blocks: pa.Table, revisions: pa.Table) -> JournalFacts:
    """Return the facts of blocks and revisions that were decoded with `verify`."""
    listed = _items(blocks, "revision_summaries")
    days = blocks["block_timestamp_ns"].cast(pa.timestamp("ns")).cast(pa.date32(), safe=False)
    return JournalFacts(
        blocks.append_column("day", days).select(BLOCK_FACTS.names).cast(BLOCK_FACTS),
        listed.filter(pc.is_valid(listed["document_id"])).select(LISTED_FACTS.names).cast(LISTED_FACTS),
        _items(blocks, "documents").select(DOCUMENT_FACTS.names).cast(DOCUMENT_FACTS),
        revisions.select(REVISION_FACTS.names).cast(REVISION_FACTS),
    )


def once(rows: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the distinct rows of some columns, of all when none are named."""
    names = list(columns or rows.schema.names)
    return rows.group_by(names).aggregate([]).select(names)


class Contents(NamedTuple):
    """Identities, and the values they come with."""

    identities: int
    contents: int
    """Pairs of an identity and a value."""
    several: pa.Table
    """The identities that have more than one value."""


def count_contents(facts: pa.Table, identity: Sequence[str], value: str) -> Contents:
    """Count identities and contents, and find those that conflict.

    Hardly any identity is there twice, so only these are compared by their value.
    """
    counts = _counted(facts, identity)
    again = counts.filter(pc.greater(counts["count_all"], 1))
    if not again.num_rows:
        return Contents(counts.num_rows, counts.num_rows, again)
    rows = facts.select([*identity, value]).join(again, keys=list(identity), join_type="left semi")
    values = _counted(once(rows), identity)
    contents = counts.num_rows - again.num_rows + pc.sum(values["count_all"]).as_py()
    return Contents(counts.num_rows, contents, values.filter(pc.greater(values["count_all"], 1)))


def _counted(rows: pa.Table, identity: Sequence[str]) -> pa.Table:
    return rows.group_by(list(identity)).aggregate([([], "count_all")])


def _items(blocks: pa.Table, column: str) -> pa.Table:
    """One row per item of a column of lists of structs: the block's identity and the item's members."""
    lists = blocks[column].combine_chunks()
    owners, items = pc.list_parent_indices(lists), pc.list_flatten(lists)
    members = {field.name: pc.struct_field(items, field.name) for field in lists.type.value_type}
    return pa.table({**{name: blocks[name].take(owners) for name in BLOCK}, **members})
