"""What a table holds for the keys of a batch, found without holding the table."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headpond.core.schemas import OWN_FIELDS
from headpond.dsql.config import TableSpec
from headpond.dsql.decode import DsqlConfig
from headpond.lake.newest import BatchKeys
from headpond.lake.tables import Lake
from headpond.lake.typed import VALUE, rows_of_keys

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 40_000
KINDS = {
    "bigint": (pa.int64(), lambda number: number),
    "text": (pa.string(), lambda number: f"key-{number:06}"),
    "numeric(20,2)": (pa.decimal128(20, 2), lambda number: Decimal(number).scaleb(-2)),
}


def changes(kind: str, numbers: list[int]) -> pa.Table:
    """Typed rows of which only what is read matters."""
    arrow, key = KINDS[kind]
    count = len(numbers)
    arrays: dict[str, Any] = {field.name: pa.nulls(count, field.type) for field in OWN_FIELDS}
    arrays["m:key"] = pa.array([f"[{number}]" for number in numbers])
    arrays["m:ts_ns"] = pa.array(numbers, pa.int64())
    arrays["m:tx_id"] = pa.array(["t"] * count)
    arrays["m:image_hash"] = pa.array([b"h"] * count, pa.binary())
    return pa.table({**arrays, VALUE + "id": pa.array([key(number) for number in numbers], arrow)})


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 200])
def test_rows_of_a_batchs_keys_are_found_wherever_they_lie(kind: str, count: int, tmp_path: Path) -> None:
    spec = TableSpec(name="public.t", schema="public", table="t", keys=("id",), columns={"id": kind})
    lake = Lake(str(tmp_path), DsqlConfig(tables=(spec,)))
    lake.prepare()
    typed = lake.typed["public.t"]
    for start in (0, ROWS // 2):  # two files
        rows = changes(kind, list(range(start, start + ROWS // 2)))
        write_deltalake(typed.file.open(), typed.fit(rows.schema).physical(rows), mode="append")
    step = max(1, 2 * ROWS // max(1, count))
    numbers = list(range(1, 2 * ROWS, step))[:count]  # half of them beyond what the table has
    asked = changes(kind, [*numbers, *numbers])
    found = rows_of_keys(typed, ["id"], asked, BatchKeys(asked["m:key"]), ("_ts_ns", "_tx_id"))
    expected = {(f"[{number}]", number, "t") for number in numbers if number < ROWS}
    assert set(zip(*(column.to_pylist() for column in found.columns), strict=True)) == expected
    assert found.num_rows == len(expected)
    assert found.schema.names == ["m:key", "_ts_ns", "_tx_id"]
    assert found.schema.field("_tx_id").type == pa.string()
