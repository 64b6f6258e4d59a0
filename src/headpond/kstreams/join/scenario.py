"""Time-lines of a join: a few records in order, what a join makes of each.

::

    {"name", "type": "inner" | "left" | "outer", "before_ms", "after_ms", "grace_ms": 0,
     "emit": "eager" | "final", "emit_interval_ms": 0, "self_join": false,
     "steps": [{"side": "L" | "R", "key", "value", "timestamp", "headers": [[name, hex or null], …],
                "out": [{"key", "value": "left+right", "timestamp", "headers"}, …]},
               {"advance_wall_clock_ms": 500}]}

Keys and values are text or null; a missing side's value in a result is "null". The wall clock starts at 0 and
moves only by its steps. `out` is what a step brings about; it need not be there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from headpond.core.errors import UsageError
from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.join.by_record import JoinRecord, JoinResult, StreamJoin
from headpond.kstreams.join.rules import (
    MAX_TIMESTAMP_MS,
    Emit,
    HeadersOf,
    JoinCounters,
    JoinRules,
    JoinType,
    JoinWindows,
)
from headpond.kstreams.join.stores import JoinStores

_SIDES = {"L": Side.LEFT, "R": Side.RIGHT}
_DROPS = {"dropped_null_key": "no key", "dropped_null_value": "no value"}
_PAGE = "docs/reference/cli.md says what a time-line holds."


class _Document(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    type: Literal["inner", "left", "outer"]
    before_ms: int
    after_ms: int
    grace_ms: int = 0
    emit: Emit = Emit.EAGER
    emit_interval_ms: int = 0
    self_join: bool = False
    steps: list[Any]
    name: str | None = None
    # For people, and for tests.
    description: Any = None
    store_format: Any = None
    final_stores: Any = None


class _Record(msgspec.Struct, forbid_unknown_fields=True):
    side: Literal["L", "R"]
    key: str | None
    value: str | None
    timestamp: Annotated[int, msgspec.Meta(ge=0, le=MAX_TIMESTAMP_MS)]
    headers: list[tuple[str, str | None]] = []
    out: Any = None


class _Pause(msgspec.Struct, forbid_unknown_fields=True):
    advance_wall_clock_ms: Annotated[int, msgspec.Meta(ge=0)]
    out: Any = None


_Part = TypeVar("_Part", _Document, _Record, _Pause)


@dataclass(frozen=True, slots=True)
class Played:
    """A step and its results.

    Args:
        record: The record; None where the wall clock moved.
        results: What it brought about, in order.
        counts: What the join counted for it.
        stream_time: The stream time after it, in ms.
        wall_clock_ms: The wall clock.
    """

    record: JoinRecord | None
    results: list[JoinResult]
    counts: dict[str, int]
    stream_time: int
    wall_clock_ms: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """A time-line, read and checked; a step is a record, or the wall clock's milliseconds."""

    name: str
    rules: JoinRules
    steps: list[JoinRecord | int]

    def play(self, stores: JoinStores | None = None) -> list[Played]:
        """Run the steps through the scalar engine, on stores in memory or those given, which are closed."""
        played = []
        wall_clock_ms = 0
        with StreamJoin(self.rules, stores or JoinStores.build(self.rules)) as join:
            for step in self.steps:
                before = join.counters.as_dict()
                results: list[JoinResult] = []
                record = None
                if isinstance(step, int):
                    wall_clock_ms += step
                else:
                    record = step
                    results = join.process(step, wall_clock_ms)
                counts = _grown(before, join.counters)
                stream_time = join.clock.stream_time
                played.append(Played(record, results, counts, stream_time, wall_clock_ms))
        return played


def read_scenario(document: Any, *, headers: HeadersOf = HeadersOf.OWN, emit: Emit | None = None) -> Scenario:
    """Read a time-line.

    Args:
        document: The JSON document.
        headers: Whose headers results carry.
        emit: When unmatched results leave; None: as the document says.

    Raises:
        UsageError: It is not of the form above; the message and `facts["path"]` name the place.
    """
    read = _read(document, _Document)
    kind = JoinType(read.type)
    if read.self_join:
        if kind is not JoinType.INNER:
            raise UsageError(f"self_join is for the type inner, not {kind}.", path="self_join")
        kind = JoinType.SELF
    windows = JoinWindows(read.before_ms, read.after_ms, read.grace_ms)
    rules = JoinRules(kind, windows, headers, read.emit if emit is None else emit, read.emit_interval_ms)
    steps = [_step(each, f"steps[{number}]", rules) for number, each in enumerate(read.steps)]
    return Scenario(read.name or "", rules, steps)


def filled(document: dict[str, Any], played: Sequence[Played]) -> dict[str, Any]:
    """Return the document with `out` of each step as it was played; everything else stays as it is."""
    steps = [
        {**step, "out": results_document(each.results)}
        for step, each in zip(document["steps"], played, strict=True)
    ]
    return {**document, "steps": steps}


def results_document(results: Iterable[JoinResult]) -> list[dict[str, Any]]:
    """Return results in the form of a time-line's `out`."""
    return [
        {
            "key": shown(each.key),
            "value": joined_text(each),
            "timestamp": each.timestamp,
            "headers": [[name, None if value is None else value.hex()] for name, value in each.headers],
        }
        for each in results
    ]


def joined_text(result: JoinResult) -> str:
    """Return a result's value: left and right with a + between, "null" for the missing side."""
    return "+".join("null" if each is None else str(shown(each)) for each in (result.left, result.right))


def differing_steps(document: dict[str, Any], played: Sequence[Played]) -> list[int]:
    """Return the numbers of the steps whose own `out` differs from what was played."""
    pairs = zip(document["steps"], played, strict=True)
    return [
        number
        for number, (step, each) in enumerate(pairs)
        if "out" in step and step["out"] != results_document(each.results)
    ]


def shown(data: bytes | None) -> str | None:
    """Return the text of a time-line's bytes."""
    return None if data is None else data.decode()


def _grown(before: dict[str, int], counters: JoinCounters) -> dict[str, int]:
    return {name: count - before[name] for name, count in counters.as_dict().items() if count != before[name]}


def _step(document: Any, path: str, rules: JoinRules) -> JoinRecord | int:
    if isinstance(document, dict) and "advance_wall_clock_ms" in document:
        return _read(document, _Pause, path).advance_wall_clock_ms
    read = _read(document, _Record, path)
    if rules.type is JoinType.SELF and read.side != "L":
        raise UsageError(f'{path}.side is "R": a self-join has one input, "L".', path=f"{path}.side")
    try:
        headers = tuple(
            (name, None if value is None else bytes.fromhex(value)) for name, value in read.headers
        )
    except ValueError as error:
        raise UsageError(
            f"{path}.headers: a value is not hexadecimal text: {error}.",
            next_step='A header is [name, value as hexadecimal text or null], such as ["trace-id", "4bf9"].',
            path=f"{path}.headers",
        ) from error
    key, value = (None if each is None else each.encode() for each in (read.key, read.value))
    return JoinRecord(_SIDES[read.side], key, value, read.timestamp, headers)


def _read(document: Any, kind: type[_Part], path: str = "") -> _Part:
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        wrong, _, where = str(error).partition(" - at `$")
        place = (path + where.rstrip("`")).lstrip(".")
        raise UsageError(f"{place or 'A time-line'}: {wrong}.", next_step=_PAGE, path=place) from error


@dataclass
class Fate:
    """A record and what became of it; times in ms.

    Args:
        number: Its step.
        record: The record.
        counts: What the join counted for it.
        partners: Value and time of those that it met on arrival; None: itself.
        met_later: Step and time of those that came after it and met it.
        waits: It still waits without a partner.
        left_at: The step at which it left without a partner.
    """

    number: int
    record: JoinRecord
    counts: dict[str, int]
    partners: list[tuple[bytes | None, int]] = field(default_factory=list)
    met_later: list[tuple[int, int]] = field(default_factory=list)
    waits: bool = False
    left_at: int | None = None

    @property
    def dropped(self) -> str | None:
        """Why it took no part in the join; None: it did."""
        return next((why for name, why in _DROPS.items() if name in self.counts), None)

    @property
    def identity(self) -> tuple[Side, bytes | None, bytes | None, int]:
        """What a result tells of a record."""
        return self.record.side, self.record.key, self.record.value, self.record.timestamp


def fates(played: Sequence[Played], *, self_join: bool = False) -> list[Fate]:
    """Return what became of each record."""
    found: list[Fate] = []
    for number, step in enumerate(played):
        if step.record is None:
            continue
        fate = Fate(number, step.record, step.counts, waits="buffered" in step.counts)
        for result in step.results:
            if result.left is None or result.right is None:
                _note_unmatched(found, fate, result)
            else:
                _note_joined(found, fate, result, self_join=self_join)
        found.append(fate)
    return found


def _note_joined(earlier: list[Fate], fate: Fate, result: JoinResult, *, self_join: bool) -> None:
    own, partner = result.left, result.right
    # In a self-join a record meets others as their left and as their right side.
    if fate.record.side is Side.RIGHT or (self_join and own != fate.record.value):
        own, partner = partner, own
    if self_join and own == partner:
        fate.partners.append((None, fate.record.timestamp))
        return
    met = next(
        (old for old in reversed(earlier) if old.record.key == result.key and old.record.value == partner),
        None,
    )
    named = (partner, result.timestamp if met is None else met.record.timestamp)
    if self_join and named in fate.partners:
        return
    fate.partners.append(named)
    for old in earlier:
        if met is not None and (old is met or (old.waits and old.identity == met.identity)):
            old.waits = False
            old.met_later.append((fate.number, fate.record.timestamp))


def _note_unmatched(earlier: list[Fate], fate: Fate, result: JoinResult) -> None:
    side = Side.RIGHT if result.left is None else Side.LEFT
    value = result.right if result.left is None else result.left
    for old in earlier:
        if old.waits and old.identity == (side, result.key, value, result.timestamp):
            old.waits, old.left_at = False, fate.number
            return
    fate.left_at = fate.number
