"""Ion text to Ion binary, value by value.

::

    $ion_1_0  {a: 1.50, b: [x::2, '''long''' ''' string''']}  // comment
              └───────────── one value ──────────────────┘   →   E0 01 00 EA  symbol table  DE …

Everything text can say is kept: digits, precision, offsets, annotations, repeated fields. What it can say and
no journal does is refused: symbol tables written out, and ids of symbols ($10) beyond the system's own.
Source: Amazon Ion specification, "Ion 1.0 text".
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from typing import TYPE_CHECKING, NamedTuple

from headpond.formats import ion_write as write
from headpond.formats.ion import (
    BLOB,
    CLOB,
    FLOAT,
    LIST,
    MAX_DEPTH,
    NEGATIVE_INT,
    SEXP,
    STRING,
    STRUCT,
    TYPE_NAMES,
    refuse,
)
from headpond.formats.ion_symbols import SYSTEM
from headpond.formats.ion_text_words import LOB, LONG_STRING, SKIP, TOKEN, number, one_newline, text_of
from headpond.formats.ion_timestamps import parse_text
from headpond.formats.ion_write import SymbolWriter, tagged

if TYPE_CHECKING:
    from collections.abc import Iterator

_NULLS = {name: number << 4 | 15 for number, name in enumerate(TYPE_NAMES) if number != NEGATIVE_INT}
_KINDS = {b"[": LIST, b"(": SEXP, b"{": STRUCT}
_CLOSERS = {LIST: b"]", SEXP: b")", STRUCT: b"}"}
_SYMBOL_ID = re.compile(rb"\$([0-9]+)")


class TextValue(NamedTuple):
    """A top-level value of a text: [start, stop) in it, and the value as a datum of Ion binary."""

    start: int
    stop: int
    datum: bytes


class _Container:
    __slots__ = ("after_value", "annotations", "body", "field", "kind")

    def __init__(self, kind: int, field: bytes, annotations: list[int]) -> None:
        self.kind = kind
        self.field = field  # of this container inside its parent
        self.annotations = annotations
        self.body = bytearray()
        self.after_value = False


def text_values(data: bytes, at: int = 0, *, max_depth: int = MAX_DEPTH) -> Iterator[TextValue]:
    """Give the top-level values of Ion text in UTF-8.

    Raises:
        RefusedIon: `bad_ion`, `truncated`, `unknown_symbol` or `too_deep`, with the byte where.
    """
    while True:
        at = _skip(data, at)
        if at >= len(data):
            return
        reader = _Reader(data, max_depth)
        start = at
        value, at = reader.value(at)
        if value is not None:
            yield TextValue(start, at, reader.symbols.datum(value))


def _skip(data: bytes, at: int) -> int:
    match = SKIP.match(data, at)
    return at if match is None else match.end()


class _Reader:
    """Reads one top-level value."""

    def __init__(self, data: bytes, max_depth: int) -> None:
        self.data = data
        self.max_depth = max_depth
        self.symbols = SymbolWriter()
        self.stack: list[_Container] = []
        self.at = 0

    def value(self, at: int) -> tuple[bytes | None, int]:
        """The value at `at` and where it stops; None for a version marker."""
        self.at = at
        while True:
            field = b""
            if self.stack:
                ended = self._ended()
                if ended is not None:
                    done = ended
                    if not self._add(done):
                        return done, self.at
                    continue
                if self.stack[-1].kind == STRUCT:
                    field = self._field()
            annotations = self._annotations()
            value = self._start(field, annotations)
            if value is None:
                continue
            if not self.stack:
                if value == b"\x71\x02" and not annotations:
                    return None, self.at
                return write.annotated(annotations, value), self.at
            top = self.stack[-1]
            top.body += field + write.annotated(annotations, value)
            top.after_value = True

    def _token(self) -> re.Match[bytes]:
        self.at = _skip(self.data, self.at)
        match = TOKEN.match(self.data, self.at)
        if match is None:
            if self.at >= len(self.data):
                refuse("truncated", self.at, "the text ends inside a value")
            reason = "truncated" if self.data[self.at : self.at + 1] in (b'"', b"'") else "bad_ion"
            refuse(reason, self.at, f"no Ion text: {self._shown()}")
        return match

    def _shown(self) -> str:
        return repr(self.data[self.at : self.at + 20].decode(errors="replace"))

    def _ended(self) -> bytes | None:
        """The innermost container, if it ends here; else steps over the comma before its next value."""
        top = self.stack[-1]
        match = self._token()
        if top.after_value and top.kind != SEXP and match.lastgroup != "close":
            if match.lastgroup != "comma":
                refuse("bad_ion", self.at, f"expected a comma or the end, found {self._shown()}")
            self.at = match.end()
            match = self._token()  # a comma may stand before the end
        if match.lastgroup != "close":
            return None
        if match[0] != _CLOSERS[top.kind]:
            refuse("bad_ion", self.at, f"expected {_CLOSERS[top.kind].decode()}, found {self._shown()}")
        self.at = match.end()
        self.stack.pop()
        return top.field + write.annotated(top.annotations, tagged(top.kind, top.body))

    def _add(self, value: bytes) -> bool:
        """Put a container that ended into its parent; False where it has none."""
        if not self.stack:
            return False
        self.stack[-1].body += value
        self.stack[-1].after_value = True
        return True

    def _field(self) -> bytes:
        match = self._token()
        sid = self._name(match)
        if sid is None:
            refuse("bad_ion", self.at, f"expected a field name, found {self._shown()}")
        self.at = match.end()
        match = self._token()
        if match.lastgroup != "colon":
            refuse("bad_ion", self.at, f"expected a colon, found {self._shown()}")
        self.at = match.end()
        return write.var_uint(sid)

    def _name(self, match: re.Match[bytes]) -> int | None:
        """Symbol id of a field name; None if the token is none."""
        kind, raw = match.lastgroup, match[0]
        if kind == "string":
            return self.symbols.id_of(text_of(raw[1:-1], match.start() + 1))
        if kind == "long":
            found, end = self._long(match.start())
            self.at = match.start()
            if end != match.end():
                refuse("bad_ion", match.start(), "a field name of several long strings")
            return self.symbols.id_of(found)
        return self._symbol(match)

    def _symbol(self, match: re.Match[bytes]) -> int | None:
        kind, raw = match.lastgroup, match[0]
        if kind == "quoted":
            return self.symbols.id_of(text_of(raw[1:-1], match.start() + 1))
        if kind != "word" or raw in (b"null", b"true", b"false", b"nan"):
            return None
        numbered = _SYMBOL_ID.fullmatch(raw)
        if numbered is None:
            return self.symbols.id_of(raw.decode())
        sid = int(numbered[1]) if len(numbered[1]) < 10 else 10**9  # noqa: PLR2004 - no table has so many
        if sid >= len(SYSTEM):
            refuse("unknown_symbol", match.start(), f"{raw[:20].decode()}: no symbol table says what it is")
        return sid

    def _annotations(self) -> list[int]:
        found: list[int] = []
        while True:
            match = self._token()
            sid = self._symbol(match)
            if sid is None:
                return found
            after = TOKEN.match(self.data, _skip(self.data, match.end()))
            if after is None or after.lastgroup != "colons":
                return found
            found.append(sid)
            self.at = after.end()

    def _start(self, field: bytes, annotations: list[int]) -> bytes | None:
        """Read a scalar whole, or open a container (None)."""
        match = self._token()
        start, kind, raw = match.start(), match.lastgroup, match[0]
        self.at = match.end()
        if kind == "open":
            if len(self.stack) >= self.max_depth:
                refuse("too_deep", start, f"nesting deeper than {self.max_depth}")
            self.stack.append(_Container(_KINDS[raw], field, annotations))
            return None
        if kind == "long":
            found, self.at = self._long(start)
            return tagged(STRING, found.encode())
        if kind == "lob":
            return self._lob(start)
        if kind == "operator":
            if not self.stack or self.stack[-1].kind != SEXP:
                refuse("bad_ion", start, f"an operator outside of an s-expression: {raw[:20].decode()!r}")
            return write.symbol(self.symbols.id_of(raw.decode()))
        value = self._scalar(kind or "", raw, match)
        if value is None:
            self.at = start
            refuse("bad_ion", start, f"expected a value, found {self._shown()}")
        return value

    def _scalar(self, kind: str, raw: bytes, match: re.Match[bytes]) -> bytes | None:  # noqa: PLR0911 - one per type
        if kind == "string":
            return tagged(STRING, text_of(raw[1:-1], match.start() + 1).encode())
        if kind == "timestamp":
            time = parse_text(raw.decode())
            if time is None:
                refuse("bad_ion", match.start(), f"a timestamp that does not exist: {raw[:40].decode()}")
            return write.timestamp(time)
        if kind in ("int", "radix", "decimal"):
            return number(raw, match.start())
        if kind == "float":
            return tagged(FLOAT, struct.pack(">d", float(raw)))
        if kind == "null":
            tag = _NULLS.get(raw[5:].decode())
            return None if tag is None else bytes((tag,))
        words = {b"null": b"\x0f", b"true": b"\x11", b"false": b"\x10", b"nan": b"\x48\x7f\xf8" + bytes(6)}
        if raw in words:
            return words[raw]
        sid = self._symbol(match)
        return None if sid is None else write.symbol(sid)

    def _long(self, at: int) -> tuple[str, int]:
        """Long strings one after the other are one string."""
        parts = []
        while (match := LONG_STRING.match(self.data, at)) is not None:
            parts.append(text_of(one_newline(match[1]), at + 3))
            end = match.end()
            at = _skip(self.data, end)
        return "".join(parts), end

    def _lob(self, start: int) -> bytes:
        match = LOB.match(self.data, self.at)
        if match is None:
            reason = "truncated" if b"}}" not in self.data[self.at :] else "bad_ion"
            refuse(reason, start, "expected base64 or a string between {{ and }}")
        self.at = match.end()
        if match["blob"] is not None:
            try:
                return tagged(BLOB, base64.b64decode(b"".join(match["blob"].split()), validate=True))
            except binascii.Error as error:
                refuse("bad_ion", start, f"a blob that is no base64: {error}")
        raw = match["clob"]
        parts = [raw[1:-1]] if raw[:1] == b'"' else [one_newline(m[1]) for m in LONG_STRING.finditer(raw)]
        if not raw.isascii() or any(re.search(rb"\\[uU]", part.replace(b"\\\\", b"")) for part in parts):
            refuse("bad_ion", start, "a clob with more than ASCII and two-digit escapes")
        return tagged(CLOB, b"".join(text_of(part, start).encode("latin-1") for part in parts))


def to_binary(text: str, *, max_depth: int = MAX_DEPTH) -> bytes:
    """One value of Ion text as a datum of Ion binary.

    Raises:
        RefusedIon: The text is not one value.
    """
    found = list(text_values(text.encode(), max_depth=max_depth))
    if len(found) != 1:
        refuse("no_value" if not found else "multiple_values", 0, f"{len(found)} values")
    return found[0].datum
