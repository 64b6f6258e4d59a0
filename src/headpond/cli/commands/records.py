"""`headpond inspect` and `headpond aggregate`: what Kinesis records hold, and how to make KPL aggregates."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headpond.api.records import VIEWS, View, seen_as
from headpond.cli.inputs import (
    input_argument,
    input_blob,
    input_lines,
    input_parts,
    input_whole,
    lines_of,
    with_output,
)
from headpond.cli.output import JsonOutput, Output, dumps
from headpond.core.errors import HeadpondError, InvalidData
from headpond.kinesis.archive.lines import BAD_LINE, BadLine, read_line
from headpond.kpl import MAGIC
from headpond.kpl.documents import aggregate_line
from headpond.qldb.files import is_ion, records_in
from headpond.qldb.records import OK, VERDICTS

SHOWN_BYTES = 60  # of a record's data, for a person
OPERATIONS = {"c": "insert", "u": "update", "d": "delete"}


@click.command()
@click.option(
    "--as",
    "view",
    type=click.Choice(["auto", "kpl", "dsql", "qldb"]),
    default="auto",
    help="What to read the data as; auto: dsql for a JSON object, qldb for Ion binary, else kpl.",
)
@click.option("--raw", is_flag=True, help="The input is the data of one record, not an archive.")
@input_argument
@with_output
def inspect(output: Output, file: str, view: View, *, raw: bool) -> None:
    """Show what Kinesis records hold.

    FILE (standard input when `-` or absent; gzip is recognised) is an archive: JSON Lines, one Kinesis
    record a line, its data in base64 under "data"; or QLDB records one after the other, or an object of a
    journal export, in Ion. With --json one line comes out per line that goes in:
    kpl {"n", "outcome", "reason", "records"}, dsql {"n", "verdict", "reason", "detail", "table", "op", "key",
    "row", "committed", "ts_ns", "tx_id", "size", "shard"}, qldb {"n", "verdict", "record_type", "identity",
    "detail"}; n is the line's number. A DSQL change is "full", or in pieces: "chunked" and "fragment". Ends
    with 1 when a line is not a record.
    """
    counts: Counter[str] = Counter()
    records = ((1, blob, None, None) for blob in [input_blob(file)] if blob) if raw else _archive(file)
    for number, data, problem, shard in records:
        document = {"n": number, **_look(data, problem, view)}
        if "verdict" in document and "identity" not in document:
            document |= {"size": len(data), "shard": shard}
        counts["aggregates"] += view in ("dsql", "qldb") and data.startswith(MAGIC)
        counts["unread"] += problem is not None
        output.result(document, partial(_shown, document))
        counts["shown"] += 1
    if not counts["shown"]:
        output.say(f"{'Standard input' if file == '-' else file} holds no record.")
    if counts["aggregates"]:
        output.say(f"{counts['aggregates']} of the records look like KPL aggregates: --as kpl opens them.")
    if counts["unread"]:
        raise InvalidData(
            f"{counts['unread']} of the lines are not records of an archive.",
            next_step='Each line must be a JSON object with "data" in base64; use --raw for one blob.',
            reason=BAD_LINE,
        )


def _archive(file: str) -> Iterator[tuple[int, bytes, str | None, str | None]]:
    """Yield number, data, problem and shard of each line that is not empty; a wrong line is its own data.

    Of a file of Ion they are its records or blocks.
    """
    parts = input_parts(file)
    head = next(parts, b"")
    parts = chain([head], parts)
    if is_ion(head):
        for number, data in enumerate(records_in(input_whole(file, parts)), 1):
            yield number, data, None, None
        return
    for number, text in lines_of(parts):
        try:
            record = read_line(text, file=file, line=number)
            yield number, record[-1], None, None if record[0] == file else record[0]
        except BadLine as error:
            yield number, text, str(error), None


def _look(data: bytes, problem: str | None, view: View) -> dict[str, Any]:
    kind = seen_as(data) if view == "auto" else view
    if problem is None:
        return VIEWS[kind](data)
    if kind == "kpl":
        return {"outcome": "malformed", "reason": BAD_LINE, "records": []}
    if kind == "qldb":
        return {"verdict": BAD_LINE, "record_type": None, "identity": None, "detail": problem}
    return {"verdict": "quarantine", "reason": BAD_LINE, "detail": problem}


def _shown(document: dict[str, Any]) -> RenderableType:
    word = document.get("outcome") or document["verdict"]
    facts = [document.get("reason"), document.get("record_type"), document.get("detail")]
    facts.extend(str(value) for value in (document.get("identity") or {}).values())
    image = document.get("row") or document.get("key")
    facts += [document.get("table"), OPERATIONS.get(str(document.get("op")), document.get("op"))]
    facts.append(_cut(dumps(image).decode().strip()) if image else None)
    head = Text.assemble((f"{document['n']:>6} ", "dim"), (word, _colour(word)))
    head.append("".join(f"  {words}" for words in facts if words))
    records = document.get("records")
    if "size" in document:
        below = [document.get(name) for name in ("committed", "tx_id", "shard")]
        below.append(f"{document['size']:,} bytes")
        return head.append(f"\n{'':7}{'  '.join(filter(None, below))}", "dim")
    if not records:
        return head
    table = Table("sub", "partition key", "hash key", "data", box=None, padding=(0, 2, 0, 0))
    for record in records:
        cells = (
            str(record["sub_sequence_number"]),
            record["partition_key"],
            record["explicit_hash_key"] or "",
            _excerpt(base64.b64decode(record["data"])),
        )
        table.add_row(*(Text(cell) for cell in cells))
    return Group(head, Padding.indent(table, 7))


def _colour(word: str) -> str:
    if word in ("aggregate", "full", OK):
        return "green"
    return "red" if word in ("malformed", "quarantine", *VERDICTS) else "yellow"


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_BYTES else text[: SHOWN_BYTES - 1] + "…"


def _excerpt(data: bytes) -> str:
    cut = data[:SHOWN_BYTES]
    text = cut.decode(errors="backslashreplace")
    shown = text if text.isprintable() else cut.hex(" ")
    return shown + (f" … ({len(data)} bytes)" if len(data) > SHOWN_BYTES else "")


@click.command()
@input_argument
@with_output
def aggregate(output: Output, file: str) -> None:
    """Pack user records into KPL aggregates.

    FILE (standard input when `-` or absent; gzip is recognised) holds one JSON document a line:
    {"records": [{"partition_key", "explicit_hash_key", "data" (base64), "tags": [{"key", "value"}]}]}.
    Each becomes one Kinesis record, printed as one line {"partition_key", "explicit_hash_key", "data"}:
    byte for byte what the KPL would send. The output is JSON with and without --json.
    """
    del output
    results = JsonOutput()
    for number, line in input_lines(file):
        try:
            packed = aggregate_line(line)
        except HeadpondError as error:
            facts = {**error.facts, "line": number}
            raise type(error)(
                f"Line {number}: {error.message}", next_step=error.next_step, **facts
            ) from error
        results.result(packed)
