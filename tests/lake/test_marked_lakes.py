"""Whole lakes whose tables mark rows: the same rows as without, to every reader."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import polars as pl
import pytest

from headpond.lake.apply import apply_batch
from headpond.lake.engine import merge as engine
from tests.kit.expected_tables import differences
from tests.lake.lakes import decoded, lake_in
from tests.lake.test_apply import EXPECTED, SMALL, TABLES
from tests.lake.test_apply_history import HISTORIES, assert_expected

if TYPE_CHECKING:
    from pathlib import Path

    from headpond.lake.tables import Lake


def marking(tables: str) -> str:
    """The same entries, each with marks."""
    return tables.replace("\nkeys =", "\ndeletion_vectors = true\nkeys =")


def marks(lake: Lake) -> int:
    """How many rows are marked in all files of the tables."""
    files = [file for typed in lake.typed.values() for file in typed.file.engine.log.newest().files.values()]
    return sum(file.dead for file in files)


@pytest.mark.slow
@pytest.mark.parametrize("past", [False, True])
def test_current_rows_and_histories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, past: bool) -> None:
    """Lines permuted and some of them twice, in many batches, and files compacted now and then."""
    monkeypatch.setattr(engine, "SMALL_BYTES", 0)
    monkeypatch.setattr(engine, "MOST_DEAD", 0.9)
    draw = random.Random(5)
    lines = SMALL + draw.sample(SMALL, 20)
    draw.shuffle(lines)
    lake, config = lake_in(tmp_path, marking(HISTORIES if past else TABLES))
    marked = 0
    for number in range(8):
        apply_batch(lake, decoded(config, lines[number::8]), transaction=("query", number))
        marked = max(marked, marks(lake))
        if number == 5:
            compacted = [typed.file.compact() for typed in lake.typed.values()]
            assert any(compacted)
            assert marks(lake) == 0
    assert marked > 0
    if past:
        assert_expected(lake)
    else:
        assert differences(lake, EXPECTED) == []
    for typed in lake.typed.values():
        assert pl.scan_delta(typed.file.uri).select(pl.len()).collect().item() == typed.file.count()
