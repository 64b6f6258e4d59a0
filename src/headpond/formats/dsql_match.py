"""Compare many records with a shape at once: where its runs stand, and what lies between them.

::

    records of the shape   {"type": … "id": 17, "note": "x"} …      positions   begin of each run, per record
                           {"type": … "id": 4, "note": "abc"} …                 a column per run
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headpond.formats.dsql_shape import WORD, Words

if TYPE_CHECKING:
    from headpond.formats.dsql_shape import End, Run, Shape

Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

PADDING = 4 * WORD
"""Bytes after a text that may be looked at with it."""


class Text:
    """Bytes of a text, looked at by words; `PADDING` bytes of anything follow the text in `bytes`."""

    def __init__(self, content: Bytes) -> None:
        self.bytes = content
        self._windows: dict[int, Any] = {}

    def words(self, at: Ints, count: int) -> Words:
        """The `count` words that begin at each position, a row for each."""
        windows = self._windows.get(count)
        if windows is None:
            size = count * WORD
            # An element of many bytes is copied as one: far faster than a word at a time.
            windows = np.ndarray((len(self.bytes) - size + 1,), f"V{size}", self.bytes.data, 0, (1,))
            self._windows[count] = windows
        found: Words = windows[at].view("<u8").reshape(len(at), count)
        return found

    def same(self, at: Ints, run: Run) -> Bools | None:
        """Whether a run stands at each position; None: at every one."""
        expected, adding, unset = run.compiled()
        count = len(expected)
        if count * WORD > len(self.bytes):
            return np.zeros(len(at), bool)
        # A run found from its end may claim to begin before the text does, or to reach beyond it: such a
        # record has another shape.
        inside = None
        if len(at) and (at.min() < 0 or at.max() + count * WORD > len(self.bytes)):
            inside = (at >= 0) & (at + count * WORD <= len(self.bytes))
            at = np.where(inside, at, 0)
        found = self.words(at, count)
        found ^= expected
        if run.holes:
            found |= found + adding
        if run.holes or len(run.text) % WORD:
            found &= unset
        if not found.any():
            return self._with_first_digits(at, run, inside)
        same: Bools = np.logical_not(found.any(axis=1))
        if inside is not None:
            same &= inside
        return self._with_first_digits(at, run, same)

    def _with_first_digits(self, at: Ints, run: Run, same: Bools | None) -> Bools | None:
        """Also where a field of several digits does not begin with a zero."""
        for start, length in run.holes:
            if length > 1:
                fine = self.bytes[at + start] != ord("0")
                if not fine.all():
                    same = fine if same is None else same & fine
        return same


@dataclass(slots=True)
class Matched:
    """Records of one shape: which of those offered, and where their runs begin, a column for each."""

    shape: Shape
    rows: Ints
    positions: list[Ints]

    def place(self, end: End) -> Ints:
        """Where in the text a place of the shape is."""
        return self.positions[end[0]] + end[1]

    def slot(self, path: tuple[str, ...]) -> tuple[Ints, Ints]:
        """Starts and ends of a slot, without the quotes of a string."""
        return self._slot(self.shape.paths.index(path))

    def digits(self, path: tuple[str, ...]) -> tuple[Ints, Ints]:
        """Starts and ends of a field of digits."""
        start, end = self.shape.digits[path]
        return self.place(start), self.place(end)

    def plain(self) -> list[tuple[Ints, Ints]]:
        """Starts and ends of the slots that hold no string."""
        return [self._slot(number) for number, is_text in enumerate(self.shape.is_text) if not is_text]

    def _slot(self, number: int) -> tuple[Ints, Ints]:
        return self.place((number, len(self.shape.runs[number].text))), self.positions[number + 1]

    def only(self, mask: Bools) -> Matched:
        """The same for some of the records."""
        return Matched(self.shape, self.rows[mask], [position[mask] for position in self.positions])


def match_shape(  # noqa: PLR0917 - parallel arrays
    shape: Shape, text: Text, quotes: Ints, first: Ints, starts: Ints, ends: Ints
) -> Matched:
    """Find the records that have a shape, but for their plain values.

    Args:
        shape: the shape.
        text: the text that holds the records.
        quotes: positions of all quotes of the text.
        first: which of them is each record's first; each record has as many quotes as the shape.
        starts: where each record begins.
        ends: where each record ends.

    Returns:
        The records whose runs are equal; their plain values are still to be checked.
    """
    positions: list[Ints] = []
    kept = np.arange(len(starts))

    def cut(mask: Bools) -> None:
        nonlocal first, ends, kept
        first, ends, kept = first[mask], ends[mask], kept[mask]
        positions[:] = [position[mask] for position in positions]

    for number, run in enumerate(shape.runs):
        if number == 0:
            position = starts
        else:
            position = (ends if run.quote < 0 else quotes[first + run.quote]) - run.before
        positions.append(position)
        same = text.same(position, run)
        if number and not shape.is_text[number - 1]:
            # A plain value needs at least a byte between its runs.
            apart = positions[number - 1] + len(shape.runs[number - 1].text) < position
            if not apart.all():
                same = apart if same is None else same & apart
        if same is not None:
            cut(same)
    at_end = positions[-1] + len(shape.runs[-1].text) == ends
    if not at_end.all():
        cut(at_end)
    return Matched(shape, kept, positions)


def are_integers(text: Text, starts: Ints, ends: Ints) -> Bools:
    """Whether each span is a JSON integer of at most 24 digits.

    Args:
        text: the text that holds the spans.
        starts: where the spans begin.
        ends: where they end; no span is empty.
    """
    first = text.bytes[starts]
    negative = first == ord("-")
    begin = starts
    if negative.any():
        begin = starts + negative
        first = text.bytes[begin]
    length = ends - begin
    good: Bools = (length > 0) & (length <= _MOST_DIGITS)
    good &= (length == 1) | (first != ord("0"))
    longest = int(length.max(initial=0, where=good))
    count = max(-(-longest // WORD), 1)
    digits = text.words(begin, count)
    digits ^= _ZEROS
    digits &= _MASKS[:, :count][np.clip(length, 0, _MOST_DIGITS)]
    # A digit is 0x30 … 0x39: without its zero it has no high half, and has none after adding 6.
    digits |= digits + _SIXES
    digits &= _HIGH_HALVES
    if digits.any():
        good &= ~digits.any(axis=1)
    return good


def are_plain(text: Text, starts: Ints, ends: Ints) -> Bools:
    """Whether each span is `null`, `true`, `false` or an integer; other numbers are left for others to judge.

    Args: as for `are_integers`.
    """
    good = are_integers(text, starts, ends)
    if good.all():
        return good
    odd = np.flatnonzero(~good)
    first = text.words(starts[odd], 1)[:, 0]
    four = first & np.uint64(0xFFFFFFFF)
    length = ends[odd] - starts[odd]
    word = (length == len(b"null")) & ((four == _word(b"null")) | (four == _word(b"true")))
    word |= (length == len(b"false")) & ((first & np.uint64(0xFFFFFFFFFF)) == _word(b"false"))
    good[odd] = word
    return good


def _word(text: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(text, "little"))


_ZEROS, _SIXES, _HIGH_HALVES = _word(b"0" * 8), _word(b"\x06" * 8), _word(b"\xf0" * 8)
_MOST_DIGITS = 3 * WORD
_MASKS = np.array(
    [
        [(1 << (8 * min(max(n - WORD * word, 0), WORD))) - 1 for word in range(_MOST_DIGITS // WORD)]
        for n in range(_MOST_DIGITS + 1)
    ],
    np.uint64,
)
"""Per length of a text, masks of the words it takes."""
