"""`headpond status`: where a pipeline stands, without starting Spark."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headpond import __version__
from headpond.cli.common import as_span, of_delta, with_output
from headpond.cli.report import render_status
from headpond.cli.status_drawing import draw
from headpond.errors import (
    ConfigurationError,
    EnvironmentLacks,
    HeadpondError,
    ServiceFailure,
    UsageError,
)
from headpond.kinesis.calls import Patience, ServiceCalls
from headpond.kinesis.client import ConnectionSettings, check_stream
from headpond.kinesis.lag import lags_ms
from headpond.kinesis.positions import Offset, read_offset
from headpond.pipeline import load
from headpond.pipeline.lake import open_target
from headpond.spark.checkpoint import standing
from headpond.tables.batch_log import batches_in
from headpond.tables.lake import OWN_FOLDER
from headpond.tables.measured import sizes_of
from headpond.tables.run_mark import mark_in
from headpond.tables.summary import lake_summary

if TYPE_CHECKING:
    from headpond.cli.output import Output
    from headpond.pipeline import Pipeline

WATCH = "2 seconds"
LAST = 10
LIVE = 60
"""Batches that the live view draws its small plots from."""
PATIENCE = Patience(throttled_s=10.0, unreachable_s=5.0)
"""Somebody waits for the answer, and a lag that is unknown is one, too."""


@click.command()
@click.argument("file", type=click.Path(path_type=str))
@click.option("--watch", is_flag=True, help="Look again and again until stopped with Ctrl-C.")
@click.option("--interval", callback=as_span, default=WATCH, metavar="SPAN", show_default=True,
              help="How long --watch waits between two looks.")  # fmt: skip
@click.option("--last", type=click.IntRange(0, 1_000_000), default=LAST, metavar="N", show_default=True,
              help="How many of the last batches to show.")  # fmt: skip
@click.option("--html", metavar="OUT", help="Write a page with plots of all batches that are kept.")
@with_output
def status(output: Output, file: str, *, watch: bool, interval: int, last: int, html: str | None) -> None:
    """Show where the pipeline FILE stands: positions, lag per shard, last batches, tables, quarantine.

    Reads the checkpoint and the lake, and asks the stream for the lag; where the stream cannot be reached the
    lag is unknown and the rest is shown all the same.
    """
    if html is not None and watch:
        raise UsageError("--html and --watch do not go together.", next_step="Leave one of them out.")
    pipeline = load(file)
    if watch:
        _watch(output, pipeline, interval / 1000, last)
        return
    found = look(pipeline, last)
    if html is not None:
        try:
            Path(html).write_text(page_of(pipeline, found), encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"The page {html} cannot be written: {error.strerror or error}.",
                next_step="Give a path in a folder that is there.",
                file=html,
            ) from error
        output.say(f"Wrote {html}.")
    output.result(found, lambda: draw(found))


def page_of(pipeline: Pipeline, found: dict[str, Any]) -> str:
    """Write the page of plots of a pipeline, in HTML.

    Args:
        pipeline: the pipeline.
        found: what `look` found.
    """
    log = batches_in(pipeline.target.path, pipeline.target.storage_options)
    made_at = f"{datetime.now(UTC):%d %B %Y, %H:%M:%S} UTC"
    return render_status(found, log.last(pipeline.monitor.batches), made_at=made_at, version=__version__)


def _watch(output: Output, pipeline: Pipeline, interval_s: float, last: int) -> None:
    """Show again and again; Ctrl-C ends it with 0."""
    try:
        found = look(pipeline, max(last, LIVE))
        with output.live() as show:
            while True:
                show(found | {"last_batches": found["last_batches"][-last or LIVE :]}, draw(found, last))
                time.sleep(interval_s)
                try:
                    found = look(pipeline, max(last, LIVE))
                except Exception as error:
                    # A file may go while it is looked at, and a store may be away for a moment.
                    known = error if isinstance(error, HeadpondError) else of_delta(error)
                    if known is None:
                        raise
                    found = found | {"trouble": str(known)}
    except KeyboardInterrupt:
        return


def look(pipeline: Pipeline, last: int = LAST) -> dict[str, Any]:
    """Gather what is known of a pipeline.

    Args:
        pipeline: the pipeline.
        last: how many of the last batches are wanted.

    Returns:
        `pipeline` (its name), `source`; `batch` (last one done) and `planned` (begun, not done); `run` (the
        mark of the last run, or null); `shards` (per shard `position`, `sequence_number`, `arrival_ms`,
        `lag_ms`) or `files` (per file what was read); `lag_unknown` with the reason where the stream could
        not be asked; `last_batches`, oldest first; `sizes` per table, with `table_bytes` and `state_bytes` in
        all; and what `tables.summary.lake_summary` says of the lake.
    """
    target = pipeline.target
    at = standing(target.checkpoint, target.storage_options)
    found: dict[str, Any] = {
        "pipeline": pipeline.monitor.name,
        "source": pipeline.source.name,
        "batch": at.batch_id,
        "planned": at.planned_batch_id,
        "run": mark_in(target.path, target.storage_options).read(),
        "lag_unknown": None,
    }
    if pipeline.source.archive is not None:
        found["files"] = (at.offset or {}).get("files", {})
    elif at.offset is None:
        found["shards"] = {}
    else:
        found |= _shards(pipeline, read_offset(at.offset))
    found["last_batches"] = batches_in(target.path, target.storage_options).last(last)
    lake = open_target(pipeline)
    sizes = sizes_of(lake)
    state = sum(size.bytes for name, size in sizes.items() if name.startswith(f"{OWN_FOLDER}/"))
    return (
        found
        | lake_summary(lake)
        | {
            "sizes": {name: asdict(size) for name, size in sizes.items()},
            "table_bytes": sum(size.bytes for size in sizes.values()) - state,
            "state_bytes": state,
        }
    )


def lags_of(pipeline: Pipeline) -> dict[str, int | None] | None:
    """Ask the stream for the lag of each shard, milliseconds; null where nothing is done yet.

    Raises:
        EnvironmentLacks, ServiceFailure: the stream cannot be asked.
    """
    at = standing(pipeline.target.checkpoint, pipeline.target.storage_options)
    return None if at.offset is None else _lags(pipeline, read_offset(at.offset))


def _lags(pipeline: Pipeline, offset: Offset) -> dict[str, int | None]:
    settings = ConnectionSettings.from_options(pipeline.source.connection_options())
    # A quick look first: the reader's own calls would wait half a minute for a service that is away.
    check_stream(settings)
    # Made anew at each look: credentials may have been renewed meanwhile, in a file that is read once.
    with closing(ServiceCalls(settings, patience=PATIENCE)) as calls:
        return lags_ms(calls, offset)


def _shards(pipeline: Pipeline, offset: Offset) -> dict[str, Any]:
    lags: dict[str, int | None] = {}
    unknown: str | None = None
    try:
        lags = _lags(pipeline, offset)
    except (ConfigurationError, EnvironmentLacks, ServiceFailure) as error:
        # No region or profile on this machine is no reason to hide what the lake tells.
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
