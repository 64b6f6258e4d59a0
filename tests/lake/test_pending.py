"""Chunked changes within bounds: what waits, what is read of it, and what is too large."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import crc32c
import pytest

from headpond.lake.apply import Chunks, apply_batch
from headpond.lake.delta import DeltaFile
from headpond.lake.maintenance.requeue import requeue
from headpond.lake.state.pending import PendingTable
from tests.kit.support import vector_lines
from tests.lake.lakes import decoded, lake_in
from tests.lake.test_apply import tables_of_case

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from headpond.lake.tables import Lake

ENTRY = '[tables."public.t"]\nkeys = ["id"]\ncolumns = { id = "bigint", v = "text" }\n'
CASES = [case for case in vector_lines("dsql/cases.jsonl") if case["name"].startswith("chunk")]
START = datetime(2026, 1, 1, tzinfo=UTC)
FIXTURES = Path(__file__).parent.parent / "fixtures"


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
def test_groups_that_are_read_one_by_one_end_as_those_that_are_read_at_once(
    case: dict[str, Any], tmp_path: Path
) -> None:
    """Every case of the vectors, whole and timed out: rows, quarantine with its bytes, what still waits."""
    lines = [json.dumps(record).encode() for record in case["records"]]
    size = sum(len(line) for line in lines)
    last = max(record["approximateArrivalTimestamp"] for record in case["records"]) / 1000
    late = datetime.fromtimestamp(last, UTC) + timedelta(hours=2)
    found = []
    for name, most in (("large", 1 << 20), ("small", size)):
        lake, config = lake_in(tmp_path / name, tables_of_case(case))
        for start in range(0, len(lines), 2):
            feed(lake, Chunks(config, max_bytes=most), lines[start : start + 2])
        told = [outcome(lake)]
        feed(lake, Chunks(config, max_bytes=most, now=late), [])
        found.append([*told, outcome(lake)])
    assert found[0] == found[1]


def test_nothing_of_a_group_is_read_before_a_batch_touches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planning reads outlines; of the group that is touched each record is read once."""
    lake, config = lake_in(tmp_path, ENTRY)
    chunks = Chunks(config)
    one, other = group(1, {"id": 1, "v": "x" * 2000}, 5), group(2, {"id": 2}, 2)
    feed(lake, chunks, [*one[:3], *other[:2]])
    read: list[str] = []

    def spy(self: DeltaFile, columns: Any = None, where: str | None = None) -> Any:
        if "pending" in self.uri and (columns is None or "data" in columns):
            read.append(where or "everything")
        return plain(self, columns, where)

    plain = DeltaFile.read
    monkeypatch.setattr(DeltaFile, "read", spy)
    feed(lake, chunks, other[2:])
    assert [(where.count("'10"), where.count("'20")) for where in read] == [(0, 2)]
    assert lake.typed["public.t"].file.count() == 1


def test_fragments_of_a_change_that_is_whole_at_once_are_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its main record is, which tells copies; those of a change that lacks a fragment are, too."""
    lake, config = lake_in(tmp_path, ENTRY)
    chunks = Chunks(config)
    one, other = group(1, {"id": 1}, 2), group(2, {"id": 2}, 2)
    written: list[str] = []

    def spy(self: PendingTable, rows: pa.Table, **more: Any) -> int:
        written.extend(rows["sequence_number"].to_pylist())
        return plain(self, rows, **more)

    plain = PendingTable.add
    monkeypatch.setattr(PendingTable, "add", spy)
    feed(lake, chunks, [*one, *other[:2]])
    assert sorted(written) == ["100", "200", "201"]
    applied = feed(lake, chunks, [*one, *other])  # copies of all, and the one that lacked
    assert applied.counters["chunk_groups_completed"] == 1
    assert sorted(written[3:]) == ["100", "200"]
    assert lake.typed["public.t"].file.count() == 2
    statuses = lake.pending.read(["sequence_number", "status"]).to_pylist()
    assert statuses == [{"sequence_number": n, "status": "finished"} for n in ("100", "200")]


BOUNDS = [{"max_bytes": 5_000}, {"max_records": 5}]


@pytest.mark.slow
@pytest.mark.parametrize("order", ["main first", "main last", "main between"])
@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: next(iter(bound)))
def test_a_group_beyond_the_bounds_goes_to_quarantine_with_its_bytes(
    bound: dict[str, int], order: str, tmp_path: Path
) -> None:
    """By its size or its number of records, in any order, one record a batch; others are not touched."""
    lake, config = lake_in(tmp_path, ENTRY)
    chunks = Chunks(config, **bound)  # type: ignore[arg-type]
    large, fine = group(1, {"id": 1, "v": "x" * 6000}, 6), group(2, {"id": 2, "v": "x"}, 2)
    lines = {"main first": large, "main last": large[::-1], "main between": [*large[3:], *large[:3]]}[order]
    feed(lake, chunks, fine[:2])
    for each in lines:
        feed(lake, chunks, [each])
    feed(lake, chunks, fine[2:])
    assert lake.typed["public.t"].file.read(["id"])["id"].to_pylist() == [2]
    refused = lake.quarantine.read(["reason", "detail", "data"]).to_pylist()
    assert {row["reason"] for row in refused} == {"chunks_too_large"}
    assert all(f"more than the {next(iter(bound.values()))} allowed" in row["detail"] for row in refused)
    feed(lake, replace(chunks, now=START + timedelta(hours=2)), [])
    kept = {row["data"] for row in lake.quarantine.read(["data"]).to_pylist()}
    assert kept == {base64.b64decode(json.loads(each)["data"]) for each in large}
    assert lake.pending.open_groups() == 0


@pytest.mark.slow
def test_copies_do_not_make_a_group_too_large(tmp_path: Path) -> None:
    """All of it five times in one batch, or in many, ends as if it had come once."""
    for name, cut in (("at once", 100), ("in batches", 3)):
        lake, config = lake_in(tmp_path / name, ENTRY)
        lines = group(1, {"id": 1, "v": "x" * 3000}, 3)
        again = [
            json.dumps(json.loads(each) | {"sequenceNumber": str(number)}).encode()
            for number, each in enumerate(lines[:3] * 5, 1000)
        ]
        told = [*again, lines[3]]
        for start in range(0, len(told), cut):
            feed(lake, Chunks(config, max_bytes=5_000, max_records=4), told[start : start + cut])
        assert lake.typed["public.t"].file.count() == 1
        assert lake.quarantine.count() == 0


@pytest.mark.slow
def test_versions_without_end_are_bounded(tmp_path: Path) -> None:
    """Other data for one fragment over and over: it waits up to the bound, and is in quarantine then."""
    lake, config = lake_in(tmp_path, ENTRY)
    chunks = Chunks(config, max_bytes=5_000)
    for number in range(20):
        data = {"type": "fragment", "chunk_id": "v", "index": 0, "data": str(number) * 900}
        feed(lake, chunks, [line(number, data)])
    assert lake.pending.count() + lake.quarantine.count() == 20
    assert lake.pending.count() <= 5


def test_what_was_too_large_can_be_fed_in_again_with_another_bound(tmp_path: Path) -> None:
    """All of it is there: a wider bound makes it a row."""
    lake, config = lake_in(tmp_path, ENTRY)
    feed(lake, Chunks(config, max_bytes=2_000), group(1, {"id": 1, "v": "x" * 3000}, 3))
    assert dict(lake.quarantine.counts_by("reason")) == {"chunks_too_large": 4}
    done = requeue(lake, "chunks_too_large", chunks=Chunks(config))
    assert (done.left, lake.typed["public.t"].file.count(), lake.pending.count()) == (4, 1, 0)


def test_an_old_pending_table_goes_on(tmp_path: Path) -> None:
    """Groups that waited, failed and were finished under 5061b28 complete, are mended, know copies."""
    shutil.copytree(FIXTURES / "chunks-v0.1", tmp_path, dirs_exist_ok=True)
    lake, config = lake_in(tmp_path, ENTRY)
    assert (lake.pending.count(), lake.pending.open_groups()) == (
        2,
        1,
    )  # three failed: those are in quarantine
    waiting, failed, finished = (
        group(1, {"id": 1, "v": "waits"}, 3),
        group(2, {"id": 2, "v": "fails"}, 2),
        group(3, {"id": 3, "v": "is whole"}, 2),
    )
    better = json.dumps(json.loads(failed[1]) | {"sequenceNumber": "299"}).encode()
    late = json.dumps(json.loads(finished[2]) | {"sequenceNumber": "399"}).encode()
    feed(lake, Chunks(config), [waiting[2], waiting[3], better, late])
    assert sorted(lake.typed["public.t"].file.read(["id"])["id"].to_pylist()) == [1, 2, 3]
    assert lake.quarantine.counts_by("reason") == {"checksum_mismatch": 3, "fragment_conflict": 1}
    assert lake.pending.read(["status"])["status"].to_pylist() == ["finished"] * 3


CHILD = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from tests.kit.support import peak_kib
from tests.lake.test_pending import ENTRY, feed, group, lake_in
from headpond.lake.apply import Chunks
folder, size = Path({folder!r}), {size}
lake, config = lake_in(folder, ENTRY)
chunks = Chunks(config)
for part in group(1, {{"id": 1, "v": "x" * size}}, -(-size // (9 << 20))):
    feed(lake, chunks, [part])
assert lake.typed["public.t"].file.query(['max(octet_length(v)) AS n'])["n"].to_pylist() == [size]
assert (lake.pending.count(), lake.quarantine.count()) == (0, 0)
print(peak_kib())
"""


@pytest.mark.thorough
def test_what_a_large_image_needs_of_memory_is_some_times_its_size(tmp_path: Path) -> None:
    """Forty mebibytes in fragments of nine, each in a batch of its own."""
    peaks = []
    for size in (1 << 20, 40 << 20):
        program = CHILD.format(path=sys.path, folder=str(tmp_path / str(size)), size=size)
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout.split()[-1]) << 10)
    # The text, its typed row and its merge: some 13 times the image, whatever else waits.
    assert peaks[1] - peaks[0] < 20 * (40 << 20)
