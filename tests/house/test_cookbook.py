"""The cookbook: its programs run on a lake, its services fit each other, its workflow's steps work."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from headpond.lake.apply import apply_batch
from headpond.pipeline import load
from tests.house.test_docs import ROOT, section
from tests.lake.lakes import decoded, lake_in
from tests.lake.test_unknown_tables import change

PAGE = "how-to/cookbook.md"
ENTRY = """[tables."public.orders"]
keys = ["id"]
columns = { id = "bigint", item = "text", quantity = "integer" }
"""
ORDERS = [("anchor", 2), ("rope", 5), ("anchor", 1)]
COMPOSE = ROOT / "examples" / "compose"
SERVICES: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
DBT = ROOT / "examples" / "dbt"


def programs(heading: str, language: str) -> list[str]:
    """The fenced blocks of a section."""
    return re.findall(rf"^```{language}\n(.*?)^```$", section(PAGE, heading), re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with `lake/public.orders`."""
    lake, config = lake_in(tmp_path, ENTRY)
    rows = [{"id": n, "item": item, "quantity": count} for n, (item, count) in enumerate(ORDERS)]
    apply_batch(lake, decoded(config, [change(n + 1, "orders", row) for n, row in enumerate(rows)]))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heading", "says"),
    [
        ("pandas", ["anchor", "2", "rope", "5"]),
        ("Polars", ["anchor", "2", "rope", "5"]),
        ("DuckDB", ["anchor", "3", "rope", "5"]),
        ("An earlier version", ["Columns"]),
    ],
)
def test_a_program_reads_the_table(folder: Path, heading: str, says: list[str]) -> None:
    """As it is on the page."""
    (program,) = programs(heading, "python")
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    words = re.findall(r"\w+", done.stdout)
    assert [word for word in says if word not in words] == []


def test_the_project_of_dbt_reads_what_the_example_pipeline_writes() -> None:
    """Its sources are tables of it, by names and columns that they have; the page shows how."""
    pipeline = load(ROOT / "examples" / "pipeline.toml")
    (source,) = yaml.safe_load((DBT / "models" / "sources.yml").read_text())["sources"]
    paths = {table["name"]: table["meta"]["delta_table_path"] for table in source["tables"]}
    assert {(DBT / path).resolve() for path in paths.values()} == {
        Path(pipeline.target.path) / table.name for table in pipeline.tables
    }
    model = (DBT / "models" / "ordered.sql").read_text()
    assert set(re.findall(r"source\('(\w+)', '(\w+)'\)", model)) == {(source["name"], name) for name in paths}
    (shown,) = programs("dbt on top", "yaml")
    (on_page,) = yaml.safe_load(shown)["sources"]
    assert on_page["tables"][0]["meta"] == source["tables"][0]["meta"]
    assert yaml.safe_load((DBT / "profiles.yml").read_text())["shop"]["outputs"]["dev"]["type"] == "duckdb"


@pytest.mark.slow
def test_the_steps_of_the_workflow_work(tmp_path: Path) -> None:
    """A good file passes, a wrong one fails with its line; samples are checked without Spark."""
    (text,) = programs("Check pipeline files in a pull request", "yaml")
    steps = [step["run"] for step in yaml.safe_load(text)["jobs"]["check"]["steps"] if "run" in step]
    made = subprocess.run(
        [sys.executable, ROOT / "examples" / "make_changes.py"], capture_output=True, check=True, timeout=60
    ).stdout
    (tmp_path / "samples.jsonl").write_bytes(made)
    file = (ROOT / "examples" / "pipeline.toml").read_text()
    for name in ("pipeline.toml", "samples.toml"):
        (tmp_path / name).write_text(file.replace("records.jsonl", "samples.jsonl"))

    def ran(step: str) -> subprocess.CompletedProcess[str]:
        command = step.replace("headpond check", f"{sys.executable} -m headpond check")
        command = command.replace("python -c", f"{sys.executable} -c")
        return subprocess.run(
            ["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )

    assert steps[0].startswith("pip install")
    for step in steps[1:]:
        assert ran(step).returncode == 0, step
    (tmp_path / "pipeline.toml").write_text(file.replace("keys", "kyes"))
    failed = ran(steps[1])
    assert failed.returncode == 1
    assert "line 11: " in failed.stderr
    assert "Did you mean keys?" in failed.stderr


def test_the_services_fit_each_other() -> None:
    """Addresses of the pipeline are those of its neighbours, and every command is one that the image has."""
    pipeline = tomllib.loads((COMPOSE / "pipeline.toml").read_text())
    assert load(COMPOSE / "pipeline.toml").tables
    commands = {name: service["command"] for name, service in SERVICES.items()}
    served = {
        f"http://{name}:{port}"
        for name, command in commands.items()
        for port in re.findall(r"--port (\d+)", command)
    }
    asked = pipeline["source"]["endpoint_url"], pipeline["target"]["storage_options"]["AWS_ENDPOINT_URL"]
    assert set(asked) == served
    assert SERVICES["bucket"]["environment"]["AWS_ENDPOINT_URL_S3"] in served
    assert f"--stream {pipeline['source']['stream']}:" in SERVICES["kinesis"]["command"]
    volume, place = SERVICES["pipeline"]["volumes"][0].split(":")
    assert pipeline["target"]["checkpoint"].startswith(f"{place}/")
    assert volume == "checkpoint"
    copied = re.findall(r"^COPY (.*) \./$", (COMPOSE / "Dockerfile").read_text(), re.MULTILINE)
    assert [
        name for line in copied for name in line.split() if "*" not in name and not (COMPOSE / name).exists()
    ] == []
    for name, service in SERVICES.items():
        if "ports" in service:
            assert all(each.startswith("127.0.0.1:") for each in service["ports"]), name
