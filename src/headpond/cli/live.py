"""What a person sees of a run while it lasts: a view on a terminal, else a line per batch.

::

    headpond run orders.toml: batch 7 applied                                       00:01:23
    records/s  ▃▅▇▆▇ 8,123
    batch time ▂▂▃▂▂ 1.2 s
    lag        █▆▃▁▁ 2.0 s
    12,345 records · 12,001 applied · 3 quarantined
    Ctrl-C finishes this batch
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from headpond.cli.commands.status import LIVE, drawn_batches
from headpond.cli.output import many
from headpond.core.tabular import said_ms
from headpond.lake.reports import BatchReport
from headpond.spark.metrics.exporters import Sink

QUIET_S = 60.0
"""Without a terminal, a run with nothing to read says so at most this often."""


class RunView(Sink):
    """A sink of measurements that keeps what is to be seen; `draw` draws it, `say` takes the stages."""

    def __init__(self, file: str, stop: threading.Event, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._stop, self._clock = file, stop, clock
        self._begun, self._spoken = clock(), clock()
        self._stage = "starting"
        self._rows: deque[dict[str, Any]] = deque(maxlen=LIVE)
        self._totals: Counter[str] = Counter()
        self.line: Callable[[str], None] | None = None
        """Takes a line per batch; None where there is a terminal to draw on."""

    def say(self, words: str) -> None:
        """Note the stage."""
        self._stage = words

    def batch(self, report: BatchReport) -> None:
        """Note a batch."""
        figures = report.figures()
        self._rows.append(figures | {"batch_id": report.batch_id})
        self._totals.update({name: figures[name] or 0 for name in ("records", "applied", "quarantined")})
        if self.line is not None:
            lag = "" if report.most_lag_ms is None else f", lag {said_ms(report.most_lag_ms)}"
            self.line(
                f"batch {report.batch_id}: {many(report.records, 'record')} "
                f"in {said_ms(report.duration_ms)}, "
                f"{figures['applied']:,} applied, {report.quarantined:,} quarantined{lag}"
            )
            self._spoken = self._clock()

    def idle(self) -> None:
        """Say now and then that there is nothing to read."""
        if self.line is not None and self._clock() - self._spoken >= QUIET_S:
            self.line("nothing to read")
            self._spoken = self._clock()

    def draw(self) -> RenderableType:
        """Draw the current state."""
        clock = time.strftime("%H:%M:%S", time.gmtime(self._clock() - self._begun))
        totals = self._totals
        counts = f"{totals['records']:,} records · {totals['applied']:,} applied"
        quarantined = (f" · {totals['quarantined']:,} quarantined", "yellow" if totals["quarantined"] else "")
        ending = "finishing this batch …" if self._stop.is_set() else "Ctrl-C finishes this batch"
        return Group(
            Text(f"headpond run {self._file}: {self._stage}  {clock}", overflow="ellipsis", no_wrap=True),
            *(drawn_batches(list(self._rows), 0) if self._rows else []),
            Text.assemble(counts, quarantined),
            Text(ending, style="dim"),
        )
