"""Where archive files lie: a pattern, the files that match it now, and byte ranges of them.

Local paths and object-store URLs go through one interface, `pyarrow.fs`. A file's name is its path
below the fixed folder of the pattern, so moving the folder changes no identity::

    records/2026-*/*.jsonl.gz      folder: records      names: 2026-01/a.jsonl.gz, …
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow.fs as pafs

from headpond.errors import ConfigurationError
from headpond.tables.remote import file_system, told

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        matches = re.compile(_regex(self.wild)).fullmatch
        found: dict[str, int] = {}
        with told(self.root, self.options):
            infos = filesystem.get_file_info(selector)
        for info in infos:
            name = info.path[len(folder) :].lstrip("/")
            if info.type == pafs.FileType.File and matches(name):
                found[name] = info.size
        return found

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
