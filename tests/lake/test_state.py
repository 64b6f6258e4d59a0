"""Tables of facts: each once, whatever is written again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.core.errors import ServiceFailure
from headpond.lake import delta
from headpond.lake.delta import DeltaFile
from headpond.lake.engine.folder import Folder
from headpond.lake.state.insert_once import FactTable, first_of_each
from headpond.lake.state.tombstones import HORIZON_KEY, TOMBSTONE_SCHEMA, Tombstones
from tests.kit.support import share_of

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema(
    [("shard", pa.string()), ("number", pa.int64()), ("reason", pa.string()), ("data", pa.binary())]
)
IDENTITY = ("shard", "number", "reason")


def facts(*rows: tuple[str, int, str]) -> pa.Table:
    return pa.table(
        {
            "shard": [row[0] for row in rows],
            "number": [row[1] for row in rows],
            "reason": [row[2] for row in rows],
            "data": [b"\x00\xff" for _ in rows],
        },
        schema=SCHEMA,
    )


def fact_table(folder: Path) -> FactTable:
    return FactTable(DeltaFile(str(folder)), SCHEMA, IDENTITY)


def test_a_fact_is_written_once(tmp_path: Path) -> None:
    """Repeats inside a batch, of a batch, and beside new rows add nothing."""
    table = fact_table(tmp_path / "t")
    assert table.add(facts(("a", 1, "x"), ("a", 1, "x"), ("a", 1, "y"))) == 2
    assert table.add(facts(("a", 1, "x"), ("a", 1, "y"))) == 0
    assert table.add(facts(("b", 1, "x"), ("a", 1, "x"))) == 1
    assert table.count() == 3
    assert table.counts_by("reason") == {"x": 2, "y": 1}


def test_a_table_not_there_yet_is_empty(tmp_path: Path) -> None:
    """Reading, counting and removing need no table; an empty write makes none."""
    table = fact_table(tmp_path / "t")
    assert table.add(facts()) == 0
    assert table.remove(facts(("a", 1, "x")), IDENTITY) == 0
    assert (table.count(), table.counts_by("reason"), table.read(["shard"]).num_rows) == (0, {}, 0)
    assert not (tmp_path / "t").exists()


def test_removed_facts_are_gone(tmp_path: Path) -> None:
    """Only rows that equal a given one in the named columns are removed."""
    table = fact_table(tmp_path / "t")
    table.add(facts(("a", 1, "x"), ("a", 1, "y"), ("b", 1, "x")))
    assert table.remove(facts(("a", 1, "?")), ("shard", "number")) == 2
    assert table.read(["shard"])["shard"].to_pylist() == ["b"]


@settings(max_examples=share_of(50))
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.sampled_from("xy")), max_size=30))
def test_the_first_of_each_identity_is_kept(rows: list[tuple[str, int, str]]) -> None:
    """The rows kept are the first of their kind, in order."""
    table = facts(*rows).set_column(3, "data", pa.array([b"%d" % i for i in range(len(rows))], pa.binary()))
    kept = first_of_each(table, IDENTITY).to_pylist()
    first = {row: i for i, row in reversed(list(enumerate(rows)))}
    assert [(row["shard"], row["number"], row["reason"]) for row in kept] == list(dict.fromkeys(rows))
    assert [int(row["data"]) for row in kept] == sorted(first.values())


def test_a_commit_that_loses_is_made_again(tmp_path: Path) -> None:
    """A handle that another writer overtook sees the other's rows and adds its own."""
    table = fact_table(tmp_path / "t")
    table.add(facts(("a", 1, "x")))
    write_deltalake(str(tmp_path / "t"), facts(("b", 2, "y")), mode="append")
    assert table.add(facts(("b", 2, "y"), ("c", 3, "z"))) == 1
    assert table.count() == 3


def test_a_commit_that_always_loses_ends_with_the_fact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the last attempt the error names the table and what to look for."""
    monkeypatch.setattr(delta, "FIRST_PAUSE_S", 0.0)
    table = fact_table(tmp_path / "t")
    table.add(facts(("a", 1, "x")))
    tries = []

    def refuse(*_args: object, **_kwargs: object) -> None:
        tries.append(1)
        raise FileExistsError

    monkeypatch.setattr(Folder, "put_new", refuse)
    with pytest.raises(ServiceFailure, match="faster, 10 times") as caught:
        table.add(facts(("b", 1, "x")))
    assert len(tries) == delta.COMMIT_ATTEMPTS
    assert caught.value.facts["table"] == str(tmp_path / "t")


def stones(*rows: tuple[str, str, int]) -> pa.Table:
    return pa.table(
        {
            "table": [row[0] for row in rows],
            "key": [row[1] for row in rows],
            "version": [row[2].to_bytes(8) for row in rows],
            "ts_ns": pa.array([row[2] for row in rows], pa.int64()),
            "tx_id": ["tx" for _ in rows],
        }
    )


def known(store: Tombstones, table: str, *keys: str) -> dict[str, int]:
    rows = store.of_keys(table, pa.array(keys, pa.string())).to_pylist()
    return {row["key"]: int.from_bytes(row["version"]) for row in rows}


def test_the_newest_tombstone_of_a_key_stays(tmp_path: Path) -> None:
    """Writing an older or an equal one changes nothing; tables do not see each other's."""
    store = Tombstones(DeltaFile(str(tmp_path / "t")))
    store.put(stones(("t", "[1]", 5), ("u", "[1]", 50)))
    store.put(stones(("t", "[1]", 3), ("t", "[2]", 4)))
    store.put(stones(("t", "[1]", 7)))
    store.put(stones(("t", "[1]", 7)))
    assert known(store, "t", "[1]", "[2]", "[3]") == {"[1]": 7, "[2]": 4}
    assert known(store, "u", "[1]") == {"[1]": 50}
    assert store.counts() == {"t": 2, "u": 1}
    assert store.file.schema().names == TOMBSTONE_SCHEMA.names


@pytest.mark.parametrize("count", [1, 300])
def test_tombstones_of_other_keys_are_looked_through_as_they_come(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of few keys and of many: what deletes of a week leave behind is not read whole for each batch."""
    store = Tombstones(DeltaFile(str(tmp_path / "t")))
    store.put(stones(*((table, f"[{n}]", n + 1) for n in range(1_000) for table in ("t", "u"))))
    monkeypatch.setattr(DeltaFile, "query", None)
    wanted = range(0, 2 * count, 2)
    assert known(store, "t", *(f"[{n}]" for n in wanted), '["it\'s"]') == {f"[{n}]": n + 1 for n in wanted}
    assert known(store, "t") == {}


def test_a_dropped_tombstone_is_gone(tmp_path: Path) -> None:
    """Keys that live again lose theirs, in their table alone."""
    store = Tombstones(DeltaFile(str(tmp_path / "t")))
    store.drop(stones(("t", "[1]", 5)))
    store.put(stones(("t", "[1]", 5), ("u", "[1]", 5)))
    store.drop(stones(("t", "[1]", 4)))
    assert known(store, "t", "[1]") == {"[1]": 5}
    store.drop(stones(("t", "[1]", 5)))
    assert (known(store, "t", "[1]"), known(store, "u", "[1]")) == ({}, {"[1]": 5})


def test_retired_tombstones_leave_a_horizon(tmp_path: Path) -> None:
    """The newest commit time dropped is kept per table, and only moves up."""
    store = Tombstones(DeltaFile(str(tmp_path / "t")))
    assert (store.retire(100), store.horizons_ns()) == (0, {})
    store.put(stones(("t", "[1]", 5), ("t", "[2]", 7), ("t", "[3]", 10), ("u", "[1]", 20)))
    assert store.newest_ns() == 20
    assert store.retire(10) == 2
    assert store.horizons_ns() == {"t": 7}
    assert store.retire(11) == 1
    assert Tombstones(DeltaFile(str(tmp_path / "t"))).horizons_ns()["t"] == 10
    assert store.counts() == {"u": 1}
    assert HORIZON_KEY not in known(store, "t", "[1]", "[2]", "[3]")


def test_a_transaction_number_never_falls_and_its_repeat_still_adds_what_is_missing(tmp_path: Path) -> None:
    """A commit under a number that the table has, or a lesser one, leaves the number and writes new rows."""
    table = fact_table(tmp_path / "t")
    table.add(facts(("a", 1, "x")), transaction=("query", 7))
    assert table.file.open().transaction_version("query") == 7
    assert table.file.open().transaction_version("another") is None
    assert table.add(facts(("a", 1, "x"), ("a", 2, "x")), transaction=("query", 7)) == 1
    assert table.add(facts(("a", 3, "x")), transaction=("query", 6)) == 1
    assert DeltaTable(tmp_path / "t").transaction_version("query") == 7
    assert table.add(facts(("a", 4, "x")), transaction=("query", 8)) == 1
    assert DeltaTable(tmp_path / "t").transaction_version("query") == 8
    assert table.count() == 4


def test_of_several_tombstones_of_a_key_the_newest_counts(tmp_path: Path) -> None:
    """Newer ones are appended; whatever overtakes the newest takes all of them away."""
    store = Tombstones(DeltaFile(str(tmp_path / "t")))
    for version in (5, 9, 7):
        assert store.put(stones(("t", "[1]", version), ("t", f"[{version}0]", 1))) == 2 - (version == 7)
    assert known(store, "t", "[1]") == {"[1]": 9}
    assert known(store, "t", "[1]", "[90]", "[4]") == {"[1]": 9, "[90]": 1}
    assert store.put(stones(("t", "[1]", 9), ("t", "[4]", 1))) == 1  # of fewer keys than were looked up
    assert store.counts() == {"t": 5}
    store.drop(stones(("t", "[1]", 8)))
    assert known(store, "t", "[1]") == {"[1]": 9}
    store.drop(stones(("t", "[1]", 9)))
    assert known(store, "t", "[1]") == {}
    for horizon in (100, 200):
        store.put(stones(("t", "[2]", horizon - 1)))
        store.retire(horizon)
        assert Tombstones(store.file).horizons_ns()["t"] == horizon - 1
