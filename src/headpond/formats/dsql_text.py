r"""The bytes of a batch of JSON texts seen at once: words, quotes, and which texts are regular.

A text is regular when it is UTF-8, holds no control character, and each of its escapes is one of the simple
ones (`\"`, `\\`, `\/`, `\b`, `\f`, `\n`, `\r`, `\t`). Then its quotes that are not escaped are the ends of
its strings, if it is JSON at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.formats.dsql_columns import bytes_of, offsets_of
from headpond.formats.dsql_match import PADDING, Bools, Bytes, Ints, Text, are_plain
from headpond.formats.dsql_shape import WORD

if TYPE_CHECKING:
    from collections.abc import Iterator

_QUOTE, _BACKSLASH, _SPACE, _HIGH = ord('"'), ord("\\"), 0x20, 0x80
_SIMPLE = np.zeros(256, bool)
_SIMPLE[list(b'"\\/bfnrt')] = True
_NUMBER = r"\A-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?\z"


class Room:
    """Memory for the bytes of a batch, kept for the next: fresh memory costs more than a look at it."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)
        self._found = np.empty(0, bool)

    def of(self, size: int) -> tuple[Bytes, Bools]:
        """Give room for `size` bytes and `PADDING`, and for a mask of the former."""
        if len(self._found) < size:
            self._bytes, self._found = np.empty(size + PADDING, np.uint8), np.empty(size, bool)
        return self._bytes[: size + PADDING], self._found[:size]


class BatchText:
    """One view of all texts; positions count from the first byte of the first text.

    Args:
        data: binary array without nulls.
        room: memory to work in; used again by the next batch.
    """

    def __init__(self, data: pa.Array, room: Room) -> None:
        offsets = offsets_of(data).astype(np.int64)
        size = int(offsets[-1] - offsets[0])
        self.bytes, found = room.of(size)
        self.bytes[:size] = bytes_of(data)[offsets[0] : offsets[-1]]
        self.bytes[size:] = 0
        self.size = size
        self.view = Text(self.bytes)
        self.starts: Ints = offsets[:-1] - offsets[0]
        self.ends: Ints = offsets[1:] - offsets[0]
        text = self.bytes[:size]
        irregular = np.zeros(len(self.starts), bool)
        if text.min(initial=_SPACE) < _SPACE:
            self._mark(irregular, np.flatnonzero(text < _SPACE))
        if text.max(initial=0) >= _HIGH and not _is_utf8(data):
            self._mark(irregular, np.flatnonzero(text >= _HIGH))
        self._backslashes: Ints = _rare(np.equal(text, _BACKSLASH, out=found))
        self._has_escape = np.zeros(len(self.starts), bool)
        if len(self._backslashes):
            self._mark(self._has_escape, self._backslashes)
            escaped = _escaped(self._backslashes)
            self._mark(irregular, escaped[~_SIMPLE[self.bytes[escaped]]])
            escaped = escaped[escaped < size]
        is_quote = np.equal(text, _QUOTE, out=found)
        if len(self._backslashes):
            is_quote[escaped] = False
        quotes = np.flatnonzero(is_quote)
        self.quotes: Ints = quotes
        borders = np.searchsorted(quotes, offsets - offsets[0])
        self.first_quote: Ints = borders[:-1]
        self._quote_counts: Ints = np.diff(borders)
        self._regular: Bools = ~irregular & (self._quote_counts % 2 == 0) & (self._quote_counts > 0)

    def _mark(self, irregular: Bools, positions: Ints) -> None:
        if len(positions):
            irregular[np.searchsorted(self.starts, positions, side="right") - 1] = True

    def by_quotes(self) -> Iterator[tuple[int, Ints]]:
        """Regular texts by their number of quotes: that number, and the texts' numbers."""
        counts = np.where(self._regular, self._quote_counts, 0)
        order = np.argsort(counts, kind="stable")
        different, begins = np.unique(counts[order], return_index=True)
        for count, rows in zip(different.tolist(), np.split(order, begins[1:]), strict=True):
            if count:
                yield count, rows

    def record(self, row: int) -> bytes:
        """One text."""
        return self.bytes[self.starts[row] : self.ends[row]].tobytes()

    def is_literal(self, rows: Ints, starts: Ints, ends: Ints) -> Bools:
        """Whether the insides of strings, one of each text, stand for themselves: no escapes."""
        literal = ~self._has_escape[rows]
        if not literal.all():
            at = np.flatnonzero(~literal)
            before, after = (np.searchsorted(self._backslashes, border[at]) for border in (starts, ends))
            literal[at] = before == after
        return literal

    def all_plain(self, spans: list[tuple[Ints, Ints]], count: int) -> Bools:
        """Per text, whether each of its spans is one JSON number or word."""
        good = np.ones(count, bool)
        if not spans or not count:
            return good
        start, end = (np.concatenate([span[side] for span in spans]) for side in (0, 1))
        plain = are_plain(self.view, start, end)
        if not plain.all():
            odd = np.flatnonzero(~plain)
            odd = odd[np.argsort(start[odd])]
            numbers = pc.match_substring_regex(self.cut(start[odd], end[odd]), _NUMBER)
            plain[odd] = numbers.to_numpy(zero_copy_only=False)
        good &= plain.reshape(len(spans), count).all(axis=0)
        return good

    def cut(self, starts: Ints, ends: Ints) -> pa.Array:
        """Pieces of the text, in ascending order, as strings."""
        cuts = np.empty(2 * len(starts) + 1, np.int32)
        cuts[0:-1:2], cuts[1::2], cuts[-1] = starts, ends, self.size
        pieces = pa.Array.from_buffers(
            pa.string(), len(cuts) - 1, [None, pa.py_buffer(cuts), pa.py_buffer(self.bytes)]
        )
        return pieces.take(pa.array(np.arange(0, len(cuts) - 1, 2, dtype=np.int64)))


def _rare(found: Bools) -> Ints:
    """Where a mask is set that is so in few words."""
    whole = len(found) // WORD * WORD
    words = np.flatnonzero(found[:whole].view(np.uint64) != 0)
    at = (words[:, None] * WORD + np.arange(WORD)).reshape(-1)
    at = np.concatenate([at, np.arange(whole, len(found))])
    rare: Ints = at[found[at]]
    return rare


def _is_utf8(data: pa.Array) -> bool:
    try:
        data.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _escaped(backslashes: Ints) -> Ints:
    """Positions of the bytes that a backslash escapes: of a run of backslashes, every second one."""
    begins = np.ones(len(backslashes), bool)
    begins[1:] = np.diff(backslashes) > 1
    run = np.maximum.accumulate(np.where(begins, backslashes, 0))
    escaping: Ints = backslashes[(backslashes - run) % 2 == 0]
    return escaping + 1
