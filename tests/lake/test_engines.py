"""Lakes written by Spark's executors, and by both engines in turn: what the embedded engine makes of them."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from headpond.core.errors import MissingRequirement
from headpond.lake import delta
from headpond.lake.apply import apply_batch
from headpond.lake.engine import merge as engine
from headpond.lake.engine.merge import ALWAYS, Merge
from tests.kit.expected_tables import differences
from tests.lake.lakes import decoded, lake_in, watched, written_by
from tests.lake.test_apply import (
    EXPECTED,
    SMALL,
    STREAM,
    STREAM_EXPECTED,
    TABLES,
    Crash,
    change,
    tables_of,
    with_chunks,
)
from tests.lake.test_apply_history import HISTORIES, assert_expected

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from headpond.spark.following.delta_file import SparkDeltaFile, SparkFiles

pytestmark = [pytest.mark.maven, pytest.mark.timeout(900)]


@pytest.fixture
def spark_files(delta_spark: SparkSession) -> Iterator[SparkFiles]:
    """The engine on Spark, for every lake that the test opens."""
    from headpond.spark.following.delta_file import SparkFiles

    files = SparkFiles(delta_spark)
    written_by(files)
    yield files
    written_by(None)


def engines(tables: str, folder: Path, files: SparkFiles) -> Iterator[Any]:
    """The same lake, opened for the one engine and for the other, in turn."""
    number = 0
    while True:
        written_by(files if number % 2 == 0 else None)
        yield lake_in(folder, tables)
        number += 1


def columns_of(place: str) -> Any:
    """What a table's log says of its columns and of the features that readers and writers must know."""
    table = DeltaTable(place)
    protocol = table.protocol()
    return json.loads(table.schema().to_json()), {
        "reader": protocol.min_reader_version,
        "writer": protocol.min_writer_version,
        "features": (sorted(protocol.reader_features or []), sorted(protocol.writer_features or [])),
        "configuration": table.metadata().configuration,
    }


def test_a_lake_written_by_both_engines_in_turn_is_as_expected(
    spark_files: SparkFiles, tmp_path: Path
) -> None:
    """Current rows and logs, lines permuted and some of them twice, another engine for each batch."""
    draw = random.Random(3)
    lines = SMALL + draw.sample(SMALL, 20)
    draw.shuffle(lines)
    for number, (lake, config) in zip(range(3), engines(TABLES, tmp_path, spark_files), strict=False):
        batch = decoded(config, lines[number::3], parts=2)
        apply_batch(lake, batch, transaction=("query", number))
        again = apply_batch(lake, batch, transaction=("query", number))
        assert all(not figures["upserts"] and not figures["appended"] for figures in again.tables.values())
    assert differences(lake, EXPECTED) == []


def test_histories_written_by_both_engines_in_turn_are_as_expected(
    spark_files: SparkFiles, tmp_path: Path
) -> None:
    """Late changes split intervals that the other engine wrote."""
    lines = SMALL[::-1]
    for number, (lake, config) in zip(range(3), engines(HISTORIES, tmp_path, spark_files), strict=False):
        apply_batch(lake, decoded(config, lines[number::3]))
    assert_expected(lake)


def test_both_engines_leave_the_same_columns_and_features(spark_files: SparkFiles, tmp_path: Path) -> None:
    """Merging on Spark changes neither columns, nor their original names, nor what readers must know."""
    written = {}
    for name, files in (("spark", spark_files), ("embedded", None)):
        written_by(files)
        lake, config = lake_in(tmp_path / name, TABLES)
        apply_batch(lake, decoded(config, SMALL))
        written[name] = {table: columns_of(lake.place_of(table)) for table in lake.typed}
    assert written["spark"] == written["embedded"]


def test_a_whole_stream_with_chunks_through_spark(spark_files: SparkFiles, tmp_path: Path) -> None:
    """Fragments and main records scattered over two batches."""
    lines = STREAM.copy()
    random.Random(4).shuffle(lines)
    lake, config = lake_in(tmp_path, tables_of(STREAM_EXPECTED))
    for part in (lines[:1500], lines[1500:]):
        apply_batch(lake, decoded(config, part), chunks=with_chunks(config))
    assert differences(lake, STREAM_EXPECTED) == []
    assert (lake.pending.count(), lake.quarantine.count()) == (0, 0)


def test_a_crash_between_any_two_writes_is_healed_by_the_repeat(
    spark_files: SparkFiles, tmp_path: Path
) -> None:
    """Another write is the last one in each batch; the other engine repeats every second of them."""
    stages = ["quarantine", "tombstones", *(f"table {name}" for name in EXPECTED["tables"])]
    stages += ["table public.events_nopk", "tombstones of keys that live again"]
    size = -(-len(SMALL) // len(stages))
    for number, stage in enumerate(stages):
        written_by(spark_files)
        lake, config = lake_in(tmp_path, TABLES)
        batch = decoded(config, SMALL[number * size : (number + 1) * size])

        def die(name: str, stage: str = stage, there: frozenset[str] = frozenset(batch.tables)) -> None:
            # A batch without changes of the stage's table comes to the last write but one.
            absent = stage.startswith("table ") and stage.removeprefix("table ") not in there
            if name == ("schema changes" if absent else stage):
                raise Crash(name)

        with pytest.raises(Crash):
            apply_batch(watched(lake, die), batch, transaction=("query", number))
        written_by(spark_files if number % 2 else None)
        lake, config = lake_in(tmp_path, TABLES)
        apply_batch(lake, batch, transaction=("query", number))
    assert differences(lake, EXPECTED) == []


def test_partitions_and_buckets_are_those_of_the_embedded_engine(
    spark_files: SparkFiles, tmp_path: Path
) -> None:
    """Rows that one engine dealt out are found, replaced and removed by the other."""
    entry = (
        '[tables."public.t"]\nkeys = ["id", "day"]\npartition_by = ["day"]\nbuckets = 3\n'
        'columns = { id = "bigint", day = "date", note = "text" }\n'
    )
    rows = [{"id": n % 7, "day": 20_000 + n % 2, "note": f"a/b=c {n}"} for n in range(14)]
    steps = [
        [change(1 + n, row, ts_ns=10) for n, row in enumerate(rows)],
        [change(20 + n, row | {"note": "new"}, ts_ns=20) for n, row in enumerate(rows[:6])],
        [
            change(40 + n, {"id": row["id"], "day": row["day"]}, ts_ns=30, op="d")
            for n, row in enumerate(rows[3:9])
        ],
    ]
    for lines, (lake, config) in zip(steps, engines(entry, tmp_path, spark_files), strict=False):
        apply_batch(lake, decoded(config, lines))
        assert lake.quarantine.count() == 0
    left = lake.typed["public.t"].file.read(["id", "day", "note"]).to_pylist()
    wanted = [("new", row) for row in rows[:3]] + [(row["note"], row) for row in rows[9:]]
    assert sorted((row["note"], row["id"]) for row in left) == sorted(
        (note, row["id"]) for note, row in wanted
    )
    files = Path(lake.place_of("public.t")).rglob("day=*/_bucket=*/*.parquet")
    assert {int(file.parent.name.partition("=")[2]) for file in files} == {0, 1, 2}


def table(spark_files: SparkFiles, folder: Path, *ids: int) -> SparkDeltaFile:
    file = spark_files(str(folder / "it's a `table` of 100%"))
    file.create(pa.schema([("id", pa.int64()), ("v", pa.string())]))
    merge(file, *ids)
    return file


def merge(file: delta.DeltaFile, *ids: int, **more: Any) -> Any:
    """Write rows, those of a table on Spark by its own MERGE."""
    rows = pa.table({"id": pa.array(ids, pa.int64()), "v": [f"{n}" for n in ids]})
    if isinstance(file, delta.DeltaFile) and not hasattr(file, "merge_frame"):
        return file.merge(Merge(rows, ["id"], wins=ALWAYS), **more)
    frame = file._session().createDataFrame(rows)
    columns = {f'"{name}"': f's."{name}"' for name in ("id", "v")}
    return file.merge_frame(frame, match='t."id" = s."id"', update=columns, insert=columns, **more)


def test_figures_of_a_merge_have_the_names_of_the_embedded_engine(
    spark_files: SparkFiles, tmp_path: Path
) -> None:
    """Rows inserted, updated and deleted; the place may be called anything."""
    file = table(spark_files, tmp_path, 1, 2)
    figures = merge(file, 2, 3, 4, delete_if='s."id" = 99')
    assert figures == {
        "num_target_rows_inserted": 2,
        "num_target_rows_updated": 1,
        "num_target_rows_deleted": 0,
    }
    assert sorted(file.read(["id"])["id"].to_pylist()) == [1, 2, 3, 4]


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
        file.merge(Merge(rows, ["id"], wins=ALWAYS, gone=gone))
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
    file.merge(Merge(merge_rows, ["id"], wins=ALWAYS))
    model |= {7: "a", 8: "b"}
    assert seen() == model
    assert file.compact()
    file.vacuum(0)
    assert seen() == model
    assert file.count() == len(model)


def test_a_transaction_number_never_falls_and_its_repeat_still_adds_what_is_missing(
    spark_files: SparkFiles, tmp_path: Path
) -> None:
    """Delta's own handling, which leaves out the merge of a number it has, is not relied on."""
    file = table(spark_files, tmp_path, 1)
    merge(file, 2, transaction=("query", 7))
    merge(file, 3, transaction=("query", 7))
    merge(file, 4, transaction=("query", 6))
    assert DeltaTable(file.uri).transaction_version("query") == 7
    embedded = delta.DeltaFile(file.uri)
    merge(embedded, 5, transaction=("query", 8))
    merge(file, 6, transaction=("query", 8))
    merge(file, 7, transaction=("query", 9))
    assert DeltaTable(file.uri).transaction_version("query") == 9
    assert sorted(file.read(["id"])["id"].to_pylist()) == [1, 2, 3, 4, 5, 6, 7]


def test_the_ends_of_time_survive(spark_files: SparkFiles, tmp_path: Path) -> None:
    """Timestamps from year 1 to 9999, with and without a time zone, and long decimals, to the last digit."""
    entry = (
        '[tables."public.t"]\nkeys = ["id"]\n'
        'columns = { id = "bigint", a = "timestamp", b = "timestamptz", c = "date", d = "numeric(38,6)" }\n'
    )
    first, last = -62_135_596_800_000_000, 253_402_300_799_999_999
    days = -719_162, 2_932_896
    images = [
        {"id": 1, "a": first, "b": first, "c": days[0], "d": "-" + "9" * 32 + ".999999"},
        {"id": 2, "a": last, "b": last, "c": days[1], "d": "0.000001"},
    ]
    read = []
    for name, files in (("spark", spark_files), ("embedded", None)):
        written_by(files)
        lake, config = lake_in(tmp_path / name, entry)
        batch = decoded(config, [change(n, image) for n, image in enumerate(images, 1)])
        apply_batch(lake, batch)
        assert lake.quarantine.count() == 0
        rows = lake.typed["public.t"].file.read().sort_by("id")
        read.append(
            [
                rows[column].cast(kind).to_pylist()
                for column, kind in (
                    ("a", pa.int64()),
                    ("b", pa.int64()),
                    ("c", pa.int32()),
                    ("d", pa.string()),
                )
            ]
        )
    assert read[0] == read[1]
    assert read[0][0] == [first, last]
    assert read[0][2] == list(days)


def test_another_writer_makes_a_merge_begin_anew(
    spark_files: SparkFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sessions merge into the same rows at the same time, again and again; every row is there."""
    file = table(spark_files, tmp_path, 0)
    other = type(spark_files)(spark_files.session.newSession())(file.uri)
    failed: list[BaseException] = []

    def run(mine: delta.DeltaFile, ids: range) -> None:
        try:
            for number in ids:
                merge(mine, 0, number)
        except BaseException as error:  # noqa: BLE001 - shown below
            failed.append(error)

    threads = [threading.Thread(target=run, args=(f, range(a, a + 3))) for f, a in ((file, 10), (other, 20))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert sorted(file.read(["id"])["id"].to_pylist()) == [0, 10, 11, 12, 20, 21, 22]


def test_a_session_without_delta_is_refused(delta_spark: SparkSession) -> None:
    """Before anything is read, with the settings that would do."""
    from headpond.spark.session.settings import require_delta

    require_delta(delta_spark)
    assert delta_spark.conf.get("spark.sql.extensions") is not None
    bare: Any = SimpleNamespace(_jvm=delta_spark._jvm, conf=SimpleNamespace(get=lambda _, default: default))
    with pytest.raises(MissingRequirement, match="without its extension"):
        require_delta(bare)
