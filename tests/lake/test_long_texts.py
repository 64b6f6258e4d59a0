"""Texts longer than what files say of their least and greatest values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from headpond.lake.apply import apply_batch
from headpond.lake.delta import DeltaFile
from headpond.lake.engine.merge import Merge, always
from headpond.lake.maintenance.optimize import optimize_file
from tests.lake.lakes import decoded, lake_in
from tests.lake.test_apply import change

if TYPE_CHECKING:
    from pathlib import Path

ENDS = ["", "a", "b", "\x00", "\x7f", "é", "\uffff", "\U0010ffff"]
STARTS = ["x" * 63, "x" * 64, "é" * 32, "\x7f" * 64, "\uffff" * 22, "\U0010ffff" * 16, "\U0010ffff" * 40]


def least_and_greatest(place: Path) -> tuple[str, str]:
    """What the newest commit says of the texts in the file that it adds."""
    commit = max((place / "_delta_log").glob("*.json")).read_text()
    (added,) = (json.loads(line)["add"] for line in commit.splitlines() if '"add"' in line)
    stats = json.loads(added["stats"])
    return stats["minValues"]["v"], stats["maxValues"]["v"]


def test_a_commit_does_not_hold_whole_texts(tmp_path: Path) -> None:
    """Of a long text its file's statistics have the beginning, of a huge one nothing, whoever wrote it."""
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "v": ["y" * 1000, "z" * 1000]})
    file = DeltaFile(str(tmp_path / "t"))
    file.create(rows.schema)
    for number in (0, 1):
        file.merge(Merge(rows.slice(number, 1), ["id"]))
    assert least_and_greatest(tmp_path / "t") == ("z" * 64, "z" * 63 + "{")
    both = "y" * 64, "z" * 63 + "{"
    for order_by in ((), ("v",)):
        optimize_file(file, order_by=order_by)
        assert least_and_greatest(tmp_path / "t") == both
    file.merge(Merge(rows.slice(0, 1), ["id"], wins=always, gone=pa.repeat(True, 1)))
    assert least_and_greatest(tmp_path / "t") == ("z" * 64, "z" * 63 + "{")
    file.merge(Merge(pa.table({"id": pa.array([3], pa.int64()), "v": ["x" * 100_000]}), ["id"]))
    with pytest.raises(KeyError):
        least_and_greatest(tmp_path / "t")


@pytest.mark.thorough
@pytest.mark.parametrize("start", STARTS, ids=ascii)
def test_rows_are_found_by_keys_that_begin_alike(start: str, tmp_path: Path) -> None:
    """Each key is one row, and each file is looked into that may hold it."""
    lake, config = lake_in(tmp_path, '[tables."public.t"]\nkeys = ["id"]\ncolumns = { id = "text" }\n')
    keys = [start + end for end in ENDS]
    for number, key in enumerate(keys):  # a file each
        apply_batch(lake, decoded(config, [change(number + 1, {"id": key, "v": number})]))
    again = apply_batch(
        lake, decoded(config, [change(100 + n, {"id": k, "v": n}) for n, k in enumerate(keys)])
    )
    assert again.tables["public.t"]["upserts"] == len(keys)
    file = lake.typed["public.t"].file
    assert sorted(file.read(["id"])["id"].to_pylist()) == sorted(keys)
    assert set(file.read(["_ts_ns"])["_ts_ns"].to_pylist()) == set(range(100, 100 + len(keys)))
    for key in keys:
        quoted = key.replace("'", "''")
        assert file.read(["id"], f"\"id\" = '{quoted}'")["id"].to_pylist() == [key]
