"""Temporary folders go with their process, however it ends."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headpond.core.passing import PassingFolder, cache_folder, is_private

if TYPE_CHECKING:
    import pytest

MAKE = """
import os, signal, sys
from headpond.core.passing import PassingFolder
folder = PassingFolder("headpond-test-")
open(os.path.join(folder.path, "file"), "w").close()
print(folder.path, flush=True)
"""


def made_by(tmp_path: Path, then: str) -> tuple[Path, int]:
    """A folder that another process made, and how that ended."""
    done = subprocess.run(
        [sys.executable, "-c", MAKE + then],
        capture_output=True,
        text=True,
        env={"TMPDIR": str(tmp_path)},
        check=False,
    )
    return Path(done.stdout.strip()), done.returncode


def test_it_is_gone_when_the_process_ends(tmp_path: Path) -> None:
    """With all that is in it."""
    folder, code = made_by(tmp_path, "")
    assert (folder.exists(), folder.parent, code) == (False, tmp_path, 0)


def test_that_of_a_killed_process_goes_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose process lives stays, whoever begins."""
    folder, code = made_by(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    assert (folder.exists(), code) == (True, -signal.SIGKILL)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    first, second = PassingFolder("headpond-test-"), PassingFolder("headpond-test-")
    assert not folder.exists()
    assert Path(first.path).exists()
    assert Path(second.path).exists()


def test_one_that_is_still_written_to_goes_at_a_later_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's JVM outlives a driver that is killed by moments, and writes to what is being removed."""
    folder, _ = made_by(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    remove = shutil.rmtree

    def remove_amid_writes(place: Path, *, ignore_errors: bool) -> None:
        remove(place, ignore_errors=ignore_errors)
        place.mkdir()
        (place / "more").touch()

    with monkeypatch.context() as amid:
        amid.setattr("shutil.rmtree", remove_amid_writes)
        PassingFolder("headpond-test-")
    assert (folder / "more").exists()
    PassingFolder("headpond-test-")
    assert not folder.exists()


def test_a_user_without_a_name_or_home_has_a_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that was run under such a number in a container ended with an unexpected error."""

    def getpwuid(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", getpwuid)
    found = cache_folder({})
    assert is_private(found)
    assert found == cache_folder({"HOME": ""})
