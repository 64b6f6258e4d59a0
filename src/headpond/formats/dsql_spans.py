"""Where the values of images lie in the bytes of a batch: their raw tokens without reading an image again.

::

    data     … "after":{"id":17,"note":"x"} …        records of one shape are a part;
                        ──      ───                   a member of its images lies between two places of the
                       start   end                    shape, so its spans are two columns of positions
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headpond.formats.dsql_columns import bytes_of, offsets_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headpond.formats.dsql_match import Bools, Ints, Matched

_LETTER_N = ord("n")


@dataclass(frozen=True, slots=True)
class Members:
    """The members of an image of each row.

    Attributes:
        shapes: different lists of names, in the order of the records.
        codes: per row, which of these it has; -1 where nothing is known of it.
        tokens: per name the raw tokens, names in order of first appearance; null where a row lacks the name
            or it is JSON `null`. What only refused shapes name is left out.
        refused: the codes of shapes that a bound refuses, with the reason.
    """

    shapes: list[tuple[str, ...]]
    codes: np.ndarray[Any, np.dtype[np.int32]]
    tokens: dict[str, pa.Array]
    refused: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class NameBound:
    """How many columns a batch may name: each name becomes an array over all its rows, and a column.

    Attributes:
        most: of one image, and of all images that are not refused; null: any number.
        names: of those that were let in.
    """

    most: int | None = None
    names: set[str] = field(default_factory=set)

    def refuses(self, shape: Sequence[str]) -> str | None:
        """Let the names of a shape in, or say why not."""
        if self.most is None:
            return None
        if len(shape) > self.most:
            return f"the image names {len(shape)} columns, more than {self.most}"
        new = [name for name in shape if name not in self.names]
        if len(self.names) + len(new) > self.most:
            return (
                f"the image names {len(new)} columns beside the {len(self.names)} of others of its batch; "
                f"together they are more than {self.most}"
            )
        self.names.update(new)
        return None


@dataclass(slots=True)
class _Part:
    matched: Matched
    base: int  # of the positions in the bytes of the batch


@dataclass(slots=True)
class Spans:
    """Spans of all images of a batch that has regular records.

    Args:
        data: the records, as `decode_batch` got them.
    """

    data: pa.Array
    parts: list[_Part] = field(default_factory=list)
    _part: np.ndarray[Any, np.dtype[np.int32]] = field(init=False)
    _place: np.ndarray[Any, np.dtype[np.int32]] = field(init=False)

    def __post_init__(self) -> None:
        self._part = np.full(len(self.data), -1, np.int32)
        self._place = np.zeros(len(self.data), np.int32)

    def add(self, matched: Matched, rows: Ints, base: int) -> None:
        """Note a part: `rows` are its records' numbers in the batch, `base` is where its text begins."""
        self._part[rows] = len(self.parts)
        self._place[rows] = np.arange(len(rows))
        self.parts.append(_Part(matched, base))

    def members(
        self, rows: Ints, is_delete: Bools, *, delete_image: str, bound: NameBound | None = None
    ) -> Members:
        """Give the members of each row's image.

        Args:
            rows: numbers of records, ascending.
            is_delete: which of them are deletes.
            delete_image: whose image of a delete is wanted; `after` of all others.
            bound: on the names; without one there is none.
        """
        bound = bound or NameBound()
        part_of = self._part[rows]
        homes = offsets_of(self.data)[:-1][rows]
        shapes: dict[tuple[str, ...], int] = {}
        refused: dict[int, str] = {}
        codes = np.full(len(rows), -1, np.int32)
        starts: dict[str, np.ndarray[Any, np.dtype[np.int32]]] = {}
        ends: dict[str, np.ndarray[Any, np.dtype[np.int32]]] = {}
        numbers, firsts = np.unique(part_of, return_index=True)
        for number in numbers[np.argsort(firsts)].tolist():
            if number < 0:
                continue
            part = self.parts[number]
            at = np.flatnonzero(part_of == number)
            place = self._place[rows[at]]
            # All records of a shape are deletes, or none is.
            image = delete_image if is_delete[at[0]] else "after"
            found = {name: at for (whose, name), at in part.matched.shape.members.items() if whose == image}
            names = tuple(found)
            if names not in shapes and (why := bound.refuses(names)) is not None:
                refused[len(shapes)] = why
            code = codes[at] = shapes.setdefault(names, len(shapes))
            if code in refused:
                continue
            for name, (start, end) in found.items():
                if name not in starts:
                    starts[name], ends[name] = homes.copy(), homes.copy()
                starts[name][at] = part.matched.place(start)[place] + part.base
                ends[name][at] = part.matched.place(end)[place] + part.base
        tokens = {name: self._cut(starts[name], ends[name]) for name in starts}
        return Members(list(shapes), codes, tokens, refused)

    def _cut(self, starts: Any, ends: Any) -> pa.Array:
        """Tokens between ascending places; null where one is empty or `null`."""
        content = bytes_of(self.data)
        # No other JSON value begins with an n.
        there = (starts < ends) & (content[np.minimum(starts, len(content) - 1)] != _LETTER_N)
        cuts = np.empty(2 * len(starts) + 1, np.int32)
        cuts[0:-1:2], cuts[1::2], cuts[-1] = starts, np.where(there, ends, starts), len(content)
        pieces = pa.Array.from_buffers(
            pa.binary(), len(cuts) - 1, [None, pa.py_buffer(cuts), self.data.buffers()[2]]
        )
        tokens = pieces.take(pa.array(np.arange(0, len(cuts) - 1, 2, dtype=np.int64)))
        if there.all():
            return tokens
        validity = pa.py_buffer(np.packbits(there, bitorder="little").tobytes())
        return pa.Array.from_buffers(pa.binary(), len(tokens), [validity, *tokens.buffers()[1:]])
