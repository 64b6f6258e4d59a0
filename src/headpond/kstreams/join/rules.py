"""What a windowed stream-stream join is: windows, type, whose headers, when unmatched results leave.

::

                    before        after
            ├─────────────────┼───────────┤            a left record at t joins right records in
        t - before            t       t + after        [t - before, t + after]
                                          ├───grace──┤
                                                     closes: stream time > t + after + grace

For a right record before and after change places. Each may be negative, their sum may not. Times are
milliseconds. Every engine of the join (on window stores, by the batch, on Spark) takes these rules, counts
by these names and starts from these numbers. Source: spec "window store", sections 7 and 8.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, TypeVar

import orjson

from headpond.core.errors import UsageError
from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.stores.contract import milliseconds

MAX_TIMESTAMP_MS = (1 << 62) - 1
"""The greatest timestamp of a record; with a span added it still fits into 64 bits."""
OTHER_SIDE = {Side.LEFT: Side.RIGHT, Side.RIGHT: Side.LEFT}
NO_TIME = -1
"""Stream time, and a side's observed time, before the first record."""
NO_MIN_TIME = (1 << 63) - 1
"""The smallest timestamp in the buffer of unmatched records, when there is none."""
RULES_VERSION = 1
_WRAP, _HALF = 1 << 64, 1 << 63


class JoinType(StrEnum):
    """Which records appear in the result without a partner: none, the left ones, those of both sides.

    A self-join is an inner join of a stream with itself that keeps each record once.
    """

    INNER = "inner"
    LEFT = "left"
    OUTER = "outer"
    SELF = "self"


class HeadersOf(StrEnum):
    """Whose headers a result carries.

    ::

                    joined result                    unmatched result
        own         of the record that came second   of its own record
        trigger     of the record that came second   of the record that was processed when it left
        merge       of the left, then of the right   of its own record

    `trigger` is what Kafka Streams does; an unmatched result that leaves at once is its own trigger.
    """

    OWN = "own"
    TRIGGER = "trigger"
    MERGE = "merge"


class Emit(StrEnum):
    """When an unmatched result leaves.

    `eager`, as Kafka Streams: a record that comes out of order and finds no partner leaves at once if the
    stream time has passed its window (grace not counted); a partner that comes later still joins it.
    `final`: only when its window has closed, grace included; from then on it joins no more. So each record of
    an outer side is either joined or appears once without a partner.
    """

    EAGER = "eager"
    FINAL = "final"


class StreamTime(StrEnum):
    """What time it is for a join task, which decides when windows close.

    `task`, as Kafka Streams: the greatest timestamp of the task's own records; a task whose keys are quiet
    lets no unmatched result go. `query`: the time up to which every live input has been read, of all tasks;
    windows close by it with each batch, whatever keys have records. By then Spark's watermark is the same.
    """

    TASK = "task"
    QUERY = "query"


@dataclass(frozen=True, slots=True)
class JoinWindows:
    """How far apart in time two records may be to join, and how long a window waits for late ones.

    Args:
        before_ms: A left record at t joins right records from t - `before_ms` on; may be negative. All three
            are milliseconds, or timedeltas.
        after_ms: ... up to t + `after_ms`; may be negative.
        grace_ms: Time after a window's end in which out-of-order records still count.

    Raises:
        UsageError: A span is not a whole number of milliseconds or too long, `before_ms` + `after_ms` is
            negative, or the grace is.
    """

    before_ms: int
    after_ms: int
    grace_ms: int = 0

    def __post_init__(self) -> None:
        for each in fields(self):
            # The class is frozen, so this is the only way to replace a timedelta by its milliseconds.
            object.__setattr__(self, each.name, milliseconds(each.name, getattr(self, each.name)))
        if self.grace_ms < 0:
            raise UsageError(f"grace_ms must be zero or more, not {self.grace_ms}.", grace_ms=self.grace_ms)
        if self.before_ms + self.after_ms < 0:
            raise UsageError(
                f"A window of {self.before_ms} ms before to {self.after_ms} ms after ends before it starts.",
                next_step="Make before_ms + after_ms zero or more.",
                before_ms=self.before_ms,
                after_ms=self.after_ms,
            )

    @property
    def size_ms(self) -> int:
        """Time from a window's start to its end; the window size of the join's stores."""
        return self.before_ms + self.after_ms

    @property
    def retention_ms(self) -> int:
        """How long the join's stores keep a record: window and grace."""
        return self.before_ms + self.after_ms + self.grace_ms


@dataclass(frozen=True, slots=True)
class JoinRules:
    """Everything that decides what a join gives, apart from its input.

    Args:
        type: Inner, left, outer or self.
        windows: The windows.
        headers: Whose headers a result carries.
        emit: When an unmatched result leaves.
        emit_interval_ms: Wall-clock time between two rounds of emitting expired unmatched records, in ms or
            as a timedelta; 0: no throttle (Kafka Streams' default is 1000).
        stream_time: Whose records tell the time.

    Raises:
        UsageError: A value is none of those that exist, the interval is negative, or time alone is to let
            results go and another argument needs a record that does.
    """

    type: JoinType
    windows: JoinWindows
    headers: HeadersOf = HeadersOf.OWN
    emit: Emit = Emit.EAGER
    emit_interval_ms: int = 0
    stream_time: StreamTime = StreamTime.TASK

    def __post_init__(self) -> None:
        # Plain strings are taken too.
        kinds = {"type": JoinType, "headers": HeadersOf, "emit": Emit, "stream_time": StreamTime}
        for name, kind in kinds.items():
            object.__setattr__(
                self, name, choice(kind, "how" if name == "type" else name, getattr(self, name))
            )
        if not isinstance(self.windows, JoinWindows):
            raise UsageError(f"windows must be JoinWindows, not {type(self.windows).__name__}.")
        interval_ms = milliseconds("emit_interval_ms", self.emit_interval_ms)
        object.__setattr__(self, "emit_interval_ms", interval_ms)
        if self.emit_interval_ms < 0:
            raise UsageError(
                f"emit_interval_ms must be zero or more, not {self.emit_interval_ms}.",
                emit_interval_ms=self.emit_interval_ms,
            )
        if self.stream_time is StreamTime.QUERY and (
            self.emit_interval_ms or self.headers is HeadersOf.TRIGGER
        ):
            raise UsageError(
                "With stream_time='query' time lets unmatched results go and not a record: they have no "
                "trigger's headers, and no throttle.",
                next_step="Leave headers='trigger' and emit_interval_ms out, or choose stream_time='task'.",
                option="stream_time",
            )

    @property
    def retention_ms(self) -> int:
        """How long a side keeps a record for the other: nothing older than that is read."""
        return self.windows.retention_ms

    @property
    def buffers(self) -> bool:
        """Whether unmatched records wait in a buffer."""
        return self.type in (JoinType.LEFT, JoinType.OUTER)

    def is_outer(self, side: Side) -> bool:
        """Return whether records of this side appear without a partner."""
        return self.type is JoinType.OUTER or (self.type is JoinType.LEFT and side is Side.LEFT)

    def before_ms(self, side: Side) -> int:
        """Return how far before a record of this side its partners may be."""
        return self.windows.before_ms if side is Side.LEFT else self.windows.after_ms

    def after_ms(self, side: Side) -> int:
        """Return how far after a record of this side its partners may be."""
        return self.windows.after_ms if side is Side.LEFT else self.windows.before_ms

    def closed(self, side: Side, timestamp: int, stream_time: int) -> bool:
        """Return whether the window of a record has closed: `stream_time` is beyond its end and grace."""
        return timestamp + self.after_ms(side) + self.windows.grace_ms < stream_time

    def leaves_at_once(self, side: Side, timestamp: int, stream_time: int) -> bool:
        """Return whether a record that found no partner appears without one at once; else it is buffered."""
        if self.emit is Emit.FINAL:
            return self.closed(side, timestamp, stream_time)
        return max(0, timestamp + self.after_ms(side)) < stream_time

    def first_partner(self, side: Side, timestamp: int, stream_time: int) -> int:
        """Return the smallest timestamp that a partner of a record of this side may have.

        With `final` a partner that may have left without one is too late. The partner's store applies its
        retention too.
        """
        first = max(0, timestamp - self.before_ms(side))
        other = Side.RIGHT if side is Side.LEFT else Side.LEFT
        if self.emit is Emit.FINAL and self.is_outer(other):
            return max(first, stream_time - self.after_ms(other) - self.windows.grace_ms)
        return first

    def last_partner(self, side: Side, timestamp: int) -> int:
        """Return the greatest timestamp that a partner of a record of this side may have."""
        return max(0, timestamp + self.after_ms(side))

    @property
    def fingerprint(self) -> str:
        """What a state depends on, as canonical JSON: a state of another fingerprint must not be continued.

        Headers, the emission interval and whose time counts are not in it: a state may continue with another
        choice of them.
        """
        document = {
            "version": RULES_VERSION,
            "type": self.type.value,
            "emit": self.emit.value,
            **asdict(self.windows),
        }
        return orjson.dumps(document, option=orjson.OPT_SORT_KEYS).decode()


@dataclass(slots=True)
class JoinCounters:
    """What a join did, by the names that every engine and report uses.

    ::

        records             input records, those dropped included
        out_of_order        … that came behind the stream time
        late                … whose window had closed already: timestamp + after + grace < stream time
        dropped_null_key    no key; nothing came out (on an outer side it gives a result instead)
        dropped_null_value  a key, but no value
        dropped_late        joined, but not kept: no later record could have read it
        buffered            put into the buffer of unmatched records
        joined              results with both sides
        unmatched           results with one side
        emitted             joined + unmatched
    """

    records: int = 0
    out_of_order: int = 0
    late: int = 0
    dropped_null_key: int = 0
    dropped_null_value: int = 0
    dropped_late: int = 0
    buffered: int = 0
    joined: int = 0
    unmatched: int = 0

    @property
    def emitted(self) -> int:
        """All results."""
        return self.joined + self.unmatched

    def add(self, other: JoinCounters) -> None:
        """Count what another part of the join counted."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def as_dict(self) -> dict[str, int]:
        """Return name and number of each."""
        return {**asdict(self), "emitted": self.emitted}


@dataclass(slots=True)
class JoinClock:
    """A join's times, all in milliseconds; a new join begins with these numbers.

    Args:
        stream_time: The greatest timestamp of any record of both sides, dropped ones included.
        observed: Per side the greatest timestamp that was kept (records with key and value).
        min_time: The smallest timestamp that the buffer may hold, as the last round left it.
        next_emit_ms: Wall-clock time before which no expired record leaves.
    """

    stream_time: int = NO_TIME
    observed: dict[Side, int] = field(default_factory=lambda: dict.fromkeys(Side, NO_TIME))
    min_time: int = NO_MIN_TIME
    next_emit_ms: int = 0


def wrapped(number: int) -> int:
    """Return the number wrapped to signed 64 bits; Kafka Streams adds times that way."""
    return (number + _HALF) % _WRAP - _HALF


Choice = TypeVar("Choice", bound=StrEnum)
_MEANT = {
    "full": "choose outer", "full_outer": "choose outer", "fullouter": "choose outer",
    "left_outer": "choose left", "leftouter": "choose left",
    "right": "choose left and let the two inputs change places, and before_ms and after_ms too",
    "right_outer": "choose left and let the two inputs change places, and before_ms and after_ms too",
}  # fmt: skip


def choice(kind: type[Choice], name: str, value: Any) -> Choice:
    """Return the member of an enumeration that a word names.

    Raises:
        UsageError: It names none.
    """
    try:
        return kind(value)
    except ValueError as error:
        meant = _MEANT.get(str(value)) if kind is JoinType else None
        raise UsageError(
            f"{name} is one of {', '.join(kind)}, not {value!r}.",
            next_step=f"To get that, {meant}." if meant else f"Choose one of {', '.join(kind)}.",
            option=name,
        ) from error
