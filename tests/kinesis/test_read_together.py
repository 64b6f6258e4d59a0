"""Pages of many shards in few batches: the same rows in the same order, however they are put together."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headpond.kinesis.api.replies import Record
from headpond.kinesis.reading import reader as read
from headpond.kinesis.reading.reader import in_batches, to_batch
from headpond.kpl import UserRecord, encode
from headpond.kpl.records import open_records

if TYPE_CHECKING:
    import pyarrow as pa

STREAM = "orders"
Pages = list[tuple[str, list[Record]]]

BLOBS = st.one_of(
    st.binary(max_size=60),
    st.lists(st.binary(max_size=9), min_size=1, max_size=4).map(
        lambda parts: encode([UserRecord("k", part) for part in parts]).data
    ),
    st.just(encode([UserRecord("k", b"x")]).data[:-1]),  # its checksum does not fit
)


def record(number: int, data: bytes) -> Record:
    return Record(str(number), 1.5 + number, f"k{number}", b64encode(data).decode())


@st.composite
def pages_of_shards(draw: st.DrawFn) -> Pages:
    """Pages as they come: shard by shard, of any size."""
    found, number = [], 0
    for shard in range(draw(st.integers(0, 4))):
        for _ in range(draw(st.integers(0, 3))):
            blobs = draw(st.lists(BLOBS, min_size=1, max_size=5))
            found.append((f"shardId-{shard}", [record(number + i, blob) for i, blob in enumerate(blobs)]))
            number += len(blobs)
    return found


def one_by_one(pages: Pages) -> list[pa.RecordBatch]:
    return [to_batch(page, STREAM, [(shard, len(page))]) for shard, page in pages]


def rows(batches: list[pa.RecordBatch]) -> list[dict[str, object]]:
    return [row for batch in batches for row in batch.to_pylist()]


@given(pages_of_shards(), st.sampled_from([1, 40, 200, read.BATCH_BYTES]))
@pytest.mark.slow
def test_batches_hold_what_the_pages_held(pages: Pages, size_bytes: int) -> None:
    """Every record once, in order, with its own shard; no batch is empty or goes on once it is full."""
    batches = list(in_batches(pages, STREAM, size_bytes))
    assert rows(batches) == rows(one_by_one(pages))
    sizes = [[len(record.text) for record in page] for _, page in pages]
    for batch in batches:
        taken = 0
        count = 0
        while count < batch.num_rows:
            assert taken < size_bytes
            page = sizes.pop(0)
            taken, count = taken + sum(page), count + len(page)
        assert count == batch.num_rows > 0


@pytest.mark.slow
@given(pages_of_shards(), st.sampled_from([1, 200, read.BATCH_BYTES]))
def test_user_records_are_the_same(pages: Pages, size_bytes: int) -> None:
    """Aggregates of one shard are opened beside plain and broken records of another as they are alone."""

    def opened(batches: list[pa.RecordBatch]) -> list[dict[str, object]]:
        return rows([found for batch in batches for found in open_records(batch)])

    assert opened(list(in_batches(pages, STREAM, size_bytes))) == opened(one_by_one(pages))
