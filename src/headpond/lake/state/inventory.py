"""Which tables a lake had at its last start, and from what source, so that neither changes unnoticed.

::

    _headpond/tables.json    {"format_version": 1, "source": "the stream orders",
                              "tables": ["public.orders", "_headpond/quarantine", …]}

Spark's checkpoint says how far a source was read, for all tables at once. A table that someone removed would
be made again and have only what comes from then on; files of another archive would be taken for those read.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping

from headpond.core.errors import ConfigurationError
from headpond.lake.storage import read_json, write_document

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
NAME = "tables.json"


class Inventory:
    """The list of one lake, in its `_headpond` at a path or URL."""

    def __init__(self, folder: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.place = f"{folder}/{NAME}"
        self._options = dict(storage_options or {})

    def read(self) -> tuple[set[str], str | None]:
        """Return the tables that were there, none where there is no list yet, and the source where known."""
        found = read_json(
            self.place,
            self._options,
            lambda document: ({str(name) for name in document["tables"]}, document.get("source")),
            is_not="a list of a lake's tables",
            fix="Remove it; the next start writes a new one, of the tables that are there then.",
        )
        return found or (set(), None)

    def check(self, there: Collection[str], wanted: Collection[str]) -> None:
        """Raise ConfigurationError where a table that is wanted was there, and is gone."""
        gone = sorted(self.read()[0].intersection(wanted).difference(there))
        if gone:
            others = f" (and {len(gone) - 1} more)" if len(gone) > 1 else ""
            is_own = gone[0].startswith("_headpond/")
            again = (
                "what it held is lost"
                if is_own
                else f"then `headpond bootstrap FILE {gone[0]} --from-start` brings what the source still has"
            )
            raise ConfigurationError(
                f"The lake had the table {gone[0]!r}{others} at its last start, and its folder is "
                "gone: made again, it would lack every row that was read before.",
                next_step="Restore the folder. To go on without it, take its name out of "
                f"{self.place}; {again}.",
                tables=gone,
                path=self.place,
            )

    def check_source(self, source: str) -> None:
        """Raise ConfigurationError where a checkpoint that continues was made with another source."""
        before = self.read()[1]
        if before not in (None, source):
            raise ConfigurationError(
                f"The lake was fed by {before}, and the pipeline file names {source} now: what was read of "
                "the one would be taken for the other.",
                next_step="Name the former source again. Or move the checkpoint away (target.checkpoint, by "
                f"default _headpond/checkpoint in the lake): then {source} is read from its beginning, or "
                "from source.start, and changes that were applied before change nothing.",
                before=before,
                source=source,
            )

    def write(self, there: Collection[str], source: str | None = None) -> None:
        """Write the list, if it says something else; the source stays where none is given."""
        tables, before = self.read()
        source = source or before
        for name in sorted(tables.difference(there)):
            logger.warning(
                "The table %s has no entry in the pipeline file any more: it stays as it is, and its changes "
                "are those of an unknown table from now on",
                name,
            )
        if (tables, before) != (set(there), source):
            document = {"format_version": FORMAT_VERSION, "source": source, "tables": sorted(there)}
            content = json.dumps(document, ensure_ascii=False).encode() + b"\n"
            write_document(self.place, content, self._options, durable=True)
