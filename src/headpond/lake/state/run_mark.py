"""The mark of the run that keeps a lake: a small file that says when it was last seen alive.

::

    _headpond/run.json    {"state": "running", "seen_ms": …, "batch_id": …, "host": …, "pid": …, …}

It is rewritten every few seconds while a run waits or works, so that a supervisor can tell a run that has
nothing to do from one that hangs. On a folder it is replaced in one step; an object store does that itself.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from headpond.core.errors import ConfigurationError, InvalidData
from headpond.lake.storage import read_document, write_document

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FORMAT_VERSION = 1
NAME = "run.json"
OWN_FOLDER = "_headpond"  # `lake.lake` has it, too; a health check need not load that
EVERY_S = 5.0
"""How often a run says that it is there."""


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
        `started_ms`, `batch_id`, `host`, `pid`, `run_id`, `version`, and `error` of a run that failed.
        """
        content = read_document(self.place, self._options)
        if content is None:
            return None
        try:
            mark = json.loads(content)
            mark["age_ms"] = max(0, self._now_ms() - mark["seen_ms"])
            written = int(mark.get("format_version", FORMAT_VERSION))
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidData(
                f"{self.place} is not the mark of a run: found {content[:80]!r}.",
                next_step="Remove it; the next run writes a new one.",
                path=self.place,
            ) from error
        if written > FORMAT_VERSION:
            raise ConfigurationError(
                f"{self.place} is of format {written}, "
                f"and this headpond knows formats up to {FORMAT_VERSION}.",
                next_step="Ask with the headpond that runs there; a run of this one replaces the mark.",
                path=self.place,
                found=written,
                known=FORMAT_VERSION,
            )
        return dict(mark)


def mark_in(lake: str, storage_options: Mapping[str, str] | None = None) -> RunMark:
    """Open the mark of the lake at a path or URL; it need not be there."""
    return RunMark(f"{lake.rstrip('/')}/{OWN_FOLDER}", storage_options)
