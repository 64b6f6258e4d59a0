"""The folder of one Delta table, on a disk or in an object store: read, write, write only what is not there.

Files are read and written through Arrow's file systems. What makes a commit safe is that its entry is only
written where no entry of that number is: on a disk a hard link to a finished file, in an object store a
conditional put, which Arrow does not have and obstore does, for S3, GCS and Azure alike.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

from headpond.core.errors import InvalidData, MissingRequirement
from headpond.lake.object_store import (
    OBJECT_STORES,
    in_full,
    is_remote,
    open_for_commits,
    option_of,
    scheme_of,
)
from headpond.lake.storage import file_system, make_durable, storage_errors

_ONE_WRITER = "s3_allow_unsafe_rename"
"""The storage option by which deltalake, too, learns that nobody else writes."""
IN_ONE_REQUEST_BYTES = 4 << 20
"""Parts of objects up to this size are read by obstore, which asks for nothing else but gives a request 30 s
in all. Larger ones are read by Arrow, which asks for the size first and then waits as long as bytes come."""


_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")


@dataclass
class Folder:
    """The folder of a table at a path or URL; paths in it are relative. It may travel to another process."""

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Folder, (self.uri, in_full(self.uri, self.options))

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        return file_system(self.uri, self.options)

    @property
    def files(self) -> Any:
        """Arrow's file system."""
        return self._opened[0]

    def place(self, path: str) -> str:
        """Return the path of a file in the file system."""
        return f"{self._opened[1]}/{path}"

    def damaged(self, path: str, what: str) -> InvalidData:
        """Return the error of a file of the table that is not as it was written."""
        return InvalidData(
            f"The Delta table at {self.uri} is damaged: {path} {what}.",
            next_step="Restore that file from a backup. Without one, move the table's "
            "folder away and fill the table from its source (headpond bootstrap --from-start).",
            table=self.uri,
            path=path,
        )

    def read(self, path: str) -> bytes | None:
        """Read a file; None where there is none."""
        with storage_errors(self.uri, self.options):
            try:
                if is_remote(self.uri):
                    with _in_short():
                        return bytes(self._store.get(path).bytes())
                with self.files.open_input_stream(self.place(path)) as stream:
                    content: bytes = stream.read()
                    return content
            except FileNotFoundError:
                return None

    def read_part(self, path: str, start: int, end: int) -> bytes:
        """Read the bytes [start, end) of a file; fewer where it ends before."""
        with storage_errors(f"{self.uri}/{path}", self.options):
            if scheme_of(self.uri) in OBJECT_STORES and end - start <= IN_ONE_REQUEST_BYTES:
                with contextlib.suppress(ValueError):  # of a name that it does not take, but Arrow may
                    return self._part_of_object(path, start, end)
            with self.files.open_input_file(self.place(path)) as opened:
                start = min(start, opened.size())
                content: bytes = opened.read_at(max(0, min(end, opened.size()) - start), start)
                return content

    def _part_of_object(self, path: str, start: int, end: int) -> bytes:
        if end <= start:
            return b""
        try:
            with _in_short():
                return bytes(self._store.get_range(path, start=start, end=end))
        except OSError:
            # What begins where a file ends, or behind, is no range of it to a store.
            size = self.size(path)
            if size is None or size > start:
                raise
            return b""

    def size(self, path: str) -> int | None:
        """Return how many bytes a file has; None where there is none."""
        info = self.files.get_file_info(self.place(path))
        return info.size if info.type == pafs.FileType.File else None

    def create(self, path: str) -> Any:
        """Open a new file for writing."""
        if not is_remote(self.uri):
            Path(self.uri, path).parent.mkdir(parents=True, exist_ok=True)
        return self.files.open_output_stream(self.place(path))

    def write(self, path: str, content: bytes) -> None:
        """Write a file."""
        try:
            with self.create(path) as stream:
                stream.write(content)
        except BaseException:
            self.remove([path])
            raise

    def make_durable(self, paths: list[str]) -> None:
        """Have the disk hold files and their names; an object store does so by itself."""
        if not is_remote(self.uri):
            root = Path(self.uri)
            make_durable([root / path for path in paths], root, self.options)

    def remove(self, paths: list[str]) -> None:
        """Remove files, as far as that is possible: what is left is what a vacuum is for."""
        for path in paths:
            with contextlib.suppress(OSError):
                self.files.delete_file(self.place(path))

    def listed(self, path: str = "", *, recursive: bool = False) -> Iterator[tuple[str, int]]:
        """Yield the files below a folder of it, and when each was last changed, milliseconds since 1970."""
        root = self.place(path).rstrip("/")
        found = pafs.FileSelector(root, allow_not_found=True, recursive=recursive)
        with storage_errors(self.uri, self.options):
            infos = self.files.get_file_info(found)
        for info in infos:
            if info.type == pafs.FileType.File:
                yield info.path[len(self.place("")) :], (info.mtime_ns or 0) // 1_000_000

    def files_after(self, path: str, name: str) -> dict[str, int]:
        """Return the files in a folder of it whose names come after one, with their bytes.

        What comes before costs a disk little and a store nothing: a log may have a hundred thousand entries
        before its last checkpoint.
        """
        found = {}
        with storage_errors(self.uri, self.options):
            if is_remote(self.uri):
                return self._objects_after(path, name)
            with contextlib.suppress(FileNotFoundError), os.scandir(Path(self.uri, path)) as entries:
                for each in entries:
                    if each.name > name and each.is_file():
                        with contextlib.suppress(FileNotFoundError):
                            found[f"{path}/{each.name}"] = each.stat().st_size
        return found

    def _objects_after(self, path: str, name: str) -> dict[str, int]:
        offset = f"{path}/{name}"
        with _in_short():
            pages = self._store.list(path, offset=offset, chunk_size=1000)
            found = {each["path"]: each["size"] for page in pages for each in page}
        # Azurite ignores the offset and lists everything.
        return {
            each: size for each, size in found.items() if each > offset and "/" not in each[len(path) + 1 :]
        }

    def put_new(self, path: str, content: bytes) -> None:
        """Write a file whole, or raise FileExistsError where it is there and leave that one."""
        if is_remote(self.uri):
            self._put_object(path, content)
            return
        new_file = Path(self.uri, path).with_name(f"_commit_{uuid.uuid4()}.json.tmp")
        new_file.parent.mkdir(parents=True, exist_ok=True)
        try:
            new_file.write_bytes(content)
            self.make_durable([f"{path.rpartition('/')[0]}/{new_file.name}"])  # whole before it has its name
            os.link(new_file, Path(self.uri, path))
        finally:
            new_file.unlink(missing_ok=True)
        self.make_durable([path])

    def _put_object(self, path: str, content: bytes) -> None:
        from obstore.exceptions import AlreadyExistsError, NotSupportedError  # noqa: PLC0415 - stores alone

        alone = (option_of(self.options, _ONE_WRITER) or "").lower() == "true"
        if alone and self.read(path) is not None:
            raise FileExistsError(path)
        try:
            with _in_short(but=(AlreadyExistsError, NotSupportedError)):
                self._store.put(path, content, mode="overwrite" if alone else "create")
        except AlreadyExistsError:
            raise FileExistsError(path) from None
        except (NotSupportedError, NotImplementedError, OSError) as error:
            if isinstance(error, OSError) and "NotImplemented" not in str(error):
                raise
            raise MissingRequirement(
                f"The object store of {self.uri} cannot write a file only where none is, so two writers of a "
                "table could overwrite each other's commits.",
                next_step="Use a store with conditional writes, or, if this is the only writer of the lake, "
                'write AWS_S3_ALLOW_UNSAFE_RENAME = "true" in storage_options.',
                place=self.uri,
            ) from None

    @cached_property
    def _store(self) -> Any:
        return open_for_commits(self.uri, self.options)


@contextlib.contextmanager
def _in_short(but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Raise errors of obstore, but for some kinds, as an OSError in the store's words, their first lines."""
    from obstore.exceptions import BaseError  # noqa: PLC0415 - only a lake in an object store needs it

    try:
        yield
    except but:
        raise
    except BaseError as error:
        said, _, source = str(error).partition("\n\nDebug source")
        wrong = _CERTIFICATE.search(source)  # the first lines say only that no request could be sent
        raise OSError(said if wrong is None else f"{said}: invalid certificate, {wrong[1]}") from None
