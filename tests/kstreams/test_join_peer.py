"""Kafka Streams' own join, from Maven, as a peer: equal results on random streams, its state goes on."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from headpond.kstreams import (
    Emit,
    HeadersOf,
    JoinRecord,
    JoinResult,
    JoinRules,
    JoinStores,
    JoinType,
    JoinWindows,
    Side,
    StreamJoin,
    find_task_stores,
    read_initial_state,
)
from tests.kit.support import share_of
from tests.kstreams.join_cuts import Result, run
from tests.kstreams.join_lines import random_records, random_rules, run_all
from tests.kstreams.test_join_alignment import divided, random_lines, shares_in_order
from tests.kstreams.test_join_kafka_state import held, record_of
from tests.kstreams.test_peer import jars

PEER = Path(__file__).parent / "peer" / "JoinPeer.java"
BASE_MS = 1_700_000_000_000
SIDES = {Side.LEFT: "L", Side.RIGHT: "R"}

pytestmark = pytest.mark.maven
__all__ = ["jars"]  # the fixture


def hexed(data: bytes | None) -> str:
    return "null" if data is None else data.hex()


def told(record: JoinRecord) -> str:
    headers = ",".join(f"{name}={hexed(value)}" for name, value in record.headers)
    words = (SIDES[record.side], hexed(record.key), hexed(record.value), str(record.timestamp), headers)
    return "\t".join(words)


def line_of(result: JoinResult) -> str:
    headers = ",".join(f"{name}={hexed(value)}" for name, value in result.headers)
    return "\t".join(
        (hexed(result.key), hexed(result.left), hexed(result.right), str(result.timestamp), headers)
    )


def join_line(rules: JoinRules) -> str:
    windows = rules.windows
    spans = (windows.before_ms, windows.after_ms, windows.grace_ms, rules.emit_interval_ms)
    return "\t".join(("join", rules.type.value, *map(str, spans)))


def ask(jars: Path, state: Path, lines: list[str]) -> list[list[str]]:
    """Send lines to the peer; return the results of each record."""
    command = ["java", "-cp", f"{jars}/*", str(PEER), str(state)]
    done = subprocess.run(
        command,
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TZ": "UTC"},
    )
    assert done.returncode == 0, done.stderr
    steps: list[list[str]] = [[]]
    for line in done.stdout.splitlines():
        if line == ".":
            steps.append([])
        else:
            steps[-1].append(line)
    return steps[:-1]


def case_of(seed: int) -> tuple[JoinRules, list[JoinRecord]]:
    """Kafka Streams' rules, and records of which some have several headers, null ones among them."""
    chance = Random(seed)
    rules = replace(random_rules(chance), headers=HeadersOf.TRIGGER, emit=Emit.EAGER)
    records = [
        each._replace(
            timestamp=each.timestamp + BASE_MS * (seed % 2),
            headers=(*each.headers, *each.headers, ("null", None))[: chance.randint(0, 3)],
        )
        for each in random_records(chance, rules, size=80)
    ]
    return rules, records


def test_random_streams_give_equal_results(jars: Path, tmp_path: Path) -> None:
    """Every type, windows on one side or in the past, throttled or not: step by step."""
    cases = [case_of(seed) for seed in range(120)]
    lines = []
    for rules, records in cases:
        lines.append(join_line(rules))
        for record in records:
            lines += [told(record), "advance\t1"]
    steps = iter(ask(jars, tmp_path, lines))
    for number, (rules, records) in enumerate(cases):
        with StreamJoin(rules, JoinStores.build(rules)) as join:
            found = run_all(join, records)
        expected = [next(steps) for _ in records]
        assert [[line_of(each) for each in step] for step in found] == expected, (number, rules)


@pytest.mark.timeout(1800)
def test_unequal_inputs_give_equal_results(jars: Path, tmp_path: Path) -> None:
    """Joins of partitions that progress by rates of their own, in batches of any size, in two tasks each.

    The peer gets each task's records in the order in which Kafka Streams takes them from its partitions:
    always the one whose partition's next record is the oldest.
    """
    cases = []
    lines = []
    for seed in range(share_of(500)):
        chance = Random(seed)
        rules = replace(random_rules(chance), headers=HeadersOf.TRIGGER, emit=Emit.EAGER, emit_interval_ms=0)
        inputs = random_lines(chance, self_join=rules.type is JoinType.SELF, count=30)
        shares = shares_in_order(inputs)
        cases.append((rules, inputs, chance, [len(share) for share in shares]))
        for share in shares:
            lines += [join_line(rules), *map(told, share)]
    steps = iter(ask(jars, tmp_path, lines))
    for number, (rules, inputs, chance, sizes) in enumerate(cases):
        expected = [[line for _ in range(size) for line in next(steps)] for size in sizes]
        found = divided(rules, inputs, chance)
        for task, wanted in enumerate(expected):
            mine = [JoinResult(*result[1:]) for result in found if result[0] == task]
            assert [line_of(each) for each in mine] == wanted, (number, rules)


def test_a_join_without_width_and_grace_finds_nothing(jars: Path, tmp_path: Path) -> None:
    """A retention of 0 ms keeps nothing, there and here; with a grace of 1 ms it does."""
    records = [JoinRecord(Side.LEFT, b"k", b"l", 5), JoinRecord(Side.RIGHT, b"k", b"r", 5)]
    for grace, count in ((0, 0), (1, 1)):
        rules = JoinRules(JoinType.INNER, JoinWindows(0, 0, grace), HeadersOf.TRIGGER)
        steps = ask(jars, tmp_path / str(grace), [join_line(rules), *map(told, records)])
        with StreamJoin(rules, JoinStores.build(rules)) as join:
            found = run_all(join, records)
        assert [[line_of(each) for each in step] for step in found] == steps
        assert len(steps[1]) == count


@pytest.mark.parametrize("join_type", [JoinType.INNER, JoinType.LEFT, JoinType.OUTER])
def test_its_state_goes_on_here(join_type: JoinType, jars: Path, tmp_path: Path) -> None:
    """Half a stream there, its directories here, the other half as if it had never stopped."""
    chance = Random(join_type)
    rules = JoinRules(join_type, JoinWindows(9, 5, 4), HeadersOf.TRIGGER)
    records = [
        each._replace(timestamp=each.timestamp + BASE_MS)
        for _ in range(5)
        for each in random_records(chance, rules, size=80)
    ]
    records.sort(key=lambda each: each.timestamp // 20)
    cut = len(records) // 2
    whole = [join_line(rules), *map(told, records)]
    steps = ask(jars, tmp_path / "state", [*whole[: cut + 1], f"copy\t{tmp_path / 'copy'}", *whole])[cut:]
    undivided = run(rules, [([record_of(each)], 0) for each in records[:cut]])[1]
    stores = find_task_stores(rules, tmp_path / "copy", "j")
    state = read_initial_state(
        rules,
        left=stores.left,
        right=stores.right,
        buffer=stores.buffer,
        stream_time=undivided.clock.stream_time,
        min_time=undivided.clock.min_time,
    ).task
    without_headers = [each._replace(headers=[]) for each in held(undivided, rules)]
    assert [each._replace(headers=[]) for each in held(state, rules)] == without_headers
    assert state.clock == replace(undivided.clock, next_emit_ms=0)
    for record, expected in zip(records[cut:], steps[cut:], strict=True):
        out, state, _ = run(rules, [([record_of(record)], 0)], state)
        assert out == [result_of(line) for line in expected]


def result_of(line: str) -> Result:
    """A line of the peer's as the engine by the batch tells results."""
    key, left, right, timestamp, headers = line.split("\t")
    values = (b"null" if each == "null" else bytes.fromhex(each) for each in (left, right))
    pairs = [each.split("=") for each in headers.split(",") if each]
    return unhexed(key), b"+".join(values), int(timestamp), [(name, unhexed(data)) for name, data in pairs]


def unhexed(text: str) -> bytes | None:
    return None if text == "null" else bytes.fromhex(text)
