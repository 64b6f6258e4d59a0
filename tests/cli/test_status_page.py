"""The page of `headpond status`: its plots, its words, and that it is only a page."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from headpond.api.looking import look
from headpond.cli.commands.status import sparks
from headpond.cli.report import render_status
from headpond.cli.report.page import WIDTH, figure
from headpond.cli.report.status_page import (
    HEIGHT,
    MAX_BARS,
    MAX_LINES,
    MAX_POINTS,
    REST,
    Point,
    bars,
    lines,
    nice,
    size,
    span,
)
from headpond.pipeline import load
from tests.cli.status_kit import lake_with_batches, mark
from tests.cli.test_report import CHROMIUM, HOSTILE, browse

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """The pipeline file of a small lake."""
    return lake_with_batches(tmp_path)


SIZES = {
    "public.t": {"rows": 1, "bytes": 2_048, "files": 1},
    "_headpond/tombstones": {"rows": 1, "bytes": 100, "files": 1},
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
    "tables": {},
    "reasons": {},
    "phases_ms": {},
    "lags_ms": {"shardId-000000000000": 1_500},
    "sizes": SIZES,
}


def rows_of(count: int = 3, **changes: Any) -> list[dict[str, Any]]:
    return [
        ROW | {"batch_id": n, "begun": f"2026-01-01T00:{n // 60:02}:{n % 60:02}.000+00:00"} | changes
        for n in range(count)
    ]


@pytest.fixture
def page(lake: Path) -> str:
    mark(lake)
    return render_status(look(load(lake)), rows_of(90), made_at="now", version="0.1.0")


def test_the_page_has_a_plot_of_each_kind(page: str) -> None:
    """Throughput, lag, batch time, table and state size; the newest batches as a table."""
    titles = re.findall(r"<h3>(.*?)</h3>", page)
    assert titles == [
        "Records per second",
        "Data per second",
        "Lag per shard",
        "Batch time",
        "Tables",
        "State",
    ]
    assert page.count('class="plot"') == len(titles)
    assert "1 records are in quarantine" in page
    assert "70 more are in" in page


def test_the_page_loads_nothing_from_elsewhere(page: str) -> None:
    """No address, no script, no import, and a policy that forbids them."""
    assert not re.search(r"(src|href)=|url\(|@import|https?:|<script", page)
    assert "default-src 'none'" in page


def test_names_cannot_write_into_the_page(lake: Path) -> None:
    """Names of tables, shards, reasons and errors are text."""
    mark(lake, state="failed", error=HOSTILE, host=HOSTILE)
    found = look(load(lake)) | {"source": HOSTILE, "pipeline": HOSTILE, "lag_unknown": HOSTILE}
    found["quarantined"] = {HOSTILE: 1}
    found["tables"] = {HOSTILE: {"rows": 1, "keep": HOSTILE}}
    rows = rows_of(lags_ms={HOSTILE: 1}, sizes={HOSTILE: {"rows": 1, "bytes": 1, "files": 1}}, run_id=HOSTILE)
    page = render_status(found, rows, made_at="now", version="0.1.0")
    assert "<script" not in page
    assert "<img" not in page
    assert page.count("&lt;script&gt;") >= 8


@pytest.mark.slow
def test_lines_stay_on_the_canvas_and_keep_peaks() -> None:
    """However many points there are; runs are lines of their own."""
    points = [Point(n, "a" if n < 5_000 else "b", 5.0 if n == 3_333 else 1.0) for n in range(10_000)]
    (line,) = lines({"x": points}, (0, 9_999)).lines
    places = [[float(v) for v in pair.split()] for path in line.paths for pair in path[1:].split("L")]
    assert len(line.paths) == 2
    assert len(places) <= MAX_POINTS + 2
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places)
    assert min(y for _, y in places) == 0  # the peak


def test_many_shards_share_a_line() -> None:
    """The furthest behind have their own; the rest is drawn by its greatest."""
    series = {f"s{n}": [Point(0, "r", float(n)), Point(9, "r", float(n))] for n in range(100)}
    plot = lines(series, (0, 9))
    assert len(plot.lines) == MAX_LINES
    assert plot.lines[-1].name == REST
    assert plot.lines[-1].last == 99 - (MAX_LINES - 1)


def test_bars_add_up() -> None:
    """The sum of rate times width is what came."""
    points = [Point(n * 100, "r", 3.0) for n in range(1_000)]
    plot = bars(points, (0, 99_900))
    assert len(plot.bars) <= MAX_BARS
    assert sum(bar.value for bar in plot.bars) * 99.9 / MAX_BARS == pytest.approx(3_000)
    assert bars([Point(5, "r", 0.0)], (5, 5)).bars == []


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
    assert [span(s) for s in (0.25, 12.34, 300, 7_200, 200_000)] == [
        "250 ms",
        "12.3 s",
        "5 min",
        "2.0 h",
        "2.3 days",
    ]
    assert [figure(n) for n in (0.25, 3, 12_345)] == ["0.25", "3", "12,345"]
    assert sparks([0, 1, 2, 4]) == "▁▃▅█"
    assert sparks([0, 0]) == "▁▁"


@pytest.mark.thorough
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine; Debian's package is `chromium`")
class TestInABrowser:
    """As a person sees it."""

    def test_it_fits_a_phone(self, tmp_path: Path, lake: Path) -> None:
        """Nothing but scrolling tables is wider than 360 px, with long names and many shards."""
        long_name = "x" * 300
        found = look(load(lake)) | {"pipeline": long_name, "source": long_name}
        found["tables"] = {long_name: {"rows": 1, "keep": "current"}}
        lags = {f"shardId-{n:012}": n * 1_000 for n in range(20)} | {long_name: 99_000}
        text = render_status(found, rows_of(50, lags_ms=lags), made_at="now", version="0.1.0")
        measure = (
            "<script>document.title = document.documentElement.scrollWidth + ' of ' + innerWidth</script>"
        )
        text = text.replace("default-src 'none'", "default-src 'none'; script-src 'unsafe-inline'")
        (tmp_path / "inner.html").write_text(text.replace("</body>", f"{measure}</body>"), encoding="utf-8")
        frame = (
            '<iframe id="f" src="inner.html" style="width:360px;height:800px;border:0"></iframe>'
            "<script>f.onload = () => { document.title = f.contentDocument.title }</script>"
        )
        shown = browse(
            tmp_path, frame, "--allow-file-access-from-files", "--virtual-time-budget=3000", "--dump-dom"
        )
        assert "<title>360 of 360</title>" in shown

    def test_its_plots_are_drawn(self, tmp_path: Path, page: str) -> None:
        """Lines and bars have a size on the screen, in either scheme, and the two schemes differ."""
        measure = (
            "<script>document.title = [...document.querySelectorAll('svg.plot')].map(svg => "
            "Math.max(...[...svg.querySelectorAll('path, rect')].map(s => s.getBoundingClientRect().width))"
            " > 0 && svg.getBoundingClientRect().height > 50).join()</script>"
        )
        text = page.replace("default-src 'none'", "default-src 'none'; script-src 'unsafe-inline'")
        text = text.replace("</body>", f"{measure}</body>")
        shown = browse(tmp_path, text, "--virtual-time-budget=3000", "--dump-dom")
        assert f"<title>{','.join(['true'] * 6)}</title>" in shown
        light, dark = tmp_path / "light.png", tmp_path / "dark.png"
        browse(tmp_path, page, f"--screenshot={light}")
        scheme = ("--force-dark-mode", "--blink-settings=preferredColorScheme=0")
        browse(tmp_path, page, f"--screenshot={dark}", *scheme)
        assert light.read_bytes() != dark.read_bytes()

    def test_it_prints(self, tmp_path: Path, page: str) -> None:
        """A PDF of a few pages."""
        out = tmp_path / "status.pdf"
        browse(tmp_path, page, f"--print-to-pdf={out}")
        assert 1 <= len(re.findall(rb"/Type\s*/Page\b", out.read_bytes())) <= 5

    def test_a_hostile_name_stays_text(self, tmp_path: Path, lake: Path) -> None:
        """The browser finds no element where there was none."""
        rows = rows_of(lags_ms={HOSTILE: 1})
        text = render_status(look(load(lake)) | {"pipeline": HOSTILE}, rows, made_at="now", version="0.1.0")
        shown = browse(tmp_path, text, "--virtual-time-budget=1000", "--dump-dom")
        assert "<img" not in shown
        assert "taken" in re.findall(r"<title>(.*?)</title>", shown, re.DOTALL)[0]  # as text of the title
