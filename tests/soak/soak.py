"""A long run under random faults, and at its end the accounts: `make soak`.

::

    producers ─► local Kinesis with weather ─► headpond run (DSQL changes)  ─► tables
    (here)       (throttling, errors, cuts,  ─► headpond run (QLDB records) ─► tables
                  splits and merges)         ─► a windowed join of two streams ─► pairs
                                  drivers, workers, executors, planners are killed at random

When the time is over, the weather ends, everything is read to its end, and each table is compared with what
an independent model makes of the records that are in the streams. Then everything is read once more, with a
new checkpoint: that must write nothing, and headpond's own figures of it must add up to the number of
records: what was there already, was older, waits or is refused. A soak in which too little went wrong is no
soak: the faults last until each kind of process was killed (`LEAST`), and if that takes too long it fails.

SOAK_SECONDS is how long faults last (900), SOAK_SEED repeats a run's draws, SOAK_FOLDER keeps its files
there. The report goes to standard output as JSON, words go to standard error; exit code 1 says that
something differs.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

from headpond.pipeline import load
from headpond.pipeline.lake import open_lake
from tests.soak import (
    soak_changes,
    soak_checks,
    soak_join,
    soak_ledger,
)
from tests.soak.soak_jobs import CLUSTER, LOCAL, Job, JobFailedError
from tests.soak.soak_put import Producers, held

HERE = Path(__file__).resolve().parent
PIPELINES = ("changes", "ledger")
SIDES = ("left", "right")
PUT_S = 0.25
"""How often records are put."""
START_S = 10.0
"""So long after the start the first kill comes."""
OUT_S = 300.0
"""How long a job may take to run to its end."""
LEAST = {"driver": 1, "worker": 1, "executor": 1}
"""What must have been killed, and how often."""
LEAST_WEATHER = ("throttle", "InternalFailureException", "fail_entry", "cut_reply", "splits", "merges")
"""What must have happened in the streams."""
EXTRA_S = 240.0
"""For so long the faults may go on beyond their time until all that was killed."""

PIPELINE = """[source]
stream = "{name}"
endpoint_url = "{endpoint}"
format = "{kind}"
start = "TRIM_HORIZON"
max_records_per_trigger = {most}
[target]
path = "lake"
checkpoint = "{checkpoint}"
trigger = "500 ms"
{more}
[spark]
"spark.master" = "{master}"
"spark.task.maxFailures" = "20"
"spark.executor.memory" = "512m"
{tables}"""


def say(words: str) -> None:
    """Tell a person."""
    print(f"{time.strftime('%H:%M:%S')} {words}", file=sys.stderr, flush=True)


class Soak:
    """One soak: its processes, what is put, and what it finds.

    Args:
        seed: of every draw.
        seconds: how long faults last.
        folder: for everything it writes.
    """

    def __init__(self, seed: int, seconds: float, folder: Path) -> None:
        self.seed, self.seconds, self.folder = seed, seconds, folder
        self.draw = random.Random(seed)
        self.changes = soak_changes.ChangeMaker(seed)
        self.ledger = soak_ledger.LedgerMaker(seed)
        self.sides = {name: soak_join.KeyedMaker(name, seed) for name in SIDES}
        self.acknowledged: Counter[str] = Counter()
        self.failed: list[str] = []
        self.weather: dict[str, int] = {}
        self.endpoint = ""
        self._late: list[tuple[float, int, str, bytes]] = []
        self._number = count()
        self.pipelines = {
            name: Job(name, lambda master, until, name=name: self._run(name, master, until), folder / name)
            for name in PIPELINES
        }
        self.join = Job("join", self._join, folder / "join")
        self.jobs = [*self.pipelines.values(), self.join]
        # One job is always on the cluster, so that there are executors to be killed.
        self.on_cluster = self.draw.choice(self.jobs)

    def go(self) -> dict[str, Any]:
        """Run it and give the report.

        Raises:
            JobFailedError: a job ended that nobody had killed, or did not end when it was to.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        streams = (*PIPELINES, *SIDES)
        command = [sys.executable, str(HERE / "soak_server.py"), str(self.seed), *streams]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            try:
                self.endpoint = json.loads(server.stdout.readline())["endpoint"]
                with Producers(self.endpoint, streams, self.acknowledged, self.failed) as producers:
                    self._under_faults(producers)
                print("calm", file=server.stdin, flush=True)
                self.weather = json.loads(server.stdout.readline())
                return self._accounts()
            finally:
                for job in self.jobs:
                    job.kill_all()
                server.stdin.close()
                try:
                    server.wait(10)
                except subprocess.TimeoutExpired:
                    server.kill()

    def _under_faults(self, producers: Producers) -> None:
        """Put records and kill until the time is over."""
        masters = {job.name: LOCAL for job in self.jobs} | {self.on_cluster.name: CLUSTER}
        for job in self.jobs:
            job.start(masters[job.name])
        now = told_at = time.monotonic()
        end, kill_at = now + self.seconds, now + START_S
        while now < end or (self._lacking() and now < end + EXTRA_S):
            self._make(now)
            self._put(producers, now)
            if now >= kill_at:
                lacking = self._lacking()
                job = self.on_cluster if "executor" in lacking else self.draw.choice(self.jobs)
                if job.strike(self.draw, lacking) == "driver":
                    masters[job.name] = self._master(job)
                kill_at = now + self.draw.uniform(0.5, 6)
            for job in self.jobs:
                job.watch(masters[job.name])
            if now - told_at > 60:
                told_at = now
                say(f"{self.acknowledged.total()} records, killed {self._killed()}")
            time.sleep(max(0.0, now + PUT_S - time.monotonic()))
            now = time.monotonic()
        for late, data in self.ledger.rest():
            self._later("ledger", late, data)
        self._put(producers, float("inf"))
        say(f"{self.acknowledged.total()} records, killed {self._killed()}; the weather ends")

    def _make(self, now: float) -> None:
        for _ in range(self.draw.randint(0, 6)):
            for late, data in self.changes.transaction():
                self._later("changes", now + late, data)
        for late, data in self.ledger.some(PUT_S / self.seconds * 1.2):
            self._later("ledger", now + late, data)

    def _later(self, stream: str, due: float, data: bytes) -> None:
        heapq.heappush(self._late, (due, next(self._number), stream, data))

    def _put(self, producers: Producers, now: float) -> None:
        """Put what is due, and some records of the join."""
        while self._late and self._late[0][0] <= now:
            _, number, stream, data = heapq.heappop(self._late)
            producers.put(stream, (f"{number * 7919 % 1000}", data))
        for side, maker in self.sides.items():
            for _ in range(self.draw.randint(0, 4)):
                producers.put(side, maker.record())
        producers.send()

    def _master(self, job: Job) -> str:
        return CLUSTER if job is self.on_cluster or self.draw.random() < 0.35 else LOCAL

    def _killed(self) -> Counter[str]:
        return sum((job.killed for job in self.jobs), Counter())

    def _lacking(self) -> set[str]:
        """What was not killed as often as it must be."""
        killed = self._killed()
        return {what for what, least in LEAST.items() if killed[what] < least}

    def _run(self, name: str, master: str, until: str) -> list[str]:
        """Write a pipeline's file anew, for the master of this start, and give the command that runs it."""
        ledger = name == "ledger"
        text = PIPELINE.format(
            name=name,
            endpoint=self.endpoint,
            kind="qldb" if ledger else "dsql",
            most=1000 if until == "on" else 20_000,
            checkpoint="again" if until == "again" else "checkpoint",
            more="raw_ion = true" if ledger else 'chunk_timeout = "2 hours"',
            master=master,
            tables=soak_ledger.tables() if ledger else soak_changes.tables(),
        )
        (self.folder / name / "p.toml").write_text(text)
        command = [sys.executable, "-m", "headpond", "run", "p.toml", "--json"]
        return command if until == "on" else [*command, "--until-caught-up"]

    def _join(self, master: str, until: str) -> list[str]:
        return [sys.executable, str(HERE / "soak_join_job.py"), self.endpoint, ".", master, until]

    def _accounts(self) -> dict[str, Any]:
        """Read everything to its end, compare, read everything again, and give the report."""
        wrong = [*self.failed, *soak_checks.check_faults(self._killed(), LEAST, self.weather, LEAST_WEATHER)]
        self._out(self.jobs, "out")
        found = {name: list(held(self.endpoint, name)) for name in (*PIPELINES, *SIDES)}
        wrong += [
            f"{name}: {number} records were acknowledged, the stream holds {len(found[name])}"
            for name, number in self.acknowledged.items()
            if len(found[name]) < number
        ]
        data = {name: [(identity, each.data) for identity, each in found[name]] for name in PIPELINES}
        changes = soak_changes.expect(data["changes"], self.changes.meanings)
        ledger = soak_ledger.expect(data["ledger"], self.ledger, self.folder / "reference")
        pairs = soak_join.expect(*([each for _, each in found[side]] for side in SIDES))
        wrong += self._differences(changes, ledger)
        have = soak_join.results(self.folder / "join" / "out")
        wrong += soak_checks.compare("pairs", have.elements(), pairs.elements())
        again = self._again()
        wrong += soak_checks.check_replay_of_changes(again["changes"], changes)
        wrong += soak_checks.check_replay_of_ledger(again["ledger"], ledger)
        wrong += soak_checks.check_replay_of_join(
            again["join"], records=sum(len(found[side]) for side in SIDES), pairs=pairs.total()
        )
        have = soak_join.results(self.folder / "join" / "again")
        wrong += soak_checks.compare("pairs of the join run again", have.elements(), pairs.elements())
        wrong += self._differences(changes, ledger)
        return {
            "seed": self.seed,
            "seconds": self.seconds,
            "weather": self.weather,
            "killed": {job.name: dict(job.killed) for job in self.jobs},
            "starts": {job.name: dict(job.starts) for job in self.jobs},
            "acknowledged": dict(self.acknowledged),
            "in_streams": {name: len(each) for name, each in found.items()},
            "accounts": {"changes": dict(changes.fates), "ledger": dict(ledger.fates)},
            "chunked_changes": dict(changes.whole),
            "figures_again": soak_checks.accounts_of(again["changes"], again["ledger"], again["join"]),
            "pairs": pairs.total(),
            "as_expected": not wrong,
            "differences": wrong,
        }

    def _differences(self, changes: soak_changes.Expected, ledger: soak_ledger.ExpectedLedger) -> list[str]:
        wrong = soak_checks.check_changes(self.folder / "changes" / "lake", changes)
        lake = open_lake(load(self.folder / "ledger" / "p.toml"))
        return wrong + soak_checks.check_ledger(lake, ledger)

    def _again(self) -> dict[str, dict[str, Any]]:
        """Run all over their whole streams with new checkpoints, and give what they say of it.

        The pipelines have the lakes that they had; the join, which remembers by its checkpoint, a new folder.
        """
        self._out(self.jobs, "again")
        said = {job.name: (job.folder / "out.log").read_text() for job in self.jobs}
        return {name: json.loads(text.splitlines()[-1]) for name, text in said.items()}

    def _out(self, jobs: list[Job], until: str) -> None:
        """Kill jobs once more, and let them run to the end of what is there."""
        say("reading everything again" if until == "again" else "reading to the end")
        for job in jobs:
            job.kill_all()
            job.start(LOCAL, until)
        for job in jobs:
            job.ended(OUT_S)


def words_of(report: dict[str, Any]) -> str:
    """Say a report in words."""
    lines = [f"seed {report['seed']}, {report['seconds']:.0f} s of faults"]
    for name, fates in report["accounts"].items():
        parts = ", ".join(f"{number} {fate}" for fate, number in sorted(fates.items()))
        lines.append(f"{name}: {report['in_streams'][name]} records = {parts}")
    for name, figures in report["figures_again"].items():
        lines.append(
            f"{name} again, by its own figures: {', '.join(f'{n} {what}' for what, n in figures.items())}"
        )
    lines.append(f"join: {report['in_streams']['left']} and {report['in_streams']['right']} records, ")
    lines[-1] += f"{report['pairs']} pairs"
    for name, killed in report["killed"].items():
        lines.append(f"{name} killed: {killed or 'never'}; started: {report['starts'][name]}")
    lines.append(f"weather: {report['weather']}")
    lines += ["Every table is as expected, and every record is accounted for."] * report["as_expected"]
    return "\n".join([*lines, *report["differences"]])


def main() -> int:
    """Run a soak as the environment says."""
    seed = int(os.environ.get("SOAK_SEED") or int.from_bytes(os.urandom(4)))
    seconds = float(os.environ.get("SOAK_SECONDS") or 900)
    given = os.environ.get("SOAK_FOLDER")
    folder = Path(given or tempfile.mkdtemp(prefix="headpond-soak-")).absolute()
    say(f"seed {seed}, {seconds:.0f} s of faults, in {folder}")
    try:
        report = Soak(seed, seconds, folder).go()
    except JobFailedError as error:
        say(f"{error}\nSOAK_SEED={seed}; its files are in {folder}.")
        return 1
    say(words_of(report))
    print(json.dumps(report))
    if not report["as_expected"]:
        say(f"SOAK_SEED={seed}; its files are in {folder}.")
        return 1
    if not given:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
