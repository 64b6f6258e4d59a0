"""Values that a key cannot have: what could not be told apart afterwards is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import pytest

from headpond.core.errors import ConfigurationError
from headpond.dsql.config import TableSpec
from headpond.dsql.decode import DsqlConfig
from headpond.dsql.pg_types import CastError, CastOptions, cast
from tests.dsql.driver import MemoryLake, records_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headpond.core.formats import Decoded

Infinity = Literal["clamp", "null", "error"]
INFINITIES: tuple[Infinity, ...] = ("clamp", "null", "error")

BEYOND = {
    "timestamp": [9223372036825200000, -9223372036832400000, 253402300800000000, -62135596800000001],
    "timestamptz": [9223372036825200000, -9223372036832400000, 253402300800000000, -62135596800000001],
    "date": [2147494604, -2147472691, 106751991167, -106751991168, 2932897, -719163],
    "numeric(5,2)": ["NaN", "Infinity", "-Infinity"],
    "real": ["NaN"],
    "double precision": ["NaN"],
}
"""Type → wire values of it that a key cannot have."""
LAST = {"timestamp": 253402300799999999, "timestamptz": 253402300799999999, "date": 2932896}


def change(after: Any, *, op: str = "c", before: Any = None, ts_ns: int = 5) -> bytes:
    source = {"version": "1.0", "ts_ns": ts_ns, "txId": "tx", "schema": "public", "table": "t"}
    return json.dumps({"type": "full", "op": op, "before": before, "after": after, "source": source}).encode()


def config_of(kind: str, keep: Any = "current", infinity: Infinity = "clamp") -> DsqlConfig:
    columns = {"k": kind, "n": "bigint"}
    spec = TableSpec(name="t", schema="public", table="t", keys=("n", "k"), columns=columns, keep=keep)
    return DsqlConfig(tables=(spec,), infinity=infinity, special_numeric="null")


def reasons(decoded: Decoded) -> list[str]:
    rows: list[Mapping[str, Any]] = decoded.quarantine.to_pylist()
    return [row["reason"] for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["current", "history"])
@pytest.mark.parametrize("infinity", INFINITIES)
@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind in BEYOND for value in BEYOND[kind]])
def test_a_key_that_cannot_be_held_is_a_cast_error(
    kind: str, value: Any, infinity: Infinity, keep: str
) -> None:
    """Whatever the options: upserts and deletes, one by one and in a batch with one that is fine."""
    config = config_of(kind, keep, infinity)
    fine = change({"k": "1" if kind.startswith("numeric") else 1, "n": 1})
    bad = change({"k": value, "n": 2})
    gone = change(None, op="d", before={"k": value, "n": 3})
    for records in ([bad], [gone], [fine, bad, gone, fine]):
        decoded = config.decode(records_of(*records))
        assert reasons(decoded) == ["cast_error"] * (len(records) - records.count(fine))
        assert all(row["detail"].startswith("columns k (") for row in decoded.quarantine.to_pylist())
        rows = decoded.tables["t"].to_pylist() if decoded.tables else []
        assert [row["c:n"] for row in rows] == [1] * records.count(fine)
        assert None not in [row["m:key"] for row in rows]


@pytest.mark.parametrize("kind", LAST)
@pytest.mark.parametrize("infinity", INFINITIES)
def test_a_change_of_an_infinite_key_leaves_that_of_the_last_day(kind: str, infinity: Infinity) -> None:
    """Clamped, the delete of the one would remove the other; the lake takes in what follows."""
    lake = MemoryLake(config_of(kind, infinity=infinity))
    for after in ({"k": LAST[kind], "n": 1}, {"k": BEYOND[kind][0], "n": 1}):
        lake.apply(lake.config.decode(records_of(change(after))))
    gone = change(None, op="d", before={"k": BEYOND[kind][0], "n": 1}, ts_ns=9)
    lake.apply(lake.config.decode(records_of(gone, change({"k": 0, "n": 2}))))
    assert sorted(row["c:n"] for row in lake.rows["t"].values()) == [1, 2]


@pytest.mark.parametrize("kind", ["numeric(5,2)", "timestamp", "date"])
def test_columns_beside_the_key_follow_the_options(kind: str) -> None:
    """As does a log, which merges nothing."""
    value = BEYOND[kind][0]
    columns = {"id": "bigint", "v": kind}
    spec = TableSpec(name="t", schema="public", table="t", keys=("id",), columns=columns)
    config = DsqlConfig(tables=(spec,), infinity="null", special_numeric="null")
    (row,) = config.decode(records_of(change({"id": 1, "v": value}))).tables["t"].to_pylist()
    assert row["c:v"] is None
    log = config_of(kind, "log", "null").decode(records_of(change({"k": value, "n": 1})))
    assert log.tables["t"].column("c:k").to_pylist() == [None]


@pytest.mark.parametrize("kind", ["real", "double precision"])
def test_both_zeros_are_one_key(kind: str) -> None:
    """As in PostgreSQL; the infinities are keys like others."""
    values = ["0.0", "-0.0", "0", "-0", "1.5", '"Infinity"', '"-Infinity"']
    records = [change({"k": "%", "n": 1}).replace(b'"%"', value.encode()) for value in values]
    rows = config_of(kind).decode(records_of(*records)).tables["t"].to_pylist()
    assert [row["m:key"] for row in rows] == ["[0.0,1]"] * 4 + ["[1.5,1]", '["inf",1]', '["-inf",1]']
    assert [str(row["c:k"]) for row in rows[:4]] == ["0.0"] * 4
    column = {"k": "bigint", "n": kind}
    spec = TableSpec(name="t", schema="public", table="t", keys=("k",), columns=column)
    (row,) = (
        DsqlConfig(tables=(spec,)).decode(records_of(change({"k": 1, "n": -0.0}))).tables["t"].to_pylist()
    )
    assert str(row["c:n"]) == "-0.0"


def test_the_scalar_cast_refuses_what_the_batch_refuses() -> None:
    """With the options that keys have; NaN is a value of floating point, and only keys refuse it."""
    strict = CastOptions(infinity="error", special_numeric="error")
    for kind, values in BEYOND.items():
        for value in values:
            found = cast(kind, json.dumps(value), strict)
            assert isinstance(found, CastError) or str(found) == "nan"


@pytest.mark.parametrize("keep", ["current", "history"])
def test_a_key_whose_values_are_not_sent_is_no_key(keep: Any) -> None:
    """An oidvector arrives empty whatever it holds."""
    with pytest.raises(ConfigurationError, match="the key 'k' of type oidvector"):
        config_of("oidvector", keep)
    assert config_of("oidvector", "log").tables[0].keys == ("n", "k")
