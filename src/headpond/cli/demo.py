"""`headpond demo`: the main job on parts that start with it, checked against what must come out."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group
from rich.text import Text

from headpond.cli.common import with_output
from headpond.cli.demo_stream import archive_lines, change_records, expected, fill
from headpond.cli.drawing import draw_rows, draw_summary
from headpond.cli.expected import differences
from headpond.errors import UsageError
from headpond.kinesis.local import LocalKinesis
from headpond.pipeline import load
from headpond.spark.java import find_java
from headpond.spark.run import Run
from headpond.tables.lake import Lake
from headpond.tables.naming import OWN_COLUMNS
from headpond.tables.summary import lake_summary

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headpond.cli.demo_stream import Sent
    from headpond.cli.output import Output

STREAM = "shop-changes"
SHARDS = 4
TABLES_DIFFER = 1
SAMPLE_TABLE = "public.order_items"
SAMPLE_ROWS = 4


@click.command()
@click.option("--lake", "folder", type=click.Path(path_type=Path), help="A new folder for the lake.")
@with_output
def demo(output: Output, folder: Path | None) -> int:
    """Show the whole pipeline on embedded parts.

    Starts a local Kinesis, puts Aurora DSQL change records into a stream of four shards (half of them packed
    into KPL aggregates), lets Spark follow it into Delta tables, and compares those with the expected ones.
    """
    find_java()
    root = _new_folder(folder)
    (root / "records.jsonl").write_bytes(b"\n".join(archive_lines()) + b"\n")
    (root / "archive.toml").write_text(pipeline_text('archive = "records.jsonl"', path="lake-from-archive"))
    with output.progress("headpond demo") as show, LocalKinesis() as kinesis:
        show("filling a local Kinesis stream")
        kinesis.engine.create_stream(STREAM, SHARDS)
        sent = fill(kinesis.client(), STREAM, change_records())
        where = f'stream = "{STREAM}"\nendpoint_url = "{kinesis.endpoint_url}"\nstart = "TRIM_HORIZON"'
        (root / "pipeline.toml").write_text(pipeline_text(where, path="lake"))
        job = Run(load(root / "pipeline.toml"), until_caught_up=True, quick=True, say=show)
        lake = job.go()
    assert isinstance(lake, Lake)  # of DSQL changes
    wrong = differences(lake, expected())
    summary = lake_summary(lake, job.applied) | {
        "sent": {
            "user_records": sent.user_records,
            "kinesis_records": sent.kinesis_records,
            "aggregates": sent.aggregates,
            "shards": SHARDS,
        },
        "spark_start_seconds": round(job.start_seconds, 1),
        "seconds": round(job.query_seconds, 1),
        "as_expected": not wrong,
        "differences": wrong,
    }
    output.result(summary, lambda: _draw(root, lake, sent, summary))
    return TABLES_DIFFER if wrong else 0


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


def _draw(root: Path, lake: Lake, sent: Sent, summary: dict[str, Any]) -> RenderableType:
    typed = lake.typed[SAMPLE_TABLE]
    columns = [column for column in typed.columns if column not in OWN_COLUMNS]
    rows = typed.file.read(columns).slice(0, SAMPLE_ROWS).to_pylist()
    speed = sent.user_records / max(summary["seconds"], 0.1)
    command = _command()
    if summary["as_expected"]:
        verdict = Text("Every table is as expected.", style="bold green")
    else:
        verdict = Text(
            "\n".join(["The tables are NOT as expected:", *summary["differences"]]), style="bold red"
        )
    return Group(
        Text(
            f"{sent.user_records} change records in {sent.kinesis_records} Kinesis records "
            f"({sent.aggregates} KPL aggregates) on {SHARDS} shards, "
            f"applied in {summary['seconds']} s ({speed:.0f} records/s; most of it is the first "
            f"batch's warm-up) after {summary['spark_start_seconds']} s of Spark's start.\n"
        ),
        draw_summary(summary),
        Text(),
        draw_rows(SAMPLE_TABLE, columns, [list(row.values()) for row in rows]),
        Text(),
        verdict,
        Text("\nTry next:", style="bold"),
        Text(f"  {command} inspect {root}/records.jsonl"),
        Text(f"  {command} run {root}/archive.toml --until-caught-up"),
        Text(f"  {command} status {root}/archive.toml"),
    )
