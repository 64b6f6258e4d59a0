"""Planning alone, without Spark: how long, how many calls, how much memory.

Arguments: endpoint, stream, the bound (`64 MiB` or `none`). Prints one JSON line. `service_s` is the CPU
time that the local Kinesis took for the first plan: its own answer time, were it alone on a core.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import psutil

from headpond.kinesis.api.calls import ServiceCalls
from headpond.kinesis.planning.options import read_options
from headpond.kinesis.planning.planner import Planner

MIB = 1 << 20


def cpu_of(endpoint: str) -> float:
    """CPU seconds used so far by the process that listens there."""
    port = int(endpoint.rpartition(":")[2])
    for connection in psutil.net_connections("tcp"):
        if connection.status == "LISTEN" and connection.laddr.port == port and connection.pid:
            times = psutil.Process(connection.pid).cpu_times()
            return float(times.user + times.system)
    raise SystemExit(f"Nobody listens at {endpoint}.")


def counting(calls: ServiceCalls) -> dict[str, int]:
    """Count the calls that are made from now on."""
    made = {"calls": 0}
    before: Any = calls.call  # every call goes through it

    def call(*arguments: Any, **named: Any) -> Any:
        made["calls"] += 1
        return before(*arguments, **named)

    calls.call = call  # type: ignore[method-assign]  # counts every call
    return made


def main(endpoint: str, stream: str, bound: str) -> None:
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "local")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "local")
    settings = read_options(
        {
            "streamName": stream,
            "endpointUrl": endpoint,
            "startingPosition": "TRIM_HORIZON",
            "maxBytesPerTrigger": bound,
            "shardDiscoveryInterval": "1 hour",
        }
    )
    calls = ServiceCalls(settings.connection)
    made = counting(calls)
    planner = Planner(calls, settings)
    process = psutil.Process()
    idle = process.memory_info().rss
    found: dict[str, float] = {}

    def timed(name: str, start: Any) -> Any:
        made["calls"] = 0
        service = cpu_of(endpoint)
        clock, cpu = time.perf_counter(), time.process_time()
        end = planner.latest(start)
        found[f"{name}_s"] = time.perf_counter() - clock
        found[f"{name}_cpu_s"] = time.process_time() - cpu
        found[f"{name}_calls"] = made["calls"]
        if name == "first":
            found["service_s"] = cpu_of(endpoint) - service
        return end

    end = timed("first", planner.initial())
    found["ranges"] = len(planner.ranges(planner.initial(), end))
    while (further := planner.latest(end)) != end:
        end = further
    time.sleep(1)
    timed("idle", end)
    timed("again_at_once", end)
    found["memory_mib"] = (process.memory_info().rss - idle) / MIB
    print(json.dumps(found))
    planner.close()


main(*sys.argv[1:4])
