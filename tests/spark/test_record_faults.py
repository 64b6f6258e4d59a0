"""A change that headpond fails on while its batch is applied: the run finds it and goes on."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from tests.lake.test_unknown_tables import change

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(300)]

FILE = """
[source]
archive = "records.jsonl"
format = "dsql"
[target]
path = "lake"
[tables."public.t"]
keys = ["id"]
columns = { id = "bigint" }
"""
RUN = """
import sys
from headpond.cli.main import main
from headpond.spark.following import query
real = query.apply_batch

def failing(lake, part, **options):
    for rows in part.tables.values():
        if 3 in rows["c:id"].to_pylist():
            raise ValueError("three")
    return real(lake, part, **options)

query.apply_batch = failing
sys.exit(main(["run", "pipeline.toml", "--until-caught-up", "--json"]))
"""


def test_the_run_goes_on_without_it(tmp_path: Path) -> None:
    """Its bytes, which this run would not have kept, are in quarantine."""
    lines = [change(n, "t", {"id": n}) for n in range(1, 6)]
    (tmp_path / "records.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    (tmp_path / "pipeline.toml").write_text(FILE)
    run = subprocess.run(
        [sys.executable, "-c", RUN], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240
    )
    assert run.returncode == 0, run.stderr
    summary = json.loads(run.stdout)
    assert summary["quarantined"] == {"internal_error": 1}
    ids = DeltaTable(str(tmp_path / "lake" / "public.t")).to_pyarrow_table(columns=["id"])["id"].to_pylist()
    assert sorted(ids) == [1, 2, 4, 5]
    (row,) = DeltaTable(str(tmp_path / "lake/_headpond/quarantine")).to_pyarrow_table().to_pylist()
    assert row["data"] == base64.b64decode(json.loads(lines[2])["data"])
    assert row["detail"].startswith("ValueError in ")
