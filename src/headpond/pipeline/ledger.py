"""What a pipeline file says where it reads QLDB records: its `[tables]`, and what has no meaning there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headpond.changes.qldb_config import DocumentSpec, LedgerConfig
from headpond.errors import ConfigurationError, UsageError
from headpond.formats.ion_types import parse_ion_type
from headpond.pipeline.keys import Key, Place, choice, integer, mapping, names, read_section, size, text
from headpond.pipeline.model import Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headpond.pipeline.model import Pipeline


def _ion_type(raw: object, place: Place) -> str:
    value = text(raw, place)
    try:
        parse_ion_type(value)
    except UsageError as error:
        raise ConfigurationError(
            f"{place.path} is wrong: {error.message}", next_step=error.next_step, key=place.path
        ) from error
    return value


LEDGER_TABLE: dict[str, Key] = {
    "table": Key(text),
    "columns": Key(mapping(_ion_type), {}),
    "keep": Key(choice("current", "history"), "current"),
    "rename": Key(mapping(text), {}),
    "except_columns": Key(names, ()),
    "partition_by": Key(names, ()),
    "buckets": Key(integer(1, 10_000)),
    "target_file_size": Key(size, stored_as="target_file_size_bytes"),
}
"""`[tables."name"]` of a pipeline that reads QLDB records."""

NO_MEANING: dict[str, dict[str, str]] = {
    "source": {"cluster": "a ledger has no cluster"},
    "target": {
        "infinity": "Ion timestamps are finite",
        "special_numeric": "Ion decimals are finite",
        "timestamps": "Ion timestamps are instants with an offset",
        "tombstone_retention": "a document's id never comes back, so tombstones are few and kept",
        "chunk_timeout": "QLDB records are not chunked",
        "chunk_memory": "QLDB records are not chunked",
        "chunk_disk": "QLDB records are not chunked",
        "max_unknown_tables": "tables that are not configured have no logs there",
    },
    "tables": {
        "keys": "the key of a document is its id, in the column _document_id",
        "schema": "a ledger has no schemas",
        "timestamps": "Ion timestamps are instants with an offset",
        "dedupe": "a revision is known by its document and version",
    },
}
"""Section → key → why it is refused beside `format = "qldb"`."""
LEDGER_ONLY = {
    "target": ("raw_ion", "canonical_json", "redaction"),
    "verify": ("enabled", "digest", "check_deletes"),
}
"""Section → keys that are refused beside `format = "dsql"`, unless they are at their default."""


def check_meaning(document: Mapping[str, Any], root: Place) -> None:
    """Refuse keys that have no meaning beside `format = "qldb"`.

    Raises:
        ConfigurationError: with the reason.
    """
    for section in ("source", "target"):
        _refuse(document.get(section, {}), NO_MEANING[section], root.child(section))
    target = document.get("target", {})
    if isinstance(target, dict) and target.get("unknown_tables") == "log":
        path = root.child("target").child("unknown_tables").path
        raise ConfigurationError(
            f'{path} = "log" has no meaning beside source.format = "qldb": records of tables without an '
            "entry are in quarantine whole, and an entry needs neither keys nor types.",
            next_step="Add [tables.NAME], then run `headpond requeue FILE --reason unknown_table`.",
            key=path,
        )


def check_ledger_only(values: Mapping[str, Any], keys: Mapping[str, Key], section: str, place: Place) -> None:
    """Refuse keys of QLDB beside `format = "dsql"`."""
    for name in LEDGER_ONLY[section]:
        if values[name] != keys[name].default:
            path = place.child(name).path
            raise ConfigurationError(
                f'{path} has no meaning beside source.format = "dsql": it is for QLDB records.',
                next_step=f"Remove {path}.",
                key=path,
            )


def ledger_tables(raw: Any, place: Place, *, needed: bool = True) -> tuple[Table, ...]:
    """Read `[tables]`; there must be an entry where it is `needed`.

    Raises:
        ConfigurationError: a key or value is wrong, or two entries keep the same thing.
    """
    if not isinstance(raw, dict):
        raise place.wrong("a table", raw)
    if not raw and needed:
        raise ConfigurationError(
            "There is no [tables] entry, so every revision would be quarantined.",
            next_step="Add one per table of the ledger, as in [tables.Person].",
            key=place.path,
        )
    found = []
    seen: dict[tuple[str, str], str] = {}
    for name, entry in raw.items():
        at = place.child(name)
        if isinstance(entry, dict):
            _refuse(entry, NO_MEANING["tables"], at)
        values = read_section(entry, LEDGER_TABLE, at)
        values["table"] = values["table"] or name
        identity = (values["table"], values["keep"])
        if identity in seen:
            raise ConfigurationError(
                f"{at.path} and {place.child(seen[identity]).path} both keep the {values['keep']} of "
                f"{values['table']}.",
                next_step='Keep one of the two entries, or write keep = "history" in one of them.',
                key=at.path,
            )
        seen[identity] = name
        table = Table(name=name, schema="", keys=(), timestamps=None, dedupe="identity", **values)
        _spec(table, at)
        found.append(table)
    return tuple(found)


def ledger_config(pipeline: Pipeline) -> LedgerConfig:
    """Give what the decoder of QLDB records must know; picklable, for executors."""
    return LedgerConfig(
        tables=tuple(_spec(table, Place("tables", {})) for table in pipeline.tables),
        raw_ion=pipeline.target.raw_ion,
        canonical_json=pipeline.target.canonical_json,
        honour=pipeline.target.redaction == "honour",
        max_columns=pipeline.target.max_columns,
        verify=pipeline.verify.enabled,
        check_deletes=pipeline.verify.check_deletes,
    )


def _spec(table: Table, place: Place) -> DocumentSpec:
    try:
        return DocumentSpec(
            name=table.name,
            table=table.table,
            columns=table.columns,
            keep="history" if table.keep == "history" else "current",
            rename=table.rename,
            except_columns=table.except_columns,
            partition_by=table.partition_by,
            buckets=table.buckets,
            target_file_size_bytes=table.target_file_size_bytes,
        )
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{place.path} is wrong: {error.message}", next_step=error.next_step, key=place.path
        ) from error


def _refuse(raw: Any, reasons: Mapping[str, str], place: Place) -> None:
    for name in raw if isinstance(raw, dict) else ():
        if name in reasons:
            path = place.child(name).path
            raise ConfigurationError(
                f'{path} has no meaning beside source.format = "qldb": {reasons[name]}.',
                next_step=f"Remove {path}.",
                key=path,
            )
