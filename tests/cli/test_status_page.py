"""The page of `headpond status`: its plots, its words, and that it is only a page."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headpond.api.looking import headline, level, look
from headpond.api.remedies import remedy
from headpond.cli.commands.status import page_of, sparks
from headpond.cli.report.page import WIDTH, figure, size
from headpond.cli.report.status_page import (
    HEIGHT,
    MAX_BARS,
    Bar,
    Period,
    laid_out,
    nice,
    periods,
    render_status,
)
from headpond.core.tabular import said_ms
from headpond.pipeline import load
from tests.cli.browser import (
    HOSTILE,
    assert_light_and_dark_differ,
    browse,
    in_a_browser,
    measured,
    on_every_screen,
    pages_printed,
)
from tests.cli.status_kit import lake_with_batches, mark

DOCS = Path(__file__).parents[2] / "docs"
NOW = 1_767_229_200_000
"""2026-01-01 01:00 UTC."""
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
SIZES = {
    "public.t": {"rows": 1, "bytes": 2_048, "files": 3, "log_bytes": 900},
    "_headpond/tombstones": {"rows": 1, "bytes": 100, "files": 1, "log_bytes": 100},
}
ROW = {
    "run_id": "r",
    "duration_ms": 500,
    "records": 10,
    "data_bytes": 4_096,
    "lag_ms": 1_500,
    "applied": 10,
    "duplicates": 0,
    "stale": 0,
    "quarantined": 0,
    "state_rows": 0,
    "state_bytes": 0,
    "tables": {"public.t": {"upserts": 7, "deletes": 1, "duplicates": 2}},
    "reasons": {},
    "phases_ms": {},
    "lags_ms": {"shardId-000000000000": 1_500, "shardId-000000000001": 0},
    "sizes": SIZES,
}


def row(before_now_ms: int, **changes: Any) -> dict[str, Any]:
    begun = datetime.fromtimestamp((NOW - before_now_ms) / 1000, UTC).isoformat(timespec="milliseconds")
    return ROW | {"batch_id": 1, "begun": begun} | changes


def rows_of(count: int = 3, **changes: Any) -> list[dict[str, Any]]:
    return [row((count - n) * SECOND, batch_id=n, **changes) for n in range(count)]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """The pipeline file of a small lake."""
    return lake_with_batches(tmp_path)


def found_in(lake: Path, **changes: Any) -> dict[str, Any]:
    quarantine = [{"reason": "unknown_table", "table": "public.unknown", "records": 1, "detail": None}]
    return look(load(lake)) | {"quarantine": quarantine} | changes


def page_with(lake: Path, rows: list[dict[str, Any]], **changes: Any) -> str:
    return render_status(found_in(lake, **changes), rows, now_ms=NOW, version="0.1.0")


@pytest.fixture
def page(lake: Path) -> str:
    mark(lake)
    return page_with(lake, rows_of(90))


def drawn(rows: list[dict[str, Any]]) -> dict[str, list[Bar]]:
    """The bars of each plot of the shortest period."""
    return {plot.title: plot.bars for plot in periods(rows, NOW)[0].plots}


def test_the_page_says_how_fresh_tables_are(lake: Path) -> None:
    """How long ago the newest change was committed, how much later the source sent it; a dash for neither."""
    fresh = {"public.t": {"newest_commit_ns": 1, "age_ms": 90 * SECOND, "source_delay_ms": 250}}
    page = page_with(lake, rows_of(2), freshness=fresh)
    assert f'<td class="n">{said_ms(90 * SECOND)} ago</td><td class="n">{said_ms(250)}</td>' in page
    unknown = {"public.t": dict.fromkeys(fresh["public.t"])}
    page = page_with(lake, rows_of(2), freshness=unknown)
    dash = '<td class="n">\u2013</td>'
    assert f"{dash}{dash}</tr>" in page


def test_the_page_opens_with_what_an_operator_asks(lake: Path) -> None:
    """State, lag, quarantine; the table that is meant, and what to do about it."""
    mark(lake)
    shards = {f"shard{n}": {"position": "at", "sequence_number": "1", "lag_ms": n * 1_000} for n in (1, 2)}
    page = page_with(lake, rows_of(90), batch=8, shards=shards)
    assert "<h1>Up to date · lag 2.0 s · 1 quarantined</h1>" in page
    assert "<td>public.unknown</td>" in page
    assert remedy("unknown_table") in page
    assert page.index("<td>shard2</td>") < page.index("<td>shard1</td>")
    assert "70 more are in" in page


def test_a_real_lake_has_its_quarantine_by_table(lake: Path) -> None:
    """As its records name them."""
    pipeline = load(lake)
    assert "<td>public.unknown</td>" in page_of(pipeline, look(pipeline))
    assert 'http-equiv="refresh" content="5"' in page_of(pipeline, look(pipeline), 5)
    assert "refresh" not in page_of(pipeline, look(pipeline))


@pytest.mark.parametrize(
    ("changes", "says", "how"),
    [
        ({}, "Running, lag unknown", "good"),
        ({"batch": None}, "Starting", "good"),
        ({"run": {"state": "running", "age_ms": 90_000}}, "No sign of the run for 2 min", "bad"),
        ({"run": {"state": "failed", "age_ms": 5}}, "The last run failed", "bad"),
        ({"run": {"state": "finished", "age_ms": 5}}, "Not running", "warning"),
        ({"anomalies": {"chain_break": 1}}, "Running", "bad"),
        ({"quarantined": {"unknown_table": 1}}, "Running", "warning"),
    ],
)
def test_how_much_it_needs_an_operator(changes: dict[str, Any], says: str, how: str) -> None:
    """What runs and has nothing in quarantine is good; what may lose time is not."""
    run = {"state": "running", "age_ms": 5}
    found = {"run": run, "batch": 3, "quarantined": {}, "lag_unknown": "no credentials"} | changes
    assert headline(found).startswith(says)
    assert level(found) == how


def test_every_plot_says_something() -> None:
    """One batch fills the width; what is not known of any batch has no plot; 0 is seen."""
    for bars in drawn([row(MINUTE)]).values():
        (bar,) = bars
        assert bar.x == 0
        assert bar.width > WIDTH * 0.6
    assert "Lag" not in drawn([row(0, lag_ms=None, lags_ms={})])
    assert (
        not {"Size of the lake", "Files of the lake", "Logs of the lake"} & drawn([row(0, sizes=None)]).keys()
    )
    assert all(bar.height > 1 for bar in drawn([row(0, lag_ms=0, lags_ms={"s": 0})])["Lag"])
    assert periods([], NOW) == []


def test_what_the_lake_takes_is_drawn() -> None:
    """Bytes, files and logs; the darker part is headpond's own; batches of before noted no logs."""
    found = drawn([row(MINUTE)])
    for title, own in (
        ("Size of the lake", 100 / 2_148),
        ("Files of the lake", 1 / 4),
        ("Logs of the lake", 0.1),
    ):
        (bar,) = found[title]
        assert bar.inner / bar.height == pytest.approx(own)
    earlier = {name: {k: v for k, v in facts.items() if k != "log_bytes"} for name, facts in SIZES.items()}
    assert "Logs of the lake" not in drawn([row(MINUTE, sizes=earlier)])
    assert "Files of the lake" in drawn([row(MINUTE, sizes=earlier)])


def test_shards_do_not_hide_each_other() -> None:
    """The furthest behind is the bar, the median its darker part."""
    lags = {f"shard{n}": n * 1_000 for n in range(1, 10)}
    (bar,) = drawn([row(0, lag_ms=9_000, lags_ms=lags)])["Lag"]
    assert bar.inner / bar.height == pytest.approx(5 / 9)


def test_a_pause_is_a_pause() -> None:
    """Nothing is drawn in it, it is as narrow as another one, and batches stay as wide as they lasted."""
    rows = [row(40 * MINUTE, duration_ms=10_000), row(5 * MINUTE, duration_ms=20_000)]
    stretches, pauses = laid_out(rows, NOW)
    assert [pause.ms for pause in pauses] == [35 * MINUTE - 10_000, 5 * MINUTE - 20_000]
    assert pauses[0].width == pauses[1].width < WIDTH / 20
    assert stretches[1].width == pytest.approx(2 * stretches[0].width, rel=0.05)
    bars = drawn(rows)["Batch time"]
    assert bars[0].x + bars[0].width <= pauses[0].x
    assert pauses[0].x + pauses[0].width <= bars[1].x
    assert bars[1].x + bars[1].width <= pauses[1].x
    slow = [row((10 - n) * 10 * MINUTE) for n in range(10)]
    assert len(laid_out(slow, NOW - 9 * MINUTE)[1]) == 0  # a trigger of ten minutes is not a row of pauses


@pytest.mark.parametrize(
    ("ages", "titles"),
    [
        ([MINUTE, 2 * MINUTE], ["Last hour"]),
        ([MINUTE, 3 * HOUR], ["Last hour", "Last day"]),
        ([MINUTE, 3 * HOUR, 3 * DAY], ["Last hour", "Last day", "All"]),
        ([3 * HOUR, 3 * DAY], ["Last day", "All"]),
        ([3 * DAY], ["All"]),
    ],
)
def test_the_periods_that_differ_are_drawn(ages: list[int], titles: list[str]) -> None:
    """With each table's changes in them."""
    made = periods([row(age) for age in reversed(ages)], NOW)
    assert [period.title for period in made] == titles
    assert [period.changes["public.t"] for period in made] == [8 * period.batches for period in made]


def test_everything_stays_on_the_canvas_and_adds_up() -> None:
    """However many batches and pauses there are; peaks are kept."""
    rows = [
        row((9_000 - n) * 10 * SECOND + (n // 500) * -2 * MINUTE, records=5_000 if n == 3_333 else 10)
        for n in range(9_000)
    ]
    (whole,) = [period for period in periods(rows, NOW) if period.title in {"All", "Last day"}][-1:]
    assert isinstance(whole, Period)
    for plot in whole.plots:
        assert len(plot.bars) <= MAX_BARS + 40
        assert all(bar.x >= 0 and bar.x + bar.width <= WIDTH + 1e-6 for bar in plot.bars)
        assert all(0 < bar.height <= HEIGHT + 1e-6 and bar.inner <= bar.height + 1e-6 for bar in plot.bars)
    rates = whole.plots[0].bars
    assert max(bar.height for bar in rates) > 2 * sorted(bar.height for bar in rates)[len(rates) // 2]
    seconds = 100
    (bar,) = drawn([row(seconds * SECOND, duration_ms=seconds * SECOND, records=250)])["Records per second"]
    assert "2.5/s" in bar.title


def test_the_page_loads_nothing_from_elsewhere(page: str) -> None:
    """No address, no script, no import, and a policy that forbids them."""
    assert not re.search(r"(src|href)=|url\(|@import|https?:|<script", page)
    assert "default-src 'none'" in page


def test_names_cannot_write_into_the_page(lake: Path) -> None:
    """Names of tables, shards, reasons and errors are text."""
    mark(lake, state="failed", error=HOSTILE, host=HOSTILE)
    changes = {
        **dict.fromkeys(("source", "pipeline", "lag_unknown"), HOSTILE),
        "quarantined": {HOSTILE: 1},
        "quarantine": [{"reason": HOSTILE, "table": HOSTILE, "records": 1, "detail": HOSTILE}],
        "tables": {HOSTILE: {"rows": 1, "keep": HOSTILE}},
        "shards": {HOSTILE: {"position": HOSTILE, "lag_ms": 1}},
    }
    rows = rows_of(lags_ms={HOSTILE: 1}, sizes={HOSTILE: {"rows": 1, "bytes": 1, "files": 1}}, run_id=HOSTILE)
    page = page_with(lake, rows, **changes)
    assert "<script" not in page
    assert "<img" not in page
    assert page.count("&lt;script&gt;") >= 8


@pytest.mark.parametrize(
    ("value", "base", "top"),
    [(0, 10, 1), (0.004, 10, 0.005), (1, 10, 1), (22, 10, 30), (1_000, 10, 1_000), (3_000, 1_024, 3_072),
     (1 << 20, 1_024, 1 << 20), (600_000, 1_024, 1_000 * 1_024)],
)  # fmt: skip
def test_an_axis_ends_at_a_round_number(value: float, base: int, top: float) -> None:
    """At least the value, and not much more."""
    assert nice(value, base) == pytest.approx(top)
    assert nice(value, base) >= value


def test_numbers_are_written_for_people() -> None:
    """Bytes, spans and counts in their units; a row of blocks for a terminal."""
    assert [size(n) for n in (0, 1_023, 1_536, 50 << 20)] == ["0 B", "1023 B", "1.5 KiB", "50 MiB"]
    assert said_ms(12_340) == "12.3 s"
    assert [figure(n) for n in (0.25, 3, 12_345)] == ["0.25", "3", "12,345"]
    assert sparks([0, 1, 2, 4]) == "▁▃▅█"
    assert sparks([0, 0]) == "▁▁"


def test_every_reason_of_the_docs_has_a_remedy() -> None:
    """No reason is left to the words for reasons that nobody knows."""
    listed = (DOCS / "how-to" / "quarantine.md").read_text(encoding="utf-8").split("## Reasons")[1]
    ledger = (DOCS / "systems" / "qldb.md").read_text(encoding="utf-8").split("| verdict | when |")[1]
    cells = [
        line.split("|")[1]
        for text in (listed, ledger.split("\n\n")[0])
        for line in text.splitlines()
        if "|" in line
    ]
    reasons = {each for cell in cells for each in re.findall(r"`([a-z_]+)`", cell)}
    assert len(reasons) > 40
    assert [reason for reason in sorted(reasons) if remedy(reason) == remedy("from tomorrow")] == []


@pytest.mark.thorough
@in_a_browser
class TestInABrowser:
    """As a person sees it."""

    @on_every_screen
    def test_it_fits_the_screen(self, tmp_path: Path, lake: Path, width: int) -> None:
        """Nothing but scrolling tables hangs out, with long names and many shards; no plot is empty."""
        mark(lake)
        long_name = "x" * 300
        changes = {
            **dict.fromkeys(("pipeline", "source"), long_name),
            "tables": {long_name: {"rows": 1, "keep": "current"}},
            "quarantine": [{"reason": long_name, "table": long_name, "records": 1, "detail": long_name}],
        }
        lags = {f"shardId-{n:012}": n * 1_000 for n in range(20)} | {long_name: 99_000}
        rows = [row(3 * DAY), row(3 * HOUR), *rows_of(50, lags_ms=lags, lag_ms=99_000)]
        assert measured(tmp_path, page_with(lake, rows, **changes), width) == (7, 0)

    def test_light_and_dark(self, tmp_path: Path, page: str) -> None:
        """Both have a picture."""
        assert_light_and_dark_differ(tmp_path, page)

    def test_it_prints(self, tmp_path: Path, page: str) -> None:
        """A few sheets."""
        assert 1 <= pages_printed(tmp_path, page) <= 6

    def test_a_hostile_name_stays_text(self, tmp_path: Path, lake: Path) -> None:
        """The browser finds no element where there was none."""
        text = page_with(lake, rows_of(lags_ms={HOSTILE: 1}), pipeline=HOSTILE)
        shown = browse(tmp_path, text, "--virtual-time-budget=1000", "--dump-dom")
        assert "<img" not in shown
        assert "taken" in re.findall(r"<title>(.*?)</title>", shown, re.DOTALL)[0]  # as text of the title
