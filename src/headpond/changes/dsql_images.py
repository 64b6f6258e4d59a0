"""The members of change images: cut out where the decoder knows their places, else read one by one."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.formats.dsql_columns import null_tokens_as_null
from headpond.formats.dsql_spans import Members, NameBound
from headpond.formats.json_strict import read_object

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headpond.changes.config import TableSpec
    from headpond.formats.dsql_spans import Spans

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_EMPTY: dict[str, Any] = {}


def members_of(
    decoded: pa.RecordBatch,
    rows: np.ndarray[Any, np.dtype[np.int64]],
    spec: TableSpec,
    spans: Spans | None,
    max_columns: int | None = None,
) -> Members:
    """Give the members of each row's image: `after`, or the key in `before` of a delete.

    Args:
        decoded: rows of `decode_batch`; with `spans` also their numbers in its batch, as `row`.
        rows: which of them, ascending; all `full` and of this table.
        spec: the table; without keys it has `after` images alone.
        spans: where the values of regular records lie.
        max_columns: bound on the names of one image, and of all together; see `NameBound`.
    """
    delete = pc.equal(decoded.column("op"), "d").to_numpy(zero_copy_only=False)[rows]
    delete_image = "before" if spec.keys else "after"
    bound = NameBound(max_columns)
    if spans is None:
        return _read(_texts(decoded, rows, delete, delete_image), bound)
    numbers = decoded.column("row").to_numpy()[rows]
    found = spans.members(numbers, delete, delete_image=delete_image, bound=bound)
    rest = np.flatnonzero(found.codes < 0)
    if not len(rest):
        return found
    return _together(found, _read(_texts(decoded, rows[rest], delete[rest], delete_image), bound), rest)


def _texts(decoded: pa.RecordBatch, rows: Any, delete: Any, delete_image: str) -> pa.Array:
    at = pa.array(rows)
    texts = decoded.column("after").take(at)
    if delete_image != "after" and delete.any():
        texts = pc.if_else(pa.array(delete), decoded.column(delete_image).take(at), texts)
    return texts


def _read(texts: pa.Array, bound: NameBound) -> Members:
    """Read each image."""
    images: list[Mapping[str, Any]] = [
        _EMPTY if text is None else _members(text) for text in texts.cast(pa.binary()).to_pylist()
    ]
    shapes: dict[tuple[str, ...], int] = {}
    codes = np.fromiter(
        (shapes.setdefault(tuple(image), len(shapes)) for image in images), np.int32, len(images)
    )
    refused = {code: why for code, shape in enumerate(shapes) if (why := bound.refuses(shape)) is not None}
    names = dict.fromkeys(
        chain.from_iterable(shape for code, shape in enumerate(shapes) if code not in refused)
    )
    tokens = {name: null_tokens_as_null(_binary([image.get(name) for image in images])) for name in names}
    return Members(list(shapes), codes, tokens, refused)


def _members(text: bytes) -> Mapping[str, Any]:
    try:
        return _MEMBERS.decode(text)
    except RecursionError:  # the strict reader needs no stack; it has read this text before
        read = read_object(text.decode(), max_depth=len(text))
        return {name: token.encode() for name, token in read.items()}


def _together(found: Members, read: Members, rest: np.ndarray[Any, np.dtype[np.int64]]) -> Members:
    """Put the rows that were read among those that were cut out."""
    shapes = {shape: code for code, shape in enumerate(found.shapes)}
    codes = found.codes.copy()
    code_of = [shapes.setdefault(shape, len(shapes)) for shape in read.shapes]
    codes[rest] = np.array(code_of, np.int32)[read.codes]
    refused = found.refused | {code_of[code]: why for code, why in read.refused.items()}
    mask = np.zeros(len(codes), bool)
    mask[rest] = True
    tokens = {}
    listed = list(shapes)
    # Names in order of their first appearance, whichever way their row was read.
    order = np.unique(codes, return_index=True)[1]
    for name in dict.fromkeys(chain.from_iterable(listed[code] for code in codes[np.sort(order)].tolist())):
        mine = found.tokens.get(name)
        if mine is None and name not in read.tokens:
            continue  # only refused images have it
        others = read.tokens.get(name, pa.nulls(len(rest), pa.binary()))
        mine = pa.nulls(len(codes), pa.binary()) if mine is None else mine
        tokens[name] = pc.replace_with_mask(mine, pa.array(mask), others)
    return Members(listed, codes, tokens, refused)


def _binary(values: Sequence[Any]) -> pa.Array:
    """Bytes-like values, or None, as a binary array."""
    contents, validity = values, None
    if None in values:
        present = np.fromiter((value is not None for value in values), np.bool_, len(values))
        contents = [value for value in values if value is not None]
        lengths = np.zeros(len(values), np.int64)
        lengths[present] = np.fromiter(map(len, contents), np.int64, len(contents))
        validity = pa.py_buffer(np.packbits(present, bitorder="little").tobytes())
    else:
        lengths = np.fromiter(map(len, contents), np.int64, len(contents))
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    data = pa.py_buffer(b"".join(contents))
    offsets = offsets.astype(np.int32)  # images of one batch come from one binary array of 31-bit offsets
    return pa.Array.from_buffers(pa.binary(), len(values), [validity, pa.py_buffer(offsets), data])
