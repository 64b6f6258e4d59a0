"""Chunks that a worker has at hand without asking the state: in its memory, and in files of its machine.

::

    chunk ─► memory: those asked for last, up to a bound
               └─► <folder>/<uid>.arrow     Arrow IPC file, uncompressed and mapped: records, ts, seq, hash
                     └─► the state, which holds everything

A chunk's bytes never change and every attempt makes fresh uids, so that what is found here may be useless and
is never wrong. All of it may be gone at any moment. A file is written under another name and renamed; what
the manifest just read does not name is deleted, here and there.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pyarrow as pa

from headpond.core.hashes import HASH_VERSION
from headpond.kstreams.join.pairs import Rows

MAX_AT_HAND_BYTES = 1 << 30
"""How many bytes of stored chunks stay in a worker's memory."""
_NUMBERS = ("ts", "seq", "hashes")
_INDEX_BYTES = 48  # a row's numbers, and its places in the index by hash and time


class MemoryCache:
    """The chunks of all tasks of this process, by task and uid.

    Args:
        max_bytes: Where they would take more, the task that was asked for longest ago loses some.
    """

    def __init__(self, max_bytes: int = MAX_AT_HAND_BYTES) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._tasks: OrderedDict[str, OrderedDict[bytes, Rows]] = OrderedDict()

    def _of(self, task: str) -> OrderedDict[bytes, Rows]:
        found = self._tasks.setdefault(task, OrderedDict())
        self._tasks.move_to_end(task)
        return found

    def get(self, task: str, uid: bytes) -> Rows | None:
        """Return a chunk; None where it is not here."""
        found = self._of(task)
        if uid not in found:
            return None
        found.move_to_end(uid)
        return found[uid]

    def put(self, task: str, uid: bytes, rows: Rows) -> None:
        """Keep a chunk, and let others go where there are too many bytes."""
        found = self._of(task)
        if uid in found:
            return
        found[uid] = rows
        self.bytes += _size(rows)
        while self.bytes > self.max_bytes and (len(self._tasks) > 1 or len(found) > 1):
            oldest = next(iter(self._tasks))
            if self._tasks[oldest]:
                self.bytes -= _size(self._tasks[oldest].popitem(last=False)[1])
            else:
                del self._tasks[oldest]

    def keep_only(self, task: str, uids: set[bytes]) -> int:
        """Let a task's other chunks go; return how many are left."""
        found = self._of(task)
        for uid in found.keys() - uids:
            self.bytes -= _size(found.pop(uid))
        return len(found)


def _size(rows: Rows) -> int:
    return int(rows.records.nbytes) + _INDEX_BYTES * len(rows)


class FileCache:
    """One task's chunks in files.

    Args:
        folder: made when first written to.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, uid: bytes) -> Path:
        return self._folder / f"{uid.hex()}.v{HASH_VERSION}.arrow"

    def put(self, uid: bytes, rows: Rows) -> None:
        """Write a chunk; a disk that is full or gone is not a failure."""
        columns = [*rows.records.columns, *(pa.array(getattr(rows, name)) for name in _NUMBERS)]
        names = [*(f"x.{name}" for name in rows.records.schema.names), *_NUMBERS]
        batch = pa.RecordBatch.from_arrays(columns, names=names)
        path = self._path(uid)
        passing = path.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            with pa.OSFile(str(passing), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
                writer.write_batch(batch)
            passing.replace(path)

    def get(self, uid: bytes, schema: pa.Schema) -> Rows | None:
        """Map a chunk into memory; None where there is none, or none with these columns."""
        try:
            with pa.memory_map(str(self._path(uid))) as source:
                batch = pa.ipc.open_file(source).get_batch(0)
            columns = [batch.column(f"x.{field.name}") for field in schema]
            numbers = [batch.column(name).to_numpy() for name in _NUMBERS]
            records = pa.RecordBatch.from_arrays(columns, schema=schema)
        except (OSError, KeyError, pa.ArrowException):
            return None
        return Rows(records, numbers[0], numbers[1], numbers[2].astype(np.uint64, copy=False))

    def keep_only(self, uids: set[bytes]) -> None:
        """Delete all other chunks."""
        names = {self._path(uid).name for uid in uids}
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._folder):
                if entry.name not in names:
                    Path(entry.path).unlink(missing_ok=True)
