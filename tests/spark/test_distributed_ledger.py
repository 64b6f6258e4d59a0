"""Documents of a ledger applied by executors, and by them and the driver in turn."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headpond.lake.apply import Applied, apply_batch
from headpond.lake.state.ledger import IDENTITY, LedgerTables
from headpond.qldb.config import DocumentSpec
from headpond.qldb.decode import LedgerConfig
from headpond.spark.following import distributed
from headpond.spark.following.distributed import COLLECTED_AT_ONCE_BYTES
from headpond.spark.sources.cells import FRAME_SCHEMA
from headpond.spark.sources.decoded import decode_partition
from tests.kit.support import share_of
from tests.lake.ledgers import block, config_of, datums, decoded, ledger_in, records, revision, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from headpond.lake.tables import Lake

    Apply = Callable[..., Applied]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def spread(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Apply:
    """Apply datums on executors, however few they are."""
    return spreader(spark, monkeypatch)


def spreader(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Apply:
    """Return what applies datums so."""
    monkeypatch.setattr(distributed, "DISTRIBUTE_ABOVE_BYTES", 0)
    monkeypatch.setattr(distributed, "LEAST_BYTES", 1 << 10)

    def apply(lake: Lake, config: LedgerConfig, blobs: Sequence[bytes], first: int, **more: Any) -> Applied:
        some = records(blobs, first=first).to_batches(max_chunksize=30)
        cells = pa.Table.from_batches(decode_partition(config, some, summary=True), FRAME_SCHEMA)
        return distributed.apply_frame(lake, spark.createDataFrame(cells), **more)

    return apply


def contents(lake: Lake) -> dict[str, Any]:
    """What a lake says, in an order of its own."""
    ledger = LedgerTables.of(lake)
    return {
        "rows": rows_of(lake),
        "tombstones": lake.tombstones.counts(),
        "quarantine": sorted(map(repr, lake.quarantine.read().to_pylist())),
        # Of a revision's copies either may be the one that is kept with its place.
        "conflicts": sorted(map(repr, ledger.conflicts.read(IDENTITY).to_pylist())),
        "redactions": ledger.facts["redactions"].count(),
    }


@pytest.mark.parametrize("at_once_bytes", [20_000, COLLECTED_AT_ONCE_BYTES])
def test_executors_leave_what_the_driver_leaves(
    spread: Apply, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once_bytes: int
) -> None:
    """Current documents and histories in any order, with repeats, contradictions, deletes and redactions.

    Facts come to the driver in parts where they are many.
    """
    in_parts = partial(distributed.collected, at_once_bytes=at_once_bytes)
    monkeypatch.setattr(distributed, "collected", in_parts)
    config = config_of("Mixed", "Person", raw_ion=True, canonical_json=True, honour=True)
    draw = random.Random(5)
    blobs = [
        *draw.sample(datums("duplicated"), 300),
        revision("d", 1, "{a: 1, b: 2.50}", hashed=1),
        revision("d", 1, "{a: 2}", hashed=2),
        revision("d", 0, "{a: 0}", hashed=3),
        revision("e", 0, "{a: 1}"),
        revision("e", 1, None),
        block([("d", 1)], redacts=[("d", 0)]),
    ]
    draw.shuffle(blobs)
    want = ledger_in(tmp_path / "driver", config)
    for number in range(4):
        lake = ledger_in(tmp_path / "both", config)
        some, first = blobs[number * 80 : (number + 1) * 80], number * 80
        transaction = ("query", number)
        for _ in range(2):
            apply_batch(want, decoded(config, some, first=first), transaction=transaction)
        if number % 2:
            apply_batch(lake, decoded(config, some, first=first), transaction=transaction)
        else:
            spread(lake, config, some, first, transaction=transaction)
        again = spread(lake, config, some, first, transaction=transaction)
        assert not any(figures["upserts"] + figures["deletes"] for figures in again.tables.values())
    assert contents(lake) == contents(want)


def test_partitioned_documents(spread: Apply, tmp_path: Path) -> None:
    """A merge finds the rows of a document in their folders."""
    spec = DocumentSpec(
        name="t", table="Person", columns={"a": "bigint"}, partition_by=("a",), buckets=3, keep="history"
    )
    config = LedgerConfig(tables=(spec,))
    lake = ledger_in(tmp_path, config)
    blobs = [revision(f"d{at % 7}", at // 7, f"{{a: {at % 2}, b: {at}}}") for at in range(28)]
    for at in (slice(0, None, 2), slice(1, None, 2), slice(5, 15)):
        spread(lake, config, blobs[at], 0)
    assert [(row["_version"], row["b"]) for row in rows_of(lake)["t"] if row["_document_id"] == "d3"] == [
        (at, str(at * 7 + 3)) for at in range(4)
    ]
    assert lake.tables["t"].typed.file.count() == 28


REVISION = st.tuples(st.sampled_from("abcd"), st.integers(0, 3), st.integers(1, 3), st.booleans())
BLOCK = st.tuples(st.sampled_from("abcd"), st.integers(1, 3), st.none() | st.integers(0, 3))


@pytest.mark.thorough
@settings(max_examples=share_of(10), suppress_health_check=list(HealthCheck))
@given(
    batches=st.lists(st.lists(REVISION | BLOCK, min_size=1, max_size=20), min_size=1, max_size=4),
    honour=st.booleans(),
)
def test_any_revisions_and_blocks_leave_what_the_driver_leaves(
    spark: SparkSession, *, batches: list[list[tuple[Any, ...]]], honour: bool
) -> None:
    """Contradictions, deletes, blocks that decide late, redactions, cut anyhow, each batch twice."""
    config = config_of("Person", honour=honour)
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        spread = spreader(spark, patch)
        lake, other = (ledger_in(Path(folder) / name, config) for name in "ab")
        first = 0
        for batch in batches:
            blobs = []
            for document, *rest in batch:
                if len(rest) == 3:
                    version, hashed, alive = rest
                    data = f"{{a: {version}, b: {hashed}}}" if alive else None
                    blobs.append(revision(document, version, data, hashed=hashed))
                else:
                    hashed, redacted = rest
                    redacts = [] if redacted is None else [(document, redacted)]
                    blobs.append(block([(document, hashed)], redacts=redacts))
            for _ in range(2):
                # Figures may differ: what a block lists is decided on once more with the facts.
                spread(lake, config, blobs, first)
                apply_batch(other, decoded(config, blobs, first=first))
            first += len(blobs)
        assert contents(lake) == contents(other)
