"""Every counter of a run by its name: what it counts, and that it is told when it is 0."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headpond.lake.apply import Applied, Chunks, apply_batch
from headpond.lake.reports import lake_summary
from tests.lake.lakes import decoded, lake_in
from tests.lake.test_pending import group, line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headpond.dsql.decode import DsqlConfig
    from headpond.lake.tables import Lake

COLUMNS = 'columns = { id = "bigint", v = "text", d = "date" }\n'
TABLES = (
    f'[tables."public.t"]\nkeys = ["id"]\n{COLUMNS}'
    f'[tables."public.past"]\nkeys = ["id"]\nkeep = "history"\n{COLUMNS}'
    f'[tables."public.log"]\nkeys = []\n{COLUMNS}'
)
PAGE = Path(__file__).parents[2] / "docs/reference/cli.md"

_numbers = iter(range(1, 1_000))


def change(ts_ns: int, image: dict[str, Any], *, op: str = "c", table: str = "t") -> bytes:
    source = {"version": "1.0", "ts_ns": ts_ns, "txId": "t", "schema": "public", "table": table}
    images = {"before": image, "after": None} if op == "d" else {"before": None, "after": image}
    return line(next(_numbers), {"type": "full", "op": op, "source": source} | images)


def run(lake: Lake, config: DsqlConfig, *batches: Sequence[bytes]) -> dict[str, Any]:
    applied = Applied()
    for lines in batches:
        applied.add(apply_batch(lake, decoded(config, lines), chunks=Chunks(config)))
    return lake_summary(lake, applied)


CURRENT = dict.fromkeys(
    ("upserts", "deletes", "duplicates", "conflicting_duplicates", "stale", "superseded"), 0
)
HISTORY = dict.fromkeys(("upserts", "deletes", "duplicates", "conflicting_duplicates"), 0)
LOG = dict.fromkeys(("appended", "duplicates"), 0)
COUNTERS = dict.fromkeys(
    (
        "records",
        "data_bytes",
        "changes",
        "unknown_op",
        "out_of_range",
        "chunk_copies",
        "chunk_groups_completed",
        "chunk_groups_open",
    ),
    0,
)


def figures(summary: dict[str, Any], name: str) -> dict[str, int]:
    about = {"rows", "path", "keep"}
    return {figure: n for figure, n in summary["tables"][name].items() if figure not in about}


def test_a_run_that_found_nothing_tells_every_counter(tmp_path: Path) -> None:
    """As 0, so that whoever reads them need not know which there are."""
    told = run(*lake_in(tmp_path, TABLES), [])
    assert figures(told, "public.t") == CURRENT
    assert figures(told, "public.past") == HISTORY
    assert figures(told, "public.log") == LOG
    assert told["counters"] == COUNTERS
    assert (told["quarantined"], told["pending"]) == ({}, 0)


@pytest.mark.slow
def test_every_counter_counts_what_its_name_says(tmp_path: Path) -> None:
    """One run in which each of them is met, with the reasons of what was refused."""
    lines = [
        change(20, {"id": 1, "v": "new"}),
        change(10, {"id": 1, "v": "superseded"}),
        change(20, {"id": 2, "v": "x"}, op="r"),  # an operation that nobody knows
        change(20, {"id": 3, "d": 2932897}),  # 10000-01-01
        change(20, {"id": "text"}),
        change(20, {"id": 1}, table="elsewhere"),
        change(20, {"id": 4}),
        change(30, {"id": 4}, op="d"),
        change(20, {"id": 1, "v": "a"}, table="past"),
        change(30, {"id": 1}, op="d", table="past"),
        change(20, {"id": 1, "v": "a"}, table="log"),
    ]
    again = [
        lines[0],
        change(20, {"id": 1, "v": "other"}),
        change(5, {"id": 2, "v": "stale"}),
        change(20, {"id": 1, "v": "b"}, table="past"),
        lines[-1],
    ]
    whole, waiting = group(900, {"id": 9}, 2), group(901, {"id": 10}, 3)
    lake, config = lake_in(tmp_path, TABLES)
    told = run(lake, config, lines, again, [*whole, whole[1]], [lines[-2], *waiting[:2]])
    assert figures(told, "public.t") == {
        "upserts": 4,  # of 1, 2, 3 and 9
        "deletes": 1,
        "duplicates": 1,
        "conflicting_duplicates": 1,
        "stale": 1,
        "superseded": 2,
    }
    assert figures(told, "public.past") == {
        "upserts": 1,
        "deletes": 1,
        "duplicates": 1,  # of the delete
        "conflicting_duplicates": 1,
    }
    assert figures(told, "public.log") == {"appended": 1, "duplicates": 1}
    assert told["counters"].pop("data_bytes") > 0
    assert told["counters"] == {
        "records": 11 + 5 + 4 + 3,
        "changes": 9 + 5 + 1 + 1,
        "unknown_op": 1,
        "out_of_range": 1,
        "chunk_copies": 1,
        "chunk_groups_completed": 1,
        "chunk_groups_open": 1,
    }
    assert told["quarantined"] == {"cast_error": 1, "unknown_table": 1}
    assert told["pending"] == 2


def test_a_batch_that_changes_nothing_leaves_the_next_one_to_look_for_itself(tmp_path: Path) -> None:
    """What it did not have to know of a row, the next one may have to: here the transaction."""
    kept, older = change(20, {"id": 1, "v": "kept"}), change(10, {"id": 1, "v": "older"})
    told = run(*lake_in(tmp_path, TABLES), [kept], [older], [kept])
    assert figures(told, "public.t") == CURRENT | {"upserts": 1, "stale": 1, "duplicates": 1}


@pytest.mark.slow
def test_open_groups_are_those_that_wait_now(tmp_path: Path) -> None:
    """Not those that waited after each batch, added up; also in batches that do not touch them."""
    lake, config = lake_in(tmp_path, TABLES)
    one, other = group(900, {"id": 1}, 3), group(901, {"id": 2}, 2)
    applied, seen = Applied(), []
    for lines in ([one[0]], [one[1]], [other[0]], [], [one[2]], [one[3]], [change(1, {"id": 3})]):
        applied.add(apply_batch(lake, decoded(config, lines), chunks=Chunks(config)))
        seen.append(applied.counters["chunk_groups_open"])
    assert seen == [1, 1, 2, 2, 2, 1, 1]
    assert applied.counters["chunk_groups_completed"] == 1
    lake, config = lake_in(tmp_path, TABLES)
    assert run(lake, config, [change(2, {"id": 3})])["counters"]["chunk_groups_open"] == 1
    assert run(lake, config, other[1:])["counters"]["chunk_groups_open"] == 0


def test_every_counter_is_documented_by_its_name() -> None:
    """On the page of the commands."""
    text = PAGE.read_text().partition("## headpond run")[2].partition("\n## ")[0]
    for name in (*CURRENT, *LOG, *COUNTERS, "quarantined", "pending", "lag_ms"):
        assert f"`{name}`" in text, name
