"""`headpond repair`: what a power cut tore is moved away where that is harmless, else named."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group
from rich.text import Text

from headpond.cli.inputs import with_output
from headpond.core.errors import InvalidData
from headpond.lake.state.run_mark import mark_in
from headpond.pipeline import load
from headpond.pipeline.lake import open_lake
from headpond.spark.following.checkpoint import take_away, torn_file

if TYPE_CHECKING:
    from headpond.cli.output import Output
    from headpond.pipeline import Pipeline


@click.command()
@click.argument("file", type=click.Path(path_type=str))
@click.option("--yes", is_flag=True, help="Move the torn files of the checkpoint away; else only show them.")
@with_output
def repair(output: Output, file: str, *, yes: bool) -> int:
    """Find what a power cut tore in the checkpoint and the tables of the pipeline FILE.

    Torn files of the checkpoint are moved, with --yes, to a folder beside it: reading again is harmless,
    since versions decide. Tables are never touched: each damaged one is named, with what can be done. Ends
    with 1 while something is left to do.
    """
    pipeline = load(file)
    if yes:
        mark_in(pipeline.target.path, pipeline.target.storage_options).refuse_another()
    found = {"checkpoint": _checkpoint(pipeline, yes=yes), "tables": _tables(pipeline)}
    output.result(found, lambda: Group(*map(Text, _lines(found, yes=yes))))
    return int(bool(found["tables"]) or (bool(found["checkpoint"]) and not yes))


def _checkpoint(pipeline: Pipeline, *, yes: bool) -> list[dict[str, Any]]:
    """Return the torn files; with `yes` all, moved away, else the first that is in the way."""
    place, options = pipeline.target.checkpoint.rstrip("/"), pipeline.target.storage_options
    kept = f"{place}.torn-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    found: list[dict[str, Any]] = []
    while (torn := torn_file(place, options)) is not None:
        moved = [f"{place}/{name}" for name in torn.away] or [place]
        found.append({"torn": f"{place}/{torn.name}", "away": moved, "to": kept, "then": torn.then})
        if not yes:
            break
        take_away(place, torn, kept, options)
    return found


def _tables(pipeline: Pipeline) -> list[dict[str, str | None]]:
    """Return the tables whose logs are damaged."""
    found: list[dict[str, str | None]] = []
    for name, table in open_lake(pipeline).places().items():
        try:
            if table.exists():
                table.check()
        except InvalidData as error:
            found.append({"table": name, "damage": error.message, "next_step": error.next_step})
    return found


def _lines(found: dict[str, Any], *, yes: bool) -> list[str]:
    lines = []
    for torn in found["checkpoint"]:
        lines.append(f"{torn['torn']} is not whole: it is missing, empty or cut.")
        verb = "Moved" if yes else "To do, with --yes: move"
        lines.append(f"  {verb} {' and '.join(torn['away'])} to {torn['to']}. {torn['then']}")
    for table in found["tables"]:
        lines.append(f"{table['table']}: {table['damage']}")
        lines.append(f"  {table['next_step']}")
    return lines or ["Nothing is torn: the checkpoint and the logs of the tables are whole."]
