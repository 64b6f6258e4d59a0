"""`headpond rebuild`, called as a user calls it: what it says, and with which code it ends."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headpond.lake.apply import apply_batch
from headpond.pipeline import load
from headpond.pipeline.lake import open_lake
from tests.lake.lakes import decoded
from tests.lake.test_rebuild import HEAD, change, entry

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

BEFORE = entry(keys=["id"], columns={"id": "integer", "n": "text"})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A pipeline with two rows and a delete."""
    file = tmp_path / "p.toml"
    file.write_text(HEAD + BEFORE)
    lake = open_lake(load(file))
    lake.prepare()
    rows = [change(1, {"id": 1, "n": "7", "org": 5}), change(2, {"id": 70_000, "n": "x", "org": 6})]
    gone = change(3, {"id": 9}, op="d")
    apply_batch(lake, decoded(lake.config, [*rows, gone]))  # type: ignore[arg-type]
    return file


def test_what_would_become_of_a_table_and_then_does(cli: Cli, file: Path) -> None:
    """For a person and as JSON; the second time there is nothing to do."""
    file.write_text(HEAD + BEFORE.replace('"integer"', '"bigint"'))
    said = cli("rebuild", file, "public.t", "--dry-run")
    assert said.code == 0
    shown = said.stdout.decode()
    assert 'id = "integer" becomes id = "bigint"' in shown
    assert "2 of 2 rows would be written again" in shown
    assert f"headpond rebuild {file} public.t" in shown.replace("\n", "")
    (found,) = cli("rebuild", file, "public.t", "--json").lines()
    assert found["written"]
    assert found["differences"] == [{"made": 'id = "integer"', "wanted": 'id = "bigint"'}]
    assert (found["rows"], found["superseded"], found["deleted"], found["unfit"]) == (2, 0, 0, 0)
    assert "already matches its entry" in cli("rebuild", file, "public.t").stdout.decode()


def test_values_that_do_not_fit_end_with_1(cli: Cli, file: Path) -> None:
    """Listed by a dry run, and the table stays."""
    file.write_text(HEAD + BEFORE.replace('"integer"', '"smallint"'))
    said = cli("rebuild", file, "public.t", "--dry-run")
    assert said.code == 1
    assert "id 70000: not a valid smallint" in said.stdout.decode()
    done = cli("rebuild", file, "public.t")
    assert done.code == 1
    assert "1 values of the table 'public.t' do not fit" in done.stderr.replace("\n", " ")
    file.write_text(HEAD + BEFORE)
    open_lake(load(file)).prepare()


def test_after_keys_that_were_too_narrow_it_says_what_is_missing(cli: Cli, file: Path) -> None:
    """Rows that were taken for one are in the source alone; requeue says so, too."""
    file.write_text(HEAD + BEFORE.replace('["id"]', '["id", "org"]'))
    shown = " ".join(cli("rebuild", file, "public.t").stdout.decode().split())
    assert "1 delete cannot be known by the new keys" in shown
    assert "--from-start` afterwards" in shown
    lake = open_lake(load(file))
    two = change(8, {"id": 1, "org": 5, "n": "x"}, op="d")
    apply_batch(lake, decoded(lake.config, [two]))  # type: ignore[arg-type]
    shown = " ".join(cli("requeue", file, "--reason", "key_mismatch").stdout.decode().split())
    assert "TABLE --from-start` brings what the source still has of them" in shown
