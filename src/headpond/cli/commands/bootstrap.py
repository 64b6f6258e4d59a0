"""`headpond bootstrap`: the first load of a table, from files, its raw log, or the start of its stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import pyarrow as pa
from rich.text import Text

from headpond.cli.inputs import with_output
from headpond.cli.output import Output
from headpond.core.errors import UsageError
from headpond.lake.maintenance.bootstrap import Bootstrap
from headpond.lake.maintenance.catch_up import CaughtUp, catch_up_from_log
from headpond.lake.maintenance.parquet import ParquetSource
from headpond.pipeline import Pipeline, load
from headpond.pipeline.lake import open_lake

_LARGEST_NS = 2**63 - 1


@click.command()
@click.argument("file", type=click.Path(path_type=str))
@click.argument("table")
@click.argument("parquet", nargs=-1)
@click.option("--ts-ns", "moment", metavar="TIME", help="When the snapshot was: ns, or ISO 8601.")
@click.option("--missing-as-null", is_flag=True, help="Declared columns that a file lacks become NULL.")
@click.option("--from-log", is_flag=True, help="Apply the raw log that the table had before its entry.")
@click.option("--from-start", is_flag=True, help="Apply what the stream or archive holds, from its start.")
@with_output
def bootstrap(
    output: Output,
    file: str,
    table: str,
    parquet: tuple[str, ...],
    *,
    moment: str | None,
    missing_as_null: bool,
    from_log: bool,
    from_start: bool,
) -> None:
    """Load a TABLE from PARQUET files, its log, or the start of its stream.

    Each row counts as written at --ts-ns: later changes win, whether they came before, come during or after
    the load. All rows are checked first; nothing is written when one does not fit.

    A table that got its entry when the pipeline ran already is caught up with --from-log, when it had a raw
    log (unknown_tables = "log"), or with --from-start. Both work beside the pipeline. All may be repeated.
    """
    if from_log + from_start + bool(parquet) != 1:
        raise UsageError(
            "A table is loaded from one of three: PARQUET files, --from-log, --from-start.",
            next_step='As in `headpond bootstrap pipeline.toml public.orders "dump/*.parquet" --ts-ns TIME`.',
        )
    if bool(parquet) != (moment is not None) or (missing_as_null and not parquet):
        raise UsageError(
            "PARQUET files need --ts-ns, the moment of their snapshot; --ts-ns and --missing-as-null have no "
            "meaning without them.",
            next_step="Give the files with --ts-ns, or leave both options out.",
        )
    pipeline = load(file)
    if moment is None:
        with output.progress(f"headpond bootstrap {table}") as show:
            caught_up = (_from_log if from_log else _from_start)(
                pipeline, table, lambda words: show(f"{table}: {words}")
            )
        document = {
            "table": table,
            "from": "log" if from_log else "start",
            "entries": caught_up.entries,
            "figures": {name: n for name, n in caught_up.figures(table).items() if n},
            "quarantined": dict(caught_up.applied.quarantined),
        }
        output.result(document, lambda: Text(_told(document)))
        return
    ts_ns = read_moment(moment)
    source = ParquetSource(parquet, pipeline.target.storage_options)
    job = Bootstrap(open_lake(pipeline), table, source, ts_ns, missing_as_null=missing_as_null)
    with output.progress(f"headpond bootstrap {table}") as show:
        done = job.load(say=lambda words: show(f"{table}: {words}"))
    document = {
        "table": table,
        "ts_ns": ts_ns,
        "files": done.files,
        "rows": done.rows,
        "out_of_range": done.out_of_range,
        **{name: done.figures[name] for name in ("upserts", "duplicates", "stale")},
    }
    output.result(document, lambda: Text(_sentence(document)))


def _from_log(pipeline: Pipeline, table: str, say: Callable[[str], None]) -> CaughtUp:
    return catch_up_from_log(open_lake(pipeline), table, say=say)


def _from_start(pipeline: Pipeline, table: str, say: Callable[[str], None]) -> CaughtUp:
    from headpond.spark.following.run import catch_up_from_start

    return catch_up_from_start(pipeline, table, say=say)


def _told(document: dict[str, Any]) -> str:
    where = "its log" if document["from"] == "log" else "its source"
    figures = ", ".join(f"{n:,} {name}" for name, n in document["figures"].items()) or "nothing new"
    said = f"{document['table']}: {document['entries']:,} changes from {where}: {figures}."
    refused = ", ".join(f"{n:,} {reason}" for reason, n in document["quarantined"].items())
    return said + (f" In quarantine: {refused}." if refused else "")


def read_moment(text: str) -> int:
    """Read nanoseconds since 1970, or a time in ISO 8601 with its offset, to the nanosecond.

    Raises:
        UsageError: it is neither, or out of range.
    """
    try:
        is_ns = text.isascii() and text.isdecimal()
        ns = int(text[:20]) if is_ns else pa.scalar(text).cast(pa.timestamp("ns", "UTC")).value
    except pa.ArrowInvalid:
        ns = -1
    if not 0 <= ns <= _LARGEST_NS:
        raise UsageError(
            f"--ts-ns {text!r} is not nanoseconds or a time with its offset from UTC, from 1970 to 2262.",
            next_step="Write 1783600000000000000, or 2026-07-09T12:26:40Z.",
        )
    return ns


def _sentence(document: dict[str, Any]) -> str:
    known = document["duplicates"] + document["stale"]
    there = f" {known:,} were there already, or are newer there." if known else ""
    return f"{document['table']}: {document['upserts']:,} of {document['rows']:,} rows were written.{there}"
