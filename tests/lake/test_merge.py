"""One commit that replaces rows: what it looks at, what it writes, who else commits, and what goes wrong."""

from __future__ import annotations

import errno
import hashlib
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import obstore
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from headpond.cli.output import advice
from headpond.core.errors import ConfigurationError, InvalidData, MissingRequirement
from headpond.lake import delta
from headpond.lake.delta import DeltaFile
from headpond.lake.engine import merge as engine
from headpond.lake.engine import vectors
from headpond.lake.engine.folder import Folder
from headpond.lake.engine.log import Snapshot, _take_all
from headpond.lake.engine.lookup import FILE, ROW, Wanted
from headpond.lake.engine.merge import Merge, always
from headpond.lake.engine.parquet import Reader

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def rows(*ids: int, v: str = "x") -> pa.Table:
    return pa.table([pa.array(ids, pa.int64()), pa.array([v] * len(ids))], schema=SCHEMA)


def table(place: Path, *, marks: bool = False, **more: Any) -> DeltaFile:
    file = DeltaFile(str(place))
    file.create(SCHEMA, **more)
    if marks:
        file.allow_marks(allowed=True)
    return file


def upsert(file: DeltaFile, *ids: int, v: str = "new") -> None:
    file.merge(Merge(rows(*ids, v=v), ["id"], wins=always))


def found(file: DeltaFile) -> dict[int, str]:
    """What another reader sees."""
    seen = pl.scan_delta(file.uri).select("id", "v").collect().rows()
    assert len(seen) == file.count()
    return dict(seen)


def actions(file: DeltaFile) -> list[dict[str, Any]]:
    """The newest commit."""
    entry = max((Path(file.uri) / "_delta_log").glob("*.json"))
    return [json.loads(line) for line in entry.read_text().splitlines()]


def test_a_row_is_marked_and_the_file_is_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many marks in a file, it is written again; the feature is the only one that the protocol names."""
    monkeypatch.setattr(engine, "SMALL_BYTES", 0)
    file = table(tmp_path / "t", marks=True)
    protocol = file.open().protocol()
    assert (protocol.reader_features, protocol.writer_features) == (["deletionVectors"], ["deletionVectors"])
    file.append(rows(*range(100)))
    for number in range(3):
        upsert(file, *range(number * 8, number * 8 + 8), v=f"{number}")
        (removed,) = [each["remove"]["path"] for each in actions(file) if "remove" in each]
        marked = [each["add"] for each in actions(file) if each.get("add", {}).get("path") == removed]
        assert [each["deletionVector"]["cardinality"] for each in marked] == [8 * (number + 1)]
    assert found(file) == dict.fromkeys(range(100), "x") | {n: f"{n // 8}" for n in range(24)}
    upsert(file, 50, 51)
    assert not [each for each in actions(file) if "deletionVector" in each.get("add", {})]
    assert found(file)[50] == "new"
    assert len(found(file)) == 100
    file.allow_marks(allowed=False)
    upsert(file, 60)
    assert not [each for each in actions(file) if "deletionVector" in each.get("add", {})]


def test_vectors_survive_their_file(tmp_path: Path) -> None:
    """Row numbers of all sizes, several vectors in a file, and one that was damaged."""
    folder = Folder(str(tmp_path))
    wanted = [[0], list(range(70_000)), [5, 1 << 17, (1 << 33) + 7]]
    path, said = vectors.write(folder, [pa.array(each, pa.int64()).to_numpy() for each in wanted])
    assert [vectors.path_of(each) for each in said] == [path] * 3
    assert [vectors.read(folder, each).tolist() for each in said] == wanted
    content = bytearray((tmp_path / path).read_bytes())
    content[-5] ^= 1
    (tmp_path / path).write_bytes(content)
    with pytest.raises(InvalidData, match="its checksum does not fit"):
        vectors.read(folder, said[2])
    with pytest.raises(InvalidData, match="lies outside"):
        vectors.read(folder, said[2] | {"storageType": "p"})


def test_files_that_cannot_hold_a_key_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the bounds of files, and by partitions."""
    read: list[str] = []
    whole = Reader.read

    def spied(self: Reader, group: int, columns: list[str]) -> pa.Table:
        read.append(self._data.path)
        return whole(self, group, columns)

    monkeypatch.setattr(Reader, "read", spied)
    file = table(tmp_path / "t")
    for start in (0, 100, 200):
        file.append(rows(*range(start, start + 10)))
    assert file.look_up(Wanted(rows(50, 105).select(["id"]), ["id"]))["id"].to_pylist() == [105]
    assert len(set(read)) == 1
    parts = table(tmp_path / "p", partition_by=["v"])
    for v in ("a", "b/ü %", "c"):
        parts.append(rows(1, 2, v=v))
    read.clear()
    at = parts.look_up(Wanted(rows(2, 3, v="b/ü %"), ["id", "v"]))
    assert at.to_pylist() == [{FILE: 1, ROW: 1, "id": 2, "v": "b/ü %"}]
    assert len(set(read)) == 1


def test_what_was_looked_up_is_not_looked_up_again_unless_somebody_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys of a batch are looked for once."""
    file, looked = table(tmp_path / "t"), []
    whole = engine.look_up
    monkeypatch.setattr(engine, "look_up", lambda *args: looked.append(1) or whole(*args))
    file.append(rows(1, 2, 3))
    looked.clear()
    file.look_up(Wanted(rows(2, 3).select(["id"]), ["id"]))
    upsert(file, 3)
    assert len(looked) == 1
    file.look_up(Wanted(rows(2, 3).select(["id"]), ["id"]))
    DeltaFile(file.uri).append(rows(4))
    upsert(file, 4)
    assert found(file) == {1: "x", 2: "x", 3: "new", 4: "new"}


OTHERS: dict[str, Callable[[str], Any]] = {
    "headpond": lambda uri: upsert(DeltaFile(uri), 2, 9, v="other"),
    "deltalake": lambda uri: DeltaTable(uri).update(updates={"v": "'other'"}, predicate="id = 2"),
    "compaction": lambda uri: DeltaTable(uri).optimize.compact(),
    "columns": lambda uri: DeltaFile(uri).add_columns([pa.field("w", pa.string())]),
}


def test_what_compression_does_not_make_smaller_is_not_compressed(tmp_path: Path) -> None:
    count = 5000
    columns = {
        "id": pa.array(range(count)),
        "v": pa.array(["the same"] * count),
        "hash": pa.array([hashlib.sha256(b"%d" % row).digest() for row in range(count)]),
    }
    lists = {"l": pa.array([[row] for row in range(count)])}
    codecs = {}
    for name, data in (("plain", pa.table(columns)), ("nested", pa.table(columns | lists))):
        file = DeltaFile(str(tmp_path / name))
        file.create(data.schema)
        file.append(data)
        (path,) = Path(file.uri).glob("*.parquet")
        group = pq.ParquetFile(path).metadata.row_group(0)
        found = [group.column(at) for at in range(group.num_columns)]
        codecs[name] = {each.path_in_schema.split(".")[0]: each.compression for each in found}
        assert file.read().sort_by("id").equals(data)
    assert codecs["plain"] == {"id": "SNAPPY", "v": "SNAPPY", "hash": "UNCOMPRESSED"}
    assert set(codecs["nested"].values()) == {"SNAPPY"}


@pytest.mark.parametrize("marks", [False, True])
@pytest.mark.parametrize("other", OTHERS)
def test_who_loses_the_race_looks_again(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, marks: bool
) -> None:
    """Another writer's commit comes between the look and our own; nothing is left of the first attempt."""
    monkeypatch.setattr(engine, "SMALL_BYTES", 0)
    file = table(tmp_path / "t", marks=marks)
    for start in (0, 10):
        file.append(rows(*range(start, start + 9)))
    whole, first = Folder.put_new, [OTHERS[other]]

    def beaten(self: Folder, path: str, content: bytes) -> None:
        if first and path.endswith(".json"):
            first.pop()(file.uri)
        whole(self, path, content)

    monkeypatch.setattr(Folder, "put_new", beaten)
    upsert(file, 2, 3)
    expected = dict.fromkeys([*range(9), *range(10, 19)], "x") | {2: "new", 3: "new"}
    assert found(file) == expected | ({9: "other"} if other == "headpond" else {})
    assert DeltaFile(file.uri).vacuum(0) >= 0
    assert found(file) == expected | ({9: "other"} if other == "headpond" else {})


@pytest.mark.parametrize("name", ["write", "put_new", "create"])
def test_a_full_disk_leaves_the_table_as_it_was(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever file has no room: one sentence, and no half of anything."""
    monkeypatch.setattr(engine, "SMALL_BYTES", 0)
    file = table(tmp_path / "t", marks=True)
    file.append(rows(*range(20)))
    before = sorted(path.name for path in (tmp_path / "t").rglob("*"))

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Folder, name, full)
        with pytest.raises(MissingRequirement, match="No space left on device") as caught:
            upsert(file, 3)
    assert "disk space" in caught.value.next_step
    assert sorted(path.name for path in (tmp_path / "t").rglob("*")) == before
    upsert(file, 3)
    assert found(file)[3] == "new"


class Full(io.RawIOBase):
    """A file on a disk that has no room for all of it."""

    def __init__(self, room: int) -> None:
        self._room = room

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._room -= len(data)
        if self._room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return len(data)


@pytest.mark.parametrize("room", [0, 10, 500])
def test_a_disk_that_fills_amid_a_file(room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its first byte, after some, before its footer."""
    file = table(tmp_path / "t")
    file.append(rows(1))
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "create", lambda *_: pa.PythonFile(Full(room), mode="w"))
        with pytest.raises(MissingRequirement, match="No space left on device"):
            upsert(file, *range(1000))
    upsert(file, 2)
    assert found(file) == {1: "x", 2: "new"}


@pytest.mark.parametrize(
    ("feature", "properties"),
    [
        ("inCommitTimestamp", {"delta.enableInCommitTimestamps": "true"}),
        ("checkConstraints", {"delta.constraints.some": "id > 0"}),
    ],
)
def test_a_feature_that_is_not_written_is_named(
    feature: str, properties: dict[str, str], tmp_path: Path
) -> None:
    """Before anything is."""
    write_deltalake(str(tmp_path / "t"), rows(1))
    file = DeltaFile(str(tmp_path / "t"))
    log = tmp_path / "t/_delta_log/00000000000000000000.json"
    log.write_text(log.read_text().replace('"configuration":{}', f'"configuration":{json.dumps(properties)}'))
    with pytest.raises(ConfigurationError, match=f"uses {feature}, which headpond does not write") as caught:
        upsert(file, 1)
    assert caught.value.facts["features"] == [feature]
    assert file.version() == 0


def test_unknown_features_and_append_only_tables(tmp_path: Path) -> None:
    """A feature of the future is named; an append-only table takes new rows and no others."""
    write_deltalake(str(tmp_path / "t"), rows(1), configuration={"delta.appendOnly": "true"})
    file = DeltaFile(str(tmp_path / "t"))
    file.append(rows(2))
    with pytest.raises(ConfigurationError, match="is append-only"):
        upsert(file, 2)
    assert found(file) == {1: "x", 2: "x"}
    log = tmp_path / "t/_delta_log/00000000000000000000.json"
    features = {"readerFeatures": [], "writerFeatures": ["timeMachine"]}
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7} | features}
    lines = [line for line in log.read_text().splitlines() if '"protocol"' not in line]
    log.write_text("\n".join([json.dumps(protocol), *lines]) + "\n")
    with pytest.raises(ConfigurationError, match="uses timeMachine,"):
        DeltaFile(str(tmp_path / "t")).append(rows(3))


def test_a_damaged_log_is_named(tmp_path: Path) -> None:
    """An entry that is missing, one that is cut, a checkpoint that is none."""
    file = table(tmp_path / "t")
    for number in range(3):
        file.append(rows(number))
    log = tmp_path / "t/_delta_log"
    entry = log / f"{2:020}.json"
    content = entry.read_bytes()
    entry.write_bytes(content[:-20])
    with pytest.raises(InvalidData, match=r"0002\.json has a line \d+ that is not JSON"):
        DeltaFile(file.uri).append(rows(9))
    entry.unlink()
    with pytest.raises(InvalidData, match=r"0002\.json is missing, and later entries are there"):
        DeltaFile(file.uri).append(rows(9))
    entry.write_bytes(content)
    (log / f"{2:020}.checkpoint.parquet").write_bytes(b"PAR1")
    with pytest.raises(InvalidData, match=r"checkpoint\.parquet cannot be read"):
        DeltaFile(file.uri).append(rows(9))


def test_entries_that_a_checkpoint_made_superfluous_may_go(tmp_path: Path) -> None:
    """A process that read the log before them goes on from the checkpoint."""
    file, other = table(tmp_path / "t"), DeltaFile(str(tmp_path / "t"))
    file.append(rows(1))
    for number in range(2, 6):
        other.append(rows(number))
    other.open().create_checkpoint()
    for version in range(5):
        (tmp_path / f"t/_delta_log/{version:020}.json").unlink()
    other.append(rows(6))
    upsert(file, 1, 7)
    assert file.version() == 7
    assert sorted(found(file)) == [1, 2, 3, 4, 5, 6, 7]


def test_few_files_stay_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crowd of small ones becomes one, in a commit that changes no data; the hundredth has a checkpoint."""
    monkeypatch.setattr(engine, "CROWD", 5)
    file = table(tmp_path / "t")
    for number in range(120):
        file.append(rows(number))
    assert len(file.open().file_uris()) <= 6
    assert list((tmp_path / "t/_delta_log").glob("*.checkpoint.parquet"))
    assert len(found(file)) == 120
    for entry in (tmp_path / "t/_delta_log").glob("*.json"):
        if '"OPTIMIZE"' in entry.read_text():
            assert '"dataChange":true' not in entry.read_text()


def test_a_vacuum_leaves_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks of the newest version stay, older ones go, and files of commits that failed."""
    monkeypatch.setattr(engine, "SMALL_BYTES", 0)
    file = table(tmp_path / "t", marks=True)
    file.append(rows(*range(50)))
    upsert(file, 1)
    upsert(file, 2)
    (tmp_path / "t/left.parquet").write_bytes(b"of nobody")
    (tmp_path / "t/_delta_log/_commit_1.json.tmp").write_bytes(b"of nobody")
    (tmp_path / f"t/_delta_log/.{2:020}.checkpoint.parquet.4711").write_bytes(b"of nobody")
    (tmp_path / "t/_other").mkdir()
    (tmp_path / "t/_other/file").write_bytes(b"of somebody else")
    (tmp_path / f"t/_delta_log/.{2:020}.checkpoint.parquet.crc").write_bytes(b"of Spark")
    assert file.vacuum(3_600_000) == 0
    assert file.vacuum(0) == 4
    assert (tmp_path / f"t/_delta_log/.{2:020}.checkpoint.parquet.crc").exists()
    assert len(list((tmp_path / "t").glob("*.bin"))) == 1
    assert (tmp_path / "t/_other/file").exists()
    assert len(found(DeltaFile(file.uri))) == 50


def test_types_and_columns_of_other_writers(tmp_path: Path) -> None:
    """A column that older files lack, and times that Spark writes as INT96."""
    import pyarrow.parquet as pq

    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    file = DeltaFile(str(tmp_path / "t"))
    file.create(schema)
    times = pa.array([-62_135_596_800_000_000, 1], pa.timestamp("us", "UTC"))
    file.append(pa.table([pa.array([1, 2]), times], schema=schema))
    (written,) = (tmp_path / "t").glob("*.parquet")
    pq.write_table(
        pa.table([pa.array([1, 2]), times], schema=schema), written, use_deprecated_int96_timestamps=True
    )
    file.add_columns([pa.field("w", pa.string())])
    update = Merge(
        pa.table({"id": [2], "w": ["w"]}),
        ["id"],
        wins=always,
        update=lambda t, s: engine.with_columns(t, s, ["w"]),
    )
    assert file.merge(update).updated == 1
    left = file.read().sort_by("id")
    assert left["at"].cast(pa.int64()).to_pylist() == times.cast(pa.int64()).to_pylist()
    assert left["w"].to_pylist() == [None, "w"]
    assert pc.all(pc.is_valid(left["at"])).as_py()


def test_what_each_batch_writes_again_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a table that does not mark rows, where that is much."""
    monkeypatch.setattr(engine, "SMALL_BYTES", 0)
    file = table(tmp_path / "t")
    file.append(rows(*range(1000)))
    assert file.rewriting() == 0
    upsert(file, 5)
    assert file.rewriting() == 0
    monkeypatch.setattr(delta, "MUCH_BYTES", 1000)
    assert file.rewriting() > 1000
    (line,) = advice({"public.t": 100 << 20, "public.u": 0})
    assert str(line).startswith("public.t: each batch writes 100 MiB again; deletion_vectors = true")
    file.allow_marks(allowed=True)
    assert file.rewriting() == 0


def test_a_store_without_conditional_writes_is_refused_unless_there_is_one_writer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the option by which deltalake is told so, too."""

    def put(_store: Any, path: str, content: bytes, **how: str) -> None:
        if how["mode"] == "create":
            raise obstore.exceptions.NotSupportedError("no conditional put")
        written[path] = content

    written: dict[str, bytes] = {}
    monkeypatch.setattr(obstore, "put", put)
    options = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "r"}
    with pytest.raises(MissingRequirement, match="cannot write a file only where none is") as caught:
        Folder("s3://bucket/t", options).put_new("_delta_log/1.json", b"{}")
    assert 'AWS_S3_ALLOW_UNSAFE_RENAME = "true"' in caught.value.next_step
    alone = Folder("s3://bucket/t", options | {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"})
    monkeypatch.setattr(Folder, "read", lambda _, path: written.get(path))
    alone.put_new("_delta_log/1.json", b"{}")
    with pytest.raises(FileExistsError):
        alone.put_new("_delta_log/1.json", b"other")
    assert written == {"_delta_log/1.json": b"{}"}


@pytest.mark.parametrize("served", [True, False])
def test_a_commit_whose_answer_is_lost_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, served: bool
) -> None:
    """A request that is sent again meets its own entry; an error after it leaves what the entry names."""
    file = table(tmp_path / "t")
    file.append(rows(1))
    whole = Folder.put_new

    def lost(self: Folder, path: str, content: bytes) -> None:
        whole(self, path, content)
        raise FileExistsError(path) if served else ConnectionError("the answer is lost")

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "put_new", lost)
        if served:
            upsert(file, 2)
        else:
            with pytest.raises(MissingRequirement, match="the answer is lost"):
                upsert(file, 2)
    assert found(file) == {1: "x", 2: "new"}
    upsert(file, 3)
    assert found(file) == {1: "x", 2: "new", 3: "new"}


def test_a_checkpoint_may_name_what_was_removed_after_what_is_there(tmp_path: Path) -> None:
    """A file that was added again with other marks is in it twice: removed with the old ones, and live."""
    file = table(tmp_path / "t")
    file.append(rows(1, 2))
    (add,) = (each.add for each in file.engine.log.newest().files.values())
    snapshot = Snapshot(file.uri)
    _take_all(snapshot, [("add", add), ("remove", {"path": add["path"]})])
    assert list(snapshot.files) == [add["path"]]


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.int64()])
def test_what_deltalake_names_in_a_protocol_without_using_it_is_no_hindrance(
    kind: pa.DataType, tmp_path: Path
) -> None:
    """Its changes of columns and properties name `variantType`, though no column is one."""
    file = DeltaFile(str(tmp_path / "t"))
    file.create(pa.schema([("id", pa.int64()), ("at", kind)]))
    file.add_columns([pa.field("v", pa.string()), pa.field("w", pa.timestamp("us"))])
    file.open().alter.set_table_properties({"delta.targetFileSize": "1000000"})
    file.open().alter.set_table_properties({"headpond.buckets": "0"}, raise_if_not_exists=False)
    upsert(file, 1)
    file.allow_marks(allowed=True)
    file.open().alter.set_table_properties({"delta.targetFileSize": "2000000"})
    file.add_columns([pa.field("y", pa.string())])
    upsert(DeltaFile(file.uri), 1, 2)
    assert found(file) == {1: "new", 2: "new"}
    named = "variantType" in (file.open().protocol().writer_features or [])
    assert named or deltalake.__version__ == "1.6.1"  # the oldest one did not yet
