"""A lake's files, in a folder or an object store (`lake.object_store`), and failures as sentences."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.fs as pafs

from headpond.core.errors import (
    AccessDenied,
    EndpointUnreachable,
    InvalidData,
    MissingRequirement,
)
from headpond.lake.object_store import is_remote, open_files, option_of, plain_name

Read = TypeVar("Read")
Item = TypeVar("Item")
Result = TypeVar("Result")

_PUBLIC = frozenset(
    {"region", "default_region", "endpoint", "endpoint_url", "endpoint_url_s3", "allow_http", "bucket",
     "virtual_hosted_style_request", "conditional_put", "timeout", "connect_timeout", "role_arn",
     "skip_signature", "s3_locking_provider", "s3_allow_unsafe_rename", "account_name", "tenant_id",
     "client_id"}
)  # fmt: skip
"""Options whose values may be shown; every other value is cut out of messages."""

_TABLE_NOTE = "Delta table: "
_STORE = re.compile("Generic (S3|MicrosoftAzure|GCS) error")  # how deltalake's words of a store begin
_DISK = re.compile(r"\(os error (?:13|28|30|122)\)")  # rights, no space, read-only, quota
_SHOWN_CHARACTERS = 300
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_XML_MESSAGE = re.compile(r"<Code>(.*?)</Code>(?:.*?<Message>(.*?)</Message>)?", re.DOTALL)
_ARROW_MESSAGE = re.compile(r"AWS Error ([A-Z_]+) during \w+ operation: (.*?)\.?\Z", re.DOTALL)
_AZURE_MESSAGE = re.compile(r"Azure Error: \[(\w*)\] (?:\d{3} )?(.*)", re.DOTALL)
_REQUEST = re.compile(r"\s*Request ?I[Dd]:.*", re.DOTALL)  # its number and time, for Azure's own people
_REFUSED = re.compile(
    r"AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|InvalidToken|40[13] |"
    r"InvalidSignature|InvalidClientTokenId|UnrecognizedClient|MissingAuthenticationToken|"
    r"AuthenticationFailed|AuthorizationFailure|AuthorizationPermissionMismatch|"
    r"Unauthori[sz]ed|Forbidden|credential|access token"
)
_UNREACHABLE = re.compile(
    r"tcp connect|dns error|error sending request|NetworkConnection|CouldNotConnect|timed out|"
    r"Fail to get a new connection"
)


AT_ONCE = 8
"""How many tables in an object store are worked on at a time, and how many data files across all tables."""
_FILES = threading.BoundedSemaphore(AT_ONCE)


def of_each(place: str, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Do something to each of some tables: in an object store several at a time, where most of it is waiting.

    In a folder one comes after the other, which takes less memory. All that was begun is done when this
    returns, or raises the error of the first, in their order, that failed.
    """
    if not is_remote(place):
        return [work(item) for item in items]
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="headpond-table") as pool:
        return list(pool.map(work, items))


def of_each_file(place: str, work: Callable[[Item], Result], files: Iterable[Item]) -> list[Result]:
    """Do something to each of some data files, as `of_each`: to `AT_ONCE` at a time across all tables."""
    if not is_remote(place):
        return [work(file) for file in files]

    def in_turn(file: Item) -> Result:
        with _FILES:
            return work(file)

    return of_each(place, in_turn, files)


def file_system(place: str, options: Mapping[str, str] | None = None) -> tuple[Any, str]:
    """Open the file system of a path or URL; return it and the path in it, without a slash at the end."""
    if not is_remote(place):
        return pafs.LocalFileSystem(), place
    with storage_errors(place, options):
        return open_files(place, options or {})


def remove_folder(place: str, options: Mapping[str, str] | None = None) -> None:
    """Remove a folder with all that is in it; nothing happens where there is none."""
    files, path = file_system(place, options)
    with storage_errors(place, options):
        if files.get_file_info(path).type == pafs.FileType.Directory:
            files.delete_dir(path)


def read_document(place: str, options: Mapping[str, str] | None = None) -> bytes | None:
    """Return the content of a small file at a path or URL; None where it is not there."""
    files, path = file_system(place, options)
    with storage_errors(place, options):
        if files.get_file_info(path).type != pafs.FileType.File:
            return None
        with files.open_input_stream(path) as stream:
            content: bytes = stream.read()
    return content


def read_json(
    place: str, options: Mapping[str, str] | None, read: Callable[[Any], Read], *, is_not: str, fix: str
) -> Read | None:
    """Return what is read from a small JSON file; None where it is not there.

    Raises:
        InvalidData: `read` cannot take what is in it: it `is_not` what it should be.
    """
    content = read_document(place, options)
    try:
        return None if content is None else read(json.loads(content))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidData(
            f"{place} is not {is_not}: found {(content or b'')[:80]!r}.", next_step=fix, path=place
        ) from error


def write_document(
    place: str, content: bytes, options: Mapping[str, str] | None = None, *, durable: bool = False
) -> None:
    """Write a small file in one step: a folder's by renaming, an object store does so itself."""
    with storage_errors(place, options):
        if not is_remote(place):
            path = Path(place)
            path.parent.mkdir(parents=True, exist_ok=True)
            new_file = path.with_name(f".{path.name}.{os.getpid()}")
            new_file.write_bytes(content)
            if durable:
                make_durable([new_file], path.parent, options)
            new_file.replace(path)
            if durable:
                make_durable([path], path.parent, options)
            return
        files, path_in = file_system(place, options)
        with files.open_output_stream(path_in) as out:
            out.write(content)


def make_durable(files: Iterable[Path], up_to: Path, options: Mapping[str, str] | None = None) -> None:
    """Have the disk hold files of a folder, and every folder that names them up to that one's own.

    Only then a power cut leaves them; the storage option `fsync` = "false" leaves that to the system's time.
    """
    if (option_of(options or {}, "fsync") or "true").lower() != "true":
        return
    folders: set[Path] = set()
    for file in files:
        _sync(file)
        folders.update(each for each in file.parents if each.is_relative_to(up_to.parent))
    for folder in sorted(folders, reverse=True):
        _sync(folder)


def make_folder(folder: Path) -> None:
    """Make a folder with those above it, and have the disk hold the names of the new ones."""
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in new:
        _sync(each.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_of_deltalake(error: Exception) -> bool:
    """Return whether an error is of deltalake's classes."""
    # Where it is not loaded it raised nothing: processes that only read an archive need not wait for it.
    loaded = sys.modules.get("deltalake.exceptions")
    return loaded is not None and isinstance(error, loaded.DeltaError)


def is_of_the_disk(error: Exception) -> bool:
    """Return whether an error of deltalake says what a disk refuses, and nothing of a table."""
    return _DISK.search(str(error)) is not None


def table_of(error: Exception) -> str | None:
    """Name the place of the table that an error of deltalake is about, where `storage_errors` noted it."""
    notes = (note for note in getattr(error, "__notes__", ()) if note.startswith(_TABLE_NOTE))
    return next((note.removeprefix(_TABLE_NOTE) for note in notes), None)


CHECK_FOLDER = "Check the folder, its permissions, the free disk space and the limit on open files."


@contextmanager
def storage_errors(place: str, options: Mapping[str, str] | None = None) -> Iterator[None]:
    """Turn a failure of the storage into a sentence without secrets; add the place to one of deltalake."""
    try:
        yield
    except Exception as error:
        # What fails while the result of a query is read has no class of its own.
        of_deltalake = is_of_deltalake(error) or type(error) is Exception
        of_store = bool(_STORE.search(str(error))) if is_remote(place) else is_of_the_disk(error)
        if not (isinstance(error, OSError) or (of_deltalake and of_store)):
            if of_deltalake:
                error.add_note(_TABLE_NOTE + place)
            raise
        said = _cleaned(str(error), options or {})
        if not is_remote(place):
            raise MissingRequirement(
                f"{place} cannot be used: {said}.",
                next_step=CHECK_FOLDER,
                place=place,
            ) from error
        kind: type[MissingRequirement] = MissingRequirement
        message = f"The object store cannot serve {place}"
        next_step = "Check the bucket's name, the region and the rights."
        if _REFUSED.search(said):
            kind, message = AccessDenied, f"The object store refuses access to {place}"
            next_step = "Correct the keys or rights; they come from storage_options or the environment."
        elif _UNREACHABLE.search(said):
            kind, message = EndpointUnreachable, f"The object store of {place} does not answer"
            next_step = "Check the endpoint in storage_options, the network, and HTTPS_PROXY where it is set."
            if "certificate" in said.lower():
                next_step = "Name the file of the authorities that signed its certificate in SSL_CERT_FILE."
        # Not `from error`: its text may hold what ours must not.
        raise kind(f"{message}: {said}.", next_step=next_step, place=place) from None


def secrets_of(options: Mapping[str, str]) -> list[str]:
    """List the values of storage options that must not be shown."""
    return [value for name, value in options.items() if value and plain_name(name) not in _PUBLIC]


def _cleaned(said: str, options: Mapping[str, str]) -> str:
    """Return one line of a store's words: no colours, no trees, no XML, no secrets, no endless text."""
    for value in secrets_of(options):
        said = said.replace(value, "***")
    said = _COLOUR.sub("", said)
    code = _XML_MESSAGE.search(said)
    words = " ".join(said.replace("↳", ":").split("<?xml")[0].split()).replace(" :", ":").strip(" .:")
    if code is not None:
        words = f"{code[1]}: {' '.join(_REQUEST.sub('', code[2]).split())}" if code[2] else code[1]
    elif (azure := _AZURE_MESSAGE.search(words)) is not None:
        words = f"{azure[1]}: {_REQUEST.sub('', azure[2]).partition('. ')[0]}".removeprefix(": ")
    elif (arrow := _ARROW_MESSAGE.search(words)) is not None:
        words = f"{arrow[1].title().replace('_', '')}: {arrow[2]}"  # as the store wrote it
    else:
        # The store's words come last, after what was tried.
        words = words if len(words) <= _SHOWN_CHARACTERS else "…" + words[-_SHOWN_CHARACTERS:]
    return words[: _SHOWN_CHARACTERS + 1].strip(" .:")
