"""Raw logs of tables that are not configured: made on sight, whatever they are called."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from headpond.lake.apply import apply_batch
from headpond.lake.naming import MAX_FOLDER_BYTES, log_folder
from headpond.lake.reports import lake_summary
from tests.lake.lakes import decoded, lake_in, watched

if TYPE_CHECKING:
    from pathlib import Path

    from headpond.lake.tables import Lake

OPEN = 'unknown_tables = "log"\n'
ORDERS = '[tables."public.orders"]\nkeys = ["id"]\ncolumns = { id = "bigint" }\n'


def change(number: int, table: str, after: Any = None, *, schema: str = "public", **more: Any) -> bytes:
    """One archive line; commit times follow the numbers."""
    source = {"version": "1.0", "ts_ns": number, "txId": "t", "schema": schema, "table": table}
    record = {"type": "full", "op": "c", "source": source, "after": after} | more
    data = base64.b64encode(json.dumps(record).encode()).decode()
    return json.dumps({"shardId": "s", "sequenceNumber": str(number), "data": data}).encode()


def entries(lake: Lake, schema: str, table: str) -> list[tuple[Any, ...]]:
    found = lake.extras.unknown.find(schema, table)
    assert found is not None
    rows = found.typed.file.read(["_ts_ns", "_op", "_before", "_after"]).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def test_a_table_gets_its_log_on_sight_and_keeps_it_over_restarts(tmp_path: Path) -> None:
    """Several unknown tables, two batches, a batch twice, another process: every change once, images raw."""
    lake, config = lake_in(tmp_path, OPEN + ORDERS)
    first = decoded(
        config,
        [
            change(1, "a", {"id": 1, "v": 1.50}),
            change(2, "orders", {"id": 7}),
            change(3, "b", {"x": None}),
            change(4, "a", None, op="d", before={"id": 1}),
        ],
        parts=2,
    )
    applied = apply_batch(lake, first)
    assert applied.tables["unknown:public.a"] == {"appended": 2, "duplicates": 0}
    assert apply_batch(lake, first).tables["unknown:public.a"] == {"appended": 0, "duplicates": 2}
    lake, config = lake_in(tmp_path, OPEN + ORDERS)
    apply_batch(lake, decoded(config, [change(5, "a", {"id": 2}), change(6, "c", {})], first_line=5))
    assert entries(lake, "public", "a") == [
        (1, "c", None, '{"id": 1, "v": 1.5}'),
        (4, "d", '{"id": 1}', None),
        (5, "c", None, '{"id": 2}'),
    ]
    assert entries(lake, "public", "b") == [(3, "c", None, '{"x": null}')]
    assert lake.tables["public.orders"].typed.file.count() == 1
    assert lake.quarantine.count() == 0
    assert set(lake.extras.schema_changes.read()["table"].to_pylist()) == {"public.orders"}


HOSTILE = [
    ("public", "../../etc"),
    ("..", ".."),
    ("/", "/etc/passwd"),
    ("public", "nul\0name"),
    ("_headpond", "quarantine"),
    ("public", "_delta_log"),
    ("public", "x" * 255),
    ("s" * 255, "%" * 255),
    ("public", "Orders"),
    ("public", "ORDERS"),
    ("public", "orders"),
    ("a.b", "c"),
    ("a", "b.c"),
    ("public", "50%"),
    ("public", "50%25"),
    ("public", "caf\u00e9"),
    ("public", "cafe\u0301"),
    ("", ""),
    ("public", "'; DROP TABLE x; --"),
    ("unknown", "con"),
]


@pytest.mark.slow
def test_nothing_leaves_the_lake_whatever_a_table_is_called(tmp_path: Path) -> None:
    """Every hostile name gets a folder of its own, told apart on any file system, and nothing else."""
    (tmp_path / "inside").mkdir()
    lake, config = lake_in(tmp_path / "inside", OPEN)
    lines = [change(n, table, {"n": n}, schema=schema) for n, (schema, table) in enumerate(HOSTILE, start=1)]
    apply_batch(lake, decoded(config, lines))
    assert [path.name for path in tmp_path.iterdir()] == ["inside"]
    assert [path.name for path in (tmp_path / "inside").iterdir()] == ["lake"]
    assert [path.name for path in (tmp_path / "inside" / "lake").iterdir()] == ["_headpond"]
    folders = [path.name for path in (tmp_path / "inside/lake/_headpond/unknown").iterdir()]
    assert len({name.casefold() for name in folders}) == len(folders) == len(HOSTILE)
    lake, _ = lake_in(tmp_path / "inside", OPEN)
    for n, (schema, table) in enumerate(HOSTILE, start=1):
        assert entries(lake, schema, table) == [(n, "c", None, json.dumps({"n": n}))]
    assert (lake.quarantine.count(), lake_summary(lake)["tables"]) == (0, {})


def test_a_folder_is_a_name_that_every_file_system_takes() -> None:
    """Short enough, no hidden one, no separator, and the same one each time."""
    for schema, table in HOSTILE:
        folder = log_folder(schema, table)
        assert folder == log_folder(schema, table)
        assert len(folder.encode()) <= MAX_FOLDER_BYTES
        assert folder[0] not in "._"
        assert not set(folder) & set("/\\\0:*?\"<>|' ")


def test_more_tables_than_the_bound_go_to_quarantine_and_come_back(tmp_path: Path) -> None:
    """A stream that names ever new tables fills no disk with folders; the bytes are kept."""
    lake, config = lake_in(tmp_path, 'unknown_tables = "log"\nmax_unknown_tables = 2\n')
    lines = [change(n, f"t{n}", {"n": n}) for n in range(1, 5)]
    applied = apply_batch(lake, decoded(config, lines))
    assert applied.quarantined == {"unknown_table": 2}
    assert sorted(lake.extras.unknown.logs) == ["unknown:public.t1", "unknown:public.t2"]
    rows = lake.quarantine.read(["data", "detail"]).to_pylist()
    assert sorted(json.loads(row["data"])["after"]["n"] for row in rows) == [3, 4]
    assert "there are 2 logs of such tables already" in rows[0]["detail"]
    # Known ones go on, those beyond stay out.
    applied = apply_batch(lake, decoded(config, [change(9, "t1", {}), change(10, "t4", {})]))
    assert applied.tables == {"unknown:public.t1": {"appended": 1, "duplicates": 0}}
    assert applied.quarantined == {"unknown_table": 1}


def test_two_writers_agree_on_the_logs(tmp_path: Path) -> None:
    """Each of them makes what the other has not made yet; nothing is lost or twice."""
    one, config = lake_in(tmp_path, OPEN)
    other, _ = lake_in(tmp_path, OPEN)
    assert one.extras.unknown.logs == other.extras.unknown.logs == {}
    apply_batch(one, decoded(config, [change(1, "a", {}), change(2, "b", {})]))
    apply_batch(other, decoded(config, [change(2, "b", {}), change(3, "c", {})]))
    apply_batch(one, decoded(config, [change(3, "c", {}), change(4, "a", {})]))
    counts = {name: log.typed.file.count() for name, log in one.extras.unknown.logs.items()}
    assert counts == {"unknown:public.a": 2, "unknown:public.b": 1, "unknown:public.c": 1}
    assert one.extras.unknown.index.count() == 3


class Crash(Exception):
    """The process dies here."""


@pytest.mark.parametrize("stage", ["logs of unknown tables", "quarantine", "table unknown:public.b"])
def test_a_crash_between_two_writes_is_healed_by_the_repeat(stage: str, tmp_path: Path) -> None:
    """Index written or not, logs made or not: the repeat finishes."""
    lake, config = lake_in(tmp_path, OPEN)
    batch = decoded(config, [change(1, "a", {}), change(2, "b", {})])

    def die(name: str) -> None:
        if name == stage:
            raise Crash

    with pytest.raises(Crash):
        apply_batch(watched(lake, die), batch)
    lake, _ = lake_in(tmp_path, OPEN)
    apply_batch(lake, batch)
    assert [entries(lake, "public", name) for name in "ab"] == [
        [(1, "c", None, "{}")],
        [(2, "c", None, "{}")],
    ]


def test_a_log_that_the_index_names_is_made_when_a_crash_came_before(tmp_path: Path) -> None:
    """The index stands, the log does not."""
    lake, config = lake_in(tmp_path, OPEN)
    batch = decoded(config, [change(1, "a", {})])
    lake.extras.unknown.admit(batch.tables)
    (log,) = (tmp_path / "lake/_headpond/unknown/public.a/_delta_log").iterdir()
    log.unlink()
    lake, _ = lake_in(tmp_path, OPEN)
    apply_batch(lake, batch)
    assert entries(lake, "public", "a") == [(1, "c", None, "{}")]


def test_status_tells_them_and_what_they_are_configured_as_meanwhile(tmp_path: Path) -> None:
    """The summary has their rows and, in a run, what came."""
    lake, config = lake_in(tmp_path, OPEN)
    applied = apply_batch(lake, decoded(config, [change(1, "orders", {}), change(2, "b", {})]))
    told = lake_summary(lake, applied)["unknown_tables"]
    assert {name: (t["rows"], t["appended"], t["configured_as"]) for name, t in told.items()} == {
        "public.b": (1, 1, None),
        "public.orders": (1, 1, None),
    }
    lake, _ = lake_in(tmp_path, OPEN + ORDERS)
    told = lake_summary(lake)["unknown_tables"]
    assert told["public.orders"]["configured_as"] == "public.orders"
    assert told["public.orders"]["path"].endswith("/_headpond/unknown/public.orders")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["public.my table", "_headpond", "../../out", "a%20b", "50% off", "t~20"])
def test_a_configured_table_may_be_called_anything(name: str, tmp_path: Path) -> None:
    """Its folder lies in the lake, and what was written is read back from it."""
    text = ORDERS.replace("public.orders", name) + 'schema = "public"\ntable = "orders"\n'
    for number in (1, 2):
        lake, config = lake_in(tmp_path / "in", text)
        apply_batch(lake, decoded(config, [change(number, "orders", {"id": number})]))
    assert lake.typed[name].file.count() == 2
    assert DeltaTable(lake.place_of(name)).count() == 2
    assert len(list((tmp_path / "in" / "lake").iterdir())) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
