"""Chunked changes within bounds: through a file what is larger than the memory, and so much may wait."""

from __future__ import annotations

import base64
import json
import random
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import crc32c
import pytest
from lakes import decoded, lake_in
from test_apply import STREAM, STREAM_EXPECTED, tables_of, tables_of_case

from headpond.cli.expected import differences
from headpond.tables.apply import Chunks, apply_batch
from headpond.tables.delta import DeltaFile
from headpond.tables.requeue import requeue
from headpond.tables.spill import SpilledTexts
from support import vector_lines

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from headpond.tables.lake import Lake

ENTRY = '[tables."public.t"]\nkeys = ["id"]\ncolumns = { id = "bigint", v = "text" }\n'
CASES = [case for case in vector_lines("dsql/cases.jsonl") if case["name"].startswith("chunk")]
START = datetime(2026, 1, 1, tzinfo=UTC)


def line(number: int, record: dict[str, Any], *, minute: float = 0) -> bytes:
    data = base64.b64encode(json.dumps(record).encode()).decode()
    arrival = (START + timedelta(minutes=minute)).timestamp()
    return json.dumps(
        {"shardId": "s", "sequenceNumber": str(number), "data": data, "approximateArrivalTimestamp": arrival}
    ).encode()


def group(number: int, image: dict[str, Any], parts: int, *, minute: float = 0) -> list[bytes]:
    """A main record and its fragments."""
    text = json.dumps(image)
    size = -(-len(text) // parts)
    source = {"version": "1.0", "ts_ns": number, "txId": "t", "schema": "public", "table": "t"}
    chunked = {
        "chunk_id": f"g{number}",
        "total_fragments": parts,
        "crc32c": str(crc32c.crc32c(text.encode())),
    }
    records: list[dict[str, Any]] = [
        {"type": "chunked", "op": "c", "source": source, "chunked": {"after": chunked}}
    ]
    records += [
        {"type": "fragment", "chunk_id": f"g{number}", "index": n, "data": text[n * size : (n + 1) * size]}
        for n in range(parts)
    ]
    return [line(number * 100 + n, record, minute=minute) for n, record in enumerate(records)]


def feed(lake: Lake, chunks: Chunks, lines: Sequence[bytes]) -> Any:
    return apply_batch(lake, decoded(chunks.config, lines), chunks=chunks)


def outcome(lake: Lake) -> Any:
    tables = {name: sorted(map(repr, typed.file.read().to_pylist())) for name, typed in lake.typed.items()}
    quarantine = lake.quarantine.read(["reason", "detail", "sequence_number", "data"]).to_pylist()
    pending = lake.pending.read(["sequence_number", "status", "data"]).to_pylist()
    return tables, *(sorted(map(repr, rows)) for rows in (quarantine, pending))


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_group_larger_than_the_memory_ends_as_any_other(case: dict[str, Any], tmp_path: Path) -> None:
    """Every case of the vectors, whole and timed out: rows, quarantine with its bytes, what still waits."""
    lines = [json.dumps(record).encode() for record in case["records"]]
    last = max(record["approximateArrivalTimestamp"] for record in case["records"]) / 1000
    late = datetime.fromtimestamp(last, UTC) + timedelta(hours=2)
    found = []
    for name, memory in (("memory", 1 << 20), ("file", 1)):
        lake, config = lake_in(tmp_path / name, tables_of_case(case))
        for start in range(0, len(lines), 2):
            feed(lake, Chunks(config, memory_bytes=memory), lines[start : start + 2])
        told = [outcome(lake)]
        feed(lake, Chunks(config, memory_bytes=memory, now=late), [])
        found.append([*told, outcome(lake)])
    assert found[0][1] == found[1][1]
    # Before the time is over, copies and what does not belong may wait a little longer with the file.
    (tables, refused, waiting), (spilled, refused_then, waiting_then) = found[0][0], found[1][0]
    assert tables == spilled
    assert set(refused_then) <= set(refused)
    assert set(waiting) <= set(waiting_then)


@pytest.mark.thorough
def test_the_stream_through_the_file_gives_its_tables(tmp_path: Path) -> None:
    """Every group is too large; batches in any order, some of them twice."""
    draw = random.Random(4)
    lake, config = lake_in(tmp_path, tables_of(STREAM_EXPECTED))
    lines = draw.sample(STREAM, len(STREAM))
    for start in range(0, len(lines), 500):
        for _ in range(draw.randint(1, 2)):
            feed(lake, Chunks(config, memory_bytes=1), lines[start : start + 500])
    assert differences(lake, STREAM_EXPECTED) == []
    assert (lake.pending.count(), lake.quarantine.count()) == (0, 0)


def test_nothing_of_a_large_group_is_read_before_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its main record is."""
    lake, config = lake_in(tmp_path, ENTRY)
    chunks = Chunks(config, memory_bytes=100)
    lines = group(1, {"id": 1, "v": "x" * 2000}, 5)
    feed(lake, chunks, lines[:3])
    read: list[str] = []

    def spy(self: DeltaFile, columns: Any = None, where: str | None = None) -> Any:
        if "pending" in self.uri and (columns is None or "data" in columns):
            read.append(where or "everything")
        return plain(self, columns, where)

    plain = DeltaFile.read
    monkeypatch.setattr(DeltaFile, "read", spy)
    feed(lake, chunks, lines[3:5])
    assert [where.count("'10") for where in read] == [1]
    feed(lake, chunks, lines[5:])
    assert lake.typed["public.t"].file.count() == 1


def test_what_waits_too_much_is_given_up_the_oldest_first_and_can_be_fed_in_again(tmp_path: Path) -> None:
    """With the bound in the detail, all bytes kept, newer groups untouched."""
    lake, config = lake_in(tmp_path, ENTRY)
    groups = [group(n, {"id": n, "v": "x" * 3000}, 3, minute=n) for n in (1, 2, 3)]
    size = sum(len(json.loads(each)["data"]) * 3 // 4 for each in groups[0][:3])
    chunks = Chunks(config, disk_bytes=2 * size + size // 2)
    feed(lake, chunks, [*groups[0][:3], *groups[1][:3]])
    assert lake.quarantine.count() == 0
    applied = feed(lake, chunks, groups[2][:3])
    assert applied.quarantined == {"incomplete_chunks": 3}
    kept = lake.quarantine.read(["sequence_number", "detail", "data"]).to_pylist()
    assert {row["sequence_number"] for row in kept} == {"100", "101", "102"}
    assert all(f"more than chunk_disk allows ({chunks.disk_bytes})" in row["detail"] for row in kept)
    assert {row["data"] for row in kept} == {
        base64.b64decode(json.loads(each)["data"]) for each in groups[0][:3]
    }
    assert lake.pending.count() == 6
    feed(lake, chunks, [groups[1][3], groups[2][3]])
    assert sorted(lake.typed["public.t"].file.read(["id"])["id"].to_pylist()) == [2, 3]
    feed(lake, chunks, [groups[0][3]])
    done = requeue(lake, config, "incomplete_chunks", chunks=chunks)
    assert (done.left, lake.typed["public.t"].file.count(), lake.pending.count()) == (3, 3, 0)


def test_one_group_larger_than_the_disk_is_given_up_whole(tmp_path: Path) -> None:
    """Fragments without a main record; those that a batch just brought among them."""
    lake, config = lake_in(tmp_path, ENTRY)
    chunks = Chunks(config, memory_bytes=100, disk_bytes=2_000)
    lines = group(1, {"id": 1, "v": "x" * 3000}, 3)
    feed(lake, chunks, lines[1:2])
    assert lake.pending.count() == 1
    applied = feed(lake, chunks, lines[2:3])
    assert applied.quarantined == {"orphan_fragment": 2}
    assert (lake.pending.count(), lake.quarantine.count()) == (0, 2)
    assert None not in lake.quarantine.read(["data"])["data"].to_pylist()


def test_texts_in_a_file_are_told_apart_and_joined() -> None:
    """Equal texts are one piece, in one place; the checksum is that of the whole."""
    with SpilledTexts() as texts:
        pieces = [texts.put(text) for text in ("a", "ü" * 3_000_000, "", "a")]
        assert pieces[0] == pieces[3]
        assert len({*pieces}) == 3
        assert texts.size_bytes == 6_000_001
        whole = "a" + "ü" * 3_000_000 + "a"
        assert texts.joined(pieces) == whole
        assert texts.crc32c(pieces) == crc32c.crc32c(whole.encode())


CHILD = """
import resource, sys
sys.path[:0] = {path!r}
from pathlib import Path
from test_reassembly import ENTRY, feed, group, lake_in
from headpond.tables.apply import Chunks
folder, memory, size = Path({folder!r}), {memory}, {size}
lake, config = lake_in(folder, ENTRY)
chunks = Chunks(config, memory_bytes=memory)
for part in group(1, {{"id": 1, "v": "x" * size}}, -(-size // (9 << 20))):
    feed(lake, chunks, [part])
assert lake.typed["public.t"].file.query(['max(octet_length(v)) AS n'])["n"].to_pylist() == [size]
assert (lake.pending.count(), lake.quarantine.count()) == (0, 0)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.thorough
def test_forty_mebibytes_come_out_of_eight_of_memory(tmp_path: Path) -> None:
    """Fragments of 9 MiB, each larger than the bound; what one image needs is all that is needed."""
    peaks = []
    for size in (1 << 20, 40 << 20):
        program = CHILD.format(path=sys.path, folder=str(tmp_path / str(size)), memory=8 << 20, size=size)
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout.split()[-1]) << 10)
    # The text, its typed row and its merge: some 13 times the image, whatever else waits.
    assert peaks[1] - peaks[0] < 20 * (40 << 20)
