"""Histories and schema changes of a whole lake: any order and cuts, a crash between any two writes."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.lake.apply import apply_batch
from headpond.lake.reports import lake_summary
from tests.kit.support import share_of
from tests.lake.lakes import decoded, lake_in, watched
from tests.lake.test_apply import EXPECTED, SMALL, TABLES, Crash

if TYPE_CHECKING:
    from headpond.lake.tables import Lake

HISTORIES = "\n".join(
    line + '\nkeep = "history"' if line.startswith("keys") and line != "keys = []" else line
    for line in TABLES.splitlines()
)
NAMES = list(EXPECTED["tables"])


def versions(lake: Lake, name: str) -> list[tuple[Any, ...]]:
    table = lake.tables[name]
    columns = [*map(table.typed.column, table.keys), "_tx_id", "_op", "_valid_from_ns", "_valid_to_ns"]
    found = table.typed.file.read(columns).to_pylist()
    return sorted((tuple(row[column] for column in columns) for row in found), key=repr)


def expected(name: str) -> list[tuple[Any, ...]]:
    table = EXPECTED["tables"][name]
    rows = []
    history = table["history"]  # ordered by key and time
    for change, after in zip(history, [*history[1:], None], strict=True):
        if change["row"] is not None:
            end = after["ts_ns"] if after is not None and after["key"] == change["key"] else None
            key = (change["key"][column] for column in table["keys"])
            rows.append((*key, change["txId"], change["op"], change["ts_ns"], end))
    return sorted(rows, key=repr)


def assert_expected(lake: Lake) -> None:
    for name in NAMES:
        assert versions(lake, name) == expected(name)
    deletes = {n: sum(h["row"] is None for h in EXPECTED["tables"][n]["history"]) for n in NAMES}
    assert lake.deletes.counts() == {name: count for name, count in deletes.items() if count}
    assert lake.tombstones.counts() == {}


@pytest.mark.thorough
@settings(max_examples=share_of(12))
@given(st.integers(0, 2**32), st.integers(1, 5))
def test_the_histories_and_schema_changes_do_not_depend_on_order(seed: int, batches: int) -> None:
    """Lines permuted, some of them twice, cut anywhere, a batch applied twice: one and the same lake."""
    draw = random.Random(seed)
    lines = SMALL + draw.sample(SMALL, 20)
    draw.shuffle(lines)
    cuts = [*sorted(draw.sample(range(1, len(lines)), batches - 1)), len(lines)]
    with tempfile.TemporaryDirectory() as folder:
        lake, config = lake_in(Path(folder) / "a", HISTORIES)
        start = 0
        for end in cuts:
            batch = decoded(config, lines[start:end])
            apply_batch(lake, batch)
            if draw.random() < 0.3:
                again = apply_batch(lake, batch)
                assert all(
                    not counted["upserts"] and not counted["deletes"] for counted in again.tables.values()
                )
            start = end
        assert_expected(lake)
        once, config = lake_in(Path(folder) / "b", HISTORIES)
        apply_batch(once, decoded(config, SMALL))
        told = [sorted(map(repr, store.extras.schema_changes.read().to_pylist())) for store in (lake, once)]
        assert told[0] == told[1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "stage",
    ["deletes", *(f"table {name}" for name in NAMES), "schema changes", "tombstones of keys that live again"],
)
def test_a_crash_between_two_writes_is_healed_by_the_repeat(stage: str, tmp_path: Path) -> None:
    """Whatever part of a batch was written, applying it again gives the undisturbed histories."""
    lake, config = lake_in(tmp_path, HISTORIES)

    def die(name: str) -> None:
        if name == stage:
            raise Crash(name)

    for start in range(0, len(SMALL), 77):
        batch = decoded(config, SMALL[start : start + 77])
        with pytest.raises(Crash):
            apply_batch(watched(lake, die), batch)
        lake, config = lake_in(tmp_path, HISTORIES)
        apply_batch(lake, batch)
    assert_expected(lake)
    changes = set(lake.extras.schema_changes.of_tables(["sales.Evolving"])["change"].to_pylist())
    assert {"table", "initial", "added"} <= changes
    summary = lake_summary(lake)
    assert {table["keep"] for name, table in summary["tables"].items() if name in NAMES} == {"history"}
    assert summary["deletes"] == dict(lake.deletes.counts())
