"""Where a reader stands in a stream, how that is written into Spark's checkpoint, and how users write it.

::

    {"created": "1767225600000", "shards": {
        "shardId-000000000000": {"p": "END"},
        "shardId-000000000003": {"p": "SEQ", "s": "4968…", "t": "1767225611001"},
        "shardId-000000000004": {"p": "TS", "t": "1767225600000"},
        "shardId-000000000005": {"p": "HORIZON"}},
     "stream": "orders", "v": 1}

docs/systems/kinesis-source.md says what the kinds mean, and the notes u and f, which make an offset one of
version 2. As the end of a batch SEQ and END are included; TS and HORIZON say that nothing is read. Numbers
and times (ms since 1970) are decimal text, compared as integers. Positions that differ in notes alone are
equal.

The shards of a stream are a graph: who came of whom says which may be read now.

::

    0 ──split──► 2          A shard is read when every parent that is still listed was read to its end.
      └────────► 3 ─┐       Parents that are no longer listed have expired, and hold nobody up.
    1 ──merge───────┴► 4    A merge's child waits for both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from headpond.core.errors import ConfigurationError, InvalidData
from headpond.core.times import as_utc, parse_time_ms
from headpond.kinesis.api.shards import Shard

VERSIONS = (1, 2)
NO_RECORD = "0"
"""As `first`: none; the service gives no such number."""
Kind = Literal["SEQ", "AT", "END", "TS", "HORIZON"]

CLOCK_SKEW_MS = 60_000
"""A moment so little ahead of the service's clock may come from another clock: it is waited for."""

_DIGITS = re.compile(r"[0-9]{1,200}", re.ASCII)
_FIELDS = {"SEQ": {"p", "s", "t"}, "AT": {"p", "s"}, "END": {"p"}, "TS": {"p", "t"}, "HORIZON": {"p"}}
_NOTES = {"SEQ": {"u", "f"}, "AT": set[str](), "END": {"f"}, "TS": {"u"}, "HORIZON": {"u"}}


@dataclass(frozen=True, slots=True)
class Position:
    """A place in one shard; use `after`, `before`, `at_time` and the constants to make one."""

    kind: Kind
    sequence_number: str | None = None  # of SEQ and AT
    time_ms: int | None = None  # of SEQ (arrival of its record) and TS
    until_ms: int | None = field(default=None, compare=False)  # the note u
    first: str | None = field(default=None, compare=False)  # the note f

    def to_json(self) -> dict[str, str]:
        """Write the position."""
        names = ("p", "s", "t", "u", "f")
        values = (self.kind, self.sequence_number, self.time_ms, self.until_ms, self.first)
        return {name: str(value) for name, value in zip(names, values, strict=True) if value is not None}

    @property
    def words(self) -> str:
        """The position in a sentence of loss: from where on."""
        if self.kind in ("END", "HORIZON"):
            return "at its end" if self.kind == "END" else "at its oldest record"
        if self.kind == "TS":
            return f"at {as_utc(self.time_ms or 0)}"
        arrived = f" (arrived {as_utc(self.time_ms)})" if self.time_ms else ""
        return f"at {self.sequence_number}{arrived}"

    @property
    def is_moving(self) -> bool:
        """Whether what follows changes as records expire: no record says where it is."""
        return self.kind in ("TS", "HORIZON")

    @property
    def number(self) -> int:
        """The sequence number as a number, to be compared; only SEQ and AT have one."""
        assert self.sequence_number is not None
        return int(self.sequence_number)


HORIZON = Position("HORIZON")
END = Position("END")


def after(sequence_number: str, arrival_ms: int) -> Position:
    """Make the position after a record."""
    return Position("SEQ", sequence_number, arrival_ms)


def before(sequence_number: str) -> Position:
    """Make the position before a record, which is the next to be read."""
    return Position("AT", sequence_number)


def at_time(time_ms: int) -> Position:
    """Make the position at the first record that arrived at that time or later."""
    return Position("TS", None, time_ms)


@dataclass(frozen=True, slots=True)
class Offset:
    """Positions in all shards of one stream; a shard not named was not begun and starts at its horizon."""

    stream: str
    created_ms: int
    shards: dict[str, Position] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Write the offset, keys sorted: offsets that are equal, notes included, are equal texts."""
        noted = any(at.until_ms is not None or at.first is not None for at in self.shards.values())
        return {
            "created": str(self.created_ms),
            "shards": {name: at.to_json() for name, at in sorted(self.shards.items())},
            "stream": self.stream,
            "v": 2 if noted else 1,
        }


def read_offset(value: object) -> Offset:
    """Read an offset from a checkpoint.

    Raises:
        InvalidData: It is of another version, or not what `to_json` writes.
    """
    if not isinstance(value, dict):
        raise _damaged("it is not an object")
    version = value.get("v")
    if version not in VERSIONS or isinstance(version, bool):
        known = " and ".join(map(str, VERSIONS))
        raise InvalidData(
            f"The checkpoint holds a Kinesis offset of version {version!r}; this headpond reads {known}.",
            next_step="Open the checkpoint with the headpond that wrote it, or begin with a new one.",
            reason="offset_version",
            version=version,
        )
    if set(value) != {"v", "stream", "created", "shards"}:
        raise _damaged(f"its keys are {', '.join(sorted(map(str, value)))}")
    if not isinstance(value["stream"], str) or not isinstance(value["shards"], dict):
        raise _damaged("stream or shards is of the wrong type")
    shards = {str(name): read_position(at, str(name)) for name, at in value["shards"].items()}
    return Offset(value["stream"], int(_digits(value["created"], "created")), shards)


def read_position(value: object, shard_id: str) -> Position:
    """Read one shard's position.

    Raises:
        InvalidData: It is not one of the five kinds with just that kind's fields and notes.
    """
    if not isinstance(value, dict):
        raise _damaged(f"the position of {shard_id} is not an object")
    kind = str(value.get("p"))
    if kind not in _FIELDS or set(value) - _NOTES[kind] != _FIELDS[kind]:
        raise _damaged(f"the position of {shard_id} is {json.dumps(value, default=str)}")
    texts = {name: _digits(value[name], f"{name} of {shard_id}") for name in value if name != "p"}
    time_ms, until_ms = (int(texts[name]) if name in texts else None for name in "tu")
    return Position(cast("Kind", kind), texts.get("s"), time_ms, until_ms, texts.get("f"))


def _digits(value: object, what: str) -> str:
    if not isinstance(value, str) or not _DIGITS.fullmatch(value):
        raise _damaged(f"{what} is {value!r}")
    return value


def _damaged(what: str) -> InvalidData:
    return InvalidData(
        f"The Kinesis offset cannot be read: {what}.",
        next_step="Restore the checkpoint, or begin with a new one.",
        reason="offset_damaged",
    )


@dataclass(frozen=True, slots=True)
class Start:
    """Where a new query begins: one rule for all shards, or one for each that is named.

    In a rule `LATEST` stands for "now", which is resolved once, when the query first starts.
    """

    rule: Position | Literal["LATEST"]
    shards: dict[str, Position | Literal["LATEST"]] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)
    """Of a lease table: the place, in the record that a shard begins before, of the last one processed."""

    @property
    def says_latest(self) -> bool:
        """Whether any shard's position depends on when this is resolved."""
        return "LATEST" in (self.rule, *self.shards.values())


def read_start(text: str) -> Start:
    """Read the option `startingPosition`.

    ::

        LATEST | TRIM_HORIZON | AT_TIMESTAMP 2026-01-01T00:00:00Z
        {"shardId-000000000001": "AFTER_SEQUENCE_NUMBER 4968…", "shardId-000000000002": "LATEST"}

    `AT_SEQUENCE_NUMBER` starts with that record. `END` leaves a shard out, a position may also be given as in
    an offset, and a shard not named starts at its horizon, or is done where a descendant of it is named.

    Raises:
        ConfigurationError: It is none of these.
    """
    text = text.strip()
    if not text.startswith("{"):
        return Start(_rule(text, text))
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise _wrong_start(text, f"the JSON cannot be read ({exc})") from exc
    try:
        rules = {
            shard_id: _rule(at, text) if isinstance(at, str) else read_position(at, shard_id)
            for shard_id, at in value.items()
        }
    except InvalidData as exc:
        raise _wrong_start(text, exc.message) from exc
    return Start(HORIZON, rules)


def _rule(text: str, whole: str) -> Position | Literal["LATEST"]:
    word, _, rest = text.strip().partition(" ")
    word, rest, of_shard = word.upper(), rest.strip(), whole.startswith("{")
    if word == "LATEST" and not rest:
        return "LATEST"
    if word in ("TRIM_HORIZON", "EARLIEST") and not rest:  # the second as Kafka and others call it
        return HORIZON
    if word == "END" and not rest and of_shard:
        return END
    if word == "AT_TIMESTAMP" and rest:
        try:
            return at_time(parse_time_ms(rest))
        except ValueError as error:
            raise _wrong_start(whole, str(error)) from error
    if of_shard and _DIGITS.fullmatch(rest) and word in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
        # When it arrived is not known: time 0 makes its absence count as loss.
        return before(rest) if word.startswith("AT") else after(rest, 0)
    raise _wrong_start(whole, f"{text!r} is not a position")


def read_end(text: str) -> int | None:
    """Read the option `endingPosition`: `LATEST` (None), or a time (ms since 1970), AT_TIMESTAMP before it.

    Raises:
        ConfigurationError: It is neither.
    """
    word, _, rest = text.strip().partition(" ")
    if text.strip().upper() == "LATEST":
        return None
    try:
        return parse_time_ms(rest.strip() if word.upper() == "AT_TIMESTAMP" else text.strip())
    except ValueError as error:
        raise ConfigurationError(
            f"The ending position {text[:80]!r} cannot be used: {error}.",
            next_step="Use LATEST, or AT_TIMESTAMP 2026-01-01T00:00:00Z.",
            option="endingPosition",
        ) from error


def refuse_far_future(time_ms: int, now_ms: int, whose: str) -> None:
    """Refuse a moment to start or to end at that has not come yet, unless the clocks may just differ.

    Raises:
        ConfigurationError: It lies more than `CLOCK_SKEW_MS` ahead.
    """
    if time_ms > now_ms + CLOCK_SKEW_MS:
        option = whose if whose == "endingPosition" else "startingPosition"
        restart = "" if whose == "endingPosition" else "Begin with a new checkpoint: "
        raise ConfigurationError(
            f"{whose} is the time {as_utc(time_ms)}, which has not come yet: the service's clock says "
            f"{as_utc(now_ms)}.",
            next_step=f"{restart}set {option} to a time that has come, or LATEST, which means now.",
            option=option,
        )


def _wrong_start(text: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"The starting position {text[:80]!r} cannot be used: {why}.",
        next_step="Use LATEST, TRIM_HORIZON, AT_TIMESTAMP 2026-01-01T00:00:00Z, or a JSON object of "
        "shard ids and such positions or AFTER_SEQUENCE_NUMBER n.",
        option="startingPosition",
    )


Listing = dict[str, Shard]
"""Shard id → shard, all that are listed."""


def listing(shards: Iterable[Shard]) -> Listing:
    """Sort shards by id, which is the order of their creation."""
    return {shard.shard_id: shard for shard in sorted(shards, key=lambda shard: shard.shard_id)}


def readable(shards: Listing, positions: Mapping[str, Position], *, parent_first: bool) -> list[str]:
    """List the shards to go on with: not at their end, and with `parent_first` all parents at theirs."""
    unread = {shard_id for shard_id in shards if positions.get(shard_id) != END}
    return [
        shard_id
        for shard_id, shard in shards.items()
        if shard_id in unread and not (parent_first and unread.intersection(shard.parents))
    ]


def ancestors(shards: Listing, shard_ids: Iterable[str]) -> set[str]:
    """Return all listed shards that the given ones descend from."""
    found: set[str] = set()
    waiting = list(shard_ids)
    while waiting:
        shard = shards.get(waiting.pop())
        new = {parent for parent in shard.parents if parent in shards} - found if shard is not None else set()
        found |= new
        waiting += new
    return found


def resolve(start: Start, shards: Listing, now_ms: int) -> dict[str, Position]:
    """Turn a starting rule into positions of all listed shards.

    With LATEST a closed shard is done, so that it differs from shards that are new later.

    Raises:
        ConfigurationError: A shard is named that is not listed.
    """
    unknown = sorted(set(start.shards) - set(shards))
    if unknown:
        raise ConfigurationError(
            f"The starting position names {unknown[0]}, which the stream does not list.",
            next_step=f"Name shards out of {', '.join(list(shards)[:5])}.",
            option="startingPosition",
        )
    passed = ancestors(shards, start.shards)
    positions: dict[str, Position] = {}
    for shard_id, shard in shards.items():
        rule = start.shards.get(shard_id, END if shard_id in passed else start.rule)
        if rule == "LATEST":
            rule = END if shard.closed else at_time(now_ms)
        positions[shard_id] = rule
    return positions
