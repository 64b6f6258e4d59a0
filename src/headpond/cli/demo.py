"""`headpond demo`: all of headpond on parts that start with it, checked against what must come out."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headpond.cli.common import with_output
from headpond.cli.demo_drawing import draw_demo, sample_of
from headpond.cli.demo_join import join_streams
from headpond.cli.demo_ledger import (
    LEDGER,
    anomalies_of,
    ledger_differences,
    ledger_lines,
    ledger_records,
    ledger_text,
    with_a_letter_changed,
)
from headpond.cli.demo_stream import archive_lines, change_records, expected, fill
from headpond.cli.expected import differences
from headpond.cli.status import look, page_of
from headpond.errors import UsageError
from headpond.kinesis.local import LocalKinesis
from headpond.pipeline import load
from headpond.spark.java import find_java
from headpond.spark.run import Run
from headpond.tables.lake import Lake
from headpond.tables.ledger import LedgerLake
from headpond.tables.summary import lake_summary

if TYPE_CHECKING:
    from headpond.cli.output import Output, Show

STREAM = "shop-changes"
SHARDS = 4
STEPS = 4
RECORDS_A_BATCH = 24
EXPECTED_ANOMALY = "revision_hash_mismatch"
TABLES_DIFFER = 1


@click.command()
@click.option("--lake", "folder", type=click.Path(path_type=Path), help="A new folder for the lakes.")
@with_output
def demo(output: Output, folder: Path | None) -> int:
    """Show everything on embedded parts: a local Kinesis, and Spark on this machine.

    Aurora DSQL changes (half of them packed into KPL aggregates) become Delta tables; so do the revisions of
    a QLDB ledger, whose journal is proven, and proven again with one letter changed; orders are joined with
    their payments in a time window, headers kept, and the results put back to Kinesis as aggregates. All of
    it is compared with what must come out.
    """
    find_java()
    root = _new_folder(folder)
    with output.progress("headpond demo", STEPS) as show, LocalKinesis() as kinesis:
        changes, differing = _changes(root, kinesis, show)
        ledger = _ledger(root, kinesis, show)
        show("orders and their payments", done=2)
        joined = join_streams(kinesis, root / "spark.log", show)
        show("drawing the page of plots", done=3)
        page = root / "status.html"
        pipeline = load(root / "pipeline.toml")
        page.write_text(page_of(pipeline, look(pipeline)), encoding="utf-8")
    wrong = differing + ledger["differences"] + joined.differences
    summary = changes | {
        "ledger": ledger,
        "join": joined.as_json(),
        "page": str(page),
        "as_expected": not wrong,
        "differences": wrong,
    }
    output.result(summary, lambda: draw_demo(root, summary, _command()))
    return TABLES_DIFFER if wrong else 0


def _changes(root: Path, kinesis: LocalKinesis, show: Show) -> tuple[dict[str, Any], list[str]]:
    """DSQL changes from a stream to tables; gives the summary, and where the tables are wrong."""
    show("filling a local Kinesis stream", done=0)
    (root / "records.jsonl").write_bytes(b"\n".join(archive_lines()) + b"\n")
    (root / "archive.toml").write_text(pipeline_text('archive = "records.jsonl"', path="lake-from-archive"))
    kinesis.engine.create_stream(STREAM, SHARDS)
    sent = fill(kinesis.client(), STREAM, change_records())
    # In some batches, so that there is something to plot.
    where = f"{_where(kinesis, STREAM)}\nmax_records_per_trigger = {RECORDS_A_BATCH}"
    (root / "pipeline.toml").write_text(pipeline_text(where, path="lake"))
    job = Run(load(root / "pipeline.toml"), until_caught_up=True, quick=True, say=show)
    lake = job.go()
    assert isinstance(lake, Lake)  # of DSQL changes
    summary = lake_summary(lake, job.applied) | {
        "sent": asdict(sent) | {"shards": SHARDS},
        "sample": sample_of(lake),
        "spark_start_seconds": round(job.start_seconds, 1),
        "seconds": round(job.query_seconds, 1),
    }
    return summary, differences(lake, expected())


def _ledger(root: Path, kinesis: LocalKinesis, show: Show) -> dict[str, Any]:
    """A ledger's records from a stream to tables with their proof; and a forged archive of them."""
    show("the revisions of a ledger", done=1)
    (root / "ledger.jsonl").write_bytes(b"\n".join(ledger_lines()) + b"\n")
    forged = root / "ledger-forged.jsonl"
    forged.write_bytes(b"\n".join(with_a_letter_changed()) + b"\n")
    kinesis.engine.create_stream(LEDGER, SHARDS)
    fill(kinesis.client(), LEDGER, ledger_records())
    (root / "ledger.toml").write_text(ledger_text(_where(kinesis, LEDGER), path="lake-of-ledger"))
    job = Run(load(root / "ledger.toml"), until_caught_up=True, quick=True, say=show)
    lake = job.go()
    assert isinstance(lake, LedgerLake)
    found = lake_summary(lake, job.applied)
    show("proving a forged copy of the ledger")
    anomalies = [
        {name: row[name] for name in ("kind", "document_id", "version")} for row in anomalies_of(forged)
    ]
    wrong = ledger_differences(lake)
    wrong += [f"the ledger has the anomaly {kind}" for kind in found["anomalies"]]
    if [row["kind"] for row in anomalies] != [EXPECTED_ANOMALY]:
        wrong.append(f"the forged ledger has other anomalies: {anomalies}")
    return found | {"records": len(ledger_lines()), "forged": anomalies, "differences": wrong}


def _where(kinesis: LocalKinesis, stream: str) -> str:
    return f'stream = "{stream}"\nendpoint_url = "{kinesis.endpoint_url}"\nstart = "TRIM_HORIZON"'


def pipeline_text(source: str, *, path: str, wanted: dict[str, Any] | None = None) -> str:
    """Write a pipeline file for expected tables.

    Args:
        source: lines of `[source]` that say where the records are.
        path: the lake.
        wanted: the expected tables; the demonstration's unless given.
    """
    parts = [f'[source]\n{source}\nformat = "dsql"\n', f'[target]\npath = "{path}"\n']
    wanted = wanted or expected()
    logs = {name: log | {"keys": []} for name, log in wanted["append_logs"].items()}
    for name, table in (wanted["tables"] | logs).items():
        # JSON's arrays and strings are TOML's too.
        columns = ", ".join(f"{json.dumps(c)} = {json.dumps(kind)}" for c, kind in table["columns"].items())
        parts.append(
            f"[tables.{json.dumps(name)}]\nkeys = {json.dumps(table['keys'])}\ncolumns = {{ {columns} }}\n"
        )
    return "\n".join(parts)


def _new_folder(folder: Path | None) -> Path:
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="headpond-demo-"))
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(
            f"The folder {folder} is not empty.",
            next_step="Give a new one: the demonstration compares its tables with the expected ones.",
            path=str(folder),
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder.absolute()


def _command() -> str:
    """Give what to type for `headpond`: its path where it is not on the search path."""
    here = Path(sys.argv[0])
    found = shutil.which("headpond")
    if here.name != "headpond" or (found and Path(found).resolve() == here.resolve()):
        return "headpond"
    return os.path.relpath(here) if here.is_relative_to(Path.cwd()) else str(here)
