"""Revisions of a ledger that contradict each other: one document and version, more than one hash."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.documents import DELETE, Listing, Version, decode_version, encode_version
from headpond.changes.qldb import REVISION_FIELDS
from headpond.changes.schemas import ORIGIN_COLUMNS, OWN, QUARANTINE_SCHEMA, VALUE, format_versions

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

CONFLICTING = "conflicting_revision"
"""The reason under which a revision is quarantined that another one of its version wins against."""
MAX_DETAIL = 2_000
"""Characters of the contents of a displaced row that its detail shows."""

_PAIR = ("document_id", "revision")


@dataclass(frozen=True, slots=True)
class Contested:
    """Documents and versions with more than one hash.

    Attributes:
        pairs: (document, version).
        blocks: sequence numbers of the blocks that the contenders name.
        deleted: contenders of which only a tombstone is known, as typed revisions.
    """

    pairs: AbstractSet[tuple[str, int]]
    blocks: AbstractSet[int]
    deleted: pa.Table

    @property
    def documents(self) -> set[str]:
        """The documents alone."""
        return {document_id for document_id, _ in self.pairs}

    def of(self, rows: pa.Table) -> pa.Table:
        """Take the contested ones out of typed revisions."""
        found = zip(rows["m:document_id"].to_pylist(), rows["m:revision"].to_pylist(), strict=True)
        return rows.filter(pa.array([pair in self.pairs for pair in found], pa.bool_()))


def contested(rows: pa.Table, known: pa.Table, dead: pa.Table) -> Contested | None:
    """Find the contested revisions; null when there are none.

    Args:
        rows: typed revisions.
        known: what the table holds of their documents: `document_id`, `revision`, `hash`,
            `block_sequence_no`.
        dead: tombstones of their documents: `key`, `version`.
    """
    gone = [
        (json.loads(key)[0], decode_version(version))
        for key, version in zip(dead["key"].to_pylist(), dead["version"].to_pylist(), strict=True)
    ]
    schema = pa.schema([("document_id", pa.string()), ("revision", pa.int64()), ("hash", pa.binary())])
    parts = [
        rows.select([OWN + name for name in schema.names]).rename_columns(schema.names),
        known.select(schema.names),
        pa.table(
            [
                [document_id for document_id, _ in gone],
                [version.revision for _, version in gone],
                [version.hash for _, version in gone],
            ],
            schema=schema,
        ),
    ]
    together = pa.concat_tables(parts).group_by(list(_PAIR)).aggregate([("hash", "count_distinct")])
    several = together.filter(pc.greater(together["hash_count_distinct"], 1))
    if several.num_rows == 0:
        return None
    pairs = set(zip(*(several[name].to_pylist() for name in _PAIR), strict=True))
    buried = [(doc, version) for doc, version in gone if (doc, version.revision) in pairs]
    numbers = {
        number
        for table, own in ((rows, OWN), (known, ""))
        for document_id, revision, number in zip(
            *(table[own + name].to_pylist() for name in (*_PAIR, "block_sequence_no")), strict=True
        )
        if (document_id, revision) in pairs
    }
    numbers |= {version.block for _, version in buried}
    # Tombstones of earlier versions of headpond do not tell their block.
    return Contested(pairs, {number for number in numbers if number is not None}, _deleted(buried))


def with_listing(document_id: str, version: bytes, listed: AbstractSet[Listing]) -> bytes:
    """Give a version's bytes anew, by what blocks list now."""
    parts = decode_version(version)
    found = parts.block is not None and (document_id, parts.hash, parts.block) in listed
    return encode_version(parts._replace(listed=parts.listed or found))


def losers_and_winners(
    contenders: pa.Table, listed: AbstractSet[Listing], table: str
) -> tuple[pa.Table, pa.Table]:
    """Give quarantine rows of the revisions that lose, and those to take back of the ones that win.

    A revision that is only known from the table has no origin: its row is named by table, document and hash.

    Args:
        contenders: typed revisions, all that are contested.
        listed: what the blocks list that they name.
        table: the table's name.
    """
    best: dict[tuple[str, int], tuple[bool, bytes]] = {}
    rows = contenders.to_pylist()
    for row in rows:
        place = (row["m:document_id"], row["m:hash"], row["m:block_sequence_no"])
        rank = (place in listed, row["m:hash"])
        pair = (row["m:document_id"], row["m:revision"])
        best[pair] = max(best.get(pair, rank), rank)
    lost: list[dict[str, Any]] = []
    won: list[dict[str, Any]] = []
    for row in rows:
        by_block, winner = best[row["m:document_id"], row["m:revision"]]
        (won if row["m:hash"] == winner else lost).append(_quarantine_row(row, winner, by_block, table))
    return (
        pa.Table.from_pylist(lost, schema=QUARANTINE_SCHEMA),
        pa.Table.from_pylist(won, schema=QUARANTINE_SCHEMA),
    )


def _quarantine_row(row: dict[str, Any], winner: bytes, by_block: bool, table: str) -> dict[str, Any]:  # noqa: FBT001 - private
    why = "its block lists" if by_block else "no known block lists either, and the greatest hash wins:"
    detail = (
        f"document {row['m:document_id']} version {row['m:revision']} of {table} came with hash "
        f"{row['m:hash'].hex()}, too; {why} {winner.hex()}"
    )
    origin = {name: row[OWN + name] for name in ORIGIN_COLUMNS}
    if origin["stream"] is None:
        origin |= {
            "stream": table,
            "shard_id": row["m:document_id"],
            "sequence_number": row["m:hash"].hex(),
            "sub_sequence_number": 0,
        }
        values = {name[len(VALUE) :]: value for name, value in row.items() if name.startswith(VALUE)}
        if values:
            shown = json.dumps(values, default=str, ensure_ascii=False)
            detail += f"; its columns were {shown[:MAX_DETAIL]}"
    return {
        "reason": CONFLICTING,
        "detail": detail,
        **origin,
        "data": row["m:data"] or row["m:ion"] or b"",
        "format_version": format_versions(1)[0].as_py(),
    }


def _deleted(buried: list[tuple[str, Version]]) -> pa.Table:
    rows = [
        {
            "m:document_id": document_id,
            "m:revision": version.revision,
            "m:hash": version.hash,
            "m:kind": DELETE,
            "m:block_sequence_no": version.block,
        }
        for document_id, version in buried
    ]
    return pa.Table.from_pylist(rows, schema=pa.schema(REVISION_FIELDS))
