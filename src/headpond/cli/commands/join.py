"""`headpond join`: windowed joins of two streams, tried on a time-line; what one on Spark holds."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headpond import __version__
from headpond.cli.commands.store import key_of, milliseconds_of, readable, shown_moment
from headpond.cli.inputs import PATH, input_argument, input_parts, with_output
from headpond.cli.main import NamingGroup
from headpond.cli.output import Output
from headpond.cli.report.join_picture import JoinPicture, render_join
from headpond.cli.report.page import write_page
from headpond.core.errors import UsageError
from headpond.kstreams.join.rules import Emit, HeadersOf
from headpond.kstreams.join.scenario import differing_steps, filled, read_scenario
from headpond.spark.join.api import MAX_TASKS
from headpond.spark.join.checkpoint import KeptRecord


def _is_checkpoint(_ctx: click.Context, _param: click.Parameter, folder: str) -> str:
    if "://" not in folder and not (Path(folder) / "offsets").is_dir():
        raise UsageError(
            f"{folder} is not a checkpoint: it has no folder offsets.",
            next_step="Give the checkpointLocation of a query.",
            checkpoint=folder,
        )
    return folder


_checkpoint = click.argument("checkpoint", metavar="CHECKPOINT", type=PATH, callback=_is_checkpoint)


def _is_setting(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    for each in given:
        if "=" not in each:
            raise UsageError(f"--conf {each} is not NAME=VALUE.", option="conf")
    return dict(each.split("=", 1) for each in given)


_conf = click.option(
    "--conf", multiple=True, metavar="NAME=VALUE", callback=_is_setting,
    help="A setting of Spark, such as what it needs to reach an object store; several are possible.",
)  # fmt: skip


@click.group(cls=NamingGroup)
def join() -> None:
    """Try out a windowed join of two streams, or inspect one on Spark."""


@join.command()
@input_argument
@click.option(
    "--headers-of",
    "headers_of",
    type=click.Choice([each.value for each in HeadersOf]),
    default=HeadersOf.OWN.value,
    show_default=True,
    help="Whose headers results carry.",
)
@click.option(
    "--emit",
    type=click.Choice([each.value for each in Emit]),
    help="When unmatched results are emitted; by default as the time-line says, or eager.",
)
@click.option("--check", is_flag=True, help="Exit with 1 if a step's expected `out` differs from the result.")
@click.option("--html", type=PATH, metavar="OUT", help="Also write a page with the pictures.")
@with_output
@click.pass_context
def play(
    ctx: click.Context,
    output: Output,
    file: str,
    *,
    headers_of: str,
    emit: str | None,
    check: bool,
    html: str | None,
) -> None:
    """Run a time-line through a join and show what happens to each record.

    FILE (standard input when `-` or absent) is a JSON document {"type": "inner" | "left" | "outer",
    "before_ms", "after_ms", "grace_ms", "steps": [{"side": "L" | "R", "key", "value", "timestamp",
    "headers"}, …]}, or a list of such. With --json it is printed again with each step's `out` filled in.
    """
    try:
        content = orjson.loads(b"".join(input_parts(file)))
    except orjson.JSONDecodeError as error:
        raise UsageError(
            f"{'Standard input' if file == '-' else file} is not a JSON document: {error}.",
            next_step="examples/joins holds time-lines to start from.",
            file=file,
        ) from error
    documents: list[Any] = content if isinstance(content, list) else [content]
    results, pictures = [], []
    different = False
    for number, document in enumerate(documents):
        try:
            scenario = read_scenario(
                document, headers=HeadersOf(headers_of), emit=None if emit is None else Emit(emit)
            )
        except UsageError as error:
            where = f"Time-line {number}: " if isinstance(content, list) else ""
            raise UsageError(f"{where}{error.message}", next_step=error.next_step, **error.facts) from error
        played = scenario.play()
        steps = differing_steps(document, played)
        if check and steps:
            different = True
            named = f" of {scenario.name}" if scenario.name else ""
            output.say(f"Different from `out` in the file: step {', '.join(map(str, steps))}{named}.")
        results.append(filled(document, played))
        pictures.append(JoinPicture(scenario, played))
        if not output.json:
            output.result(results[-1], lambda: pictures[-1])
    if html is not None and pictures:
        made_at = f"{dt.datetime.now(dt.UTC):%d %B %Y, %H:%M UTC}"
        write_page(html, render_join(pictures, made_at=made_at, version=__version__))
        output.say(f"Wrote {html}.")
    if output.json:
        output.result(results if isinstance(content, list) else results[0])
    if different:
        ctx.exit(1)


@join.command()
@_checkpoint
@_conf
@with_output
def inspect(output: Output, checkpoint: str, *, conf: dict[str, str]) -> None:
    """Show what a join on Spark holds: tasks, stream times, records and bytes, how many wait unmatched.

    CHECKPOINT is the checkpointLocation of its query, a folder or URL. It is read with Spark and not changed.
    """
    from headpond.spark.join.checkpoint import figures, read_join

    with output.progress("starting Spark"), _session(conf) as spark:
        standing = read_join(spark, checkpoint)
    tasks = [figures(each) for each in standing.documents.values()]
    first = next(iter(standing.documents.values()))
    document = {
        "batch": standing.batch,
        "tasks": standing.tasks,
        "rules": first["fingerprint"]["rules"],
        "records": sum(each["records"] for each in tasks),
        "bytes": sum(each["bytes"] for each in tasks),
        "unmatched": sum(each["unmatched"] for each in tasks),
        "held": sum(each["held"] for each in tasks),
        "each": tasks,
    }
    output.result(document, lambda: _drawn(document))


@join.command()
@_checkpoint
@click.option("--tasks", type=click.IntRange(1, MAX_TASKS), required=True, help="The new number of tasks.")
@click.option("--out", type=PATH, required=True, help="The new checkpoint.")
@_conf
@with_output
def rescale(output: Output, checkpoint: str, *, tasks: int, out: str, conf: dict[str, str]) -> None:
    """Write a copy of a checkpoint whose join has another number of tasks.

    CHECKPOINT is a folder or URL; its query must not be running. Start the query with the new number of tasks
    and the new checkpoint. Batches keep their numbers.
    """
    from headpond.spark.join.checkpoint import rescale as rescale_checkpoint

    with output.progress("starting Spark") as show, _session(conf) as spark:
        show("rewriting the state")
        done = rescale_checkpoint(spark, checkpoint, tasks, out)
    summary = f"{done['records']} records of {done['from_tasks']} tasks are in {done['to_tasks']} now: {out}"
    output.result({**done, "checkpoint": out}, lambda: Text(summary))


@join.command()
@_checkpoint
@click.option("--key", "key_text", help="The key, given as text.")
@click.option("--key-hex", help="The key, given as hexadecimal digits.")
@click.option("--from", "time_from", metavar="TIME", help="Only records from this time on: ms, or ISO 8601.")
@click.option("--to", "time_to", metavar="TIME", help="Only records up to this time.")
@_conf
@with_output
def show(
    output: Output,
    checkpoint: str,
    *,
    key_text: str | None,
    key_hex: str | None,
    time_from: str | None,
    time_to: str | None,
    conf: dict[str, str],
) -> None:
    """List the records of a key that a join on Spark keeps, with their headers.

    CHECKPOINT is the checkpointLocation of its query, a folder or URL. With --json each line is {"side",
    "timestamp", "value", "headers", "waiting", "held"}: bytes as hexadecimal text; waiting ones have no
    partner yet, held ones wait for a slower input.
    """
    from headpond.spark.join.checkpoint import kept_records

    key = key_of(key_text, key_hex)
    if key is None:
        raise UsageError("There is no key to look for.", next_step="Give one with --key or --key-hex.")
    first, last = milliseconds_of(time_from), milliseconds_of(time_to)
    with output.progress("starting Spark"), _session(conf) as spark:
        found = list(kept_records(spark, checkpoint, key, first, last))
    for each in found:
        document = {
            "side": each.side.name.lower(),
            "timestamp": each.timestamp,
            "value": None if each.value is None else each.value.hex(),
            "headers": [[name, None if value is None else value.hex()] for name, value in each.headers],
            "waiting": each.waiting,
            "held": each.held,
        }
        output.result(document, lambda each=each: _kept_line(each))  # type: ignore[misc]


def _kept_line(each: KeptRecord) -> Text:
    state = "  held" if each.held else "  unmatched" if each.waiting else ""
    return Text.assemble(
        (shown_moment(each.timestamp), "cyan"),
        f"  {each.side.name.lower():<5}  {readable(each.value)}",
        (state, "yellow"),
        *((f"  {name}={readable(value)}", "green") for name, value in each.headers),
    )


@contextmanager
def _session(conf: Mapping[str, str]) -> Iterator[Any]:
    from headpond.spark.join.folder import checkpoint_errors
    from headpond.spark.session.settings import private_logs
    from headpond.spark.session.start import spark_session

    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    settings = {"spark.sql.streaming.stateStore.providerClass": provider, **conf}
    log = private_logs() / "join.log"
    spark = spark_session("headpond join", log_path=log, conf=settings, quick=True)
    try:
        with checkpoint_errors(log):
            yield spark
    finally:
        spark.stop()


def _drawn(document: dict[str, Any]) -> RenderableType:
    table = Table("task", "side", "from", "to", "records", "bytes", "unmatched", "chunks")
    times = []
    for task in document["each"]:
        at = task["stream_time"]
        times.append(Text(f"task {task['task']}: stream time {'none yet' if at < 0 else shown_moment(at)}"))
        for each in task["slices"]:
            table.add_row(
                str(task["task"]), each["side"], shown_moment(each["from_ms"]), shown_moment(each["to_ms"]),
                f"{each['records']:,}", f"{each['bytes']:,}", f"{each['unmatched']:,}", str(each["chunks"]),
            )  # fmt: skip
    head = (
        f"{document['tasks']} tasks after batch {document['batch']}: {document['records']:,} records, "
        f"{document['bytes']:,} bytes, {document['unmatched']:,} wait unmatched; "
        f"{document['held']:,} records are held for a slower input"
    )
    return Group(Text(head), Text(document["rules"]), *times, table)
