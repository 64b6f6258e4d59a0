"""`headpond demo` as a person starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark


def test_the_demonstration_shows_all_five_systems_and_what_it_shows_is_right(tmp_path: Path) -> None:
    """Tables, the proof, the forged letter, the join, and the page of plots; in a process of its own."""
    command = [sys.executable, "-m", "headpond", "demo", "--json", "--lake", str(tmp_path / "new")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Warning" not in done.stderr  # pyspark has one for pandas 3
    told = json.loads(done.stdout)
    assert (told["as_expected"], told["differences"]) == (True, [])
    assert told["sent"]["aggregates"] > 0
    assert told["tables"]["public.orders"]["rows"] == 35
    assert told["sample"]["columns"] == ["id", "customer_id", "status", "total", "placed_at"]
    assert [row["kind"] for row in told["ledger"]["forged"]] == ["revision_hash_mismatch"]
    assert told["ledger"]["anomalies"] == {}
    assert told["join"]["joined"] > 0 < told["join"]["unmatched"]
    assert told["join"]["aggregates"] > 0
    page = Path(told["page"]).read_text()
    assert page.count("<svg") >= 4
    assert "<script src" not in page
