"""Partitioned tables: the same rows in folders, merges that read few of them, ways from one to another."""

from __future__ import annotations

import base64
import json
import random
import zlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headpond.core.derived import bucket_of
from headpond.core.errors import ConfigurationError
from headpond.lake.apply import apply_batch
from headpond.lake.maintenance.optimize import optimize_file
from headpond.lake.maintenance.rebuild import rebuild
from headpond.lake.naming import BUCKET, FILE_SIZE
from tests.lake.lakes import decoded, lake_in

if TYPE_CHECKING:
    from pathlib import Path

    from headpond.dsql.decode import DsqlConfig
    from headpond.lake.tables import Lake

COLUMNS = '{{ id = "bigint", "k 2" = "text", day = "date", v = "text" }}'
TABLE = '[tables."public.t"]\nkeys = ["id", "k 2"]\ncolumns = ' + COLUMNS + '\nkeep = "{keep}"\n{more}\n'
DEALT = {
    "plain": "",
    "buckets": "buckets = 4",
    "by a column": 'partition_by = ["day"]',
    "by a key and buckets": 'partition_by = ["k 2"]\nbuckets = 3',
}


def change(number: int, key: int, *, gone: bool = False, day: int | None = 0, v: str = "x") -> bytes:
    row: dict[str, Any] = {"id": key, "k 2": f"é {key % 3}"}
    source = {
        "version": "1.0",
        "ts_ns": number,
        "txId": "t",
        "schema": "public",
        "table": "t",
        "cluster": "c",
    }
    body = {"type": "full", "op": "d" if gone else "c", "before": row if gone else None, "source": source}
    body["after"] = None if gone else {**row, "day": day, "v": v}
    data = base64.b64encode(json.dumps(body).encode()).decode()
    return json.dumps({"data": data, "shard": "s", "sequenceNumber": str(number)}).encode()


def some_changes(count: int = 120) -> list[bytes]:
    draw = random.Random(5)
    found = [
        change(
            number,
            draw.randrange(30),
            gone=draw.random() < 0.2,
            day=draw.choice([None, 1, 2]),
            v="v" * draw.randrange(9),
        )
        for number in range(count)
    ]
    draw.shuffle(found)
    return found


def rows_of(lake: Lake) -> list[dict[str, Any]]:
    """All rows but for their bucket, in an order of their own."""
    rows = lake.typed["public.t"].file.read().to_pylist()
    for row in rows:
        row.pop(BUCKET, None)
    return sorted(rows, key=repr)


def follow(lake: Lake, config: DsqlConfig, lines: list[bytes], step: int) -> None:
    for start in range(0, len(lines), step):
        apply_batch(lake, decoded(config, lines[start : start + step], first_line=start + 1))


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["current", "history", "log"])
def test_however_rows_are_dealt_out_they_are_the_same(keep: str, tmp_path: Path) -> None:
    """Updates, deletes and rows that move from one folder to another, in two cuts."""
    lines, found = some_changes(), {}
    for number, (name, more) in enumerate(DEALT.items()):
        lake, config = lake_in(tmp_path / str(number), TABLE.format(keep=keep, more=more))
        follow(lake, config, lines, 40 if number % 2 else 67)
        found[name] = rows_of(lake)
        columns = lake.typed["public.t"].file.open().metadata().partition_columns
        assert list(columns) == [[], [BUCKET], ["day"], ["k%202", BUCKET]][number]
    assert all(rows == found["plain"] for rows in found.values())
    assert len(found["plain"]) > 15


def test_a_row_s_bucket_is_the_checksum_of_its_key(tmp_path: Path) -> None:
    """As documented, so that others can find a row's folder."""
    assert bucket_of(pa.array(['["a b",11]', "[7]"]), 16).to_pylist() == [
        zlib.crc32(b'["a b",11]') % 16,
        zlib.crc32(b"[7]") % 16,
    ]
    lake, config = lake_in(tmp_path, TABLE.format(keep="current", more="buckets = 5"))
    apply_batch(lake, decoded(config, [change(1, 7), change(2, 8)]))
    rows = lake.typed["public.t"].file.read(["id", BUCKET]).to_pylist()
    assert {row["id"]: row[BUCKET] for row in rows} == {
        key: zlib.crc32(f'[{key},"é {key % 3}"]'.encode()) % 5 for key in (7, 8)
    }


@pytest.mark.parametrize("keep", ["current", "history"])
def test_a_change_of_one_key_rewrites_one_bucket(keep: str, tmp_path: Path) -> None:
    """The files of the other buckets stay as they are."""
    lake, config = lake_in(tmp_path, TABLE.format(keep=keep, more="buckets = 4"))
    file = lake.typed["public.t"].file
    apply_batch(lake, decoded(config, [change(n, n) for n in range(40)]))
    before = set(file.open().file_uris())
    apply_batch(lake, decoded(config, [change(100, 7, v="new")]))
    assert len(before) == 4
    assert len(before - set(file.open().file_uris())) == 1


def test_files_without_a_batch_s_keys_are_not_rewritten(tmp_path: Path) -> None:
    """Where files hold ranges of keys, later keys leave the files of earlier ones alone."""
    lake, config = lake_in(tmp_path, TABLE.format(keep="current", more=""))
    file = lake.typed["public.t"].file
    follow(lake, config, [change(n, n) for n in range(60)], 20)
    before = set(file.open().file_uris())
    assert len(before) == 3
    apply_batch(lake, decoded(config, [change(1000 + n, 50 + n) for n in range(20)]))
    assert len(before - set(file.open().file_uris())) == 1
    assert len(rows_of(lake)) == 70


def test_rows_can_be_put_in_order_of_their_keys(tmp_path: Path) -> None:
    """Optimized by a key, a file holds its rows in that order."""
    lake, config = lake_in(tmp_path, TABLE.format(keep="current", more=""))
    file = lake.typed["public.t"].file
    lines = [change(n, n) for n in range(60)]
    random.Random(1).shuffle(lines)
    follow(lake, config, lines, 20)
    optimize_file(file, order_by=["id"])
    (only,) = file.open().file_uris()
    assert pq.read_table(only)["id"].to_pylist() == list(range(60))


@pytest.mark.slow
def test_a_table_dealt_out_another_way_is_refused_and_can_be_written_anew(tmp_path: Path) -> None:
    """From any way to any other; rows, names and later merges are right."""
    expected: list[dict[str, Any]] = []
    done: list[str] = []
    for more in [*DEALT.values(), ""]:
        text = TABLE.format(keep="current", more=more)
        if done:
            with pytest.raises(ConfigurationError, match=r"is partitioned by .*headpond rebuild"):
                lake_in(tmp_path, text)
            lake, config = unprepared(tmp_path, text)
            assert rebuild(lake, "public.t").written
            assert not rebuild(lake, "public.t").written
        lake, config = lake_in(tmp_path, text)
        if not done:
            follow(lake, config, some_changes(), 60)
        done.append(more)
        apply_batch(lake, decoded(config, [change(1000 + len(done), 3, v="again")]))
        rows = [{**row, "_ts_ns": 0} if row["id"] == 3 else row for row in rows_of(lake)]
        expected = expected or rows
        assert rows == expected
        assert lake.typed["public.t"].file.schema().field("k%202").metadata[b"headpond.name"] == b"k 2"


def unprepared(folder: Path, tables: str) -> tuple[Lake, DsqlConfig]:
    from headpond.pipeline import loads
    from headpond.pipeline.lake import open_lake, row_changes

    pipeline = loads(f'[source]\narchive = "x"\nformat = "dsql"\n[target]\npath = "lake"\n{tables}', folder)
    return open_lake(pipeline), row_changes(pipeline)


def test_the_size_of_files_is_a_property_of_the_table(tmp_path: Path) -> None:
    """Of a new one and of one that is there; left alone where nothing is said."""
    for more, size in (("", None), ('target_file_size = "4 MiB"', "4194304"), ("", "4194304")):
        lake, _ = lake_in(tmp_path, TABLE.format(keep="current", more=more))
        assert lake.typed["public.t"].file.open().metadata().configuration.get(FILE_SIZE) == size


def test_whether_rows_may_be_marked_is_said_for_a_table_or_for_all(tmp_path: Path) -> None:
    """Of a new table and of one that is there; left alone where nothing is said."""
    for more, marks in (
        ("", False),
        ("deletion_vectors = true", True),
        ("", True),
        ("deletion_vectors = false", False),
    ):
        lake, _ = lake_in(tmp_path, TABLE.format(keep="current", more=more))
        assert lake.typed["public.t"].file.engine.log.newest().marks is marks
    text = (
        '[source]\narchive = "x.jsonl"\nformat = "dsql"\n[target]\npath = "lake"\ndeletion_vectors = true\n'
    )
    tables = (
        '[tables."public.a"]\nkeys = ["id"]\n[tables."public.b"]\nkeys = ["id"]\ndeletion_vectors = false\n'
    )
    from headpond.pipeline import loads
    from headpond.pipeline.lake import open_lake

    both = open_lake(loads(text + tables, tmp_path)).tables
    assert [each.entry.deletion_vectors for each in both.values()] == [True, False]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("keys = []\nbuckets = 4", "has buckets but no keys to hash"),
        ('keys = ["id"]\npartition_by = ["day"]', "is partitioned by 'day', which it need not have"),
        (
            'keys = ["id"]\ncolumns = { day = "date" }\npartition_by = ["day"]\nexcept_columns = ["day"]',
            "is partitioned by 'day', which it need not have",
        ),
        (
            'keys = ["id"]\ncolumns = { x = "double precision" }\npartition_by = ["x"]',
            "is partitioned by 'x' of type double precision",
        ),
    ],
)
def test_what_cannot_be_dealt_out_is_refused(entry: str, message: str, tmp_path: Path) -> None:
    """Before anything is made."""
    with pytest.raises(ConfigurationError, match=message):
        lake_in(tmp_path, f'[tables."public.t"]\n{entry}\n')


def test_an_undeclared_key_can_name_folders(tmp_path: Path) -> None:
    """Its raw JSON text does."""
    lake, config = lake_in(tmp_path, '[tables."public.t"]\nkeys = ["id", "k 2"]\npartition_by = ["k 2"]\n')
    apply_batch(lake, decoded(config, [change(n, n) for n in range(4)]))
    assert {row["k%202"] for row in rows_of(lake)} == {'"é 0"', '"é 1"', '"é 2"'}
