"""What a planner knows of the stream: whether it is still the same one, and what may have expired unread.

A stream that was deleted and created again under its name is another stream. It is described once a minute;
before anything is taken for loss, and before the first records of a shard are planned, it is described
again: until then nothing but the creation time tells a new stream's records from those of the old one.

::

    position t ─────── u ─────────────── u + retention
                       │                      └─ from here on records that came after u may be gone
                       └─ asked then: nothing followed, or nothing of what followed had expired

A record's own number proves its position as long as the record is kept (`cursor`). A time or a horizon has
no such proof, and neither has a record that expired by its age; there this decides. What is known goes into
the offset as the note `u`, so that a query that was stopped knows it, too, and is written again after a
quarter of the retention even where nothing else is new: an idle stream must not look like a loss.
"""

from __future__ import annotations

from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING

from headpond.core.errors import ConfigurationError
from headpond.kinesis.reading.cursor import LossRule
from headpond.kinesis.reading.positions import END, Position, as_utc, listing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headpond.kinesis.api.calls import ServiceCalls, StreamFacts
    from headpond.kinesis.planning.options import SourceSettings
    from headpond.kinesis.planning.shard_state import ShardState
    from headpond.kinesis.reading.positions import Listing, Offset

_FACTS_HOLD_S = 60.0  # an account may ask 20 times a second, for all its streams together


class StreamWatch:
    """What is known of a stream as a whole; `recheck` may be called from several threads.

    Args:
        discovery_ms: How old a listing may be.
    """

    def __init__(
        self, calls: ServiceCalls, stream: str, discovery_ms: int, clock: Callable[[], float]
    ) -> None:
        self._calls, self._stream, self._discovery_ms, self._clock = calls, stream, discovery_ms, clock
        self._facts: StreamFacts | None = None
        self._described_at = 0.0
        self._listing: Listing = {}
        self._listed_at: float | None = None
        self._expected_ms: int | None = None  # when the stream was created that is being read
        self._rechecked = False
        self._lock = Lock()

    def facts(self) -> StreamFacts:
        """Return the description of the stream, at most a minute old."""
        if self._facts is None or self._clock() - self._described_at > _FACTS_HOLD_S:
            self._describe()
        assert self._facts is not None
        return self._facts

    def shards(self, *, refresh: bool = False) -> Listing:
        """Return the shards, listed again where `refresh` asks for it or the listing is too old."""
        now = self._clock()
        old = self._listed_at is None or (now - self._listed_at) * 1000 >= self._discovery_ms
        if refresh or old:
            self._listing = listing(self._calls.list_shards())
            self._listed_at = now
        return self._listing

    @property
    def listed(self) -> Listing:
        """The shards as they were listed last, which one plan goes by from its beginning to its end."""
        return self._listing

    def begin(self, offset: Offset) -> None:
        """Begin a plan that goes on from an offset.

        Raises:
            ConfigurationError: The stream is not the one the offset is of.
        """
        self._rechecked = False
        if not _may_be_one(offset.stream, self._stream):
            raise ConfigurationError(
                f"The checkpoint is of stream {offset.stream}, the source is set to read {self._stream}.",
                next_step="Use that stream's checkpoint, or begin with a new one.",
                stream=self._stream,
            )
        self._expected_ms = offset.created_ms
        refuse_another(self._stream, offset.created_ms, self.facts().created_ms)

    def recheck(self, *, again: bool = False) -> None:
        """Describe the stream again, once in a plan unless `again`.

        Raises:
            ConfigurationError: It is not the one that is being read any more.
        """
        with self._lock:
            if again or not self._rechecked:
                self._describe()
                self._rechecked = True
            assert self._facts is not None
            if self._expected_ms is not None:
                refuse_another(self._stream, self._expected_ms, self._facts.created_ms)

    def _describe(self) -> None:
        self._facts = self._calls.describe()
        self._described_at = self._clock()


def _may_be_one(one: str, other: str) -> bool:
    """Return whether two names, one of them an ARN, may be of one stream; its creation time tells."""
    names = [each.rpartition("/")[2] for each in (one, other)]
    return one == other or (names[0] == names[1] and (names[0] in (one, other)))


def refuse_another(stream: str, expected_ms: int, found_ms: int) -> None:
    """Refuse a stream that was created at another time than the one that positions are of.

    Raises:
        ConfigurationError: The times differ.
    """
    if expected_ms != found_ms:
        raise ConfigurationError(
            f"Stream {stream} was deleted and created again: the checkpoint is of one created at "
            f"{expected_ms} ms, this one was created at {found_ms} ms.",
            next_step="Begin with a new checkpoint.",
            stream=stream,
            expected=expected_ms,
            found=found_ms,
        )


_SHARE = 4  # of the retention: how old a note in the offset may grow
_HOUR_MS = 3_600_000


class Losses:
    """How loss is judged at the positions of one query; `states` is where its shards stand."""

    def __init__(
        self,
        calls: ServiceCalls,
        settings: SourceSettings,
        watch: StreamWatch,
        states: Mapping[str, ShardState],
    ) -> None:
        self._calls, self._settings, self._watch, self._states = calls, settings, watch, states
        self._warned: set[str] = set()
        self._aged: set[tuple[str, Position]] = set()
        self._tolerated: set[str] = set()

    @property
    def count(self) -> int:
        """Gaps that were found and gone on over."""
        return len(self._tolerated)

    def rule(self, at: Position, shard_id: str) -> LossRule:
        """Return how loss at a position is judged."""
        return LossRule(
            self._settings.connection.stream,
            self._watch.facts().retention_ms,
            self._settings.fail_on_data_loss,
            self.known_ms(shard_id, at),
            self._tolerated,
            self._watch.recheck,
        )

    # Until when nothing had expired

    def known_ms(self, shard_id: str, at: Position) -> int:
        """Until when it is known that nothing unread after a position had expired; 0: not known."""
        state = self._states.get(shard_id)
        known_ms = state.known_ms if state is not None and state.position == at else 0
        return max(known_ms, at.until_ms or 0)

    def begun(self, positions: dict[str, Position]) -> dict[str, Position]:
        """Return positions that no query stood at before: what is gone by now is no loss."""
        now_ms = self._calls.now_ms()
        return {
            shard_id: replace(at, until_ms=at.until_ms or now_ms) if at.is_moving else at
            for shard_id, at in positions.items()
        }

    def noted(self, shard_id: str, at: Position) -> Position:
        """Return a position with a note of what is known of it, where its own time does not say as much."""
        if at.kind in ("END", "AT"):
            return at
        known_ms = self.known_ms(shard_id, at)
        least_ms = 0 if at.time_ms is None else at.time_ms + self._stale_ms
        return replace(at, until_ms=known_ms if known_ms > least_ms else None)

    def is_stale(self, shard_id: str, at: Position, written: Position) -> bool:
        """Return whether more is known of a position than is written, by so much that it is written again."""
        return (
            at.kind not in ("END", "AT")
            and self.known_ms(shard_id, at)
            > max(written.time_ms or 0, written.until_ms or 0) + self._stale_ms
        )

    @property
    def _stale_ms(self) -> int:
        return self._watch.facts().retention_ms // _SHARE

    # Loss that no reply tells

    def check_aged(self, shard_id: str, at: Position, start: Offset, shards: Listing) -> None:
        """Report a position without a record to prove it after which records may have expired unread.

        Raises:
            DataLoss: They may have, and that is fatal.
        """
        last_ms, now_ms = max(at.time_ms or 0, self.known_ms(shard_id, at)), self._calls.now_ms()
        retention_ms = self._watch.facts().retention_ms
        if last_ms + retention_ms > now_ms or (shard_id, at) in self._aged:
            return
        shard = shards.get(shard_id)
        parents = shard.parents if shard is not None else ()
        if at.is_moving and any(parent in shards for parent in parents):
            return  # a closed shard is listed until its records expire, and its children's are younger
        if last_ms:
            since = f"nothing is known since {as_utc(last_ms)}"
        elif any(start.shards.get(parent) == END for parent in parents):
            since = f"its parent {parents[0]} has expired since it was read to its end"
        else:
            return  # written by a headpond that kept no times, or not begun at all
        oldest_ms = now_ms - retention_ms
        self.rule(at, shard_id).lost(
            shard_id,
            f"the position is {at.words}, {since}, and the stream keeps records for "
            f"{retention_ms // _HOUR_MS} hours: what came until {as_utc(oldest_ms)} may be gone",
            position=at.words,
            oldest_ms=oldest_ms,
        )
        self._aged.add((shard_id, at))

    def without_vanished(self, start: Offset, shards: Listing) -> dict[str, Position]:
        """Return the positions that can be gone on from; shards that went unread are lost."""
        gone = {name: at for name, at in start.shards.items() if name not in shards and at != END}
        for shard_id, at in gone.items():
            if shard_id not in self._warned:
                self.rule(at, shard_id).lost(
                    shard_id,
                    "the shard is not listed any more and was not read to its end; all that followed is "
                    f"gone, from the position {at.words} to the shard's end",
                    position=at.words,
                    oldest=None,
                )
                self._warned.add(shard_id)
        return {shard_id: at for shard_id, at in start.shards.items() if shard_id not in gone}
