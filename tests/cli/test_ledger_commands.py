"""Commands on a lake of QLDB documents without Spark: status, requeue, optimize, redact; refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headpond.core.errors import ConfigurationError
from headpond.lake.apply import apply_batch
from headpond.pipeline import load
from headpond.pipeline.lake import open_lake
from tests.lake.ledgers import block, decoded, revision, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headpond.lake.tables import Lake

PIPELINE = """
[source]
archive = "x.jsonl"
format = "qldb"
[target]
path = "lake"
redaction = "honour"
[tables.Person]
columns = {{ a = "{kind}" }}
{more}
[verify]
enabled = true
"""


def lake_of(file: Path, *, kind: str, more: str = "") -> Lake:
    """A prepared lake whose table declares `a` as a type."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(PIPELINE.format(kind=kind, more=more))
    lake = open_lake(load(file))
    lake.prepare()
    return lake


@pytest.mark.slow
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
    apply_batch(lake, decoded(lake.config, records))
    (found,) = cli("status", file, "--json").lines()
    assert found["quarantined"] == {"out_of_range": 1, "unknown_table": 1}
    assert found["journal"]["blocks"] == 1
    assert set(found["anomalies"]) >= {"block_hash_mismatch", "revision_not_in_block"}
    file.write_text(file.read_text().replace("[verify]", "[tables.Other]\n[verify]"))
    (done,) = cli("requeue", file, "--reason", "all", "--json").lines()
    assert (done["left"], done["stayed"]) == (1, {"out_of_range": 1})
    wanted = rows_of(open_lake(load(file)))
    assert [(row["_document_id"], row["b"]) for row in wanted["Other"]] == [("e", "3")]
    assert [(row["_redacted"], row["a"]) for row in wanted["Person"]] == [(True, None)]
    (sizes,) = cli("optimize", file, "--order", "--json").lines()
    assert "_headpond/journal_blocks" in sizes["tables"]
    (redacted,) = cli("redact", file, "--json").lines()
    assert redacted["revisions"] == 1
    assert rows_of(open_lake(load(file))) == wanted


@pytest.mark.parametrize(
    "command",
    [("--from-log",), ("--from-start",), ("x.parquet", "--ts-ns", "1")],
    ids=lambda words: words[0],
)
def test_documents_need_no_first_load(
    cli: Callable[..., Any], tmp_path: Path, command: tuple[str, ...]
) -> None:
    """Refused with what to do instead."""
    file = tmp_path / "p.toml"
    lake_of(file, kind="bigint")
    outcome = cli("bootstrap", file, "Person", *command)
    assert outcome.code == 2
    assert "requeue" in outcome.stderr


@pytest.mark.parametrize("keep", ["current", pytest.param("history", marks=pytest.mark.thorough)])
@pytest.mark.slow
def test_documents_are_dealt_out_anew(cli: Callable[..., Any], tmp_path: Path, keep: str) -> None:
    """Into folders of a column and of buckets of the document; later revisions find theirs."""
    file = tmp_path / "p.toml"
    lake = lake_of(file, kind="bigint", more=f'keep = "{keep}"')
    records = [revision(f"d{at % 5}", at // 5, f"{{a: {at % 2}}}") for at in range(15)]
    apply_batch(lake, decoded(lake.config, records[:10]))
    before = rows_of(lake)["Person"]
    dealt = f'keep = "{keep}"\nbuckets = 3\npartition_by = ["a"]'
    file.write_text(PIPELINE.format(kind="bigint", more=dealt))
    with pytest.raises(ConfigurationError, match="headpond rebuild"):
        open_lake(load(file)).prepare()
    (done,) = cli("rebuild", file, "Person", "--json").lines()
    assert done["written"]
    lake = open_lake(load(file))
    lake.prepare()
    rows = rows_of(lake)["Person"]
    buckets = [row.pop("_bucket") for row in rows]
    assert rows == before
    assert set(buckets) <= {0, 1, 2}
    apply_batch(lake, decoded(lake.config, records[5:], first=20))
    fresh = lake_of(tmp_path / "fresh" / "p.toml", kind="bigint", more=dealt)
    apply_batch(fresh, decoded(fresh.config, records))
    assert rows_of(lake) == rows_of(fresh)
