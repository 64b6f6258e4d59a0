"""docs/security.md says what is so: its tests exist, and its defaults are those of the code."""

from __future__ import annotations

import ast
import importlib
import re
from http.client import HTTPConnection
from pathlib import Path

import psutil
import pytest

from headpond.core.options import parse_size, parse_span
from headpond.localkinesis import LocalKinesis
from headpond.pipeline.model import SECTIONS
from headpond.pipeline.reading import keys_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


def limits() -> list[tuple[str, str, str]]:
    """Limit, default and where it is, of each row of the table of limits."""
    table = PAGE[PAGE.index("## Limits") : PAGE.index("### What is not bounded")]
    return re.findall(r"^\| ([^|`]+?) \| ([^|]+?) \| `([^`]+)`([^|]*)\|", table, re.MULTILINE)  # type: ignore[return-value]


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_every_test_that_the_page_names_exists(file: str, test: str) -> None:
    """As a function that pytest collects."""
    found = {node.name for node in ast.walk(ast.parse((ROOT / file).read_text()))
             if isinstance(node, ast.FunctionDef)}  # fmt: skip
    assert test.startswith("test_")
    assert test in found


def test_the_page_names_tests() -> None:
    """Each row of each table does, and nothing is written as a test that is not understood above."""
    assert len(NAMED) >= 40
    assert len(re.findall(r"tests/[\w/]+\.py::", PAGE)) == len(re.findall(r"`tests/[\w/]+\.py::\w+`", PAGE))
    rows = [row for row in PAGE.splitlines() if row.startswith("| ") and "tests/" not in row]
    assert [row.split("|")[1].strip() for row in rows] == ["from a record", "limit"]


@pytest.mark.parametrize("row", limits(), ids=lambda row: row[0])
def test_every_default_is_that_of_the_code(row: tuple[str, str, str, str]) -> None:
    """By the name of a constant, or of a key of the pipeline file."""
    _, told, where, more = row
    if where.startswith("headpond."):
        module, _, name = where.rpartition(".")
        value = getattr(importlib.import_module(module), name)
    else:
        (section,) = re.findall(r"in `\[(\w+)\]`", more)
        value = keys_of(SECTIONS[section])[where].default
    if told.endswith("iB"):
        assert parse_size(told) == value
    else:
        assert (parse_span(told) if " " in told else int(told)) == value


def test_every_limit_is_in_the_table() -> None:
    """The parser of the table misses no row."""
    table = PAGE[PAGE.index("## Limits") : PAGE.index("### What is not bounded")]
    assert len(limits()) == len(re.findall(r"^\| ", table, re.MULTILINE)) - 1 >= 15


def test_the_local_kinesis_listens_on_loopback() -> None:
    """Unless told otherwise, no other machine reaches it."""
    with LocalKinesis() as kinesis:
        listening = [
            connection.laddr.ip
            for connection in psutil.Process().net_connections(kind="tcp")
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == kinesis.port
        ]
    assert listening == ["127.0.0.1"]


@pytest.mark.parametrize(
    ("listens_on", "host", "answered"),
    [
        ("127.0.0.1", "127.0.0.1:{port}", True),
        ("127.0.0.1", "localhost:{port}", True),
        ("127.0.0.1", "LOCALHOST.", True),
        ("127.0.0.1", "[::1]:{port}", True),
        ("127.0.0.1", "evil.example:{port}", False),
        ("127.0.0.1", "127.0.0.1.evil.example", False),
        ("127.0.0.1", "", False),
        ("0.0.0.0", "kinesis:{port}", True),
    ],
)
def test_a_page_in_a_browser_reaches_nothing_here(listens_on: str, host: str, answered: bool) -> None:  # noqa: FBT001 - a case
    """A name of its own that points to this machine is refused."""
    with LocalKinesis(host=listens_on) as kinesis:
        asked = HTTPConnection("127.0.0.1", kinesis.port, timeout=10)
        target = {"X-Amz-Target": "Kinesis_20131202.ListStreams", "Host": host.format(port=kinesis.port)}
        asked.request("POST", "/", b"{}", target)
        assert asked.getresponse().status == (200 if answered else 403)
        asked.close()
