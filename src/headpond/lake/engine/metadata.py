"""What the log says of a table as a whole: properties, columns, and what these ask of readers and writers.

::

    properties, metadata of columns ─► metaData      one entry of the log, if anything is new
    features that they use ──────────► protocol      by version where that says it, else by their names
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from headpond.lake.engine.log import EXPRESSION, VECTORS, WITH_VECTORS, information, milliseconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headpond.lake.engine.log import Snapshot

CHANGES = "delta.enableChangeDataFeed"
"""Table property that asks each commit for the rows that it changes."""
APPEND_ONLY = "delta.appendOnly"
RETENTION = "delta.deletedFileRetentionDuration"
"""How long files stay that no newer version has."""
LOG_RETENTION = "delta.logRetentionDuration"
CHECKPOINT_INTERVAL = "delta.checkpointInterval"
_UNITS_MS = {"week": 604_800_000, "day": 86_400_000, "hour": 3_600_000, "minute": 60_000, "second": 1_000}
_BY_VERSION = {"appendOnly": 2, "changeDataFeed": 4, "generatedColumns": 4}
"""Features that writers of so great a version know without being told."""
_NAMED = 7
NTZ, _NTZ_TYPE = "timestampNtz", '"timestamp_ntz"'


_OWN = "is headpond's own"
_ELSEWHERE = "has a key of its own in the entry"
_REFUSED = {
    "headpond.": (_OWN, "Leave it out."),
    "delta.targetFileSize": (_ELSEWHERE, "Write target_file_size."),
    "delta.enableDeletionVectors": (_ELSEWHERE, "Write deletion_vectors."),
    "delta.columnMapping.": ("gives columns other names in files, which headpond does not write", ""),
    "delta.constraints.": ("is a condition on rows, and headpond does not check it", ""),
    "delta.enableRowTracking": ("asks for numbers of rows, which headpond does not write", ""),
    "delta.enableInCommitTimestamps": ("asks for times in commits, which headpond does not write", ""),
    "delta.enableTypeWidening": ("asks readers for types of files that headpond does not note", ""),
    "delta.enableIcebergCompat": ("asks for files and names that headpond does not write", ""),
    "delta.universalFormat.": ("asks for metadata of Iceberg, which headpond does not write", ""),
    "delta.checkpointPolicy": ("asks for checkpoints that headpond does not read", ""),
    "delta.minReaderVersion": ("follows from what the table uses", ""),
    "delta.minWriterVersion": ("follows from what the table uses", ""),
    "delta.feature.": ("follows from what the table uses", ""),
}
_OFF = ("false", "none", "classic")
_SWITCHES = (CHANGES, APPEND_ONLY)


def why_not(name: str, value: str, *, rows_go: bool) -> tuple[str, str] | None:
    """Return why a table cannot have a property, and what to do; None where it can.

    `rows_go` says whether rows of the table are replaced or removed.
    """
    for prefix, (why, fix) in _REFUSED.items():
        if name.startswith(prefix) and not (not fix and value.lower() in _OFF):
            return why, fix or "Leave it out."
    if name == APPEND_ONLY and is_true(value) and rows_go:
        return "lets no row go, and rows of this table are replaced", 'Leave it out, or write keep = "log".'
    if name in _SWITCHES and value.lower() not in ("true", "false"):
        return f'must be "true" or "false", not {value!r}', ""
    if name in (RETENTION, LOG_RETENTION) and interval_ms(value) is None:
        return f'must be an interval as "interval 30 days", not {value!r}', ""
    if name == CHECKPOINT_INTERVAL and not (value.isdecimal() and int(value)):
        return f"must be a number of commits, not {value!r}", ""
    return None


def interval_ms(text: str) -> int | None:
    """Return the milliseconds of an interval as Delta writes it; None where it is not one.

    >>> interval_ms("interval 1 week 2 days"), interval_ms("soon")
    (777600000, None)
    """
    words = text.lower().removeprefix("interval").split()
    numbers, units = words[::2], [word.removesuffix("s") for word in words[1::2]]
    if not words or len(numbers) > len(units) or not all(each.isdecimal() for each in numbers):
        return None
    if not _UNITS_MS.keys() >= {*units}:
        return None
    return sum(int(number) * _UNITS_MS[unit] for number, unit in zip(numbers, units, strict=True))


def is_true(value: str | None) -> bool:
    """Return whether a property says so."""
    return (value or "").lower() == "true"


def alteration(
    snapshot: Snapshot, properties: Mapping[str, str], columns: Mapping[str, Mapping[str, str | None]]
) -> list[dict[str, Any]]:
    """Return the actions that set properties and metadata of columns, by their names; none if all is so.

    Metadata that is to be None goes.
    """
    schema = orjson.loads(snapshot.metadata["schemaString"])
    for field in schema["fields"]:
        said = {**field.get("metadata", {}), **columns.get(field["name"], {})}
        field["metadata"] = {name: value for name, value in said.items() if value is not None}
    metadata = {
        **snapshot.metadata,
        "configuration": {**snapshot.properties, **properties},
        "schemaString": orjson.dumps(schema).decode(),
        "format": {"provider": "parquet", "options": {}},
    }
    protocol = protocol_of(snapshot.protocol, metadata)
    same = orjson.loads(snapshot.metadata["schemaString"]) == schema
    if same and metadata["configuration"] == snapshot.properties and protocol == snapshot.protocol:
        return []
    actions = [information("SET TBLPROPERTIES", snapshot, milliseconds())]
    if protocol != snapshot.protocol:
        actions.append({"protocol": protocol})
    return [*actions, {"metaData": metadata}]


def protocol_of(protocol: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the protocol with what the metadata uses."""
    properties = metadata["configuration"]
    used = {
        "appendOnly": is_true(properties.get(APPEND_ONLY)),
        "changeDataFeed": is_true(properties.get(CHANGES)),
        "generatedColumns": f'"{EXPRESSION}"' in metadata["schemaString"],
    }
    wanted = {name for name, is_used in used.items() if is_used}
    found = dict(protocol)
    of_readers = {VECTORS: is_true(properties.get(WITH_VECTORS)), NTZ: _NTZ_TYPE in metadata["schemaString"]}
    readers = {name for name, is_used in of_readers.items() if is_used}
    if int(found.get("minWriterVersion", 1)) < _NAMED and not readers:
        versions = [int(found.get("minWriterVersion", 1)), *(_BY_VERSION[name] for name in wanted)]
        return found | {"minWriterVersion": max(versions)} if wanted else found
    named = {*(found.get("writerFeatures") or ()), *wanted, *readers}
    if named == set(found.get("writerFeatures") or ()):
        return found
    found |= {"minWriterVersion": _NAMED, "writerFeatures": sorted(named)}
    if readers:
        features = sorted({*(found.get("readerFeatures") or ()), *readers})
        found |= {"minReaderVersion": 3, "readerFeatures": features}
    return found
