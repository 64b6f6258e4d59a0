"""Where a new query begins: a rule for all shards, one for each, or what a KCL application left behind."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headpond.core.errors import ConfigurationError
from headpond.kinesis.leases import read_leases
from headpond.kinesis.reading.cursor import ShardCursor
from headpond.kinesis.reading.positions import (
    END,
    HORIZON,
    Position,
    Start,
    after,
    ancestors,
    at_time,
    refuse_far_future,
)
from headpond.kpl import Aggregate, decode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headpond.kinesis.api.calls import ServiceCalls
    from headpond.kinesis.planning.options import SourceSettings
    from headpond.kinesis.planning.stream_state import StreamState
    from headpond.kinesis.reading.positions import Listing

    EachShard = Callable[[Callable[[str], Position], Iterable[str]], list[tuple[str, Position]]]

_MARGIN_MS = 300_000
_MARGIN_SHARE = 10


class Beginning:
    """The beginning that the options ask for."""

    def __init__(
        self, calls: ServiceCalls, settings: SourceSettings, stream: StreamState, each: EachShard
    ) -> None:
        self._calls, self._settings, self._stream, self._each = calls, settings, stream, each
        self._read: Start | None = None

    @property
    def start(self) -> Start:
        """What the options say; a lease table is read when first needed, which a checkpoint makes it not."""
        path, given = self._settings.kcl_leases, self._settings.start
        if path is None:
            return given
        if self._read is None:
            name, created_ms = self._settings.connection.name, self._stream.facts().created_ms
            self._read = read_leases(path, name, given, created_ms=created_ms)
        return self._read

    def positions(self) -> dict[str, Position]:
        """Return where each listed shard begins, with LATEST as the time of the listing.

        Raises:
            ConfigurationError: A shard is named that is not listed, a time has not come yet by the service's
                clock, or the lease table cannot be used.
            DataLoss: What a lease points at is gone, and that is fatal.
        """
        start = self.start
        shards, now_ms = self._stream.shards(refresh=True), self._calls.date_ms()
        for rule in {start.rule, *start.shards.values()}:
            if rule != "LATEST" and rule.kind == "TS":
                refuse_far_future(rule.time_ms or 0, now_ms, "The startingPosition")
        if self._settings.kcl_leases is None:
            return resolve(start, shards, now_ms)
        for shard_id, rule in start.shards.items():
            if shard_id not in shards and rule != END:
                # A shard that was finished may be forgotten, one with work left must not.
                self._stream.loss.lost(
                    shard_id, "its lease was not worked off, and the stream does not list it any more"
                )
        listed = {shard_id: rule for shard_id, rule in start.shards.items() if shard_id in shards}
        positions = resolve(Start(HORIZON, listed), shards, now_ms)
        checkpoints = [shard_id for shard_id, at in positions.items() if at.kind == "AT"]

        def past_done(shard_id: str) -> Position:
            return self._past_done(shard_id, positions[shard_id], start.done[shard_id])

        return positions | dict(self._each(past_done, checkpoints))

    def begun(self, positions: dict[str, Position], *, repeatable: bool = True) -> dict[str, Position]:
        """Return positions that no query stood at before: what is gone by now is not lost.

        The oldest records of a full stream expire while the batch that begins with them is being read: where
        that must be `repeatable` those with less than five minutes left are passed over.
        """
        facts, now_ms = self._stream.facts(), self._calls.now_ms()
        margin_ms = min(_MARGIN_MS, facts.retention_ms // _MARGIN_SHARE)
        edge_ms = self._calls.date_ms() - facts.retention_ms + margin_ms
        found = dict(positions)
        for shard_id, at in positions.items():
            if at.is_moving:
                passed = repeatable and max(at.time_ms or 0, facts.created_ms) < edge_ms
                begins = at_time(edge_ms) if passed else at
                found[shard_id] = replace(begins, until_ms=begins.until_ms or now_ms)
        return found

    def _past_done(self, shard_id: str, at: Position, done: int) -> Position:
        """Go past a checkpoint's Kinesis record unless user records of it were left."""
        found = ShardCursor(self._calls, shard_id, at, self._stream.loss).next_records(1)
        if not found:
            return at
        record = found[0]
        if record.number != at.number:
            return HORIZON  # the record is gone, and that was tolerated
        opened = decode(record.data, tags=False)
        count = len(opened.records) if isinstance(opened, Aggregate) else 1
        return at if done < count - 1 else after(record.sequence_number, record.arrival_ms)


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
