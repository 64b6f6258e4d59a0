"""`deletes = "soft"`: what is left depends on the set of changes, not on order, cuts and repeats."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.core.errors import ConfigurationError
from headpond.lake.apply import apply_batch
from headpond.lake.reports import freshness
from tests.kit.support import share_of
from tests.lake.lakes import decoded, lake_in, watched
from tests.lake.test_pending import line

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from headpond.lake.tables import Lake

T = "public.t"
HARD = f'[tables."{T}"]\nkeys = ["id"]\ncolumns = {{ id = "bigint", v = "bigint" }}\n'
SOFT = HARD + 'deletes = "soft"\n'
FORMS = {
    "plain": SOFT,
    "marked": SOFT + "deletion_vectors = true\n",
    "buckets": SOFT + "buckets = 3\n",
    "partitions": SOFT + 'partition_by = ["v"]\n',
}
Change = tuple[int, int, str, int | None]
"""Commit time, key, transaction, and the value; None: a delete."""


def record(number: int, change: Change) -> bytes:
    ts_ns, key, tx_id, value = change
    source = {"version": "1.0", "ts_ns": ts_ns, "txId": tx_id, "schema": "public", "table": "t"}
    image = {"before": {"id": key}} if value is None else {"after": {"id": key, "v": value}}
    op = "d" if value is None else "u"
    return line(number, {"type": "full", "op": op, **image, "source": source})


def put(lake: Lake, changes: Sequence[Change]) -> dict[str, int]:
    lines = [record(number, each) for number, each in enumerate(changes)]
    found = apply_batch(lake, decoded(lake.config, lines, parts=2))  # type: ignore[arg-type]
    return {name: count for name, count in found.tables.get(T, {}).items() if count}


def rows(lake: Lake) -> dict[int, tuple[Any, ...]]:
    found = lake.typed[T].file.read(
        ["id", "v", "_ts_ns", "_tx_id", "_deleted", "_deleted_ns", "_deleted_tx_id"]
    )
    by_key = {row["id"]: tuple(row.values())[1:] for row in found.to_pylist()}
    assert len(by_key) == found.num_rows
    return by_key


def model(changes: Sequence[Change]) -> dict[int, tuple[Any, ...]]:
    """The newest image of each key, and the newest delete where no image is newer."""
    images: dict[int, Change] = {}
    deletes: dict[int, Change] = {}
    for each in changes:
        known = images if each[3] is not None else deletes
        if each[1] not in known or (each[0], each[2]) > (known[each[1]][0], known[each[1]][2]):
            known[each[1]] = each
    found: dict[int, tuple[Any, ...]] = {}
    for key in {*images, *deletes}:
        ts_ns, _, tx_id, value = images.get(key, (None, key, None, None))
        gone_ns, _, gone_by, _ = deletes.get(key, (None, key, None, None))
        is_gone = gone_ns is not None and (ts_ns is None or (gone_ns, gone_by) > (ts_ns, tx_id))
        delete = (True, gone_ns, gone_by) if is_gone else (False, None, None)
        found[key] = (value, ts_ns, tx_id, *delete)
    return found


VERSIONS = st.tuples(st.integers(1, 9), st.integers(0, 3), st.sampled_from("ab"), st.booleans())


@pytest.mark.thorough
@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=share_of(40), deadline=None)
@given(versions=st.lists(VERSIONS, min_size=1, max_size=14), seed=st.integers(0, 2**16))
def test_rows_are_those_of_a_dictionary_in_any_order(
    versions: list[tuple[int, int, str, bool]], seed: int, form: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Late and repeated changes, in batches of any size; one transaction may both write and delete a row."""
    changes: list[Change] = [
        (ts_ns, key, tx_id, None if is_delete else 100 * ts_ns + ord(tx_id))
        for ts_ns, key, tx_id, is_delete in versions
    ]
    choose = random.Random(seed)
    told = [*changes, *choose.sample(changes, len(changes) // 3)]
    choose.shuffle(told)
    lake, _ = lake_in(tmp_path_factory.mktemp("lake"), FORMS[form])
    while told:
        count = choose.randint(1, 5)
        put(lake, told[:count])
        told = told[count:]
    assert rows(lake) == model(changes)
    assert lake.tombstones.counts() == {}
    version = lake.typed[T].file.version()
    put(lake, changes)
    assert lake.typed[T].file.version() == version  # a repeat writes nothing


def test_a_key_whose_newest_change_comes_last_of_several_parts(tmp_path: Path) -> None:
    """What was decoded in parts is looked at as one batch, in whatever order its keys are in."""
    lake, _ = lake_in(tmp_path, FORMS[next(iter(FORMS))])
    changes: list[Change] = [(1, 0, "a", 1), (1, 1, "a", 2), (2, 0, "a", 3)]
    put(lake, changes)
    assert rows(lake) == model(changes)


def test_a_deleted_row_stays_with_its_last_image(tmp_path: Path) -> None:
    """A late image older than the delete is the row's from then on; a later one brings the row back."""
    lake, _ = lake_in(tmp_path, SOFT)
    assert put(lake, [(30, 1, "d", None)]) == {"deletes": 1}
    assert rows(lake) == {1: (None, None, None, True, 30, "d")}
    assert freshness(lake, {})[T]["newest_commit_ns"] == 30
    assert put(lake, [(10, 1, "a", 5)]) == {"stale": 1}
    assert rows(lake) == {1: (5, 10, "a", True, 30, "d")}
    assert put(lake, [(20, 1, "b", 6), (10, 1, "a", 5)]) == {"stale": 1, "duplicates": 1}
    assert rows(lake) == {1: (6, 20, "b", True, 30, "d")}
    assert put(lake, [(40, 1, "e", 7)]) == {"upserts": 1}
    assert rows(lake) == {1: (7, 40, "e", False, None, None)}
    # A delete loses against an upsert of the same transaction.
    assert put(lake, [(35, 1, "d", None), (40, 1, "e", None)]) == {"stale": 2}
    assert rows(lake) == {1: (7, 40, "e", False, None, None)}
    assert put(lake, [(41, 1, "e", None), (40, 1, "f", None)]) == {"deletes": 1, "superseded": 1}
    assert rows(lake) == {1: (7, 40, "e", True, 41, "e")}


@pytest.mark.slow
def test_a_batch_that_was_cut_off_between_its_writes_is_finished_by_its_repeat(tmp_path: Path) -> None:
    """Wherever that was."""
    batches: list[list[Change]] = [
        [(10, 1, "a", 1), (11, 2, "a", 2)],
        [(20, 1, "b", None), (9, 3, "a", None)],
    ]
    names: list[str] = []
    lake, _ = lake_in(tmp_path / "whole", SOFT)
    put(lake, batches[0])
    put(watched(lake, names.append), batches[1])
    assert f"table {T}" in names
    for number in range(len(names)):
        lake, _ = lake_in(tmp_path / str(number), SOFT)
        put(lake, batches[0])
        left = [None] * number

        def stop(_: str, left: list[None] = left) -> None:
            if not left:
                raise KeyboardInterrupt
            left.pop()

        with pytest.raises(KeyboardInterrupt):
            put(watched(lake, stop), batches[1])
        put(lake, batches[1])
        assert rows(lake) == model([*batches[0], *batches[1]])


def test_columns_of_the_source_with_these_names_get_others(tmp_path: Path) -> None:
    """So are they in such a table alone: others keep theirs."""
    for deletes, name in (("soft", "_deleted%%0"), ("hard", "_deleted")):
        lake, _ = lake_in(tmp_path / deletes, HARD + f'deletes = "{deletes}"\n')
        source = {"version": "1.0", "ts_ns": 1, "txId": "t", "schema": "public", "table": "t"}
        data = {
            "type": "full",
            "op": "c",
            "after": {"id": 1, "_deleted": "no", "_DELETED_NS": 3},
            "source": source,
        }
        apply_batch(lake, decoded(lake.config, [line(1, data)]))  # type: ignore[arg-type]
        again, _ = lake_in(tmp_path / deletes, HARD + f'deletes = "{deletes}"\n')
        (row,) = again.typed[T].file.read().to_pylist()
        assert row[name] == '"no"'
        assert again.typed[T].originals()["_deleted"] == name


@pytest.mark.parametrize(("was", "now"), [(HARD, SOFT), (SOFT, HARD)])
def test_a_table_stays_as_it_was_made(tmp_path: Path, was: str, now: str) -> None:
    """With what to write; a history has nothing to delete."""
    lake_in(tmp_path, was)
    said = 'deletes = "soft"' if was == SOFT else 'deletes = "hard"'
    with pytest.raises(ConfigurationError, match=f"was made with {said}") as refused:
        lake_in(tmp_path, now)
    assert "headpond rebuild FILE public.t" in (refused.value.next_step or "")
    with pytest.raises(ConfigurationError, match="nothing is deleted"):
        lake_in(tmp_path / "other", SOFT + 'keep = "history"\n')
