"""Batches applied by executors: the same tables, figures and facts as when the driver applies them."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headpond.core.errors import RecordFault
from headpond.lake.apply import Applied, DecodedBatch, apply_batch
from headpond.lake.engine import merge
from headpond.lake.engine.log import DataFile
from headpond.lake.targets import current
from headpond.spark.following import distributed
from tests.kit.support import share_of
from tests.lake.lakes import cells, decoded, lake_in, watched
from tests.lake.test_apply import (
    EXPECTED,
    ONE_TABLE,
    SMALL,
    STREAM,
    STREAM_EXPECTED,
    Crash,
    change,
    tables_text,
    tombstones,
    with_chunks,
)
from tests.lake.test_pending import group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from headpond.lake.tables import Lake

    Apply = Callable[..., Applied]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def spread(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Apply:
    """Apply lines on executors, however few they are, and have them write again whatever is."""
    return spreader(spark, monkeypatch)


def spreader(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Apply:
    """Return what applies lines so."""
    monkeypatch.setattr(distributed, "DISTRIBUTE_ABOVE_BYTES", 0)
    monkeypatch.setattr(distributed, "LEAST_BYTES", 1 << 10)
    monkeypatch.setattr(merge, "SMALL_BYTES", 0)

    def apply(lake: Lake, config: Any, lines: Sequence[bytes], *, parts: int = 2, **more: Any) -> Applied:
        for typed in lake.typed.values():
            typed.file.engine.write = distributed.rewriting(spark)
        frame = spark.createDataFrame(cells(config, lines, parts=parts, summary=True))
        return distributed.apply_frame(lake, frame, **more)

    return apply


def entry(name: str, more: str = "") -> str:
    """The `[tables]` entry of one table of the expected ones."""
    table = (EXPECTED["tables"] | EXPECTED["append_logs"])[name]
    return tables_text({name: {"keys": []} | table}) + more + "\n"


THREE = entry("sales.Evolving") + entry("public.accounts", 'keep = "history"') + entry("public.events_nopk")
"""A table of each kind; the changes of all others go to quarantine, through the driver."""


def contents(lake: Lake, without: AbstractSet[str] = frozenset()) -> dict[str, Any]:
    """Everything a lake says, in an order of its own, but for some columns."""
    stores = {"quarantine": lake.quarantine, "pending": lake.pending, "deletes": lake.deletes}
    rows = {name: store.read() for name, store in stores.items()}
    rows |= {name: typed.file.read() for name, typed in lake.typed.items()}
    rows |= {"schema changes": lake.extras.schema_changes.read()}
    found: dict[str, Any] = {
        name: sorted(map(repr, table.drop_columns([*without & {*table.column_names}]).to_pylist()))
        for name, table in rows.items()
    }
    return found | {"tombstones": tombstones(lake)}


def test_executors_leave_what_the_driver_leaves(spread: Apply, tmp_path: Path) -> None:
    """Two batches, lines permuted and some of them twice, then one of them again: tables, figures, facts."""
    draw = random.Random(5)
    lines = SMALL + draw.sample(SMALL, 20)
    draw.shuffle(lines)
    lake, config = lake_in(tmp_path / "a", THREE)
    other, _ = lake_in(tmp_path / "b", THREE)
    for number, part in enumerate((lines[:90], lines[90:], lines[90:])):
        there = spread(lake, config, part, transaction=("query", min(number, 1)), shared=number == 2)
        assert there == apply_batch(other, decoded(config, part, parts=2))
    assert contents(lake) == contents(other)


def test_what_comes_to_the_driver_comes_in_parts(
    spark: SparkSession, spread: Apply, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where much of a batch is refused, its heap need not hold all of it: the same lake and figures."""
    taken: list[int] = []

    def few(frame: Any, size_bytes: int) -> Iterator[pa.Table]:
        parts = list(plain(frame, size_bytes, 2_000))
        taken.append(len(parts))
        return iter(parts)

    plain = distributed.collected
    monkeypatch.setattr(distributed, "collected", few)
    tables = entry("sales.Evolving")  # all others are refused
    lake, config = lake_in(tmp_path / "a", tables)
    other, _ = lake_in(tmp_path / "b", tables)
    assert spread(lake, config, SMALL, parts=5) == apply_batch(other, decoded(config, SMALL))
    assert contents(lake) == contents(other)
    assert taken[0] > 2


def test_a_batch_that_comes_to_the_driver_comes_in_parts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small file may have expanded to it; the lake and its figures are those of one part.

    The file is one partition, which Spark would collect as a whole.
    """
    monkeypatch.setattr(distributed, "collected", partial(distributed.collected, at_once_bytes=2_000))
    lake, config = lake_in(tmp_path / "a", THREE)
    other, _ = lake_in(tmp_path / "b", THREE)
    parts: list[Any] = []

    def apply(part: DecodedBatch) -> Applied:
        parts.append(part)
        return apply_batch(lake, part)

    frame = spark.createDataFrame(cells(config, SMALL, parts=5)).coalesce(1)
    partitions: list[int] = []

    def watched_iterator(of: Any, *more: Any) -> Any:
        partitions.append(of.rdd.getNumPartitions())
        return plain(of, *more)

    plain = type(frame).toLocalIterator
    monkeypatch.setattr(type(frame), "toLocalIterator", watched_iterator)
    applied = distributed.apply_collected(frame, apply)
    assert len(parts) > 5
    assert partitions[0] > 5
    assert applied.batches == 1
    assert applied.quarantined == apply_batch(other, decoded(config, SMALL)).quarantined
    assert contents(lake) == contents(other)
    assert not frame.is_cached


def test_chunked_changes_join_those_on_the_executors(spread: Apply, tmp_path: Path) -> None:
    """Fragments wait in the driver; what becomes whole there and what came whole are one table."""
    name = "public.accounts"
    tables = tables_text({name: STREAM_EXPECTED["tables"][name]})
    lines = STREAM
    lake, config = lake_in(tmp_path / "a", tables)
    other, _ = lake_in(tmp_path / "b", tables)
    spread(lake, config, lines, chunks=lambda _: with_chunks(config))
    apply_batch(other, decoded(config, lines), chunks=with_chunks(config))
    assert contents(lake) == contents(other)


def test_a_chunked_change_that_is_too_late_keeps_its_fragments(spread: Apply, tmp_path: Path) -> None:
    """It becomes whole in the driver, beside changes on the executors; all of its records are kept."""
    day = 86_400 * 10**9
    lake, config = lake_in(tmp_path, ONE_TABLE)
    spread(lake, config, [change(1, {"id": 1}, ts_ns=day, op="d"), change(2, {"id": 2}, ts_ns=9 * day)])
    lake.retire_tombstones(7 * 86_400 * 1000)
    lines = [*group(7, {"id": 1}, 3), change(3, {"id": 1}, ts_ns=6), change(4, {"id": 3}, ts_ns=9 * day)]
    applied = spread(lake, replace(config, keep_data=True), lines, chunks=lambda _: with_chunks(config))
    assert applied.quarantined == {"too_late": 5}
    rows = lake.quarantine.read(["sequence_number", "data"]).to_pylist()
    assert {row["sequence_number"] for row in rows} == {"3", "700", "701", "702", "703"}
    assert all(row["data"] for row in rows)


def test_hostile_names_new_columns_and_late_changes(spread: Apply, tmp_path: Path) -> None:
    """Names that differ in case, that Delta refuses, that are ours; a change older than what is known."""
    names = ["a.b", "a b", "a`b", "a,b=c", "_ts_ns", "v", "V", "%", "ü", 'q"q', "q'q", "m:key", "c:x", "c0"]
    day = 86_400 * 10**9
    lake, config = lake_in(tmp_path, ONE_TABLE)
    spread(lake, config, [change(1, {"id": 1}, ts_ns=day, op="d"), change(2, {"id": 2}, ts_ns=9 * day)])
    lake.retire_tombstones(7 * 86_400 * 1000)
    config = replace(config, keep_data=True)
    image = {"id": 2} | {name: i for i, name in enumerate(names)}
    lines = [change(3, {"id": 1}, ts_ns=day - 1), change(4, image, ts_ns=10 * day)]
    applied = spread(lake, config, lines)
    assert applied.quarantined == {"too_late": 1}
    assert [json.loads(data)["after"] for data in lake.quarantine.read(["data"])["data"].to_pylist()] == [
        {"id": 1}
    ]
    typed = lake.typed["public.t"]
    (row,) = typed.file.read().to_pylist()
    assert [row[typed.column(name)] for name in names] == [str(i) for i in range(len(names))]


def test_a_crash_between_two_writes_is_healed_by_the_repeat(spread: Apply, tmp_path: Path) -> None:
    """Another write is the last one in each batch; the driver repeats every second of them."""
    stages = [
        "tombstones",
        "table sales.Evolving",
        "table public.accounts",
        "tombstones of keys that live again",
    ]
    size = -(-len(SMALL) // len(stages))
    lake, config = lake_in(tmp_path / "a", THREE)

    for number, stage in enumerate(stages):
        lines = SMALL[number * size : (number + 1) * size]

        def die(name: str, stage: str = stage) -> None:
            if name == stage:
                raise Crash(name)

        with pytest.raises(Crash):
            spread(watched(lake, die), config, lines, transaction=("query", number))
        if number % 2:
            apply_batch(lake, decoded(config, lines), transaction=("query", number))
        else:
            spread(lake, config, lines, transaction=("query", number))
    other, _ = lake_in(tmp_path / "b", THREE)
    apply_batch(other, decoded(config, SMALL))
    assert contents(lake) == contents(other)


KINDS = ("", 'keep = "history"\n', 'keep = "log"\n', 'keep = "log"\ndedupe = "content"\n', "buckets = 3\n")
CHANGE = st.tuples(
    st.integers(0, 6), st.integers(1, 9), st.sampled_from("ab"), st.sampled_from("cud"), st.integers(0, 3)
)


@pytest.mark.thorough
@settings(max_examples=share_of(25), suppress_health_check=list(HealthCheck))
@given(
    batches=st.lists(st.lists(CHANGE, min_size=1, max_size=25), min_size=1, max_size=4),
    kind=st.sampled_from(KINDS),
    marks=st.booleans(),
)
def test_any_batches_leave_what_the_driver_leaves(
    spark: SparkSession, *, batches: list[list[tuple[int, int, str, str, int]]], kind: str, marks: bool
) -> None:
    """Keys, times, transactions and images that meet, cut anyhow, each batch twice; rows marked or not."""
    table = f'[tables."public.t"]\nkeys = ["id"]\n{kind}columns = {{ id = "bigint", v = "bigint" }}\n'
    table = f"deletion_vectors = {str(marks).lower()}\n{table}"
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        spread = spreader(spark, patch)
        (lake, config), (other, _) = (lake_in(Path(folder) / name, table) for name in "ab")
        number = 0
        for batch in batches:
            lines = []
            for key, ts_ns, tx_id, op, value in batch:
                image = {"id": key} if op == "d" else {"id": key, "v": value}
                lines.append(change(number, image, ts_ns=ts_ns, op=op, tx_id=tx_id))
                number += 1
            for again in (lines, lines[::2]):
                assert spread(lake, config, again) == apply_batch(other, decoded(config, again, parts=2))
        # Of equal entries either place may be the one that stays.
        without = {"_shard_id", "_sequence_number"} if "content" in kind else set()
        assert contents(lake, without) == contents(other, without)


def test_another_writer_between_look_and_commit_has_the_tasks_run_again(
    spread: Apply, tmp_path: Path
) -> None:
    """What it wrote is neither lost nor doubled, and of the tasks' first files none is left."""
    lake, config = lake_in(tmp_path, ONE_TABLE)
    spread(lake, config, [change(n, {"id": n}, ts_ns=1) for n in range(8)])
    other, _ = lake_in(tmp_path, ONE_TABLE)

    def interfere(name: str) -> None:
        if name == "table public.t":
            newer = [change(20 + n, {"id": n}, ts_ns=5, op="d" if n else "u") for n in range(4)]
            apply_batch(other, decoded(config, newer))

    lines = [change(40 + n, {"id": n}, ts_ns=3) for n in range(10)]
    spread(watched(lake, interfere), config, lines)
    file = lake.typed["public.t"].file
    found = {row["id"]: row["_ts_ns"] for row in file.read(["id", "_ts_ns"]).to_pylist()}
    assert found == {0: 5} | dict.fromkeys(range(4, 10), 3)
    assert file.count() == len(found)
    log = b"".join(entry.read_bytes() for entry in Path(file.uri).glob("_delta_log/*.json")).decode()
    assert [each.name for each in Path(file.uri).glob("*.parquet") if each.name not in log] == []


def test_two_writers_at_once_lose_nothing(spread: Apply, tmp_path: Path) -> None:
    """Executors and another driver change the same rows, again and again."""
    lake, config = lake_in(tmp_path, ONE_TABLE)
    other, _ = lake_in(tmp_path, ONE_TABLE)
    failed: list[BaseException] = []

    def write() -> None:
        try:
            for number in range(1, 8):
                lines = [change(n, {"id": n}, ts_ns=number * 10) for n in range(0, 12, 2)]
                apply_batch(other, decoded(config, [*lines, change(0, {"id": 100 + number}, ts_ns=1)]))
        except BaseException as error:  # noqa: BLE001 - shown below
            failed.append(error)

    writer = Thread(target=write)
    writer.start()
    for number in range(1, 5):
        spread(lake, config, [change(n, {"id": n}, ts_ns=number * 15) for n in range(12)])
    writer.join()
    assert failed == []
    rows = lake.typed["public.t"].file.read(["id", "_ts_ns"]).to_pylist()
    assert {row["id"]: row["_ts_ns"] for row in rows} == (
        {n: 60 if n % 2 else 70 for n in range(12)} | {100 + number: 1 for number in range(1, 8)}
    )
    assert len(rows) == 19


def test_files_that_are_written_again_together_become_full_ones() -> None:
    """Each goes once, with others of its partition: put together they are fewer, whatever their sizes."""
    draw = random.Random(1)
    again: list[Any] = [
        (
            DataFile({"path": f"{n}", "size": draw.randrange(1, 60), "partitionValues": {"p": str(n % 3)}}),
            None,
        )
        for n in range(60)
    ]
    groups = list(distributed.groups_of(again, 100))
    assert sorted(file.path for group in groups for file, _ in group) == sorted(
        each.path for each, _ in again
    )
    assert all(len({file.values["p"] for file, _ in group}) == 1 for group in groups)
    sizes = [sum(file.size for file, _ in group) for group in groups]
    assert max(sizes) <= 100
    assert len(groups) <= 2 * sum(sizes) // 100 + 3
    assert [len(group) for group in distributed.groups_of(again[:3], 0)] == [1, 1, 1]


def fails(rows: pa.Table) -> None:
    """Fail on one key, as a mistake of ours would."""
    if '["3"]' in rows["m:key"].to_pylist() or "[3]" in rows["m:key"].to_pylist():
        raise KeyError("three")


class Failing(distributed.Share):
    """A share that cannot be applied where a key is in it."""

    def applied(self, name: str, rows: pa.Table) -> distributed.Done:
        """Fail, or be applied."""
        fails(rows)
        return distributed.Share.applied(self, name, rows)


def test_a_record_that_tasks_fail_on_is_quarantined(
    spread: Apply, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver finds it, with its bytes, and all others are applied, once."""
    step = current.latest_step

    def failing(state: pa.Table, rows: pa.Table, *given: Any) -> Any:
        fails(rows)
        return step(state, rows, *given)

    monkeypatch.setattr(distributed, "Share", Failing)
    monkeypatch.setattr(current, "latest_step", failing)
    lake, config = lake_in(tmp_path, ONE_TABLE)
    lines = [change(n, {"id": n}) for n in range(1, 9)]
    with pytest.raises(RecordFault):
        spread(lake, replace(config, keep_data=False), lines)
    applied = spread(lake, config, lines)
    assert applied.quarantined == {"internal_error": 1}
    assert applied.batches == 1
    assert sorted(lake.typed["public.t"].file.read(["id"])["id"].to_pylist()) == [1, 2, 4, 5, 6, 7, 8]
    (data,) = lake.quarantine.read(["data"])["data"].to_pylist()
    assert json.loads(data)["after"] == {"id": 3}
