"""Timestamps without a time zone: as such, or in UTC for readers that know nothing else."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from headpond.core.errors import ConfigurationError
from headpond.lake.apply import apply_batch
from headpond.lake.maintenance.bootstrap import Bootstrap, ParquetSource
from headpond.lake.reports import lake_summary
from tests.lake.lakes import decoded, lake_in
from tests.lake.test_unknown_tables import change

if TYPE_CHECKING:
    from pathlib import Path

ENTRY = (
    '[tables."public.t"]\nkeys = ["at"]\nkeep = "{keep}"\n'
    'columns = {{ at = "timestamp", seen = "timestamptz" }}\n'
)
FIRST, LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
LINES = [
    change(1, "t", {"at": 1, "seen": 2}),
    change(2, "t", {"at": FIRST}),
    change(3, "t", {"at": LAST, "seen": 9223372036825200000}),  # infinity
    change(4, "t", None, op="d", before={"at": 1}),
]


@pytest.mark.parametrize(
    "keep", ["current", *(pytest.param(keep, marks=pytest.mark.thorough) for keep in ("history", "log"))]
)
def test_utc_timestamps_need_no_new_reader_and_hold_the_same_microseconds(keep: str, tmp_path: Path) -> None:
    """Declared, in the key, infinite, through merge and bootstrap, again after a restart."""
    found = {}
    for timestamps in ("ntz", "utc"):
        text = f'timestamps = "{timestamps}"\n' + ENTRY.format(keep=keep)
        lake, config = lake_in(tmp_path / timestamps, text)
        apply_batch(lake, decoded(config, LINES[:2]))
        lake, config = lake_in(tmp_path / timestamps, text)
        apply_batch(lake, decoded(config, LINES[2:], first_line=3))
        table = DeltaTable(lake.place_of("public.t"))
        assert (table.protocol().min_reader_version >= 3) == (timestamps == "ntz")
        at = lake.typed["public.t"].file.read(["at"])["at"]
        assert at.type == pa.timestamp("us", tz="UTC" if timestamps == "utc" else None)
        found[timestamps] = sorted(at.cast(pa.int64()).to_pylist())
        seen = lake.typed["public.t"].file.read(["seen"])["seen"].cast(pa.int64()).to_pylist()
        assert LAST in seen
    wanted = {"current": [FIRST, LAST], "history": [FIRST, 1, LAST], "log": [FIRST, 1, 1, LAST]}
    assert found["ntz"] == found["utc"] == wanted[keep]


def test_a_dump_is_loaded_into_utc_timestamps(tmp_path: Path) -> None:
    """A Parquet column without a time zone, as the declared type wants it."""
    lake, _ = lake_in(tmp_path, 'timestamps = "utc"\n' + ENTRY.format(keep="current"))
    dump = pa.table(
        {"at": pa.array([5], pa.timestamp("us")), "seen": pa.array([6], pa.timestamp("us", "UTC"))}
    )
    pq.write_table(dump, tmp_path / "d.parquet")
    Bootstrap(lake, "public.t", ParquetSource([str(tmp_path / "d.parquet")]), 1).load()
    (row,) = lake.typed["public.t"].file.read(["at"]).to_pylist()
    assert row["at"] == datetime(1970, 1, 1, 0, 0, 0, 5, UTC)


@pytest.mark.parametrize(("was", "now"), [("ntz", "utc"), ("utc", "ntz")])
def test_a_table_of_the_other_kind_is_refused_and_goes_on_when_its_entry_says_so(
    was: str, now: str, tmp_path: Path
) -> None:
    """The message says what to write, and with it the table goes on as it is."""
    text = ENTRY.format(keep="current")
    lake, config = lake_in(tmp_path, f'timestamps = "{was}"\n{text}')
    apply_batch(lake, decoded(config, LINES[:1]))
    words = rf'with at = "timestamp" \(timestamps = "{was}"\), .* at = "timestamp" \(timestamps = "{now}"\)'
    with pytest.raises(ConfigurationError, match=words):
        lake_in(tmp_path, f'timestamps = "{now}"\n{text}')
    lake, config = lake_in(tmp_path, f'timestamps = "{now}"\n{text}timestamps = "{was}"\n')
    apply_batch(lake, decoded(config, LINES[1:3], first_line=2))
    assert lake_summary(lake)["tables"]["public.t"]["rows"] == 3
