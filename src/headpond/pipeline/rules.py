"""What must hold between the keys of a pipeline file: each rule yields the mistakes it finds.

A rule ends where it asks for a value that is wrong itself (`Unread`): that mistake is known already.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from headpond.core.patterns import STAR, is_pattern, overlap, parts_of, put_in
from headpond.lake.engine.properties import why_not
from headpond.lake.object_store import is_remote, why_not_used
from headpond.pipeline.mistakes import Mistake, Place, credentials, expectation, has_credentials
from headpond.pipeline.model import Table
from headpond.pipeline.reading import Key, Read, Refuse, Unread

_PERCENT = re.compile("%[0-9A-Fa-f]{2}")

_FIXED = "it is fixed: versions are ordered by commit time, transaction, and a delete before an upsert"
_WHOLE = "a record holds the whole row, and a column it leaves out is null"
_EVERY = "every change makes a version"
_LEAVE = "Leave it out."

_AUTO_CDC = {
    "sequence_by": (_FIXED, _LEAVE),
    "system_sequence_by": (_FIXED, _LEAVE),
    "apply_as_deletes": ('it is fixed: a record with op = "d" deletes', _LEAVE),
    "apply_as_truncates": ("the stream has no truncates", _LEAVE),
    "column_list": ("columns that the stream brings are kept", "Name those to leave out in except_columns."),
    "columns_to_update": (_WHOLE, _LEAVE),
    "ignore_null_updates": (_WHOLE, _LEAVE),
    "ignore_null_updates_column_list": (_WHOLE, _LEAVE),
    "ignore_null_updates_except_column_list": (_WHOLE, _LEAVE),
    "track_history_column_list": (_EVERY, _LEAVE),
    "track_history_except_column_list": (_EVERY, _LEAVE),
    "once": ("a run ends by itself when asked to", "Use `headpond run --until-caught-up`."),
    "source": ("there is one for all tables", "Use [source], and schema and table in the entry."),
    "target": (
        "there is one for all tables",
        "The entry's name is the table's; [target] says where it goes.",
    ),
}
NOT_TAKEN = {
    name: (f"is a name of AUTO CDC that is not taken here: {why}.", next_step)
    for name, (why, next_step) in _AUTO_CDC.items()
}
"""Names that AUTO CDC of Spark or Databricks has for an entry of `[tables]` → the reason, and what to do."""


_ONE_CHANGE = "is no longer a setting: the records of one chunked change may have 64 MiB together"
GONE = {
    "chunk_memory": (f"{_ONE_CHANGE}, none goes through a file.", "Remove target.chunk_memory."),
    "chunk_disk": (f"{_ONE_CHANGE}, and wait for chunk_timeout.", "Remove target.chunk_disk."),
}
"""Names that `[target]` had → what is so instead, and what to do."""


def refusals(source: Mapping[str, Any], format_: str | None) -> Refuse:
    """Return what refuses keys that have no meaning for the format, or with an archive."""
    archive = "archive" in source and not {"stream", "stream_arn"} & source.keys()

    def refuse(key: Key, place: Place, raw: object) -> Mistake | None:
        what, fix = "", f"Remove {place}."
        if format_ == "qldb" and "no_ledger" in key.more:
            what = f'source.format = "qldb": {key.more["no_ledger"]}'
        elif format_ == "dsql" and key.more.get("ledger") and raw != key.default:
            what = 'source.format = "dsql": it is for QLDB records'
        elif place.keys[0] == "defaults" and key.more.get("each"):
            return Mistake(place, f"{place} is of one table.", "Write it in the entries of [tables].")
        elif archive and key.more.get("stream"):
            what, fix = "source.archive: it is for streams", f"Remove {place}, or read from a stream."
        return Mistake(place, f"{place} cannot be used with {what}.", fix) if what else None

    return refuse


def judged(read: Read, *rules: Callable[[Read], Iterator[Mistake]]) -> Iterator[Mistake]:
    """Yield the mistakes that the rules find in a section."""
    for rule in rules:
        try:
            yield from rule(read)
        except Unread:
            continue


def one_origin(source: Read) -> Iterator[Mistake]:
    """A source is a stream by name or by ARN, or an archive."""
    origins = [name for name in ("stream", "stream_arn", "archive") if source[name] is not None]
    if len(origins) != 1:
        found = " and ".join(str(source.place[name]) for name in origins) or "none of them"
        yield Mistake(
            source.place[origins[-1]] if origins else source.place,
            f"[{source.place}] must have exactly one of stream, stream_arn and archive; it has {found}.",
            'Name the stream, as in stream = "orders-cdc", or files, as in archive = "*.jsonl".',
        )


def consumer_with_fan_out(source: Read) -> Iterator[Mistake]:
    """Enhanced fan-out reads as a registered consumer, and nothing else does."""
    efo, named = source["consumer_mode"] == "efo", source["consumer_name"] is not None
    if efo != named:
        mode, name = source.place["consumer_mode"], source.place["consumer_name"]
        yield Mistake(
            mode if efo else name,
            f'{mode} = "efo" and {name} need each other; {name if efo else mode} is missing.',
            "Set both, or leave both out.",
        )
    elif source["register_consumer"] and not named:
        place = source.place["register_consumer"]
        yield Mistake(
            place,
            f"{place} = true needs {source.place['consumer_name']}, which is missing.",
            'Name the consumer, and set consumer_mode = "efo".',
        )


def readable_path(target: Read) -> Iterator[Mistake]:
    """A folder with an escape in its name: deltalake writes to it and reads from another one."""
    if _PERCENT.search(target["path"]):
        wanted = "a path without % and two hexadecimal digits, which deltalake reads as one character"
        yield expectation(target.place["path"], wanted, target.raw["path"], "Give the folder another name.")


def endpoints_without_keys(target: Read) -> Iterator[Mistake]:
    """Keys of an object store have options of their own."""
    for name, value in target["storage_options"].items():
        if "endpoint" in name.lower() and "://" in value and has_credentials(value):
            yield credentials(target.place["storage_options"][name])


def usable_options(source: Read, target: Read) -> Iterator[Mistake]:
    """Of an option that only some requests take the others would go elsewhere, or as somebody else."""
    if is_remote(target["path"]) or is_remote(source["archive"] or ""):
        place = target.place["storage_options"]
        for name in target["storage_options"]:
            if (found := why_not_used(name)) is not None:
                yield Mistake(place[name], f"{place[name]} {found[0]}.", found[1])


def no_logs_of_a_ledger(target: Read) -> Iterator[Mistake]:
    """Records of an unknown table of a ledger need no log: they are whole in quarantine."""
    if target["unknown_tables"] == "log":
        place = target.place["unknown_tables"]
        yield Mistake(
            place,
            f'{place} = "log" cannot be used with source.format = "qldb": records of tables without an '
            "entry are in quarantine whole, and an entry needs neither keys nor types.",
            "Add [tables.NAME], then run `headpond requeue FILE --reason unknown_table`.",
        )


def digest_is_used(verify: Read) -> Iterator[Mistake]:
    """A digest is for verifying."""
    if verify["digest"] is not None and not verify["enabled"]:
        yield expectation(verify.place["enabled"], "true where there is a digest", verify["enabled"])


def no_tables(place: Place, *, ledger: bool) -> Mistake:
    """Return the mistake of a file without a table."""
    what, fix = "revision", "Add one per table of the ledger, as in [tables.Person]."
    if not ledger:
        what, fix = "change", 'Add one per table, as in [tables."public.orders"] with keys = ["order_id"]'
        fix += ', or write unknown_tables = "log" in [target].'
    return Mistake(place, f"There is no [tables] entry, so every {what} would be quarantined.", fix)


_FORMS = {"current": "current rows", "history": "history", "log": "log"}


def same_tables(entries: Iterable[Read], *, ledger: bool) -> Iterator[Mistake]:
    """Two entries do not keep the same thing."""
    seen: dict[str, Place] = {}
    for entry in entries:
        try:
            if ledger:
                kept = f"the {entry['keep']} of {entry['table'] or entry.place.keys[-1]}"
                kept += f" with the id {entry['table_id']}" if entry["table_id"] else ""
            else:
                schema, table = identity(entry) or ("", entry.place)
                kept = f"the {_FORMS[kept_as(entry)]} of the table {table} of the schema {schema}"
        except Unread:
            continue
        if kept in seen:
            fix = ', or keep another form in one of them: keep = "history"'
            message = f"{entry.place} and {seen[kept]} both keep {kept}."
            yield Mistake(entry.place, message, f"Keep one of the two entries{fix}.")
        seen[kept] = entry.place


def patterns_fit(tables: Iterable[Table]) -> Iterator[Mistake]:
    """Each table that a pattern stands for gets a name of its own."""
    known = list(tables)
    places = {table.name: Place(("tables", table.name)) for table in known}
    if silent := [table for table in known if not _says_names(table)]:
        for table in silent:
            at, source = places[table.name], _source(table)
            yield Mistake(
                at,
                f"{at} stands for all tables {source}, but its name does not say what each is called.",
                'Name it as they are, as in [tables."public.*"], or with one star for the one in schema or '
                'table, as in [tables."history.*"] with schema = "public" and table = "*".',
            )
        return
    for number, table in enumerate(known):
        for other in known[:number] if is_pattern(table.name) else known:
            if _meet(table, other):
                at = places[table.name]
                yield Mistake(
                    at,
                    f"{at} has the name that {places[other.name]} would give to another table.",
                    "Give one of the two another name.",
                )


def _says_names(table: Table) -> bool:
    """Return whether an entry's name says what each table is called that it stands for."""
    stars = _source(table).count(STAR)
    return table.name.count(STAR) == stars and (stars <= 1 or table.name == _source(table))


def _meet(table: Table, other: Table) -> bool:
    """Return whether an entry has a name that a pattern would give to another table."""
    if table is other or not is_pattern(other.name):
        return False
    if is_pattern(table.name):
        as_called = table.name == _source(table) and other.name == _source(other)
        return not as_called and overlap(table.name, other.name)
    parts = parts_of(table.name, other.name)
    return parts is not None and put_in(_source(other), map(unquote, parts)) != _source(table)


def _source(table: Table) -> str:
    return f"{table.schema}.{table.table}" if table.schema else table.table


def identity(entry: Read) -> tuple[str, str] | None:
    """Return schema and table of an entry, from its name unless both are given inside, or None."""
    schema, table = entry["schema"], entry["table"]
    if schema is not None and table is not None:
        return schema, table
    before, _, after = str(entry.place.keys[-1]).partition(".")
    return (before, after) if schema is table is None and before and after and "." not in after else None


def has_identity(entry: Read) -> Iterator[Mistake]:
    """An entry says which table of the database it is."""
    if identity(entry) is None:
        yield Mistake(
            entry.place,
            f"{entry.place} does not say which schema and which table it is.",
            'Name it [tables."schema.table"], or write both schema = "…" and table = "…" inside.',
        )


def kept_as(entry: Read) -> str:
    """Return what the table keeps, which follows from its keys when the entry has no `keep`."""
    return str(entry["keep"] or ("current" if entry["keys"] else "log"))


def only_logs_are_deduplicated(entry: Read) -> Iterator[Mistake]:
    """Only a log has entries that may be equal; what else keys decide, `TableSpec` says."""
    if entry["keys"] and kept_as(entry) != "log" and entry["dedupe"] != "identity":
        yield expectation(entry.place["dedupe"], '"identity" unless keep = "log"', entry["dedupe"])


def new_names_differ(entry: Read) -> Iterator[Mistake]:
    """No two columns get one name."""
    origin_of: dict[str, str] = {}
    for old, new in entry["rename"].items():
        if new in origin_of:
            wanted = f"a name that no other column gets ({origin_of[new]} gets it)"
            yield expectation(entry.place["rename"][old], wanted, entry.raw["rename"][old])
        origin_of.setdefault(new, old)


def new_names_are_used(entry: Read) -> Iterator[Mistake]:
    """Only `rename` itself knows the old names."""
    rename = entry["rename"]
    for key in ("keys", "columns", "except_columns"):
        for name in entry[key]:
            if name in rename and name not in rename.values():
                new = entry.raw["rename"][name]  # not what `env:NAME` stands for
                message = f"names the column {name}, which {entry.place['rename']} calls {new}."
                yield Mistake(entry.place[key], f"{entry.place[key]} {message}", f"Write {new} in {key}.")


def properties_are_kept(entry: Read) -> Iterator[Mistake]:
    """A table has no property that headpond's own commits would not live up to."""
    for name, value in entry["table_properties"].items():
        if (found := why_not(name, value, rows_go=kept_as(entry) != "log")) is not None:
            why, fix = found
            at = entry.place["table_properties"][name]
            yield Mistake(at, f"{at} {why}.", fix)


OF_SOURCE = (one_origin, consumer_with_fan_out)
OF_TARGET = (readable_path, endpoints_without_keys)
OF_VERIFY = (digest_is_used,)
OF_TABLE = (
    has_identity,
    only_logs_are_deduplicated,
    new_names_differ,
    new_names_are_used,
    properties_are_kept,
)
OF_LEDGER_TABLE = (new_names_differ, new_names_are_used, properties_are_kept)
