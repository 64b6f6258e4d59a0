"""`headpond redact`: contents that a ledger redacted leave every file of a lake."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group
from rich.text import Text

from headpond.cli.common import with_output
from headpond.cli.drawing import grid
from headpond.errors import UsageError
from headpond.pipeline import load
from headpond.pipeline.lake import open_ledger
from headpond.tables.redact import redact as redact_lake

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headpond.cli.output import Output


@click.command()
@click.argument("file", type=click.Path(path_type=str))
@with_output
def redact(output: Output, file: str) -> None:
    """Remove what a ledger redacted from every file of the lake of the pipeline FILE.

    Rewrites tables, histories and quarantine where they hold such contents, and removes all older files and
    log entries of these tables: older versions cannot be read afterwards. Nothing else may use the lake
    meanwhile. Needs redaction = "honour".
    """
    pipeline = load(file)
    if pipeline.source.format != "qldb":
        raise UsageError(
            f'{file} reads DSQL changes, which know no redactions: source.format is not "qldb".',
            next_step="Give the file of a pipeline that reads QLDB records.",
            key="source.format",
        )
    lake = open_ledger(pipeline)
    with output.progress(f"headpond redact {file}") as show:
        done = redact_lake(lake, between=show)
    document = asdict(done)
    output.result(document, lambda: _draw(document))


def _draw(document: dict[str, Any]) -> RenderableType:
    table = grid("table", ("rows that lost their contents now",))
    for name, rows in document["rows"].items():
        table.add_row(name, f"{rows:,}")
    parts: list[RenderableType] = [
        Text(f"{document['revisions']:,} revisions are redacted; {document['files']:,} old files removed."),
        table,
        Text(f"{document['quarantined']:,} quarantined records lost theirs."),
    ]
    if document["unreadable"]:
        told = f"{document['unreadable']:,} quarantined records cannot be read; look whether they may stay."
        parts.append(Text(told, style="yellow"))
    return Group(*parts)
