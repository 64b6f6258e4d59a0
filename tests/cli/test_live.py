"""What a person sees of a run: a view on a terminal, a line per batch where there is none."""

from __future__ import annotations

import io
import threading
from typing import Any

from rich.console import Console

from headpond.cli.live import QUIET_S, RunView
from headpond.lake.reports import BatchReport


def report(batch_id: int, **facts: Any) -> BatchReport:
    known = {"run_id": "r", "begun_ms": 0, "duration_ms": 2_000, "records": 1_000}
    return BatchReport(batch_id=batch_id, **known | facts)


def drawn(view: RunView) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(view.draw())
    return console.export_text()


def test_the_view_has_rates_lag_quarantine_and_how_to_stop() -> None:
    """As `status --watch` has; all of it fits 80 columns."""
    stop, now = threading.Event(), [0.0]
    view = RunView("orders.toml", stop, lambda: now[0])
    view.say("starting Spark")
    now[0] = 83.0
    assert "headpond run orders.toml: starting Spark  00:01:23" in drawn(view)
    view.batch(report(0, tables={"t": {"upserts": 990}}, reasons={"bad_op": 3}, lags_ms={"s": 2_000}))
    view.batch(report(1, tables={"t": {"upserts": 11}}, lags_ms={"s": 0, "u": 500}))
    said = drawn(view)
    assert "2,000 records · 1,001 applied · 3 quarantined" in said
    assert "records/s" in said
    assert "500 ms" in said
    assert "Ctrl-C finishes this batch" in said
    assert max(map(len, said.splitlines())) <= 80
    stop.set()
    assert "finishing this batch" in drawn(view)


def test_without_a_terminal_there_is_a_line_per_batch() -> None:
    """And one a minute, at most, when there is nothing to read."""
    now, lines = [0.0], []
    view = RunView("orders.toml", threading.Event(), lambda: now[0])
    view.line = lines.append
    view.batch(
        report(7, tables={"t": {"upserts": 990, "deletes": 5}}, reasons={"x": 3}, lags_ms={"s": 90_000})
    )
    view.batch(report(8, records=1))
    for _ in range(25):
        now[0] += QUIET_S / 10
        view.idle()
    assert lines == [
        "batch 7: 1,000 records in 2.0 s, 995 applied, 3 quarantined, lag 2 min",
        "batch 8: 1 record in 2.0 s, 0 applied, 0 quarantined",
        "nothing to read",
        "nothing to read",
    ]
