"""The join's stateful processor without Spark: formats, lost caches, failed attempts, batches run twice."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
import pandas as pd
import pyarrow as pa
import pytest

from headpond.core.errors import InvalidData, UsageError
from headpond.kstreams.bytes.headers_arrow import decode_headers_column
from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.bytes.window_values import ValueFormat
from headpond.kstreams.join.rules import Emit, HeadersOf, JoinRules, JoinType, JoinWindows
from headpond.spark.errors import CarriedError, headpond_error_of
from headpond.spark.join import task as join_task
from headpond.spark.join.at_hand import MemoryCache
from headpond.spark.join.columns import MICROS, SideColumns
from headpond.spark.join.pack import Packer, labels
from headpond.spark.join.task import JoinPlan, JoinProcessor
from tests.spark.join_streams import SCHEMA, random_batches, wanted, without_headers

if TYPE_CHECKING:
    from pathlib import Path

    from tests.spark.join_streams import Event

TASKS = 2
RULES = JoinRules("outer", JoinWindows(12, 9, 15))
FURTHER = tuple((field.name, field.type) for field in list(SCHEMA)[4:])
COLUMNS = tuple(
    SideColumns(side, False, False, True, "kafka", FURTHER)  # noqa: FBT003 - binary key and value, headers
    for side in (Side.LEFT, Side.RIGHT)
)


class Store:
    """What Spark keeps for one operator: state variables by grouping key, committed batch by batch."""

    def __init__(self) -> None:
        self.committed: dict[Any, Any] = {}
        self.working: dict[Any, Any] = {}
        self.key: Any = None

    def begin(self) -> None:
        self.working = dict(self.committed)

    def commit(self) -> None:
        self.committed = dict(self.working)

    def reopened(self) -> Store:
        """The same state for the next batch; the variables of this one read nothing any more."""
        following = Store()
        following.committed, self.working = self.committed, {}
        return following

    # the handle
    def getValueState(self, name: str, _schema: str) -> _Value:  # noqa: N802 - Spark's name
        return _Value(self, name)

    def getMapState(self, name: str, _key: str, _value: str) -> _Map:  # noqa: N802 - Spark's name
        return _Map(self, name)


class _Value:
    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name = store, name

    def get(self) -> Any:
        return self.store.working.get((self.store.key, self.name))

    def update(self, value: Any) -> None:
        self.store.working[self.store.key, self.name] = value


class _Map(_Value):
    def getValue(self, key: Any) -> Any:  # noqa: N802 - Spark's name
        return self.store.working.get((self.store.key, self.name, key))

    def updateValue(self, key: Any, value: Any) -> None:  # noqa: N802 - Spark's name
        self.store.working[self.store.key, self.name, key] = value

    def removeKey(self, key: Any) -> None:  # noqa: N802 - Spark's name
        del self.store.working[self.store.key, self.name, key]


def plan(
    state_format: ValueFormat = ValueFormat.PLAIN_HEADERS, rules: JoinRules = RULES, tasks: int = TASKS
) -> JoinPlan:
    columns = COLUMNS[:1] if rules.type is JoinType.SELF else COLUMNS
    return JoinPlan(rules, columns, tuple(labels(tasks)), state_format, f"cache-{random.random()}")


def packed(batch: list[Event], use: JoinPlan) -> dict[int, list[bytes]]:
    """Blobs by label, in several pieces and in no order."""
    found: dict[int, list[bytes]] = {label: [b""] for label in use.labels}
    for columns in use.columns:
        events = [event for event in batch if event.side is columns.side]
        random.Random(len(batch)).shuffle(events)
        for part in (events[::2], events[1::2]):
            rows = [
                {
                    "key": e.key, "value": e.value, "timestamp": e.micros, "topic": e.side.name,
                    "headers": [{"key": k, "value": v} for k, v in e.headers],
                    "partition": e.partition, "offset": e.offset, "tags": [],
                }
                for e in part
            ]  # fmt: skip
            table = pa.Table.from_pylist(rows, SCHEMA).select(columns.selected)
            for out in Packer(columns, use.labels)(iter(table.to_batches())):
                for row in out.to_pylist():
                    found[row["label"]].append(row["blob"])
    return found


def run_task(store: Store, use: JoinPlan, label: int, blobs: list[bytes], now_ms: int = 0) -> list[Any]:
    processor = JoinProcessor(use)
    store.key = label
    processor.init(store)
    frame = pd.DataFrame({"blob": blobs, "now_ms": now_ms})
    rows: list[Any] = []
    for out in processor.handleInputRows((label,), iter([frame]), None):
        for blob in out["blob"]:
            if blob is None:
                continue
            for results in pa.ipc.open_stream(blob):
                headers = decode_headers_column(results.column("headers")).to_pylist()
                for row, listed in zip(results.to_pylist(), headers, strict=True):
                    pairs = tuple((each["key"], each["value"]) for each in listed)
                    rows.append((row["key"], row["left_value"], row["right_value"], row["timestamp"], pairs))
                    assert f"left_{MICROS}" in row
    return rows


def run_batch(store: Store, use: JoinPlan, batch: list[Event], now_ms: int = 0) -> list[Any]:
    """One committed micro-batch, and the one at rest behind it, in which nothing waits any more."""
    rows = run_one(store, use, batch, now_ms)
    return rows + run_one(store, use, [], now_ms)


def run_one(store: Store, use: JoinPlan, batch: list[Event], now_ms: int = 0) -> list[Any]:
    """One committed micro-batch."""
    store.begin()
    rows = [
        row
        for label, blobs in packed(batch, use).items()
        for row in run_task(store, use, label, blobs, now_ms)
    ]
    store.commit()
    return rows


def counted(rows: list[Any]) -> Counter[Any]:
    return Counter(rows)


@pytest.fixture(autouse=True)
def local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the files of the cache lie."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    return tmp_path / "headpond-join"


@pytest.mark.slow
@pytest.mark.parametrize("old", ValueFormat)
def test_a_state_of_any_format_goes_on_as_plain_headers(old: ValueFormat) -> None:
    """Half of a stream with the state in that format, the rest as plain+headers; in the end all is."""
    batches = random_batches(5)
    store = Store()
    first, second = plan(old), plan()
    rows = [row for batch in batches[:2] for row in run_batch(store, first, batch)]
    rows += [row for batch in batches[2:] for row in run_batch(store, second, batch)]
    found, (expected, _) = counted(rows), wanted(RULES, batches, TASKS)
    if old.has_headers:
        assert found == expected
    else:
        assert without_headers(found) == without_headers(expected)
        assert all(headers == () for *_, headers in found - expected)
    chunks = [value[0] for key, value in store.committed.items() if key[1] == "chunk"]
    told = [pa.ipc.open_stream(each).schema.metadata[b"headpond.join.chunk"] for each in chunks]
    assert {orjson.loads(each)["value_format"] for each in told} == {"plain_headers"}


@pytest.mark.slow
@pytest.mark.parametrize("state_format", [ValueFormat.PLAIN, ValueFormat.TIMESTAMPED])
def test_results_of_a_format_without_headers_do_not_depend_on_caches(
    state_format: ValueFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies in memory still has headers, what is read from the state has none: results show none."""
    batches = random_batches(6)
    found = []
    for forget in (False, True):
        store, use, rows = Store(), plan(state_format), []
        for batch in batches:
            if forget:
                monkeypatch.setattr(join_task, "_MEMORY", MemoryCache())
                use = plan(state_format)
            rows += run_batch(store, use, batch)
        found.append(counted(rows))
    assert found[0] == found[1]


@pytest.mark.slow
def test_caches_may_be_lost_and_attempts_may_fail(
    monkeypatch: pytest.MonkeyPatch, local_folder: Path
) -> None:
    """At random: memory or files gone, attempts dropped after their writes, a worker with an older memory."""
    batches = random_batches(7, batches=8, size=40)
    expected, _ = wanted(RULES, [[event for batch in batches for event in batch]], TASKS)
    for seed in range(2):
        chance = random.Random(seed)
        store, use = Store(), plan()
        workers = [MemoryCache(), MemoryCache()]
        rows: list[Any] = []
        for batch in batches:
            while True:
                if chance.random() < 0.3:
                    shutil.rmtree(local_folder, ignore_errors=True)
                if chance.random() < 0.3:
                    workers[chance.randrange(2)] = MemoryCache()
                monkeypatch.setattr(join_task, "_MEMORY", chance.choice(workers))
                store.begin()
                out = []
                for label, blobs in packed(batch, use).items():
                    out += run_task(store, use, label, blobs)
                    if (
                        chance.random() < 0.2
                    ):  # a speculative attempt of the same task, whose writes are dropped
                        aside = Store()
                        aside.working = dict(store.committed)
                        run_task(aside, use, label, blobs)
                if chance.random() < 0.7:
                    break  # else: the attempt failed after all its writes
            store.commit()
            rows += out
        rows += run_one(store, use, [])
        assert counted(rows) == expected


@pytest.mark.slow
def test_a_state_beyond_memory_is_read_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all chunks one stays in memory; results are the same, with files and without them."""
    batches = random_batches(11, batches=12, size=60)
    expected, _ = wanted(RULES, [[event for batch in batches for event in batch]], TASKS)
    for files in (True, False):
        monkeypatch.setattr(join_task, "_MEMORY", MemoryCache())
        store, use = Store(), replace(plan(), max_at_hand_bytes=1)
        rows: list[Any] = []
        kept = 0
        for batch in batches:
            if not files:
                shutil.rmtree(join_task._local_folder(), ignore_errors=True)
            rows += run_one(store, use, batch)
            assert sum(map(len, join_task._MEMORY._tasks.values())) <= 1
            kept = max(kept, sum(key[1] == "chunk" for key in store.committed))
            # Spark's variables do not outlive a call: what was kept must be read through the next one's.
            store = store.reopened()
        rows += run_one(store, use, [])
        assert counted(rows) == expected
        assert kept > 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "rules",
    [
        JoinRules("self", JoinWindows(12, 9, 15)),
        JoinRules("inner", JoinWindows(30, -4, 0), HeadersOf.MERGE),
        JoinRules("left", JoinWindows(-3, 20, 5), HeadersOf.MERGE, Emit.FINAL),
        JoinRules("outer", JoinWindows(0, 0, 1), HeadersOf.TRIGGER, Emit.EAGER, emit_interval_ms=25),
    ],
    ids=lambda rules: rules.type.value,
)
def test_tasks_give_what_the_reference_engine_gives(rules: JoinRules) -> None:
    """Each type, windows on one side, whose headers, final, and a throttle by the time of the batch."""
    batches = random_batches(13)
    store, use = Store(), plan(rules=rules)
    times = [1000 + number * 10 for number in range(len(batches))]
    rows = [
        row for batch, now in zip(batches, times, strict=True) for row in run_batch(store, use, batch, now)
    ]
    expected, counters = wanted(rules, batches, TASKS, times)
    assert counted(rows) == expected
    assert counters.emitted > 50
    if rules.emit_interval_ms:
        assert expected != wanted(rules, batches, TASKS, [n * 1000 for n in times])[0]


@pytest.mark.parametrize("kind", ["inner", "left", "outer", "self"])
@pytest.mark.slow
def test_batches_without_records_for_a_task_change_nothing(kind: str) -> None:
    """Neither the first one nor one between; nor does a side that has none."""
    rules = JoinRules(kind, RULES.windows)
    batches = [[], *random_batches(14, batches=3, size=3, keys=2), []]
    batches.insert(2, [])
    batches.append([event for event in random_batches(15, batches=1)[0] if event.side is Side.LEFT])
    store, use = Store(), plan(rules=rules)
    rows = [row for batch in batches for row in run_batch(store, use, batch)]
    assert counted(rows) == wanted(rules, batches, TASKS)[0]


@pytest.mark.slow
def test_records_without_a_place_or_time_end_the_query() -> None:
    """The error names the record; nothing is guessed."""
    use = plan()
    good = {"key": b"k", "value": b"v", "timestamp": 5000, "topic": "t", "partition": 3, "offset": 7}
    for wrong in (None, -1):
        table = pa.Table.from_pylist([good, {**good, "timestamp": wrong, "offset": 8}], SCHEMA)
        with pytest.raises(CarriedError) as failure:
            list(Packer(COLUMNS[1], use.labels)(iter(table.select(COLUMNS[1].selected).to_batches())))
        error = headpond_error_of(failure.value)
        assert isinstance(error, InvalidData)
        assert "right record at topic t, partition 3, offset 8 has the timestamp" in str(error)
    table = pa.Table.from_pylist([{**good, "offset": None}], SCHEMA).select(COLUMNS[0].selected)
    with pytest.raises(CarriedError) as failure:
        list(Packer(COLUMNS[0], use.labels)(iter(table.to_batches())))
    assert "offset is null: its place in its source is not known" in str(headpond_error_of(failure.value))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (plan(tasks=3), "rescale --tasks 3"),
        (plan(rules=JoinRules("left", RULES.windows)), "type"),
        (plan(rules=JoinRules("outer", JoinWindows(12, 9, 16))), "windows"),
    ],
)
@pytest.mark.slow
def test_the_state_of_another_join_is_refused(other: JoinPlan, said: str) -> None:
    """By every task, in the first batch."""
    store = Store()
    run_batch(store, plan(), random_batches(8, batches=1)[0])
    store.begin()
    with pytest.raises(CarriedError) as failure:
        run_task(store, other, other.labels[0], [b""])
    error = headpond_error_of(failure.value)
    assert isinstance(error, UsageError)
    assert said in str(error)
