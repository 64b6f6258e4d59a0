"""Start where an application of the Kinesis Client Library (KCL) stopped: its lease table, exported as JSON.

::

    {"Item": {"leaseKey": {"S": "shardId-…3"}, "checkpoint": {"S": "4968…"},        ► AT 4968…
              "checkpointSubSequenceNumber": {"N": "17"}, "parentShardId": {"SS": […]}}}
    {"Item": {"leaseKey": {"S": "shardId-…0"}, "checkpoint": {"S": "SHARD_END"}, …}}  ► END

One row per shard. A checkpoint names the last user record that was processed, by its Kinesis record and
its place in that record's aggregate; whether others follow in the aggregate only the stream can tell.

The keys of an application that reads several streams also name the stream and when it was created, in
seconds: `123456789012:orders:1767225600:shardId-…3`. Leases of a stream that had the same name before say
nothing of this one.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from headpond.errors import ConfigurationError
from headpond.kinesis.positions import END, HORIZON, Position, Start, before

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MOST_BYTES", "Leases", "read_leases"]

MOST_BYTES = 64 << 20
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
    path: str, stream_name: str, given: Start, *, created_ms: int, most_bytes: int = MOST_BYTES
) -> Leases:
    """Read an exported lease table.

    Args:
        path: The file: a list of rows, one object per line, or what `aws dynamodb scan` prints; rows plain
            or with DynamoDB's types; gzipped or not.
        stream_name: Whose leases to take where the table holds those of several streams.
        given: The option `startingPosition`: its time is what AT_TIMESTAMP in a lease means.
        created_ms: When that stream was created.
        most_bytes: Largest file, unpacked.

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
    """Whether a lease key's creation epoch is that time; the service may tell fractions of its second."""
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
                raise _wrong(path, f"line {number} is no JSON ({exc})") from exc
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
        raise _wrong(path, f"it is no UTF-8 ({exc})") from exc


def _plain_item(row: object, path: str, where: str) -> dict[str, Any]:
    """Take DynamoDB's types off: `{"S": "x"}` is `x`."""
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
