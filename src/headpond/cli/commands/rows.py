"""`headpond show` and `headpond quarantine`: rows of a lake's tables, and records that could not be used."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from headpond.api.reading import Quarantine
from headpond.api.reading import quarantine as open_quarantine
from headpond.api.reading import tables as open_tables
from headpond.api.remedies import remedy
from headpond.cli.inputs import PATH, with_output
from headpond.cli.output import Output, RowsDrawn, dumps, grid, many, next_command, number
from headpond.core.errors import UsageError
from headpond.dsql.strict_json import utf8_text

SHOWN_CHARACTERS = 400
"""Of a record's text, for a person."""


_place = click.argument("file", type=PATH)


@click.command()
@_place
@click.argument("table", required=False)
@click.option("--at", "moment", metavar="MOMENT", help="The table as it was at a time, or at a version.")
@click.option("--where", metavar="SQL", help="Only rows that meet a condition, such as 'price > 10'.")
@click.option("--limit", type=click.IntRange(1), default=20, metavar="N", show_default=True,
              help="Show at most N rows.")  # fmt: skip
@with_output
def show(
    output: Output, file: str, table: str | None, *, moment: str | None, where: str | None, limit: int
) -> None:
    """Show rows of a table.

    FILE may also be the path of a lake. Without a TABLE, lists the tables.
    """
    found = open_tables(file)
    if table is None:
        listed = {name: {"rows": len(each), "version": each.version} for name, each in found.items()}
        output.result({"tables": listed}, lambda: _tables_drawn(listed, file))
        return
    chosen = found[table] if moment is None else found[table].at(moment)
    rows = chosen.to_arrow(where=where, limit=limit)
    if output.json:
        for row in rows.to_pylist():
            output.result(_plain(row))
        return
    words = f"{table}, version {chosen.version}: {number(rows.num_rows)} of {many(len(chosen), 'row')}"
    drawn = RowsDrawn(words, rows.column_names, [list(row.values()) for row in rows.to_pylist()])
    output.result(None, lambda: drawn)


def _tables_drawn(listed: dict[str, Any], file: str) -> RenderableType:
    table = grid("table", ("rows", "version"))
    for name, facts in listed.items():
        table.add_row(name, number(facts["rows"]), number(facts["version"]))
    if not listed and not file.endswith(".toml"):
        return Text(f"The lake {file} has no table yet.")
    return Group(
        table, next_command("show", file, *list(listed)[:1]) if listed else next_command("run", file)
    )


@click.command()
@_place
@click.option("--reason", metavar="REASON", help="Only records quarantined for this reason.")
@click.option("--table", metavar="NAME", help="Only records of this table, such as public.orders.")
@click.option("--limit", type=click.IntRange(0), default=5, metavar="N", show_default=True,
              help="Show at most N records.")  # fmt: skip
@click.option("--export", metavar="OUT", help="Write the records to an archive, bytes unchanged.")
@with_output
def quarantine(
    output: Output, file: str, *, reason: str | None, table: str | None, limit: int, export: str | None
) -> None:
    """Show the records that could not be used, and why.

    Counts them by reason and table, and shows the first few decoded. FILE may also be the path of a lake.
    """
    found = open_quarantine(file)
    counts = [
        each for each in found.counts() if reason in (None, each["reason"]) and table in (None, each["table"])
    ]
    if not counts and (reason is not None or table is not None) and len(found):
        there = ", ".join(f"{each['reason']} ({each['table'] or 'no table'})" for each in found.counts())
        raise UsageError(
            "No quarantined record is of that reason and table.", next_step=f"There are: {there}."
        )
    chosen = _first(found, reason, table, limit)
    if export is not None:
        written = _export(found, reason, table, Path(export))
        output.say(f"Wrote {many(written, 'record')} to {export}.")
    count = sum(each["records"] for each in counts)
    document = {"records": count, "counts": counts, "shown": [_document(record) for record in chosen]}
    output.result(document, lambda: Group(*_drawn(document, chosen, file)))


def _first(found: Quarantine, reason: str | None, table: str | None, limit: int) -> list[dict[str, Any]]:
    return [record for _, record in zip(range(limit), found.records(reason, table), strict=False)]


def _document(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record as JSON has it: its text where it is one, and its bytes in base64."""
    plain: dict[str, Any] = _plain({name: each for name, each in record.items() if name != "format_version"})
    return plain | {"text": _text(record["data"])}


def _text(data: bytes | None) -> str | None:
    if data is None:
        return None
    try:
        text = utf8_text(data)
    except ValueError:
        return None
    return text if text.isprintable() else None


def _drawn(document: dict[str, Any], chosen: list[dict[str, Any]], file: str) -> Iterator[RenderableType]:
    if not document["records"]:
        yield Text("Nothing is in quarantine.")
        return
    table = grid("reason", ("records",))
    table.add_column("table", no_wrap=True)
    table.add_column("detail of the first")
    for each in document["counts"]:
        table.add_row(each["reason"], number(each["records"]), each["table"] or "-", each["detail"] or "")
    yield table
    for record in chosen:
        place = f"{record['stream']}  {record['shard_id']}  {record['sequence_number']}"
        yield Text()
        yield Text.assemble((record["reason"], "yellow"), f"  {record['detail'] or ''}")
        size = len(record["data"] or b"")
        yield Padding.indent(Text(f"{place}  {many(size, 'byte')}", style="dim"), 2)
        shown = _text(record["data"]) or (record["data"] or b"")[: SHOWN_CHARACTERS // 4].hex(" ")
        cut = shown if len(shown) <= SHOWN_CHARACTERS else shown[: SHOWN_CHARACTERS - 1] + "…"
        yield Padding.indent(Text(cut or "its bytes were not kept"), 2)
    yield Text()
    for reason in dict.fromkeys(each["reason"] for each in document["counts"]):
        yield Text.assemble((reason, "yellow"), f": {remedy(reason)}")
    if "requeue" in remedy(reason := document["counts"][0]["reason"]).lower():
        yield next_command("requeue", file, "--reason", reason, "--dry-run", when="when the cause is mended")


def _export(found: Quarantine, reason: str | None, table: str | None, place: Path) -> int:
    """Write records as lines of an archive; of those of one aggregate only the first has its place."""
    written = 0
    try:
        with place.open("xb") as out:
            for record in found.records(reason, table):
                if record["data"] is None:
                    continue
                line: dict[str, Any] = {"data": base64.b64encode(record["data"]).decode()}
                if record["sub_sequence_number"] == 0:
                    line |= {"shard": record["shard_id"], "sequenceNumber": record["sequence_number"]}
                if record["approximate_arrival_timestamp"] is not None:
                    line["approximateArrivalTimestamp"] = record["approximate_arrival_timestamp"].isoformat()
                out.write(dumps(line))
                written += 1
    except OSError as error:
        raise UsageError(
            f"The archive {place} cannot be written: {error.strerror or error}.",
            next_step="Name a new file in a folder that is there.",
            file=str(place),
        ) from error
    return written


def _plain(value: Any) -> Any:
    """Return a value as JSON can have it: bytes in base64, decimals as text."""
    return msgspec.to_builtins(value, builtin_types=(datetime, date), str_keys=True)
