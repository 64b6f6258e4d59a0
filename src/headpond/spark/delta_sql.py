r"""Merge conditions as Spark reads them.

The conditions of `headpond.tables` are written once, in SQL's own quoting, which DataFusion reads. Spark
writes names in backticks and takes a backslash in a text for an escape::

    t."a%20b" = 'it''s \n'      →      t.`a%20b` = 'it\'s \\n'

Everything else that those conditions use (comparisons, CASE, least, greatest, IN) both engines read alike.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_QUOTED = re.compile(r"\"((?:[^\"]|\"\")*)\"|'((?:[^']|'')*)'")


def name(plain: str) -> str:
    """Quote a name for Spark."""
    return "`" + plain.replace("`", "``") + "`"


def text(plain: str) -> str:
    """Quote a text for Spark."""
    return "'" + plain.replace("\\", "\\\\").replace("'", "\\'") + "'"


def spark_sql(condition: str) -> str:
    r"""Rewrite names and texts of a condition; the rest stays as it is.

    >>> print(spark_sql('''t."a""b" = 'it''s' '''))
    t.`a"b` = 'it\'s'
    """

    def again(found: re.Match[str]) -> str:
        if found[1] is not None:
            return name(found[1].replace('""', '"'))
        return text(found[2].replace("''", "'"))

    return _QUOTED.sub(again, condition)


def merge_sql(
    target: str,
    source: str,
    *,
    match: str,
    update: Mapping[str, str] | None = None,
    update_if: str | None = None,
    insert: Mapping[str, str] | None = None,
    insert_if: str | None = None,
    delete_if: str | None = None,
) -> str:
    """Write a merge as one statement for Spark.

    Args:
        target: the Delta table, as Spark names it.
        source: the view of the changes.
        match: as for `DeltaFile.merge`, in SQL's own quoting; so are all that follow.
        update: as there.
        update_if: as there.
        insert: as there.
        insert_if: as there.
        delete_if: as there.
    """
    parts = [f"MERGE INTO {target} t USING {source} s ON {spark_sql(match)}"]
    if delete_if is not None:
        parts.append(f"WHEN MATCHED AND ({spark_sql(delete_if)}) THEN DELETE")
    if update:
        assigned = ", ".join(f"{spark_sql(column)} = {spark_sql(value)}" for column, value in update.items())
        parts.append(f"WHEN MATCHED{_only(update_if)} THEN UPDATE SET {assigned}")
    if insert:
        columns, values = (", ".join(map(spark_sql, side)) for side in (insert.keys(), insert.values()))
        parts.append(f"WHEN NOT MATCHED{_only(insert_if)} THEN INSERT ({columns}) VALUES ({values})")  # noqa: S608 - quoted
    return " ".join(parts)


def _only(condition: str | None) -> str:
    return "" if condition is None else f" AND ({spark_sql(condition)})"
