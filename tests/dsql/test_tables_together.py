"""The tables of a batch are typed together: what that gives, and that a table costs little by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headpond.core.formats import Decoded
from headpond.dsql import versions
from headpond.dsql.config import TableSpec
from headpond.dsql.decode import DsqlConfig
from tests.dsql.driver import records_of
from tests.dsql.test_decode import change

if TYPE_CHECKING:
    import pytest

ENTRIES = {
    "plain": {"keys": ("id",), "columns": {"id": "bigint", "n": "numeric(6,2)"}},
    "other": {"keys": ("id",), "columns": {"id": "text", "n": "bigint", "x": "json"}},
    "renamed": {"keys": ("key",), "columns": {"key": "bigint"}, "rename": {"id": "key", "x": "n"}},
    "short": {"keys": ("id",), "columns": {"id": "any"}, "except_columns": ("x",)},
    "log": {"keys": (), "keep": "log", "dedupe": "content"},
    "utc": {"keys": ("id", "n"), "columns": {"n": "timestamp"}, "timestamps": "utc", "keep": "history"},
}
VALUES = st.sampled_from(
    [None, 1, -7, 10**30, "1.50", "tt", "é\n", "NaN", True, 1.5, [1, {"b": 1, "a": "\\/"}]]
)
IMAGES = st.dictionaries(st.sampled_from(["id", "n", "x", "y"]), VALUES)
CHANGES = st.tuples(st.sampled_from([*ENTRIES, "unknown"]), st.sampled_from("cud"), IMAGES)


def config(*, forms: bool) -> DsqlConfig:
    entries: list[dict[str, Any]] = [
        {"name": table, "table": table, **entry} for table, entry in ENTRIES.items()
    ]
    if forms:
        entries.append({"name": "again", "table": "plain", "keys": ("id",), "keep": "history"})
    tables = tuple(TableSpec(schema="public", **entry) for entry in entries)
    return DsqlConfig(tables=tables, unknown_tables="log", keep_data=False)


def outcome(decoded: Decoded) -> tuple[dict[str, Any], list[Any], Any]:
    for rows in decoded.tables.values():
        rows.validate(full=True)
    tables = {name: (rows.schema.names, rows.to_pylist()) for name, rows in decoded.tables.items()}
    return tables, sorted(map(repr, decoded.quarantine.to_pylist())), decoded.newest


@given(st.lists(CHANGES, max_size=30), st.booleans())
def test_a_table_gets_what_it_gets_alone(changes: list[tuple[str, str, dict[str, Any]]], forms: bool) -> None:  # noqa: FBT001 - drawn
    """Rows, columns, hashes, quarantine and the newest change, whatever is in the batch beside them."""
    rules = config(forms=forms)
    records = records_of(
        *(
            change(
                op, **{"before" if op == "d" else "after": image}, source={"ts_ns": number, "table": table}
            )
            for number, (table, op, image) in enumerate(changes)
        )
    )
    tables: dict[str, Any] = {}
    quarantine: list[Any] = []
    newest: dict[str, Any] = {}
    for table in dict.fromkeys(table for table, _, _ in changes):
        mine = records.filter(pa.array([each == table for each, _, _ in changes]))
        rows, refused, times = outcome(rules.decode(mine))
        tables |= rows
        quarantine += refused
        newest |= times
    assert outcome(rules.decode(records)) == (tables, sorted(quarantine), newest)


def test_columns_of_one_type_are_cast_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred tables take as many casts as they have types: by itself each column costs the same."""
    casts: list[int] = []

    def counted(kind: Any, tokens: pa.Array, *rest: Any) -> Any:
        casts.append(len(tokens))
        return plain(kind, tokens, *rest)

    plain = versions.cast_column
    monkeypatch.setattr(versions, "cast_column", counted)
    columns = {"id": "bigint", "a": "integer", "b": "text", "c": "integer"}
    names = [f"t{number}" for number in range(100)]
    tables = tuple(TableSpec(name=n, schema="public", table=n, keys=("id",), columns=columns) for n in names)
    images = [{"id": number, "a": 1, "b": "x", "c": 2} for number in range(100)]
    records = records_of(
        *(change(after=image, source={"table": n}) for n, image in zip(names, images, strict=True))
    )
    decoded = DsqlConfig(tables=tables).decode(records)
    assert sorted(casts) == [100, 100, 200]
    assert [decoded.tables[name]["c:id"].to_pylist() for name in names] == [[n] for n in range(100)]
