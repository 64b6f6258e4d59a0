"""`headpond bootstrap` and `check-against`: tables loaded from what else has their rows, or compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa
from rich.text import Text

from headpond.cli.inputs import PATH, with_output
from headpond.cli.output import Output, many, number
from headpond.core.errors import UsageError
from headpond.lake.maintenance.bootstrap import Bootstrap, ParquetSource
from headpond.lake.maintenance.catch_up import catch_up_from_log
from headpond.lake.maintenance.snapshot import Loaded, SnapshotRows
from headpond.pipeline import Pipeline, load
from headpond.pipeline.lake import open_lake

if TYPE_CHECKING:
    from rich.console import RenderableType

_LARGEST_NS = 2**63 - 1


@click.command()
@click.argument("file", type=PATH)
@click.argument("names", nargs=-1, metavar="[TABLE] [PARQUET]...")
@click.option("--from-database", "dsn", metavar="DSN", help="Load from a PostgreSQL or Aurora DSQL database.")
@click.option("--ts-ns", "moment", metavar="TIME", help="Time of the snapshot: nanoseconds, or ISO 8601.")
@click.option("--missing-as-null", is_flag=True, help="Fill declared columns that a file lacks with NULL.")
@click.option("--from-log", is_flag=True, help="Apply the raw log kept before the table had its entry.")
@click.option("--from-start", is_flag=True, help="Apply the whole stream or archive, from its start.")
@with_output
def bootstrap(
    output: Output,
    file: str,
    names: tuple[str, ...],
    *,
    dsn: str | None,
    moment: str | None,
    missing_as_null: bool,
    from_log: bool,
    from_start: bool,
) -> None:
    """Load a TABLE from PARQUET files, a database, its log, or the start of its stream.

    Each row counts as committed at --ts-ns: later changes win, whether they arrive before, during or after
    the load. All rows are checked first, and nothing is written unless all of them fit.

    With --from-database, loads all tables that keep rows, or only those you name. The time of the snapshot
    comes from the database. A load that was interrupted resumes when you run it again.

    To catch up a table that was added to a running pipeline, use --from-log if it has a raw log
    (unknown_tables = "log"), otherwise --from-start. Both work while the pipeline runs. All can be repeated.
    """
    table, parquet = names[0] if names else "", names[1:]
    if dsn is not None and not (from_log or from_start or moment):
        _load_from_database(output, load(file), dsn, names, missing_as_null=missing_as_null)
        return
    if not table or from_log + from_start + bool(parquet) + (dsn is not None) != 1:
        raise UsageError(
            "A TABLE is loaded from one of four: PARQUET files, --from-database, --from-log, --from-start.",
            next_step='As in `headpond bootstrap pipeline.toml public.orders "dump/*.parquet" --ts-ns TIME`.',
        )
    pipeline = load(file)
    if parquet:
        SnapshotRows.of(open_lake(pipeline), table)  # an unknown table is said before all else
    if bool(parquet) != (moment is not None) or (missing_as_null and not parquet):
        raise UsageError(
            "PARQUET files need --ts-ns, the moment of their snapshot; --ts-ns and --missing-as-null have no "
            "meaning without them.",
            next_step="Give the files with --ts-ns, or leave both options out.",
        )
    if moment is None:
        with output.progress(f"headpond bootstrap {table}") as show:
            if from_log:
                caught_up = catch_up_from_log(
                    open_lake(pipeline), table, say=lambda words: show(f"{table}: {words}")
                )
            else:
                from headpond.spark.following.run import catch_up_from_start

                caught_up = catch_up_from_start(pipeline, table, say=lambda words: show(f"{table}: {words}"))
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


def _load_from_database(
    output: Output, pipeline: Pipeline, dsn: str, names: Sequence[str], *, missing_as_null: bool
) -> None:
    from headpond.lake.maintenance.from_database import DatabaseLoad
    from headpond.postgres.connection import Database

    lake, database = open_lake(pipeline), Database(dsn, profile=pipeline.source.profile)
    with output.progress(f"headpond bootstrap from {database.name}") as show:
        done = DatabaseLoad(lake, database, names, missing_as_null=missing_as_null).load(say=show)
    tables = {
        name: {
            "rows": each.rows,
            "moments_ns": each.moments_ns,
            "out_of_range": each.out_of_range,
            **{figure: each.figures[figure] for figure in ("upserts", "duplicates", "stale")},
        }
        for name, each in done.items()
    }
    sentences = [_sentence({"table": name, **figures}) for name, figures in tables.items()]
    output.result({"database": database.name, "tables": tables}, lambda: Text("\n".join(sentences)))


@click.command("check-against")
@click.argument("file", type=PATH)
@click.argument("table")
@click.option("--parquet", multiple=True, metavar="PATTERN", help="Parquet files with the rows; repeatable.")
@click.option("--from-database", "dsn", metavar="DSN", help="PostgreSQL or Aurora DSQL, with the rows.")
@click.option("--ts-ns", "moment", metavar="TIME", help="Time of the files' snapshot: ns, or ISO 8601.")
@click.option("--limit", type=click.IntRange(0), default=20, metavar="N", show_default=True,
              help="List at most N keys of each kind.")  # fmt: skip
@with_output
def check_against(
    output: Output,
    file: str,
    table: str,
    *,
    parquet: tuple[str, ...],
    dsn: str | None,
    moment: str | None,
    limit: int,
) -> int:
    """Compare a TABLE with rows of files or a database.

    Exits with 1 if keys are missing, extra or different. Rows changed after the snapshot are only counted.
    """
    if bool(parquet) == (dsn is not None) or (dsn is not None and moment is not None):
        raise UsageError(
            "There is nothing to compare the table with; --ts-ns is only for --parquet files.",
            next_step="Give --parquet PATTERN and the files' --ts-ns TIME, or --from-database DSN.",
        )
    from headpond.lake.maintenance.compare import Compare

    pipeline = load(file)
    lake = open_lake(pipeline)
    read: Iterable[Any]
    moments: list[int] = []
    if dsn is not None:
        from headpond.lake.maintenance.from_database import DatabaseRows
        from headpond.postgres.catalog import tables_of
        from headpond.postgres.connection import Database

        database = Database(dsn, profile=pipeline.source.profile)
        there = DatabaseRows.of(lake, table, tables_of(database), missing_as_null=True)
        read, columns, moments = there.read(database), there.called, there.moments_ns
    else:
        moments = [] if moment is None else [read_moment(moment)]
        source = ParquetSource(parquet, pipeline.target.storage_options)
        files = Bootstrap(lake, table, source, max(moments, default=0), missing_as_null=True)
        read, columns = files.typed(source.files(), Loaded()), files.columns()
    job = Compare(lake, table, columns, listed=limit)
    with output.progress(f"headpond check-against {table}") as show:
        found = job.run(read, lambda: min(moments, default=None), say=lambda words: show(f"{table}: {words}"))
    document = {
        "table": table,
        "equal": found.equal,
        "moment_ns": min(moments, default=None),
        "newest_ns": found.newest_ns,
        "rows_there": found.rows_there,
        "rows_here": found.rows_here,
        **{kind: getattr(found, kind) for kind in ("missing", "extra", "different", "newer")},
        "columns": dict(found.columns),
        "keys": found.keys,
    }
    output.result(document, lambda: _compared(document))
    return int(not found.equal)


def _compared(document: dict[str, Any]) -> RenderableType:
    name = document["table"]
    counts = f"{name}: {number(document['rows_here'])} of {many(document['rows_there'], 'row')}"
    newer = f", {number(document['newer'])} changed since" if document["newer"] else ""
    if document["equal"]:
        return Text(f"{counts}, no difference{newer}.")
    kinds = {"missing": "missing", "extra": "too many", "different": "different"}
    lines = [f"{counts}: " + ", ".join(f"{number(document[k])} {word}" for k, word in kinds.items()) + newer]
    for kind, word in kinds.items():
        for each in document["keys"][kind]:
            key, of = (
                (each["key"], " in " + ", ".join(each["columns"])) if isinstance(each, dict) else (each, "")
            )
            lines.append(f"  {word} {key}{of}")
    return Text("\n".join(lines))


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
