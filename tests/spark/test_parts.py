"""A micro-batch in parts: the same lake, and less memory at a time."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from headpond.core.errors import MissingRequirement
from headpond.lake.apply import Applied, Chunks, DecodedBatch, apply_batch
from headpond.spark.following.parts import apply_as_it_comes, apply_in_parts, parts_of
from headpond.spark.sources.cells import FRAME_SCHEMA, Folder
from headpond.spark.sources.decoded import gather
from tests.lake.lakes import cells, lake_in
from tests.lake.test_pending import group

if TYPE_CHECKING:
    from collections.abc import Callable

    from headpond.lake.tables import Lake

TABLES = (
    '[tables."public.t"]\nkeys = ["id"]\ncolumns = { id = "bigint" }\n'
    '[tables."public.h"]\nkeys = ["id"]\nkeep = "history"\n[tables."public.l"]\nkeys = []\n'
)


def lines(count: int) -> list[bytes]:
    found = []
    for number in range(count):
        source = {"version": "1.0", "ts_ns": (number * 7) % count, "txId": str(number), "schema": "public"}
        source["table"] = "thl"[number % 3]
        body: dict[str, Any] = {
            "type": "full",
            "op": "c",
            "after": {"id": number % 11, "v": "x" * (number % 50)},
            "source": source,
        }
        if number % 10 == 3:
            body |= {"op": "d", "before": {"id": number % 11}, "after": None}
        data = b"{}" if number % 40 == 7 else json.dumps(body).encode()
        line = {"data": base64.b64encode(data).decode(), "shard": "s", "sequenceNumber": str(number)}
        line["approximateArrivalTimestamp"] = str(1_783_600_000_000 + number)
        found.append(json.dumps(line | {"approximateArrivalTimestamp": 1_783_600_000_000 + number}).encode())
    return found


def contents(lake: Lake) -> dict[str, list[str]]:
    files = {name: typed.file for name, typed in lake.typed.items()} | {"tombstones": lake.tombstones.file}
    files["quarantine"] = lake.quarantine.file
    return {name: sorted(map(repr, file.read().to_pylist())) for name, file in files.items()}


@pytest.mark.slow
def test_a_batch_in_parts_leaves_the_same_lake(tmp_path: Path) -> None:
    """Every table, tombstones, quarantine; in one part, in some, in as many as there are cells."""
    found, records = [], []
    for bound in (1 << 30, 40_000, 1):
        lake, config = lake_in(tmp_path / str(bound), TABLES)
        frame = cells(config, lines(120), parts=3)
        sizes: list[int] = []

        def apply(batch: DecodedBatch, lake: Lake = lake, sizes: list[int] = sizes) -> Applied:
            sizes.append(sum(rows.nbytes for rows in batch.tables.values()))
            return apply_batch(lake, batch, transaction=("q", 0))

        applied = apply_in_parts(frame, apply, bound)
        assert applied.batches == 1
        assert applied.counters["records"] == 120
        found.append(contents(lake))
        records.append(sizes)
    assert found[0] == found[1] == found[2]
    assert len(records[0]) == 1 < len(records[1]) < len(records[2]) == 12  # three tables and the quarantine
    assert max(records[1]) <= 40_000
    assert max(records[2]) < records[0][0] / 3


def test_what_is_no_row_comes_with_the_last_part(tmp_path: Path) -> None:
    """Chunks, counters, and how far reading has come; no cell is lost or doubled."""
    _, config = lake_in(tmp_path, TABLES)
    frame = cells(config, lines(240), parts=6)
    parts = list(parts_of(frame, 1))
    assert sum(part.num_rows for part in parts) == frame.num_rows
    assert pa.concat_tables(parts).sort_by("content").equals(frame.sort_by("content").combine_chunks())
    *before, last = map(gather, parts)
    assert all(not batch.newest_arrivals_us and not batch.counters for batch in before)
    assert last.newest_arrivals_us
    assert sum(batch.quarantine.num_rows for batch in (*before, last)) == 6
    assert [part.num_rows for part in parts_of(frame.slice(0, 0))] == [0]


def test_chunks_are_put_together_from_parts(tmp_path: Path) -> None:
    """Main records and fragments in different parts, as cells and as files, beside full changes."""
    chunked = [record for number in range(1, 9) for record in group(number, {"id": number, "v": "x" * 99}, 3)]
    whole = [*chunked[::4], *lines(40), *chunked[1::4], *chunked[2::4], *chunked[7::4]]  # one is not complete
    found = []
    for bound, as_files in ((1 << 30, False), (1, False), (1, True)):
        lake, config = lake_in(tmp_path / f"{bound}{as_files}", TABLES)
        seen: list[int] = []

        def apply(
            batch: DecodedBatch, lake: Lake = lake, config: object = config, seen: list[int] = seen
        ) -> Applied:
            seen.append(batch.pending.num_rows)
            return apply_batch(lake, batch, chunks=Chunks(config))  # type: ignore[arg-type]

        if as_files:
            folder = Folder()
            collect = partial(cells, config, whole, parts=4, folder=folder.path)
            applied = apply_as_it_comes(folder, collect, apply, part_bytes=bound)
        else:
            applied = apply_in_parts(cells(config, whole, parts=4), apply, bound)
        assert sum(part > 0 for part in seen) == (1 if bound > 1 else 3)
        statuses = sorted(map(repr, lake.pending.read(["chunk_id", "fragment_index", "status"]).to_pylist()))
        figures = [applied.counters[f"chunk_groups_{name}"] for name in ("completed", "open")]
        found.append((contents(lake), statuses, figures))
    assert found[0] == found[1] == found[2]
    assert found[0][2] == [7, 1]


def applying(lake: Lake, seen: list[int]) -> Callable[[DecodedBatch], Applied]:
    def apply(batch: DecodedBatch) -> Applied:
        seen.append(sum(rows.num_rows for rows in batch.tables.values()))
        return apply_batch(lake, batch, transaction=("q", 0))

    return apply


@pytest.mark.slow
def test_rows_handed_over_as_files_leave_the_same_lake(tmp_path: Path) -> None:
    """Applied before all is decoded, or after it; nothing is left of the files."""
    lake, config = lake_in(tmp_path / "cells", TABLES)
    wanted = apply_in_parts(cells(config, lines(120), parts=3), applying(lake, []))
    for part_bytes in (1, 1 << 30):
        other, _ = lake_in(tmp_path / str(part_bytes), TABLES)
        folder = Folder()
        seen: list[int] = []

        def collect(folder: Folder = folder, part_bytes: int = part_bytes) -> pa.Table:
            frames = []
            for start in range(0, 120, 40):
                frames.append(
                    cells(config, lines(120)[start : start + 40], first_line=start + 1, folder=folder.path)
                )
                until = time.monotonic() + 60
                while part_bytes == 1 and folder.waiting() and time.monotonic() < until:
                    time.sleep(0.01)
            return pa.concat_tables(frames)

        applied = apply_as_it_comes(folder, collect, applying(other, seen), part_bytes=part_bytes)
        assert contents(other) == contents(lake)
        assert applied.batches == 1
        assert applied.counters == wanted.counters
        assert applied.quarantined == wanted.quarantined
        assert len(seen) >= (4 if part_bytes == 1 else 2)
        assert [each.name for each in Path(folder.path).iterdir()] == ["lock"]


def test_parts_applied_early_are_bounded_too(tmp_path: Path) -> None:
    """However many files are there when a part that took its time is done."""
    _, config = lake_in(tmp_path, TABLES)
    folder = Folder()
    one = cells(config, lines(40), folder=folder.path)
    part_bytes = sum(each.size_bytes for each in folder.waiting())  # of three tables
    files = one.num_rows
    seen: list[int] = []
    begun, written = threading.Event(), threading.Event()

    def collect() -> pa.Table:
        frames = [cells(config, lines(40), folder=folder.path)]
        assert begun.wait(60)
        frames += [cells(config, lines(40), folder=folder.path) for _ in range(4)]
        written.set()
        until = time.monotonic() + 60
        while len(folder.waiting()) > files and time.monotonic() < until:
            time.sleep(0.01)
        return pa.concat_tables(frames)

    def slow(batch: DecodedBatch) -> Applied:
        begun.set()
        assert written.wait(60)
        seen.append(sum(rows.num_rows for rows in batch.tables.values()))
        return Applied()

    apply_as_it_comes(folder, collect, slow, part_bytes=part_bytes)
    in_files = 5 * 39  # one of 40 is refused
    assert sum(seen) == in_files
    assert max(seen) <= in_files / 3
    assert len(seen) >= 5


@pytest.mark.parametrize("as_files", [True, False])
def test_refused_records_are_bounded_too(tmp_path: Path, *, as_files: bool) -> None:
    """One wrong type in a pipeline refuses all changes of a table: a backlog of them took 4.6 GiB."""
    lake, config = lake_in(tmp_path, TABLES.replace('id = "bigint"', 'id = "boolean"'))
    folder, parts = Folder(), [lines(120)[start : start + 12] for start in range(0, 120, 12)]
    seen: list[int] = []

    def collect() -> pa.Table:
        return pa.concat_tables(
            cells(config, each, folder=folder.path if as_files else None) for each in parts
        )

    def apply(batch: DecodedBatch) -> Applied:
        seen.append(batch.quarantine.num_rows)
        return apply_batch(lake, batch, transaction=("q", 0))

    if as_files:
        applied = apply_as_it_comes(folder, collect, apply, part_bytes=1)
    else:
        applied = apply_in_parts(collect(), apply, part_bytes=1)
    assert sum(seen) == lake.quarantine.count() == sum(applied.quarantined.values()) == 42
    assert max(seen) <= 5


def test_a_batch_that_could_not_be_decoded_ends_with_its_error(tmp_path: Path) -> None:
    """Of decoding, and of a part that was applied meanwhile; what is left is not taken for the next batch."""
    lake, config = lake_in(tmp_path, TABLES)
    folder = Folder()

    def broken() -> pa.Table:
        cells(config, lines(40), folder=folder.path)
        raise RuntimeError("a worker died")

    with pytest.raises(RuntimeError, match="a worker died"):
        apply_as_it_comes(folder, broken, applying(lake, []))
    assert folder.waiting()
    seen: list[int] = []
    apply_as_it_comes(folder, FRAME_SCHEMA.empty_table, applying(lake, seen))
    assert seen == [0]

    def refused(_: DecodedBatch) -> Applied:
        raise ValueError("no merge")

    with pytest.raises(ValueError, match="no merge"):
        apply_as_it_comes(folder, lambda: cells(config, lines(40), folder=folder.path), refused, part_bytes=1)


def test_files_that_somebody_removed_are_missed(tmp_path: Path) -> None:
    """A batch is never applied without them."""
    lake, config = lake_in(tmp_path, TABLES)
    folder = Folder()

    def cleaned() -> pa.Table:
        frame = cells(config, lines(40), parts=3, folder=folder.path)
        for each in folder.waiting():
            (Path(folder.path) / each.file).unlink()
        return frame

    with pytest.raises(MissingRequirement, match="3 of 3 files of decoded rows were removed"):
        apply_as_it_comes(folder, cleaned, applying(lake, []))


@pytest.mark.slow
def test_a_folder_is_listed_while_its_files_are_taken(tmp_path: Path) -> None:
    """What is gone by the time that it is looked at is not waiting; it is no error of the listing."""
    _, config = lake_in(tmp_path, TABLES)
    folder = Folder()
    ended = threading.Event()
    taken: list[str] = []

    def taking() -> None:
        while not ended.is_set() or folder.waiting():
            for each in folder.waiting():
                folder.take(each.file)
                taken.append(each.file)

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(taking)
        try:
            for _ in range(100):
                cells(config, lines(4), folder=folder.path)
                folder.waiting()
        finally:
            ended.set()
        other.result()
    assert len(set(taken)) == len(taken) >= 100
    assert folder.waiting() == []


def test_rows_that_no_file_can_take_stay_in_their_cells(tmp_path: Path) -> None:
    """A folder that is not there, as with a full disk: slower, and the same."""
    _, config = lake_in(tmp_path, TABLES)
    assert cells(config, lines(40), folder=str(tmp_path / "absent")).equals(cells(config, lines(40)))


@pytest.mark.slow
def test_folders_of_killed_runs_are_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is in use stays; an ended one is gone at once."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = "import os; from headpond.spark.sources.cells import Folder; f = Folder(); print(f.path); {}"
    left = []
    for last in ("pass", "import sys; sys.stdout.flush(); os.kill(os.getpid(), 9)"):
        done = subprocess.run(
            [sys.executable, "-c", program.format(last)],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        left.append(Path(done.stdout.strip()))
    assert [place.exists() for place in left] == [False, True]
    mine = Folder()
    assert not left[1].exists()
    other = Folder()
    assert Path(mine.path).exists()
    place = Path(other.path)
    del other
    assert not place.exists()
