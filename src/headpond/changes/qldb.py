"""A batch of user records → typed revisions per table, quarantine, facts of the journal. Runs on executors.

::

    user records ─┬─ problem ───────────────────────────────────► quarantine
                  └─ decode_qldb ─┬─ a verdict other than ok ───► quarantine
                                  ├─ control, block summary ────► facts (`qldb_facts`)
                                  └─ revision ─ route by name ─┬► tables["Person"]
                                                               └► quarantine (unknown table, casts)

A revision's own columns are `REVISION_FIELDS`; which revision wins is decided later, by `documents`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.dsql import Decoded, quarantine_rows
from headpond.changes.journal_facts import journal_facts
from headpond.changes.partition_names import unwritable
from headpond.changes.qldb_config import AGAIN, OFFSET
from headpond.changes.qldb_exported import with_exported
from headpond.changes.qldb_facts import block_facts, redaction_forms
from headpond.changes.schemas import ORIGIN_COLUMNS, OWN, PENDING_SCHEMA, QUARANTINE_SCHEMA, VALUE, whole
from headpond.formats.ion_columns import ion_columns, ion_json_column
from headpond.formats.qldb_batch import decode_qldb
from headpond.formats.qldb_model import OK

if TYPE_CHECKING:
    from headpond.changes.qldb_config import DocumentSpec, LedgerConfig
    from headpond.formats.ion_columns import IonColumn
    from headpond.formats.qldb_batch import DecodedQldb

TIME = pa.timestamp("us", "UTC")
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

_DECODED_AS = {
    "m:revision": "version",
    "m:block_sequence_no": "sequence_no",
}


def decode_ledger(batch: pa.RecordBatch | pa.Table, config: LedgerConfig) -> Decoded:
    """Decode a batch of `USER_RECORD_SCHEMA`.

    Args:
        batch: user records.
        config: tables and rules.

    Returns:
        Typed revisions, quarantine, facts of the journal, and counters: `records`, `changes`, `blocks`,
        `controls`.
    """
    records = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
    records = records.combine_chunks()
    counters: Counter[str] = Counter(records=records.num_rows)
    refused = [pa.RecordBatch.from_pylist([], schema=QUARANTINE_SCHEMA)]
    problem = records["problem"]
    if problem.null_count < len(problem):
        has_problem = pc.is_valid(problem)
        bad = records.filter(has_problem)
        refused.append(_refused(bad, bad["problem"], pa.nulls(bad.num_rows, pa.string())))
        records = records.filter(pc.invert(has_problem)).combine_chunks()
    found = decode_qldb(records["data"], verify=config.verify, max_depth=config.max_depth)
    found = with_exported(found, records["data"], verify=config.verify, max_depth=config.max_depth)
    verdicts = found.verdicts
    wrong = pc.not_equal(verdicts["verdict"], OK)
    if pc.any(wrong, min_count=0).as_py():
        bad = records.filter(wrong)
        refused.append(_refused(bad, verdicts["verdict"].filter(wrong), verdicts["detail"].filter(wrong)))
    counters.update(controls=found.controls.num_rows, blocks=found.blocks.num_rows)

    tables: dict[str, pa.RecordBatch] = {}
    own = _own_columns(records, found, config)
    names = found.revisions["table_name"].combine_chunks().dictionary_encode()
    if names.null_count:  # only in an export whose block does not name the table
        nameless = own.filter(pc.is_null(names))
        why = "the block does not tell the document's table"
        refused.append(_again(nameless, ["unknown_table"] * len(nameless), [why] * len(nameless)))
    for code, name in enumerate(names.dictionary.to_pylist()):
        at = pa.array(np.flatnonzero(pc.fill_null(pc.equal(names.indices, code), fill_value=False)))
        rows, revisions = own.take(at), found.revisions.take(at)
        specs = list(config.of_table(name))
        if not specs:
            why = f"the ledger's table {name[:200]!r} is not configured"
            refused.append(_again(rows, ["unknown_table"] * len(rows), [why] * len(rows)))
        for spec in specs:
            typed, bad = _typed(spec, rows, revisions["data"], config.max_columns)
            refused.extend(bad)
            if typed.num_rows:
                tables[spec.name] = typed
                counters["changes"] += typed.num_rows
    facts = block_facts(found) | {"redactions": redaction_forms(found)}
    if config.verify:
        facts |= dict(zip(JOURNAL, journal_facts(found.blocks, found.revisions), strict=True))
    return Decoded(
        tables,
        pa.concat_batches(refused),
        pa.RecordBatch.from_pylist([], schema=PENDING_SCHEMA),
        {name: n for name, n in counters.items() if n},
        {name: _one_batch(rows) for name, rows in facts.items() if rows.num_rows},
    )


def _own_columns(records: pa.Table, found: DecodedQldb, config: LedgerConfig) -> pa.Table:
    revisions = found.revisions
    origin = records.take(revisions["index"])
    columns: dict[str, Any] = {}
    for field in REVISION_FIELDS:
        name = field.name.removeprefix(OWN)
        if name == "tx_time":
            values = pc.floor_temporal(
                revisions["tx_time_ns"].cast(pa.timestamp("ns", "UTC")), unit="microsecond"
            )
        elif name == "ion":
            values = revisions["data"] if config.raw_ion else pa.nulls(revisions.num_rows, field.type)
        elif name == "json":
            data = whole(revisions["data"])
            values = ion_json_column(data) if config.canonical_json else pa.nulls(len(data), field.type)
        elif name in (*ORIGIN_COLUMNS, "data"):
            values = origin[name]
        else:
            values = revisions[_DECODED_AS.get(field.name, name)]
        columns[field.name] = values.cast(field.type)
    return pa.table(columns, schema=pa.schema(REVISION_FIELDS))


def _typed(
    spec: DocumentSpec, rows: pa.Table, data: pa.ChunkedArray, max_columns: int
) -> tuple[pa.RecordBatch, list[pa.RecordBatch]]:
    """Give the rows whose declared fields are what they should be, and quarantine rows of the others."""
    taken = ion_columns(data.combine_chunks(), spec.types_by_field(), max_columns=max_columns)
    columns: dict[str, Any] = {}
    failures = {row: ("too_many_columns", why) for row, why in taken.refused.items()}
    for name, column in taken.columns.items():
        target = spec.column_of(name)
        if target is None:
            continue
        while VALUE + target in columns:  # the data has both `a` and, called so, what `a` makes way to
            target += AGAIN
        for row, reason in column.failures.items():
            failures.setdefault(row, (reason, _why(name, column)))
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
        return _one_batch(rows), []
    at = np.zeros(rows.num_rows, bool)
    at[list(failures)] = True
    told = [failures[row] for row in sorted(failures)]
    bad = _again(rows.filter(pa.array(at)), [reason for reason, _ in told], [why for _, why in told])
    return _one_batch(rows.filter(pa.array(~at))), [bad]


def _why(name: str, column: IonColumn) -> str:
    return f"the field {name[:200]!r} cannot be {column.type}"


def _again(rows: pa.Table, reasons: list[str], details: list[str]) -> pa.RecordBatch:
    """Quarantine rows of typed ones."""
    records = rows.select([f"{OWN}{name}" for name in (*ORIGIN_COLUMNS, "data")])
    records = records.rename_columns([*ORIGIN_COLUMNS, "data"])
    return _refused(records, pa.array(reasons, pa.string()), pa.array(details, pa.string()))


def _refused(records: pa.Table, reason: Any, detail: Any) -> pa.RecordBatch:
    return quarantine_rows(_one_batch(records), whole(reason), whole(detail))


def _one_batch(rows: pa.Table) -> pa.RecordBatch:
    batches = rows.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=rows.schema)
