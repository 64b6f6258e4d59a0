"""Chunks, keys and arrival order of the join by the batch."""

from __future__ import annotations

import random
from itertools import count

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.core.errors import InvalidData
from headpond.core.hashes import hash_keys, murmur2, task_of
from headpond.kstreams.bytes.headers_arrow import join_prefix
from headpond.kstreams.bytes.window_values import ValueFormat
from headpond.kstreams.join.chunk_codec import (
    decode_chunk,
    encode_chunk,
    read_manifest,
    schema_of_chunk,
)
from headpond.kstreams.join.chunks import Waits, compacted, cut
from headpond.kstreams.join.pairs import Probes, Rows, Run
from tests.kit.support import share_of

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("headers", pa.binary()),
        ("value", pa.binary()),
        ("n", pa.int64()),
        ("t", pa.string()),
    ]
)


def rows(count: int, seed: int = 1, first_seq: int = 0) -> Rows:
    chance = random.Random(seed)
    records = pa.RecordBatch.from_pylist(
        [
            {
                "key": b"k%d" % chance.randrange(5),
                "headers": chance.choice([b"", b"\x02\x02k\x02v"]),
                "value": chance.randbytes(chance.randrange(5)),
                "n": chance.choice([-(1 << 63), (1 << 63) - 1, 0, chance.randrange(100)]),
                "t": chance.choice([None, "x"]),
            }
            for _ in range(count)
        ],
        SCHEMA,
    )
    ts = np.array([chance.choice([5, 1 << 61, chance.randrange(1000)]) for _ in range(count)], np.int64)
    seq = np.arange(first_seq, first_seq + count, dtype=np.int64)
    return Rows(records, ts, seq, hash_keys(records.column("key")))


def same(one: Rows, other: Rows) -> bool:
    numbers = all((getattr(one, n) == getattr(other, n)).all() for n in ("ts", "seq", "hashes"))
    return numbers and one.records.equals(other.records)


@pytest.mark.parametrize("value_format", ValueFormat)
@pytest.mark.parametrize("count", [0, 1, 2, 300])
def test_a_chunk_comes_back(value_format: ValueFormat, count: int) -> None:
    """In every format; without headers where the format has no place for them."""
    written = rows(count)
    data = encode_chunk(written, value_format)
    assert schema_of_chunk(data) == SCHEMA
    read = decode_chunk(data, SCHEMA)
    if not value_format.has_headers:
        at = SCHEMA.get_field_index("headers")
        empty = pa.array([b""] * count, pa.binary())
        columns = [empty if n == at else column for n, column in enumerate(written.records.columns)]
        written = Rows(
            pa.RecordBatch.from_arrays(columns, schema=SCHEMA), written.ts, written.seq, written.hashes
        )
    assert same(written, read)


def test_columns_may_be_added_and_left_out_but_not_changed() -> None:
    """A chunk is read with the columns that the join has now."""
    data = encode_chunk(rows(3), ValueFormat.PLAIN_HEADERS)
    other = pa.schema([*list(SCHEMA)[:3], ("new", pa.float64())])
    assert decode_chunk(data, other).records.column("new").null_count == 3
    with pytest.raises(InvalidData, match="Column n is int64 in the join's state and int32"):
        decode_chunk(data, pa.schema([*list(SCHEMA)[:3], ("n", pa.int32())]))


def test_a_chunk_of_the_first_version_is_read() -> None:
    """It was one stream, with keys and payloads as binary columns."""
    written = rows(30)
    with pa.ipc.open_stream(encode_chunk(written, ValueFormat.PLAIN_HEADERS)) as reader:
        batch = reader.read_next_batch()
    meta = orjson.loads(batch.schema.metadata[b"headpond.join.chunk"])
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns["key"] = written.records.column("key")
    columns["payload"] = join_prefix(written.records.column("headers"), written.records.column("value"))
    old = pa.RecordBatch.from_pydict(
        columns, metadata={"headpond.join.chunk": orjson.dumps({**meta, "version": 1})}
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, old.schema) as writer:
        writer.write_batch(old)
    assert same(written, decode_chunk(sink.getvalue().to_pybytes(), SCHEMA))


@pytest.mark.slow
def test_a_damaged_chunk_is_an_error_and_nothing_else() -> None:
    """Cut at every byte, and bytes that are no chunk."""
    data = encode_chunk(rows(40), ValueFormat.PLAIN_HEADERS)
    for size in range(len(data) - 8):  # the last eight bytes are the stream's end mark, which may be missing
        with pytest.raises(InvalidData):
            decode_chunk(data[:size], SCHEMA)
    for damaged in (b"", b"chunk", data[100:]):
        with pytest.raises(InvalidData):
            decode_chunk(damaged, SCHEMA)
    for manifest in (b"", b"{}", b"[1]", b'{"version": 99}', b"null"):
        with pytest.raises(InvalidData):
            read_manifest(manifest)


def test_murmur2_is_kafkas() -> None:
    """The values of Kafka's own test."""
    known = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    assert murmur2(pa.array(list(known), pa.binary())).astype(np.int32).tolist() == list(known.values())


@given(st.lists(st.binary(max_size=40), max_size=20))
@pytest.mark.slow
def test_hashes_depend_on_the_key_alone(keys: list[bytes]) -> None:
    """Not on neighbours, slices or nulls beside it; different keys rarely share one."""
    column = pa.array([None, *keys], pa.binary())
    hashes, tasks = hash_keys(column)[1:], task_of(column, 7)[1:]
    assert ((tasks >= 0) & (tasks < 7)).all()
    for key, hashed, task in zip(keys, hashes, tasks, strict=True):
        alone = pa.array([key], pa.binary())
        assert (hash_keys(alone)[0], task_of(alone, 7)[0]) == (hashed, task)
    assert (hash_keys(column[1:]) == hashes).all()
    assert len(set(hashes.tolist())) == len(set(keys))


TIMES = st.integers(0, 12) | st.sampled_from([1 << 40, 1 << 61, (1 << 62) - 1])


@settings(max_examples=share_of(150))
@given(
    st.lists(st.tuples(st.integers(0, 3), TIMES), max_size=12),
    st.lists(st.tuples(st.integers(0, 4), TIMES, TIMES), max_size=6),
)
@pytest.mark.slow
def test_a_run_finds_what_a_loop_finds(
    entries: list[tuple[int, int]], questions: list[tuple[int, int, int]]
) -> None:
    """Any hashes, any times, however far apart."""
    hashes = np.array([each[0] for each in entries], np.uint64)
    ts = np.array([each[1] for each in entries], np.int64)
    asked = np.array([each[0] for each in questions], np.uint64)
    first, last = (np.array([each[n] for each in questions], np.int64) for n in (1, 2))
    probes = Probes.of(asked, first, last)
    found = sorted(zip(*(each.tolist() for each in _found(Run.of(hashes, ts), probes)), strict=True))
    assert found == sorted(
        (number, row)
        for number, (key, low, high) in enumerate(questions)
        for row, (entry, time) in enumerate(entries)
        if entry == key and low <= time <= high
    )
    if entries:
        near = probes.within(int(ts.min()), int(ts.max()))
        again = sorted(zip(*(each.tolist() for each in _found(Run.of(hashes, ts), near)), strict=True))
        assert again == found


def _found(run: Run, probes: Probes) -> tuple[np.ndarray, np.ndarray]:
    return run.ranges(probes).pairs()


def test_small_chunks_are_put_together() -> None:
    """Eight of a slice become one; waiting rows stay the same ones."""
    numbers = count(0)
    parts = []
    for number in range(30):
        part = rows(10, seed=number, first_seq=10 * number)
        part = Rows(part.records, part.ts % 100, part.seq, part.hashes)
        parts += cut(part, part.seq % 3 == 0, 1000, numbers)
    after = compacted(parts, numbers)
    assert sum(chunk.rows for chunk, _ in after) == 300
    assert len(after) < 15
    waiting = [n for chunk, waits in after for n in chunk.data.seq[waits.flags].tolist()]
    assert sorted(waiting) == list(range(0, 300, 3))
    assert all((np.diff(chunk.data.seq) > 0).all() for chunk, _ in after)


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.data())
def test_waiting_rows_come_back_from_their_bitmap(flags: list[bool], data: st.DataObject) -> None:
    """As they were, and without some of them; neither changes the other."""
    waits = Waits.of(np.array(flags))
    read = Waits.read(waits.bitmap, len(flags), waits.count)
    assert read.flags.tolist() == flags
    gone = sorted(data.draw(st.sets(st.integers(0, len(flags) - 1))))
    left = read.without(np.array(gone, np.int64))
    assert left.flags.tolist() == [each and row not in gone for row, each in enumerate(flags)]
    assert left.count == sum(left.flags)
    assert read.flags.tolist() == flags
