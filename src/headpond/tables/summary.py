"""What a lake holds and what a run did, as the JSON that `run`, `demo` and `status` print."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from headpond.changes.config import UNKNOWN
from headpond.changes.history import HISTORY_COUNTERS
from headpond.changes.latest import COUNTERS
from headpond.tables.batch import OPEN
from headpond.tables.ledger import LedgerLake

if TYPE_CHECKING:
    from headpond.tables.apply import Applied
    from headpond.tables.lake import Lake

LOG_FIGURES = ("appended", "duplicates")
RUN_COUNTERS = (
    "records",
    "data_bytes",
    "changes",
    "unknown_op",
    "out_of_range",
    "chunk_copies",
    "chunk_groups_completed",
    OPEN,
)
"""Counters of a run of DSQL changes, which are told when they are 0, too."""

_FIGURES = {"current": COUNTERS, "history": HISTORY_COUNTERS, "log": LOG_FIGURES}


def lake_summary(lake: Lake | LedgerLake, applied: Applied | None = None) -> dict[str, Any]:
    """Describe a lake as it is now, with the figures of a run where there was one.

    Args:
        lake: the lake; its tables need not exist yet.
        applied: what a run did; its figures are left out when null.

    Returns:
        `tables`: per table `rows`, and of the run `upserts`, `deletes`, `appended` (logs), `duplicates`,
        `conflicting_duplicates`, `stale` (older than what was there), `superseded` (older than another of
        the same batch); `unknown_tables`: per table that is not configured and has a log the same, `schema`,
        `table`, and the name it is `configured_as` meanwhile; `quarantined`: rows in quarantine by reason;
        `pending`: records that wait for others; `tombstones` per current table; `deletes` per history table;
        `columns`: names that Delta has otherwise than the source. Of a lake of QLDB documents also `journal`:
        `blocks`, `statements`, `controls`, `redactions` and `conflicts` that are known, and with
        `[verify]` `anomalies` by kind and what a saved `digest` says.
    """
    if isinstance(lake, LedgerLake):
        return _ledger_summary(lake, applied)
    tables: dict[str, Any] = {}
    columns: dict[str, Any] = {}
    for name, typed in lake.typed.items():
        there = typed.file.exists()
        tables[name] = {
            "rows": typed.file.count() if there else 0,
            "path": typed.file.uri,
            "keep": _keep(lake, name),
        }
        if applied is not None:
            figures = applied.tables.get(name, Counter())
            tables[name] |= {figure: figures.get(figure, 0) for figure in _FIGURES[_keep(lake, name)]}
        if there and (renamed := typed.renamed()):
            columns[name] = renamed
    summary: dict[str, Any] = {
        "lake": lake.path,
        "tables": tables,
        "unknown_tables": _unknown(lake, applied),
        "quarantined": dict(lake.quarantine.counts_by("reason")),
        "pending": lake.pending.count(),
        "tombstones": lake.tombstones.counts(),
        "deletes": dict(lake.deletes.counts()),
        "columns": columns,
    }
    if applied is not None:
        summary["batches"] = applied.batches
        told = dict.fromkeys(RUN_COUNTERS, 0) | applied.counters | {OPEN: lake.pending.open_groups()}
        summary["counters"] = dict(sorted(told.items()))
    return summary


def _ledger_summary(lake: LedgerLake, applied: Applied | None) -> dict[str, Any]:
    tables: dict[str, Any] = {}
    columns: dict[str, Any] = {}
    for name, table in lake.documents.items():
        typed = table.typed
        there = typed.file.exists()
        keep = "history" if table.past else "current"
        rows = typed.file.count() if there else 0
        tables[name] = {"rows": rows, "path": typed.file.uri, "keep": keep}
        if applied is not None:
            figures = applied.tables.get(name, Counter())
            tables[name] |= {figure: figures.get(figure, 0) for figure in COUNTERS}
        if there and (renamed := typed.renamed()):
            columns[name] = renamed
    summary: dict[str, Any] = {
        "lake": lake.path,
        "tables": tables,
        "unknown_tables": {},
        "quarantined": dict(lake.quarantine.counts_by("reason")),
        "pending": 0,
        "tombstones": lake.tombstones.counts(),
        "deletes": {},
        "columns": columns,
        "journal": {name: table.count() for name, table in lake.facts.items()}
        | {"conflicts": lake.conflicts.facts.count()},
    }
    if lake.config.verify:
        summary["anomalies"] = lake.journal.counts()
        summary["digest"] = None if lake.digest is None else lake.journal.digest(lake.digest).as_json()
    if applied is not None:
        summary["batches"] = applied.batches
        summary["counters"] = dict(sorted(applied.counters.items()))
    return summary


def _unknown(lake: Lake, applied: Applied | None) -> dict[str, Any]:
    configured = {(spec.schema, spec.table): spec.name for spec in lake.specs}
    found: dict[str, Any] = {}
    for name, unknown in lake.unknown.all().items():
        file = unknown.log.typed.file
        told: dict[str, Any] = {
            "schema": unknown.schema,
            "table": unknown.table,
            "rows": file.count() if file.exists() else 0,
            "path": file.uri,
            "configured_as": configured.get((unknown.schema, unknown.table)),
        }
        if applied is not None:
            figures = applied.tables.get(name, Counter())
            told |= {figure: figures.get(figure, 0) for figure in LOG_FIGURES}
        found[name.removeprefix(UNKNOWN)] = told
    return found


def _keep(lake: Lake, name: str) -> str:
    if name in lake.logs:
        return "log"
    return "history" if name in lake.histories else "current"
