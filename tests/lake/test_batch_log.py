"""The batch log, the run mark, and the sizes of tables: what they hold, and that they stay small."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from headpond.core.errors import ConfigurationError, InvalidData, MissingRequirement
from headpond.lake.apply import apply_batch
from headpond.lake.delta import DeltaFile, Size
from headpond.lake.reports import BATCHES_SCHEMA, BatchLog, BatchReport, row_of, sizes_of
from headpond.lake.state.run_mark import RunMark
from tests.lake.lakes import decoded, lake_in
from tests.lake.test_unknown_tables import change

if TYPE_CHECKING:
    from pathlib import Path

REPORT = BatchReport(
    run_id="r",
    batch_id=7,
    begun_ms=1_767_225_600_123,
    duration_ms=812,
    phases_ms={"addBatch": 700},
    records=10,
    data_bytes=4_000,
    tables={
        "public.t": {"upserts": 3, "deletes": 1, "duplicates": 2, "stale": 0, "superseded": 1},
        "public.log": {"appended": 1, "duplicates": 0},
    },
    reasons={"cast_error": 2},
    newest={"public.t": (1_767_225_600_000_000_000, 5_000_000)},
    lags_ms={"shardId-000000000001": 40, "shardId-000000000000": 1_500},
    sizes={"public.t": Size(3, 2_048, 1)},
)


def report(batch_id: int, **changes: Any) -> BatchReport:
    facts = {"run_id": "r", "batch_id": batch_id, "begun_ms": 1_000 * batch_id, "duration_ms": 5}
    return BatchReport(**(facts | changes))


def log_in(folder: Path, keep: int = 10_000, **options: int) -> BatchLog:
    return BatchLog(DeltaFile(str(folder / "batches")), keep, **options)


def test_a_batch_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Totals in columns of their own, the rest as JSON text that anybody can open."""
    log = log_in(tmp_path)
    log.add([REPORT])
    (row,) = log.last(5)
    assert (row["applied"], row["duplicates"], row["stale"], row["quarantined"]) == (5, 2, 1, 2)
    assert (row["records"], row["data_bytes"], row["lag_ms"], row["duration_ms"]) == (10, 4_000, 1_500, 812)
    assert row["begun"] == "2026-01-01T00:00:00.123+00:00"
    assert row["tables"] == {
        "public.t": {"upserts": 3, "deletes": 1, "duplicates": 2, "superseded": 1},
        "public.log": {"appended": 1},
    }
    assert row["sizes"] == {"public.t": {"rows": 3, "bytes": 2_048, "files": 1, "log_bytes": 0}}
    assert row["phases_ms"] == {"addBatch": 700}


def test_every_change_of_a_batch_is_counted_once() -> None:
    """Applied, duplicate and stale together are all changes."""
    row = row_of(REPORT)
    changes = sum(sum(figures.values()) for figures in REPORT.tables.values())
    assert row["applied"] + row["duplicates"] + row["stale"] == changes


@pytest.mark.thorough
def test_the_log_stays_small(tmp_path: Path) -> None:
    """Only the newest rows stay, in few files, and the order of batches survives."""
    log = log_in(tmp_path, keep=5, trim_commits=4)
    for number in range(1, 24):
        log.add([report(number)])
    found = [row["batch_id"] for row in log_in(tmp_path).last(100)]
    assert found == list(range(found[0], 24))
    assert 5 <= len(found) <= 5 + 4
    assert len(DeltaTable(str(tmp_path / "batches")).file_uris()) <= 4
    assert [row["batch_id"] for row in log.last(2)] == [22, 23]
    assert log.file.schema().names == BATCHES_SCHEMA.names


def test_a_bound_of_nothing_writes_nothing(tmp_path: Path) -> None:
    """`batches = 0` makes no table, and reading none is no error."""
    log = log_in(tmp_path, keep=0)
    log.add([REPORT])
    assert not (tmp_path / "batches").exists()
    assert log.last(3) == []


def test_sizes_are_those_of_the_tables(tmp_path: Path) -> None:
    """Rows, bytes and files of every table, those of the pipeline itself too."""
    lake, config = lake_in(tmp_path, '[tables."public.t"]\nkeys = ["id"]\n')
    apply_batch(lake, decoded(config, [change(1, "t", {"id": 1}), change(2, "unknown", {"id": 1})]))
    sizes = sizes_of(lake)
    assert (sizes["public.t"].rows, sizes["_headpond/quarantine"].rows) == (1, 1)
    files = list((tmp_path / "lake" / "public.t").glob("*.parquet"))
    assert sizes["public.t"].bytes == sum(file.stat().st_size for file in files)
    assert sizes["public.t"].files == len(files)


def test_a_mark_is_replaced_whole(tmp_path: Path) -> None:
    """The newest facts, their age by the reader's clock, and no file beside it."""
    mark = RunMark(str(tmp_path / "own"), now_ms=lambda: 1_000)
    assert mark.read() is None
    mark.write(state="running", batch_id=1)
    mark.write(state="stopped", batch_id=2)
    found = RunMark(str(tmp_path / "own"), now_ms=lambda: 4_500).read()
    assert found == {
        "format_version": 1,
        "state": "stopped",
        "batch_id": 2,
        "seen_ms": 1_000,
        "age_ms": 3_500,
    }
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["run.json"]


def test_a_mark_of_a_later_version_is_refused_until_it_is_written_anew(tmp_path: Path) -> None:
    """What its fields mean is not known here."""
    mark = RunMark(str(tmp_path))
    mark.write(state="running", format_version=2)
    with pytest.raises(ConfigurationError, match=r"is of format 2, and this headpond knows formats up to 1"):
        mark.read()
    mark.write(state="running")
    assert (mark.read() or {})["state"] == "running"


def test_a_damaged_mark_and_a_folder_in_the_way_are_said(tmp_path: Path) -> None:
    """Neither is a stack trace."""
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(InvalidData, match="not the mark of a run"):
        RunMark(str(tmp_path)).read()
    with pytest.raises(MissingRequirement, match="cannot be used"):
        RunMark(str(tmp_path / "run.json")).write(state="running")
