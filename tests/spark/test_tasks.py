"""Many shards in one task: none waits for another, each in its order, and tasks are dealt out evenly."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headpond.spark.sources.tasks import deal, interleaved

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20


@pytest.mark.slow
@given(st.lists(st.lists(st.integers()), max_size=12), st.integers(1, 5))
def test_each_part_comes_whole_and_in_its_order(parts: list[list[int]], most: int) -> None:
    """However many there are, empty ones among them, and however few may be begun at a time."""
    tagged = [[(number, item) for item in part] for number, part in enumerate(parts)]
    found = list(interleaved(map(iter, tagged), most))
    assert [[each for each in found if each[0] == number] for number in range(len(parts))] == tagged


def test_parts_wait_at_the_same_time() -> None:
    """Each goes on only when all have begun: one after the other they would never end."""
    together = threading.Barrier(6)

    def part(number: int) -> Iterator[int]:
        together.wait(30)
        yield number

    assert sorted(interleaved([part(number) for number in range(6)])) == list(range(6))


def test_no_more_are_begun_than_may_be() -> None:
    """What is held at a time is bounded; the next begins when one has ended."""
    begun: list[int] = []
    ended: list[int] = []

    def part(number: int) -> Iterator[int]:
        begun.append(number)
        assert len(begun) - len(ended) <= 3
        yield number
        ended.append(number)

    assert sorted(interleaved([part(number) for number in range(20)], 3)) == list(range(20))


def test_an_error_ends_all() -> None:
    """It is the one that was raised, and nothing is asked for any more."""

    def part(number: int) -> Iterator[int]:
        yield number
        if number == 2:
            raise ValueError("two")
        yield number

    with pytest.raises(ValueError, match="two"):
        list(interleaved([part(number) for number in range(4)], 2))


@given(st.lists(st.integers(0, 64 * MIB), max_size=300), st.integers(1, 64))
def test_shares_are_dealt_out_evenly(sizes: list[int], most: int) -> None:
    """Each once; no more tasks than cores or than is worth it; none has more than a share above the mean."""
    tasks = deal(sizes, most)
    assert sorted(number for task in tasks for number in task) == list(range(len(sizes)))
    assert all(tasks)
    assert len(tasks) <= min(most, len(sizes))
    if sum(sizes) > most * 4 * MIB:
        assert len(tasks) == min(most, len(sizes))
    costs = [sum(sizes[number] + (64 << 10) for number in task) for task in tasks]
    if costs:
        assert max(costs) <= sum(costs) / len(costs) + max(sizes) + (64 << 10)
