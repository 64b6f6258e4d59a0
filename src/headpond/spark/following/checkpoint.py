"""Read where a streaming query stands from its checkpoint, without starting Spark.

::

    checkpoint/
      offsets/7     "v1", a line of batch metadata, then one line of offset JSON per source
      commits/7     there once batch 7 is done

A batch whose offsets are there without its commit was planned and will be run (again) at the next start.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyarrow import fs

from headpond.core.errors import InvalidData
from headpond.lake.storage import file_system, storage_errors

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

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
    files, root = file_system(checkpoint, storage_options)
    with storage_errors(checkpoint, storage_options):
        return _standing(files, root)


def batches_done(checkpoint: str, storage_options: Mapping[str, str] | None = None) -> int | None:
    """Return the number of the last batch that is done, if any."""
    files, root = file_system(checkpoint, storage_options)
    with storage_errors(checkpoint, storage_options):
        return max(_numbers(files, f"{root}/commits"), default=None)


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
    files, root = file_system(checkpoint, storage_options)
    with storage_errors(checkpoint, storage_options):
        begun = sorted(_numbers(files, f"{root}/offsets"))
        done = sorted(_numbers(files, f"{root}/commits"))
        if not begun and not done:
            return None
        if not _is_whole(_read(files, f"{root}/metadata"), versioned=False):
            return Torn(
                "metadata",
                (),
                "Reading begins again at source.start, and what was applied before is applied again, "
                "harmlessly. A start of LATEST must first name a time before the last batch.",
            )
        last = max([*begun[-1:], *done[-1:]])
        if not _is_whole(_read(files, f"{root}/offsets/{last}")):
            away = [f"offsets/{last}"] if last in begun else []
            return Torn(
                f"offsets/{last}",
                (*away, *([f"commits/{last}"] if last in done else [])),
                "The batch is planned again, and what it applied is applied again, harmlessly.",
            )
        if done and not _is_whole(_read(files, f"{root}/commits/{done[-1]}")):
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


def _is_whole(content: bytes, *, versioned: bool = True) -> bool:
    lines = content.splitlines()
    if versioned and not (lines and lines[0].startswith(b"v")):
        return False
    try:
        documents = [json.loads(line) for line in lines[versioned:] if line.strip() not in (b"", b"-")]
    except ValueError:
        return False
    return bool(documents)


def _read(files: fs.FileSystem, path: str) -> bytes:
    if files.get_file_info(path).type != fs.FileType.File:
        return b""
    with files.open_input_stream(path) as stream:
        content: bytes = stream.read()
    return content


def read_again(pipeline: Pipeline, only: str | None) -> Collection[str] | None:
    """Return the tables whose changes are all read again, None for all: these may be made again."""
    if only is not None:
        return (only,)
    done = batches_done(pipeline.target.checkpoint, pipeline.target.storage_options)
    return None if done is None else ()


def _standing(files: fs.FileSystem, root: str) -> Standing:
    begun = sorted(_numbers(files, f"{root}/offsets"))
    done = set(_numbers(files, f"{root}/commits"))
    finished = [number for number in begun if number in done]
    last = finished[-1] if finished else None
    planned = begun[-1] if begun and begun[-1] not in done else None
    offset = _offset(files, f"{root}/offsets/{last}") if last is not None else None
    return Standing(last, offset, planned)


def _numbers(files: fs.FileSystem, folder: str) -> Iterator[int]:
    for info in files.get_file_info(fs.FileSelector(folder, allow_not_found=True)):
        if info.base_name.isdecimal():
            yield int(info.base_name)


def _offset(files: fs.FileSystem, path: str) -> dict[str, Any]:
    text = _read(files, path).decode("utf-8", "replace")
    version, _, rest = text.partition("\n")
    try:
        offset: Any = json.loads(rest.splitlines()[1])
    except (IndexError, ValueError):
        offset = None
    if not version.startswith("v") or not isinstance(offset, dict):
        raise InvalidData(
            f"{path} is not an offset file of Spark: expected a version, metadata and an offset, "
            f"found {text[:80]!r}.",
            next_step="Restore the checkpoint, or begin a new one: versions make reading again harmless.",
            path=path,
        )
    return offset
