"""Every key a pipeline file may have, with its kind, its default, and what this version does not have yet.

The single place where keys are declared: the reader, the reference page and the tests go by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headpond.changes.config import MAX_COLUMNS
from headpond.errors import ConfigurationError
from headpond.formats.dsql_types import parse_type
from headpond.kinesis.positions import read_start
from headpond.pipeline.keys import (
    REQUIRED,
    Key,
    Place,
    any_text,
    boolean,
    choice,
    integer,
    mapping,
    names,
    size,
    span,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_MIB = 1024 * 1024
_DAY_MS = 86_400_000
_MOST_PORT = 65_535

LOOPBACK = "127.0.0.1"
"""Where measurements are served unless a file says otherwise."""


def _checked_by(check: Callable[[str], object], expected: str) -> Callable[[object, Place], str]:
    """Make the kind of strings that another room can read; they are kept as written.

    Args:
        check: Raises ConfigurationError for what it cannot read.
        expected: What it reads, for a value that must not be shown.
    """

    def kind(raw: object, place: Place) -> str:
        value = text(raw, place)
        try:
            check(value)
        except ConfigurationError as error:
            if value != raw:  # from the environment
                raise place.wrong(expected, raw) from error
            raise ConfigurationError(
                f"{place.path} is wrong: {error.message}", next_step=error.next_step, key=place.path
            ) from error
        return value

    return kind


_start = _checked_by(read_start, '"LATEST", "TRIM_HORIZON", "AT_TIMESTAMP …" or a JSON object per shard')
_column_type = _checked_by(parse_type, "a PostgreSQL type that change records have")


def _spark_value(raw: object, place: Place) -> str:
    """A session setting: a string, or a number or boolean as Spark spells it."""
    name = place.path.removeprefix("spark.")
    if isinstance(raw, dict):
        raise place.wrong(
            "one setting",
            raw,
            next_step='Write the whole name of a setting in quotes, as in "spark.driver.memory" = "2g".',
        )
    if not name.strip('"').startswith("spark."):
        raise place.wrong('a setting whose name begins with "spark."', raw)
    if isinstance(raw, bool):
        return str(raw).lower()
    if isinstance(raw, int):
        return str(raw)
    return any_text(raw, place)


SOURCE: dict[str, Key] = {
    "stream": Key(text),
    "stream_arn": Key(text),
    "archive": Key(text),
    "format": Key(choice("dsql", "qldb"), REQUIRED),
    "cluster": Key(text),
    "region": Key(text),
    "profile": Key(text),
    "endpoint_url": Key(text),
    "role_arn": Key(text),
    "role_external_id": Key(text, secret=True),
    "role_session_name": Key(text),
    "start": Key(_start, "TRIM_HORIZON"),
    "max_bytes_per_trigger": Key(size),  # null for an archive: as its rows come to the driver
    "max_records_per_trigger": Key(integer(1)),
    "max_records_per_fetch": Key(integer(1, 10_000)),
    "shards_per_task": Key(integer(1)),
    "shard_ordering": Key(choice("parent_first", "none"), "parent_first"),
    "shard_discovery_interval": Key(span(0), stored_as="shard_discovery_interval_ms"),
    "probe_lag": Key(span(0), stored_as="probe_lag_ms"),
    "fail_on_data_loss": Key(boolean, default=True),
    "deaggregate": Key(boolean, default=True),
    "on_malformed": Key(choice("passthrough", "fail"), "passthrough"),
    "hash_range_filter": Key(choice("off", "per_record", "kcl"), "off"),
    "consumer_mode": Key(choice("polling", "efo"), "polling"),
    "consumer_name": Key(text),
    "kcl_leases": Key(text),
}
"""`[source]`."""

STREAM_BYTES_PER_TRIGGER = 64 * _MIB
"""What a batch of a stream takes at most, unless told."""

STREAM_ONLY = (
    "region",
    "profile",
    "endpoint_url",
    "role_arn",
    "role_external_id",
    "role_session_name",
    "start",
    "max_records_per_fetch",
    "shards_per_task",
    "shard_ordering",
    "shard_discovery_interval",
    "probe_lag",
    "fail_on_data_loss",
    "hash_range_filter",
    "consumer_mode",
    "consumer_name",
    "kcl_leases",
)
"""Keys of `[source]` that mean nothing beside `archive`, and are refused there."""

TARGET: dict[str, Key] = {
    "path": Key(text, REQUIRED),
    "engine": Key(choice("embedded", "spark"), "embedded"),
    "checkpoint": Key(text),
    "trigger": Key(span(0), 5_000, stored_as="trigger_ms"),
    "infinity": Key(choice("clamp", "null", "error"), "clamp"),
    "special_numeric": Key(choice("error", "null"), "error"),
    "timestamps": Key(choice("ntz", "utc"), "ntz"),
    "tombstone_retention": Key(span(0), 7 * _DAY_MS, stored_as="tombstone_retention_ms"),
    "chunk_timeout": Key(span(1), 3_600_000, stored_as="chunk_timeout_ms"),
    "chunk_memory": Key(size, 256 * _MIB, stored_as="chunk_memory_bytes"),
    "chunk_disk": Key(size, 8 * 1024 * _MIB, stored_as="chunk_disk_bytes"),
    "unknown_tables": Key(choice("quarantine", "log"), "quarantine"),
    "max_unknown_tables": Key(integer(0), 1_000),
    "max_columns": Key(integer(1, 100_000), MAX_COLUMNS),
    "raw_ion": Key(boolean, default=False),
    "canonical_json": Key(boolean, default=False),
    "redaction": Key(choice("keep", "honour"), "keep"),
    "storage_options": Key(mapping(any_text), {}, secret=True),
}
"""`[target]`."""

TABLE: dict[str, Key] = {
    "schema": Key(text),
    "table": Key(text),
    "keys": Key(names, REQUIRED),
    "columns": Key(mapping(_column_type), {}),
    "keep": Key(
        choice("current", "history", "log"),
    ),
    "rename": Key(mapping(text), {}),
    "except_columns": Key(names, ()),
    "timestamps": Key(choice("ntz", "utc")),
    "dedupe": Key(choice("identity", "content"), "identity"),
    "partition_by": Key(names, ()),
    "buckets": Key(integer(1, 10_000)),
    "target_file_size": Key(size, stored_as="target_file_size_bytes"),
}
"""`[tables."name"]`."""

VERIFY: dict[str, Key] = {
    "enabled": Key(boolean, default=False),
    "digest": Key(text),
    "check_deletes": Key(boolean, default=True),
}
"""`[verify]`."""


def _address(raw: object, place: Place) -> str:
    """A `HOST:PORT` to listen at; a port alone is one of this machine's loopback."""
    value = text(raw, place)
    host, _, port = value.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) <= _MOST_PORT:
        raise place.wrong('an address such as "127.0.0.1:9464", or a port alone', raw)
    return f"{host or LOOPBACK}:{int(port)}"


MONITOR: dict[str, Key] = {
    "name": Key(text),
    "batches": Key(integer(0, 1_000_000), 10_000),
    "sizes_every": Key(span(1_000), 30_000, stored_as="sizes_every_ms"),
    "prometheus": Key(_address),
    "textfile": Key(text),
    "opentelemetry": Key(boolean, default=False),
}
"""`[monitor]`."""

SPARK = mapping(_spark_value)
"""`[spark]`: free names that begin with `spark.`."""

SECTIONS: dict[str, Any] = {
    "source": SOURCE,
    "target": TARGET,
    "tables": TABLE,
    "verify": VERIFY,
    "monitor": MONITOR,
    "spark": {},
}
"""The sections of a file."""
