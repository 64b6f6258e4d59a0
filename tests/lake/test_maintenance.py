"""Housekeeping by the user while batches are applied: commits are made anew, nothing is lost."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from headpond.lake.apply import apply_batch
from tests.kit.expected_tables import differences
from tests.lake.lakes import decoded, watched
from tests.lake.test_apply import EXPECTED, EXPECTED_TOMBSTONES, SMALL, small_lake, tombstones

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headpond.lake.tables import Lake


def compact(table: DeltaTable) -> None:
    table.optimize.compact()


def vacuum(table: DeltaTable) -> None:
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


def rewrite(table: DeltaTable) -> None:
    """Another writer touches every row and changes none."""
    column = table.schema().fields[0].name.replace('"', '""')
    table.update(updates={f'"{column}"': f'"{column}"'})


def checkpoint(table: DeltaTable) -> None:
    table.create_checkpoint()


HOUSEKEEPING: list[Callable[[DeltaTable], None]] = [compact, vacuum, rewrite, checkpoint]


def places(lake: Lake) -> list[str]:
    return [file.uri for _, file in lake.files()]


@pytest.mark.thorough
def test_housekeeping_between_any_two_writes(tmp_path: Path) -> None:
    """Compaction, vacuum without retention, a rewriting update, a checkpoint: of any table, anywhere."""
    lake, config = small_lake(tmp_path)
    draw = random.Random(1)

    def user(_: str) -> None:
        for place in draw.sample(places(lake), 1):
            draw.choice(HOUSEKEEPING)(DeltaTable(place))

    for start in range(0, len(SMALL), 80):
        apply_batch(watched(lake, user), decoded(config, SMALL[start : start + 80]))
    assert differences(lake, EXPECTED) == []
    assert tombstones(lake) == EXPECTED_TOMBSTONES


@pytest.mark.thorough
def test_housekeeping_at_the_very_same_time(tmp_path: Path) -> None:
    """Another thread compacts, rewrites and checkpoints all tables without a pause."""
    lake, config = small_lake(tmp_path)
    apply_batch(lake, decoded(config, SMALL[:10]))
    over = threading.Event()
    done, lost = [0], [0]

    def user() -> None:
        draw = random.Random(2)
        while not over.is_set():
            try:
                draw.choice([compact, rewrite, checkpoint])(DeltaTable(draw.choice(places(lake))))
                done[0] += 1
            except Exception:  # noqa: BLE001 - the user's commit lost against ours, and is made again
                lost[0] += 1

    thread = threading.Thread(target=user)
    thread.start()
    try:
        for start in range(0, len(SMALL), 10):
            apply_batch(lake, decoded(config, SMALL[start : start + 10]))
    finally:
        over.set()
        thread.join()
    assert done[0]
    assert differences(lake, EXPECTED) == []
    assert tombstones(lake) == EXPECTED_TOMBSTONES
