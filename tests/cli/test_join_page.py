"""The page of `headpond join play`: what it shows, what no time-line can do to it, how a browser shows it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from headpond.cli.main import main
from headpond.cli.report.join_picture import JoinPicture, render_join
from headpond.kstreams.join.scenario import read_scenario
from tests.cli.browser import (
    HOSTILE,
    assert_light_and_dark_differ,
    browse,
    in_a_browser,
    measured,
    on_every_screen,
)
from tests.kstreams.join_lines import scenario_documents

EXAMPLES = Path(__file__).parents[2] / "examples" / "joins"
ORDINARY = json.loads((EXAMPLES / "out-of-order.json").read_text())


def page_of(*documents: dict[str, object]) -> str:
    scenarios = [read_scenario(document) for document in documents]
    pictures = [JoinPicture(each, each.play()) for each in scenarios]
    return render_join(pictures, made_at="25 November 2026, 11:00 UTC", version="0.1.0")


def test_the_command_writes_what_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each record with its verdict, and the rules; all time-lines of a file on one page."""
    file, out = tmp_path / "lines.json", tmp_path / "page.html"
    file.write_text(json.dumps([ORDINARY, json.loads((EXAMPLES / "nulls-and-late.json").read_text())]))
    assert main(["join", "play", str(file), "--html", str(out)]) == 0
    said = capsys.readouterr()
    assert f"Wrote {out}." in said.err
    page = out.read_text()
    assert page.count("<h1>") == 2
    assert "left join: 10 ms before to 10 ms after, grace 20 ms, headers of own, eager" in page
    for words in (
        "unmatched at once: its window is over; ⋈ step 2",
        "⋈ l1",
        "still waits",
        "dropped: no value",
    ):
        assert words in page
    assert "6 records: 3 joined results, 1 unmatched, 1 still waiting, 0 dropped, 1 late" in page
    assert page.count('class="moment"') == said.out.count(" L ") + said.out.count(" R ") + page.count("<h3>")
    assert main(["join", "play", str(file), "--html", str(tmp_path / "none" / "page.html")]) == 3


def test_times_lie_where_they_are() -> None:
    """Along the axis from the first window's start to the end of the last grace period."""
    step = {"side": "L", "key": "a", "value": "v", "timestamp": 100}
    page = page_of({"type": "left", "before_ms": 10, "after_ms": 30, "grace_ms": 40, "steps": [step]})
    (window,) = re.findall(r'<rect class="window" x="([\d.]+)%" y="9" width="([\d.]+)%"', page)
    (grace,) = re.findall(r'<rect class="grace" x="([\d.]+)%" y="11" width="([\d.]+)%"', page)
    (record,) = re.findall(r'<circle class="record" cx="([\d.]+)%"', page)
    assert [*map(float, (*window, *grace, record))] == [0, 50, 50, 50, 12.5]
    assert "<span>90</span><span>170 ms</span>" in page


@pytest.mark.parametrize("name", ["self-join-grace-HEADERS", "random-outer-2"])
def test_nothing_is_drawn_outside(name: str) -> None:
    """Of any time-line."""
    page = page_of(scenario_documents()[name])
    ends = [
        float(x) + float(width) for x, width in re.findall(r'x="([-\d.]+)%" y="\d+" width="([-\d.]+)%"', page)
    ]
    places = [float(x) for x in re.findall(r'c?x="([-\d.]+)%"', page)]
    assert len(places) > 10
    assert all(-0.01 <= place <= 100.01 for place in [*ends, *places])


def test_a_time_line_cannot_write_into_the_page() -> None:
    """Names, keys and values are text, and nothing is loaded."""
    steps = [{"side": "L", "key": HOSTILE, "value": HOSTILE, "timestamp": 1}]
    page = page_of({"name": HOSTILE, "type": "inner", "before_ms": 1, "after_ms": 1, "steps": steps})
    assert "<script" not in page
    assert "<img" not in page
    assert page.count("&lt;script&gt;") >= 4
    assert not re.search(r"(src|href)=|url\(|@import|https?:", page_of(ORDINARY))


@pytest.mark.thorough
@in_a_browser
class TestInABrowser:
    """As a person sees it."""

    @on_every_screen
    def test_it_fits_the_screen(self, tmp_path: Path, width: int) -> None:
        """With names that do not break, and all pictures have something in them."""
        steps = [{"side": "L", "key": "k" * 300, "value": "v" * 300, "timestamp": 5}]
        long = {"name": "x" * 300, "type": "outer", "before_ms": 5, "after_ms": 5, "steps": steps}
        assert measured(tmp_path, page_of(ORDINARY, long), width) == (7, 0)

    def test_light_and_dark(self, tmp_path: Path) -> None:
        """Both have a picture."""
        assert_light_and_dark_differ(tmp_path, page_of(ORDINARY))

    def test_a_hostile_key_stays_text(self, tmp_path: Path) -> None:
        """The browser finds no element where there was none."""
        steps = [{"side": "L", "key": HOSTILE, "value": HOSTILE, "timestamp": 1}]
        page = page_of({"type": "inner", "before_ms": 1, "after_ms": 1, "steps": steps})
        assert "<img" not in browse(tmp_path, page, "--virtual-time-budget=1000", "--dump-dom")
