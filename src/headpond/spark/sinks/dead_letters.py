"""Rows that a stream can never take, put aside in files so that they do not fail their batch for good.

::

    FOLDER/<query or write>/<batch>/<partition>.jsonl     one line a row, which `headpond inspect` reads:

    {"reason": "data", "detail": "A user record's data has …", "partitionKey": "k", "explicitHashKey": null,
     "data": "8wt2…"}

A task writes a file of a hidden name; when the batch is committed, those of the tries that count get their
names, and nothing else stays in the folder. So a batch that failed shows none, whether its tasks ended before
it did or end later.
"""

from __future__ import annotations

import uuid
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import orjson
import pyarrow.fs as pafs

from headpond.core.errors import HeadpondError
from headpond.kpl import UserRecord, validate
from headpond.lake.storage import file_system, storage_errors

if TYPE_CHECKING:
    from headpond.kinesis.producer import PutFailed
    from headpond.kinesis.producer.records import Puttable


class Place(NamedTuple):
    """Where the dead letters of one try of a task go: a file in its batch's folder, under both its names."""

    folder: str
    file: str
    hidden: str

    @classmethod
    def of(cls, folder: str, file: str) -> Self:
        """Return a place for one more try."""
        return cls(folder, file, f".{uuid.uuid4().hex}")


class DeadLetters:
    """The rows that one try of a task puts aside; leaving the block with an error removes them."""

    def __init__(self, place: Place, most_bytes: int, options: Mapping[str, str]) -> None:
        self._most_bytes, self._url, self._options = most_bytes, place.folder, options
        self._files, self._folder = file_system(place.folder, options)
        self._written = f"{self._folder}/{place.hidden}"
        self._stream: Any = None
        self.count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is None:
            return
        with storage_errors(self._url, self._options):
            self._stream.close()
            if error is not None:
                self._files.delete_file(self._written)

    def sorted_out(self, rows: Iterable[Puttable]) -> Iterator[Puttable]:
        """Yield the rows that the stream may take; put the others aside."""
        for row in rows:
            try:
                validate(UserRecord(*row[:3]), max_user_record_bytes=self._most_bytes)
            except HeadpondError as error:
                self._add(row, error.facts["what"], error.message)
            else:
                yield row

    def take(self, row: Puttable, error: PutFailed) -> bool:
        """Put a row aside that the stream refused for its size; return whether it was that."""
        if error.too_large:
            self._add(row, "data", error.message)
        return error.too_large

    def _add(self, row: Puttable, reason: str, detail: str) -> None:
        key, data, *more = row
        octets: bytes | None = data
        line = {
            "reason": reason,
            "detail": detail,
            "partitionKey": key,
            "explicitHashKey": more[0] if more else None,
            "data": None if octets is None else b64encode(octets).decode(),
        }
        with storage_errors(self._url, self._options):
            if self._stream is None:
                self._files.create_dir(self._folder)
                self._stream = self._files.open_output_stream(self._written)
            self._stream.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        self.count += 1


def settle(folder: str, places: Iterable[Place], options: Mapping[str, str]) -> None:
    """Name the files of a batch, and remove what other tries left in its folder; an empty one goes, too."""
    store, path = file_system(folder, options)
    named = {each.hidden: each.file for each in places}
    with storage_errors(folder, options):
        for hidden, file in named.items():
            store.move(f"{path}/{hidden}", f"{path}/{file}")
        found = store.get_file_info(pafs.FileSelector(path, allow_not_found=True))
        for each in found:
            if each.base_name not in named.values():
                store.delete_file(each.path)
        if found and not named:
            store.delete_dir(path)
