"""The page of a verification: what it says, that records cannot write into it, and how a browser shows it."""

from __future__ import annotations

import datetime as dt
import re
import shutil
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from headpond.cli.report import VerifyReport, render
from headpond.cli.report.page import MAX_BARS, MAX_LISTED, WIDTH, WORDS, bars, strip
from headpond.qldb.journal.check import KINDS
from headpond.qldb.journal.known import Strand, Summary, TableFigures

if TYPE_CHECKING:
    from pathlib import Path

STRAND = Strand("p8ve4vVNfK6gSG6cksiAP4", 4846, 5045, ((4846, 4941), (4943, 5045)))
SUMMARY = Summary(
    (STRAND,),
    ((dt.date(2024, 5, 1), 120), (dt.date(2024, 5, 9), 79)),
    (TableFigures("Über-Konten", "metUW5KQPL6mlKDuY3kDlb", 173, {"insert": 173, "update": 219}),),
)
CLEAN = VerifyReport(
    sources=["archive/*.jsonl.gz"],
    counts={"records": 594, "duplicate_blocks": 0, "duplicate_revisions": 2},
    anomalies=[],
    pending={"revisions_without_block": 0},
    summary=SUMMARY,
    made_at="22 November 2026, 00:50 UTC",
    version="0.1.0",
)
EVERY = [
    {"kind": "missing_blocks", "first": 4942, "last": 4942}
    if kind == "missing_blocks"
    else {"kind": kind, "documentId": "NILmDXi3WRI6aiZxRcydzL", "version": 2, "sequenceNo": 4846 + at}
    for at, kind in enumerate(KINDS)
]
HOSTILE = '</title><script>document.title = "taken"</script><img src=x onerror=alert(1)>'


def test_every_kind_has_its_words() -> None:
    """What it means and what to do, for each."""
    assert set(WORDS) == set(KINDS)
    page = render(replace(CLEAN, anomalies=EVERY))
    for kind, words in WORDS.items():
        assert f'id="{kind}"' in page
        assert words.title.replace("'", "&#39;") in page


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "The journal verifies"),
        ({"anomalies": EVERY[:1]}, "1 anomaly of 1 kind."),
        ({"malformed": {"truncated": 2}}, "2 datums are no QLDB record."),
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
        ({"summary": Summary((), (), ())}, "Nothing to verify"),
    ],
)
def test_the_page_says_what_was_found(changes: dict[str, Any], says: str) -> None:
    """One sentence for each state there is."""
    assert says in render(replace(CLEAN, **changes))


def test_records_cannot_write_into_the_page() -> None:
    """Names of tables, documents, strands and files are text, whatever they hold."""
    page = render(
        replace(
            CLEAN,
            sources=[HOSTILE],
            anomalies=[
                {
                    "kind": "chain_break",
                    "sequenceNo": 1,
                    "strandId": HOSTILE,
                    "documentId": HOSTILE,
                    "detail": HOSTILE,
                }
            ],
            summary=Summary(
                (replace(STRAND, strand_id=HOSTILE),), (), (TableFigures(HOSTILE, HOSTILE, 1, {"insert": 1}),)
            ),
        )
    )
    assert "<script" not in page
    assert "<img" not in page
    assert page.count("&lt;script&gt;") >= 5


def test_nothing_is_loaded_from_elsewhere() -> None:
    """No address, no script, no import, and a policy that forbids them."""
    page = render(replace(CLEAN, anomalies=EVERY))
    assert not re.search(r"(src|href)=|url\(|@import|https?:|<script", page)
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page


def test_a_long_list_is_cut_and_says_so() -> None:
    """The page stays readable; the count is whole."""
    many = [{"kind": "chain_break", "sequenceNo": number} for number in range(MAX_LISTED + 5)]
    page = render(replace(CLEAN, anomalies=many))
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
    [
        (dt.date(2024, 1, 31), "day"),
        (dt.date(2024, 12, 31), "week"),
        (dt.date(2027, 12, 31), "month"),
        (dt.date(9999, 12, 31), "year"),
    ],
)
def test_bars_suit_the_time_they_span(last: dt.date, name: str) -> None:
    """Few enough to be told apart; the sum stays."""
    span, drawn = bars([(dt.date(2024, 1, 1), 5), (last, 10)])
    assert span == name
    assert len(drawn) == 2
    assert sum(bar.value for bar in drawn) == 15
    assert bars([]) == ("day", [])
    if name != "year":
        assert min(bar.width for bar in drawn) >= WIDTH / MAX_BARS * 0.7


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def browse(folder: Path, page: str, *options: str) -> str:
    """Show the page in a browser without a screen and give the document as it ended."""
    assert CHROMIUM is not None
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    done = subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND"),
            f"--user-data-dir={folder / 'profile'}",
            *options,
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


@pytest.mark.thorough
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine; Debian's package is `chromium`")
class TestInABrowser:
    """As a person sees it."""

    def test_it_fits_a_phone(self, tmp_path: Path) -> None:
        """Nothing is wider than 360 px, with every kind of anomaly and a very long name."""
        long_name = "x" * 400
        page = render(
            replace(
                CLEAN,
                anomalies=[*EVERY, {"kind": "chain_break", "sequenceNo": 2**63 - 1, "detail": long_name}],
                summary=replace(SUMMARY, tables=(TableFigures(long_name, long_name, 1, {"insert": 1}),)),
            )
        )
        # The page allows no script: one that measures is let in for the test, and writes into the title.
        measure = (
            "<script>document.title = document.documentElement.scrollWidth + ' of ' + innerWidth</script>"
        )
        page = page.replace("default-src 'none'", "default-src 'none'; script-src 'unsafe-inline'")
        page = page.replace("</body>", f"{measure}</body>")
        # Chromium's own window is at least 500 px wide: a frame of 360 px stands for the phone.
        frame = tmp_path / "frame.html"
        (tmp_path / "inner.html").write_text(page, encoding="utf-8")
        frame.write_text(
            '<iframe id="f" src="inner.html" style="width:360px;height:800px;border:0"></iframe>'
            "<script>f.onload = () => { document.title = f.contentDocument.title }</script>",
            encoding="utf-8",
        )
        shown = browse(
            tmp_path,
            frame.read_text(encoding="utf-8"),
            "--allow-file-access-from-files",
            "--virtual-time-budget=3000",
            "--dump-dom",
        )
        assert "<title>360 of 360</title>" in shown

    def test_a_hostile_name_stays_text(self, tmp_path: Path) -> None:
        """The browser finds no element where there was none."""
        page = render(replace(CLEAN, summary=replace(SUMMARY, tables=(TableFigures(HOSTILE, None, 1, {}),))))
        shown = browse(tmp_path, page, "--virtual-time-budget=1000", "--dump-dom")
        assert "<title>Journal verified" in shown
        assert "<img" not in shown

    def test_it_prints(self, tmp_path: Path) -> None:
        """A PDF of a few pages."""
        out = tmp_path / "report.pdf"
        browse(tmp_path, render(replace(CLEAN, anomalies=EVERY)), f"--print-to-pdf={out}")
        assert out.read_bytes().startswith(b"%PDF")
        assert 1 <= len(re.findall(rb"/Type\s*/Page\b", out.read_bytes())) <= 8

    def test_a_screenshot_shows_the_verdict(self, tmp_path: Path) -> None:
        """A picture comes out, and another one in the dark."""
        light, dark = tmp_path / "light.png", tmp_path / "dark.png"
        page = render(replace(CLEAN, anomalies=EVERY))
        browse(tmp_path, page, f"--screenshot={light}")
        browse(
            tmp_path,
            page,
            f"--screenshot={dark}",
            "--force-dark-mode",
            "--blink-settings=preferredColorScheme=0",
        )
        assert light.read_bytes() != dark.read_bytes()
