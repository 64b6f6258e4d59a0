"""The vector streams through decode and latest: the expected tables, in any order, cut and repeated."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.dsql.decode import DsqlConfig
from headpond.dsql.versions import decode_versions
from tests.dsql.driver import MemoryLake, comparable, expected_row, spec_of
from tests.kit.support import share_of, vector_json, vector_lines

SMALL = vector_lines("dsql/small.jsonl")
EXPECTED = vector_json("dsql/small.expected.json")
CASES = vector_lines("dsql/cases.jsonl")


def config_of(expected: dict[str, Any], **more: Any) -> DsqlConfig:
    tables = {**expected["tables"], **expected["append_logs"]}
    return DsqlConfig(tables=tuple(spec_of(name, table) for name, table in tables.items()), **more)


def with_any_read(row: dict[str, Any], columns: dict[str, str]) -> dict[str, Any]:
    """Raw JSON text of `any` columns as values, as `expected_row` gives them."""
    return {name: json.loads(v) if columns.get(name, "any") == "any" else v for name, v in row.items()}


def assert_expected(lake: MemoryLake, expected: dict[str, Any]) -> None:
    assert not lake.quarantine
    for name, table in expected["tables"].items():
        columns = table["columns"]
        found = {
            (row["m:ts_ns"], row["m:tx_id"], row["m:key"]): with_any_read(comparable(row), columns)
            for row in lake.rows.get(name, {}).values()
        }
        wanted = [expected_row(row["row"], columns) for row in table["rows"]]
        assert sorted(map(spelled, found.values())) == sorted(map(spelled, wanted))
        assert sorted((ts, tx) for ts, tx, _ in found) == sorted(
            (row["ts_ns"], row["txId"]) for row in table["rows"]
        )
        times, tx_ids, _ = decode_versions(pa.array(lake.tombstones.get(name, {}).values(), pa.binary()))
        deleted = zip(times.to_pylist(), tx_ids.to_pylist(), strict=True)
        assert sorted(deleted) == sorted((row["ts_ns"], row["txId"]) for row in table["deleted"])
    for name, log in expected["append_logs"].items():
        entries = lake.logs[name].values()
        found_log = {
            (row["m:ts_ns"], row["m:tx_id"], row["m:op"], spelled(comparable(row)), row["m:after"] is None)
            for row in entries
        }
        assert found_log == {
            (
                c["ts_ns"],
                c["txId"],
                c["op"],
                spelled(expected_row(c["after"] or {}, log["columns"])),
                c["after"] is None,
            )
            for c in log["changes"]
        }
        assert len(entries) >= len(log["changes"])


def spelled(row: dict[str, Any]) -> str:
    return json.dumps(
        {name: v.hex() if isinstance(v, bytes) else v for name, v in row.items()}, sort_keys=True
    )


def feed_cut(lake: MemoryLake, lines: list[Any], draw: random.Random) -> None:
    """Feed lines in batches of any size, some batches twice."""
    while lines:
        cut = draw.randint(1, len(lines))
        for _ in range(draw.randint(1, 2)):
            lake.feed(lines[:cut])
        lines = lines[cut:]


@pytest.mark.thorough
@settings(max_examples=share_of(12))
@given(seed=st.integers(0, 2**32))
def test_the_small_stream_gives_its_tables_whatever_the_order(seed: int) -> None:
    """Order of lines, cuts into batches, repeated lines and batches change nothing."""
    draw = random.Random(seed)
    lines = SMALL + draw.sample(SMALL, draw.randint(0, 60))
    draw.shuffle(lines)
    lake = MemoryLake(config_of(EXPECTED, cluster=EXPECTED["cluster"]))
    feed_cut(lake, lines, draw)
    assert_expected(lake, EXPECTED)


def test_the_small_stream_in_its_order() -> None:
    """Lines as they arrived, in one batch; every row is accounted for."""
    lake = MemoryLake(config_of(EXPECTED))
    decoded = lake.feed(SMALL)
    assert_expected(lake, EXPECTED)
    assert decoded.counters["records"] == decoded.counters["changes"] == len(SMALL)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_each_case(case: dict[str, Any]) -> None:
    """Rows, logs, immediate quarantine; chunked changes only wait, `test_assemble` goes on."""
    lake = MemoryLake(
        DsqlConfig(tables=tuple(spec_of(name, table) for name, table in case["tables"].items()))
    )
    for line in case["records"]:
        lake.feed([line])
    expect = case["expect"]
    chunked = case["name"].startswith("chunk")
    found = sorted((row["sequence_number"], row["reason"]) for row in lake.quarantine.values())
    wanted = sorted((row["sequenceNumber"], row["reason"]) for row in expect["quarantine"])
    assert found == ([] if chunked else wanted)
    assert bool(lake.pending) == chunked
    if chunked:
        return
    for name, rows in expect.get("rows", {}).items():
        columns = case["tables"][name]["columns"]
        got = [spelled(comparable(row)) for row in lake.rows.get(name, {}).values()]
        assert sorted(got) == sorted(spelled(expected_row(row, columns)) for row in rows)
    for name, entries in expect.get("log", {}).items():
        columns = case["tables"][name]["columns"]
        got_log = [(r["m:op"], spelled(comparable(r)), r["m:ts_ns"]) for r in lake.logs[name].values()]
        assert got_log == [
            (e["op"], spelled(expected_row(e["after"] or {}, columns)), e["ts_ns"]) for e in entries
        ]
