"""The page that `headpond status --html` writes: where a pipeline stands, and its last batches as plots.

Names of tables, shards and reasons come from records: jinja2 escapes all of them.
"""

from __future__ import annotations

from datetime import datetime
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

import jinja2

from headpond.cli.report.page import style
from headpond.cli.report.status_plots import HEIGHT, WIDTH, Plot, Point, bars, lines
from headpond.cli.report.units import figure, moment, size, span

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MAX_LISTED = 20
"""Batches that the page lists; the plots have all."""
OWN = "_headpond/"


class Shown(NamedTuple):
    """A plot with its words.

    Attributes:
        title: what it shows.
        words: how to read it.
        plot: the shapes.
        unit: writes its values.
    """

    title: str
    words: str
    plot: Plot
    unit: Callable[[float], str]


def render_status(
    found: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], *, made_at: str, version: str
) -> str:
    """Give the page.

    Args:
        found: what `cli.status.look` found.
        rows: the batch log (`BatchLog.last`), oldest first.
        made_at: when, for people.
        version: headpond's.

    Returns:
        HTML, to be written in UTF-8.
    """
    own = {name: facts for name, facts in (found.get("sizes") or {}).items() if name.startswith(OWN)}
    return _template().render(
        found=found,
        verdict=_verdict(found),
        plots=plots_of(rows),
        batches=list(reversed(rows))[:MAX_LISTED],
        hidden=max(0, len(rows) - MAX_LISTED),
        own=own,
        made_at=made_at,
        version=version,
        width=WIDTH,
        height=HEIGHT,
        style=style(),
    )


def plots_of(rows: Sequence[Mapping[str, Any]]) -> list[Shown]:
    """Draw the last batches; nothing where there is none.

    Args:
        rows: the batch log, oldest first.
    """
    if not rows:
        return []
    begun = [_ms(row["begun"]) for row in rows]
    ended = [at + row["duration_ms"] for at, row in zip(begun, rows, strict=True)]
    edges = (min(begun), max(ended))

    def points(column: str, scale: float = 1.0) -> list[Point]:
        return [
            Point(at, row["run_id"], row[column] / scale)
            for at, row in zip(ended, rows, strict=True)
            if row[column] is not None
        ]

    lags: dict[str, list[Point]] = {}
    tables: dict[str, list[Point]] = {}
    states: dict[str, list[Point]] = {}
    for at, row in zip(ended, rows, strict=True):
        for shard, lag in (row["lags_ms"] or {}).items():
            lags.setdefault(shard, []).append(Point(at, row["run_id"], lag / 1000))
        for table, facts in (row["sizes"] or {}).items():
            room = states if table.startswith(OWN) else tables
            room.setdefault(table.removeprefix(OWN), []).append(Point(at, row["run_id"], facts["bytes"]))
        if row["state_bytes"]:
            states.setdefault("Spark's state stores", []).append(Point(at, row["run_id"], row["state_bytes"]))
    read, data = bars(points("records"), edges), bars(points("data_bytes"), edges, base=1024)
    took = lines({"batch": points("duration_ms", 1000)}, edges)
    drawn = (
        Shown("Records per second", "User records, when their batch was done.", read, _per_second(figure)),
        Shown("Data per second", "Bytes of those records' data.", data, _per_second(size)),
        Shown("Lag per shard", "How far reading was behind its newest record.", lines(lags, edges), span),
        Shown("Batch time", "From planning to commit.", took, span),
        Shown("Tables", "Bytes of the newest version's files.", lines(tables, edges, base=1024), size),
        Shown("State", "Bytes of what is kept beside the tables.", lines(states, edges, base=1024), size),
    )
    return [shown for shown in drawn if shown.plot.lines or shown.plot.bars]


def _per_second(unit: Callable[[float], str]) -> Callable[[float], str]:
    return lambda value: f"{unit(value)}/s"


def _verdict(found: Mapping[str, Any]) -> tuple[str, str]:
    """A class and a sentence: `verified`, `problems` or `nothing`."""
    run = found.get("run")
    refused = sum(found["quarantined"].values())
    if run is not None and run["state"] == "failed":
        return "problems", "The last run failed"
    if refused or found.get("anomalies"):
        return (
            "problems",
            f"{figure(refused)} records are in quarantine" if refused else "The journal has anomalies",
        )
    if found["batch"] is None:
        return "nothing", "No batch is done yet"
    return "verified", f"Batch {found['batch']} is done, nothing was refused"


def _ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"figure": figure, "size": size, "span": span, "moment": moment}
    environment.filters["clock"] = lambda text: moment(_ms(text), date=True)
    text = resources.files("headpond.cli.report").joinpath("status.html.j2").read_text(encoding="utf-8")
    return environment.from_string(text)
