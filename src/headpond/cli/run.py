"""`headpond run`: the main job."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from headpond.cli.common import as_span, with_output
from headpond.cli.drawing import draw_summary
from headpond.cli.logs import FORMATS, logged, secrets
from headpond.errors import HeadpondError
from headpond.pipeline import load
from headpond.spark.early import start_early, start_options
from headpond.spark.stopping import GRACE_S

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from headpond.cli.output import Output

DATA_HAS_PROBLEMS = 1

logger = logging.getLogger("headpond.run")


@click.command()
@click.argument("file", type=click.Path(path_type=str))
@click.option("--until-caught-up", is_flag=True, help="End when everything present at the start is applied.")
@click.option("--strict", is_flag=True, help="Exit with 1 when quarantine or anomalies are not empty.")
@click.option("--grace", callback=as_span, default=f"{GRACE_S:g} seconds", metavar="SPAN", show_default=True,
              help="How long a stop waits for the batch in flight.")  # fmt: skip
@click.option("--log-format", type=click.Choice(FORMATS), help="Log to standard error, a line per batch.")
@with_output
def run(
    output: Output, file: str, *, until_caught_up: bool, strict: bool, grace: int, log_format: str | None
) -> int:
    """Keep the tables of a pipeline FILE in step with its stream.

    Goes on until stopped (Ctrl-C or SIGTERM), or with --until-caught-up to the end of what is there. Starting
    again goes on where the last run stood; nothing is lost and nothing is applied twice. A stop lets the
    batch in flight end; a second signal ends the process at once, which is safe too.
    """
    begun = time.monotonic()
    pipeline = load(file)
    starting = start_early(pipeline, start_options(pipeline, until_caught_up=until_caught_up))
    from headpond.spark.run import Run  # noqa: PLC0415 - AWS clients and tables, while Spark starts
    from headpond.tables.summary import lake_summary  # noqa: PLC0415 - as above

    job = Run(pipeline, until_caught_up=until_caught_up, grace_s=grace / 1000, starting=starting)

    def context() -> dict[str, Any]:
        return {"pipeline": pipeline.monitor.name, "batch_id": job.gate.busy}

    with logged(log_format, context, secrets(pipeline)), stopped_by_signals(job.stop) as claim:
        job.spark_is_up = claim
        if log_format is None:
            with output.progress(f"headpond run {file}") as show:
                job.say = show
                lake = job.go()
        else:
            # Every line of standard error is a log line then, the last one too.
            job.say, job.say_batches = lambda words: logger.info("%s", words), False
            try:
                lake = job.go()
            except HeadpondError as error:
                logger.error(  # noqa: TRY400 - a stack trace is for defects
                    "%s",
                    error.message,
                    extra={"fields": {"error": type(error).__name__, "next_step": error.next_step}},
                )
                return error.exit_code
        if job.left is not None:
            logger.warning("batch %d was not done within the grace and is left to the next start", job.left)
    summary = lake_summary(lake, job.applied)
    summary["seconds"] = round(time.monotonic() - begun, 1)
    summary["left"] = job.left
    summary["lag_ms"] = job.lag_ms
    output.result(summary, lambda: draw_summary(summary))
    if job.left is not None and log_format is None:
        output.say(f"Batch {job.left} was not done within {grace / 1000:g} s and is left to the next start.")
    digest = (summary.get("digest") or {}).get("verdict")
    wrong = summary["quarantined"] or summary.get("anomalies") or digest == "mismatch"
    code = DATA_HAS_PROBLEMS if strict and wrong else 0
    if job.hangs or job.left is not None:
        # A thread of that batch may hold the interpreter's end up for as long as it likes.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


@contextmanager
def stopped_by_signals(stop: threading.Event) -> Iterator[Callable[[], None]]:
    """Let SIGINT and SIGTERM set `stop`; a second one ends the process as usual.

    Yields:
        What claims the signals again: Spark takes SIGINT for itself when it starts.
    """
    wanted = (signal.SIGINT, signal.SIGTERM)
    before: dict[int, Any] = {number: signal.getsignal(number) for number in wanted}

    def once(number: int, frame: Any) -> None:
        del frame
        stop.set()
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    def claim() -> None:
        if not stop.is_set():
            for number in wanted:
                signal.signal(number, once)

    claim()
    try:
        yield claim
    finally:
        for number in wanted:
            signal.signal(number, before[number])
