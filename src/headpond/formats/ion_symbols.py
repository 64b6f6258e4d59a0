"""Symbol tables of Ion 1.0, and the way to the values of a stream.

::

    E0 01 00 EA   $ion_symbol_table::{symbols: […]}  value  $ion_symbol_table::{…}  value  E0 01 00 EA …
    only system   replaces; with imports: $ion_symbol_table it appends                    only system
    symbols 1-9   ids: 1-9 system, then imported ones, then the table's own

Shared tables are not known here: their symbols are counted and have no text. A table is read once per
different bytes. Source: Amazon Ion specification, "Symbols".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from headpond.formats.ion import (
    INT,
    IS_NULL,
    LIST,
    MARKER,
    MAX_DEPTH,
    NULL,
    STRING,
    STRUCT,
    SYMBOL,
    Node,
    annotation_ids,
    children,
    fields,
    node,
    refuse,
)
from headpond.formats.ion_check import check
from headpond.formats.ion_scalars import integer, text

if TYPE_CHECKING:
    from collections.abc import Iterator

SYSTEM = (
    None, "$ion", "$ion_1_0", "$ion_symbol_table", "name", "version", "imports", "symbols", "max_id",
    "$ion_shared_symbol_table",
)  # fmt: skip
_SYMBOL_TABLE, _IMPORTS, _SYMBOLS = 3, 6, 7
_NAME, _MAX_ID = 4, 8
_MAX_IMPORTED = 2**31
_CACHED_TABLES, _CACHED_BYTES = 1024, 64 * 1024


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
        """The text of an id that is needed; None only for $0, which says that the text is not known.

        Raises:
            RefusedIon: `unknown_symbol`: the id is not defined, or has no text.
        """
        found = self.text(sid)
        if found is None and sid:
            if sid > self.max_id:
                refuse(
                    "unknown_symbol", offset, f"symbol id {sid} where {self.max_id} is the greatest defined"
                )
            refuse("unknown_symbol", offset, f"symbol id {sid} has no text: its table is not in the datum")
        return found


SYSTEM_SYMBOLS = Symbols()


class Value(NamedTuple):
    """A top-level value of a stream."""

    node: Node
    symbols: Symbols


_cache: dict[bytes, Symbols] = {}


def values(
    data: bytes, at: int = 0, end: int | None = None, *, max_depth: int = MAX_DEPTH
) -> Iterator[Value]:
    """Give the top-level values of a stream; each is checked before it is given out (types and lengths).

    Raises:
        RefusedIon: `empty`, `not_binary_ion`, or what `check` refuses.
    """
    end = len(data) if end is None else end
    if at >= end:
        refuse("empty", at, "there are no bytes")
    if data[at : at + 4] != MARKER:
        refuse("not_binary_ion", at, not_ion(data[at : min(end, at + 64)]))
    symbols = SYSTEM_SYMBOLS
    while at < end:
        found, symbols, at = next_value(data, at, end, symbols, max_depth=max_depth)
        if found is not None:
            yield Value(found, symbols)


def next_value(
    data: bytes, at: int, end: int, symbols: Symbols, *, max_depth: int = MAX_DEPTH
) -> tuple[Node | None, Symbols, int]:
    """Take what begins at `at`: a marker, a symbol table, padding, or a value, which is checked.

    Returns:
        The value, null where it was none; the symbols from there on; where it stops.

    Raises:
        RefusedIon: what `check` refuses.
    """
    if data[at] == MARKER[0]:
        if data[at : at + 4] != MARKER:
            cut = end - at < len(MARKER)
            refuse("truncated" if cut else "bad_ion", at, "a version marker other than E0 01 00 EA")
        return None, SYSTEM_SYMBOLS, at + 4
    known = _known(data, at, end) if symbols is SYSTEM_SYMBOLS else None
    if known is not None:
        return None, *known
    stop = check(data, at, end, max_depth=max_depth)
    found = node(data, at, end)
    if _is_table(data, found):
        return None, _table(data, found, symbols), stop
    if found.kind == NULL and not found.is_null:  # padding
        return None, symbols, stop
    return found, symbols, stop


def _table(data: bytes, found: Node, before: Symbols) -> Symbols:
    """Read a symbol table, and keep it where the same bytes mean the same elsewhere."""
    symbols = _read(data, found, before)
    raw = data[found.start : found.stop]
    if before is SYSTEM_SYMBOLS and len(raw) <= _CACHED_BYTES:
        if len(_cache) >= _CACHED_TABLES:
            _cache.clear()
        _cache[raw] = symbols
    return symbols


def _known(data: bytes, at: int, end: int) -> tuple[Symbols, int] | None:
    """The symbol table at `at`, if its very bytes were read before."""
    if data[at] != 0xEE:  # noqa: PLR2004 - an annotation wrapper with a length of its own
        return None
    first, stop = data[at + 1 : at + 3], 0
    if len(first) == 2 and first[0] & 0x80:  # noqa: PLR2004 - two bytes were asked for
        stop = at + 2 + (first[0] & 0x7F)
    elif len(first) == 2 and first[1] & 0x80:  # noqa: PLR2004 - two bytes
        stop = at + 3 + (first[0] << 7 | first[1] & 0x7F)
    if not 0 < stop <= end:
        return None
    found = _cache.get(data[at:stop])
    return None if found is None else (found, stop)


def _is_table(data: bytes, found: Node) -> bool:
    return (
        found.kind == STRUCT
        and found.low != IS_NULL
        and found.annotated
        and annotation_ids(data, found)[:1] == [_SYMBOL_TABLE]
    )


def _read(data: bytes, table: Node, before: Symbols) -> Symbols:
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
        if imports.kind == SYMBOL:
            if int.from_bytes(data[imports.body : imports.stop]) == _SYMBOL_TABLE:
                imported, own, tables = before.imported, before.own, before.tables + tables
        elif imports.kind == LIST:
            imported = sum(_imported(data, one) for one in children(data, imports))
            if imported > _MAX_IMPORTED:
                refuse("bad_ion", imports.start, f"a symbol table that imports {imported} symbols")
    more: list[str | None] = []
    if symbols is not None and symbols.kind == LIST:
        more = [
            text(data, one) if one.kind == STRING and not one.is_null else None
            for one in children(data, symbols)
        ]
    return Symbols(imported, own + tuple(more), tables)


def _imported(data: bytes, one: Node) -> int:
    """How many ids an element of `imports` takes."""
    if one.kind != STRUCT or one.is_null:
        return 0
    name, max_id = "", None
    for sid, found in fields(data, one):
        if sid == _NAME and found.kind == STRING and not found.is_null:
            name = text(data, found)
        elif sid == _MAX_ID and found.kind == INT and not found.is_null:
            max_id = integer(data, found)
    if name in ("", "$ion"):
        return 0
    if max_id is None:
        refuse("bad_ion", one.start, f"the import of {name[:80]!r} does not say how many symbols it has")
    return max_id


def not_ion(start: bytes) -> str:
    """What bytes that do not begin with the version marker look like."""
    expected = "expected the Ion 1.0 marker E0 01 00 EA, found"
    if start[:4] == b"\xf3\x89\x9a\xc2":
        return f"{expected} F3 89 9A C2: this is a KPL aggregate that was not opened"
    if start[:1] == b"\xe0" and start[3:4] == b"\xea":
        return f"{expected} the marker of Ion {start[1]}.{start[2]}"
    if start[:2] == b"\x1f\x8b":
        return f"{expected} 1F 8B: this is gzip"
    shown = start[:4].hex(" ").upper()
    if start.lstrip()[:1] in (b"{", b"[", b"$", b"'") or start[:1].isalpha():
        return f"{expected} {shown}: this looks like text (Ion text or JSON)"
    return f"{expected} {shown}"


def only_value(data: bytes, *, max_depth: int = MAX_DEPTH) -> Value:
    """The one value of a datum.

    Raises:
        RefusedIon: What `values` refuses, `no_value` or `multiple_values`.
    """
    found: Value | None = None
    for value in values(data, max_depth=max_depth):
        if found is not None:
            refuse(
                "multiple_values", value.node.start, "expected one value, found a second one that begins here"
            )
        found = value
    if found is None:
        refuse("no_value", len(data), "only version markers, symbol tables and padding")
    return found
