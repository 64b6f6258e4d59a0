"""Offsets and starting positions: written one way, read strictly."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.core.errors import ConfigurationError, InvalidData
from headpond.kinesis.reading.positions import (
    END,
    HORIZON,
    Offset,
    Position,
    Shard,
    Start,
    after,
    ancestors,
    at_time,
    before,
    listing,
    read_offset,
    read_start,
    readable,
    resolve,
)
from tests.kit.support import share_of

TIMES = st.integers(0, 10**14)
POSITIONS = st.one_of(
    st.just(END),
    st.just(HORIZON),
    st.builds(at_time, TIMES),
    st.builds(before, st.integers(0, 10**60).map(str)),
    st.builds(after, st.integers(0, 10**60).map(str), TIMES),
)
EXAMPLE = Offset(
    "orders",
    1767225600000,
    {
        "shardId-000000000003": after("49680000000000000000000000000000000000000000000000000001", 17),
        "shardId-000000000000": END,
        "shardId-000000000004": at_time(18),
        "shardId-000000000005": HORIZON,
    },
)


def test_an_offset_reads_as_the_specification_writes_it() -> None:
    """All kinds, numbers as text, keys sorted."""
    expected = (
        '{"created": "1767225600000", "shards": {"shardId-000000000000": {"p": "END"}, '
        '"shardId-000000000003": {"p": "SEQ", "s": '
        '"49680000000000000000000000000000000000000000000000000001", "t": "17"}, '
        '"shardId-000000000004": {"p": "TS", "t": "18"}, "shardId-000000000005": {"p": "HORIZON"}}, '
        '"stream": "orders", "v": 1}'
    )
    assert expected == json.dumps(EXAMPLE.to_json())
    assert json.dumps(EXAMPLE.to_json(), sort_keys=True) == json.dumps(EXAMPLE.to_json())


@given(st.text(max_size=20), TIMES, st.dictionaries(st.text(max_size=8), POSITIONS, max_size=5))
@settings(max_examples=share_of(100))
def test_offsets_survive_the_checkpoint(stream: str, created: int, shards: dict[str, Position]) -> None:
    """Reading what was written gives the same offset."""
    offset = Offset(stream, created, shards)
    assert offset == read_offset(json.loads(json.dumps(offset.to_json())))


def broken(**changes: object) -> dict[str, object]:
    return {**EXAMPLE.to_json(), **changes}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (broken(v=3), "version 3"),
        (broken(v=True), "version True"),
        (broken(v=None), "version None"),
        ([], "not an object"),
        ({"v": 1}, "its keys are v"),
        (broken(more=1), "more"),
        (broken(created=5), "created is 5"),
        (broken(created="5.0"), "created is '5.0'"),
        (broken(stream=3), "wrong type"),
        (broken(shards=[]), "wrong type"),
        (broken(shards={"x": "END"}), "position of x is not an object"),
        (broken(shards={"x": {"p": "MIDDLE"}}), "MIDDLE"),
        (broken(shards={"x": {"p": "END", "s": "1"}}), "position of x"),
        (broken(shards={"x": {"p": "SEQ", "s": "1"}}), "position of x"),
        (broken(shards={"x": {"p": "SEQ", "s": "1a", "t": "1"}}), "s of x is '1a'"),
        (broken(shards={"x": {"p": "SEQ", "s": "٣", "t": "1"}}), "s of x"),
        (broken(shards={"x": {"p": "TS", "t": -1}}), "t of x is -1"),
    ],
)
def test_damaged_offsets_are_named(value: object, says: str) -> None:
    """Another version, a missing, foreign or malformed field: one sentence says which."""
    with pytest.raises(InvalidData) as caught:
        read_offset(value)
    assert says in caught.value.message
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("LATEST", Start("LATEST")),
        (" trim_horizon ", Start(HORIZON)),
        ("earliest", Start(HORIZON)),
        ("AT_TIMESTAMP 2026-01-01T00:00:00Z", Start(at_time(1767225600000))),
        ("AT_TIMESTAMP 2026-01-01T02:00:00.5+02:00", Start(at_time(1767225600500))),
        ("AT_TIMESTAMP 1969-01-01T00:00:00Z", Start(at_time(0))),
        ("{}", Start(HORIZON, {})),
        (
            (
                '{"a": "LATEST", "b": "AFTER_SEQUENCE_NUMBER 1", '
                '"c": {"p": "SEQ", "s": "3", "t": "4"}, "d": "END", "e": "AT_SEQUENCE_NUMBER 5"}'
            ),
            Start(
                HORIZON,
                {"a": "LATEST", "b": after("1", 0), "c": after("3", 4), "d": END, "e": before("5")},
            ),
        ),
    ],
)
def test_starting_positions(text: str, expected: Start) -> None:
    """Every documented form is understood."""
    assert expected == read_start(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NEWEST",
        "END",
        "LATEST 3",
        "AT_TIMESTAMP",
        "AT_TIMESTAMP now",
        "AT_TIMESTAMP 2026-01-01T00:00:00",
        "AFTER_SEQUENCE_NUMBER 3",
        "{",
        '{"a": 3}',
        '{"a": {"p": "SEQ"}}',
        '{"a": "AFTER_SEQUENCE_NUMBER x"}',
    ],
)
def test_wrong_starting_positions_are_refused(text: str) -> None:
    """The message names the option and what it takes."""
    with pytest.raises(ConfigurationError) as caught:
        read_start(text)
    assert caught.value.facts["option"] == "startingPosition"
    assert "TRIM_HORIZON" in caught.value.next_step


#   0 ─┬─ 2 ─┐      1 has expired; 5 came of 3 and 4
#      └─ 3 ─┴─ 5
#   1 ─── 4 ─┘
GRAPH = listing(
    [
        Shard("5", ("3", "4")),
        Shard("4", ("1",), closed=True),
        Shard("3", ("0",), closed=True),
        Shard("2", ("0",)),
        Shard("0", closed=True),
    ]
)


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ({}, ["0", "4"]),
        ({"0": END}, ["2", "3", "4"]),
        ({"0": END, "4": END}, ["2", "3"]),
        ({"0": END, "4": END, "3": END}, ["2", "5"]),
        ({"4": END, "3": END}, ["0", "5"]),
    ],
)
def test_children_wait_for_every_listed_parent(positions: dict[str, Position], expected: list[str]) -> None:
    """An expired parent holds nobody up; a merge's child waits for both."""
    assert expected == readable(GRAPH, positions, parent_first=True)


def test_unordered_shards_wait_for_nobody() -> None:
    """Without parent_first everything unfinished may be read."""
    assert readable(GRAPH, {"3": END}, parent_first=False) == ["0", "2", "4", "5"]


def test_starting_rules_resolve_over_the_graph() -> None:
    """LATEST finishes closed shards; a named shard's ancestors are done, other unnamed ones start anew."""
    assert resolve(Start("LATEST"), GRAPH, 9) == {
        "0": END,
        "2": at_time(9),
        "3": END,
        "4": END,
        "5": at_time(9),
    }
    named = resolve(Start(HORIZON, {"3": after("7", 0)}), GRAPH, 9)
    assert named == {"0": END, "2": HORIZON, "3": after("7", 0), "4": HORIZON, "5": HORIZON}
    assert ancestors(GRAPH, ["5"]) == {"0", "3", "4"}
