"""Arrow tables on their way to the driver: bytes in a cell of a Spark frame, or files that a cell names.

::

    worker   rows ─► <folder>/<number>.arrow ────────────────────────────► driver: mapped, then removed
             (a cell names the file) ─► JVM ─► …  ─► which files belong to the batch

Through the JVM a row is copied six times. Where driver and workers share a machine, a file is there for the
driver as soon as it is written, so rows are merged while others are still decoded. Where a file cannot be
written, the cell holds the rows.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headpond.core.passing import PassingFolder

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


logger = logging.getLogger(__name__)

_PREFIX, _SUFFIX = "headpond-rows-", ".arrow"
_KIND, _NAME = b"headpond.kind", b"headpond.name"
"""Say in the schema of a stream what its rows are: what a table's name may hold, a file's name may not."""


@dataclass(frozen=True, slots=True)
class DecodedFile:
    """A file of the folder: rows of tables and of the quarantine, one stream after the other."""

    file: str
    size_bytes: int


def write_file(folder: str, parts: Iterable[tuple[str, str, pa.RecordBatch]]) -> str | None:
    """Write rows into the folder, with their kind and name as a cell has them; runs on a worker.

    Returns:
        The file's name; None where it could not be written: then nothing of it is left.
    """
    name = uuid.uuid4().hex
    being_written = Path(folder) / name
    try:
        with pa.OSFile(str(being_written), "wb") as sink:
            for kind, part, batch in parts:
                own = {_KIND: kind, _NAME: part}
                rows = batch.replace_schema_metadata({**(batch.schema.metadata or {}), **own})
                with pa.ipc.new_stream(sink, rows.schema) as writer:
                    writer.write(rows)
        being_written.rename(being_written.with_suffix(_SUFFIX))
    except OSError as error:
        logger.warning("Decoded rows go through the JVM, for %s cannot be written: %s", folder, error)
        being_written.unlink(missing_ok=True)
        return None
    return name + _SUFFIX


class Folder:
    """Where files are handed over; the driver's end.

    The folder is a `PassingFolder`.
    """

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._folder = PassingFolder(_PREFIX)
        self.path = self._folder.path

    def waiting(self) -> list[DecodedFile]:
        """Return the files that are whole and not taken yet."""
        found = []
        with os.scandir(self.path) as entries:
            for entry in entries:
                # One that is taken, or removed, while the folder is listed is not waiting any more.
                with suppress(FileNotFoundError):
                    if entry.name.endswith(_SUFFIX):
                        found.append(DecodedFile(entry.name, entry.stat().st_size))
        return found

    def take(self, file: str) -> list[tuple[str, str, pa.Table]]:
        """Return kinds, names and rows of a file, and remove it; none where it was taken before."""
        if file in self._taken:
            return []
        self._taken.add(file)
        place, found = Path(self.path) / file, []
        with pa.memory_map(str(place)) as mapped:
            while mapped.tell() < mapped.size():
                rows = pa.ipc.open_stream(mapped).read_all()
                metadata = dict(rows.schema.metadata or {})
                kind, name = (metadata.pop(key).decode() for key in (_KIND, _NAME))
                found.append((kind, name, rows.replace_schema_metadata(metadata or None)))
        place.unlink()
        return found

    def was_taken(self, file: str) -> bool:
        """Return whether a file of this batch was taken."""
        return file in self._taken

    def begin(self) -> None:
        """Make ready for a batch: what one that failed left behind comes again with it."""
        self._taken.clear()
        for left in self.waiting():
            (Path(self.path) / left.file).unlink(missing_ok=True)
