"""Tables that are not configured, when the configuration is open: one raw log each, with a name of its own.

::

    schema "public", table "orders"      unknown:public.orders
    schema "a.b",    table "c"           unknown:a%2Eb.c

A name is a function of schema and table alone, so that every executor and every batch finds the same one, and
no two tables share one. The prefix keeps these names apart from configured ones.
"""

from __future__ import annotations

from urllib.parse import unquote

from headpond.changes.config import UNKNOWN, TableSpec

MAX_NAME_BYTES = 255
"""Longest schema or table name, in UTF-8, that gets a log; the service allows 63."""


def unknown_spec(schema: str, table: str) -> TableSpec:
    """Give the raw log of a table that is not configured."""
    return TableSpec(name=unknown_name(schema, table), schema=schema, table=table, raw=True)


def unknown_name(schema: str, table: str) -> str:
    """Name the log of a table that is not configured; what cannot be printed is written as ``%XX``."""
    return f"{UNKNOWN}{_encoded(schema)}.{_encoded(table)}"


def is_unknown(name: str) -> bool:
    """Say whether a name is that of such a log."""
    return name.startswith(UNKNOWN)


def schema_and_table(name: str) -> tuple[str, str]:
    """Give schema and table back from the name of such a log."""
    schema, _, table = name.removeprefix(UNKNOWN).partition(".")
    return unquote(schema), unquote(table)


def too_long(schema: str, table: str) -> str | None:
    """Say what is too long for a log's name; null when nothing is."""
    for what, text in (("schema", schema), ("table", table)):
        if (size := len(text.encode())) > MAX_NAME_BYTES:
            return (
                f"the {what} name {text[:40]!r}… takes {size} bytes, more than the {MAX_NAME_BYTES} of a log"
            )
    return None


def _encoded(part: str) -> str:
    return "".join(
        c if c.isprintable() and c not in "%." else "".join(f"%{byte:02X}" for byte in c.encode())
        for c in part
    )
