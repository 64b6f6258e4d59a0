"""Verify a QLDB journal on executors: decode where the records are, then two shuffles of facts.

::

    records ─► decode, hash ─► facts ─┬─ by slice of a strand ──► check_slice ─┬──► anomalies
               (mapInArrow)           │  (+ the block before)                  └─► ranges ─► check_gaps
                                      └─ by document ───────────► check_documents ──► anomalies

No step walks the chain: a block is compared with the one before it, wherever the two lie. What is shuffled
are facts, some 150 bytes a record, never the records: of each batch, those of one group as one row.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.arrow import distinct
from headpond.core.errors import UsageError
from headpond.core.schemas import filled
from headpond.qldb.batch import decode_user_data
from headpond.qldb.journal.check import ANOMALIES, check_documents, check_gaps, check_slice
from headpond.qldb.journal.facts import BLOCK_FACTS, FACT_SCHEMAS, JournalFacts, journal_facts
from headpond.qldb.journal.known import cut, numbers_of, ranges_of
from headpond.spark.sources.kinesis import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SLICE_BLOCKS = 4096
"""Sequence numbers of a slice."""
DOCUMENT_GROUPS = 128
"""Groups that documents are distributed over; bounds what one task holds of them."""
MALFORMED = "malformed"
"""Kind of the rows about what is not a QLDB record; `detail` has the verdict and where it was read."""

_FACTS = JournalFacts._fields
_BEFORE, _ENDED, _ENDS, _DOCUMENTS = "before", "ended", "ends", "documents"
FACT = pa.schema(
    [
        ("group", pa.string()),
        *((name, pa.binary()) for name in (*_FACTS, _BEFORE)),  # Arrow IPC
        ("detail", pa.string()),
    ]
)
FOUND = pa.schema([("group", pa.string()), *ANOMALIES])
_DDL = {pa.string(): "string", pa.int64(): "bigint", pa.binary(): "binary"}


def verify(
    spark: SparkSession,
    records: DataFrame | str,
    *,
    closed: bool = True,
    deletes: bool = True,
    slice_blocks: int = SLICE_BLOCKS,
) -> DataFrame:
    """Find the anomalies of a journal.

    Args:
        spark: the session.
        records: user records with a binary column `data`, as the Kinesis and archive sources give them (a
            column `problem`, if there, says what the source could not open), or the path or pattern of an
            archive.
        closed: no more records will come: what is absent is missing.
        deletes: check the hashes of deletes, for which no real example is known.
        slice_blocks: how many sequence numbers one task handles.

    Returns:
        `kind, strand_id, sequence_no, document_id, version, first, last, detail`; no order. Rows of kind
        `malformed` describe what is not a record.

    Raises:
        UsageError: the frame has no binary column `data`.
    """
    if isinstance(records, str):
        register(spark)
        records = spark.read.format("headpond-archive").option("path", records).load()
    kinds = dict(records.dtypes)
    if kinds.get("data") != "binary":
        raise UsageError(
            f"Verification reads a binary column `data`; the frame has {', '.join(sorted(kinds)) or 'none'}.",
            next_step="Load it with the Kinesis or archive source, or cast and rename the column.",
        )
    columns = [name for name in ("data", "problem", "shard_id", "sequence_number") if name in kinds]
    facts = records.select(*columns).mapInArrow(partial(_facts, slice_blocks), _ddl(FACT))

    # Spark reads the annotations of these two; it cannot see those of a `partial`.
    def check(table: pa.Table) -> pa.Table:
        return _check(table, closed=closed, deletes=deletes)

    def gaps(table: pa.Table) -> pa.Table:
        return _gaps(table, closed=closed)

    checked = facts.groupBy("group").applyInArrow(check, _ddl(FOUND))
    found = checked.groupBy("group").applyInArrow(gaps, _ddl(FOUND))
    return found.drop("group")


def _ddl(schema: pa.Schema) -> str:
    return ", ".join(f"`{field.name}` {_DDL[field.type]}" for field in schema)


def _facts(slice_blocks: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the facts of records, each under every group that needs it."""
    for batch in batches:
        rows, found = pa.Table.from_batches([batch]), list[dict[str, Any]]()
        if "problem" in batch.schema.names:
            bad = rows["problem"].is_valid()
            found += _malformed(rows.filter(bad), rows["problem"].filter(bad))
            rows = rows.filter(pc.invert(bad))
        decoded = decode_user_data(pc.fill_null(rows["data"].combine_chunks(), b""), verify=True)
        wrong = pc.not_equal(decoded.verdicts["verdict"], "ok")
        found += _malformed(rows.filter(wrong), decoded.verdicts["verdict"].filter(wrong))
        facts = journal_facts(decoded.blocks, decoded.revisions)
        found += _by_slice(facts, slice_blocks)
        identity = facts.revisions.select(["document_id", "version", "hash"])
        groups = [zlib.crc32(one.encode()) % DOCUMENT_GROUPS for one in identity["document_id"].to_pylist()]
        for group in set(groups):
            some = identity.filter(pc.equal(pa.array(groups), group))
            found.append({"group": f"{_DOCUMENTS} {group}", "revisions": _packed(some)})
        if pc.any(pc.equal(decoded.controls["control_record_type"], "COMPLETED"), min_count=0).as_py():
            found.append({"group": _ENDS})
        yield from pa.Table.from_pylist(found, FACT).to_batches()


def _malformed(rows: pa.Table, verdicts: pa.ChunkedArray) -> list[dict[str, Any]]:
    where = [rows[name] for name in ("shard_id", "sequence_number") if name in rows.schema.names]
    detail = pc.binary_join_element_wise(verdicts, *where, " ", null_handling="replace", null_replacement="")
    return [{"group": MALFORMED, "detail": each} for each in detail.to_pylist()]


def _by_slice(facts: JournalFacts, slice_blocks: int) -> Iterator[dict[str, Any]]:
    """Yield the facts of each slice, and for the slice behind it its last block."""
    strands = pa.chunked_array([*facts.blocks["strand_id"].chunks, *facts.revisions["strand_id"].chunks])
    for strand in pc.unique(strands).to_pylist():
        here = facts.where(lambda table, strand=strand: pc.equal(table["strand_id"], strand))  # type: ignore[misc]
        slices = distinct(numbers_of(here) // slice_blocks).tolist()
        for at, part in zip(slices, cut(here, [at * slice_blocks for at in slices[1:]]), strict=True):
            packed = {name: _packed(table) for name, table in zip(_FACTS, part, strict=True)}
            yield {"group": f"slice {strand} {at}", **packed}
            numbers = part.blocks["sequence_no"]
            last = _packed(part.blocks.filter(pc.equal(numbers, at * slice_blocks + slice_blocks - 1)))
            if last is not None:
                yield {"group": f"slice {strand} {at + 1}", _BEFORE: last}


def _packed(table: pa.Table) -> bytes | None:
    if not table.num_rows:
        return None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _unpacked(column: pa.ChunkedArray, schema: pa.Schema) -> pa.Table:
    parts = [pa.ipc.open_stream(raw).read_all() for raw in column.drop_null().to_pylist()]
    return pa.concat_tables(parts) if parts else schema.empty_table()


def _check(table: pa.Table, *, closed: bool, deletes: bool) -> pa.Table:
    """Check one group: a slice, some documents, or what is about all."""
    group = table["group"][0].as_py()
    if group == _ENDS:
        return _found(pa.table({"kind": [_ENDED]}), _ENDS)
    if group == MALFORMED:
        return _found(table.rename_columns({"group": "kind"}).select(["kind", "detail"]))
    if group.startswith(_DOCUMENTS):
        return _found(check_documents(_unpacked(table["revisions"], FACT_SCHEMAS[3])))
    columns = zip(_FACTS, FACT_SCHEMAS, strict=True)
    facts = JournalFacts(*(_unpacked(table[name], schema) for name, schema in columns))
    checked = check_slice(facts, _unpacked(table[_BEFORE], BLOCK_FACTS), closed=closed, deletes=deletes)
    return pa.concat_tables([_found(checked.anomalies), _found(_ranges(facts), _ENDS)])


def _ranges(facts: JournalFacts) -> pa.Table:
    """Return blocks that follow each other as ranges, and the last block that a revision claims."""
    ranges: list[tuple[int | None, int]] = list(ranges_of(distinct(facts.blocks["sequence_no"].to_numpy())))
    if (claimed := pc.max(facts.revisions["sequence_no"]).as_py()) is not None:
        ranges.append((None, claimed))
    strand = pc.max((facts.blocks if facts.blocks.num_rows else facts.revisions)["strand_id"]).as_py()
    rows = [{"kind": "range", "strand_id": strand, "first": low, "last": high} for low, high in ranges]
    return pa.Table.from_pylist(rows, ANOMALIES)


def _gaps(table: pa.Table, *, closed: bool) -> pa.Table:
    """Find the gaps between ranges; anomalies pass."""
    if table["group"][0].as_py() != _ENDS:
        return table
    ranges, claimed, found = dict[str, list[tuple[int, int]]](), dict[str, int](), [FOUND.empty_table()]
    rows = table.select(["kind", "strand_id", "first", "last"]).to_pylist()
    for row in (row for row in rows if row["kind"] != _ENDED):
        claimed[row["strand_id"]] = max(claimed.get(row["strand_id"], 0), row["last"])
        if row["first"] is not None:
            ranges.setdefault(row["strand_id"], []).append((row["first"], row["last"]))
    ended = any(row["kind"] == _ENDED for row in rows)
    for strand, known in ranges.items() if closed else ():
        known.sort()
        # Between the first and the last of a range nothing is missing: its inner numbers are not needed.
        found += [_found(check_gaps(strand, [one[1], later[0]])) for one, later in pairwise(known)]
        found.append(_found(check_gaps(strand, [known[-1][1]], reach=claimed[strand] if ended else None)))
    return pa.concat_tables(found)


def _found(rows: pa.Table, group: str | None = None) -> pa.Table:
    """Return anomalies under a group, which is their kind where none is named."""
    columns = {name: rows[name] for name in rows.column_names}
    groups = rows["kind"] if group is None else pa.repeat(group, rows.num_rows)
    return filled(columns | {"group": groups}, FOUND, rows.num_rows)
