"""The dashboard for Grafana: it asks for what is measured, and Prometheus has an answer for all of it."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headpond.spark.metrics.exporters import INSTRUMENTS, Prometheus, prometheus_name
from tests.lake.test_batch_log import REPORT

if TYPE_CHECKING:
    from collections.abc import Iterator

BOARD = json.loads((Path(__file__).parents[2] / "examples" / "grafana" / "headpond.json").read_text())
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket",)}
SERIES = {
    prometheus_name(one) + suffix: {"pipeline", *one.labels, *(("le",) if suffix == "_bucket" else ())}
    for one in INSTRUMENTS.values()
    for suffix in SUFFIXES[one.kind]
}


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_asks_for_what_is_measured(query: str) -> None:
    """Names as Prometheus has them, with labels that they have."""
    names = re.findall(r"headpond_\w+", query)
    assert names
    assert set(names) <= set(SERIES)
    labels = set().union(*(SERIES[name] for name in names))
    asked = re.findall(r"by \(([^)]*)\)", query) + re.findall(r"(\w+)=~", query)
    assert {label.strip() for each in asked for label in each.split(",")} <= labels


def test_what_is_measured_is_on_the_board() -> None:
    """All but the number of the batch, and Spark's own state, which pipelines of tables do not have."""
    shown = {name for query in QUERIES for name in re.findall(r"headpond_\w+", query)}
    assert {
        name for name in set(SERIES) - shown if not name.startswith("headpond_state")
    } == {"headpond_batch_last_id"}  # fmt: skip
    named = set(re.findall(r"\{\{(\w+)\}\}", json.dumps(BOARD["panels"])))
    assert named <= set().union(*SERIES.values())


def test_the_board_is_one_that_grafana_lays_out() -> None:
    """Each panel has its own number and place, within 24 columns."""
    places = [panel["gridPos"] for panel in BOARD["panels"]]
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(places)
    cells = [
        (place["x"] + x, place["y"] + y)
        for place in places
        for x, y in itertools.product(range(place["w"]), range(place["h"]))
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    asked = {each["name"] for each in BOARD["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(BOARD["panels"]))) - {"__rate_interval"} == asked


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Debian's package is `prometheus`")
def test_prometheus_answers_each_query(tmp_path: Path) -> None:
    """A server that scrapes what a pipeline gives has values for every panel."""
    sink = Prometheus("orders", ["public.t", "public.log"], listen="127.0.0.1:0")
    try:
        assert sink.address is not None
        with prometheus_server(tmp_path, f"127.0.0.1:{sink.address[1]}") as ask:
            deadline = time.monotonic() + 60
            empty = QUERIES
            while empty and time.monotonic() < deadline:
                sink.batch(REPORT)
                time.sleep(1)
                empty = [query for query in QUERIES if not ask(query)]
    finally:
        sink.close()
    assert empty == []


@contextmanager
def prometheus_server(folder: Path, scraped: str) -> Iterator[Any]:
    """Run a server that scrapes an address each second; what is given asks it a query of the board."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    config = folder / "prometheus.yml"
    config.write_text(
        "global: { scrape_interval: 1s }\nscrape_configs:\n"
        f"  - job_name: headpond\n    static_configs: [{{ targets: ['{scraped}'] }}]\n"
    )
    command = [
        "prometheus", f"--config.file={config}", f"--web.listen-address={address}",
        f"--storage.tsdb.path={folder / 'data'}",
    ]  # fmt: skip

    def ask(query: str) -> list[Any]:
        query = query.replace("$pipeline", ".+").replace("$__rate_interval", "10s")
        url = f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        try:
            with urllib.request.urlopen(url, timeout=10) as reply:
                result: list[Any] = json.load(reply)["data"]["result"]
        except urllib.error.URLError:
            return []  # it has not started yet
        return [each for each in result if each["value"][1] != "NaN"]

    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            yield ask
        finally:
            server.terminate()
