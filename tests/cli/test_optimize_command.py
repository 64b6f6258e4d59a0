"""`headpond optimize`, called as a user calls it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from headpond.pipeline import load
from headpond.pipeline.lake import open_lake

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

FILE = """[source]
archive = "x.jsonl"
format = "dsql"
[target]
path = "lake"
[tables."public.t"]
keys = ["id"]
columns = { id = "bigint" }
target_file_size = "SIZE"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A pipeline whose quarantine lies in three files, and whose table is empty."""
    file = tmp_path / "p.toml"
    file.write_text(FILE.replace("SIZE", "1 MiB"))
    lake = open_lake(load(file))
    lake.prepare()
    for number in range(3):
        row = {"reason": "invalid_json", "stream": "s", "shard_id": "0", "sequence_number": str(number)}
        row |= {"sub_sequence_number": 0, "data": b"x", "format_version": 1}
        lake.quarantine.add(pa.Table.from_pylist([row], schema=lake.quarantine.schema))
    return file


def test_all_tables_with_their_figures(cli: Cli, file: Path) -> None:
    """As JSON; nothing is removed without --vacuum."""
    done = cli("optimize", file, "--json")
    assert done.code == 0
    (found,) = done.lines()
    quarantine = found["tables"].pop("_headpond/quarantine")
    assert (quarantine["files_before"], quarantine["files_after"], quarantine["vacuumed"]) == (3, 1, None)
    assert 0 < quarantine["bytes_after"] < quarantine["bytes_before"]
    nothing = {"files_before": 0, "bytes_before": 0, "files_after": 0, "bytes_after": 0, "vacuumed": None}
    assert found["tables"] == {"public.t": nothing}
    assert open_lake(load(file)).quarantine.count() == 3


def test_one_table_with_a_vacuum(cli: Cli, file: Path) -> None:
    """For a person; young files stay."""
    done = cli("optimize", file, "_headpond/quarantine", "--vacuum")
    assert done.code == 0
    shown = done.stdout.decode()
    assert "public.t" not in shown
    assert "files removed" in shown
    assert f"next: headpond status {file}" in shown
    assert f"next: headpond optimize {file} --vacuum" in cli("optimize", file).stdout.decode()
    lake = open_lake(load(file))
    assert len(list(Path(lake.quarantine.file.uri).glob("*.parquet"))) == 4


def test_the_target_size_of_the_file_holds(cli: Cli, file: Path) -> None:
    """Files that are at least that large are left."""
    lake = open_lake(load(file))
    for number in range(2):
        lake.typed["public.t"].file.append(
            pa.table({"id": [number], "_ts_ns": [1], "_tx_id": ["t"], "_image_hash": [b"x"]})
        )
    file.write_text(FILE.replace("SIZE", "1 B"))
    (left,) = cli("optimize", file, "public.t", "--json").lines()
    assert left["tables"]["public.t"]["files_after"] == 2
    file.write_text(FILE.replace("SIZE", "1 MiB"))
    (packed,) = cli("optimize", file, "public.t", "--json").lines()
    assert packed["tables"]["public.t"]["files_after"] == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["public.x"], "The lake has no table 'public.x'"),
        (["--vacuum", "--retain", "1 hour"], "shorter than version_retention"),
        (["--vacuum", "--retain", "a week"], "'a week' is not a number and a unit, as in '5 seconds'"),
        (["--retain", "8 days"], "are for --vacuum"),
        (["--unsafe-retention"], "are for --vacuum"),
    ],
)
@pytest.mark.slow
def test_wrong_use_is_refused(cli: Cli, file: Path, arguments: list[str], said: str) -> None:
    """With one sentence, before anything is done."""
    done = cli("optimize", file, *arguments)
    assert done.code == 2
    assert said in done.stderr
    assert done.stdout == b""
