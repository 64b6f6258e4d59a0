"""How fresh tables are: by what batches know and by the statistics of files, never by reading rows."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from headpond.core.formats import add_newest
from headpond.dsql.batch import decode_batch, scalar_row
from headpond.lake.apply import apply_batch
from headpond.lake.delta import DeltaFile
from headpond.lake.reports import freshness
from tests.lake.lakes import decoded, lake_in
from tests.lake.test_pending import START, line

if TYPE_CHECKING:
    from pathlib import Path

    from headpond.lake.apply import Applied

T = "public.t"
TABLES = f'[tables."{T}"]\nkeys = ["id"]\ncolumns = {{ id = "bigint" }}\n'


def record(ts_ns: int, key: int, op: str = "c", sent: Any = None, **more: Any) -> dict[str, Any]:
    source = {"version": "1.0", "ts_ns": ts_ns, "txId": "t", "schema": "public", "table": "t", **more}
    image = {"before": {"id": key}} if op == "d" else {"after": {"id": key}}
    return {"type": "full", "op": op, **image, "source": source, **({} if sent is None else {"ts_ns": sent})}


def applied(folder: Path, *records: dict[str, Any]) -> Applied:
    lake, config = lake_in(folder, TABLES)
    lines = [line(number, each) for number, each in enumerate(records)]
    return apply_batch(lake, decoded(config, lines, parts=2))


@pytest.mark.parametrize(
    ("sent", "known"),
    [(1_007, 1_007), (993, 993), (None, None), (-1, None), (2**63, None), (1.5, None), ("1", None)],
)
def test_a_record_says_when_it_was_sent(sent: Any, known: int | None) -> None:
    """In both readers alike; what is not a time is not known, and nothing else depends on it."""
    fast = {"cluster": "c", "db": "d", "ts_ms": 0}
    data = json.dumps({**record(1_000, 1, sent=sent, **fast), "ts_ms": 0, "before": None}).encode()
    (row,) = decode_batch(pa.array([data], pa.binary())).to_pylist()
    assert (row["verdict"], row["sent_ns"]) == ("full", known)
    assert {name: value for name, value in scalar_row(data).items() if value is not None} == {
        name: value for name, value in row.items() if value is not None
    }


def test_a_batch_knows_the_newest_change_of_each_table_and_when_that_was_sent(tmp_path: Path) -> None:
    """Whichever part it is in; deletes count, quarantined records do not."""
    found = applied(
        tmp_path,
        record(10, 1, sent=15),
        record(40, 2, "d", sent=37),
        record(30, 3, sent=1_000),
        record(99, 3, "d", table="other"),
    )
    assert found.newest == {T: (40, -3)}
    other = applied(tmp_path, record(20, 5, sent=21))
    add_newest(found.newest, other.newest)
    assert found.newest == {T: (40, -3)}
    assert applied(tmp_path, record(50, 5)).newest == {T: (50, None)}


def test_files_say_how_fresh_a_table_is_and_the_last_run_what_it_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later of both counts; no row is read, also of a table of more columns than are indexed."""
    wide = ", ".join(f'c{number} = "text"' for number in range(40))
    lake, config = lake_in(tmp_path, TABLES.replace('id = "bigint"', f'id = "bigint", {wide}'))
    now = time.time_ns()
    early, late = now - 90 * 10**9, now - 30 * 10**9
    assert freshness(lake, {})[T] == {"newest_commit_ns": None, "age_ms": None, "source_delay_ms": None}
    apply_batch(
        lake, decoded(config, [line(1, record(early, 1), minute=(now / 1e9 - START.timestamp()) / 60)])
    )
    monkeypatch.setattr(DeltaFile, "query", None)
    found = freshness(lake, {})[T]
    assert found["newest_commit_ns"] == early
    assert 90_000 <= (found["age_ms"] or 0) < 150_000
    found = freshness(lake, {T: (late, 5_000_000)})[T]
    assert (found["newest_commit_ns"], found["source_delay_ms"]) == (late, 5)
    assert freshness(lake, {T: (early - 1, 5_000_000)})[T]["source_delay_ms"] is None
