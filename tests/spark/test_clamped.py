"""What `infinity` leaves of infinite times can be collected into Python, or not, as the page of DSQL says."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.types import TimestampNTZType, TimestampType

from headpond.dsql.columns import cast_column
from headpond.dsql.pg_types import TIMESTAMP_INFINITIES, CastOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKENS = pa.array([str(each).encode() for each in TIMESTAMP_INFINITIES])


@pytest.fixture(params=["Asia/Tokyo", "America/Lima"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The time zone of the process."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", request.param)
        time.tzset()
        yield request.param
    time.tzset()


def test_infinite_times_are_collected_where_the_page_says_so(zone: str) -> None:
    """Null anywhere; clamped ones as `timestamp` anywhere, as `timestamptz` not beyond the calendar."""
    gone = cast_column("timestamptz", TOKENS, CastOptions(infinity="null")).values
    assert gone.to_pylist() == [None, None]
    ends = cast_column("timestamp", TOKENS).values.cast(pa.int64()).to_pylist()
    assert ends == cast_column("timestamptz", TOKENS).values.cast(pa.int64()).to_pylist()
    assert [TimestampNTZType().fromInternal(end).year for end in ends] == [1, 9999]
    first, last = ends
    beyond = last if zone == "Asia/Tokyo" else first
    with pytest.raises(ValueError, match=r"year (0|10000) is out of range|out of range"):
        TimestampType().fromInternal(beyond)
