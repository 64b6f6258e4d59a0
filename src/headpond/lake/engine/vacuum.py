"""Removing files and log entries that no version of the last time needs, and what failed commits left."""

from __future__ import annotations

import re
from urllib.parse import unquote

from headpond.core.errors import ConfigurationError
from headpond.lake.engine import vectors
from headpond.lake.engine.folder import Folder
from headpond.lake.engine.log import Log, by_version, entry_name, milliseconds
from headpond.lake.engine.parquet import CHANGES_FOLDER
from headpond.lake.engine.properties import RETENTION, interval_ms

_NUMBERED = re.compile(r"_delta_log/(\d{20})\..*")
"""Whatever is of a version."""
_UNFINISHED = re.compile(r"_delta_log/(?:_commit_.*\.tmp|\.(?:\d{20}\.checkpoint.*|_last_checkpoint)\.\d+)$")


def vacuum(folder: Folder, retain_ms: int) -> int:
    """Remove files older than `retain_ms` that neither the newest version needs nor one of that time.

    A table that asks for more (`RETENTION`) gets it. Vectors are files like others, and so is what a commit
    says that it changed. Whatever begins with `_` or `.` is somebody else's, but for partitions.
    """
    snapshot = Log(folder, removed=True).newest()
    asked = snapshot.properties.get(RETENTION)
    since_ms = milliseconds() - max(retain_ms, 0 if asked is None else _asked_ms(folder, asked))
    removed = snapshot.removed or ()
    young = [each for each in removed if int(each.get("deletionTimestamp") or 0) > since_ms]
    needing = [*(file.add for file in snapshot.files.values()), *young]
    marks = (vectors.path_of(each["deletionVector"]) for each in needing if each.get("deletionVector"))
    needed = {*(unquote(each["path"]) for each in needing), *marks}
    old = [
        path
        for path, changed_ms in folder.listed(recursive=True)
        if changed_ms <= since_ms and path not in needed and (_is_data(path) or _UNFINISHED.match(path))
    ]
    folder.remove(old)
    return len(old)


def cut_log(folder: Folder, before: int) -> int:
    """Remove entries and checkpoints of the log of versions before one that has a checkpoint."""
    listed = ((_NUMBERED.fullmatch(path), path) for path, _ in folder.listed("_delta_log"))
    old = [path for match, path in listed if match is not None and int(match[1]) < before]
    folder.remove(old)
    return len(old)


def needed_checkpoint(folder: Folder, retain_ms: int) -> int:
    """Return the version of the checkpoint from which every version of this many milliseconds can be read.

    That is 0 where there is none. A version is of the time until the next one was committed.
    """
    since_ms = milliseconds() - retain_ms
    changed_ms = dict(folder.listed("_delta_log"))
    entries, checkpoints = by_version(changed_ms)
    young = [version - 1 for version in entries if changed_ms[entry_name(version)] > since_ms]
    oldest = min(young, default=max(entries, default=0))
    return max((version for version in checkpoints if version <= oldest), default=0)


def _asked_ms(folder: Folder, asked: str) -> int:
    if (found := interval_ms(asked)) is None:
        raise ConfigurationError(
            f"The Delta table at {folder.uri} has {RETENTION} = {asked!r}, which is not an interval as "
            '"interval 30 days": no file is removed.',
            next_step="Correct the property.",
            table=folder.uri,
        )
    return found


def _is_data(path: str) -> bool:
    if path.startswith(f"{CHANGES_FOLDER}/"):
        return True
    return not any(part.startswith(("_", ".")) and "=" not in part for part in path.split("/"))
