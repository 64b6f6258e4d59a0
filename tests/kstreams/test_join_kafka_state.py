"""Going on where Kafka Streams stopped: from its directories, from its changelogs, and from our own state."""

from __future__ import annotations

import gzip
import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from headpond.core.errors import InvalidData, UsageError
from headpond.kstreams import (
    ChangelogRecord,
    HeadersOf,
    JoinClock,
    JoinRecord,
    JoinRules,
    JoinState,
    JoinStores,
    JoinType,
    JoinWindows,
    NotAStore,
    Side,
    StoreFormatMismatch,
    StoreSettings,
    StreamJoin,
    ValueFormat,
    WindowBytesStore,
    export_lines,
    find_task_stores,
    read_initial_state,
)
from headpond.kstreams.bytes.headers import SerializationError, decode_headers
from headpond.kstreams.bytes.join_buffer import BufferFormat, encode_buffer_key, encode_buffer_list
from headpond.kstreams.bytes.window_keys import encode_store_key
from headpond.kstreams.join import kafka_state
from headpond.kstreams.join.scenario import read_scenario, results_document
from headpond.kstreams.join.stores import RocksPairs
from tests.kit.support import vector_json
from tests.kstreams.join_cuts import Record, Result, run
from tests.kstreams.join_lines import records_of, run_all
from tests.kstreams.vectors import headers_of, unhex, unpacked

if TYPE_CHECKING:
    from pathlib import Path

    from headpond.kstreams.join.chunks import TaskState

NAMES = ["inner-headers", "left-default-segments", "outer-default-segments", "outer-headers"]
_SCENARIO = ("type", "before_ms", "after_ms", "grace_ms", "emit_interval_ms")


class Handover:
    """A vector: what the application had done, and what was to come."""

    def __init__(self, name: str, headers: HeadersOf = HeadersOf.TRIGGER) -> None:
        self.vector = vector_json(f"window-store/handover/{name}.json")
        self.config = self.vector["config"]
        self.name = name
        cut = self.vector["cut"]
        self.before = self._scenario(self.vector["steps"][:cut], headers)
        self.after = self._scenario(self.vector["steps"][cut:], headers)
        self.rules = self.after.rules
        self.expected = [step["out"] for step in self.vector["steps"][cut:]]

    def _scenario(self, steps: list[Any], headers: HeadersOf) -> Any:
        document = {name: self.config[name] for name in _SCENARIO}
        return read_scenario({**document, "steps": steps}, headers=headers)

    def log(self, which: str) -> list[ChangelogRecord] | None:
        store = self.config["stores"][which]
        if store is None:
            return None
        return [
            ChangelogRecord(
                bytes.fromhex(each["key"]),
                unhex(each["value"]),
                each["timestamp"],
                headers_of(each["headers"]),
            )
            for each in self.vector["changelog_first_half"][store]
        ]

    def from_changelogs(self, **more: Any) -> JoinState:
        return read_initial_state(
            self.rules, left=self.log("left") or [], right=self.log("right"), buffer=self.log("outer"), **more
        )

    def from_directories(self, tmp_path: Path, **more: Any) -> JoinState:
        task = unpacked(f"handover/{self.name}", tmp_path) / self.config["task"]
        stores = find_task_stores(self.rules, task)
        return read_initial_state(
            self.rules, left=stores.left, right=stores.right, buffer=stores.buffer, **more
        )

    def undivided(self) -> TaskState:
        """What our own engine holds after the first half."""
        return run(self.rules, [([record_of(step)], 0) for step in self.before.steps])[1]

    def go_on(self, state: TaskState) -> list[list[Any]]:
        """What each step of the second half brings about."""
        found = []
        for step in self.after.steps:
            out, state, _ = run(self.rules, [([record_of(step)], 0)], state)
            found.append([shown(result) for result in out])
        return found


def record_of(step: JoinRecord) -> Record:
    return step.side, step.key, step.value, step.timestamp, list(step.headers)


def shown(result: Result) -> dict[str, Any]:
    """A result in the form of a time-line's `out`."""
    key, value, timestamp, headers = result
    return {
        "key": None if key is None else key.decode(),
        "value": value.decode(),
        "timestamp": timestamp,
        "headers": [[name, None if data is None else data.hex()] for name, data in headers],
    }


class Held(NamedTuple):
    """A record of a state."""

    timestamp: int
    side: int
    key: bytes
    value: bytes
    headers: list[tuple[str, bytes | None]]
    waits: bool


def held(state: TaskState, rules: JoinRules) -> list[Held]:
    """What a state holds that still matters, in the order in which the buffer would let it go."""
    found = []
    for side, each in state.sides.items():
        oldest = state.clock.observed[side] - rules.retention_ms + 1
        for chunk, waits in each:
            flags = waits.flags.tolist()
            columns = (chunk.records.column(name).to_pylist() for name in ("key", "value", "headers"))
            rows = zip(chunk.data.ts.tolist(), chunk.data.seq.tolist(), *columns, strict=True)
            for number, (ts, seq, key, value, headers) in enumerate(rows):
                if ts >= oldest or flags[number]:
                    row = Held(ts, side.value, key, value, decode_headers(headers), flags[number])
                    found.append((row[:3], seq, row))
    return [row for *_, row in sorted(found, key=lambda each: each[:2])]


@pytest.mark.slow
@pytest.mark.parametrize("source", ["directories", "changelogs"])
@pytest.mark.parametrize("name", NAMES)
def test_the_second_half_is_that_of_the_undivided_run(name: str, source: str, tmp_path: Path) -> None:
    """Step by step, trigger's headers included, with nothing given and with the application's numbers."""
    handover = Handover(name)
    clock = handover.undivided().clock
    for numbers in ({}, {"stream_time": clock.stream_time, "min_time": clock.min_time}):
        if source == "directories":
            state = handover.from_directories(tmp_path, **numbers)
        else:
            state = handover.from_changelogs(**numbers)
        assert handover.go_on(state.task) == handover.expected
        assert state.task.clock.min_time == clock.min_time


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_nothing_needs_to_be_given(name: str, tmp_path: Path) -> None:
    """With the times that the stores tell all results come, each with its own headers."""
    handover = Handover(name, HeadersOf.OWN)
    expected = Counter(plainly(each) for step in handover.go_on(handover.undivided()) for each in step)
    assert Counter(plainly(each) for out in handover.expected for each in out) == expected
    for state in (handover.from_directories(tmp_path), handover.from_changelogs()):
        assert Counter(plainly(each) for step in handover.go_on(state.task) for each in step) == expected


def plainly(result: dict[str, Any]) -> tuple[Any, ...]:
    return result["key"], result["value"], result["timestamp"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_state_is_what_the_undivided_run_holds(name: str, tmp_path: Path) -> None:
    """Row by row, from changelogs with headers even where the directory lost them."""
    handover = Handover(name)
    undivided = handover.undivided()
    expected = held(undivided, handover.rules)
    assert held(handover.from_changelogs().task, handover.rules) == expected
    ours = held(handover.from_directories(tmp_path).task, handover.rules)
    if handover.config["store_format"] == "HEADERS":
        assert ours == expected
    else:
        assert ours == [each._replace(headers=[]) for each in expected]
    given = handover.from_changelogs(stream_time=handover.vector["stream_time_at_cut"]).task
    assert given.clock.stream_time == undivided.clock.stream_time
    assert given.clock.observed == undivided.clock.observed


@pytest.mark.parametrize(
    "name", ["outer-headers", pytest.param("left-default-segments", marks=pytest.mark.thorough)]
)
def test_the_directory_itself_goes_on(name: str, tmp_path: Path) -> None:
    """The scalar engine opens the task's directory as it is, in its format or in ours."""
    handover = Handover(name)
    task = unpacked(f"handover/{name}", tmp_path) / handover.config["task"]
    old = ValueFormat.TIMESTAMPED_HEADERS if "headers" in name else ValueFormat.PLAIN
    for number, kind in enumerate((old, ValueFormat.PLAIN_HEADERS)):
        copy = tmp_path / str(number)
        shutil.copytree(task, copy)
        stores = JoinStores.build(handover.rules, copy, store_format=kind, join="j")
        with StreamJoin(handover.rules, stores) as join:
            found = run_all(join, handover.after.steps)
        assert [results_document(each) for each in found] == handover.expected


def test_a_buffer_that_no_replay_explains_begins_with_its_first_record() -> None:
    """The application threw a record away that our replay keeps; or there is nothing but the buffer."""
    handover = Handover("outer-headers")
    logs = {which: handover.log(which) or [] for which in ("left", "right", "outer")}
    state = read_initial_state(handover.rules, left=[], right=[], buffer=logs["outer"]).task
    found = held(state, handover.rules)
    assert state.clock.min_time == found[0].timestamp
    assert all(each.waits for each in found)
    gone = logs["left"][-1]._replace(value=None)
    state = read_initial_state(
        handover.rules, left=[*logs["left"], gone], right=logs["right"], buffer=logs["outer"]
    ).task
    assert state.clock.min_time in {each.timestamp for each in held(state, handover.rules)}


def test_a_state_of_any_size_becomes_chunks_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """A side may have more bytes than one array of Arrow's holds: records are the same, in more chunks."""
    handover = Handover("outer-headers")
    whole = handover.from_changelogs().task
    monkeypatch.setattr(kafka_state, "PART_BYTES", 500)
    parts = handover.from_changelogs().task
    assert held(parts, handover.rules) == held(whole, handover.rules)
    assert len(list(parts.chunks())) > len(list(whole.chunks()))
    assert handover.go_on(parts) == handover.expected


def test_exports_are_read_from_files(tmp_path: Path) -> None:
    """JSON Lines, plain or compressed."""
    handover = Handover("outer-headers")
    paths = {}
    for which in ("left", "right", "outer"):
        paths[which] = tmp_path / f"{which}.jsonl"
        data = b"".join(export_lines(handover.log(which) or []))
        paths[which].write_bytes(gzip.compress(data) if which == "left" else data)
    found = read_initial_state(
        handover.rules, left=paths["left"], right=str(paths["right"]), buffer=paths["outer"]
    )
    assert held(found.task, handover.rules) == held(handover.from_changelogs().task, handover.rules)


def test_waiting_records_that_no_store_has_keep_their_place() -> None:
    """Between their successors in the list, and with the headers of whichever has any."""
    rules = JoinRules(JoinType.LEFT, JoinWindows(10, 10))
    key = encode_buffer_key(100, Side.LEFT, b"k")
    lists = bytes.fromhex("01 00000003 00000002 0161 00000002 0162 00000002 0163")
    log = [
        ChangelogRecord(encode_store_key(b"k", 100, 7), b"b", 100, (("h", b"1"),)),
        ChangelogRecord(encode_store_key(b"k", 100, 9), b"other", 100),
    ]
    state = read_initial_state(rules, left=log, right=[], buffer=[ChangelogRecord(key, lists, 100)])
    rows = held(state.task, rules)
    assert [(row.value, row.waits) for row in rows] == [
        (b"a", True),
        (b"b", True),
        (b"other", False),
        (b"c", True),
    ]
    assert rows[1].headers == [("h", b"1")]


def test_the_buffer_s_headers_count_where_the_store_lost_them(tmp_path: Path) -> None:
    """A buffer of ours beside a plain store."""
    rules = JoinRules(JoinType.LEFT, JoinWindows(10, 10))
    stores = JoinStores.build(rules, tmp_path, store_format=ValueFormat.PLAIN)
    with StreamJoin(rules, stores) as join:
        for each in records_of(
            {
                "type": "left",
                "before_ms": 10,
                "after_ms": 10,
                "steps": [
                    {"side": "L", "key": "k", "value": "v", "timestamp": 5, "headers": [["h", "01"]]},
                    {"side": "L", "key": "k", "value": "w", "timestamp": 5},
                ],
            }
        ):
            join.process(each)
    found = find_task_stores(rules, tmp_path)
    state = read_initial_state(rules, left=found.left, right=found.right, buffer=found.buffer)
    assert [(row.value, row.headers) for row in held(state.task, rules)] == [
        (b"v", [("h", b"\x01")]),
        (b"w", []),
    ]


def test_expired_entries_are_left_out() -> None:
    """What no record can read any more; a null deletes; of one key the last record counts."""
    rules = JoinRules(JoinType.INNER, JoinWindows(10, 10))
    puts = [(80, b"old"), (81, b"kept"), (90, b"x"), (95, b"gone"), (90, b"y"), (95, None), (100, b"z")]
    log = [ChangelogRecord(encode_store_key(b"k", ts, 1), value, ts) for ts, value in puts]
    state = read_initial_state(rules, left=log, right=[])
    assert [row.value for row in held(state.task, rules)] == [b"kept", b"y", b"z"]
    assert state.task.clock == JoinClock(100, {Side.LEFT: 100, Side.RIGHT: -1})


def test_sources_that_cannot_be(tmp_path: Path) -> None:
    """Each is refused with what is expected."""
    windows = JoinWindows(10, 10)
    inner, left = JoinRules(JoinType.INNER, windows), JoinRules(JoinType.LEFT, windows)
    with pytest.raises(UsageError, match="needs a right store, and none is given"):
        read_initial_state(inner, left=[])
    with pytest.raises(UsageError, match="needs a buffer store"):
        read_initial_state(left, left=[], right=[])
    with pytest.raises(UsageError, match="has no buffer store, and one is given"):
        read_initial_state(inner, left=[], right=[], buffer=[])
    with pytest.raises(UsageError, match="has no right store"):
        read_initial_state(JoinRules(JoinType.SELF, windows), left=[], right=[])
    with pytest.raises(NotAStore, match="no store and no changelog export"):
        read_initial_state(inner, left=tmp_path / "nothing", right=[])
    (tmp_path / "file").write_bytes(b"no line\n")
    with pytest.raises(InvalidData, match="Line 1 of the changelog"):
        read_initial_state(inner, left=tmp_path / "file", right=[])
    (tmp_path / "folder").mkdir()
    with pytest.raises(NotAStore, match="holds no RocksDB"):
        read_initial_state(left, left=[], right=[], buffer=tmp_path / "folder")
    log = [ChangelogRecord(encode_store_key(b"k", 50, 1), b"v", 50)]
    with pytest.raises(UsageError, match="stream_time is 49, and the stores hold a record of 50"):
        read_initial_state(inner, left=log, right=[], stream_time=49)
    one = encode_buffer_list([b"\x00"])
    right = [ChangelogRecord(encode_buffer_key(5, Side.RIGHT, b"k"), one, 5)]
    with pytest.raises(InvalidData, match="do not wait in a join of type left"):
        read_initial_state(left, left=[], right=[], buffer=right)


def test_a_store_of_other_windows_is_refused(tmp_path: Path) -> None:
    """Segments tell what retention wrote them; damage names the entry."""
    long = StoreSettings("s", 600_000, 600_000, retain_duplicates=True)
    store = WindowBytesStore(long, ValueFormat.PLAIN_HEADERS, tmp_path / "s")
    store.put(b"k", b"\x00v", 900_000)
    store.close()
    rules = JoinRules(JoinType.INNER, JoinWindows(0, 700_000))
    with pytest.raises(StoreFormatMismatch, match=r"s\.900000 does not start at a multiple of the 350000 ms"):
        read_initial_state(rules, left=tmp_path / "s", right=[])
    same = JoinRules(JoinType.INNER, JoinWindows(0, 600_000))
    assert len(held(read_initial_state(same, left=tmp_path / "s", right=[]).task, same)) == 1
    store = WindowBytesStore(long, ValueFormat.PLAIN_HEADERS, tmp_path / "s")
    store.put(b"k", b"\x02", 900_001)
    store.close()
    with pytest.raises(SerializationError, match=r"Segment s\.900000, key 6b, window start 900001"):
        read_initial_state(same, left=tmp_path / "s", right=[])


def test_stores_are_found_by_kafka_streams_names(tmp_path: Path) -> None:
    """One join of a type in a task, or the one that is named."""
    rules = {kind: JoinRules(kind, JoinWindows(1, 1)) for kind in JoinType}
    for kind, join in (("inner", "a"), ("left", "b"), ("outer", "c"), ("outer", "d")):
        JoinStores.build(rules[JoinType(kind)], tmp_path, join=join).close()
    found = find_task_stores(rules[JoinType.OUTER], tmp_path, "d")
    assert found.left == tmp_path / "d-outer-this-join-store"
    assert found.right == tmp_path / "d-outer-other-join-store"
    assert found.buffer == tmp_path / "rocksdb" / "d-outer-shared-join-store"
    state = read_initial_state(rules[JoinType.OUTER], left=found.left, right=found.right, buffer=found.buffer)
    assert (held(state.task, rules[JoinType.OUTER]), state.task.clock) == ([], JoinClock())
    with pytest.raises(NotAStore, match="has 2 joins of type outer; there is c, d"):
        find_task_stores(rules[JoinType.OUTER], tmp_path)
    with pytest.raises(NotAStore, match="has 0 joins of type outer called x"):
        find_task_stores(rules[JoinType.OUTER], tmp_path, "x")
    assert find_task_stores(rules[JoinType.INNER], tmp_path, "a").buffer is None
    assert find_task_stores(rules[JoinType.LEFT], tmp_path, "b").left == tmp_path / "b-this-join-store"
    assert find_task_stores(rules[JoinType.SELF], tmp_path, "a").right is None
    with pytest.raises(NotAStore, match="has no store at"):
        find_task_stores(rules[JoinType.INNER], tmp_path, "b")
    with pytest.raises(NotAStore, match="There is no directory"):
        find_task_stores(rules[JoinType.INNER], tmp_path / "x")
    with pytest.raises(NotAStore, match="holds no segment"):
        read_initial_state(rules[JoinType.INNER], left=tmp_path, right=[])
    RocksPairs(tmp_path / "rocksdb" / "e", BufferFormat.PLAIN).close()
