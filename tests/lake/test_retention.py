"""After a tombstone was dropped nothing revives its row, whatever else came late, and however often."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headpond.lake.apply import apply_batch
from tests.lake.lakes import decoded, lake_in
from tests.lake.test_apply import change

if TYPE_CHECKING:
    from pathlib import Path

    from headpond.dsql.decode import DsqlConfig
    from headpond.lake.tables import Lake

TABLE = '[tables."public.t"]\nkeys = ["id"]\ncolumns = { id = "bigint" }\n'
MS = 1_000_000
OLDER_DELETE = change(3, {"id": 1}, op="d", ts_ns=2 * MS)
UPSERT = change(4, {"id": 1}, ts_ns=5 * MS)


def with_a_dropped_tombstone(folder: Path) -> tuple[Lake, DsqlConfig]:
    """The newest commit is at 20 ms; the row of key 1 was deleted at 10 ms."""
    lake, config = lake_in(folder, TABLE)
    lines = [change(1, {"id": 1}, op="d", ts_ns=10 * MS), change(2, {"id": 2}, ts_ns=20 * MS)]
    apply_batch(lake, decoded(config, lines))
    assert lake.retire_tombstones(10) == 0  # exactly as old as the retention: not older
    assert lake.retire_tombstones(9) == 1
    return lake, config


@pytest.mark.parametrize("batches", [[[OLDER_DELETE], [UPSERT]], [[OLDER_DELETE, UPSERT]] * 2])
@pytest.mark.slow
def test_a_late_delete_lets_no_late_upsert_through(batches: list[list[bytes]], tmp_path: Path) -> None:
    """In a batch before it, or in its own that is applied again."""
    lake, config = with_a_dropped_tombstone(tmp_path)
    for batch in batches:
        applied = apply_batch(lake, decoded(config, batch))
        figures = applied.tables["public.t"]
        assert figures.total() + applied.quarantined.total() == len(batch)
    assert lake.typed["public.t"].file.read(["id"])["id"].to_pylist() == [2]
    assert dict(lake.quarantine.counts_by("reason")) == {"too_late": 1}


def test_nor_does_the_second_look_of_a_writer_beside(tmp_path: Path) -> None:
    """Which applies a batch twice."""
    lake, config = with_a_dropped_tombstone(tmp_path)
    apply_batch(lake, decoded(config, [OLDER_DELETE, UPSERT]), shared=True)
    assert lake.typed["public.t"].file.read(["id"])["id"].to_pylist() == [2]
