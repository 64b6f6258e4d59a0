"""What the local Kinesis holds: streams of shards of records, and how shards split and merge.

No time, no locks, no HTTP.

A record is kept as the JSON object that GetRecords answers with, so that reading it costs nothing:

::

    {"SequenceNumber":"49…","ApproximateArrivalTimestamp":1.002,"Data":"…base64…","PartitionKey":"…"}
                                                                        └ data_start  └ data_end

A sequence number has 56 decimal digits, like the service's:

::

    49 cccccccccccccc eeeeeeee oooooooooooooooooooo ssssssssssss
    │  │              │        │                    └ shard number (12 digits)
    │  │              │        └ ordinal in the shard (20): 0 start, then one per record, last one the end
    │  │              └ generation (8): a child's is greater than its parents'
    │  └ creation time of the stream in ms (14): a stream created again has other numbers
    └ so that there is no leading zero

So they rise within a shard, are not dense, a child starts above its parents' end, and a number tells
which shard of which stream it belongs to. Spec: kinesis §2.
"""

from __future__ import annotations

from base64 import b64decode
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, Self

import orjson

from headpond.localkinesis.settings import ServiceRefusalError, invalid_argument

if TYPE_CHECKING:
    from headpond.localkinesis.consumers import Consumer
    from headpond.localkinesis.settings import ShardMeter

STEP = 10**12
"""Distance between neighbouring ordinals of one shard."""
_GENERATION = 10**32
_CREATED = 10**40
_LEAD = 49 * 10**54


def first_number(created_ms: int, generation: int, shard_number: int) -> int:
    """Return the number just below that of a shard's first record."""
    return _LEAD + created_ms * _CREATED + generation * _GENERATION + shard_number


MAX_HASH_KEY = 2**128 - 1
"""The greatest hash key; the smallest is 0."""
_EXPIRY_INTERVAL_MS = 1_000


def shard_id_of(number: int) -> str:
    """`shardId-000000000007` for 7."""
    return f"shardId-{number:012d}"


def check_hash_key(hash_key: int) -> None:
    """Refuse an explicit hash key that lies beyond the ring."""
    if not 0 <= hash_key <= MAX_HASH_KEY:
        raise invalid_argument(f"Invalid ExplicitHashKey {hash_key}: it must lie in 0..{MAX_HASH_KEY}.")


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
        """The data, decoded at each call."""
        return b64decode(self.wire[self.data_start : self.data_end])


@dataclass(slots=True)
class Shard:
    """A range of hash keys, both ends inclusive, and the records put into it, oldest first."""

    number: int
    low: int
    high: int
    starting_sequence_number: int
    opened_ms: int
    parents: tuple[str, ...] = ()
    closed_ms: int | None = None
    children: list[str] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    ordinal: int = 0
    meter: ShardMeter | None = None  # of its traffic, from the first call on

    @property
    def shard_id(self) -> str:
        """The shard's name."""
        return shard_id_of(self.number)

    @property
    def ending_sequence_number(self) -> int:
        """The number above the last record's; it stays once the shard is closed."""
        return self.last_sequence_number + STEP

    @property
    def last_sequence_number(self) -> int:
        """The number of the newest record, or the starting number if there was none yet."""
        return self.starting_sequence_number + self.ordinal * STEP

    def gives(self, number: int) -> bool:
        """Return whether a sequence number is one of this shard's, given already or to come."""
        above = number - self.starting_sequence_number
        return 0 <= above < _GENERATION and above % STEP == 0

    def append(
        self, partition_key: str, hash_key: int, data_base64: bytes, size_bytes: int, now_ms: int
    ) -> int:
        """Store a record whose data is canonical base64 text; return its sequence number.

        Its arrival is `now_ms`, or that of the record before if the clock stepped back.
        """
        self.ordinal += 1
        number = self.last_sequence_number
        arrival_ms = max(now_ms, self.records[-1].arrival_ms) if self.records else now_ms
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
        return number

    def index_after(self, sequence_number: int) -> int:
        """Return the index of the first record still held above this number."""
        return bisect_right(self.records, sequence_number, key=attrgetter("sequence_number"))

    def index_at_time(self, time_ms: int) -> int:
        """Return the index of the first record that arrived at or after this time."""
        return bisect_left(self.records, time_ms, key=attrgetter("arrival_ms"))


@dataclass(slots=True)
class Stream:
    """A stream with its shards and consumers by name, expired shards removed."""

    name: str
    arn: str
    created_ms: int
    retention_hours: int
    on_demand: bool
    max_record_bytes: int
    settled_ms: int
    shards: dict[str, Shard] = field(default_factory=dict)
    consumers: dict[str, Consumer] = field(default_factory=dict)
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
        """Return the open shard whose range holds the key."""
        return self._open[bisect_left(self._ends, hash_key)]

    def open_shard_ranges(
        self, ranges: list[tuple[int, int]], now_ms: int, parents: tuple[Shard, ...] = ()
    ) -> list[Shard]:
        """Close the parents and open one shard per range below them; the ranges tile the parents'."""
        self._generation += 1
        opened = []
        for low, high in ranges:
            start = first_number(self.created_ms, self._generation, self._next_number)
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
            if shard.records and shard.records[0].arrival_ms < horizon_ms:
                del shard.records[: shard.index_at_time(horizon_ms)]
            if shard.closed_ms is not None and shard.closed_ms < horizon_ms and not shard.records:
                del self.shards[shard.shard_id]

    def horizon_ms(self, now_ms: int) -> int:
        """Return the time before which records that arrived are gone."""
        return now_ms - self.retention_hours * 3_600_000


def even_ranges(count: int) -> list[tuple[int, int]]:
    """Return the whole hash key space in this many nearly equal ranges, both ends inclusive."""
    edges = [(MAX_HASH_KEY + 1) * index // count for index in range(count + 1)]
    return [(low, above - 1) for low, above in pairwise(edges)]


def split_shards(stream: Stream, shard: Shard, new_start: int, now_ms: int) -> list[Shard]:
    """Close a shard and open two below it, the second from `new_start` on, as SplitShard does."""
    _must_be_open(shard)
    if not shard.low + 1 < new_start < shard.high:
        raise invalid_argument(
            f"NewStartingHashKey {new_start} used in SplitShard() on shard {shard.shard_id} in stream "
            f"{stream.name} is not both greater than one plus the shard's StartingHashKey {shard.low} and "
            f"less than the shard's EndingHashKey {shard.high}."
        )
    return _split(stream, shard, new_start, now_ms)


def merge_shards(stream: Stream, shard: Shard, adjacent: Shard, now_ms: int) -> Shard:
    """Close two neighbours and open one below both."""
    _must_be_open(shard)
    _must_be_open(adjacent)
    low, high = sorted((shard, adjacent), key=lambda each: each.low)
    if low.high + 1 != high.low:
        raise invalid_argument(
            f"Shards {shard.shard_id} and {adjacent.shard_id} in stream {stream.name} are not an adjacent "
            "pair of shards eligible for merging."
        )
    return stream.open_shard_ranges([(low.low, high.high)], now_ms, (shard, adjacent))[0]


def rescale(stream: Stream, target: int, now_ms: int) -> None:
    """Split and merge until this many even shards are open, as UpdateShardCount does."""
    ranges = even_ranges(target)
    for low, _ in ranges[1:]:
        shard = stream.shard_for(low)
        if shard.low < low:
            _split(stream, shard, low, now_ms)
    for low, high in ranges:
        while (shard := stream.shard_for(low)).high < high:
            merge_shards(stream, shard, stream.shard_for(shard.high + 1), now_ms)


def _split(stream: Stream, shard: Shard, new_start: int, now_ms: int) -> list[Shard]:
    # Even shards of uneven ones may begin one key above an old one, where SplitShard would not cut.
    return stream.open_shard_ranges([(shard.low, new_start - 1), (new_start, shard.high)], now_ms, (shard,))


def _must_be_open(shard: Shard) -> None:
    if shard.closed_ms is not None:
        raise invalid_argument(f"Shard {shard.shard_id} is closed: only an open shard may be resharded.")


class ShardFilter(NamedTuple):
    """A filter of ListShards; `shard_id` and `timestamp_ms` as its type needs them."""

    type: str
    shard_id: str | None = None
    timestamp_ms: int | None = None


def choose_shards(stream: Stream, chosen: ShardFilter | None, now_ms: int) -> list[Shard]:
    """Return the shards that a filter selects, by shard number.

    `AT_…` are the shards open at a moment, `FROM_…` those open at it or later. The trim horizon is the
    end of the retention, but not before the stream began.
    """
    shards = sorted(stream.shards.values(), key=lambda shard: shard.number)
    if chosen is None:
        return shards
    if chosen.type == "AFTER_SHARD_ID":
        if chosen.shard_id is None:
            raise _lacks("ShardId", chosen)
        return [shard for shard in shards if shard.shard_id > chosen.shard_id]
    if chosen.type == "AT_LATEST":
        return [shard for shard in shards if shard.closed_ms is None]
    if chosen.type in {"AT_TIMESTAMP", "FROM_TIMESTAMP"}:
        if chosen.timestamp_ms is None:
            raise _lacks("Timestamp", chosen)
        if chosen.timestamp_ms > now_ms:
            raise invalid_argument("Timestamp of the shard filter lies in the future.")
        moment_ms = chosen.timestamp_ms
    else:
        moment_ms = 0
    moment_ms = max(moment_ms, stream.created_ms, stream.horizon_ms(now_ms))
    shards = [shard for shard in shards if shard.closed_ms is None or shard.closed_ms >= moment_ms]
    if chosen.type.startswith("AT_"):
        shards = [shard for shard in shards if shard.opened_ms <= moment_ms]
    return shards


def _lacks(member: str, chosen: ShardFilter) -> ServiceRefusalError:
    return invalid_argument(f"{member} must be given with shard filter type {chosen.type}.")


class Position(NamedTuple):
    """A place in a shard: everything above the number `after` comes next."""

    stream: str
    created_ms: int
    shard_id: str
    after: int


class Start(NamedTuple):
    """Where to start reading a shard: one of the five kinds of GetShardIterator, and what it needs."""

    kind: str
    sequence_number: int | None = None
    timestamp_ms: float | None = None

    @classmethod
    def of(cls, kind: str, number: str | None, seconds: float | None) -> Self:
        """Read what a call gives; rounding to microseconds undoes what binary fractions add to seconds."""
        timestamp_ms = None if seconds is None else round(seconds * 1_000_000) / 1000
        return cls(kind, None if number is None else int(number), timestamp_ms)


class Placed(NamedTuple):
    """Where a record was stored."""

    shard_id: str
    sequence_number: int


class Reading(NamedTuple):
    """What a read returns.

    Attributes:
        records: Oldest first.
        position: Where to go on; None at the end of a closed shard.
        behind_ms: Time between what was read and the tip of the shard; 0 at the tip.
        children: Shards below this one, at its end only.
    """

    records: list[Record]
    position: Position | None
    behind_ms: int
    children: list[Shard]
