"""More than 2 GiB a side, which one array of Arrow's cannot hold: in the state, and in a batch."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headpond.core.hashes import hash_keys
from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.join import alignment
from headpond.kstreams.join.alignment import NEVER_IDLE, Alignment, Delivered, Piece
from headpond.kstreams.join.arrivals import Arrivals
from headpond.kstreams.join.by_batch import BatchJoin, initial_state
from headpond.kstreams.join.chunks import Chunk, Inputs, Kept, TaskState, Waits
from headpond.kstreams.join.pairs import Rows
from headpond.kstreams.join.rules import JoinClock, JoinRules, JoinWindows
from tests.kstreams.join_cuts import SCHEMA, SCHEMAS

RULES = JoinRules("inner", JoinWindows(1 << 30, 1 << 30))


def records(keys: list[bytes], size: int) -> pa.RecordBatch:
    """Records with values of so many bytes."""
    columns = [pa.array(each, pa.binary()) for each in (keys, [b""] * len(keys), [b"x" * size] * len(keys))]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


@pytest.mark.slow
def test_results_from_all_over_a_state_of_more_than_two_gibibytes() -> None:
    """Its chunks share their bytes here, so that it takes 16 MiB; the join does not know."""
    chunks, size = 170, 320_000
    shared = records([b"%d" % number for number in range(50)], size)
    hashes = hash_keys(shared.column("key"))
    kept = []
    for number in range(chunks):
        at = number * len(hashes) + np.arange(len(hashes))
        chunk = Chunk.of(number, Rows(shared, 1000 + at, at, hashes), 0)
        kept.append(Kept(chunk, Waits.of(np.zeros(len(at), np.bool_))))
    assert sum(chunk.bytes for chunk, _ in kept) > 5 << 29
    newest = 1000 + chunks * len(hashes)
    clock = JoinClock(newest, {Side.LEFT: newest, Side.RIGHT: -1})
    state = TaskState(clock, newest, chunks, {Side.LEFT: tuple(kept), Side.RIGHT: ()})
    right = Arrivals(records([b"7"], 1), np.array([newest]), np.array([0]))
    (step,) = BatchJoin(RULES, SCHEMAS).steps(state, {Side.RIGHT: right})
    (found,) = step.results.batches()
    assert found.num_rows == chunks
    assert found.column("left_timestamp").to_pylist() == [1007 + number * 50 for number in range(chunks)]
    assert pa.compute.binary_length(found.column("left_value")).unique().to_pylist() == [size]


@pytest.mark.parametrize("large_ones", [range(40), range(5), range(35, 40), range(0, 40, 7)])
def test_a_batch_of_any_size_is_processed_in_parts_of_bounded_size(
    large_ones: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is 256 MiB; with one of 256 KiB nothing larger than twice that is made, whatever is large."""
    bound, flushes, rows = 1 << 18, 40, 50
    made: list[int] = []

    def watched(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
        made.append(sum(each.nbytes for each in parts))
        return pa.concat_batches(parts)

    monkeypatch.setattr(alignment, "RELEASED_BYTES", bound)
    monkeypatch.setattr(alignment, "_concatenated", watched)
    delivered: dict[Side, list[Delivered]] = {Side.LEFT: [], Side.RIGHT: []}
    for number in range(flushes):
        for side, each in delivered.items():
            at = number * rows + np.arange(0, rows, 1 if side is Side.LEFT else 10)
            large = side is Side.LEFT and number in large_ones
            some = records([b"%d" % row for row in at.tolist()], 4000 if large else 10)
            piece = Piece(("t", 0), (number * rows,), int(at[-1]))
            each.append(Delivered(some, at, at, np.zeros(len(at), np.int64), [piece]))
    total = sum(each.records.nbytes for some in delivered.values() for each in some)
    aligned = Alignment(Inputs(), SCHEMAS, 0, NEVER_IDLE)
    aligned.take(delivered)
    state, joined, parts = initial_state(RULES), 0, 0
    for part in aligned.released():
        parts += 1
        assert sum(each.records.nbytes for each in part.arrivals.values()) <= 2 * bound
        for step in BatchJoin(RULES, SCHEMAS).steps(state, part.arrivals):
            state, joined = step.state, joined + step.counters.joined
    assert max(made) <= 2 * bound
    assert parts >= total / (2 * bound)
    assert joined == flushes * rows // 10
