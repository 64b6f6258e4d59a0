"""The keys of large files in order, kept in the cache folder: searched, instead of reading all of them again.

::

    <cache>/keys/<table>/<file>-<column>.npy    int64 [1, rows]   keys of a file whose rows are in their order
                                                int64 [2, rows]   keys in order, and the row of each

An integer is its own key; of a text it is a hash, so that rows found by one are compared with what is wanted.

Keys are put in order when they are asked for the second time: a file that every batch writes again is not
worth it. Until then there is an empty file. A column with nulls, or of another type, is not kept.

The truth is in the data file, which never changes: what is kept of it may be missing, and is made again by
whoever misses it. It goes some time after its file, and with a table that nobody asked for in a month.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headpond.core.arrow import ranges
from headpond.core.hashes import HASH_VERSION, hash_keys
from headpond.core.passing import cache_folder, is_private
from headpond.lake.engine.log import DataFile
from headpond.lake.object_store import is_remote

Ints = np.ndarray[Any, np.dtype[np.int64]]
Read = Callable[[], Iterable[pa.ChunkedArray]]

LEAST_ROWS = 1 << 18
"""Fewer are read as fast as they are searched."""
MOST_ROWS = 1 << 26
"""Of more, which no file of headpond's has, putting them in order would take more than a GiB of memory."""
_HOUR_S, _MONTH_S = 3600, 30 * 86_400


@dataclass(frozen=True, slots=True)
class Hits:
    """Rows of a file, in order, and the key of each."""

    rows: Ints
    keys: Ints


class Keys:
    """The keys of one column of a file."""

    def __init__(self, content: Ints) -> None:
        self._keys = content[0]
        self._rows = content[1] if len(content) > 1 else None

    def find(self, wanted: Ints) -> Hits:
        """Return the rows that have one of some keys, which are in order, each once."""
        least, most = np.searchsorted(wanted, self._keys[[0, -1]])
        wanted = wanted[least : most + 1]
        firsts = np.searchsorted(self._keys, wanted)
        there = firsts < len(self._keys)
        there[there] = self._keys[firsts[there]] == wanted[there]
        wanted, firsts = wanted[there], firsts[there]
        counts = np.searchsorted(self._keys, wanted, "right") - firsts
        at, keys = ranges(firsts, counts), np.repeat(wanted, counts)
        if self._rows is None:
            return Hits(at, keys)
        rows = self._rows[at]
        order = np.argsort(rows)
        return Hits(rows[order], keys[order])


class KeyIndex:
    """What is kept of the files of one table; it can do without where nothing can be written."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._has_made = False

    @cached_property
    def folder(self) -> Path:
        """Where it is kept."""
        place = self._uri if is_remote(self._uri) else str(Path(self._uri).resolve())
        return cache_folder() / "keys" / _name(place)

    @cached_property
    def _is_usable(self) -> bool:
        try:
            usable = is_private(self.folder.parent) and is_private(self.folder)
        except RuntimeError:  # a user without a home, as containers have them
            return False
        if usable:
            os.utime(self.folder)
        return usable

    def keys(self, file: DataFile, column: str, read: Read) -> Keys | None:
        """Return the keys of a column of a file, which `read` reads; None where the column is to be read."""
        rows = file.stats.get("numRecords") or 0
        if not LEAST_ROWS <= rows <= MOST_ROWS or file.nulls(column) != 0 or not self._is_usable:
            return None
        place = self.folder / f"{_name(file.path, file.size)}-{_name(column, HASH_VERSION)}.npy"
        if (kept := _read(place, rows)) is not None:
            return Keys(kept)
        try:
            self._has_made = True
            if not place.exists():
                place.touch()
                return None
            made = _in_order(read())
            if made is None or made.shape[1] != rows:
                return None
            _write(place, made)
        except OSError:  # a full disk, perhaps
            self._is_usable = False
            return None
        return Keys(made)

    def tidy(self, files: Iterable[DataFile]) -> None:
        """Remove what is kept of files other than these, and of tables that nobody asked for a month.

        It does nothing until something was made. What was made in the last hour stays: it may be another
        process's.
        """
        if not self._has_made:
            return
        self._has_made = False
        names, now = {_name(file.path, file.size) for file in files}, time.time()
        with suppress(OSError):
            for place in self.folder.iterdir():
                about = place.stat()
                is_passed = not about.st_size or about.st_mtime < now - _HOUR_S
                if is_passed and place.name.partition("-")[0] not in names:
                    place.unlink()
            for table in self.folder.parent.iterdir():
                if table.stat().st_mtime < now - _MONTH_S:
                    shutil.rmtree(table, ignore_errors=True)


def numbers_of(values: pa.Array) -> Ints | None:
    """Return the key of each value; None where some have none: nulls, and what is no integer or text."""
    kind = values.type
    if values.null_count:
        return None
    if pa.types.is_integer(kind):
        keys: Ints = values.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        return keys
    return hash_keys(values.cast(pa.binary())).view(np.int64) if pa.types.is_string(kind) else None


def _in_order(parts: Iterable[pa.ChunkedArray]) -> Ints | None:
    """Return what is kept of a column; None where values have no keys."""
    found = []
    for part in parts:
        for chunk in part.chunks:
            numbers = numbers_of(chunk)
            if numbers is None:
                return None
            found.append(numbers)
    keys = np.concatenate([np.empty(0, np.int64), *found])
    if (keys[1:] >= keys[:-1]).all():
        return keys.reshape(1, -1)
    order = np.argsort(keys, kind="stable")
    return np.stack([keys[order], order])


def _read(place: Path, rows: int) -> Ints | None:
    """Map what is kept of a column into memory; None where nothing is, or something else."""
    with suppress(OSError, EOFError, ValueError):
        content: Ints = np.load(place, mmap_mode="r").view(np.ndarray)
        if content.dtype == np.int64 and content.shape in {(1, rows), (2, rows)}:
            return content
    return None


def _write(place: Path, content: Ints) -> None:
    """Write a file whole or not at all."""
    new = place.with_name(f"{uuid.uuid4()}.tmp")
    try:
        with new.open("xb") as stream:
            np.save(stream, content, allow_pickle=False)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(place)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def _name(*parts: str | int) -> str:
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:32]
