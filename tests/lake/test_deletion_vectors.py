"""Tables whose rows another engine took out by deletion vectors: read and written on, by deltalake."""

from __future__ import annotations

import json
import os
import struct
import uuid
import zlib
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from headpond.lake.delta import DeltaFile
from headpond.lake.engine.merge import Merge, always
from headpond.lake.maintenance.optimize import optimize_file
from headpond.lake.maintenance.redact import _only_newest
from tests.kit.duck import rows_of

if TYPE_CHECKING:
    from pathlib import Path

FEATURE = ["deletionVectors"]
Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
LEFT = [0, 1, 3, 4, 6, 7, 8, 9]


def z85(data: bytes) -> str:
    out = ""
    for start in range(0, len(data), 4):
        value = int.from_bytes(data[start : start + 4], "big")
        out += "".join(Z85[value // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return out


def bitmap(rows: list[int]) -> bytes:
    """Delta's bitmap of row numbers: a 64-bit Roaring array with one bitmap of one array container."""
    container = struct.pack("<IIHHI", 12346, 1, 0, len(rows) - 1, 16) + struct.pack(f"<{len(rows)}H", *rows)
    return struct.pack("<iQI", 1681511377, 1, 0) + container


def vector(folder: Path, rows: list[int], *, inline: bool) -> dict[str, Any]:
    """A deletion vector as an `add` action names it, within the commit or in a file beside the data."""
    data = bitmap(rows)
    if inline:
        place = {"storageType": "i", "pathOrInlineDv": z85(data + b"\0" * (-len(data) % 4))}
    else:
        name = uuid.uuid4()
        content = b"\x01" + struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
        (folder / f"deletion_vector_{name}.bin").write_bytes(content)
        os.utime(folder / f"deletion_vector_{name}.bin", (10**9, 10**9))
        place = {"storageType": "u", "pathOrInlineDv": z85(name.bytes), "offset": 1}  # type: ignore[dict-item]
    return place | {"sizeInBytes": len(data), "cardinality": len(rows)}


def table(folder: Path, *, inline: bool, files: int = 1) -> DeltaFile:
    """Files of ten rows, of which two are taken out."""
    for number in range(files):
        ids = pa.array(range(100 * number, 100 * number + 10), pa.int64())
        write_deltalake(str(folder), pa.table({"id": ids, "v": ["x"] * 10}), mode="append")
        log = folder / f"_delta_log/{number:020}.json"
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        for action in actions:
            if "protocol" in action:
                features = {"readerFeatures": FEATURE, "writerFeatures": FEATURE}
                action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7} | features
            if "metaData" in action:
                action["metaData"]["configuration"] = {"delta.enableDeletionVectors": "true"}
            if "add" in action:
                action["add"]["deletionVector"] = vector(folder, [2, 5], inline=inline)
        log.write_text("".join(json.dumps(action) + "\n" for action in actions))
    return DeltaFile(str(folder))


def ids(file: DeltaFile) -> list[int]:
    return sorted(file.read(["id"])["id"].to_pylist())


@pytest.mark.parametrize("inline", [True, False])
def test_rows_taken_out_are_gone_and_may_come_again(*, inline: bool, tmp_path: Path) -> None:
    """Reads, counts, merges, updates and deletes see what is left."""
    file = table(tmp_path / "t", inline=inline)
    assert ids(file) == LEFT
    assert file.count() == 8
    rows = pa.table({"id": pa.array([2, 3, 50], pa.int64()), "v": ["new"] * 3})
    merged = file.merge(Merge(rows, ["id"], wins=always))
    assert (merged.inserted, merged.updated) == (2, 1)
    assert ids(file) == [0, 1, 2, 3, 4, 6, 7, 8, 9, 50]
    gone = pa.table({"id": pa.array([4, 5], pa.int64())})
    assert file.merge(Merge(gone, ["id"], wins=always, gone=pa.repeat(True, 2))).deleted == 1
    assert file.count() == 9
    assert sorted(file.read(["id"], "v = 'new'")["id"].to_pylist()) == [2, 3, 50]


@pytest.mark.parametrize("order_by", [(), ("id",)])
def test_housekeeping_keeps_rows_out(order_by: tuple[str, ...], tmp_path: Path) -> None:
    """Compaction, a checkpoint, and a vacuum that leaves the vectors' files."""
    file = table(tmp_path / "t", inline=False, files=2)
    optimize_file(file, order_by=order_by, retain_ms=0)
    again = DeltaFile(file.uri)
    assert ids(again) == [*LEFT, *(100 + number for number in LEFT)]
    assert again.count() == 16


def test_a_vacuum_before_any_rewrite_leaves_the_vectors(tmp_path: Path) -> None:
    """A table of one file is not rewritten; its vector is still needed."""
    file = table(tmp_path / "t", inline=False)
    optimize_file(file, retain_ms=0)
    assert ids(DeltaFile(file.uri)) == LEFT
    _only_newest(file)
    assert ids(DeltaFile(file.uri)) == LEFT
    assert list((tmp_path / "t").glob("*.bin")) == []


@pytest.mark.parametrize("marks", [True, False])
def test_integers_are_written_by_their_differences_where_marks_are_allowed(
    tmp_path: Path, *, marks: bool
) -> None:
    """Whoever reads marks reads these; other tables have nothing that an older reader does not know."""
    file = DeltaFile(str(tmp_path))
    kinds = [("id", pa.int64()), ("small", pa.int16()), ("v", pa.string()), ("at", pa.timestamp("us", "UTC"))]
    file.create(pa.schema(kinds))
    file.allow_marks(allowed=marks)
    numbers = list(range(-1000, 1000))
    columns = {"id": numbers, "small": numbers, "v": list(map(str, numbers)), "at": numbers}
    rows = pa.table(columns, schema=file.schema())
    file.merge(Merge(rows, ["id"], wins=always))
    (data,) = tmp_path.glob("*.parquet")
    group = pq.ParquetFile(data).metadata.row_group(0)
    packed = {
        group.column(at).path_in_schema
        for at in range(group.num_columns)
        if "DELTA_BINARY_PACKED" in group.column(at).encodings
    }
    assert packed == ({"id", "small"} if marks else set())
    assert pl.read_delta(str(tmp_path)).sort("id").to_arrow().cast(rows.schema).equals(rows)
    assert sorted(rows_of(str(tmp_path), ["id", "small"])) == list(zip(numbers, numbers, strict=True))
    assert file.read().sort_by("id").equals(rows)
