"""Spark is started beside the checks, and nothing of it is left where these fail."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from headpond.core.errors import MissingRequirement
from headpond.pipeline import loads
from headpond.spark.session import start as early
from headpond.spark.session.settings import log_path
from headpond.spark.session.start import Starting, given_up_on_failure, start_early

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headpond.pipeline import Pipeline

TEXT = """
[source]
archive = "%s/*.jsonl"
format = "dsql"

[target]
path = "%s/lake"
%s

[tables."public.orders"]
keys = ["id"]
"""


def pipeline_in(folder: Path, target: str = "") -> Pipeline:
    return loads(TEXT % (folder, folder, target), folder)


class Context:
    """A Spark context that says whether it was stopped."""

    def __init__(self) -> None:
        self.stopped = threading.Event()

    def stop(self) -> None:
        self.stopped.set()


class Launch:
    """Stands for the start of a JVM: writes the log at once, is up when it is let."""

    def __init__(self) -> None:
        self.let = threading.Event()
        self.context = Context()
        self.error: Exception | None = None
        self.logged = threading.Event()

    def __call__(self, _name: str, *, conf: dict[str, str], log_path: Path, **_options: Any) -> Context:
        assert conf == {"spark.a": "1"}
        log_path.parent.mkdir(parents=True, exist_ok=True)
        log_path.write_text("said")
        self.logged.set()
        assert self.let.wait(30)
        if self.error is not None:
            raise self.error
        return self.context


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launch]:
    made = Launch()
    monkeypatch.setattr(early, "started_context", made)
    yield made
    made.let.set()


def _wait_and_fail(starting: Starting) -> None:
    starting.wait()
    raise ZeroDivisionError


def log_in(folder: Path) -> Path:
    return log_path(pipeline_in(folder))


def test_a_start_is_waited_for_and_left_to_the_caller(launch: Launch, tmp_path: Path) -> None:
    starting = Starting({"spark.a": "1"}, log_in(tmp_path))
    launch.let.set()
    with pytest.raises(ZeroDivisionError), given_up_on_failure(starting):
        _wait_and_fail(starting)
    assert not launch.context.stopped.is_set()
    assert (tmp_path / "lake/_headpond/logs/spark.log").exists()


def test_a_start_that_failed_says_so_when_it_is_waited_for(launch: Launch, tmp_path: Path) -> None:
    launch.error = MissingRequirement("no Java", next_step="Install one.")
    launch.let.set()
    with pytest.raises(MissingRequirement, match="no Java"):
        Starting({"spark.a": "1"}, log_in(tmp_path)).wait()


@pytest.mark.parametrize("up", [False, True])
def test_failed_checks_end_a_start_and_leave_no_folder(launch: Launch, tmp_path: Path, *, up: bool) -> None:
    """Whether Spark is up by then, or comes up later."""
    starting = Starting({"spark.a": "1"}, log_in(tmp_path))
    assert launch.logged.wait(30)
    if up:
        launch.let.set()
        starting._thread.join(30)
    with pytest.raises(ZeroDivisionError), given_up_on_failure(starting):
        raise ZeroDivisionError
    launch.let.set()
    assert launch.context.stopped.wait(30)
    starting._thread.join(30)
    assert list(tmp_path.iterdir()) == []


def test_what_was_in_the_lake_before_stays(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "lake/_headpond/logs").mkdir(parents=True)
    (tmp_path / "lake/_headpond/logs/spark.log").write_text("an older run")
    starting = Starting({"spark.a": "1"}, log_in(tmp_path))
    assert launch.logged.wait(30)
    starting.give_up()
    assert (tmp_path / "lake/_headpond/logs/spark.log").exists()


def test_wrong_settings_are_left_to_the_checks(launch: Launch, tmp_path: Path) -> None:
    pipeline = pipeline_in(tmp_path, 'checkpoint = "s3://bucket/checkpoint"')
    assert start_early(pipeline, log_path(pipeline)) is None
    assert not launch.logged.is_set()


def test_under_spark_submit_its_jvm_is_used(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert start_early(pipeline_in(tmp_path), log_in(tmp_path)) is None
    assert not launch.logged.is_set()


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_spark_that_runs_is_used(launch: Launch, tmp_path: Path) -> None:
    assert start_early(pipeline_in(tmp_path), log_in(tmp_path)) is None
    assert not launch.logged.is_set()


@pytest.mark.slow
def test_a_run_whose_checks_fail_leaves_no_jvm_and_no_lake(tmp_path: Path) -> None:
    (tmp_path / "pipeline.toml").write_text(TEXT % (tmp_path, tmp_path, ""))
    command = [sys.executable, "-m", "headpond", "run", str(tmp_path / "pipeline.toml"), "--until-caught-up"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, "No file matches the archive" in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "lake").exists()

    def ours() -> list[psutil.Process]:
        return [
            each for each in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(each.info["cmdline"])
        ]

    _gone, left = psutil.wait_procs(ours(), timeout=30)
    assert left == []
