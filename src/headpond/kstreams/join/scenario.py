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

import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headpond.core.errors import UsageError
from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.join.by_record import JoinRecord, StreamJoin
from headpond.kstreams.join.rules import MAX_TIMESTAMP_MS, Emit, HeadersOf, JoinRules, JoinType, JoinWindows
from headpond.kstreams.join.stores import JoinStores

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headpond.kstreams.bytes.headers import Header
    from headpond.kstreams.join.by_record import JoinResult
    from headpond.kstreams.join.rules import JoinCounters

_SCENARIO_KEYS = (
    "name", "description", "type", "before_ms", "after_ms", "grace_ms", "emit", "emit_interval_ms",
    "self_join", "store_format", "steps", "final_stores",
)  # fmt: skip
_RECORD_KEYS = ("side", "key", "value", "timestamp", "headers", "out")
_ADVANCE_KEYS = ("advance_wall_clock_ms", "out")
_SIDES = {"L": Side.LEFT, "R": Side.RIGHT}
_DROPS = {"dropped_null_key": "no key", "dropped_null_value": "no value"}
_MAX_SHOWN = 60
_MISSING: Any = object()


@dataclass(frozen=True, slots=True)
class Played:
    """One step and what came of it.

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
    fields = _Fields(document, "", _SCENARIO_KEYS)
    join_type = fields.choice("type", ("inner", "left", "outer"))
    if fields.flag("self_join"):
        if join_type != "inner":
            raise _wrong("self_join", "false unless the type is inner", document["self_join"])
        join_type = JoinType.SELF
    spoken = fields.choice("emit", tuple(Emit), default=Emit.EAGER)
    rules = JoinRules(
        JoinType(join_type),
        JoinWindows(
            fields.number("before_ms"), fields.number("after_ms"), fields.number("grace_ms", default=0)
        ),
        headers,
        Emit(spoken) if emit is None else emit,
        fields.number("emit_interval_ms", default=0),
    )
    steps = fields.listed("steps")
    named = fields.text("name", default="")
    read = [_step(each, f"steps[{number}]", rules) for number, each in enumerate(steps)]
    return Scenario(named or "", rules, read)


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
        fields = _Fields(document, path, _ADVANCE_KEYS)
        milliseconds = fields.number("advance_wall_clock_ms")
        if milliseconds < 0:
            raise _wrong(fields.path("advance_wall_clock_ms"), "zero or more", milliseconds)
        return milliseconds
    fields = _Fields(document, path, _RECORD_KEYS)
    side = fields.choice("side", tuple(_SIDES))
    if rules.type is JoinType.SELF and side != "L":
        raise _wrong(fields.path("side"), '"L": a self-join has one input', side)
    timestamp = fields.number("timestamp")
    if not 0 <= timestamp <= MAX_TIMESTAMP_MS:
        raise _wrong(fields.path("timestamp"), f"between 0 and {MAX_TIMESTAMP_MS}", timestamp)
    headers = [
        _header(each, f"{fields.path('headers')}[{number}]")
        for number, each in enumerate(fields.listed("headers", default=[]))
    ]
    key, value = (fields.text(name) for name in ("key", "value"))
    return JoinRecord(_SIDES[side], _bytes(key), _bytes(value), timestamp, tuple(headers))


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _header(document: Any, path: str) -> Header:
    expected = '[name, value as hexadecimal text or null], such as ["trace-id", "4bf9"]'
    match document:
        case [str(name), None]:
            return name, None
        case [str(name), str(value)]:
            try:
                return name, bytes.fromhex(value)
            except ValueError as error:
                raise _wrong(path, expected, document) from error
    raise _wrong(path, expected, document)


class _Fields:
    """The fields of an object, each asked for with what it has to be."""

    def __init__(self, document: Any, path: str, known: tuple[str, ...]) -> None:
        self._path = path
        if not isinstance(document, dict):
            raise _wrong(path or "A time-line", "an object", document)
        self._document = document
        for name in document:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
                hint = f"Did you mean {near[0]}?" if near else f"The keys are {', '.join(known)}."
                raise UsageError(f"There is no {self.path(name)}.", next_step=hint, path=self.path(name))

    def path(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def _get(self, name: str, kind: Any, expected: str, default: Any) -> Any:
        value = self._document.get(name, default)
        if value is _MISSING:
            raise UsageError(
                f"{self.path(name)} is missing.",
                next_step="docs/reference/cli.md says what a time-line holds.",
                path=self.path(name),
            )
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise _wrong(self.path(name), expected, value)
        return value

    def number(self, name: str, default: Any = _MISSING) -> int:
        return int(self._get(name, int, "a whole number of milliseconds", default))

    def text(self, name: str, default: Any = _MISSING) -> str | None:
        value: str | None = self._get(name, (str, type(None)), "text or null", default)
        return value

    def flag(self, name: str) -> bool:
        return bool(self._get(name, bool, "true or false", default=False))

    def choice(self, name: str, choices: tuple[str, ...], default: Any = _MISSING) -> str:
        expected = f"one of {', '.join(choices)}"
        value = str(self._get(name, str, expected, default))
        if value not in choices:
            raise _wrong(self.path(name), expected, value)
        return value

    def listed(self, name: str, default: Any = _MISSING) -> list[Any]:
        return list(self._get(name, list, "a list", default))


def _wrong(path: str, expected: str, found: object) -> UsageError:
    spoken = repr(found)
    spoken = spoken if len(spoken) <= _MAX_SHOWN else f"{spoken[:_MAX_SHOWN]}…"
    return UsageError(f"{path} must be {expected}, not {spoken}.", path=path)


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
