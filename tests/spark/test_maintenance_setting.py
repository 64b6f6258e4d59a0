"""When a query maintains its tables, as the file says: no session is needed to see that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from headpond.pipeline import loads
from headpond.spark.following import query

if TYPE_CHECKING:
    from pathlib import Path

HEAD = '[source]\narchive = "x.jsonl"\nformat = "dsql"\n[target]\npath = "lake"\n{}\n'
DAY_MS = 86_400_000


class Begun(Exception):
    """What looks after the lake is made; nothing else is of interest."""


@pytest.mark.parametrize(
    ("setting", "until_caught_up", "wanted"),
    [
        ("", False, 7 * DAY_MS),
        ('version_retention = "9 days"', False, 9 * DAY_MS),
        ("maintenance = false", False, None),
        ("", True, None),
    ],
)
def test_tables_are_maintained_while_a_source_is_followed_unless_the_file_says_no(
    setting: str,
    wanted: int | None,
    *,
    until_caught_up: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run that ends leaves it to others."""
    found: list[Any] = []

    def upkeep(*_: Any, versions_ms: int | None, **__: Any) -> None:
        found.append(versions_ms)
        raise Begun

    monkeypatch.setattr(query, "Upkeep", upkeep)
    monkeypatch.setattr(query, "refuse_connect", lambda *_: None)
    pipeline = loads(HEAD.format(setting) + '[tables."public.t"]\nkeys = ["id"]\n', tmp_path)
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="local[1]"))
    with pytest.raises(Begun):
        query.follow(session, pipeline, until_caught_up=until_caught_up)
    assert found == [wanted]
