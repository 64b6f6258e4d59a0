"""What a lookup goes by: masks of what is wanted, bounds that may hold it, rows that are gone."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headpond.lake.delta import DeltaFile
from headpond.lake.engine import index, lookup, vectors
from headpond.lake.engine.lookup import OneOf, Wanted, _Range, places
from headpond.lake.engine.merge import Merge, always
from headpond.lake.engine.parquet import Reader

KINDS = {pa.int8(): 7, pa.int32(): 31, pa.int64(): 63, pa.string(): 8}


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.Array, pa.ChunkedArray]:
    """Draw what is wanted and a column in chunks, of one type, with nulls perhaps."""
    kind = draw(st.sampled_from(list(KINDS)))
    some = st.integers(-(1 << KINDS[kind]), (1 << KINDS[kind]) - 1)
    near = (
        st.one_of(st.integers(-3, 3), some) if pa.types.is_integer(kind) else st.text("ab\u00e9", max_size=3)
    )
    values = st.one_of(near, st.none()) if draw(st.booleans()) else near
    wanted = pa.array(draw(st.lists(values, max_size=20)), kind)
    chunks = draw(st.lists(st.lists(values, max_size=8), max_size=4))
    return wanted, pa.chunked_array([pa.array(chunk, kind) for chunk in chunks], kind)


@pytest.mark.parametrize("order", ["any", "ascending"])
@given(drawn=columns())
def test_one_of_finds_what_arrow_finds(drawn: tuple[pa.Array, pa.ChunkedArray], order: str) -> None:
    wanted, column = drawn
    if order == "ascending":
        column = pa.chunked_array([part.take(pc.sort_indices(part)) for part in column.chunks], column.type)
    mask = pc.is_in(column, value_set=wanted).to_pylist()
    assert OneOf(wanted).rows(column).tolist() == [row for row, is_wanted in enumerate(mask) if is_wanted]


def test_order_is_not_taken_from_a_sample() -> None:
    """A long column, in order but for values that a sample of it leaves out."""
    numbers = np.arange(100_000)
    numbers[[1, 50_001]] = numbers[[50_001, 1]]
    wanted = pa.array([1, 7, 50_001])
    assert OneOf(wanted).rows(pa.chunked_array([numbers])).tolist() == [1, 7, 50_001]


@pytest.mark.parametrize("step", [1, 1 << 20, 1 << 44])
def test_keys_that_differ_in_their_high_bits_alone(step: int) -> None:
    wanted = pa.array(np.arange(0, 1000, 2) * step)
    column = pa.chunked_array([np.arange(1000) * step])
    assert OneOf(wanted).rows(column).tolist() == list(range(0, 1000, 2))
    backwards = pa.chunked_array([np.arange(1000)[::-1].copy() * step])
    assert OneOf(wanted).rows(backwards).tolist() == list(range(1, 1000, 2))


@given(columns())
def test_bounds_that_hold_what_is_wanted_are_never_passed_over(
    drawn: tuple[pa.Array, pa.ChunkedArray],
) -> None:
    wanted, column = drawn
    if not len(wanted):  # nothing is looked for then
        return
    ends = pc.min_max(column)
    least, most = ends["min"].as_py(), ends["max"].as_py()
    holds = any(
        value is not None and least <= value <= most for value in wanted.to_pylist() if least is not None
    )
    meets = _Range("k", pa.chunked_array([wanted])).meets(least, most)
    assert meets or not holds
    if least is not None and not wanted.null_count:
        assert meets == holds


@pytest.mark.parametrize("as_key", [int, "key-{:06}".format])
def test_bounds_between_what_is_wanted_hold_nothing(as_key: Callable[[int], int | str]) -> None:
    every = _Range("k", pa.chunked_array([[as_key(number) for number in range(0, 2000, 2)]]))
    for number in (-1, 500, 501, 502, 503, 1998, 1999):
        is_wanted = number % 2 == 0
        assert every.meets(as_key(number), as_key(number)) == is_wanted


COLUMNS = {
    "near": (pa.int64(), st.integers(-3, 3)),
    "far": (pa.int64(), st.sampled_from([-(2**63), -1, 0, 2**31, 2**63 - 1])),
    "small": (pa.int32(), st.sampled_from([-(2**31), -1, 0, 2**31 - 1])),
    "maybe": (pa.int64(), st.none() | st.integers(0, 2)),
    "text": (pa.string(), st.none() | st.sampled_from(["", "a", "b"])),
    # Three of these are more than 64 bits, of which 0 and 4 differ above the last.
    **{f"wide {number}": (pa.int64(), st.sampled_from([0, 4, 2**31 - 1])) for number in range(3)},
}


WIDE = st.just([name for name in COLUMNS if name.startswith("wide")])


@given(st.data(), WIDE | st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, unique=True))
def test_places_are_those_a_dictionary_finds(data: st.DataObject, on: list[str]) -> None:
    """By several columns, whose numbers together are more than one number can hold."""
    row = st.tuples(*(COLUMNS[name][1] for name in on))
    rows, among = (data.draw(st.lists(row, max_size=12)) for _ in range(2))
    schema = pa.schema([(name, COLUMNS[name][0]) for name in on])
    tables = [
        pa.Table.from_pylist([dict(zip(on, each, strict=True)) for each in part], schema)
        for part in (rows, among)
    ]
    expected = {each: number for number, each in enumerate(among)}
    assert places(*tables, on).tolist() == [expected.get(each, -1) for each in rows]


def test_one_other_value_that_a_sample_leaves_out(tmp_path: Path) -> None:
    count = 10_000
    rows = pa.table({"name": ["a", "b", "b"], "number": [0, 1, 2], "v": [1, 2, 3]})
    file = DeltaFile(str(tmp_path))
    file.create(rows.schema)
    file.append(rows)
    names = ["a", "b", *["a"] * (count - 2)]  # every second one is looked at
    wanted = pa.table({"name": names, "number": range(count)})
    assert keyed(file.look_up(Wanted(wanted, ("name", "number"), ("v",)))) == {("a", 0): 1, ("b", 1): 2}


positions = st.sets(st.integers(0, 40)).map(lambda rows: np.array(sorted(rows), np.int64))


@given(positions, positions)
def test_rows_that_are_gone(positions: vectors.Positions, rows: vectors.Positions) -> None:
    assert vectors.among(positions, rows).tolist() == [row in positions for row in rows.tolist()]
    assert vectors.union(positions, rows).tolist() == sorted({*positions.tolist(), *rows.tolist()})


def test_one_value_beside_nulls(tmp_path: Path) -> None:
    rows = pa.table({"name": pa.array([None, "a", "b", None]), "number": [1, 1, 1, 2], "v": [1, 2, 3, 4]})
    file = DeltaFile(str(tmp_path))
    file.create(rows.schema)
    file.append(rows)
    wanted = pa.table({"name": ["a", "a"], "number": [1, 2]})
    assert keyed(file.look_up(Wanted(wanted, ("name", "number"), ("v",)))) == {("a", 1): 2}
    nulls = pa.table({"name": pa.array([None, None], pa.string()), "number": [1, 2]})
    found = keyed(file.look_up(Wanted(nulls, ("name", "number"), ("v",))))
    assert found == {(None, 1): 1, (None, 2): 4}


def test_numbers_that_are_all_less_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The greatest stands for them; where one may be more, or is not there, all are read."""
    file = DeltaFile(str(tmp_path))
    parts = [[1, 9, 3], [1, 10, 3], [1, None, 3]]
    file.create(pa.schema([("number", pa.int64()), ("v", pa.int64())]))
    for at, values in enumerate(parts):
        file.append(pa.table({"number": [3 * at, 3 * at + 1, 3 * at + 2], "v": pa.array(values, pa.int64())}))
    read: list[str] = []
    reading = Reader.read
    monkeypatch.setattr(Reader, "read", lambda *asked: (read.extend(asked[2]), reading(*asked))[1])
    wanted = Wanted(pa.table({"number": [0, 3, 6]}), ["number"], ["v"], least={"v": 10})
    found = file.look_up(wanted)
    assert dict(zip(found["number"].to_pylist(), found["v"].to_pylist(), strict=True)) == {0: 9, 3: 1, 6: 1}
    assert read.count("v") == 2


def test_what_was_looked_up_is_let_go(tmp_path: Path) -> None:
    """Of lookups after which nothing is written the last one is known, and no more."""
    file = DeltaFile(str(tmp_path))
    file.create(pa.schema([("number", pa.int64())]))
    file.append(pa.table({"number": [1, 2, 3]}))
    held = []
    for start in range(0, 200_000, 10_000):
        file.look_up(Wanted(pa.table({"number": list(range(start, start + 10_000))}), ["number"]))
        held.append(pa.total_allocated_bytes())
    assert held[-1] < held[1] + 10 * 10_000


NAMES = [None, "a", "b"]


def drawn_rows(draw: random.Random, count: int, most: int) -> pa.Table:
    pairs = {(draw.choice(NAMES), draw.randrange(-most, most)) for _ in range(count)}
    listed = draw.sample(sorted(pairs, key=str), len(pairs))
    return pa.table(
        {
            "name": pa.array([name for name, _ in listed], pa.string()),
            "number": pa.array([number for _, number in listed], pa.int64()),
            "v": pa.array([draw.randrange(1000) for _ in listed], pa.int64()),
        }
    )


def keyed(rows: pa.Table) -> dict[tuple[str | None, int], int]:
    return {(row["name"], row["number"]): row["v"] for row in rows.to_pylist()}


@pytest.mark.parametrize("seed", range(30))
def test_what_is_found_is_what_a_dictionary_finds(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(lookup, "_AT_ONCE", draw.choice([1, 40, 1 << 20]))
    monkeypatch.setattr(index, "LEAST_ROWS", draw.choice([1, 1 << 18]))
    monkeypatch.setenv("HEADPOND_CACHE_DIR", str(tmp_path / "cache"))
    file = DeltaFile(str(tmp_path))
    on, most = ("name", "number"), draw.choice([5, 50, 1 << 40])
    model = keyed(first := drawn_rows(draw, 60, most))
    file.create(first.schema, partition_by=draw.choice([[], ["name"]]))
    file.allow_marks(allowed=True)
    file.engine.group_bytes = draw.choice([100, 400, 1 << 20])
    file.append(first)
    for _ in range(3):
        more = drawn_rows(draw, 40, most)
        gone = pa.array([draw.random() < 0.3 for _ in range(more.num_rows)])
        file.merge(Merge(more, on, wins=always, gone=gone))
        for key, value, goes in zip(keyed(more), more["v"].to_pylist(), gone.to_pylist(), strict=True):
            model.pop(key, None)
            model |= {} if goes else {key: value}
        several = drawn_rows(draw, 20, most).select(on)
        one_name = several.filter(pc.equal(several["name"], "a"))
        for wanted in (several, one_name, pa.concat_tables([several, several.slice(0, 5)])):
            keys = set(zip(*(column.to_pylist() for column in wanted.columns), strict=True))
            # One that looks for the first time, and one that knows what the one before looked for.
            for each in (DeltaFile(str(tmp_path)), file):
                found = each.look_up(Wanted(wanted, on, ("v", "v")))
                assert keyed(found) == {key: model[key] for key in keys & model.keys()}
                assert found.num_rows == len(keys & model.keys())
        numbers = several.select(["number"])
        found = keyed(file.look_up(Wanted(numbers, ["number"], ("name", "v"))))
        wanted_numbers = set(numbers["number"].to_pylist())
        assert found == {key: value for key, value in model.items() if key[1] in wanted_numbers}
