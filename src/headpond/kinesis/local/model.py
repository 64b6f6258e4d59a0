"""What the local Kinesis holds: streams of shards of records. No time, no locks, no HTTP.

A record is kept as the JSON object that GetRecords answers with, so that reading it is no work:

::

    {"SequenceNumber":"49…","ApproximateArrivalTimestamp":1.002,"Data":"…base64…","PartitionKey":"…"}
                                                                        └ data_start  └ data_end
"""

from __future__ import annotations

from base64 import b64decode
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

import orjson

from headpond.kinesis.local.refusal import ServiceRefusalError
from headpond.kinesis.local.sequence import STEP, SequenceParts, pack

__all__ = ["MAX_HASH_KEY", "Record", "Shard", "Stream", "check_hash_key", "shard_id_of"]

MAX_HASH_KEY = 2**128 - 1
"""The greatest hash key; the smallest is 0."""
_EXPIRY_INTERVAL_MS = 1_000


def shard_id_of(number: int) -> str:
    """`shardId-000000000007` for 7."""
    return f"shardId-{number:012d}"


def check_hash_key(hash_key: int) -> None:
    """Refuse an explicit hash key that lies beyond the ring."""
    if not 0 <= hash_key <= MAX_HASH_KEY:
        raise ServiceRefusalError(
            "InvalidArgumentException",
            f"Invalid ExplicitHashKey {hash_key}: it must lie in 0..{MAX_HASH_KEY}.",
        )


@dataclass(slots=True, frozen=True)
class Record:
    """One stored Kinesis record.

    Attributes:
        sequence_number: As an integer.
        arrival_ms: Server time at arrival, epoch milliseconds; never falls within a shard.
        partition_key: As given.
        hash_key: Where the record belongs: the explicit hash key, else the MD5 of the partition key.
        size_bytes: Bytes of data and partition key, what limits count.
        wire: The record as JSON.
        data_start: Where in `wire` the base64 text starts.
        data_end: Where it ends.
    """

    sequence_number: int
    arrival_ms: int
    partition_key: str
    hash_key: int
    size_bytes: int
    wire: bytes
    data_start: int
    data_end: int

    @property
    def data(self) -> bytes:
        """The data, decoded anew at each call."""
        return b64decode(self.wire[self.data_start : self.data_end])


@dataclass(slots=True)
class Shard:
    """A range of hash keys, both ends inclusive, and the records put into it, oldest first."""

    number: int
    low: int
    high: int
    start: SequenceParts
    opened_ms: int
    parents: tuple[str, ...] = ()
    closed_ms: int | None = None
    children: list[str] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    arrivals: list[int] = field(default_factory=list)
    ordinal: int = 0
    trimmed: int = 0

    @property
    def shard_id(self) -> str:
        """The shard's name."""
        return shard_id_of(self.number)

    @property
    def starting_sequence_number(self) -> int:
        """A number just below the first record's."""
        return pack(self.start)

    @property
    def ending_sequence_number(self) -> int:
        """The number above the last record's; it stays once the shard is closed."""
        return pack(self.start._replace(ordinal=self.ordinal + 1))

    @property
    def last_sequence_number(self) -> int:
        """The number of the newest record, or the starting number if there was none yet."""
        return pack(self.start._replace(ordinal=self.ordinal))

    def append(
        self, partition_key: str, hash_key: int, data_base64: bytes, size_bytes: int, now_ms: int
    ) -> int:
        """Store a record; gives its sequence number.

        Args:
            partition_key: As given.
            hash_key: Its place.
            data_base64: The data as canonical base64 text.
            size_bytes: Bytes of data and partition key.
            now_ms: The arrival; raised to the last arrival if the clock stepped back.
        """
        self.ordinal += 1
        number = self.starting_sequence_number + self.ordinal * STEP
        arrival_ms = max(now_ms, self.arrivals[-1]) if self.arrivals else now_ms
        head = b'{"SequenceNumber":"%d","ApproximateArrivalTimestamp":%d.%03d,"Data":"' % (
            number,
            arrival_ms // 1000,
            arrival_ms % 1000,
        )
        wire = b'%b%b","PartitionKey":%b}' % (head, data_base64, orjson.dumps(partition_key))
        start = len(head)
        self.records.append(
            Record(
                number, arrival_ms, partition_key, hash_key, size_bytes, wire, start, start + len(data_base64)
            )
        )
        self.sequences.append(number)
        self.arrivals.append(arrival_ms)
        return number

    def index_after(self, sequence_number: int) -> int:
        """Index of the first record still held above this number."""
        return bisect_right(self.sequences, sequence_number)

    def index_at_time(self, time_ms: int) -> int:
        """Index of the first record that arrived at or after this time."""
        return bisect_left(self.arrivals, time_ms)

    def drop_first(self, count: int) -> None:
        """Forget the oldest records, as retention does."""
        del self.records[:count]
        del self.sequences[:count]
        del self.arrivals[:count]
        self.trimmed += count


@dataclass(slots=True)
class Stream:
    """A stream with its shards by name, expired ones removed."""

    name: str
    arn: str
    created_ms: int
    retention_hours: int
    on_demand: bool
    max_record_bytes: int
    settled_ms: int
    shards: dict[str, Shard] = field(default_factory=dict)
    expired_ms: int = 0
    _next_number: int = 0
    _generation: int = 0
    _ends: list[int] = field(default_factory=list)
    _open: list[Shard] = field(default_factory=list)

    @property
    def open_shards(self) -> list[Shard]:
        """The shards that take records, by hash range."""
        return list(self._open)

    def shard_for(self, hash_key: int) -> Shard:
        """The open shard whose range holds the key."""
        return self._open[bisect_left(self._ends, hash_key)]

    def open_shard_ranges(
        self, ranges: list[tuple[int, int]], now_ms: int, parents: tuple[Shard, ...] = ()
    ) -> list[Shard]:
        """Close the parents and open one shard per range below them; the ranges tile the parents'."""
        self._generation += 1
        opened = []
        for low, high in ranges:
            start = SequenceParts(self.created_ms, self._generation, 0, self._next_number)
            shard = Shard(
                self._next_number, low, high, start, now_ms, tuple(parent.shard_id for parent in parents)
            )
            self._next_number += 1
            self.shards[shard.shard_id] = shard
            opened.append(shard)
        for parent in parents:
            parent.closed_ms = now_ms
            parent.children = [shard.shard_id for shard in opened]
        self._open = sorted((s for s in self.shards.values() if s.closed_ms is None), key=lambda s: s.low)
        self._ends = [shard.high for shard in self._open]
        return opened

    def expire(self, now_ms: int) -> None:
        """Drop records older than the retention, and closed shards that ended before it.

        Looks at most once a second: a stream may have a thousand shards.
        """
        if 0 <= now_ms - self.expired_ms < _EXPIRY_INTERVAL_MS:
            return
        self.expired_ms = now_ms
        horizon_ms = self.horizon_ms(now_ms)
        for shard in list(self.shards.values()):
            if shard.arrivals and shard.arrivals[0] < horizon_ms:
                shard.drop_first(shard.index_at_time(horizon_ms))
            if shard.closed_ms is not None and shard.closed_ms < horizon_ms and not shard.records:
                del self.shards[shard.shard_id]

    def horizon_ms(self, now_ms: int) -> int:
        """Records that arrived before this time are gone."""
        return now_ms - self.retention_hours * 3_600_000
