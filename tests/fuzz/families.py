"""Families of hostile records: each grows to any size by repeating one thing that is dear to read.

FAMILIES[format][what it repeats](size in bytes) -> one record
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_MARKER = b"\xe0\x01\x00\xea"


def repeated(unit: bytes, size: int) -> bytes:
    """So many units that they have about that size."""
    return unit * max(1, size // len(unit))


def change(image: bytes) -> bytes:
    """A change record with this image."""
    where = b'"schema":"public","table":"t","cluster":"c","db":"d"'
    source = b'{"version":"1.0","ts_ns":5,"txId":"a",' + where + b',"ts_ms":1}'
    head = b'{"type":"full","op":"c","before":null,"after":'
    return head + image + b',"source":' + source + b',"ts_ms":1,"ts_ns":1}'


def members(size: int) -> bytes:
    """Members whose names all differ."""
    return b",".join(b'"k%d":1' % number for number in range(size // 11))


def framed(message: bytes) -> bytes:
    """A KPL aggregate."""
    return b"\xf3\x89\x9a\xc2" + message + hashlib.md5(message, usedforsecurity=False).digest()


def varint(value: int) -> bytes:
    """A number as protobuf writes it."""
    groups = [value & 0x7F]
    while value := value >> 7:
        groups[-1] |= 0x80
        groups.append(value & 0x7F)
    return bytes(groups)


def field(number: int, content: bytes) -> bytes:
    """A field of bytes."""
    return bytes([number << 3 | 2]) + varint(len(content)) + content


def var_uint(value: int) -> bytes:
    """A number as Ion writes it."""
    groups = [value & 0x7F | 0x80]
    while value := value >> 7:
        groups.insert(0, value & 0x7F)
    return bytes(groups)


def typed(kind: int, body: bytes) -> bytes:
    """A value of Ion."""
    if len(body) < 14:
        return bytes([kind << 4 | len(body)]) + body
    return bytes([kind << 4 | 14]) + var_uint(len(body)) + body


def table(names: list[bytes], *, appends: bool = True) -> bytes:
    """A symbol table of Ion."""
    imports = b"\x86\x71\x03" if appends else b""
    listed = typed(11, b"".join(typed(8, name) for name in names))
    return typed(14, b"\x81\x83" + typed(13, imports + b"\x87" + listed))


_KEY, _RECORD = field(1, b"k"), field(3, b"\x08\x00\x1a\x01x")
_TAG = field(4, field(1, b"a") + field(2, b"b"))
_STRUCT = typed(13, b"")

FAMILIES: dict[str, dict[str, Callable[[int], bytes]]] = {
    "dsql": {
        "names": lambda size: change(b'{"id":1,' + members(size) + b"}"),
        "names around the images": lambda size: b'{"type":"full",' + members(size) + b"}",
        "escapes": lambda size: change(b'{"id":"' + repeated(b"\\u0041", size) + b'"}'),
        "an unterminated text": lambda size: change(b'{"id":"' + repeated(b'\\"', size)),
        "quotes": lambda size: repeated(b'"', size),
        "brackets": lambda size: repeated(b"[", size),
        "empty objects": lambda size: change(b'{"id":1,"j":[' + repeated(b"{},", size) + b"1]}"),
        "objects": lambda size: change(b'{"id":1,"j":[' + repeated(b'{"a":1},', size) + b"1]}"),
        "objects that repeat a name": lambda size: change(
            b'{"j":[' + repeated(b'{"a":1,"a":1},', size) + b"1]}"
        ),
        "deep lists": lambda size: change(
            b'{"j":[' + repeated(b"[" * 500 + b"]" * 500 + b",", size) + b"1]}"
        ),
        "numbers and spaces": lambda size: change(b'{"j":[' + repeated(b"1 , ", size) + b"1]}"),
        "digits": lambda size: change(b'{"id":' + repeated(b"9", size) + b"}"),
    },
    "kpl": {
        "records": lambda size: framed(_KEY + repeated(_RECORD, size)),
        "keys and records": lambda size: framed(
            b"".join(
                field(1, b"%d" % n) + field(3, b"\x08" + varint(n) + b"\x1a\x01x") for n in range(size // 18)
            )
        ),
        "groups": lambda size: framed(_KEY + repeated(b"\x3b\x3c", size) + _RECORD),
        "tags of one record": lambda size: framed(
            _KEY + field(3, b"\x08\x00\x1a\x01x" + repeated(_TAG, size))
        ),
        "tags of each record": lambda size: framed(
            _KEY + repeated(field(3, b"\x08\x00\x1a\x01x" + _TAG), size)
        ),
        "an index": lambda size: framed(_KEY + field(3, repeated(b"\x08\x00", size) + b"\x1a\x01x")),
        "data": lambda size: framed(_KEY + field(3, b"\x08\x00" + repeated(b"\x1a\x01x", size))),
        "records without an index": lambda size: framed(_KEY + repeated(b"\x1a\x00", size)),
        "fields that are not known": lambda size: framed(_KEY + repeated(b"\x78\x01", size) + _RECORD),
        "numbers longer than needed": lambda size: framed(
            _KEY + repeated(field(3, b"\x08" + b"\x80" * 9 + b"\x00\x1a\x01x"), size)
        ),
    },
    "qldb": {
        "tables that append": lambda size: _MARKER + repeated(table([b"a"]), size) + _STRUCT,
        "markers and tables": lambda size: repeated(_MARKER + table([b"a"], appends=False), size) + _STRUCT,
        "symbols": lambda size: (
            _MARKER + table([b"%d" % n for n in range(size // 6)], appends=False) + _STRUCT
        ),
        "empty symbols": lambda size: _MARKER + table([b""] * size, appends=False) + _STRUCT,
        "imports": lambda size: (
            _MARKER
            + typed(
                14, b"\x81\x83" + typed(13, b"\x86" + typed(11, repeated(b"\xd6\x84\x81x\x88\x21\x01", size)))
            )
            + _STRUCT
        ),
        "markers": lambda size: repeated(_MARKER, size) + _STRUCT,
        "padding": lambda size: _MARKER + repeated(b"\x00", size) + _STRUCT,
        "lists within lists": lambda size: _MARKER + repeated(b"\xb1", size) + b"\xb0",
        "values": lambda size: _MARKER + typed(13, b"\x84" + typed(11, repeated(b"\x11", size))),
        "fields of one name": lambda size: _MARKER + typed(13, repeated(b"\x84\x0f", size)),
        "annotations": lambda size: _MARKER + typed(14, var_uint(size) + repeated(b"\x84", size) + b"\x0f"),
    },
}
