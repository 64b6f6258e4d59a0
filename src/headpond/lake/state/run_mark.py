"""The mark of the run that keeps a lake: a small file that says when it was last seen alive.

::

    _headpond/run.json    {"state": "running", "seen_ms": …, "batch_id": …, "host": …, "pid": …, …}

It is rewritten every few seconds while a run waits or works, so that a supervisor can tell a run that has
nothing to do from one that hangs, and a second run that there is one already.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headpond.core.errors import ConfigurationError, InvalidData, UsageError
from headpond.lake.storage import read_json, write_document

FORMAT_VERSION = 1
NAME = "run.json"
OWN_FOLDER = "_headpond"  # here, because a health check loads no more
EVERY_S = 5.0
"""How often a run says that it is there."""
LEASE_S = 3 * EVERY_S
"""A run of another machine that does not say so for that long has ended without a word."""
FORGOTTEN_MS = 600_000
"""So long after its last sign a run is not waited for, whatever the clocks say."""


class RunMark:
    """The mark of one lake, in its `_headpond` at a path or URL."""

    def __init__(
        self,
        folder: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.place = f"{folder}/{NAME}"
        self._options = dict(storage_options or {})
        self._now_ms = now_ms

    def write(self, **facts: Any) -> None:
        """Write the mark, with the time of now as `seen_ms`."""
        document = {"format_version": FORMAT_VERSION, **facts, "seen_ms": self._now_ms()}
        write_document(self.place, json.dumps(document, ensure_ascii=False).encode() + b"\n", self._options)

    def read(self) -> dict[str, Any] | None:
        """Read the mark; None where no run has left one.

        It has `state` (`running`, `stopped`, `finished`, `failed`), `seen_ms`, `age_ms` (since then),
        `started_ms`, `batch_id`, `host`, `pid`, `run_id`, `version`, `error` of a run that failed, and
        `newest` (`core.formats.Newest`) of the configured tables.
        """
        mark = read_json(
            self.place,
            self._options,
            lambda said: {"format_version": 1, **said, "age_ms": max(0, self._now_ms() - said["seen_ms"])},
            is_not="the mark of a run",
            fix="Remove it; the next run writes a new one.",
        )
        if mark is not None and (written := mark["format_version"]) > FORMAT_VERSION:
            raise ConfigurationError(
                f"{self.place} is of format {written}, "
                f"and this headpond knows formats up to {FORMAT_VERSION}.",
                next_step="Ask with the headpond that runs there; a run of this one replaces the mark.",
                path=self.place,
                found=written,
                known=FORMAT_VERSION,
            )
        return mark

    def refuse_another(self, *, sleep: Callable[[float], object] = time.sleep) -> None:
        """Make sure that no other run keeps the lake.

        Of a run on this machine its process tells. One of another machine is watched for `LEASE_S`: it may
        have been killed just now.

        Raises:
            UsageError: there is one, with its host, process and start.
        """
        seen = self._running()
        if seen is None:
            return
        process = seen.get("process")
        if process is not None and seen["host"] == socket.gethostname():
            if process == process_of(os.getpid()) or process != process_of(seen["pid"]):
                return
        elif seen["age_ms"] > FORGOTTEN_MS:
            return
        else:
            before = seen["seen_ms"]
            for _ in range(int(LEASE_S)):
                sleep(1.0)
                seen = self._running()
                if seen is None:
                    return
                if seen["seen_ms"] != before:
                    break
            else:
                return
        started = datetime.fromtimestamp(seen["started_ms"] / 1000, UTC).isoformat(" ", "seconds")
        raise UsageError(
            f"Another run keeps this lake: process {seen['pid']} on {seen['host']}, started {started}, "
            f"last seen {seen['age_ms'] / 1000:.0f} s ago.",
            next_step="Stop that run, or give this pipeline a lake of its own (target.path).",
            host=seen["host"],
            pid=seen["pid"],
            started_ms=seen["started_ms"],
            path=self.place,
        )

    def _running(self) -> dict[str, Any] | None:
        mark = None
        with suppress(InvalidData):  # torn by a power cut: whoever wrote it is gone, too
            mark = self.read()
        return mark if mark is not None and mark.get("state") == "running" else None


def newest_of(mark: Mapping[str, Any] | None) -> dict[str, tuple[int, int | None]]:
    """Return what a mark says of the newest change of each table; nothing where it is of an older run."""
    said = {} if mark is None else mark.get("newest") or {}
    return {table: (commit_ns, delay_ns) for table, (commit_ns, delay_ns) in said.items()}


def process_of(pid: int) -> str | None:
    """Return what no other process of this machine has had or will have; None where that is not known.

    Numbers of processes come again, after a restart of a container at once.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
    return f"{boot}:{pid}:{ticks}"


def mark_in(lake: str, storage_options: Mapping[str, str] | None = None) -> RunMark:
    """Open the mark of the lake at a path or URL; it need not be there."""
    return RunMark(f"{lake.rstrip('/')}/{OWN_FOLDER}", storage_options)
