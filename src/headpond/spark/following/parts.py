"""One micro-batch applied in parts: what the driver holds at a time does not grow with the batch.

::

    cells of a batch   [t 40 MiB] [t 40 MiB] [u 20 MiB] [quarantine 9 MiB] [figures]
    parts              └───── 80 MiB ──────┘ └─────────── the last: all the rest ──┘

Rows of a part take several times their size while they are compared and merged. The final tables do not
depend on the cuts. Where rows come as files (`sources.cells`), parts are applied while others are still
decoded: a batch that fails in between has applied some of its parts, and comes again whole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.errors import MissingRequirement
from headpond.lake.apply import Applied
from headpond.lake.target import DecodedBatch, in_parts
from headpond.spark.sources.cells import DecodedFile, Folder
from headpond.spark.sources.decoded import FILE, ROWS, batch_of, gather

PART_BYTES = 192 << 20
"""Decoded rows applied at a time, about: at least one cell, which is what an executor decoded at a time.

Every part rewrites what it touches, in a table of random keys all of it. A backlog of a million changes
took 18 s of computing in the driver by 56 MiB at a time, 12.5 by 96, 7 by 192 and 6 by 400; the driver's own
memory was 600 MiB at most by 48 or 96, 710 by 192.
"""
PAUSE_S = 0.05
"""How long the driver waits for another file."""


def parts_of(frame: pa.Table, part_bytes: int = PART_BYTES) -> Iterator[pa.Table]:
    """Cut collected cells into parts, in their order; figures come with the last."""
    is_rows = pc.is_in(frame["kind"], pa.array(ROWS)).to_pylist()
    sizes = pc.binary_length(frame["content"]).to_pylist()
    rows, others = ([row for row, each in enumerate(is_rows) if each is kind] for kind in (True, False))
    *parts, last = list(in_parts(rows, sizes.__getitem__, part_bytes)) or [[]]
    for part in (*parts, [*last, *others]):
        yield pa.concat_tables([frame.slice(0, 0), *(frame.slice(row, 1) for row in part)])


def apply_in_parts(
    frame: pa.Table, apply: Callable[[DecodedBatch], Applied], part_bytes: int = PART_BYTES
) -> Applied:
    """Apply the cells of one micro-batch.

    Returns:
        Figures of all parts, counted as one batch.
    """
    applied = Applied()
    for part in parts_of(frame, part_bytes):
        applied.add(apply(gather(part)))
    applied.batches = 1
    return applied


def apply_as_it_comes(
    folder: Folder,
    collect: Callable[[], pa.Table],
    apply: Callable[[DecodedBatch], Applied],
    *,
    part_bytes: int = PART_BYTES,
) -> Applied:
    """Apply one micro-batch whose rows come as files, the first ones before the last are there.

    Returns:
        Figures of all parts, counted as one batch.
    """
    folder.begin()
    applied = Applied()
    decoded = threading.Event()

    def early() -> None:
        while not decoded.is_set():
            waiting = folder.waiting()
            if sum(each.size_bytes for each in waiting) < part_bytes:
                decoded.wait(PAUSE_S)
            else:
                # More may be there than a part has room for: decoding went on while the last one was applied.
                applied.add(apply(_taken(folder, next(_parts_of_files(waiting, part_bytes)))))

    with ThreadPoolExecutor(1, thread_name_prefix="headpond-early") as pool:
        ahead = pool.submit(early)
        try:
            frame = collect()
        finally:
            decoded.set()
        ahead.result()
    by_name = {each.file: each for each in folder.waiting()}
    named = frame.filter(pc.equal(frame["kind"], FILE))["name"].to_pylist()
    # Only what a finished task tells of belongs to the batch.
    left = [name for name in named if not folder.was_taken(name)]
    if gone := [name for name in left if name not in by_name]:
        raise MissingRequirement(
            f"{len(gone)} of {len(named)} files of decoded rows were removed from {folder.path} before they "
            "were applied.",
            next_step="Start again, which is safe, with TMPDIR set to a folder that nobody cleans meanwhile.",
            folder=folder.path,
        )
    for part in _parts_of_files([by_name[name] for name in left], part_bytes):
        applied.add(apply(_taken(folder, part)))
    rest = frame.filter(pc.not_equal(frame["kind"], FILE))
    applied.add(apply_in_parts(rest, apply, part_bytes))
    applied.batches = 1
    return applied


def _parts_of_files(files: list[DecodedFile], part_bytes: int) -> Iterator[list[DecodedFile]]:
    return in_parts(files, lambda each: each.size_bytes, part_bytes)


def _taken(folder: Folder, files: list[DecodedFile]) -> DecodedBatch:
    return batch_of(rows for each in files for rows in folder.take(each.file))
