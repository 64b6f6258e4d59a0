"""The soak's Kinesis, a process of its own: a local Kinesis with weather.

Arguments: seed, streams. Prints one line of JSON with its endpoint. Every few seconds other faults are in
force and a stream is split or merged. A line `calm` on standard input ends both and prints what there was;
the end of standard input ends the process.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from threading import Event, Thread
from typing import TYPE_CHECKING

from headpond.localkinesis.testing import local_kinesis

if TYPE_CHECKING:
    from collections.abc import Callable

    from headpond.localkinesis import LocalKinesis

MOST_SHARDS = 4
DATA_CALLS = ("GetRecords", "PutRecords", "GetShardIterator", "ListShards")


class Weather:
    """Faults and resharding, drawn anew every few seconds."""

    def __init__(self, kinesis: LocalKinesis, streams: list[str], seed: int) -> None:
        self._kinesis, self._streams = kinesis, streams
        self._draw = random.Random(seed)
        self._calm = Event()
        self.counted: Counter[str] = Counter()

    def go(self) -> None:
        """Change until calm."""
        while not self._calm.is_set():
            self._count()
            if not self.counted["splits"]:  # the shortest of soaks has both, whatever is drawn
                self._split(self._streams[0])
                self._merge(self._streams[1])
            self._certain()
            self._faults()
            for _ in range(self._draw.randint(0, 2)):
                self._reshard(self._draw.choice(self._streams))
            self._calm.wait(self._draw.uniform(2, 6))

    def _certain(self) -> None:
        """Have what has not struck yet strike once: the shortest of soaks has each kind of fault."""
        faults = self._kinesis.faults
        kinds: dict[str, Callable[[], object]] = {
            "cut_reply": lambda: faults.cut(when="reply", calls=DATA_CALLS, times=1),
            "throttle": lambda: faults.throttle(calls=DATA_CALLS, skip=1, times=1),
            "InternalFailureException": lambda: faults.internal_failure(calls=DATA_CALLS, skip=2, times=1),
            "fail_entry": lambda: faults.fail_entries(times=1),
        }
        for kind, strike in kinds.items():
            if not self.counted[kind]:
                strike()

    def end(self) -> None:
        """No more faults, and the shards stay."""
        self._calm.set()

    def settle(self) -> None:
        """Lift all faults, once `go` has returned."""
        self._count()

    def _faults(self) -> None:
        draw, faults = self._draw, self._kinesis.faults
        if draw.random() < 0.2:
            return  # a few seconds of fine weather
        faults.throttle(draw.uniform(0, 0.15), calls=DATA_CALLS)
        faults.internal_failure(draw.uniform(0, 0.06), calls=DATA_CALLS)
        for when in ("before", "after", "reply"):
            faults.cut(draw.uniform(0, 0.03), when=when, calls=DATA_CALLS)
        faults.fail_entries(draw.uniform(0, 0.1))
        faults.empty_reads(draw.uniform(0, 0.1))
        faults.expire_iterators(draw.uniform(0, 0.03))
        faults.delay(draw.randint(50, 500), draw.uniform(0, 0.1), calls=DATA_CALLS)

    def _count(self) -> None:
        for rule in list(self._kinesis.faults.rules):
            name = rule.code if rule.effect == "refuse" else rule.effect
            self.counted["throttle" if name.startswith("Provisioned") else name] += rule.hits
        self._kinesis.faults.clear()

    def _reshard(self, stream: str) -> None:
        shards = len(self._kinesis.engine.stream(stream).open_shards)
        if shards >= MOST_SHARDS or (shards > 1 and self._draw.random() < 0.5):
            self._merge(stream)
        else:
            self._split(stream)

    def _merge(self, stream: str) -> None:
        shards = self._kinesis.engine.stream(stream).open_shards
        at = self._draw.randrange(len(shards) - 1)
        self._kinesis.engine.merge_shards(stream, shards[at].shard_id, shards[at + 1].shard_id)
        self.counted["merges"] += 1

    def _split(self, stream: str) -> None:
        shard = self._draw.choice(self._kinesis.engine.stream(stream).open_shards)
        at = self._draw.randint(shard.low + 2, shard.high - 1)
        self._kinesis.engine.split_shard(stream, shard.shard_id, at)
        self.counted["splits"] += 1


def main(seed: int, streams: list[str]) -> None:
    """Serve until standard input ends."""
    with local_kinesis(*streams, shards=2, seed=seed) as kinesis:
        weather = Weather(kinesis, streams, seed)
        thread = Thread(target=weather.go)
        thread.start()
        print(json.dumps({"endpoint": kinesis.endpoint_url}), flush=True)
        for line in sys.stdin:
            if line.strip() == "calm":
                weather.end()
                thread.join()
                weather.settle()
                print(json.dumps(dict(sorted(weather.counted.items()))), flush=True)
        weather.end()
        thread.join()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
