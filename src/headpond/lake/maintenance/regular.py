"""Maintenance of a lake beside the batches of a run: few files, short logs, no old files.

::

    every 10 s     many small files of a table ─► one         what `DeltaFile.tidy` does after a commit
                   100 commits ─► a checkpoint of its log     where nobody follows a stream
    every day      each table: what `headpond optimize --vacuum` does; more often where versions are kept
                   for less than a day

Files are read and written while batches go on; a batch waits for the commit alone (`engine.merge.Alone`).
When each table was maintained, and what that did, is kept with the lake for the next run::

    _headpond/maintenance.json    {"format_version": 1, "tables": {"public.orders": {"at_ms": …, …}}}
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from headpond.lake.engine.merge import Alone
from headpond.lake.maintenance.optimize import HOUR_MS, optimize_file
from headpond.lake.state.run_mark import OWN_FOLDER
from headpond.lake.storage import read_json, write_document
from headpond.lake.tables import Lake

logger = logging.getLogger(__name__)

TIDY_MS = 10_000
DAY_MS = 86_400_000
FORMAT_VERSION = 1
NAME = "maintenance.json"


class Maintenance:
    """Maintains the tables of a lake, opened for this alone, while somebody else writes them.

    `alone` holds up who writes; what it raises after the end of a run ends what is under way. A table is
    compacted and vacuumed once a day; every `retain_ms` (as of `optimize_file`) where that is less, at most
    once an hour.
    """

    def __init__(
        self,
        lake: Lake,
        alone: Alone,
        *,
        retain_ms: int,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._lake, self._alone, self._now_ms = lake, alone, now_ms
        self._every_ms, self._retain_ms = min(DAY_MS, max(HOUR_MS, retain_ms)), retain_ms
        self._tidied: dict[str, int] = {}
        self._tidy_at = now_ms() + TIDY_MS
        self._done: dict[str, dict[str, Any]] | None = None
        self._held_ms = 0.0

    def do_due(self) -> None:
        """Tidy the tables, and maintain the one that has waited longest, where that is due."""
        now = self._now_ms()
        # After a clock was set back, what lies in times to come is due as well.
        if now < self._tidy_at <= now + TIDY_MS:
            return
        self._tidy_at = now + TIDY_MS
        self._lake.look()
        there = dict(self._lake.files())
        for name, file in there.items():
            self._tidied[name] = file.tidy(self._tidied.get(name, file.engine.version), self._held)
        if self._done is None:
            self._done = maintained(self._lake.path, self._lake.storage_options)
        done = {name: self._done.get(name, {}).get("at_ms", 0) for name in there}
        waits = {name: now - (at if at <= now else 0) for name, at in done.items()}
        if (name := max(waits, key=lambda name: waits[name], default="")) and waits[name] >= self._every_ms:
            self._maintain(name)

    def _maintain(self, name: str) -> None:
        begun, self._held_ms = self._now_ms(), 0.0
        table = self._lake.tables.get(name)
        assert self._done is not None
        # Noted first: a table that cannot be maintained must not keep the others waiting.
        self._done[name] = {**self._done.get(name, {}), "at_ms": begun}
        found = optimize_file(
            self._lake.places()[name],
            target_bytes=None if table is None else table.entry.target_file_size_bytes,
            retain_ms=self._retain_ms,
            alone=self._held,
        )
        facts = {
            "at_ms": begun,
            "took_ms": self._now_ms() - begun,
            "held_ms": round(self._held_ms),
            "files_before": found.before.files,
            "files_after": found.after.files,
            "removed": found.vacuumed,
        }
        logger.info(
            "%s was maintained: %d files instead of %d, %d old ones removed; batches waited for up to %d ms",
            name, found.after.files, found.before.files, found.vacuumed, facts["held_ms"],
            extra={"fields": {"table": name, **facts}},
        )  # fmt: skip
        self._done[name] = facts
        document = {"format_version": FORMAT_VERSION, "tables": self._done}
        content = json.dumps(document, ensure_ascii=False).encode() + b"\n"
        write_document(_place(self._lake.path), content, self._lake.storage_options, durable=True)

    @contextmanager
    def _held(self) -> Iterator[None]:
        with self._alone():
            begun = time.monotonic()
            try:
                yield
            finally:
                self._held_ms = max(self._held_ms, (time.monotonic() - begun) * 1000)


def maintained(lake: str, storage_options: Mapping[str, str] | None = None) -> dict[str, dict[str, Any]]:
    """Return what the last maintenance of each table of a lake did; `{}` where there was none.

    Returns:
        Table → `at_ms` (when it began, milliseconds since 1970), `took_ms`, `held_ms` (how long a batch may
        have waited for it), `files_before`, `files_after`, `removed` (old files).
    """
    found = read_json(
        _place(lake),
        storage_options,
        lambda said: dict(said["tables"]),
        is_not="a list of when tables were maintained",
        fix="Remove it; each table is maintained again, which is harmless.",
    )
    return found or {}


def _place(lake: str) -> str:
    return f"{lake.rstrip('/')}/{OWN_FOLDER}/{NAME}"
