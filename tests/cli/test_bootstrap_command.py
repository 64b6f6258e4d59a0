"""`headpond bootstrap`, called as a user calls it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headpond.cli.commands.bootstrap import read_moment
from headpond.core.errors import UsageError
from headpond.core.schemas import USER_RECORD_SCHEMA
from headpond.lake.apply import DecodedBatch, apply_batch
from headpond.pipeline import load
from headpond.pipeline.lake import open_lake

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Cli

FILE = """[source]
archive = "x.jsonl"
format = "dsql"
[target]
path = "lake"
[tables."public.t"]
keys = ["id"]
columns = { id = "bigint", v = "text" }
"""

SOURCE = {"version": "1.0", "txId": "t", "schema": "public", "table": "t"}


def records_with(data: list[bytes]) -> pa.RecordBatch:
    origin = {"stream": "s", "shard_id": "0", "sub_sequence_number": 0, "aggregated": False}
    rows = [origin | {"sequence_number": str(n), "data": each} for n, each in enumerate(data)]
    return pa.RecordBatch.from_pylist(rows, schema=USER_RECORD_SCHEMA)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A pipeline, and a dump of three rows beside it."""
    file = tmp_path / "p.toml"
    file.write_text(FILE)
    pq.write_table(pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"]}), tmp_path / "dump.parquet")
    return file


def test_an_unknown_table_is_said_before_all_else(cli: Cli, file: Path) -> None:
    """Not after a moment was asked for and the files were looked for."""
    result = cli("bootstrap", file, "public.tt", "nothing.parquet")
    assert result.code == 2
    assert "public.tt" in result.stderr
    assert "public.t" in result.stderr.replace("public.tt", "")
    assert "--ts-ns" not in result.stderr


def test_a_table_is_compared_with_files(cli: Cli, file: Path) -> None:
    """Exit code 1 where they differ; the moment says what the files cannot know."""
    dump = file.parent / "*.parquet"
    assert cli("bootstrap", file, "public.t", dump, "--ts-ns", 10**9).code == 0
    same = cli("check-against", file, "public.t", "--parquet", dump, "--ts-ns", 10**9)
    assert (same.code, same.stdout) == (0, b"public.t: 3 of 3 rows, no difference.\n")
    pq.write_table(pa.table({"id": [1, 2], "v": ["a", "other"]}), file.parent / "dump.parquet")
    other = cli("check-against", file, "public.t", "--parquet", dump, "--json", "--limit", 1)
    assert other.code == 1
    assert other.lines() == [
        {
            "table": "public.t", "equal": False, "moment_ns": None, "newest_ns": 10**9,
            "rows_there": 2, "rows_here": 3, "missing": 0, "extra": 1, "different": 1, "newer": 0,
            "columns": {"v": 1},
            "keys": {"missing": [], "extra": ["[3]"], "different": [{"key": "[2]", "columns": ["v"]}]},
        }
    ]  # fmt: skip
    later = cli("check-against", file, "public.t", "--parquet", dump, "--ts-ns", 1)
    assert (later.code, later.stdout) == (0, b"public.t: 3 of 2 rows, no difference, 2 changed since.\n")


@pytest.mark.slow
def test_a_dump_is_loaded_once(cli: Cli, file: Path) -> None:
    """The figures as JSON; a second load writes nothing."""
    dump = file.parent / "*.parquet"
    done = cli("bootstrap", file, "public.t", dump, "--ts-ns", "1970-01-01T00:00:01Z", "--json")
    figures = {"table": "public.t", "ts_ns": 10**9, "files": 1, "rows": 3, "out_of_range": 0}
    assert done.code == 0
    assert done.lines() == [figures | {"upserts": 3, "duplicates": 0, "stale": 0}]
    again = cli("bootstrap", file, "public.t", dump, "--ts-ns", 10**9)
    assert again.code == 0
    assert "public.t: 0 of 3 rows were written. 3 were there already" in again.stdout.decode()
    assert open_lake(load(file)).typed["public.t"].file.count() == 3


def test_what_does_not_fit_is_refused_with_its_place(cli: Cli, file: Path) -> None:
    """A value is the data's fault, a column the configuration's."""
    dump = file.parent / "dump.parquet"
    pq.write_table(pa.table({"id": [1, 1], "v": ["a", "b"]}), dump)
    twice = cli("bootstrap", file, "public.t", dump, "--ts-ns", 1)
    assert twice.code == 1
    assert "have the same key (id): [1]." in twice.stderr
    pq.write_table(pa.table({"id": [1], "w": ["a"]}), dump)
    lacks = cli("bootstrap", file, "public.t", dump, "--ts-ns", 1)
    assert lacks.code == 2
    assert "The column 'v'" in lacks.stderr
    assert cli("bootstrap", file, "public.t", dump, "--ts-ns", 1, "--missing-as-null").code == 0


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0", 0),
        ("1783600000123456789", 1783600000123456789),
        ("2026-07-09T12:26:40Z", 1783600000 * 10**9),
        ("2026-07-09T14:26:40.123456789+02:00", 1783600000123456789),
        ("1970-01-01T00:00:00.000000001Z", 1),
    ],
)
def test_moments_are_read_to_the_nanosecond(text: str, ns: int) -> None:
    """As digits or as a time."""
    assert read_moment(text) == ns


@pytest.mark.parametrize(
    "text", ["", "-1", "2026-07-09T12:26:40", "yesterday", str(2**63), "1960-01-01T00:00:00Z", "Z"]
)
def test_other_moments_are_refused(text: str) -> None:
    """A time without an offset could be any of two dozen."""
    with pytest.raises(UsageError, match="--ts-ns"):
        read_moment(text)


def test_a_table_is_caught_up_from_its_raw_log(cli: Cli, file: Path) -> None:
    """The figures as JSON and in words; without a log it says what else there is."""
    table = '[tables."public.t"]'
    without = file.read_text().split(table)[0].replace("[target]", '[target]\nunknown_tables = "log"')
    records = [{"op": "c", "after": {"id": n, "v": "x"}} for n in (1, 2)] + [{"op": "c", "after": {"v": "x"}}]
    data = [
        json.dumps({"type": "full", "source": SOURCE | {"ts_ns": n}} | record).encode()
        for n, record in enumerate(records)
    ]
    file.with_name("open.toml").write_text(without)
    lake = open_lake(load(file.with_name("open.toml")))
    rows = lake.config.decode(records_with(data)).tables
    apply_batch(lake, DecodedBatch({name: pa.Table.from_batches([each]) for name, each in rows.items()}))
    done = cli("bootstrap", file, "public.t", "--from-log", "--json")
    assert done.code == 0
    assert done.lines() == [
        {
            "table": "public.t",
            "from": "log",
            "entries": 3,
            "figures": {"upserts": 2},
            "quarantined": {"missing_key": 1},
        }
    ]
    again = cli("bootstrap", file, "public.t", "--from-log").stdout.decode()
    assert again == "public.t: 3 changes from its log: 2 duplicates. In quarantine: 1 missing_key.\n"
    none = cli("bootstrap", file, "public.t", "--from-log", "--from-start")
    assert (none.code, "one of four" in none.stderr) == (2, True)


@pytest.mark.parametrize(
    "arguments",
    [(), ("dump.parquet",), ("--from-log", "--ts-ns", "1"), ("--from-start", "--missing-as-null")],
)
def test_options_that_do_not_fit_together_are_refused(
    cli: Cli, file: Path, arguments: tuple[str, ...]
) -> None:
    """Before anything is read."""
    assert cli("bootstrap", file, "public.t", *arguments).code == 2
