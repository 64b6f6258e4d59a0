"""Symbol tables of Ion 1.0: what symbol ids mean at one place of a stream.

::

    E0 01 00 EA   $ion_symbol_table::{symbols: […]}  value  $ion_symbol_table::{…}  value  E0 01 00 EA …
    only system   replaces; with imports: $ion_symbol_table it appends                    only system
    symbols 1-9   ids: 1-9 system, then imported ones, then the table's own

Shared tables are not known here: their symbols are counted and have no text.
Source: Amazon Ion specification, "Symbols".
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headpond.ion import binary
from headpond.ion.binary import Node, annotation_ids, children, fields, integer, refuse, text

SYSTEM = (
    None, "$ion", "$ion_1_0", "$ion_symbol_table", "name", "version", "imports", "symbols", "max_id",
    "$ion_shared_symbol_table",
)  # fmt: skip
_SYMBOL_TABLE, _IMPORTS, _SYMBOLS = 3, 6, 7
_NAME, _MAX_ID = 4, 8
_MAX_IMPORTED = 2**31


@dataclass(frozen=True, slots=True)
class Symbols:
    """What symbol ids mean at one place of a stream."""

    imported: int = 0
    """Symbols of shared tables, none of which has a text here."""
    own: tuple[str | None, ...] = ()
    tables: bytes = field(default=b"", compare=False, repr=False)
    """The symbol tables that say so, to be written after a version marker."""
    by_id: tuple[str | None, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_id", SYSTEM + self.own if not self.imported else SYSTEM)

    @property
    def max_id(self) -> int:
        """The greatest id that is defined."""
        return len(SYSTEM) - 1 + self.imported + len(self.own)

    def text(self, sid: int) -> str | None:
        """The text of an id; None for $0, for symbols of shared tables, and for ids that are not defined."""
        if sid < len(self.by_id):
            return self.by_id[sid]
        at = sid - len(SYSTEM) - self.imported
        return self.own[at] if 0 <= at < len(self.own) else None

    def need(self, sid: int, offset: int) -> str | None:
        """Return the text of an id that is used, None for $0 alone; raises `RefusedIon` where it has none."""
        found = self.text(sid)
        if found is None and sid:
            if sid > self.max_id:
                refuse(
                    "unknown_symbol", offset, f"symbol id {sid} where {self.max_id} is the greatest defined"
                )
            refuse("unknown_symbol", offset, f"symbol id {sid} has no text: its table is not in the datum")
        return found


SYSTEM_SYMBOLS = Symbols()


def is_table(data: bytes, found: Node) -> bool:
    """Return whether a top-level value is a symbol table."""
    return (
        found.kind == binary.STRUCT
        and found.low != binary.IS_NULL
        and found.annotated
        and annotation_ids(data, found)[:1] == [_SYMBOL_TABLE]
    )


def read_table(data: bytes, table: Node, before: Symbols) -> Symbols:
    """Return the symbols from a checked table on; raises `RefusedIon` where it contradicts itself."""
    parts: dict[int, Node] = {}
    for sid, found in fields(data, table):
        if sid in (_IMPORTS, _SYMBOLS):
            if sid in parts:
                refuse("bad_ion", found.start, f"a symbol table with two fields {SYSTEM[sid]}")
            parts[sid] = found
    imports, symbols = parts.get(_IMPORTS), parts.get(_SYMBOLS)
    imported = 0
    own: tuple[str | None, ...] = ()
    tables = data[table.start : table.stop]
    if imports is not None and not imports.is_null:
        if imports.kind == binary.SYMBOL:
            if int.from_bytes(data[imports.body : imports.stop]) == _SYMBOL_TABLE:
                imported, own, tables = before.imported, before.own, before.tables + tables
        elif imports.kind == binary.LIST:
            imported = sum(_imported(data, one) for one in children(data, imports))
            if imported > _MAX_IMPORTED:
                refuse("bad_ion", imports.start, f"a symbol table that imports {imported} symbols")
    more: list[str | None] = []
    if symbols is not None and symbols.kind == binary.LIST:
        more = [
            text(data, one) if one.kind == binary.STRING and not one.is_null else None
            for one in children(data, symbols)
        ]
    return Symbols(imported, own + tuple(more), tables)


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
