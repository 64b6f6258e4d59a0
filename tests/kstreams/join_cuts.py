"""Scenarios of the join vectors for the batch engine: cut into batches, run, told in the vectors' words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headpond.kstreams.bytes.headers import encode_headers
from headpond.kstreams.bytes.headers_arrow import decode_headers_column
from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.join.arrivals import Arrivals
from headpond.kstreams.join.by_batch import BatchJoin, initial_state
from headpond.kstreams.join.rules import JoinCounters, JoinRules, JoinType, JoinWindows
from tests.kit.support import vector_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headpond.kstreams.join.chunks import TaskState

SCHEMA = pa.schema([("key", pa.binary()), ("headers", pa.binary()), ("value", pa.binary())])
SCHEMAS = {Side.LEFT: SCHEMA, Side.RIGHT: SCHEMA}
Record = tuple[Side, bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]


def scenarios() -> list[dict[str, Any]]:
    """All scenarios of the vectors."""
    random = [
        vector_json(f"window-store/joins/random-{kind}-{n}.json")
        for kind in ("inner", "left", "outer")
        for n in (0, 2, 4, 6)
    ]
    return [*vector_json("window-store/joins/scripted.json"), *random]


def rules_of(scenario: dict[str, Any], **more: Any) -> JoinRules:
    windows = JoinWindows(scenario["before_ms"], scenario["after_ms"], scenario["grace_ms"])
    kind = JoinType.SELF if scenario["self_join"] else JoinType(scenario["type"])
    return JoinRules(kind, windows, emit_interval_ms=scenario["emit_interval_ms"], **more)


def record_of(step: dict[str, Any], *, self_join: bool) -> Record:
    side = Side.LEFT if self_join or step["side"] == "L" else Side.RIGHT
    headers = [(name, None if value is None else bytes.fromhex(value)) for name, value in step["headers"]]
    return side, _bytes(step["key"]), _bytes(step["value"]), step["timestamp"], headers


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def arrivals_of(records: list[Record]) -> dict[Side, Arrivals]:
    """Records in order of arrival, as the engine takes them."""
    found = {}
    for side in {record[0] for record in records}:
        at = [n for n, record in enumerate(records) if record[0] is side]
        chosen = [records[n] for n in at]
        columns = [[r[1] for r in chosen], [encode_headers(r[4]) for r in chosen], [r[2] for r in chosen]]
        batch = pa.RecordBatch.from_arrays([pa.array(each, pa.binary()) for each in columns], schema=SCHEMA)
        ts = np.array([records[n][3] for n in at], np.int64)
        found[side] = Arrivals(batch, ts, np.array(at, np.int64))
    return found


Result = tuple[bytes | None, bytes, int, list[tuple[str, bytes | None]]]


def told(batch: pa.RecordBatch) -> Iterator[Result]:
    """Results with values joined as the vectors join them."""
    headers = decode_headers_column(batch.column("headers")).to_pylist()
    for row, listed in zip(batch.to_pylist(), headers, strict=True):
        left, right = (b"null" if row[f"{s}_value"] is None else row[f"{s}_value"] for s in ("left", "right"))
        yield row["key"], left + b"+" + right, row["timestamp"], [(h["key"], h["value"]) for h in listed]


def run(
    rules: JoinRules, batches: Iterable[tuple[list[Record], int]], state: TaskState | None = None, **more: Any
) -> tuple[list[Result], TaskState, JoinCounters]:
    """Run batches, each with its wall-clock time."""
    join = BatchJoin(rules, SCHEMAS, **more)
    state = state or initial_state(rules)
    out: list[Result] = []
    counters = JoinCounters()
    for records, now_ms in batches:
        for step in join.steps(state, arrivals_of(records), now_ms):
            for results in step.results.batches():
                results.validate(full=True)
                out += told(results)
            assert len(step.results) == step.counters.emitted
            counters.add(step.counters)
            state = step.state
    return out, state, counters


def cut(scenario: dict[str, Any], size: int) -> Iterator[tuple[list[Record], int]]:
    """Batches of at most so many records; the wall clock moves between batches only."""
    now_ms, records = 0, []
    for step in scenario["steps"]:
        if "advance_wall_clock_ms" in step:
            yield records, now_ms
            now_ms, records = now_ms + step["advance_wall_clock_ms"], []
            continue
        records.append(record_of(step, self_join=scenario["self_join"]))
        if len(records) == size:
            yield records, now_ms
            records = []
    yield records, now_ms


def expected(scenario: dict[str, Any]) -> list[Result]:
    return [
        (
            _bytes(each["key"]),
            each["value"].encode(),
            each["timestamp"],
            [(name, None if value is None else bytes.fromhex(value)) for name, value in each["headers"]],
        )
        for step in scenario["steps"]
        for each in step.get("out", ())
    ]
