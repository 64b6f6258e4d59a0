"""Kill a run between any two writes, hundreds of times, without a JVM, and keep the accounts.

    python -m tests.kills [--kills 800] [--seconds S] [--seed N]

::

    archive of files, or local Kinesis with     the sources' own      decode · apply      a checkpoint as
    weather (throttling, errors, cuts, splits)  planner and tasks  ─► to the tables    ─► Spark writes it

Spark's part (which batch is next, which is done) is played by `go_on`, all else is what runs under Spark. The
process is forked from one that has everything imported, and ends by SIGKILL: by its own hand before a write
that is drawn (`fsync`, link, rename, removal, steps of a batch, files of the checkpoint), or from outside at
any time. Tasks are lost, too, and read again; the clock jumps by an hour, forwards and back. At the end of a
stream its lake is compared with one that was filled without any kill, and with the expected tables of the
vectors, which no code of ours has made.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import boto3
import pyarrow as pa
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from headpond import kpl
from headpond.core.formats import ChangeFormat
from headpond.lake.apply import Chunks, apply_batch
from headpond.lake.engine import merge
from headpond.lake.engine.folder import Folder
from headpond.pipeline import load
from headpond.pipeline.lake import open_lake, row_changes
from headpond.spark.following.checkpoint import standing
from headpond.spark.sources import archive, kinesis
from headpond.spark.sources.cells import FRAME_SCHEMA
from headpond.spark.sources.decoded import gather
from headpond.spark.sources.rows import Rules
from tests import soak
from tests.kit.expected_tables import archive_lines, differences, pipeline_text
from tests.kit.support import vector_json
from tests.lake.killed_child import lines, pipeline
from tests.lake.lakes import watched
from tests.lake.power import maintain, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headpond.lake.delta import DeltaFile

FAR = 10**9
SHIFTS_NS = (-3_600 * 10**9, 0, 3_600 * 10**9)
KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
SERVER = Path(soak.__file__).with_name("soak_server.py")
_CALLS = ("fsync", "link", "rename", "replace", "unlink", "mkdir")


def counting(file: DeltaFile) -> list[str]:
    """Return the rows of a table that count: of several tombstones of a key the newest."""
    if not file.uri.endswith("/tombstones"):
        return rows_of(file)
    newest: dict[tuple[str, str], bytes] = {}
    for row in file.read(["table", "key", "version"]).to_pylist():
        place = row["table"], row["key"]
        newest[place] = max(row["version"], newest.get(place, b""))
    return sorted(map(repr, newest.items()))


class Moments:
    """Counts the moments before writes: at the drawn one the process ends, at some the clock jumps."""

    def __init__(self, kill_at: int, draw: random.Random) -> None:
        self.kill_at, self.passed = kill_at, 0
        self.draw, self.shift_ns, self.jumps = draw, draw.choice(SHIFTS_NS), 0

    def __call__(self, *_: Any) -> None:
        if self.passed == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.passed += 1
        if self.draw.random() < 0.02:
            self.shift_ns = self.draw.choice(SHIFTS_NS)
            self.jumps += 1

    @contextmanager
    def before_writes(self) -> Iterator[None]:
        """Pass a moment before each call that changes something on a disk."""
        with ExitStack() as stack:
            for holder, names in ((os, _CALLS), (Folder, ("create", "remove"))):
                for name in names:
                    stack.enter_context(mock.patch.object(holder, name, self._after(getattr(holder, name))))
            clock_ns = time.time_ns

            def now_ns() -> int:
                return clock_ns() + self.shift_ns

            def now_s() -> float:
                return now_ns() / 1e9

            stack.enter_context(mock.patch.object(time, "time_ns", now_ns))
            stack.enter_context(mock.patch.object(time, "time", now_s))
            yield

    def _after(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **more: Any) -> Any:
            self()
            return call(*given, **more)

        return called


def put(path: Path, content: str) -> None:
    """Write a file of the checkpoint as Spark does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.tmp")
    new.write_text(content)
    new.replace(path)


def reader_of(options: dict[str, str], config: ChangeFormat) -> Any:
    """Return the reader that Spark would ask: it plans, and its tasks read and decode."""
    decoded = archive.DecodedArchiveSource if "path" in options else kinesis.DecodedKinesisSource
    return decoded.with_rules(Rules(config))(options).streamReader(None)


def read(reader: Any, task: Any, draw: random.Random, lost: list[int]) -> list[pa.RecordBatch]:
    """Read a task; some are lost on the way, and read again from their beginning."""
    while True:
        found = []
        for cells in reader.read(task):
            found.append(cells)
            if draw.random() < 0.05:
                lost.append(1)
                break
        else:
            return found


def go_on(folder: Path, options: dict[str, str], moment: Callable[..., None], draw: random.Random) -> int:
    """Go on from the checkpoint until everything is applied; return how many tasks were lost."""
    checkpoint, given = folder / "lake" / "_headpond" / "checkpoint", load(folder / "p.toml")
    stands = standing(str(checkpoint))
    lake = open_lake(given)
    lake.prepare(source="the source")
    reader, lost = reader_of(options, lake.config), list[int]()
    config = row_changes(given)
    number = -1 if stands.batch_id is None else stands.batch_id
    start = reader.initialOffset() if stands.offset is None else stands.offset
    while True:
        number += 1
        offsets = checkpoint / "offsets" / str(number)
        if number == stands.planned_batch_id:
            end = json.loads(offsets.read_text().splitlines()[2])
        else:
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            if end == start:
                break
            put(offsets, f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps(end)}')
        cells = [each for task in reader.partitions(start, end) for each in read(reader, task, draw, lost)]
        batch = gather(pa.Table.from_batches(cells, FRAME_SCHEMA))
        apply_batch(watched(lake, moment), batch, chunks=Chunks(config), transaction=("run", number))
        put(checkpoint / "commits" / str(number), 'v1\n{"nextBatchWatermarkMs":0}')
        start = end
        if draw.random() < 0.05:
            maintain(lake)
    reader.stop()
    return len(lost)


def child(folder: Path, options: dict[str, str], kill_at: int, seed: int) -> None:
    """Be the run that is killed."""
    draw = random.Random(seed)
    moments = Moments(kill_at, random.Random(seed))
    with moments.before_writes(), mock.patch.object(merge, "SMALL_BYTES", 0):
        lost = go_on(folder, options, moments, draw)
    (folder / "ended").write_text(json.dumps({"clock jumps": moments.jumps, "lost tasks": lost}))


def forked() -> Any:
    """Return a context whose processes are forked from one that has everything imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.kills.kills"])
    return context


class World:
    """A source, a lake, and how often its run was killed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed, self.draw = folder, seed, random.Random(seed)
        self.is_small = self.draw.random() < 0.5
        self.left = archive_lines() if self.is_small else lines(self.draw.randrange(200, 500), seed)
        self.draw.shuffle(self.left)
        self.left += self.draw.sample(self.left, 10)
        self.counted: Counter[str] = Counter()
        self.files = 0

    def write_pipeline(self, source: str) -> None:
        """Write the pipeline file of the lake, and that of the one without kills."""
        for folder in (self.folder, self.folder / "calm"):
            folder.mkdir(parents=True, exist_ok=True)
            head = f'[source]\n{source}\nformat = "dsql"\n[target]\npath = "lake"\n'
            text = pipeline_text(source, path="lake") if self.is_small else head + pipeline()
            (folder / "p.toml").write_text(text)

    def some(self) -> list[bytes]:
        """Take some of the lines that are left."""
        count = max(60, len(self.left) // 3)
        taken, self.left = self.left[:count], self.left[count:]
        return taken

    def more_files(self) -> None:
        """Put a file into the archive: plain or gzip, under its name at once."""
        content = b"\n".join(self.some()) + b"\n"
        is_plain = self.draw.random() < 0.6
        name = f"{self.draw.randrange(10**6):06}-{self.files}" + (".jsonl" if is_plain else ".gz")
        self.files += 1
        new = self.folder / f"new-{self.files}"
        new.write_bytes(content if is_plain else gzip.compress(content))
        (self.folder / "records").mkdir(exist_ok=True)
        new.rename(self.folder / "records" / name)

    def more_records(self, client: Any) -> None:
        """Put records into the stream, some in aggregates; one that may have been put is put again."""
        records = [json.loads(line) for line in self.some()]
        users = [kpl.UserRecord(each["partitionKey"], base64.b64decode(each["data"])) for each in records]
        while users:
            count = self.draw.choice((1, 1, 5))
            some, users = users[:count], users[count:]
            packed = kpl.encode(some)
            key = {"ExplicitHashKey": packed.explicit_hash_key} if packed.explicit_hash_key else {}
            while True:
                with suppress(ClientError, BotoCoreError):
                    client.put_record(
                        StreamName="changes", PartitionKey=packed.partition_key, Data=packed.data, **key
                    )
                    break

    def strike(self, context: Any, options: dict[str, str]) -> bool:
        """Have a run go on, and kill it; return whether it came to its end before."""
        timed = self.draw.random() < 0.3
        kill_at = FAR if timed else self.draw.choice((10, 30, 80, 200))
        kill_at = kill_at if timed else self.draw.randrange(kill_at)
        process = context.Process(target=child, args=(self.folder, options, kill_at, self.draw.random()))
        process.start()
        process.join(self.draw.uniform(0.05, 1.5) if timed else 120)
        if process.is_alive():
            assert timed, "the run hangs"
            process.kill()
            process.join()
        if process.exitcode == -signal.SIGKILL:
            self.counted["killed at any time" if timed else "killed before a write"] += 1
            return False
        assert process.exitcode == 0, f"the run ended with {process.exitcode}"
        said = json.loads((self.folder / "ended").read_text())
        self.counted["ended"] += 1
        self.counted.update(said)
        return True

    def compare(self, options: dict[str, str]) -> list[str]:
        """Return what differs from the lake without kills, and from the expected tables."""
        calm = self.folder / "calm"
        go_on(calm, options, lambda _: None, random.Random(0))
        lake, wanted = open_lake(load(self.folder / "p.toml")), open_lake(load(calm / "p.toml"))
        found = [f"{name} is not there" for name in dict(wanted.files()).keys() ^ dict(lake.files()).keys()]
        for name, file in wanted.files():
            rows, expected = (Counter(counting(each)) for each in (dict(lake.files())[name], file))
            self.counted["rows compared"] += expected.total()
            lost, twice = (expected - rows).total(), (rows - expected).total()
            if lost or twice:
                some = list((rows - expected) + (expected - rows))[:2]
                found.append(f"{name}: {lost} lost, {twice} too many: {some}")
        if self.is_small:
            found += differences(lake, vector_json("dsql/small.expected.json"))
        return found

    def archive(self, context: Any) -> list[str]:
        """Kill runs over an archive of files that grows."""
        self.write_pipeline('archive = "records/*"')
        self.more_files()
        options = {"path": str(self.folder / "records" / "*"), "maxBytesPerTrigger": "20000"}
        while True:
            ended = self.strike(context, options)
            if self.left and (ended or self.draw.random() < 0.4):
                self.more_files()
            elif ended:
                return self.compare(options)

    def stream(self, context: Any) -> list[str]:
        """Kill runs over a stream with weather, to which records are put meanwhile."""
        command = [sys.executable, str(SERVER), str(self.seed), "changes", "other"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            try:
                endpoint = json.loads(server.stdout.readline())["endpoint"]
                self.write_pipeline(f'stream = "changes"\nendpoint_url = "{endpoint}"')
                options = {
                    "streamName": "changes",
                    "endpointUrl": endpoint,
                    "startingPosition": "TRIM_HORIZON",
                }
                options |= {"maxRecordsPerTrigger": "40", "probeLag": "0 ms", "shardDiscoveryInterval": "1 s"}
                keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
                config = Config(retries={"max_attempts": 0}, read_timeout=10)
                client = boto3.client("kinesis", endpoint_url=endpoint, config=config, **keys)
                self.more_records(client)
                while True:
                    ended = self.strike(context, options)
                    if self.left and (ended or self.draw.random() < 0.4):
                        self.more_records(client)
                    elif ended:
                        break
                print("calm", file=server.stdin, flush=True)
                weather = json.loads(server.stdout.readline())
                self.counted.update({f"weather {name}": count for name, count in weather.items()})
                # What came late, by a split just now, is read; then the same without kills.
                go_on(self.folder, options, lambda _: None, random.Random(0))
                return self.compare(options)
            finally:
                server.stdin.close()
                try:
                    server.wait(10)
                except subprocess.TimeoutExpired:
                    server.kill()


def main() -> int:
    """Go through worlds until there were so many kills."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=800)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=time.time_ns() // 1_000_000_000)
    given = parser.parse_args()
    os.environ |= KEYS
    context = forked()
    counted, wrong, seed, begun = Counter[str](), list[str](), given.seed, time.monotonic()
    while len(wrong) < 3 and time.monotonic() < begun + given.seconds:
        if counted["killed at any time"] + counted["killed before a write"] >= given.kills:
            break
        folder = Path(tempfile.mkdtemp(prefix="headpond-kills-"))
        world = World(folder, seed)
        try:
            found = (world.archive if seed % 2 else world.stream)(context)
        except Exception as error:  # noqa: BLE001 - it is reported with its seed
            found = [f"{type(error).__name__}: {error}"]
        counted += world.counted
        wrong += [f"seed {seed}: {each[:800]}" for each in found]
        if found:
            print(f"{wrong[-1]}; its files are in {folder}.", file=sys.stderr, flush=True)  # noqa: T201
        else:
            shutil.rmtree(folder)
        seed += 1
    said = {"seeds": [given.seed, seed - 1], "seconds": round(time.monotonic() - begun), **counted}
    print(json.dumps(said | {"wrong": wrong}))  # noqa: T201
    return 1 if wrong else 0
