"""`headpond run`: the main job."""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from headpond.cli.common import with_output
from headpond.cli.drawing import draw_summary
from headpond.pipeline import load
from headpond.spark.run import Run
from headpond.tables.summary import lake_summary

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from headpond.cli.output import Output

DATA_HAS_PROBLEMS = 1


@click.command()
@click.argument("file", type=click.Path(path_type=str))
@click.option("--until-caught-up", is_flag=True, help="End when everything present at the start is applied.")
@click.option("--strict", is_flag=True, help="Exit with 1 when quarantine or anomalies are not empty.")
@with_output
def run(output: Output, file: str, *, until_caught_up: bool, strict: bool) -> int:
    """Keep the tables of a pipeline FILE in step with its stream.

    Goes on until stopped (Ctrl-C or SIGTERM), or with --until-caught-up to the end of what is there. Starting
    again goes on where the last run stood; nothing is lost and nothing is applied twice.
    """
    pipeline = load(file)
    begun = time.monotonic()
    with output.progress(f"headpond run {file}") as show:
        job = Run(pipeline, until_caught_up=until_caught_up, say=show)
        with stopped_by_signals(job.stop):
            lake = job.go()
    summary = lake_summary(lake, job.applied)
    summary["seconds"] = round(time.monotonic() - begun, 1)
    output.result(summary, lambda: draw_summary(summary))
    digest = (summary.get("digest") or {}).get("verdict")
    wrong = summary["quarantined"] or summary.get("anomalies") or digest == "mismatch"
    return DATA_HAS_PROBLEMS if strict and wrong else 0


@contextmanager
def stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Let SIGINT and SIGTERM set `stop`; a second one ends the process as usual."""
    wanted = (signal.SIGINT, signal.SIGTERM)
    before: dict[int, Any] = {number: signal.getsignal(number) for number in wanted}

    def once(number: int, frame: Any) -> None:
        del frame
        stop.set()
        signal.signal(number, before[number])

    for number in wanted:
        signal.signal(number, once)
    try:
        yield
    finally:
        for number in wanted:
            signal.signal(number, before[number])
