"""A driver of the pure core: lines of a vector file → decode → latest → tables in memory."""

from __future__ import annotations

import base64
import json
import math
import struct
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headpond.core.schemas import STATE_SCHEMA, USER_RECORD_SCHEMA
from headpond.dsql.config import TableSpec
from headpond.dsql.pg_types import CastError, CastOptions, cast
from headpond.lake.newest import latest_step

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headpond.core.formats import Decoded
    from headpond.dsql.decode import DsqlConfig

Row = dict[str, Any]


def encode_version(ts_ns: int, tx_id: str, *, delete: bool) -> bytes:
    """The version of one change, as the page of `dsql.versions` draws it."""
    parts = (struct.pack(">q", ts_ns), tx_id.encode().replace(b"\0", b"\0\xff"), b"\0\0")
    return b"".join([*parts, b"\0" if delete else b"\1"])


def user_records(lines: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    """Kinesis records of a vector file as a batch of user records."""
    rows = [
        {
            "stream": "vectors",
            "shard_id": line["shard"],
            "sequence_number": line["sequenceNumber"],
            "sub_sequence_number": 0,
            "partition_key": line["partitionKey"],
            "approximate_arrival_timestamp": line["approximateArrivalTimestamp"] * 1000,
            "aggregated": False,
            "data": base64.b64decode(line["data"]),
        }
        for line in lines
    ]
    return pa.RecordBatch.from_pylist(rows, schema=USER_RECORD_SCHEMA)


def records_of(*data: bytes) -> pa.RecordBatch:
    """Data bytes as user records with made-up origins."""
    return user_records(
        {
            "shard": "shardId-000000000000",
            "sequenceNumber": str(10**55 + number),
            "partitionKey": "p",
            "approximateArrivalTimestamp": 1_783_600_000_000 + number,
            "data": base64.b64encode(content),
        }
        for number, content in enumerate(data)
    )


def spec_of(name: str, table: Mapping[str, Any], **more: Any) -> TableSpec:
    """A table as the vector files describe it."""
    schema, _, bare = name.partition(".")
    return TableSpec(
        name=name,
        schema=schema,
        table=bare,
        keys=tuple(table.get("keys", ())),
        columns=table["columns"],
        **more,
    )


@dataclass
class MemoryLake:
    """Tables in memory, written as the real ones are: tombstones, rows, tombstones dropped."""

    config: DsqlConfig
    rows: dict[str, dict[str, Row]] = field(default_factory=dict)
    tombstones: dict[str, dict[str, bytes]] = field(default_factory=dict)
    logs: dict[str, dict[tuple[Any, ...], Row]] = field(default_factory=dict)
    quarantine: dict[tuple[Any, ...], Row] = field(default_factory=dict)
    pending: dict[tuple[Any, ...], Row] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)

    def feed(self, lines: Iterable[Mapping[str, Any]]) -> Decoded:
        decoded = self.config.decode(user_records(lines))
        self.apply(decoded)
        return decoded

    def apply(self, decoded: Decoded) -> None:
        for row in decoded.quarantine.to_pylist():
            self.quarantine[(*place(row), row["reason"])] = row
        for row in decoded.pending.to_pylist():
            self.pending[place(row)] = row
        keep = {spec.name: spec.keep for spec in self.config.tables}
        for name, batch in decoded.tables.items():
            if keep.get(name, "log") == "log":
                for row in batch.to_pylist():
                    self.logs.setdefault(name, {}).setdefault(place(row, "m:"), row)
            else:
                self.apply_current(name, batch)

    def state(self, name: str) -> pa.Table:
        live = [
            {"key": key, "version": row["m:version"], "image_hash": row["m:image_hash"], "live": True}
            for key, row in self.rows.get(name, {}).items()
        ]
        dead = [
            {"key": key, "version": version, "image_hash": None, "live": False}
            for key, version in self.tombstones.get(name, {}).items()
        ]
        return pa.Table.from_pylist(live + dead, schema=STATE_SCHEMA)

    def apply_current(self, name: str, batch: pa.RecordBatch) -> None:
        outcome = latest_step(self.state(name), pa.Table.from_batches([batch]))
        rows, tombstones = self.rows.setdefault(name, {}), self.tombstones.setdefault(name, {})
        for row in outcome.tombstones_put.to_pylist():
            tombstones[row["key"]] = row["version"]
        for row in outcome.deletes.to_pylist():
            assert rows.pop(row["m:key"])["m:version"] < row["m:version"]
        for row in outcome.upserts.to_pylist():
            rows[row["m:key"]] = row
        for row in outcome.tombstones_drop.to_pylist():
            del tombstones[row["key"]]
        for counter, count in outcome.counters.items():
            self.counters[counter] = self.counters.get(counter, 0) + count


def place(row: Row, prefix: str = "") -> tuple[Any, ...]:
    """Identity of a record: where it stands in the stream."""
    return tuple(
        row[prefix + name] for name in ("stream", "shard_id", "sequence_number", "sub_sequence_number")
    )


def comparable(row: Mapping[str, Any]) -> Row:
    """A typed row's columns as values that compare: aware times made plain, null columns left out."""
    values = {name[2:]: value for name, value in row.items() if name.startswith("c:") and value is not None}
    return {name: _plain(value) for name, value in values.items()}


def expected_row(wire: Mapping[str, Any], columns: Mapping[str, str]) -> Row:
    """A row of wire values as the scalar cast types it, nulls left out; infinities clamped."""
    values: Row = {}
    for name, value in wire.items():
        if value is None:
            continue
        kind = columns.get(name, "any")
        token = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        found = json.loads(token) if kind == "any" else cast(kind, token, CastOptions())
        assert not isinstance(found, CastError), (name, kind, token)
        values[name] = _plain(found)
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat() if value.tzinfo else value.isoformat()
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, (date, Decimal)):
        return str(value)
    return value
