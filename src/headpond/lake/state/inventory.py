"""Which tables a lake had at its last start, so that one that is gone is missed and not made anew, empty.

::

    _headpond/tables.json    {"format_version": 1, "tables": ["public.orders", "_headpond/quarantine", …]}

Spark's checkpoint says how far a source was read, for all tables at once. A table that someone removed would
be made again and have only what comes from then on.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from headpond.core.errors import ConfigurationError, InvalidData
from headpond.lake.storage import read_document, write_document

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

FORMAT_VERSION = 1
NAME = "tables.json"


class Inventory:
    """The list of one lake, in its `_headpond` at a path or URL."""

    def __init__(self, folder: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.place = f"{folder}/{NAME}"
        self._options = dict(storage_options or {})

    def read(self) -> set[str]:
        """Return the tables that were there; none where there is no list yet."""
        content = read_document(self.place, self._options)
        if content is None:
            return set()
        try:
            document = json.loads(content)
            return {str(name) for name in document["tables"]}
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidData(
                f"{self.place} is not a list of a lake's tables: found {content[:80]!r}.",
                next_step="Remove it; the next start writes a new one, of the tables that are there then.",
                path=self.place,
            ) from error

    def check(self, there: Collection[str], wanted: Collection[str]) -> None:
        """Raise where a table that is wanted was there, and is gone.

        Raises:
            ConfigurationError: with the tables' names.
        """
        gone = sorted(self.read().intersection(wanted).difference(there))
        if gone:
            is_own = gone[0].startswith("_headpond/")
            again = (
                "what it held is lost"
                if is_own
                else f"then `headpond bootstrap FILE {gone[0]} --from-start` brings what the source still has"
            )
            raise ConfigurationError(
                f"The lake had the table {gone[0]!r}{_others(gone)} at its last start, and its folder is "
                "gone: made anew, it would lack every row that was read before.",
                next_step="Restore the folder. To go on without it, take its name out of "
                f"{self.place}; {again}.",
                tables=gone,
                path=self.place,
            )

    def write(self, there: Collection[str]) -> None:
        """Write the list, if it says something else."""
        if self.read() != set(there):
            document = {"format_version": FORMAT_VERSION, "tables": sorted(there)}
            content = json.dumps(document, ensure_ascii=False).encode() + b"\n"
            write_document(self.place, content, self._options, durable=True)


def _others(gone: Collection[str]) -> str:
    return f" (and {len(gone) - 1} more)" if len(gone) > 1 else ""
