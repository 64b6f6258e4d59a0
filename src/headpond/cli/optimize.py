"""`headpond optimize`: housekeeping of a lake's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headpond.cli.common import with_output
from headpond.cli.drawing import grid
from headpond.errors import UsageError
from headpond.formats.units import parse_span
from headpond.pipeline import load
from headpond.pipeline.lake import open_target
from headpond.tables.ledger import LedgerLake
from headpond.tables.optimize import check_retention, files_of, optimize_file
from headpond.tables.repartition import repartition as repartition_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headpond.cli.output import Output
    from headpond.tables.optimize import Optimized

DEFAULT_RETAIN = "7 days"


@click.command()
@click.argument("file", type=click.Path(path_type=str))
@click.argument("tables", metavar="[TABLE]...", nargs=-1)
@click.option("--vacuum", is_flag=True, help="Also remove files that no recent version needs.")
@click.option("--retain", metavar="SPAN", help=f"How far back versions stay readable; {DEFAULT_RETAIN}.")
@click.option("--unsafe-retention", is_flag=True, help="Allow less than 7 days, with the lake at rest.")
@click.option("--order", is_flag=True, help="Also put rows in order of their keys; rewrites all files.")
@click.option(
    "--repartition", is_flag=True, help="First write tables anew that are partitioned unlike their entry."
)
@with_output
def optimize(
    output: Output,
    file: str,
    tables: tuple[str, ...],
    *,
    vacuum: bool,
    retain: str | None,
    unsafe_retention: bool,
    order: bool,
    repartition: bool,
) -> None:
    """Make few large files out of many small ones, in the lake of the pipeline FILE.

    Without a TABLE all are taken, those in _headpond too. Rows stay as they are, and older versions stay
    readable until a --vacuum. Works beside a running pipeline, but for --repartition.
    """
    if not vacuum and (retain is not None or unsafe_retention):
        raise UsageError("--retain and --unsafe-retention are for --vacuum.", next_step="Add --vacuum.")
    retain_ms = _retained(retain or DEFAULT_RETAIN) if vacuum else None
    check_retention(retain_ms, unsafe=unsafe_retention)
    pipeline = load(file)
    lake = open_target(pipeline)
    there = dict(files_of(lake))
    unknown = [name for name in tables if name not in there]
    if unknown:
        raise UsageError(
            f"The lake has no table {unknown[0]!r}.",
            next_step=f"It has {', '.join(there)}." if there else "It has none yet.",
            table=unknown[0],
        )
    targets = {table.name: table.target_file_size_bytes for table in pipeline.tables}
    ledger = isinstance(lake, LedgerLake)
    specs = {spec.name: spec for spec in (lake.config.tables if isinstance(lake, LedgerLake) else lake.specs)}
    order_by = {name: ["_document_id"] for name in lake.typed} if ledger else {}
    done: dict[str, Any] = {}
    with output.progress(f"headpond optimize {file}") as show:
        for name in tables or there:
            if repartition and name in specs:
                show(f"partitioning {name} anew")
                repartition_table(lake.typed[name], specs[name])
            show(f"optimizing {name}")
            if name in specs and not ledger:
                order_by[name] = [lake.typed[name].column(key) for key in specs[name].keys]
            found = optimize_file(
                there[name],
                target_bytes=targets.get(name),
                retain_ms=retain_ms,
                unsafe=unsafe_retention,
                order_by=order_by.get(name, ()) if order else (),
            )
            done[name] = _document(found)
    output.result({"tables": done}, lambda: _draw(done))


def _retained(text: str) -> int:
    try:
        return parse_span(text)
    except ValueError as error:
        raise UsageError(
            f"--retain {text!r} is no span of time: expected {error}.", next_step='Write it as "7 days".'
        ) from error


def _document(found: Optimized) -> dict[str, Any]:
    return {
        "files_before": found.before.files,
        "bytes_before": found.before.bytes,
        "files_after": found.after.files,
        "bytes_after": found.after.bytes,
        "vacuumed": found.vacuumed,
    }


def _draw(done: dict[str, Any]) -> RenderableType:
    columns = ("files before", "after", "bytes before", "after", "files removed")
    table = grid("table", columns)
    keys = ("files_before", "files_after", "bytes_before", "bytes_after", "vacuumed")
    for name, facts in done.items():
        shown = (facts[key] for key in keys)
        table.add_row(name, *("" if value is None else f"{value:,}" for value in shown))
    return table
