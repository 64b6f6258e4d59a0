"""The rows that a commit changes, for readers that follow a table (Delta's change data feed).

::

    _change_data/part-….parquet      all columns, and _change_type: what was and what is of a row that was
                                     updated, what was of one that was deleted, what is of a new one

Where a commit has such files, readers go by them alone; one that only adds rows has none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from headpond.lake.engine.folder import Folder
from headpond.lake.engine.parquet import Shape, write_files

FOLDER = "_change_data"
TYPE = pa.field("_change_type", pa.string())


def changed_rows(before: pa.Table, after: pa.Table, removed: pa.Table, inserted: pa.Table) -> pa.Table:
    """Return rows of a table as its feed has them."""
    parts = {
        "update_preimage": before,
        "update_postimage": after,
        "delete": removed,
        "insert": inserted,
    }
    return pa.concat_tables(
        [rows.append_column(TYPE, pa.repeat(kind, rows.num_rows)) for kind, rows in parts.items()]
    )


def write_changes(folder: Folder, shape: Shape, changes: pa.Table) -> list[dict[str, Any]]:
    """Write rows of the feed; return the actions that say where they are."""
    shape = replace(shape, schema=shape.schema.append(TYPE), inside=(FOLDER,))
    parts = ((values, [rows]) for values, rows in shape.split(changes))
    added = write_files(folder, shape, parts, data_change=False)
    folder.make_durable([unquote(action["add"]["path"]) for action in added])
    kept = ("path", "partitionValues", "size", "dataChange")
    return [{"cdc": {name: action["add"][name] for name in kept}} for action in added]
