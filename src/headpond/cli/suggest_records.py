"""What `headpond suggest` looks at: the records of a pipeline's source, from its beginning."""

from __future__ import annotations

import io
from itertools import islice
from typing import TYPE_CHECKING, Any

from headpond.errors import ConfigurationError
from headpond.formats.archive import read_lines
from headpond.formats.archive_gzip import MAGIC, opened, whole
from headpond.formats.archive_gzip import head as gzip_head
from headpond.formats.archive_gzip import lines as gzip_lines
from headpond.formats.archive_ion import ion_records, is_ion
from headpond.kinesis.calls import calls_of
from headpond.kinesis.client import ConnectionSettings, check_stream
from headpond.kinesis.cursor import LossRule, ShardCursor
from headpond.kinesis.positions import HORIZON
from headpond.kinesis.read import to_batch
from headpond.kinesis.shards import listing
from headpond.spark.archive_files import open_pattern

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from headpond.pipeline import Pipeline
    from headpond.spark.archive_files import Files

LINES_AT_ONCE = 1_000
PAGE_RECORDS = 1_000
READ_BYTES = 1 << 20
HEAD_BYTES = 64
_MOST_EMPTY_REPLIES = 1_000  # a gap in a shard may take some; then the shard is left


def kinesis_records(pipeline: Pipeline, limit: int) -> Iterator[pa.RecordBatch]:
    """Read a pipeline's source from its beginning.

    Args:
        pipeline: what to read.
        limit: records to read at most.

    Yields:
        Batches of `KINESIS_RECORD_SCHEMA`.
    """
    batches = _of_archive(pipeline) if pipeline.source.archive is not None else _of_stream(pipeline)
    for batch in batches:
        yield batch.slice(0, limit)
        limit -= batch.num_rows
        if limit <= 0:
            return


def _of_archive(pipeline: Pipeline) -> Iterator[pa.RecordBatch]:
    assert pipeline.source.archive is not None
    files = open_pattern(pipeline.source.archive, pipeline.target.storage_options)
    sizes = files.sizes()
    if not sizes:
        raise ConfigurationError(
            f"No file matches the archive {pipeline.source.archive}.",
            next_step="Correct source.archive; a relative path is relative to the pipeline file.",
            key="source.archive",
        )
    for name in sorted(sizes):
        if is_ion(gzip_head(_content(files, name), HEAD_BYTES)):
            content = whole(_content(files, name), "gzip file")
            yield from ion_records(content, stream=pipeline.source.name, file=name)
            continue
        lines = gzip_lines(_content(files, name), "gzip file")
        first = 1
        while part := list(islice(lines, LINES_AT_ONCE)):
            yield read_lines(part, stream=pipeline.source.name, file=name, first_line=first)
            first += len(part)


class _Content(io.RawIOBase):
    """One file of an archive as a stream of bytes."""

    def __init__(self, files: Files, name: str) -> None:
        self._files, self._name, self._at = files, name, 0

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read on."""
        content = self._files.read(self._name, self._at, self._at + len(buffer))
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)


def _content(files: Files, name: str) -> io.BufferedIOBase:
    """A file, decompressed where it is compressed."""
    raw = io.BufferedReader(_Content(files, name), READ_BYTES)
    return opened(raw, compressed=files.read(name, 0, 2) == MAGIC)


def _of_stream(pipeline: Pipeline) -> Iterator[pa.RecordBatch]:
    """Pages of all shards in turn, until each is at its tip or its end."""
    settings = ConnectionSettings.from_options(pipeline.source.connection_options())
    check_stream(settings)
    calls = calls_of(settings)
    loss = LossRule(pipeline.source.name, calls.describe().retention_ms, fatal=False)
    cursors = {shard: ShardCursor(calls, shard, HORIZON, loss) for shard in listing(calls.list_shards())}
    empty = dict.fromkeys(cursors, 0)
    while cursors:
        for shard, cursor in list(cursors.items()):
            page = cursor.next_page(PAGE_RECORDS)
            if page:
                yield to_batch(page, pipeline.source.name, [(shard, len(page))])
            empty[shard] = 0 if page else empty[shard] + 1
            if cursor.closed or cursor.at_tip or empty[shard] > _MOST_EMPTY_REPLIES:
                del cursors[shard]
