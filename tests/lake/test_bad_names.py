"""Columns called anything, keys among them, through every way into a table: each keeps its own values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from headpond.lake.apply import apply_batch
from headpond.lake.maintenance.bootstrap import Bootstrap, ParquetSource
from headpond.lake.maintenance.catch_up import catch_up_from_log
from headpond.lake.maintenance.optimize import optimize_file
from headpond.lake.maintenance.requeue import requeue
from headpond.lake.reports import lake_summary
from tests.lake.lakes import decoded, lake_in
from tests.lake.test_unknown_tables import change

if TYPE_CHECKING:
    from pathlib import Path

    from headpond.lake.tables import Lake

KEYS = ["my key.`1`", "ID", "id"]
NAMES = [
    "a.b", "a b", "a`b", "a,b=c", "a;b", "{x}", "(y)", "a\nb", "\t", "", " ", "%", "%20", "a%2Eb", "a~b",
    'q"q', "q'q", "back\\slash", "v", "V", "ü", "Ü", "🙂", "İ", "ß", "SS", "m:key", "c:x", "t.v", "s.v",
    "_ts_ns", "_TS_NS", "_op", "_after", "_before", "_valid_to_ns", "_sequence_number", "_bucket", "%delete",
    "select", "..", "k", "K", "\u212a", "s", "S", "\u017f", "i", "I", "\u0131",
]  # fmt: skip


def entry(keep: str, *, typed: bool = False) -> str:
    columns = dict.fromkeys((*KEYS, *(NAMES[::2] if typed else [])), "bigint")
    listed = ", ".join(f'{json.dumps(name, ensure_ascii=False)} = "{kind}"' for name, kind in columns.items())
    return f'[tables."public.t"]\nkeep = "{keep}"\nkeys = {json.dumps(KEYS)}\ncolumns = {{ {listed} }}\n'


def key(number: int) -> dict[str, Any]:
    return {name: number * 10 + at for at, name in enumerate(KEYS)}


def image(number: int, names: list[str] = NAMES) -> dict[str, Any]:
    return key(number) | {name: number * 1000 + at for at, name in enumerate(names)}


def found(lake: Lake, where: str) -> list[dict[str, Any]]:
    """Rows by the columns' own names."""
    typed = lake.typed["public.t"]
    rows = typed.file.read(None, where).to_pylist()
    names = [name for name in (*KEYS, *NAMES) if typed.column(name) in rows[0]] if rows else []
    return [{name: row[typed.column(name)] for name in names} for row in rows]


def as_numbers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: None if value is None else int(value) for name, value in row.items()} for row in rows]


@pytest.mark.parametrize(
    ("keep", "columns"),
    [
        ("current", "declared"),
        *(
            pytest.param(keep, columns, marks=pytest.mark.thorough)
            for keep in ("current", "history", "log") for columns in ("seen", "declared")
        ),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_values_stay_in_their_columns(keep: str, columns: str, tmp_path: Path) -> None:
    """Insert, columns that appear, update, late change, delete, restart, compaction, on every target."""
    typed = columns == "declared"
    lake, config = lake_in(tmp_path, entry(keep, typed=typed))
    half = len(NAMES) // 2
    apply_batch(lake, decoded(config, [change(1, "t", image(1, NAMES[:half])), change(2, "t", image(2))]))
    apply_batch(lake, decoded(config, [change(5, "t", image(1)), change(3, "t", image(3))], first_line=3))
    lake, config = lake_in(tmp_path, entry(keep, typed=typed))
    lines = [change(7, "t", None, op="d", before=key(2)), change(4, "t", image(1, NAMES[half:]))]
    apply_batch(lake, decoded(config, lines, first_line=5))
    for _, file in lake.files():
        optimize_file(file)
    assert as_numbers(found(lake, '"_ts_ns" = 5')) == [image(1)]
    assert as_numbers(found(lake, '"_ts_ns" = 3')) == [image(3)]
    counts = {"current": 2, "history": 5, "log": 6}
    assert lake_summary(lake)["tables"]["public.t"]["rows"] == counts[keep]
    table = DeltaTable(lake.place_of("public.t"))
    folded = [name.casefold() for name in table.to_pyarrow_table().column_names]
    assert len(set(folded)) == len(folded)
    told = {
        row["column"]
        for row in lake.extras.schema_changes.read().to_pylist()
        if row["value_type"] in {"number", "null"}
    }
    assert {*KEYS, *NAMES} <= told


@pytest.mark.slow
def test_names_survive_bootstrap_requeue_and_a_raw_log(tmp_path: Path) -> None:
    """From Parquet, out of quarantine, and out of a log of images."""
    lake, config = lake_in(tmp_path / "dump", entry("current"))
    dump = {name: [value] for name, value in image(1).items()}
    pq.write_table(pa.table(list(dump.values()), names=list(dump)), tmp_path / "d.parquet")
    Bootstrap(lake, "public.t", ParquetSource([str(tmp_path / "d.parquet")]), 1).load()
    assert as_numbers(found(lake, "true")) == [image(1)]
    bad = image(2) | {"a.b": "no number"}
    lake, config = lake_in(tmp_path / "mended", entry("current", typed=True))
    apply_batch(lake, decoded(config, [change(1, "t", bad)]))
    assert "a.b" in lake.quarantine.read(["detail"])["detail"][0].as_py()
    text = entry("current", typed=True).replace('"a.b" = "bigint"', '"a.b" = "text"')
    assert '"a.b" = "text"' in text
    (tmp_path / "mended/lake/public.t").rename(tmp_path / "old")
    (tmp_path / "mended/lake/_headpond/tables.json").unlink()
    lake, config = lake_in(tmp_path / "mended", text)
    assert requeue(lake, "cast_error").left == 1
    assert found(lake, "true")[0]["a.b"] == "no number"
    lake, config = lake_in(tmp_path / "logged", 'unknown_tables = "log"\n')
    apply_batch(lake, decoded(config, [change(1, "t", image(1)), change(2, "t", image(2))]))
    lake, config = lake_in(tmp_path / "logged", entry("history"))
    catch_up_from_log(lake, "public.t")
    assert as_numbers(found(lake, '"_ts_ns" = 2')) == [image(2)]


@pytest.mark.thorough
def test_columns_do_not_depend_on_cuts(tmp_path: Path) -> None:
    """A column that only a superseded or late change names is a column of the table all the same."""
    lines = [change(1, "t", image(1)), change(2, "t", key(1)), change(3, "t", None, op="d", before=key(1))]
    columns = []
    for name, cuts in (("at once", [3]), ("one by one", [1, 1, 1]), ("late", [2, 1])):
        lake, config = lake_in(tmp_path / name, entry("current"))
        fed = lines if name != "late" else lines[1:] + lines[:1]
        for cut in cuts:
            apply_batch(lake, decoded(config, fed[:cut]))
            fed = fed[cut:]
        columns.append(sorted(lake.typed["public.t"].originals()))
    assert columns[0] == columns[1] == columns[2]
