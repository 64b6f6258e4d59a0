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

Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Words = np.ndarray[Any, np.dtype[np.uint64]]

WORD = 8
"""Bytes compared at once; a text given as words is followed by as many bytes of padding."""

_PIECES = re.compile(rb"[ ]+|[:,{}\[\]]|[^ :,{}\[\]]+")
_OPEN, _CLOSE = b"{[", b"}]"
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


@dataclass(slots=True)
class Run:
    """Bytes that do not vary; they begin `before` bytes before quote `quote`, or before the end for -1.

    Run 0 begins at the record's start, whatever `quote` says.
    """

    quote: int
    before: int
    text: bytes = b""


@dataclass(slots=True)
class Shape:
    """Runs, and slots between them: slot i lies between run i and run i + 1.

    Attributes:
        runs: see `Run`.
        paths: per slot, the names that lead to it.
        is_text: per slot, whether it is the inside of a string.
        images: `before` and `after` where they are objects, each as (run, offset) of its two ends.
    """

    runs: list[Run] = field(default_factory=list)
    paths: list[tuple[str, ...]] = field(default_factory=list)
    is_text: list[bool] = field(default_factory=list)
    images: dict[str, tuple[tuple[int, int], tuple[int, int]]] = field(default_factory=dict)


def shape_of(record: bytes, quotes: list[int]) -> Shape | None:  # noqa: C901, PLR0912 - one scan, told in its order
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
    starts: dict[str, tuple[int, int]] = {}
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
                    if piece == b"{" and name in {"before", "after"}:
                        starts[name] = (len(shape.runs) - 1, len(run.text))
                    path.append("")
                else:
                    path.pop()
                    if len(path) == 1 and path[0] in starts:
                        shape.images[path[0]] = (
                            starts.pop(path[0]),
                            (len(shape.runs) - 1, len(run.text) + 1),
                        )
            elif piece.strip() and piece not in {b":", b","} and tuple(path) not in _FIXED:
                if plain:
                    return None
                plain = True
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
            shape.runs[-1].text += b'"'
            shape.paths.append(tuple(path))
            shape.is_text.append(True)
            shape.runs.append(Run(number + 1, 0, b'"'))
            continue
        shape.runs[-1].text += record[opening:at]
    return shape


@dataclass(slots=True)
class Matched:
    """Records of one shape: which of those offered, and the start and end of their slots and images."""

    rows: Ints
    slots: dict[tuple[str, ...], tuple[Ints, Ints]]
    images: dict[str, tuple[Ints, Ints]]


def match_shape(  # noqa: PLR0917 - parallel arrays
    shape: Shape, words: Words, quotes: Ints, first: Ints, starts: Ints, ends: Ints
) -> tuple[Matched, list[tuple[Ints, Ints]]]:
    """Find the records that have a shape, but for their plain values.

    Args:
        shape: the shape.
        words: the eight bytes that begin at each byte of the text.
        quotes: positions of all quotes of the text.
        first: which of them is each record's first; each record has as many quotes as the shape.
        starts: where each record begins.
        ends: where each record ends.

    Returns:
        The records whose runs are equal, and their spans of plain values, which are still to be checked.
    """
    positions: list[Ints] = []
    kept = np.arange(len(starts))

    def cut(mask: Bools) -> None:
        nonlocal first, starts, ends, kept
        first, starts, ends, kept = first[mask], starts[mask], ends[mask], kept[mask]
        positions[:] = [position[mask] for position in positions]

    for number, run in enumerate(shape.runs):
        if number == 0:
            position = starts
        else:
            position = (ends if run.quote < 0 else quotes[first + run.quote]) - run.before
        positions.append(position)
        same = _same(words, position, run.text)
        if number and not shape.is_text[number - 1]:
            # A plain value needs at least a byte between its runs.
            same &= positions[number - 1] + len(shape.runs[number - 1].text) < position
        if not same.all():
            cut(same)
    same = positions[-1] + len(shape.runs[-1].text) == ends
    if not same.all():
        cut(same)
    slots: dict[tuple[str, ...], tuple[Ints, Ints]] = {}
    plain: list[tuple[Ints, Ints]] = []
    for number, path in enumerate(shape.paths):
        span = (positions[number] + len(shape.runs[number].text), positions[number + 1])
        if shape.is_text[number]:
            slots[path] = span
        else:
            plain.append(span)
            slots[path] = span
    images = {
        name: (positions[begin[0]] + begin[1], positions[past[0]] + past[1])
        for name, (begin, past) in shape.images.items()
    }
    return Matched(kept, slots, images), plain


def _same(words: Words, at: Ints, text: bytes) -> Bools:
    """Whether the text stands at each position."""
    same = np.ones(len(at), bool)
    # A run found from its end may claim to begin before the text does; such a record has another shape.
    if len(at) and at.min() < 0:
        same = at >= 0
        at = np.maximum(at, 0)
    for offset in range(0, len(text), WORD):
        # The last word overlaps the one before it; a text shorter than a word is compared under a mask.
        start = max(min(offset, len(text) - WORD), 0)
        chunk = text[start : start + WORD]
        expected = np.uint64(int.from_bytes(chunk, "little"))
        found = words[at + start if start else at]
        if len(chunk) < WORD:
            found &= np.uint64((1 << (8 * len(chunk))) - 1)
        same &= found == expected
    return same


def are_integers(words: Words, starts: Ints, ends: Ints) -> Bools:
    """Whether each span is a JSON integer of at most 24 digits.

    Args:
        words: as for `match_shape`.
        starts: where the spans begin.
        ends: where they end; no span is empty.
    """
    first = words[starts] & _LOW_BYTE
    begin = starts + (first == ord("-"))
    length = ends - begin
    good: Bools = (length > 0) & (length <= len(_MASKS) - 1)
    first = words[begin]
    good &= (length == 1) | ((first & _LOW_BYTE) != ord("0"))
    longest = int(length.max(initial=0, where=good))
    for offset in range(0, longest, WORD):
        word = words[np.minimum(begin + offset, len(words) - 1)] if offset else first
        mask = _MASKS[np.clip(length - offset, 0, WORD)]
        word = (word & mask) | (_ZEROS & ~mask)
        # A digit is 0x30 … 0x39: its high half is 3, and still is after adding 6.
        good &= ((word & _HIGH_HALVES) == _ZEROS) & (((word + _SIXES) & _HIGH_HALVES) == _ZEROS)
    return good


def are_plain(words: Words, starts: Ints, ends: Ints) -> Bools:
    """Whether each span is `null`, `true`, `false` or an integer; other numbers are left for others to judge.

    Args: as for `are_integers`.
    """
    good = are_integers(words, starts, ends)
    if good.all():
        return good
    first = words[starts]
    four = first & np.uint64(0xFFFFFFFF)
    length = ends - starts
    good |= (length == len(b"null")) & ((four == _word(b"null")) | (four == _word(b"true")))
    good |= (length == len(b"false")) & ((first & np.uint64(0xFFFFFFFFFF)) == _word(b"false"))
    return good


def _word(text: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(text, "little"))


_LOW_BYTE = np.uint64(0xFF)
_ZEROS, _SIXES, _HIGH_HALVES = _word(b"0" * 8), _word(b"\x06" * 8), _word(b"\xf0" * 8)
_MASKS = np.array([(1 << (8 * min(n, WORD))) - 1 for n in range(3 * WORD + 1)], np.uint64)
