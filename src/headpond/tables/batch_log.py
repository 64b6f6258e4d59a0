"""The log of a pipeline's last batches: a row each, in a Delta table that stays small by itself.

::

    _headpond/batches     one row per batch that is done, newest `keep` of them
                          every TRIM_COMMITS commits: rows beyond `keep` go, the rest becomes one file, and
                          versions older than an hour are removed

It tells what happened, and nothing depends on it: what is applied is known by the tables and the checkpoint.
A run that is killed may miss the row of its last batch.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import WriterProperties, write_deltalake

from headpond.tables.delta import DeltaFile
from headpond.tables.lake import OWN_FOLDER
from headpond.tables.measured import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalake import DeltaTable

    from headpond.tables.measured import BatchReport

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

_WRITER = WriterProperties(compression="SNAPPY")
# Only the last hour's versions are of use to anybody who reads while this is written.
_PROPERTIES = {
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}


class BatchLog:
    """The log of one lake.

    Args:
        file: the table's place; created by the first row.
        keep: how many of the newest rows are kept; 0 writes none.
        trim_commits: after how many commits older rows and files are removed.
    """

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
        self.file.append(rows, writer=_WRITER)
        self._since_trim += 1
        if self._since_trim >= self._trim_commits or self.file.version() % self._trim_commits == 0:
            self._since_trim = 0
            self.trim()

    def trim(self) -> None:
        """Keep the newest rows alone, in one file; files that no version of the last hour needs go."""

        def attempt(table: DeltaTable) -> None:
            rows = self.file.read().sort_by([("begun", "ascending"), ("batch_id", "ascending")])
            kept = rows.slice(max(0, rows.num_rows - self.keep)).cast(BATCHES_SCHEMA)
            write_deltalake(table, kept, mode="overwrite", writer_properties=_WRITER)
            table.update_incremental()
            table.create_checkpoint()
            table.cleanup_metadata()
            table.vacuum(dry_run=False)

        self.file.committing(attempt)

    def last(self, count: int) -> list[dict[str, Any]]:
        """Read the newest rows, oldest first, with their JSON columns opened.

        Args:
            count: how many at most.
        """
        if count <= 0 or not self.file.exists():
            return []
        rows = self.file.read().sort_by([("begun", "ascending"), ("batch_id", "ascending")])
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
    sizes = report.sizes
    return {
        "run_id": report.run_id,
        "batch_id": report.batch_id,
        "begun": report.begun_ms * 1000,
        **report.figures(),
        "tables": json.dumps(counted(report.tables)),
        "reasons": json.dumps(dict(report.reasons)),
        "lags_ms": json.dumps(dict(report.lags_ms)),
        "phases_ms": json.dumps(dict(report.phases_ms)),
        "sizes": None if sizes is None else json.dumps({name: asdict(size) for name, size in sizes.items()}),
        "state_rows": report.state_rows,
        "state_bytes": report.state_bytes,
        "format_version": FORMAT_VERSION,
    }
