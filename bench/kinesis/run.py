"""The Kinesis source on Spark against plain loops over boto3, and what planning costs; ratios in one run.

    python bench/kinesis/run.py [--rounds 3] [--parts abcdefp] [--millions 8] [--plain-millions 10]
                                [--backlog-mib 64] [--json FILE]

a  KPL aggregates of 100-byte records into the noop sink, the whole query on two cores, against a loop of
   boto3 and aws-kinesis-agg on one
b  plain records of 25 kB: MB for each CPU second, against boto3 alone
c  CPU for a record with 4 and with 256 shards, the volume being the same
d  what the driver holds for 1,000 shards above one of a single shard, and how long planning them takes
e  the local Kinesis itself: MB of 25 kB records a CPU second, in and out
p  plain records of 100 bytes, not aggregated, in 8 shards, against boto3 alone; ten million of them take the
   local Kinesis some GB of memory
f  a backlog in 64 shards that keep the service's limits (2 MiB/s and five calls a second each): on the clock,
   against the least time that these allow, and against the same query without limits

`live.py` measures `headpond run` from a live stream of aggregated changes, beside a whole hand-written job.

The local Kinesis runs in a process of its own; its CPU is on neither side. The loops run in an environment of
their own below `.bench/`. Sides take turns; figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
PEER = HERE.parent.parent / ".bench" / "kinesis"
NEEDS = ["boto3", "aws-kinesis-agg==1.2.3", "protobuf", "six", "deltalake", "pyarrow"]
MIB = 1 << 20
BOUNDS: dict[str, dict[str, str]] = {"10 min": {}, "64 MiB": {"maxBytesPerTrigger": "64 MiB"}}
"""The default, a span of arrival; and an exact bound, with which data is looked at twice."""
MORE_WAYS = {
    "256 MiB": {"maxBytesPerTrigger": "256 MiB"},
    "10 min, 2 cols": {"schema": "partition_key STRING, data BINARY"},
}
"""Fewer batches; and what the loop has at its end: keys and data."""


class Asked:
    """A process that answers lines with lines."""

    def __init__(self, *command: str | Path) -> None:
        self._process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.greeting = self._answer()

    def ask(self, line: str) -> str:
        """Send a line, wait for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise SystemExit(f"{self._process.args} ended without an answer.")
        return line


@contextmanager
def running(*command: str | Path) -> Iterator[Asked]:
    """A process for as long as it is needed."""
    asked = Asked(*command)
    try:
        yield asked
    finally:
        asked.close()


def peer_python() -> Path:
    """Make the loops' environment, once for what they need."""
    python, made = PEER / "bin" / "python", PEER / "made"
    if not made.exists() or made.read_text() != str(NEEDS):
        subprocess.run([sys.executable, "-m", "venv", str(PEER)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *NEEDS], check=True)
        made.write_text(str(NEEDS))
    return python


def peer(endpoint: str, stream: str, kind: str) -> dict[str, float]:
    """Run a plain loop over a stream."""
    done = subprocess.run(
        [str(peer_python()), str(HERE / "peer.py"), endpoint, stream, kind],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def query(spark: Asked, stream: str, *, memory: bool = False, **options: str) -> dict[str, Any]:
    """Run a query over a stream."""
    wanted = {"stream": stream, "options": options, "memory": memory}
    found: dict[str, Any] = json.loads(spark.ask(json.dumps(wanted)))
    found["cpu_seconds"] = sum(found["cpu"].values())
    return found


def medians(runs: list[dict[str, Any]]) -> dict[str, float]:
    """The median of every figure."""
    return {
        name: statistics.median(run[name] for run in runs) for name in ("records", "seconds", "cpu_seconds")
    }


def verdict(ratio: float, least: float, aim: float) -> str:
    """Say how a target to reach is met."""
    word = "aim" if ratio >= aim else "met" if ratio >= least else "MISSED"
    return f"{ratio:6.2f}  (at least {least}, aim {aim}) {word}"


def within(figure: float, most: float) -> str:
    """Say how a target to stay below is met."""
    return f"{figure:6.2f}  (at most {most}) {'met' if figure <= most else 'MISSED'}"


def against_loop(
    spark: Asked, endpoint: str, read: tuple[str, str], rounds: int, ways: dict[str, dict[str, str]]
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Take turns over a stream, and what the loop does with it: the loop, then the query in each way."""
    loops: list[dict[str, Any]] = []
    queries: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    for _ in range(rounds):
        loops.append(peer(endpoint, *read))
        for name, options in ways.items():
            queries[name].append(query(spark, read[0], **options))
            assert queries[name][-1]["records"] == loops[-1]["records"], queries[name][-1]
    return medians(loops), {name: medians(runs) for name, runs in queries.items()}


def part_a(server: Asked, spark: Asked, rounds: int, millions: float) -> dict[str, Any]:
    """Aggregates into the noop sink."""
    server.ask(f"fill a 4 kpl {round(millions * 1e6) // 400 * 400} 100")
    loop, queries = against_loop(spark, server.greeting, ("a", "open"), rounds, BOUNDS | MORE_WAYS)
    server.ask("drop a")
    rate = loop["records"] / loop["seconds"]
    print(f"\na  KPL aggregates of 100 B records, {loop['records'] / 1e6:.1f} million, 4 shards")
    print(f"   loop, one core           {rate:12,.0f} records/s  {loop['cpu_seconds']:6.1f} CPU s")
    for name, ours in queries.items():
        own = ours["records"] / ours["seconds"]
        print(f"   query, {name:18}{own:12,.0f} records/s  {ours['cpu_seconds']:6.1f} CPU s")
        print(f"      records/s, clock:        {verdict(own / rate, 2, 5)}")
        two_cores = 2 * loop["cpu_seconds"] / ours["cpu_seconds"]
        print(f"      by CPU, two cores:       {two_cores:6.2f}")
    return {"loop": loop, "queries": queries}


def part_b(server: Asked, spark: Asked, rounds: int) -> dict[str, Any]:
    """Large plain records."""
    count, size = 48_000, 25_000
    server.ask(f"fill b 4 plain {count} {size}")
    loop, queries = against_loop(spark, server.greeting, ("b", "plain"), rounds, BOUNDS)
    server.ask("drop b")
    megabytes = count * size / 1e6
    rate = megabytes / loop["cpu_seconds"]
    print(f"\nb  plain records of {size:,} B, {megabytes:,.0f} MB, 4 shards")
    print(f"   loop                     {rate:8.0f} MB a CPU second, {megabytes / loop['seconds']:6.0f} MB/s")
    for name, ours in queries.items():
        own = megabytes / ours["cpu_seconds"]
        print(f"   query, {name:18}{own:8.0f} MB a CPU second, {megabytes / ours['seconds']:6.0f} MB/s")
        print(f"      MB a CPU second:         {verdict(own / rate, 0.8, 1.2)}")
    return {"loop": loop, "queries": queries}


def part_p(server: Asked, spark: Asked, rounds: int, millions: float) -> dict[str, Any]:
    """Small plain records."""
    server.ask(f"fill p 8 plain {round(millions * 1e6)} 100")
    loop, queries = against_loop(spark, server.greeting, ("p", "plain"), rounds, BOUNDS)
    server.ask("drop p")
    print(f"\np  plain records of 100 B, {loop['records'] / 1e6:.1f} million, 8 shards")
    for name, side in {"loop": loop, **queries}.items():
        cpu_us, rate = side["cpu_seconds"] / side["records"] * 1e6, side["records"] / side["seconds"]
        print(f"   {name:18}{cpu_us:8.2f} us CPU a record, {rate:10,.0f} records/s")
    return {"loop": loop, "queries": queries}


def part_c(server: Asked, spark: Asked, rounds: int, millions: float) -> dict[str, Any]:
    """Few shards and many."""
    counts, runs = (4, 256), {}
    for shards in counts:
        server.ask(f"fill c{shards} {shards} kpl {round(millions * 1e6) // 400 * 400} 100")
        runs[shards] = []
    for shards in counts:
        # Uncounted: the JVM still compiles, for whichever comes first.
        query(spark, f"c{shards}")
    for _ in range(rounds):
        for shards in counts:
            server.ask(f"touch c{shards}")  # a live stream: every shard got a record just now
            runs[shards].append(query(spark, f"c{shards}"))
    for shards in counts:
        server.ask(f"drop c{shards}")
    found = {shards: medians(some) for shards, some in runs.items()}
    print("\nc  cost of a record as shards grow, the same volume")
    for shards, ours in found.items():
        cpu_us, clock_us = (ours[name] / ours["records"] * 1e6 for name in ("cpu_seconds", "seconds"))
        print(f"   {shards:4} shards: {cpu_us:6.2f} us CPU, {clock_us:6.2f} us on the clock")
    few, many = (found[shards] for shards in counts)
    print(f"      CPU a record:            {within(many['cpu_seconds'] / few['cpu_seconds'], 1.25)}")
    print(f"      clock a record:          {many['seconds'] / few['seconds']:6.2f}")
    return {str(shards): ours for shards, ours in found.items()}


def part_d(server: Asked, spark: Asked) -> dict[str, Any]:
    """A thousand shards."""
    shards = 1000
    server.ask("fill one 1 kpl 4000 100")
    server.ask(f"fill many {shards} kpl 800000 100")
    idle = query(spark, "one", memory=True)
    busy = query(spark, "many", memory=True)
    print(f"\nd  {shards:,} shards")
    grown = {name: busy[name] - idle[name] for name in ("heap_mib", "planning_mib")}
    print(
        f"   the driver holds above one shard: {grown['heap_mib']:.0f} MiB of heap and "
        f"{grown['planning_mib']:.0f} MiB in the planning process"
    )
    print(f"      MiB together:            {within(sum(grown.values()), 300)}")
    planned: dict[str, Any] = {"grown": grown}
    for bound in ("none", "64 MiB"):
        before = float(server.ask("cpu"))
        done = subprocess.run(
            [sys.executable, str(HERE / "planning.py"), server.greeting, "many", bound],
            capture_output=True,
            text=True,
            check=True,
        )
        found = json.loads(done.stdout)
        found["server_cpu_s"] = float(server.ask("cpu")) - before
        planned[bound] = found
        print(
            f"   planning, maxBytesPerTrigger {bound:6}: first {found['first_s']:.2f} s, "
            f"{found['first_calls']} calls, of which the service takes {found['service_s']:.2f} s; "
            f"idle {found['idle_s']:.2f} s, {found['idle_calls']} calls; "
            f"again at once {found['again_at_once_s'] * 1e3:.0f} ms, {found['again_at_once_calls']} calls; "
            f"{found['memory_mib']:.0f} MiB"
        )
        print(f"      seconds beyond it:       {within(found['first_s'] - found['service_s'], 3)}")
    server.ask("drop one")
    server.ask("drop many")
    return planned


def part_f(spark: Asked, rounds: int, mib: int) -> dict[str, Any]:
    """A backlog in shards that give no more than the service's."""
    shards, size = 64, 25_000

    def measured(*words: str) -> dict[str, float]:
        # Each in a server of its own: one that has dropped a stream keeps the memory, and two may not fit.
        with running(sys.executable, HERE / "server.py", *words) as server:
            server.ask(f"fill f {shards} plain {shards * mib * MIB // size} {size}")
            # The first one is not counted: its buffers use memory that the machine may not have touched yet.
            runs = [query(spark, "f", endpointUrl=server.greeting) for _ in range(1 + rounds)]
        return medians(runs[1:])

    free, held = measured(), measured("limited")
    # A second's worth is there at once. What a last reply of 10 MiB costs, nobody has to wait for.
    rated_s, least_s = max(0, mib - 2) / 2, max(0, mib - 2 - 10) / 2
    print(f"\nf  {shards} shards of {mib} MiB each, records of {size:,} B, read on two cores")
    print(f"   without limits:      {free['seconds']:5.1f} s, {free['cpu_seconds']:5.1f} s of CPU")
    print(f"   with them:           {held['seconds']:5.1f} s, {held['cpu_seconds']:5.1f} s of CPU")
    for name, bound_s in {
        "at 2 MiB a second": rated_s,
        "least, the last reply unpaid": least_s,
    }.items():
        word = "the limits" if bound_s > free["seconds"] else "the machine"
        ratio = held["seconds"] / max(bound_s, free["seconds"])
        print(f"   {name}: {bound_s:.1f} s, bound by {word}")
        print(f"      times that:              {within(ratio, 1.3)}")
    return {"rated_s": rated_s, "least_s": least_s, "free": free, "limited": held}


def part_e() -> dict[str, Any]:
    """The local Kinesis itself."""
    script = HERE.parent / "producer" / "local_kinesis.py"
    done = subprocess.run(
        [sys.executable, str(script), "--megabytes", "400"], capture_output=True, text=True, check=True
    )
    print("\ne  the local Kinesis, to have at least 50 MB a CPU second in and out")
    print("   " + done.stdout.strip().replace("\n", "\n   "))
    return {"told": done.stdout}


def main() -> None:
    """Measure, print, and write the figures where asked to."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--parts", default="abcdefp")
    arguments.add_argument("--millions", type=float, default=8)
    arguments.add_argument("--plain-millions", type=float, default=10)
    arguments.add_argument(
        "--backlog-mib",
        type=int,
        default=64,
        help="in each of the 64 shards of part f; 64 MiB take 12 GB",
    )
    arguments.add_argument("--json", type=Path)
    chosen = arguments.parse_args()
    peer_python()
    print(f"load before: {os.getloadavg()[0]:.1f}, cores: {os.cpu_count()}, rounds: {chosen.rounds}")
    figures: dict[str, Any] = {}
    with (
        running(sys.executable, HERE / "server.py") as server,
        running(sys.executable, HERE / "spark_reader.py", server.greeting) as spark,
    ):
        # One query of each kind first: the JVM compiles, the workers import.
        server.ask("fill warm 2 kpl 800000 100")
        for options in (*BOUNDS.values(), {"maxBytesPerTrigger": "16 MiB"}):
            query(spark, "warm", **options)
        if "a" in chosen.parts:
            figures["a"] = part_a(server, spark, chosen.rounds, chosen.millions)
        if "b" in chosen.parts:
            figures["b"] = part_b(server, spark, chosen.rounds)
        if "c" in chosen.parts:
            figures["c"] = part_c(server, spark, chosen.rounds, chosen.millions)
        if "d" in chosen.parts:
            figures["d"] = part_d(server, spark)
        if "p" in chosen.parts:
            figures["p"] = part_p(server, spark, chosen.rounds, chosen.plain_millions)
        if "f" in chosen.parts:
            figures["f"] = part_f(spark, chosen.rounds, chosen.backlog_mib)
    if "e" in chosen.parts:
        figures["e"] = part_e()
    print(f"\nload after: {os.getloadavg()[0]:.1f}")
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
