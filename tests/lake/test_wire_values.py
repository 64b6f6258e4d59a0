"""Values at the ends of what PostgreSQL sends, from the wire to the table, against what is written here."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from headpond.dsql.columns import cast_column
from headpond.dsql.pg_types import CastError, CastOptions, cast
from headpond.lake.apply import apply_batch
from tests.lake.lakes import decoded, lake_in
from tests.lake.test_unknown_tables import change

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Literal


def entry(kind: str, option: str = "") -> str:
    return f'{option}[tables."public.t"]\nkeys = ["id"]\ncolumns = {{ id = "bigint", v = "{kind}" }}\n'


def through_table(folder: Path, tables: str, value: Any) -> tuple[list[Any], dict[str, int]]:
    """What the table holds of a value sent after 1 was the row's, and what was refused."""
    lake, config = lake_in(folder, tables)
    apply_batch(lake, decoded(config, [change(1, "t", {"id": 1}), change(2, "t", {"id": 1, "v": value})]))
    rows = lake.typed["public.t"].file.read(["v"])["v"].to_pylist()
    return rows, dict(lake.quarantine.counts_by("reason"))


WHOLE = "-" + "1234567890" * 100
LONG = {
    "1000 digits": WHOLE,
    "999 after the point": "0." + "0" * 998 + "1",
    "both sides": "9" * 500 + "." + "7" * 500,
    "trailing zeros": "1." + "0" * 999,
}


@pytest.mark.parametrize("kind", ["numeric", "numeric(1000,999)"])
@pytest.mark.parametrize("digits", LONG.values(), ids=list(LONG))
@pytest.mark.slow
def test_a_numeric_of_1000_digits_comes_through_to_the_digit(kind: str, digits: str, tmp_path: Path) -> None:
    """One by one, in a batch of others, and in the table: the text that was sent."""
    token = json.dumps(digits)
    assert cast(kind, token) == digits
    batch = cast_column(kind, pa.array(['"1.5"', token, None, '"NaN"'], pa.string()))
    assert (batch.values.to_pylist(), batch.failures) == (["1.5", digits, None, "NaN"], {})
    assert through_table(tmp_path, entry(kind), digits) == ([digits], {})


@pytest.mark.parametrize("digits", [LONG[name] for name in LONG if name != "trailing zeros"])
def test_a_numeric_of_1000_digits_is_no_decimal(digits: str, tmp_path: Path) -> None:
    """Nothing is rounded: the change is refused, and the row before it stays."""
    assert cast("numeric(38,10)", json.dumps(LONG["trailing zeros"])) == 1
    assert cast("numeric(38,10)", json.dumps(digits)) == CastError("cast_error")
    assert through_table(tmp_path, entry("numeric(38,10)"), digits) == ([None], {"cast_error": 1})


PLUS, MINUS = 9223372036825200000, -9223372036832400000
LAST_DAY, FIRST_DAY = dt.date(9999, 12, 31), dt.date(1, 1, 1)
LAST, FIRST = "9999-12-31T23:59:59.999999", "0001-01-01T00:00:00"
NAIVE = {"last": dt.datetime.fromisoformat(LAST), "first": dt.datetime.fromisoformat(FIRST)}
UTC = {
    "last": dt.datetime.fromisoformat(LAST + "+00:00"),
    "first": dt.datetime.fromisoformat(FIRST + "+00:00"),
}
REFUSED = object()

# type, what is sent, infinity, what the column holds
EXPECTED: list[tuple[str, int, Literal["clamp", "null", "error"], Any]] = [
    ("date", 2147494604, "clamp", LAST_DAY),
    ("date", 2147494604, "null", None),
    ("date", 2147494604, "error", REFUSED),
    ("date", -2147472691, "clamp", FIRST_DAY),
    ("date", -2147472691, "null", None),
    ("date", -2147472691, "error", REFUSED),
    ("timestamp", PLUS, "clamp", NAIVE["last"]),
    ("timestamp", PLUS, "null", None),
    ("timestamp", PLUS, "error", REFUSED),
    ("timestamp", MINUS, "clamp", NAIVE["first"]),
    ("timestamp", MINUS, "null", None),
    ("timestamp", MINUS, "error", REFUSED),
    ("timestamptz", PLUS, "clamp", UTC["last"]),
    ("timestamptz", PLUS, "null", None),
    ("timestamptz", PLUS, "error", REFUSED),
    ("timestamptz", MINUS, "clamp", UTC["first"]),
    ("timestamptz", MINUS, "null", None),
    ("timestamptz", MINUS, "error", REFUSED),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "sent", "infinity", "expected"), EXPECTED)
def test_an_infinity_becomes_what_the_option_says(
    kind: str, sent: int, infinity: Literal["clamp", "null", "error"], expected: Any, tmp_path: Path
) -> None:
    """One by one, in a batch of others, and in the table; no infinity is counted as out of range."""
    options = CastOptions(infinity=infinity)
    one = cast(kind, str(sent), options)
    batch = cast_column(kind, pa.array(["0", str(sent)], pa.string()), options)
    assert batch.out_of_range == 0
    rows, reasons = through_table(tmp_path, entry(kind, f'infinity = "{infinity}"\n'), sent)
    if expected is REFUSED:
        assert one == CastError("infinity")
        assert batch.failures == {1: "infinity"}
        assert (rows, reasons) == ([None], {"cast_error": 1})
        return
    assert one == expected
    assert (batch.values[1].as_py(), batch.failures) == (expected, {})
    assert (rows, reasons) == ([expected], {})


def test_a_change_that_cannot_be_cast_leaves_the_row_as_it_was(tmp_path: Path) -> None:
    """Its values and its version: an older change is older than that one still, a newer one wins."""
    lake, config = lake_in(tmp_path, entry("smallint"))
    apply_batch(lake, decoded(config, [change(20, "t", {"id": 1, "v": 7})]))
    bad = [change(30, "t", {"id": 1, "v": 70_000}), change(25, "t", {"id": 1, "v": 6, "id2": 1})]
    apply_batch(lake, decoded(config, bad[:1], first_line=2))
    read = ["id", "v", "_ts_ns", "_tx_id"]
    typed = lake.typed["public.t"]
    assert typed.file.read(read).to_pylist() == [{"id": 1, "v": 7, "_ts_ns": 20, "_tx_id": "t"}]
    applied = apply_batch(lake, decoded(config, [change(10, "t", {"id": 1, "v": 5})], first_line=3))
    assert applied.tables["public.t"]["stale"] == 1
    apply_batch(lake, decoded(config, bad[1:], first_line=4))
    assert typed.file.read(read).to_pylist() == [{"id": 1, "v": 6, "_ts_ns": 25, "_tx_id": "t"}]
    assert dict(lake.quarantine.counts_by("reason")) == {"cast_error": 1}
