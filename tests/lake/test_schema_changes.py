"""What changes tell of columns: the same, whatever the order and the cuts."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.core.schemas import COLUMNS_TYPE
from headpond.dsql.decode import DsqlConfig
from headpond.lake.state.schema_changes import IDENTITY, MINUTE_NS, SCHEMA_CHANGES_SCHEMA, schema_step
from tests.dsql.driver import records_of, spec_of, user_records
from tests.kit.support import share_of, vector_json, vector_lines

Row = dict[str, Any]
NO_VALUES = {"none", "table"}


class Store:
    """Rows by identity, told batch after batch."""

    def __init__(self, declared: dict[str, dict[str, str]] | None = None) -> None:
        self.rows: dict[tuple[str, ...], Row] = {}
        self.declared = declared or {}

    def tell(self, batches: dict[str, pa.Table]) -> int:
        state = pa.Table.from_pylist(list(self.rows.values()), schema=SCHEMA_CHANGES_SCHEMA)
        outcome = schema_step(state, batches, self.declared)
        for row in outcome.drop.to_pylist():
            del self.rows[tuple(row[name] for name in IDENTITY)]
        for row in outcome.put.to_pylist():
            self.rows[tuple(row[name] for name in IDENTITY)] = row
        told = {place for place in self.rows if place[0] in batches}
        assert {tuple(row[n] for n in IDENTITY) for row in outcome.state.to_pylist()} == told
        return outcome.changed

    def told(self, table: str = "t") -> dict[tuple[str, str], tuple[str, int, str | None]]:
        """Column and value type → change, when, in which transaction."""
        return {
            (column, kind): (row["change"], row["first_ts_ns"], row["tx_id"])
            for (of, column, kind), row in self.rows.items()
            if of == table
        }


def batch(*changes: tuple[int, str, dict[str, str | None] | None]) -> dict[str, pa.Table]:
    """Changes of table t as `ts_ns, txId, raw values` (None is null); a delete has no values."""
    names = sorted({name for _, _, values in changes for name in values or {}})
    columns = {
        "m:ts_ns": pa.array([ts for ts, _, _ in changes], pa.int64()),
        "m:tx_id": pa.array([tx for _, tx, _ in changes], pa.string()),
        "m:delete": pa.array([values is None for _, _, values in changes], pa.bool_()),
        "m:columns": pa.array(
            [None if values is None else json.dumps(sorted(values)) for _, _, values in changes], COLUMNS_TYPE
        ),
    }
    for name in names:
        columns[f"c:{name}"] = pa.array([(values or {}).get(name) for _, _, values in changes], pa.string())
    return {"t": pa.table(columns)}


def test_columns_appear_change_type_and_disappear() -> None:
    """Each as a row with its commit; the table's own row tells from when to when it was seen."""
    store = Store()
    store.tell(batch((5, "a", {"id": "1", "old": '"x"', "any": "1"})))
    store.tell(batch((MINUTE_NS, "b", {"id": "2", "new": "[]", "any": '"s"'}), (9, "c", None)))
    assert store.told() == {
        ("", "table"): ("table", 5, "a"),
        ("id", "number"): ("initial", 5, "a"),
        ("old", "string"): ("initial", 5, "a"),
        ("old", "none"): ("disappeared", 0, None),
        ("new", "array"): ("added", MINUTE_NS, "b"),
        ("any", "number"): ("initial", 5, "a"),
        ("any", "string"): ("type_changed", MINUTE_NS, "b"),
    }
    assert store.rows["t", "old", "string"]["last_seen_ns"] == 0
    assert store.rows["t", "", "table"]["last_seen_ns"] == MINUTE_NS


def test_a_column_thought_gone_comes_back() -> None:
    """A later value, or a late one, takes the row away that said it had disappeared."""
    store = Store()
    store.tell(batch((5, "a", {"id": "1", "v": "true"}), (MINUTE_NS, "b", {"id": "1"})))
    assert ("v", "none") in store.told()
    store.tell(batch((MINUTE_NS + 7, "c", {"v": "false"})))
    assert ("v", "none") not in store.told()
    assert store.told()["v", "boolean"] == ("initial", 5, "a")


def test_late_changes_move_the_first_commit_back() -> None:
    """What was there first is found out later, and the labels follow."""
    store = Store()
    store.tell(batch((20, "b", {"id": "1", "v": "{}"})))
    store.tell(batch((10, "a", {"id": "1"}), (15, "z", {"v": "-1"})))
    assert store.told() == {
        ("", "table"): ("table", 10, "a"),
        ("id", "number"): ("initial", 10, "a"),
        ("v", "number"): ("added", 15, "z"),
        ("v", "object"): ("type_changed", 20, "b"),
    }


@pytest.mark.parametrize(
    ("kind", "value", "wire"),
    [
        ("bigint", 1, "number"),
        ("timestamptz", 1, "number"),
        ("numeric(5,2)", "1.5", "string"),
        ("bytea", "AA==", "string"),
        ("text", "{}", "string"),
        ("boolean", True, "boolean"),
        ("oidvector", [], "array"),
        ("any", {"a": 1}, "object"),
    ],
)
def test_a_declared_column_has_the_type_it_arrives_as(kind: str, value: Any, wire: str) -> None:
    """Declaring a column later is no change of its type."""
    source = {"version": "1.0", "ts_ns": 7, "txId": "a", "schema": "public", "table": "t"}
    record = {"type": "full", "op": "c", "source": source, "after": {"id": 1, "v": value}}
    told = []
    for columns in ({"id": "bigint", "v": kind}, {"id": "bigint"}):
        config = DsqlConfig(tables=(spec_of("public.t", {"keys": ["id"], "columns": columns}),))
        found = config.decode(records_of(json.dumps(record).encode()))
        store = Store({"public.t": columns})
        store.tell({name: pa.Table.from_batches([rows]) for name, rows in found.tables.items()})
        told.append(store.told("public.t"))
    assert told[0] == told[1]
    assert told[0]["v", wire] == ("initial", 7, "a")


def test_deletes_show_nothing_and_a_null_shows_its_column() -> None:
    """Where the names of an image are not known, a null shows nothing either."""
    store = Store()
    assert store.tell(batch((5, "a", None))) == 0
    unknown = batch((5, "a", {"v": None}))["t"]
    nobody_knows = pa.nulls(unknown.num_rows, COLUMNS_TYPE)
    for rows in (unknown.drop_columns("m:columns"), unknown.set_column(3, "m:columns", nobody_knows)):
        store = Store()
        store.tell({"t": rows})
        assert set(store.told()) == {("", "table")}
    store.tell({"t": unknown})
    assert store.told()["v", "null"] == ("initial", 5, "a")


def test_absent_and_null_are_told_apart() -> None:
    """A column that newer images leave out has disappeared, one that they name and that is null has not."""
    store = Store()
    store.tell(batch((5, "a", {"dropped": "1", "empty": "1"})))
    store.tell(batch((MINUTE_NS, "b", {"empty": None, "new": None}), (2 * MINUTE_NS, "c", {"empty": None})))
    assert store.told() == {
        ("", "table"): ("table", 5, "a"),
        ("dropped", "number"): ("initial", 5, "a"),
        ("dropped", "none"): ("disappeared", 0, None),
        ("empty", "number"): ("initial", 5, "a"),
        ("empty", "null"): ("first_null", MINUTE_NS, "b"),
        ("new", "null"): ("added", MINUTE_NS, "b"),
        ("new", "none"): ("disappeared", MINUTE_NS, None),
    }
    store.tell(batch((3 * MINUTE_NS, "d", {"empty": None, "new": "[]"}), (3 * MINUTE_NS, "e", {"new": "{}"})))
    assert ("new", "none") not in store.told()
    assert store.told()["new", "array"] == ("first_value", 3 * MINUTE_NS, "d")
    assert store.told()["new", "object"] == ("type_changed", 3 * MINUTE_NS, "e")


def test_the_decoder_tells_which_columns_an_image_names() -> None:
    """Nulls among them, under their new names, in any order of the record; a refused row tells nothing."""
    source = {"version": "1.0", "ts_ns": 7, "txId": "a", "schema": "public", "table": "t"}
    images: list[dict[str, Any]] = [
        {"id": 1, "old": None, "x": "1"},
        {"x": None, "id": 2, "old": 3},
        {"id": "no number", "never": 1},
        {"id": 4},
    ]
    changes = [{"type": "full", "op": "c", "source": source, "after": image} for image in images]
    changes.append({"type": "full", "op": "d", "source": source, "before": {"id": 9}})
    spec = spec_of("public.t", {"keys": ["id"], "columns": {"id": "bigint"}}, rename={"old": "new"})
    rows = DsqlConfig(tables=(spec,)).decode(records_of(*(json.dumps(c).encode() for c in changes)))
    columns = rows.tables["public.t"].column("m:columns")
    assert columns.to_pylist() == ['["id", "new", "x"]', '["id", "new", "x"]', '["id"]', '["id"]']
    assert len(columns.dictionary) <= 3


def test_an_empty_name_is_a_column_like_any_other() -> None:
    """It is not taken for the table's own row."""
    store = Store()
    store.tell(batch((5, "a", {"": "1"})))
    assert store.told()["", "number"] == ("initial", 5, "a")


changes_drawn = st.lists(
    st.tuples(
        st.sampled_from([0, 1, MINUTE_NS - 1, MINUTE_NS, 3 * MINUTE_NS, 2**63 - 1]),
        st.sampled_from(["a", "b", "ü"]),
        st.none()
        | st.dictionaries(
            st.sampled_from(["v", "V", "", "a.b"]), st.sampled_from(["1", '"s"', "null", "[]", None])
        ),
    ).map(lambda c: (c[0], c[1], c[2] and {n: None if v == "null" else v for n, v in c[2].items()})),
    max_size=12,
)


@pytest.mark.thorough
@settings(max_examples=share_of(150))
@given(changes=changes_drawn, seed=st.integers(0, 2**32))
def test_the_rows_depend_on_the_set_of_changes_alone(changes: list[Any], seed: int) -> None:
    """Order, cuts and repeats change nothing, and a repeated batch asks for no write."""
    draw = random.Random(seed)
    at_once, store = Store(), Store()
    if changes:
        at_once.tell(batch(*changes))
    feed = changes + draw.sample(changes, draw.randint(0, len(changes)))
    draw.shuffle(feed)
    while feed:
        cut = draw.randint(1, len(feed))
        store.tell(batch(*feed[:cut]))
        assert store.tell(batch(*feed[:cut])) == 0
        feed = feed[cut:]
    assert store.rows == at_once.rows
    images = [c for c in changes if c[2] is not None]
    for column in {name for _, _, values in images for name in values}:
        last = max(c[0] for c in images if column in c[2]) // MINUTE_NS * MINUTE_NS
        gone = last < max(c[0] for c in images) // MINUTE_NS * MINUTE_NS
        assert store.told().get((column, "none")) == (("disappeared", last, None) if gone else None)
        told = [t for (name, kind), t in store.told().items() if name == column and kind not in NO_VALUES]
        assert min(t[1:] for t in told) == min(c[:2] for c in images if column in c[2])
    begins = {"number": "1", "string": '"', "array": "["}
    for (column, kind), (label, ts_ns, tx_id) in store.told().items():
        if kind in begins:
            shown = [c for c in changes if c[2] and (c[2].get(column) or "").startswith(begins[kind])]
            assert (ts_ns, tx_id) == min(c[:2] for c in shown)
            assert label in {"initial", "added", "type_changed", "first_value"}


@settings(max_examples=share_of(50))
@given(changes=changes_drawn, cut=st.integers(0, 12))
@pytest.mark.slow
def test_what_parts_show_is_what_the_whole_shows(changes: list[Any], cut: int) -> None:
    """Steps from nothing over parts of a batch, told as one, say what the batch says."""
    whole, parts = Store(), Store()
    shown = [
        schema_step(SCHEMA_CHANGES_SCHEMA.empty_table(), batch(*part), {}).state
        for part in (changes[:cut], changes[cut:])
        if part
    ]
    if changes:
        whole.tell(batch(*changes))
        parts.tell({"t": pa.concat_tables(shown)})
    assert parts.rows == whole.rows


def test_the_stream_shows_its_schema_changes() -> None:
    """Of the table whose schema changes on its way: which columns came later than its first commit."""
    expected = vector_json("dsql/stream.expected.json")
    table = expected["tables"]["sales.Evolving"]
    config = DsqlConfig(tables=(spec_of("sales.Evolving", table),), unknown_tables="log")
    found = config.decode(user_records(vector_lines("dsql/stream.jsonl"))).tables["sales.Evolving"]
    store = Store({"sales.Evolving": table["columns"]})
    store.tell({"sales.Evolving": pa.Table.from_batches([found])})
    told = store.told("sales.Evolving")
    history = [change for change in table["history"] if change["row"] is not None]
    start = min(change["ts_ns"] for change in history)
    assert told["", "table"][:2] == ("table", start)
    for column in table["columns"]:
        with_value = [c["ts_ns"] for c in history if c["row"][column] is not None]
        first = min((t[1], t[0]) for (name, kind), t in told.items() if name == column and kind != "none")
        assert first == (min(with_value), "initial" if min(with_value) == start else "added")
        last = max(c["ts_ns"] for c in history if c["row"][column] is not None) // MINUTE_NS
        gone = last < max(c["ts_ns"] for c in history) // MINUTE_NS
        assert told.get((column, "none")) == (("disappeared", last * MINUTE_NS, None) if gone else None)
    assert {"added", "type_changed", "disappeared"} <= {change for change, _, _ in told.values()}
