"""The services of `examples/compose`, without containers: the same commands on the loopback."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import boto3
import pytest

import headpond
from headpond.localkinesis.testing import put_all
from headpond.pipeline import load
from tests.house.test_cookbook import COMPOSE, SERVICES
from tests.house.test_docs import ROOT
from tests.house.test_figures import load_program

pytestmark = [pytest.mark.spark, pytest.mark.thorough]

BIN = Path(sys.executable).parent
STORE = {"aws_access_key_id": "local", "aws_secret_access_key": "local", "region_name": "us-east-1"}


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_a_record_comes_from_the_stream_to_the_store(tmp_path: Path) -> None:
    """Kinesis, the store, its bucket and the pipeline, by the commands of compose.yaml."""
    ports = {"4567": free_port(), "9000": free_port()}

    def here(text: str) -> str:
        text = re.sub(r"\b(kinesis|s3):(?=\d)", "127.0.0.1:", text).replace("0.0.0.0", "127.0.0.1")
        for port, free in ports.items():
            text = text.replace(port, free)
        return text.replace("/checkpoint", str(tmp_path / "checkpoint"))

    for name in ("pipeline.toml", "make_bucket.py"):
        (tmp_path / name).write_text(here((COMPOSE / name).read_text()))
    with ExitStack() as services:
        log = services.enter_context((tmp_path / "log").open("wb"))

        def start(name: str, *more: str) -> subprocess.Popen[bytes]:
            words = [*shlex.split(here(SERVICES[name]["command"])), *more]
            words[0] = str(BIN / words[0])
            given = {key: here(value) for key, value in SERVICES[name].get("environment", {}).items()}
            return services.enter_context(
                subprocess.Popen(words, cwd=tmp_path, stdout=log, stderr=log, env=os.environ | given)
            )

        for name in ("kinesis", "s3"):
            services.callback(start(name).terminate)
        assert start("bucket").wait(90) == 0, (tmp_path / "log").read_text()
        examples = load_program(ROOT / "examples" / "make_changes.py")
        record = examples.change("c", {"id": 1, "item": "rope", "quantity": 2}, commit=1)
        client = boto3.client("kinesis", endpoint_url=f"http://127.0.0.1:{ports['4567']}", **STORE)
        _wait_for(ports["4567"])
        put_all(client, "shop-changes", [("1", json.dumps(record).encode())])
        client.close()
        assert start("pipeline", "--until-caught-up").wait(200) == 0, (tmp_path / "log").read_text()
        options = load(tmp_path / "pipeline.toml").target.storage_options
        (row,) = headpond.tables("s3://lake/shop", options)["public.orders"].to_arrow().to_pylist()
    assert (row["id"], row["item"], row["quantity"]) == (1, "rope", 2)


def _wait_for(port: str) -> None:
    for _ in range(120):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", int(port))) == 0:
                return
        time.sleep(0.5)
    raise AssertionError(f"nothing answers on port {port}")
