"""Records for a broker's topics, and a peer that writes and reads them and runs Kafka Streams on them."""

from __future__ import annotations

import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.join.rules import JoinWindows
from tests.spark.join_streams import START_MS, Event, Row, random_batches, task

PEER = Path(__file__).parent / "join_peer" / "KafkaPeer.java"
STREAMS = [f"org.apache.kafka:{each}:4.3.0" for each in ("kafka-streams", "kafka-streams-test-utils")]
PARTITIONS = 3
WINDOWS = JoinWindows(24, 18, 30)
TOPICS = {Side.LEFT: "left", Side.RIGHT: "right"}


def hexed(data: bytes | None) -> str:
    return "null" if data is None else data.hex()


def plain(text: str) -> bytes | None:
    return None if text == "null" else bytes.fromhex(text)


def halves() -> list[list[Event]]:
    """Two batches over partitions as Kafka's partitioner chooses them; no two sides share a millisecond.

    The second begins, in each partition, with a record later than all of the first: whoever takes the oldest
    of the next records reads both halves in the order in which they were written.
    """
    offsets: Counter[tuple[Side, int]] = Counter()
    keys = [
        next(key for key in (b"key-%d" % n for n in range(99)) if place_of(key) == each)
        for each in range(PARTITIONS)
    ]
    found: list[list[Event]] = []
    for batch in random_batches(77, batches=2, size=200, partitions=PARTITIONS):
        latest = max((event.micros // 2000 for each in found for event in each), default=0)
        first = [
            Event(side, key, b"first", (latest + 1) * 2000 + side.value * 1000, (), 0, 0)
            for side in Side
            for key in keys
            if found
        ]
        doubled = [
            replace(event, micros=(event.micros // 1000 - START_MS // 2) * 2000 + event.side.value * 1000)
            for event in batch
        ]
        placed = []
        for event in [*first, *doubled]:
            partition = event.partition if event.key is None else task(event, PARTITIONS)
            placed.append(replace(event, partition=partition, offset=offsets[event.side, partition]))
            offsets[event.side, partition] += 1
        found.append(placed)
    return found


def place_of(key: bytes) -> int:
    return task(Event(Side.LEFT, key, b"", 0, (), 0, 0), PARTITIONS)


def ask(streams: Path, address: str, folder: Path, lines: list[str]) -> list[list[list[str]]]:
    """Give the peer lines; gives the records of each topic that it read."""
    done = subprocess.run(
        ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{streams}/*", str(PEER), address, str(folder / "state")],
        input="\n".join(lines) + "\n", capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[list[list[str]]] = [[]]
    for line in done.stdout.splitlines():
        if line == ".":
            found.append([])
        else:
            found[-1].append(line.split("\t"))
    return found[:-1]


def sent(events: list[Event]) -> list[str]:
    return [
        "\t".join(
            (
                "send", TOPICS[event.side], str(event.partition), str(event.micros // 1000), hexed(event.key),
                hexed(event.value), ",".join(f"{name}={hexed(value)}" for name, value in event.headers),
            )
        )
        for event in events
    ]  # fmt: skip


def results(records: list[list[str]], *, timed: bool) -> Counter[Row]:
    """Rows as they are compared; `timed`: the value is left|right|time, else the record has the time."""
    found: Counter[Row] = Counter()
    for _, timestamp, key, value, headers in records:
        left, right, *time = bytes.fromhex(value).decode().split("|")
        pairs = tuple(each.split("=") for each in headers.split(",") if each)
        found[
            plain(key), plain(left), plain(right), int(time[0] if timed else timestamp),
            tuple((name, plain(data)) for name, data in pairs),
        ] += 1  # fmt: skip
    return found
