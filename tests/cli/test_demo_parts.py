"""What `headpond demo` is made of: its ledger, and its judgement of the join."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from make_demo_ledger import first_blocks, revisions

from headpond.cli.demo_join import BEGIN_MS, MINUTE_MS, differences
from headpond.cli.demo_ledger import TABLES, anomalies_of, ledger_lines, ledger_text, with_a_letter_changed
from headpond.cli.demo_stream import packaged
from headpond.pipeline import loads

if TYPE_CHECKING:
    from pathlib import Path


def archive(folder: Path, lines: list[bytes]) -> Path:
    """A file of lines."""
    file = folder / "ledger.jsonl"
    file.write_bytes(b"\n".join(lines) + b"\n")
    return file


def test_the_ledger_is_the_beginning_of_the_vectors_as_amazon_ion_reads_it() -> None:
    """Neither the records nor what must come out of them were made by headpond."""
    chosen = first_blocks()
    assert [json.loads(line) for line in ledger_lines()] == chosen
    assert json.loads(packaged("ledger_expected.json.gz"))["revisions"] == revisions(chosen)


def test_the_ledger_is_whole_and_one_letter_shows(tmp_path: Path) -> None:
    """No anomaly, and exactly the one of the revision that was changed."""
    assert anomalies_of(archive(tmp_path, ledger_lines())) == []
    forged = anomalies_of(archive(tmp_path, with_a_letter_changed()))
    assert [row["kind"] for row in forged] == ["revision_hash_mismatch"]
    assert forged[0]["document_id"] in {row[1] for row in revisions(first_blocks())}


def test_the_ledger_s_pipeline_keeps_each_table_twice() -> None:
    """As it is now, and with every revision."""
    pipeline = loads(ledger_text('archive = "ledger.jsonl"', path="lake"))
    assert pipeline.verify.enabled
    assert {table.name for table in pipeline.tables} == {*TABLES, *(f"{t}_history" for t in TABLES)}


def record(key: str, at_ms: int) -> dict[str, Any]:
    """An order or a payment."""
    return {"key": key, "at_ms": at_ms, "trace": f"{key}@{at_ms}"}


def result(order: dict[str, Any], payment: dict[str, Any] | None = None) -> dict[str, Any]:
    """What the join says of an order."""
    traces = [order["trace"]] + ([payment["trace"]] if payment else [])
    told = {"left": json.dumps(order), "traces": traces}
    return told | ({"right": json.dumps(payment)} if payment else {})


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ("as it should be", []),
        ("one waits", []),
        ("one is missing", ["missing"]),
        ("one is twice", ["should not"]),
        ("a header is lost", ["missing", "should not"]),
    ],
)
def test_the_join_s_results_are_compared_one_by_one(found: str, said: list[str]) -> None:
    """Only an order whose time had not passed may be absent."""
    orders = [record(f"order-{n}", BEGIN_MS + n * MINUTE_MS) for n in range(8)]
    payments = [record("order-0", BEGIN_MS + 5), record("order-2", BEGIN_MS + 4 * MINUTE_MS)]
    results = [result(orders[0], payments[0])] + [result(order) for order in orders[1:]]
    if found == "one waits":
        results.pop()
    elif found == "one is missing":
        results.pop(1)
    elif found == "one is twice":
        results.append(results[1])
    elif found == "a header is lost":
        results[0]["traces"].pop()
    told = differences(orders, payments, results)
    assert len(told) == len(said)
    assert all(word in sentence for word, sentence in zip(said, told, strict=True))
