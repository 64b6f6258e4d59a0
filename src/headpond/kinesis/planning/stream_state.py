"""What a planner knows of the stream: whether it is still the same one, and what may have expired unread.

A stream that was deleted and created again under its name is another stream. It is described once a minute,
and again before anything is taken for loss, and before the first records of a shard are planned: until then
nothing but the creation time tells a new stream's records from those of the old one.

::

    position t ─────── u ─────────────── u + retention
                       │                      └─ from here on records that came after u may be gone
                       └─ asked then: nothing followed, or nothing of what followed had expired

A record's number proves its position as long as the record is kept (`cursor`). A time, a horizon, or a
record that has expired proves nothing; there this decides. What is known goes into the offset as the note
`u`, for who continues a stopped query; where nothing is new it is written again after a quarter of the
retention: an idle stream must not look like a loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from threading import Lock

from headpond.core.errors import ConfigurationError
from headpond.core.times import as_utc
from headpond.kinesis.api.calls import ServiceCalls, StreamFacts
from headpond.kinesis.planning.options import SourceSettings
from headpond.kinesis.reading.cursor import LossRule
from headpond.kinesis.reading.positions import END, Listing, Offset, Position, listing

_FACTS_HOLD_S = 60.0  # an account may ask 20 times a second, for all its streams together
_SHARE = 4  # of the retention: how old a note in the offset may grow


class StreamState:
    """What is known of a stream as a whole; `recheck` may be called from several threads."""

    def __init__(self, calls: ServiceCalls, settings: SourceSettings, clock: Callable[[], float]) -> None:
        self._calls, self._settings, self._clock = calls, settings, clock
        self._stream = settings.connection.stream
        self.listed: Listing = {}  # as listed last; one plan goes by it from its beginning to its end
        self.tolerated: set[str] = set()  # gaps that were found and gone on over
        self._aged: set[tuple[str, Position]] = set()  # those that were reported
        self._facts: StreamFacts | None = None
        self._described_s = self._listed_s = float("-inf")
        self._expected_ms: int | None = None  # when the stream was created that is being read
        self._rechecked = self._keeps = False
        self._lock = Lock()

    def facts(self) -> StreamFacts:
        """Return the description of the stream, at most a minute old."""
        if self._facts is None or self._clock() - self._described_s > _FACTS_HOLD_S:
            self._facts, self._described_s = self._calls.describe(), self._clock()
        return self._facts

    def shards(self, *, refresh: bool = False) -> Listing:
        """Return the shards, listed again where `refresh` asks for it or the listing is too old."""
        now_s = self._clock()
        if not self._keeps and (refresh or (now_s - self._listed_s) * 1000 >= self._settings.discovery_ms):
            self.listed, self._listed_s = listing(self._calls.list_shards()), now_s
        return self.listed

    def keep_listing(self) -> None:
        """List the shards now and not again: those that open later are for another run."""
        self._keeps = False
        self.shards(refresh=True)
        self._keeps = True

    def begin(self, offset: Offset) -> None:
        """Begin a plan from an offset; raise ConfigurationError where that is another stream's."""
        self._rechecked = False
        names = [each.rpartition("/")[2] for each in (offset.stream, self._stream)]
        # A name and an ARN may be of one stream; its creation time tells.
        may_be_one = names[0] == names[1] and names[0] in (offset.stream, self._stream)
        if offset.stream != self._stream and not may_be_one:
            raise ConfigurationError(
                f"The checkpoint is of stream {offset.stream}, the source is set to read {self._stream}.",
                next_step="Use that stream's checkpoint, or begin with a new one.",
                stream=self._stream,
            )
        self._expected_ms = offset.created_ms
        refuse_another(self._stream, offset.created_ms, self.facts().created_ms)

    def recheck(self, *, again: bool = False) -> None:
        """Describe the stream, once in a plan or `again`; raise ConfigurationError if it is another."""
        with self._lock:
            if again or not self._rechecked:
                self._described_s, self._rechecked = float("-inf"), True
            if self._expected_ms is not None:
                refuse_another(self._stream, self._expected_ms, self.facts().created_ms)

    # Loss

    @property
    def loss(self) -> LossRule:
        """How loss is judged."""
        fatal, retention_ms = self._settings.fail_on_data_loss, self.facts().retention_ms
        return LossRule(self._stream, retention_ms, fatal, self.tolerated, self.recheck)

    def noted(self, at: Position) -> Position:
        """Return a position with a note of what is known of it, where its own time does not say as much."""
        is_told = at.time_ms is not None and not self.is_stale(at, replace(at, until_ms=None))
        return replace(at, until_ms=None if is_told or at.kind in ("END", "AT") else at.until_ms)

    def is_stale(self, at: Position, written: Position) -> bool:
        """Return whether more is known of a position than is written, by so much that it is written again."""
        written_ms = max(written.time_ms or 0, written.until_ms or 0) + self.facts().retention_ms // _SHARE
        return at.kind not in ("END", "AT") and (at.until_ms or 0) > written_ms

    def check_aged(self, shard_id: str, at: Position, start: Offset) -> None:
        """Report a position without a record to prove it after which records may have expired unread.

        Raises:
            DataLoss: They may have, and that is fatal.
        """
        last_ms, now_ms = max(at.time_ms or 0, at.until_ms or 0), self._calls.now_ms()
        retention_ms = self.facts().retention_ms
        if not at.is_moving or last_ms + retention_ms > now_ms or (shard_id, at) in self._aged:
            return
        parents = self.listed[shard_id].parents if shard_id in self.listed else ()
        if any(parent in self.listed for parent in parents):
            return  # a closed shard is listed until its records expire, and its children's are younger
        if last_ms:
            since = f"nothing is known since {as_utc(last_ms)}"
        elif any(start.shards.get(parent) == END for parent in parents):
            since = f"its parent {parents[0]} has expired since it was read to its end"
        else:
            return  # written by a headpond that kept no times, or not begun at all
        oldest_ms = now_ms - retention_ms
        self.loss.lost(
            shard_id,
            f"the position is {at.words}, {since}, and the stream keeps records for "
            f"{retention_ms // 3_600_000} hours: what came until {as_utc(oldest_ms)} may be gone",
            position=at.words,
            oldest_ms=oldest_ms,
        )
        self._aged.add((shard_id, at))

    def without_vanished(self, positions: dict[str, Position]) -> dict[str, Position]:
        """Return the positions that can be gone on from; shards that went unread are lost."""
        gone = {name: at for name, at in positions.items() if name not in self.listed and at != END}
        for shard_id, at in gone.items():
            self.loss.lost(
                shard_id,
                "the shard is not listed any more and was not read to its end; all that followed is "
                f"gone, from the position {at.words} to the shard's end",
                position=at.words,
                oldest=None,
            )
        return {shard_id: at for shard_id, at in positions.items() if shard_id not in gone}


def refuse_another(stream: str, expected_ms: int, found_ms: int) -> None:
    """Raise ConfigurationError for a stream that was created at another time than that of the positions."""
    if expected_ms != found_ms:
        expected, found = map(as_utc, (expected_ms, found_ms))
        raise ConfigurationError(
            f"Stream {stream} was deleted and created again: the checkpoint is of one created at "
            f"{expected}, this one was created at {found}.",
            next_step="Move the checkpoint away: then this stream is read from where a first run begins.",
            stream=stream,
            expected=expected_ms,
            found=found_ms,
        )
