"""Which revision of a document wins: versions as bytes that compare as the rule says, and conflicts.

::

  ┌───────────────────┬──────────────────┬──────────────┬──────────────────────────────┬─────────────────────┐
  │ version, 8 bytes  │ listed, 1 byte   │ hash         │ form, 1 byte                 │ block that it names │
  │ big-endian        │ by a known block │ 32 bytes     │ keep: 1 data, 0 redacted     │ 8 bytes, big-endian │
  │                   │                  │              │ honour: 0 data, 1 redacted   │                     │
  └───────────────────┴──────────────────┴──────────────┴──────────────────────────────┴─────────────────────┘

The highest version of a document is its current state. Of one version there is one revision, but for a ledger
(or a copy of it) that contradicts itself: then the one that its block lists wins, and while no block is known
the one with the greatest hash; the others are quarantined. The redacted form of a revision has the same hash
and is not another revision; which of both stays is the user's choice. The rule is a total order, so that the
order of arrival, cuts and repeats do not matter.

In a history the key is the document and the version; in a current table the document alone.
"""

from __future__ import annotations

import json
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.schemas import (
    ORIGIN_COLUMNS,
    OWN,
    QUARANTINE_SCHEMA,
    VALUE,
    format_versions,
    json_texts,
    whole,
)
from headpond.qldb.decode import REVISION_FIELDS

HASH_BYTES = 32
Listing = tuple[str, bytes, int]
"""Document, hash, and sequence number of the block that lists the two."""
REDACTED = "redacted"
DELETE = "delete"


class Version(NamedTuple):
    """The parts of a version's bytes."""

    revision: int
    listed: bool
    hash: bytes
    form: int
    block: int | None
    """Sequence number of the block that it names; null in tombstones written before it was kept."""


def encode_version(version: Version) -> bytes:
    """Return the bytes of one version."""
    return (
        version.revision.to_bytes(8, "big")
        + bytes([version.listed])
        + version.hash.ljust(HASH_BYTES, b"\0")
        + bytes([version.form])
        + (b"" if version.block is None else version.block.to_bytes(8, "big"))
    )


def decode_version(version: bytes) -> Version:
    """Return the parts of a version."""
    end = 9 + HASH_BYTES
    block = int.from_bytes(version[end + 1 :], "big") if len(version) > end + 1 else None
    return Version(int.from_bytes(version[:8], "big"), version[8] != 0, version[9:end], version[end], block)


def encode_versions(revisions: Any, listed: Any, hashes: Any, forms: Any, blocks: Any) -> pa.Array:
    """Return the bytes of many versions; hashes have 32 bytes, forms are 0 or 1."""
    count = len(revisions)
    parts = np.zeros((count, 8 + 1 + HASH_BYTES + 1 + 8), np.uint8)
    parts[:, :8] = _numpy(revisions).astype(">i8").view(np.uint8).reshape(count, 8)
    parts[:, 8] = _numpy(listed)
    fixed = whole(hashes).cast(pa.binary(HASH_BYTES))
    buffer = fixed.buffers()[1]
    if count:
        flat = np.frombuffer(buffer, np.uint8, count * HASH_BYTES, fixed.offset * HASH_BYTES)
        parts[:, 9 : 9 + HASH_BYTES] = flat.reshape(count, HASH_BYTES)
    parts[:, 9 + HASH_BYTES] = _numpy(forms)
    parts[:, -8:] = _numpy(blocks).astype(">i8").view(np.uint8).reshape(count, 8)
    return pa.Array.from_buffers(
        pa.binary(parts.shape[1]), count, [None, pa.py_buffer(parts.tobytes())]
    ).cast(pa.binary())


def forms_of(redacted: Any, *, honour: bool) -> Any:
    """Return the form's rank of revisions, by whether they are redacted."""
    return pc.cast(redacted if honour else pc.invert(redacted), pa.int64())


def keys_of(document_ids: Any, revisions: Any | None = None) -> pa.Array:
    """Return canonical JSON of documents' ids, with the version where a history is kept."""
    texts = json_texts(whole(document_ids))
    if revisions is None:
        return pc.binary_join_element_wise("[", texts, "]", "")
    return pc.binary_join_element_wise("[", texts, ",", whole(revisions).cast(pa.string()), "]", "")


def ranked(rows: pa.Table, *, past: bool, honour: bool, listed: AbstractSet[Listing]) -> pa.Table:
    """Return typed revisions with what `latest_step` compares: key, version, hash and whether it is a delete.

    With `past` they are for a history, where every version is a row and a delete is one, too; with `honour` a
    redacted form beats the data. `listed` is what the blocks list that contested revisions name.
    """
    kinds = rows["m:kind"]
    redacted = pc.equal(kinds, REDACTED)
    versions = encode_versions(
        rows["m:revision"],
        listed_of(rows["m:document_id"], rows["m:hash"], rows["m:block_sequence_no"], listed),
        rows["m:hash"],
        forms_of(redacted, honour=honour),
        rows["m:block_sequence_no"],
    )
    deletes = pa.repeat(False, rows.num_rows) if past else whole(pc.equal(kinds, DELETE))
    columns = {
        "m:key": keys_of(rows["m:document_id"], rows["m:revision"] if past else None),
        "m:version": versions,
        "m:image_hash": whole(rows["m:hash"]),
        "m:delete": deletes,
    }
    for name, values in columns.items():
        rows = rows.append_column(name, values)
    return rows


def listed_of(document_ids: Any, hashes: Any, blocks: Any, listed: AbstractSet[Listing]) -> pa.Array:
    """Return which revisions the block lists that each of them names."""
    if not listed:
        return pa.repeat(False, len(document_ids))
    found = zip(document_ids.to_pylist(), hashes.to_pylist(), blocks.to_pylist(), strict=True)
    return pa.array([one in listed for one in found], pa.bool_())


def without_contents(rows: pa.Table, which: Any) -> pa.Table:
    """Return typed revisions with the contents of some removed, as if redacted; deletes stay."""
    which = whole(pc.and_(which, pc.not_equal(rows["m:kind"], DELETE)))
    if not pc.any(which, min_count=0).as_py():
        return rows
    # Taken, not masked: beneath a mask the bytes would still be there, and be in whatever Arrow writes.
    taken = pa.array(np.arange(rows.num_rows), mask=which.to_numpy(zero_copy_only=False))
    for at, field in enumerate(rows.schema):
        if field.name.startswith(VALUE) or field.name in ("m:ion", "m:json", "m:data"):
            rows = rows.set_column(at, field, whole(rows[field.name]).take(taken))
        elif field.name == "m:kind":
            rows = rows.set_column(at, field, pc.if_else(which, REDACTED, whole(rows[field.name])))
    return rows


def _numpy(values: Any) -> np.ndarray[Any, np.dtype[Any]]:
    found: np.ndarray[Any, np.dtype[Any]] = whole(values).to_numpy(zero_copy_only=False)
    return found


CONFLICTING = "conflicting_revision"
"""The reason under which a revision is quarantined that another one of its version wins against."""
MAX_DETAIL = 2_000
"""Characters of the contents of a displaced row that its detail shows."""

_PAIR = ("document_id", "revision")
_CLAIM = pa.schema(
    [
        ("document_id", pa.string()),
        ("revision", pa.int64()),
        ("hash", pa.binary()),
        ("block_sequence_no", pa.int64()),  # null in tombstones written before it was kept
    ]
)


@dataclass(frozen=True, slots=True)
class Contested:
    """Documents and versions with more than one hash or block, and the sequence numbers of these blocks.

    `deleted` are contenders of which only a tombstone is known, as typed revisions.
    """

    pairs: AbstractSet[tuple[str, int]]
    blocks: AbstractSet[int]
    deleted: pa.Table

    @property
    def documents(self) -> set[str]:
        """The documents alone."""
        return {document_id for document_id, _ in self.pairs}

    def of(self, rows: pa.Table) -> pa.Table:
        """Return the contested ones of typed revisions."""
        found = zip(rows["m:document_id"].to_pylist(), rows["m:revision"].to_pylist(), strict=True)
        return rows.filter(pa.array([pair in self.pairs for pair in found], pa.bool_()))


def contested(rows: pa.Table, known: pa.Table, dead: pa.Table) -> Contested | None:
    """Return the contested ones of typed revisions; None when there are none.

    `known` is what the table has of their documents (`document_id`, `revision`, `hash`, `block_sequence_no`),
    `dead` their tombstones (`key`, `version`).
    """
    gone = [
        (json.loads(key)[0], decode_version(version))
        for key, version in zip(dead["key"].to_pylist(), dead["version"].to_pylist(), strict=True)
    ]
    parts = [
        rows.select([OWN + name for name in _CLAIM.names]).rename_columns(_CLAIM.names),
        known.select(_CLAIM.names),
        pa.table(
            [
                [document_id for document_id, _ in gone],
                [version.revision for _, version in gone],
                [version.hash for _, version in gone],
                [version.block for _, version in gone],
            ],
            schema=_CLAIM,
        ),
    ]
    # One hash in two blocks, too: which of both a block lists decides once another hash comes.
    asked = [("hash", "count_distinct"), ("block_sequence_no", "count_distinct")]
    together = pa.concat_tables(parts).group_by(list(_PAIR)).aggregate(asked)
    most = pc.max_element_wise(*(together[f"{name}_{what}"] for name, what in asked))
    several = together.filter(pc.greater(most, 1))
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
    # Tombstones of earlier versions of headpond do not name their block.
    return Contested(pairs, {number for number in numbers if number is not None}, _deleted(buried))


def with_listing(document_id: str, version: bytes, listed: AbstractSet[Listing]) -> bytes:
    """Return a version's bytes by what blocks list now."""
    parts = decode_version(version)
    found = parts.block is not None and (document_id, parts.hash, parts.block) in listed
    return encode_version(parts._replace(listed=parts.listed or found))


def losers_and_winners(
    contenders: pa.Table, listed: AbstractSet[Listing], table: str
) -> tuple[pa.Table, pa.Table]:
    """Return quarantine rows of contested revisions that lose, and those of winners, to be taken back.

    A revision that is only known from the table has no origin: its row is named by table, document and hash.
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
        (won if row["m:hash"] == winner else lost).append(
            _quarantine_row(row, winner, table, by_block=by_block)
        )
    return (
        pa.Table.from_pylist(lost, schema=QUARANTINE_SCHEMA),
        pa.Table.from_pylist(won, schema=QUARANTINE_SCHEMA),
    )


def _quarantine_row(row: dict[str, Any], winner: bytes, table: str, *, by_block: bool) -> dict[str, Any]:
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
