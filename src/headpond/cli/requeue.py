"""`headpond requeue`: quarantined records fed in again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.console import Group
from rich.text import Text

from headpond.changes.assemble import ChunkRules
from headpond.changes.qldb_config import LedgerConfig
from headpond.cli.common import with_output
from headpond.cli.drawing import grid
from headpond.errors import UsageError
from headpond.pipeline import load
from headpond.pipeline.lake import open_target
from headpond.tables.apply import Chunks
from headpond.tables.ledger import LedgerLake
from headpond.tables.requeue import ALL
from headpond.tables.requeue import requeue as feed_again

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headpond.changes.decoders import Config
    from headpond.cli.output import Output
    from headpond.tables.requeue import Requeued


@click.command()
@click.argument("file", type=click.Path(path_type=str))
@click.option("--reason", required=True, help=f"Which records: a reason of the quarantine, or {ALL}.")
@click.option("--dry-run", is_flag=True, help="Only say what would become of them.")
@with_output
def requeue(output: Output, file: str, *, reason: str, dry_run: bool) -> None:
    """Feed quarantined records of the pipeline FILE in again.

    Do this after mending what they were refused for. A record that works now goes to its table, or to
    pending where it waits for others, and leaves the quarantine; the rest stays, under its reason of
    now. Works beside a running pipeline, and may be stopped and started again.
    """
    pipeline = load(file)
    lake = open_target(pipeline)
    known = lake.quarantine.counts_by("reason")
    if reason not in (ALL, *known):
        there = ", ".join(f"{name} ({count})" for name, count in known.items()) or "empty"
        raise UsageError(
            f"No record is in quarantine for the reason {reason!r}.",
            next_step=f"The quarantine is {there}." if not known else f"There are: {there}.",
            reason=reason,
        )
    config: Config = lake.config if isinstance(lake, LedgerLake) else pipeline.dsql_config()
    chunks = None
    if not isinstance(config, LedgerConfig):
        chunks = Chunks(
            config,
            rules=ChunkRules(timeout_ms=pipeline.target.chunk_timeout_ms),
            memory_bytes=pipeline.target.chunk_memory_bytes,
            disk_bytes=pipeline.target.chunk_disk_bytes,
        )
    if not dry_run:
        lake.prepare()
    with output.progress(f"headpond requeue {file}"):
        done = feed_again(
            lake,
            config,
            reason,
            chunks=chunks,
            deaggregate=pipeline.source.deaggregate,
            dry_run=dry_run,
        )
    document = _document(done, reason, dry_run=dry_run)
    output.result(document, lambda: _draw(document))


def _document(done: Requeued, reason: str, *, dry_run: bool) -> dict[str, Any]:
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


def _draw(document: dict[str, Any]) -> RenderableType:
    verb = "would leave" if document["dry_run"] else "left"
    head = f"{document['left']:,} of {document['read']:,} records {verb} the quarantine."
    parts: list[RenderableType] = [Text(head)]
    if document["pending"]:
        parts.append(Text(f"{document['pending']:,} records wait for the rest of their chunks."))
    if document["tables"]:
        table = grid("table", ("what became of the changes",))
        for name, figures in document["tables"].items():
            table.add_row(name, ", ".join(f"{figure} {count:,}" for figure, count in figures.items()))
        parts.append(table)
    if document["stayed"]:
        table = grid("still refused for", ("records",))
        for name, count in document["stayed"].items():
            table.add_row(name, f"{count:,}")
        parts.append(table)
    return Group(*parts)
