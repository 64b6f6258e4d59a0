"""What the bytes of a record are, whichever of the formats they have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa

from headpond.dsql import records as dsql
from headpond.dsql.batch import decode_batch
from headpond.ion.binary import MARKER as ION_MARKER
from headpond.kpl import MAGIC
from headpond.kpl.documents import inspect_blob
from headpond.lake.sparing import OF_RECORDS
from headpond.qldb import records as qldb

VIEWS: dict[str, Callable[[bytes], dict[str, Any]]] = {
    "kpl": inspect_blob,
    "dsql": dsql.inspect_view,
    "qldb": qldb.inspect_view,
}
"""Format → what says what a record of it is."""

View = Literal["auto", "kpl", "dsql", "qldb"]


def inspect(data: bytes, view: View = "auto") -> dict[str, Any]:
    """Return what a record's data holds, or why it would be quarantined.

    Args:
        data: the record's bytes.
        view: how to read them; `auto` takes a JSON object for `dsql`, Ion binary for `qldb`, and anything
            else for `kpl`.

    Returns:
        `format`, and what `headpond inspect --json` prints about it.

    Examples:
        >>> headpond.inspect(b'{"type": "full"}')
        {'format': 'dsql', 'verdict': 'quarantine', 'reason': 'bad_op', 'detail': 'op is absent'}
    """
    kind = seen_as(data) if view == "auto" else view
    return {"format": kind, **VIEWS[kind](data)}


def seen_as(data: bytes) -> Literal["kpl", "dsql", "qldb"]:
    """Return the format that data looks like."""
    if not data.startswith(MAGIC) and data.lstrip()[:1] == b"{":
        return "dsql"
    return "qldb" if data.startswith(ION_MARKER) else "kpl"


def tables_of(records: Sequence[bytes | None]) -> list[str | None]:
    """Return the table that each record's data names, as `inspect` says it; None where it names none."""
    found: list[str | None] = [None] * len(records)
    changes: list[int] = []
    for number, data in enumerate(records):
        kind = None if data is None else seen_as(data)
        if kind == "dsql":
            changes.append(number)
        elif data is not None and kind == "qldb":
            found[number] = _named(inspect(data))
    try:
        rows = decode_batch(pa.array([records[number] for number in changes], pa.binary()))
    except OF_RECORDS:  # what headpond fails on is in quarantine, too
        return [None if data is None else _named(inspect(data)) for data in records]
    names = zip(changes, rows.column("schema").to_pylist(), rows.column("table").to_pylist(), strict=True)
    for number, schema, table in names:
        found[number] = None if table is None else f"{schema}.{table}"
    return found


def _named(found: Mapping[str, Any]) -> str | None:
    return found.get("table") or (found.get("identity") or {}).get("table_name")
