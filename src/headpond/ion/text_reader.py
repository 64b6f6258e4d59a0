r"""Ion text to Ion binary, value by value.

::

    $ion_1_0  {a: 1.50, b: [x::2, '''long''' ''' string''']}  // comment
              └───────────── one value ──────────────────┘   →   E0 01 00 EA  symbol table  DE …

    1_000  0xFF  1.50d3   "a\u00e9"  'a symbol'  '''a long one'''   2e5  2007-01-01T  null.int  {{aGk=}}  [ {
    └──── number ─────┘   └──────────── text_of ───────────────┘   └──────── found by the reader ─────────┘

Everything text can say is kept: digits, precision, offsets, annotations, repeated fields. What it can say and
no journal does is refused: symbol tables written out, and ids of symbols ($10) beyond the system's own.
Repetitions of the patterns are possessive: no text takes more than linear time to be found wrong.
Source: Amazon Ion specification, "Ion 1.0 text".
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Iterator
from decimal import Decimal
from typing import NamedTuple

from headpond.ion import binary, write
from headpond.ion.binary import refuse
from headpond.ion.symbols import SYSTEM
from headpond.ion.timestamps import parse_text
from headpond.ion.write import SymbolWriter, tagged

_NULLS = {
    name: number << 4 | 15 for number, name in enumerate(binary.TYPE_NAMES) if number != binary.NEGATIVE_INT
}
_KINDS = {b"[": binary.LIST, b"(": binary.SEXP, b"{": binary.STRUCT}
_CLOSERS = {binary.LIST: b"]", binary.SEXP: b")", binary.STRUCT: b"}"}
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


def text_values(data: bytes, at: int = 0, *, max_depth: int = binary.MAX_DEPTH) -> Iterator[TextValue]:
    """Yield the top-level values of Ion text in UTF-8.

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
    def __init__(self, data: bytes, max_depth: int) -> None:
        self.data = data
        self.max_depth = max_depth
        self.symbols = SymbolWriter()
        self.stack: list[_Container] = []
        self.at = 0

    def value(self, at: int) -> tuple[bytes | None, int]:
        """Return the value at `at` and where it stops; None for a version marker."""
        self.at = at
        while True:
            field = b""
            if self.stack:
                ended = self._ended()
                if ended is not None:
                    if not self.stack:
                        return ended, self.at
                    self._add(ended)
                    continue
                if self.stack[-1].kind == binary.STRUCT:
                    field = self._field()
            annotations = self._annotations()
            value = self._start(field, annotations)
            if value is None:
                continue
            if not self.stack:
                if value == b"\x71\x02" and not annotations:
                    return None, self.at
                return write.annotated(annotations, value), self.at
            self._add(field + write.annotated(annotations, value))

    def _token(self) -> re.Match[bytes]:
        self.at = _skip(self.data, self.at)
        match = TOKEN.match(self.data, self.at)
        if match is None:
            if self.at >= len(self.data):
                refuse("truncated", self.at, "the text ends inside a value")
            reason = "truncated" if self.data[self.at : self.at + 1] in (b'"', b"'") else "bad_ion"
            refuse(reason, self.at, f"no Ion text: {self._shown()}")
        if self.data.startswith((b"/*", b"'''"), self.at) and match.lastgroup != "long":
            refuse("truncated", self.at, f"no end: {self._shown()}")
        return match

    def _shown(self) -> str:
        return repr(self.data[self.at : self.at + 20].decode(errors="replace"))

    def _ended(self) -> bytes | None:
        """The innermost container, if it ends here; else steps over the comma before its next value."""
        top = self.stack[-1]
        match = self._token()
        if top.after_value and top.kind != binary.SEXP and match.lastgroup != "close":
            if match.lastgroup != "comma":
                refuse("bad_ion", self.at, f"expected a comma or the end, found {self._shown()}")
            self.at = match.end()
            match = self._token()  # a comma may come before the end
        if match.lastgroup != "close":
            return None
        if match[0] != _CLOSERS[top.kind]:
            refuse("bad_ion", self.at, f"expected {_CLOSERS[top.kind].decode()}, found {self._shown()}")
        self.at = match.end()
        self.stack.pop()
        return top.field + write.annotated(top.annotations, tagged(top.kind, top.body))

    def _add(self, value: bytes) -> None:
        """Put a value, with its field name, into the innermost container."""
        self.stack[-1].body += value
        self.stack[-1].after_value = True

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
        sid = int(numbered[1]) if len(numbered[1]) < 10 else 10**9
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
            return tagged(binary.STRING, found.encode())
        if kind == "lob":
            return self._lob(start)
        if kind == "operator":
            if not self.stack or self.stack[-1].kind != binary.SEXP:
                refuse("bad_ion", start, f"an operator outside of an s-expression: {raw[:20].decode()!r}")
            return write.symbol(self.symbols.id_of(raw.decode()))
        value = self._scalar(kind or "", raw, match)
        if value is None:
            self.at = start
            refuse("bad_ion", start, f"expected a value, found {self._shown()}")
        return value

    def _scalar(self, kind: str, raw: bytes, match: re.Match[bytes]) -> bytes | None:
        if kind == "string":
            return tagged(binary.STRING, text_of(raw[1:-1], match.start() + 1).encode())
        if kind == "timestamp":
            time = parse_text(raw.decode())
            if time is None:
                refuse("bad_ion", match.start(), f"a timestamp that does not exist: {raw[:40].decode()}")
            return write.timestamp(time)
        if kind in ("int", "radix", "decimal"):
            return number(raw, match.start())
        if kind == "float":
            return tagged(binary.FLOAT, struct.pack(">d", float(raw)))
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
                return tagged(binary.BLOB, base64.b64decode(b"".join(match["blob"].split()), validate=True))
            except binascii.Error as error:
                refuse("bad_ion", start, f"a blob that is not base64: {error}")
        raw = match["clob"]
        parts = [raw[1:-1]] if raw[:1] == b'"' else [one_newline(m[1]) for m in LONG_STRING.finditer(raw)]
        if not raw.isascii() or any(re.search(rb"\\[uU]", part.replace(b"\\\\", b"")) for part in parts):
            refuse("bad_ion", start, "a clob with more than ASCII and two-digit escapes")
        return tagged(binary.CLOB, b"".join(text_of(part, start).encode("latin-1") for part in parts))


def to_binary(text: str, *, max_depth: int = binary.MAX_DEPTH) -> bytes:
    """Return one value of Ion text as a datum of Ion binary; raises `RefusedIon` where it is not one."""
    found = list(text_values(text.encode(), max_depth=max_depth))
    if len(found) != 1:
        refuse("no_value" if not found else "multiple_values", 0, f"{len(found)} values")
    return found[0].datum


MAX_DIGITS = 300_000
"""Digits of a number; reading takes more than linear time."""
_BLANK = rb"(?:[ \t\r\n\v\f]+|//[^\r\n]*|/\*(?:[^*]++|\*(?!/))*+\*/)*+"
SKIP = re.compile(_BLANK)
_STOP = rb"(?=[{}\[\](),\"' \t\r\n\v\f]|/[/*]|\Z)"
_DIGITS = rb"[0-9](?:_?[0-9])*+"
_WHOLE = rb"-?(?:0|[1-9](?:_?[0-9])*+)"
_POINT = rb"(?:\.(?:" + _DIGITS + rb")?)"
TOKEN = re.compile(
    rb"(?P<long>'''(?s:[^'\\]|\\.|'(?!''))*+''')"
    rb'|(?P<string>"(?:[^"\\\r\n]|\\\r\n|\\(?s:.))*+")'
    rb"|(?P<quoted>'(?:[^'\\\r\n]|\\\r\n|\\(?s:.))*+')"
    rb"|(?P<timestamp>[0-9]{4}(?:T|-[0-9]{2}(?:T|-[0-9]{2}(?:T(?:[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?"
    rb"(?:Z|[+-][0-9]{2}:[0-9]{2}))?)?))" + _STOP + rb")"
    rb"|(?P<radix>-?0(?:[xX][0-9a-fA-F](?:_?[0-9a-fA-F])*+|[bB][01](?:_?[01])*+)" + _STOP + rb")"
    rb"|(?P<float>(?:" + _WHOLE + _POINT + rb"?[eE][+-]?[0-9]++|[+-]inf)" + _STOP + rb")"
    rb"|(?P<decimal>"
    + _WHOLE
    + rb"(?:"
    + _POINT
    + rb"(?:[dD][+-]?[0-9]++)?|[dD][+-]?[0-9]++)"
    + _STOP
    + rb")"
    rb"|(?P<int>" + _WHOLE + _STOP + rb")"
    rb"|(?P<null>null\.[a-z]+)"
    rb"|(?P<word>[A-Za-z_$][A-Za-z0-9_$]*+)"
    rb"|(?P<lob>\{\{)"
    rb"|(?P<open>[\[({])|(?P<close>[\])}])|(?P<comma>,)|(?P<colons>::)|(?P<colon>:)"
    rb"|(?P<operator>[-!#%&*+./;<=>?@^`|~]++)"
)
_ESCAPE = re.compile(
    rb"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(\r\n|\r|\n)|([abtnfrv?0'\"/\\]))|\\"
)
_SIMPLE = {
    b"a": "\a", b"b": "\b", b"t": "\t", b"n": "\n", b"f": "\f", b"r": "\r", b"v": "\v", b"?": "?", b"0": "\0",
    b"'": "'", b'"': '"', b"/": "/", b"\\": "\\",
}  # fmt: skip
LOB = re.compile(
    rb"[ \t\r\n\v\f]*(?:(?P<blob>[A-Za-z0-9+/ \t\r\n\v\f=]*)|(?P<clob>\"(?:[^\"\\\r\n]|\\\r\n|\\(?s:.))*+\""
    rb"|(?:'''(?s:[^'\\]|\\.|'(?!''))*+'''[ \t\r\n\v\f]*)+))[ \t\r\n\v\f]*\}\}"
)
LONG_STRING = re.compile(rb"'''((?s:[^'\\]|\\.|'(?!''))*+)'''")


def text_of(raw: bytes, at: int) -> str:
    """Read what is between quotes, escapes included; `at` is its place in the text."""
    try:
        if b"\\" not in raw:
            return raw.decode()
        parts: list[str] = []
        end = 0
        for match in _ESCAPE.finditer(raw):
            parts.append(raw[end : match.start()].decode())
            parts.append(_escape(match, at))
            end = match.end()
        parts.append(raw[end:].decode())
        return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeError as error:
        refuse(
            "bad_ion",
            at,
            f"the text is not valid Unicode: {error.reason if hasattr(error, 'reason') else error}",
        )


def _escape(match: re.Match[bytes], at: int) -> str:
    two, four, eight, newline, simple = match.groups()
    digits = two or four or eight
    if digits is not None:
        number = int(digits, 16)
        if number <= 0x10FFFF:
            return chr(number)
    elif simple is not None:
        return _SIMPLE[simple]
    elif newline is not None:
        return ""
    return refuse("bad_ion", at + match.start(), f"the escape {match[0].decode()!r} says no character")


def one_newline(raw: bytes) -> bytes:
    """Write every line end as one newline, which is what a long string means by it."""
    return raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def number(raw: bytes, at: int) -> bytes:
    """Return an integer or a decimal as binary, every digit kept."""
    if len(raw) > MAX_DIGITS:
        refuse("bad_ion", at, f"a number of {len(raw)} characters")
    plain = raw.replace(b"_", b"").decode().lower()
    negative = plain.startswith("-")
    plain = plain.lstrip("-")
    if plain[:2] in ("0x", "0b"):
        value = int(plain, 0)
        return write.integer(-value if negative else value)
    mantissa, _, power = plain.partition("d")
    whole, point, fraction = mantissa.partition(".")
    # Python refuses to read thousands of digits into an int at once, but not into a Decimal.
    coefficient = int(Decimal(whole + fraction))
    if not point and "d" not in plain:
        return write.integer(-coefficient if negative else coefficient)
    if len(power) > 18:
        refuse("bad_ion", at, "a decimal's exponent beyond 64 bits")
    exponent = int(power or 0) - len(fraction)
    return write.decimal(negative=negative, coefficient=coefficient, exponent=exponent)
