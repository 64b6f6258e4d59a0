"""Histories and soft deletes: batches pass over what cannot matter to them, and miss nothing that does."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from headpond.lake.delta import DeltaFile
from headpond.lake.engine import lookup, merge, parquet
from headpond.lake.engine.lookup import Wanted
from headpond.lake.engine.merge import crowded, uneven
from headpond.lake.engine.parquet import ENDS
from headpond.lake.newest import BatchKeys
from tests.lake import test_soft_deletes as soft
from tests.lake.lakes import decoded, lake_in
from tests.lake.test_soft_deletes import HARD, T, put

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from headpond.lake.engine.log import DataFile
    from headpond.lake.tables import Lake

HISTORY = HARD + 'keep = "history"\n'
MARKED = "deletion_vectors = true\n"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat small tables as large ones: files are marked, and have several row groups."""
    monkeypatch.setattr(merge, "SMALL_BYTES", 0)
    monkeypatch.setattr(parquet, "GROUP_ROWS", 4)


@pytest.fixture
def opens(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note which files look-ups open."""
    paths: list[str] = []
    opened = lookup.opened

    def noted(folder: Any, data: DataFile, schema: pa.Schema) -> Any:
        paths.append(data.path)
        return opened(folder, data, schema)

    monkeypatch.setattr(lookup, "opened", noted)
    return paths


def versions(lake: Lake) -> list[tuple[Any, ...]]:
    found = lake.typed[T].file.read(["id", "v", "_ts_ns", "_tx_id", "_valid_to_ns"])
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=str)


def model(changes: Iterable[soft.Change]) -> list[tuple[Any, ...]]:
    """Return a row per image of a key, which ends with the next change of the key."""
    found: list[tuple[Any, ...]] = []
    each = list(changes)
    for key in {change[1] for change in each}:
        # A delete loses against an image of the same transaction.
        mine = sorted({(ts, tx, v is not None, v) for ts, k, tx, v in each if k == key}, key=lambda c: c[:3])
        ends = [ts for ts, *_ in mine[1:]] + [None]
        for (ts, tx, is_image, value), end in zip(mine, ends, strict=True):
            found += [(key, value, ts, tx, end)] if is_image else []
    return sorted(found, key=str)


def ended(lake: Lake) -> dict[str, int | None]:
    """Return the newest end in each file in which all rows ended; None of other files."""
    return {file.path: file.greatest(ENDS) for file in lake.typed[T].file.data_files()}


def drawn(draw: random.Random, number: int) -> soft.Change:
    ts_ns = max(1, number + draw.choice([0, 0, 0, 0, -1, -3, -40]))
    key, tx_id = draw.randrange(12), draw.choice("ab")
    # The value follows from the version, so that no two images of one contradict.
    return ts_ns, key, tx_id, None if draw.random() < 0.2 else (31 * ts_ns + key + ord(tx_id)) % 1000


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("marks", ["", MARKED])
@pytest.mark.parametrize("form", ["history", "soft"])
@pytest.mark.parametrize("seed", range(3))
def test_late_changes_and_compactions_in_any_order(seed: int, form: str, marks: str, tmp_path: Path) -> None:
    """What is left is a function of the changes: late ones find what ended, and what was deleted."""
    draw = random.Random(seed)
    lake, _ = lake_in(tmp_path, (HISTORY if form == "history" else soft.SOFT) + marks)
    seen: list[soft.Change] = []
    for turn in range(14):
        batch = [drawn(draw, 10 * turn + number) for number in range(draw.randint(1, 25))]
        # Of one version only one change, as of a real transaction.
        batch = list({(ts, key, tx): (ts, key, tx, value) for ts, key, tx, value in [*batch]}.values())
        taken = {(ts, key, tx) for ts, key, tx, _ in seen}
        batch = [each for each in batch if each[:3] not in taken] + draw.sample(seen, min(3, len(seen)))
        put(lake, batch)
        seen += batch
        if draw.random() < 0.4:
            lake.typed[T].file.compact(draw.choice([crowded, uneven, lambda files, _: list(files)]))
        if form == "history":
            assert versions(lake) == model(seen)
        else:
            assert soft.rows(lake) == soft.model(seen)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("marks", ["", MARKED])
def test_rows_that_ended_are_not_opened_until_a_change_is_late(
    marks: str, tmp_path: Path, opens: list[str]
) -> None:
    lake, _ = lake_in(tmp_path, HISTORY + marks)
    keys = range(40)
    for time in (10, 20, 30):
        put(lake, [(time, key, "a", time) for key in keys])
    lake.typed[T].file.compact(lambda files, _: list(files))
    before = ended(lake)
    over = {path for path, end in before.items() if end is not None}
    assert over
    assert len(over) < len(before)
    assert {before[path] for path in over} == {30}
    opens.clear()
    put(lake, [(40, key, "a", 40) for key in keys])
    assert opens
    assert not over & {*opens}
    # A row that ended at 30 ends with a change that was made before.
    late = (25, 7, "a", 25)
    put(lake, [late])
    assert over & {*opens}
    every = [(time, key, "a", time) for time in (10, 20, 30, 40) for key in keys]
    assert versions(lake) == model([*every, late])


def test_a_delete_of_the_same_time_ends_a_version_that_comes_later(tmp_path: Path) -> None:
    """It is not older than the batch, and its transaction is the later one."""
    lake, _ = lake_in(tmp_path, HISTORY)
    changes: list[soft.Change] = [(20, 1, "b", None), (20, 1, "a", 5)]
    for each in changes:
        put(lake, [each])
    assert versions(lake) == model(changes) == [(1, 5, 20, "a", 20)]


@pytest.mark.parametrize("marks", ["", MARKED])
def test_files_that_are_apart_are_left_as_they_are(marks: str, tmp_path: Path) -> None:
    lake, _ = lake_in(tmp_path, HISTORY + marks)
    for time in (10, 20, 30):
        put(lake, [(time, key, "a", time) for key in range(40)])
    file = lake.typed[T].file
    file.compact()
    before = ended(lake)
    assert sorted(end is None for end in before.values()) == [False, True]
    assert not file.compact()
    assert ended(lake) == before


def test_files_of_before_are_sorted_out_when_the_table_is_optimized(tmp_path: Path) -> None:
    """Whatever wrote them: older versions of headpond, deltalake's Z-order."""
    lake, _ = lake_in(tmp_path, HISTORY)
    for time in (10, 20, 30):
        put(lake, [(time, key, "a", time) for key in range(40)])
    file = lake.typed[T].file
    before = versions(lake)
    file.committing(lambda table: table.optimize.z_order(["id"]))
    assert [end is None for end in ended(lake).values()] == [True]
    assert file.compact()
    assert sorted(end is None for end in ended(lake).values()) == [False, True]
    assert not file.compact()
    assert versions(lake) == before


def test_a_batch_adds_one_file_to_a_history(tmp_path: Path, small: None) -> None:
    """Its few rows, ended or not, are written together: they are written again soon."""
    lake, _ = lake_in(tmp_path, HISTORY + MARKED)
    put(lake, [(10, key, "a", 1) for key in range(30)])
    before = {*ended(lake)}
    put(lake, [(20, 3, "a", 2)])
    assert len({*ended(lake)} - before) == 1


def test_only_rows_since_a_number_count(tmp_path: Path, small: None) -> None:
    """Null counts as later than all; files and row groups without such a row are passed over."""
    file = DeltaFile(str(tmp_path / "t"))
    numbers: list[int | None] = [1, 2, 3, 4, 5, 6, 7, None, 9, 10, 11, 12, *range(13, 33)]
    rows = pa.table({"k": pa.array(range(32)), "n": pa.array(numbers, pa.int64())})
    file.create(rows.schema)
    for start in (0, 16):
        file.append(rows.slice(start, 16))
    assert [each.greatest("n") for each in file.data_files()] == [None, 32]
    for least in range(-1, 40):
        wanted = Wanted(pa.table({"k": pa.array(range(32))}), ["k"], since=("n", least))
        expected = [n for n in numbers if n is None or n >= least]
        assert file.look_up(wanted)["n"].to_pylist() == expected


@pytest.mark.usefixtures("small")
def test_a_newer_image_needs_nothing_of_a_row_that_may_be_deleted(tmp_path: Path, reads: list[str]) -> None:
    lake, _ = lake_in(tmp_path, soft.SOFT + MARKED)
    changes: list[soft.Change] = [(10, key, "a", key) for key in range(40)]
    put(lake, changes)
    reads.clear()
    newer: list[soft.Change] = [(20, key, "a", -key) for key in range(0, 40, 5)]
    put(lake, newer)
    assert {*reads} == {"id", "_deleted_ns"}
    gone: list[soft.Change] = [(30, 3, "a", None)]
    put(lake, gone)
    assert "v" in reads  # the row stays, with its delete
    assert soft.rows(lake) == soft.model([*changes, *newer, *gone])


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("first", "is_whole"), [(40, True), (11, False)])
def test_rows_are_read_whole_where_few_may_have_ended_since(
    first: int, tmp_path: Path, reads: list[str], *, is_whole: bool
) -> None:
    """A batch that begins before much of the history must not hold the values of all of it."""
    lake, _ = lake_in(tmp_path, HISTORY + MARKED)
    changes: list[soft.Change] = []
    for time in (10, 20, 30):
        changes += [(time, key, "a", time) for key in range(40)]
        put(lake, changes[-40:])
    reads.clear()
    batch: list[soft.Change] = [(first, 1, "b", 7), (50, 2, "b", 8)]
    table = lake.tables[T]
    lines = [soft.record(number, each) for number, each in enumerate(batch)]
    typed = decoded(lake.config, lines).tables[T]  # type: ignore[arg-type]
    found = table.versions(typed, BatchKeys(typed["m:key"]))  # type: ignore[attr-defined]
    assert ("v" in reads) == is_whole
    assert {*found["ts_ns"].to_pylist()} == ({30} if is_whole else {10, 20, 30})
    put(lake, batch)
    assert versions(lake) == model([*changes, *batch])
