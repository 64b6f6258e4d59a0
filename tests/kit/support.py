"""What every test shares: the golden vectors, plain or gzip-compressed, found by name."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import socket
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
"""The checkout."""
VECTORS = ROOT / "tests" / "vectors"


def vector_bytes(name: str) -> bytes:
    """Read `tests/vectors/NAME`, or its compressed form `NAME.gz`."""
    plain = VECTORS / name
    if plain.exists():
        return plain.read_bytes()
    return gzip.decompress(plain.with_name(plain.name + ".gz").read_bytes())


def vector_json(name: str) -> Any:
    """Read one JSON document."""
    return json.loads(vector_bytes(name))


def vector_lines(name: str) -> list[Any]:
    """Read JSON Lines."""
    return [json.loads(line) for line in vector_bytes(name).splitlines() if line.strip()]


def share_of(runs: int) -> int:
    """Return how many of a test's random runs to do: all, or HEADPOND_RUNS_PERCENT of them."""
    return -(-runs * int(os.environ.get("HEADPOND_RUNS_PERCENT", "100")) // 100)


def peak_kib() -> int:
    """The greatest resident set of this process so far, or since 5 was written to `/proc/self/clear_refs`.

    Not `ru_maxrss`, which counts what the process held that started this one.
    """
    (found,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found)


def free_ports(count: int) -> list[int]:
    """Give ports of loopback that nobody listens on."""
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
