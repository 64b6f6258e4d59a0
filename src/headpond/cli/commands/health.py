"""`headpond health`: one question for a supervisor, answered by the exit code, without starting Spark."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group
from rich.text import Text

from headpond.cli.inputs import PATH, as_span, with_output
from headpond.cli.output import Output, next_command, number
from headpond.core.errors import MissingRequirement, ServiceFailure, UsageError
from headpond.core.tabular import said_ms
from headpond.lake.state.run_mark import mark_in
from headpond.pipeline import Pipeline, load

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headpond.lake.tables import Lake


def _freshness(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str | None, int]:
    """Return the limit of each table that is named, and of all (None)."""
    found: dict[str | None, int] = {}
    for value in values:
        table, named, span = value.rpartition("=")
        limit = as_span(ctx, param, span)
        assert limit is not None
        found[table if named else None] = limit
    return found


@click.command()
@click.argument("file", type=PATH)
@click.option("--max-age", callback=as_span, default="2 minutes", metavar="SPAN", show_default=True,
              help="Time since the run last made progress or had nothing to read.")  # fmt: skip
@click.option("--max-lag", callback=as_span, metavar="SPAN", help="Lag of any shard; queries the stream.")
@click.option("--max-freshness", callback=_freshness, multiple=True, metavar="[TABLE=]SPAN",
              help="Age of the newest change, in every table or in one; repeatable.")  # fmt: skip
@click.option("--max-quarantined", type=click.IntRange(0), metavar="N", help="Records in quarantine.")
@click.option("--max-pending", type=click.IntRange(0), metavar="N", help="Records that wait for others.")
@with_output
def health(
    output: Output,
    file: str,
    *,
    max_age: int,
    max_lag: int | None,
    max_freshness: dict[str | None, int],
    max_quarantined: int | None,
    max_pending: int | None,
) -> int:
    """Check that a pipeline is running within limits; the exit code is the answer.

    Exits with 0 if it is, otherwise with 1, for systemd, Kubernetes and other supervisors. Reads only what
    the limits need: with --max-age alone, one small file in the lake.
    """
    pipeline = load(file)
    if max_lag is not None and pipeline.source.archive is not None:
        raise UsageError(
            "--max-lag is for streams, and the pipeline reads an archive.", next_step="Leave it out."
        )
    wanted: list[tuple[str, int | None, Callable[[Pipeline], int | None]]] = [
        ("lag_ms", max_lag, _lag_ms),
        *((_named(table), limit, partial(_age_ms, table=table)) for table, limit in max_freshness.items()),
        ("quarantined", max_quarantined, lambda pipeline: _lake(pipeline).quarantine.count()),
        ("pending", max_pending, lambda pipeline: _lake(pipeline).pending.count()),
    ]
    checks = [_running(pipeline, max_age)]
    checks += [_within(name, limit, look, pipeline) for name, limit, look in wanted if limit is not None]
    healthy = all(check["ok"] for check in checks)
    found = {"pipeline": pipeline.monitor.name, "healthy": healthy, "checks": checks}
    output.result(found, lambda: _drawn(found, file))
    return int(not healthy)


def _drawn(found: dict[str, Any], file: str) -> RenderableType:
    head = Text(f"{found['pipeline']} is {'healthy' if found['healthy'] else 'not healthy'}",
                style="bold green" if found["healthy"] else "bold red")  # fmt: skip
    lines = [
        Text(f"  {'ok ' if check['ok'] else 'BAD'} {check['says']}", style="" if check["ok"] else "red")
        for check in found["checks"]
    ]
    command = "run" if found["checks"][0]["found"] is None else "status"
    return Group(head, *lines, *([] if found["healthy"] else [next_command(command, file)]))


def _running(pipeline: Pipeline, max_age_ms: int) -> dict[str, Any]:
    mark = mark_in(pipeline.target.path, pipeline.target.storage_options).read()
    if mark is None:
        return _check("age_ms", None, max_age_ms, says="no run has started yet", ok=False)
    if mark["state"] != "running":
        said = f": {mark['error']}" if mark.get("error") else ""
        return _check("age_ms", None, max_age_ms, says=f"the last run {mark['state']}{said}", ok=False)
    age = mark["age_ms"] + mark["seen_ms"] - mark.get("progress_ms", mark["seen_ms"])
    says = f"the last progress was {age / 1000:.1f} s ago, limit {max_age_ms / 1000:g} s"
    return _check("age_ms", age, max_age_ms, says=says, ok=age <= max_age_ms)


def _within(
    name: str, limit: int, look: Callable[[Pipeline], int | None], pipeline: Pipeline
) -> dict[str, Any]:
    word, shown = name.replace("_ms", ""), said_ms if "_ms" in name else number
    try:
        found, why = look(pipeline), ""
    except (MissingRequirement, ServiceFailure) as error:
        found, why = None, f": {error.message}"
    if found is None:  # a limit that cannot be checked is not kept
        return _check(name, None, limit, says=f"{word} is unknown{why}", ok=False)
    return _check(
        name, found, limit, says=f"{word} is {shown(found)}, limit {shown(limit)}", ok=found <= limit
    )


def _check(name: str, found: int | None, limit: int, *, says: str, ok: bool) -> dict[str, Any]:
    return {"name": name, "found": found, "limit": limit, "ok": ok, "says": says}


def _lag_ms(pipeline: Pipeline) -> int | None:
    from headpond.api.looking import lags_of

    lags = lags_of(pipeline)
    if lags is None or None in lags.values():
        return None
    return max((lag for lag in lags.values() if lag is not None), default=0)


def _named(table: str | None) -> str:
    return "freshness_ms" if table is None else f"freshness_ms of {table}"


def _age_ms(pipeline: Pipeline, table: str | None) -> int | None:
    from headpond.api.looking import age_ms_of

    return age_ms_of(pipeline, table)


def _lake(pipeline: Pipeline) -> Lake:
    from headpond.pipeline.lake import open_lake  # takes half a second, which --max-age alone does not need

    return open_lake(pipeline)
