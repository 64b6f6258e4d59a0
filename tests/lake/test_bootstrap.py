"""The first load: the same table whether the snapshot or the changes come first, and no value bent."""

from __future__ import annotations

import base64
import datetime as dt
import itertools
import json
import random
import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headpond.core.errors import HeadpondError, InvalidData, UsageError
from headpond.dsql.columns import cast_column
from headpond.lake.apply import apply_batch
from headpond.lake.maintenance.bootstrap import Bootstrap, Loaded, ParquetSource, Unfit, wire_tokens
from tests.kit.s3_server import s3_store
from tests.lake.lakes import decoded, lake_in, watched

if TYPE_CHECKING:
    from pathlib import Path

    from headpond.dsql.decode import DsqlConfig
    from headpond.lake.tables import Lake

TABLES = '[tables."public.t"]\nkeys = ["id"]\ncolumns = { id = "bigint", v = "text" }\n'
AT = 1_000
NAIVE = dt.datetime(2026, 1, 2, 3, 4, 5, 6)  # noqa: DTZ001 - timestamp without time zone


class Crash(Exception):
    """The process is gone."""


def change(number: int, ts_ns: int, row: dict[str, Any], *, delete: bool = False) -> bytes:
    source = {"version": "1.0", "ts_ns": ts_ns, "txId": "t", "schema": "public", "table": "t"}
    images = {"before": {"id": row["id"]}, "after": None} if delete else {"after": row}
    body = {"type": "full", "op": "d" if delete else "c", "source": source | {"cluster": "c"}} | images
    data = base64.b64encode(json.dumps(body).encode()).decode()
    return json.dumps({"data": data, "shard": "s", "sequenceNumber": str(number)}).encode()


def dump(folder: Path, rows: list[dict[str, Any]], name: str = "dump.parquet", **kinds: pa.DataType) -> str:
    schema = pa.schema(list(({"id": pa.int64(), "v": pa.string()} | kinds).items()))
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / name)
    return str(folder / name)


def load(lake: Lake, config: DsqlConfig, *places: str, ts_ns: int = AT, **options: Any) -> Loaded:
    return Bootstrap(lake, "public.t", ParquetSource(places), ts_ns, **options).load()


def rows_of(lake: Lake) -> dict[int, Any]:
    found = lake.typed["public.t"].file.read(["id", "v", "_ts_ns", "_tx_id"]).to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: (row["v"], row["_ts_ns"], row["_tx_id"]) for row in found}


SNAPSHOT = [{"id": number, "v": f"snapshot {number}"} for number in range(6)]
CHANGES = [
    change(1, AT - 1, {"id": 1, "v": "older"}),
    change(2, AT + 1, {"id": 2, "v": "newer"}),
    change(3, AT + 1, {"id": 3}, delete=True),
    change(4, AT - 1, {"id": 4}, delete=True),
    change(5, AT, {"id": 5, "v": "same time"}),
    change(6, AT + 5, {"id": 9, "v": "not in the snapshot"}),
]
EXPECTED = {
    0: ("snapshot 0", AT, ""),
    1: ("snapshot 1", AT, ""),
    2: ("newer", AT + 1, "t"),
    4: ("snapshot 4", AT, ""),
    5: ("same time", AT, "t"),
    9: ("not in the snapshot", AT + 5, "t"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(6))
def test_the_seam_is_exact_in_any_order(tmp_path: Path, seed: int) -> None:
    """Before, between and after the changes, once or twice, in parts of any size."""
    choice = random.Random(seed)
    file = dump(tmp_path, SNAPSHOT)
    lake, config = lake_in(tmp_path, TABLES)
    steps: list[Any] = [[line] for line in CHANGES] + [None] * choice.choice([1, 2])
    choice.shuffle(steps)
    for step in steps:
        if step is None:
            load(lake, config, file, rows_at_once=choice.choice([1, 2, 100]))
        else:
            apply_batch(lake, decoded(config, step))
    assert rows_of(lake) == EXPECTED


@pytest.mark.slow
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_history_gets_the_snapshot_as_one_of_its_versions(tmp_path: Path, order: tuple[int, ...]) -> None:
    """What was before ends there, and it ends where the next change begins, in any order of arrival."""
    lake, config = lake_in(tmp_path, TABLES + 'keep = "history"\n')
    file = dump(tmp_path, [{"id": 1, "v": "snapshot"}])
    for step in order:
        if step == 1:
            load(lake, config, file)
        else:
            apply_batch(lake, decoded(config, [change(step, AT - 1 + step, {"id": 1, "v": str(step)})]))
    found = lake.typed["public.t"].file.read(["v", "_valid_from_ns", "_valid_to_ns"]).to_pylist()
    assert sorted(
        (row["_valid_from_ns"], row["_valid_to_ns"], row["v"]) for row in found if row["_valid_to_ns"]
    ) == [
        (AT - 1, AT, "0"),
        (AT, AT + 1, "snapshot"),
    ]
    assert [row["v"] for row in found if row["_valid_to_ns"] is None] == ["2"]


def test_a_second_load_changes_nothing(tmp_path: Path) -> None:
    """Its rows are duplicates."""
    lake, config = lake_in(tmp_path, TABLES)
    file = dump(tmp_path, SNAPSHOT)
    first = load(lake, config, file, rows_at_once=4)
    assert (first.files, first.rows, first.figures["upserts"]) == (1, 6, 6)
    version = lake.typed["public.t"].file.version()
    second = load(lake, config, file)
    assert (second.figures["upserts"], second.figures["duplicates"]) == (0, 6)
    assert lake.typed["public.t"].file.version() == version


def test_the_hash_is_that_of_the_same_row_in_the_stream(tmp_path: Path) -> None:
    """A row of a dump and of a change record are one image."""
    lake, config = lake_in(tmp_path, TABLES)
    load(lake, config, dump(tmp_path, [{"id": 1, "v": 'a "quoted"\n'}]))
    apply_batch(lake, decoded(config, [change(1, 5_000, {"id": 2, "v": 'a "quoted"\n'})]))
    apply_batch(lake, decoded(config, [change(2, 5_000, {"v": 'a "quoted"\n', "id": 1})]))
    stream = lake.typed["public.t"].file.read(["_image_hash"], "id = 1").to_pylist()
    (tmp_path / "x").mkdir()
    lake, config = lake_in(tmp_path / "x", TABLES)
    load(lake, config, dump(tmp_path, [{"id": 1, "v": 'a "quoted"\n'}]))
    assert lake.typed["public.t"].file.read(["_image_hash"]).to_pylist() == stream


def test_what_is_left_out_is_no_part_of_the_image(tmp_path: Path) -> None:
    """So that a row of a dump and one of a change record stay one, whatever the column held."""
    lake, config = lake_in(tmp_path, TABLES + 'except_columns = ["secret"]\n')
    load(lake, config, dump(tmp_path, [{"id": 1, "v": "a", "secret": "x"}], secret=pa.string()))
    loaded = lake.typed["public.t"].file.read(["_image_hash"]).to_pylist()
    apply_batch(lake, decoded(config, [change(1, 5_000, {"id": 1, "v": "a", "secret": "y"})]))
    assert lake.typed["public.t"].file.read(["_image_hash"]).to_pylist() == loaded


def test_a_crash_in_the_middle_is_mended_by_loading_again(tmp_path: Path) -> None:
    """Whatever part was written."""
    lake, config = lake_in(tmp_path, TABLES)
    file = dump(tmp_path, SNAPSHOT)
    count = itertools.count()

    def between(write: str) -> None:
        if write == "table public.t" and next(count) == 2:
            raise Crash

    with pytest.raises(Crash):
        load(watched(lake, between), config, file, rows_at_once=2)
    assert 0 < len(rows_of(lake)) < len(SNAPSHOT)
    load(lake, config, file, rows_at_once=2)
    assert set(rows_of(lake)) == {row["id"] for row in SNAPSHOT}


def refused(folder: Path, tables: str, file: str, error: type[HeadpondError], **options: Any) -> str:
    """What is said; and nothing was written."""
    lake, config = lake_in(folder, tables)
    with pytest.raises(error) as caught:
        load(lake, config, file, **options)
    assert lake.typed["public.t"].file.count() == 0
    return str(caught.value)


@pytest.mark.parametrize("bounds", [{}, {"rows_at_once": 1}])
def test_keys_that_are_there_twice_are_named(tmp_path: Path, bounds: dict[str, int]) -> None:
    """Over all files and parts, before anything is written, however few keys are looked at once."""
    dump(tmp_path, SNAPSHOT, "a.parquet")
    dump(tmp_path, [{"id": 3, "v": "x"}, {"id": 8, "v": "y"}], "b.parquet")
    said = refused(tmp_path, TABLES, str(tmp_path / "*.parquet"), InvalidData, **bounds)
    assert "Two rows or more of 'public.t' have the same key (id): [3]." in said


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("timestamp", pa.array([0, 2**62], pa.timestamp("us"))),
        ("double precision", pa.array([1, float("nan")])),
        ("real", pa.array([1, float("nan")], pa.float32())),
    ],
)
def test_a_key_that_could_not_be_told_apart_is_refused(kind: str, keys: pa.Array, tmp_path: Path) -> None:
    """A time that would be clamped, and NaN; with the row."""
    tables = f'[tables."public.t"]\nkeys = ["id"]\ncolumns = {{ id = "{kind}" }}\n'
    pq.write_table(pa.table({"id": keys}), tmp_path / "dump.parquet")
    said = refused(tmp_path, tables, str(tmp_path / "dump.parquet"), InvalidData)
    assert "The column 'id'" in said
    assert "in row 2" in said


def test_a_key_that_is_null_is_refused(tmp_path: Path) -> None:
    """With its row."""
    said = refused(tmp_path, TABLES, dump(tmp_path, [*SNAPSHOT, {"id": None, "v": "x"}]), InvalidData)
    assert "The column 'id'" in said
    assert "is a key and null, in row 7" in said


@pytest.mark.parametrize(
    ("declared", "kind", "value", "said"),
    [
        ("smallint", pa.int64(), 40_000, "holds a value that is not a valid smallint (cast_error), in row 1"),
        (
            "integer",
            pa.decimal128(10, 2),
            Decimal("1.50"),
            "is not a valid integer (cast_error)",
        ),
        ("bigint", pa.uint64(), 2**63, "holds a value that is not a valid bigint"),
        (
            "numeric(4,2)",
            pa.decimal128(10, 3),
            Decimal("1.505"),
            "is not a valid numeric(4,2)",
        ),
        ("real", pa.float64(), 0.1, "is not exactly a real, in row 1"),
        ("double precision", pa.int64(), 2**53 + 1, "is not exactly a double precision, in row 1"),
        ("uuid", pa.string(), "no uuid", "holds a value that is not a valid uuid"),
        ("bigint", pa.timestamp("us"), NAIVE, "which does not say what bigint it means"),
        ("timestamp", pa.int64(), 1, "holds int64, which does not say what timestamp it means"),
        ("timestamptz", pa.timestamp("us"), NAIVE, "does not say what timestamptz"),
        ("timestamp", pa.timestamp("us", tz="UTC"), NAIVE, "does not say what timestamp"),
        ("timestamp", pa.timestamp("ns"), 1, "cannot be represented exactly as timestamp"),
        ("bigint", pa.string(), "7", "holds string, which does not say what bigint it means"),
        ("text", pa.int64(), 7, "holds int64, which does not say what text it means"),
        ("any", pa.list_(pa.int64()), [1], "does not say what any it means"),
    ],
)
def test_a_value_that_does_not_fit_exactly_is_refused(
    tmp_path: Path, declared: str, kind: pa.DataType, value: Any, said: str
) -> None:
    """The column is named, and the row where it is one row's fault."""
    tables = TABLES.replace('v = "text"', f'v = "{declared}"')
    file = dump(tmp_path, [{"id": 1, "v": value}], v=kind)
    text = refused(tmp_path, tables, file, HeadpondError)  # type: ignore[type-abstract]
    assert "The column 'v' of" in text
    assert said in text


def test_columns_that_lack_or_double_are_refused(tmp_path: Path) -> None:
    """An absent column would become NULL in every row: only when told."""
    pq.write_table(pa.table({"id": [1]}), tmp_path / "short.parquet")
    short = str(tmp_path / "short.parquet")
    assert "The column 'v' of" in refused(tmp_path, TABLES, short, UsageError)
    lake, config = lake_in(tmp_path, TABLES)
    load(lake, config, short, missing_as_null=True)
    assert rows_of(lake) == {1: (None, AT, "")}
    pq.write_table(pa.table({"v": ["x"]}), tmp_path / "keyless.parquet")
    with pytest.raises(UsageError, match=r"The column 'id' of .* is not there"):
        load(lake, config, str(tmp_path / "keyless.parquet"), missing_as_null=True)
    lake, config = lake_in(tmp_path, TABLES + 'rename = { w = "v" }\n')
    twice = dump(tmp_path, [{"id": 1, "v": "a", "w": "b"}], w=pa.string())
    with pytest.raises(UsageError, match=r"The column 'v' of .* occurs twice"):
        load(lake, config, twice)


def test_columns_are_renamed_left_out_and_added(tmp_path: Path) -> None:
    """As those of the stream are; what is not declared is kept as JSON text."""
    tables = TABLES + 'rename = { old = "v" }\nexcept_columns = ["secret"]\n'
    lake, config = lake_in(tmp_path, tables)
    table = pa.table(
        {"id": [1], "old": ["a"], "secret": ["x"], "more": [Decimal("1.50")], "day": [dt.date(1970, 1, 3)]}
    )
    pq.write_table(table, tmp_path / "d.parquet")
    load(lake, config, str(tmp_path / "d.parquet"))
    (row,) = lake.typed["public.t"].file.read().to_pylist()
    assert {name: row[name] for name in row if not name.startswith("_")} == {
        "id": 1, "v": "a", "more": '"1.50"', "day": "2",
    }  # fmt: skip


def test_the_index_of_pandas_is_not_a_column(tmp_path: Path) -> None:
    """A frame that was filtered before it was written has one."""
    lake, config = lake_in(tmp_path, TABLES)
    table = pa.table({"id": [1], "v": ["a"], "__index_level_0__": [7]})
    pq.write_table(table, tmp_path / "d.parquet")
    load(lake, config, str(tmp_path / "d.parquet"))
    (row,) = lake.typed["public.t"].file.read().to_pylist()
    assert {name for name in row if not name.startswith("_")} == {"id", "v"}
    assert not any(name.startswith("__index") for name in row)


def test_a_snapshot_older_than_forgotten_deletes_is_refused(tmp_path: Path) -> None:
    """It could bring a deleted row back."""
    lake, config = lake_in(tmp_path, TABLES)
    apply_batch(lake, decoded(config, [change(1, 2 * AT, {"id": 1}, delete=True)]))
    lake.tombstones.retire(3 * AT)
    with pytest.raises(UsageError, match=r"Deletes of 'public.t' up to 2000 ns are no longer known"):
        load(lake, config, dump(tmp_path, SNAPSHOT))


def test_logs_and_unknown_tables_and_files_are_refused(tmp_path: Path) -> None:
    """Each with its reason."""
    lake, config = lake_in(tmp_path, TABLES + '[tables."public.l"]\nkeys = []\n')
    source = ParquetSource([dump(tmp_path, SNAPSHOT)])
    with pytest.raises(UsageError, match=r"'public.l' is a log"):
        Bootstrap(lake, "public.l", source, AT)
    with pytest.raises(UsageError, match=r"no table 'public.x'"):
        Bootstrap(lake, "public.x", source, AT)
    with pytest.raises(UsageError, match=r"No file matches .*none\*"):
        load(lake, config, str(tmp_path / "none*"))
    (tmp_path / "bad.parquet").write_bytes(b"no parquet at all, but long enough")
    with pytest.raises(UsageError, match=r"bad\.parquet is not a Parquet file\. Give Parquet files\.$"):
        load(lake, config, str(tmp_path / "bad.parquet"))


@pytest.mark.slow
def test_a_dump_in_an_object_store_is_loaded(tmp_path: Path) -> None:
    """By a pattern, with the options of the lake."""
    lake, _ = lake_in(tmp_path, TABLES)
    with s3_store() as store:
        client = store.client()
        for name in ("a", "b"):
            rows = [{"id": ord(name), "v": name}]
            with open(dump(tmp_path, rows), "rb") as content:  # noqa: PTH123 - a text from the helper
                client.put_object(Bucket="lake", Key=f"dump/{name}.parquet", Body=content.read())
        client.close()
        source = ParquetSource(["s3://lake/dump/*.parquet"], store.options)
        done = Bootstrap(lake, "public.t", source, AT).load()
    assert (done.files, done.rows) == (2, 2)
    assert set(rows_of(lake)) == {ord("a"), ord("b")}


@pytest.mark.parametrize(
    ("declared", "values", "kind"),
    [
        ("bigint", [None, 0, -(2**63), 2**63 - 1], pa.int64()),
        ("integer", [Decimal("7.00"), Decimal(100), None], pa.decimal128(12, 2)),
        ("numeric(12,2)", [Decimal("1.5"), Decimal(-100), Decimal(0)], pa.decimal128(38, 9)),
        ("numeric(38,20)", [Decimal("0.00000000000000000001"), None], pa.decimal128(38, 20)),
        ("numeric(12,2)", [7, 100], pa.int32()),
        ("double precision", [0.1, -0.0, 1e300, float("inf"), float("-inf"), 5.0, None], pa.float64()),
        ("real", [0.5, 2.0**100], pa.float64()),
        ("double precision", [1, 2**53], pa.int64()),
        ("boolean", [True, False, None], pa.bool_()),
        ("text", ["", "a", 'q"\\\n\x01', "é😀", None], pa.large_string()),
        ("json", ['{"a": 1, "a": 2}', "null"], pa.string()),
        ("bytea", [b"", b"\x00\xff", None], pa.large_binary()),
        ("date", [dt.date(1, 1, 1), dt.date(9999, 12, 31)], pa.date32()),
        ("timestamp", [NAIVE], pa.timestamp("us")),
        ("timestamptz", [dt.datetime(2026, 1, 2, tzinfo=dt.UTC)], pa.timestamp("ms", tz="Europe/Paris")),
        ("uuid", ["6f1c2d3e-0000-4000-8000-000000000001"], pa.string()),
    ],
)
def test_values_go_through_the_wire_unchanged(declared: str, values: list[Any], kind: pa.DataType) -> None:
    """From Parquet to tokens and, by the cast of the stream, to the same values."""
    tokens = wire_tokens(pa.array(values, kind), declared)
    found = cast_column(declared, tokens)
    assert found.failures == {}
    assert found.values.to_pylist() == values


def test_times_spans_and_identifiers_are_written_as_the_service_does() -> None:
    """Microseconds as digits, UUIDs with their hyphens, NaN as text."""
    assert wire_tokens(pa.array([dt.time(0, 0, 1)], pa.time64("ns")), "time").to_pylist() == [b"1000000"]
    span = pa.array([dt.timedelta(seconds=-2)], pa.duration("ms"))
    assert wire_tokens(span, "interval").to_pylist() == [b"-2000000"]
    known = uuid.UUID("6f1c2d3e-0000-4000-8000-000000000001")
    tokens = wire_tokens(pa.array([known.bytes, None], pa.binary(16)), "uuid")
    assert tokens.to_pylist() == [b'"6f1c2d3e-0000-4000-8000-000000000001"', None]
    assert wire_tokens(pa.array([float("nan")]), "any").to_pylist() == [b'"NaN"']
    assert wire_tokens(pa.array(["a", "b"]).dictionary_encode(), "text").to_pylist() == [b'"a"', b'"b"']
    assert wire_tokens(pa.nulls(2), "bigint").to_pylist() == [None, None]


def test_text_that_is_no_utf8_is_refused() -> None:
    """A reader of Parquet does not look."""
    broken = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    with pytest.raises(Unfit, match="cannot be represented exactly as text"):
        wire_tokens(broken, "text")
