"""The page of a verification: what it says, that records cannot write into it, and how a browser shows it."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from headpond.cli.report.page import WIDTH
from headpond.cli.report.verify_page import MAX_BARS, MAX_LISTED, WORDS, bars, render, strip
from headpond.qldb.journal.known import Strand, Summary, TableFigures
from tests.cli.browser import (
    HOSTILE,
    assert_light_and_dark_differ,
    browse,
    in_a_browser,
    measured,
    on_every_screen,
    pages_printed,
)
from tests.qldb.anomaly_kinds import KINDS

if TYPE_CHECKING:
    from pathlib import Path

STRAND = Strand("p8ve4vVNfK6gSG6cksiAP4", 4846, 5045, ((4846, 4941), (4943, 5045)))
SUMMARY = Summary(
    (STRAND,),
    ((dt.date(2024, 5, 1), 120), (dt.date(2024, 5, 9), 79)),
    (TableFigures("Über-Konten", "metUW5KQPL6mlKDuY3kDlb", 173, {"insert": 173, "update": 219}),),
)
CLEAN: dict[str, Any] = {
    "inputs": [{"file": "archive/1.jsonl.gz", "bytes": 12_345, "sha256": "ab" * 32}],
    "command": "headpond verify archive --html report.html",
    "counts": {
        "records": 594,
        "distinct_blocks": 199,
        "distinct_revisions": 392,
        "duplicate_blocks": 0,
        "duplicate_revisions": 2,
    },
    "anomalies": [],
    "malformed": {},
    "digest": None,
    "pending": {"revisions_without_block": 0},
}


def page_of(summary: Summary = SUMMARY, **changes: Any) -> str:
    """The page of a document; where nothing else is said, anomalies have their place in themselves."""
    document = CLEAN | changes
    document |= {"places": [{} for _ in document["anomalies"]]}
    return render(document, summary, made_at="22 November 2026, 00:50 UTC", version="0.1.0")


EVERY = [
    {"kind": "missing_blocks", "first": 4942, "last": 4942}
    if kind == "missing_blocks"
    else {
        "kind": kind,
        "documentId": "NILmDXi3WRI6aiZxRcydzL",
        "version": 2,
        "sequenceNo": 4846 + at,
        "table": "Über-Konten",
    }
    for at, kind in enumerate(KINDS)
]


def test_every_kind_has_its_words() -> None:
    """What it means and what to do, for each."""
    assert set(WORDS) == set(KINDS)
    page = page_of(anomalies=EVERY)
    for kind, words in WORDS.items():
        assert f'id="{kind}"' in page
        assert words.title.replace("'", "&#39;") in page


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "The journal verifies"),
        ({"anomalies": EVERY[:1]}, "1 anomaly of 1 kind."),
        ({"malformed": {"truncated": 2}}, "2 datums are not QLDB records."),
        (
            {"digest": {"verdict": "mismatch", "sequenceNo": 7, "expected": "a", "found": "b"}},
            "does not match",
        ),
        (
            {"digest": {"verdict": "pending", "sequenceNo": 7, "expected": "a", "found": None}},
            "not among what was",
        ),
        (
            {"digest": {"verdict": "ok", "sequenceNo": 7, "expected": "a", "found": "a"}},
            "leads to the saved digest",
        ),
        ({"pending": {"revisions_without_block": 3}}, "revisions without block"),
        (
            {"summary": Summary((), (), ()), "counts": dict.fromkeys(CLEAN["counts"], 0)},
            "Nothing to verify",
        ),
    ],
)
def test_the_page_says_what_was_found(changes: dict[str, Any], says: str) -> None:
    """One sentence for each state there is."""
    assert says in page_of(**changes)


def test_records_cannot_write_into_the_page() -> None:
    """Names of tables, documents, strands and files are text, whatever they hold."""
    page = page_of(
        inputs=[{"file": HOSTILE, "bytes": 1, "sha256": "ab"}],
        command=HOSTILE,
        anomalies=[
            {
                "kind": "chain_break",
                "sequenceNo": 1,
                "strandId": HOSTILE,
                "documentId": HOSTILE,
                "detail": HOSTILE,
                "table": HOSTILE,
            }
        ],
        summary=Summary(
            (replace(STRAND, strand_id=HOSTILE),), (), (TableFigures(HOSTILE, HOSTILE, 1, {"insert": 1}),)
        ),
    )
    assert "<script" not in page
    assert "<img" not in page
    assert page.count("&lt;script&gt;") >= 5


def test_nothing_is_loaded_from_elsewhere() -> None:
    """No address, no script, no import, and a policy that forbids them."""
    page = page_of(anomalies=EVERY)
    assert not re.search(r"(src|href)=|url\(|@import|https?:|<script", page)
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page


def test_a_long_list_is_cut_and_says_so() -> None:
    """The page stays readable; the count is whole."""
    many = [{"kind": "chain_break", "sequenceNo": number} for number in range(MAX_LISTED + 5)]
    page = page_of(anomalies=many)
    assert "5 more" in page
    assert page.count("<tr><td>") < MAX_LISTED + 20


def test_marks_lie_within_the_strip_and_are_seen() -> None:
    """Also a block among 10 million, the last one, and one that lies outside."""
    wide = Strand("s", 0, 10_000_000, ((0, 10_000_000),))
    numbers = [0, 5_000_000, 10_000_000, 10_000_001]
    marks = strip(wide, [{"kind": "chain_break", "sequenceNo": number} for number in numbers])
    assert len(marks) == 3
    assert all(0 <= mark.x <= mark.x + mark.width <= WIDTH + 1e-6 and mark.width >= 3 for mark in marks)
    (gap,) = strip(wide, [{"kind": "missing_blocks", "first": 1, "last": 5_000_000}])
    assert gap.width == pytest.approx(WIDTH / 2, rel=1e-3)


@pytest.mark.parametrize(
    ("last", "name"),
    [(dt.date(2024, 1, 31), "day"), (dt.date(2024, 12, 31), "6 days"), (dt.date(9999, 12, 31), "46987 days")],
)
def test_bars_suit_the_time_they_span(last: dt.date, name: str) -> None:
    """Few enough to be told apart; the sum stays; a single day is not a picture."""
    span, drawn = bars([(dt.date(2024, 1, 1), 5), (last, 10)])
    assert span == name
    assert [bar.transactions for bar in drawn] == [5, 10]
    assert all(0 <= bar.x <= bar.x + bar.width <= WIDTH for bar in drawn)
    assert drawn[0].width >= WIDTH / MAX_BARS * 0.7
    assert bars([]) == bars([(last, 10)]) == ("day", [])


def test_evidence_names_what_was_read() -> None:
    """Each file with its hash, and the command line."""
    page = page_of()
    assert "ab" * 32 in page
    assert "<code>headpond verify archive --html report.html</code>" in page


def test_what_is_wrong_is_named_where_it_is() -> None:
    """In the strip, below it, and in the list: block and table."""
    one = {
        "kind": "revision_hash_mismatch",
        "documentId": "d",
        "version": 2,
        "sequenceNo": 4846,
        "table": "T",
    }
    page = page_of(anomalies=[one])
    assert page.count("block 4846 (T): revision_hash_mismatch") == 2
    assert '<rect class="anomaly"' in page
    assert "<td>4846</td><td>T</td>" in page


@pytest.mark.thorough
@in_a_browser
class TestInABrowser:
    """As a person sees it."""

    @on_every_screen
    def test_it_fits_the_screen(self, tmp_path: Path, width: int) -> None:
        """Nothing hangs out, with every kind of anomaly and a very long name."""
        long_name = "x" * 400
        page = page_of(
            anomalies=[*EVERY, {"kind": "chain_break", "sequenceNo": 2**63 - 1, "detail": long_name}],
            summary=replace(SUMMARY, tables=(TableFigures(long_name, long_name, 1, {"insert": 1}),)),
        )
        assert measured(tmp_path, page, width) == (2, 0)

    def test_a_hostile_name_stays_text(self, tmp_path: Path) -> None:
        """The browser finds no element where there was none."""
        page = page_of(summary=replace(SUMMARY, tables=(TableFigures(HOSTILE, None, 1, {}),)))
        shown = browse(tmp_path, page, "--virtual-time-budget=1000", "--dump-dom")
        assert "<title>Journal verified" in shown
        assert "<img" not in shown

    def test_it_prints(self, tmp_path: Path) -> None:
        """A few sheets."""
        assert 1 <= pages_printed(tmp_path, page_of(anomalies=EVERY)) <= 8

    def test_light_and_dark(self, tmp_path: Path) -> None:
        """Both have a picture."""
        assert_light_and_dark_differ(tmp_path, page_of(anomalies=EVERY))
