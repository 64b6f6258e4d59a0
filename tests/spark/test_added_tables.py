"""Tables added to a pipeline later, on Spark: logged on sight, caught up from the log, read again."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from headpond.lake.maintenance.catch_up import catch_up_from_log, configured
from headpond.pipeline import load
from headpond.pipeline.lake import open_lake, row_changes
from headpond.spark import follow
from headpond.spark.following.run import finish, from_the_start
from tests.kit.expected_tables import differences, pipeline_text
from tests.kit.support import vector_bytes, vector_json
from tests.lake.test_unknown_tables import change

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from headpond.pipeline import Pipeline

pytestmark = pytest.mark.spark

STREAM = vector_bytes("dsql/stream.jsonl").splitlines(keepends=True)
EXPECTED = vector_json("dsql/stream.expected.json")
SOURCE = 'archive = "*.jsonl"\nmax_bytes_per_trigger = "900 KiB"'


def run(spark: SparkSession, pipeline: Pipeline, only: str | None = None) -> None:
    assert follow(spark, pipeline, until_caught_up=True, only=only).awaitTermination(240)


def test_tables_added_later_are_as_if_always_configured(spark: SparkSession, tmp_path: Path) -> None:
    """One was in the configuration, some were logged on sight, one is read again from the archive's start."""
    lines = random.Random(6).sample(STREAM, len(STREAM))
    (tmp_path / "a.jsonl").write_bytes(b"".join(lines[:1000]))
    head, *entries = pipeline_text(SOURCE, path="lake", wanted=EXPECTED).split("\n[tables.")
    head = head.replace("[target]", '[target]\nunknown_tables = "log"')
    file = tmp_path / "p.toml"
    file.write_text("\n[tables.".join([head, entries[0]]))
    run(spark, load(file))
    assert len(open_lake(load(file)).extras.unknown.logs) == len(entries) - 1
    (tmp_path / "b.jsonl").write_bytes(b"".join(lines[1000:]))
    file.write_text("\n[tables.".join([head, *entries]))
    pipeline = load(file)
    run(spark, pipeline)
    _, again, *logged = row_changes(pipeline).tables
    for spec in logged:
        catch_up_from_log(open_lake(pipeline), spec.name)
    second = from_the_start(pipeline, again.name)
    run(spark, second, again.name)
    finish(second, configured(open_lake(pipeline), again.name))
    lake = open_lake(pipeline)
    assert differences(lake, EXPECTED) == []
    assert (lake.pending.count(), lake.quarantine.count()) == (0, 0)
    left = [path for path in (tmp_path / "lake/_headpond").glob("*catch*") if any(path.iterdir())]
    assert left == []


@pytest.mark.parametrize("engine", ["embedded", "spark"])
def test_tables_of_a_pattern_are_made_while_a_stream_is_followed(
    spark: SparkSession, tmp_path: Path, engine: str
) -> None:
    """By one run and the next, in two forms; one is caught up by its name."""
    head = f'[source]\narchive = "*.jsonl"\nformat = "dsql"\n[target]\npath = "lake"\nengine = "{engine}"\n'
    head += '[defaults]\nkeys = ["id"]\n[tables."public.*"]\ncolumns = { id = "bigint" }\n'
    history = '[tables."history.*"]\nschema = "public"\ntable = "*"\nkeep = "history"\n'
    file = tmp_path / "p.toml"
    file.write_text(head)
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(change(n, "ab"[n % 2], {"id": n % 4}) for n in range(1, 9)))
    run(spark, load(file))
    file.write_text(head + history)
    (tmp_path / "b.jsonl").write_bytes(b"\n".join(change(n, "bc"[n % 2], {"id": 5}) for n in range(11, 13)))
    run(spark, load(file))
    again = from_the_start(load(file), "history.a")
    run(spark, again, "history.a")
    lake = open_lake(load(file))
    finish(again, configured(lake, "history.a"))
    assert {name: table.typed.file.count() for name, table in lake.tables.items()} == {
        "public.a": 2,
        "public.b": 3,
        "public.c": 1,
        "history.a": 4,
        "history.b": 1,
        "history.c": 1,
    }
    assert lake.quarantine.count() == 0
