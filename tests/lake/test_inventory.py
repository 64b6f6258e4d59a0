"""What an operator does to a lake between two runs is met before anything is written."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from headpond.core.errors import ConfigurationError, InvalidData
from headpond.lake.apply import apply_batch
from headpond.lake.tables import Lake
from tests.lake.lakes import decoded, lake_in
from tests.lake.test_apply import change

if TYPE_CHECKING:
    from pathlib import Path

TABLE = """
[tables."public.t"]
keys = ["id"]
columns = { id = "integer", org = "integer" }
"""


@pytest.mark.parametrize("gone", ["public.t", "_headpond/quarantine", "_headpond/tombstones"])
def test_a_table_that_is_gone_is_missed(tmp_path: Path, gone: str) -> None:
    """Made anew it would lack what was read before; the message says the way out, which works."""
    lake, config = lake_in(tmp_path, TABLE)
    # The tables that the batch makes are listed with it.
    apply_batch(lake, decoded(config, [b'{"data": "YQ=="}', change(1, {"id": 1}, op="d")]))
    shutil.rmtree(tmp_path / "lake" / gone)
    with pytest.raises(ConfigurationError, match="its folder is gone") as refused:
        lake_in(tmp_path, TABLE)
    assert refused.value.facts["tables"] == [gone]
    assert not (tmp_path / "lake" / gone).exists()
    listed = tmp_path / "lake" / "_headpond" / "tables.json"
    assert str(listed) in (refused.value.next_step or "")
    listed.write_text(listed.read_text().replace(json.dumps(gone), '"another"'))
    lake_in(tmp_path, TABLE)


def test_a_table_whose_changes_are_read_again_may_be_made_anew(tmp_path: Path) -> None:
    """All of them without a checkpoint, one when it is loaded from the start of its source."""
    lake, _ = lake_in(tmp_path, TABLE)
    for anew in (["public.t"], None):
        shutil.rmtree(tmp_path / "lake" / "public.t")
        Lake(lake.path, lake.config).prepare(rebuilt=anew)
        assert (tmp_path / "lake" / "public.t").exists()


def test_a_table_taken_out_of_the_pipeline_is_not_missed(tmp_path: Path) -> None:
    """Only what is configured is looked for, and new tables are welcome."""
    lake_in(tmp_path, TABLE + TABLE.replace("public.t", "public.u"))
    shutil.rmtree(tmp_path / "lake" / "public.u")
    lake_in(tmp_path, TABLE + TABLE.replace("public.t", "public.v"))


def test_a_list_that_is_damaged_is_named(tmp_path: Path) -> None:
    """It can be written again at any time."""
    lake_in(tmp_path, TABLE)
    listed = tmp_path / "lake" / "_headpond" / "tables.json"
    for content in ("", "[]", "{", "{}"):
        listed.write_text(content)
        with pytest.raises(InvalidData, match="is not a list of a lake's tables"):
            lake_in(tmp_path, TABLE)
    listed.unlink()
    lake_in(tmp_path, TABLE)


def test_another_source_is_refused_while_the_checkpoint_continues(tmp_path: Path) -> None:
    """With both of them; a checkpoint begun anew may have any, and a command need not name one."""
    lake, _ = lake_in(tmp_path, TABLE)
    lake.prepare(source="the stream a")
    lake.prepare(source="the stream a")
    lake.prepare()
    with pytest.raises(ConfigurationError, match="was fed by the stream a, and the pipeline") as refused:
        lake.prepare(source="the stream b")
    assert "checkpoint" in refused.value.next_step
    lake.prepare(rebuilt=None, source="the stream b")
    with pytest.raises(ConfigurationError, match="the stream b"):
        lake.prepare(source="the stream a")


def test_a_lake_of_before_takes_the_source_of_its_first_start(tmp_path: Path) -> None:
    """Older lists do not name one."""
    lake, _ = lake_in(tmp_path, TABLE)
    lake.prepare(source="the stream a")
    place = tmp_path / "lake" / "_headpond" / "tables.json"
    document = json.loads(place.read_text())
    del document["source"]
    place.write_text(json.dumps(document))
    lake.prepare(source="the stream b")
    assert json.loads(place.read_text())["source"] == "the stream b"


def test_a_table_that_left_the_file_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its rows stay, and from now on its changes are those of an unknown table."""
    lake_in(tmp_path, TABLE)
    assert caplog.messages == []
    other = TABLE.replace("public.t", "public.other")
    lake_in(tmp_path, other)
    (said,) = caplog.messages
    assert said.startswith("The table public.t has no entry in the pipeline file any more")
    lake_in(tmp_path, other)
    assert len(caplog.messages) == 1
