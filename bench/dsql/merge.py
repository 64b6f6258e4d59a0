"""What a batch of 10,000 changes costs as the table it goes to grows: keys close together, and random ones.

Run: python bench/dsql/merge.py [--rows 1000000 10000000] [--buckets 16 | --buckets 0] [--rounds 5]
                                [--width 60] [--json FILE] [--deletion-vectors]
                                [--kinds recent random deletes] [--tombstones 3000000]
                                [--form current | soft | history] [--versions 1]

Each table is made with its rows in order of their keys, as `headpond optimize --order` leaves them, and is
changed by whole batches: reading what is known of the keys, deciding, merging. `recent` takes keys among the
last 100,000 and a tenth new ones, as a stream of orders would; `random` any key of the table; `deletes` are
1,000 of random keys, beside so many tombstones. With `--versions` each of `--rows` keys was changed so often
before, in batches of 100,000 random keys: a history has that many rows of each. CPU time of the process and
all below it, medians; every round changes the table that the next one finds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from watch import cpu_seconds

from headpond.core.schemas import OWN_FIELDS, VALUE
from headpond.dsql.config import TableSpec
from headpond.dsql.decode import DsqlConfig
from headpond.dsql.versions import encode_versions, key_column
from headpond.lake.apply import DecodedBatch, apply_batch
from headpond.lake.tables import Lake

BATCH = 10_000
RECENT = 100_000
DELETES = 1_000
FAR = 1_000_000_000
AT_ONCE = 1_000_000
CHANGED = 100_000
ENDS = ("deleted_ns", "deleted_tx_id", "valid_to_ns")
NAME = "public.orders"


def changes(spec: TableSpec, ids: np.ndarray, ts_ns: int, draw: np.random.Generator, width: int) -> pa.Table:
    """Typed upserts of these keys; the note of each row has so many letters."""
    count = len(ids)

    def texts(width: int) -> pa.Array:
        letters = (draw.integers(0, 26, count * width, np.uint8) + ord("a")).tobytes()
        offsets = (np.arange(count + 1) * width).astype(np.int32)
        return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(letters)])

    hashes = pa.Array.from_buffers(pa.binary(32), count, [None, pa.py_buffer(draw.bytes(32 * count))])
    values = {"id": pa.array(ids), "quantity": pa.array(draw.integers(0, 99, count)), "note": texts(width)}
    times, tx_ids, delete = pa.repeat(ts_ns, count), texts(26), pa.repeat(False, count)
    own = {
        "m:key": key_column(spec, values),
        "m:version": encode_versions(times, tx_ids, delete),
        "m:op": pa.repeat("c", count),
        "m:delete": delete,
        "m:ts_ns": times,
        "m:tx_id": tx_ids,
        "m:image_hash": hashes.cast(pa.binary()),
    }
    arrays = [own.get(field.name, pa.nulls(count, field.type)) for field in OWN_FIELDS]
    names = [field.name for field in OWN_FIELDS]
    return pa.table([*arrays, *values.values()], [*names, *(VALUE + name for name in values)])


def make(
    folder: Path, rows: int, buckets: int, width: int, *, marks: bool, form: str, versions: int
) -> tuple[Lake, TableSpec]:
    spec = TableSpec(
        name=NAME,
        schema="public",
        table="orders",
        keys=("id",),
        columns={"id": "bigint", "quantity": "bigint", "note": "text"},
        buckets=buckets or None,
        keep="history" if form == "history" else "current",
        deletes="soft" if form == "soft" else "hard",
    )
    lake = Lake(str(folder), DsqlConfig(tables=(spec,)))
    lake.prepare()
    typed = lake.typed[NAME]
    typed.file.allow_marks(allowed=marks)
    draw = np.random.default_rng(1)
    for start in range(0, rows, AT_ONCE):
        ids = np.arange(start, min(start + AT_ONCE, rows))
        first = changes(spec, ids, 1, draw, width)
        first = first.append_column("m:valid_from_ns", first["m:ts_ns"])
        first = first.append_column("m:deleted", pa.repeat(False, len(ids)))
        for name in ENDS:
            first = first.append_column(f"m:{name}", pa.nulls(len(ids), pa.int64()))
        typed.file.append(typed.fit(first.schema).physical(first))
    for version in range(1, versions):
        ids = draw.permutation(rows)
        for number, start in enumerate(range(0, rows, CHANGED)):
            asked = changes(spec, ids[start : start + CHANGED], 1 + version, draw, width)
            apply_batch(lake, DecodedBatch({NAME: asked}), transaction=(f"version {version}", number))
    return lake, spec


def bury(lake: Lake, spec: TableSpec, count: int) -> None:
    """Have tombstones of keys that the table never had; as texts they lie among its keys, in every file."""
    draw = np.random.default_rng(2)
    ids = np.linspace(FAR, 10 * FAR, count, endpoint=False, dtype=np.int64)
    files = max(1, 2 * count // AT_ONCE)
    for first in range(files):
        lake.tombstones.put(dead(changes(spec, ids[first::files], 1, draw, 0)))


def dead(rows: pa.Table) -> pa.Table:
    """Return the tombstones of some keys."""
    version = encode_versions(rows["m:ts_ns"], rows["m:tx_id"], pa.repeat(True, rows.num_rows))
    known = {name: rows[f"m:{name}"] for name in ("key", "ts_ns", "tx_id")}
    return pa.table({"table": pa.repeat(NAME, rows.num_rows), "version": version, **known})


def as_deletes(rows: pa.Table) -> pa.Table:
    """Return upserts as deletes of their keys."""
    delete = pa.repeat(True, rows.num_rows)
    for name, values in (
        ("m:delete", delete),
        ("m:version", encode_versions(rows["m:ts_ns"], rows["m:tx_id"], delete)),
    ):
        rows = rows.set_column(rows.schema.get_field_index(name), name, values)
    return rows


def one(lake: Lake, spec: TableSpec, rows: int, kind: str, number: int, width: int) -> tuple[float, int]:
    """CPU seconds of one batch, and the files it replaced."""
    draw = np.random.default_rng(number)
    if kind == "recent":
        begin = rows + number * BATCH // 10
        new = np.arange(begin, begin + BATCH // 10)
        ids = np.concatenate(
            [draw.choice(np.arange(rows - RECENT, rows), BATCH - len(new), replace=False), new]
        )
    else:
        ids = np.unique(draw.integers(0, rows, DELETES if kind == "deletes" else BATCH))
    asked = changes(spec, ids, 1000 + number, draw, width)
    batch = DecodedBatch({NAME: as_deletes(asked) if kind == "deletes" else asked})
    before = set(lake.typed[NAME].file.open().file_uris())
    begun = cpu_seconds(os.getpid())
    apply_batch(lake, batch, transaction=("bench", number))
    took = cpu_seconds(os.getpid()) - begun
    table = lake.typed[NAME].file.open()
    gone = before - set(table.file_uris())
    # Each round of random keys leaves a whole table behind: the disk need not hold all of them.
    lake.typed[NAME].file.vacuum(0)
    return took, len(gone)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--buckets", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--width", type=int, default=60, help="letters of a row's note")
    kinds = ["recent", "random", "deletes"]
    parser.add_argument("--kinds", nargs="+", default=kinds[:2], choices=kinds)
    parser.add_argument("--tombstones", type=int, default=3_000_000, help="of `deletes`")
    parser.add_argument("--form", default="current", choices=["current", "soft", "history"])
    parser.add_argument("--versions", type=int, default=1, help="how often each key was changed")
    parser.add_argument("--deletion-vectors", action="store_true", help="rows are marked")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="headpond-bench-"))
    try:
        lakes = {
            rows: make(
                folder / str(rows),
                rows,
                options.buckets,
                options.width,
                marks=options.deletion_vectors,
                form=options.form,
                versions=options.versions,
            )
            for rows in options.rows
        }
        vectors = ", deletion vectors" if options.deletion_vectors else ""
        form = f"{options.form}, {options.versions} versions of a key"
        print(f"batches of {BATCH} changes, {form}, {options.buckets or 'no'} buckets{vectors}")
        figures: dict[str, dict[str, list[float]]] = {}
        for kind in options.kinds:
            found: dict[int, list[tuple[float, int]]] = {rows: [] for rows in options.rows}
            if kind == "deletes":
                for lake, spec in lakes.values():
                    bury(lake, spec, options.tombstones)
            for number in range(options.rounds):
                for rows, (lake, spec) in lakes.items():
                    turn = number + options.rounds * kinds.index(kind)
                    took, files_gone = one(lake, spec, rows, kind, turn, options.width)
                    print(f"    {kind} {number}: {rows:>11,} rows {took:6.2f} s CPU", flush=True)
                    found[rows].append((took, files_gone))
            figures[f"{kind} keys, CPU s of a batch"] = {
                f"{rows:,} rows": [took for took, _ in runs] for rows, runs in found.items()
            }
            base = statistics.median(took for took, _ in found[options.rows[0]])
            for rows, runs in found.items():
                took = statistics.median(seconds for seconds, _ in runs)
                files = statistics.median(files for _, files in runs)
                told = f"{took:6.2f} s CPU, {took / base:5.2f} x, {files:g} files rewritten"
                print(f"{kind:7} keys, {rows:>11,} rows: {told}")
        if options.json:
            options.json.write_text(json.dumps(figures, indent=1))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
