"""Where a pipeline stands, as a person at a terminal sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from headpond.cli.drawing import draw_summary, grid
from headpond.cli.report.units import figure, size, span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

_BLOCKS = "▁▂▃▄▅▆▇█"
_STALE_S = 30
"""A run that says nothing for so long may be gone: it speaks every few seconds."""
LAST = 10


def draw(found: Mapping[str, Any], last: int = LAST) -> RenderableType:
    """Draw what `cli.status.look` found.

    Args:
        found: what was found.
        last: how many of the last batches are listed; small plots are of all that are there.
    """
    done = "no batch is done yet" if found["batch"] is None else f"batch {found['batch']} is done"
    begun = f", batch {found['planned']} is begun" if found["planned"] is not None else ""
    parts: list[RenderableType] = [Text(f"{found['source']}: {done}{begun}", overflow="fold")]
    if found["run"] is not None:
        parts.append(_run(found["run"]))
    if found.get("trouble"):
        parts.append(Text(f"The last look failed: {found['trouble']}", style="yellow"))
    if "files" in found:
        table = grid("file", ("bytes", "lines"))
        for name, read in found["files"].items():
            table.add_row(name, str(read.get("bytes", read.get("whole", ""))), str(read.get("lines", "")))
        parts.append(table)
    elif found["shards"]:
        table = grid("shard", ("position", "sequence number", "lag"))
        for name, shard in found["shards"].items():
            lag = "" if shard["lag_ms"] is None else f"{shard['lag_ms'] / 1000:.1f} s"
            table.add_row(name, shard["position"], shard["sequence_number"] or "", lag)
        parts.append(table)
    if found["lag_unknown"]:
        parts.append(Text(f"The lag is unknown: {found['lag_unknown']}", style="yellow"))
    if found["last_batches"]:
        parts += [Text(), *_batches(found["last_batches"], last)]
    taken = f"tables take {size(found['table_bytes'])}, state beside them {size(found['state_bytes'])}"
    return Group(*parts, Text(), draw_summary(found), Text(taken))


def sparks(values: Sequence[float]) -> str:
    """Draw values as a row of blocks, from 0 to the greatest."""
    top = max(values, default=0)
    if top <= 0:
        return _BLOCKS[0] * len(values)
    return "".join(_BLOCKS[min(int(value / top * len(_BLOCKS)), len(_BLOCKS) - 1)] for value in values)


def _run(run: Mapping[str, Any]) -> Text:
    seconds = run["age_ms"] / 1000
    said = f"run on {run['host']} (process {run['pid']}): {run['state']}, seen {span(seconds)} ago"
    if run["state"] == "running":
        gone = seconds > _STALE_S
        return Text(said + (": it may be gone" if gone else ""), style="red" if gone else "green")
    failed = run["state"] == "failed"
    return Text(f"{said}{': ' + run['error'] if run['error'] else ''}", style="red" if failed else "")


def _batches(rows: Sequence[Mapping[str, Any]], last: int) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if last:
        table = grid("batch", ("took", "records", "data", "applied", "duplicates", "stale", "refused", "lag"))
        for row in rows[-last:]:
            lag = "" if row["lag_ms"] is None else f"{row['lag_ms'] / 1000:.1f} s"
            counted = [figure(row[name]) for name in ("applied", "duplicates", "stale", "quarantined")]
            took = span(row["duration_ms"] / 1000)
            table.add_row(
                str(row["batch_id"]), took, figure(row["records"]), size(row["data_bytes"]), *counted, lag
            )
        parts.append(table)
    seconds = [max(row["duration_ms"], 1) / 1000 for row in rows]
    rates = [row["records"] / took for row, took in zip(rows, seconds, strict=True)]
    parts.append(Text(f"records/s  {sparks(rates)} {figure(rates[-1])}"))
    parts.append(Text(f"batch time {sparks(seconds)} {span(seconds[-1])}"))
    if any(row["lag_ms"] is not None for row in rows):
        lags = [(row["lag_ms"] or 0) / 1000 for row in rows]
        parts.append(Text(f"lag        {sparks(lags)} {span(lags[-1])}"))
    return parts
