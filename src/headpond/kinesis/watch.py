"""The stream as it was last described and listed, and whether it still is the one that is being read.

A stream that was deleted and created anew under its name is another stream. It is described once a minute;
before anything is taken for loss, and before the first records of a shard are planned, it is described
again: until then nothing but the creation time tells a new stream's records from those of the old one.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from headpond.errors import ConfigurationError
from headpond.kinesis.shards import listing

if TYPE_CHECKING:
    from collections.abc import Callable

    from headpond.kinesis.calls import StreamCalls, StreamFacts
    from headpond.kinesis.positions import Offset
    from headpond.kinesis.shards import Listing

__all__ = ["StreamWatch", "refuse_another"]

_FACTS_HOLD_S = 60.0  # an account may ask 20 times a second, for all its streams together


class StreamWatch:
    """What is known of a stream as a whole; `recheck` may be called from several threads.

    Args:
        calls: The stream.
        stream: Its name or ARN, as configured.
        discovery_ms: How old a listing may be.
        clock: Seconds of any origin, never falling.
    """

    def __init__(
        self, calls: StreamCalls, stream: str, discovery_ms: int, clock: Callable[[], float]
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
        """What is told of the stream, at most a minute old."""
        if self._facts is None or self._clock() - self._described_at > _FACTS_HOLD_S:
            self._describe()
        assert self._facts is not None
        return self._facts

    def shards(self, *, refresh: bool = False) -> Listing:
        """The shards, as old as may be unless told to list them now."""
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
        if offset.stream != self._stream:
            raise ConfigurationError(
                f"The checkpoint is of stream {offset.stream}, the source is told to read {self._stream}.",
                next_step="Use that stream's checkpoint, or begin with a new one.",
                stream=self._stream,
            )
        self._expected_ms = offset.created_ms
        refuse_another(self._stream, offset.created_ms, self.facts().created_ms)

    def recheck(self, *, again: bool = False) -> None:
        """Describe the stream again, once in a plan unless told.

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


def refuse_another(stream: str, expected_ms: int, found_ms: int) -> None:
    """Refuse a stream that was created at another time than the one that positions are of.

    Raises:
        ConfigurationError: The times differ.
    """
    if expected_ms != found_ms:
        raise ConfigurationError(
            f"Stream {stream} was deleted and created anew: the checkpoint is of one created at "
            f"{expected_ms} ms, this one was created at {found_ms} ms.",
            next_step="Begin with a new checkpoint.",
            stream=stream,
            expected=expected_ms,
            found=found_ms,
        )
