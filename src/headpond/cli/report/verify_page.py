"""The verification report as one HTML page that a browser needs nothing else for.

Every value comes from records that somebody may have tampered with: jinja2 escapes all of them.
Its two pictures are shapes in units of a fixed canvas:

::

    strip   │████████████░░████████████▌███████│   a strand from its first block to its last
                         missing       anomaly
    bars    │  ▂ ▅ █ ▃ ▁   ▂ │                      transactions over time
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from headpond.cli.report.page import WIDTH, template

if TYPE_CHECKING:
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
        "The data or metadata of this revision was changed after QLDB wrote it, or the record was "
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
        "One version of a document occurs with different contents",
        "Two records claim the same document and version and have different hashes; at most one is true.",
        "Check which of them the block lists: the other is also reported as revision_not_in_block.",
    ),
    "conflicting_block": Words(
        "One block occurs with different hashes",
        "Two records claim the same place in the journal; at most one is true.",
        "The chain decides: the next block names the hash of the true one.",
    ),
    "transaction_info_not_in_entries": Words(
        "The transaction's statements are not what the block hashed",
        "transactionInfo (statements, times, tables of documents) was altered, or the list of hashes was.",
        f"{_ANOTHER_COPY} The statements and table names of this block are unproven.",
    ),
    "redaction_info_not_in_entries": Words(
        "The redaction request is not what the block hashed",
        "redactionInfo was altered, or the list of hashes was.",
        f"{_ANOTHER_COPY} Do not redact by this block.",
    ),
    "revisions_not_in_entries": Words(
        "The list of revisions is not what the block hashed",
        "A hash in revisionSummaries was altered, added or left out, or their order was changed.",
        f"{_ANOTHER_COPY} Which revisions belong to this block is unproven.",
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


def verdict_of(document: Mapping[str, Any]) -> Literal["verified", "problems", "nothing"]:
    """Say what `verify --json` amounts to; `nothing` where no block and no revision was read."""
    digest = document["digest"]
    if document["anomalies"] or document["malformed"] or (digest and digest["verdict"] == "mismatch"):
        return "problems"
    counts = document["counts"]
    return "verified" if counts["distinct_blocks"] or counts["distinct_revisions"] else "nothing"


def placed(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the anomalies of `verify --json`, each with its place."""
    return [place | one for place, one in zip(document["places"], document["anomalies"], strict=True)]


def render(document: Mapping[str, Any], summary: Summary, *, made_at: str, version: str) -> str:
    """Return the page as HTML: of what `verify --json` prints and the journal's figures.

    `made_at` says when, for people; `version` is headpond's.
    """
    anomalies = placed(document)
    kinds = Counter(anomaly["kind"] for anomaly in anomalies)
    span, drawn = bars(summary.days)
    listed = {kind: [one for one in anomalies if one["kind"] == kind][:MAX_LISTED] for kind in WORDS}
    groups = [
        {"kind": kind, "words": WORDS[kind], "count": kinds[kind], "listed": found}
        for kind, found in listed.items()
        if found
    ]
    strips = []
    for strand in summary.strands:
        # Of a single strand an anomaly does not say which it is.
        own = [one for one in anomalies if one.get("strandId", strand.strand_id) == strand.strand_id]
        strips.append({"strand": strand, "marks": strip(strand, own)})
    return template("verify.html.j2").render(
        report={**document, "anomalies": anomalies, "verdict": verdict_of(document)},
        summary=summary,
        made_at=made_at,
        version=version,
        groups=groups,
        strips=strips,
        span=span,
        bars=drawn,
        most=max((bar.transactions for bar in drawn), default=0),
        width=WIDTH,
        strip_height=STRIP_HEIGHT,
        bars_height=BARS_HEIGHT,
        blocks=sum(strand.blocks for strand in summary.strands),
        revisions=sum(sum(table.revisions.values()) for table in summary.tables),
        documents=sum(table.documents for table in summary.tables),
    )


STRIP_HEIGHT, BARS_HEIGHT = 40.0, 120.0
MIN_WIDTH = 3.0
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


def strip(strand: Strand, anomalies: Iterable[Mapping[str, Any]]) -> list[Mark]:
    """Place a strand's anomalies between its first block and its last; those without a block are left out."""
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
        table = f" ({anomaly['table']})" if "table" in anomaly else ""
        title = f"{place}{table}: "
        # Marks that would cover each other to the pixel are one.
        before = marks.get((round(x), kind))
        if before is None:
            marks[round(x), kind] = Mark(x, min(width, WIDTH - x), kind, f"{title}{anomaly['kind']}")
        elif before.title.startswith(title) and anomaly["kind"] not in before.title:
            marks[round(x), kind] = before._replace(title=f"{before.title}, {anomaly['kind']}")
    return sorted(marks.values(), key=lambda mark: mark.kind == "anomaly")[:MAX_MARKS]


def _extent(anomaly: Mapping[str, Any]) -> tuple[int | None, int | None]:
    if "first" in anomaly:
        return anomaly["first"], anomaly["last"]
    number = anomaly.get("sequenceNo")
    return number, number


def bars(days: Sequence[tuple[dt.date, int]]) -> tuple[str, list[Bar]]:
    """Draw the transactions of days that have any, in order; a single bar would say nothing.

    Returns what a bar stands for, a day or some of them, and the bars; spans without transactions are gaps.
    """
    if not days:
        return "day", []
    first, last = (day.toordinal() for day in (days[0][0], days[-1][0]))
    each = -(-(last - first + 1) // MAX_BARS)
    totals: Counter[int] = Counter()
    for day, count in days:
        totals[(day.toordinal() - first) // each] += count
    unit = WIDTH / ((last - first) // each + 1)
    most = max(totals.values())
    drawn = [
        Bar(at * unit + unit * 0.1, unit * 0.8, max(count / most * BARS_HEIGHT, 2.0),
            str(dt.date.fromordinal(first + at * each)), count)
        for at, count in totals.items()
    ]  # fmt: skip
    return "day" if each == 1 else f"{each} days", drawn if len(drawn) > 1 else []


class Bar(NamedTuple):
    """A drawn bar: the transactions of some days from `day` on."""

    x: float
    width: float
    height: float
    day: str
    transactions: int
