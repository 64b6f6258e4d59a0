"""`headpond health`: what it says of a run by its exit code."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from headpond.lake.state.run_mark import mark_in
from headpond.lake.tables import OWN_FOLDER
from headpond.localkinesis import LocalKinesis
from tests.cli.status_kit import ENTRY, lake_with_batches, mark

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Cli


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """The pipeline file of a small lake."""
    return lake_with_batches(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("facts", "options", "answer"),
    [
        ({}, [], (0, "healthy")),
        ({"ago_ms": 300_000}, [], (1, "limit 120 s")),
        ({"ago_ms": 300_000}, ["--max-age", "10 minutes"], (0, "healthy")),
        ({"progress_ms": 0}, [], (1, "the last progress was")),
        ({"state": "failed", "error": "The stream is gone."}, [], (1, "failed: The stream is gone.")),
        ({"state": "stopped"}, [], (1, "the last run stopped")),
        ({}, ["--max-quarantined", "1", "--max-pending", "0"], (0, "pending is 0")),
        ({}, ["--max-freshness", "1 day"], (1, "freshness is ")),
        ({"newest": {"public.t": [2**62, 5]}}, ["--max-freshness", "1 day"], (0, "limit 1.0 days")),
        ({}, ["--max-freshness", "public.t=1 day"], (1, "freshness of public.t is ")),
        (
            {"newest": {"public.t": [2**62, 5]}},
            ["--max-freshness", "1 day", "--max-freshness", "public.t=2 days"],
            (0, "limit 2.0 days"),
        ),
        ({}, ["--max-quarantined", "0"], (1, "quarantined is 1, limit 0")),
    ],
)
def test_health_is_the_exit_code(
    lake: Path, cli: Cli, facts: dict[str, Any], options: list[str], answer: tuple[int, str]
) -> None:
    """Each limit by itself, and a run that ended or went silent."""
    mark(lake, **facts)
    code, says = answer
    found = cli("health", lake, *options)
    assert found.code == code
    text = found.stdout.decode()
    assert says in text
    command = "run" if facts.get("state") else "status"
    assert (f"next: headpond {command} {lake}" in " ".join(text.split())) == (code == 1)
    (document,) = cli("health", lake, *options, "--json").lines()
    assert document["healthy"] == (code == 0)


def test_no_run_at_all_is_not_healthy(lake: Path, cli: Cli) -> None:
    """And a lag is for streams."""
    assert cli("health", lake).code == 1
    refused = cli("health", lake, "--max-lag", "1 s")
    assert (refused.code, "for streams" in refused.stderr) == (2, True)
    assert cli("health", lake, "--max-age", "soon").code == 2
    assert cli("health", lake, "--max-freshness", "public.t=soon").code == 2


def test_a_fresh_table_does_not_hide_one_that_is_not(lake: Path, cli: Cli) -> None:
    """A limit for one table is about that table; one that the pipeline does not have is a slip."""
    lake.write_text(lake.read_text() + '[tables."public.quiet"]\nkeys = ["id"]\n')
    now_ns = time.time_ns()
    mark(lake, newest={"public.t": [now_ns, 0], "public.quiet": [now_ns - 3600 * 10**9, 0]})
    limits = [f"--max-freshness={each}10 minutes" for each in ("", "public.t=", "public.quiet=")]
    assert cli("health", lake, *limits[:2]).code == 0
    (found,) = cli("health", lake, *limits, "--json").lines()
    assert [(each["name"], each["ok"]) for each in found["checks"][1:]] == [
        ("freshness_ms", True),
        ("freshness_ms of public.t", True),
        ("freshness_ms of public.quiet", False),
    ]
    unknown = cli("health", lake, "--max-freshness", "public.orders=1 day")
    assert (unknown.code, "no table 'public.orders'" in unknown.stderr) == (2, True)


@pytest.mark.thorough
def test_a_lag_is_asked_of_the_stream(tmp_path: Path, cli: Cli) -> None:
    """Records that wait are a lag; a stream that cannot be asked is one, too."""
    with LocalKinesis() as kinesis:
        kinesis.engine.create_stream("s", 1)
        kinesis.client().put_record(StreamName="s", Data=b"x", PartitionKey="p")
        stream = kinesis.client().describe_stream_summary(StreamName="s")["StreamDescriptionSummary"]
        created = int(stream["StreamCreationTimestamp"].timestamp() * 1000)
        file = tmp_path / "p.toml"
        source = f'stream = "s"\nendpoint_url = "{kinesis.endpoint_url}"'
        file.write_text(f'[source]\n{source}\nformat = "dsql"\n[target]\npath = "lake"\n{ENTRY}')
        mark(file)
        assert "lag is unknown" in cli("health", file, "--max-lag", "1 hour").stdout.decode()
        offset = {
            "v": 1,
            "stream": "s",
            "created": str(created),
            "shards": {"shardId-000000000000": {"p": "HORIZON"}},
        }
        folder = tmp_path / "lake" / "_headpond" / "checkpoint"
        for name, text in (("offsets", "v1\n{}\n" + json.dumps(offset)), ("commits", "v1\n{}")):
            (folder / name).mkdir(parents=True)
            (folder / name / "0").write_text(text)
        time.sleep(1.1)  # the service's clock is known to the second, from below
        assert cli("health", file, "--max-lag", "1 hour").code == 0
        assert cli("health", file, "--max-lag", "0 s").code == 1
    away = cli("health", file, "--max-lag", "1 hour")
    assert (away.code, "lag is unknown" in away.stdout.decode()) == (1, True)


def test_a_mark_is_in_the_lakes_own_folder() -> None:
    """Of an object store, too."""
    assert mark_in("s3://b/l/").place == f"s3://b/l/{OWN_FOLDER}/run.json"
