"""However a batch is cut into tasks, what comes of it is what one task makes of it; without Spark."""

from __future__ import annotations

import base64
import json
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
from headpond.spark.following.distributed import (
    CONTENT,
    DEALT,
    NAME,
    SAID,
    SHARE,
    Dealing,
    Share,
    deal_of,
    deals_of,
    decided_in_shares,
)
from headpond.spark.following.query import by_executors
from headpond.spark.sources import decoded as module
from headpond.spark.sources.decoded import FACTS, SHAPE, TABLE, gather, summary_of
from tests.kit.support import share_of
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
        names = [name for name in batch.tables if name in lake.tables]
        for name in names:
            lake.tables[name].typed.fit(batch.tables[name].schema)
        dealing = Dealing({name: deal_of(lake, name, shares, at % 2) for at, name in enumerate(names)})
        rows = frame.filter(
            pc.and_(pc.equal(frame["kind"], TABLE), pc.is_in(frame["name"], pa.array(names, pa.string())))
        )
        dealt = pa.Table.from_batches(dealing.run(rows.select([NAME, CONTENT]).to_batches()), DEALT)

        def run(share: Share) -> pa.Table:
            said = []
            for number in range(shares + 1):
                mine = dealt.filter(pc.equal(dealt[SHARE], number)).select([NAME, CONTENT])
                said += pickle.loads(cloudpickle.dumps(share)).run(iter(mine.to_batches()))
            return pa.Table.from_batches(said, SAID)

        return decided_in_shares(lake, names, run)

    return apply_batch(lake, gather(frame), decide=decide)


@pytest.mark.thorough
@settings(max_examples=share_of(60), suppress_health_check=list(HealthCheck), deadline=None)
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


def test_small_tables_share_a_task_and_large_ones_have_several(tmp_path: Path) -> None:
    """As many tasks as run at once where there is enough for them, and none of much more than 32 MiB."""
    names = [f"public.t{number}" for number in range(7)]
    lake, _ = lake_in(tmp_path, "".join(f'[tables."{name}"]\nkeys = ["id"]\n' for name in names))

    def dealt(mib: Sequence[float], at_once: int) -> list[tuple[int, int]]:
        sizes = {name: int(each * (1 << 20)) for name, each in zip(names, mib, strict=False)}
        deals, count = deals_of(lake, sizes, at_once)
        found = [(deals[name].first, deals[name].shares) for name in sizes]
        assert {n for first, shares in found for n in range(first, first + shares)} == set(range(count))
        return found

    assert dealt([1] * 7, 2) == [(0, 1)] * 4 + [(1, 1)] * 3
    assert dealt([30, 1, 1], 1) == [(0, 1)] * 3
    assert dealt([3, 40, 3], 2) == [(0, 1), (1, 2), (0, 1)]
    assert dealt([100], 2) == [(0, 4)]
    assert dealt([10], 8) == [(0, 2)]


def in_table(line: bytes, name: str) -> bytes:
    """The line of a change, as of another table."""
    record = json.loads(line)
    data = json.loads(base64.b64decode(record["data"]))
    data["source"]["table"] = name
    return json.dumps(record | {"data": base64.b64encode(json.dumps(data).encode()).decode()}).encode()


def test_a_summary_does_not_hold_the_rows(tmp_path: Path) -> None:
    """Tables take slices of what was typed together, and the slice without rows is not written whole."""
    _, config = lake_in(tmp_path, "".join(f'[tables."public.{name}"]\nkeys = ["id"]\n' for name in "ab"))
    lines = [in_table(change(n, {"id": n, "v": "x"}), "ab"[n % 2]) for n in range(3_000)]
    frame = cells(config, lines, summary=True)
    sizes = {
        (cell["kind"], cell["name"]): len(cell["content"])
        for cell in frame.to_pylist()
        if cell["kind"] in (TABLE, SHAPE)
    }
    assert len(sizes) == 4
    for name in ("public.a", "public.b"):
        assert sizes[TABLE, name] > 20_000
        assert sizes[SHAPE, name] < 8_000


def test_rows_of_many_bytes_come_in_several_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Spark copies of one is bounded, and put together they are the same."""
    _, config = lake_in(tmp_path, '[tables."public.t"]\nkeys = ["id"]\n')
    lines = [change(n, {"id": n, "v": "x" * 999}) for n in range(40)]
    whole = cells(config, lines, summary=True)
    monkeypatch.setattr(module, "CELL_BYTES", 10_000)
    cut = cells(config, lines, summary=True)
    contents = [len(cell["content"]) for cell in cut.to_pylist() if cell["kind"] == TABLE]
    assert len(contents) > 3
    assert (
        gather(cut)
        .tables["public.t"]
        .equals(gather(whole).tables["public.t"].combine_chunks().unify_dictionaries())
    )
    kinds = pa.array([SHAPE, FACTS])
    parts = (frame.filter(pc.is_in(frame["kind"], kinds)) for frame in (cut, whole))
    cut_summary, summary = map(summary_of, parts)
    assert cut_summary.tables["public.t"].schema == summary.tables["public.t"].schema
    assert cut_summary.bytes == sum(contents)


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
