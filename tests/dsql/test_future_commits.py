"""Commit times far ahead of the arrival: they would supersede everything to come, and end every retention."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from headpond.lake.apply import apply_batch
from tests.lake.lakes import decoded, lake_in
from tests.lake.test_pending import group
from tests.lake.test_unknown_tables import change

if TYPE_CHECKING:
    from pathlib import Path

TABLES = '[tables."public.t"]\nkeys = ["id"]\ncolumns = { id = "bigint" }\n'
DAY_NS = 86_400 * 10**9
ARRIVAL_MS = 1_783_600_000_000


def arriving(line: bytes, arrival_ms: int | None = ARRIVAL_MS) -> bytes:
    return json.dumps(json.loads(line) | {"approximateArrivalTimestamp": arrival_ms}).encode()


def refused(config: Any, line: bytes) -> list[tuple[str, str]]:
    rows = decoded(config, [line]).quarantine
    return list(zip(rows["reason"].to_pylist(), rows["detail"].to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("ahead_ns", "words"),
    [(DAY_NS, None), (DAY_NS + 10**9, "committed 86401 s after"), (2**62, "committed "), (-DAY_NS, None)],
)
def test_a_day_is_the_bound(tmp_path: Path, ahead_ns: int, words: str | None) -> None:
    """Later ones are quarantined; where it is not known when they arrived, none is."""
    _, config = lake_in(tmp_path, TABLES)
    line = change(min(ARRIVAL_MS * 10**6 + ahead_ns, 2**63 - 1), "t", {"id": 1})
    found = refused(config, arriving(line))
    assert [reason for reason, _ in found] == ([] if words is None else ["future_commit"])
    assert all(detail.startswith(words or "") for _, detail in found)
    assert refused(config, arriving(line, None)) == []
    assert refused(replace(config, max_commit_ahead_ms=None), arriving(line)) == []


def test_what_is_wrong_otherwise_says_so(tmp_path: Path) -> None:
    """As a table that is not configured; chunks of a change are refused with it."""
    _, config = lake_in(tmp_path, TABLES)
    future = ARRIVAL_MS * 10**6 + 2 * DAY_NS
    assert refused(config, arriving(change(future, "u", {"id": 1})))[0][0] == "unknown_table"
    main, *fragments = group(1, {"id": 1, "v": "x" * 50}, 3)
    line = json.loads(main)
    record = json.loads(base64.b64decode(line["data"]))
    record["source"]["ts_ns"] = future
    line["data"] = base64.b64encode(json.dumps(record).encode()).decode()
    assert refused(config, arriving(json.dumps(line).encode()))[0][0] == "future_commit"
    assert [refused(config, arriving(each)) for each in fragments] == [[]] * 3


def test_a_time_to_come_does_not_end_the_retention(tmp_path: Path) -> None:
    """Where no arrival is known such a change is taken; deletes are remembered by the clock then."""
    lake, config = lake_in(tmp_path, TABLES)
    now_ns = time.time_ns()
    lines = [
        change(now_ns, "t", None, op="d", before={"id": 1}),
        change(now_ns + 900 * DAY_NS, "t", {"id": 2}),
    ]
    apply_batch(lake, decoded(config, lines))
    assert lake.retire_tombstones(3_600_000) == 0
    assert lake.tombstones.counts() == {"public.t": 1}
