"""`headpond run`: the main job, and what it logs on standard error, one line an event.

::

    json   {"time": "…Z", "level": "INFO", "logger": "headpond.batches", "message": "batch 7 is done",
            "pipeline": "orders", "batch_id": 7, "duration_ms": 812, "records": 5000, …}
    text   2026-11-22T07:33:26.123Z INFO headpond.batches batch 7 is done pipeline=orders batch_id=7 …

Values that a pipeline file may keep secret are cut out of every line, whoever wrote it.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click
import orjson

from headpond.cli.inputs import PATH, as_span, as_time, with_output
from headpond.cli.output import Output, draw_summary, harmless
from headpond.core.errors import HeadpondError
from headpond.lake.storage import secrets_of
from headpond.pipeline import Pipeline, load
from headpond.pipeline.load import check_until
from headpond.spark.following.stopping import GRACE_S, stopped_by_signals
from headpond.spark.session.settings import SECRET_SETTING, log_path
from headpond.spark.session.start import start_early

FORMATS = ("text", "json")
CUT = "***"
_SHORTEST_SECRET = 4  # shorter values would cut words apart
_BARE = re.compile(r"[^\s\"=]+")


def secrets(pipeline: Pipeline) -> list[str]:
    """Return the values of a pipeline that no line may hold, longest first."""
    found = set(secrets_of(pipeline.target.storage_options))
    found |= {value for name, value in pipeline.spark.items() if SECRET_SETTING.search(name)}
    if pipeline.source.role_external_id is not None:
        found.add(pipeline.source.role_external_id)
    return sorted((value for value in found if len(value) >= _SHORTEST_SECRET), key=len, reverse=True)


class LineFormatter(logging.Formatter):
    """Write a record as one line, `text` or `json`, without the values in `secret`.

    `context` returns the fields of every line; those of a record win.
    """

    def __init__(self, form: str, context: Callable[[], dict[str, Any]], secret: Iterable[str] = ()) -> None:
        super().__init__()
        self._json, self._context, self._secret = form == "json", context, tuple(secret)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        fields = self._context() | getattr(record, "fields", {})
        if record.exc_info and record.exc_info[0] is not None:
            fields["error"] = record.exc_info[0].__name__
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        head = [at.replace("+00:00", "Z"), record.levelname, record.name, self._cut(record.getMessage())]
        shown = self._cut({name: value for name, value in fields.items() if value is not None})
        if self._json:
            line = dict(zip(("time", "level", "logger", "message"), head, strict=True)) | shown
            return orjson.dumps(line, default=str).decode()
        line = " ".join([*head, *(f"{name}={_shown(value)}" for name, value in shown.items())])
        # A line feed in a message must not look like a line of its own.
        return harmless(line.replace("\n", "\\n").replace("\r", "\\r"))

    def _cut(self, value: Any) -> Any:
        if isinstance(value, str):
            return functools.reduce(lambda text, secret: text.replace(secret, CUT), self._secret, value)
        if isinstance(value, dict):
            return {self._cut(str(name)): self._cut(each) for name, each in value.items()}
        return [self._cut(each) for each in value] if isinstance(value, (list, tuple)) else value


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
    return text if _BARE.fullmatch(text) else orjson.dumps(text).decode()


@contextmanager
def logged(
    form: str | None, context: Callable[[], dict[str, Any]], secret: Iterable[str] = ()
) -> Iterator[None]:
    """Log to standard error inside, headpond's own lines from INFO and others' from WARNING.

    The arguments are those of `LineFormatter`; without a `form` there are only warnings, in plain words.
    """
    handler = logging.StreamHandler(sys.stderr)
    # Where the JVM is gone, which is reported in a sentence, py4j logs a stack trace for each thread.
    handler.addFilter(lambda record: "py4j" not in record.pathname)
    if form is not None:
        handler.setFormatter(LineFormatter(form, context, secret))
    root, own = logging.getLogger(), logging.getLogger("headpond")
    before = own.level
    root.addHandler(handler)
    own.setLevel(logging.WARNING if form is None else logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        own.setLevel(before)


logger = logging.getLogger("headpond.run")


@click.command()
@click.argument("file", type=PATH)
@click.option("--until-caught-up", is_flag=True, help="End once everything present at the start is applied.")
@click.option("--until", callback=as_time, metavar="TIME",
              help="End once everything that arrived before TIME, and nothing else, is applied.")  # fmt: skip
@click.option("--strict", is_flag=True, help="Exit with 1 if there are quarantined records or anomalies.")
@click.option("--grace", callback=as_span, default=f"{GRACE_S:g} seconds", metavar="SPAN", show_default=True,
              help="How long a stop waits for the batch in flight.")  # fmt: skip
@click.option("--log-format", type=click.Choice(FORMATS), help="Log to standard error, one line per batch.")
@with_output
def run(
    output: Output,
    file: str,
    *,
    until_caught_up: bool,
    until: str | None,
    strict: bool,
    grace: int,
    log_format: str | None,
) -> int:
    """Keep the tables of a pipeline FILE up to date with its stream.

    Runs until you stop it (Ctrl-C or SIGTERM). With --until-caught-up it ends once it has applied everything
    present at the start; with --until, everything that arrived before a given time, which may be in the
    future. The next run continues where this one stopped: nothing is lost or applied twice. Stopping finishes
    the batch in flight; a second signal ends the process at once, which is safe too.
    """
    begun = time.monotonic()
    pipeline = load(file)
    check_until(pipeline, until, until_caught_up=until_caught_up)
    starting = start_early(pipeline, log_path(pipeline))
    from headpond.spark.following.run import Run

    job = Run(pipeline, until_caught_up=until_caught_up, until=until, grace_s=grace / 1000, starting=starting)

    def context() -> dict[str, Any]:
        return {"pipeline": pipeline.monitor.name, "batch_id": job.gate.busy}

    with logged(log_format, context, secrets(pipeline)), stopped_by_signals(job.stop) as claim:
        job.spark_is_up = claim
        if log_format is None:
            from headpond.cli.live import RunView

            seen = RunView(file, job.stop)
            job.say, job.say_batches, job.sinks = seen.say, False, [seen]
            with output.view(seen.draw) as is_terminal:
                if not is_terminal:
                    output.say(f"headpond run {file} …")
                    seen.line = output.say
                lake = job.go()
        else:
            # Every line of standard error is a log line then, the last one too.
            job.say, job.say_batches = lambda words: logger.info("%s", words), False
            try:
                lake = job.go()
            except HeadpondError as error:
                fields = {"error": type(error).__name__, "next_step": error.next_step}
                logger.log(logging.ERROR, "%s", error.message, extra={"fields": fields})
                return error.exit_code
        if job.left is not None:
            logger.warning("batch %d was not done within the grace and is left to the next start", job.left)
    summary = job.summary(lake, time.monotonic() - begun)
    output.result(summary, lambda: draw_summary(summary, file))
    if job.left is not None and log_format is None:
        output.say(f"Batch {job.left} was not done within {grace / 1000:g} s and is left to the next start.")
    digest = (summary.get("digest") or {}).get("verdict")
    wrong = summary["quarantined"] or summary.get("anomalies") or digest == "mismatch"
    code = int(bool(strict and wrong))
    if job.hangs or job.left is not None:
        # A thread of that batch may hold the interpreter's end up for as long as it likes.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code
