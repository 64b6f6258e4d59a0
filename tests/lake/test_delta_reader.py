"""Delta's own reader for Spark as a judge of what headpond writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headpond.lake import delta
from headpond.lake.engine import merge as engine
from headpond.lake.engine.merge import Merge, always
from tests.kit.maven_jars import delta_session
from tests.lake.lakes import lake_in
from tests.lake.test_apply import change
from tests.spark.test_distributed import spreader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.maven, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def delta_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark with Delta's jars; skipped, with the reason, where there are none."""
    session = delta_session(tmp_path_factory.mktemp("spark") / "spark.log")
    yield session
    session.stop()


@pytest.mark.parametrize("parts", [False, True])
def test_tables_with_deletion_vectors_are_read_by_spark(
    delta_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, parts: bool
) -> None:
    """Every version, before and after compaction, a checkpoint and a vacuum; and Spark writes on."""
    monkeypatch.setattr(engine, "SMALL_BYTES", 0)
    file = delta.DeltaFile(str(tmp_path / "t"))
    file.create(
        pa.schema([("id", pa.int64()), ("v", pa.string()), ("p", pa.int64())]),
        partition_by=["p"] if parts else [],
    )
    file.allow_marks(allowed=True)
    ids = pa.array(range(100), pa.int64())
    file.append(pa.table({"id": ids, "v": ["0"] * 100, "p": pc.bit_wise_and(ids, 1)}))
    model = dict.fromkeys(range(100), "0")
    past = {file.version(): dict(model)}
    for number in range(1, 4):
        some = pa.array(range(number, 100, 17), pa.int64())
        rows = pa.table({"id": some, "v": [str(number)] * len(some), "p": pc.bit_wise_and(some, 1)})
        gone = pa.array([n % 5 == 0 for n in some.to_pylist()])
        file.merge(Merge(rows, ["id"], wins=always, gone=gone))
        for n in some.to_pylist():
            if n % 5:
                model[n] = str(number)
            else:
                model.pop(n, None)
        past[file.version()] = dict(model)
        if number == 2:
            file.open().create_checkpoint()

    def seen(**more: Any) -> dict[int, str]:
        found = delta_spark.read.format("delta").options(**more).load(file.uri).select("id", "v").collect()
        assert len(found) == len({row.id for row in found})
        return {row.id: row.v for row in found}

    assert any(each.vector for each in file.engine.log.newest().files.values())
    for version, rows_then in past.items():
        assert seen(versionAsOf=version) == rows_then
    delta_spark.sql(f"UPDATE delta.`{file.uri}` SET v = 'spark' WHERE id = 7")
    model[7] = "spark"
    merge_rows = pa.table(
        {"id": pa.array([7, 8], pa.int64()), "v": ["a", "b"], "p": pa.array([1, 0], pa.int64())}
    )
    file.merge(Merge(merge_rows, ["id"], wins=always))
    model |= {7: "a", 8: "b"}
    assert seen() == model
    assert file.compact()
    file.vacuum(0)
    assert seen() == model
    assert file.count() == len(model)


def test_tables_that_executors_wrote_are_read_by_delta(
    delta_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows marked and files written again, of current rows and a history."""
    spread = spreader(delta_spark, monkeypatch)
    for keep, marks in (("current", "true"), ("current", "false"), ("history", "true")):
        tables = f'deletion_vectors = {marks}\n[tables."public.t"]\nkeys = ["id"]\nkeep = "{keep}"\n'
        lake, config = lake_in(tmp_path / f"{keep}{marks}", tables + 'columns = { id = "bigint" }\n')
        for number in range(3):
            lines = [change(n, {"id": n}, ts_ns=number + 1) for n in range(number, 40, number + 1)]
            spread(lake, config, lines)
        file = lake.typed["public.t"].file
        there = delta_spark.read.format("delta").load(file.uri).select("id", "_ts_ns").collect()
        mine = file.read(["id", "_ts_ns"]).to_pylist()
        assert sorted((row.id, row["_ts_ns"]) for row in there) == sorted(
            (row["id"], row["_ts_ns"]) for row in mine
        )
        assert len(mine) == (40 if keep == "current" else 40 + 20 + 13)
