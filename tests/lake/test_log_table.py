"""Logs: what makes two entries one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headpond.lake.apply import apply_batch
from tests.lake.lakes import decoded, lake_in
from tests.lake.test_apply import change

if TYPE_CHECKING:
    from pathlib import Path

LOG = '[tables."public.t"]\nkeep = "log"\n'


def entries(folder: Path, rest: str, *batches: list[bytes]) -> tuple[list[tuple[Any, ...]], list[int]]:
    """The log's operations and images, and how many entries each batch appended."""
    lake, config = lake_in(folder, LOG + rest)
    appended = []
    for batch in batches:
        applied = apply_batch(lake, decoded(config, batch)).tables.get("public.t", {})
        appended.append(applied.get("appended", 0))
    rows = lake.tables["public.t"].typed.file.read(["_op", "_before", "_after", "_ts_ns"]).to_pylist()
    return sorted((row["_ts_ns"], row["_op"], row["_before"] or row["_after"]) for row in rows), appended


def test_an_entry_is_told_by_its_place(tmp_path: Path) -> None:
    """Reading again adds nothing; what the service delivers twice is there twice."""
    first = [change(1, {"id": 1}, ts_ns=5), change(2, {"id": 1}, ts_ns=5)]
    found, appended = entries(tmp_path, "keys = []\n", first, [*first, change(3, {"id": 1}, ts_ns=5)])
    assert appended == [2, 1]
    assert found == [(5, "c", '{"id": 1}')] * 3


@pytest.mark.parametrize("keys", ["[]", '["id"]'])
def test_an_entry_is_told_by_its_content(keys: str, tmp_path: Path) -> None:
    """Commit time, transaction, operation and image: of an upsert the row, of a delete the key it names."""
    first = [
        change(1, {"id": 1, "n": None}, ts_ns=5),
        change(2, {"id": 2}, ts_ns=5),
        change(3, {"id": 1}, ts_ns=5, op="u"),
        change(4, {"id": 1}, ts_ns=6),
        change(5, {"id": 1}, ts_ns=7, op="d"),
        change(6, {"id": 2}, ts_ns=7, op="d"),
    ]
    again = [change(10 + n, {"id": n}, ts_ns=7, op="d") for n in (1, 2)]
    again += [change(20, {"id": 1}, ts_ns=5), change(21, {"id": 3}, ts_ns=7, op="d")]
    found, appended = entries(tmp_path, f'keys = {keys}\ndedupe = "content"\n', first, again)
    assert appended == [6, 1]
    assert [(time, op) for time, op, _ in found] == [
        (5, "c"),
        (5, "c"),
        (5, "u"),
        (6, "c"),
        (7, "d"),
        (7, "d"),
        (7, "d"),
    ]
    assert [image for time, _, image in found if time == 7] == ['{"id": 1}', '{"id": 2}', '{"id": 3}']
