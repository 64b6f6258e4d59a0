"""What an archive without records, or with a file that is cut off, is called at the end of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headpond.core.errors import InvalidData, MissingRequirement
from headpond.pipeline import load, loads
from headpond.pipeline.lake import open_lake
from headpond.spark.following.run import Run, check_lines

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_that_is_cut_off_is_named_even_where_nothing_of_it_was_read() -> None:
    """Not taken for one whose lines are of another kind."""
    rows = [{"shard_id": "a.gz", "data": b"gzip file of 150 bytes: ended early"}]
    with pytest.raises(InvalidData, match=r"a\.gz is truncated or damaged: gzip file of 150 bytes: ended"):
        check_lines("a.gz", rows, whole=True, lines=1)
    with pytest.raises(InvalidData, match=r"No line of the archive b is a record \(1 read\)"):
        check_lines("b", [{"shard_id": "b", "data": None}], whole=True, lines=1)
    check_lines("b", [{"shard_id": "b", "data": b"hello"}], whole=False, lines=2)


def test_an_archive_of_empty_files_is_an_error_where_its_end_was_asked_for(tmp_path: Path) -> None:
    """A run that follows it waits for what is written there."""
    file = tmp_path / "p.toml"
    file.write_text(
        '[source]\narchive = "a.jsonl"\nformat = "dsql"\n[target]\npath = "lake"\n'
        '[tables."public.orders"]\nkeys = ["id"]\n'
    )
    (tmp_path / "a.jsonl").touch()
    pipeline = load(file)
    Run(pipeline).check_archive(open_lake(pipeline))
    with pytest.raises(InvalidData, match=r"No line of the archive .*a\.jsonl is a record \(0 read\)"):
        Run(pipeline, until_caught_up=True).check_archive(open_lake(pipeline))
    (tmp_path / "b.jsonl").write_text("x")
    file.write_text(file.read_text().replace("a.jsonl", "*.jsonl"))
    pipeline = load(file)
    Run(pipeline, until_caught_up=True).check_archive(open_lake(pipeline))


def test_what_ended_spark_is_said_with_what_may_have_done_it(tmp_path: Path) -> None:
    """The first line of what Spark says of a lost worker names a file of py4j; jars are missed late."""
    file = tmp_path / "p.toml"
    file.write_text(
        '[source]\nformat = "dsql"\narchive = "*"\n[target]\npath = "lake"\n'
        '[tables."public.t"]\nkeys = ["id"]'
    )
    run = Run(load(file))
    in_a_store = Run(loads(file.read_text().replace('"lake"', '"abfss://c@a.dfs.core.windows.net/lake"')))
    trace = (
        "[STREAM_FAILED] Query terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR]:\n"
        '  File "clientserver.py", line 644, in _call_proxy\n'
        "py4j.protocol.Py4JJavaError: An error occurred while calling o196.getResult.\n"
        "Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).\n"
    )
    error = run._headpond_error(RuntimeError(trace))
    assert str(error).startswith(
        "A process that decodes records ended unexpectedly. A system that is short of"
    )
    error = run._headpond_error(RuntimeError(trace.replace("Python worker", "It")))
    assert str(error).startswith(
        "Spark ended the query: org.apache.spark.SparkException: It exited unexpectedly"
    )
    trace = "Caused by: java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.azurebfs.Abfss not found"
    error = in_a_store._headpond_error(RuntimeError(trace))
    assert (type(error), "org.apache.hadoop:hadoop-azure:" in str(error)) == (MissingRequirement, True)
