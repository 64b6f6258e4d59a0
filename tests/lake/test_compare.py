"""A table compared with what it should be: a model in Python says the same."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headpond.core.errors import InvalidData, UsageError
from headpond.lake.apply import apply_batch
from headpond.lake.maintenance.bootstrap import Bootstrap, ParquetSource
from headpond.lake.maintenance.compare import Compare, Comparison
from headpond.lake.maintenance.snapshot import Loaded
from tests.lake.lakes import decoded, lake_in
from tests.lake.test_bootstrap import change

if TYPE_CHECKING:
    from pathlib import Path

    from headpond.lake.tables import Lake

TABLES = """[tables."public.t"]
keys = ["id"]
columns = { id = "bigint", v = "text", n = "numeric(12,2)", d = "double precision" }
"""
KINDS = {"id": pa.int64(), "v": pa.string(), "n": pa.string(), "d": pa.float64(), "raw": pa.int64()}
AT = 1_000


def dump(folder: Path, rows: list[dict[str, Any]], *names: str) -> ParquetSource:
    schema = pa.schema([(name, KINDS[name]) for name in names or ("id", "v", "n", "d", "raw")])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / "dump.parquet")
    return ParquetSource([str(folder / "dump.parquet")])


def compare(lake: Lake, source: ParquetSource, moment: int | None = None, **options: Any) -> Comparison:
    files = Bootstrap(lake, "public.t", source, moment or 0, missing_as_null=True)
    job = Compare(lake, "public.t", files.columns(), **options)
    return job.run(files.typed(source.files(), Loaded()), lambda: moment)


def row(number: int, **values: Any) -> dict[str, Any]:
    return {"id": number, "v": f"row {number}", "n": "1.50", "d": 0.5, "raw": number} | values


def filled(folder: Path, rows: list[dict[str, Any]], keep: str = "current") -> Lake:
    lake, config = lake_in(folder, TABLES + f'keep = "{keep}"\n')
    apply_batch(lake, decoded(config, [change(number, AT, each) for number, each in enumerate(rows)]))
    return lake


@pytest.mark.parametrize("keep", ["current", "history"])
def test_equal_tables_have_no_difference(tmp_path: Path, keep: str) -> None:
    """Whatever the values: null, absent, long, of an undeclared column; of a history, the rows that hold."""
    rows = [row(1), row(2, v=None), row(3, v="x" * 1000), row(4, n="-0.00", raw=None), row(5, d=-0.0)]
    lake = filled(tmp_path, rows, keep)
    if keep == "history":
        _, config = lake_in(tmp_path, TABLES + 'keep = "history"\n')
        apply_batch(lake, decoded(config, [change(9, AT - 1, row(1, v="before"))]))
    rows[3]["n"] = "0.00"  # the same number
    found = compare(lake, dump(tmp_path, rows))
    assert found == Comparison(rows_there=5, rows_here=5, newest_ns=AT)
    assert found.equal


def test_each_kind_is_counted_and_listed(tmp_path: Path) -> None:
    """With the columns that differ; a long value counts to its last character."""
    lake = filled(tmp_path, [row(1), row(2), row(3, v="x" * 1000), row(4), row(5)])
    there = [row(1), row(2, n="1.51", raw=7), row(3, v="x" * 999 + "y"), row(5, v=None), row(6), row(7)]
    found = compare(lake, dump(tmp_path, there))
    assert (found.missing, found.extra, found.different, found.newer) == (2, 1, 3, 0)
    assert sorted(found.keys["missing"]) == ["[6]", "[7]"]
    assert found.keys["extra"] == ["[4]"]
    assert {each["key"]: each["columns"] for each in found.keys["different"]} == {
        "[2]": ["n", "raw"],
        "[3]": ["v"],
        "[5]": ["v"],
    }
    assert found.columns == {"v": 2, "n": 1, "raw": 1}
    bounded = compare(lake, dump(tmp_path, there), listed=1)
    assert (bounded.missing, bounded.different) == (2, 3)
    assert [len(bounded.keys[kind]) for kind in ("missing", "extra", "different")] == [1, 1, 1]


def test_only_columns_of_the_snapshot_are_compared(tmp_path: Path) -> None:
    """One that the lake has not seen is null there."""
    lake = filled(tmp_path, [row(1), row(2)])
    assert compare(lake, dump(tmp_path, [row(1), row(2)], "id", "v")).equal
    schema = pa.schema([("id", pa.int64()), ("new", pa.string())])
    pq.write_table(
        pa.Table.from_pylist([{"id": 1, "new": "x"}, {"id": 2}], schema=schema), tmp_path / "dump.parquet"
    )
    found = compare(lake, ParquetSource([str(tmp_path / "dump.parquet")]))
    assert found.keys["different"] == [{"key": "[1]", "columns": ["new"]}]


@pytest.mark.parametrize("keep", ["current", "history"])
def test_what_changed_after_the_moment_is_not_judged(tmp_path: Path, keep: str) -> None:
    """Inserted, changed and deleted rows of a later time; without a moment they are differences."""
    lake = filled(tmp_path, [row(1), row(2), row(3)], keep)
    _, config = lake_in(tmp_path, TABLES + f'keep = "{keep}"\n')
    later = [
        change(11, AT + 10, row(2, v="later")),
        change(12, AT + 10, {"id": 3}, delete=True),
        change(13, AT + 10, row(4)),
    ]
    apply_batch(lake, decoded(config, later))
    source = dump(tmp_path, [row(1), row(2), row(3)])
    found = compare(lake, source, AT + 5)
    assert (found.equal, found.newer) == (True, 3)
    strict = compare(lake, source)
    assert (strict.missing, strict.extra, strict.different, strict.newer) == (1, 1, 1, 0)
    assert compare(lake, source, AT + 10).missing == 1  # of that very time: it was known


@pytest.mark.parametrize("seed", range(3))
def test_any_tables_agree_with_a_model(tmp_path: Path, seed: int) -> None:
    """However many parts there are."""
    choice = random.Random(seed)

    def some() -> dict[int, dict[str, Any]]:
        numbers = choice.sample(range(60), 40)
        return {n: row(n, v=choice.choice("ab"), n=choice.choice(["1.5", None])) for n in numbers}

    here, there = some(), some()
    lake = filled(tmp_path, list(here.values()))
    found = compare(lake, dump(tmp_path, list(there.values())), parts=choice.choice([1, 2, 64]), listed=100)
    assert sorted(found.keys["missing"]) == sorted(f"[{n}]" for n in there.keys() - here.keys())
    assert sorted(found.keys["extra"]) == sorted(f"[{n}]" for n in here.keys() - there.keys())
    both = here.keys() & there.keys()
    expected = {f"[{n}]": [c for c in "nv" if here[n][c] != there[n][c]] for n in both if here[n] != there[n]}
    assert {each["key"]: sorted(each["columns"]) for each in found.keys["different"]} == expected


def test_a_key_that_is_there_twice_is_no_snapshot(tmp_path: Path) -> None:
    """Nothing could be compared with it; a log has no rows to compare."""
    lake = filled(tmp_path, [row(1)])
    with pytest.raises(InvalidData, match=r"have the same key \(id\): \[1\]"):
        compare(lake, dump(tmp_path, [row(1), row(1, v="other")]))
    (tmp_path / "log").mkdir()
    log, _ = lake_in(tmp_path / "log", TABLES.replace('["id"]', "[]"))
    with pytest.raises(UsageError, match="is a log"):
        compare(log, dump(tmp_path, [row(1)]))


def test_a_row_that_the_table_has_twice_is_too_many(tmp_path: Path) -> None:
    """Whatever brought it there."""
    lake = filled(tmp_path, [row(1), row(2)])
    file = lake.typed["public.t"].file
    file.append(file.read(None, "id = 1"))
    found = compare(lake, dump(tmp_path, [row(1), row(2)]))
    assert (found.extra, found.keys["extra"], found.different) == (1, ["[1]"], 0)


def test_an_empty_table_lacks_every_row(tmp_path: Path) -> None:
    """And a snapshot without rows has none of the table's."""
    lake = filled(tmp_path, [])
    assert compare(lake, dump(tmp_path, [row(1), row(2)])).missing == 2
    assert compare(lake, dump(tmp_path, [])).equal
