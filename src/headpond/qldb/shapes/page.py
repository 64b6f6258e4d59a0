"""Ion binary of many datums in one buffer, and scalars of all of them read at once.

::

    data    ... datum 0 ........ datum 1 ........ datum 2 ...      one buffer, some bytes of padding behind
    body    [     4,               310,             602 ]          where a scalar lies in each datum
    stop    [    12,               318,             604 ]

What is unusual is not read here but marked, for a reader that takes it one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.arrow import Bools, Bytes, Ints, Words, bytes_of, distinct, offsets_of, slices

PADDING = 16
"""Bytes behind the last datum, so that a word can be read at any place."""
_YEAR, _FRACTION_AT = 3, 8
_NS = 1_000_000_000
_TENS = 10 ** np.arange(10, dtype=np.int64)
_Z = 0x80
_ESCAPED = np.isin(np.arange(256), (0x0B, 0x0C, 0x0E))


@dataclass(frozen=True)
class Page:
    """The bytes of a batch."""

    buffer: pa.Buffer
    data: Bytes
    words: Words
    """The eight bytes from each place on, the first one least."""

    @classmethod
    def of(cls, parts: Bytes) -> Page:
        """Copy bytes into a page, with padding."""
        size = len(parts)
        data = np.zeros(size + PADDING, np.uint8)
        data[:size] = parts
        words = np.ndarray((size + PADDING - 7,), "<u8", buffer=data, strides=(1,))
        return cls(pa.py_buffer(data), data, words)

    @cached_property
    def raw(self) -> bytes:
        """The bytes, for work on one at a time."""
        return self.data.tobytes()

    @cached_property
    def markers(self) -> Ints:
        """Where the bytes lie that the Ion hash escapes, ascending."""
        found: Ints = np.flatnonzero(_ESCAPED[self.data])
        return found

    def pieces(self, body: Ints, stop: Ints) -> pa.Array:
        """Return the bytes [body, stop) of each datum; body ascends."""
        return slices(self.buffer, body, stop)

    def fixed(self, body: Ints, width: int) -> pa.Array:
        """`width` bytes from each place on."""
        raw = self.data[body[:, np.newaxis] + np.arange(width)]
        return pa.Array.from_buffers(
            pa.binary(width), len(body), [None, pa.py_buffer(np.ascontiguousarray(raw))]
        )

    def unsigned(self, body: Ints, stop: Ints) -> tuple[Ints, Bools]:
        """Unsigned integers, most significant byte first, and which are at most 2⁶³ - 1 in eight bytes."""
        length = stop - body
        good = length <= 8
        shift = np.where(good & (length > 0), 64 - 8 * length, 0).astype(np.uint64)
        value = np.where(length == 0, np.uint64(0), self.words[body].byteswap() >> shift)
        good &= value < np.uint64(1 << 63)
        return value.astype(np.int64), good


def pages(blobs: Any, page_bytes: int) -> Iterator[tuple[int, Bytes, Ints]]:
    """Cut binary without nulls into pieces of at most this many bytes, or of one datum.

    Yields:
        The position of its first datum, its bytes, where in them each datum begins and the last one ends.
    """
    first = 0
    for chunk in blobs.chunks if isinstance(blobs, pa.ChunkedArray) else [blobs]:
        if len(chunk) == 0:
            continue
        offsets, raw = offsets_of(chunk), bytes_of(chunk)
        low = 0
        while low < len(chunk):
            reach = np.searchsorted(offsets, offsets[low].astype(np.int64) + page_bytes, side="right")
            high = min(max(int(reach) - 1, low + 1), len(chunk))
            start, end = int(offsets[low]), int(offsets[high])
            yield first + low, raw[start:end], offsets[low : high + 1].astype(np.int64) - start
            low = high
        first += len(chunk)


class Timestamps(NamedTuple):
    """Timestamps read at once; only those that are `usual` have a meaning."""

    usual: Bools
    ns: Ints
    """Nanoseconds since 1970 UTC."""
    minimal: Bools
    """Encoded as the Ion hash wants them."""
    digits: Ints
    """Of the fraction of a second."""
    zulu: Bools
    """With an offset of zero, and seconds."""


def timestamps(page: Page, body: Ints, stop: Ints) -> Timestamps:
    """Read timestamps: usual ones have years 2 to 9998 and up to nine digits of a second."""
    data = page.data
    length = stop - body
    offset, high = data[body].astype(np.int64), data[body + 1].astype(np.int64)
    two = offset < _Z  # an offset of two bytes: more than 63 minutes
    minutes = np.where(two, (offset & 0x3F) << 7 | high & 0x7F, offset & 0x3F)
    usual = (~two | (high >= _Z)) & (minutes < 1440)
    minimal_offset = ~two | (minutes > 0x3F)
    body = body + two
    length = length - two
    high, low = data[body + 1].astype(np.int64), data[body + 2].astype(np.int64)
    usual &= (length >= _YEAR) & (high < _Z) & (high > 0) & (low >= _Z) & (length != 6)
    year = high << 7 | low & 0x7F
    usual &= (year > 1) & (year < 9999)
    fields = []
    for number, least in enumerate((1, 1, 0, 0, 0)):
        raw = data[body + _YEAR + number].astype(np.int64)
        there = length > _YEAR + number
        usual &= ~there | (raw >= _Z)
        fields.append(np.where(there, raw & 0x7F, least))
    month, day, hour, minute, second = fields
    months = (year - 1970) * 12 + month - 1
    days = _days(months) + day - 1
    usual &= (month >= 1) & (month <= 12) & (day >= 1) & (days < _days(months + 1))
    usual &= (hour < 24) & (minute < 60) & (second < 60)
    there = length > _FRACTION_AT
    exponent = data[body + _FRACTION_AT]
    digits = np.where(there, exponent & 0x3F, 0).astype(np.int64)
    usual &= ~there | ((exponent > 0xC0) & (digits <= 9))
    digits = np.minimum(digits, 9)
    first = body + _FRACTION_AT + 1
    stop = np.maximum(stop, first)
    fraction, fits = page.unsigned(np.where(there, first, body), np.where(there, stop, body))
    # The first bit of the coefficient is its sign.
    usual &= ~there | (fits & ((stop == first) | (data[first] < _Z)) & (fraction < _TENS[digits]))
    fraction = np.where(usual, fraction, 0)
    minimal = ~there | ((stop == first) & (digits > 0)) | ((fraction > 0) & (data[first] > 0))
    minimal |= there & (stop - first > 1) & (data[first] == 0) & (data[first + 1] >= _Z)
    minimal &= minimal_offset
    usual &= (days > -106_000) & (days < 106_000)
    days = np.where(usual, days, 0)
    seconds = days * 86_400 + hour * 3600 + minute * 60 + second
    zulu = (offset == _Z) & (length >= _FRACTION_AT)
    return Timestamps(usual, seconds * _NS + fraction * _TENS[9 - digits], minimal, digits, zulu)


def _days(months: Ints) -> Ints:
    """Days since 1970 of the first ones of months since then."""
    return months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)


def timestamp_texts(times: Timestamps) -> pa.Array:
    """Text of timestamps that are usual and `zulu`; of others, nothing of use."""
    whole = pa.array(times.ns).cast(pa.timestamp("ns")).cast(pa.string())  # 2019-09-18 17:00:14.601000001
    whole = pc.replace_substring(whole, " ", "T")
    texts = whole
    for digits in distinct(times.digits).tolist():
        cut = pc.utf8_slice_codeunits(whole, 0, 20 + digits if digits else 19)
        texts = pc.if_else(pa.array(times.digits == digits), cut, texts)
    return pc.binary_join_element_wise(texts, "Z", "")
