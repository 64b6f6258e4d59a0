"""A batch of user records → typed revisions per table, quarantine, facts of the journal. Runs on executors.

::

    user records ─┬─ problem ───────────────────────────────────► quarantine
                  └─ decoded ─┬─ a verdict other than ok ───────► quarantine
                              ├─ control record ────────────────► controls
                              ├─ block ──┬► blocks               one row a block: hashes, revisions it lists
                              │          ├► statements           one row a statement of its transaction
                              │          └► redactions           (document, version) that it asks to redact
                              └─ revision ─ route by table name ─┬► tables["Person"]
                                        │                        └► quarantine (unknown table, casts)
                                        └ without data, with dataHash ─► redactions

Facts are sets: a repeated record adds nothing. A revision's own columns are `REVISION_FIELDS`; which revision
wins is decided later, by `documents`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.formats import (
    MAX_COLUMNS,
    Decoded,
    Newest,
    one_batch,
    opened_records,
    quarantine_rows,
    unwritable,
)
from headpond.core.patterns import Entries
from headpond.core.schemas import (
    ORIGIN_COLUMNS,
    OWN,
    PENDING_SCHEMA,
    QUARANTINE_SCHEMA,
    VALUE,
    format_versions,
    whole,
)
from headpond.ion.binary import MAX_DEPTH
from headpond.ion.column_types import parse_ion_type
from headpond.qldb.batch import DecodedQldb, decode_user_data
from headpond.qldb.columns import ion_columns, ion_json_column
from headpond.qldb.config import AGAIN, OFFSET, DocumentSpec
from headpond.qldb.journal.facts import journal_facts, once
from headpond.qldb.records import OK

if TYPE_CHECKING:
    from headpond.qldb.journal.proof import SavedDigest


_VERSION = pa.field("format_version", pa.int32())
_PLACE = [pa.field("strand_id", pa.string()), pa.field("sequence_no", pa.int64())]
TIME = pa.timestamp("us", "UTC")

CONTROLS = pa.schema(
    [pa.field("stream_arn", pa.string()), pa.field("control_record_type", pa.string()), _VERSION]
)
BLOCKS = pa.schema(
    [
        *_PLACE,
        pa.field("block_hash", pa.binary()),
        pa.field("transaction_id", pa.string()),
        pa.field("block_timestamp", TIME),  # null outside of the years 1677 to 2262
        pa.field("block_timestamp_text", pa.string()),  # Ion text, with all digits
        pa.field("previous_block_hash", pa.binary()),
        pa.field("entries_hash", pa.binary()),
        pa.field("entries_hash_list", pa.list_(pa.binary())),
        pa.field(
            "revision_summaries",
            pa.list_(pa.struct([("hash", pa.binary()), ("document_id", pa.string())])),
        ),
        pa.field("listing_digest", pa.binary()),  # SHA-256 over those: a changed copy has its own row
        _VERSION,
    ]
)
STATEMENTS = pa.schema(
    [
        *_PLACE,
        pa.field("block_hash", pa.binary()),
        pa.field("statement_no", pa.int64()),  # from 0, as `transactionInfo.documents` counts
        pa.field("statement", pa.string()),
        pa.field("start_time", TIME),
        pa.field("start_time_text", pa.string()),
        pa.field("statement_digest", pa.binary()),
        _VERSION,
    ]
)
REDACTIONS = pa.schema(
    [
        pa.field("document_id", pa.string()),
        pa.field("version", pa.int64()),
        pa.field("source", pa.string()),  # request: redactionInfo of a block; form: a revision without data
        pa.field("table_id", pa.string()),
        pa.field("strand_id", pa.string()),  # of the block that asks, or of the revision
        pa.field("sequence_no", pa.int64()),
        _VERSION,
    ]
)

FACTS = {"controls": CONTROLS, "blocks": BLOCKS, "statements": STATEMENTS, "redactions": REDACTIONS}
IDENTITIES = {
    "controls": ("stream_arn", "control_record_type"),
    "blocks": ("strand_id", "sequence_no", "block_hash", "listing_digest"),
    "statements": ("strand_id", "sequence_no", "block_hash", "statement_no"),
    "redactions": ("document_id", "version", "source"),
}
"""What makes two facts one."""


def block_facts(found: DecodedQldb) -> dict[str, pa.Table]:
    """Return the controls, blocks and statements of decoded records."""
    return {
        "controls": _filled(once(found.controls, CONTROLS.names[:-1]), CONTROLS),
        "blocks": _filled(
            found.blocks,
            BLOCKS,
            block_timestamp=_time(found.blocks["block_timestamp_ns"]),
            block_timestamp_text=found.blocks["block_timestamp"],
            listing_digest=_listing_digests(found.blocks["revision_summaries"]),
        ),
        "statements": _statements(found.blocks),
    }


def redaction_forms(found: DecodedQldb) -> pa.Table:
    """Return revisions whose contents were redacted: those that blocks name, and those without contents."""
    forms = found.revisions.filter(pc.equal(found.revisions["kind"], "redacted"))
    owners, items = _items(found.blocks, "redactions")
    asked = {name: pc.struct_field(items, name) for name in ("document_id", "version", "table_id")}
    asked |= {name: found.blocks[name].take(owners) for name in ("strand_id", "sequence_no")}
    parts = [
        _filled(pa.table(asked), REDACTIONS, source=pa.repeat("request", len(owners))),
        _filled(forms, REDACTIONS, source=pa.repeat("form", forms.num_rows)),
    ]
    return pa.concat_tables(parts)


def _statements(blocks: pa.Table) -> pa.Table:
    owners, items = _items(blocks, "statements")
    before: dict[int, int] = {}
    numbers = []
    for owner in owners.to_pylist():
        numbers.append(before.get(owner, 0))
        before[owner] = numbers[-1] + 1
    rows = {name: pc.struct_field(items, name) for name in ("statement", "statement_digest")}
    rows |= {name: blocks[name].take(owners) for name in ("strand_id", "sequence_no", "block_hash")}
    return _filled(
        pa.table(rows),
        STATEMENTS,
        statement_no=pa.array(numbers, pa.int64()),
        start_time=_time(pc.struct_field(items, "start_time_ns")),
        start_time_text=pc.struct_field(items, "start_time"),
    )


def _items(blocks: pa.Table, column: str) -> tuple[pa.Array, Any]:
    lists = blocks[column].combine_chunks()
    return pc.list_parent_indices(lists), pc.list_flatten(lists)


def _listing_digests(summaries: pa.ChunkedArray) -> pa.Array:
    digests = []
    for listed in summaries.to_pylist():
        digest = hashlib.sha256()
        for one in listed:
            digest.update(one["hash"] + (one["document_id"] or "").encode() + b"\0")
        digests.append(digest.digest())
    return pa.array(digests, pa.binary())


def _time(ns: Any) -> Any:
    return pc.floor_temporal(ns.cast(pa.timestamp("ns", "UTC")), unit="microsecond").cast(TIME)


def _filled(rows: pa.Table, schema: pa.Schema, **more: Any) -> pa.Table:
    columns = {name: rows[name] for name in schema.names if name in rows.column_names}
    columns |= {"format_version": format_versions(rows.num_rows)} | more
    return pa.table([columns[field.name].cast(field.type) for field in schema], schema=schema)


JOURNAL = ("journal_blocks", "journal_listed", "journal_documents", "journal_revisions")
"""Names of the facts that verification needs, in the order of `journal_facts.FACT_SCHEMAS`."""

REVISION_FIELDS = [
    pa.field("m:document_id", pa.string()),
    pa.field("m:revision", pa.int64()),  # the document's version
    pa.field("m:tx_time", TIME),  # null outside of the years 1677 to 2262
    pa.field("m:tx_id", pa.string()),
    pa.field("m:table_id", pa.string()),
    pa.field("m:strand_id", pa.string()),
    pa.field("m:block_sequence_no", pa.int64()),
    pa.field("m:hash", pa.binary()),  # 32 bytes
    pa.field("m:kind", pa.string()),  # insert | update | delete | redacted
    pa.field("m:ion", pa.binary()),  # bytes of `data`, only where they are kept; else null
    pa.field("m:json", pa.string()),  # `data` as canonical JSON, only where it is kept; else null
    *(pa.field(f"m:{name}", QUARANTINE_SCHEMA.field(name).type) for name in ORIGIN_COLUMNS),
    pa.field("m:data", pa.binary()),  # the untouched record, for quarantine
]
"""Own columns of a typed batch of revisions, before its `c:` columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerConfig(Entries["DocumentSpec"]):
    """The records of a QLDB ledger: tables and rules of one pipeline. It is a `ChangeFormat`.

    Args:
        tables: the configured tables; one of the ledger may be there twice, as current state and as history.
        patterns: entries that stand for every table whose name matches.
        made: names of the tables that are configured by those.
        raw_ion: rows have the bytes of `data` in `_ion`.
        canonical_json: rows have the whole `data` as canonical JSON in `_json`.
        honour: the contents of a redacted revision are dropped; else they stay where they came with data.
        verify: hashes are computed, so that the journal can be verified.
        digest: a saved digest to compare the journal with.
        check_deletes: verifying looks at the hashes of deletes, too, for which no real example is known.
        max_depth: bound on the nesting of a record.
        max_columns: bound on the fields that one document may have as columns, and those of a table that are
            decoded together.
        unknown_tables: revisions of tables that are not configured go to quarantine, or nowhere, counted as
            `ignored`. The journal's proof holds them either way.
        max_unknown_tables: how many tables are made because a pattern matches.
    """

    kept_as: ClassVar[str] = "documents"

    tables: tuple[DocumentSpec, ...]
    patterns: tuple[DocumentSpec, ...] = ()
    made: tuple[str, ...] = ()
    raw_ion: bool = False
    canonical_json: bool = False
    honour: bool = False
    verify: bool = False
    digest: SavedDigest | None = None
    check_deletes: bool = True
    max_depth: int = MAX_DEPTH
    max_columns: int = MAX_COLUMNS
    unknown_tables: Literal["quarantine", "ignore"] = "quarantine"
    max_unknown_tables: int = 1_000

    def for_run(self, *, only: str | None, keep_data: bool) -> Self:
        """Return the rules of one run: these, for revisions always keep their record."""
        del keep_data
        assert only is None  # revisions carry their versions: no table of them is caught up
        return self

    def _of_no_entry(
        self,
        name: str,
        specs: Sequence[DocumentSpec],
        rows: pa.Table,
        table_ids: pa.ChunkedArray,
        counters: Counter[str],
    ) -> list[pa.RecordBatch]:
        """Return quarantine rows of the revisions of a table's name that no entry takes, or count them."""
        taken = [spec.table_id for spec in specs]
        if None in taken:
            return []
        rest = rows.filter(pc.invert(pc.is_in(table_ids, pa.array(taken, pa.string()))))
        if self.unknown_tables == "ignore":
            counters["ignored"] += len(rest)
            return []
        why = f"the ledger's table {name[:200]!r} is not configured{' with this id' if specs else ''}"
        return [_again(rest, ["unknown_table"] * len(rest), [why] * len(rest))] if len(rest) else []

    def decode(self, batch: pa.RecordBatch | pa.Table) -> Decoded:
        """Decode a batch of `USER_RECORD_SCHEMA`; it counts `records`, `changes`, `blocks`, `controls`."""
        opened, counters, refused = opened_records(batch)
        records = pa.Table.from_batches([opened])
        found = decode_user_data(records["data"], verify=self.verify, max_depth=self.max_depth)
        verdicts = found.verdicts
        wrong = pc.not_equal(verdicts["verdict"], OK)
        if pc.any(wrong, min_count=0).as_py():
            bad = records.filter(wrong)
            refused.append(_refused(bad, verdicts["verdict"].filter(wrong), verdicts["detail"].filter(wrong)))
        counters.update(controls=found.controls.num_rows, blocks=found.blocks.num_rows)

        tables: dict[str, pa.RecordBatch] = {}
        newest: Newest = {}
        own = _own_columns(records, found, self)
        names = found.revisions["table_name"].combine_chunks().dictionary_encode()
        if names.null_count:  # only in an export whose block does not name the table
            nameless = own.filter(pc.is_null(names))
            why = "the block does not name the document's table"
            refused.append(_again(nameless, ["unknown_table"] * len(nameless), [why] * len(nameless)))
        entries = self.entries_of((name,) for name in names.dictionary.to_pylist())
        for code, name in enumerate(names.dictionary.to_pylist()):
            at = pa.array(np.flatnonzero(pc.fill_null(pc.equal(names.indices, code), fill_value=False)))
            rows, revisions = own.take(at), found.revisions.take(at)
            specs = entries[name,]
            refused += self._of_no_entry(name, specs, rows, revisions["table_id"], counters)
            for spec in specs:
                mine, data = _of_entry(spec, rows, revisions)
                typed, bad = _typed(spec, mine, data, self.max_columns)
                refused.extend(bad)
                if typed.num_rows:
                    tables[spec.name] = typed
                    if (commit := pc.max(typed.column("m:tx_time").cast(pa.int64())).as_py()) is not None:
                        newest[spec.name] = commit * 1000, None
                    counters["changes"] += typed.num_rows
        facts = block_facts(found) | {"redactions": redaction_forms(found)}
        if self.verify:
            facts |= dict(zip(JOURNAL, journal_facts(found.blocks, found.revisions), strict=True))
        return Decoded(
            tables,
            pa.concat_batches([pa.RecordBatch.from_pylist([], schema=QUARANTINE_SCHEMA), *refused]),
            pa.RecordBatch.from_pylist([], schema=PENDING_SCHEMA),
            {name: n for name, n in counters.items() if n},
            {name: one_batch(rows) for name, rows in facts.items() if rows.num_rows},
            newest,
        )


def _of_entry(spec: DocumentSpec, rows: pa.Table, revisions: pa.Table) -> tuple[pa.Table, pa.ChunkedArray]:
    """Return the revisions of a table's name that an entry takes, and their data."""
    if spec.table_id is None:
        return rows, revisions["data"]
    mine = pc.is_in(revisions["table_id"], pa.array([spec.table_id]))
    return rows.filter(mine), revisions["data"].filter(mine)


def _own_columns(records: pa.Table, found: DecodedQldb, config: LedgerConfig) -> pa.Table:
    revisions = found.revisions
    data = whole(revisions["data"])
    nothing = pa.nulls(len(data))
    columns: dict[str, Any] = {name: revisions[name] for name in revisions.column_names}
    columns |= {name: records[name].take(revisions["index"]) for name in (*ORIGIN_COLUMNS, "data")}
    columns |= {
        "revision": revisions["version"],
        "tx_time": _time(revisions["tx_time_ns"]),
        "block_sequence_no": revisions["sequence_no"],
        "ion": data if config.raw_ion else nothing,
        "json": ion_json_column(data) if config.canonical_json else nothing,
    }
    own = {field.name: columns[field.name.removeprefix(OWN)].cast(field.type) for field in REVISION_FIELDS}
    return pa.table(own, schema=pa.schema(REVISION_FIELDS))


def _typed(
    spec: DocumentSpec, rows: pa.Table, data: pa.ChunkedArray, max_columns: int
) -> tuple[pa.RecordBatch, list[pa.RecordBatch]]:
    """Return the rows whose declared fields are what they should be, and quarantine rows of the others."""
    types = {name: parse_ion_type(kind) for name, kind in spec.types_by_field().items()}
    taken = ion_columns(data.combine_chunks(), types, max_columns=max_columns)
    columns: dict[str, Any] = {}
    failures = {row: ("too_many_columns", why) for row, why in taken.refused.items()}
    for name, column in taken.columns.items():
        target = spec.column_of(name)
        if target is None:
            continue
        while VALUE + target in columns:  # the data has both `a` and, called so, what `a` makes way to
            target += AGAIN
        for row, reason in (column.failures or {}).items():
            failures.setdefault(row, (reason, f"the field {name[:200]!r} cannot be {types[name]}"))
        if target in spec.partition_by:
            for row in unwritable(target, column.values):
                why = f"the field {name[:200]!r} is longer than a folder's name"
                failures.setdefault(row, ("out_of_range", why))
        columns[VALUE + target] = column.values
        if column.offsets is not None:
            columns[VALUE + target + OFFSET] = column.offsets
    for name, values in columns.items():
        rows = rows.append_column(name, values)
    if not failures:
        return one_batch(rows), []
    at = np.zeros(rows.num_rows, bool)
    at[list(failures)] = True
    found = [failures[row] for row in sorted(failures)]
    bad = _again(rows.filter(pa.array(at)), [reason for reason, _ in found], [why for _, why in found])
    return one_batch(rows.filter(pa.array(~at))), [bad]


def _again(rows: pa.Table, reasons: list[str], details: list[str]) -> pa.RecordBatch:
    records = rows.select([f"{OWN}{name}" for name in (*ORIGIN_COLUMNS, "data")])
    records = records.rename_columns([*ORIGIN_COLUMNS, "data"])
    return _refused(records, pa.array(reasons, pa.string()), pa.array(details, pa.string()))


def _refused(records: pa.Table, reason: Any, detail: Any) -> pa.RecordBatch:
    return quarantine_rows(one_batch(records), whole(reason), whole(detail))
