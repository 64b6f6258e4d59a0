"""A value inside a datum: taken out with its symbol tables, or hashed where it lies."""

from __future__ import annotations

from typing import NamedTuple

from headpond.formats.ion import MARKER, Node
from headpond.formats.ion_hash import ion_hash
from headpond.formats.ion_symbols import Symbols, only_value


class IonPart(NamedTuple):
    """A value inside a datum."""

    data: bytes
    """The datum."""
    node: Node
    symbols: Symbols

    @property
    def raw(self) -> bytes:
        """The value with its symbol tables: Ion that can be read alone."""
        return MARKER + self.symbols.tables + self.data[self.node.start : self.node.stop]

    def ion_hash(self) -> bytes:
        """Its Ion hash (SHA-256)."""
        return ion_hash(self.data, self.node, self.symbols)

    @classmethod
    def alone(cls, raw: bytes) -> IonPart:
        """The part that `raw` was made from, or any one Ion value.

        Raises:
            RefusedIon: The bytes are not one Ion 1.0 value.
        """
        value = only_value(raw)
        return cls(raw, value.node, value.symbols)
