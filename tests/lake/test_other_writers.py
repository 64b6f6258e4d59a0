"""Tables that another program made or overwrote: no change is lost in them, and no record is blamed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headpond.core.errors import ConfigurationError
from headpond.lake.apply import apply_batch
from headpond.lake.sparing import apply_sparing
from tests.lake import ledgers
from tests.lake.lakes import decoded, lake_in
from tests.lake.test_rebuild import T, change, entry, rows_of

if TYPE_CHECKING:
    from pathlib import Path

ENTRY = entry(keys=["id"], columns={"id": "integer"})
OWN: dict[str, Any] = {
    "_ts_ns": pa.array([1], pa.int64()),
    "_tx_id": ["t"],
    "_image_hash": pa.array([b""], pa.binary()),
}
ID, V = pa.array([7], pa.int32()), pa.array(["1"])


def overwritten(place: str, columns: dict[str, Any]) -> None:
    """Have a program replace rows and columns."""
    write_deltalake(place, pa.table(columns), mode="overwrite", schema_mode="overwrite")


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"id": ID, "v": V}, "_ts_ns is not there"),
        ({"id": pa.array(["7"]), "v": V, **OWN}, "id is string"),
        ({"id": ID, **OWN}, "v is not there"),
    ],
)
def test_a_table_that_is_overwritten_during_a_run_ends_it_and_says_so(
    columns: dict[str, Any], says: str, tmp_path: Path
) -> None:
    """Nothing is written into it or quarantined because of it; restored, everything goes on."""
    lake, _ = lake_in(tmp_path, ENTRY)
    place = lake.typed[T].file.uri
    apply_batch(lake, decoded(lake.config, [change(1, {"id": 1, "v": 1})]))  # type: ignore[arg-type]
    good = DeltaTable(place).version()
    overwritten(place, columns)
    batch = decoded(lake.config, [change(2, {"id": 1, "v": 2}), change(3, {"id": 2})])  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=f"overwrote the table '{T}'.*{says}"):
        apply_sparing(batch, lambda part: apply_batch(lake, part))
    assert lake.quarantine.count() == 0
    if not says.startswith("v "):  # a column that is not declared may be missing at a start
        with pytest.raises(ConfigurationError, match=says):
            lake_in(tmp_path, ENTRY)
    DeltaTable(place).restore(good)
    lake, _ = lake_in(tmp_path, ENTRY)
    apply_batch(lake, batch)
    assert [(row["id"], row["v"]) for row in rows_of(lake)] == [(1, "2"), (2, None)]


def test_rows_that_another_program_replaces_are_its_own(tmp_path: Path) -> None:
    """With the same columns the table is taken as it is."""
    lake, _ = lake_in(tmp_path, ENTRY)
    apply_batch(lake, decoded(lake.config, [change(2, {"id": 1, "v": 1})]))  # type: ignore[arg-type]
    overwritten(lake.typed[T].file.uri, {"id": ID, "v": V, **OWN, "more": V})
    apply_batch(lake, decoded(lake.config, [change(3, {"id": 7, "v": 2}), change(1, {"id": 1, "v": 3})]))  # type: ignore[arg-type]
    assert [(row["id"], row["v"], row["more"]) for row in rows_of(lake)] == [(1, "3", None), (7, "2", None)]


def test_a_table_that_another_program_made_is_not_taken_for_ours(tmp_path: Path) -> None:
    """Its rows have no versions: no change would ever replace them."""
    place = tmp_path / "lake" / T
    write_deltalake(str(place), pa.table({"id": ID, "v": V}))
    with pytest.raises(ConfigurationError, match="_ts_ns is not there") as refused:
        lake_in(tmp_path, ENTRY)
    assert "move the folder away" in (refused.value.next_step or "")
    assert DeltaTable(place).version() == 0


def test_a_table_of_documents_is_looked_at_too(tmp_path: Path) -> None:
    """By its document ids."""
    config = ledgers.config_of("Person", past=False)
    write_deltalake(str(tmp_path / "lake" / "Person"), pa.table({"_version": ID}))
    with pytest.raises(ConfigurationError, match="_document_id is not there"):
        ledgers.ledger_in(tmp_path / "lake", config)
