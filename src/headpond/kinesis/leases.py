"""What an application of the Kinesis Client Library (KCL) left behind: its lease table, exported as JSON.

::

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
from pathlib import Path
from typing import Any, Literal

from headpond.core.errors import ConfigurationError
from headpond.kinesis.archive.compressed import opened_bytes
from headpond.kinesis.reading.positions import END, HORIZON, Position, Start, before

MOST_LEASE_BYTES = 64 << 20
"""A row has about 500 bytes; a stream has at most some ten thousand shards."""

_NUMBER = re.compile(r"[0-9]{1,200}", re.ASCII)
_SUB_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)
_MULTI_STREAM_PARTS = 4  # account:stream:creation epoch:shard


def read_leases(
    path: str, stream_name: str, given: Start, *, created_ms: int, most_bytes: int = MOST_LEASE_BYTES
) -> Start:
    """Read an exported lease table; a checkpoint is the position before its Kinesis record.

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
    return Start(HORIZON, positions, done)


def _position(checkpoint: Any, given: Start, path: str, number: int) -> Position | Literal["LATEST"]:
    if checkpoint == "LATEST":
        return "LATEST"
    if checkpoint in ("TRIM_HORIZON", "SHARD_END"):
        return HORIZON if checkpoint == "TRIM_HORIZON" else END
    if checkpoint == "AT_TIMESTAMP":
        # The table does not hold the time; the application's configuration does.
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
