"""The newest version of each key, against a dictionary that is told one change at a time."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.core.schemas import OWN_FIELDS, QUARANTINE_SCHEMA, STATE_SCHEMA
from headpond.lake.newest import COUNTERS, BatchKeys, latest_step, ranked, tied, too_late
from tests.dsql.driver import encode_version
from tests.kit.support import share_of

BATCH = pa.schema([*OWN_FIELDS, pa.field("c:v", pa.string())])
Row = dict[str, Any]


def row(key: str, ts_ns: int, tx_id: str = "x", value: str | None = "v") -> Row:
    """An upsert, or a delete where the value is None."""
    delete = value is None
    return {
        "m:key": key,
        "m:version": encode_version(ts_ns, tx_id, delete=delete),
        "m:op": "d" if delete else "c",
        "m:delete": delete,
        "m:ts_ns": ts_ns,
        "m:tx_id": tx_id,
        "m:image_hash": (value or "").encode(),
        "m:data": b"raw",
        "c:v": value,
    }


class Model:
    """What the step must come to: a dictionary, one change after the other."""

    def __init__(self) -> None:
        self.newest: dict[str, tuple[bytes, bytes, str | None]] = {}

    def tell(self, change: Row) -> None:
        seen = (change["m:version"], change["m:image_hash"], change["c:v"])
        if change["m:key"] not in self.newest or seen[:2] > self.newest[change["m:key"]][:2]:
            self.newest[change["m:key"]] = seen

    def rows(self) -> dict[str, str]:
        return {key: value for key, (_, _, value) in self.newest.items() if value is not None}

    def deleted(self) -> dict[str, bytes]:
        return {key: version for key, (version, _, value) in self.newest.items() if value is None}


class Store:
    """A table and its tombstones; `stop_after` cuts the writes of a batch short, as a crash does."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.tombstones: dict[str, bytes] = {}

    def state(self) -> pa.Table:
        live = [
            {"key": key, "version": r["m:version"], "image_hash": r["m:image_hash"], "live": True}
            for key, r in self.rows.items()
        ]
        dead = [{"key": key, "version": version, "live": False} for key, version in self.tombstones.items()]
        return pa.Table.from_pylist(live + dead, schema=STATE_SCHEMA)

    def apply(self, changes: list[Row], stop_after: int = 3) -> dict[str, int]:
        outcome = latest_step(self.state(), pa.Table.from_pylist(changes, schema=BATCH))
        if stop_after > 0:
            for put in outcome.tombstones_put.to_pylist():
                assert self.tombstones.get(put["key"], b"") < put["version"]
                self.tombstones[put["key"]] = put["version"]
        if stop_after > 1:
            for gone in outcome.deletes.to_pylist():
                assert self.rows.pop(gone["m:key"])["m:version"] < gone["m:version"]
                assert encode_version(gone["m:ts_ns"], gone["m:tx_id"], delete=True) == gone["m:version"]
            for kept in outcome.upserts.to_pylist():
                self.rows[kept["m:key"]] = kept
        if stop_after > 2:
            for key in outcome.tombstones_drop["key"].to_pylist():
                del self.tombstones[key]
        assert sum(outcome.counters.values()) == len(changes)
        assert tuple(outcome.counters) == COUNTERS
        return outcome.counters

    def values(self) -> dict[str, str]:
        return {key: r["c:v"] for key, r in self.rows.items()}


changes_drawn = st.lists(
    st.builds(
        row,
        st.sampled_from("abc"),
        st.integers(0, 4),
        st.sampled_from(["x", "y"]),
        st.sampled_from(["1", "2", None, None]),
    ),
    max_size=14,
)


@pytest.mark.thorough
@settings(max_examples=share_of(300))
@given(changes=changes_drawn, seed=st.integers(0, 2**32))
def test_any_order_cut_repeat_and_crash_ends_alike(changes: list[Row], seed: int) -> None:
    """The table and its tombstones depend on the set of changes alone."""
    draw = random.Random(seed)
    model = Model()
    for change in changes:
        model.tell(change)
    store = Store()
    feed = changes + draw.sample(changes, draw.randint(0, len(changes)))
    draw.shuffle(feed)
    while feed:
        cut = draw.randint(1, len(feed))
        batch, feed = feed[:cut], feed[cut:]
        for _ in range(draw.randint(0, 2)):
            store.apply(batch, stop_after=draw.randint(0, 3))
        store.apply(batch)
    assert store.values() == model.rows()
    assert store.tombstones == model.deleted()


def test_counters_tell_what_became_of_each_row() -> None:
    """Every row is counted once."""
    store = Store()
    first = store.apply(
        [row("a", 1), row("a", 3), row("b", 2, value=None), row("c", 1, value="1"), row("c", 1, value="2")]
    )
    assert first == dict(
        zip(COUNTERS, (2, 1, 0, 1, 0, 1), strict=True)
    )  # a@3 and c, b; c twice; a@1 overtaken in its batch
    again = store.apply(
        [row("a", 3), row("a", 2), row("b", 2, value=None), row("b", 1), row("c", 1, value="1")]
    )
    assert again == dict(zip(COUNTERS, (0, 0, 2, 1, 2, 0), strict=True))


def test_a_conflicting_duplicate_keeps_the_greater_hash() -> None:
    """Across batches too, and whichever comes first."""
    for order in (["1", "2"], ["2", "1"]):
        store = Store()
        for value in order:
            store.apply([row("a", 1, value=value)])
        assert store.values() == {"a": "2"}


def test_a_delete_finishes_after_a_crash() -> None:
    """The tombstone was written, the live row not yet removed: the batch comes again and removes it."""
    store = Store()
    store.apply([row("a", 1)])
    store.apply([row("a", 2, value=None)], stop_after=1)
    assert store.values() == {"a": "v"}
    counters = store.apply([row("a", 2, value=None)])
    assert (store.values(), counters["duplicates"]) == ({}, 1)


def test_a_tombstone_is_dropped_once_its_key_lives() -> None:
    """An upsert newer than the tombstone wins; what a crash left is dropped by the repeat."""
    store = Store()
    store.apply([row("a", 1, value=None)])
    store.apply([row("a", 2)], stop_after=2)
    assert store.tombstones
    store.apply([row("a", 2)])
    assert (store.values(), store.tombstones) == ({"a": "v"}, {})


def test_an_empty_batch_does_nothing() -> None:
    """No rows, no writes."""
    outcome = latest_step(STATE_SCHEMA.empty_table(), BATCH.empty_table())
    assert outcome.upserts.num_rows + outcome.deletes.num_rows + outcome.tombstones_put.num_rows == 0


def test_an_old_upsert_of_an_unknown_key_is_too_late() -> None:
    """It is not applied silently: a tombstone dropped since may have stopped it."""
    known = pa.Table.from_pylist([{"key": "k", "version": b"", "live": True}], schema=STATE_SCHEMA)
    changes = [
        row("k", 1),
        row("a", 9),
        row("a", 11),
        row("b", 9),
        row("c", 9, value=None),
        row("d", 9),
        row("d", 8, value=None),
    ]
    rest, refused = too_late(known, pa.Table.from_pylist(changes, schema=BATCH), 10)
    assert refused.schema == QUARANTINE_SCHEMA
    assert refused["reason"].to_pylist() == ["too_late"] * 2
    assert refused["data"].to_pylist() == [b"raw"] * 2
    assert rest["m:key"].to_pylist() == ["k", "a", "a", "c", "d"]
    assert rest["m:delete"].to_pylist() == [False, False, False, True, True]


def test_a_delete_that_came_late_tells_nothing_of_a_newer_one() -> None:
    """Its tombstone is older than those dropped; what is older than itself is stale, not too late."""
    before, at = ({"key": key, "live": False} for key in "ba")
    known = pa.Table.from_pylist(
        [
            before | {"version": encode_version(5, "x", delete=True)},
            at | {"version": encode_version(10, "", delete=True)},
        ],
        schema=STATE_SCHEMA,
    )
    changes = pa.Table.from_pylist([row("b", 4), row("b", 7), row("a", 7)], schema=BATCH)
    rest, refused = too_late(known, changes, 10)
    assert refused["reason"].to_pylist() == ["too_late"]
    assert list(zip(rest["m:key"].to_pylist(), rest["m:ts_ns"].to_pylist(), strict=True)) == [
        ("b", 4),
        ("a", 7),
    ]


def test_nothing_is_too_late_after_the_horizon() -> None:
    """A commit at the horizon is no older than it."""
    rest, refused = too_late(
        STATE_SCHEMA.empty_table(), pa.Table.from_pylist([row("a", 10)], schema=BATCH), 10
    )
    assert (rest.num_rows, refused.num_rows) == (1, 0)


LONG = b"abcdefgh"
BYTES = [None, b"", b"\x00", b"a", b"a\x00", LONG, LONG + b"\x00", LONG + b"i", b"abcdefgi", b"\xff" * 9]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(BYTES))))
def test_versions_are_ranked_as_they_compare(pairs: list[tuple[int, bytes | None]]) -> None:
    """Within a key, byte by byte, whether they differ in their first bytes, behind these or in length."""

    def columns(pairs: list[Any]) -> tuple[Any, Any]:
        keys, values = [key for key, _ in pairs], [value for _, value in pairs]
        return np.array(keys, np.int64), pa.array(values, pa.binary())

    known = [(key, value) for key, value in pairs if value is not None]
    different = sorted(set(known))
    assert ranked(*columns(known)).tolist() == [different.index(pair) for pair in known]
    ranks = tied(*columns(pairs)).tolist()
    for (key, value), rank in zip(pairs, ranks, strict=True):
        alike = [(r, v) for r, (k, v) in zip(ranks, pairs, strict=True) if k == key]
        assert (rank == 0) == (value is None or len(alike) == 1)
        if value is not None and rank:
            assert all(v is None or v < value for r, v in alike if r < rank)
            assert all(v == value for r, v in alike if r == rank)


@given(st.lists(st.sampled_from("abcd")), st.lists(st.sampled_from("abcdef")))
def test_keys_of_a_batch_are_numbered(changes: list[str], others: list[str]) -> None:
    """Each once, in the order in which they come first, however the column is cut."""
    texts = list(dict.fromkeys(changes))
    keys = BatchKeys(pa.chunked_array([changes[:2], changes[2:]], pa.string()))
    assert keys.texts.to_pylist() == texts
    assert keys.of.tolist() == [texts.index(key) for key in changes]
    assert keys.first.tolist() == [changes.index(key) for key in texts]
    found = keys.among(pa.chunked_array([others], pa.string())).tolist()
    assert found == [texts.index(key) if key in texts else -1 for key in others]
