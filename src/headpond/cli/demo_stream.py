"""The stream of the demonstration: real change records, half of them packed as a KPL producer would.

`data/changes.jsonl.gz` holds Aurora DSQL change records in arrival order, one Kinesis record a line, as an
archive has them; `data/expected.json.gz` says what the tables must be in the end, whatever the order.
"""

from __future__ import annotations

import base64
import gzip
import itertools
import json
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from headpond.formats import kpl

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RUN_LENGTH = 8
"""So many records go out plain, then so many as one aggregate, and so on."""
PUT_RECORDS_LIMIT = 500


@dataclass(frozen=True, slots=True)
class Sent:
    """What was put into the stream."""

    user_records: int
    kinesis_records: int
    aggregates: int


def archive_lines() -> list[bytes]:
    """Give the change records as the lines of an archive."""
    return packaged("changes.jsonl.gz").splitlines()


def expected() -> dict[str, Any]:
    """Give the expected tables."""
    document: dict[str, Any] = json.loads(packaged("expected.json.gz"))
    return document


def change_records() -> list[kpl.UserRecord]:
    """Give the change records as user records, in arrival order."""
    return user_records(archive_lines())


def user_records(lines: Sequence[bytes]) -> list[kpl.UserRecord]:
    """Read lines of an archive as user records."""
    read = map(json.loads, lines)
    return [kpl.UserRecord(line["partitionKey"], base64.b64decode(line["data"])) for line in read]


def fill(client: Any, stream: str, records: Sequence[kpl.UserRecord]) -> Sent:
    """Put records into a stream, half of them plain and half of them in aggregates.

    Args:
        client: a boto3 Kinesis client.
        stream: the stream's name.
        records: what to put.
    """
    entries: list[dict[str, Any]] = []
    aggregates = 0
    for run in itertools.count():
        part = records[run * RUN_LENGTH : (run + 1) * RUN_LENGTH]
        if not part:
            break
        whole = run % 2 == 1 and len(part) > 1
        aggregates += whole
        entries += [_entry(kpl.encode(group)) for group in ([part] if whole else [[r] for r in part])]
    for some in _batches(entries, PUT_RECORDS_LIMIT):
        client.put_records(StreamName=stream, Records=some)
    return Sent(len(records), len(entries), aggregates)


def _entry(record: kpl.KinesisRecord) -> dict[str, Any]:
    entry: dict[str, Any] = {"PartitionKey": record.partition_key, "Data": record.data}
    if record.explicit_hash_key is not None:
        entry["ExplicitHashKey"] = record.explicit_hash_key
    return entry


def _batches(entries: list[dict[str, Any]], size: int) -> Iterator[list[dict[str, Any]]]:
    for start in range(0, len(entries), size):
        yield entries[start : start + size]


def packaged(name: str) -> bytes:
    """Read a gzipped file that comes with the package."""
    return gzip.decompress(resources.files("headpond.cli").joinpath("data", name).read_bytes())
