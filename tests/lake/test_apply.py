"""A lake after a stream of changes: the same, whatever the order, the cuts, the repeats and the crashes."""

from __future__ import annotations

import base64
import json
import random
import tempfile
from datetime import UTC, datetime, timedelta
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.core.errors import ConfigurationError
from headpond.lake.apply import Applied, Chunks, apply_batch
from headpond.lake.reports import lake_summary
from tests.kit.expected_tables import differences
from tests.kit.support import share_of, vector_bytes, vector_json, vector_lines
from tests.lake.lakes import decoded, lake_in, watched

if TYPE_CHECKING:
    from headpond.lake.tables import Lake

SMALL = vector_bytes("dsql/small.jsonl").splitlines()
EXPECTED = vector_json("dsql/small.expected.json")


def tables_of(expected: dict[str, Any]) -> str:
    """The `[tables]` part of a pipeline file for expected tables."""
    logs = {name: log | {"keys": []} for name, log in expected["append_logs"].items()}
    return tables_text(expected["tables"] | logs)


def tables_of_case(case: dict[str, Any]) -> str:
    """The `[tables]` part of a pipeline file for one case."""
    return tables_text(case["tables"])


def tables_text(tables: dict[str, Any]) -> str:
    text = ""
    for name, table in tables.items():
        columns = ", ".join(f"{json.dumps(c)} = {json.dumps(kind)}" for c, kind in table["columns"].items())
        text += f"[tables.{json.dumps(name)}]\nkeys = {json.dumps(table['keys'])}\n"
        text += f"columns = {{ {columns} }}\n"
    return text


TABLES = tables_of(EXPECTED)


def small_lake(folder: Path) -> tuple[Lake, Any]:
    return lake_in(folder, TABLES)


def tombstones(lake: Lake) -> dict[str, int]:
    return {table: count for table, count in lake.tombstones.counts().items() if count}


EXPECTED_TOMBSTONES = {
    name: len(table["deleted"]) for name, table in EXPECTED["tables"].items() if table["deleted"]
}


@pytest.mark.thorough
@settings(max_examples=share_of(12))
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 3))
def test_the_tables_do_not_depend_on_order_cuts_or_repeats(seed: int, batches: int, partitions: int) -> None:
    """Lines permuted, some of them twice, cut anywhere, a batch applied twice: the expected tables."""
    draw = random.Random(seed)
    lines = SMALL + draw.sample(SMALL, 20)
    draw.shuffle(lines)
    cuts = [*sorted(draw.sample(range(1, len(lines)), batches - 1)), len(lines)]
    with tempfile.TemporaryDirectory() as folder:
        lake, config = small_lake(Path(folder))
        start = 0
        for end in cuts:
            batch = decoded(config, lines[start:end], parts=partitions)
            apply_batch(lake, batch)
            if draw.random() < 0.3:
                again = apply_batch(lake, batch)
                assert all(
                    not figures["upserts"] and not figures["appended"] for figures in again.tables.values()
                )
            start = end
        assert differences(lake, EXPECTED) == []
        assert tombstones(lake) == EXPECTED_TOMBSTONES


class Crash(Exception):
    """The process dies here."""


STAGES = ["quarantine", "pending", "tombstones", *(f"table {name}" for name in EXPECTED["tables"])]
STAGES += [f"table {name}" for name in EXPECTED["append_logs"]] + ["tombstones of keys that live again"]


@pytest.mark.thorough
@pytest.mark.parametrize("stage", STAGES)
def test_a_crash_between_two_writes_is_healed_by_the_repeat(stage: str, tmp_path: Path) -> None:
    """Whatever part of a batch was written, applying it again gives the undisturbed result."""
    lake, config = small_lake(tmp_path)
    for start in range(0, len(SMALL), 77):
        batch = decoded(config, SMALL[start : start + 77])

        def die(name: str) -> None:
            if name == stage:
                raise Crash(name)

        with pytest.raises(Crash):
            apply_batch(watched(lake, die), batch)
        lake, config = small_lake(tmp_path)
        apply_batch(lake, batch)
    assert differences(lake, EXPECTED) == []
    assert tombstones(lake) == EXPECTED_TOMBSTONES


@pytest.mark.slow
def test_every_change_is_counted_once(tmp_path: Path) -> None:
    """The figures of the tables add up to the changes delivered."""
    lake, config = small_lake(tmp_path)
    applied = Applied()
    for start in range(0, len(SMALL), 40):
        applied.add(apply_batch(lake, decoded(config, SMALL[start : start + 40])))
    summary = lake_summary(lake, applied)
    figures = [
        v for t in summary["tables"].values() for n, v in t.items() if n not in {"rows", "path", "keep"}
    ]
    assert sum(figures) == len(SMALL) == applied.counters["changes"]
    assert summary["batches"] == 4
    assert summary["quarantined"] == {}


@pytest.mark.slow
def test_many_batches_hold_no_more_memory_than_few(tmp_path: Path) -> None:
    """Where tombstones are there and no more are added, too."""
    lake, config = small_lake(tmp_path)
    apply_batch(lake, decoded(config, SMALL))
    assert tombstones(lake)
    upserts = [line for line in SMALL if b'"op":"d"' not in line and b'"op": "d"' not in line]
    held = []
    for start in range(24):
        apply_batch(lake, decoded(config, upserts[start : start + 40]))
        held.append(pa.total_allocated_bytes())
    assert max(held[12:]) < max(held[:12]) + 2_000


@pytest.mark.parametrize("case", vector_lines("dsql/cases.jsonl"), ids=lambda case: case["name"])
def test_each_case_ends_as_it_should(case: dict[str, Any], tmp_path: Path) -> None:
    """Rows, quarantine and what stays pending, for every case that needs no reassembly."""
    lake, config = lake_in(tmp_path, tables_of_case(case))
    lines = [json.dumps(record).encode() for record in case["records"]]
    for line in lines:
        apply_batch(lake, decoded(config, [line]))
    chunked = {r["sequenceNumber"] for r in case["records"] if _kind(r) in {"chunked", "fragment"}}
    assert set(lake.pending.read(["sequence_number"])["sequence_number"].to_pylist()) == chunked
    if chunked:
        return  # they wait, none of them lost
    quarantine = lake.quarantine.read(["sequence_number", "reason"]).to_pylist()
    refused = case["expect"]["quarantine"]
    assert quarantine == [{"sequence_number": q["sequenceNumber"], "reason": q["reason"]} for q in refused]
    for name, rows in case["expect"].get("rows", {}).items():
        columns = list(case["tables"][name]["columns"])
        have = lake.tables[name].typed.file.read(columns).to_pylist()
        full = [{column: row.get(column) for column in columns} for row in rows]
        assert sorted(map(_shown, have)) == sorted(map(_shown, full))
    for name, entries in case["expect"].get("log", {}).items():
        have = lake.tables[name].typed.file.read(["_op", "_ts_ns"]).to_pylist()
        assert sorted(map(_shown, have)) == sorted(
            _shown({"_op": entry["op"], "_ts_ns": entry["ts_ns"]}) for entry in entries
        )


def _shown(row: dict[str, Any]) -> str:
    return json.dumps({k: v if isinstance(v, int) else None if v is None else str(v) for k, v in row.items()})


def _kind(record: dict[str, Any]) -> Any:
    try:
        return json.loads(base64.b64decode(record["data"])).get("type")
    except ValueError:
        return None


def change(
    number: int, after: dict[str, Any], *, ts_ns: int | None = None, op: str = "c", tx_id: str = "tx"
) -> bytes:
    """One archive line with a change of public.t."""
    source = {"version": "1.0", "ts_ns": ts_ns or number, "txId": tx_id, "schema": "public", "table": "t"}
    record = {"type": "full", "op": op, "source": source, "after": after}
    if op == "d":
        record |= {"before": after, "after": None}
    data = base64.b64encode(json.dumps(record).encode()).decode()
    return json.dumps(
        {"shardId": "shardId-000000000000", "sequenceNumber": str(number), "data": data}
    ).encode()


ONE_TABLE = '[tables."public.t"]\nkeys = ["id"]\ncolumns = { id = "bigint" }\n'


def test_a_declared_column_may_be_left_out(tmp_path: Path) -> None:
    """As where [defaults] leave out what an entry declares: the table is made without it, and goes on so."""
    tables = ONE_TABLE.replace("}", ', v = "text" }') + 'except_columns = ["v"]\n'
    for number in (1, 2):
        lake, config = lake_in(tmp_path, tables)
        apply_batch(lake, decoded(config, [change(number, {"id": number, "v": "x", "w": 1})]))
    table = DeltaTable(lake.place_of("public.t")).to_pyarrow_table()
    assert sorted(table["id"].to_pylist()) == [1, 2]
    assert [name for name in table.column_names if not name.startswith("_")] == ["id", "w"]
    lake, config = lake_in(tmp_path, tables.replace('["v"]', "[]"))
    assert "v" in DeltaTable(lake.place_of("public.t")).to_pyarrow_table().column_names


def test_columns_appear_and_are_null_where_a_row_lacks_them(tmp_path: Path) -> None:
    """A column seen first in the data is added; an upsert without it sets it to NULL."""
    lake, config = lake_in(tmp_path, ONE_TABLE)
    apply_batch(lake, decoded(config, [change(1, {"id": 1, "new": "x"}), change(2, {"id": 2})]))
    apply_batch(lake, decoded(config, [change(3, {"id": 1, "other": 1.50})]))
    rows = DeltaTable(lake.place_of("public.t")).to_pyarrow_table().to_pylist()
    seen = {row["id"]: (row["new"], row["other"]) for row in rows}
    assert seen == {1: (None, "1.5"), 2: (None, None)}


def test_hostile_column_names_keep_their_values(tmp_path: Path) -> None:
    """Names that Delta refuses, our own names and names that differ in case are all columns of their own."""
    names = ["a.b", "a b", "a`b", "a,b=c", "_ts_ns", "v", "V", "%", "ü", 'q"q', "q'q", "m:key", "c:x"]
    lake, config = lake_in(tmp_path, ONE_TABLE)
    for number in (1, 2):
        after = {"id": 1} | {name: number * 100 + i for i, name in enumerate(names)}
        apply_batch(lake, decoded(config, [change(number, after)]))
    typed = lake.typed["public.t"]
    row = typed.file.read().to_pylist()[0]
    assert [row[typed.column(name)] for name in names] == [str(200 + i) for i in range(len(names))]
    assert row["_ts_ns"] == 2
    again, _ = lake_in(tmp_path, ONE_TABLE)
    assert again.typed["public.t"].renamed()["V"] == "V%%1"


def test_names_that_clash_in_one_batch_do_not_depend_on_its_order(tmp_path: Path) -> None:
    """Whichever record comes first."""
    rows = [{"id": 1, "aB": 1}, {"id": 2, "Ab": 2}, {"id": 3, "ab": 3}]
    named = []
    for number, order in enumerate(((0, 1, 2), (2, 1, 0))):
        lake, config = lake_in(tmp_path / str(number), ONE_TABLE)
        apply_batch(lake, decoded(config, [change(at + 1, rows[at]) for at in order]))
        named.append({name: lake.typed["public.t"].column(name) for name in ("aB", "Ab", "ab")})
    assert named[0] == named[1]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["", "keep = 'history'", "keep = 'log'", "deletes = 'soft'"])
@pytest.mark.parametrize("marks", ["", "\ndeletion_vectors = true"])
def test_names_that_clash_over_batches_are_those_of_any_order(tmp_path: Path, form: str, marks: str) -> None:
    """A later column may take the name of an earlier one: the table is written again, with all its rows."""
    rows = [{"id": 1, "aB": 1}, {"id": 2, "Ab": 2}, {"id": 3, "ab": 3}]
    found = []
    for number, order in enumerate(permutations(range(3))):
        lake, config = lake_in(tmp_path / str(number), f"{ONE_TABLE}\n{form}{marks}")
        for at in (*order, order[0]):
            apply_batch(lake, decoded(config, [change(at + 1, rows[at])]))
        lake, config = lake_in(tmp_path / str(number), f"{ONE_TABLE}\n{form}{marks}")
        apply_batch(lake, decoded(config, [change(9, {"id": 4, "aB": 4})]))
        table = lake.typed["public.t"].file.read()
        found.append([{k: row[k] for k in sorted(row)} for row in sorted(table.to_pylist(), key=str)])
    assert all(sorted(each, key=str) == sorted(found[0], key=str) for each in found)
    if not form:
        assert {name for name in found[0][0] if not name.startswith("_")} == {"id", "ab", "Ab%%1", "aB%%2"}


def test_a_declared_name_stays_whatever_comes(tmp_path: Path) -> None:
    """What is declared comes first, with capitals too."""
    lake, config = lake_in(tmp_path, ONE_TABLE.replace("}", ', "aB" = "integer" }'))
    apply_batch(lake, decoded(config, [change(1, {"id": 1, "aB": 1})]))
    apply_batch(lake, decoded(config, [change(2, {"id": 2, "ab": 2})]))
    row = lake.typed["public.t"].file.read(["aB", "ab%%0"], "id = 2").to_pylist()
    assert row == [{"aB": None, "ab%%0": "2"}]


def test_whoever_holds_a_table_whose_columns_are_renamed_is_refused(tmp_path: Path) -> None:
    """Rows decided on for the old names are not written under the new ones."""
    lake, config = lake_in(tmp_path, ONE_TABLE)
    apply_batch(lake, decoded(config, [change(1, {"id": 1, "aB": 1})]))
    other, _ = lake_in(tmp_path, ONE_TABLE)
    apply_batch(lake, decoded(config, [change(2, {"id": 2, "ab": 2})]))
    with pytest.raises(ConfigurationError, match="was rebuilt meanwhile"):
        apply_batch(other, decoded(config, [change(3, {"id": 3, "aB": 3})]))


def test_a_table_of_another_type_is_refused_with_the_fact(tmp_path: Path) -> None:
    """A configuration that contradicts the table names the column, both types and what to do."""
    lake_in(tmp_path, ONE_TABLE)
    with pytest.raises(ConfigurationError, match=r'made with id = "bigint", .* says id = "text"'):
        lake_in(tmp_path, ONE_TABLE.replace("bigint", "text"))


def test_a_declared_column_is_added_to_an_existing_table(tmp_path: Path) -> None:
    """Declaring one more column widens the table at the next start."""
    lake_in(tmp_path, ONE_TABLE)
    lake, _ = lake_in(tmp_path, ONE_TABLE.replace("}", ', "unit price" = "numeric(5,2)" }'))
    assert lake.typed["public.t"].file.schema().field("unit%20price").type == pa.decimal128(5, 2)


def test_an_upsert_older_than_a_dropped_tombstone_is_quarantined(tmp_path: Path) -> None:
    """Where a tombstone may have stopped a change, the change is not applied and not lost."""
    lake, config = lake_in(tmp_path, ONE_TABLE)
    day = 86_400 * 10**9
    apply_batch(lake, decoded(config, [change(1, {"id": 1}, ts_ns=day, op="d")]))
    apply_batch(lake, decoded(config, [change(2, {"id": 2}, ts_ns=9 * day)]))
    assert lake.retire_tombstones(7 * 86_400 * 1000) == 1
    late, newer = change(3, {"id": 1}, ts_ns=day - 1), change(4, {"id": 3}, ts_ns=day + 1)
    applied = apply_batch(lake, decoded(config, [late, newer]))
    assert applied.quarantined == {"too_late": 1}
    assert sorted(lake.tables["public.t"].typed.file.read(["id"])["id"].to_pylist()) == [2, 3]
    kept = lake.quarantine.read(["sequence_number", "data"]).to_pylist()
    assert [(row["sequence_number"], json.loads(row["data"])["after"]) for row in kept] == [("3", {"id": 1})]


@pytest.mark.slow
def test_a_delete_that_another_writer_applies_meanwhile_hits_its_row(tmp_path: Path) -> None:
    """Both batches were decided on an empty table; the older upsert is written last and does not stay."""
    lake, config = lake_in(tmp_path, ONE_TABLE)
    other, _ = lake_in(tmp_path, ONE_TABLE)
    apply_batch(lake, decoded(config, [change(9, {"id": 9}, ts_ns=1, op="d")]))

    def interfere(stage: str) -> None:
        if stage == "table public.t":
            apply_batch(other, decoded(config, [change(2, {"id": 1}, ts_ns=20, op="d")]))

    apply_batch(watched(lake, interfere), decoded(config, [change(1, {"id": 1}, ts_ns=10)]))
    assert lake.tables["public.t"].typed.file.count() == 0
    assert lake.tombstones.counts() == {"public.t": 2}


def test_keys_of_many_rows_are_found_by_their_range(tmp_path: Path) -> None:
    """More keys in a batch than a query names each are looked up all the same."""
    lake, config = lake_in(tmp_path, ONE_TABLE)
    many = range(1, 1001)
    apply_batch(lake, decoded(config, [change(n, {"id": n, "v": "old"}, ts_ns=10) for n in many]))
    applied = apply_batch(
        lake, decoded(config, [change(n, {"id": n, "v": "new"}, ts_ns=5 + n % 2 * 10) for n in many])
    )
    assert (applied.tables["public.t"]["upserts"], applied.tables["public.t"]["stale"]) == (500, 500)
    rows = lake.tables["public.t"].typed.file.read(["id", "v"]).to_pylist()
    assert {row["id"] for row in rows if row["v"] == '"new"'} == set(range(1, 1001, 2))
    assert len(rows) == 1000


STREAM = vector_bytes("dsql/stream.jsonl").splitlines()
STREAM_EXPECTED = vector_json("dsql/stream.expected.json")


def with_chunks(config: Any, **more: Any) -> Chunks:
    return Chunks(config, **more)


@pytest.mark.thorough
@settings(max_examples=share_of(2))
@given(st.integers(0, 2**32), st.integers(2, 6))
def test_chunked_changes_become_whole_whatever_the_order(seed: int, batches: int) -> None:
    """The whole stream, its fragments and main records scattered over batches, some of them applied twice."""
    draw = random.Random(seed)
    lines = STREAM + draw.sample(STREAM, 100)
    draw.shuffle(lines)
    with tempfile.TemporaryDirectory() as folder:
        lake, config = lake_in(Path(folder), tables_of(STREAM_EXPECTED))
        size = -(-len(lines) // batches)
        for start in range(0, len(lines), size):
            batch = decoded(config, lines[start : start + size])
            apply_batch(lake, batch, chunks=with_chunks(config, max_bytes=20_000))
            if draw.random() < 0.3:
                apply_batch(lake, batch, chunks=with_chunks(config))
        assert differences(lake, STREAM_EXPECTED) == []
        assert lake.pending.count() == 0
        assert lake.quarantine.count() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "stage", ["pending", "table public.t", "chunks of whole changes", "chunks that go", "after"]
)
@pytest.mark.parametrize("first", [0, 1, -1], ids=["none waits", "one waits", "one lacks"])
def test_a_crash_while_chunks_become_whole_loses_nothing(stage: str, first: int, tmp_path: Path) -> None:
    """Whatever write of the completing batch was the last, the repeat gives the row once."""
    case = next(c for c in vector_lines("dsql/cases.jsonl") if c["name"] == "chunked_in_order")
    lake, config = lake_in(tmp_path, tables_of_case(case))
    lines = [json.dumps(record).encode() for record in case["records"]]
    apply_batch(lake, decoded(config, lines[:first]), chunks=with_chunks(config))
    assert lake.pending.count() == len(lines[:first])

    def die(name: str) -> None:
        if name == stage:
            raise Crash(name)

    last = decoded(config, lines[first:])
    if stage == "after":
        apply_batch(lake, last, chunks=with_chunks(config))
    else:
        with pytest.raises(Crash):
            apply_batch(watched(lake, die), last, chunks=with_chunks(config))
    lake, config = lake_in(tmp_path, tables_of_case(case))
    apply_batch(lake, last, chunks=with_chunks(config))
    assert lake.tables["public.t"].typed.file.count() == 1
    assert (lake.pending.count(), lake.quarantine.count()) == (0, 0)
    assert lake.pending.read(["kind", "status"]).to_pylist() == [{"kind": "chunked", "status": "finished"}]


def test_groups_that_wait_too_long_are_set_aside_and_can_still_complete(tmp_path: Path) -> None:
    """The time-out quarantines the members with the missing indices; fed in again they make the change."""
    case = next(c for c in vector_lines("dsql/cases.jsonl") if c["name"] == "chunked_in_order")
    lake, config = lake_in(tmp_path, tables_of_case(case))
    lines = [json.dumps(record).encode() for record in case["records"]]
    arrival = datetime.fromtimestamp(case["records"][0]["approximateArrivalTimestamp"] / 1000, UTC)
    apply_batch(lake, decoded(config, lines[:2]), chunks=with_chunks(config, now=arrival))
    apply_batch(lake, decoded(config, []), chunks=with_chunks(config, now=arrival + timedelta(minutes=59)))
    assert (lake.pending.count(), lake.quarantine.count()) == (2, 0)
    apply_batch(lake, decoded(config, []), chunks=with_chunks(config, now=arrival + timedelta(hours=2)))
    assert lake.pending.count() == 0
    assert set(lake.quarantine.counts_by("reason")) == {"incomplete_chunks"}
    apply_batch(lake, decoded(config, lines), chunks=with_chunks(config, now=arrival + timedelta(hours=2)))
    assert lake.tables["public.t"].typed.file.count() == 1
