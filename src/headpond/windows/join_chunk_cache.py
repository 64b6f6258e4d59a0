"""Chunks at hand without asking the state: in a worker's memory, and in files of its machine.

::

    <folder>/<uid>.arrow     Arrow IPC file, uncompressed and mapped into memory: records, ts, seq, hash

A chunk's bytes never change and every attempt makes fresh uids, so that what is found here may be useless and
is never wrong. All of it may be gone at any moment: the state holds everything. A file is written under
another name and renamed; what the manifest just read does not name is deleted.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headpond.windows.join_batch_runs import Rows
from headpond.windows.join_keys import HASH_VERSION

if TYPE_CHECKING:
    from headpond.windows.join_chunks import TaskState

MAX_TASKS = 64
"""So many tasks' states stay in a worker's memory, the latest used."""
_NUMBERS = ("ts", "seq", "hashes")


class MemoryCache:
    """The states of tasks by their name, each valid for exactly one manifest."""

    def __init__(self, max_tasks: int = MAX_TASKS) -> None:
        self._states: OrderedDict[str, tuple[bytes, TaskState]] = OrderedDict()
        self._max_tasks = max_tasks

    def get(self, task: str, manifest: bytes) -> TaskState | None:
        """Give the state that was kept with this manifest."""
        found = self._states.get(task)
        return found[1] if found is not None and found[0] == manifest else None

    def chunks(self, task: str) -> dict[bytes, Rows]:
        """Give the chunks at hand of whatever state was kept last, by uid."""
        found = self._states.get(task)
        if found is None:
            return {}
        return {chunk.uid: chunk.data for _, chunk in found[1].chunks() if chunk.loaded}

    def put(self, task: str, manifest: bytes, state: TaskState) -> None:
        """Keep a state."""
        self._states[task] = manifest, state
        self._states.move_to_end(task)
        while len(self._states) > self._max_tasks:
            self._states.popitem(last=False)


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
        """Write a chunk; a disk that is full or gone is no failure."""
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
