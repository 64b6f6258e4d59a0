"""Columns whose names differ only in case: their names in Delta do not depend on which of them came first.

::

    batch 1 brings aB            aB
    batch 2 brings ab as well    aB ─► aB%%2, ab    as if both had come at once (`naming.Columns`)

A Delta table without column mapping has its columns' names in its files, so these are written again: one
commit, with all rows as they were, before the batch is decided on. It happens once for each such column, and
sources that have them are rare. Whoever holds the table open meanwhile is refused as after a rebuild.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headpond.core.errors import ServiceFailure
from headpond.lake.definition import PROPERTY, Definition
from headpond.lake.engine.log import Overtaken, Snapshot
from headpond.lake.engine.parquet import Writing, opened, paths_of
from headpond.lake.naming import ORIGINAL_NAME

if TYPE_CHECKING:
    from headpond.lake.typed import TypedTable

logger = logging.getLogger(__name__)

ATTEMPTS = 20
"""How often the files are written again because another writer's commit came first."""


def rename(typed: TypedTable, names: Mapping[str, str]) -> None:
    """Write a table again with other names of some Delta columns, in one commit.

    Raises:
        ServiceFailure: others wrote the table all the time.
    """
    engine = typed.file.engine
    for _ in range(ATTEMPTS):
        snapshot = engine.log.newest()
        engine.admits(snapshot)
        metadata = _renamed(snapshot, names, typed.file.uri)
        added = _written(typed, snapshot, names, metadata)
        with suppress(Overtaken):
            engine.rewrite(snapshot, metadata, added)
            typed.check()
            words = ", ".join(f"{old} is {new}" for old, new in names.items())
            logger.warning("Names of columns of %s differ only in case: %s from now on.", typed.name, words)
            return
        engine.folder.remove(paths_of(added))
    raise ServiceFailure(
        f"Others wrote the table {typed.name!r} each time before its columns could be renamed.",
        next_step="Stop the other writers and start again; nothing is lost.",
        table=typed.name,
    )


def _renamed(snapshot: Snapshot, names: Mapping[str, str], place: str) -> dict[str, Any]:
    """Return the description of the table with other names of its columns."""
    schema = json.loads(snapshot.metadata["schemaString"])
    for field in schema["fields"]:
        if (new := names.get(field["name"])) is not None:
            field["metadata"].setdefault(ORIGINAL_NAME, field["name"])
            field["name"] = new
    definition = Definition.read(snapshot.properties[PROPERTY], place)
    again = replace(definition, rebuilt=definition.rebuilt + 1)
    return {
        **snapshot.metadata,
        "schemaString": json.dumps(schema),
        "partitionColumns": [names.get(name, name) for name in snapshot.partition_columns],
        "configuration": {**snapshot.properties, PROPERTY: again.text()},
    }


def _written(
    typed: TypedTable, snapshot: Snapshot, names: Mapping[str, str], metadata: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Write each file of a version again, and return the actions that add the new ones."""
    engine = typed.file.engine
    called = [names.get(name, name) for name in snapshot.schema.names]
    schema = pa.schema([each.with_name(new) for each, new in zip(snapshot.schema, called, strict=True)])
    shape = replace(
        engine.shape(snapshot), schema=schema, partition_columns=tuple(metadata["partitionColumns"])
    )
    writing, added = Writing(engine.folder, shape, data_change=True), list[dict[str, Any]]()
    for file in snapshot.files.values():
        with opened(engine.folder, file, snapshot.schema) as reader:
            parts = [part.rename_columns(called) for part, _ in reader.live(snapshot.schema.names)]
        added += writing((), pa.concat_tables([schema.empty_table(), *parts]))
    return added
