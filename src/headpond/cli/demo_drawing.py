"""What `headpond demo` shows at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from headpond.cli.drawing import draw_rows, draw_summary
from headpond.tables.naming import OWN_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rich.console import RenderableType

    from headpond.tables.lake import Lake

SAMPLE_TABLE = "public.order_items"
SAMPLE_ROWS = 4


def sample_of(lake: Lake) -> dict[str, Any]:
    """Read a few rows of a table, values as text."""
    typed = lake.typed[SAMPLE_TABLE]
    columns = [column for column in typed.columns if column not in OWN_COLUMNS]
    rows = typed.file.read(columns).slice(0, SAMPLE_ROWS).to_pylist()
    shown = [[None if value is None else str(value) for value in row.values()] for row in rows]
    return {"table": SAMPLE_TABLE, "columns": columns, "rows": shown}


def draw_demo(root: Path, summary: Mapping[str, Any], command: str) -> RenderableType:
    """Draw the summary.

    Args:
        root: the folder of it all.
        summary: what the command gives as JSON.
        command: what to type for `headpond`.
    """
    sample = summary["sample"]
    return Group(
        *_changes(summary),
        Text(),
        draw_rows(sample["table"], sample["columns"], sample["rows"]),
        Text(),
        *_ledger(summary["ledger"]),
        Text(),
        *_join(summary["join"]),
        Text(),
        _verdict(summary),
        Text(f"\nPlots of the batches: {summary['page']}", overflow="fold"),
        Text("\nTry next:", style="bold"),
        Text(f"  {command} inspect {root}/records.jsonl"),
        Text(f"  {command} run {root}/archive.toml --until-caught-up"),
        Text(f"  {command} status {root}/archive.toml"),
        Text(f"  {command} verify {root}/ledger-forged.jsonl --html report.html"),
    )


def _changes(summary: Mapping[str, Any]) -> list[RenderableType]:
    sent = summary["sent"]
    speed = sent["user_records"] / max(summary["seconds"], 0.1)
    return [
        Text("Aurora DSQL changes", style="bold"),
        Text(
            f"{sent['user_records']} change records in {sent['kinesis_records']} Kinesis records "
            f"({sent['aggregates']} KPL aggregates) on {sent['shards']} shards, "
            f"applied in {summary['seconds']} s ({speed:.0f} records/s; most of it is the first "
            f"batch's warm-up) after {summary['spark_start_seconds']} s of Spark's start.\n"
        ),
        draw_summary(summary),
    ]


def _ledger(ledger: Mapping[str, Any]) -> list[RenderableType]:
    revisions = sum(facts["rows"] for name, facts in ledger["tables"].items() if name.endswith("_history"))
    documents = sum(facts["rows"] for facts in ledger["tables"].values()) - revisions
    anomalies = sum(ledger["anomalies"].values())
    proven = "the journal's hashes hold" if not anomalies else f"{anomalies} anomalies in the journal"
    said = [
        Text("QLDB ledger", style="bold"),
        Text(
            f"{ledger['records']} stream records: {documents} documents with {revisions} revisions in "
            f"{len(ledger['tables'])} tables; {proven}."
        ),
    ]
    said += [
        Text(
            f"With one letter changed in a copy: {row['kind']}, document {row['document_id']}, "
            f"version {row['version']}."
        )
        for row in ledger["forged"]
    ]
    return [*said]


def _join(join: Mapping[str, Any]) -> list[RenderableType]:
    return [
        Text("Windowed join", style="bold"),
        Text(
            f"{join['orders']} orders and {join['payments']} payments: {join['joined']} paid within "
            f"a minute, with the trace headers of both; {join['unmatched']} not, with their own. "
            f"Put back to Kinesis in {join['aggregates']} KPL aggregates."
        ),
    ]


def _verdict(summary: Mapping[str, Any]) -> Text:
    if summary["as_expected"]:
        return Text("Every table, proof and result is as expected.", style="bold green")
    return Text("\n".join(["These are NOT as expected:", *summary["differences"][:20]]), style="bold red")
