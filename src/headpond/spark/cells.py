"""Arrow tables as bytes in one cell of a Spark frame.

Planning a source needs no more than the columns of such a frame; what fills them is in `decoded`.
"""

from __future__ import annotations

import pyarrow as pa

FRAME_SCHEMA = pa.schema(
    [pa.field("kind", pa.string()), pa.field("name", pa.string()), pa.field("content", pa.binary())]
)
"""Columns of the cells that tasks give."""


def pack(rows: pa.RecordBatch | pa.Table) -> bytes:
    """Write rows as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def unpack(content: pa.Buffer) -> pa.Table:
    """Read an Arrow stream, without a copy."""
    return pa.ipc.open_stream(content).read_all()
