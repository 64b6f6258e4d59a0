"""The windowed join of two streams, on Spark: Kafka Streams' rules and results, headers included."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from enum import StrEnum
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from headpond.core.errors import ConfigurationError, UsageError
from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.bytes.window_values import ValueFormat
from headpond.kstreams.join.alignment import MAX_HELD_BYTES, NEVER_IDLE
from headpond.kstreams.join.kafka_state import find_task_stores, read_initial_state
from headpond.kstreams.join.pairs import MAX_CANDIDATES
from headpond.kstreams.join.rules import (
    Emit,
    HeadersOf,
    JoinRules,
    JoinType,
    JoinWindows,
    StreamTime,
    choice,
)
from headpond.kstreams.join.state import JoinState, adopted
from headpond.kstreams.stores.contract import milliseconds
from headpond.spark.errors import carried, sentences_for_people
from headpond.spark.join.at_hand import MAX_AT_HAND_BYTES
from headpond.spark.join.checkpoint import SEED_DDL, seed_rows
from headpond.spark.join.columns import SideColumns, output_type, side_columns
from headpond.spark.join.pack import PACKED_DDL, Packer, Unpacker, as_function, labels
from headpond.spark.join.rest import plan_of, with_rest
from headpond.spark.session.workers import use_this_python

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from headpond.spark.join.task import JoinPlan

InitialState = JoinState | Path | str
MAX_TASKS = 4096
TASKS = 32
"""The number of tasks when none is given."""
METRICS = "headpond_join"
_NAMED: WeakKeyDictionary[Any, dict[str, int]] = WeakKeyDictionary()  # session → its joins, numbered
_SIDES = (Side.LEFT, Side.RIGHT)
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_CHANGELOGS = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"


class OnBadTime(StrEnum):
    """What becomes of a record with a time that a join cannot take."""

    FAIL = "fail"
    DROP = "drop"


def windowed_join(
    left: DataFrame,
    right: DataFrame | None,
    windows: JoinWindows,
    how: JoinType | str = JoinType.INNER,
    *,
    tasks: int = TASKS,
    headers: HeadersOf | str = HeadersOf.OWN,
    emit: Emit | str = Emit.EAGER,
    emit_interval_ms: int | timedelta = 0,
    max_idle: int | timedelta = 0,
    stream_time: StreamTime | str = StreamTime.TASK,
    rest_batch: bool = True,
    on_bad_time: OnBadTime | str = OnBadTime.FAIL,
    max_held_bytes: int = MAX_HELD_BYTES,
    max_candidates: int = MAX_CANDIDATES,
    max_at_hand_bytes: int = MAX_AT_HAND_BYTES,
    state_format: ValueFormat | str = ValueFormat.PLAIN_HEADERS,
    initial_state: InitialState | Sequence[InitialState] | None = None,
    name: str | None = None,
) -> DataFrame:
    """Join two streams of keyed records in time windows, as Kafka Streams does.

    Any session will do. It gets what the join needs: RocksDB as its state store, this Python for workers on
    this machine, and our errors as sentences; what was chosen already stays. Sources are not among them:
    `headpond.spark.register` comes before they are loaded.

    Args:
        left: A streaming frame with `key` and `value` (binary or string), `timestamp`, `headers` (may be
            missing) and its records' places: `partition` and `offset`, or `shard_id`, `sequence_number` and
            `sub_sequence_number`. All other columns are passed through.
        right: The other frame; None for a self-join.
        windows: Which records are close enough in time to join.
        how: "inner", "left", "outer" or "self".
        tasks: Number of join tasks: what partitions are to Kafka Streams. Keys go to tasks as Kafka's
            partitioner sends them to partitions. A checkpoint belongs to one number of tasks. 32 tasks keep
            as many cores busy, and cost some 25 ms a batch.
        headers: Whose headers a result carries: "own", "trigger" or "merge".
        emit: When an unmatched result is emitted: "eager" or "final".
        emit_interval_ms: Minimum time between two rounds of emitting expired unmatched results.
        max_idle: How long (ms) a source partition without records is waited for, as Kafka Streams'
            `max.task.idle.ms`: records that are ahead of it are held. 0: as long as batches have records of
            it; -1: nothing is held, and an input that is behind loses its matches. Under Spark
            Connect it is always -1.
        stream_time: The clock that closes windows: "task", the greatest timestamp of the task's own
            records, or "query", the time that all live inputs have reached.
        rest_batch: Whether an empty batch follows the last one with records and releases what is held.
            It takes a watermark; without it, the result may be given one (`withWatermark`), and what is held
            when the input pauses comes with the next records.
        on_bad_time: What to do with a record without a time, or from before 1970: "fail" ends the query,
            "drop" leaves it out and counts it (`dropped_bad_time`).
        max_held_bytes: More bytes of held records in one task end the query.
        max_candidates: Likewise more pairs of a record of one batch and one in its window.
        max_at_hand_bytes: How many bytes of its state a Python worker keeps in memory; it reads the rest from
            local files, or from Spark's state, when a record may match it.
        state_format: The format of values in the state; anything but "plain_headers" is for going back.
        initial_state: What a Kafka Streams application left when it stopped, taken over at the start:
            its task directories (`<state directory>/<application>/<task>`) in the order of their partitions,
            where tasks can read them, or `JoinState`s of `headpond.kstreams.read_initial_state`. Only the
            first batch reads it.
        name: Of the figures in the query's progress (`observedMetrics`). None: `headpond_join`, and
            `headpond_join_2` and so on for further joins of the session, in the order in which they are made.

    Returns:
        A streaming frame: `key`, `timestamp` (the greater of both, in ms), `headers`, its own place
        (`partition`, the task, and `offset`, its number there), and per side `left_timestamp`, `left_value`,
        `left_<further column>` …; all null where the side is missing.

    Raises:
        UsageError: A column is missing or has a wrong type, or an argument is not one of its choices.
        ConfigurationError: Spark's state store is not RocksDB.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.utils import is_remote

    from headpond.spark.join.task import FIGURES, OUT_DDL, JoinPlan, JoinProcessor

    given: dict[str, Any] = {
        "type": how, "headers": headers, "emit": emit, "emit_interval_ms": emit_interval_ms,
        "stream_time": stream_time,
    }  # fmt: skip
    rules = JoinRules(windows=windows, **given)
    if type(tasks) is not int or not 1 <= tasks <= MAX_TASKS:
        raise UsageError(f"tasks is a number from 1 to {MAX_TASKS}, not {tasks!r}.", option="tasks")
    frames = _frames(left, right, rules)
    _prepare(left.sparkSession)
    columns = {side: side_columns(frame.schema, side) for side, frame in frames.items()}
    _check_keys(columns)
    drops = choice(OnBadTime, "on_bad_time", on_bad_time) is OnBadTime.DROP
    every = tuple(columns.values())
    # Under Spark Connect no batch at rest follows in which what is held could come out.
    idle_ms = NEVER_IDLE if is_remote() else milliseconds("max_idle", max_idle)
    plan = JoinPlan(
        rules, every, tuple(labels(tasks)), choice(ValueFormat, "state_format", state_format),
        uuid.uuid4().hex, idle_ms, max_held_bytes, max_candidates, max_at_hand_bytes,
    )  # fmt: skip
    packed = [
        frame.select(*[f"`{each}`" for each in columns[side].selected]).mapInArrow(
            as_function(Packer(columns[side], plan.labels, drops)), PACKED_DDL
        )
        for side, frame in frames.items()
    ]
    # One time per micro-batch, written down with its offsets: a batch that is run again gets the same.
    together = reduce(lambda one, two: one.unionAll(two), packed)
    called = with_rest(together, plan.labels, rest_batch=rest_batch)
    timed = called.withColumn("now_ms", F.unix_millis(F.current_timestamp()))
    seeds = None
    if initial_state is not None:
        seeds = _seeds(left.sparkSession, initial_state, plan).groupBy("label")
    joined = timed.groupBy("label").transformWithStateInPandas(
        JoinProcessor(plan), OUT_DDL, outputMode="Append", timeMode="None", initialState=seeds
    )
    counted = joined.observe(
        _name_of(frames.values(), rules) if name is None else name,
        *[F.coalesce(F.sum(each), F.lit(0)).alias(each) for each in FIGURES],
    )
    out = output_type(_both(columns), {side: frames.get(side, left).schema for side in _SIDES})
    unpacker = Unpacker(tuple(_both(columns).values()), to_arrow_schema(out, timezone="UTC"))
    return counted.select("blob").mapInArrow(as_function(unpacker), out)


def _seeds(spark: SparkSession, given: InitialState | Sequence[InitialState], plan: JoinPlan) -> DataFrame:
    """Return the rows of the initial state; they are made when Spark asks for them, in the first batch."""
    each = [given] if isinstance(given, JoinState | str | Path) else list(given)
    there = [one if isinstance(one, JoinState) else Path(one).absolute() for one in each]
    for one in there:
        if isinstance(one, Path) and one.exists():
            find_task_stores(
                plan.rules, one
            )  # a wrong one is refused now; where there is none, the first batch says so

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        del batches
        states = [one if isinstance(one, JoinState) else _read_task(one, plan.rules) for one in there]
        rows = seed_rows(adopted(states, len(plan.labels), plan.rules), plan.fingerprint)
        for number in range(len(rows)):
            yield from rows.slice(number, 1).to_batches()

    return spark.range(0, 1, 1, 1).mapInArrow(carried(read), SEED_DDL)


def _read_task(directory: Path, rules: JoinRules) -> JoinState:
    stores = find_task_stores(rules, directory)
    return read_initial_state(rules, left=stores.left, right=stores.right, buffer=stores.buffer)


def _name_of(frames: Iterable[DataFrame], rules: JoinRules) -> str:
    """Return a name for the figures of a join: the same for one that is made again, for others the next.

    Spark refuses a query in which two have one name, and a join cannot know which query it will be in.
    """
    from pyspark.sql.utils import is_remote

    first, *_ = frames = list(frames)
    plans = [frame.schema.json() if is_remote() else plan_of(frame).toString() for frame in frames]
    known = _NAMED.setdefault(first.sparkSession, {})
    # The numbers of columns and sources are new each time.
    number = known.setdefault(re.sub(r"#\d+", "", f"{rules} {plans}"), len(known) + 1)
    return METRICS if number == 1 else f"{METRICS}_{number}"


def _frames(left: DataFrame, right: DataFrame | None, rules: JoinRules) -> dict[Side, DataFrame]:
    if rules.type is JoinType.SELF:
        if right is not None:
            raise UsageError(
                "A self-join joins a stream with itself and has no right input.",
                next_step="Pass None for it, or choose inner, left or outer.",
            )
        frames = {Side.LEFT: left}
    elif right is None:
        raise UsageError(f"A join of type {rules.type} needs a right input.")
    else:
        frames = {Side.LEFT: left, Side.RIGHT: right}
    for side, frame in frames.items():
        if not frame.isStreaming:
            raise UsageError(
                f"The {side.name.lower()} input is not a stream.",
                next_step="Read it with spark.readStream; trigger(availableNow=True) ends when all is read.",
            )
    return frames


def _both(columns: dict[Side, SideColumns]) -> dict[Side, SideColumns]:
    """Columns of both sides of the output: those of a self-join are the same ones."""
    left = columns[Side.LEFT]
    return {Side.LEFT: left, Side.RIGHT: columns.get(Side.RIGHT, replace(left, side=Side.RIGHT))}


def _check_keys(columns: dict[Side, SideColumns]) -> None:
    kinds = {each.key_is_text for each in columns.values()}
    if len(kinds) > 1:
        raise UsageError(
            "The key is binary on one side and string on the other.",
            next_step="Cast one of them: equal keys are equal bytes.",
            column="key",
        )


def _prepare(spark: SparkSession) -> None:
    """Give a session what the join needs; Spark's stateful Python takes no state store but RocksDB."""
    sentences_for_people()
    use_this_python(spark)
    if spark.conf.get(_CHANGELOGS, None) is None:
        # Otherwise each batch writes RocksDB's own log of its files as a whole, which grows with every batch.
        spark.conf.set(_CHANGELOGS, "true")
    chosen: Any = spark.conf.get(_PROVIDER, None)
    if chosen == ROCKSDB:
        return
    if chosen is not None and not chosen.endswith("HDFSBackedStateStoreProvider"):
        raise ConfigurationError(
            f"{_PROVIDER} is {chosen}; the join's state needs {ROCKSDB}.",
            next_step="Set it so before the query starts.",
            option=_PROVIDER,
        )
    spark.conf.set(_PROVIDER, ROCKSDB)
