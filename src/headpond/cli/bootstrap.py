"""`headpond bootstrap`: the first load of a table."""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from headpond.cli.common import with_output
from headpond.errors import UsageError
from headpond.pipeline import load
from headpond.pipeline.lake import open_lake
from headpond.tables.bootstrap import Bootstrap, ParquetSource

if TYPE_CHECKING:
    from headpond.cli.output import Output

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_ISO = re.compile(r"(.*?)(?:\.([0-9]{1,9}))?(Z|[+-][0-9]{2}:?[0-9]{2})")
_LARGEST_NS = 2**63 - 1


@click.command()
@click.argument("file", type=click.Path(path_type=str))
@click.argument("table")
@click.argument("parquet", nargs=-1, required=True)
@click.option(
    "--ts-ns", "moment", required=True, metavar="TIME", help="When the snapshot was: ns, or ISO 8601."
)
@click.option("--missing-as-null", is_flag=True, help="Declared columns that a file lacks become NULL.")
@with_output
def bootstrap(
    output: Output, file: str, table: str, parquet: tuple[str, ...], *, moment: str, missing_as_null: bool
) -> None:
    """Load a TABLE of the pipeline FILE from PARQUET files: paths, URLs or patterns of them.

    Each row counts as written at --ts-ns: later changes win, whether they came before, come during or after
    the load. All rows are checked first; nothing is written when one does not fit. May be repeated.
    """
    ts_ns = read_moment(moment)
    pipeline = load(file)
    source = ParquetSource(parquet, pipeline.target.storage_options)
    job = Bootstrap(
        open_lake(pipeline), pipeline.dsql_config(), table, source, ts_ns, missing_as_null=missing_as_null
    )
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


def read_moment(text: str) -> int:
    """Read nanoseconds since 1970, or a time in ISO 8601 with its offset, to the nanosecond.

    Raises:
        UsageError: it is neither, or out of range.
    """
    if text.isascii() and text.isdecimal():
        ns = int(text[:20])
    else:
        match = _ISO.fullmatch(text)
        try:
            found = dt.datetime.fromisoformat(match[1] + match[3]) if match else None
        except ValueError:
            found = None
        if match is None or found is None:
            raise UsageError(
                f"--ts-ns {text!r} is neither nanoseconds nor a time with its offset from UTC.",
                next_step="Write 1783600000000000000, or 2026-07-09T12:26:40Z.",
            )
        since = found - _EPOCH
        ns = (since.days * 86_400 + since.seconds) * 10**9 + int((match[2] or "0").ljust(9, "0"))
    if not 0 <= ns <= _LARGEST_NS:
        raise UsageError(
            f"--ts-ns {text!r} is not between 1970 and 2262.", next_step="Give it in nanoseconds."
        )
    return ns


def _sentence(document: dict[str, Any]) -> str:
    known = document["duplicates"] + document["stale"]
    there = f" {known:,} were there already, or are newer there." if known else ""
    return f"{document['table']}: {document['upserts']:,} of {document['rows']:,} rows were written.{there}"
