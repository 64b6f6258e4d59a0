"""However a batch is cut into tasks, what comes of it is what one task makes of it; without Spark."""

from __future__ import annotations

import pickle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

from headpond.lake.apply import Applied, apply_batch
from headpond.pipeline.load import loads
from headpond.spark.following.distributed import CONTENT, SHARE, Share, deal_of, decided_in_shares
from headpond.spark.following.query import by_executors
from headpond.spark.sources.decoded import TABLE, gather
from tests.lake.lakes import cells, lake_in
from tests.lake.test_apply import change
from tests.spark.test_distributed import CHANGE, KINDS, contents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headpond.lake.apply import DecodedBatch
    from headpond.lake.tables import Lake
    from headpond.lake.target import Decision


def applied(lake: Lake, config: Any, lines: Sequence[bytes], *, parts: int, shares: int) -> Applied:
    """Apply lines that so many tasks decode and so many others apply, each where nothing else is known."""
    frame = cells(config, lines, parts=parts)

    def decide(lake: Lake, batch: DecodedBatch) -> dict[str, Decision]:
        return {name: in_shares(name) for name in batch.tables if name in lake.tables}

    def in_shares(name: str) -> Decision:
        batch = gather(frame).tables[name]
        lake.tables[name].typed.fit(batch.schema)
        deal = deal_of(lake, name, shares)
        rows = [cell for cell in frame.to_pylist() if (cell["kind"], cell["name"]) == (TABLE, name)]
        dealt = [part for cell in rows for part in deal.run(iter([content([cell["content"]])]))]

        def run(share: Share) -> pa.ChunkedArray:
            said = []
            for number in range(shares):
                mine = [part.filter(pc.equal(part[SHARE], number)).select([CONTENT]) for part in dealt]
                said += pickle.loads(cloudpickle.dumps(share)).run(iter(mine))
            return pa.Table.from_batches(said)[CONTENT]

        return decided_in_shares(lake, name, run)

    return apply_batch(lake, gather(frame), decide=decide)


def content(parts: list[bytes]) -> pa.RecordBatch:
    """Cells as tasks get them."""
    return pa.RecordBatch.from_arrays([pa.array(parts, pa.binary())], [CONTENT])


@pytest.mark.thorough
@settings(max_examples=60, suppress_health_check=list(HealthCheck), deadline=None)
@given(
    batches=st.lists(st.lists(CHANGE, min_size=1, max_size=25), min_size=1, max_size=3),
    kind=st.sampled_from([*KINDS, 'deletes = "soft"\n']),
    marks=st.booleans(),
    parts=st.integers(1, 5),
    shares=st.integers(1, 4),
)
def test_any_tasks_leave_what_one_leaves(
    *, batches: list[list[tuple[int, int, str, str, int]]], kind: str, marks: bool, parts: int, shares: int
) -> None:
    """Tables, quarantine, tombstones and every figure, of keys, times and images that meet."""
    table = f'[tables."public.t"]\nkeys = ["id"]\n{kind}columns = {{ id = "bigint", v = "smallint" }}\n'
    table = f"deletion_vectors = {str(marks).lower()}\n{table}"
    with TemporaryDirectory() as folder:
        (lake, config), (other, _) = (lake_in(Path(folder) / name, table) for name in "ab")
        number = 0
        for batch in batches:
            lines = []
            for key, ts_ns, tx_id, op, value in batch:
                # Some values do not fit: what is quarantined is quarantined, superseded or not.
                image = {"id": key} if op == "d" else {"id": key, "v": value * 20_000}
                lines.append(change(number, image, ts_ns=ts_ns, op=op, tx_id=tx_id))
                number += 1
            one = applied(other, config, lines, parts=1, shares=1)
            assert applied(lake, config, lines, parts=parts, shares=shares) == one
        # Of equal entries either place may be the one that stays.
        without = {"_shard_id", "_sequence_number"} if "content" in kind else set()
        assert contents(lake, without) == contents(other, without)
        assert len(contents(lake)["quarantine"]) == sum(
            op != "d" and value > 1 for batch in batches for _, _, _, op, value in batch
        )


@pytest.mark.parametrize(
    ("engine", "path", "master", "expected"),
    [
        ("auto", "s3://lakes/orders", "yarn", True),
        ("auto", "s3://lakes/orders", "local-cluster[2,1,1024]", True),
        ("auto", "s3://lakes/orders", "local[2]", False),
        ("auto", "/lakes/orders", "spark://host:7077", False),
        ("spark", "/lakes/orders", "local", True),
        ("embedded", "s3://lakes/orders", "yarn", False),
    ],
)
def test_executors_write_where_they_are_elsewhere_and_reach_the_lake(
    engine: Any, path: str, master: str, *, expected: bool
) -> None:
    """A folder may be the driver's own: it is left to it where nobody says otherwise."""
    text = f'[source]\narchive = "x.jsonl"\nformat = "dsql"\n[target]\nengine = "{engine}"\npath = "{path}"\n'
    pipeline = loads(f'{text}[tables."public.t"]\nkeys = ["id"]\n', "/")
    assert by_executors(pipeline.target, master) is expected
