"""`headpond run` of archives that hold no record, or are cut off: an error; what could be read is applied."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark
EXAMPLES = Path(__file__).parents[2] / "examples"
HEADPOND = Path(sys.executable).parent / "headpond"


def run(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [HEADPOND, "run", "pipeline.toml", "--until-caught-up", *more]
    # On a machine of a Hadoop cluster a path without a scheme is one of HDFS.
    place = "<property><name>fs.defaultFS</name><value>hdfs://127.0.0.1:9/</value></property>"
    (folder / "core-site.xml").write_text(f"<configuration>{place}</configuration>")
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env=os.environ | {"HADOOP_CONF_DIR": str(folder)},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A pipeline of every file whose name begins with records, beside files that Python has modules of."""
    for name in ("types", "select", "secrets"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('taken for a module')")
    text = (EXAMPLES / "pipeline.toml").read_text().replace('"records.jsonl"', '"records*"')
    (tmp_path / "pipeline.toml").write_text(text.replace('keys = ["id"]', 'keys = ["ident"]'))
    return tmp_path


def records() -> bytes:
    return subprocess.run(
        [sys.executable, EXAMPLES / "make_changes.py"], capture_output=True, check=True
    ).stdout


@pytest.mark.thorough
def test_what_is_lost_to_habit_is_said(folder: Path) -> None:
    """No record at all; a wrong key, of which nothing can be used; a file that is cut off."""
    (folder / "records.bin").write_bytes(os.urandom(5_000) + b"\n" * 3)
    done = run(folder)
    assert done.returncode == 1, done.stderr
    assert "No line of the archive" in done.stderr
    assert "Traceback" not in done.stderr

    (folder / "records.jsonl").write_bytes(records())
    done = run(folder)
    assert done.returncode == 0, done.stderr
    assert "The key ident of public.orders is not among its columns" in done.stderr
    assert "Did you mean id?" in done.stderr
    assert "Every record of the first batch was quarantined" in done.stderr

    text = (folder / "pipeline.toml").read_text()
    (folder / "pipeline.toml").write_text(text.replace("ident", "id").replace('"lake"', '"another"'))
    # Bytes that do not compress, so that the cut takes the end alone.
    noise = "".join(f"{os.urandom(400).hex()}\n" for _ in range(40)).encode()
    (folder / "records.gz").write_bytes(gzip.compress(records() + noise)[:-200])
    (folder / "records.bin").unlink()
    done = run(folder, "--json")
    assert done.returncode == 1, done.stderr
    assert "records.gz is truncated or damaged" in done.stderr
    show = [HEADPOND, "show", "another", "public.orders", "--json"]
    (row,) = subprocess.run(show, cwd=folder, capture_output=True, check=True).stdout.splitlines()
    assert json.loads(row)["item"] == "anchor"
