"""Ion hash: a digest of a value, whatever bytes encode it; taken from Ion binary without building values.

::

    serialised scalar     0B  type  representation, escaped  0E        0C escapes 0B, 0C and 0E
    list, s-expression    0B  type  elements, serialised     0E
    struct                0B  D0    digests of its fields, sorted, each escaped  0E
    field                 digest( symbol name, serialised · value, serialised )
    annotated             0B  E0    annotations as symbols · value  0E
    hash of a value       digest( value, serialised )

Symbol tables, field order, padding, over-long numbers and the width of floats leave it as it is; types,
precision, offsets, annotations and typed nulls do not. Every not-a-number counts as 7FF8000000000000
(implementations differ there). Source: Ion Hash specification 1.0.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from headpond.ion import binary
from headpond.ion.binary import (
    Node,
    annotation_ids,
    decimal_parts,
    fold,
    refuse,
    sign_and_magnitude,
    var_int,
    var_uint,
)
from headpond.ion.symbols import Symbols
from headpond.ion.write import signed
from headpond.ion.write import var_int as write_var_int
from headpond.ion.write import var_uint as write_var_uint

_END = b"\x0e"
_UNKNOWN_SYMBOL = b"\x0b\x71\x0e"
_NAN = b"\x7f\xf8" + bytes(6)
_SECOND_PART = 7
_NAMES_KEPT = 4096


def ion_hash(
    data: bytes, found: Node, symbols: Symbols, algorithm: Callable[[bytes], Any] = hashlib.sha256
) -> bytes:
    """Return the Ion hash of a value that was checked, by any constructor of hashlib.

    Raises:
        RefusedIon: `unknown_symbol` or `bad_ion` in a scalar.
    """

    def made(node: Node, sid: int | None, parts: list[bytes] | None) -> bytes:
        if parts is None:
            done = scalar(data, node, symbols)
        else:
            inner = escape(b"".join(sorted(parts))) if node.kind == binary.STRUCT else b"".join(parts)
            done = bytes((0x0B, node.kind << 4)) + inner + _END
        if node.annotated:
            names = (symbol(symbols.need(one, node.start)) for one in annotation_ids(data, node))
            done = b"".join((b"\x0b\xe0", *names, done, _END))
        return done if sid is None else algorithm(symbol(symbols.need(sid, node.start)) + done).digest()

    return bytes(algorithm(fold(data, found, made)).digest())


def escape(raw: bytes) -> bytes:
    """Return a representation with its marker bytes escaped."""
    return raw.replace(b"\x0c", b"\x0c\x0c").replace(b"\x0b", b"\x0c\x0b").replace(b"\x0e", b"\x0c\x0e")


@lru_cache(_NAMES_KEPT)
def symbol(name: str | None) -> bytes:
    """Serialise a symbol; None is $0."""
    return _UNKNOWN_SYMBOL if name is None else b"\x0b\x70" + escape(name.encode()) + _END


def scalar(data: bytes, node: Node, symbols: Symbols) -> bytes:
    """Serialise a scalar or a null, without its annotations."""
    kind = node.kind
    if node.low == binary.IS_NULL:
        return bytes(
            (0x0B, (binary.INT if kind == binary.NEGATIVE_INT else kind) << 4 | binary.IS_NULL, 0x0E)
        )
    if kind == binary.BOOL:
        return bytes((0x0B, 0x10 | node.low, 0x0E))
    raw = data[node.body : node.stop]
    if kind == binary.STRING:
        return b"\x0b\x80" + escape(raw) + _END
    if kind in (binary.INT, binary.NEGATIVE_INT):
        raw = raw.lstrip(b"\x00")
    elif kind == binary.FLOAT:
        raw = _float(raw)
    elif kind == binary.DECIMAL:
        raw = _decimal(data, node)
    elif kind == binary.TIMESTAMP:
        raw = _timestamp(data, node)
    elif kind == binary.SYMBOL:
        return symbol(symbols.need(int.from_bytes(raw), node.start))
    return bytes((0x0B, kind << 4)) + escape(raw) + _END


def _float(raw: bytes) -> bytes:
    if not raw:
        return b""
    value = struct.unpack(">f" if len(raw) == 4 else ">d", raw)[0]
    if math.isnan(value):
        return _NAN
    return b"" if value == 0 and math.copysign(1, value) > 0 else struct.pack(">d", value)


def _decimal(data: bytes, node: Node) -> bytes:
    negative, coefficient, exponent = decimal_parts(data, node)
    if not (negative or coefficient or exponent):
        return b""
    return write_var_int(exponent) + signed(coefficient, negative=negative)


def _timestamp(data: bytes, node: Node) -> bytes:
    at, stop = node.body, node.stop
    negative, offset, at = var_int(data, at, stop)
    parts = [b"\xc0" if negative and not offset else write_var_int(-offset if negative else offset)]
    while at < stop and len(parts) < _SECOND_PART:
        part, at = var_uint(data, at, stop)
        parts.append(write_var_uint(part))
    if at < stop:
        below, exponent, at = var_int(data, at, stop)
        negative, coefficient = sign_and_magnitude(data, at, stop)
        if below and exponent:
            parts.append(write_var_int(-exponent))
            if coefficient:
                parts.append(signed(coefficient, negative=negative))
        elif coefficient:
            refuse("bad_ion", node.start, "a fraction of a second that is one second or more")
    return b"".join(parts)
