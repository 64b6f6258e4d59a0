"""`headpond join inspect` and `join rescale`: what a join on Spark holds, and another number of its tasks."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group
from rich.table import Table
from rich.text import Text

from headpond.cli.common import with_output
from headpond.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headpond.cli.output import Output

_checkpoint = click.argument("checkpoint", metavar="CHECKPOINT", type=click.Path(path_type=str))


@click.command()
@_checkpoint
@with_output
def inspect(output: Output, checkpoint: str) -> None:
    """Show what a join on Spark holds: tasks, stream times, records and bytes, how many wait unmatched.

    CHECKPOINT is the checkpointLocation of its query, a folder. It is read with Spark and not changed.
    """
    from headpond.spark.join_checkpoint import figures, read_join  # noqa: PLC0415 - only with Spark

    _check_folder(checkpoint)
    with output.progress("starting Spark"):
        spark = _spark()
    try:
        standing = read_join(spark, checkpoint)
    finally:
        spark.stop()
    tasks = [figures(each) for each in standing.documents.values()]
    first = next(iter(standing.documents.values()))
    document = {
        "batch": standing.batch,
        "tasks": standing.tasks,
        "rules": first["fingerprint"]["rules"],
        "records": sum(each["records"] for each in tasks),
        "bytes": sum(each["bytes"] for each in tasks),
        "unmatched": sum(each["unmatched"] for each in tasks),
        "each": tasks,
    }
    output.result(document, lambda: _drawn(document))


@click.command()
@_checkpoint
@click.option("--tasks", type=click.IntRange(1), required=True, help="The new number of tasks.")
@click.option("--out", type=click.Path(path_type=str), required=True, help="The new checkpoint.")
@with_output
def rescale(output: Output, checkpoint: str, *, tasks: int, out: str) -> None:
    """Write a copy of a checkpoint whose join has another number of tasks.

    CHECKPOINT is a folder; its query must not be running. Start the query with the new number of tasks and
    the new checkpoint. Batches keep their numbers.
    """
    from headpond.spark.join_checkpoint import rescale as rescale_checkpoint  # noqa: PLC0415 - only with Spark

    _check_folder(checkpoint)
    with output.progress("starting Spark") as say:
        spark = _spark()
        say("rewriting the state")
        try:
            done = rescale_checkpoint(spark, checkpoint, tasks, out)
        finally:
            spark.stop()
    said = (
        f"{done['records']} records of {done['from_tasks']} tasks dealt out among {done['to_tasks']}: {out}"
    )
    output.result({**done, "checkpoint": out}, lambda: Text(said))


def _check_folder(checkpoint: str) -> None:
    if not (Path(checkpoint) / "offsets").is_dir():
        raise UsageError(
            f"{checkpoint} is no checkpoint: it has no folder offsets.",
            next_step="Give the checkpointLocation of a query; one in an object store is copied here first.",
            checkpoint=checkpoint,
        )


def _spark() -> Any:
    from headpond.spark.log_file import private_logs  # noqa: PLC0415 - as below
    from headpond.spark.session import spark_session  # noqa: PLC0415 - only with Spark

    conf = {
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        )
    }
    return spark_session("headpond join", log_path=private_logs() / "join.log", conf=conf, quick=True)


def _drawn(document: dict[str, Any]) -> RenderableType:
    table = Table("task", "side", "from", "to", "records", "bytes", "unmatched", "chunks")
    for task in document["each"]:
        for each in task["slices"]:
            table.add_row(
                str(task["task"]), each["side"], _moment(each["from_ms"]), _moment(each["to_ms"]),
                f"{each['records']:,}", f"{each['bytes']:,}", f"{each['unmatched']:,}", str(each["chunks"]),
            )  # fmt: skip
    times = [
        Text(f"task {task['task']}: stream time {_moment(task['stream_time'])}") for task in document["each"]
    ]
    said = (
        f"{document['tasks']} tasks after batch {document['batch']}: {document['records']:,} records, "
        f"{document['bytes']:,} bytes, {document['unmatched']:,} wait unmatched"
    )
    return Group(Text(said), Text(document["rules"]), *times, table)


def _moment(millis: int) -> str:
    if millis < 0:
        return "none yet"
    try:
        return dt.datetime.fromtimestamp(millis / 1000, dt.UTC).isoformat(sep=" ", timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{millis} ms"
