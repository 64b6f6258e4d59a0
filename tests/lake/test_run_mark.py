"""A second run on one lake is refused by name; one that was killed is not in the way."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from headpond.core.errors import InvalidData, UsageError
from headpond.lake.state.run_mark import FORGOTTEN_MS, LEASE_S, RunMark, process_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOW_MS = 1_795_000_000_000
FACTS: dict[str, Any] = {"state": "running", "started_ms": NOW_MS - 60_000, "version": "1"}


def here(pid: int) -> dict[str, Any]:
    return FACTS | {"host": socket.gethostname(), "pid": pid, "process": process_of(pid)}


def asked(
    folder: Path, facts: dict[str, Any], meanwhile: Callable[[RunMark], object] = id, *, age_ms: int = 0
) -> int:
    """Ask whether there is another run; return for how many seconds that was watched."""
    now = NOW_MS
    mark = RunMark(str(folder), now_ms=lambda: now)
    mark.write(**facts)
    now += age_ms
    slept = 0.0

    def sleep(seconds: float) -> None:
        nonlocal slept, now
        slept += seconds
        now += int(seconds * 1000)
        if slept == 4:
            meanwhile(mark)

    mark.refuse_another(sleep=sleep)
    return int(slept)


def test_a_run_of_this_machine_is_known_by_its_process(tmp_path: Path) -> None:
    """Alive: refused at once, with host, process and start. Gone, or another process by its number: not."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        facts = here(other.pid)
        with pytest.raises(
            UsageError, match=f"process {other.pid} on {socket.gethostname()}, started 2026-"
        ) as refused:
            asked(tmp_path, facts, age_ms=2_000)
        assert "last seen 2 s ago" in str(refused.value)
        assert refused.value.facts["pid"] == other.pid
        assert asked(tmp_path, facts | {"process": "of:an:earlier one"}) == 0
    assert asked(tmp_path, facts) == 0
    assert asked(tmp_path, here(os.getpid())) == 0


@pytest.mark.parametrize("state", ["stopped", "finished", "failed"])
def test_a_run_that_ended_is_not_in_the_way(tmp_path: Path, state: str) -> None:
    assert asked(tmp_path, here(1) | {"state": state}) == 0
    RunMark(str(tmp_path / "none")).refuse_another()


@pytest.mark.parametrize(
    "facts", [FACTS | {"host": "elsewhere", "pid": 7, "process": "a:7:1"}, here(1) | {"process": None}]
)
def test_a_run_of_another_machine_is_watched(tmp_path: Path, facts: dict[str, Any]) -> None:
    """It says again that it is there, or it was killed, or it ends meanwhile."""
    with pytest.raises(UsageError, match="Another run keeps this lake"):
        asked(tmp_path, facts, lambda mark: mark.write(**facts))
    assert asked(tmp_path, facts) == LEASE_S
    assert asked(tmp_path, facts, age_ms=FORGOTTEN_MS + 1) == 0
    assert asked(tmp_path, facts, lambda mark: mark.write(**facts | {"state": "stopped"})) == 4


@pytest.mark.parametrize("left", [b"", b'{"state": "runn', b"\0\0\0", b"\xff\xfe"])
def test_a_mark_that_a_power_cut_tore_is_not_in_the_way(tmp_path: Path, left: bytes) -> None:
    """The run that wrote it is gone; until the next one writes it, readers are told that it is damaged."""
    mark = RunMark(str(tmp_path))
    (tmp_path / "run.json").write_bytes(left)
    mark.refuse_another(sleep=lambda _seconds: pytest.fail("nobody is waited for"))
    with pytest.raises(InvalidData, match="not the mark of a run"):
        mark.read()
