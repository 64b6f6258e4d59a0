"""An archive's file that is no JSON Lines: QLDB records one after the other, or an object of an export.

::

    E0 01 00 EA …, F3 89 9A C2 …      a Kinesis record per datum or aggregate
    $ion_1_0 …, {blockAddress: …      Ion text of an export: a record per block, as Ion binary; what is
                                      damaged is a record of its own, the text as it stands

Their identity is (file, number), numbers counted from 1.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa

from headpond.formats.ion import MARKER
from headpond.formats.kinesis_records import KINESIS_RECORD_SCHEMA
from headpond.formats.kpl import MAGIC
from headpond.formats.qldb_export import split_text
from headpond.formats.qldb_mixed import split_mixed

if TYPE_CHECKING:
    from collections.abc import Iterator

_TEXT = re.compile(rb"\s*(\$ion_1_0\s|\{\s*blockAddress\s*:)")
_AT_ONCE = 2_000


def is_ion(head: bytes) -> bool:
    """Say by its first bytes whether a file is of this kind."""
    return head.startswith((MARKER, MAGIC)) or _TEXT.match(head) is not None


def ion_records(content: bytes, *, stream: str, file: str) -> Iterator[pa.RecordBatch]:
    """Cut a file into batches of `KINESIS_RECORD_SCHEMA`.

    Args:
        content: the file, not compressed.
        stream: what to call the stream.
        file: the file's name.
    """
    parts = split_mixed(content) if content.startswith((MARKER, MAGIC)) else split_text(content)
    first = 1
    while some := list(islice(parts, _AT_ONCE)):
        count = len(some)
        columns = {
            "stream": pa.repeat(stream, count),
            "shard_id": pa.repeat(file, count),
            "sequence_number": pa.array([str(number) for number in range(first, first + count)]),
            "data": pa.array(some, pa.binary()),
        }
        arrays = [columns.get(each.name, pa.nulls(count, each.type)) for each in KINESIS_RECORD_SCHEMA]
        yield pa.RecordBatch.from_arrays(arrays, schema=KINESIS_RECORD_SCHEMA)
        first += count
