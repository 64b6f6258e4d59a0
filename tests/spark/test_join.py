"""The windowed join on Spark against the reference engine."""

from __future__ import annotations

import shutil
import tarfile
from collections import Counter
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from headpond.core.errors import UsageError
from headpond.kstreams import (
    JoinStores,
    NotAStore,
    StreamJoin,
    find_task_stores,
    read_initial_state,
)
from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.join.rules import JoinRules, JoinWindows
from headpond.spark import windowed_join
from headpond.spark.errors import headpond_error_of
from headpond.spark.join.api import METRICS
from headpond.spark.join.checkpoint import figures as figures_of_task
from headpond.spark.join.checkpoint import read_join, rescale
from headpond.spark.join.pack import labels
from headpond.spark.join.rest import plan_of
from tests.kit.support import vector_bytes, vector_json
from tests.spark.join_streams import (
    START_MS,
    Event,
    drained,
    in_order,
    random_batches,
    replace,
    rows_of,
    source,
    wanted,
    without_headers,
    write,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
WINDOWS = JoinWindows(12, 9, 15)


def joined(
    spark: SparkSession, folder: Path, windows: JoinWindows = WINDOWS, how: str = "outer", **more: Any
) -> DataFrame:
    right = None if how == "self" else source(spark, folder, Side.RIGHT)
    return windowed_join(
        source(spark, folder, Side.LEFT), right, windows, how, **{"tasks": 3, "name": METRICS, **more}
    )


def figures(query: Any) -> dict[str, int]:
    """The figures of all batches together; what the state holds, of the last one."""
    found: dict[str, int] = {}
    for progress in query.recentProgress:
        metrics = progress.observedMetrics.get(METRICS)
        for name, figure in metrics.asDict().items() if metrics is not None else ():
            found[name] = figure if name.startswith("state") else found.get(name, 0) + figure
    return found


def test_labels_are_spread_evenly(spark: SparkSession) -> None:
    """The hash that Spark computes of a task's label is the task's number."""
    found = spark.createDataFrame([(each,) for each in labels(300)], "label int").selectExpr("hash(label)")
    assert [row[0] for row in found.collect()] == list(range(300))


def test_an_outer_join_over_several_batches(spark: SparkSession, tmp_path: Path) -> None:
    """Results, headers, counters, microseconds, further columns; no other join takes its checkpoint."""
    batches = random_batches(1)
    rules = JoinRules("outer", WINDOWS)
    expected, counters = wanted(rules, [batches[0] + batches[1], batches[2] + batches[3]], 3)
    write(tmp_path, batches[:2])
    first = drained(joined(spark, tmp_path, state_format="timestamped_headers"), tmp_path)
    write(tmp_path, batches[2:], 2)
    second = drained(joined(spark, tmp_path), tmp_path)
    assert rows_of(spark, tmp_path) == expected
    metrics, more = figures(first), figures(second)
    for name, figure in counters.as_dict().items():
        assert metrics[name] + more[name] == figure, name
    assert more["state_rows"] > more["state_waiting"] > 0
    assert more["state_bytes"] > 0
    assert more["chunks_from_state"] > 0  # another query: its workers had nothing at hand
    by_place = {(e.side, e.partition, e.offset): e for batch in batches for e in batch}
    for row in spark.read.parquet(str(tmp_path / "out")).selectExpr("*", *[
        f"unix_micros({side}_timestamp) AS {side}_micros" for side in ("left", "right")
    ]).collect():  # fmt: skip
        for side in Side:
            name = side.name.lower()
            if row[f"{name}_topic"] is None:
                assert row[f"{name}_value"] is None
                continue
            event = by_place[side, row[f"{name}_partition"], row[f"{name}_offset"]]
            assert bytes(row[f"{name}_value"]) == event.value
            assert row[f"{name}_micros"] == event.micros
            tags = {key: int(value) for key, value in row[f"{name}_tags"].items()}
            assert tags == {f"p{event.partition}": event.offset}
    write(tmp_path, batches[:1], 4)
    with pytest.raises(StreamingQueryException) as failure:
        drained(joined(spark, tmp_path, tasks=2), tmp_path)
    error = headpond_error_of(failure.value)
    assert isinstance(error, UsageError)
    assert "rescale --tasks 2" in str(error)


def test_a_batch_writes_what_changed_and_no_whole_state(spark: SparkSession, tmp_path: Path) -> None:
    """Whoever chose snapshots keeps them; a checkpoint goes on from either to the other."""
    chosen = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
    batches = random_batches(3, batches=6)
    before = spark.conf.get(chosen, None)
    written = []
    try:
        for number, choice in enumerate((None, "false", None)):
            spark.conf.unset(chosen) if choice is None else spark.conf.set(chosen, choice)
            write(tmp_path, batches[2 * number : 2 * number + 2], 2 * number)
            drained(joined(spark, tmp_path), tmp_path)
            assert spark.conf.get(chosen) == (choice or "true")
            written.append({each.name for each in (tmp_path / "checkpoint/state/0/0").glob("[0-9]*")})
    finally:
        spark.conf.unset(chosen) if before is None else spark.conf.set(chosen, before)
    first, second, third = written[0], written[1] - written[0], written[2] - written[1]
    first.discard("1.zip")  # a store may begin with one
    kinds = [{name.rpartition(".")[2] for name in names} for names in (first, second, third)]
    assert kinds == [{"changelog"}, {"zip"}, {"changelog"}]
    pairs = [batches[at] + batches[at + 1] for at in (0, 2, 4)]
    assert rows_of(spark, tmp_path) == wanted(JoinRules("outer", WINDOWS), pairs, 3)[0]


@pytest.mark.parametrize("state_format", ["plain", "timestamped"])
def test_a_state_without_headers_goes_on(state_format: str, spark: SparkSession, tmp_path: Path) -> None:
    """Half of the stream with an old format in the state, then plain+headers: as if undivided."""
    batches = random_batches(2)
    write(tmp_path, batches[:2])
    drained(joined(spark, tmp_path, tasks=2, state_format=state_format), tmp_path)
    write(tmp_path, batches[2:], 2)
    drained(joined(spark, tmp_path, tasks=2), tmp_path)
    found = rows_of(spark, tmp_path)
    expected, _ = wanted(JoinRules("outer", WINDOWS), [batches[0] + batches[1], batches[2] + batches[3]], 2)
    assert without_headers(found) == without_headers(expected)
    # Headers are lost only where a record had waited in the old format; those of triggers never are.
    assert all(headers == () for *_, headers in found - expected)
    assert found & expected


def test_a_self_join_of_text_without_headers(spark: SparkSession, tmp_path: Path) -> None:
    """Keys and values as strings on both sides of the result; batches so small that tasks get nothing."""
    batches = random_batches(10, batches=3, size=4, keys=2) + random_batches(11, batches=1)
    write(tmp_path, batches)
    text = [f"CAST({name} AS STRING) AS {name}" for name in ("key", "value")]
    left = source(spark, tmp_path, Side.LEFT).selectExpr(*text, "timestamp", "partition", "offset")
    result = windowed_join(left, None, WINDOWS, "self", tasks=2)
    kinds = dict(result.dtypes)
    assert {kinds[name] for name in ("key", "left_value", "right_value")} == {"string"}
    assert "right_offset" in kinds
    binary = [f"CAST({name} AS BINARY) AS {name}" for name in ("key", "left_value", "right_value")]
    drained(result.selectExpr(*binary, "timestamp", "headers"), tmp_path)
    bare = [[replace(event, headers=()) for event in batch] for batch in batches]
    expected, counters = wanted(JoinRules("self", WINDOWS), [[e for batch in bare for e in batch]], 2)
    assert rows_of(spark, tmp_path) == expected
    assert counters.joined > 100


def test_inspecting_and_rescaling_a_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    """A copy of the checkpoint goes on with another number of tasks, its batches counted on."""
    batches = [
        sorted(batch, key=lambda e: e.micros) for batch in random_batches(9, batches=2, size=60, spread_ms=0)
    ]
    batches = [[e for e in batch if e.key is not None] for batch in batches]
    write(tmp_path, batches[:1])
    query = drained(joined(spark, tmp_path, how="inner"), tmp_path)
    checkpoint = str(tmp_path / "checkpoint")
    standing = read_join(spark, checkpoint)
    tasks = [figures_of_task(each) for each in standing.documents.values()]
    metrics = figures(query)
    assert (standing.tasks, standing.batch) == (3, 1)  # the second is the one at rest
    assert sum(each["records"] for each in tasks) == metrics["state_rows"]
    assert sum(each["bytes"] for each in tasks) == metrics["state_bytes"]
    assert max(each["stream_time"] for each in tasks) == max(e.micros for e in batches[0]) // 1000
    new = str(tmp_path / "rescaled")
    # By a URL, as in an object store: all files go through Hadoop's file systems.
    done = rescale(spark, f"file://{checkpoint}", 2, f"file://{new}")
    assert (done["from_tasks"], done["to_tasks"]) == (3, 2)
    shutil.rmtree(checkpoint)
    write(tmp_path, batches[1:], 1)
    drained(joined(spark, tmp_path, how="inner", tasks=2), tmp_path, new)
    assert read_join(spark, new).batch == 3
    # Records were in the order of their times: results do not depend on the tasks.
    assert rows_of(spark, tmp_path) == wanted(JoinRules("inner", WINDOWS), batches, 1)[0]
    with pytest.raises(UsageError, match="exists already"):
        rescale(spark, new, 3, str(tmp_path / "out"))
    with pytest.raises(UsageError, match="holds no windowed join"):
        read_join(spark, str(tmp_path / "out"))


def test_going_on_where_kafka_streams_stopped(spark: SparkSession, tmp_path: Path) -> None:
    """Its task's directory is the initial state: what came before joins what comes, and expires beside it."""
    vector = vector_json("window-store/handover/outer-headers.json")
    config = vector["config"]
    rules = JoinRules("outer", JoinWindows(config["before_ms"], config["after_ms"], config["grace_ms"]))
    with tarfile.open(fileobj=BytesIO(vector_bytes("window-store/handover/outer-headers.tar.gz"))) as archive:
        archive.extractall(tmp_path / "app", filter="data")
    directory = tmp_path / "app" / config["task"]
    events = [
        Event(
            Side.LEFT if step["side"] == "L" else Side.RIGHT,
            step["key"] and step["key"].encode(),
            step["value"] and step["value"].encode(),
            step["timestamp"] * 1000,
            tuple((name, value and bytes.fromhex(value)) for name, value in step["headers"]),
            0,
            number,
        )
        for number, step in enumerate(vector["steps"][vector["cut"] :])
    ]
    stores = find_task_stores(rules, directory)
    state = read_initial_state(rules, left=stores.left, right=stores.right, buffer=stores.buffer)
    shutil.copytree(directory, tmp_path / "copy")
    here = JoinStores.build(rules, tmp_path / "copy", join="j")
    with StreamJoin(rules, here, state.task.clock) as join:
        expected = Counter(tuple(r) for _, event in in_order(events) for r in join.process(event.record()))
        old = {row[1] for row in expected} - {event.value for event in events}
    write(tmp_path, [events])
    drained(joined(spark, tmp_path, rules.windows, tasks=1, initial_state=directory), tmp_path)
    found = rows_of(spark, tmp_path)
    assert without_headers(found) == without_headers(expected)
    # Kafka Streams' buffer has no headers: here unmatched records have those of their store.
    assert {row for row in found if None not in row[1:3]} == {row for row in expected if None not in row[1:3]}
    assert len(old) > 1  # values that only the directory held
    shutil.rmtree(directory)  # the checkpoint has it all: the same program goes on without it
    last = replace(events[-1], offset=len(events), micros=events[-1].micros + 10**9)
    write(tmp_path, [[last]], 1)
    drained(joined(spark, tmp_path, rules.windows, tasks=1, initial_state=directory), tmp_path)
    assert not found - rows_of(spark, tmp_path)
    frame = joined(spark, tmp_path, rules.windows, tasks=1, initial_state=directory)
    with pytest.raises(StreamingQueryException) as failure:
        drained(frame, tmp_path / "fresh")
    assert isinstance(headpond_error_of(failure.value), NotAStore)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f: f.drop("offset"), "does not say where its records come from"),
        (lambda f: f.drop("timestamp"), "no column timestamp"),
        (lambda f: f.selectExpr("*", "1 AS _micros"), "_micros"),
        (lambda f: f.withColumn("key", f["offset"]), "binary or string"),
        (lambda f: f.withColumn("headers", f["key"]), "headers"),
        (lambda f: f.withColumn("timestamp", f["offset"]), "not timestamp"),
        (lambda f: f.withColumn("key", f["key"].cast("string")), "binary on one side"),
    ],
)
def test_inputs_that_cannot_be_joined_are_refused(
    change: Any, said: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Before anything runs."""
    write(tmp_path, random_batches(4, batches=1, size=2))
    left, right = (source(spark, tmp_path, side) for side in (Side.LEFT, Side.RIGHT))
    with pytest.raises(UsageError, match=said):
        windowed_join(change(left), right, WINDOWS, tasks=2)


def test_joins_chain_and_their_results_have_places(spark: SparkSession, tmp_path: Path) -> None:
    """A join of a join's results; each result's task and number are its own, also after a restart."""
    batches = [[e for e in batch if e.key and e.value] for batch in random_batches(31, batches=2, size=40)]
    write(tmp_path, batches[:1])
    drained(joined(spark, tmp_path, how="inner", tasks=2), tmp_path)
    write(tmp_path, batches[1:], 1)
    drained(joined(spark, tmp_path, how="inner", tasks=2), tmp_path)
    rows = spark.read.parquet(str(tmp_path / "out"))
    assert rows.selectExpr("partition", "offset").distinct().count() == rows.count() > 20
    assert {row[0] for row in rows.selectExpr("partition").distinct().collect()} == {0, 1}
    pairs = joined(spark, tmp_path, how="inner", tasks=2).selectExpr(
        "key", "concat(left_value, right_value) AS value", "timestamp", "partition", "offset"
    )
    third = source(spark, tmp_path, Side.LEFT).drop("headers")
    wide = JoinWindows(10**6, 10**6)
    chained = windowed_join(pairs, third, wide, "inner", tasks=2, max_idle=-1)
    other = tmp_path / "other"
    query = drained(chained.selectExpr("left_value", "right_value"), other)
    by_key = Counter(e.key for batch in batches for e in batch if e.side is Side.LEFT)
    keys = Counter(bytes(row[0]) for row in rows.selectExpr("key").collect())
    count = spark.read.parquet(str(other / "out")).count()
    assert count == sum(number * by_key[key] for key, number in keys.items())
    assert len(query.recentProgress[0].observedMetrics) == 2


def test_joins_put_together_need_no_names(spark: SparkSession, tmp_path: Path) -> None:
    """Each has figures of its own in the progress of their query; one that is made again, its name again."""
    batches = random_batches(23, batches=1, size=60)
    write(tmp_path, batches)
    wide = JoinWindows(10**6, 10**6)
    first, second = (joined(spark, tmp_path, windows, "inner", name=None) for windows in (WINDOWS, wide))
    query = drained(first.union(second), tmp_path)
    pairs: Counter[str] = Counter()
    for progress in query.recentProgress:
        pairs.update({name: each["joined"] for name, each in progress.observedMetrics.items()})
    expected = [len(wanted(JoinRules("inner", each), batches, 3)[0]) for each in (WINDOWS, wide)]
    assert sorted(pairs.values()) == expected
    again = joined(spark, tmp_path, wide, "inner", name=None)
    assert any(f"CollectMetrics {name}," in plan_of(again).toString() for name in pairs)


def test_records_without_a_time_are_dropped_and_counted_on_request(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The others are joined as if those had not been."""
    (batch,) = random_batches(33, batches=1, size=60)
    early = [replace(event, micros=-5, offset=event.offset + 1000) for event in batch[:7]]
    write(tmp_path, [batch + early])
    query = drained(joined(spark, tmp_path, tasks=2, on_bad_time="drop"), tmp_path)
    assert rows_of(spark, tmp_path) == wanted(JoinRules("outer", WINDOWS), [batch], 2)[0]
    assert figures(query)["dropped_bad_time"] == 7


def test_a_windowed_aggregation_of_results_has_a_watermark_of_its_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Without the batch at rest, whose watermark would be in its way."""
    from pyspark.sql import functions as F  # noqa: N812 - pyspark's own name for it

    events = [
        Event(side, b"k", b"v", (START_MS + 10_000 * number + late_ms) * 1000, (), 0, number)
        for number in range(10)
        for side, late_ms in ((Side.LEFT, 0), (Side.RIGHT, 3000))
    ]
    write(tmp_path, [events[:10], events[10:]])
    pairs = joined(spark, tmp_path, JoinWindows(0, 5000), "inner", tasks=2, rest_batch=False)
    timed = pairs.withWatermark("timestamp", "0 seconds")
    drained(timed.groupBy(F.window("timestamp", "20 seconds")).count(), tmp_path)
    counts = [row[0] for row in spark.read.parquet(str(tmp_path / "out")).select("count").collect()]
    assert counts == [2] * len(counts)
    assert len(counts) >= 3
