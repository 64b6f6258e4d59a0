"""What is known of one micro-batch once it is done: the row of the batch log, and what metrics are made of.

::

    Applied (foreachBatch)  ─┐
    Spark's progress event  ─┼─► BatchReport ─► batch log, metrics, log lines
    sizes of the tables     ─┘
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headpond.tables.optimize import files_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headpond.tables.lake import Lake
    from headpond.tables.ledger import LedgerLake

WRITTEN = ("upserts", "deletes", "appended")
"""Figures of changes that altered a table."""
REPEATED = ("duplicates", "conflicting_duplicates")
OLDER = ("stale", "superseded")
OUTCOMES = (*WRITTEN, *REPEATED, *OLDER)
"""Every figure that a table may have; each change has one of them."""


@dataclass(frozen=True, slots=True)
class Size:
    """A Delta table's newest version.

    Attributes:
        rows: as the files' statistics tell.
        bytes: of the data files.
        files: how many data files there are.
    """

    rows: int
    bytes: int
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """One micro-batch that is done.

    Attributes:
        run_id: of the Spark query's start; a restart has another one.
        batch_id: Spark's number.
        begun_ms: start of its trigger, milliseconds since 1970.
        duration_ms: of the whole trigger, planning and commit included.
        phases_ms: the parts of it that Spark tells (`addBatch`, `latestOffset`, …), milliseconds.
        records: user records read.
        data_bytes: bytes of their data.
        tables: table → figure → changes.
        reasons: quarantined records by reason.
        lags_ms: shard → how far planning was behind the shard's tip, as the service tells, milliseconds.
        tolerated_losses: gaps gone on over since the start (`fail_on_data_loss = false`).
        state_rows: rows that Spark's own state stores hold.
        state_bytes: memory that those take.
        sizes: the lake's tables, those in `_headpond` too; null where they were not looked at.
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
    state_rows: int = 0
    state_bytes: int = 0
    sizes: Mapping[str, Size] | None = None

    def total(self, *figures: str) -> int:
        """Sum figures over all tables."""
        return sum(counted.get(figure, 0) for counted in self.tables.values() for figure in figures)

    @property
    def quarantined(self) -> int:
        """Records refused in this batch."""
        return sum(self.reasons.values())

    @property
    def ended_ms(self) -> int:
        """When it was done, milliseconds since 1970."""
        return self.begun_ms + self.duration_ms

    @property
    def most_lag_ms(self) -> int | None:
        """Lag of the shard that is furthest behind; null where none is known."""
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


def sizes_of(lake: Lake | LedgerLake) -> dict[str, Size]:
    """Look at the sizes of every table of a lake, by its log alone.

    Args:
        lake: a lake that no other thread uses.

    Returns:
        Table (`_headpond/…` for those of the pipeline itself) → size.
    """
    found = {}
    for name, file in files_of(lake):
        actions: Any = pa.table(file.open().get_add_actions(flatten=True))
        rows = pc.sum(actions["num_records"]).as_py() if "num_records" in actions.schema.names else None
        found[name] = Size(rows or 0, pc.sum(actions["size_bytes"]).as_py() or 0, actions.num_rows)
    return found


def counted(figures: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Give figures per table without those that are 0."""
    return {
        table: {figure: number for figure, number in Counter(each).items() if number}
        for table, each in figures.items()
    }
