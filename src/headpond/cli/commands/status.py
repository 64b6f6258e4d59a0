"""`headpond status`: where a pipeline stands, without starting Spark."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group
from rich.table import Table
from rich.text import Text

from headpond import __version__
from headpond.api.looking import LAST, SILENT_MS, headline, look
from headpond.api.reading import quarantine
from headpond.cli.inputs import PATH, as_span, of_delta, with_output
from headpond.cli.output import Output, draw_summary, grid, number
from headpond.cli.report.page import figure, size, write_page
from headpond.cli.report.status_page import render_status
from headpond.core.errors import HeadpondError
from headpond.core.tabular import said_ms
from headpond.lake.reports import batches_in
from headpond.pipeline import Pipeline, load

if TYPE_CHECKING:
    from rich.console import RenderableType


_BLOCKS = "▁▂▃▄▅▆▇█"


def draw(found: Mapping[str, Any], last: int = LAST, *, wide: bool = False) -> RenderableType:
    """Draw what `look` found, with a list of the last batches; the small plots are of all that it found.

    The lag comes first, and everything fits 80 columns unless `wide` asks for sequence numbers.
    """
    done = "no batch yet" if found["batch"] is None else f"batch {found['batch']} done"
    begun = f", batch {found['planned']} running" if found["planned"] is not None else ""
    parts: list[RenderableType] = [
        Text(headline(found), style="bold"),
        Text(f"{found['source']}: {done}{begun}", overflow="fold"),
    ]
    if found["run"] is not None:
        parts.append(_run(found["run"]))
    if found.get("trouble"):
        parts.append(Text(f"The last look failed: {found['trouble']}", style="yellow"))
    if "files" in found:
        table = grid("file", ("read", "lines"))
        for name, read in found["files"].items():
            table.add_row(name, size(read.get("bytes", read.get("whole"))), number(read.get("lines")))
        parts.append(table)
    elif found["shards"]:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("lag", justify="right", no_wrap=True)
        for name in ("shard", *(["position", "sequence number"] if wide else [])):
            table.add_column(name, overflow="fold")
        for name, shard in sorted(found["shards"].items(), key=lambda item: -(item[1]["lag_ms"] or 0)):
            lag = "unknown" if shard["lag_ms"] is None else said_ms(shard["lag_ms"])
            table.add_row(lag, name, *([shard["position"], shard["sequence_number"] or ""] if wide else []))
        parts.append(table)
    if found["lag_unknown"]:
        parts.append(Text(f"The lag is unknown: {found['lag_unknown']}", style="yellow"))
    if found["last_batches"]:
        parts += [Text(), *drawn_batches(found["last_batches"], last)]
    taken = f"tables: {size(found['table_bytes'])}, headpond's own: {size(found['state_bytes'])}"
    return Group(*parts, Text(), draw_summary(found, found.get("file")), Text(taken), *_maintained(found))


def _maintained(found: Mapping[str, Any]) -> list[RenderableType]:
    done = found["maintenance"].values()
    if not done:
        return []
    ago = said_ms(max(0, time.time() * 1000 - max(each["at_ms"] for each in done)))
    removed = sum(each.get("removed") or 0 for each in done)
    return [Text(f"last maintenance {ago} ago: {len(done)} tables, {removed:,} old files removed")]


def sparks(values: Sequence[float]) -> str:
    """Draw values as a row of blocks, from 0 to the greatest."""
    top = max(values, default=0)
    if top <= 0:
        return _BLOCKS[0] * len(values)
    return "".join(_BLOCKS[min(int(value / top * len(_BLOCKS)), len(_BLOCKS) - 1)] for value in values)


def _run(run: Mapping[str, Any]) -> Text:
    said = f"run on {run['host']} (process {run['pid']}): {run['state']}, seen {said_ms(run['age_ms'])} ago"
    if run["state"] == "running":
        gone = run["age_ms"] > SILENT_MS
        return Text(said + (": it may be gone" if gone else ""), style="red" if gone else "green")
    failed = run["state"] == "failed"
    return Text(f"{said}{': ' + run['error'] if run['error'] else ''}", style="red" if failed else "")


def drawn_batches(rows: Sequence[Mapping[str, Any]], last: int) -> list[RenderableType]:
    """Draw the last ones of some batches as a table, and all of them as rows of blocks."""
    parts: list[RenderableType] = []
    if last:
        names = ("took", "records", "data", "applied", "duplicates", "older", "quarantined", "lag")
        table = grid("batch", names)
        for row in rows[-last:]:
            lag = "" if row["lag_ms"] is None else said_ms(row["lag_ms"])
            counted = [figure(row[name]) for name in ("applied", "duplicates", "stale", "quarantined")]
            took = said_ms(row["duration_ms"])
            table.add_row(
                str(row["batch_id"]), took, figure(row["records"]), size(row["data_bytes"]), *counted, lag
            )
        parts.append(table)
    seconds = [max(row["duration_ms"], 1) / 1000 for row in rows]
    rates = [row["records"] / took for row, took in zip(rows, seconds, strict=True)]
    parts.append(Text(f"records/s  {sparks(rates)} {figure(rates[-1])}"))
    parts.append(Text(f"batch time {sparks(seconds)} {said_ms(seconds[-1] * 1000)}"))
    if any(row["lag_ms"] is not None for row in rows):
        lags = [(row["lag_ms"] or 0) / 1000 for row in rows]
        parts.append(Text(f"lag        {sparks(lags)} {said_ms(lags[-1] * 1000)}"))
    return parts


LIVE = 60
"""Batches that the live view draws its small plots from."""


@click.command()
@click.argument("file", type=PATH)
@click.option("--watch", is_flag=True, help="Keep refreshing until stopped with Ctrl-C.")
@click.option("--interval", callback=as_span, default="2 seconds", metavar="SPAN", show_default=True,
              help="How often --watch refreshes.")  # fmt: skip
@click.option("--last", type=click.IntRange(0, 1_000_000), default=LAST, metavar="N", show_default=True,
              help="How many of the latest batches to show.")  # fmt: skip
@click.option("--wide", is_flag=True, help="Also show each shard's position and sequence number.")
@click.option(
    "--html", type=PATH, metavar="OUT", help="Also write a page; with --watch it is kept up to date."
)
@with_output
def status(
    output: Output, file: str, *, watch: bool, interval: int, last: int, wide: bool, html: str | None
) -> None:
    """Show the state of a pipeline: lag, latest batches, tables, quarantine.

    Reads the checkpoint and the lake, and asks the stream for the lag. If the stream cannot be reached, the
    lag is shown as unknown.
    """
    pipeline = load(file)
    if watch:
        _watch(output, pipeline, interval / 1000, last, wide=wide, html=html)
        return
    found = look(pipeline, last)
    if html is not None:
        write_page(html, page_of(pipeline, found))
        output.say(f"Wrote {html}.")
    output.result(found, lambda: draw(found | {"file": file}, last, wide=wide))


MAX_COUNTED = 10_000
"""Quarantined records that are opened for a page, to say which tables they name; more are counted alone."""


def page_of(pipeline: Pipeline, found: dict[str, Any], refresh_s: int = 0) -> str:
    """Return the page of a pipeline, as `look` found it; `refresh_s` makes browsers load it again."""
    rows = batches_in(pipeline.target.path, pipeline.target.storage_options).last(pipeline.monitor.batches)
    if sum(found["quarantined"].values()) <= MAX_COUNTED:
        counts = quarantine(pipeline).counts()
    else:
        counts = [
            {"reason": reason, "table": None, "records": count, "detail": None}
            for reason, count in found["quarantined"].items()
        ]
    return render_status(
        found | {"quarantine": counts},
        rows,
        now_ms=time.time_ns() // 1_000_000,
        version=__version__,
        refresh_s=refresh_s,
    )


def _watch(
    output: Output, pipeline: Pipeline, interval_s: float, last: int, *, wide: bool, html: str | None
) -> None:
    """Show again and again; Ctrl-C ends it with 0."""
    try:
        found = look(pipeline, max(last, LIVE))
        with output.live() as show:
            while True:
                shown = found | {"last_batches": found["last_batches"][-last or LIVE :]}
                show(shown, draw(found, last, wide=wide))
                if html is not None:
                    write_page(html, page_of(pipeline, found, max(round(interval_s), 1)))
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
