"""What tests of the source, the producer and the local Kinesis share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headpond.localkinesis.testing import ManualClock, local_kinesis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headpond.localkinesis import LocalKinesis


@pytest.fixture
def clock() -> ManualClock:
    """A clock that stands still unless a test moves it."""
    return ManualClock()


@pytest.fixture
def kinesis() -> Iterator[LocalKinesis]:
    """A stream `s` of two shards; modules that need another have their own."""
    with local_kinesis("s", shards=2, seed=11) as running:
        yield running
