"""Tables dealt out by what follows from a column: day, month, hour, bucket."""

from __future__ import annotations

import zlib
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headpond.core.derived import Derived, derived_of
from headpond.core.errors import ConfigurationError
from headpond.lake.apply import apply_batch
from headpond.lake.engine import lookup as looking
from headpond.lake.engine.log import EXPRESSION
from headpond.lake.maintenance.optimize import optimize_file
from headpond.lake.maintenance.rebuild import rebuild
from headpond.pipeline import loads
from headpond.pipeline.lake import open_lake
from tests.lake.lakes import decoded, lake_in
from tests.lake.ledgers import decoded as decoded_revisions
from tests.lake.ledgers import revision
from tests.lake.test_partitions import unprepared
from tests.lake.test_unknown_tables import change

if TYPE_CHECKING:
    from pathlib import Path

    from headpond.lake.tables import Lake

T = "public.t"
HOUR_US = 3_600_000_000
START_US = int(datetime(2026, 7, 9, 23, 30, tzinfo=UTC).timestamp()) * 1_000_000
COLUMNS = (
    'columns = { id = "bigint", at = "timestamptz", "wall time" = "timestamp", d = "date", who = "text" }\n'
)
ENTRY = f'[tables."{T}"]\nkeys = ["id"]\n{COLUMNS}'


def row(number: int, key: int, hours: int | None = 0, who: str | None = "é") -> bytes:
    at = None if hours is None else START_US + hours * HOUR_US
    days = None if at is None else at // (24 * HOUR_US)
    return change(number, "t", {"id": key, "at": at, "wall time": at, "d": days, "who": who})


def rows_of(lake: Lake) -> list[dict[str, Any]]:
    found = lake.typed[T].file.read(["id", "at", "wall%20time", "d", "who", "_ts_ns"]).to_pylist()
    return sorted(found, key=lambda each: (each["id"], each["_ts_ns"] or 0))


WAYS = {
    'partition_by = ["day(at)"]\n': ("at_day", lambda each: each["at"] and each["at"].date()),
    'partition_by = ["month(wall time)"]\n': (
        "wall%20time_month",
        lambda each: each["wall%20time"] and f"{each['wall%20time']:%Y-%m}",
    ),
    'partition_by = ["hour(at)"]\n': ("at_hour", lambda each: each["at"] and f"{each['at']:%Y-%m-%d-%H}"),
    'partition_by = ["month(d)"]\n': ("d_month", lambda each: each["d"] and f"{each['d']:%Y-%m}"),
    'partition_by = ["bucket(8, who)"]\n': (
        "who_bucket",
        lambda each: None if each["who"] is None else zlib.crc32(each["who"].encode()) % 8,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "more", ["", 'keep = "history"\n', 'deletes = "soft"\n', "deletion_vectors = true\n"]
)
def test_rows_are_as_without_and_lie_where_their_values_say(way: str, more: str, tmp_path: Path) -> None:
    """Updates that move a row, nulls and deletes; headpond, deltalake and polars agree."""
    name, expected = WAYS[way]
    batches = [
        [row(n, n, n * 7) for n in range(8)] + [row(9, 9, None, None)],
        [row(10 + n, n, n * 11, "b") for n in range(0, 8, 2)],
        [change(30, "t", None, op="d", before={"id": 3}), row(31, 9, 1)],
    ]
    found = []
    for folder, text in (("plain", ""), ("dealt", way)):
        lake, config = lake_in(tmp_path / folder, f"{ENTRY}{text}{more}\n")
        for batch in batches:
            apply_batch(lake, decoded(config, batch))
        found.append(rows_of(lake))
    assert found[0] == found[1]
    file = lake.typed[T].file
    rows = file.read().to_pylist()
    assert [each[name] for each in rows] == [expected(each) for each in rows]
    assert list(file.open().metadata().partition_columns) == [name]
    optimize_file(file)
    assert rows_of(lake) == found[0]
    if "vectors" not in more and "%" not in name:  # polars reads neither such tables nor such folders
        frame = pl.scan_delta(file.uri).collect()
        assert sorted(frame["id"].to_list()) == sorted(each["id"] for each in rows)
        assert frame[name].to_list() == [expected(each) for each in frame.to_dicts()]
    (field,) = (each for each in file.open().schema().fields if each.name == name)
    assert EXPRESSION in field.metadata
    assert field.metadata["comment"] in way
    protocol = file.open().protocol()
    assert protocol.min_writer_version == 4 or "generatedColumns" in protocol.writer_features


def test_a_reader_that_asks_for_a_time_opens_the_files_of_that_day(tmp_path: Path) -> None:
    """By the partition, and by the bounds of the column itself."""
    lake, config = lake_in(tmp_path, ENTRY + 'partition_by = ["day(at)"]\n')
    apply_batch(lake, decoded(config, [row(n, n, n * 24) for n in range(10)]))
    files = lake.typed[T].file.data_files()
    assert sorted(file.values["at_day"] or "" for file in files) == [
        f"2026-07-{day:02}" for day in range(9, 19)
    ]
    since = datetime(2026, 7, 17, tzinfo=UTC)
    bounds = [file.bounds("at") for file in files]
    assert sum(datetime.fromisoformat(most) >= since for _, most in bounds) == 2


def test_a_lookup_opens_the_folders_that_its_keys_can_be_in(tmp_path: Path) -> None:
    """Where the column is of the key, a batch leaves the files of other days and buckets alone."""
    for text in ('partition_by = ["day(at)"]\n', 'partition_by = ["bucket(10, id)"]\n'):
        entry = ENTRY.replace('keys = ["id"]', 'keys = ["id", "at"]') + text
        lake, config = lake_in(tmp_path / str(len(text)), entry)
        file = lake.typed[T].file
        apply_batch(lake, decoded(config, [row(n, n, n * 24) for n in range(6)]))
        before = set(file.open().file_uris())
        opened: list[str] = []
        original = looking.opened

        def spied(folder: Any, data: Any, schema: Any, original: Any = original, seen: Any = opened) -> Any:
            seen.append(data.path)
            return original(folder, data, schema)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(looking, "opened", spied)
            apply_batch(lake, decoded(config, [row(20, 3, 3 * 24, "new")]))
        assert len(set(opened)) == 1
        assert len(before - set(file.open().file_uris())) == 1
        assert {each["id"]: each["who"] for each in rows_of(lake)} == dict.fromkeys(range(6), "é") | {
            3: "new"
        }


def test_a_column_of_the_source_with_that_name_gets_another(tmp_path: Path) -> None:
    """As it would beside headpond's own columns; nothing is mixed up."""
    lake, config = lake_in(tmp_path, ENTRY + 'partition_by = ["day(at)"]\n')
    for number in (1, 2):
        apply_batch(lake, decoded(config, [change(number, "t", {"id": number, "at": 0, "at_day": "mine"})]))
        lake, config = lake_in(tmp_path, ENTRY + 'partition_by = ["day(at)"]\n')
    assert lake.typed[T].originals()["at_day"] == "at_day%%0"
    rows = lake.typed[T].file.read(["at_day", "at_day%%0"]).to_pylist()
    assert rows == [{"at_day": date(1970, 1, 1), "at_day%%0": '"mine"'}] * 2


def test_one_way_becomes_another_by_being_written_anew(tmp_path: Path) -> None:
    """And is refused before that; also one bucket count for another, of the same name."""
    ways = ["", 'partition_by = ["day(at)"]\n', 'partition_by = ["bucket(4, id)"]\n']
    ways += ['partition_by = ["bucket(5, id)"]\n', 'partition_by = ["who", "month(at)"]\nbuckets = 2\n', ""]
    lake, config = lake_in(tmp_path, ENTRY)
    apply_batch(lake, decoded(config, [row(n, n, n * 24) for n in range(9)]))
    before = rows_of(lake)
    for number, way in enumerate(ways[1:]):
        with pytest.raises(ConfigurationError, match=r"is partitioned by .*headpond rebuild"):
            lake_in(tmp_path, ENTRY + way)
        lake, _ = unprepared(tmp_path, ENTRY + way)
        assert rebuild(lake, T).written
        assert not rebuild(lake, T).written
        lake, config = lake_in(tmp_path, ENTRY + way)
        assert rows_of(lake) == before
        apply_batch(lake, decoded(config, [row(100 + number, 3, number)]))
        before = rows_of(lake)
        assert len(before) == 9


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ('partition_by = ["day(x)"]', "is partitioned by day(x), and 'x' has no type"),
        ('partition_by = ["day(who)"]', "is partitioned by day(who), and 'who' is text"),
        ('partition_by = ["day(d)"]', "is partitioned by day(d), and 'd' is date"),
        ('partition_by = ["bucket(0, who)"]', "is partitioned by bucket"),
        ('partition_by = ["bucket(4, at)"]', "and 'at' is timestamptz"),
        ('partition_by = ["day(at)"]\nexcept_columns = ["at"]', "and 'at' has no type"),
    ],
)
def test_what_does_not_follow_is_refused(entry: str, says: str, tmp_path: Path) -> None:
    """Before anything is made."""
    with pytest.raises(ConfigurationError) as caught:
        lake_in(tmp_path, ENTRY + entry + "\n")
    assert says in str(caught.value)


def test_revisions_are_dealt_out_too(tmp_path: Path) -> None:
    """By a timestamp of the document; what is redacted lies with the nulls."""
    text = '[source]\narchive = "x.ion"\nformat = "qldb"\n[target]\npath = "lake"\nredaction = "honour"\n'
    text += '[tables.Person]\ncolumns = { born = "timestamp" }\npartition_by = ["month(born)"]\n'
    lake = open_lake(loads(text, tmp_path))
    lake.prepare()
    found = [revision(f"d{n}", 0, f"{{born: 2026-0{n}-01T00:00:00Z}}") for n in (1, 2)]
    apply_batch(lake, decoded_revisions(lake.config, found))
    rows = lake.typed["Person"].file.read(["_document_id", "born_month"]).to_pylist()
    assert {each["_document_id"]: each["born_month"] for each in rows} == {"d1": "2026-01", "d2": "2026-02"}
    gone = pa.table({"document_id": ["d1"], "version": pa.array([0], pa.int64())})
    lake.tables["Person"].forget(gone)
    rows = lake.typed["Person"].file.read(["_document_id", "born_month"]).to_pylist()
    assert {each["_document_id"]: each["born_month"] for each in rows} == {"d1": None, "d2": "2026-02"}


MOMENTS = st.none() | st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)


@given(micros=st.lists(MOMENTS, max_size=4))
def test_values_are_those_of_the_calendar(micros: list[int | None]) -> None:
    """From year 1 to 9999, before 1970 too; Python's calendar is the judge."""
    first = datetime(1970, 1, 1, tzinfo=UTC)
    moments = [None if each is None else first + timedelta(microseconds=each) for each in micros]
    for kind in (pa.timestamp("us", "UTC"), pa.timestamp("us")):
        values = pa.array(micros, pa.int64()).cast(kind)
        for function in ("day", "month", "hour"):
            got = Derived(function, "x").values(values).to_pylist()
            texts = [
                each and f"{each.year:04}-{each.month:02}-{each.day:02}-{each.hour:02}" for each in moments
            ]
            wanted: list[Any] = {
                "day": [each and each.date() for each in moments],
                "month": [text and text[:7] for text in texts],
                "hour": texts,
            }[function]
            assert got == wanted


def test_a_text_names_a_column_or_what_follows_from_one() -> None:
    """Whatever a column is called."""
    assert derived_of("month(unit price (EUR))") == Derived("month", "unit price (EUR)")
    assert derived_of("bucket( 16 , a, b)") == Derived("bucket", "a, b", 16)
    assert [derived_of(text) for text in ("day", "day()", "year(x)", "bucket(x)", "")] == [None] * 5
    assert str(derived_of("bucket(16,a)")) == "bucket(16, a)"
