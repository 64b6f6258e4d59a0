"""Names that Spark's and Databricks' AUTO CDC have for what a `[tables]` entry says.

Some are taken for ours; the others are refused with what there is instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headpond.errors import ConfigurationError
from headpond.pipeline.keys import Place, names

if TYPE_CHECKING:
    from collections.abc import Callable


def _scd_type(raw: object, place: Place) -> str:
    kept = {1: "current", 2: "history", "1": "current", "2": "history"}
    if isinstance(raw, bool) or not isinstance(raw, (int, str)) or raw not in kept:
        raise place.wrong(
            "1 (the newest row per key) or 2 (every version)", raw, next_step='Or write keep = "log".'
        )
    return kept[raw]


TAKEN: dict[str, tuple[str, Callable[[Any, Place], Any]]] = {
    "stored_as_scd_type": ("keep", _scd_type),
    "except_column_list": ("except_columns", lambda raw, place: list(names(raw, place))),
}
"""Name there → name here, and how its value is read."""

_FIXED = "it is fixed: versions are ordered by commit time, transaction, and a delete before an upsert"
_WHOLE = "a record holds the whole row, and a column it leaves out is null"
_EVERY = "every change makes a version"

REFUSED: dict[str, tuple[str, str]] = {
    "sequence_by": (_FIXED, "Leave it out."),
    "system_sequence_by": (_FIXED, "Leave it out."),
    "apply_as_deletes": ('it is fixed: a record with op = "d" deletes', "Leave it out."),
    "apply_as_truncates": ("the stream has no truncates", "Leave it out."),
    "column_list": ("columns that the stream brings are kept", "Name those to leave out in except_columns."),
    "columns_to_update": (_WHOLE, "Leave it out."),
    "ignore_null_updates": (_WHOLE, "Leave it out."),
    "ignore_null_updates_column_list": (_WHOLE, "Leave it out."),
    "ignore_null_updates_except_column_list": (_WHOLE, "Leave it out."),
    "track_history_column_list": (_EVERY, "Leave it out."),
    "track_history_except_column_list": (_EVERY, "Leave it out."),
    "once": ("a run ends by itself when told so", "Use `headpond run --until-caught-up`."),
    "source": ("it is said for all tables", "Use [source], and schema and table in the entry."),
    "target": ("it is said for all tables", "The entry's name is the table's; [target] says where it goes."),
}
"""Name there → why it is not taken, and what to do."""


def in_our_words(raw: dict[str, Any], place: Place) -> dict[str, Any]:
    """Give an entry with AUTO CDC's names replaced by ours.

    Raises:
        ConfigurationError: a name that has no meaning here, or a thing that is said twice.
    """
    entry = dict(raw)
    for name, (why, next_step) in REFUSED.items():
        if name in entry:
            path = place.child(name).path
            raise ConfigurationError(
                f"{path} is a name of AUTO CDC that is not taken here: {why}.", next_step=next_step, key=path
            )
    for name, (ours, kind) in TAKEN.items():
        if name not in entry:
            continue
        if ours in entry:
            path = place.child(name).path
            raise ConfigurationError(
                f"{path} and {place.child(ours).path} say the same thing.",
                next_step="Keep one of the two.",
                key=path,
            )
        entry[ours] = kind(entry.pop(name), place.child(name))
    return entry
