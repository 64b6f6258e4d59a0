"""Values of partition columns that could not name a folder: they are refused before they reach a table.

A value names a folder `column=value`, each byte that is no letter, digit or one of ``. _ ~ -`` written as
``%XX``. No value can leave the table's folder that way, but one that is too long could not be written: a
single record would end every run, for its batch would come again.
"""

from __future__ import annotations

from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MAX_FOLDER_BYTES = 255
"""Longest name of one folder on the file systems in use."""
_PLAIN = "[A-Za-z0-9._~-]"


def unwritable(column: str, values: pa.Array) -> list[int]:
    """Give the rows whose value is too long to name a folder.

    Args:
        column: the partition column's name.
        values: its values; only text can be too long.
    """
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)) or not len(values):
        return []
    # A column's name in Delta is escaped itself, and once more in the folder's name.
    room = MAX_FOLDER_BYTES - len(quote(quote(column, safe=""), safe="")) - len("=")
    longest = pc.max(pc.binary_length(values)).as_py() or 0
    if longest * 3 <= room:
        return []
    size = pc.binary_length(values)
    plain = pc.count_substring_regex(values, _PLAIN)
    taken = pc.subtract(pc.multiply(size, 3), pc.multiply(plain, 2))
    over = pc.fill_null(pc.greater(taken, room), fill_value=False)
    found: list[int] = np.flatnonzero(over.to_numpy(zero_copy_only=False)).tolist()
    return found
