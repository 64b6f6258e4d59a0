"""Run a pipeline from Python and return what it did."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from headpond.api.looking import Report
from headpond.api.reading import Place, pipeline_of
from headpond.core.tabular import Tabular
from headpond.pipeline.load import check_until
from headpond.spark.following.run import Run
from headpond.spark.following.stopping import stopped_by_signals

FIGURES = ("rows", "written", "deletes", "duplicates", "stale", "superseded")


class Summary(Report):
    """What a run did and what the lake has now: the document of `headpond run --json`, shown as tables."""

    @property
    def tables(self) -> dict[str, dict[str, Any]]:
        """Table → `rows`, and the figures of the run: `upserts`, `deletes`, `duplicates`, `stale`, …."""
        return dict(self["tables"])

    @property
    def quarantined(self) -> dict[str, int]:
        """Reason → records in quarantine."""
        return dict(self["quarantined"])

    def _shown(self) -> Iterable[Tabular]:
        rows = []
        for name, facts in self.tables.items():
            figures = facts | {"written": facts.get("upserts", facts.get("appended"))}
            rows.append([name, *(figures.get(figure) for figure in FIGURES)])
        records = self["counters"].get("records", 0)
        yield Tabular(f"{records:,} records in {self['seconds']:.1f} s", ["table", *FIGURES], rows)
        yield self._quarantine()


def run(
    pipeline: Place,
    *,
    until_caught_up: bool = True,
    until: str | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Summary:
    """Keep the tables of a pipeline up to date with its source.

    Starts Spark, or uses this process's session if there is one and leaves it running. Ctrl-C (in a
    notebook: interrupt the kernel) stops after the batch in flight; the next run resumes there.

    Args:
        pipeline: a `headpond.Pipeline`, or the path of a pipeline file.
        until_caught_up: end once everything present at the start is applied, instead of following the stream.
        until: end once everything that arrived before this time (ISO 8601, with an offset) is applied.
        on_progress: called with each stage and each batch, in a few words.

    Raises:
        ConfigurationError: the pipeline file is wrong, or a table of the lake does not match it.
        UsageError: `until` is not for an archive.
        MissingRequirement: Java, the stream or access to it is missing.
        HeadpondError: whatever else ended the run, in a sentence.

    Examples:
        >>> headpond.run("pipeline.toml")
        4 records in ... s
        table          rows  written  deletes  duplicates  stale  superseded
        public.orders     1        1        0           1      0           1
        1 record in quarantine
        reason        records
        unknown_type        1
    """
    begun = time.monotonic()
    given = pipeline_of(pipeline)
    check_until(given, until, until_caught_up=False)
    job = Run(
        given,
        until_caught_up=until_caught_up and until is None,
        until=until,
        say=on_progress or (lambda _words: None),
    )
    with stopped_by_signals(job.stop) as claim:
        job.spark_is_up = claim
        lake = job.go()
    return Summary(job.summary(lake, time.monotonic() - begun))
