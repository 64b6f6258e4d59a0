"""Spark source `headpond-archive`: Kinesis records in JSON Lines files, with offsets in the checkpoint.

Options: `path` (a pattern, see `archive_files`), `maxBytesPerTrigger` (64 MiB of the files),
`lastLineWait` (1 minute: how long half a line at the end of a file waits for the rest of it),
`deaggregate`, `onMalformed`, `includeTags`, `failOnDataLoss`, `streamName` (what the column `stream`
says; by default the path), `storageOptions` (a JSON object: what gives access to an object store). Columns
are those of the `kinesis` source.
A file must not change once it is there, except that a plain file may grow.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from headpond.core.errors import ConfigurationError, DataLoss
from headpond.core.options import Options
from headpond.kinesis.archive.compressed import head, opened_bytes, texts, whole
from headpond.kinesis.archive.lines import cut_text, read_text
from headpond.kpl import OnMalformed
from headpond.kpl.records import open_records
from headpond.qldb.files import LOOK_BYTES, ion_records, is_ion
from headpond.spark.errors import carried
from headpond.spark.sources.archive_files import (
    Listed,
    Offset,
    Piece,
    check_unchanged,
    from_json,
    newest_ms,
    open_pattern,
    pieces,
    plan,
    to_json,
)
from headpond.spark.sources.rows import (
    Decoding,
    DecodingDataSource,
    as_spark,
    source_schema,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

DEFAULT_MAX_BYTES = 64 << 20
DEFAULT_LAST_LINE_WAIT_MS = 60_000
OPTIONS = (
    "path",
    "maxBytesPerTrigger",
    "lastLineWait",
    "deaggregate",
    "onMalformed",
    "includeTags",
    "failOnDataLoss",
    "streamName",
    "storageOptions",
)


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """The options of the source, read and checked."""

    path: str
    stream: str
    max_bytes: int
    last_line_wait_ms: int
    deaggregate: bool
    on_malformed: OnMalformed
    tags: bool
    fail_on_data_loss: bool
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)


def read_options(given: Mapping[str, str]) -> ArchiveSettings:
    """Read the options of `headpond-archive`.

    Raises:
        ConfigurationError: An option is unknown, missing or wrong.
    """
    options = Options(given, OPTIONS, "source headpond-archive")
    path = options.text("path")
    if path is None:
        raise ConfigurationError(
            "The source headpond-archive needs the option path.",
            next_step="Set it to a pattern of files, such as records/*.jsonl.",
            option="path",
        )
    max_bytes = options.size_bytes("maxBytesPerTrigger", DEFAULT_MAX_BYTES)
    assert max_bytes is not None
    return ArchiveSettings(
        path=path,
        stream=options.text("streamName") or path,
        max_bytes=max_bytes,
        last_line_wait_ms=options.time_ms("lastLineWait", DEFAULT_LAST_LINE_WAIT_MS),
        deaggregate=options.flag("deaggregate", default=True),
        on_malformed=cast(
            "OnMalformed", options.choice("onMalformed", ("passthrough", "fail"), "passthrough")
        ),
        tags=options.flag("includeTags", default=False),
        fail_on_data_loss=options.flag("failOnDataLoss", default=True),
        storage_options=options.texts("storageOptions"),
    )


def read_piece(content: bytes, piece: Piece, stream: str) -> Iterator[pa.RecordBatch]:
    """Read one piece as batches of Kinesis records; a damaged gzip file ends in a row that says so."""
    name = f"gzip file of {len(content)} bytes"  # for where it is damaged
    if piece.whole and is_ion(head(opened_bytes(content), LOOK_BYTES)):
        yield from ion_records(whole(opened_bytes(content), name), stream=stream, file=piece.file)
        return
    first = piece.first_line
    cuts = texts(opened_bytes(content), name) if piece.whole else cut_text(content)
    for text, lines in cuts:
        records = read_text(text, stream=stream, file=piece.file, first_line=first)
        if records.num_rows:
            yield records
        first += lines


@dataclass
class ArchivePartition(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """What one task reads."""

    pieces: list[Piece] = field(default_factory=list)


class _Reading:
    """What the batch and the streaming reader share."""

    def __init__(self, settings: ArchiveSettings) -> None:
        self.settings = settings
        self.files = open_pattern(settings.path, settings.storage_options)

    @carried
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's pieces."""
        assert isinstance(partition, ArchivePartition)
        settings = self.settings
        # Together they are at most as long as one piece may be, so all may be read ahead.
        contents = self.files.each(lambda at: self.files.read(at.file, at.start, at.end), partition.pieces)
        for piece, content in zip(partition.pieces, contents, strict=True):
            for records in read_piece(content, piece, settings.stream):
                for opened in open_records(
                    records,
                    deaggregate=settings.deaggregate,
                    on_malformed=settings.on_malformed,
                    tags=settings.tags,
                ):
                    yield as_spark(opened)

    def tasks(self, start: Offset, end: Offset) -> list[ArchivePartition]:
        """Return one partition per task."""
        return [ArchivePartition(task) for task in pieces(self.files, start, end)]


class ArchiveStreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # pyspark is untyped here
    """Micro-batches over the archive; keeps nothing that the checkpoint does not hold."""

    def __init__(self, settings: ArchiveSettings) -> None:
        super().__init__(settings)
        self._seen: dict[str, Listed] = {}  # at the last plan
        self._fixed: dict[str, Listed] | None = None  # what AvailableNow may read

    def initialOffset(self) -> dict[str, Any]:
        """Return that nothing is read."""
        return to_json({})

    def getDefaultReadLimit(self) -> ReadLimit:
        """Leave the bound to the options: it counts bytes of files, which Spark's limits do not know."""
        return ReadAllAvailable()

    @carried
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix what there is to read now."""
        self._fixed = self.files.listed()

    @carried
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Plan the end of the next batch."""
        begun = from_json(start)
        listed = self._fixed if self._fixed is not None else self.files.listed()
        try:
            check_unchanged(self.files, begun, listed, self._seen, start.get("written_ms", 0))
        except DataLoss as loss:
            if self.settings.fail_on_data_loss:
                raise
            logger.warning("%s", loss.message)
        self._seen = listed
        wait_ms = self.settings.last_line_wait_ms
        end = plan(self.files, listed, begun, self.settings.max_bytes, last_line_wait_ms=wait_ms)
        return start if end == begun else to_json(end, newest_ms(listed))

    @carried
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut a batch into tasks."""
        begun, ends = start["files"], end["files"]
        new = {name: at for name, at in ends.items() if begun.get(name) != at}
        old = {name: begun[name] for name in new if name in begun}
        return self.tasks(from_json(start | {"files": old}), from_json(end | {"files": new}))

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: files are left as they are."""

    def stop(self) -> None:
        """Do nothing: files are opened for each read."""


class ArchiveReader(_Reading, DataSourceReader):  # type: ignore[misc]  # pyspark is untyped here
    """The whole archive as it is now."""

    @carried
    def partitions(self) -> Sequence[InputPartition]:
        """Cut everything there is into tasks."""
        end = plan(self.files, self.files.listed(), {}, None)
        # Spark calls `read` once even where there is nothing to read.
        return self.tasks({}, end) or [ArchivePartition()]


class ArchiveDataSource(DataSource):  # type: ignore[misc]  # pyspark is untyped here
    """`spark.read.format("headpond-archive")`, and `readStream`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "headpond-archive"

    @carried
    def schema(self) -> StructType:
        """Return the columns of user records."""
        return source_schema(tags=read_options(self.options).tags)

    @carried
    def reader(self, schema: StructType) -> ArchiveReader:
        """Read once."""
        return ArchiveReader(read_options(self.options))

    @carried
    def streamReader(self, schema: StructType) -> ArchiveStreamReader:
        """Read in micro-batches."""
        return ArchiveStreamReader(read_options(self.options))


class DecodingArchiveReader(Decoding, ArchiveStreamReader):
    """Micro-batches of an archive, decoded."""


class DecodedArchiveSource(DecodingDataSource):
    """`spark.readStream.format("headpond-decoded-archive")`: for `follow` alone."""

    format_name = "headpond-decoded-archive"

    def _reader(self) -> DecodingArchiveReader:
        return DecodingArchiveReader(read_options(self.options))
