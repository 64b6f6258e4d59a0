"""What the log says of a table as a whole: properties, columns, and what these ask of readers and writers.

::

    properties, metadata of columns ─► metaData      one entry of the log, if anything is new
    features that they use ──────────► protocol      by version where that says it, else by their names
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from headpond.lake.engine.log import EXPRESSION, VECTORS, WITH_VECTORS, Snapshot, information, milliseconds
from headpond.lake.engine.properties import APPEND_ONLY, CHANGES, is_true

_BY_VERSION = {"appendOnly": 2, "changeDataFeed": 4, "generatedColumns": 4}
"""Features that writers of so great a version know without being told."""
_NAMED = 7
NTZ, _NTZ_TYPE = "timestampNtz", '"timestamp_ntz"'


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
