"""Removing the files of a table that no version of the last time needs, and what failed commits left."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from headpond.lake.engine import vectors
from headpond.lake.engine.log import Log, milliseconds

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from headpond.lake.engine.folder import Folder


def vacuum(folder: Folder, retain_ms: int) -> int:
    """Remove files older than `retain_ms` that neither the newest version needs nor one of that time.

    Vectors are files like others. Whatever begins with `_` or `.` is somebody else's, but for partitions.
    """
    since_ms = milliseconds() - retain_ms
    snapshot = Log(folder, removed=True).newest()
    needed: set[str] = set()
    for action in (
        *(file.add for file in snapshot.files.values()),
        *(
            action
            for action in snapshot.removed or ()
            if int(action.get("deletionTimestamp") or 0) > since_ms
        ),
    ):
        needed |= _files_of(action)
    old = [
        path
        for path, changed_ms in folder.listed(recursive=True)
        if changed_ms <= since_ms and path not in needed and (_is_data(path) or _is_left(path))
    ]
    folder.remove(old)
    return len(old)


def _files_of(action: Mapping[str, Any]) -> set[str]:
    vector = action.get("deletionVector")
    marks = vectors.path_of(vector) if vector else None
    return {unquote(action["path"]), *([marks] if marks else [])}


def _is_data(path: str) -> bool:
    return not any(part.startswith(("_", ".")) and "=" not in part for part in path.split("/"))


def _is_left(path: str) -> bool:
    """Return whether it is of a commit that was never finished."""
    return path.startswith("_delta_log/_commit_") and path.endswith(".tmp")
