"""What several tests of lakes watch."""

from __future__ import annotations

import pytest

from headpond.lake.engine.parquet import Reader


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note which columns are read from files."""
    read: list[str] = []
    reading = Reader.read
    monkeypatch.setattr(Reader, "read", lambda *asked: (read.extend(asked[2]), reading(*asked))[1])
    return read
