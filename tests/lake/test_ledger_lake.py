"""QLDB records into current tables and histories: any order, cut or repeat, and a stop at every write."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headpond.lake.apply import apply_batch
from tests.kit.support import share_of
from tests.lake.lakes import watched
from tests.lake.ledgers import (
    TABLES,
    block,
    config_of,
    datums,
    decoded,
    expected_state,
    ledger_in,
    revision,
    rows_of,
    state_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from headpond.lake.tables import Lake
    from headpond.qldb.decode import LedgerConfig


class StopHereError(Exception):
    """The world ends."""


def applied(folder: Path, config: LedgerConfig, *batches: Sequence[bytes]) -> Lake:
    """A lake with some batches applied one after the other."""
    lake = ledger_in(folder, config)
    first = 0
    for blobs in batches:
        apply_batch(lake, decoded(config, blobs, first=first))
        first += len(blobs)
    return lake


def cut(blobs: list[bytes], parts: int) -> list[list[bytes]]:
    """So many batches of about one size."""
    size = -(-len(blobs) // parts)
    return [blobs[at : at + size] for at in range(0, len(blobs), size)]


@pytest.mark.thorough  # the quick part has it through a file, in `test_ledger_files`
@pytest.mark.parametrize(
    ("name", "parts"), [("clean", 1), ("duplicated", 5), ("shuffled", 2), ("shuffled", 7)]
)
def test_the_state_of_the_vectors(tmp_path: Path, name: str, parts: int) -> None:
    """Current documents are those of the vectors by the Ion hash of their contents; deletes are kept."""
    lake = applied(tmp_path, config_of(*TABLES, past=False, raw_ion=True), *cut(datums(name), parts))
    assert state_of(lake) == expected_state()
    assert sum(lake.tombstones.counts().values()) == 59
    assert lake.extras.facts["blocks"].count() == 200
    assert lake.extras.facts["controls"].count() == 2
    assert lake.extras.facts["statements"].count() == 421
    assert lake.quarantine.count() == 0


@pytest.mark.thorough
@pytest.mark.parametrize("honour", [False, True])
def test_histories_do_not_depend_on_order_and_cuts(tmp_path: Path, *, honour: bool) -> None:
    """Every order and cut of a stream with repeats ends in the same rows of current tables and histories."""
    config = config_of("Mixed", "Person", honour=honour)
    blobs = datums("duplicated")
    want = rows_of(applied(tmp_path / "one", config, blobs))
    kinds = {"insert", "update", "delete"} | ({"redacted"} if honour else set())
    assert {row["_kind"] for row in want["Mixed.history"]} == kinds
    for seed in range(4):
        draw = random.Random(seed)
        mixed = draw.sample(blobs, len(blobs))
        lake = applied(tmp_path / str(seed), config, *cut(mixed, draw.randint(1, 6)), mixed[:50])
        assert rows_of(lake) == want


def test_late_lower_versions_do_not_bring_a_document_back(tmp_path: Path) -> None:
    """A delete is a tombstone with a version: a lower version that comes after it stays out of the state."""
    config = config_of("Person")
    lake = applied(
        tmp_path, config, [revision("d", 2, None)], [revision("d", 1, "{a: 1}"), revision("d", 0, "{a: 0}")]
    )
    rows = rows_of(lake)
    assert rows["Person"] == []
    assert [(row["_version"], row["_kind"]) for row in rows["Person.history"]] == [
        (0, "insert"),
        (1, "update"),
        (2, "delete"),
    ]


CONTENDERS = [
    revision("d", 1, "{a: 1}", hashed=1),
    revision("d", 1, "{a: 2}", hashed=2),
    block([("d", 1)]),
]


def conflict_of(lake: Lake) -> tuple[Any, ...]:
    """The rows, and the hashes of the records in quarantine."""
    told = lake.quarantine.read(["reason", "detail"]).to_pylist()
    rows = {name: [(row["_hash"][0], row["a"]) for row in each] for name, each in rows_of(lake).items()}
    return rows, sorted({(row["reason"], row["detail"].split("hash ")[1][:2]) for row in told})


@pytest.mark.parametrize(
    "order",
    [
        (0, 1, 2),
        *(
            pytest.param(order, marks=pytest.mark.thorough)
            for order in list(itertools.permutations(range(3)))[1:]
        ),
    ],
)
@pytest.mark.slow
def test_the_revision_that_its_block_lists_stands(tmp_path: Path, order: tuple[int, ...]) -> None:
    """Of two revisions of one version the listed one stands, even where its block comes last."""
    lake = applied(tmp_path, config_of("Person"), *([CONTENDERS[at]] for at in order))
    row = [(1, "1")]
    assert conflict_of(lake) == ({"Person": row, "Person.history": row}, [("conflicting_revision", "02")])


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_without_its_block_the_greatest_hash_stands(tmp_path: Path, order: tuple[int, ...]) -> None:
    """While no block is known, the revision with the greatest hash stands and the other is in quarantine."""
    lake = applied(tmp_path, config_of("Person", past=False), *([CONTENDERS[at]] for at in order))
    assert conflict_of(lake) == ({"Person": [(2, "2")]}, [("conflicting_revision", "01")])


@pytest.mark.parametrize("order", [(0, 1, 2), pytest.param((1, 2, 0), marks=pytest.mark.thorough)])
def test_a_delete_may_be_contested_too(tmp_path: Path, order: tuple[int, ...]) -> None:
    """A delete and an update of one version: the listed one stands, in either order of arrival."""
    contenders = [revision("d", 1, None, hashed=2), revision("d", 1, "{a: 1}", hashed=1), block([("d", 1)])]
    lake = applied(tmp_path, config_of("Person", past=False), *([contenders[at]] for at in order))
    assert conflict_of(lake) == ({"Person": [(1, "1")]}, [("conflicting_revision", "02")])


REDACTION = {
    "form": revision("d", 0, None, redacted=True),
    "request": block([], redacts=[("d", 0)]),
}


@pytest.mark.slow
@pytest.mark.parametrize("source", ["form", "request"])
@pytest.mark.parametrize("data_first", [True, False])
@pytest.mark.parametrize("honour", [True, False])
def test_redactions(tmp_path: Path, source: str, *, data_first: bool, honour: bool) -> None:
    """Honoured, the contents go as soon as a redaction is seen, in any order; else they stay."""
    parts = [[revision("d", 0, "{a: 1}")], [REDACTION[source]]]
    config = config_of("Person", raw_ion=True, canonical_json=True, honour=honour, current=False)
    lake = applied(tmp_path, config, *(parts if data_first else parts[::-1]))
    (row,) = rows_of(lake)["Person.history"]
    assert row["_kind"] == ("redacted" if honour else "insert")
    assert (row.get("a"), row["_ion"] is None) == ((None, True) if honour else ("1", False))
    assert row["_json"] == (None if honour else '{"a":1}')
    assert lake.extras.facts["redactions"].counts_by("source") == {source: 1}


def test_a_redacted_current_row_says_so(tmp_path: Path) -> None:
    """A current row whose contents were redacted says so, and loses nothing else."""
    parts = [[revision("d", 0, "{a: 1}")], [REDACTION["request"]], [revision("d", 0, "{a: 1}")]]
    lake = applied(tmp_path, config_of("Person", past=False, honour=True), *parts)
    (row,) = rows_of(lake)["Person"]
    assert (row["_redacted"], row["a"], row["_tx_id"]) == (True, None, "X0")


BATCHES = [
    [revision("d", 0, "{a: 1}"), revision("e", 0, "{a: 2}"), revision("f", 1, "{a: 5}", hashed=3)],
    [
        revision("d", 1, None),
        revision("e", 1, "{a: 3, b: 4}"),
        revision("f", 1, "{a: 6}", hashed=4),
        block([("f", 3)], redacts=[("e", 0)]),
    ],
]


@pytest.mark.parametrize("step", [6, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.slow
def test_a_stop_at_every_write(tmp_path: Path, step: int) -> None:
    """A batch that was stopped before one of its writes and comes again leaves what a whole one leaves."""
    config = config_of("Person", honour=True)
    want = applied(tmp_path / "whole", config, *BATCHES)
    names: list[str] = []
    lake = applied(tmp_path / "names", config, BATCHES[0])
    apply_batch(watched(lake, names.append), decoded(config, BATCHES[1], first=3))
    for number, name in enumerate(names[::step]):
        lake = applied(tmp_path / str(number), config, BATCHES[0])

        def stop(at: str, name: str = name) -> None:
            if at == name:
                raise StopHereError

        with pytest.raises(StopHereError):
            apply_batch(watched(lake, stop), decoded(config, BATCHES[1], first=3))
        again = ledger_in(tmp_path / str(number), config)
        apply_batch(again, decoded(config, BATCHES[1], first=3))
        assert rows_of(again) == rows_of(want), name
        assert again.tombstones.counts() == want.tombstones.counts()
        assert details_of(again) == details_of(want), name


def details_of(lake: Lake) -> set[str]:
    """Details of what is in quarantine."""
    return set(lake.quarantine.read(["detail"])["detail"].to_pylist())


REDACTED_CONTENDERS = [
    revision("d", 1, "{a: 1}", hashed=1),
    revision("d", 1, "{a: 2}", hashed=2),
    block([], redacts=[("d", 1)]),
    block([("d", 1)]),
]


@pytest.mark.thorough
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (0, 2, 1, 3), (1, 2, 3, 0)])
def test_contenders_whose_contents_are_redacted_are_still_known(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    """A redaction takes the contents of contested revisions, not what a block that comes later decides by."""
    config = config_of("Person", past=False, honour=True)
    lake = applied(tmp_path, config, *([REDACTED_CONTENDERS[at]] for at in order))
    (row,) = rows_of(lake)["Person"]
    assert (row["_hash"][0], row["_redacted"], row["a"]) == (1, True, None)
    kept = lake.extras.conflicts.of("Person", pa.array(["d"]))
    assert kept is not None
    assert kept.select(["m:kind", "c:a", "m:data"]).to_pylist() == [
        {"m:kind": "redacted", "c:a": None, "m:data": None}
    ] * len(kept)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.slow
def test_copies_of_a_block_that_list_other_revisions_are_both_kept(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    """Though their block hash is the same: which one came first decides nothing."""
    blocks = [block([]), block([("d", 1)])]
    lake = applied(tmp_path, config_of("Person", past=False), *([blocks[at]] for at in order), CONTENDERS[:2])
    assert conflict_of(lake) == ({"Person": [(1, "1")]}, [("conflicting_revision", "02")])
    assert lake.extras.facts["blocks"].count() == 2


@pytest.mark.thorough
@pytest.mark.parametrize("cuts", [(0, 3), (0, 2, 3)])
def test_only_the_blocks_that_contenders_name_decide(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    """Also where one of them is a delete, of which only a tombstone is known: another block says nothing."""
    records = [revision("d", 1, "{a: 1}"), revision("d", 1, None, hashed=9), block([("d", 1)], sequence_no=8)]
    parts = [records[first:last] for first, last in itertools.pairwise(cuts)]
    lake = applied(tmp_path, config_of("Person", past=False), *parts, records[2:])
    assert rows_of(lake) == {"Person": []}


@pytest.mark.parametrize("order", [pytest.param((0, 1), marks=pytest.mark.thorough), (1, 0)])
def test_of_one_revision_in_two_blocks_the_later_stands(tmp_path: Path, order: tuple[int, ...]) -> None:
    """Copies that contradict each other in what no hash covers: which came first decides nothing."""
    copies = [revision("d", 1, "{a: 1}", sequence_no=number) for number in (7, 8)]
    lake = applied(tmp_path, config_of("Person", past=False), *([copies[at]] for at in order))
    assert [row["_block_sequence_no"] for row in rows_of(lake)["Person"]] == [8]


@pytest.mark.thorough
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_redacted_copy_that_names_an_earlier_block_is_not_the_later_form(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    """The contents go, whichever came first, and the copy that names the later block stands."""
    copies = [
        revision("d", 1, "{a: 1}", sequence_no=8),
        revision("d", 1, None, redacted=True, sequence_no=7),
    ]
    lake = applied(tmp_path, config_of("Person", past=False, honour=True), *([copies[at]] for at in order))
    (row,) = rows_of(lake)["Person"]
    assert (row["_block_sequence_no"], row["_redacted"], row["a"]) == (8, True, None)


@pytest.mark.thorough
def test_each_contender_is_listed_by_the_block_that_it_names(tmp_path: Path) -> None:
    """Copies of one revision that name two blocks: the one whose block lists it wins, and goes on winning."""
    records = [
        block([("d", 3)]),
        revision("d", 0, None, hashed=3, redacted=True, sequence_no=8),
        revision("d", 0, None, hashed=11, sequence_no=8),
        revision("d", 0, None, hashed=3, redacted=True),
    ]
    lake = applied(tmp_path, config_of("Person", past=False), *([one] for one in records), records[:2])
    assert [(row["_hash"][0], row["_block_sequence_no"]) for row in rows_of(lake)["Person"]] == [(3, 7)]


@pytest.mark.parametrize("at", [5, 4])
def test_a_contest_of_another_version_decides_nothing(tmp_path: Path, at: int) -> None:
    """Which of two copies of one revision stands depends on the blocks that they name alone."""
    records = [
        revision("e", 2, None, hashed=3, redacted=True, sequence_no=8),
        revision("e", 2, "{a: 3}", hashed=3),
        block([("e", 1), ("e", 3)]),
        revision("e", 1, None, hashed=11),
        revision("e", 1, None, hashed=13),
    ]
    config = config_of("Person", past=False, honour=True)
    lake = applied(tmp_path, config, *filter(None, (records[:at], records[at:])), records[:2])
    (row,) = rows_of(lake)["Person"]
    assert (row["_block_sequence_no"], row["_redacted"], row["a"]) == (7, True, None)


BLOCK_NUMBERS = st.sampled_from([7, 7, 8])
REVISIONS = st.builds(
    lambda document, version, number, form, sequence_no: revision(
        document,
        version,
        f"{{a: {number}}}" if form == "data" else None,
        hashed=number + 10 * (form == "delete"),  # a delete has no hash that contents have
        redacted=form == "redacted",
        sequence_no=sequence_no,
    ),
    st.sampled_from("de"),
    st.integers(0, 2),
    st.integers(1, 3),
    st.sampled_from(["data", "data", "redacted", "delete"]),
    BLOCK_NUMBERS,
)
LISTINGS = st.builds(
    lambda listed, redacts, sequence_no: block(listed, redacts=redacts, sequence_no=sequence_no),
    st.lists(st.tuples(st.sampled_from("de"), st.integers(1, 3)), max_size=2),
    st.lists(st.tuples(st.sampled_from("de"), st.integers(0, 2)), max_size=1),
    BLOCK_NUMBERS,
)


@pytest.mark.thorough
@settings(max_examples=share_of(40), suppress_health_check=list(HealthCheck))
@given(
    blobs=st.lists(st.one_of(REVISIONS, REVISIONS, LISTINGS), min_size=2, max_size=8),
    data=st.data(),
    honour=st.booleans(),
)
def test_any_order_any_cut_any_contradiction(
    tmp_path_factory: pytest.TempPathFactory, blobs: list[bytes], data: st.DataObject, *, honour: bool
) -> None:
    """However a ledger contradicts itself, its tables and histories do not depend on arrival."""
    config = config_of("Person", honour=honour)
    want = rows_of(applied(tmp_path_factory.mktemp("one"), config, blobs))
    mixed = data.draw(st.permutations(blobs))
    parts = cut([*mixed, *mixed[:2]], data.draw(st.integers(1, 4)))
    assert rows_of(applied(tmp_path_factory.mktemp("other"), config, *parts)) == want
