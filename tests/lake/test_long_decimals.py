"""Decimals of more digits than a double holds: what files say of the least and greatest is not exact."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from headpond.lake.apply import apply_batch
from headpond.lake.delta import DeltaFile
from headpond.lake.engine.merge import Merge, always
from headpond.lake.maintenance.optimize import optimize_file
from tests.lake.lakes import decoded, lake_in
from tests.lake.test_apply import change

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEYS = {
    "numeric(38,0)": ["12345678901234567890", "-" + "9" * 38, "9" * 38],
    "numeric(38,38)": ["0." + "9" * 38, "0." + "0" * 37 + "1"],
    "numeric(17,2)": ["123456789012345.67", "-999999999999999.99"],
    "numeric(15,2)": ["9999999999999.99", "-0.01"],
}


def entry(kind: str, keep: str) -> str:
    return f'[tables."public.t"]\nkeys = ["id"]\nkeep = "{keep}"\ncolumns = {{ id = "{kind}" }}\n'


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["current", "history"])
@pytest.mark.parametrize("kind", KEYS)
def test_a_row_is_found_again_by_its_decimal(kind: str, keep: str, tmp_path: Path) -> None:
    """A newer version, and a delete, of a row in a file of its own."""
    lake, config = lake_in(tmp_path, entry(kind, keep))
    first, *_ = KEYS[kind]
    for number, key in enumerate(KEYS[kind]):
        for ts_ns in (10, 20):
            apply_batch(lake, decoded(config, [change(100 * number + ts_ns, {"id": key}, ts_ns=ts_ns)]))
    apply_batch(lake, decoded(config, [change(999, {"id": first}, op="d", ts_ns=30)]))
    rows = lake.typed["public.t"].file.read().to_pylist()
    if keep == "current":
        assert sorted(row["id"] for row in rows) == sorted(map(Decimal, KEYS[kind][1:]))
    else:
        spans = sorted((row["id"], row["_valid_from_ns"], row["_valid_to_ns"]) for row in rows)
        ends = [(Decimal(key), 30 if key == first else None) for key in KEYS[kind]]
        assert spans == sorted(span for key, end in ends for span in ((key, 10, 20), (key, 20, end)))


def bounds(place: Path) -> Iterator[set[str]]:
    """Of each file that is there, the columns that its commit tells the least and greatest value of."""
    for action in pa.table(DeltaFile(str(place)).open().get_add_actions()).to_pylist():
        yield {name for part in ("min", "max") for name, value in action[part].items() if value is not None}


def test_only_exact_bounds_are_told(tmp_path: Path) -> None:
    """Whatever writes the file: merge, update, delete, compaction, sorting."""
    kinds = {"a": pa.decimal128(15, 2), "b%20c": pa.decimal128(16, 2), "v": pa.int64()}
    schema = pa.schema(list(kinds.items()))
    file = DeltaFile(str(tmp_path / "t"))
    file.create(schema)
    rows = [{"a": Decimal("1.50"), "b%20c": Decimal("99999999999999.99"), "v": n} for n in range(4)]
    for row in rows:
        file.merge(Merge(pa.Table.from_pylist([row], schema), ["v"]))
    last = pa.table({"v": pa.array([3], pa.int64())})
    file.merge(Merge(last, ["v"], wins=always, gone=pa.repeat(True, 1)))
    assert list(bounds(tmp_path / "t")) == [{"a", "v"}] * 3
    for order_by in ((), ("v",)):
        optimize_file(file, order_by=order_by)
        assert list(bounds(tmp_path / "t")) == [{"a", "v"}]
    assert file.read(["v"], "\"b%20c\" = CAST('99999999999999.99' AS DECIMAL(16,2))").num_rows == 3
