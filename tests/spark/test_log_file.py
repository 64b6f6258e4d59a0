"""Spark's log lies where no other user can have put it, and two pipelines do not share one."""

from __future__ import annotations

import stat
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from headpond.cli.commands import join as join_state
from headpond.pipeline import loads
from headpond.spark.session import start as session
from headpond.spark.session.settings import log_path

if TYPE_CHECKING:
    from pathlib import Path

    from headpond.pipeline import Pipeline


def pipeline(lake: str, name: str = "orders") -> Pipeline:
    text = f'[source]\nstream = "s"\nformat = "dsql"\n[target]\npath = "{lake}"\n[monitor]\nname = "{name}"\n'
    return loads(text + '[tables."public.t"]\nkeys = ["id"]\n')


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("HEADPOND_CACHE_DIR", str(folder))
    return folder


def test_beside_a_lake_on_this_machine(tmp_path: Path, cache: Path) -> None:
    """In the lake's own folder; nothing else is made."""
    assert log_path(pipeline(str(tmp_path / "lake"))) == tmp_path / "lake/_headpond/logs/spark.log"
    assert not cache.exists()


def test_of_a_lake_in_a_store_in_a_folder_of_this_user_alone(cache: Path) -> None:
    """A file for each pipeline, the same one in its next run, under a name that is a file's."""
    names = [("s3://a/lake", "orders"), ("s3://b/lake", "orders"), ("s3://a/lake", "../../etc/x y")]
    found = [log_path(pipeline(lake, name)) for lake, name in names]
    assert found == [log_path(pipeline(lake, name)) for lake, name in names]
    assert len(set(found)) == 3
    assert {path.parent for path in found} == {cache / "logs"}
    assert found[0].name.startswith("orders-")
    assert stat.S_IMODE((cache / "logs").stat().st_mode) == 0o700


def test_a_folder_that_others_may_look_into_is_closed(cache: Path) -> None:
    """One that is there from another time, with other rights."""
    (cache / "logs").mkdir(parents=True)
    (cache / "logs").chmod(0o777)
    assert log_path(pipeline("s3://a/lake")).parent == cache / "logs"
    assert stat.S_IMODE((cache / "logs").stat().st_mode) == 0o700


def test_the_log_of_a_join_that_is_looked_into_is_there_too(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not under a name in a folder of everybody's."""
    given: list[Path] = []

    def started(*_: Any, log_path: Path, **__: Any) -> Any:
        given.append(log_path)
        return SimpleNamespace(stop=lambda: None)

    monkeypatch.setattr(session, "spark_session", started)
    with join_state._session({}):
        pass
    assert given == [cache / "logs" / "join.log"]


def test_a_planted_link_and_a_place_that_cannot_be_had_are_passed_over(cache: Path, tmp_path: Path) -> None:
    """A new folder then, whose name nobody can guess."""
    (tmp_path / "elsewhere").mkdir()
    cache.mkdir()
    (cache / "logs").symlink_to(tmp_path / "elsewhere")
    linked = log_path(pipeline("s3://a/lake"))
    (cache / "logs").unlink()
    (cache / "logs").write_text("a file")
    blocked = log_path(pipeline("s3://a/lake"))
    for path in (linked, blocked):
        assert cache not in path.parents
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        path.parent.rmdir()
    assert linked.parent != blocked.parent
