"""A lake that a later headpond has written to is left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headpond.core.errors import ConfigurationError
from headpond.lake.apply import apply_batch
from tests.lake.lakes import decoded, lake_in
from tests.lake.ledgers import config_of, datums, ledger_in
from tests.lake.ledgers import decoded as decoded_ledger
from tests.lake.test_apply import SMALL, TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from headpond.lake.delta import DeltaFile

BAD_LINE = b'{"data": "bm8ganNvbg=="}\n'


def written(files: Sequence[DeltaFile]) -> list[DeltaFile]:
    """Those of some tables that have rows."""
    return [file for file in files if file.exists() and file.count()]


def from_the_future(file: DeltaFile) -> None:
    """Append a row as a later version would."""
    row = file.read().slice(0, 1)
    at = row.column_names.index("format_version")
    later = row.set_column(at, row.schema.field(at), pa.array([2], pa.int32()))
    write_deltalake(file.uri, later, mode="append")


@pytest.mark.slow
def test_a_later_format_in_a_lake_of_changes_is_refused(tmp_path: Path) -> None:
    """Whichever of its own tables has it; the lake is as it was."""
    lake, config = lake_in(tmp_path, TABLES)
    apply_batch(lake, decoded(config, [*SMALL, BAD_LINE]))
    some = written(lake.own_files())
    assert {file.uri.rpartition("/")[2] for file in some} >= {"quarantine", "tombstones", "schema_changes"}
    for file in some:
        assert file.greatest("format_version") == [1]
    lake_in(tmp_path, TABLES)
    from_the_future(some[0])
    with pytest.raises(ConfigurationError, match=r"rows of format 2, .* knows formats up to 1"):
        lake_in(tmp_path, TABLES)


def test_a_later_format_in_a_lake_of_a_ledger_is_refused(tmp_path: Path) -> None:
    """Blocks and the rest have one, too."""
    config = config_of("Person")
    lake = ledger_in(tmp_path, config)
    apply_batch(lake, decoded_ledger(config, datums("clean")[:80]))
    some = written(lake.own_files())
    assert {file.uri.rpartition("/")[2] for file in some} >= {"blocks", "statements", "controls"}
    for file in some:
        assert file.greatest("format_version") == [1]
    from_the_future(some[-1])
    with pytest.raises(ConfigurationError, match="holds rows of format 2"):
        ledger_in(tmp_path, config)
