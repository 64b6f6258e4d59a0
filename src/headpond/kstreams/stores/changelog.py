"""Exports of a changelog: JSON Lines of `{"key", "value", "timestamp", "headers"}`.

Bytes are hexadecimal text, headers `[[key, value or null], …]`; `offset` may be there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from headpond.core.errors import InvalidData
from headpond.kstreams.stores.contract import ChangelogRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def export_lines(records: Iterable[ChangelogRecord]) -> Iterator[bytes]:
    """Write records as an export, one line each."""
    for record in records:
        document = {
            "key": record.key.hex(),
            "value": None if record.value is None else record.value.hex(),
            "timestamp": record.timestamp,
            "headers": [[key, None if value is None else value.hex()] for key, value in record.headers],
        }
        yield orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)


def read_export(lines: Iterable[bytes]) -> Iterator[ChangelogRecord]:
    """Read an export, line by line; empty lines are skipped.

    Raises:
        InvalidData: A line is not a record; `facts` has `line` and `reason` ("changelog_line").
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _record(orjson.loads(line))
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidData(
                f"Line {number} of the changelog is not a record: {error}.",
                next_step='A line is {"key": hex, "value": hex or null, "timestamp": ms, '
                '"headers": [[key, hex or null], …]}.',
                reason="changelog_line",
                line=number,
            ) from error


def _record(document: dict[str, Any]) -> ChangelogRecord:
    value, timestamp = document["value"], document["timestamp"]
    if not isinstance(timestamp, int):
        raise TypeError(f"timestamp is {type(timestamp).__name__}")
    return ChangelogRecord(
        bytes.fromhex(document["key"]),
        None if value is None else bytes.fromhex(value),
        timestamp,
        tuple((str(key), None if each is None else bytes.fromhex(each)) for key, each in document["headers"]),
    )
