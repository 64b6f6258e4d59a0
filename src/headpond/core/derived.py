"""Columns that follow from another one, by which tables are dealt out: `day(created_at)`.

::

    day(created_at)       created_at_day      date   2026-07-09
    month(created_at)     created_at_month    text   2026-07
    hour(created_at)      created_at_hour     text   2026-07-09-14
    bucket(16, customer)  customer_bucket     int    CRC-32 of the value's text, modulo 16

Instants count in UTC, whatever zone a reader is in: the expressions, which Spark can compute, say so. Null
stays null.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_CALL = re.compile(r"(day|month|hour)\((.+)\)|bucket\(\s*(\d{1,5})\s*,\s*(.+)\)", re.DOTALL)
MAX_BUCKETS = 10_000
_MONTH = len("2026-07")
Values = Any  # pa.Array or pa.ChunkedArray


@dataclass(frozen=True, slots=True)
class Derived:
    """A column that follows from another, `column` by its name in the lake."""

    function: str
    column: str
    buckets: int = 0

    def __str__(self) -> str:
        inside = f"{self.buckets}, {self.column}" if self.buckets else self.column
        return f"{self.function}({inside})"

    def name(self, of: str) -> str:
        """Return its name, given that of the other in Delta."""
        return f"{of}_{self.function}"

    @property
    def type(self) -> pa.DataType:
        """Its Arrow type."""
        return {"day": pa.date32(), "bucket": pa.int32()}.get(self.function, pa.string())

    def takes(self, kind: pa.DataType) -> bool:
        """Return whether it follows from a column of a type."""
        if self.function == "bucket":
            return bool(0 < self.buckets <= MAX_BUCKETS) and (
                pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date(kind)
            )
        is_date = pa.types.is_date(kind) and self.function == "month"
        return bool(pa.types.is_timestamp(kind) or is_date)

    def values(self, values: Values) -> Values:
        """Return its values."""
        if self.function == "bucket":
            return bucket_of(values.cast(pa.string()), self.buckets)
        if not pa.types.is_date(values.type):
            values = values.cast(pa.timestamp("us"))  # of an instant that is UTC
        days = pc.floor_temporal(values, unit="day").cast(pa.date32())
        if self.function == "day":
            return days
        texts = days.cast(pa.string())
        if self.function == "month":
            return pc.utf8_slice_codeunits(texts, 0, _MONTH)
        hours = pc.utf8_lpad(pc.hour(values).cast(pa.string()), 2, "0")
        return pc.binary_join_element_wise(texts, hours, "-")

    def expression(self, of: str, kind: pa.DataType) -> str:
        """Return how Spark computes it, given name and type of the other in Delta."""
        name = f"`{of.replace('`', '``')}`"
        if self.function == "bucket":
            return f"CAST(CRC32(CAST({name} AS STRING)) % {self.buckets} AS INT)"
        if not pa.types.is_timestamp(kind) or kind.tz is None:
            text = f"CAST({name} AS STRING)"
            hour = f"REPLACE(SUBSTRING({text}, 1, 13), ' ', '-')"
            day, month = f"CAST({name} AS DATE)", f"SUBSTRING({text}, 1, {_MONTH})"
        else:  # a cast to a date or a text would go by the session's time zone
            seconds = f"UNIX_SECONDS({name})"
            day = f"DATE_FROM_UNIX_DATE(CAST(FLOOR({seconds} / 86400) AS INT))"
            text = f"CAST({day} AS STRING)"
            month = f"SUBSTRING({text}, 1, {_MONTH})"
            hour = f"CONCAT({text}, '-', LPAD(CAST(PMOD(FLOOR({seconds} / 3600), 24) AS STRING), 2, '0'))"
        return {"day": day, "month": month, "hour": hour}[self.function]


def derived_of(text: str) -> Derived | None:
    """Return what `partition_by` asks for with a text; None where it names a column.

    >>> derived_of("bucket(16, customer)"), derived_of("day")
    (Derived(function='bucket', column='customer', buckets=16), None)
    """
    found = _CALL.fullmatch(text)
    if found is None:
        return None
    function, column, buckets, bucketed = found.groups()
    return Derived(function, column) if function else Derived("bucket", bucketed, int(buckets))


def derived_in(texts: Iterable[str]) -> list[Derived]:
    """Return what `partition_by` asks for that is not a column."""
    return [found for text in texts if (found := derived_of(text)) is not None]


def bucket_of(texts: Values, buckets: int) -> pa.Array:
    """Return the bucket of each text; null of null."""
    known = texts.cast(pa.binary())
    found = np.fromiter(map(zlib.crc32, pc.fill_null(known, b"").to_pylist()), np.uint32, len(known))
    is_null = known.is_null().to_numpy(zero_copy_only=False)
    return pa.array((found % np.uint32(buckets)).astype(np.int32), mask=is_null)
