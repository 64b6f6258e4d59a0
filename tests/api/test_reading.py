"""Tables and quarantine of a lake, from Python."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import headpond
from headpond.api.records import tables_of
from headpond.core.errors import MissingRequirement, UsageError
from headpond.core.lazy import needed
from headpond.lake.delta import DeltaFile
from tests.kit.support import vector_lines

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = "<script>alert(1)</script>"


def lake_of(folder: Path, **tables: list[pa.Table]) -> str:
    """A lake of tables, each with a commit per list of rows."""
    for name, commits in tables.items():
        file = DeltaFile(str(folder / name))
        file.create(commits[0].schema)
        for rows in commits:
            file.append(rows)
    return str(folder)


def test_a_table_is_read_in_every_form(example: Path) -> None:
    """Arrow, pandas, Polars and batch by batch, of the same rows."""
    orders = headpond.tables(example / "lake")["public.orders"]
    rows = orders.to_arrow(["id", "item", "quantity"])
    assert rows.to_pylist() == [{"id": 1, "item": "anchor", "quantity": 2}]
    assert orders.to_pandas()["item"].tolist() == orders.to_polars()["item"].to_list() == ["anchor"]
    assert orders.scan(["id", "item", "quantity"]).read_all() == rows
    assert (len(orders), orders.columns[:3]) == (1, ["id", "item", "quantity"])
    assert orders.to_arrow(where="quantity > 2").num_rows == 0


def test_a_lake_is_named_by_its_path_or_its_pipeline(example: Path) -> None:
    """The file, the pipeline itself, and a folder with a slash."""
    pipeline = headpond.Pipeline(
        source={"archive": "records.jsonl", "format": "dsql"},
        target=example / "lake",
        tables={"public.orders": {"keys": ["id"]}},
    )
    for place in ("pipeline.toml", example / "pipeline.toml", pipeline, "lake", "lake/"):
        assert list(headpond.tables(place)) == ["public.orders"]
        assert len(headpond.quarantine(place)) == 1


def test_names_are_those_of_the_pipeline(tmp_path: Path) -> None:
    """However their folders are called; what is no table is left out."""
    rows = pa.table({"id": [1]})
    lake = lake_of(tmp_path, **{"a~2Fb": [rows], "_headpond": [rows], "~5Fheadpond": [rows], "é": [rows]})
    (tmp_path / "notes").mkdir()
    found = headpond.tables(lake)
    assert list(found) == ["a/b", "_headpond", "é"]
    assert [len(table) for table in found.values()] == [1, 1, 1]
    assert len(headpond.tables(tmp_path / "notes")) == 0


def test_a_table_that_is_not_there_is_a_key_error(example: Path) -> None:
    """With the names of those that are."""
    with pytest.raises(KeyError) as caught:
        headpond.tables(example / "lake")["public.order"]
    assert "It has public.orders." in str(caught.value)


def test_slips_are_sentences(example: Path) -> None:
    """A lake that is not there is not an empty one, and an archive has no time to end at."""
    with pytest.raises(UsageError, match="There is no lake at nowhere"):
        headpond.tables("nowhere")
    with pytest.raises(UsageError, match="is for streams"):
        headpond.run(example / "pipeline.toml", until="2026-01-01T00:00:00Z")
    with pytest.raises(UsageError, match="'yesterday' is not a time in ISO 8601"):
        headpond.run(example / "pipeline.toml", until="yesterday")


def test_a_table_is_read_as_it_was(tmp_path: Path) -> None:
    """By version, by time, by the text of either; an earlier moment is refused and no later one is taken."""
    before = datetime.now(UTC)
    lake = lake_of(tmp_path, t=[pa.table({"id": [1]}), pa.table({"id": [2]})])
    table = headpond.tables(lake)["t"]
    assert [len(table.at(version)) for version in (0, 1, "2")] == [0, 1, 2]
    later = datetime.now(UTC) + timedelta(hours=1)
    assert len(table.at(later)) == len(table.at(later.isoformat())) == len(table.at("2999-01-01")) == 2
    old = table.at(1)
    DeltaFile(f"{lake}/t").append(pa.table({"id": [3]}))
    assert (len(old), old.version, len(table)) == (1, 1, 3)
    for moment in (9, before - timedelta(days=1), "yesterday"):
        with pytest.raises(UsageError):
            table.at(moment)


@pytest.mark.parametrize("where", ["nothing = 1", "id = = 1", "id = 'x'"])
def test_a_wrong_condition_is_one_sentence_with_the_columns(tmp_path: Path, where: str) -> None:
    """Whether SQL, names or types are wrong."""
    table = headpond.tables(lake_of(tmp_path, t=[pa.table({"id": [1]})]))["t"]
    for read in (table.to_arrow, table.to_pandas):
        with pytest.raises(UsageError, match="Its columns are id"):
            read(where=where)


def test_what_is_shown_is_escaped(tmp_path: Path) -> None:
    """Rows may hold anything: HTML in a notebook, controls in a terminal."""
    lake = lake_of(tmp_path, t=[pa.table({"id": [HOSTILE, "\x1b[2J\n"], "many": [1, 2_000_000]})])
    table = headpond.tables(lake)["t"]
    assert "<script" not in table._repr_html_()
    assert "&lt;script&gt;" in table._repr_html_()
    assert "\x1b" not in repr(table)
    assert repr(table).splitlines()[0] == "t: 2 rows in version 1"
    assert "2,000,000" in repr(table)
    assert "1 table" in headpond.tables(lake)._repr_html_()


def test_long_tables_show_their_beginning(tmp_path: Path) -> None:
    """Not all rows."""
    table = headpond.tables(lake_of(tmp_path, t=[pa.table({"id": range(1_000)})]))["t"]
    assert "1,000 rows in version 1, the first 10 of which are shown" in repr(table)
    assert len(repr(table).splitlines()) == 12


def test_the_quarantine_says_what_its_records_are(example: Path) -> None:
    """By reason and table; a lake without one has none."""
    found = headpond.quarantine(example / "lake")
    (group,) = found.counts()
    assert group == {"reason": "unknown_type", "table": None, "records": 1, "detail": 'type is "sideways"'}
    (record,) = found.records(reason="unknown_type")
    assert (record["data"], record["found"]["verdict"]) == (b'{"type": "sideways"}', "quarantine")
    assert list(found.records(reason="it's")) == list(found.records(table="public.orders")) == []
    (example / "empty").mkdir()
    assert repr(headpond.quarantine(example / "empty")) == "0 records in quarantine"


@pytest.mark.parametrize(
    "name", ["dsql/stream.jsonl", "qldb/clean.jsonl", "qldb/malformed.jsonl", "qldb/aggregated.jsonl"]
)
def test_tables_are_named_together_as_one_by_one(name: str) -> None:
    """Counts of a large quarantine do not read record by record; each comes whole, and cut in its middle."""
    whole = [base64.b64decode(line["data"]) for line in vector_lines(name)]
    records = [None, b"", b"{", *whole, *(data[: len(data) // 2] for data in whole)]
    alone = [headpond.inspect(data) if data is not None else {} for data in records]
    assert tables_of(records) == [
        found.get("table") or (found.get("identity") or {}).get("table_name") for found in alone
    ]


def test_a_record_that_headpond_fails_on_is_counted(example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in quarantine for just that; the others of its batch are named all the same."""

    def failing(data: pa.Array) -> pa.RecordBatch:
        raise RuntimeError(f"a defect, with {len(data)} records")

    wanted = headpond.quarantine(example / "lake").counts()
    monkeypatch.setattr("headpond.api.records.decode_batch", failing)
    assert headpond.quarantine(example / "lake").counts() == wanted
    change = base64.b64decode(vector_lines("dsql/stream.jsonl")[0]["data"])
    assert tables_of([None, b"{", change]) == [None, None, headpond.inspect(change)["table"]]


def test_what_is_missing_says_how_to_install_it() -> None:
    """One line for pip."""
    with pytest.raises(MissingRequirement, match="pip install 'polars'"):
        needed("surely_not_there", "to_polars()", "polars")
