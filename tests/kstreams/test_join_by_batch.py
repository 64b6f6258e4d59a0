"""The batch engine of the join, against Kafka Streams' scenarios."""

from __future__ import annotations

import numpy as np
import pytest

from headpond.kstreams.join import arrivals
from headpond.kstreams.join.rules import HeadersOf
from tests.kstreams.join_cuts import cut, expected, rules_of, run, scenarios

SCENARIOS = {each["name"]: each for each in scenarios()}


EVERYTHING = 1 << 30
SCRIPTED = [name for name in SCENARIOS if not name.startswith("random")]
RANDOM = [name for name in SCENARIOS if name.startswith("random")]


def check(name: str, sizes: tuple[int, ...]) -> None:
    scenario = SCENARIOS[name]
    rules = rules_of(scenario, headers=HeadersOf.TRIGGER)
    wanted = expected(scenario)
    for size in sizes:
        found, state, _ = run(rules, cut(scenario, size))
        assert found == wanted, f"cut by {size}"
        assert state.next_seq == sum("side" in step for step in scenario["steps"])


@pytest.fixture
def bad_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """All keys fall on two hash values."""
    real = arrivals.hash_keys
    monkeypatch.setattr(arrivals, "hash_keys", lambda keys: real(keys) % np.uint64(2))


@pytest.mark.parametrize("name", SCRIPTED)
def test_scripted_scenarios_in_batches(name: str) -> None:
    """Results, their order, times and headers are those of Kafka Streams, however the input is cut."""
    check(name, (3, EVERYTHING))


@pytest.mark.slow
@pytest.mark.parametrize("name", RANDOM)
def test_random_scenarios_in_batches(name: str, bad_hashes: None) -> None:
    """The same where different keys have one hash."""
    check(name, (97,))


@pytest.mark.thorough
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_in_any_cut(name: str) -> None:
    """Batches of 1, 3, 17 and everything."""
    check(name, (1, 3, 17, EVERYTHING))


@pytest.mark.thorough
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_in_any_cut_with_bad_hashes(name: str, bad_hashes: None) -> None:
    """Batches of 3, 17 and everything, keys on two hash values."""
    check(name, (3, 17, EVERYTHING))


@pytest.mark.parametrize("name", ["random-inner-2", "random-outer-2", "self-join-grace-HEADERS"])
@pytest.mark.slow
def test_a_batch_with_too_many_pairs_is_worked_off_in_parts(name: str) -> None:
    """The same results, with no more pairs at once than allowed."""
    scenario = SCENARIOS[name]
    rules = rules_of(scenario, headers=HeadersOf.TRIGGER)
    found, _, _ = run(rules, cut(scenario, EVERYTHING), max_pairs=20)
    assert found == expected(scenario)
