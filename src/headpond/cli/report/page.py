"""The verification report as one HTML page that a browser needs nothing else for.

Every value comes from records that somebody may have tampered with: jinja2 escapes all of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import jinja2

from headpond.cli.report.journal_plots import BARS_HEIGHT, STRIP_HEIGHT, WIDTH, bars, strip
from headpond.cli.report.words import WORDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headpond.changes.journal_summary import Summary

MAX_LISTED = 1_000
"""Anomalies of one kind that the page lists; the rest are counted, and in the JSON."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a verification found."""

    sources: Sequence[str]
    """What was read, as named by the user."""
    counts: Mapping[str, int]
    anomalies: Sequence[Mapping[str, Any]]
    """As `verify --json` prints them: `kind` and the identity of what it is about."""
    pending: Mapping[str, int]
    summary: Summary
    made_at: str
    """When, for people."""
    version: str
    """headpond's."""
    digest: Mapping[str, Any] | None = None
    """As `verify --json` prints it; None where none was given."""
    malformed: Mapping[str, int] = field(default_factory=dict)
    """Verdict → datums that are no QLDB records."""

    @property
    def verdict(self) -> str:
        """`verified`, `problems`, or `nothing` where no block and no revision was read."""
        wrong_digest = self.digest is not None and self.digest["verdict"] == "mismatch"
        if self.anomalies or self.malformed or wrong_digest:
            return "problems"
        return "verified" if self.summary.strands or self.summary.tables else "nothing"


def render(report: VerifyReport) -> str:
    """Give the page.

    Args:
        report: what was found.

    Returns:
        HTML, to be written in UTF-8.
    """
    kinds = Counter(anomaly["kind"] for anomaly in report.anomalies)
    several = len(report.summary.strands) > 1
    span, drawn = bars(report.summary.days)
    groups = [
        {
            "kind": kind,
            "words": WORDS[kind],
            "count": kinds[kind],
            "listed": [one for one in report.anomalies if one["kind"] == kind][:MAX_LISTED],
        }
        for kind in WORDS
        if kinds[kind]
    ]
    strips = [
        {
            "strand": strand,
            "marks": strip(
                strand,
                [
                    dict(one)
                    for one in report.anomalies
                    if not several or one.get("strandId", strand.strand_id) == strand.strand_id
                ],
            ),
        }
        for strand in report.summary.strands
    ]
    return _template().render(
        report=report,
        groups=groups,
        strips=strips,
        span=span,
        bars=drawn,
        most=max((count for _, count in report.summary.days), default=0),
        width=WIDTH,
        strip_height=STRIP_HEIGHT,
        bars_height=BARS_HEIGHT,
        blocks=sum(strand.blocks for strand in report.summary.strands),
        revisions=sum(sum(table.revisions.values()) for table in report.summary.tables),
        documents=sum(table.documents for table in report.summary.tables),
        style=style(),
    )


@cache
def style() -> str:
    """Give the style sheet that the pages share; it is ours, and the templates do not escape it."""
    return resources.files("headpond.cli.report").joinpath("page.css").read_text(encoding="utf-8")


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["figure"] = lambda number: f"{number:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")
    text = resources.files("headpond.cli.report").joinpath("verify.html.j2").read_text(encoding="utf-8")
    return environment.from_string(text)
