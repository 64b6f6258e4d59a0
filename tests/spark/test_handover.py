"""Files of rows beside the JVM: what lies in the folder that all users share is not trusted."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headpond.spark.sources.cells import Folder

if TYPE_CHECKING:
    import pytest


def test_another_users_folder_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the lock should be there may be a pipe that nobody opens at its other end: a run would hang."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    theirs = tmp_path / "headpond-rows-theirs"
    theirs.mkdir()
    os.mkfifo(theirs / "lock")
    lstat = Path.lstat

    def owned_by_others(place: Path) -> Any:
        return SimpleNamespace(st_uid=os.geteuid() + 1) if place == theirs else lstat(place)

    monkeypatch.setattr(Path, "lstat", owned_by_others)
    made = Folder()
    assert (theirs / "lock").exists()
    assert Path(made.path).parent == tmp_path
