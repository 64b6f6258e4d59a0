"""The scalar engine of the join: Kafka Streams' scenarios on every kind of store, and its options."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.core.errors import UsageError
from headpond.kstreams import (
    BufferFormat,
    ChangelogRecord,
    Emit,
    HeadersOf,
    JoinRecord,
    JoinResult,
    JoinRules,
    JoinStores,
    JoinType,
    JoinWindows,
    OuterJoinBuffer,
    Side,
    StreamJoin,
    ValueFormat,
    read_initial_state,
)
from headpond.kstreams.join.scenario import differing_steps, read_scenario
from headpond.kstreams.join.stores import MemoryPairs
from tests.kit.support import share_of
from tests.kstreams.join_lines import (
    KINDS,
    random_records,
    random_rules,
    run_all,
    scenario_documents,
    stores_of,
)

if TYPE_CHECKING:
    from pathlib import Path

SCENARIOS = scenario_documents()
KEEPS_HEADERS = (None, ValueFormat.PLAIN_HEADERS, ValueFormat.TIMESTAMPED_HEADERS)
SEEDS = st.integers(0, 1 << 32)
FEW = ["random-outer-2", "emit-throttle-1000ms-outer-HEADERS", "self-join-grace-HEADERS"]


def play(name: str, kind: ValueFormat | None, directory: Path, buffer_format: BufferFormat) -> None:
    """Every step's results, and what the window stores hold at the end, as Kafka Streams had them."""
    document = SCENARIOS[name]
    scenario = read_scenario(document, headers=HeadersOf.TRIGGER)
    stores = stores_of(scenario.rules, kind, directory, buffer_format)
    contents: dict[str, Any] = {}
    close = stores.close

    def look_and_close() -> None:
        for store in (stores.of(side) for side in Side):
            contents[store.settings.name] = [
                (
                    found.key.decode(),
                    found.window_start,
                    each.value.decode() if each.value else "",
                    each.headers,
                )
                for found, each in store.all()
            ]
        close()

    stores.close = look_and_close  # type: ignore[method-assign]
    assert differing_steps(document, scenario.play(stores)) == []
    kept = kind in KEEPS_HEADERS and document["store_format"] == "HEADERS"
    for store, entries in document["final_stores"].items():
        if isinstance(entries, str):
            continue  # an estimate of RocksDB's
        expected = [
            (
                each["key"],
                each["window_start"],
                each["value"],
                tuple((k, None if v is None else bytes.fromhex(v)) for k, v in each["headers"]),
            )
            for each in entries
        ]
        found = contents[store]
        assert [each[:3] for each in found] == [each[:3] for each in expected]
        if kept:
            assert found == expected


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios_in_memory(name: str, tmp_path: Path) -> None:
    """Order, timestamps, headers, and the stores at the end."""
    play(name, None, tmp_path, BufferFormat.HEADERS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ValueFormat)
@pytest.mark.parametrize("name", FEW)
def test_scenarios_on_rocksdb(name: str, kind: ValueFormat, tmp_path: Path) -> None:
    """The same on disk: KIP-1300's format, and behind each adapter."""
    play(name, kind, tmp_path, BufferFormat.PLAIN)


@pytest.mark.thorough
@pytest.mark.parametrize("buffer_format", BufferFormat)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_on_every_kind_of_store(
    name: str, kind: str, buffer_format: BufferFormat, tmp_path: Path
) -> None:
    """All of them, with both kinds of buffer."""
    play(name, KINDS[kind], tmp_path, buffer_format)


def joined_pairs(results: list[list[JoinResult]]) -> Counter[tuple[bytes, bytes]]:
    return Counter((r.left, r.right) for each in results for r in each if r.left and r.right)


def unmatched(results: list[list[JoinResult]]) -> Counter[tuple[Side, bytes]]:
    return Counter(
        (Side.RIGHT, r.right or b"") if r.left is None else (Side.LEFT, r.left)
        for each in results
        for r in each
        if None in (r.left, r.right)
    )


def model_pairs(rules: JoinRules, records: list[JoinRecord]) -> Counter[tuple[bytes, bytes]]:
    """By the definition: pairs within the window whose first record was still kept when the second came."""
    pairs: Counter[tuple[bytes, bytes]] = Counter()
    observed = dict.fromkeys(Side, -1)
    stream_time = -1
    earlier: list[JoinRecord] = []
    for record in records:
        stream_time = max(stream_time, record.timestamp)
        if record.key is None or record.value is None:
            continue
        for old in earlier:
            if old.side is record.side or old.key != record.key:
                continue
            left, right = (old, record) if old.side is Side.LEFT else (record, old)
            apart = right.timestamp - left.timestamp
            kept = old.timestamp > observed[old.side] - rules.retention_ms
            if rules.emit is Emit.FINAL and rules.is_outer(old.side):
                kept = kept and not rules.closed(old.side, old.timestamp, stream_time)
            # Bounds below zero are taken for zero.
            near = -rules.windows.before_ms <= apart <= rules.windows.after_ms
            if kept and (near or (old.timestamp == 0 and clamped(rules, record))):
                pairs[left.value or b"", right.value or b""] += 1
        observed[record.side] = max(observed[record.side], record.timestamp)
        earlier.append(record)
    return pairs


def clamped(rules: JoinRules, record: JoinRecord) -> bool:
    """Whether a record's window lies wholly before time 0, and is looked for at 0 instead."""
    return record.timestamp + rules.after_ms(record.side) < 0


@given(SEEDS)
@settings(max_examples=share_of(40))
def test_joined_pairs_are_those_of_the_definition(seed: int) -> None:
    """Whatever the windows, the order and the type."""
    chance = Random(seed)
    rules = random_rules(chance, (JoinType.INNER, JoinType.LEFT, JoinType.OUTER))
    records = random_records(chance, rules)
    with StreamJoin(rules, JoinStores.build(rules)) as join:
        results = run_all(join, records)
        assert joined_pairs(results) == model_pairs(rules, records)
        assert join.counters.joined + join.counters.unmatched == sum(map(len, results))


@given(SEEDS)
@settings(max_examples=share_of(40))
def test_with_final_a_record_is_joined_or_appears_once_alone(seed: int) -> None:
    """Never both, never twice; and one that is neither was dropped or still waits."""
    chance = Random(seed)
    rules = random_rules(chance, (JoinType.LEFT, JoinType.OUTER))
    rules = replace(rules, emit=Emit.FINAL)
    records = random_records(chance, rules)
    with StreamJoin(rules, JoinStores.build(rules)) as join:
        results = run_all(join, records)
        waiting = {(side, each.value) for _, side, _, each in join.waiting()}
    pairs = joined_pairs(results)
    met = {(Side.LEFT, left) for left, _ in pairs} | {(Side.RIGHT, right) for _, right in pairs}
    alone = unmatched(results)
    assert all(count == 1 for count in alone.values())
    outer = {
        (each.side, each.value) for each in records if rules.is_outer(each.side) and each.value is not None
    }
    assert set(alone) <= outer
    assert not set(alone) & met
    assert not waiting & (met | set(alone))
    assert outer == (outer & met) | set(alone) | waiting


@given(SEEDS)
@settings(max_examples=share_of(30))
def test_headers_change_nothing_else_and_are_as_chosen(seed: int) -> None:
    """Own and merged headers on the results that Kafka Streams' way gives."""
    chance = Random(seed)
    rules = random_rules(chance)
    records = random_records(chance, rules)
    by_value = {each.value: each.headers for each in records}
    found = {}
    for headers in HeadersOf:
        chosen = replace(rules, headers=headers)
        with StreamJoin(chosen, JoinStores.build(chosen)) as join:
            found[headers] = run_all(join, records)
    for record, trigger, own, merged in zip(records, *(found[each] for each in (
        HeadersOf.TRIGGER, HeadersOf.OWN, HeadersOf.MERGE
    )), strict=True):  # fmt: skip
        assert [r[:4] for r in trigger] == [r[:4] for r in own] == [r[:4] for r in merged]
        assert all(r.headers == record.headers for r in trigger)
        for one, both in zip(own, merged, strict=True):
            if one.left is not None and one.right is not None:
                assert one.headers == record.headers
                assert both.headers == by_value[one.left] + by_value[one.right]
            else:
                assert one.headers == both.headers == by_value[one.left or one.right]


@given(SEEDS)
@settings(max_examples=share_of(20))
def test_inner_and_self_joins_are_the_same_eager_or_final(seed: int) -> None:
    """There is nothing to take back."""
    chance = Random(seed)
    rules = random_rules(chance, (JoinType.INNER, JoinType.SELF))
    records = random_records(chance, rules)
    found = []
    for emit in Emit:
        chosen = replace(rules, emit=emit)
        with StreamJoin(chosen, JoinStores.build(chosen)) as join:
            found.append(run_all(join, records))
    assert found[0] == found[1]


def test_counters_say_what_became_of_each_record() -> None:
    """One of each kind."""
    rules = JoinRules(JoinType.LEFT, JoinWindows(10, 10, 5))
    lines = [
        (Side.LEFT, None, b"v", 100),  # a result at once
        (Side.RIGHT, None, b"v", 100),  # no key
        (Side.LEFT, None, None, 100),  # neither
        (Side.RIGHT, b"a", None, 100),  # no value
        (Side.LEFT, b"a", b"l1", 100),  # waits
        (Side.RIGHT, b"a", b"r1", 105),  # joined
        (Side.LEFT, b"a", b"l2", 90),  # out of order; its window is over; at once
        (Side.LEFT, b"a", b"l3", 60),  # late; behind what anyone can read
    ]
    with StreamJoin(rules, JoinStores.build(rules)) as join:
        for side, key, value, timestamp in lines:
            join.process(JoinRecord(side, key, value, timestamp))
        assert join.counters.as_dict() == {
            "records": 8,
            "out_of_order": 2,
            "late": 1,
            "dropped_null_key": 2,
            "dropped_null_value": 1,
            "dropped_late": 1,
            "buffered": 1,
            "joined": 1,
            "unmatched": 3,
            "emitted": 4,
        }
        total = join.counters
    total.add(total)
    assert (total.records, total.emitted) == (16, 8)


@pytest.mark.parametrize("timestamp", [-1, 1 << 62])
def test_a_time_that_no_record_has_is_refused(timestamp: int) -> None:
    """Before anything is done."""
    rules = JoinRules(JoinType.INNER, JoinWindows(1, 1))
    with StreamJoin(rules, JoinStores.build(rules)) as join:
        with pytest.raises(UsageError, match=f"is {timestamp}"):
            join.process(JoinRecord(Side.LEFT, b"a", b"v", timestamp))
        assert join.counters.records == 0
        assert join.clock.stream_time == -1


def test_a_self_join_has_one_input() -> None:
    """A right record is a mistake."""
    rules = JoinRules(JoinType.SELF, JoinWindows(1, 1))
    with (
        StreamJoin(rules, JoinStores.build(rules)) as join,
        pytest.raises(UsageError, match="one input, the left one"),
    ):
        join.process(JoinRecord(Side.RIGHT, b"a", b"v", 1))


def test_what_a_self_join_drops_does_not_move_its_stream_time() -> None:
    """Seen live: a record after it still meets itself. In every other join time has passed."""
    rules = JoinRules(JoinType.SELF, JoinWindows(5, 5))
    with StreamJoin(rules, JoinStores.build(rules)) as join:
        join.process(JoinRecord(Side.LEFT, None, b"v", 500))
        join.process(JoinRecord(Side.LEFT, b"a", None, 500))
        (itself,) = join.process(JoinRecord(Side.LEFT, b"a", b"v", 100))
        assert (itself.left, itself.right, join.clock.stream_time) == (b"v", b"v", 100)
    inner = JoinRules(JoinType.INNER, JoinWindows(5, 5))
    with StreamJoin(inner, JoinStores.build(inner)) as join:
        join.process(JoinRecord(Side.LEFT, None, None, 500))
        assert join.clock.stream_time == 500


def test_stores_of_another_join_are_refused() -> None:
    """Other windows, another type, or a buffer without the headers that are asked for."""
    windows = JoinWindows(10, 10)
    inner, left = JoinRules(JoinType.INNER, windows), JoinRules(JoinType.LEFT, windows)
    wide = JoinRules(JoinType.INNER, JoinWindows(10, 20))
    for made, asked in ((inner, wide), (inner, left), (left, inner)):
        with pytest.raises(UsageError, match="These stores are made for the join"):
            StreamJoin(asked, JoinStores.build(made))
    plain = JoinStores.build(left, buffer_format=BufferFormat.PLAIN)
    with pytest.raises(UsageError, match="gives unmatched results their own headers"):
        StreamJoin(left, plain)


def test_a_join_goes_on_in_its_directory(tmp_path: Path) -> None:
    """After a restart: with the times that the stores tell, overwriting nothing."""
    rules = JoinRules(JoinType.OUTER, JoinWindows(10, 10))
    own = (("trace-id", b"1"),)
    with StreamJoin(rules, JoinStores.build(rules, tmp_path)) as join:
        join.process(JoinRecord(Side.LEFT, b"a", b"l1", 100, own))
        join.process(JoinRecord(Side.LEFT, b"b", b"l2", 101))
    with StreamJoin(rules, JoinStores.build(rules, tmp_path)) as join:
        assert (join.clock.stream_time, join.clock.min_time) == (101, 100)
        join.process(JoinRecord(Side.LEFT, b"a", b"l3", 100))
        found = join.process(JoinRecord(Side.RIGHT, b"a", b"r1", 103))
        assert [(each.left, each.right) for each in found] == [(b"l1", b"r1"), (b"l3", b"r1")]
        (gone,) = join.process(JoinRecord(Side.RIGHT, b"c", b"r2", 112))
        assert (gone.key, gone.left, gone.headers) == (b"b", b"l2", ())


def test_the_stores_know_the_record_being_processed() -> None:
    """Its timestamp and headers are what a changelog layer logs."""
    rules = JoinRules(JoinType.INNER, JoinWindows(10, 10))
    stores = JoinStores.build(rules)
    with StreamJoin(rules, stores) as join:
        join.process(JoinRecord(Side.LEFT, b"a", b"l1", 100, (("k", b"v"),)))
        assert (stores.context.timestamp, stores.context.headers) == (100, (("k", b"v"),))


def test_the_stores_of_a_join_have_a_changelog() -> None:
    """Each put with its time and headers, under the name of its store; a store is restored from it."""
    rules = JoinRules(JoinType.INNER, JoinWindows(10, 10))
    logged: list[tuple[str, ChangelogRecord]] = []
    stores = JoinStores.build(rules, join="j", log=lambda name, record: logged.append((name, record)))
    with StreamJoin(rules, stores) as join:
        join.process(JoinRecord(Side.LEFT, b"k", b"l", 100, (("h", b"1"),)))
        join.process(JoinRecord(Side.RIGHT, b"k", b"r", 90))
    told = [(name, each.value, each.timestamp, each.headers) for name, each in logged]
    assert told == [("j-this-join-store", b"l", 100, (("h", b"1"),)), ("j-other-join-store", b"r", 90, ())]
    again = JoinStores.build(rules, join="j")
    for name, record in logged:
        again.of(Side.LEFT if name == "j-this-join-store" else Side.RIGHT).inner.restore([record])
    with StreamJoin(rules, again) as join:
        (result,) = join.process(JoinRecord(Side.RIGHT, b"k", b"later", 101))
    assert (result.left, result.right) == (b"l", b"later")


@pytest.mark.parametrize("buffer_format", BufferFormat)
def test_the_buffer_of_a_join_has_a_changelog(buffer_format: BufferFormat) -> None:
    """Lists without headers, as Kafka Streams writes them; a join goes on from all three changelogs."""
    windows = JoinWindows(10, 10, 5)
    rules = JoinRules(JoinType.OUTER, windows, HeadersOf.TRIGGER)
    logged: dict[str, list[ChangelogRecord]] = {}
    stores = JoinStores.build(
        rules,
        join="j",
        buffer_format=buffer_format,
        log=lambda name, each: logged.setdefault(name, []).append(each),
    )
    records = random_records(Random(3), rules, 200)
    newest = max(record.timestamp for record in records)
    records += [JoinRecord(side, b"z", b"last", newest + 20 * side.value) for side in Side]
    join = StreamJoin(rules, stores)
    times: list[int] = []
    for record in records:
        join.process(record)
        times += [record.timestamp] * (len(logged.get("j-outer-shared-join-store", ())) - len(times))
    buffer = logged["j-outer-shared-join-store"]
    assert [each.timestamp for each in buffer] == times  # of the record being processed
    assert {each.value is None for each in buffer} == {True, False}
    assert all(each.headers == () for each in buffer)
    again = OuterJoinBuffer(MemoryPairs(buffer_format))
    again.restore(buffer)
    waiting = [(key, [each.value for each in found]) for key, found in again.walk()]
    assert stores.buffer is not None
    assert waiting == [(key, [each.value for each in found]) for key, found in stores.buffer.walk()]
    assert waiting
    state = read_initial_state(
        rules,
        left=logged["j-outer-this-join-store"],
        right=logged["j-outer-other-join-store"],
        buffer=buffer,
    )
    assert sum(waits.count for each in state.task.sides.values() for _, waits in each) == sum(
        len(found) for _, found in waiting
    )
    join.close()
