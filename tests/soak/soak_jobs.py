"""The soak's processes: started in groups of their own, watched, killed at random, never left behind."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection
    from pathlib import Path

LOCAL, CLUSTER = "local[2,20]", "local-cluster[2,1,1024]"
VICTIMS = {"driver": 4, "worker": 4, "executor": 4, "planner": 1}
"""What is killed, and how often one beside the others."""
EARLY = 0.8
LAST_WORDS = 3000


class JobFailedError(Exception):
    """A job ended that nobody had ended."""


@dataclass
class Job:
    """One of the programs under test, started again whenever it was killed.

    Attributes:
        name: for people.
        command: gives the command, of the master and whether to run to the end (`out`) or on.
        folder: where it runs and where its words go.
        killed: how often what was killed.
    """

    name: str
    command: Callable[[str, str], list[str]]
    folder: Path
    killed: Counter[str] = field(default_factory=Counter)
    starts: Counter[str] = field(default_factory=Counter)
    _process: subprocess.Popen[bytes] | None = None
    _seen: dict[int, psutil.Process] = field(default_factory=dict)
    _excused_until: float = 0.0

    def start(self, master: str, until: str = "on") -> subprocess.Popen[bytes]:
        """Start it as a process group of its own."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.starts[master] += 1
        self._excused_until = 0.0
        with (self.folder / "out.log").open("ab") as out, (self.folder / "err.log").open("ab") as err:
            env = {**os.environ, "SPARK_WORKER_DIR": str(self.folder / "work")}
            self._process = subprocess.Popen(
                self.command(master, until),
                stdout=out, stderr=err, stdin=subprocess.DEVNULL, cwd=self.folder, env=env,
                start_new_session=True,
            )  # fmt: skip
        return self._process

    def watch(self, master: str) -> None:
        """Start it again where its end was our doing.

        Raises:
            JobFailedError: it ended by itself.
        """
        assert self._process is not None
        if self._process.poll() is None:
            self._look()
            return
        if time.monotonic() > self._excused_until:
            raise JobFailedError(f"{self.name} ended with {self._process.returncode}:\n{self.last_words()}")
        self.kill_all()
        self.start(master)

    def strike(self, draw: random.Random, lacking: Collection[str] = ()) -> str | None:
        """Kill something of it that is there; say what, or null where it goes free.

        Args:
            draw: of what.
            lacking: what was not killed often enough yet, and comes first.
        """
        assert self._process is not None
        if self._process.poll() is not None:
            return None
        below = self._look()
        found = {what: [each for each in below if _is(each, what)] for what in VICTIMS if what != "driver"}
        there = [what for what in VICTIMS if what == "driver" or found[what]]
        if not found["worker"] and draw.random() < EARLY:
            return None  # a job that only starts is killed too, but not always: it would never get anywhere
        if lacking:
            there = [what for what in there if what in lacking]
            if not there:
                return None  # what is wanted is still to come, and a driver killed now would keep it away
        what = draw.choices(there, [VICTIMS[each] for each in there])[0]
        if what == "driver":
            self.kill_all()
            self._excused_until = math.inf
        else:
            with suppress(psutil.NoSuchProcess):
                draw.choice(found[what]).kill()
            if what == "planner":  # Spark ends a query whose source's planner is gone
                self._excused_until = time.monotonic() + 60
        self.killed[what] += 1
        return what

    def ended(self, limit_s: float) -> None:
        """Wait for the end of a run to the end of what is there.

        Raises:
            JobFailedError: it did not end well, or not in time.
        """
        assert self._process is not None
        try:
            code = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill_all()
            raise JobFailedError(
                f"{self.name} did not end within {limit_s:.0f} s:\n{self.last_words()}"
            ) from None
        if code:
            raise JobFailedError(f"{self.name} ended with {code}:\n{self.last_words()}")
        self.kill_all()

    def kill_all(self) -> None:
        """Kill driver, executors, workers and all, and wait until they are gone."""
        if self._process is None:
            return
        self._look()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for each in self._seen.values():  # Python's daemons have groups of their own
            with suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(self._seen.values(), timeout=20)
        self._seen.clear()

    def last_words(self) -> str:
        """Give the end of what it said."""
        return (self.folder / "err.log").read_text(errors="replace")[-LAST_WORDS:]

    def _look(self) -> list[psutil.Process]:
        """Find the processes below it; those once seen are remembered until they are gone."""
        assert self._process is not None
        found: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            found = psutil.Process(self._process.pid).children(recursive=True)
        self._seen = {pid: each for pid, each in self._seen.items() if each.is_running()}
        self._seen |= {each.pid: each for each in found}
        return found


def _is(process: psutil.Process, what: str) -> bool:
    """Say whether a process is an executor, a Python worker of a task, or one that plans."""
    try:
        runs, parent = _runs(process), process.parent()
        forked = parent is not None and runs == _runs(parent)
        words = " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False
    # What Spark asks while it plans runs in forked workers, too, but is not asked again: the query ends.
    plans = runs.startswith("python_streamin") or (forked and "data_sou" in runs)
    if what == "executor":
        return "CoarseGrainedExecutorBackend" in words
    return plans if what == "planner" else forked and runs == "worker"


def _runs(process: psutil.Process) -> str:
    """Say what a Python of Spark's runs, in 15 characters; what the parent forks has it as its name."""
    words = process.cmdline()
    if "headpond.spark.session.workers" in words:
        return process.name()
    return words[-1].rpartition(".")[2][:15] if words[1:2] == ["-m"] else ""
