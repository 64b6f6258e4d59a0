"""Where a new query begins: a rule for all shards, one for each, or what a KCL application left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headpond.errors import ConfigurationError
from headpond.formats.kpl import Aggregate, decode
from headpond.kinesis.leases import Leases, read_leases
from headpond.kinesis.positions import END, HORIZON, Position, Start, after, at_time, refuse_far_future
from headpond.kinesis.replies import Record
from headpond.kinesis.shards import ancestors
from headpond.kinesis.tip import first_after

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headpond.kinesis.calls import StreamCalls, StreamFacts
    from headpond.kinesis.cursor import LossRule
    from headpond.kinesis.options import SourceSettings
    from headpond.kinesis.shards import Listing

    EachShard = Callable[[Callable[[str], Position], Iterable[str]], list[tuple[str, Position]]]


_MARGIN_MS = 300_000
_MARGIN_SHARE = 10


class Beginning:
    """The beginning that the options ask for.

    Args:
        calls: The stream.
        settings: The options.
        loss: How loss at a position of a shard is judged.
        each: Calls a function for each shard, in parallel.
    """

    def __init__(
        self,
        calls: StreamCalls,
        settings: SourceSettings,
        loss: Callable[[Position, str], LossRule],
        each: EachShard,
    ) -> None:
        self._calls, self._settings, self._loss, self._each = calls, settings, loss, each
        self._held: Leases | None = None

    @property
    def says_latest(self) -> bool:
        """Whether any shard's position depends on when it is resolved."""
        leases = self._leases()
        return (self._settings.start if leases is None else leases.start).says_latest

    def positions(self, shards: Listing, now_ms: int) -> dict[str, Position]:
        """Say where each listed shard begins.

        Raises:
            ConfigurationError: A shard is named that is not listed, a time has not come yet by the service's
                clock, or the lease table cannot be used.
            DataLoss: What a lease points at is gone, and that is fatal.
        """
        leases = self._leases()
        given = self._settings.start if leases is None else leases.start
        for rule in {given.rule, *given.shards.values()}:
            if rule != "LATEST" and rule.kind == "TS":
                refuse_far_future(rule.time_ms or 0, self._calls.date_ms(), "The startingPosition")
        if leases is None:
            return resolve(self._settings.start, shards, now_ms)
        rules = leases.start.shards
        for shard_id, rule in rules.items():
            if shard_id not in shards and rule != END:
                # A shard that was finished may be forgotten, one with work left must not.
                self._loss(HORIZON, shard_id).lost(
                    shard_id, "its lease was not worked off, and the stream does not list it any more"
                )
        listed = {shard_id: rule for shard_id, rule in rules.items() if shard_id in shards}
        positions = resolve(Start(HORIZON, listed), shards, now_ms)
        checkpoints = [shard_id for shard_id, at in positions.items() if at.kind == "AT"]

        def past_done(shard_id: str) -> Position:
            return self._past_done(shard_id, positions[shard_id], leases.done[shard_id])

        return positions | dict(self._each(past_done, checkpoints))

    def _leases(self) -> Leases | None:
        # Read when first needed: a query that has an offset in its checkpoint does without the file.
        path = self._settings.kcl_leases
        if self._held is None and path is not None:
            created_ms = self._calls.describe().created_ms
            self._held = read_leases(
                path, self._settings.connection.name, self._settings.start, created_ms=created_ms
            )
        return self._held

    def _past_done(self, shard_id: str, at: Position, done: int) -> Position:
        """Go past a checkpoint's Kinesis record unless user records of it were left."""
        record = first_after(self._calls, shard_id, at, self._loss(at, shard_id))
        if not isinstance(record, Record):
            return at
        if record.number != at.number:
            return HORIZON  # the record is gone, and that was tolerated
        opened = decode(record.data, tags=False)
        count = len(opened.records) if isinstance(opened, Aggregate) else 1
        return at if done < count - 1 else after(record.sequence_number, record.arrival_ms)


def repeatable(positions: dict[str, Position], facts: StreamFacts, now_ms: int) -> dict[str, Position]:
    """Give the positions from which a first batch can be read more than once.

    The oldest records of a full stream expire while the batch that begins with them is being read, so where a
    query first begins, those that have less than five minutes left are passed over. Where the stream is
    too young to have any the positions stay as they are.
    """
    margin_ms = min(_MARGIN_MS, facts.retention_ms // _MARGIN_SHARE)
    edge_ms = now_ms - facts.retention_ms + margin_ms
    if facts.created_ms >= edge_ms:
        return positions
    return {
        shard_id: at_time(edge_ms) if at.is_moving and (at.time_ms or 0) < edge_ms else at
        for shard_id, at in positions.items()
    }


def resolve(start: Start, shards: Listing, now_ms: int) -> dict[str, Position]:
    """Turn a starting rule into positions of all listed shards.

    With LATEST a closed shard is done, so that shards that are new later can be told from it.

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
            positions[shard_id] = END if shard.closed else at_time(now_ms)
        else:
            positions[shard_id] = rule
    return positions
