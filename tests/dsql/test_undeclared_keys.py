"""Key columns that are not declared, or declared `any`: their values are JSON texts."""

from __future__ import annotations

from typing import Any

import pytest

from headpond.dsql.config import TableSpec
from headpond.dsql.decode import DsqlConfig
from tests.dsql.driver import records_of
from tests.dsql.test_exact_keys import change, reasons

SPELLINGS = ["[1, 2]", "[1,2]", "[ 1,2 ]"]


def config_of(columns: dict[str, str], **more: Any) -> DsqlConfig:
    spec = TableSpec(name="t", schema="public", table="t", keys=("k",), columns=columns, **more)
    return DsqlConfig(tables=(spec,))


@pytest.mark.parametrize("keep", ["current", "history", "log"])
@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (change({"v": 1}), "missing_key"),
        (change({"k": None, "v": 1}), "missing_key"),
        (change(None, op="d"), "missing_before"),
        (change(None, op="d", before={"v": 1}), "missing_key"),
        (change({"k": 1, "n": "x"}), "cast_error"),
    ],
    ids=["absent", "null", "no before", "other before", "other column"],
)
def test_a_batch_of_refused_changes_alone_is_refused(record: bytes, reason: str, keep: str) -> None:
    """No change that stays has brought the key's column then."""
    for count in (1, 2, 60):
        decoded = config_of({"n": "bigint"}, keep=keep).decode(records_of(*[record] * count))
        assert (decoded.tables, reasons(decoded)) == ({}, [reason] * count)


@pytest.mark.parametrize("columns", [{}, {"k": "any"}, {"k": "Any"}], ids=["undeclared", "any", "Any"])
def test_two_spellings_of_a_text_are_one_key(columns: dict[str, str]) -> None:
    """A first load spells values with the fewest escapes, whoever wrote the change may have not."""
    records = [change({"k": "KEY"}).replace(b'"KEY"', spelled.encode()) for spelled in SPELLINGS]
    rows = config_of(columns).decode(records_of(*records)).tables["t"]
    assert set(rows["m:key"].to_pylist()) == {"[[1,2]]"}
    assert set(rows["c:k"].to_pylist()) == {"[1,2]"}


def test_what_refused_changes_name_does_not_hang_on_their_batch() -> None:
    """A column is there when a change that stays names it, a null too, whatever else the batch holds."""
    config = config_of({"n": "bigint"})
    fine = change({"k": 1, "empty": None})
    for refused in (change({"v": 1, "other": 1}), change({"k": 2, "n": "x", "other": 1})):
        for records in ([fine], [fine, refused], [refused, fine, refused]):
            rows = config.decode(records_of(*records)).tables["t"]
            names = {name for name in rows.schema.names if name.startswith("c:")}
            assert names == {"c:k", "c:n", "c:empty"}
