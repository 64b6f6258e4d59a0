"""Verify a QLDB journal on executors: decode where the records are, then two shuffles of facts.

::

    records ─► decode, hash ─► facts ─┬─ by slice of a strand ──► check_slice ─┬──► anomalies
               (mapInArrow)           │  (+ the block before)                  └─► ranges ─► check_gaps
                                      └─ by document ───────────► check_documents ──► anomalies

No step walks the chain: a block is compared with the one before it, wherever the two lie. What is shuffled
are facts, some 150 bytes a record, never the records.
"""

from __future__ import annotations

import zlib
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.errors import UsageError
from headpond.qldb.batch import decode_user_data
from headpond.qldb.journal.check import ANOMALIES, check_documents, check_gaps, check_slice
from headpond.qldb.journal.facts import FACT_SCHEMAS, JournalFacts, journal_facts
from headpond.spark.sources.kinesis import register

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession

SLICE_BLOCKS = 4096
"""Sequence numbers of a slice."""
DOCUMENT_GROUPS = 128
"""Groups that documents are distributed over; bounds what one task holds of them."""
MALFORMED = "malformed"
"""Kind of the rows about what is not a QLDB record; `detail` has the verdict and where it was read."""

_FACTS = ("block", "listed", "document", "revision")
_BEFORE, _ENDED = "before", "ended"
_ENDS = "ends"
_ALL = "all"

_FIELDS = {field.name: field for schema in FACT_SCHEMAS for field in schema}
FACT = pa.schema(
    [
        ("group", pa.string()),
        ("fact", pa.string()),
        *(
            field if field.type != pa.binary(32) else field.with_type(pa.binary())
            for field in _FIELDS.values()
        ),
        ("detail", pa.string()),
    ]
)
FOUND = pa.schema([("group", pa.string()), *ANOMALIES])
_DDL = {
    pa.string(): "string",
    pa.int64(): "bigint",
    pa.binary(): "binary",
    pa.bool_(): "boolean",
    pa.date32(): "date",
}


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
        rows = pa.Table.from_batches([batch])
        parts: list[pa.Table] = []
        if "problem" in batch.schema.names:
            bad = rows["problem"].is_valid()
            parts.append(_malformed(rows.filter(bad), rows["problem"].filter(bad)))
            rows = rows.filter(pc.invert(bad))
        data = pc.fill_null(rows["data"].combine_chunks(), b"")
        decoded = decode_user_data(data, verify=True)
        wrong = pc.not_equal(decoded.verdicts["verdict"], "ok")
        parts.append(_malformed(rows.filter(wrong), decoded.verdicts["verdict"].filter(wrong)))
        facts = journal_facts(decoded.blocks, decoded.revisions)
        parts += [
            _row(table, name, _slices(table, slice_blocks)) for name, table in zip(_FACTS, facts, strict=True)
        ]
        last = facts.blocks.filter(_is_last(facts.blocks, slice_blocks))
        parts.append(_row(last, _BEFORE, _slices(last, slice_blocks, ahead=1)))
        identity = facts.revisions.select(["document_id", "version", "hash"])
        parts.append(_row(identity, "revision", _documents(identity)))
        if pc.any(pc.equal(decoded.controls["control_record_type"], "COMPLETED"), min_count=0).as_py():
            parts.append(pa.table({"group": [_ALL], "fact": [_ENDED]}))
        yield from _as(FACT, pa.concat_tables(parts, promote_options="permissive")).to_batches()


def _malformed(rows: pa.Table, verdicts: pa.ChunkedArray) -> pa.Table:
    where = [rows[name] for name in ("shard_id", "sequence_number") if name in rows.schema.names]
    detail = pc.binary_join_element_wise(verdicts, *where, " ", null_handling="replace", null_replacement="")
    count = rows.num_rows
    return pa.table({"group": pa.repeat(_ALL, count), "fact": pa.repeat(MALFORMED, count), "detail": detail})


def _row(table: pa.Table, fact: str, groups: pa.Array) -> pa.Table:
    plain = [field.with_type(_plain(field.type)) for field in table.schema]
    named = table.cast(pa.schema(plain)).append_column("fact", pa.repeat(fact, table.num_rows))
    return named.append_column("group", groups)


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.binary() if pa.types.is_fixed_size_binary(kind) else kind


def _numbers(table: pa.Table) -> np.ndarray:
    numbers: np.ndarray = table["sequence_no"].to_numpy()
    return numbers


def _is_last(blocks: pa.Table, slice_blocks: int) -> pa.Array:
    return pa.array(_numbers(blocks) % slice_blocks == slice_blocks - 1)


def _slices(table: pa.Table, slice_blocks: int, *, ahead: int = 0) -> pa.Array:
    number = pa.array(_numbers(table) // slice_blocks + ahead).cast(pa.string())
    return pc.binary_join_element_wise("slice", table["strand_id"].combine_chunks(), number, " ")


def _documents(table: pa.Table) -> pa.Array:
    ids = table["document_id"].combine_chunks().dictionary_encode()
    names = [f"documents {zlib.crc32(one.encode()) % DOCUMENT_GROUPS}" for one in ids.dictionary.to_pylist()]
    return pa.array(names, pa.string()).take(ids.indices)


def _check(table: pa.Table, *, closed: bool, deletes: bool) -> pa.Table:
    """Check one group: a slice, some documents, or what is about all."""
    group = table["group"][0].as_py()
    if group == _ALL:
        rows = table.filter(pc.equal(table["fact"], MALFORMED))
        ended = table.filter(pc.equal(table["fact"], _ENDED)).slice(0, 1)
        malformed = pa.table({"kind": pa.repeat(MALFORMED, rows.num_rows), "detail": rows["detail"]})
        end = pa.table({"group": pa.repeat(_ENDS, ended.num_rows), "kind": pa.repeat(_ENDED, ended.num_rows)})
        return _found(malformed, end)
    if group.startswith("documents "):
        return _found(check_documents(_typed(table, FACT_SCHEMAS[3])))
    of = [
        _typed(table.filter(pc.equal(table["fact"], fact)), schema)
        for fact, schema in zip(_FACTS, FACT_SCHEMAS, strict=True)
    ]
    before = _typed(table.filter(pc.equal(table["fact"], _BEFORE)), FACT_SCHEMAS[0])
    checked = check_slice(JournalFacts(*of), before, closed=closed, deletes=deletes)
    return _found(checked.anomalies, _ranges(of[0], of[3]))


def _typed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    return table.select(schema.names).cast(schema)


def _ranges(blocks: pa.Table, revisions: pa.Table) -> pa.Table:
    """Blocks that follow each other as ranges, and the last block that a revision claims."""
    strand = (blocks if blocks.num_rows else revisions)["strand_id"][:1].to_pylist()
    have = np.unique(_numbers(blocks))
    breaks = np.flatnonzero(np.diff(have) > 1)
    firsts = have[np.concatenate([[0], breaks + 1])] if len(have) else have
    lasts = have[np.concatenate([breaks, [len(have) - 1]])] if len(have) else have
    claimed = pc.max(revisions["sequence_no"]).as_py() if revisions.num_rows else None
    return pa.table(
        {
            "group": [_ENDS] * (len(firsts) + 1),
            "kind": ["range"] * len(firsts) + ["claimed"],
            "strand_id": strand * (len(firsts) + 1),
            "first": pa.array([*firsts.tolist(), None], pa.int64()),
            "last": pa.array([*lasts.tolist(), claimed], pa.int64()),
        }
    )


def _gaps(table: pa.Table, *, closed: bool) -> pa.Table:
    """Find the gaps between ranges; anomalies pass."""
    if table["group"][0].as_py() != _ENDS:
        return table
    if not closed:
        return FOUND.empty_table()
    ended = pc.any(pc.equal(table["kind"], _ENDED)).as_py()
    found = []
    for strand in pc.unique(table["strand_id"].drop_null()).to_pylist():
        here = table.filter(pc.equal(table["strand_id"], strand))
        ranges = here.filter(pc.equal(here["kind"], "range"))
        claimed = pc.max(here["last"]).as_py()
        # Between the first and the last of a range nothing is missing: its inner numbers are not needed.
        found.append(_between_ranges(strand, ranges, claimed if ended else None))
    return _found(*found)


def _between_ranges(strand: str, ranges: pa.Table, reach: int | None) -> pa.Table:
    if not ranges.num_rows:
        return ANOMALIES.empty_table()
    ordered = ranges.sort_by("first")
    firsts, lasts = ordered["first"].to_numpy(), np.maximum.accumulate(ordered["last"].to_numpy())
    gaps = [
        check_gaps(strand, [int(last), int(first)])
        for last, first in zip(lasts[:-1], firsts[1:], strict=True)
        if first > last + 1
    ]
    gaps.append(check_gaps(strand, [int(lasts[-1])], reach=reach))
    return pa.concat_tables(gaps)


def _found(*tables: pa.Table) -> pa.Table:
    return _as(FOUND, pa.concat_tables([FOUND.empty_table(), *tables], promote_options="permissive"))


def _as(schema: pa.Schema, table: pa.Table) -> pa.Table:
    """Columns in order, those that are not there null; anomalies have a group of their own kind."""
    columns = []
    for field in schema:
        have = field.name in table.schema.names
        column = table[field.name] if have else pa.nulls(table.num_rows, field.type)
        columns.append(column.cast(field.type))
    made = pa.table(columns, names=schema.names)
    if "kind" not in schema.names or "fact" in schema.names:
        return made
    group = pc.coalesce(made["group"], made["kind"])
    return made.set_column(0, "group", group)
