"""Where a new query begins: a rule for all shards, one for each, or what a KCL application left behind.

The Kinesis Client Library (KCL) keeps its positions in a lease table, exported as JSON, one row per shard::

    {"Item": {"leaseKey": {"S": "shardId-…3"}, "checkpoint": {"S": "4968…"},        ► AT 4968…
              "checkpointSubSequenceNumber": {"N": "17"}, "parentShardId": {"SS": […]}}}
    {"Item": {"leaseKey": {"S": "shardId-…0"}, "checkpoint": {"S": "SHARD_END"}, …}}  ► END

A checkpoint names the last user record that was processed, by its Kinesis record and its place in that
record's aggregate; whether others follow in the aggregate only the stream can tell. The keys of an
application that reads several streams also name the stream and when it was created, in seconds:
`123456789012:orders:1767225600:shardId-…3`. Leases of an earlier stream of the same name do not count.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from headpond.core.errors import ConfigurationError
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

    from headpond.kinesis.api.calls import ServiceCalls, StreamFacts
    from headpond.kinesis.planning.options import SourceSettings
    from headpond.kinesis.reading.cursor import LossRule
    from headpond.kinesis.reading.positions import Listing

    EachShard = Callable[[Callable[[str], Position], Iterable[str]], list[tuple[str, Position]]]

MOST_LEASE_BYTES = 64 << 20
"""A row has about 500 bytes; a stream has at most some ten thousand shards."""

_GZIP = b"\x1f\x8b"
_NUMBER = re.compile(r"[0-9]{1,200}", re.ASCII)
_SUB_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)
_SECOND_MS = 1_000
_MULTI_STREAM_PARTS = 4  # account:stream:creation epoch:shard


class Leases(NamedTuple):
    """What a lease table says.

    Attributes:
        start: A position per shard; a checkpoint is the position before its Kinesis record.
        done: Shard → place, in that Kinesis record's aggregate, of the last user record processed.
    """

    start: Start
    done: dict[str, int]


def read_leases(
    path: str, stream_name: str, given: Start, *, created_ms: int, most_bytes: int = MOST_LEASE_BYTES
) -> Leases:
    """Read an exported lease table.

    The file is a list of rows, one object per line, or what `aws dynamodb scan` prints; rows plain or with
    DynamoDB's types; gzipped or not. The time of `given` (`startingPosition`) is what AT_TIMESTAMP in a lease
    means.

    Raises:
        ConfigurationError: The file cannot be read, is not such a table, or holds leases of an earlier stream
            of that name only; the message names the row.
    """
    positions: dict[str, Position | Literal["LATEST"]] = {}
    done: dict[str, int] = {}
    others, earlier = 0, set[str]()
    for number, row in enumerate(_rows(path, most_bytes), 1):
        where = f"row {number}"
        item = _plain_item(row, path, where)
        key = item.get("leaseKey")
        if not isinstance(key, str) or not key:
            raise _wrong(path, f"{where} has no leaseKey")
        parts = key.split(":")
        if len(parts) == _MULTI_STREAM_PARTS and parts[1] != stream_name:
            others += 1
            continue
        if len(parts) == _MULTI_STREAM_PARTS and not _is_creation(parts[2], created_ms):
            earlier.add(parts[2])
            continue
        shard_id = parts[-1]
        if shard_id in positions:
            raise _wrong(path, f"{where} is a second lease of {shard_id}")
        positions[shard_id] = _position(item.get("checkpoint"), given, path, where)
        sub_number = item.get("checkpointSubSequenceNumber", 0)
        if not _SUB_NUMBER.fullmatch(str(sub_number)):
            raise _wrong(path, f"checkpointSubSequenceNumber of {where} is {_shown(sub_number)}")
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
        raise _wrong(
            path, f"it holds no lease of {stream_name}" + (f", but {others} of others" * bool(others))
        )
    return Leases(Start(HORIZON, positions), done)


def _is_creation(text: str, created_ms: int) -> bool:
    """Return whether a lease key's creation epoch is that time, to the second."""
    return text.isascii() and text.isdigit() and abs(int(text[:20]) * 1000 - created_ms) < _SECOND_MS


def _position(checkpoint: object, given: Start, path: str, where: str) -> Position | Literal["LATEST"]:
    if checkpoint == "LATEST":
        return "LATEST"
    if checkpoint == "TRIM_HORIZON":
        return HORIZON
    if checkpoint == "SHARD_END":
        return END
    if checkpoint == "AT_TIMESTAMP":
        # The table does not keep the time; it stands in the application's configuration.
        if isinstance(given.rule, Position) and given.rule.kind == "TS":
            return given.rule
        raise ConfigurationError(
            f"The checkpoint of {where} in {path} is AT_TIMESTAMP, and the table does not say which time.",
            next_step="Set startingPosition to AT_TIMESTAMP and the time the application was given.",
            option="startingPosition",
        )
    if isinstance(checkpoint, str) and _NUMBER.fullmatch(checkpoint):
        return before(checkpoint)
    raise _wrong(path, f"the checkpoint of {where} is {_shown(checkpoint)}")


def _rows(path: str, most_bytes: int) -> Iterable[Any]:
    text = _text(path, most_bytes)
    try:
        value = json.loads(text)
    except ValueError:
        return _lines(text, path)
    if isinstance(value, dict) and isinstance(value.get("Items"), list):
        rows: list[Any] = value["Items"]
        return rows
    # A table of one row may stand alone on its line.
    return value if isinstance(value, list) else [value]


def _lines(text: str, path: str) -> Iterable[Any]:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except ValueError as exc:
                raise _wrong(path, f"line {number} is not JSON ({exc})") from exc
    return rows


def _text(path: str, most_bytes: int) -> str:
    try:
        with Path(path).open("rb") as file:
            packed = file.read(2) == _GZIP
            file.seek(0)
            raw = gzip.GzipFile(fileobj=file).read(most_bytes + 1) if packed else file.read(most_bytes + 1)
    except (OSError, EOFError, zlib.error) as exc:
        raise _wrong(path, str(exc)) from exc
    if len(raw) > most_bytes:
        raise _wrong(path, f"it has more than {most_bytes} bytes")
    try:
        return raw.decode()
    except UnicodeDecodeError as exc:
        raise _wrong(path, f"it is not UTF-8 ({exc})") from exc


def _plain_item(row: object, path: str, where: str) -> dict[str, Any]:
    """Remove DynamoDB's types: `{"S": "x"}` is `x`."""
    item = row.get("Item", row) if isinstance(row, dict) else row
    if not isinstance(item, dict):
        raise _wrong(path, f"{where} is {_shown(item)}")
    return {
        name: next(iter(value.values())) if isinstance(value, dict) and len(value) == 1 else value
        for name, value in item.items()
    }


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:80] + "…"  # noqa: PLR2004 (a line of a terminal)


def _wrong(path: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"The lease table {path} cannot be used: {why}.",
        next_step="Export the application's DynamoDB table as JSON: rows with leaseKey and checkpoint.",
        option="kclLeases",
    )


_MARGIN_MS = 300_000
_MARGIN_SHARE = 10


class Beginning:
    """The beginning that the options ask for."""

    def __init__(
        self,
        calls: ServiceCalls,
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
        """Return where each listed shard begins.

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
        found = ShardCursor(self._calls, shard_id, at, self._loss(at, shard_id)).next_records(1)
        if not found:
            return at
        record = found[0]
        if record.number != at.number:
            return HORIZON  # the record is gone, and that was tolerated
        opened = decode(record.data, tags=False)
        count = len(opened.records) if isinstance(opened, Aggregate) else 1
        return at if done < count - 1 else after(record.sequence_number, record.arrival_ms)


def repeatable(positions: dict[str, Position], facts: StreamFacts, now_ms: int) -> dict[str, Position]:
    """Return the positions from which a first batch can be read more than once.

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
            positions[shard_id] = END if shard.closed else at_time(now_ms)
        else:
            positions[shard_id] = rule
    return positions
