"""Every version of each key, against a dictionary that is told one change at a time."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.core.schemas import OWN_FIELDS
from headpond.dsql.decode import DsqlConfig
from headpond.lake.newest import HISTORY_COUNTERS, HISTORY_STATE_SCHEMA, history_step
from tests.dsql.driver import comparable, encode_version, expected_row, spec_of, user_records
from tests.kit.support import share_of, vector_json, vector_lines

BATCH = pa.schema([*OWN_FIELDS, pa.field("c:v", pa.string())])
Row = dict[str, Any]
Interval = tuple[int, str, int | None, str]
LAST_NS = 2**63 - 1


def row(key: str, ts_ns: int, tx_id: str = "x", value: str | None = "v") -> Row:
    """An upsert, or a delete where the value is None."""
    delete = value is None
    return {
        "m:key": key,
        "m:version": encode_version(ts_ns, tx_id, delete=delete),
        "m:op": "d" if delete else "c",
        "m:delete": delete,
        "m:ts_ns": ts_ns,
        "m:tx_id": tx_id,
        "m:image_hash": (value or "").encode(),
        "c:v": value,
    }


def intervals(changes: list[Row]) -> dict[str, list[Interval]]:
    """The history of a set of changes, told plainly: `ts_ns, tx_id, end, value` by key and version."""
    versions: dict[str, dict[bytes, Row]] = {}
    for change in changes:
        of_key = versions.setdefault(change["m:key"], {})
        have = of_key.get(change["m:version"])
        if have is None or have["m:image_hash"] < change["m:image_hash"]:
            of_key[change["m:version"]] = change
    told: dict[str, list[Interval]] = {}
    for key, of_key in versions.items():
        line = [of_key[version] for version in sorted(of_key)]
        ends = [after["m:ts_ns"] for after in line[1:]] + [None]
        rows = [
            (r["m:ts_ns"], r["m:tx_id"], end, r["c:v"]) for r, end in zip(line, ends, strict=True) if r["c:v"]
        ]
        if rows:
            told[key] = rows
    return told


class Store:
    """A history and its deletes; `stop_after` cuts the writes of a batch short, as a crash does."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, bytes], Row] = {}
        self.deletes: dict[tuple[str, bytes], Row] = {}

    def state(self, earliest_ns: int) -> pa.Table:
        """What is known, without what ended before."""
        live = [
            {name: r[f"m:{name}"] for name in HISTORY_STATE_SCHEMA.names if name != "live"} | {"live": True}
            for r in self.rows.values()
            if r["m:valid_to_ns"] is None or r["m:valid_to_ns"] >= earliest_ns
        ]
        dead = [r | {"live": False} for r in self.deletes.values() if r["ts_ns"] >= earliest_ns]
        return pa.Table.from_pylist(live + dead, schema=HISTORY_STATE_SCHEMA)

    def apply(self, changes: list[Row], stop_after: int = 2) -> dict[str, int]:
        batch = pa.Table.from_pylist(changes, schema=BATCH)
        outcome = history_step(self.state(min((c["m:ts_ns"] for c in changes), default=0)), batch)
        if stop_after > 0:
            for delete in outcome.deletes.to_pylist():
                assert (delete["key"], delete["version"]) not in self.deletes
                self.deletes[delete["key"], delete["version"]] = delete
        if stop_after > 1:
            for new in outcome.inserts.to_pylist():
                assert (new["m:key"], new["m:version"]) not in self.rows
                self.rows[new["m:key"], new["m:version"]] = new
            for better in outcome.corrections.to_pylist():
                assert (
                    self.rows[better["m:key"], better["m:version"]]["m:image_hash"] < better["m:image_hash"]
                )
                self.rows[better["m:key"], better["m:version"]] = better
            for end in outcome.ends.to_pylist():
                known = self.rows[end["m:key"], end["m:version"]]
                assert (known["m:ts_ns"], known["m:tx_id"]) == (end["m:ts_ns"], end["m:tx_id"])
                assert known["m:valid_to_ns"] is None or known["m:valid_to_ns"] > end["m:valid_to_ns"]
                known["m:valid_to_ns"] = end["m:valid_to_ns"]
        assert sum(outcome.counters.values()) == len(changes)
        assert tuple(outcome.counters) == HISTORY_COUNTERS
        return outcome.counters

    def intervals(self) -> dict[str, list[Interval]]:
        told: dict[str, list[Interval]] = {}
        for key, version in sorted(self.rows):
            r = self.rows[key, version]
            told.setdefault(key, []).append((r["m:ts_ns"], r["m:tx_id"], r["m:valid_to_ns"], r["c:v"]))
        return told


changes_drawn = st.lists(
    st.builds(
        row,
        st.sampled_from("abc"),
        st.sampled_from([0, 1, 2, 3, 4, 5, LAST_NS]),
        st.sampled_from(["x", "y"]),
        st.sampled_from(["1", "2", None, None]),
    ),
    max_size=16,
)


@pytest.mark.thorough
@settings(max_examples=share_of(300))
@given(changes=changes_drawn, seed=st.integers(0, 2**32))
def test_any_order_cut_repeat_and_crash_ends_alike(changes: list[Row], seed: int) -> None:
    """The history depends on the set of changes alone, and a batch applied again does nothing."""
    draw = random.Random(seed)
    store = Store()
    feed = changes + draw.sample(changes, draw.randint(0, len(changes)))
    draw.shuffle(feed)
    while feed:
        cut = draw.randint(1, len(feed))
        batch, feed = feed[:cut], feed[cut:]
        for _ in range(draw.randint(0, 2)):
            store.apply(batch, stop_after=draw.randint(0, 2))
        store.apply(batch)
        again = store.apply(batch)
        assert (again["upserts"], again["deletes"]) == (0, 0)
    assert store.intervals() == intervals(changes)
    assert set(store.deletes) == {(c["m:key"], c["m:version"]) for c in changes if c["m:delete"]}


def test_a_late_change_splits_an_interval() -> None:
    """The row before it ends with it, and it ends with the one after."""
    store = Store()
    store.apply([row("a", 10, value="1"), row("a", 20, value=None), row("a", 30, value="3")])
    assert store.intervals() == {"a": [(10, "x", 20, "1"), (30, "x", None, "3")]}
    counters = store.apply([row("a", 15, value="late")])
    assert store.intervals()["a"][:2] == [(10, "x", 15, "1"), (15, "x", 20, "late")]
    assert counters == dict(zip(HISTORY_COUNTERS, (1, 0, 0, 0), strict=True))


def test_a_delete_is_remembered_until_what_it_deletes_arrives() -> None:
    """However many deletes come first, each upsert ends with the one that follows it."""
    store = Store()
    store.apply([row("a", 10, value=None), row("a", 20, value=None)])
    store.apply([row("a", 15)])
    store.apply([row("a", 5)])
    assert store.intervals() == {"a": [(5, "x", 10, "v"), (15, "x", 20, "v")]}


def test_a_transaction_that_deletes_and_inserts_a_key_ends_one_row_and_begins_the_next() -> None:
    """The delete comes first, both at the same time."""
    store = Store()
    store.apply([row("a", 1, value="old"), row("a", 2, "t", value="new")])
    store.apply([row("a", 2, "t", value=None)])
    assert store.intervals() == {"a": [(1, "x", 2, "old"), (2, "t", None, "new")]}


def test_counters_tell_what_became_of_each_row() -> None:
    """Every row is counted once, known deletes and known images as duplicates."""
    store = Store()
    first = store.apply(
        [row("a", 1), row("a", 3), row("a", 3), row("b", 2, value=None), row("c", 1, value="1")]
    )
    assert first == dict(zip(HISTORY_COUNTERS, (3, 1, 1, 0), strict=True))
    again = store.apply(
        [row("a", 3), row("b", 2, value=None), row("b", 2, value=None), row("c", 1, value="2"), row("b", 1)]
    )
    assert again == dict(zip(HISTORY_COUNTERS, (1, 0, 3, 1), strict=True))
    lesser = store.apply([row("c", 1, value="1"), row("c", 1, value="0")])
    assert lesser == dict(zip(HISTORY_COUNTERS, (0, 0, 0, 2), strict=True))
    assert store.intervals()["c"] == [(1, "x", None, "2")]


def test_an_end_stays_where_a_delete_was_forgotten() -> None:
    """Ends only move to earlier times: a later version does not lengthen a row that had ended."""
    store = Store()
    store.apply([row("a", 1), row("a", 5, value=None)])
    store.deletes.clear()
    store.apply([row("a", 4, value="late"), row("a", 9)])
    assert store.intervals()["a"][0] == (1, "x", 4, "v")
    store.apply([row("a", 1), row("a", 7)])
    assert store.intervals()["a"][0] == (1, "x", 4, "v")


@pytest.mark.parametrize(
    "known", [[], [{"key": "z", "version": b"v", "live": True, "ts_ns": 1, "tx_id": "t"}]]
)
def test_an_empty_batch_does_nothing(known: list[Row]) -> None:
    """No rows, no writes, whatever is known of other keys."""
    outcome = history_step(pa.Table.from_pylist(known, schema=HISTORY_STATE_SCHEMA), BATCH.empty_table())
    assert not any(t.num_rows for t in (outcome.inserts, outcome.corrections, outcome.ends, outcome.deletes))
    assert set(outcome.counters.values()) == {0}


SMALL = vector_lines("dsql/small.jsonl")
EXPECTED = vector_json("dsql/small.expected.json")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_the_small_stream_gives_its_history(seed: int) -> None:
    """Lines in any order and any cuts: each change once, each row ending with the next change of its key."""
    draw = random.Random(seed)
    lines = SMALL + draw.sample(SMALL, 40)
    draw.shuffle(lines)
    specs = tuple(spec_of(name, table, keep="history") for name, table in EXPECTED["tables"].items())
    config = DsqlConfig(tables=specs, unknown_tables="log")
    stores: dict[str, Store] = {name: Store() for name in EXPECTED["tables"]}
    while lines:
        cut = draw.randint(1, len(lines))
        found = config.decode(user_records(lines[:cut]))
        assert found.quarantine.num_rows == 0
        for name, store in stores.items():
            if name in found.tables:
                apply_typed(store, found.tables[name])
        lines = lines[cut:]
    for name, table in EXPECTED["tables"].items():
        rows = stores[name].rows.values()
        columns = {
            n: k for n, k in table["columns"].items() if k != "any"
        }  # of those `test_vectors` compares
        have = [
            (
                r["m:ts_ns"],
                r["m:tx_id"],
                r["m:valid_to_ns"],
                {n: v for n, v in comparable(r).items() if n in columns},
            )
            for r in rows
        ]
        assert sorted(have, key=repr) == sorted(expected_intervals(table, columns), key=repr)
        deletes = {(r["ts_ns"], r["tx_id"]) for r in stores[name].deletes.values()}
        assert deletes == {(h["ts_ns"], h["txId"]) for h in table["history"] if h["row"] is None}


def apply_typed(store: Store, batch: pa.RecordBatch) -> None:
    earliest = min(batch.column("m:ts_ns").to_pylist())
    outcome = history_step(store.state(earliest), pa.Table.from_batches([batch]))
    for delete in outcome.deletes.to_pylist():
        store.deletes[delete["key"], delete["version"]] = delete
    for new in outcome.inserts.to_pylist() + outcome.corrections.to_pylist():
        store.rows[new["m:key"], new["m:version"]] = new
    for end in outcome.ends.to_pylist():
        store.rows[end["m:key"], end["m:version"]]["m:valid_to_ns"] = end["m:valid_to_ns"]


def expected_intervals(table: Row, columns: dict[str, str]) -> list[tuple[int, str, int | None, Row]]:
    """Rows of an expected history with their ends; the history is ordered by key and time."""
    rows = []
    history = table["history"]
    for change, after in zip(history, [*history[1:], None], strict=True):
        if change["row"] is None:
            continue
        end = after["ts_ns"] if after is not None and after["key"] == change["key"] else None
        wire = {name: value for name, value in change["row"].items() if name in columns}
        rows.append((change["ts_ns"], change["txId"], end, expected_row(wire, columns)))
    return rows
