"""Delta's own reader for Spark as a judge of what headpond writes."""

from __future__ import annotations

import zlib
from datetime import date
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headpond.lake import delta
from headpond.lake.apply import apply_batch
from headpond.lake.engine import merge as engine
from headpond.lake.engine.merge import Merge, always
from tests.kit.maven_jars import delta_session
from tests.lake.lakes import decoded, lake_in
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


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_tables_dealt_out_by_day_are_read_and_written_by_spark(
    delta_spark: SparkSession, tmp_path: Path, zone: str
) -> None:
    """A filter by time misses no row in any time zone; rows that Spark adds get the same days."""
    lake, config = lake_in(
        tmp_path,
        '[tables."public.t"]\nkeys = ["id"]\npartition_by = ["day(at)", "bucket(4, id)"]\n'
        'columns = { id = "bigint", at = "timestamptz" }\ncomments = { at = "when" }\n',
    )
    hour_us = 3_600_000_000
    apply_batch(lake, decoded(config, [change(n, {"id": n, "at": n * hour_us}) for n in range(96)]))
    file = lake.typed["public.t"].file
    delta_spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = delta_spark.read.format("delta").load(file.uri)
        assert frame.schema["at"].metadata["comment"] == "when"
        since = frame.filter("at >= timestamp '1970-01-03 12:00:00 UTC'")
        assert sorted(row.id for row in since.select("id").collect()) == list(range(60, 96))
        assert frame.filter("at_day = date '1970-01-02'").count() == 24
        new = delta_spark.sql("SELECT 200L AS id, timestamp '1970-01-02 23:30:00 UTC' AS at, 7L AS _ts_ns")
        new.write.format("delta").mode("append").save(file.uri)
    finally:
        delta_spark.conf.set("spark.sql.session.timeZone", "UTC")
    (row,) = file.read(["at_day", "id_bucket"], "id = 200").to_pylist()
    assert row == {"at_day": date(1970, 1, 2), "id_bucket": zlib.crc32(b"200") % 4}


def test_a_feed_of_changes_is_read_by_spark(delta_spark: SparkSession, tmp_path: Path) -> None:
    """What was and what is of each row that a commit changes."""
    lake, config = lake_in(
        tmp_path,
        '[tables."public.t"]\nkeys = ["id"]\ncolumns = { id = "bigint", v = "bigint" }\n'
        'table_properties = { "delta.enableChangeDataFeed" = "true" }\n',
    )
    apply_batch(lake, decoded(config, [change(n, {"id": n, "v": 1}) for n in range(3)]))
    file = lake.typed["public.t"].file
    since = file.version() + 1
    apply_batch(lake, decoded(config, [change(7, {"id": 1, "v": 2}), change(8, {"id": 5, "v": 2})]))
    feed = delta_spark.read.format("delta").option("readChangeFeed", "true")
    found = feed.option("startingVersion", since).load(file.uri).select("id", "v", "_change_type").collect()
    assert sorted((row.id, row.v, row["_change_type"]) for row in found) == [
        (1, 1, "update_preimage"),
        (1, 2, "update_postimage"),
        (5, 2, "insert"),
    ]
