"""Pictures of results for a person at a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import RenderableType

RUN_FIGURES = ("written", "deletes", "duplicates", "stale", "superseded")
"""Columns beside `rows`; what is written is upserts in a current table and new entries in a log."""
MAX_CELL = 28


def draw_summary(summary: Mapping[str, Any]) -> RenderableType:
    """Draw what `tables.summary.lake_summary` gave."""
    ran = "batches" in summary
    figures = RUN_FIGURES if ran else ()
    table = grid("table", ("rows", *figures))
    for name, facts in summary["tables"].items():
        shown = facts | {"written": facts.get("upserts", facts.get("appended"))}
        table.add_row(name, *(_number(shown.get(figure)) for figure in ("rows", *figures)))
    return Group(table, *_lines(summary))


def draw_rows(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """Draw a few rows of a table."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*map(_cell, row))
    return table


def grid(first: str, others: Iterable[str]) -> Table:
    """Make a table of names and numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True)
    for other in others:
        table.add_column(other, justify="right", no_wrap=True)
    return table


def _lines(summary: Mapping[str, Any]) -> list[Text]:
    said = []
    refused = summary["quarantined"]
    told = ", ".join(f"{count} {reason}" for reason, count in refused.items()) or "nothing"
    said.append(Text(f"in quarantine: {told}", style="yellow" if refused else ""))
    if "anomalies" in summary:
        told = ", ".join(f"{count} {kind}" for kind, count in summary["anomalies"].items()) or "none"
        said.append(Text(f"anomalies of the journal: {told}", style="red" if summary["anomalies"] else ""))
    if summary.get("digest"):
        verdict = summary["digest"]["verdict"]
        said.append(Text(f"saved digest: {verdict}", style="" if verdict == "ok" else "red"))
    if summary.get("lag_ms"):
        said.append(Text(f"behind the stream: {summary['lag_ms'] / 1000:,.1f} s", style="yellow"))
    if summary["pending"]:
        said.append(Text(f"pending: {summary['pending']} records wait for the rest of their chunks"))
    for name, unknown in summary["unknown_tables"].items():
        what = f"{name} has a raw log of {unknown['rows']:,} changes"
        if unknown["configured_as"] is None:
            said.append(Text(f"{what}; it is not configured"))
        else:
            said.append(Text(f"{what} from before it was configured as {unknown['configured_as']}"))
    for table, columns in summary["columns"].items():
        names = ", ".join(f"{original!r} as {encoded}" for original, encoded in columns.items())
        said.append(Text(f"{table} holds {names}"))
    said.append(Text(f"lake: {summary['lake']}", overflow="fold"))
    return said


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _cell(value: Any) -> str:
    shown = "·" if value is None else str(value)
    return shown if len(shown) <= MAX_CELL else shown[: MAX_CELL - 1] + "…"
