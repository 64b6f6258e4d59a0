"""What a table was made with: kept with it, compared, and continued where the file only adds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headpond.core.errors import ConfigurationError, InvalidData
from headpond.lake.apply import apply_batch
from headpond.lake.definition import PROPERTY
from headpond.lake.delta import DeltaFile
from headpond.lake.maintenance.rebuild import rebuild
from headpond.pipeline import load
from headpond.pipeline.lake import open_lake
from tests.lake.lakes import decoded, lake_in
from tests.lake.test_rebuild import T, change, entry, filled, rows_of

if TYPE_CHECKING:
    from headpond.lake.tables import Lake

FIXTURES = Path(__file__).parent.parent / "fixtures"
ENTRY: dict[str, Any] = {"keys": ["org", "id"], "columns": {"id": "integer", "org": "integer", "t": "text"}}
A, B = "00000000-0000-0000-0000-0000000000AB", "00000000-0000-0000-0000-0000000000ab"


def properties(lake: Lake) -> dict[str, str]:
    """The properties of the table."""
    found = lake.typed[T].file.engine.log.newest().properties
    return dict(found)


def test_a_table_says_what_it_was_made_with(tmp_path: Path) -> None:
    """As the page of the lake has it."""
    lake, _ = lake_in(tmp_path, entry(**ENTRY, rename={"o": "org"}, except_columns=["x"]))
    assert json.loads(properties(lake)[PROPERTY]) == {
        "version": 1, "source": ["public", "t"], "form": "current", "keys": ["org", "id"],
        "columns": ENTRY["columns"], "rename": {"o": "org"}, "except_columns": ["x"], "timestamps": "ntz",
        "key_rule": 2, "rebuilt": 0, "key_epoch": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("other", "made", "wanted"),
    [
        ({"keys": ["org"]}, 'keys = ["org", "id"]', 'keys = ["org"]'),
        ({"columns": ENTRY["columns"] | {"id": "bigint"}}, 'id = "integer"', 'id = "bigint"'),
        ({"columns": ENTRY["columns"] | {"t": "any"}}, 't = "text"', 't = "any"'),
        ({"columns": ENTRY["columns"] | {"seen": "integer"}}, "seen undeclared", 'seen = "integer"'),
        ({"rename": {"seen": "new"}}, "the column seen", "the column new"),
        ({"except_columns": ["seen"]}, "the column seen", 'except_columns = ["seen"]'),
        ({"deletes": "soft"}, 'deletes = "hard"', 'deletes = "soft"'),
        ({"keep": "history"}, 'keep = "current"', 'keep = "history"'),
        ({"table": "u", "schema": "public"}, "the source table public.t", "the source table public.u"),
    ],
)
def test_another_definition_is_refused_with_both_sides_and_nothing_is_written(
    other: dict[str, Any], made: str, wanted: str, tmp_path: Path
) -> None:
    """And with the command that makes it so."""
    lake = filled(tmp_path, entry(**ENTRY), [change(1, {"id": 1, "org": 1, "t": "x", "seen": 3})])
    version = lake.typed[T].file.version()
    with pytest.raises(ConfigurationError, match="headpond rebuild FILE") as refused:
        lake_in(tmp_path, entry(**ENTRY | other))
    assert (refused.value.facts["expected"], refused.value.facts["found"]) == ([made], [wanted])
    assert lake.typed[T].file.version() == version
    lake_in(tmp_path, entry(**ENTRY))


@pytest.mark.parametrize(
    "other",
    [
        {"keys": ["id", "org"]},
        {"columns": ENTRY["columns"] | {"more": "date"}},
        {"columns": ENTRY["columns"] | {"t": "varchar(9)"}},
        {"columns": {"id": "integer", "org": "integer"}},  # it stays what it is
        {"rename": {"never": "seen"}},
        {"except_columns": ["never"]},
        {"target_file_size": "4 MiB"},
    ],
)
def test_what_only_adds_goes_on_without_a_rebuild(other: dict[str, Any], tmp_path: Path) -> None:
    """And is noted; rows and changes meet as before."""
    first = [
        change(1, {"id": 1, "org": 2, "t": "x"}),
        change(2, {"id": 2, "org": 1}),
        change(3, {"id": 2, "org": 1}, op="d"),
    ]
    filled(tmp_path, entry(**ENTRY), first)
    lake, _ = lake_in(tmp_path, entry(**ENTRY | other))
    more = [change(4, {"id": 1, "org": 2, "t": "y"}), change(2, {"id": 2, "org": 1, "t": "late"})]
    apply_batch(lake, decoded(lake.config, more))  # type: ignore[arg-type]
    (row,) = rows_of(lake)
    assert (row["id"], row["t"], row["_ts_ns"]) == (1, "y", 4)
    said = json.loads(properties(lake)[PROPERTY])
    assert said["columns"] == ENTRY["columns"] | other.get("columns", {})
    assert lake_in(tmp_path, entry(**ENTRY))[0].typed[T].file.exists() or "columns" in other


def test_a_definition_of_a_later_headpond_is_not_touched(tmp_path: Path) -> None:
    """Nor one that is not a definition."""
    lake, _ = lake_in(tmp_path, entry(**ENTRY))
    file = lake.typed[T].file
    file.alter({PROPERTY: '{"version": 2, "source": ["t"], "form": "x"}'})
    with pytest.raises(ConfigurationError, match="knows versions up to 1"):
        lake_in(tmp_path, entry(**ENTRY))
    file.alter({PROPERTY: "[]"})
    with pytest.raises(InvalidData, match="is not a table's definition"):
        lake_in(tmp_path, entry(**ENTRY))


@pytest.mark.parametrize("more", [{}, {"buckets": 4}, {"keep": "history"}])
def test_the_order_of_keys_does_not_matter(more: dict[str, Any], tmp_path: Path) -> None:
    """A deleted row stays deleted, and a key has one row, whatever the order in the file."""
    deleted = [
        change(1, {"id": 1, "org": 2}),
        change(5, {"id": 1, "org": 2}, op="d"),
        change(3, {"id": 3, "org": 4}),
    ]
    filled(tmp_path, entry(**ENTRY, **more), deleted)
    lake, _ = lake_in(tmp_path, entry(**ENTRY | {"keys": ["id", "org"]}, **more))
    apply_batch(lake, decoded(lake.config, [change(2, {"id": 1, "org": 2}), change(6, {"id": 3, "org": 4})]))  # type: ignore[arg-type]
    open_rows = [row for row in rows_of(lake) if row.get("_valid_to_ns") is None]
    assert [(row["id"], row["_ts_ns"]) for row in open_rows] == [(3, 6)]


LOOSE: dict[str, Any] = {"keys": ["u", "n"], "columns": {"u": "uuid", "n": "numeric"}}
LOOSE_CHANGES = [
    change(1, {"u": A, "n": "1.0", "v": 1}),
    change(2, {"u": A, "n": "2.50", "v": 1}),
    change(4, {"u": A, "n": "2.50"}, op="d"),
]
OTHERWISE = [change(5, {"u": B, "n": "1.00", "v": 2}), change(3, {"u": B, "n": "2.5", "v": 3})]


def test_values_that_are_one_key_are_one_key(tmp_path: Path) -> None:
    """A UUID in whatever case, a numeric with whatever digits: in the table and among deletes."""
    lake = filled(tmp_path, entry(**LOOSE), LOOSE_CHANGES)
    apply_batch(lake, decoded(lake.config, OTHERWISE))  # type: ignore[arg-type]
    (row,) = rows_of(lake)
    assert (row["u"], row["n"], row["v"]) == (B, "1", "2")
    assert lake.tombstones.counts() == {T: 1}


def test_an_old_table_goes_on_by_its_own_rule_until_it_is_rebuilt(tmp_path: Path) -> None:
    """Rows and deletes of a lake that version 0.1 wrote are found as before, whatever order the file has."""
    folder = tmp_path / "moved"
    shutil.copytree(FIXTURES / "keys-v0.1", folder)
    text = (folder / "pipeline.toml").read_text()

    def lake_of(text: str) -> Lake:
        (folder / "pipeline.toml").write_text(text)
        return open_lake(load(folder / "pipeline.toml"))

    def fed(lake: Lake, *lines: tuple[int, dict[str, Any]]) -> None:
        lake.prepare()
        for ts_ns, row in lines:
            both = (change(ts_ns, row, table=table) for table in ("t", "h"))
            apply_batch(lake, decoded(lake.config, list(both)))  # type: ignore[arg-type]

    def shown(lake: Lake) -> list[Any]:
        past = lake.typed["history.t"].file.read().to_pylist()
        spans = sorted((row["n"], row["_ts_ns"], row["_valid_to_ns"]) for row in past)
        return [[(row["u"], row["n"], row["v"]) for row in rows_of(lake)], spans]

    lake_of(text).prepare()  # whoever starts it first says what its keys were
    lake = lake_of(text.replace('["u", "n"]', '["n", "u"]'))
    fed(lake, (5, {"u": A, "n": "1.0", "v": 9}), (3, {"u": A, "n": "2.50", "v": 9}))
    for typed in lake.typed.values():
        said = json.loads(typed.file.engine.log.newest().properties[PROPERTY])
        assert (said["key_rule"], said["keys"]) == (1, ["u", "n"])
    assert shown(lake) == [
        [(A, "1.0", "9")],
        [("1.0", 1, 5), ("1.0", 5, None), ("2.50", 2, 3), ("2.50", 3, 4)],
    ]
    for name in (T, "history.t"):
        done = rebuild(lake_of(text), name)
        assert done.written
        assert done.differences[0].wanted == "values of u in one spelling"
    lake = lake_of(text)
    fed(lake, (6, {"u": B, "n": "1.00", "v": 2}), (3, {"u": B, "n": "2.5", "v": 3}))
    assert json.loads(properties(lake)[PROPERTY])["key_rule"] == 2
    spans = [("1", 1, 5), ("1", 5, 6), ("1", 6, None), ("2.5", 2, 3), ("2.5", 3, 4)]
    assert shown(lake) == [[(B, "1", "2")], spans]


def test_a_lake_of_version_0_1_gets_its_definitions_and_can_be_rebuilt(tmp_path: Path) -> None:
    """From what is there; the tables stay as they are until then."""
    folder = tmp_path / "moved"
    shutil.copytree(FIXTURES / "v0.1", folder)
    lake = open_lake(load(folder / "pipeline.toml"))
    before = {name: typed.file.read().num_rows for name, typed in lake.typed.items()}
    lake.prepare()
    for name, typed in lake.typed.items():
        said = json.loads(typed.file.engine.log.newest().properties[PROPERTY])
        assert said["keys"] == list(lake.tables[name].entry.keys)
        assert said["form"] == lake.tables[name].entry.form
    text = (folder / "pipeline.toml").read_text()
    name = "public.order_items"
    (folder / "pipeline.toml").write_text(
        text.replace(f'[tables."{name}"]\n', f'[tables."{name}"]\nbuckets = 2\n')
    )
    other = open_lake(load(folder / "pipeline.toml"))
    assert rebuild(other, name).written
    lake = open_lake(load(folder / "pipeline.toml"))
    lake.prepare()
    assert {name: typed.file.read().num_rows for name, typed in lake.typed.items()} == before


def test_a_table_without_any_property_takes_the_keys_of_its_first_start(tmp_path: Path) -> None:
    """The oldest tables do not say what their keys are."""
    lake, _ = lake_in(tmp_path, entry(**ENTRY))
    log = DeltaFile(lake.typed[T].file.uri).engine.log
    snapshot = log.newest()
    log.commit(snapshot, [{"metaData": {**snapshot.metadata, "configuration": {}}}])
    lake, _ = lake_in(tmp_path, entry(**ENTRY))
    assert json.loads(properties(lake)[PROPERTY])["keys"] == ["org", "id"]
    with pytest.raises(ConfigurationError, match="was made with keys"):
        lake_in(tmp_path, entry(**ENTRY | {"keys": ["id"]}))
