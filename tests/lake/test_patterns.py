"""Entries that stand for all tables that match: made on the first change, found again, none mistaken."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headpond.api.checking import checks_of
from headpond.cli.commands.suggest import propose
from headpond.core.errors import ConfigurationError
from headpond.core.patterns import parts_of
from headpond.dsql.config import TableSpec
from headpond.dsql.decode import DsqlConfig
from headpond.lake.apply import apply_batch
from headpond.lake.maintenance.bootstrap import Bootstrap, ParquetSource
from headpond.lake.maintenance.regular import DAY_MS, TIDY_MS, Maintenance
from headpond.lake.reports import freshness, lake_summary
from headpond.pipeline import Pipeline, loads
from headpond.pipeline.lake import open_lake
from tests.lake.lakes import cells, decoded, lake_in, watched
from tests.lake.ledgers import decoded as decoded_revisions
from tests.lake.ledgers import revision
from tests.lake.test_unknown_tables import HOSTILE, Crash, change

if TYPE_CHECKING:
    from headpond.lake.tables import Lake

PATTERN = '[tables."public.*"]\nkeys = ["id"]\ncolumns = { id = "bigint" }\n'


def ids(lake: Lake, name: str) -> list[Any]:
    return sorted(lake.typed[name].file.read(["id"])["id"].to_pylist())


def test_a_table_is_made_by_its_first_change_and_found_by_every_later_start(tmp_path: Path) -> None:
    """Deletes and late changes included; tables of other schemas are not configured."""
    lake, config = lake_in(tmp_path, PATTERN)
    assert lake.tables == {}
    lines = [
        change(1, "orders", {"id": 1, "v": "x"}),
        change(3, "orders", None, op="d", before={"id": 1}),
        change(4, "items", {"id": 5}),
        change(5, "orders", {"id": 2}),
        change(6, "orders", {"id": 1}, schema="other"),
    ]
    batch = decoded(config, lines, parts=2)
    applied = apply_batch(lake, batch)
    assert applied.tables["public.orders"]["upserts"] == 1
    assert applied.quarantined == {"unknown_table": 1}
    again = apply_batch(lake, batch)
    assert again.tables["public.items"]["upserts"] == 0
    lake, config = lake_in(tmp_path, PATTERN)
    assert sorted(lake.tables) == ["public.items", "public.orders"]
    assert set(lake_summary(lake)["tables"]) == set(freshness(lake, {})) == set(lake.tables)
    apply_batch(lake, decoded(config, [change(2, "orders", {"id": 1}), change(7, "orders", {"id": 3})]))
    assert (ids(lake, "public.orders"), ids(lake, "public.items")) == ([2, 3], [5])
    rows = lake.extras.schema_changes.of_tables(["public.orders"]).to_pylist()
    assert {(row["column"], row["value_type"]) for row in rows} >= {("id", "number"), ("v", "string")}


@pytest.mark.parametrize(
    ("tables", "name", "keep"),
    [
        ('[tables."public.orders"]\nkeys = ["id"]\nkeep = "history"\n', "public.orders", "history"),
        ('[tables."mine"]\nschema = "public"\ntable = "orders"\nkeys = ["id"]\n', "mine", "current"),
        ('[tables."public.o*"]\nkeys = ["id"]\nkeep = "history"\n', "public.orders", "history"),
        ('[tables."*.*"]\nkeys = []\n', "public.orders", "current"),
        ('[tables."copy.*"]\nschema = "public"\ntable = "ord*"\nkeys = ["id"]\n', "copy.ers", "current"),
    ],
)
def test_an_exact_entry_counts_before_patterns_and_a_long_one_before_short_ones(
    tables: str, name: str, keep: str, tmp_path: Path
) -> None:
    """In whatever order they are written."""
    for number, text in enumerate((PATTERN + tables, tables + PATTERN)):
        lake, config = lake_in(tmp_path / str(number), text)
        apply_batch(lake, decoded(config, [change(1, "orders", {"id": 1})]))
        made = {name: table for name, table in lake.tables.items() if table.typed.file.exists()}
        assert {name: table.keep for name, table in made.items()} == {name: keep}


def test_entries_of_one_pattern_keep_each_table_in_several_forms(tmp_path: Path) -> None:
    """Current rows by the table's own name, its history under another."""
    history = '[tables."history.*"]\nschema = "public"\ntable = "*"\nkeys = ["id"]\nkeep = "history"\n'
    lake, config = lake_in(tmp_path, PATTERN + history)
    apply_batch(lake, decoded(config, [change(n, "orders", {"id": 1}) for n in (1, 2)]))
    lake, _ = lake_in(tmp_path, PATTERN + history)
    counts = {name: table.typed.file.count() for name, table in lake.tables.items()}
    assert counts == {"public.orders": 1, "history.orders": 2}


def test_a_pattern_that_comes_later_is_for_tables_that_are_there_too(tmp_path: Path) -> None:
    """Another form beside the first, by a pattern; an entry of its own ends both."""
    history = '[tables."history.*"]\nschema = "public"\ntable = "*"\nkeys = ["id"]\nkeep = "history"\n'
    lake, config = lake_in(tmp_path, PATTERN)
    apply_batch(lake, decoded(config, [change(1, "orders", {"id": 1})]))
    lake, _ = lake_in(tmp_path, PATTERN + history)
    apply_batch(lake, decoded(lake.config, [change(2, "orders", {"id": 1})]))
    counts = {name: table.typed.file.count() for name, table in lake.tables.items()}
    assert counts == {"public.orders": 1, "history.orders": 1}
    exact = '[tables."public.orders"]\nkeys = ["id"]\ncolumns = { id = "bigint" }\n'
    lake, _ = lake_in(tmp_path, PATTERN + history + exact)
    apply_batch(lake, decoded(lake.config, [change(3, "orders", {"id": 2})]))
    assert (ids(lake, "public.orders"), list(lake.tables)) == ([1, 2], ["public.orders"])


STAGES = ["tables that patterns stand for", "quarantine", "table public.a", "table public.b"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_crash_between_two_writes_is_healed_by_the_repeat(stage: str, tmp_path: Path) -> None:
    """Listed or not, made or not."""
    lake, config = lake_in(tmp_path, PATTERN)
    batch = decoded(config, [change(1, "a", {"id": 1}), change(2, "b", {"id": 2})])

    def die(name: str) -> None:
        if name == stage:
            raise Crash

    with pytest.raises(Crash):
        apply_batch(watched(lake, die), batch)
    lake, _ = lake_in(tmp_path, PATTERN)
    apply_batch(lake, batch)
    assert (ids(lake, "public.a"), ids(lake, "public.b")) == ([1], [2])


def test_a_table_that_is_listed_and_not_made_is_made_at_the_next_start(tmp_path: Path) -> None:
    """The list stands, the table does not."""
    lake, _ = lake_in(tmp_path, PATTERN)
    lake.take_in(["public.a"])
    lake.made.add(lake.made.schema.empty_table().from_pylist([{"name": "public.a"}], lake.made.schema))
    lake, _ = lake_in(tmp_path, PATTERN)
    assert lake.typed["public.a"].file.exists()


def test_a_table_that_is_gone_is_missed(tmp_path: Path) -> None:
    """As a table with an entry of its own is."""
    lake, config = lake_in(tmp_path, PATTERN)
    apply_batch(lake, decoded(config, [change(1, "a", {"id": 1})]))
    shutil.rmtree(lake.place_of("public.a"))
    with pytest.raises(ConfigurationError, match=r"had the table 'public\.a'.* at its last start"):
        lake_in(tmp_path, PATTERN)


def test_a_table_that_had_an_entry_is_found_by_a_pattern(tmp_path: Path) -> None:
    """And checked against it before anything is read."""
    exact = '[tables."public.orders"]\nkeys = ["id"]\ncolumns = { id = "bigint" }\n'
    lake, config = lake_in(tmp_path, exact)
    apply_batch(lake, decoded(config, [change(1, "orders", {"id": 1})]))
    lake, _ = lake_in(tmp_path, PATTERN)
    assert ids(lake, "public.orders") == [1]
    with pytest.raises(ConfigurationError, match="was made with keys"):
        lake_in(tmp_path, PATTERN.replace('["id"]', '["id", "k"]'))


@pytest.mark.slow
def test_nothing_leaves_the_lake_whatever_a_table_is_called(tmp_path: Path) -> None:
    """Each of the hostile names has a table of its own, found again, or its change is in quarantine."""
    text = '[defaults]\nkeys = ["n"]\n[tables."*.*"]\n'
    lake, config = lake_in(tmp_path / "inside", text)
    lines = [change(n, table, {"n": n}, schema=schema) for n, (schema, table) in enumerate(HOSTILE, start=1)]
    batch = decoded(config, lines)
    applied = apply_batch(lake, batch)
    assert [path.name for path in tmp_path.iterdir()] == ["inside"]
    assert [path.name for path in (tmp_path / "inside").iterdir()] == ["lake"]
    lake, _ = lake_in(tmp_path / "inside", text)
    assert len(lake.tables) + applied.quarantined["unknown_table"] == len(HOSTILE)
    assert applied.quarantined["unknown_table"] == 2  # longer than a folder's name may be
    found = {
        table.entry.place: table.typed.file.read(["n"])["n"].to_pylist() for table in lake.tables.values()
    }
    assert found == {place: [str(n)] for n, place in enumerate(HOSTILE, start=1) if place in found}


NAMES = st.text(st.sampled_from("ab._*%:/ é"), max_size=6)


@given(schema=NAMES, table=NAMES)
def test_a_name_says_which_table_it_is_of(schema: str, table: str) -> None:
    """There and back, for every pattern, and never another pattern's table."""
    patterns = tuple(
        TableSpec(
            name=name, schema=name.split(".")[0], table=name.split(".")[1], keys=("id",), buckets=len(name)
        )
        for name in ("*.*", "a*.*", "a.*", "*b.a*b*")
    )
    config = DsqlConfig(tables=(), patterns=patterns)
    (entry,) = config.entries_of([(schema, table)])[schema, table]
    assert entry.place == (schema, table)
    assert config.entry(entry.name) == entry
    matching = [
        p for p in patterns if parts_of(schema, p.schema) is not None and parts_of(table, p.table) is not None
    ]
    assert entry.keys == max(matching, key=lambda p: len(p.name)).keys


def test_more_tables_than_the_bound_go_to_quarantine_with_their_bytes(tmp_path: Path) -> None:
    """Also where decoders keep no bytes of changes of tables that they know."""
    lake, config = lake_in(tmp_path, "max_unknown_tables = 2\n" + PATTERN)
    lines = [change(n, f"t{n}", {"id": n}) for n in range(1, 5)]
    config = config.for_run(only=None, keep_data=False)
    applied = apply_batch(lake, decoded(config, lines))
    assert sorted(lake.tables) == ["public.t1", "public.t2"]
    rows = lake.quarantine.read(["reason", "detail", "data"]).to_pylist()
    assert [row["reason"] for row in rows] == ["unknown_table"] * 2 == [*applied.quarantined.elements()]
    assert "matches a pattern, but patterns made 2 tables already" in rows[0]["detail"]
    assert all(row["data"] for row in rows)


def test_a_table_whose_folder_is_another_ones_goes_to_quarantine(tmp_path: Path) -> None:
    """Where a file system does not tell names apart that differ in case; the run goes on, and others too."""
    lake, config = lake_in(tmp_path, PATTERN)
    apply_batch(lake, decoded(config, [change(1, "orders", {"id": 1})]))
    Path(lake.place_of("public.Orders")).symlink_to("public.orders")
    lines = [change(2, "Orders", {"id": 2}), change(3, "orders", {"id": 3}), change(4, "items", {"id": 4})]
    applied = apply_batch(lake, decoded(config, lines))
    assert (ids(lake, "public.orders"), ids(lake, "public.items")) == ([1, 3], [4])
    assert applied.quarantined == {"unknown_table": 1}
    (row,) = lake.quarantine.read(["detail"]).to_pylist()
    assert row["detail"] == "public.Orders matches a pattern, but its folder is that of public.orders"


def test_logs_of_other_tables_cost_a_pattern_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made as ever, and no batch of theirs looks for tables of patterns."""
    lake, config = lake_in(tmp_path, 'unknown_tables = "log"\n[tables."*.*_item"]\nkeys = ["id"]\n')
    monkeypatch.setattr(lake, "make", None)
    monkeypatch.setattr(lake, "look", None)
    apply_batch(lake, decoded(config, [change(1, "orders", {"id": 1}, schema="unknown")]))
    assert sorted(lake.extras.logs) == ["unknown:unknown.orders"]


def test_two_writers_and_maintenance_agree_on_the_tables(tmp_path: Path) -> None:
    """Whoever did not make a table finds it."""
    one, config = lake_in(tmp_path, PATTERN)
    other, _ = lake_in(tmp_path, PATTERN)
    one.leave_tidying()
    apply_batch(one, decoded(config, [change(1, "a", {"id": 1}), change(2, "b", {"id": 2})]))
    apply_batch(other, decoded(config, [change(2, "b", {"id": 2}), change(3, "c", {"id": 3})]))
    apply_batch(one, decoded(config, [change(n, "c", {"id": n}) for n in (3, 4)]))
    assert ids(one, "public.c") == [3, 4]
    assert not one.typed["public.c"].file.tidies
    now = [10**12]
    beside, _ = lake_in(tmp_path / "elsewhere", PATTERN)
    beside.path, beside.made = one.path, one.made
    Maintenance(beside, nullcontext, retain_ms=7 * DAY_MS, now_ms=lambda: now[0] + TIDY_MS).do_due()
    beside.look()
    assert sorted(beside.tables) == ["public.a", "public.b", "public.c"]


def test_a_summary_has_the_tables_that_were_made_since_the_lake_was_opened(tmp_path: Path) -> None:
    """As `headpond run` opens it before its query does: by patterns, and logs of unknown tables."""
    text = 'unknown_tables = "log"\n' + PATTERN
    before, _ = lake_in(tmp_path, text)
    lake, config = lake_in(tmp_path, text)
    lines = [change(1, "a", {"id": 1}), change(2, "b", {"id": 1}, schema="other")]
    applied = apply_batch(lake, decoded(config, lines))
    said = lake_summary(before, applied)
    assert {name: (each["rows"], each["upserts"]) for name, each in said["tables"].items()} == {
        "public.a": (1, 1)
    }
    assert {name: each["appended"] for name, each in said["unknown_tables"].items()} == {"other.b": 1}


def test_a_pattern_is_loaded_into_by_the_name_of_a_table(tmp_path: Path) -> None:
    """A first load comes before the first change."""
    pq.write_table(pa.table({"id": pa.array([1, 2], pa.int64())}), tmp_path / "rows.parquet")
    lake, config = lake_in(tmp_path, PATTERN)
    Bootstrap(lake, "public.orders", ParquetSource([str(tmp_path / "rows.parquet")], {}), 5).load()
    lake, config = lake_in(tmp_path, PATTERN)
    apply_batch(lake, decoded(config, [change(6, "orders", None, op="d", before={"id": 1})]))
    assert ids(lake, "public.orders") == [2]


def test_check_and_suggest_know_what_a_pattern_stands_for(tmp_path: Path) -> None:
    """By name."""
    text = f'[source]\narchive = "x.jsonl"\nformat = "dsql"\n[target]\npath = "lake"\n{PATTERN}'
    (tmp_path / "x.jsonl").write_bytes(
        b"\n".join([change(1, "orders", {"id": 1}), change(2, "x", {"id": 1}, schema="other")]) + b"\n"
    )
    pipeline = loads(text, tmp_path)
    said, held = dict(checks_of(pipeline))["records"]()
    assert said == "2 read and decoded. Patterns match public.orders."
    assert "1 unknown_table" in held[0]
    proposal, written = propose(pipeline, 10, lambda _: None)
    assert {name: table["configured_as"] for name, table in proposal["tables"].items()} == {
        "public.orders": "public.orders",
        "other.x": None,
    }
    assert 'this table already has an entry: "public.orders"' in written


def test_a_summary_for_executors_knows_the_types_of_a_pattern(tmp_path: Path) -> None:
    """Declared columns are not text, of which the first byte would be looked at."""
    _, config = lake_in(tmp_path, PATTERN)
    frame = cells(config, [change(1, "orders", {"id": 1})], summary=True)
    assert frame["kind"].to_pylist().count("shown") == 1


def test_a_pattern_of_a_ledger_needs_nothing(tmp_path: Path) -> None:
    """Neither keys nor types; two entries keep two forms."""
    text = '[source]\narchive = "x.ion"\nformat = "qldb"\n[target]\npath = "lake"\n[defaults]\nbuckets = 2\n'
    text += '[tables."*"]\n[tables."history.*"]\ntable = "*"\nkeep = "history"\n'
    lake = open_lake(loads(text, tmp_path))
    lake.prepare()
    batch = decoded_revisions(
        lake.config, [revision(t, n, f"{{v: {n}}}", table=t) for n in (0, 1) for t in "AB"]
    )
    apply_batch(lake, batch)
    lake = open_lake(loads(text, tmp_path))
    lake.prepare()
    counts = {name: table.typed.file.count() for name, table in lake.tables.items()}
    assert counts == {"A": 1, "B": 1, "history.A": 2, "history.B": 2}
    assert lake.typed["A"].buckets == 2


def test_keywords_have_defaults_too() -> None:
    """As a file has them."""
    pipeline = Pipeline(
        source={"stream": "s", "format": "dsql"},
        target="lake",
        defaults={"keys": ["id"], "deletes": "soft", "buckets": 4},
        tables={"public.*": {}, "public.log": {"keys": []}, "public.h": {"stored_as_scd_type": 2}},
    )
    found = {table.name: (table.keys, table.keep, table.deletes, table.buckets) for table in pipeline.tables}
    assert found == {
        "public.*": (("id",), "current", "soft", 4),
        "public.log": ((), "log", "hard", None),
        "public.h": (("id",), "history", "hard", 4),
    }
