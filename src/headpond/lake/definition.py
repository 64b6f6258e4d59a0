"""What a table was made with, kept as a property of it and compared with what the pipeline file says.

::

    headpond.spec   {"version": 1, "source": ["public", "orders"], "form": "current", "keys": ["order_id"],
                     "columns": {"order_id": "bigint"}, "rename": {}, "except_columns": [], …}

Rows that are there were made by it: under another one they would not be found again, or would mean something
else. So another one is refused until `maintenance.rebuild` has written the table again. What the file merely
adds (a type for a column that the table does not have yet, a name for one that it never saw) is noted.

A table of before has no such property: its definition is what its columns show, and what the file says where
they do not, such as the order of its keys.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from headpond.core.errors import ConfigurationError, InvalidData
from headpond.lake.engine.log import EXPRESSION
from headpond.lake.naming import ORIGINAL_NAME, OWN_COLUMNS

if TYPE_CHECKING:
    from headpond.core.formats import TableEntry
    from headpond.lake.delta import DeltaFile

PROPERTY = "headpond.spec"
"""Table property that holds the definition."""
VERSION = 1

Entry = TypeVar("Entry", bound="TableEntry")


@dataclass(frozen=True, slots=True)
class Definition:
    """What decides what the rows of a table are; docs/reference/lake.md says what each part is."""

    source: tuple[str, ...]
    form: str
    keys: tuple[str, ...] = ()  # for `key_rule` 1 in the order that key texts have
    columns: Mapping[str, str] = field(default_factory=dict)
    rename: Mapping[str, str] = field(default_factory=dict)
    except_columns: tuple[str, ...] = ()
    timestamps: str = "ntz"
    key_rule: int = 1
    rebuilt: int = 0
    key_epoch: int = 0

    @classmethod
    def of(cls, entry: TableEntry, *, rebuilt: int = 0) -> Definition:
        """Return what an entry says."""
        same = {name: getattr(entry, name) for name in ("form", *_OF_BOTH) if hasattr(entry, name)}
        return cls(source=entry.place, **same, rebuilt=rebuilt)

    @classmethod
    def read(cls, text: str, place: str) -> Definition:
        """Read the property of the table at a place.

        Raises:
            ConfigurationError: a later headpond wrote it.
            InvalidData: it is not a definition.
        """
        try:
            document = json.loads(text)
            version = int(document["version"])
            known = {each.name: document[each.name] for each in fields(cls) if each.name in document}
            listed = ("source", "keys", "except_columns")
            known |= {name: tuple(known.get(name, ())) for name in listed}
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidData(
                f"The property {PROPERTY} of {place} is not a table's definition: {text[:200]}",
                next_step="Set it again as an earlier version of the table has it, in its log.",
                table=place,
            ) from error
        if version > VERSION:
            raise ConfigurationError(
                f"{place} has a definition ({PROPERTY}) of version {version}, and this headpond knows "
                f"versions up to {VERSION}.",
                next_step="Go on with the headpond that wrote it, or a later one; nothing was changed.",
                table=place,
            )
        return cls(**known)

    def text(self) -> str:
        """Return the property."""
        return json.dumps({"version": VERSION, **asdict(self)}, ensure_ascii=False)

    def applied_to(self, entry: Entry) -> Entry:
        """Return an entry as this definition has it."""
        same: dict[str, Any] = {name: getattr(self, name) for name in _OF_BOTH if hasattr(entry, name)}
        if hasattr(entry, "schema"):
            same["schema"] = self.source[0]
        if hasattr(entry, "deletes"):
            same["deletes"] = "soft" if self.form == "soft" else "hard"
        keep: Any = "current" if self.form == "soft" else self.form
        return replace(entry, table=self.source[-1], keep=keep, partition_by=(), buckets=None, **same)


_OF_BOTH = ("keys", "columns", "rename", "except_columns", "timestamps", "key_rule", "key_epoch")


def columns_of(schema: pa.Schema) -> dict[str, pa.Field]:
    """Return the Delta columns that hold values of the source, by their names in the file."""
    found = {}
    # A source may have columns of these names, in a table that does not mark its deletes.
    own = OWN_COLUMNS | ({"_deleted", "_deleted_ns"} if "_deleted_tx_id" in schema.names else set())
    for each in schema:
        original = (each.metadata or {}).get(ORIGINAL_NAME.encode())
        if EXPRESSION.encode() in (each.metadata or {}):
            continue  # it follows from another one
        if original is not None:
            found[original.decode()] = each
        elif each.name not in own:
            found[each.name] = each
    return found


def form_of(columns: Collection[str]) -> str:
    """Return the form of a table with these Delta columns."""
    have = set(columns)
    if have & {"_valid_to_ns", "_kind"}:
        return "history"
    if "_deleted_tx_id" in have:
        return "soft"
    return "log" if "_sequence_number" in have else "current"


def found_in(file: DeltaFile, entry: TableEntry) -> Definition:
    """Return the definition of a table that is there, with what an entry says where it has none."""
    properties = file.engine.log.last().properties
    if PROPERTY in properties:
        return Definition.read(properties[PROPERTY], file.uri)
    schema = file.schema()
    columns = {name: each.type for name, each in columns_of(schema).items()}
    asked = Definition.of(entry)
    if any(
        pa.types.is_timestamp(kind) and kind.tz and entry.columns.get(name) == "timestamp"
        for name, kind in columns.items()
    ):
        asked = replace(asked, timestamps="utc")
    kinds = entry.declared()
    had = {name: entry.kind_of(kind) for name, kind in columns.items() if kinds.get(name) != kind}
    own = {name: kind for name, kind in entry.columns.items() if name not in had}
    made = replace(
        asked,
        form=form_of(schema.names),
        columns=own | {name: kind for name, kind in had.items() if kind is not None},
        rename={old: new for old, new in asked.rename.items() if old not in columns},
        except_columns=tuple(name for name in asked.except_columns if name not in columns),
        key_rule=1,
    )
    as_made = made.applied_to(entry)
    return replace(made, key_rule=2) if as_made.is_key_rule_moot() else made


def continued(entry: Entry, have: Definition) -> Entry:
    """Return an entry as a table that is there continues it.

    Key texts are written as they were, and a column that the entry does not declare any more keeps its type.
    """
    of_keys = ("key_rule", "key_epoch")
    same: dict[str, Any] = {name: getattr(have, name) for name in of_keys if hasattr(entry, name)}
    if have.key_rule == 1 and set(entry.keys) == set(have.keys):
        same["keys"] = have.keys
    gone = {*entry.except_columns, *(set(entry.rename) - set(entry.rename.values()))}
    kept = {name: kind for name, kind in have.columns.items() if name not in gone}
    return replace(
        entry, columns=dict(entry.columns) | {n: k for n, k in kept.items() if n not in entry.columns}, **same
    )


@dataclass(frozen=True, slots=True)
class Difference:
    """What a table was made with, and what the file says instead, both as the file would have it."""

    made: str
    wanted: str


def moved(have: TableEntry, wanted: TableEntry, there: Collection[str]) -> dict[str, str]:
    """Return the columns of a table that another definition calls otherwise, with their new names."""
    found = {}
    for name in {**have.rename, **wanted.rename}:
        old, new = have.rename.get(name, name), wanted.rename.get(name, name)
        if old != new and old in there:
            found[old] = new
    return found


def differences(have: TableEntry, wanted: TableEntry, there: Collection[str]) -> list[Difference]:
    """Return what of a table's definition is another one in the file; `there` are the columns it has."""
    found = []
    for name, made, asked in (
        ("source", have.place, wanted.place),
        ("form", have.form, wanted.form),
        ("keys", have.keys, wanted.keys),
    ):
        unlike = set(made) != set(asked) if name == "keys" else made != asked
        if unlike and not (name == "keys" and have.form == wanted.form == "log"):
            found.append(Difference(_words(name, made, asked), _words(name, asked, made)))
    moves = moved(have, wanted, there)
    for old, new in moves.items():
        found.append(Difference(f"the column {old}", f"the column {new}"))
    for name in there:
        if name in moves:
            continue
        if name in wanted.except_columns:
            found.append(Difference(f"the column {name}", f"except_columns = [{_quoted(name)}]"))
        elif have.stored_as(name) != wanted.stored_as(name):
            made, asked = _column(have, name), _column(wanted, name)
            if made == asked:  # a key of a table of before
                made, asked = f"values of {name} as they came", f"values of {name} in one spelling"
            found.append(Difference(made, asked))
    return found


def _words(name: str, value: Any, other: Any) -> str:
    """Return a part of a definition as the file would have it, under the same key as the other side."""
    if name == "keys":
        return f"keys = {json.dumps(value, ensure_ascii=False)}"
    if name == "source":
        return f"the source table {'.'.join(value)}"
    if value == "soft" or {value, other} == {"current", "soft"}:
        return f'deletes = "{"soft" if value == "soft" else "hard"}"'
    return f'keep = "{value}"'


def _column(entry: TableEntry, name: str) -> str:
    kind = entry.columns.get(name)
    if kind is None:
        return f"{name} undeclared"
    zone = (
        f' (timestamps = "{entry.timestamps}")'
        if kind == "timestamp" and hasattr(entry, "timestamps")
        else ""
    )
    return f"{name} = {_quoted(kind)}{zone}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def refuse(name: str, place: str, found: list[Difference]) -> None:
    """Raise where a table was made with something else than the file says, with the ways out."""
    if not found:
        return
    made, wanted = ("; ".join(getattr(each, side) for each in found) for side in ("made", "wanted"))
    raise ConfigurationError(
        f"Table {name!r} in {place} was made with {made}, but the configuration says {wanted}.",
        next_step=f"Change the entry back, or run `headpond rebuild FILE {name}`, which writes the table "
        "again as the file has it (--dry-run says what that would do).",
        table=name,
        expected=[each.made for each in found],
        found=[each.wanted for each in found],
    )
