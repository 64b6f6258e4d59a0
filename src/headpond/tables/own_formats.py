"""What a later headpond wrote is not touched by an earlier one.

Every row of the tables below `_headpond/` says in which `format_version` it was written. Delta keeps the
greatest one of each file among its statistics, so that looking costs no data file: a lake with a greater one
than is known here is refused before anything is read or written. Older ones are read for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.schemas import FORMAT_VERSION
from headpond.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headpond.tables.delta import DeltaFile

COLUMN = "format_version"


def refuse_later_formats(files: Iterable[DeltaFile], known: int = FORMAT_VERSION) -> None:
    """Refuse tables that hold rows of a format that is not known here.

    Args:
        files: tables of `_headpond/`; those that are not there yet are passed over.
        known: the greatest format that can be read.

    Raises:
        ConfigurationError: one of them was written by a later version of headpond.
    """
    for file in files:
        found = newest_format(file) if file.exists() else 0
        if found > known:
            raise ConfigurationError(
                f"{file.uri} holds rows of format {found}, and this headpond knows formats up to {known}.",
                next_step="Go on with the headpond that wrote them, or a later one; nothing was changed.",
                table=file.uri,
                found=found,
                known=known,
            )


def newest_format(file: DeltaFile) -> int:
    """Give the greatest `format_version` of a table's rows; 0 where there is none."""
    actions: Any = pa.table(file.open().get_add_actions(flatten=True))
    name = f"max.{COLUMN}"
    if name not in actions.column_names:  # no file yet, or none with statistics
        return 0
    return int(pc.max(actions[name]).as_py() or 0)
