"""What can be wrong with a pipeline before it runs: Java, source, records, lake. Nothing is written.

A check returns a sentence and doubts, which are sentences too, or raises what is wrong.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from headpond.api.sampling import kinesis_records
from headpond.core.errors import MissingRequirement
from headpond.core.lazy import needed
from headpond.kinesis.archive.lines import BAD_LINE
from headpond.kpl.records import open_records
from headpond.lake.object_store import is_remote
from headpond.pipeline import Pipeline
from headpond.pipeline.lake import change_format, open_lake
from headpond.spark.following.checkpoint import check_whole, read_again
from headpond.spark.following.run import archive_files, check_lines, check_source, doubts
from headpond.spark.session.java import find_java
from headpond.spark.session.settings import check_checkpoint

SAMPLE = 1_000
"""Records that are read to see what would become of them."""


def checks_of(pipeline: Pipeline) -> list[tuple[str, Callable[[], tuple[str, list[str]]]]]:
    """Return the checks of a pipeline by name, in the order in which a run would fail."""
    return [
        ("tables", lambda: (f"{len(pipeline.tables)} in the file.", doubts(pipeline))),
        ("java", lambda: _java(pipeline)),
        ("source", lambda: _source(pipeline)),
        ("records", lambda: _records(pipeline)),
        ("lake", lambda: _lake(pipeline)),
    ]


def _java(pipeline: Pipeline) -> tuple[str, list[str]]:
    needed("pyspark", "Running a pipeline", "headpond[spark]")
    check_checkpoint(pipeline)
    found = find_java()
    return f"Spark runs on {found.home}.", []


def _source(pipeline: Pipeline) -> tuple[str, list[str]]:
    if pipeline.source.archive is None:
        check_source(pipeline)
    else:
        archive_files(pipeline)
    return f"{pipeline.source.described} can be read.".capitalize(), []


def _records(pipeline: Pipeline) -> tuple[str, list[str]]:
    config, reasons, count = change_format(pipeline), Counter[str](), 0
    made: set[str] = set()
    bad_lines: list[dict[str, Any]] = []
    for batch in kinesis_records(pipeline, SAMPLE):
        for opened in open_records(batch, deaggregate=pipeline.source.deaggregate):
            count += opened.num_rows
            found = config.decode(opened)
            reasons.update(found.quarantine["reason"].to_pylist())
            bad_lines += found.quarantine.filter(pc.equal(found.quarantine["reason"], BAD_LINE)).to_pylist()
            made |= {name for name in found.tables if config.patterns and config.entry(name) is not None}
    if pipeline.source.archive is not None:
        check_lines(pipeline.source.name, bad_lines, whole=reasons[BAD_LINE] == count, lines=count)
    listed = ", ".join(f"{number:,} {reason}" for reason, number in reasons.most_common())
    held = [f"{sum(reasons.values()):,} of {count:,} would be quarantined: {listed}."] if reasons else []
    matched = ", ".join(sorted(made.difference(table.name for table in config.tables)))
    more = f" Patterns match {matched}." if matched else ""
    return f"{count:,} read and decoded.{more}" if count else "There are none yet.", held


def _lake(pipeline: Pipeline) -> tuple[str, list[str]]:
    target = pipeline.target
    check_whole(target.checkpoint, target.storage_options)
    open_lake(pipeline).check(rebuilt=read_again(pipeline, None), source=pipeline.source.described)
    if is_remote(target.path):
        return f"{target.path} can be read.", []
    folder = next(each for each in (Path(target.path), *Path(target.path).parents) if each.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise MissingRequirement(
            f"The lake {target.path} cannot be written: {folder} is not a folder that you may write to.",
            next_step="Correct target.path, or the folder's permissions.",
            path=str(folder),
        )
    return f"{target.path} {'matches the file' if folder == Path(target.path) else 'will be created'}.", []
