"""Schema changes in a Delta table: written once, read again, the same from two writers."""

from __future__ import annotations

import base64
import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from headpond.dsql.config import TableSpec
from headpond.dsql.decode import DsqlConfig
from headpond.lake.delta import DeltaFile
from headpond.lake.state.rows import SchemaChanges
from headpond.lake.state.schema_changes import MINUTE_NS, SCHEMA_CHANGES_SCHEMA
from tests.lake.lakes import decoded

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

SPEC = TableSpec(name="it's.t", schema="public", table="t", keys=("id",), columns={"id": "bigint"})
CONFIG = DsqlConfig(tables=(SPEC, TableSpec(name="public.u", schema="public", table="u")))


def batch(*changes: tuple[int, dict[str, Any]], table: str = "t") -> dict[str, pa.Table]:
    lines = []
    for ts_ns, after in changes:
        source = {"version": "1.0", "ts_ns": ts_ns, "txId": f"tx{ts_ns}", "schema": "public", "table": table}
        record = json.dumps({"type": "full", "op": "c", "source": source, "after": after})
        lines.append(json.dumps({"data": base64.b64encode(record.encode()).decode()}).encode())
    return decoded(CONFIG, lines).tables


def opened(folder: Path) -> SchemaChanges:
    changes = SchemaChanges(DeltaFile(str(folder / "schema_changes")))
    changes.declare(SPEC)
    return changes


def rows(store: SchemaChanges) -> list[dict[str, Any]]:
    return sorted(store.read().to_pylist(), key=lambda row: (row["table"], row["column"], row["value_type"]))


def said(store: SchemaChanges) -> list[tuple[Any, ...]]:
    names = ("table", "column", "change", "value_type", "first_ts_ns", "tx_id")
    return [tuple(row[name] for name in names) for row in rows(store)]


def test_each_change_is_a_row(tmp_path: Path) -> None:
    """Per table, with hostile names, read again by whoever opens the table."""
    store = opened(tmp_path)
    assert (store.record({}), store.read().num_rows) == (0, 0)
    store.record(batch((1, {"id": 1, "a.b": 1})))
    store.record(batch((MINUTE_NS, {"id": 1, "c'd": "x"})) | batch((7, {"v": None}), table="u"))
    assert said(opened(tmp_path)) == [
        ("it's.t", "", "table", "table", 1, "tx1"),
        ("it's.t", "a.b", "disappeared", "none", 0, None),
        ("it's.t", "a.b", "initial", "number", 1, "tx1"),
        ("it's.t", "c'd", "added", "string", MINUTE_NS, f"tx{MINUTE_NS}"),
        ("it's.t", "id", "initial", "number", 1, "tx1"),
        ("public.u", "", "table", "table", 7, "tx7"),
        ("public.u", "v", "initial", "null", 7, "tx7"),
    ]
    assert store.file.schema().names == SCHEMA_CHANGES_SCHEMA.names


def test_a_column_that_comes_back_is_not_gone(tmp_path: Path) -> None:
    """The row that said so is deleted."""
    store = opened(tmp_path)
    store.record(batch((1, {"id": 1, "v": 1}), (MINUTE_NS, {"id": 1})))
    store.record(batch((MINUTE_NS + 1, {"id": 1, "v": 1})))
    assert [row["change"] for row in rows(store)] == ["table", "initial", "initial"]


def test_what_is_known_is_not_written_again(tmp_path: Path) -> None:
    """Neither by the same process nor by the next one; a later commit within the minute is nothing new."""
    store = opened(tmp_path)
    changes = batch((1, {"id": 1, "v": 1}))
    assert store.record(changes) == 3
    version = store.file.version()
    assert store.record(batch((2, {"id": 2, "v": 5}))) == 0
    assert opened(tmp_path).record(changes) == 0
    assert store.file.version() == version


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_two_writers_and_any_order_end_alike(seed: int, tmp_path: Path) -> None:
    """Each knows only what it read last; a second look of both mends labels that one wrote too early."""
    draw = random.Random(seed)
    values: list[Any] = [1, "s", None, [], True]
    changes = [
        (n * MINUTE_NS // 3, {"id": n, "v": draw.choice(values), "w": draw.choice(values)}) for n in range(12)
    ]
    at_once = opened(tmp_path / "once")
    at_once.record(batch(*changes))
    draw.shuffle(changes)
    writers = [opened(tmp_path / "two"), opened(tmp_path / "two")]
    for number, change in enumerate(changes):
        writers[number % 2].record(batch(change))
    assert rows(writers[0]) == rows(at_once)


def test_a_writer_that_read_too_early_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its merge keeps the other's earlier first and later last commit."""
    first, second = opened(tmp_path), opened(tmp_path)
    second.record(batch((5 * MINUTE_NS, {"id": 1, "v": 1})))
    stale = second.read()
    first.record(batch((1, {"id": 1, "v": 1}), (9 * MINUTE_NS, {"id": 1, "v": 1})))
    monkeypatch.setattr(second, "of_tables", lambda _: stale)  # as if read before the other wrote
    second.record(batch((4 * MINUTE_NS, {"id": 1, "v": 1})))
    found = rows(first)
    assert [(row["first_ts_ns"], row["tx_id"], row["last_seen_ns"]) for row in found] == [
        (1, "tx1", 9 * MINUTE_NS)
    ] * 3
