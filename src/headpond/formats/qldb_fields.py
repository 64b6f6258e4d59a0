"""Reading the fields of QLDB's envelope: found by name, of the type they should be, or refused with where.

Rules: field order is free, unknown fields are left alone, annotations are ignored, a symbol is text, a
repeated name is `wrong_type`. A field whose name cannot be told may be any of ours, so it is refused.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, NoReturn

from headpond.formats.ion import (
    BLOB,
    INT,
    LIST,
    NEGATIVE_INT,
    STRING,
    STRUCT,
    SYMBOL,
    TIMESTAMP,
    children,
    fields,
    refuse,
)
from headpond.formats.ion_check import check
from headpond.formats.ion_part import IonPart
from headpond.formats.ion_scalars import integer, text
from headpond.formats.ion_timestamps import parse_text, read_timestamp

if TYPE_CHECKING:
    from headpond.formats.ion import Node
    from headpond.formats.ion_symbols import Symbols
    from headpond.formats.ion_timestamps import Timestamp

HASH_BYTES = 32
_INT64_MAX = 2**63 - 1


class Reader:
    """Reads fields of one checked datum."""

    __slots__ = ("data", "symbols")

    def __init__(self, data: bytes, symbols: Symbols) -> None:
        self.data = data
        self.symbols = symbols

    def part(self, node: Node) -> IonPart:
        """A value to be taken out of the datum."""
        return IonPart(self.data, node, self.symbols)

    def check_inside(self, node: Node) -> None:
        """Look at every scalar in a value that is kept or hashed whole."""
        check(self.data, node.start, node.stop, max_depth=len(self.data), symbols=self.symbols)

    def name(self, sid: int, offset: int) -> str:
        """A field's name.

        Raises:
            RefusedIon: `unknown_symbol`.
        """
        name = self.symbols.need(sid, offset)
        if name is None:
            refuse("unknown_symbol", offset, "a field called $0, which has no text")
        return name

    def members(self, node: Node, where: str, wanted: frozenset[str]) -> dict[str, Node]:
        """The wanted fields of a struct that are there, by name."""
        found: dict[str, Node] = {}
        names = self.symbols.by_id
        count = len(names)
        for sid, member in fields(self.data, node):
            name = (names[sid] if sid < count else None) or self.name(sid, member.start)
            if name in wanted:
                if name in found:
                    refuse("wrong_type", member.start, f"{where} has the field {name} twice")
                found[name] = member
        return found

    def wrong(self, node: Node, name: str, expected: str) -> NoReturn:
        """Refuse a field of a wrong type."""
        refuse("wrong_type", node.start, f"{name}: expected {expected}, found {node.type_name}")

    def need(self, members: dict[str, Node], name: str, parent: Node) -> Node:
        """A required field."""
        node = members.get(name)
        if node is None:
            refuse("missing_field", parent.start, f"the struct that begins here has no field {name}")
        return node

    def text(self, members: dict[str, Node], name: str, parent: Node) -> str:
        """A required text."""
        return self.text_of(self.need(members, name, parent), name)

    def text_of(self, node: Node, name: str) -> str:
        """Text of a string or symbol."""
        if node.kind == STRING and not node.is_null:
            return text(self.data, node)
        if node.kind != SYMBOL or node.is_null:
            self.wrong(node, name, "a string")
        found = self.symbols.need(int.from_bytes(self.data[node.body : node.stop]), node.start)
        if found is None:
            refuse("unknown_symbol", node.start, f"{name}: the symbol $0, which has no text")
        return found

    def struct(self, members: dict[str, Node], name: str, parent: Node) -> Node:
        """A required struct."""
        return self.a_struct(self.need(members, name, parent), name)

    def a_struct(self, node: Node, name: str) -> Node:
        """The struct a node must be."""
        if node.kind != STRUCT or node.is_null:
            self.wrong(node, name, "a struct")
        return node

    def items(self, node: Node, name: str) -> list[Node]:
        """The values of a list."""
        if node.kind != LIST or node.is_null:
            self.wrong(node, name, "a list")
        return list(children(self.data, node))

    def count(self, members: dict[str, Node], name: str, parent: Node) -> int:
        """A required integer from 0 to 2⁶³ - 1."""
        return self.count_of(self.need(members, name, parent), name)

    def count_of(self, node: Node, name: str) -> int:
        """The integer a node must be, from 0 to 2⁶³ - 1."""
        if node.kind not in (INT, NEGATIVE_INT) or node.is_null:
            self.wrong(node, name, "an int")
        value = integer(self.data, node)
        if not 0 <= value <= _INT64_MAX:
            found = "a negative one" if value < 0 else "more than 63 bits"
            refuse("wrong_type", node.start, f"{name}: expected an int from 0 to 2^63 - 1, found {found}")
        return value

    def hash(self, members: dict[str, Node], name: str, parent: Node, *, or_empty: bool = False) -> bytes:
        """A required hash."""
        return self.hash_of(self.need(members, name, parent), name, or_empty=or_empty)

    def hash_of(self, node: Node, name: str, *, or_empty: bool = False) -> bytes:
        """The blob of 32 bytes a node must be."""
        if node.kind != BLOB or node.is_null:
            self.wrong(node, name, f"a blob of {HASH_BYTES} bytes")
        raw = self.data[node.body : node.stop]
        if len(raw) != HASH_BYTES and (raw or not or_empty):
            refuse("wrong_type", node.start, f"{name}: expected {HASH_BYTES} bytes, found {len(raw)}")
        return raw

    def timestamp(self, members: dict[str, Node], name: str, parent: Node) -> Timestamp:
        """A required timestamp."""
        node = self.need(members, name, parent)
        if node.kind != TIMESTAMP or node.is_null:
            self.wrong(node, name, "a timestamp")
        return read_timestamp(self.data, node)

    def block_address(self, members: dict[str, Node], parent: Node) -> tuple[str, int]:
        """Strand and sequence number of the required field `blockAddress`."""
        address = self.struct(members, "blockAddress", parent)
        inside = self.members(address, "blockAddress", _ADDRESS)
        return self.text(inside, "strandId", address), self.count(inside, "sequenceNo", address)


_ADDRESS = frozenset({"strandId", "sequenceNo"})


class DownConverted(Reader):
    """Reads fields that went through JSON: timestamps and blobs are strings there."""

    __slots__ = ()

    def hash_of(self, node: Node, name: str, *, or_empty: bool = False) -> bytes:
        """The 32 bytes that a string has as base64."""
        raw = self._base64(self.text_of(node, name)) if node.kind == STRING else None
        if raw is None:
            self.wrong(node, name, f"{HASH_BYTES} bytes as base64")
        if len(raw) != HASH_BYTES and (raw or not or_empty):
            refuse("wrong_type", node.start, f"{name}: expected {HASH_BYTES} bytes, found {len(raw)}")
        return raw

    def timestamp(self, members: dict[str, Node], name: str, parent: Node) -> Timestamp:
        """A required timestamp, as text."""
        node = self.need(members, name, parent)
        found = parse_text(self.text_of(node, name)) if node.kind == STRING else None
        if found is None:
            self.wrong(node, name, "a timestamp as text")
        return found

    @staticmethod
    def _base64(text: str) -> bytes | None:
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error:
            return None
