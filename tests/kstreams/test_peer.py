"""Kafka Streams itself, from Maven, as a peer: each reads what the other wrote, and what headpond migrated.

Kafka Streams 4.3.0 is the first release with header-aware stores; KIP-1300's is in none yet.
"""

from __future__ import annotations

import os
import random
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from headpond.kstreams import StoreDirectory, StoreSettings, ValueFormat, WindowBytesStore, migrate
from headpond.kstreams.bytes.window_values import decode_value, encode_value
from tests.kit.maven_jars import maven_jars

VERSION = "4.3.0"
HERE = Path(__file__).parent
PEER = HERE / "peer" / "Peer.java"
OLD_FORMATS = [ValueFormat.PLAIN, ValueFormat.TIMESTAMPED, ValueFormat.TIMESTAMPED_HEADERS]
SETTINGS = StoreSettings("win", 600_000, 60_000, retain_duplicates=True)
START = 1_700_000_000_000

pytestmark = pytest.mark.maven


@pytest.fixture(scope="module")
def jars() -> Path:
    """The peer's jars, fetched once by Maven."""
    artifacts = ("kafka-streams", "kafka-streams-test-utils")
    return maven_jars(
        f"kafka-streams-{VERSION}", [f"org.apache.kafka:{each}:{VERSION}" for each in artifacts]
    )


def ask(
    jars: Path, state: Path, value_format: ValueFormat, lines: list[str], copy_to: Path
) -> list[list[str]]:
    """Send lines to the peer; return the entries that it printed."""
    command = ["java", "-cp", f"{jars}/*", str(PEER), str(state), value_format.value, "true", str(copy_to)]
    environment = {**os.environ, "TZ": "UTC"}
    done = subprocess.run(
        command, input="\n".join(lines) + "\n", capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return [line.split("\t") for line in done.stdout.splitlines()]


def entries(seed: int) -> list[tuple[bytes, int, int, bytes, list[Any]]]:
    """Keys of several lengths, repeated headers, null values of headers, times within the retention."""
    chance = random.Random(seed)
    return [
        (
            b"k" * chance.randint(1, 3) + bytes([chance.randrange(256)]),
            start := START + chance.randrange(500_000),
            start,
            chance.randbytes(chance.randint(0, 40)),
            [
                (
                    chance.choice(["trace-id", "b"]),
                    chance.choice([None, chance.randbytes(chance.randint(0, 90))]),
                )
                for _ in range(chance.randint(0, 3))
            ],
        )
        for _ in range(200)
    ]


def headers_text(headers: Any) -> str:
    return ",".join(f"{name}={'null' if value is None else value.hex()}" for name, value in headers)


def as_words(key: bytes, start: int, value: tuple[bytes, int | None, Any]) -> list[str]:
    """An entry in the form in which the peer prints it."""
    plain, timestamp, headers = value
    return [
        key.hex(), str(start), "" if timestamp is None else str(timestamp), plain.hex(), headers_text(headers)
    ]  # fmt: skip


def write_ours(directory: Path, value_format: ValueFormat) -> None:
    store = WindowBytesStore(SETTINGS, value_format, directory)
    for key, start, timestamp, value, headers in entries(1):
        store.put(key, encode_value(value, timestamp, headers, value_format), start)
    store.close()


def listed(directory: Path) -> list[list[str]]:
    return [
        as_words(each.key.key, each.key.timestamp, (each.value, each.timestamp, each.headers))
        for each in StoreDirectory(directory).entries()
    ]


@pytest.mark.parametrize("value_format", OLD_FORMATS)
def test_we_read_what_kafka_streams_writes(value_format: ValueFormat, jars: Path, tmp_path: Path) -> None:
    """Listing and the store's own `all()` give what the peer's `all()` gives; so does the migrated one."""
    lines = [
        "\t".join(("put", key.hex(), str(start), str(timestamp), value.hex(), headers_text(headers)))
        for key, start, timestamp, value, headers in entries(2)
    ]
    printed = ask(jars, tmp_path / "state", value_format, [*lines, "dump"], tmp_path / "win")
    assert len(printed) == 200
    assert listed(tmp_path / "win") == printed
    store = WindowBytesStore(SETTINGS, value_format, tmp_path / "win")
    found = [as_words(key.key, key.timestamp, decode_value(data, value_format)) for key, data in store.all()]
    store.close()
    assert found == printed
    migrate(tmp_path / "win")
    without_time = [[*words[:2], "", *words[3:]] for words in printed]
    assert listed(tmp_path / "win") == without_time


@pytest.mark.parametrize("value_format", OLD_FORMATS)
def test_kafka_streams_reads_what_we_write(value_format: ValueFormat, jars: Path, tmp_path: Path) -> None:
    """The peer's store opens our directory, lists it as we do, and puts more into it."""
    directory = tmp_path / "state" / "peer" / "0_0" / "win"
    write_ours(directory, value_format)
    expected = listed(directory)
    assert ask(jars, tmp_path / "state", value_format, ["dump"], tmp_path / "copy") == expected


@pytest.mark.parametrize(
    ("old", "how"), list(product([ValueFormat.PLAIN, ValueFormat.TIMESTAMPED], ["offline", "in place"]))
)
def test_kafka_streams_reads_what_we_migrated(old: ValueFormat, how: str, jars: Path, tmp_path: Path) -> None:
    """A directory that we bring to timestamped+headers opens in the peer's store of that format."""
    directory = tmp_path / "state" / "peer" / "0_0" / "win"
    write_ours(directory, old)
    new = ValueFormat.TIMESTAMPED_HEADERS
    if how == "offline":
        migrate(directory, target=new)
    else:
        # Range reads convert and move nothing; new puts go to the new column family beside the old one.
        store = WindowBytesStore(SETTINGS, new, directory)
        store.put(b"new", encode_value(b"v", START, [("k", b"1")], new), START)
        store.close()
    store = WindowBytesStore(SETTINGS, new, directory)
    expected = [as_words(key.key, key.timestamp, decode_value(data, new)) for key, data in store.all()]
    store.close()
    assert len(expected) == 200 + (how == "in place")
    assert ask(jars, tmp_path / "state", new, ["dump"], tmp_path / "copy") == expected
