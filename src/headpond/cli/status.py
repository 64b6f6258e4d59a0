"""`headpond status`: where a pipeline stands, without starting Spark."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group
from rich.text import Text

from headpond.cli.common import with_output
from headpond.cli.drawing import draw_summary, grid
from headpond.errors import EnvironmentLacks, NotBuiltYet, ServiceFailure
from headpond.kinesis.calls import ServiceCalls
from headpond.kinesis.client import ConnectionSettings, check_stream
from headpond.kinesis.lag import lags_ms
from headpond.kinesis.positions import Offset, read_offset
from headpond.pipeline import load
from headpond.pipeline.lake import open_target
from headpond.spark.checkpoint import standing
from headpond.tables.summary import lake_summary

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headpond.cli.output import Output
    from headpond.pipeline import Pipeline

WATCH_S = 2.0


@click.command()
@click.argument("file", type=click.Path(path_type=str))
@click.option("--watch", is_flag=True, help="Look again every two seconds until stopped.")
@click.option("--html", "html", metavar="OUT", help="Write a page (not there yet).")
@with_output
def status(output: Output, file: str, *, watch: bool, html: str | None) -> None:
    """Show where the pipeline FILE stands: positions and lag per shard, tables, quarantine, pending.

    Reads the checkpoint and the lake, and asks the stream for the lag; where the stream cannot be reached the
    lag is unknown and the rest is shown all the same.
    """
    if html is not None:
        raise NotBuiltYet(
            "status --html is not there yet.", next_step="Use --json and draw what you need.", option="--html"
        )
    pipeline = load(file)
    while True:
        found = look(pipeline)
        output.result(found, lambda: draw(found))  # noqa: B023 - drawn at once
        if not watch:
            return
        time.sleep(WATCH_S)


def look(pipeline: Pipeline) -> dict[str, Any]:
    """Gather what is known of a pipeline.

    Returns:
        `source`; `batch` (last one done) and `planned` (begun, not done); `shards` (per shard `position`,
        `sequence_number`, `arrival_ms`, `lag_ms`) or `files` (per file what was read); `lag_unknown` with the
        reason where the stream could not be asked; and what `tables.summary.lake_summary` says of the lake.
    """
    at = standing(pipeline.target.checkpoint, pipeline.target.storage_options)
    found: dict[str, Any] = {
        "source": pipeline.source.name,
        "batch": at.batch_id,
        "planned": at.planned_batch_id,
    }
    if pipeline.source.archive is not None:
        found["files"] = (at.offset or {}).get("files", {})
    elif at.offset is None:
        found["shards"] = {}
    else:
        found |= _shards(pipeline, read_offset(at.offset))
    return found | lake_summary(open_target(pipeline))


def _shards(pipeline: Pipeline, offset: Offset) -> dict[str, Any]:
    lags: dict[str, int | None] = {}
    unknown: str | None = None
    settings = ConnectionSettings.from_options(pipeline.source.connection_options())
    try:
        # A quick look first: the reader's own calls would wait half a minute for a service that is away.
        check_stream(settings)
        lags = lags_ms(ServiceCalls(settings), offset)
    except (EnvironmentLacks, ServiceFailure) as error:
        unknown = str(error)
    shards = {
        shard: {
            "position": position.kind,
            "sequence_number": position.sequence_number,
            "arrival_ms": position.time_ms,
            "lag_ms": lags.get(shard),
        }
        for shard, position in sorted(offset.shards.items())
    }
    return {"shards": shards, "lag_unknown": unknown}


def draw(found: dict[str, Any]) -> RenderableType:
    """Draw what `look` found."""
    done = "no batch is done yet" if found["batch"] is None else f"batch {found['batch']} is done"
    begun = f", batch {found['planned']} is begun" if found["planned"] is not None else ""
    parts: list[RenderableType] = [Text(f"{found['source']}: {done}{begun}", overflow="fold")]
    if "files" in found:
        table = grid("file", ("bytes", "lines"))
        for name, read in found["files"].items():
            table.add_row(name, str(read.get("bytes", read.get("whole", ""))), str(read.get("lines", "")))
        parts.append(table)
    elif found["shards"]:
        table = grid("shard", ("position", "sequence number", "lag"))
        for name, shard in found["shards"].items():
            lag = "" if shard["lag_ms"] is None else f"{shard['lag_ms'] / 1000:.1f} s"
            table.add_row(name, shard["position"], shard["sequence_number"] or "", lag)
        parts.append(table)
    if found.get("lag_unknown"):
        parts.append(Text(f"The lag is unknown: {found['lag_unknown']}", style="yellow"))
    return Group(*parts, Text(), draw_summary(found))
