"""A small lake with batches in its log, and a mark as a run leaves it, for tests of what looks at them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from headpond.lake.apply import apply_batch
from headpond.lake.reports import batches_in
from headpond.lake.state.run_mark import RunMark
from tests.lake.lakes import decoded, lake_in
from tests.lake.test_batch_log import REPORT, report
from tests.lake.test_unknown_tables import change

if TYPE_CHECKING:
    from pathlib import Path


ENTRY = '[tables."public.t"]\nkeys = ["id"]\n'


def lake_with_batches(folder: Path) -> Path:
    """A lake with a row, a refused record and two batches in its log; gives the pipeline file."""
    made, config = lake_in(folder, ENTRY)
    apply_batch(made, decoded(config, [change(1, "t", {"id": 1}), change(2, "unknown", {"id": 1})]))
    batches_in(str(folder / "lake")).add([REPORT, report(8, begun_ms=REPORT.ended_ms + 500, records=20)])
    file = folder / "orders.toml"
    file.write_text(f'[source]\narchive = "*.jsonl"\nformat = "dsql"\n[target]\npath = "lake"\n{ENTRY}')
    return file


def mark(file: Path, **facts: Any) -> None:
    """Leave a mark as a run does; `ago_ms` is how long ago it was."""
    ago_ms = facts.pop("ago_ms", 0)
    now = time.time_ns() // 1_000_000 - ago_ms
    said = {"state": "running", "host": "h", "pid": 1, "error": None, "progress_ms": now} | facts
    RunMark(str(file.parent / "lake" / "_headpond"), now_ms=lambda: now).write(**said)
