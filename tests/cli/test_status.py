"""`headpond status`: what it says of a lake, once and live."""

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
from deltalake.exceptions import DeltaError
from rich.console import Console

from headpond.api.looking import look
from headpond.cli.commands.status import draw
from headpond.core.errors import StreamNotFound
from headpond.kinesis.api.calls import ServiceCalls
from headpond.kinesis.api.retry import Pace
from headpond.localkinesis.testing import ManualClock, local_kinesis
from headpond.pipeline import load
from tests.cli.status_kit import ENTRY, lake_with_batches, mark

if TYPE_CHECKING:
    from pathlib import Path

    from headpond.kinesis.api.settings import ConnectionSettings
    from tests.cli.conftest import Cli

BEFORE = {"source", "batch", "planned", "files", "lake", "tables", "unknown_tables", "quarantined", "pending",
          "tombstones", "deletes", "columns"}  # fmt: skip
"""Keys of `status --json` that programs of earlier versions read."""


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """The pipeline file of a small lake."""
    return lake_with_batches(tmp_path)


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


def test_the_next_command_of_what_has_not_begun_is_run(tmp_path: Path, cli: Cli) -> None:
    """There is nothing to show yet."""
    file = tmp_path / "p.toml"
    file.write_text(f'[source]\narchive = "*.jsonl"\nformat = "dsql"\n[target]\npath = "lake"\n{ENTRY}')
    assert f"next: headpond run {file}" in cli("status", file).stdout.decode()


def test_a_person_sees_the_last_batches(lake: Path, cli: Cli) -> None:
    """As many as wanted, with the run and the bytes."""
    mark(lake, ago_ms=60_000)
    said = cli("status", lake, "--last", "1").stdout.decode()
    assert "may be gone" in said
    assert re.search(r"^8 +5 ms +20 ", said, re.MULTILINE)
    assert not re.search(r"^7 +", said, re.MULTILINE)
    assert "tables: " in said


def test_a_new_pipeline_has_no_batches(tmp_path: Path, cli: Cli) -> None:
    """Nothing is there, and that is said."""
    file = tmp_path / "p.toml"
    file.write_text(f'[source]\narchive = "*.jsonl"\nformat = "dsql"\n[target]\npath = "lake"\n{ENTRY}')
    said = cli("status", file)
    assert (said.code, "no batch yet" in said.stdout.decode()) == (0, True)
    page = tmp_path / "s.html"
    assert cli("status", file, "--html", page).code == 0
    assert "<h1>Not started · 0 quarantined</h1>" in page.read_text()


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
    sizes = {"last_batches": [], "table_bytes": 0, "state_bytes": 0, "maintenance": {}}
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(draw(tables | seen | sizes | {"trouble": "The store is away."}))
    assert "The last look failed: The store is away." in console.export_text()


def standing_at(file: Path, offset: dict[str, Any]) -> None:
    """Write a checkpoint with one batch that is done."""
    folder = file.parent / "lake" / "_headpond" / "checkpoint"
    for name, text in (("offsets", "v1\n{}\n" + json.dumps(offset)), ("commits", "v1\n{}")):
        (folder / name).mkdir(parents=True)
        (folder / name / "0").write_text(text)


@pytest.mark.slow
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
        standing_at(file, offset)
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


SHARD = "shardId-000000000000"
OFFSET = {"v": 1, "stream": "s", "created": "0", "shards": {SHARD: {"p": "HORIZON"}}}


def test_without_a_region_the_lag_is_unknown_and_the_rest_is_shown(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lake is looked at from anywhere, also where AWS is not set up."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    file = tmp_path / "p.toml"
    file.write_text(f'[source]\nstream = "s"\nformat = "dsql"\n[target]\npath = "lake"\n{ENTRY}')
    standing_at(file, OFFSET)
    (found,) = cli("status", file, "--json").lines()
    assert found["shards"][SHARD]["lag_ms"] is None
    assert "No AWS region is known" in found["lag_unknown"]
    assert "HORIZON" not in cli("status", file).stdout.decode()
    assert "HORIZON" in cli("status", file, "--wide").stdout.decode()


def test_a_torn_checkpoint_leads_to_its_repair(tmp_path: Path, cli: Cli) -> None:
    """As it does where a run finds it."""
    file = tmp_path / "p.toml"
    file.write_text(f'[source]\narchive = "a"\nformat = "dsql"\n[target]\npath = "lake"\n{ENTRY}')
    standing_at(file, OFFSET)
    (tmp_path / "lake/_headpond/checkpoint/offsets/0").write_bytes(b"")
    result = cli("status", file)
    assert (result.code, "run headpond repair" in result.stderr) == (1, True)


@pytest.mark.parametrize("throttled", [False, True])
@pytest.mark.slow
def test_a_look_waits_for_seconds_at_most_and_leaves_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, throttled: bool
) -> None:
    """The live view looks every 2 s for days; a stream that throttles must not hold it up for minutes."""
    opened, closed, waited_s = [], [], []

    class Calls(ServiceCalls):
        def __init__(self, settings: ConnectionSettings, **arguments: Any) -> None:
            pace = Pace(clock=lambda: round(sum(waited_s) * 1000))  # time passes by waiting alone
            super().__init__(settings, **arguments, pace=pace, sleep=waited_s.append)
            opened.append(self)

        def close(self) -> None:
            closed.append(self)
            super().close()

    monkeypatch.setattr("headpond.kinesis.api.calls.ServiceCalls", Calls)
    with local_kinesis("s") as kinesis:
        file = tmp_path / "p.toml"
        source = f'stream = "s"\nendpoint_url = "{kinesis.endpoint_url}"'
        file.write_text(f'[source]\n{source}\nformat = "dsql"\n[target]\npath = "lake"\n{ENTRY}')
        standing_at(file, OFFSET)
        if throttled:
            kinesis.faults.refuse(
                "ProvisionedThroughputExceededException", calls=("GetRecords",), times=10**6
            )
        found = look(load(str(file)))
    assert (found["lag_unknown"] is not None) == throttled
    assert sum(waited_s) < 20
    assert closed == opened != []


def test_a_damaged_table_is_said_without_a_stack_trace(lake: Path, cli: Cli) -> None:
    """The file is named; the data has a problem, not headpond."""
    (log,) = (lake.parent / "lake").glob("public.t/_delta_log/*0.json")
    log.write_text("cut")
    found = cli("status", lake)
    assert found.code == 1
    first, second = found.stderr.splitlines()
    assert first.startswith(
        f"Error: The Delta table at {log.parent.parent} is damaged: _delta_log/{log.name} "
    )
    assert "backup" in second


def test_a_data_file_that_is_gone_is_said_without_a_stack_trace(lake: Path, cli: Cli) -> None:
    """As in a copy of a lake that was being written; deltalake raises an error without a class then."""
    (data,) = (lake.parent / "lake").glob("public.t/*.parquet")
    data.unlink()
    found = cli("show", lake, "public.t")
    assert found.code == 1
    first, second = found.stderr.splitlines()
    assert first.startswith(f"Error: The Delta table at {data.parent} cannot be used: ")
    assert data.name in first
    assert "that is gone" in second


@pytest.mark.parametrize(
    "error", [DeltaError("Kernel error: a file went.\n   0: <unknown>"), StreamNotFound("Away.")]
)
def test_the_view_outlives_a_table_that_changes_under_it(
    lake: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Also where it is deltalake that cannot read it for a moment: the last look stays, with the reason."""
    looks: list[Any] = [look(load(str(lake))), error, KeyboardInterrupt()]

    def next_look(*_: Any) -> Any:
        found = looks.pop(0)
        if isinstance(found, BaseException):
            raise found
        return found

    monkeypatch.setattr("headpond.cli.commands.status.look", next_look)
    page = lake.parent / "page.html"
    found = cli("status", lake, "--watch", "--interval", "1 ms", "--json", "--html", page)
    assert found.code == 0
    first, second = found.lines()
    assert 'http-equiv="refresh" content="1"' in page.read_text()
    assert "trouble" not in first
    assert str(error).partition("\n")[0].rstrip(".") in second["trouble"]
    assert "<unknown>" not in second["trouble"]
