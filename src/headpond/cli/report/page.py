"""The verification report as one HTML page that a browser needs nothing else for.

Every value comes from records that somebody may have tampered with: jinja2 escapes all of them.
Its two pictures are shapes in units of a fixed canvas:

::

    strip   │████████████░░████████████▌███████│   a strand from its first block to its last
                         missing       anomaly
    bars    │  ▂ ▅ █ ▃ ▁   ▂ │                      transactions per day, week or month
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

import jinja2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from headpond.qldb.journal.known import Strand, Summary


class Words(NamedTuple):
    """An anomaly in words."""

    title: str
    meaning: str
    next_step: str


_ANOTHER_COPY = (
    "Look for another copy of the record: a second stream, the archive as delivered, a journal export."
)

WORDS = {
    "revision_hash_mismatch": Words(
        "A revision's contents do not match its hash",
        "The data or the metadata of this revision were changed after QLDB wrote them, or the record was "
        "damaged on its way.",
        f"{_ANOTHER_COPY} Do not rely on this revision's values until one verifies.",
    ),
    "revision_not_in_block": Words(
        "A revision is not what its block lists",
        "The block that this revision names lists no revision of the document with this hash, or says "
        "otherwise about its table or transaction.",
        f"{_ANOTHER_COPY} The block decides: what it lists is what was committed.",
    ),
    "revision_missing": Words(
        "A revision that a block lists is absent",
        "The block proves that a revision of this document was committed; no record of it was read.",
        "Read the archive's neighbouring files too, or the journal export that holds this block.",
    ),
    "conflicting_revision": Words(
        "One version of a document is there with different contents",
        "Two records claim the same document and version and have different hashes; at most one is true.",
        "See which of them the block lists: the other is also reported as revision_not_in_block.",
    ),
    "conflicting_block": Words(
        "One block is there with different hashes",
        "Two records claim the same place in the journal; at most one is true.",
        "The chain tells: the block after it names the hash of the true one.",
    ),
    "transaction_info_not_in_entries": Words(
        "The transaction's statements are not what the block hashed",
        "transactionInfo (statements, times, tables of documents) was altered, or the list of hashes was.",
        f"{_ANOTHER_COPY} Statements and table names of this block are not proved.",
    ),
    "redaction_info_not_in_entries": Words(
        "The redaction request is not what the block hashed",
        "redactionInfo was altered, or the list of hashes was.",
        f"{_ANOTHER_COPY} Do not redact by this block.",
    ),
    "revisions_not_in_entries": Words(
        "The list of revisions is not what the block hashed",
        "A hash in revisionSummaries was altered, added or left out, or their order was changed.",
        f"{_ANOTHER_COPY} Which revisions belong to this block is not proved.",
    ),
    "entries_hash_mismatch": Words(
        "The block's entries do not add up to its entriesHash",
        "entriesHashList or entriesHash was altered.",
        _ANOTHER_COPY,
    ),
    "block_hash_mismatch": Words(
        "The block's parts do not add up to its blockHash",
        "entriesHash, previousBlockHash or blockHash was altered.",
        _ANOTHER_COPY,
    ),
    "chain_break": Words(
        "A block does not name the hash of the block before it",
        "This block or the one before it was altered or replaced.",
        "If the block before has an anomaly too, that is the likelier one; else compare other copies.",
    ),
    "missing_blocks": Words(
        "Blocks are absent",
        "Blocks before and after these were read, so these were written too. What they changed is not known.",
        "Read the archive's neighbouring files too, or the journal exports of this range.",
    ),
}
"""Kind → words; every kind of `qldb.journal.check` has them."""


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
    """As `verify --json` prints it; `None` without one."""
    malformed: Mapping[str, int] = field(default_factory=dict)
    """Verdict → datums that are not QLDB records."""

    @property
    def verdict(self) -> str:
        """`verified`, `problems`, or `nothing` where no block and no revision was read."""
        wrong_digest = self.digest is not None and self.digest["verdict"] == "mismatch"
        if self.anomalies or self.malformed or wrong_digest:
            return "problems"
        return "verified" if self.summary.strands or self.summary.tables else "nothing"


def render(report: VerifyReport) -> str:
    """Return the page as HTML."""
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


WIDTH, STRIP_HEIGHT, BARS_HEIGHT = 1000.0, 40.0, 120.0
MIN_WIDTH = 3.0
TWO_DIGITS, DECEMBER = 10, 12
"""A block among a million must be seen."""
MAX_MARKS = 500
MAX_BARS = 62


class Mark(NamedTuple):
    """A rectangle of the strip."""

    x: float
    width: float
    kind: str
    """`missing` or `anomaly`."""
    title: str


def strip(strand: Strand, anomalies: Iterable[dict[str, Any]]) -> list[Mark]:
    """Place what is wrong with a strand between its first block and its last.

    Args:
        strand: the strand.
        anomalies: those of the strand, as `verify --json` prints them; the ones without a block are left out.
    """
    unit = WIDTH / (strand.last - strand.first + 1)
    marks: dict[tuple[int, str], Mark] = {}
    for anomaly in anomalies:
        first, last = _extent(anomaly)
        if first is None or last is None:
            continue
        x = min(max((first - strand.first) * unit, 0.0), WIDTH - MIN_WIDTH)
        width = max((last - first + 1) * unit, MIN_WIDTH)
        kind = "missing" if anomaly["kind"] == "missing_blocks" else "anomaly"
        place = f"block {first}" if first == last else f"blocks {first} to {last}"
        # Marks that would cover each other to the pixel are one.
        marks.setdefault(
            (round(x), kind), Mark(x, min(width, WIDTH - x), kind, f"{place}: {anomaly['kind']}")
        )
    return sorted(marks.values(), key=lambda mark: mark.kind == "anomaly")[:MAX_MARKS]


def _extent(anomaly: dict[str, Any]) -> tuple[int | None, int | None]:
    if "first" in anomaly:
        return anomaly["first"], anomaly["last"]
    number = anomaly.get("sequenceNo")
    return number, number


def bars(days: Sequence[tuple[dt.date, int]]) -> tuple[str, list[Bar]]:
    """Draw transactions over time.

    Args:
        days: days that have any, in order.

    Returns:
        What a bar stands for (day, week, month or year), and the bars; spans without transactions are gaps.
    """
    if not days:
        return "day", []
    for name, begin, next_one in _SPANS:
        first = begin(days[0][0])
        spans = _spans(first, days[-1][0], next_one)
        if len(spans) <= MAX_BARS or name == _SPANS[-1][0]:
            break
    totals = dict.fromkeys(spans, 0)
    for day, count in days:
        totals[begin(day)] = totals.get(begin(day), 0) + count
    return name, list(columns(totals, max(totals.values()), BARS_HEIGHT))


def _spans(first: dt.date, last: dt.date, next_one: Any) -> list[dt.date]:
    spans = [first]
    while len(spans) <= MAX_BARS * 4 and (following := next_one(spans[-1])) is not None and following <= last:
        spans.append(following)
    return spans


def _next_day(day: dt.date) -> dt.date | None:
    return day + dt.timedelta(days=1) if day < dt.date.max else None


def _monday(day: dt.date) -> dt.date:
    return day - dt.timedelta(days=min(day.weekday(), day.toordinal() - 1))


def _next_week(day: dt.date) -> dt.date | None:
    ordinal = day.toordinal() + 7
    return dt.date.fromordinal(ordinal) if ordinal <= dt.date.max.toordinal() else None


def _next_month(day: dt.date) -> dt.date | None:
    if day.month < DECEMBER:
        return day.replace(month=day.month + 1)
    return _next_year(day.replace(month=1))


def _next_year(day: dt.date) -> dt.date | None:
    return day.replace(year=day.year + 1) if day.year < dt.MAXYEAR else None


_SPANS: list[tuple[str, Any, Any]] = [
    ("day", lambda day: day, _next_day),
    ("week", _monday, _next_week),
    ("month", lambda day: day.replace(day=1), _next_month),
    ("year", lambda day: day.replace(month=1, day=1), _next_year),
]


@cache
def _template() -> jinja2.Template:
    return template("verify.html.j2")


@cache
def style() -> str:
    """Return the style sheet that the pages share; it is ours, and the templates do not escape it."""
    return resources.files("headpond.cli.report").joinpath("page.css").read_text(encoding="utf-8")


def template(name: str, **filters: Callable[..., str]) -> jinja2.Template:
    """Read a page's template; the filter `figure` is there for every page."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"figure": figure, **filters}
    text = resources.files("headpond.cli.report").joinpath(name).read_text(encoding="utf-8")
    return environment.from_string(text)


def figure(number: float) -> str:
    """Return a number with commas between thousands; decimals only below 10."""
    return f"{number:,.0f}" if number >= TWO_DIGITS or number == int(number) else f"{number:.2g}"


class Bar(NamedTuple):
    """A drawn bar, and which of the values it stands for."""

    x: float
    y: float
    width: float
    height: float
    name: Any
    value: float


def columns(values: Mapping[Any, float], top: float, height: float) -> Iterator[Bar]:
    """Draw values as bars side by side, `height` for the value `top`; zeros are gaps."""
    unit = WIDTH / len(values)
    for at, (name, value) in enumerate(values.items()):
        if value:
            high = max(value / top * height, 2.0)
            yield Bar(at * unit + unit * 0.1, height - high, unit * 0.8, high, name, value)
