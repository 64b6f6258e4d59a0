"""`headpond.run` from Python: in a process of its own, and in one that has a session."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark
EXAMPLES = Path(__file__).parents[2] / "examples"

PROGRAM = """
import doctest, signal, sys
import headpond
from headpond.api import running

options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
failed, tried = doctest.testmod(running, globs={"headpond": headpond}, optionflags=options)
assert (failed, tried) == (0, 1), (failed, tried)
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

from pyspark.sql import SparkSession
assert SparkSession.getActiveSession() is None  # it was the run's own, and is ended

# A session of the user's is used, and goes on.
from headpond.spark.session.start import spark_session
spark = spark_session("mine", log_path="mine.log")
seen = []
pipeline = headpond.Pipeline(
    source={"archive": "records.jsonl", "format": "dsql"},
    target="another",
    tables={"public.orders": {"keys": ["id"]}},
)
summary = headpond.run(pipeline, on_progress=seen.append)
assert summary.tables["public.orders"]["upserts"] == 1, summary.tables
assert summary.quarantined == {"unknown_type": 1}
assert summary["counters"]["records"] == 4
assert "reading" in seen and any("batch 0" in words for words in seen), seen
assert "<table>" in summary._repr_html_()
assert spark.range(3).count() == 3
assert headpond.run(pipeline)["counters"]["records"] == 0

# A mistake is a sentence, as in a terminal.
try:
    headpond.run("nowhere.toml")
except headpond.HeadpondError as error:
    assert "nowhere.toml cannot be read" in str(error)
else:
    raise AssertionError
spark.stop()
"""


def test_a_pipeline_runs_from_python(tmp_path: Path) -> None:
    """The example of its docstring, then beside a session of the user's."""
    (tmp_path / "pipeline.toml").write_bytes((EXAMPLES / "pipeline.toml").read_bytes())
    made = subprocess.run([sys.executable, EXAMPLES / "make_changes.py"], capture_output=True, check=True)
    (tmp_path / "records.jsonl").write_bytes(made.stdout)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
