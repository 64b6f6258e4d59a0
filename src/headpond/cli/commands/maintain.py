"""`headpond requeue`, `rebuild`, `optimize`, `repair`, `redact` and `register`: maintenance of a lake."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.text import Text

from headpond.cli.inputs import PATH, as_span, with_output
from headpond.cli.output import Output, advice, grid, many, next_command, number
from headpond.core.errors import InvalidData, UsageError
from headpond.lake.maintenance.glue import Registered
from headpond.lake.maintenance.glue import register as register_lake
from headpond.lake.maintenance.optimize import HOUR_MS, Optimized, optimize_file
from headpond.lake.maintenance.rebuild import Rebuilt
from headpond.lake.maintenance.rebuild import rebuild as rebuild_table
from headpond.lake.maintenance.redact import redact as redact_lake
from headpond.lake.maintenance.requeue import ALL, Requeued
from headpond.lake.maintenance.requeue import requeue as requeue_records
from headpond.lake.state.run_mark import mark_in
from headpond.pipeline import Pipeline, load
from headpond.pipeline.lake import chunk_rules, open_lake
from headpond.spark.following.checkpoint import take_away, torn_file

_OF_KEYS = ("key_mismatch", "missing_key")


@click.command()
@click.argument("file", type=PATH)
@click.option("--reason", required=True, help=f"Which records: a reason of the quarantine, or {ALL}.")
@click.option("--dry-run", is_flag=True, help="Only show what would happen to them.")
@with_output
def requeue(output: Output, file: str, *, reason: str, dry_run: bool) -> None:
    """Feed quarantined records in again.

    Fix the cause first. A record that works now leaves the quarantine for its table, or becomes pending if it
    waits for others; the rest stay, with their current reason. You can run this next to a running pipeline,
    and stop and restart it at any time.
    """
    pipeline = load(file)
    lake = open_lake(pipeline)
    known = lake.quarantine.counts_by("reason")
    if reason not in (ALL, *known):
        there = ", ".join(f"{name} ({count})" for name, count in known.items()) or "empty"
        raise UsageError(
            f"No record is quarantined for the reason {reason!r}.",
            next_step=f"The quarantine is {there}." if not known else f"There are: {there}.",
            reason=reason,
        )
    if not dry_run:
        lake.prepare()
    with output.progress(f"headpond requeue {file}"):
        done = requeue_records(
            lake,
            reason,
            chunks=chunk_rules(pipeline, lake.config),
            deaggregate=pipeline.source.deaggregate,
            dry_run=dry_run,
        )
    document = _requeued(done, reason, dry_run=dry_run)
    output.result(document, lambda: _requeued_drawn(document, file))


def _requeued(done: Requeued, reason: str, *, dry_run: bool) -> dict[str, Any]:
    return {
        "reason": reason,
        "dry_run": dry_run,
        "read": done.read,
        "left": done.left,
        "stayed": dict(sorted(done.stayed.items())),
        "without_data": done.without_data,
        "pending": done.pending,
        "tables": {
            name: {k: n for k, n in figures.items() if n} for name, figures in done.applied.tables.items()
        },
    }


def _requeued_drawn(document: dict[str, Any], file: str) -> RenderableType:
    verb = "would leave" if document["dry_run"] else "left"
    head = f"{document['left']:,} of {document['read']:,} records {verb} the quarantine."
    parts: list[RenderableType] = [Text(head)]
    if document["pending"]:
        parts.append(Text(f"{document['pending']:,} records wait for the rest of their chunks."))
    if document["tables"]:
        table = grid("table", ("what happened to the changes",))
        for name, figures in document["tables"].items():
            table.add_row(name, ", ".join(f"{figure} {count:,}" for figure, count in figures.items()))
        parts.append(table)
    if document["stayed"]:
        table = grid("still quarantined", ("records",))
        for name, count in document["stayed"].items():
            table.add_row(name, f"{count:,}")
        parts.append(table)
    if document["reason"] in _OF_KEYS and not document["dry_run"]:
        parts.append(
            Text(
                "Rows that wrong keys merged into one were never quarantined: `headpond bootstrap "
                f"{file} TABLE --from-start` brings what the source still has of them."
            )
        )
    if document["dry_run"] and document["left"]:
        parts.append(next_command("requeue", file, "--reason", document["reason"]))
    else:
        parts.append(next_command("quarantine" if document["stayed"] else "status", file))
    return Group(*parts)


@click.command()
@click.argument("file", type=PATH)
@click.argument("table")
@click.option("--dry-run", is_flag=True, help="Only report what would change.")
@with_output
def rebuild(output: Output, file: str, table: str, *, dry_run: bool) -> int:
    """Rewrite a TABLE to match its entry: types, names, keys, form, partitions.

    Makes one commit. If any value does not fit, lists those values and writes nothing. A pipeline running at
    the same time ends with an error once the commit is made; start it again with the new file.
    """
    with output.progress(f"headpond rebuild {table}") as show:
        done = rebuild_table(
            open_lake(load(file)), table, dry_run=dry_run, say=lambda words: show(f"{table}: {words}")
        )
    output.result({**asdict(done), "dry_run": dry_run}, lambda: _rebuilt(done, file, dry_run=dry_run))
    return int(done.unfit > 0)


def _rebuilt(done: Rebuilt, file: str, *, dry_run: bool) -> RenderableType:
    if not done.differences:
        return Text(f"{done.table} already matches its entry.")
    verb = "would be written" if dry_run else "were written"
    lines = [f"{each.made} becomes {each.wanted}" for each in done.differences]
    kept = done.rows - done.superseded - done.deleted
    lines.append(f"{done.table}: {number(kept)} of {number(done.rows)} rows {verb} again.")
    if done.unfit:
        lines.append(f"{many(done.unfit, 'value')} do not fit, so nothing is written:")
        lines += [f"  {each['column']} {each['value']}: {each['why']}" for each in done.listed]
    if done.superseded:
        lines.append(f"{many(done.superseded, 'row')} replaced by a newer row with the same key.")
    if done.deleted:
        lines.append(f"{many(done.deleted, 'row')} whose key was deleted later.")
    if done.lost_deletes:
        lines.append(
            f"{many(done.lost_deletes, 'delete')} cannot be known by the new keys: changes up to "
            f"{done.lost_ns} ns that come late go to quarantine as too_late."
        )
    if done.finer:
        command = shlex.join(["headpond", "bootstrap", file, done.table, "--from-start"])
        lines.append(
            f"Rows that the old keys merged into one are lost: run `{command}` afterwards, "
            "which brings what the source still has."
        )
    again = next_command(*(("rebuild", file, done.table) if dry_run else ("run", file)))
    return Text("\n".join(lines)) if done.unfit else Group(Text("\n".join(lines)), again)


@click.command()
@click.argument("file", type=PATH)
@click.argument("tables", metavar="[TABLE]...", nargs=-1)
@click.option("--vacuum", is_flag=True, help="Also remove files that no recent version uses.")
@click.option(
    "--retain",
    callback=as_span,
    metavar="SPAN",
    help="How long older versions stay readable; by default version_retention in the file.",
)
@click.option(
    "--unsafe-retention", is_flag=True, help="Allow less than version_retention; the lake must be idle."
)
@click.option("--order", is_flag=True, help="Also sort rows by key; rewrites all files.")
@with_output
def optimize(
    output: Output,
    file: str,
    tables: tuple[str, ...],
    *,
    vacuum: bool,
    retain: int | None,
    unsafe_retention: bool,
    order: bool,
) -> None:
    """Compact many small files into a few large ones.

    Compacts all tables, including those in _headpond, or only the ones you name. Rows do not change, and
    older versions stay readable until you --vacuum. Works while the pipeline runs.
    """
    if not vacuum and (retain is not None or unsafe_retention):
        raise UsageError("--retain and --unsafe-retention are for --vacuum.", next_step="Add --vacuum.")
    pipeline = load(file)
    kept_ms = pipeline.target.version_retention_ms
    retain_ms = (kept_ms if retain is None else retain) if vacuum else None
    if retain_ms is not None and retain_ms < kept_ms and not unsafe_retention:
        raise UsageError(
            f"A retention of {retain_ms / HOUR_MS:g} hours is shorter than version_retention in {file}, "
            f"{kept_ms / HOUR_MS:g} hours: queries and commits in progress could lose files that they need.",
            next_step="Retain that long, shorten version_retention, or pass --unsafe-retention while nothing "
            "else uses the lake.",
            retain_ms=retain_ms,
        )
    lake = open_lake(pipeline)
    there = dict(lake.files())
    unknown = [name for name in tables if name not in there]
    if unknown:
        raise UsageError(
            f"The lake has no table {unknown[0]!r}.",
            next_step=f"It has {', '.join(there)}." if there else "It has none yet.",
            table=unknown[0],
        )
    done: dict[str, Any] = {}
    with output.progress(f"headpond optimize {file}") as show:
        for name in tables or there:
            table = lake.tables.get(name)
            show(f"optimizing {name}")
            found = optimize_file(
                there[name],
                target_bytes=None if table is None else table.entry.target_file_size_bytes,
                retain_ms=retain_ms,
                order_by=table.order_by if order and table is not None else (),
            )
            done[name] = _optimized(found)
    output.result({"tables": done}, lambda: _optimized_drawn(done, file))


def _optimized(found: Optimized) -> dict[str, Any]:
    return {
        "files_before": found.before.files,
        "bytes_before": found.before.bytes,
        "files_after": found.after.files,
        "bytes_after": found.after.bytes,
        "vacuumed": found.vacuumed,
        **({"rewritten_bytes": found.rewritten_bytes} if found.rewritten_bytes else {}),
    }


def _optimized_drawn(done: dict[str, Any], file: str) -> RenderableType:
    columns = ("files before", "after", "bytes before", "after", "files removed")
    table = grid("table", columns)
    keys = ("files_before", "files_after", "bytes_before", "bytes_after", "vacuumed")
    for name, facts in done.items():
        shown = (facts[key] for key in keys)
        table.add_row(name, *("" if value is None else f"{value:,}" for value in shown))
    said = advice({name: facts.get("rewritten_bytes", 0) for name, facts in done.items()})
    if any(facts["vacuumed"] is None for facts in done.values()):
        return Group(
            table, *said, next_command("optimize", file, "--vacuum", when="the old files stay until then")
        )
    return Group(table, *said, next_command("status", file))


@click.command()
@click.argument("file", type=PATH)
@with_output
def redact(output: Output, file: str) -> None:
    """Remove redacted contents of a ledger from every file of the lake.

    Rewrites the tables, histories and quarantine that hold such contents, and removes all their older files
    and log entries, so older versions can no longer be read. Nothing else may use the lake while it runs.
    Requires redaction = "honour".
    """
    lake = open_lake(load(file))
    with output.progress(f"headpond redact {file}") as show:
        done = redact_lake(lake, on_step=show)
    document = asdict(done)
    output.result(document, lambda: _redacted_drawn(document, file))


def _redacted_drawn(document: dict[str, Any], file: str) -> RenderableType:
    table = grid("table", ("rows that lost their contents now",))
    for name, rows in document["rows"].items():
        table.add_row(name, f"{rows:,}")
    parts: list[RenderableType] = [
        Text(f"{document['revisions']:,} revisions are redacted; {document['files']:,} old files removed."),
        table,
        Text(f"{document['quarantined']:,} quarantined records lost theirs."),
    ]
    if document["unreadable"]:
        words = f"{document['unreadable']:,} quarantined records cannot be read; check whether they may stay."
        parts.append(Text(words, style="yellow"))
    parts.append(next_command("quarantine" if document["unreadable"] else "status", file))
    return Group(*parts)


@click.command()
@click.argument("file", type=PATH)
@click.option("--yes", is_flag=True, help="Move damaged checkpoint files away; otherwise only list them.")
@with_output
def repair(output: Output, file: str, *, yes: bool) -> int:
    """Find and repair damage from a power cut in the checkpoint and tables.

    With --yes, moves damaged checkpoint files to a folder next to it. Spark then reads those records again,
    which is harmless because versions are compared. Tables are never changed: each damaged one is listed with
    what you can do. Exits with 1 while something is left to do.
    """
    pipeline = load(file)
    if yes:
        mark_in(pipeline.target.path, pipeline.target.storage_options).refuse_another()
    found = {"checkpoint": _torn(pipeline, yes=yes), "tables": _damaged(pipeline)}
    output.result(found, lambda: Group(*map(Text, _repair_lines(found, yes=yes))))
    return int(bool(found["tables"]) or (bool(found["checkpoint"]) and not yes))


def _torn(pipeline: Pipeline, *, yes: bool) -> list[dict[str, Any]]:
    """Return the torn files; with `yes` all, moved away, else the first that is in the way."""
    place, options = pipeline.target.checkpoint.rstrip("/"), pipeline.target.storage_options
    kept = f"{place}.torn-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    found: list[dict[str, Any]] = []
    while (torn := torn_file(place, options)) is not None:
        moved = [f"{place}/{name}" for name in torn.away] or [place]
        found.append({"torn": f"{place}/{torn.name}", "away": moved, "to": kept, "then": torn.then})
        if not yes:
            break
        take_away(place, torn, kept, options)
    return found


def _damaged(pipeline: Pipeline) -> list[dict[str, str | None]]:
    found: list[dict[str, str | None]] = []
    for name, table in open_lake(pipeline).places().items():
        try:
            if table.exists():
                table.check()
        except InvalidData as error:
            found.append({"table": name, "damage": error.message, "next_step": error.next_step})
    return found


def _repair_lines(found: dict[str, Any], *, yes: bool) -> list[str]:
    lines = []
    for torn in found["checkpoint"]:
        lines.append(f"{torn['torn']} is damaged: it is missing, empty or truncated.")
        verb = "Moved" if yes else "With --yes: move"
        lines.append(f"  {verb} {' and '.join(torn['away'])} to {torn['to']}. {torn['then']}")
    for table in found["tables"]:
        lines.append(f"{table['table']}: {table['damage']}")
        lines.append(f"  {table['next_step']}")
    return lines or ["No damage found: the checkpoint and the tables' logs are intact."]


@click.command()
@click.argument("file", type=PATH)
@click.option("--glue", "database", required=True, metavar="DATABASE", help="The database in AWS Glue.")
@click.option("--region", help="Its region; by default the source's, or the one that boto3 finds.")
@with_output
def register(output: Output, file: str, *, database: str, region: str | None) -> None:
    """Register the tables of a lake in AWS Glue, for Athena and Spark.

    Run it again when a table gets new columns. An entry of that name for another place is left alone.
    """
    from headpond.kinesis.aws import aws_client

    pipeline = load(file)
    source = pipeline.source
    glue = aws_client("glue", region=region or source.region, profile=source.profile)
    done = register_lake(open_lake(pipeline), glue, database)
    output.result({"database": database, **asdict(done)}, lambda: _registered(done, database))


def _registered(done: Registered, database: str) -> Text:
    lines = [
        f"{database}.{name}: {what} for {table}"
        for what, names in (
            ("created", done.created),
            ("updated", done.updated),
            ("as it was", done.unchanged),
        )
        for table, name in names.items()
    ]
    lines += [f"{table} does not exist yet: `headpond run` creates it." for table in done.absent]
    return Text("\n".join(lines))
