"""Read where a streaming query stands from its checkpoint, without starting Spark.

::

    checkpoint/
      offsets/7     "v1", a line of batch metadata, then one line of offset JSON per source
      commits/7     there once batch 7 is done

A batch whose offsets are there without its commit was planned and will be run (again) at the next start.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyarrow import fs

from headpond.core.errors import InvalidData
from headpond.lake.engine.folder import Folder
from headpond.lake.storage import file_system, storage_errors

if TYPE_CHECKING:
    from headpond.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a query stands.

    Attributes:
        batch_id: number of the last batch that is done, if any.
        offset: the source's offset after that batch.
        planned_batch_id: number of a batch begun but not done, if any.
    """

    batch_id: int | None
    offset: dict[str, Any] | None
    planned_batch_id: int | None


def standing(checkpoint: str, storage_options: Mapping[str, str] | None = None) -> Standing:
    """Read the standing from a checkpoint's folder or URL; all None when there is no checkpoint yet.

    Raises:
        InvalidData: a file of the checkpoint is not what Spark writes.
    """
    folder = Folder(checkpoint, storage_options or {})
    begun, done = _numbers(folder, "offsets"), _numbers(folder, "commits")
    last = max({*begun}.intersection(done), default=None)
    planned = begun[-1] if begun and begun[-1] not in done else None
    return Standing(last, None if last is None else _offset(folder, f"offsets/{last}"), planned)


@dataclass(frozen=True, slots=True)
class Torn:
    """A file of a checkpoint that is missing, empty or cut, as a power cut leaves a file.

    Attributes:
        name: the file, relative to the checkpoint.
        away: files to move away, so that the query goes on; empty: the whole checkpoint.
        then: what happens next, a sentence.
    """

    name: str
    away: tuple[str, ...]
    then: str


def torn_file(checkpoint: str, storage_options: Mapping[str, str] | None = None) -> Torn | None:
    """Find the first file of a checkpoint that Spark would trip over; None when it is whole or not there."""
    folder = Folder(checkpoint, storage_options or {})
    begun, done = _numbers(folder, "offsets"), _numbers(folder, "commits")
    if not begun and not done:
        return None
    if not _is_whole(folder.read("metadata"), versioned=False):
        return Torn(
            "metadata",
            (),
            "Reading begins again at source.start, and what was applied before is applied again, "
            "harmlessly. A start of LATEST must first name a time before the last batch.",
        )
    # Spark reads the offsets of the newest batch and of the one before, `standing` those of the last done.
    newest = max([*begun[-1:], *done[-1:]])
    read = sorted({newest - 1, newest, *sorted({*begun}.intersection(done))[-1:]})
    for number in read:
        if number >= 0 and not _is_whole(folder.read(f"offsets/{number}")):
            there = (("offsets", begun), ("commits", done))
            return Torn(
                f"offsets/{number}",
                tuple(f"{of}/{each}" for of, numbers in there for each in numbers if each >= number),
                f"What batch {number} and later ones applied is read and applied again, harmlessly.",
            )
    if done and not _is_whole(folder.read(f"commits/{done[-1]}")):
        name = f"commits/{done[-1]}"
        return Torn(name, (name,), "The batch is done again, harmlessly.")
    return None


def check_whole(checkpoint: str, storage_options: Mapping[str, str] | None = None) -> None:
    """Look whether a power cut left files of the checkpoint empty or cut, before Spark starts.

    Raises:
        InvalidData: one is not what Spark writes; the next step says what can be moved away.
    """
    torn = torn_file(checkpoint, storage_options)
    if torn is not None:
        places = " and ".join(f"{checkpoint}/{name}" for name in torn.away) or checkpoint
        raise InvalidData(
            f"{checkpoint}/{torn.name} is not whole: it is missing, empty or cut, as by a power cut.",
            next_step=f"Move {places} away, or let headpond repair do it. {torn.then}",
            path=f"{checkpoint}/{torn.name}",
        )


def take_away(
    checkpoint: str, torn: Torn, kept: str, storage_options: Mapping[str, str] | None = None
) -> None:
    """Move what is torn from a checkpoint to the folder or URL `kept`; nothing is deleted."""
    files, root = file_system(checkpoint, storage_options)
    _, to = file_system(kept, storage_options)
    with storage_errors(checkpoint, storage_options):
        names = torn.away
        if not names:
            found = files.get_file_info(fs.FileSelector(root, recursive=True))
            names = tuple(info.path[len(root) + 1 :] for info in found if info.type == fs.FileType.File)
        for name in names:
            files.create_dir(f"{to}/{name}".rpartition("/")[0])
            files.move(f"{root}/{name}", f"{to}/{name}")


def _is_whole(content: bytes | None, *, versioned: bool = True) -> bool:
    lines = (content or b"").splitlines()
    if versioned and not (lines and lines[0].startswith(b"v")):
        return False
    try:
        documents = [json.loads(line) for line in lines[versioned:] if line.strip() not in (b"", b"-")]
    except ValueError:
        return False
    return bool(documents)


def read_again(pipeline: Pipeline, only: str | None) -> Collection[str] | None:
    """Return the tables whose changes are all read again, None for all: these may be made again."""
    if only is not None:
        return (only,)
    done = _numbers(Folder(pipeline.target.checkpoint, pipeline.target.storage_options), "commits")
    return () if done else None


def _numbers(folder: Folder, of: str) -> list[int]:
    names = (path.rpartition("/")[2] for path, _ in folder.listed(of))
    return sorted(int(name) for name in names if name.isdecimal())


def _offset(folder: Folder, path: str) -> dict[str, Any]:
    text = (folder.read(path) or b"").decode("utf-8", "replace")
    version, _, rest = text.partition("\n")
    try:
        offset: Any = json.loads(rest.splitlines()[1])
    except (IndexError, ValueError):
        offset = None
    if not version.startswith("v") or not isinstance(offset, dict):
        raise InvalidData(
            f"{folder.uri}/{path} is not an offset file of Spark: expected a version, metadata and an "
            f"offset, found {text[:80]!r}.",
            next_step="Restore it, or run headpond repair: versions make reading again harmless.",
            path=f"{folder.uri}/{path}",
        )
    return offset
