"""One source table in several forms at once: each is what it would be alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headpond.core.errors import ConfigurationError
from headpond.dsql.chunks import Chunks
from headpond.lake.apply import apply_batch
from tests.lake.lakes import decoded, lake_in
from tests.lake.test_pending import feed, group
from tests.lake.test_unknown_tables import change

if TYPE_CHECKING:
    from pathlib import Path

PLACE = 'schema = "public"\ntable = "orders"\n'
ENTRIES = {
    "public.orders": 'keys = ["id"]\ncolumns = { id = "bigint", v = "text" }\n',
    "history.orders": f'{PLACE}keys = ["id"]\nkeep = "history"\ncolumns = {{ id = "bigint" }}\n'
    'rename = { v = "value" }\n',
    "log.orders": f'{PLACE}keys = []\nexcept_columns = ["v"]\n',
}
NAMED = {name: f'[tables."{name}"]\n{text}' for name, text in ENTRIES.items()}
LINES = [
    change(1, "orders", {"id": 1, "v": "a"}),
    change(4, "orders", None, op="d", before={"id": 1}),
    change(2, "orders", {"id": 1, "v": "b"}),
    change(3, "orders", {"id": 2, "v": "c"}),
    change(5, "orders", {"id": "x", "v": "d"}, op="odd"),
    change(6, "orders", {"id": 3, "v": "e"}, op="odd"),
]


def rows(folder: Path, tables: str) -> tuple[dict[str, list[Any]], Any]:
    lake, config = lake_in(folder, tables)
    done = None
    for start in (0, 3):
        applied = apply_batch(lake, decoded(config, LINES[start : start + 3], first_line=start + 1, parts=2))
        done = applied if done is None else (done.add(applied), done)[1]
    found = {name: table.typed.file.read().to_pylist() for name, table in lake.tables.items()}
    return {name: sorted(each, key=repr) for name, each in found.items()}, (done, lake)


def test_each_form_is_what_it_would_be_alone(tmp_path: Path) -> None:
    """Rows, deletes, names and types; a record that no form takes is one in quarantine."""
    together, (done, lake) = rows(tmp_path / "all", "".join(NAMED.values()))
    for name, text in NAMED.items():
        alone, _ = rows(tmp_path / name, text)
        assert together[name] == alone[name], name
    assert [len(together[name]) for name in NAMED] == [2, 4, 6]
    assert lake.tombstones.counts() == {"public.orders": 1}
    assert dict(lake.deletes.counts()) == {"history.orders": 1}
    assert lake.quarantine.count() == done.quarantined["cast_error"] == 1
    assert done.counters["unknown_op"] == 1  # the one that was quarantined is not a change


def test_a_change_in_chunks_becomes_one_of_every_form(tmp_path: Path) -> None:
    """Once it is whole, and not twice when it is quarantined."""
    tables = NAMED["public.orders"] + NAMED["history.orders"]
    tables = tables.replace('"orders"', '"t"').replace("public.orders", "public.t")
    lake, config = lake_in(tmp_path, tables)
    chunks = Chunks(config, 3_600_000)
    feed(lake, chunks, [*group(1, {"id": 1, "v": "x" * 100}, 3), *group(2, {"id": "no", "v": "y" * 100}, 2)])
    counts = {name: table.typed.file.count() for name, table in lake.tables.items()}
    assert counts == {"public.t": 1, "history.orders": 1}
    assert lake.quarantine.counts_by("reason") == {"cast_error": 3}  # a main record and two fragments


def test_the_same_form_twice_is_a_slip(tmp_path: Path) -> None:
    """Whatever its name."""
    with pytest.raises(ConfigurationError, match="both keep the history of the table orders"):
        lake_in(tmp_path, NAMED["history.orders"] + NAMED["history.orders"].replace("history.", "old."))
