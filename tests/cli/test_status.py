"""`headpond status` and `health`: what they say of a lake, live, as a page, and by the exit code."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from lakes import decoded, lake_in
from rich.console import Console
from test_batch_log import REPORT, report
from test_report import CHROMIUM, HOSTILE, browse
from test_unknown_tables import change

from headpond.cli.report import render_status
from headpond.cli.report.status_plots import (
    HEIGHT,
    MAX_BARS,
    MAX_LINES,
    MAX_POINTS,
    REST,
    WIDTH,
    Point,
    bars,
    lines,
    nice,
)
from headpond.cli.report.units import figure, size, span
from headpond.cli.status import look
from headpond.cli.status_drawing import draw, sparks
from headpond.kinesis.local import LocalKinesis
from headpond.kinesis.testing import ManualClock, local_kinesis
from headpond.pipeline import load
from headpond.tables.apply import apply_batch
from headpond.tables.batch_log import batches_in
from headpond.tables.lake import OWN_FOLDER
from headpond.tables.run_mark import RunMark, mark_in

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Cli

ENTRY = '[tables."public.t"]\nkeys = ["id"]\n'
BEFORE = {"source", "batch", "planned", "files", "lake", "tables", "unknown_tables", "quarantined", "pending",
          "tombstones", "deletes", "columns"}  # fmt: skip
"""Keys of `status --json` that programs of earlier versions read."""


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake with a row, a refused record and two batches in its log; gives the pipeline file."""
    made, config = lake_in(tmp_path, ENTRY)
    apply_batch(made, decoded(config, [change(1, "t", {"id": 1}), change(2, "unknown", {"id": 1})]))
    batches_in(str(tmp_path / "lake")).add([REPORT, report(8, begun_ms=REPORT.ended_ms + 500, records=20)])
    file = tmp_path / "orders.toml"
    file.write_text(f'[source]\narchive = "*.jsonl"\nformat = "dsql"\n[target]\npath = "lake"\n{ENTRY}')
    return file


def mark(file: Path, **facts: Any) -> None:
    """Leave a mark as a run does; `ago_ms` is how long ago it was."""
    ago_ms = facts.pop("ago_ms", 0)
    now = time.time_ns() // 1_000_000 - ago_ms
    said = {"state": "running", "host": "h", "pid": 1, "error": None, "progress_ms": now} | facts
    RunMark(str(file.parent / "lake" / "_headpond"), now_ms=lambda: now).write(**said)


# status


def test_json_has_all_it_had_before(lake: Path, cli: Cli) -> None:
    """And the last batches, the run and the sizes beside it."""
    (found,) = cli("status", lake, "--json").lines()
    assert set(found) >= BEFORE
    assert [row["batch_id"] for row in found["last_batches"]] == [7, 8]
    assert found["last_batches"][0]["applied"] == 5
    assert found["run"] is None
    assert found["sizes"]["public.t"]["rows"] == 1
    assert found["table_bytes"] == found["sizes"]["public.t"]["bytes"] > 0
    own = [name for name in found["sizes"] if name.startswith("_headpond/")]
    assert found["state_bytes"] == sum(found["sizes"][name]["bytes"] for name in own) > 0


def test_a_person_sees_the_last_batches(lake: Path, cli: Cli) -> None:
    """As many as wanted, with the run and the bytes."""
    mark(lake, ago_ms=60_000)
    said = cli("status", lake, "--last", "1").stdout.decode()
    assert "may be gone" in said
    assert re.search(r"^8 +5 ms +20 ", said, re.MULTILINE)
    assert not re.search(r"^7 +", said, re.MULTILINE)
    assert "tables take" in said


def test_a_new_pipeline_has_no_batches(tmp_path: Path, cli: Cli) -> None:
    """Nothing is there, and that is said."""
    file = tmp_path / "p.toml"
    file.write_text(f'[source]\narchive = "*.jsonl"\nformat = "dsql"\n[target]\npath = "lake"\n{ENTRY}')
    said = cli("status", file)
    assert (said.code, "no batch is done yet" in said.stdout.decode()) == (0, True)
    page = tmp_path / "s.html"
    assert cli("status", file, "--html", page).code == 0
    assert "No batch is done yet" in page.read_text()


@pytest.mark.thorough
def test_watch_without_a_terminal_prints_once_per_interval(lake: Path) -> None:
    """Whole documents a line, until SIGINT, which ends it with 0."""
    command = [
        sys.executable,
        "-m",
        "headpond",
        "status",
        str(lake),
        "--watch",
        "--interval",
        "50 ms",
        "--json",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    try:
        looks = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, err) == (0, b"")
    assert [row["batch_id"] for row in looks[2]["last_batches"]] == [7, 8]


@pytest.mark.thorough
def test_watch_on_a_terminal_is_a_view_that_ends_with_ctrl_c(lake: Path) -> None:
    """It draws over itself on the other screen, and leaves the terminal as it was."""
    master, follower = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "headpond", "status", str(lake), "--watch", "--interval", "50 ms"],
        stdout=follower,
        stderr=follower,
        stdin=follower,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"},
    )
    os.close(follower)
    seen = b""
    try:
        end = time.monotonic() + 30
        while seen.count(b"\x1b[H") < 3 and time.monotonic() < end:
            seen += os.read(master, 65_536)
        process.send_signal(signal.SIGINT)
        while True:
            try:
                more = os.read(master, 65_536)
            except OSError:  # the other end is closed
                break
            if not more:
                break
            seen += more
        code = process.wait(timeout=30)
    finally:
        process.kill()
        os.close(master)
    assert code == 0
    assert b"\x1b[?1049h" in seen  # the other screen, and back
    assert seen.rstrip().endswith(b"\x1b[?25h") or b"\x1b[?1049l" in seen
    assert b"records/s" in seen
    assert b"Traceback" not in seen


def test_a_look_that_fails_does_not_end_the_view() -> None:
    """What was seen before stays, with the reason."""
    tables = {"tables": {}, "quarantined": {}, "pending": 0, "unknown_tables": {}, "columns": {}, "lake": "l"}
    seen = {"source": "s", "batch": 1, "planned": None, "run": None, "files": {}, "lag_unknown": None}
    sizes = {"last_batches": [], "table_bytes": 0, "state_bytes": 0}
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(draw(tables | seen | sizes | {"trouble": "The store is away."}))
    assert "The last look failed: The store is away." in console.export_text()


# health


@pytest.mark.parametrize(
    ("facts", "options", "answer"),
    [
        ({}, [], (0, "healthy")),
        ({"ago_ms": 300_000}, [], (1, "limit 120 s")),
        ({"ago_ms": 300_000}, ["--max-age", "10 minutes"], (0, "healthy")),
        ({"progress_ms": 0}, [], (1, "last heard of")),
        ({"state": "failed", "error": "The stream is gone."}, [], (1, "failed: The stream is gone.")),
        ({"state": "stopped"}, [], (1, "the last run is stopped")),
        ({}, ["--max-quarantined", "1", "--max-pending", "0"], (0, "pending is 0")),
        ({}, ["--max-quarantined", "0"], (1, "quarantined is 1, limit 0")),
    ],
)
def test_health_is_the_exit_code(
    lake: Path, cli: Cli, facts: dict[str, Any], options: list[str], answer: tuple[int, str]
) -> None:
    """Each limit by itself, and a run that ended or went silent."""
    mark(lake, **facts)
    code, says = answer
    found = cli("health", lake, *options)
    assert found.code == code
    assert says in found.stdout.decode()
    (document,) = cli("health", lake, *options, "--json").lines()
    assert document["healthy"] == (code == 0)


def test_no_run_at_all_is_not_healthy(lake: Path, cli: Cli) -> None:
    """And a lag is for streams."""
    assert cli("health", lake).code == 1
    refused = cli("health", lake, "--max-lag", "1 s")
    assert (refused.code, "for streams" in refused.stderr) == (2, True)
    assert cli("health", lake, "--max-age", "soon").code == 2


@pytest.mark.thorough
def test_a_lag_is_asked_of_the_stream(tmp_path: Path, cli: Cli) -> None:
    """Records that wait are a lag; a stream that cannot be asked is one, too."""
    with LocalKinesis() as kinesis:
        kinesis.engine.create_stream("s", 1)
        kinesis.client().put_record(StreamName="s", Data=b"x", PartitionKey="p")
        stream = kinesis.client().describe_stream_summary(StreamName="s")["StreamDescriptionSummary"]
        created = int(stream["StreamCreationTimestamp"].timestamp() * 1000)
        file = tmp_path / "p.toml"
        source = f'stream = "s"\nendpoint_url = "{kinesis.endpoint_url}"'
        file.write_text(f'[source]\n{source}\nformat = "dsql"\n[target]\npath = "lake"\n{ENTRY}')
        mark(file)
        assert "lag_ms is unknown" in cli("health", file, "--max-lag", "1 hour").stdout.decode()
        offset = {
            "v": 1,
            "stream": "s",
            "created": str(created),
            "shards": {"shardId-000000000000": {"p": "HORIZON"}},
        }
        folder = tmp_path / "lake" / "_headpond" / "checkpoint"
        for name, text in (("offsets", "v1\n{}\n" + json.dumps(offset)), ("commits", "v1\n{}")):
            (folder / name).mkdir(parents=True)
            (folder / name / "0").write_text(text)
        time.sleep(0.01)
        assert cli("health", file, "--max-lag", "1 hour").code == 0
        assert cli("health", file, "--max-lag", "0 s").code == 1
    away = cli("health", file, "--max-lag", "1 hour")
    assert (away.code, "lag_ms is unknown" in away.stdout.decode()) == (1, True)


def test_each_shards_lag_is_that_of_its_oldest_unread_record(tmp_path: Path) -> None:
    """From a checkpoint and a live stream: waiting, at the tip, done, empty, and unknown to the stream."""
    clock = ManualClock()
    with local_kinesis("s", shards=4, clock=clock) as kinesis:
        shards = [shard.shard_id for shard in kinesis.engine.shards("s")]
        lows = [shard.low for shard in kinesis.engine.shards("s")]
        read_ms = clock()
        read = [kinesis.engine.put("s", "k", b"0", explicit_hash_key=lows[n]) for n in (0, 1)]
        clock.advance(60_000)
        for n in (0, 2):
            kinesis.engine.put("s", "k", b"1", explicit_hash_key=lows[n])
            clock.advance(3_600_000)
        file = tmp_path / "p.toml"
        source = f'stream = "s"\nendpoint_url = "{kinesis.endpoint_url}"'
        file.write_text(f'[source]\n{source}\nformat = "dsql"\n[target]\npath = "lake"\n{ENTRY}')
        after = [{"p": "SEQ", "s": str(put.sequence_number), "t": str(read_ms)} for put in read]
        gone = "shardId-000000000009"
        positions = [
            *after,
            {"p": "END"},
            {"p": "HORIZON", "u": str(read_ms)},
            {"p": "TS", "t": str(read_ms)},
        ]
        offset = {
            "v": 2,
            "stream": "s",
            "created": str(kinesis.engine.stream("s").created_ms),
            "shards": dict(zip([*shards, gone], positions, strict=True)),
        }
        folder = tmp_path / "lake" / "_headpond" / "checkpoint"
        for name, text in (("offsets", "v1\n{}\n" + json.dumps(offset)), ("commits", "v1\n{}")):
            (folder / name).mkdir(parents=True)
            (folder / name / "0").write_text(text)
        found = look(load(str(file)))
        clock.advance(1_800_000)
        later = look(load(str(file)))
    lags = [found["shards"][shard]["lag_ms"] for shard in [*shards, gone]]
    # The service's clock is known from below, to a second.
    assert lags[0] == pytest.approx(7_200_000, abs=2_000)
    assert lags[1:] == [0, 0, 0, None]
    assert later["shards"][shards[0]]["lag_ms"] == pytest.approx(9_000_000, abs=2_000)
    assert found["lag_unknown"] is None
    assert found["shards"][shards[0]] == {
        "position": "SEQ",
        "sequence_number": after[0]["s"],
        "arrival_ms": read_ms,
        "lag_ms": lags[0],
    }


# The page.


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
    assert [figure(n) for n in (0.25, 3, 12_345)] == ["0.25", "3", "12\N{NARROW NO-BREAK SPACE}345"]
    assert sparks([0, 1, 2, 4]) == "▁▃▅█"
    assert sparks([0, 0]) == "▁▁"


@pytest.mark.browser
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


def test_a_mark_is_in_the_lakes_own_folder() -> None:
    """Of an object store, too."""
    assert mark_in("s3://b/l/").place == f"s3://b/l/{OWN_FOLDER}/run.json"
