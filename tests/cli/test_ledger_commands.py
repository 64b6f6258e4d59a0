"""Commands on a lake of QLDB documents that need no Spark: status, requeue, optimize, redact; refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from ledgers import block, decoded, revision, rows_of

from headpond.pipeline import load
from headpond.pipeline.lake import open_ledger
from headpond.tables.ledger_apply import apply_records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headpond.tables.ledger import LedgerLake

PIPELINE = """
[source]
archive = "x.jsonl"
format = "qldb"
[target]
path = "lake"
redaction = "honour"
[tables.Person]
columns = {{ a = "{kind}" }}
[verify]
enabled = true
"""


def lake_of(file: Path, *, kind: str) -> LedgerLake:
    """A prepared lake whose table declares `a` as a type."""
    file.write_text(PIPELINE.format(kind=kind))
    lake = open_ledger(load(file))
    lake.prepare()
    return lake


def test_a_ledger_is_looked_at_fed_again_and_redacted(cli: Callable[..., Any], tmp_path: Path) -> None:
    """Status counts; requeue takes what the entry was mended for; optimize and redact leave the rows."""
    file = tmp_path / "p.toml"
    lake = lake_of(file, kind="bigint")
    records = [
        revision("d", 0, "{a: 1, b: 2}"),
        revision("e", 0, "{b: 3}", table="Other"),
        revision("f", 0, "{a: 1.5}"),
        block([("d", 2)], redacts=[("d", 0)]),
    ]
    apply_records(lake, decoded(lake.config, records))
    (found,) = cli("status", file, "--json").lines()
    assert found["quarantined"] == {"out_of_range": 1, "unknown_table": 1}
    assert found["journal"]["blocks"] == 1
    assert set(found["anomalies"]) >= {"block_hash_mismatch", "revision_not_in_block"}
    file.write_text(file.read_text().replace("[verify]", "[tables.Other]\n[verify]"))
    (done,) = cli("requeue", file, "--reason", "all", "--json").lines()
    assert (done["left"], done["stayed"]) == (1, {"out_of_range": 1})
    wanted = rows_of(open_ledger(load(file)))
    assert [(row["_document_id"], row["b"]) for row in wanted["Other"]] == [("e", "3")]
    assert [(row["_redacted"], row["a"]) for row in wanted["Person"]] == [(True, None)]
    (sizes,) = cli("optimize", file, "--order", "--json").lines()
    assert "_headpond/journal_blocks" in sizes["tables"]
    (redacted,) = cli("redact", file, "--json").lines()
    assert redacted["revisions"] == 1
    assert rows_of(open_ledger(load(file))) == wanted


@pytest.mark.parametrize(
    "command",
    [("suggest",), ("bootstrap", "Person", "--from-log"), ("optimize", "--repartition")],
    ids=lambda words: words[0],
)
def test_what_a_ledger_does_not_have_yet_is_refused(
    cli: Callable[..., Any], tmp_path: Path, command: tuple[str, ...]
) -> None:
    """As wrong use, with a reason."""
    file = tmp_path / "p.toml"
    lake_of(file, kind="bigint")
    name, *rest = command
    outcome = cli(name, file, *rest)
    assert outcome.code == 2
    assert "DSQL" in outcome.stderr or "QLDB" in outcome.stderr
