"""Drive lines of an archive into a lake without Spark: the same decoder and the same writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from headpond.formats.archive import read_lines
from headpond.formats.kinesis_records import open_records
from headpond.pipeline import loads
from headpond.pipeline.lake import open_lake
from headpond.spark.cells import FRAME_SCHEMA
from headpond.spark.decoded import decode_partition, gather
from headpond.tables.delta import DeltaFile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from headpond.changes.config import DsqlConfig
    from headpond.tables.apply import DecodedBatch
    from headpond.tables.lake import FileMaker, Lake

_files: FileMaker = DeltaFile


def written_by(files: FileMaker | None) -> None:
    """Choose the engine that writes the lakes opened from now on; null for the embedded one."""
    global _files  # noqa: PLW0603 - a fixture sets it for a module, whose helpers open lakes in many places
    _files = files or DeltaFile


def target_file(place: Path) -> DeltaFile:
    """Make the file of a source table for the engine chosen."""
    return _files(str(place), {})


def lake_in(folder: Path, tables: str) -> tuple[Lake, DsqlConfig]:
    """Open and prepare a lake for the `[tables]` part of a pipeline file."""
    text = f'[source]\narchive = "x.jsonl"\nformat = "dsql"\n[target]\npath = "lake"\n{tables}'
    pipeline = loads(text, folder)
    lake = open_lake(pipeline, files=_files)
    lake.prepare()
    return lake, pipeline.dsql_config()


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
    outline: bool = False,
    folder: str | None = None,
) -> pa.Table:
    """Decode lines into the cells of so many partitions."""
    frames = []
    size = -(-len(lines) // parts) or 1
    for start in range(0, len(lines), size):
        records = read_lines(lines[start : start + size], stream="s", file="f", first_line=first_line + start)
        frames += list(decode_partition(config, open_records(records), outline=outline, folder=folder))
    return pa.Table.from_batches(frames, FRAME_SCHEMA)
