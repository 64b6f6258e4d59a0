"""The local Kinesis in a process of its own, filled by itself: no client's time goes into it.

Prints its address, then answers each line of standard input: `fill STREAM SHARDS KIND COUNT SIZE` makes a
stream, a day older than its records, and prints how many Kinesis records it holds, `touch STREAM` puts a
record into each shard, `drop STREAM` deletes it, `load STREAM SHARDS FILE` makes one of a file's records (a
shard's number and data in base64 on each line), `cpu` prints the CPU seconds used so far. With the argument
`limited` it keeps a shard's reads to the service's limits.
"""

from __future__ import annotations

import random
import sys
import time
from base64 import b64decode
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from headpond.kpl import UserRecord, encode
from headpond.localkinesis import SERVICE_LIMITS, Limits, Settings, serve_forever

if TYPE_CHECKING:
    from headpond.localkinesis.engine import Engine

PER_AGGREGATE = 400
KEYS = 10
DISTINCT = 32
DAY_MS = 86_400_000
SHARD_BYTES_PER_MS = (1 << 20) / 1000
"""What a shard takes."""


def create_older(engine: Engine, stream: str, shards: int) -> None:
    """Make a stream as if it was made a day ago, or all of it would be known to lie within one span."""
    now = engine.clock
    engine.clock = lambda: now() - DAY_MS
    engine.create_stream(stream, shards)
    engine.clock = now


def fill(engine: Engine, line: str) -> int:
    """Make a stream of user records, spread evenly over its shards; gives its Kinesis records.

    They arrived half a day ago, as fast as shards take them, however fast this machine makes them.
    """
    stream, told_shards, kind, *numbers = line.split()
    shards, (count, size) = int(told_shards), map(int, numbers)
    draw = random.Random(f"{kind} {size}")
    create_older(engine, stream, shards)
    if kind == "plain":
        blobs, records = [draw.randbytes(size) for _ in range(DISTINCT)], count
    else:
        blobs = [
            encode(
                [UserRecord(f"device-{n % KEYS}", draw.randbytes(size)) for n in range(PER_AGGREGATE)]
            ).data
            for _ in range(DISTINCT)
        ]
        records = count // PER_AGGREGATE
    now = engine.clock
    a_round_ms, begin_ms = len(blobs[0]) / SHARD_BYTES_PER_MS, now() - DAY_MS // 2
    for number in range(records):
        turn, place = divmod(number, shards)
        arrival_ms = begin_ms + int(turn * a_round_ms)
        engine.clock = lambda arrival_ms=arrival_ms: arrival_ms
        engine.put(stream, "a", blobs[number % DISTINCT], explicit_hash_key=(place << 128) // shards)
    engine.clock = now
    return records


def load(engine: Engine, line: str) -> int:
    """Make a stream of the records in a file; gives how many."""
    stream, told_shards, file = line.split()
    shards = int(told_shards)
    create_older(engine, stream, shards)
    with Path(file).open("rb") as lines:
        for record in lines:
            shard, data = record.split()
            engine.put(stream, "a", b64decode(data), explicit_hash_key=(int(shard) << 128) // shards)
    return len(engine.records(stream))


def answer(engine: Engine) -> None:
    """Do what standard input says until it ends."""
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        if word == "fill":
            print(fill(engine, rest), flush=True)
        elif word == "load":
            print(load(engine, rest), flush=True)
        elif word == "touch":
            for shard in engine.shards(rest):
                engine.put(rest, "a", b"now", explicit_hash_key=shard.low)
            print("touched", flush=True)
        elif word == "drop":
            engine.delete_stream(rest)
            print("dropped", flush=True)
        else:
            print(time.process_time(), flush=True)


def announce(url: str, engine: Engine) -> None:
    """Tell where it is, and begin to listen to orders."""
    print(url, flush=True)
    Thread(target=answer, args=(engine,), daemon=True).start()


READS = Limits(SERVICE_LIMITS.reads_per_second, SERVICE_LIMITS.read_bytes_per_second)
serve_forever(0, announce=announce, settings=Settings(limits=READS) if "limited" in sys.argv else None)
