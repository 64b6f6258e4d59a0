"""`headpond demo`: all of headpond on parts that start with it, checked against what must come out.

::

    Aurora DSQL changes ──► stream, half of it KPL aggregates ──► tables
    revisions of a ledger ► stream ──► tables and their proof; a copy with one letter changed is found out
    orders, payments ─────► streams ──► windowed join, traces kept as headers ──► stream of KPL aggregates

`data/demo.json.gz` has the records, and the rows that the tables must have; neither was made by headpond.
What the join must return is known from how orders and payments are drawn.
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
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group
from rich.text import Text

from headpond import kpl, spark
from headpond.cli.commands.status import look, page_of
from headpond.cli.inputs import with_output
from headpond.cli.output import draw_rows, draw_summary
from headpond.cli.verify_pieces import Examined, examine, pieces
from headpond.core.errors import UsageError
from headpond.kinesis import BlockingProducer, ConnectionSettings
from headpond.kstreams import JoinWindows
from headpond.lake.naming import OWN_COLUMNS
from headpond.lake.reports import lake_summary
from headpond.localkinesis import LocalKinesis
from headpond.localkinesis.testing import put_all, read_all
from headpond.pipeline import load
from headpond.spark.following.run import Run
from headpond.spark.session.java import find_java
from headpond.spark.session.start import spark_session

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from headpond.cli.output import Output, Show

CHANGES, LEDGER = "shop-changes", "vehicle-ledger"
ORDERS, PAYMENTS, JOINED = "orders", "payments", "paid-orders"
SHARDS, JOIN_SHARDS = 4, 2
RUN_LENGTH = 8  # change records that go out plain, then as many in one aggregate, and so on
SAMPLE, SAMPLE_ROWS = "public.order_items", 4
PERSON = 'columns = { FirstName = "string", DOB = "timestamp", GovId = "string" }'
ORDER_COUNT = 400
BEGIN_MS, MINUTE_MS = 1_790_000_000_000, 60_000


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
    root = (folder or Path(tempfile.mkdtemp(prefix="headpond-demo-"))).absolute()
    if root.exists() and any(root.iterdir()):
        raise UsageError(
            f"The folder {folder} is not empty.",
            next_step="Give a new one: the demonstration compares its tables with the expected ones.",
            path=str(folder),
        )
    root.mkdir(parents=True, exist_ok=True)
    with output.progress("headpond demo", 4) as show, LocalKinesis() as kinesis:
        summary = _changes(root, kinesis, show)
        ledger = _ledger(root, kinesis, show)
        joined = _join(root, kinesis, show)
        show("drawing the page of plots", done=3)
        page = root / "status.html"
        pipeline = load(root / "pipeline.toml")
        page.write_text(page_of(pipeline, look(pipeline)), encoding="utf-8")
    wrong = summary.pop("differences") + ledger["differences"] + joined["differences"]
    summary |= {"ledger": ledger, "join": joined, "page": str(page)}
    summary |= {"as_expected": not wrong, "differences": wrong}
    output.result(summary, lambda: _drawn(root, summary))
    return int(bool(wrong))


@cache
def demo_data() -> dict[str, Any]:
    """Return the packaged records (`changes`, `ledger`) and rows (`tables`, `revisions`)."""
    file = resources.files("headpond.cli").joinpath("data", "demo.json.gz")
    document: dict[str, Any] = json.loads(gzip.decompress(file.read_bytes()))
    return document


def _changes(root: Path, kinesis: LocalKinesis, show: Show) -> dict[str, Any]:
    """Take DSQL changes from a stream to tables."""
    show("filling a local Kinesis stream", done=0)
    data = demo_data()
    # JSON's arrays and strings are TOML's too.
    tables = "".join(
        f"\n[tables.{json.dumps(name)}]\nkeys = {json.dumps(table['keys'])}\n"
        f"[tables.{json.dumps(name)}.columns]\n"
        + "".join(f"{json.dumps(column)} = {json.dumps(kind)}\n" for column, kind in table["columns"].items())
        for name, table in data["tables"].items()
    )
    _write_lines(root / "records.jsonl", data["changes"])
    archive = '[source]\narchive = "records.jsonl"\nformat = "dsql"\n[target]\npath = "lake-from-archive"\n'
    (root / "archive.toml").write_text(archive + tables, encoding="utf-8")
    records = _user_records(data["changes"])
    runs = [records[at : at + RUN_LENGTH] for at in range(0, len(records), RUN_LENGTH)]
    groups = [group for n, run in enumerate(runs) for group in ([run] if n % 2 else [[r] for r in run])]
    _fill(kinesis, CHANGES, map(kpl.encode, groups))
    # In some batches, so that there is something to plot.
    rest = f'max_records_per_trigger = 24\nformat = "dsql"\n[target]\npath = "lake"\n{tables}'
    (root / "pipeline.toml").write_text(_source(kinesis, CHANGES) + rest, encoding="utf-8")
    job, lake, summary = _followed(root / "pipeline.toml", show)
    columns = [column for column in lake.typed[SAMPLE].columns if column not in OWN_COLUMNS]
    rows = lake.typed[SAMPLE].file.read(columns).slice(0, SAMPLE_ROWS).to_pylist()
    shown = [[None if value is None else str(value) for value in row.values()] for row in rows]
    sent = {"user_records": len(records), "kinesis_records": len(groups), "shards": SHARDS}
    wrong = []
    for name, table in data["tables"].items():
        found = _rows(lake, name, map(lake.typed[name].column, table["columns"]))
        wrong += _differences(name, table["rows"], found)
    return summary | {
        "sent": sent | {"aggregates": sum(len(group) > 1 for group in groups)},
        "sample": {"table": SAMPLE, "columns": columns, "rows": shown},
        "spark_start_seconds": round(job.start_seconds, 1),
        "seconds": round(job.query_seconds, 1),
        "differences": wrong,
    }


def _ledger(root: Path, kinesis: LocalKinesis, show: Show) -> dict[str, Any]:
    """Take a ledger's records from a stream to tables with their proof; then prove a forged copy."""
    show("the revisions of a ledger", done=1)
    records, revisions = demo_data()["ledger"], demo_data()["revisions"]
    forged = root / "ledger-forged.jsonl"
    _write_lines(root / "ledger.jsonl", records)
    _write_lines(forged, with_a_letter_changed(records))
    _fill(kinesis, LEDGER, _user_records(records))
    text = _source(kinesis, LEDGER) + 'format = "qldb"\n[target]\npath = "lake-of-ledger"\n'
    for name in revisions:
        table = name.removesuffix("_history")
        kept = PERSON if name == "Person" else "" if name == table else 'keep = "history"'
        text += f'\n[tables."{name}"]\ntable = "{table}"\n{kept}\n'
    (root / "ledger.toml").write_text(f"{text}\n[verify]\nenabled = true\n", encoding="utf-8")
    _, lake, found = _followed(root / "ledger.toml", show)
    show("proving a forged copy of the ledger")
    anomalies = anomalies_of(forged)
    wrong = [f"the ledger has the anomaly {kind}" for kind in found["anomalies"]]
    for name, wanted in revisions.items():
        wrong += _differences(name, wanted, _rows(lake, name, ("_document_id", "_version")))
    if [row["kind"] for row in anomalies] != ["revision_hash_mismatch"]:
        wrong.append(f"the forged ledger has other anomalies: {anomalies}")
    return found | {"records": len(records), "forged": anomalies, "differences": wrong}


def with_a_letter_changed(records: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Return the ledger's records with one letter of one revision changed, and every length as it was."""
    contents = [base64.b64decode(record["data"]) for record in records]
    at = next(n for n, each in enumerate(contents) if b"REVISION_DETAILS" in each and b"Lewis" in each)
    forged = base64.b64encode(contents[at].replace(b"Lewis", b"Louis", 1)).decode()
    return [*records[:at], records[at] | {"data": forged}, *records[at + 1 :]]


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
    orders, payments, wanted, may_wait = orders_and_payments()
    for stream, records in ((ORDERS, orders), (PAYMENTS, payments), (JOINED, [])):
        kinesis.engine.create_stream(stream, JOIN_SHARDS)
        place = ConnectionSettings(stream, endpoint_url=kinesis.endpoint_url, region="us-east-1")
        with BlockingProducer(place) as producer:
            producer.put_all((record["key"], json.dumps(record).encode()) for record in records)
    show("joining orders and payments")
    session = spark_session("headpond demo", log_path=root / "spark.log", quick=True)
    try:
        _run_join(session, kinesis)
    finally:
        session.stop()
    show("reading the aggregates that the join's results went out in")
    results, aggregates = [], 0
    for record in read_all(kinesis.client(), JOINED):
        opened = kpl.decode(record.data)
        aggregates += isinstance(opened, kpl.Aggregate)
        # A result that had no company goes out as it is.
        results += [
            json.loads(each.data)
            for each in (opened.records if isinstance(opened, kpl.Aggregate) else [record])
        ]
    found = [(result["key"], *result["traces"]) for result in results]
    due = [row for row in wanted if row in found or row not in may_wait]
    return {
        "orders": len(orders),
        "payments": len(payments),
        "joined": sum(result["paid"] for result in results),
        "unmatched": sum(not result["paid"] for result in results),
        "aggregates": aggregates,
        "differences": _differences("join", due, found),
    }


def orders_and_payments() -> tuple[list[Any], list[Any], list[tuple[str, ...]], set[tuple[str, ...]]]:
    """Draw orders and payments: seven orders in eight are paid, one in eight of these too late.

    Returns:
        Orders, payments, the results that must come out (key, trace of the order and of the payment that came
        within a minute), and those of them that may still wait when the streams end.
    """
    orders: list[dict[str, Any]] = []
    payments: list[dict[str, Any]] = []
    wanted: list[tuple[str, ...]] = []
    for number in range(ORDER_COUNT):
        key, at, kind = f"order-{number:03}", BEGIN_MS + number * 1000, number % 8
        after = MINUTE_MS + number if kind == 1 else kind * 8_000  # not later than a minute otherwise
        traces = f"{number:016x}", f"{ORDER_COUNT + number:016x}"
        orders.append({"key": key, "at_ms": at, "trace": traces[0]})
        if kind:
            payments.append({"key": key, "at_ms": at + after, "trace": traces[1]})
        wanted.append((key, *traces[: 2 if kind > 1 else 1]))
    payments.sort(key=lambda payment: payment["at_ms"])
    # An unmatched order comes out when its minute and its grace have passed.
    may_wait: set[tuple[str, ...]] = {
        (each["key"], each["trace"]) for each in orders if each["at_ms"] + 3 * MINUTE_MS > at
    }
    return orders, payments, wanted, may_wait


def _run_join(session: Any, kinesis: LocalKinesis) -> None:
    spark.register(session)
    place = {"endpointUrl": kinesis.endpoint_url, "region": "us-east-1"}

    def records(stream: str) -> Any:
        """A stream's records with their own time, and their trace as a header."""
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
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()


def _write_lines(file: Path, documents: Iterable[Any]) -> None:
    file.write_text("".join(f"{json.dumps(each)}\n" for each in documents), encoding="utf-8")


def _user_records(lines: Iterable[dict[str, str]]) -> list[kpl.UserRecord]:
    return [kpl.UserRecord(line["partitionKey"], base64.b64decode(line["data"])) for line in lines]


def _source(kinesis: LocalKinesis, stream: str) -> str:
    where = f'stream = "{stream}"\nendpoint_url = "{kinesis.endpoint_url}"'
    return f'[source]\n{where}\nstart = "TRIM_HORIZON"\n'


def _fill(kinesis: LocalKinesis, stream: str, records: Iterable[Any]) -> None:
    kinesis.engine.create_stream(stream, SHARDS)
    put_all(kinesis.client(), stream, ((each.partition_key, each.data) for each in records))


def _followed(file: Path, show: Show) -> tuple[Run, Any, dict[str, Any]]:
    """Run a pipeline to the end of its stream; return the run, its lake and what is in that."""
    job = Run(load(file), until_caught_up=True, quick=True, say=show)
    lake = job.go()
    return job, lake, lake_summary(lake, job.applied)


def _rows(lake: Any, name: str, columns: Iterable[str]) -> list[list[str]]:
    """Read rows of a table, values as text."""
    lake.typed[name].prepare()
    return [list(map(str, row.values())) for row in lake.typed[name].file.read(list(columns)).to_pylist()]


def _differences(name: str, wanted: Iterable[Sequence[str]], found: Iterable[Sequence[str]]) -> list[str]:
    """Return where rows differ from what they must be, one sentence each; empty when they do not."""
    must, have = Counter(map(tuple, wanted)), Counter(map(tuple, found))
    missing = [f"{name}: this row is missing: {row}" for row in (must - have).elements()]
    return missing + [f"{name}: this row should not be there: {row}" for row in (have - must).elements()]


def _drawn(root: Path, summary: dict[str, Any]) -> RenderableType:
    sent, sample, ledger, join = (summary[name] for name in ("sent", "sample", "ledger", "join"))
    revisions = sum(facts["rows"] for name, facts in ledger["tables"].items() if name.endswith("_history"))
    documents = sum(facts["rows"] for facts in ledger["tables"].values()) - revisions
    anomalies = sum(ledger["anomalies"].values())
    proven = "the journal's hashes hold" if not anomalies else f"{anomalies} anomalies in the journal"
    changed = "\nWith one letter changed in a copy: {kind}, document {document_id}, version {version}."
    forged = "".join(changed.format(**row) for row in ledger["forged"])
    verdict = Text("Every table, proof and result is as expected.", style="bold green")
    if wrong := summary["differences"][:20]:
        verdict = Text("\n".join(["These are NOT as expected:", *wrong]), style="bold red")
    here = Path(sys.argv[0])  # what to type: its path where it is not on the search path
    found = shutil.which("headpond")
    known = here.name != "headpond" or (found and Path(found).resolve() == here.resolve())
    command = "headpond" if known else os.path.relpath(here) if here.is_relative_to(Path.cwd()) else here
    return Group(
        Text("Aurora DSQL changes", style="bold"),
        Text(
            f"{sent['user_records']} change records in {sent['kinesis_records']} Kinesis records "
            f"({sent['aggregates']} KPL aggregates) on {sent['shards']} shards, "
            f"applied in {summary['seconds']} s (most of it the first batch's warm-up) after "
            f"{summary['spark_start_seconds']} s of Spark's start.\n"
        ),
        draw_summary(summary),
        Text(),
        draw_rows(sample["table"], sample["columns"], sample["rows"]),
        Text("\nQLDB ledger", style="bold"),
        Text(
            f"{ledger['records']} stream records: {documents} documents with {revisions} revisions in "
            f"{len(ledger['tables'])} tables; {proven}.{forged}"
        ),
        Text("\nWindowed join", style="bold"),
        Text(
            f"{join['orders']} orders and {join['payments']} payments: {join['joined']} paid within "
            f"a minute, with the trace headers of both; {join['unmatched']} not, with their own. "
            f"Put back to Kinesis in {join['aggregates']} KPL aggregates.\n"
        ),
        verdict,
        Text(f"\nPlots of the batches: {summary['page']}", overflow="fold"),
        Text("\nTry next:", style="bold"),
        Text(
            f"  {command} inspect {root}/records.jsonl\n"
            f"  {command} run {root}/archive.toml --until-caught-up\n"
            f"  {command} status {root}/archive.toml\n"
            f"  {command} verify {root}/ledger-forged.jsonl --html report.html"
        ),
    )
