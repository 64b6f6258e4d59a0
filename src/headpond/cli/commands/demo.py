"""`headpond demo`: all of headpond on parts that start with it, checked against what must come out.

::

    Aurora DSQL changes ──► stream, half of it KPL aggregates ──► tables
    revisions of a ledger ► stream ──► tables and their proof; a copy with one letter changed is found out
    orders, payments ─────► streams ──► windowed join, traces kept as headers ──► stream of KPL aggregates

`data/demo.json.gz` has the records, and the rows that the tables must have; neither was made by headpond. The
pipeline files are beside it, and what is printed.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from headpond import kpl, spark
from headpond.api.looking import look
from headpond.cli.commands.status import page_of
from headpond.cli.inputs import PATH, with_output
from headpond.cli.output import Output, RowsDrawn, Show, draw_summary
from headpond.cli.verify_pieces import Examined, examine, pieces
from headpond.core.errors import UsageError
from headpond.kinesis import BlockingProducer, ConnectionSettings
from headpond.kstreams import JoinWindows
from headpond.lake.reports import lake_summary
from headpond.localkinesis import LocalKinesis
from headpond.localkinesis.testing import put_all, read_all
from headpond.pipeline import load
from headpond.spark.following.run import Run
from headpond.spark.session.java import find_java
from headpond.spark.session.start import spark_session

DATA = resources.files("headpond.cli").joinpath("data")
CHANGES, LEDGER = "shop-changes", "vehicle-ledger"
ORDERS, PAYMENTS, JOINED = "orders", "payments", "paid-orders"
SHARDS, JOIN_SHARDS = 4, 2
RUN_LENGTH = 8  # change records that go out plain, then as many in one aggregate, and so on
SAMPLE, SAMPLE_ROWS = "public.orders", 4
MINUTE_MS = 60_000


@click.command()
@click.option("--lake", "folder", type=PATH, help="An empty folder for the output.")
@with_output
def demo(output: Output, folder: str | None) -> int:
    """Run the whole pipeline on this machine: a local Kinesis, Spark, tables.

    Turns database changes and a QLDB ledger into Delta tables, verifies the ledger's journal, and joins
    orders with payments. Every result is compared with the expected one.
    """
    find_java()
    root = Path(folder or tempfile.mkdtemp(prefix="headpond-demo-")).absolute()
    if root.exists() and any(root.iterdir()):
        raise UsageError(
            f"The folder {folder} is not empty.",
            next_step="Give a new one: the demonstration compares its tables with the expected ones.",
            path=folder,
        )
    root.mkdir(parents=True, exist_ok=True)
    page = root / "status.html"
    with output.progress("headpond demo", 4) as show, LocalKinesis() as kinesis:
        summary, ledger, join = (part(root, kinesis, show) for part in (_changes, _ledger, _join))
        show("drawing the page of plots", done=3)
        pipeline = load(root / "pipeline.toml")
        page.write_text(page_of(pipeline, look(pipeline)), encoding="utf-8")
    wrong = [difference for part in (summary, ledger, join) for difference in part["differences"]]
    summary |= {"ledger": ledger, "join": join, "page": str(page)}
    summary |= {"as_expected": not wrong, "differences": wrong}
    output.result(summary, lambda: _drawn(root, summary))
    return int(bool(wrong))


@cache
def demo_data() -> dict[str, Any]:
    """Return the packaged records, and the rows that must come out of them."""
    document: dict[str, Any] = json.loads(gzip.decompress((DATA / "demo.json.gz").read_bytes()))
    return document


def _changes(root: Path, kinesis: LocalKinesis, show: Show) -> dict[str, Any]:
    """Take DSQL changes from a stream to tables."""
    show("filling a local Kinesis stream", done=0)
    changes, tables = demo_data()["changes"], demo_data()["tables"]
    _write_lines(root / "records.jsonl", changes)
    records = _user_records(changes)
    runs = [records[at : at + RUN_LENGTH] for at in range(0, len(records), RUN_LENGTH)]
    groups = [group for n, run in enumerate(runs) for group in ([run] if n % 2 else [[r] for r in run])]
    _fill(kinesis, CHANGES, map(kpl.encode, groups))
    job, lake, summary = _followed(root, "pipeline.toml", kinesis, show)
    live = (root / "pipeline.toml").read_text()  # the same tables of an archive, for later
    source = 'archive = "records.jsonl"\nformat = "dsql"\n\n[target]\npath = "lake-from-archive"\n\n[tables.'
    (root / "archive.toml").write_text(f"[source]\n{source}{live.partition('[tables.')[2]}", encoding="utf-8")
    rows = {n: _rows(lake, n, table["columns"]) for n, table in tables.items()}
    sent = {"user_records": len(records), "kinesis_records": len(groups), "shards": SHARDS}
    return summary | {
        "sent": sent | {"aggregates": sum(len(group) > 1 for group in groups)},
        "sample": {"table": SAMPLE, "columns": tables[SAMPLE]["columns"], "rows": rows[SAMPLE][:SAMPLE_ROWS]},
        "spark_start_seconds": round(job.start_seconds, 1),
        "seconds": round(job.query_seconds, 1),
        "differences": [d for n, table in tables.items() for d in _differences(n, table["rows"], rows[n])],
    }


def _ledger(root: Path, kinesis: LocalKinesis, show: Show) -> dict[str, Any]:
    """Take a ledger's records from a stream to tables with their proof; then prove a forged copy."""
    show("the revisions of a ledger", done=1)
    records, (at, forged) = demo_data()["ledger"], demo_data()["forged"]
    _write_lines(root / "ledger.jsonl", records)
    _write_lines(root / "ledger-forged.jsonl", [*records[:at], forged, *records[at + 1 :]])
    _fill(kinesis, LEDGER, _user_records(records))
    _, lake, found = _followed(root, "ledger.toml", kinesis, show)
    show("proving a forged copy of the ledger")
    anomalies = anomalies_of(root / "ledger-forged.jsonl")
    wrong = [f"the ledger has the anomaly {kind}" for kind in found["anomalies"]]
    for name, wanted in demo_data()["revisions"].items():
        wrong += _differences(name, wanted, _rows(lake, name, ("_document_id", "_version")))
    if [row["kind"] for row in anomalies] != ["revision_hash_mismatch"]:
        wrong.append(f"the forged ledger has other anomalies: {anomalies}")
    return found | {"records": len(records), "forged": anomalies, "differences": wrong}


def anomalies_of(archive: Path) -> list[dict[str, Any]]:
    """Prove an archive, as `headpond verify` does; in this process, without Spark."""
    found = Examined()
    for part in examine(pieces(str(archive)), workers=1):
        found.absorb(part)
    rows = found.journal.checked(closed=True, deletes=True).anomalies.to_pylist()
    return [{name: row[name] for name in ("kind", "document_id", "version")} for row in rows]


def _join(root: Path, kinesis: LocalKinesis, show: Show) -> dict[str, Any]:
    """Put orders and payments, join them on Spark into a third stream, and read that."""
    show("orders and their payments", done=2)
    orders, payments = demo_data()["orders"], demo_data()["payments"]
    for stream, records in ((ORDERS, orders), (PAYMENTS, payments), (JOINED, [])):
        kinesis.engine.create_stream(stream, JOIN_SHARDS)
        place = ConnectionSettings(stream, endpoint_url=kinesis.endpoint_url, region="us-east-1")
        with BlockingProducer(place) as producer:
            producer.put_all((record["key"], json.dumps(record).encode()) for record in records)
    show("joining orders and payments")
    with spark_session("headpond demo", log_path=root / "spark.log", quick=True) as session:
        _run_join(session, kinesis)
    show("reading the aggregates that the join's results went out in")
    opened = [(r.data, kpl.decode(r.data)) for r in read_all(kinesis.client(), JOINED)]
    aggregates = [each for _, each in opened if isinstance(each, kpl.Aggregate)]
    alone = [data for data, each in opened if not isinstance(each, kpl.Aggregate)]
    results = [json.loads(each) for each in alone + [r.data for a in aggregates for r in a.records]]
    found = [(result["key"], *result["traces"]) for result in results]
    return {
        "orders": len(orders),
        "payments": len(payments),
        "joined": sum(result["paid"] for result in results),
        "unmatched": sum(not result["paid"] for result in results),
        "aggregates": len(aggregates),
        "differences": _differences("join", demo_data()["joined"], found),
    }


def _run_join(session: Any, kinesis: LocalKinesis) -> None:
    spark.register(session)
    place = {"endpointUrl": kinesis.endpoint_url, "region": "us-east-1"}

    def records(stream: str) -> Any:
        """Return a stream's records with their own time, and their trace as a header."""
        reader = session.readStream.format("headpond-kinesis").options(**place, streamName=stream)
        body = "from_json(CAST(data AS STRING), 'at_ms BIGINT, trace STRING')"
        own = f"timestamp_millis({body}.at_ms) AS timestamp"
        headers = f"array(struct('trace' AS key, CAST({body}.trace AS BINARY) AS value)) AS headers"
        position = ("shard_id", "sequence_number", "sub_sequence_number")
        loaded = reader.option("startingPosition", "TRIM_HORIZON").load()
        return loaded.selectExpr("partition_key AS key", "data AS value", own, headers, *position)

    windows = JoinWindows(before_ms=0, after_ms=MINUTE_MS, grace_ms=MINUTE_MS)
    sides = records(ORDERS), records(PAYMENTS)
    joined = spark.windowed_join(*sides, windows, "left", tasks=JOIN_SHARDS, headers="merge")
    results = joined.selectExpr(
        "CAST(key AS STRING) AS partition_key",
        "to_json(struct(CAST(key AS STRING) AS key, right_value IS NOT NULL AS paid, "
        "transform(headers, h -> CAST(h.value AS STRING)) AS traces)) AS data",
    )
    with tempfile.TemporaryDirectory(prefix="headpond-demo-join-") as checkpoint:
        writer = results.writeStream.format("headpond-kinesis").options(streamName=JOINED, **place)
        query = writer.option("checkpointLocation", f"file://{checkpoint}").trigger(availableNow=True).start()
        query.awaitTermination()


def _write_lines(file: Path, documents: Iterable[Any]) -> None:
    file.write_text("".join(f"{json.dumps(each)}\n" for each in documents), encoding="utf-8")


def _user_records(lines: Iterable[dict[str, str]]) -> list[kpl.UserRecord]:
    return [kpl.UserRecord(line["partitionKey"], base64.b64decode(line["data"])) for line in lines]


def _fill(kinesis: LocalKinesis, stream: str, records: Iterable[Any]) -> None:
    kinesis.engine.create_stream(stream, SHARDS)
    put_all(kinesis.client(), stream, ((each.partition_key, each.data) for each in records))


def _followed(root: Path, name: str, kinesis: LocalKinesis, show: Show) -> tuple[Run, Any, dict[str, Any]]:
    """Run a packaged pipeline to the end of its stream; return the run, its lake and what is in that."""
    text = (DATA / name).read_text(encoding="utf-8")
    (root / name).write_text(text.replace("{endpoint_url}", kinesis.endpoint_url), encoding="utf-8")
    job = Run(load(root / name), until_caught_up=True, say=show)
    lake = job.go()
    return job, lake, lake_summary(lake, job.applied)


def _rows(lake: Any, name: str, columns: Iterable[str]) -> list[list[str | None]]:
    table = lake.typed[name]
    table.prepare()
    rows = table.file.read(list(columns)).to_pylist()
    return [[None if value is None else str(value) for value in row.values()] for row in rows]


def _differences(
    name: str, wanted: Iterable[Sequence[str | None]], found: Iterable[Sequence[str | None]]
) -> list[str]:
    """Return where rows differ from what they must be, one sentence each; empty when they do not."""
    must, have = Counter(map(tuple, wanted)), Counter(map(tuple, found))
    missing = [f"{name}: this row is missing: {row}" for row in (must - have).elements()]
    return missing + [f"{name}: this row should not be there: {row}" for row in (have - must).elements()]


def _drawn(root: Path, summary: dict[str, Any]) -> RenderableType:
    """Return what is printed: the parts of `data/demo.txt`, with tables between the first two."""
    sample, ledger = summary["sample"], summary["ledger"]
    rows = {name: facts["rows"] for name, facts in ledger["tables"].items()}
    revisions = sum(count for name, count in rows.items() if name.endswith("_history"))
    installed = Path(sys.executable).with_name("headpond")
    facts = {
        "root": escape(str(root)),
        "command": "headpond" if shutil.which("headpond") else os.path.relpath(installed),
        "tables": len(rows),
        "revisions": revisions,
        "documents": sum(rows.values()) - revisions,
        "anomalies": sum(ledger["anomalies"].values()),
        "forged": next(iter(ledger["forged"]), dict.fromkeys(("kind", "document_id", "version"))),
        "wrong": escape("\n".join(summary["differences"][:20])),
    }
    text = (DATA / "demo.txt").read_text(encoding="utf-8").format(**summary | facts)
    changes, rest, good, bad, following = map(Text.from_markup, text.split("\n---\n"))
    tables = draw_summary(summary), "", RowsDrawn(sample["table"], sample["columns"], sample["rows"])
    return Group(changes, *tables, rest, bad if summary["differences"] else good, following)
