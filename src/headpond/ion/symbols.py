"""Symbol tables of Ion 1.0: what symbol ids mean at one place of a stream.

::

    E0 01 00 EA   $ion_symbol_table::{symbols: […]}  value  $ion_symbol_table::{…}  value  E0 01 00 EA …
    only system   replaces; with imports: $ion_symbol_table it appends                    only system
    symbols 1-9   ids: 1-9 system, then imported ones, then the table's own

Shared tables are not known here: their symbols are counted and have no text.
Source: Amazon Ion specification, "Symbols".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from headpond.ion import binary
from headpond.ion.binary import (
    MARKER,
    Node,
    annotation_ids,
    children,
    fields,
    integer,
    refuse,
    shown_integer,
    text,
)

T = TypeVar("T")

SYSTEM = (
    None, "$ion", "$ion_1_0", "$ion_symbol_table", "name", "version", "imports", "symbols", "max_id",
    "$ion_shared_symbol_table",
)  # fmt: skip
_SYMBOL_TABLE, _IMPORTS, _SYMBOLS = 3, 6, 7
_NAME, _MAX_ID = 4, 8
_MAX_IMPORTED = 2**31
MAX_IMPORTS = 10_000
"""Bound on the tables that one table imports."""
MAX_SYMBOLS = 500_000
"""Default bound on the symbols that one table names, those that it continues included."""


@dataclass(frozen=True, slots=True, eq=False)
class Symbols:
    """What symbol ids mean at one place of a stream.

    Tables that append share their lists with the tables that they continue, so that a stream in which each
    value has a table of its own is read in linear time; `count` and `chunks` say how much of them is meant.
    """

    imported: int = 0
    """Symbols of shared tables, none of which has a text here."""
    names: Sequence[str | None] = SYSTEM
    """The system's symbols, then the table's own."""
    count: int = len(SYSTEM)
    """How many of the names are defined here."""
    tables: Sequence[bytes] = ()
    """The bytes of the tables that lead here, oldest first."""
    chunks: int = 0
    """How many of the tables are meant."""
    table_bytes: int = 0
    """What these take."""

    @property
    def max_id(self) -> int:
        """The greatest id that is defined."""
        return self.count - 1 + self.imported

    @property
    def by_id(self) -> Sequence[str | None]:
        """The texts of the first `known` ids, and maybe more."""
        return SYSTEM if self.imported else self.names

    @property
    def known(self) -> int:
        """How many ids `by_id` has; beyond them ask `text`."""
        return len(SYSTEM) if self.imported else self.count

    @property
    def preamble(self) -> bytes:
        """The version marker and the symbol tables that lead here: what to write before a value."""
        return MARKER + b"".join(islice(self.tables, self.chunks))

    def text(self, sid: int) -> str | None:
        """The text of an id; None for $0, for symbols of shared tables, and for ids that are not defined."""
        if sid < len(SYSTEM):
            return SYSTEM[sid]
        at = sid - self.imported
        return self.names[at] if len(SYSTEM) <= at < self.count else None

    def need(self, sid: int, offset: int) -> str | None:
        """Return the text of an id that is used, None for $0 alone; raises `RefusedIon` where it has none."""
        found = self.text(sid)
        if found is None and sid:
            if sid > self.max_id:
                shown = f"symbol id {shown_integer(sid)} where {self.max_id} is the greatest defined"
                refuse("unknown_symbol", offset, shown)
            refuse("unknown_symbol", offset, f"symbol id {sid} has no text: its table is not in the datum")
        return found

    def continued(self, table: bytes, more: Sequence[str | None]) -> Symbols:
        """Return the symbols after a table that appends to these."""
        names, tables = _grown(self.names, self.count, more), _grown(self.tables, self.chunks, (table,))
        return Symbols(self.imported, names, len(names), tables, len(tables), self.table_bytes + len(table))


def _grown(shared: Sequence[T], count: int, more: Sequence[T]) -> list[T]:
    """Append to the first `count` items; in place, where a list has no others."""
    if not isinstance(shared, list) or len(shared) != count:
        return [*islice(shared, count), *more]
    shared.extend(more)
    return shared


SYSTEM_SYMBOLS = Symbols()


def is_table(data: bytes, found: Node) -> bool:
    """Return whether a top-level value is a symbol table."""
    return (
        found.kind == binary.STRUCT
        and found.low != binary.IS_NULL
        and found.annotated
        and annotation_ids(data, found)[:1] == [_SYMBOL_TABLE]
    )


def read_table(data: bytes, table: Node, before: Symbols, *, max_symbols: int = MAX_SYMBOLS) -> Symbols:
    """Return the symbols from a checked table on; raises `RefusedIon` where it contradicts itself."""
    parts: dict[int, Node] = {}
    for sid, part in fields(data, table):
        if sid in (_IMPORTS, _SYMBOLS):
            if sid in parts:
                refuse("bad_ion", part.start, f"a symbol table with two fields {SYSTEM[sid]}")
            parts[sid] = part
    imports, symbols = parts.get(_IMPORTS), parts.get(_SYMBOLS)
    imported, appends = 0, False
    raw = data[table.start : table.stop]
    if imports is not None and not imports.is_null:
        if imports.kind == binary.SYMBOL:
            appends = int.from_bytes(data[imports.body : imports.stop]) == _SYMBOL_TABLE
        elif imports.kind == binary.LIST:
            imported = _all_imported(data, imports)
    room = max_symbols - (before.count if appends else 0)
    found = children(data, symbols) if symbols is not None and symbols.kind == binary.LIST else ()
    more = [
        text(data, one) if one.kind == binary.STRING and not one.is_null else None
        for one in islice(found, max(room, 0) + 1)
    ]
    if len(more) > room:
        refuse("too_many_symbols", table.start, f"symbol tables that name more than {max_symbols} symbols")
    if appends:
        return before.continued(raw, more)
    names = (*SYSTEM, *more)
    return Symbols(imported, names, len(names), (raw,), 1, len(raw))


def _all_imported(data: bytes, imports: Node) -> int:
    listed = list(islice(children(data, imports), MAX_IMPORTS + 1))
    if len(listed) > MAX_IMPORTS:
        refuse("too_many_symbols", imports.start, f"imports of more than {MAX_IMPORTS} tables")
    imported = sum(_imported(data, one) for one in listed)
    if imported > _MAX_IMPORTED:
        refuse("bad_ion", imports.start, f"a symbol table that imports {shown_integer(imported)} symbols")
    return imported


def _imported(data: bytes, one: Node) -> int:
    """Return how many ids an element of `imports` takes."""
    if one.kind != binary.STRUCT or one.is_null:
        return 0
    name, max_id = "", None
    for sid, found in fields(data, one):
        if sid == _NAME and found.kind == binary.STRING and not found.is_null:
            name = text(data, found)
        elif sid == _MAX_ID and found.kind == binary.INT and not found.is_null:
            max_id = integer(data, found)
    if name in ("", "$ion"):
        return 0
    if max_id is None:
        refuse("bad_ion", one.start, f"the import of {name[:80]!r} does not say how many symbols it has")
    return max_id
