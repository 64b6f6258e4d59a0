"""Drive lines of an archive into a lake without Spark: the same decoder and the same writes."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pyarrow as pa

from headpond.kinesis.archive.lines import read_lines
from headpond.kpl.records import open_records
from headpond.pipeline import loads
from headpond.pipeline.lake import open_lake, row_changes
from headpond.spark.sources.cells import FRAME_SCHEMA
from headpond.spark.sources.decoded import decode_partition, gather

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from headpond.dsql.decode import DsqlConfig
    from headpond.lake.apply import DecodedBatch
    from headpond.lake.tables import Lake


def lake_in(folder: Path, tables: str) -> tuple[Lake, DsqlConfig]:
    """Open and prepare a lake for the `[tables]` part of a pipeline file."""
    text = f'[source]\narchive = "x.jsonl"\nformat = "dsql"\n[target]\npath = "lake"\n{tables}'
    pipeline = loads(text, folder)
    lake = open_lake(pipeline)
    lake.prepare()
    return lake, row_changes(pipeline)


def decoded(
    config: DsqlConfig, lines: Sequence[bytes], *, first_line: int = 1, parts: int = 1
) -> DecodedBatch:
    """Decode lines as one micro-batch of so many partitions."""
    return gather(cells(config, lines, first_line=first_line, parts=parts))


def cells(
    config: DsqlConfig,
    lines: Sequence[bytes],
    *,
    first_line: int = 1,
    parts: int = 1,
    summary: bool = False,
    folder: str | None = None,
) -> pa.Table:
    """Decode lines into the cells of so many partitions."""
    frames = []
    size = -(-len(lines) // parts) or 1
    for start in range(0, len(lines), size):
        records = read_lines(lines[start : start + size], stream="s", file="f", first_line=first_line + start)
        frames += list(decode_partition(config, open_records(records), summary=summary, folder=folder))
    return pa.Table.from_batches(frames, FRAME_SCHEMA)


def watched(lake: Lake, before_write: Callable[[str], None]) -> Lake:
    """Return the same lake, which calls something with the name of each write before it is done."""
    lake = copy.copy(lake)
    lake.before_write = before_write
    return lake
