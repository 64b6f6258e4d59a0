"""Cut the power of a simulated disk at any moment of a stream's batches, and go on with what it leaves.

    python -m tests.lake.power [--cuts 500] [--seconds S] [--seed N]

::

    synced with `fsync`:     the content of a file · the names in a folder        what a cut leaves for sure
    not synced:              a name is the old or the new one, or gone;           as the draw has it, in any
                             a content is empty, cut, of zeros, or whole          order

The moments are each `fsync`, each write of a batch, and each file of the checkpoint, which is written as
Spark does: beside, then renamed, never synced. Whoever finds a file of the checkpoint torn does what
`headpond repair` does; nothing else is repaired.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import stat
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from headpond.lake.apply import Chunks, apply_batch
from headpond.lake.engine import merge
from headpond.lake.maintenance.regular import TIDY_MS, Maintenance
from headpond.lake.state.run_mark import mark_in
from headpond.spark.following.checkpoint import standing, take_away, torn_file
from tests.lake.killed_child import BATCHES, lines, pipeline
from tests.lake.lakes import decoded, lake_in, watched

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headpond.lake.delta import DeltaFile
    from headpond.lake.tables import Lake

PROPERTIES = '{ "delta.checkpointInterval" = "3" }'
"""So that logs are shortened between the batches, too."""


class PowerCutError(BaseException):
    """The machine is off: nobody handles that."""


@dataclass
class Disk:
    """A folder, and what of it a cut leaves for sure: contents by inode, names by folder.

    `shadow` is a folder that keeps each file that was synced under its inode, so that none comes again.
    """

    root: Path
    shadow: Path
    cut_at: int | None = None
    draw: random.Random = field(default_factory=random.Random)
    contents: dict[int, bytes] = field(default_factory=dict)
    names: dict[Path, dict[str, int]] = field(default_factory=dict)
    moments: int = 0
    left: Path | None = None

    def __post_init__(self) -> None:
        self.shadow.mkdir(parents=True, exist_ok=True)

    def settle(self) -> None:
        """Everything that is there is on disk, as hours later."""
        for folder, _, files in os.walk(self.root):
            self._sync(Path(folder))
            for name in files:
                self._sync(Path(folder, name))

    def fsync(self, handle: int) -> None:
        """Stand in for `os.fsync`."""
        self.moment()
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))  # noqa: PTH115 - pathlib reads the link as well
        if path.is_relative_to(self.root):
            self._sync(path)

    def moment(self, _: str = "") -> None:
        """Pass a moment at which the power may fail."""
        if self.left is not None:
            raise PowerCutError
        if self.moments == self.cut_at:
            self.left = self.root.with_name(f"{self.root.name}+")
            self._leave(self.root, self.left)
            raise PowerCutError
        self.moments += 1

    def _sync(self, path: Path) -> None:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            self.names[path] = self._names(path)
            return
        self._keep(path, found.st_ino)
        self.contents[found.st_ino] = path.read_bytes()

    def _names(self, folder: Path) -> dict[str, int]:
        names = {}
        for each in os.scandir(folder):
            names[each.name] = -1 if each.is_dir() else each.inode()
            if not each.is_dir():
                self._keep(Path(each.path), each.inode())
        return names

    def _keep(self, path: Path, inode: int) -> None:
        kept = self.shadow / str(inode)
        if not kept.exists():
            kept.hardlink_to(path)

    def _leave(self, folder: Path, to: Path) -> None:
        to.mkdir()
        surely, now = self.names.get(folder, {}), self._names(folder)
        for name in sorted({*surely, *now}):
            kept = surely.get(name) if self.draw.random() < 0.5 else now.get(name)
            if kept == -1:
                # A folder that was removed and came back is empty: nothing that is asked for was in it.
                self._leave(folder / name, to / name) if (folder / name).exists() else (to / name).mkdir()
            elif kept is not None:
                (to / name).write_bytes(self._content(kept))

    def _content(self, inode: int) -> bytes:
        now, synced = (self.shadow / str(inode)).read_bytes(), self.contents.get(inode)
        if now == synced:
            return now
        cut = now[: self.draw.randrange(len(now) + 1)]
        return self.draw.choice([b"", cut, cut + bytes(len(now) - len(cut)), now, synced or b""])


@contextmanager
def powered(disk: Disk) -> Iterator[None]:
    """Have `fsync` be that of the disk; small files get deletion vectors, too."""
    with mock.patch.object(os, "fsync", disk.fsync), mock.patch.object(merge, "SMALL_BYTES", 0):
        yield


def tables(draw: random.Random) -> str:
    """Return the stream's tables, with what else decides about their files drawn."""
    first, _, entries = pipeline().partition("\n")
    more = f"deletion_vectors = {'true' if draw.random() < 0.5 else 'false'}\n"
    if draw.random() < 0.3:
        entries = entries.replace('\nkeys = ["', f'\nbuckets = {draw.randrange(2, 4)}\nkeys = ["')
    return f"{first}\n[defaults]\ntable_properties = {PROPERTIES}\n{more}{entries}"


def put(disk: Disk, path: Path, content: str) -> None:
    """Write a file of the checkpoint as Spark does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.tmp")
    new.write_text(content)
    disk.moment()
    new.replace(path)
    disk.moment()


def go_on(disk: Disk, text: str, fed: list[bytes], draw: random.Random) -> Counter[str]:
    """Start again where the checkpoint stands, and apply what is left; return what had to be repaired."""
    repaired = Counter[str]()
    folder, checkpoint = disk.root, disk.root / "lake" / "_headpond" / "checkpoint"
    number = 0
    while (torn := torn_file(str(checkpoint))) is not None:
        number += 1
        repaired[torn.name.partition("/")[0]] += 1
        take_away(str(checkpoint), torn, str(folder / f"kept-{time.monotonic_ns()}"))
        assert number < 9
    stands = standing(str(checkpoint))
    lake, config = lake_in(folder, text)
    mark = mark_in(lake.path)
    mark.refuse_another()
    mark.write(state="running", batch_id=stands.batch_id)
    if not (checkpoint / "metadata").exists():
        put(disk, checkpoint / "metadata", '{"id":"a"}')
    size = -(-len(fed) // BATCHES)
    for batch in range(-1 if stands.batch_id is None else stands.batch_id, BATCHES - 1):
        begun = batch + 1
        put(disk, checkpoint / "offsets" / str(begun), f'v1\n{{"batchWatermarkMs":0}}\n{{"batch":{begun}}}')
        some = decoded(config, fed[begun * size : (begun + 1) * size], first_line=begun * size + 1)
        apply_batch(watched(lake, disk.moment), some, chunks=Chunks(config), transaction=("run", begun))
        put(disk, checkpoint / "commits" / str(begun), 'v1\n{"nextBatchWatermarkMs":0}')
        mark.write(state="running", batch_id=begun)
        if draw.random() < 0.3:
            maintain(lake)
    return repaired


def maintain(lake: Lake) -> None:
    """Compact all tables, shorten their logs, and remove old files, as a day later."""
    times = iter(range(10**13, 2 * 10**13, TIDY_MS + 1))
    keeper = Maintenance(lake, nullcontext, retain_ms=0, now_ms=lambda: next(times))
    for _ in lake.places():
        keeper.do_due()


def everything(folder: Path, text: str) -> dict[str, list[str]]:
    """Every table of a lake, without the order of rows and columns."""
    lake, _ = lake_in(folder, text)
    return {name: rows_of(file) for name, file in lake.files()}


def rows_of(file: DeltaFile) -> list[str]:
    """Rows as texts, in order."""
    rows = file.read()
    return sorted(map(repr, rows.select(sorted(rows.column_names)).to_pylist()))


def cut_and_go_on(folder: Path, seed: int, cuts: int) -> Counter[str]:
    """Go through the stream with so many cuts one after the other; return what they met.

    Raises:
        AssertionError: a table is not as it is without cuts.
        Exception: what is left cannot be gone on with.
    """
    draw = random.Random(seed)
    text, fed = tables(draw), lines(draw.randrange(150, 400), seed)
    met: Counter[str] = Counter()
    calm = Disk(folder / "calm", folder / "calm-shadow")
    (calm.root / "lake").mkdir(parents=True)
    with powered(calm):
        go_on(calm, text, fed, random.Random(seed))
        wanted = everything(calm.root, text)
    root = folder / "torn"
    (root / "lake").mkdir(parents=True)
    left = calm.moments
    for number in range(cuts + 1):
        at = draw.randrange(max(left // draw.choice((1, 3, 9)), 9)) if number < cuts else None
        disk = Disk(root, folder / f"shadow{number}", at, draw)
        disk.settle()
        with powered(disk):
            try:
                met += Counter({f"repaired {name}": n for name, n in go_on(disk, text, fed, draw).items()})
                met["ends"] += 1
                break
            except PowerCutError:
                met["cuts"] += 1
                assert disk.left is not None
                root, left = disk.left, left - disk.moments // 2
    with powered(Disk(root, folder / "shadow")):
        torn = everything(root, text)
    assert torn.keys() == wanted.keys()
    for name, rows in wanted.items():
        differs = set(torn[name]) ^ set(rows)
        assert [each[:600] for each in sorted(differs)[:4]] == [], name
        assert len(torn[name]) == len(rows), name
    return met


def main() -> int:
    """Cut until there were so many."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cuts", type=int, default=500)
    parser.add_argument("--seed", type=int, default=time.time_ns() // 1_000_000_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--most-wrong", type=int, default=3)
    given = parser.parse_args()
    met, seed, wrong = Counter[str](), given.seed, 0
    begun = time.monotonic()
    while met["cuts"] < given.cuts and wrong < given.most_wrong and time.monotonic() < begun + given.seconds:
        folder = Path(tempfile.mkdtemp(prefix="headpond-power-"))
        try:
            met += cut_and_go_on(folder, seed, 4 + seed % 8)
        except Exception as error:  # noqa: BLE001 - all are counted
            wrong += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:1000]}", flush=True)  # noqa: T201
        finally:
            shutil.rmtree(folder)
        seed += 1
    said: dict[str, Any] = {"seeds": [given.seed, seed - 1], "seconds": round(time.monotonic() - begun)}
    print(json.dumps(said | dict(met) | {"wrong": wrong}))  # noqa: T201
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
