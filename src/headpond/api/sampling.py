"""The first records of a pipeline's source, read without Spark: for proposals and checks."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headpond.kinesis.api.calls import calls_of, check_stream
from headpond.kinesis.api.settings import ConnectionSettings
from headpond.kinesis.archive.compressed import MAGIC, opened, texts, whole
from headpond.kinesis.archive.compressed import head as gzip_head
from headpond.kinesis.archive.lines import read_text
from headpond.kinesis.reading.cursor import LossRule, ShardCursor
from headpond.kinesis.reading.positions import HORIZON, listing
from headpond.kinesis.reading.reader import to_batch
from headpond.pipeline import Pipeline
from headpond.qldb.files import LOOK_BYTES, ion_records, is_ion
from headpond.spark.following.run import archive_files
from headpond.spark.sources.archive_files import PatternFiles

if TYPE_CHECKING:
    import pyarrow as pa

PAGE_RECORDS = 1_000
READ_BYTES = 1 << 20
_MOST_EMPTY_REPLIES = 1_000  # a gap in a shard may take some; then the shard is left


def kinesis_records(pipeline: Pipeline, limit: int) -> Iterator[pa.RecordBatch]:
    """Read at most `limit` records of a pipeline's source from its beginning, as `KINESIS_RECORD_SCHEMA`."""
    batches = _of_archive(pipeline) if pipeline.source.archive is not None else _of_stream(pipeline)
    for batch in batches:
        yield batch.slice(0, limit)
        limit -= batch.num_rows
        if limit <= 0:
            return


def _of_archive(pipeline: Pipeline) -> Iterator[pa.RecordBatch]:
    files, names = archive_files(pipeline)
    for name in names:
        if is_ion(gzip_head(_content(files, name), LOOK_BYTES)):
            content = whole(_content(files, name), "gzip file")
            yield from ion_records(content, stream=pipeline.source.name, file=name)
            continue
        first = 1
        for text, lines in texts(_content(files, name), "gzip file"):
            yield read_text(text, stream=pipeline.source.name, file=name, first_line=first)
            first += lines


class _Content(io.RawIOBase):
    """One file of an archive as a stream of bytes."""

    def __init__(self, files: PatternFiles, name: str) -> None:
        self._files, self._name, self._at = files, name, 0

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into a buffer."""
        content = self._files.read(self._name, self._at, self._at + len(buffer))
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)


def _content(files: PatternFiles, name: str) -> io.BufferedIOBase:
    """Open a file, decompressed where it is compressed."""
    raw = io.BufferedReader(_Content(files, name), READ_BYTES)
    return opened(raw, compressed=files.read(name, 0, 2) == MAGIC)


def _of_stream(pipeline: Pipeline) -> Iterator[pa.RecordBatch]:
    """Read pages of all shards in turn, until each is at its tip or its end."""
    settings = ConnectionSettings.from_options(pipeline.source.connection_options())
    loss = LossRule(pipeline.source.name, check_stream(settings).retention_ms, fatal=False)
    calls = calls_of(settings)
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
