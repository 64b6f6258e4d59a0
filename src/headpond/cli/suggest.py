"""`headpond suggest`: a `[tables]` proposal from what a source holds."""

from __future__ import annotations

import gzip
import io
import zlib
from itertools import islice
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from headpond.changes.suggest import Survey, document, toml
from headpond.changes.suggest_qldb import LedgerSurvey, ledger_document, ledger_toml
from headpond.cli.common import with_output
from headpond.errors import ConfigurationError
from headpond.formats.archive import read_lines
from headpond.formats.archive_ion import ion_records, is_ion
from headpond.formats.kinesis_records import open_records
from headpond.kinesis.calls import calls_of
from headpond.kinesis.client import ConnectionSettings, check_stream
from headpond.kinesis.cursor import LossRule, ShardCursor
from headpond.kinesis.positions import HORIZON
from headpond.kinesis.read import to_batch
from headpond.kinesis.shards import listing
from headpond.pipeline import load
from headpond.pipeline.lake import open_lake
from headpond.spark.archive_files import open_pattern

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from headpond.cli.output import Output
    from headpond.pipeline import Pipeline
    from headpond.spark.archive_files import Files

DEFAULT_RECORDS = 100_000
LINES_AT_ONCE = 1_000
PAGE_RECORDS = 1_000
READ_BYTES = 1 << 20
HEAD_BYTES = 64
_GZIP_MAGIC = b"\x1f\x8b"
_MOST_EMPTY_REPLIES = 1_000  # a gap in a shard may take some; then the shard is left


@click.command()
@click.argument("file", type=click.Path(path_type=str))
@click.option(
    "--records",
    type=click.IntRange(min=1),
    default=DEFAULT_RECORDS,
    show_default=True,
    help="Kinesis records to look at, at most.",
)
@with_output
def suggest(output: Output, file: str, *, records: int) -> None:
    """Propose the [tables] of the pipeline FILE from what its source holds.

    Reads from the beginning of the stream or archive, writes nothing, and starts no Spark. Types are guesses
    that take all values seen, for a person to correct. The FILE may have no [tables] yet. Of DSQL changes,
    keys are what deletes name, and tables that do not appear but have a raw log in the lake are proposed from
    that; of QLDB records, types are those of the documents' fields.
    """
    pipeline = load(file, tables_needed=False)
    if pipeline.source.format == "qldb":
        _of_ledger(output, pipeline, file, records)
        return
    survey = Survey()
    source = pipeline.source
    with output.progress(f"headpond suggest {file}") as show:
        for batch in kinesis_records(pipeline, records):
            for opened in open_records(batch, deaggregate=source.deaggregate):
                survey.add(opened)
            show(f"{survey.records:,} records seen")
        for unknown in open_lake(pipeline).unknown.all().values():
            if (unknown.schema, unknown.table) not in survey.tables:
                survey.add_log(unknown.schema, unknown.table, unknown.log.newest(records))
    configured = {(table.schema, table.table): table.name for table in pipeline.tables}
    proposal = document(survey, configured)
    output.result(proposal, lambda: Text(toml(proposal).rstrip("\n")))


def _of_ledger(output: Output, pipeline: Pipeline, file: str, records: int) -> None:
    survey = LedgerSurvey()
    with output.progress(f"headpond suggest {file}") as show:
        for batch in kinesis_records(pipeline, records):
            for opened in open_records(batch, deaggregate=pipeline.source.deaggregate):
                survey.add(opened)
            show(f"{survey.records:,} records seen")
    configured: dict[str, list[str]] = {}
    for table in pipeline.tables:
        configured.setdefault(table.table, []).append(table.name)
    proposal = ledger_document(survey, configured)
    output.result(proposal, lambda: Text(ledger_toml(proposal).rstrip("\n")))


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
        if is_ion(_head(files, name)):
            yield from ion_records(_whole(files, name), stream=pipeline.source.name, file=name)
            continue
        lines = _lines(files, name)
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
    content = io.BufferedReader(_Content(files, name), READ_BYTES)
    return gzip.GzipFile(fileobj=content) if files.read(name, 0, 2) == _GZIP_MAGIC else content


def _head(files: Files, name: str) -> bytes:
    """The first bytes of a file; none where its compression is damaged, which is told when it is read."""
    try:
        return _content(files, name).read(HEAD_BYTES)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return b""


def _whole(files: Files, name: str) -> bytes:
    """All of a file; where a gzip file is damaged, what comes before that and words that are no record."""
    content = _content(files, name)
    parts: list[bytes] = []
    try:
        while part := content.read(READ_BYTES):
            parts.append(part)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        parts.append(f"\ngzip file: {error}".encode())
    return b"".join(parts)


def _lines(files: Files, name: str) -> Iterator[bytes]:
    """Lines of a file; where a gzip file is damaged, a last line that can be no record."""
    lines = iter(_content(files, name))
    while True:
        try:
            line = next(lines, None)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            yield f"gzip file: {error}".encode()
            return
        if line is None:
            return
        yield line


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
                yield to_batch(page, pipeline.source.name, shard)
            empty[shard] = 0 if page else empty[shard] + 1
            if cursor.closed or cursor.at_tip or empty[shard] > _MOST_EMPTY_REPLIES:
                del cursors[shard]
