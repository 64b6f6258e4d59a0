"""The local Kinesis as a state machine: calls in, answers or refusals out; the clock is passed in.

No HTTP and no asyncio. Every method may be called from any thread: one lock guards the state, so a
test can split a shard while a client writes over HTTP. Names of streams may be given as ARNs.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Callable
from threading import RLock
from typing import TYPE_CHECKING

from headpond.localkinesis.consumers import Consumers
from headpond.localkinesis.faults import Faults
from headpond.localkinesis.model import (
    STEP,
    Placed,
    Position,
    Reading,
    Stream,
    check_hash_key,
    choose_shards,
    even_ranges,
    merge_shards,
    rescale,
    shard_id_of,
    split_shards,
)
from headpond.localkinesis.settings import (
    ServiceRefusalError,
    Settings,
    ShardMeter,
    check_scaling,
    in_use,
    invalid,
    invalid_argument,
    limit_exceeded,
    not_found,
    wall_clock_ms,
)

if TYPE_CHECKING:
    from headpond.localkinesis.model import Record, Shard, ShardFilter, Start

_MIB = 1024 * 1024


class Engine:
    """All streams of one local Kinesis, and the faults that calls over HTTP meet."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        clock: Callable[[], int] = wall_clock_ms,
        faults: Faults | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.clock = clock
        self.faults = faults or Faults()
        self._lock = RLock()
        self._streams: dict[str, Stream] = {}
        self.consumers = Consumers(self, self._lock)

    # Streams

    def create_stream(
        self,
        name: str,
        shard_count: int = 1,
        *,
        on_demand: bool = False,
        retention_hours: int = 24,
        max_record_bytes: int = _MIB,
    ) -> Stream:
        """Create a stream of even shards."""
        with self._lock:
            if name in self._streams:
                raise in_use(f"Stream {name} under account {self.settings.account} already exists.")
            if len(self._streams) >= self.settings.max_streams:
                raise limit_exceeded(
                    f"Account {self.settings.account} has {len(self._streams)} streams and may have no more."
                )
            self._must_have_room(shard_count)
            now_ms = self.clock()
            arn = f"arn:aws:kinesis:{self.settings.region}:{self.settings.account}:stream/{name}"
            settled_ms = now_ms + self.settings.settle_ms
            stream = Stream(name, arn, now_ms, retention_hours, on_demand, max_record_bytes, settled_ms)
            stream.open_shard_ranges(even_ranges(shard_count), now_ms)
            self._streams[name] = stream
            return stream

    def delete_stream(self, name: str) -> None:
        """Delete a stream and all it holds, at once."""
        with self._lock:
            stream = self.stream(name)
            del self._streams[stream.name]

    def stream(self, name: str) -> Stream:
        """Look a stream up by name or ARN, expired records removed."""
        with self._lock:
            bare = name.rpartition(":stream/")[2]
            stream = self._streams.get(bare)
            if stream is None or (name.startswith("arn:") and name != stream.arn):
                raise self._no_stream(bare)
            stream.expire(self.clock())
            return stream

    def stream_names(self) -> list[str]:
        """Return all names, sorted."""
        with self._lock:
            return sorted(self._streams)

    def status(self, name: str) -> str:
        """Return `CREATING`, `UPDATING` or `ACTIVE`."""
        with self._lock:
            stream = self.stream(name)
            # Without a time to settle it is never out of use, not even while the clock stands back.
            if not self.settings.settle_ms or self.clock() >= stream.settled_ms:
                return "ACTIVE"
            is_new = stream.settled_ms == stream.created_ms + self.settings.settle_ms
            return "CREATING" if is_new else "UPDATING"

    def set_retention(self, name: str, hours: int) -> None:
        """Keep records for this many hours."""
        with self._lock:
            stream = self._active(name)
            stream.retention_hours = hours
            stream.expired_ms = 0

    def set_max_record_bytes(self, name: str, size_bytes: int) -> None:
        """Accept records of data and partition key up to this size."""
        with self._lock:
            self._active(name).max_record_bytes = size_bytes

    # Writing

    def put(
        self, name: str, partition_key: str, data: bytes, *, explicit_hash_key: int | None = None
    ) -> Placed:
        """Store one record of raw bytes."""
        encoded = b64encode(data)
        return self.put_base64(name, partition_key, encoded, len(data), explicit_hash_key=explicit_hash_key)

    def put_base64(
        self,
        name: str,
        partition_key: str,
        data_base64: bytes,
        data_bytes: int,
        *,
        explicit_hash_key: int | None = None,
    ) -> Placed:
        """Store one record whose data is canonical base64 text of `data_bytes` bytes."""
        with self._lock:
            stream = self._created(name)
            if explicit_hash_key is None:
                digest = hashlib.md5(partition_key.encode(), usedforsecurity=False).digest()
                explicit_hash_key = int.from_bytes(digest, "big")
            else:
                check_hash_key(explicit_hash_key)
            size_bytes = data_bytes + len(partition_key.encode())
            if size_bytes > stream.max_record_bytes:
                raise invalid(
                    f"Data and partition key of a record take {size_bytes} bytes; "
                    f"the stream takes {stream.max_record_bytes}."
                )
            now_ms = self.clock()
            shard = stream.shard_for(explicit_hash_key)
            self._meter(stream, shard, now_ms).write(size_bytes, now_ms)
            number = shard.append(partition_key, explicit_hash_key, data_base64, size_bytes, now_ms)
            return Placed(shard.shard_id, number)

    # Reading

    def position(self, name: str, shard_id: str, start: Start) -> Position:
        """Resolve a starting position."""
        with self._lock:
            stream = self._created(name)
            shard = self._shard(stream, shard_id)
            if start.kind in {"AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"}:
                after = self._before_number(stream, shard, start)
            elif start.kind == "AT_TIMESTAMP":
                after = self._before_time(shard, start.timestamp_ms)
            elif start.kind == "LATEST":
                after = shard.last_sequence_number
            else:
                after = shard.starting_sequence_number
            return Position(stream.name, stream.created_ms, shard.shard_id, after)

    def read(self, position: Position, limit: int | None = None, *, as_event: bool = False) -> Reading:
        """Read on from a position: a reply, which the limits count, or an event, which they do not."""
        with self._lock:
            now_ms = self.clock()
            stream = self.stream(position.stream)
            if stream.created_ms != position.created_ms:
                raise not_found(f"Stream {stream.name} of creation time {position.created_ms} not found.")
            shard = self._shard(stream, position.shard_id)
            meter = None if as_event else self._meter(stream, shard, now_ms)
            if meter is not None:
                meter.start_read(now_ms)
            start = shard.index_after(position.after)
            most_bytes = self.settings.event_bytes if as_event else self.settings.reply_bytes
            stop, size_bytes = self._reach(shard, start, limit, most_bytes)
            if meter is not None:
                meter.end_read(size_bytes)
            records = shard.records[start:stop]
            at_tip = stop == len(shard.records)
            if at_tip and shard.closed_ms is not None:
                children = [stream.shards[each] for each in shard.children if each in stream.shards]
                return Reading(records, None, 0, children)
            after = records[-1].sequence_number if records else position.after
            behind_ms = 0 if at_tip else max(1, now_ms - shard.records[max(start, stop - 1)].arrival_ms)
            return Reading(records, position._replace(after=after), behind_ms, [])

    def records(self, name: str, shard_id: str | None = None) -> list[Record]:
        """Return all records held, by shard and then oldest first; for tests."""
        with self._lock:
            stream = self.stream(name)
            shards = sorted(stream.shards.values(), key=lambda shard: shard.number)
            return [r for s in shards if shard_id in {None, s.shard_id} for r in s.records]

    # Shards

    def shards(self, name: str, chosen: ShardFilter | None = None) -> list[Shard]:
        """Return the shards that a filter selects, by number."""
        with self._lock:
            return choose_shards(self.stream(name), chosen, self.clock())

    def split_shard(self, name: str, shard_id: str, new_start: int | None = None) -> list[Shard]:
        """Split a shard at a hash key, by default in the middle."""
        with self._lock:
            stream = self._active(name)
            shard = self._shard(stream, shard_id)
            self._must_have_room(1)
            middle = (shard.low + shard.high + 1) // 2
            opened = split_shards(stream, shard, middle if new_start is None else new_start, self.clock())
            self._unsettle(stream)
            return opened

    def merge_shards(self, name: str, shard_id: str, adjacent_shard_id: str) -> Shard:
        """Merge two neighbours."""
        with self._lock:
            stream = self._active(name)
            first, second = self._shard(stream, shard_id), self._shard(stream, adjacent_shard_id)
            opened = merge_shards(stream, first, second, self.clock())
            self._unsettle(stream)
            return opened

    def update_shard_count(self, name: str, target: int) -> int:
        """Split and merge to this many even shards; return how many there were."""
        with self._lock:
            stream = self._active(name)
            before = len(stream.open_shards)
            check_scaling(self.settings.limits, stream.name, before, target)
            self._must_have_room(target - before)
            rescale(stream, target, self.clock())
            self._unsettle(stream)
            return before

    def trim(self, name: str, shard_id: str, before: int) -> int:
        """Forget a shard's records below a sequence number, as if they had expired; return how many."""
        with self._lock:
            shard = self._shard(self.stream(name), shard_id)
            count = shard.index_after(before - 1)
            del shard.records[:count]
            return count

    def forget_shard(self, name: str, shard_id: str) -> None:
        """Remove a closed shard and its records from the stream, as if all had expired."""
        with self._lock:
            stream = self.stream(name)
            shard = self._shard(stream, shard_id)
            if shard.closed_ms is None:
                raise invalid_argument(f"Shard {shard_id} is open.")
            del stream.shards[shard.shard_id]

    # Below the calls

    def _active(self, name: str) -> Stream:
        stream, status = self.stream(name), self.status(name)
        if status != "ACTIVE":
            raise in_use(
                f"Stream {stream.name} under account {self.settings.account} not ACTIVE, "
                f"instead in state {status}"
            )
        return stream

    def _created(self, name: str) -> Stream:
        """Return a stream that can be written and read; for these calls one being created does not exist."""
        stream = self.stream(name)
        if self.status(name) == "CREATING":
            raise self._no_stream(stream.name)
        return stream

    def _must_have_room(self, added: int) -> None:
        held, most = sum(len(each.open_shards) for each in self._streams.values()), self.settings.max_shards
        if added > 0 and held + added > most:
            raise limit_exceeded(
                f"This request would exceed the shard limit for the account {self.settings.account} in "
                f"{self.settings.region}. Current shard count for the account: {held}. Limit: {most}. "
                f"Number of additional shards that would have resulted from this request: {added}."
            )

    def _no_stream(self, name: str) -> ServiceRefusalError:
        return not_found(f"Stream {name} under account {self.settings.account} not found.")

    def _unsettle(self, stream: Stream) -> None:
        stream.settled_ms = max(stream.settled_ms, self.clock() + self.settings.settle_ms)

    def _shard(self, stream: Stream, shard_id: str) -> Shard:
        # The service takes a shard's number in any spelling of the id.
        number = shard_id.rpartition("-")[2]
        shard = stream.shards.get(shard_id_of(int(number)) if number.isdecimal() else shard_id)
        if shard is None:
            raise not_found(
                f"Shard {shard_id} in stream {stream.name} under account {self.settings.account} "
                "does not exist"
            )
        return shard

    def _meter(self, stream: Stream, shard: Shard, now_ms: int) -> ShardMeter:
        if shard.meter is None:
            where = f"shard {shard.shard_id} in stream {stream.name} under account {self.settings.account}"
            shard.meter = ShardMeter(self.settings.limits, where, now_ms)
        return shard.meter

    def _before_number(self, stream: Stream, shard: Shard, start: Start) -> int:
        number = -1 if start.sequence_number is None else start.sequence_number
        if not shard.gives(number):
            raise invalid_argument(
                f"StartingSequenceNumber {start.sequence_number} used in GetShardIterator on shard "
                f"{shard.shard_id} in stream {stream.name} under account {self.settings.account} is invalid "
                "because it did not come from this stream and shard."
            )
        return number - STEP if start.kind == "AT_SEQUENCE_NUMBER" else number

    def _before_time(self, shard: Shard, timestamp_ms: float | None) -> int:
        if timestamp_ms is None:
            raise invalid_argument(
                "Must specify timestampInMillis parameter for iterator of type AT_TIMESTAMP."
            )
        now_ms = self.clock()
        if timestamp_ms > now_ms:
            raise invalid_argument(
                f"The timestampInMillis parameter cannot be greater than the currentTimestampInMillis: "
                f"{timestamp_ms:.0f} > {now_ms}."
            )
        # Later records never arrive below the clock, so a place in the order stands for the time.
        index = shard.index_at_time(-int(-timestamp_ms // 1))
        records = shard.records
        return records[index].sequence_number - STEP if index < len(records) else shard.last_sequence_number

    def _reach(self, shard: Shard, start: int, limit: int | None, most_bytes: int) -> tuple[int, int]:
        """Return the index just above the last record that a reply from `start` holds, and its bytes."""
        most = min(limit or self.settings.reply_records, self.settings.reply_records)
        size_bytes, stop = 0, start
        for record in shard.records[start : start + most]:
            if stop > start and size_bytes + record.size_bytes > most_bytes:
                break
            size_bytes += record.size_bytes
            stop += 1
        return stop, size_bytes
