"""Where a new query begins: a rule for all shards, one for each, or what a KCL application left behind.

The Kinesis Client Library (KCL) keeps its positions in a lease table, exported as JSON, one row per shard::

    {"Item": {"leaseKey": {"S": "shardId-…3"}, "checkpoint": {"S": "4968…"},        ► AT 4968…
              "checkpointSubSequenceNumber": {"N": "17"}, "parentShardId": {"SS": […]}}}
    {"Item": {"leaseKey": {"S": "shardId-…0"}, "checkpoint": {"S": "SHARD_END"}, …}}  ► END

A checkpoint names the last user record that was processed, by its Kinesis record and its place in that
record's aggregate. The keys of an application that reads several streams also name the stream and when it
was created, in seconds: `123456789012:orders:1767225600:shardId-…3`; leases of an earlier one do not count.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from headpond.core.errors import ConfigurationError
from headpond.kinesis.archive.compressed import opened_bytes
from headpond.kinesis.reading.cursor import ShardCursor
from headpond.kinesis.reading.positions import (
    END,
    HORIZON,
    Position,
    Start,
    after,
    ancestors,
    at_time,
    before,
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

MOST_LEASE_BYTES = 64 << 20
"""A row has about 500 bytes; a stream has at most some ten thousand shards."""

_NUMBER = re.compile(r"[0-9]{1,200}", re.ASCII)
_SUB_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)
_MULTI_STREAM_PARTS = 4  # account:stream:creation epoch:shard
_MARGIN_MS = 300_000
_MARGIN_SHARE = 10


class Leases(NamedTuple):
    """What a lease table says."""

    start: Start  # a position per shard; a checkpoint is the position before its Kinesis record
    done: dict[str, int]  # place, in that Kinesis record's aggregate, of the last user record processed


def read_leases(
    path: str, stream_name: str, given: Start, *, created_ms: int, most_bytes: int = MOST_LEASE_BYTES
) -> Leases:
    """Read an exported lease table.

    The file is a list of rows, one object per line, or what `aws dynamodb scan` prints; rows plain or with
    DynamoDB's types; gzipped or not. AT_TIMESTAMP in a lease means the time of `given` (`startingPosition`).

    Raises:
        ConfigurationError: The file cannot be read, is not such a table, or holds leases of an earlier stream
            of that name only; the message names the row.
    """
    positions: dict[str, Position | Literal["LATEST"]] = {}
    done: dict[str, int] = {}
    others, earlier = 0, set[str]()
    for number, row in enumerate(_rows(path, most_bytes), 1):
        item = row.get("Item", row) if isinstance(row, dict) else None
        if not isinstance(item, dict):
            raise _wrong(path, f"row {number} is {_shown(row)}")
        key = _plain(item.get("leaseKey"))
        if not isinstance(key, str) or not key:
            raise _wrong(path, f"row {number} has no leaseKey")
        parts = key.split(":")
        if len(parts) == _MULTI_STREAM_PARTS and parts[1] != stream_name:
            others += 1
            continue
        if len(parts) == _MULTI_STREAM_PARTS and parts[2] != str(created_ms // 1000):
            earlier.add(parts[2])
            continue
        shard_id = parts[-1]
        if shard_id in positions:
            raise _wrong(path, f"row {number} is a second lease of {shard_id}")
        positions[shard_id] = _position(_plain(item.get("checkpoint")), given, path, number)
        sub_number = _plain(item.get("checkpointSubSequenceNumber", 0))
        if not _SUB_NUMBER.fullmatch(str(sub_number)):
            raise _wrong(path, f"checkpointSubSequenceNumber of row {number} is {_shown(sub_number)}")
        done[shard_id] = int(sub_number)
    if not positions and earlier:
        raise ConfigurationError(
            f"The lease table {path} cannot be used: its leases of {stream_name} are of a stream created at "
            f"{', '.join(sorted(earlier))} s, and this one was created at {created_ms // 1000} s.",
            next_step="Export the leases of this stream; if the application was given another number in "
            "place of the time, write the right one into the leaseKeys.",
            option="kclLeases",
        )
    if not positions:
        but = f", but {others} of others" if others else ""
        raise _wrong(path, f"it holds no lease of {stream_name}{but}")
    return Leases(Start(HORIZON, positions), done)


def _position(checkpoint: Any, given: Start, path: str, number: int) -> Position | Literal["LATEST"]:
    if checkpoint == "LATEST":
        return "LATEST"
    if checkpoint in ("TRIM_HORIZON", "SHARD_END"):
        return HORIZON if checkpoint == "TRIM_HORIZON" else END
    if checkpoint == "AT_TIMESTAMP":
        # The table does not keep the time; it stands in the application's configuration.
        if isinstance(given.rule, Position) and given.rule.kind == "TS":
            return given.rule
        raise ConfigurationError(
            f"The checkpoint of row {number} in {path} is AT_TIMESTAMP; the table does not say which time.",
            next_step="Set startingPosition to AT_TIMESTAMP and the time the application was given.",
            option="startingPosition",
        )
    if isinstance(checkpoint, str) and _NUMBER.fullmatch(checkpoint):
        return before(checkpoint)
    raise _wrong(path, f"the checkpoint of row {number} is {_shown(checkpoint)}")


def _rows(path: str, most_bytes: int) -> list[Any]:
    """Read the rows of a list, of a scan, or of one object per line."""
    try:
        with Path(path).open("rb") as file:
            raw = opened_bytes(file.read(most_bytes + 1)).read(most_bytes + 1)
        if len(raw) > most_bytes:
            raise _wrong(path, f"it has more than {most_bytes} bytes")
        text = raw.decode()
    except UnicodeDecodeError as exc:
        raise _wrong(path, f"it is not UTF-8 ({exc})") from exc
    except (OSError, EOFError, zlib.error) as exc:
        raise _wrong(path, str(exc)) from exc
    try:
        value = json.loads(text)
    except ValueError:
        value = []
        for number, line in enumerate(text.splitlines(), 1):
            try:
                value += [json.loads(line)] if line.strip() else []
            except ValueError as exc:
                raise _wrong(path, f"line {number} is not JSON ({exc})") from exc
    if isinstance(value, dict):  # a scan, or a table of one row
        value = value.get("Items", [value])
    return value if isinstance(value, list) else [value]


def _plain(value: Any) -> Any:
    """Remove DynamoDB's type: `{"S": "x"}` is `x`."""
    return next(iter(value.values())) if isinstance(value, dict) and len(value) == 1 else value


def _shown(value: object) -> str:
    return f"{json.dumps(value, default=str):.80}"


def _wrong(path: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"The lease table {path} cannot be used: {why}.",
        next_step="Export the application's DynamoDB table as JSON: rows with leaseKey and checkpoint.",
        option="kclLeases",
    )


class Beginning:
    """The beginning that the options ask for."""

    def __init__(
        self, calls: ServiceCalls, settings: SourceSettings, stream: StreamState, each: EachShard
    ) -> None:
        self._calls, self._settings, self._stream, self._each = calls, settings, stream, each
        self._held: Leases | None = None

    @property
    def says_latest(self) -> bool:
        """Whether any shard's position depends on when it is resolved."""
        return self._leases().start.says_latest

    def positions(self) -> dict[str, Position]:
        """Return where each listed shard begins, with LATEST as the time of the listing.

        Raises:
            ConfigurationError: A shard is named that is not listed, a time has not come yet by the service's
                clock, or the lease table cannot be used.
            DataLoss: What a lease points at is gone, and that is fatal.
        """
        start, done = self._leases()
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
            return self._past_done(shard_id, positions[shard_id], done[shard_id])

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

    def _leases(self) -> Leases:
        """Return what the options say of each shard; no user record is half done where no lease says so."""
        # Read when first needed: a query that has an offset in its checkpoint does without the file.
        path, start = self._settings.kcl_leases, self._settings.start
        if path is None:
            return Leases(start, {})
        if self._held is None:
            name, created_ms = self._settings.connection.name, self._stream.facts().created_ms
            self._held = read_leases(path, name, start, created_ms=created_ms)
        return self._held

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
