"""Fifty thousand mutated records from archive lines to tables; `make fuzz` takes a million."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fuzz.whole_path import LAKE_RECORDS, TABLES, fuzz
from tests.kit.support import share_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(share_of(50_000 // LAKE_RECORDS // len(TABLES) + 1)))
@pytest.mark.parametrize("kind", TABLES)
def test_nothing_raises_and_every_record_is_accounted_for(kind: str, seed: int, tmp_path: Path) -> None:
    """In tables of each form, with partitions, deletion vectors and columns of every type."""
    outcome = fuzz(kind, seed, LAKE_RECORDS, tmp_path)
    assert outcome["records"] > LAKE_RECORDS // 2
    assert min(outcome["changes"], outcome["quarantined"]) > 100
