"""Records that were read: a row of facts for each, and the members of its images.

All tokens of the images lie in one array, row by row, and `Images` says where those of each row are::

    after   {"id":17,"note":"x"}   {"id":18}        images
    tokens    17     "x"             18             flat
    starts    0                      2              of each image; its names are `shapes[codes[image]]`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.arrow import Bools, Ints, int64_array, mask_of, offsets_of, ranges, valid
from headpond.core.formats import NameBound
from headpond.core.schemas import whole
from headpond.dsql.columns import counts_between, first_bytes
from headpond.dsql.strict_json import is_strict

DECODED_SCHEMA = pa.schema(
    [
        pa.field("verdict", pa.string(), nullable=False),  # full | chunked | fragment | quarantine
        pa.field("reason", pa.string()),  # of a quarantine
        pa.field("detail", pa.string()),
        pa.field("op", pa.string()),
        pa.field("schema", pa.string()),
        pa.field("table", pa.string()),
        pa.field("cluster", pa.string()),
        pa.field("version", pa.string()),
        pa.field("ts_ns", pa.int64()),
        pa.field("tx_id", pa.string()),
        pa.field("sent_ns", pa.int64()),
        pa.field("before", pa.string()),  # raw JSON text of an object
        pa.field("after", pa.string()),
        pa.field("before_chunk_id", pa.string()),  # of a main record
        pa.field("before_total_fragments", pa.int64()),
        pa.field("before_crc32c", pa.uint32()),
        pa.field("after_chunk_id", pa.string()),
        pa.field("after_total_fragments", pa.int64()),
        pa.field("after_crc32c", pa.uint32()),
        pa.field("chunk_id", pa.string()),  # of a fragment
        pa.field("fragment_index", pa.int64()),
        pa.field("fragment_data", pa.string()),
    ]
)
"""What `decode_batch` gives: one row per record, in order."""


_IMAGES = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


@dataclass(slots=True)
class Members:
    """The members of an image of each row.

    Attributes:
        shapes: different lists of names, in the order of the records.
        codes: per row, which of these it has.
        tokens: per name which token each row has, names in order of first appearance; -1 where it lacks the
            name or that is JSON `null`. What refused shapes name is left out.
        refused: the codes of shapes that a bound refuses, with the reason.
    """

    shapes: list[tuple[str, ...]]
    codes: np.ndarray[Any, np.dtype[np.int32]]
    tokens: dict[str, Ints]
    refused: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class Images:
    """The images of a batch, read.

    Attributes:
        place: per row and kind of image, its number; 0, an empty one, where there is none.
        shapes: different lists of names.
        codes: per image, which of these it has.
        starts: per image, where its tokens begin.
        tokens: the raw tokens of all images, binary; null for JSON `null`.
        there: which of these are not null.
    """

    place: dict[str, Ints]
    shapes: list[tuple[str, ...]]
    codes: Ints
    starts: Ints
    tokens: pa.Array
    there: Bools

    @classmethod
    def of_columns(cls, columns: Mapping[str, pa.Array]) -> Images:
        """Return images, each the `after` of a row, from the tokens of their members, column by column."""
        width, count = len(columns), len(next(iter(columns.values())))
        by_row = np.arange(width * count).reshape(width, count).T.ravel()
        tokens = pa.concat_arrays([whole(column) for column in columns.values()]).take(int64_array(by_row))
        rows = np.arange(count)
        place, codes = {"before": rows, "after": rows}, np.zeros(count, np.int64)
        return cls(place, [tuple(columns)], codes, rows * width, tokens, valid(tokens))

    def of(self, rows: Ints) -> Images:
        """Return the images of some rows, in that order."""
        place = {kind: numbers[rows] for kind, numbers in self.place.items()}
        return replace(self, place=place)

    def of_rows(self, values: Ints) -> Ints:
        """Return the sum per row of a value per image."""
        return values[self.place["before"]] + values[self.place["after"]]

    def quotes(self) -> Ints:
        """Return per image how many quotes its members have, written without escapes in names."""
        borders = offsets_of(self.tokens)[np.append(self.starts, len(self.tokens))]
        names = np.fromiter(map(len, self.shapes), np.int64, len(self.shapes))
        return 2 * names[self.codes] + counts_between(self.tokens, borders, ord('"'))

    def repeating(self, rows: int) -> Ints:
        """Return per image of the first rows whether an object within one of its values repeats a name."""
        found = np.zeros(len(self.codes), np.int64)
        asked = found.copy()
        for place in self.place.values():
            asked[place[:rows]] = 1
        first = first_bytes(self.tokens)
        sizes = np.diff(np.append(self.starts, len(self.tokens)))
        nested = np.flatnonzero(((first == ord("{")) | (first == ord("["))) & (np.repeat(asked, sizes) == 1))
        texts = self.tokens.take(pa.array(nested)).cast(pa.string()).to_pylist()
        if is_strict(f"[{','.join(texts)}]"):
            return found
        for token, text in zip(nested.tolist(), texts, strict=True):
            if not is_strict(text):
                found[np.searchsorted(self.starts, token, side="right") - 1] = 1
        return found

    def members(self, rows: Ints, is_delete: Bools, *, delete_image: str, max_columns: int | None) -> Members:
        """Return the members of each row's image: of a delete `delete_image`, of all others `after`.

        `rows` ascend; `max_columns` bounds the names of one image, and of all together; see `NameBound`.
        """
        image = np.where(is_delete, self.place[delete_image][rows], self.place["after"][rows])
        encoded = int64_array(self.codes[image]).dictionary_encode()
        shapes = [self.shapes[code] for code in encoded.dictionary.to_pylist()]
        codes = encoded.indices.to_numpy()
        bound = NameBound(max_columns, "the image names {} columns")
        refused = {
            code: why for code, shape in enumerate(shapes) if (why := bound.refuses(shape)) is not None
        }
        tokens = self._columns(image, [() if code in refused else s for code, s in enumerate(shapes)], codes)
        return Members(shapes, codes, tokens, refused)

    def _columns(self, image: Ints, shapes: list[tuple[str, ...]], codes: Any) -> dict[str, Ints]:
        """Return which token each of these images has, by name; they are of these shapes."""
        numbers: dict[str, int] = {}
        names = [numbers.setdefault(name, len(numbers)) for name in chain.from_iterable(shapes)]
        sizes = np.fromiter(map(len, shapes), np.int64, len(shapes))
        counts = sizes[codes]
        # Of each token of these images: its row, its place in `tokens`, and the number of its name.
        row = np.repeat(np.arange(len(image)), counts)
        token = ranges(self.starts[image], counts)
        token[~self.there[token]] = -1
        kind = np.int16 if len(numbers) < 2**15 else np.int32
        name = np.array(names, kind)[ranges((np.cumsum(sizes) - sizes)[codes], counts)]
        by_name = np.argsort(name, kind="stable")  # by radix for 16 bits, many times faster
        borders = np.searchsorted(name[by_name], np.arange(len(numbers) + 1))
        columns = {}
        for text, number in numbers.items():
            mine = by_name[borders[number] : borders[number + 1]]
            columns[text] = np.full(len(image), -1)
            columns[text][row[mine]] = token[mine]
        return columns


def images_of(rows: pa.RecordBatch) -> Images:
    """Read the images of rows of `DECODED_SCHEMA`: objects that were read as valid before."""
    place: dict[str, Ints] = {}
    texts = [pa.array(["[{}"])]  # with the last one they make a list when joined
    for kind in ("before", "after"):
        column = rows.column(kind)
        there = pc.is_valid(column).to_numpy(zero_copy_only=False)
        place[kind] = np.where(there, sum(map(len, texts)) + np.cumsum(there) - 1, 0)
        texts.append(column.drop_null() if column.null_count else column)
    found = pa.concat_arrays([*texts, pa.array(["{}]"])])
    joined = pc.binary_join(pa.ListArray.from_arrays([0, len(found)], found), ",")[0].as_buffer()
    images = _IMAGES.decode(joined)
    shapes: dict[tuple[str, ...], int] = {}
    codes = np.array([shapes.setdefault(tuple(image), len(shapes)) for image in images], np.int64)
    sizes = np.fromiter(map(len, shapes), np.int64, len(shapes))[codes]
    tokens = as_binary(list(chain.from_iterable(map(dict.values, images))))
    there = first_bytes(tokens) != ord("n")  # no other JSON value than null begins so
    return Images(place, list(shapes), codes, np.cumsum(sizes) - sizes, masked(tokens, there), there)


def as_binary(values: Sequence[Any], kind: pa.DataType | None = None) -> pa.Array:
    """Return bytes-like values, cut from one binary array, as such an array, or as text known to be UTF-8."""
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(kind or pa.binary(), len(values), buffers)


def masked(values: pa.Array, there: Bools) -> pa.Array:
    """Return an array that has no nulls with nulls where nothing is there, on the same bytes."""
    if there.all():
        return values
    return pa.Array.from_buffers(values.type, len(values), [mask_of(there), *values.buffers()[1:]])


@dataclass(frozen=True, slots=True)
class OpenedBatch:
    """Records read: their rows of `DECODED_SCHEMA`, and the members of the images in them."""

    rows: pa.RecordBatch
    images: Images
