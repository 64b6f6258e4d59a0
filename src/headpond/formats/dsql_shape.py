"""The shape of a change record: everything that stays when only its values change.

::

    {"type": "full", "op": "c", … "after": {"id": 17, "note": "x"}, …}       a record the oracle accepted
    ───────────────────────┬ ┬────────────────────┬──┬──────────┬ ┬────
          run 0            │o│      run           │17│   run    │x│         runs are equal in every record
                           └slot                  └slot        └slot       slots vary

A record of the same shape has the same bytes in every run, and in each slot a string or a plain value. Then
it has the same names and the same nesting, so it is valid, repeats no name, and each of its fields is where
the shape says. Nothing else needs to be proven, and comparing runs is a handful of NumPy operations for all
records at once.

The quotes of a record (those not escaped) are its ruler: run 0 begins at the record's start, a run after a
string begins at the string's closing quote, a run after a plain value begins at a known distance before the
next quote, or before the record's end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Words = np.ndarray[Any, np.dtype[np.uint64]]

WORD = 8
"""Bytes compared at once."""

_PIECES = re.compile(rb"[ ]+|[:,{}\[\]]|[^ :,{}\[\]]+")
# Times: their lengths do not vary, so they are looked at together with what surrounds them.
_DIGITS = frozenset({("ts_ms",), ("ts_ns",), ("source", "ts_ms"), ("source", "ts_ns")})
_IS_NATURAL = re.compile(rb"0|[1-9][0-9]{0,18}")
_OPEN = b"{["
_IMAGES = ("before", "after")
_MEMBER = 2  # how many names lead to a value in an image
# Values the meaning of the record hangs on, or that hardly vary among records with the same columns: they are
# part of the runs, so every record of the shape shares them.
_FIXED = frozenset(
    {
        ("type",),
        ("before",),
        ("after",),
        *(("source", name) for name in ("version", "schema", "table", "cluster", "db")),
    }
)


End = tuple[int, int]
"""A place in every record of a shape: a run, and the offset from its begin."""


@dataclass
class Run:
    """Bytes that do not vary; they begin `before` bytes before quote `quote`, or before the end for -1.

    Run 0 begins at the record's start, whatever `quote` says. Within a run may be fields of digits that
    vary, as many in every record: `text` has a zero for each, and `holes` tells where they are (offset,
    length).
    """

    quote: int
    before: int
    text: bytes = b""
    holes: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._compiled: tuple[Words, Words, Words] | None = None

    def compiled(self) -> tuple[Words, Words, Words]:
        """Words of the text; what is to be added to a difference; which bits of it must then be unset."""
        if self._compiled is None:
            size = -(-len(self.text) // WORD) * WORD
            more, bad = bytearray(size), bytearray(b"\xff" * len(self.text)).ljust(size, b"\0")
            for start, length in self.holes:
                # A digit differs from a zero by 0 … 9: no high half, and none after adding 6.
                more[start : start + length] = b"\x06" * length
                bad[start : start + length] = b"\xf0" * length
            text = self.text.ljust(size, b"\0")
            expected, adding, unset = (np.frombuffer(bytes(part), "<u8") for part in (text, more, bad))
            self._compiled = expected, adding, unset
        return self._compiled


@dataclass(slots=True)
class Shape:
    """Runs, and slots between them: slot i lies between run i and run i + 1.

    Attributes:
        runs: see `Run`.
        paths: per slot, the names that lead to it.
        is_text: per slot, whether it is the inside of a string.
        images: `before` and `after` where they are objects, each by its two ends.
        digits: by path the fields of digits within runs.
        members: the values in these objects, each by (image, name) and its two ends, quotes included.
    """

    runs: list[Run] = field(default_factory=list)
    paths: list[tuple[str, ...]] = field(default_factory=list)
    is_text: list[bool] = field(default_factory=list)
    images: dict[str, tuple[End, End]] = field(default_factory=dict)
    members: dict[tuple[str, str], tuple[End, End]] = field(default_factory=dict)
    digits: dict[tuple[str, ...], tuple[End, End]] = field(default_factory=dict)

    def note(self, path: list[str], start: End, end: End) -> None:
        """Keep the ends of an image or of a value in one; other values are not asked for."""
        if path and path[0] in _IMAGES:
            if len(path) == 1:
                self.images[path[0]] = (start, end)
            elif len(path) == _MEMBER:
                self.members[path[0], path[1]] = (start, end)


def shape_of(record: bytes, quotes: list[int]) -> Shape | None:  # noqa: C901, PLR0912, PLR0915 - one scan, told in its order
    """Take the shape of a record that the oracle accepted as `full`.

    Args:
        record: the record, without control characters.
        quotes: offsets of its quotes that are not escaped.

    Returns:
        The shape, or None where the runs could not be found again by quotes: two plain values without a
        string between them, or a name with an escape.
    """
    shape = Shape(runs=[Run(0, 0)])
    path: list[str] = []  # one name per open container; "" in an array and where no name came yet
    starts: dict[int, End] = {}  # of open containers, by their depth
    at = 0
    for number in range(0, len(quotes) + 1, 2):
        last = number >= len(quotes)
        gap_end = len(record) if last else quotes[number]
        plain = False
        for match in _PIECES.finditer(record, at, gap_end):
            piece = match[0]
            run = shape.runs[-1]
            if piece in b"{}[]" and len(piece) == 1:
                name = path[0] if len(path) == 1 else ""
                if piece in _OPEN:
                    if (piece == b"{" and name in _IMAGES) or (len(path) == _MEMBER and path[0] in _IMAGES):
                        starts[len(path)] = (len(shape.runs) - 1, len(run.text))
                    path.append("")
                else:
                    path.pop()
                    if (start := starts.pop(len(path), None)) is not None:
                        shape.note(path, start, (len(shape.runs) - 1, len(run.text) + 1))
            elif piece.strip() and piece not in {b":", b","} and tuple(path) not in _FIXED:
                if tuple(path) in _DIGITS and _IS_NATURAL.fullmatch(piece):
                    begin = len(run.text)
                    shape.digits[tuple(path)] = (
                        (len(shape.runs) - 1, begin),
                        (len(shape.runs) - 1, begin + len(piece)),
                    )
                    run.holes.append((begin, len(piece)))
                    run.text += b"0" * len(piece)
                    continue
                if plain:
                    return None
                plain = True
                shape.note(path, (len(shape.runs) - 1, len(run.text)), (len(shape.runs), 0))
                shape.paths.append(tuple(path))
                shape.is_text.append(False)
                shape.runs.append(Run(-1 if last else number, gap_end - match.end()))
                continue
            run.text += piece
        if last:
            break
        opening, closing = quotes[number], quotes[number + 1]
        content = record[opening + 1 : closing]
        at = closing + 1
        if record[at:].lstrip(b" ").startswith(b":"):
            if b"\\" in content:
                return None
            path[-1] = content.decode()
        elif tuple(path) not in _FIXED:
            shape.note(path, (len(shape.runs) - 1, len(shape.runs[-1].text)), (len(shape.runs), 1))
            shape.runs[-1].text += b'"'
            shape.paths.append(tuple(path))
            shape.is_text.append(True)
            shape.runs.append(Run(number + 1, 0, b'"'))
            continue
        shape.runs[-1].text += record[opening:at]
    return shape
