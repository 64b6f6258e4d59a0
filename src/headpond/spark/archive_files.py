"""Where archive files lie: a pattern, the files that match it now, and byte ranges of them.

Local paths and object-store URLs go through one interface, `pyarrow.fs`. A file's name is its path
below the fixed folder of the pattern, so moving the folder changes no identity::

    records/2026-*/*.jsonl.gz              folder: records      names: 2026-01/a.jsonl.gz, …
    export/*.completed.manifest            folder: export       names: those of the objects that these name

Manifests of a QLDB journal export are never records themselves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow.fs as pafs

from headpond.errors import ConfigurationError, UsageError
from headpond.formats.ion import RefusedIon
from headpond.formats.qldb_export import read_manifest
from headpond.tables.remote import file_system, told

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

MANIFEST = ".manifest"
"""Ends a pattern of manifests, which stand for what they name."""
_STARTED = ".started.manifest"
EXPORT_MANIFESTS = (_STARTED, ".completed.manifest")
_WILD = re.compile(r"[*?\[]")


class Files(Protocol):
    """What planning and reading need of the files."""

    def sizes(self) -> dict[str, int]:
        """Name and size in bytes of every file that matches now."""

    def read(self, name: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of a file; fewer where it ends before."""


@dataclass(frozen=True, slots=True)
class PatternFiles:
    """The files behind a pattern; picklable, opens its filesystem anew wherever it is used."""

    pattern: str
    root: str  # the fixed folder, or a URL of it
    wild: str  # the rest of the pattern
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # of the object store

    def sizes(self) -> dict[str, int]:
        """Name and size in bytes of every file that matches now; a folder that is absent holds none."""
        filesystem, folder = self._open()
        selector = pafs.FileSelector(folder, recursive=_spans_folders(self.wild), allow_not_found=True)
        manifests = self.wild.endswith(MANIFEST)
        if manifests:  # their objects lie somewhere below
            selector.recursive = True
        matches = re.compile(_regex(self.wild)).fullmatch
        found: dict[str, int] = {}
        there: dict[str, int] = {}
        with told(self.root, self.options):
            infos = filesystem.get_file_info(selector)
        for info in infos:
            name = info.path[len(folder) :].lstrip("/")
            if info.type == pafs.FileType.File:
                there[name] = info.size
                if matches(name) and (manifests or not name.endswith(EXPORT_MANIFESTS)):
                    found[name] = info.size
        return self._objects(found, there) if manifests else found

    def _objects(self, manifests: Mapping[str, int], there: Mapping[str, int]) -> dict[str, int]:
        """The objects that manifests name, among the files that are there."""
        objects: dict[str, int] = {}
        for manifest, size in manifests.items():
            if not manifest.endswith(_STARTED):  # which names nothing that is known to be whole
                for name in objects_of(manifest, self.read(manifest, 0, size), there):
                    objects[name] = there[name]
        return objects

    def read(self, name: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of a file; fewer where it ends before."""
        filesystem, folder = self._open()
        with told(self.root, self.options), filesystem.open_input_file(f"{folder}/{name}") as opened:
            size = opened.size()
            start = min(start, size)
            content: bytes = opened.read_at(min(end, size) - start, start)
            return content

    def _open(self) -> tuple[Any, str]:
        return file_system(self.root, self.options)


def objects_of(manifest: str, content: bytes, there: Container[str]) -> list[str]:
    """Find the objects that a manifest of a journal export names.

    A key is relative to a bucket, of which a copy may hold a part: the object is looked for below the
    manifest's folder, by the whole key first, then by less and less of it.

    Args:
        manifest: its name, with `/` between folders.
        content: its bytes.
        there: the names of all files there are.

    Raises:
        UsageError: it is no manifest, or an object is not there.
    """
    folder = manifest.rpartition("/")[0]
    try:
        keys = read_manifest(content)
    except RefusedIon as error:
        raise UsageError(
            f"{manifest} is no manifest of a journal export: {error}.",
            next_step="Name the export's objects themselves.",
            file=manifest,
        ) from error
    found = []
    for key in keys:
        parts = [part for part in key.split("/") if part]
        tries = ["/".join([folder, *parts[at:]] if folder else parts[at:]) for at in range(len(parts))]
        name = next((one for one in tries if ".." not in parts and one in there), None)
        if name is None:
            raise UsageError(
                f"{manifest} names the object {key}, which is not beside it.",
                next_step="Fetch the whole export, or name the objects that are there.",
                file=manifest,
            )
        found.append(name)
    return found


def open_pattern(pattern: str, options: Mapping[str, str] | None = None) -> PatternFiles:
    """Split a pattern into its fixed folder and its wild rest.

    `*`, `?` and `[…]` stand for parts of one name, `**` for any folders.

    Args:
        pattern: paths, or URLs of an object store.
        options: what gives access to the object store, see `tables.remote`.

    Raises:
        ConfigurationError: It is empty, or names a folder.
    """
    if not pattern or pattern.endswith("/"):
        raise ConfigurationError(
            f"The archive pattern {pattern!r} names no files.",
            next_step="Write a pattern that ends in file names, such as records/*.jsonl.",
            option="path",
        )
    scheme, separator, path = pattern.rpartition("://")
    parts = path.split("/")
    fixed = 0
    while fixed < len(parts) - 1 and not _WILD.search(parts[fixed]):
        fixed += 1
    root = "/".join(parts[:fixed]) or ("/" if path.startswith("/") else ".")
    wild = "/".join(parts[fixed:])
    if separator:
        return PatternFiles(pattern, f"{scheme}://{root}", wild, dict(options or {}))
    if Path(path).is_dir():
        raise ConfigurationError(
            f"The archive {pattern} is a folder.",
            next_step=f"Write a pattern of the files in it, such as {pattern}/*.jsonl.",
            option="path",
        )
    return PatternFiles(pattern, str(Path(root).expanduser().absolute()), wild)


def _spans_folders(wild: str) -> bool:
    return "/" in wild


def _regex(wild: str) -> str:
    """Translate a pattern; names that begin with a dot are met only by a pattern that says the dot."""
    out: list[str] = []
    for part in wild.split("/"):
        if part == "**":
            out.append(r"(?:[^/.][^/]*/)*")
            continue
        hidden = "" if part.startswith(".") else r"(?!\.)"
        out.append(hidden + re.sub(r"\*|\?|\[!?[^]]+\]|.", _piece, part) + "/")
    return "".join(out).removesuffix("/")


def _piece(match: re.Match[str]) -> str:
    text = match.group()
    if text == "*":
        return "[^/]*"
    if text == "?":
        return "[^/]"
    if len(text) > 1:
        return "[^" + text[2:].replace("\\", "\\\\") if text[1] == "!" else text.replace("\\", "\\\\")
    return re.escape(text)
