"""What is known of a lake and what a run did: the summary, a report of each batch, the log of the last.

::

    Applied (foreachBatch)  ─┐
    Spark's progress event  ─┼─► BatchReport ─► batch log, metrics, log lines
    sizes of the tables     ─┘

    _headpond/batches     one row per batch that is done, newest `keep` of them
                          every TRIM_COMMITS commits: rows beyond `keep` go, the rest becomes one file, and
                          versions older than an hour are removed

Nothing depends on the log: what is applied is known by the tables and the checkpoint. A run that is killed
may miss the row of its last batch.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headpond.core.formats import Newest
from headpond.lake.delta import DeltaFile, Size
from headpond.lake.maintenance.optimize import HOUR_MS, optimize_file
from headpond.lake.state.insert_once import FactTable
from headpond.lake.state.run_mark import OWN_FOLDER
from headpond.lake.storage import of_each
from headpond.lake.target import OPEN

if TYPE_CHECKING:
    from headpond.lake.apply import Applied
    from headpond.lake.tables import Lake


def lake_summary(lake: Lake, applied: Applied | None = None) -> dict[str, Any]:
    """Describe a lake as it is now, with the figures of a run where there was one.

    Returns:
        `tables`: per table `rows`, `rewritten_bytes` (by each of the last commits) where that is much, and
        `OUTCOMES` of the run; `unknown_tables`: the same of tables that have a log and no entry, with the
        name each is `configured_as` meanwhile; `quarantined`: rows by reason; `pending`: records that wait;
        `tombstones` per current table; `deletes` per history table; `columns`: names that Delta has otherwise
        than the source; and what the format adds (`extras.summary`).
    """
    lake.look()

    def of_table(name: str) -> tuple[dict[str, Any], dict[str, str]]:
        table, file = lake.tables[name], lake.tables[name].typed.file
        there = file.exists()
        found: dict[str, Any] = {"rows": file.count(), "path": file.uri, "keep": table.keep}
        if applied is not None:
            found |= applied.figures(name, table.figures)
        if there and (rewritten := file.rewriting()):
            found["rewritten_bytes"] = rewritten
        return found, table.typed.renamed() if there else {}

    of_tables = dict(zip(lake.tables, of_each(lake.path, of_table, lake.tables), strict=True))
    extras = lake.extras.summary(applied)
    summary: dict[str, Any] = {
        "lake": lake.path,
        "tables": {name: found for name, (found, _) in of_tables.items()},
        "unknown_tables": extras.pop("unknown_tables", {}),
        "quarantined": dict(lake.quarantine.counts_by("reason")),
        "pending": lake.pending.count(),
        "tombstones": lake.by_table(lake.tombstones.counts()),
        "deletes": lake.by_table(lake.deletes.counts()),
        "columns": {name: renamed for name, (_, renamed) in of_tables.items() if renamed},
        **extras,
    }
    if applied is not None:
        summary["batches"] = applied.batches
        counters = dict.fromkeys(lake.extras.counters, 0) | applied.counters
        if OPEN in counters:
            counters[OPEN] = lake.pending.open_groups()
        summary["counters"] = dict(sorted(counters.items()))
    return summary


def freshness(lake: Lake, known: Mapping[str, Sequence[int | None]]) -> dict[str, dict[str, int | None]]:
    """Say how fresh the tables of a lake are.

    Args:
        lake: the lake; the statistics of its files are read, and no rows.
        known: what its last run knew (`core.formats.Newest`), of deletes, too.

    Returns:
        Table → `newest_commit_ns` (of its newest change, nanoseconds since 1970), `age_ms` (how long ago
        that was) and `source_delay_ms` (how much later the source sent it); None where that is not known.
    """
    found: dict[str, dict[str, int | None]] = {}
    now_ns = time.time_ns()
    newest_ns = of_each(lake.path, lambda table: table.newest_ns(), lake.tables.values())
    for name, written_ns in zip(lake.tables, newest_ns, strict=True):
        said, delay = known.get(name, (0, None))
        commit = max(written_ns, said or 0)
        found[name] = {
            "newest_commit_ns": commit or None,
            "age_ms": (now_ns - commit) // 1_000_000 if commit else None,
            "source_delay_ms": round(delay / 1e6) if delay is not None and said == commit else None,
        }
    return found


WRITTEN = ("upserts", "deletes", "appended")
"""Figures of changes that altered a table."""
REPEATED = ("duplicates", "conflicting_duplicates")
OLDER = ("stale", "superseded")
OUTCOMES = (*WRITTEN, *REPEATED, *OLDER)
"""Every figure that a table may have; each change has one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """One micro-batch that is done; docs/reference/lake.md says what most of its figures are.

    Its trigger began at `begun_ms`, milliseconds since 1970. `newest` is the newest change of each table
    since the run began, `tolerated_losses` the gaps since; `sizes` None where they were not looked at.
    """

    run_id: str
    batch_id: int
    begun_ms: int
    duration_ms: int
    phases_ms: Mapping[str, int] = field(default_factory=dict)
    records: int = 0
    data_bytes: int = 0
    tables: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)
    lags_ms: Mapping[str, int] = field(default_factory=dict)
    tolerated_losses: int = 0
    newest: Newest = field(default_factory=dict)
    state_rows: int = 0
    state_bytes: int = 0
    sizes: Mapping[str, Size] | None = None

    def total(self, *figures: str) -> int:
        """Sum figures over all tables."""
        return sum(counted.get(figure, 0) for counted in self.tables.values() for figure in figures)

    @property
    def quarantined(self) -> int:
        """Records quarantined in this batch."""
        return sum(self.reasons.values())

    @property
    def ended_ms(self) -> int:
        """When it was done, milliseconds since 1970."""
        return self.begun_ms + self.duration_ms

    @property
    def most_lag_ms(self) -> int | None:
        """Lag of the shard that is furthest behind; None where none is known."""
        return max(self.lags_ms.values(), default=None)

    def figures(self) -> dict[str, int | None]:
        """Figures of the whole batch, as log lines and `_headpond/batches` name them."""
        return {
            "duration_ms": self.duration_ms,
            "records": self.records,
            "data_bytes": self.data_bytes,
            "applied": self.total(*WRITTEN),
            "duplicates": self.total(*REPEATED),
            "stale": self.total(*OLDER),
            "quarantined": self.quarantined,
            "lag_ms": self.most_lag_ms,
        }


def sizes_of(lake: Lake) -> dict[str, Size]:
    """Return table → size, by the logs of the tables alone; no other thread may use the lake meanwhile."""
    files = dict(lake.files())
    return dict(zip(files, of_each(lake.path, DeltaFile.size, files.values()), strict=True))


def counted(figures: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Return figures per table without those that are 0."""
    return {
        table: {figure: number for figure, number in Counter(each).items() if number}
        for table, each in figures.items()
    }


FOLDER = "batches"
FORMAT_VERSION = 1
TRIM_COMMITS = 100

BATCHES_SCHEMA = pa.schema(
    [
        pa.field("run_id", pa.string()),
        pa.field("batch_id", pa.int64()),
        pa.field("begun", pa.timestamp("us", "UTC")),
        pa.field("duration_ms", pa.int64()),
        pa.field("records", pa.int64()),
        pa.field("data_bytes", pa.int64()),
        pa.field("applied", pa.int64()),
        pa.field("duplicates", pa.int64()),
        pa.field("stale", pa.int64()),
        pa.field("quarantined", pa.int64()),
        pa.field("lag_ms", pa.int64()),
        # JSON text: their keys are names of tables, shards and reasons.
        pa.field("tables", pa.string()),
        pa.field("reasons", pa.string()),
        pa.field("lags_ms", pa.string()),
        pa.field("phases_ms", pa.string()),
        pa.field("sizes", pa.string()),
        pa.field("state_rows", pa.int64()),
        pa.field("state_bytes", pa.int64()),
        pa.field("format_version", pa.int32()),
    ]
)
NESTED = ("tables", "reasons", "lags_ms", "phases_ms", "sizes")
"""Columns that hold JSON text."""

_IDENTITY = ("run_id", "batch_id")
# Only the last hour's versions are of use to anybody who reads while this is written.
_PROPERTIES = {
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}


class BatchLog:
    """The log of one lake: the newest `keep` rows, trimmed every `trim_commits` commits; 0 writes none."""

    def __init__(self, file: DeltaFile, keep: int, trim_commits: int = TRIM_COMMITS) -> None:
        self.file, self.keep = file, keep
        self._trim_commits = trim_commits
        self._since_trim = 0

    def add(self, reports: Sequence[BatchReport]) -> None:
        """Add the rows of batches that are done, and remove what is beyond the bound now and then."""
        if not reports or self.keep == 0:
            return
        self.file.create(BATCHES_SCHEMA, description="The last batches.", properties=_PROPERTIES)
        rows = pa.Table.from_pylist([row_of(report) for report in reports], schema=BATCHES_SCHEMA)
        self.file.append(rows)
        self._since_trim += 1
        if self._since_trim >= self._trim_commits or self.file.engine.version % self._trim_commits == 0:
            self._since_trim = 0
            self.trim()

    def trim(self) -> None:
        """Keep the newest rows alone, in one file; files that no version of the last hour needs go."""
        rows = self._rows()
        old = rows.slice(0, max(0, rows.num_rows - self.keep))
        FactTable(self.file, BATCHES_SCHEMA, _IDENTITY).remove(old, _IDENTITY)
        optimize_file(self.file, retain_ms=HOUR_MS)

    def _rows(self) -> pa.Table:
        return self.file.read().sort_by([("begun", "ascending"), ("batch_id", "ascending")])

    def last(self, count: int) -> list[dict[str, Any]]:
        """Read at most `count` of the newest rows, oldest first, with their JSON columns opened."""
        if count <= 0 or not self.file.exists():
            return []
        rows = self._rows()
        found: list[dict[str, Any]] = rows.slice(max(0, rows.num_rows - count)).to_pylist()
        for row in found:
            row["begun"] = row["begun"].isoformat(timespec="milliseconds")
            for name in NESTED:
                row[name] = None if row[name] is None else json.loads(row[name])
        return found


def batches_in(lake: str, storage_options: Mapping[str, str] | None = None, keep: int = 10_000) -> BatchLog:
    """Open the log of the lake at a path or URL; it need not be there."""
    return BatchLog(DeltaFile(f"{lake.rstrip('/')}/{OWN_FOLDER}/{FOLDER}", storage_options), keep)


def row_of(report: BatchReport) -> dict[str, Any]:
    """Write a report as a row of `BATCHES_SCHEMA`."""
    nested: dict[str, Any] = {name: getattr(report, name) for name in NESTED} | {
        "tables": counted(report.tables)
    }
    if report.sizes is not None:
        nested["sizes"] = {name: asdict(size) for name, size in report.sizes.items()}
    return {
        "run_id": report.run_id,
        "batch_id": report.batch_id,
        "begun": report.begun_ms * 1000,
        **report.figures(),
        **{name: None if each is None else json.dumps(each) for name, each in nested.items()},
        "state_rows": report.state_rows,
        "state_bytes": report.state_bytes,
        "format_version": FORMAT_VERSION,
    }
