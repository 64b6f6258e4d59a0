"""What tests of the source and of the local Kinesis share."""

from __future__ import annotations

import pytest

from headpond.kinesis.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    """A clock that stands still unless a test moves it."""
    return ManualClock()
