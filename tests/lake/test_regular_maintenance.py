"""Maintenance beside batches: these wait for its commits alone, and whatever comes in between is kept."""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.core.errors import InvalidData
from headpond.lake.apply import apply_batch
from headpond.lake.delta import DeltaFile
from headpond.lake.maintenance import regular
from headpond.lake.maintenance.optimize import HOUR_MS
from headpond.lake.maintenance.regular import DAY_MS, TIDY_MS, Maintenance, maintained
from headpond.lake.state.tombstones import Tombstones
from tests.kit.support import share_of
from tests.lake.lakes import decoded, lake_in
from tests.lake.test_pending import line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headpond.dsql.decode import DsqlConfig
    from headpond.lake.tables import Lake

T = "public.t"
TABLES = f'[tables."{T}"]\nkeys = ["id"]\ncolumns = {{ id = "bigint", v = "bigint" }}\n'
MARKED = TABLES + "deletion_vectors = true\n"


class Clock:
    """Milliseconds that a test moves on."""

    def __init__(self) -> None:
        self.now = 1_000_000_000_000

    def __call__(self) -> int:
        return self.now


def change(ts_ns: int, key: int, op: str = "c") -> bytes:
    """A change of one key, the value of which is its commit time."""
    source = {"version": "1.0", "ts_ns": ts_ns, "txId": "t", "schema": "public", "table": "t"}
    image = {"before": {"id": key}} if op == "d" else {"after": {"id": key, "v": ts_ns}}
    return line(ts_ns, {"type": "full", "op": op, **image, "source": source})


def put(lake: Lake, config: DsqlConfig, *changes: bytes) -> None:
    """Apply one batch."""
    apply_batch(lake, decoded(config, changes))


def rows(lake: Lake) -> dict[int, int]:
    found = lake.typed[T].file.read(["id", "v"]).to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row["v"] for row in found}


def data_files(lake: Lake) -> set[str]:
    return {path.name for path in Path(lake.typed[T].file.uri).glob("*.parquet")}


def live(lake: Lake) -> int:
    return lake.typed[T].file.size().files


def test_a_size_has_the_bytes_of_the_log(tmp_path: Path) -> None:
    """Commits and checkpoints, as they lie in the folder."""
    lake, config = lake_in(tmp_path, TABLES)
    put(lake, config, change(1, 1))
    file = lake.typed[T].file
    log = [path for path in (Path(file.uri) / "_delta_log").iterdir() if path.is_file()]
    assert len(log) > 1
    assert file.size().log_bytes == sum(path.stat().st_size for path in log)


def after(do: Callable[[], None]) -> Callable[[], object]:
    """An `alone` that comes after something that a batch does."""

    @contextmanager
    def alone() -> Iterator[None]:
        do()
        yield

    return alone


def filled(folder: Path, count: int = 4, tables: str = TABLES) -> tuple[Lake, DsqlConfig]:
    """A lake with so many small files, one per key."""
    lake, config = lake_in(folder, tables)
    for key in range(count):
        put(lake, config, change(key + 1, key))
    return lake, config


def test_a_batch_that_adds_rows_meanwhile_does_not_void_a_compaction(tmp_path: Path) -> None:
    """Its commit follows the batch's."""
    lake, config = filled(tmp_path)
    beside = DeltaFile(lake.typed[T].file.uri)
    assert beside.compact(alone=after(lambda: put(lake, config, change(9, 7))))
    assert rows(lake) == {0: 1, 1: 2, 2: 3, 3: 4, 7: 9}
    # The first round took four files, the second what came meanwhile, and a batch came before that, too.
    assert live(lake) <= 2


def test_files_that_a_batch_changed_meanwhile_stay_as_it_left_them(tmp_path: Path) -> None:
    """The compaction is given up, and what it wrote is removed."""
    lake, config = filled(tmp_path)
    before = data_files(lake)
    beside = DeltaFile(lake.typed[T].file.uri)
    beside.compact(alone=after(lambda: put(lake, config, change(9, 2))))
    assert rows(lake) == {0: 1, 1: 2, 2: 9, 3: 4}
    assert len(data_files(lake) - before) == 1  # the batch's
    assert live(lake) == 4


def test_nothing_is_committed_after_the_end_of_a_run(tmp_path: Path) -> None:
    """What `alone` raises ends a compaction; its files are removed."""
    lake, _ = filled(tmp_path)
    before, version = data_files(lake), lake.typed[T].file.version()

    @contextmanager
    def over() -> Iterator[None]:
        raise KeyError("over")
        yield

    with pytest.raises(KeyError, match="over"):
        DeltaFile(lake.typed[T].file.uri).compact(alone=over)
    assert (data_files(lake), lake.typed[T].file.version()) == (before, version)


CHANGES = st.lists(st.tuples(st.integers(0, 5), st.sampled_from("cd")), min_size=1, max_size=4)
STEPS = st.lists(st.tuples(st.booleans(), CHANGES), min_size=1, max_size=12)


@pytest.mark.thorough
@pytest.mark.parametrize("tables", [TABLES, MARKED], ids=["rewritten", "marked"])
@settings(max_examples=share_of(40), deadline=None)
@given(steps=STEPS)
def test_tables_are_right_wherever_maintenance_comes_between(
    steps: list[tuple[bool, list[tuple[int, str]]]], tables: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each batch is applied by itself, or just before a compaction commits: a dictionary is the judge."""
    lake, config = lake_in(tmp_path_factory.mktemp("lake"), tables)
    model: dict[int, int] = {}
    ts_ns = 0
    for within, changes in steps:
        batch = []
        for key, op in changes:
            ts_ns += 1
            batch.append(change(ts_ns, key, op))
            model.pop(key, None)
            if op == "c":
                model[key] = ts_ns
        waiting = [batch]

        def apply(waiting: list[list[bytes]] = waiting) -> None:
            if waiting:
                put(lake, config, *waiting.pop())

        if within:
            DeltaFile(lake.typed[T].file.uri).compact(alone=after(apply))
        apply()
        assert rows(lake) == model


def test_a_tombstone_that_comes_while_old_ones_are_dropped_stays(tmp_path: Path) -> None:
    """It is in another file; the horizon is there before anything goes."""
    lake, config = filled(tmp_path)
    put(lake, config, change(100, 1, "d"))
    batches = [change(5_000, 2, "d"), change(6_000, 3, "d")]

    def one() -> None:
        if batches:
            put(lake, config, batches.pop())

    beside = Tombstones(DeltaFile(lake.tombstones.file.uri))
    assert beside.retire(1_000, after(one)) == 1
    lake.tombstones.forget_horizons()
    assert lake.tombstones.horizons_ns()[T] == 100
    known = lake.tombstones.file.read(["key", "ts_ns"], "key <> ''").to_pylist()
    assert sorted(row["ts_ns"] for row in known) == [5_000, 6_000]
    put(lake, config, change(50, 1), change(4_000, 2))
    assert rows(lake) == {0: 1}


@pytest.mark.parametrize(
    ("retain_ms", "every_ms"), [(7 * DAY_MS, DAY_MS), (6 * HOUR_MS, 6 * HOUR_MS), (0, HOUR_MS)]
)
def test_tables_are_tidied_every_few_seconds_and_maintained_as_often_as_versions_go(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, retain_ms: int, every_ms: int
) -> None:
    """One at a time, the one that has waited longest first; what was done is kept for the next run."""
    lake, config = lake_in(tmp_path, TABLES)
    lake.typed[T].file.tidies = False
    for key in range(20):
        put(lake, config, change(key + 1, key))
    assert live(lake) == 20
    beside, _ = lake_in(tmp_path, TABLES)
    clock = Clock()
    maintenance = Maintenance(beside, nullcontext, retain_ms=retain_ms, now_ms=clock)
    maintenance.do_due()
    assert live(lake) == 20
    clock.now += TIDY_MS
    with caplog.at_level(logging.INFO):
        maintenance.do_due()
    assert live(lake) == 1
    removed = 0 if retain_ms else 20
    assert len(data_files(lake)) == 21 - removed
    facts = maintained(lake.path)[T]
    assert (facts["at_ms"], facts["files_after"], facts["removed"]) == (clock.now, 1, removed)
    assert f"{T} was maintained: 1 files instead of 1, {removed} old ones removed" in caplog.text
    put(lake, config, change(100, 100))
    clock.now += TIDY_MS
    maintenance.do_due()
    assert set(maintained(lake.path)) == {T, "_headpond/schema_changes"}
    again = Maintenance(beside, nullcontext, retain_ms=retain_ms, now_ms=clock)
    clock.now += every_ms - 2 * TIDY_MS
    again.do_due()
    assert live(lake) == 2
    clock.now += TIDY_MS
    again.do_due()
    assert live(lake) == 1
    assert rows(lake) == {key: key + 1 for key in range(20)} | {100: 100}


@pytest.mark.parametrize("is_another", [False, True])
def test_a_clock_that_was_set_back_keeps_nothing_waiting(tmp_path: Path, *, is_another: bool) -> None:
    """Neither in the run that saw it, nor in one that finds a note of times to come."""
    lake, config = filled(tmp_path, 3)
    clock = Clock()
    clock.now += 10 * 365 * DAY_MS
    maintenance = Maintenance(lake, nullcontext, retain_ms=DAY_MS, now_ms=clock)
    clock.now += TIDY_MS
    for _ in lake.files():
        maintenance.do_due()
        clock.now += TIDY_MS
    ahead = maintained(lake.path)[T]["at_ms"]
    put(lake, config, change(9, 9))
    clock.now -= 10 * 365 * DAY_MS
    if is_another:
        maintenance = Maintenance(lake, nullcontext, retain_ms=DAY_MS, now_ms=clock)
        clock.now += TIDY_MS
    for _ in lake.files():
        maintenance.do_due()
        clock.now += TIDY_MS
    assert maintained(lake.path)[T]["at_ms"] < ahead
    assert live(lake) == 1


def test_a_table_that_cannot_be_maintained_does_not_keep_others_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again a day later."""
    lake, config = filled(tmp_path)
    put(lake, config, line(50, {"type": "odd"}))
    clock = Clock()
    maintenance = Maintenance(lake, nullcontext, retain_ms=0, now_ms=clock)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(regular, "optimize_file", full)
    for _ in range(3):
        clock.now += TIDY_MS
        with pytest.raises(OSError, match="No space left"):
            maintenance.do_due()
    clock.now += TIDY_MS
    maintenance.do_due()


def test_what_batches_wait_for_is_the_log_alone(tmp_path: Path) -> None:
    """However large tables are: what they are held up for reads and writes entries of logs, no rows."""
    lake, config = lake_in(tmp_path, TABLES)
    lake.leave_tidying()
    for key in range(20):
        put(lake, config, change(key + 1, key))
    beside, _ = lake_in(tmp_path, TABLES)
    held: list[bool] = []
    touched: dict[bool, set[str]] = {False: set(), True: set()}

    @contextmanager
    def alone() -> Iterator[None]:
        held.append(True)
        yield
        held.pop()

    for name, file in beside.places().items():
        folder = file.engine.folder
        for method in ("read", "put_new", "create", "place", "listed", "remove"):
            original = getattr(folder, method)

            def spied(path: str = "", *args: Any, of: Any = original, at: str = name, **more: Any) -> Any:
                touched[bool(held)].add(f"{at}/{path}")
                return of(path, *args, **more)

            setattr(folder, method, spied)
    clock = Clock()
    maintenance = Maintenance(beside, alone, retain_ms=0, now_ms=clock)
    for _ in range(4):
        clock.now += TIDY_MS
        maintenance.do_due()
    assert touched[True]
    assert all("/_delta_log/" in path for path in touched[True]), touched[True]
    assert any(path.endswith(".parquet") for path in touched[False])


def test_a_log_that_is_made_later_is_not_tidied_by_batches_either(tmp_path: Path) -> None:
    """Its small files wait for maintenance, as those of the others do."""
    lake, config = lake_in(tmp_path, 'unknown_tables = "log"\n')
    lake.leave_tidying()
    for key in range(20):
        put(lake, config, change(key + 1, key))
    (log,) = lake.extras.logs.values()
    assert log.typed.file.size().files == 20


def test_a_damaged_note_is_named(tmp_path: Path) -> None:
    """With what to do."""
    lake, _ = filled(tmp_path, 1)
    assert maintained(lake.path) == {}
    (Path(lake.path) / "_headpond" / "maintenance.json").write_text(json.dumps({"tables": 3}))
    with pytest.raises(InvalidData, match="not a list of when tables were maintained"):
        maintained(lake.path)


@pytest.mark.parametrize(
    ("asked", "retain_days", "age_days", "goes"),
    [
        (None, 7, 10, True),
        ("interval 30 days", 7, 10, False),
        (None, None, 10, False),
        (None, None, 40, True),
    ],
)
def test_the_log_keeps_what_the_versions_of_the_retention_are_read_by(
    asked: str | None, retain_days: int | None, age_days: int, *, goes: bool, tmp_path: Path
) -> None:
    """Entries go up to a checkpoint before the oldest of them; a table may ask for more; else 30 days."""
    lake, config = filled(tmp_path, 6)
    file = lake.typed[T].file
    if asked is not None:
        file.alter({"delta.logRetentionDuration": asked})
    file.open().create_checkpoint()
    last = file.version()
    put(lake, config, change(50, 50))
    put(lake, config, change(51, 51))
    log = Path(file.uri) / "_delta_log"

    def versions() -> dict[int, Path]:
        return {int(path.name.split(".")[0]): path for path in log.glob("*.json")}

    for version, path in versions().items():
        if version <= last:
            os.utime(path, (time.time() - age_days * DAY_MS / 1000,) * 2)
    file.shorten_log(None if retain_days is None else retain_days * DAY_MS)
    assert sorted(versions()) == list(range(last if goes else 0, last + 3))
    past = DeltaFile(file.uri).as_of(last)
    assert past.query(["count(*) AS n"])["n"].to_pylist() == [6]
    assert rows(lake) == {key: key + 1 for key in range(6)} | {50: 50, 51: 51}
