"""SIGKILL in the middle of `headpond run`, and again: the same tables, no row lost, none twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import pytest

from headpond.localkinesis import LocalKinesis
from headpond.pipeline import load
from headpond.pipeline.lake import open_lake
from tests.kit.expected_tables import archive_lines, change_records, differences, fill, pipeline_text
from tests.kit.support import vector_json

if TYPE_CHECKING:
    from pathlib import Path

EXPECTED = vector_json("dsql/small.expected.json")
DEADLINE_S = 120

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start `headpond run`, with its temporary files in a folder of their own."""
    command = [sys.executable, "-m", "headpond", "run", str(folder / "p.toml"), "--json", *arguments]
    (folder / "temporary").mkdir(exist_ok=True)
    env = os.environ | {"TMPDIR": str(folder / "temporary")}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, cwd=folder, env=env
    )


def kill_during_batch(process: subprocess.Popen[bytes], folder: Path, number: int, delay_s: float) -> bool:
    """Kill all processes a moment after batch `number` was begun; say whether there was such a moment."""
    begun = folder / "lake" / "_headpond" / "checkpoint" / "offsets" / str(number)
    end = time.monotonic() + DEADLINE_S
    while not begun.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(delay_s)
    alive = process.poll() is None
    for each in [*psutil.Process(process.pid).children(recursive=True), process]:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    process.communicate()
    return alive


def next_batch(folder: Path) -> int:
    offsets = folder / "lake" / "_headpond" / "checkpoint" / "offsets"
    return max((int(p.name) for p in offsets.glob("[0-9]*")), default=-1) + 1


def killed_run(folder: Path, draw: random.Random, kills: int) -> dict[str, object]:
    """Run over a stream in small batches, killed so many times, then to the end; give the last summary."""
    with LocalKinesis() as kinesis:
        kinesis.engine.create_stream("changes", 4)
        records = change_records()
        draw.shuffle(records)
        fill(kinesis.client(), "changes", records)
        source = f'stream = "changes"\nendpoint_url = "{kinesis.endpoint_url}"\nstart = "TRIM_HORIZON"\n'
        # So few that there is a batch left for every kill.
        source += f"max_records_per_trigger = {15 if kills == 1 else 5}"
        (folder / "p.toml").write_text(
            pipeline_text(source, path="lake").replace('path = "lake"', 'path = "lake"\ntrigger = "10 ms"')
        )
        for _ in range(kills):
            process = start(folder)
            assert kill_during_batch(process, folder, next_batch(folder) + 1, draw.uniform(0, 1.5))
        process = start(folder, "--until-caught-up", "--strict")
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err.decode()
        summary: dict[str, object] = json.loads(out)
        return summary


def check(folder: Path) -> None:
    assert list((folder / "temporary").iterdir()) == []
    lake = open_lake(load(folder / "p.toml"))
    assert differences(lake, EXPECTED) == []
    for name, table in EXPECTED["tables"].items():
        assert lake.tables[name].typed.file.count() == len(table["rows"])
        assert lake.tombstones.counts().get(name, 0) == len(table["deleted"])
    identities = lake.tables["public.events_nopk"].typed.file.read(
        list(lake.tables["public.events_nopk"].identity)
    )
    assert len(set(map(str, identities.to_pylist()))) == identities.num_rows


def test_a_killed_run_goes_on_where_it_stood(tmp_path: Path) -> None:
    """Killed in the middle of a batch and started again: once, or HEADPOND_FAULT_ROUNDS times."""
    killed_run(tmp_path, random.Random(11), kills=int(os.environ.get("HEADPOND_FAULT_ROUNDS", "1")))
    check(tmp_path)


@pytest.mark.thorough
def test_a_jvm_that_is_killed_is_told_in_a_sentence(tmp_path: Path) -> None:
    """It ended as an unexpected error, to be reported: Spark cannot be stopped any more."""
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "a.jsonl").write_bytes(b"\n".join(archive_lines()) + b"\n")
    text = pipeline_text('archive = "records/*"', path="lake")
    (tmp_path / "p.toml").write_text(text.replace('path = "lake"', 'path = "lake"\ntrigger = "10 ms"'))
    process = start(tmp_path)
    wait_for(tmp_path, process, batches=1)
    (java,) = [each for each in psutil.Process(process.pid).children(recursive=True) if each.name() == "java"]
    java.kill()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3, err.decode()
    assert "Spark's JVM was killed (signal 9)." in err.decode()
    assert "starting again is safe" in err.decode().splitlines()[-1]
    assert "Traceback" not in err.decode()
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_run_goes_on_until_asked_to_stop(tmp_path: Path) -> None:
    """Records that come while it runs are applied; SIGTERM ends it with the summary and exit code 0."""
    with LocalKinesis() as kinesis:
        kinesis.engine.create_stream("changes", 2)
        records = change_records()
        fill(kinesis.client(), "changes", records[:80])
        source = f'stream = "changes"\nendpoint_url = "{kinesis.endpoint_url}"\nstart = "TRIM_HORIZON"'
        text = pipeline_text(source, path="lake").replace('path = "lake"', 'path = "lake"\ntrigger = "10 ms"')
        (tmp_path / "p.toml").write_text(text)
        process = start(tmp_path)
        wait_for(tmp_path, process, batches=1)
        fill(kinesis.client(), "changes", records[80:])
        wait_for(tmp_path, process, batches=2)
        # The tip of a stream is read a moment late (probe_lag); the last records may take another batch.
        time.sleep(5)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err.decode()
    assert len(err.splitlines()) <= 12
    assert json.loads(out)["counters"]["records"] == len(records)
    check(tmp_path)


def wait_for(folder: Path, process: subprocess.Popen[bytes], *, batches: int) -> None:
    """Wait until so many batches are done."""
    commits = folder / "lake" / "_headpond" / "checkpoint" / "commits"
    end = time.monotonic() + DEADLINE_S
    while len(list(commits.glob("[0-9]*"))) < batches and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    assert process.poll() is None
