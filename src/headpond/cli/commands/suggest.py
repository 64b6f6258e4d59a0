"""`headpond suggest`: a `[tables]` proposal from what a source holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click
from rich.text import Text

from headpond.api.sampling import kinesis_records
from headpond.cli.inputs import PATH, with_output
from headpond.cli.output import Output, Show, many
from headpond.core.errors import UsageError
from headpond.dsql.suggest import Survey, document
from headpond.kpl.records import open_records
from headpond.pipeline import Pipeline, load
from headpond.pipeline.lake import open_lake, row_changes
from headpond.qldb.suggest import LedgerSurvey, ledger_document

_HEAD = "# Proposed from {:,} records: review every line."


def toml(proposal: Mapping[str, Any]) -> str:
    """Return the proposal of `dsql.suggest.document` as `[tables]`, with what was seen in comments."""
    lines = [_HEAD.format(proposal["records"]), *_refused(proposal)]
    if proposal["fragments"]:
        lines.append(f"# {proposal['fragments']:,} fragments of chunked changes were not looked into")
    for name, table in proposal["tables"].items():
        more = [f"# from {table['from_log']:,} entries of its raw log, not from the source"]
        more = more if table["from_log"] else []
        more += _known(name, table)
        counts = f"{table['upserts']:,} upserts, {table['deletes']:,} deletes, {table['chunked']:,} chunked"
        lines += _entry(name, table, counts, more, "columns")
    return "\n".join(lines) + "\n"


def ledger_toml(proposal: Mapping[str, Any]) -> str:
    """Return the proposal of `qldb.suggest.ledger_document` as `[tables]`."""
    lines = [_HEAD.format(proposal["records"])]
    lines.append("# A field without a declared type is a column of canonical JSON, so any line may go.")
    lines += _refused(proposal)
    for name, table in proposal["tables"].items():
        counts = ", ".join(f"{count:,} {kind}" for kind, count in table["revisions"].items())
        ids = table["table_ids"]
        same = f"{len(ids)} tables of the ledger had this name"
        more = _note(same, ids[:5] if len(ids) > 1 else [])
        more += _note("this table already has an entry", table["configured_as"])
        lines += _entry(name, table, f"{table['documents']:,} documents: {counts}", more, "fields")
    return "\n".join(lines) + "\n"


def database_toml(proposal: Mapping[str, Any]) -> str:
    """Return the proposal of `postgres.catalog.proposal` as `[tables]`."""
    lines = [f"# Proposed from the catalog of {_comment(proposal['database'])}."]
    for name, table in proposal["tables"].items():
        lines += ["", f"[tables.{quoted(name)}]", *_known(name, table)]
        lines += ["", f"[tables.{quoted(name)}.columns]"]
        for column, facts in table["columns"].items():
            note = f"  # {_comment(facts['note'])}" if facts["note"] else ""
            lines.append(f"{quoted(column)} = {quoted(facts['type'])}{note}")
    return "\n".join(lines) + "\n"


def _comment(text: str) -> str:
    """Return text that stays in its comment: a type's name may hold line feeds."""
    return quoted(text)[1:-1]


def _known(name: str, table: Mapping[str, Any]) -> list[str]:
    """Return the lines that say which table it is, where the name does not, and its keys."""
    there = table["configured_as"]
    lines = _note("this table already has an entry", [] if there is None else [there])
    if name != f"{table['schema']}.{table['table']}" or name.count(".") != 1 or not all(name.split(".")):
        lines += [f"schema = {quoted(table['schema'])}", f"table = {quoted(table['table'])}"]
    return [*lines, f"keys = [{', '.join(map(quoted, table['keys']))}]  # {table['keys_note']}"]


def _entry(name: str, table: Mapping[str, Any], counts: str, more: list[str], parts: str) -> list[str]:
    header = f"tables.{quoted(name)}"
    lines = ["", f"[{header}]  # {counts}", *more]
    if table["values_left_out"]:
        lines.append(f"# {table['values_left_out']:,} values of more {parts} were not looked at")
    if table["columns"]:
        lines += ["", f"[{header}.columns]"]
    for column, facts in table["columns"].items():
        seen = [f"{count:,} {kind}" for kind, count in facts.get("ion_types", {}).items()]
        seen = seen or [f"{facts['values']:,} values", *[f"{facts['nulls']:,} null"] * bool(facts["nulls"])]
        note = f"; {facts['note']}" if facts["note"] else ""
        lines.append(f"{quoted(column)} = {quoted(facts['type'])}  # {', '.join(seen)}{note}")
    return lines


def _note(words: str, names: Iterable[str]) -> list[str]:
    return [f"# {words}: {', '.join(map(quoted, names))}"] if names else []


def _refused(proposal: Mapping[str, Any]) -> list[str]:
    counts = proposal["refused"].items()
    return [f"# {many(count, 'record')} would be quarantined: {reason}" for reason, count in counts]


def quoted(text: str) -> str:
    """Return a string as TOML writes it, whatever it holds: as JSON does, and DEL escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


DEFAULT_RECORDS = 100_000
_PROPOSALS: dict[str, tuple[Any, Callable[..., dict[str, Any]], Callable[..., str]]] = {
    "dsql": (Survey, document, toml),
    "qldb": (LedgerSurvey, ledger_document, ledger_toml),
}
"""`source.format` → what looks at records, what proposes tables from it, and what writes that as TOML."""


@click.command()
@click.argument("file", type=PATH, required=False)
@click.option(
    "--from-database",
    "dsn",
    metavar="DSN",
    help="Read the catalog of this PostgreSQL or Aurora DSQL database instead.",
)
@click.option(
    "--records",
    type=click.IntRange(min=1),
    default=DEFAULT_RECORDS,
    show_default=True,
    help="How many Kinesis records to sample, at most.",
)
@with_output
def suggest(output: Output, file: str | None, *, dsn: str | None, records: int) -> None:
    """Propose the [tables] of a pipeline from its source or a database's catalog.

    Reads from the beginning of the stream or archive, writes nothing, and does not start Spark. Types are
    guesses that fit every value seen; correct them as needed. FILE need not have [tables] yet. For DSQL
    changes, keys are the columns that deletes name, and a table that has only a raw log in the lake is
    proposed from that. For QLDB records, types follow the documents' fields.

    With --from-database, keys and types come from the database, and FILE is optional.
    """
    if dsn is not None:
        found = from_database(dsn, None if file is None else load(file, tables_needed=False))
        output.result(found, lambda: Text(database_toml(found).rstrip("\n")))
        return
    if file is None:
        raise UsageError(
            "There is nothing to look at.",
            next_step="Name a pipeline FILE, or a database with --from-database DSN.",
        )
    with output.progress(f"headpond suggest {file}") as show:
        proposal, written = propose(load(file, tables_needed=False), records, show)
    output.result(proposal, lambda: Text(written.rstrip("\n")))


def from_database(dsn: str, pipeline: Pipeline | None) -> dict[str, Any]:
    """Return the tables of a database as `postgres.catalog.proposal`, with its name as `database`."""
    from headpond.postgres.catalog import proposal, tables_of
    from headpond.postgres.connection import Database

    database = Database(dsn, profile=None if pipeline is None else pipeline.source.profile)
    has_rows = pipeline is not None and pipeline.source.format == "dsql"
    tables = tables_of(database)
    entries = _entries(row_changes(pipeline), tables) if pipeline is not None and has_rows else []
    return {"database": database.name, **proposal(tables, entries)}


def _entries(config: Any, places: Iterable[tuple[str, ...]]) -> list[Any]:
    """Return the entries that tables have, by their name or a pattern."""
    return [entry for found in config.entries_of(places).values() for entry in found]


def propose(pipeline: Pipeline, records: int, show: Show) -> tuple[dict[str, Any], str]:
    """Look at records of a pipeline's source; return the tables that they have, and these as TOML."""
    lake = open_lake(pipeline)
    survey, proposed, written = _PROPOSALS[pipeline.source.format]
    found = survey()
    for batch in kinesis_records(pipeline, records):
        for opened in open_records(batch, deaggregate=pipeline.source.deaggregate):
            found.add(opened)
        show(f"{found.records:,} records seen")
    for log in lake.extras.logs.values():
        place = (log.entry.schema, log.entry.table)
        if place not in found.tables:
            found.add_log(*place, log.newest(records))
    places = [name if isinstance(name, tuple) else (name,) for name in found.tables]
    proposal = proposed(found, _entries(lake.config, places))
    return proposal, written(proposal)
