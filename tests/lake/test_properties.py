"""Properties of tables: which of them headpond lives up to, and what it would break and refuses."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from headpond.core.errors import ConfigurationError
from headpond.lake.apply import apply_batch
from headpond.lake.delta import DeltaFile, plain_types
from headpond.lake.engine import merge as engine
from headpond.lake.engine.merge import Merge, PartEngine, always
from headpond.lake.maintenance.glue import table_input
from headpond.pipeline import loads
from headpond.pipeline.lake import open_lake
from tests.lake.lakes import decoded, lake_in
from tests.lake.test_partitions import some_changes
from tests.lake.test_pending import line as archived
from tests.lake.test_unknown_tables import change

if TYPE_CHECKING:
    from headpond.lake.tables import Lake

FEED = 'table_properties = { "delta.enableChangeDataFeed" = "true" }\n'
T = '[tables."public.t"]\nkeys = ["id", "k 2"]\ncolumns = { id = "bigint", "k 2" = "text", day = "date" }\n'
KINDS = {
    "current": "",
    "history": 'keep = "history"\n',
    "soft": 'deletes = "soft"\n',
    "marked": "deletion_vectors = true\n",
    "dealt out": 'partition_by = ["day"]\nbuckets = 3\n',
}


def as_rows(rows: pa.Table) -> Counter[str]:
    return Counter(repr(sorted(row.items())) for row in rows.to_pylist())


def replayed(file: DeltaFile, since: int, before: Counter[str]) -> Counter[str]:
    """What the feed makes of a version, with deltalake as its reader."""
    feed = pa.table(file.open().load_cdf(starting_version=since).read_all())
    feed = feed.cast(plain_types(feed.schema))
    kinds = feed["_change_type"].to_pylist()
    assert set(kinds) <= {"insert", "delete", "update_preimage", "update_postimage"}
    assert kinds.count("update_preimage") == kinds.count("update_postimage")
    names = [name for name in feed.column_names if not name.startswith(("_change_type", "_commit_"))]
    gone = pa.array([kind in ("delete", "update_preimage") for kind in kinds], pa.bool_())
    rows = feed.select(sorted(names))
    coming = rows.filter(pa.compute.invert(gone))
    found = before.copy()
    found.update(as_rows(coming))
    found.subtract(as_rows(rows.filter(gone)))
    return +found


@pytest.mark.parametrize("kind", KINDS)
def test_a_feed_of_changes_leads_from_any_version_to_the_newest(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Updates, deletes and new rows of every form; compaction changes nothing in it."""
    monkeypatch.setattr(engine, "SMALL_BYTES", 0)
    lake, config = lake_in(tmp_path, T + FEED + KINDS[kind])
    file = lake.typed["public.t"].file
    lines = some_changes(90)
    versions = {file.version(): Counter[str]()}
    for start in range(0, 90, 30):
        apply_batch(lake, decoded(config, lines[start : start + 30], first_line=start + 1))
        versions[file.version()] = as_rows(file.read(sorted(file.schema().names)))
    file.compact(lambda files, _: list(files) if len(files) > 1 or file.version() == max(versions) else [])
    assert file.version() > max(versions)
    newest = versions[max(versions)]
    assert newest
    for version, rows in versions.items():
        if version < file.version():
            assert replayed(file, version + 1, rows) == newest
    protocol = file.open().protocol()
    assert protocol.min_writer_version == (7 if kind == "marked" else 4)
    if kind == "marked":
        assert "changeDataFeed" in protocol.writer_features


@pytest.mark.parametrize("kind", ["current", "soft", "marked"])
def test_a_feed_of_keys_alone_has_what_was_there(kind: str, tmp_path: Path) -> None:
    """A look-up may leave out what it need not know to decide; the feed may not."""
    entry = '[tables."public.t"]\nkeys = ["id"]\ncolumns = { id = "bigint" }\n'
    lake, config = lake_in(tmp_path, entry + FEED + KINDS[kind])
    file = lake.typed["public.t"].file
    for ts_ns in (10, 20):
        source = {"version": "1.0", "ts_ns": ts_ns, "txId": f"tx {ts_ns}", "schema": "public", "table": "t"}
        record = {"type": "full", "op": "u", "source": source}
        lines = [archived(ts_ns + number, {**record, "after": {"id": number}}) for number in range(9)]
        before, since = as_rows(file.read()), file.version() + 1
        apply_batch(lake, decoded(config, lines))
    assert len(file.schema()) == (7 if kind == "soft" else 4)
    assert replayed(file, since, before) == as_rows(file.read())


def test_a_table_gets_its_feed_later_and_parts_of_a_batch_have_one(tmp_path: Path) -> None:
    """From that commit on; what executors write says all that changes, new rows included."""
    file = DeltaFile(str(tmp_path / "t"))
    file.create(pa.schema([("id", pa.int64()), ("v", pa.string())]))
    file.append(pa.table({"id": [1, 2], "v": ["a", "a"]}))
    file.alter({"delta.enableChangeDataFeed": "true"})
    before = as_rows(file.read())
    since = file.version() + 1

    def prepare() -> Any:
        snapshot = file.engine.log.newest()
        parts = PartEngine(file.engine.folder, snapshot)
        parts.merge(Merge(pa.table({"id": [1, 3], "v": ["b", "b"]}), ["id"], wins=always))
        parts.merge(Merge(pa.table({"id": [4], "v": ["c"]}), ["id"], wins=always))
        return snapshot.version, parts.parts

    file.merge_parts(prepare)
    assert replayed(file, since, before) == as_rows(file.read())
    assert sorted(row["id"] for row in file.read().to_pylist()) == [1, 2, 3, 4]


def test_old_files_of_the_feed_go_with_a_vacuum(tmp_path: Path) -> None:
    """When no version of the retention has them; those of a commit that lost go at once."""
    lake, config = lake_in(tmp_path, T + FEED)
    file = lake.typed["public.t"].file
    for start in (0, 30):
        apply_batch(lake, decoded(config, some_changes(60)[start : start + 30], first_line=start + 1))
    (of_feed,) = (Path(file.uri) / "_change_data").iterdir()
    assert file.vacuum(1_000_000) == 0
    os.utime(of_feed, (time.time() - 10_000,) * 2)
    assert file.vacuum(1_000_000) == 1
    assert not of_feed.exists()


def test_properties_are_set_on_tables_new_and_old_and_others_pass_through(tmp_path: Path) -> None:
    """What the entry no longer says stays as it is; nothing is committed where all is so."""

    def properties(lake: Lake) -> dict[str, Any]:
        return dict(lake.typed["public.t"].file.open().metadata().configuration)

    text = T + 'table_properties = { "delta.isolationLevel" = "Serializable", "owner" = "me" }\n'
    lake, _ = lake_in(tmp_path, T)
    before = properties(lake)
    lake, _ = lake_in(tmp_path, text)
    assert properties(lake) == before | {"delta.isolationLevel": "Serializable", "owner": "me"}
    version = lake.typed["public.t"].file.version()
    lake, _ = lake_in(tmp_path, text)
    assert lake.typed["public.t"].file.version() == version
    lake, _ = lake_in(tmp_path, T)
    assert properties(lake)["owner"] == "me"


def test_checkpoints_come_as_often_as_the_table_says(tmp_path: Path) -> None:
    """Instead of every hundred commits."""
    lake, config = lake_in(tmp_path, T + 'table_properties = { "delta.checkpointInterval" = "3" }\n')
    file = lake.typed["public.t"].file
    for number, line in enumerate(some_changes(8)):
        apply_batch(lake, decoded(config, [line], first_line=number + 1))
    found = sorted(path.name for path in (Path(file.uri) / "_delta_log").glob("*.checkpoint.parquet"))
    assert file.version() > 6
    assert {int(name[:20]) for name in found} >= {*range(3, file.version() + 1, 3)}


def test_a_table_may_ask_that_old_files_stay_longer(tmp_path: Path) -> None:
    """A vacuum leaves them; what is not an interval removes nothing."""
    name = "delta.deletedFileRetentionDuration"
    lake, config = lake_in(tmp_path, T + f'table_properties = {{ "{name}" = "interval 20 days" }}\n')
    file = lake.typed["public.t"].file
    for number, line in enumerate(some_changes(3)):
        apply_batch(lake, decoded(config, [line], first_line=number + 1))
    file.compact()
    old = time.time() - 10 * 86_400
    log = Path(file.uri) / "_delta_log" / f"{file.version():020}.json"
    text = re.sub(r'"deletionTimestamp":\d+', f'"deletionTimestamp":{int(old * 1000)}', log.read_text())
    log.write_text(text)
    for path in Path(file.uri).glob("*.parquet"):
        os.utime(path, (old, old))
    file = DeltaFile(file.uri)
    assert file.vacuum(7 * 86_400_000) == 0
    file.alter({name: "soon"})
    with pytest.raises(ConfigurationError, match="not an interval"):
        file.vacuum(7 * 86_400_000)
    file.alter({name: "interval 1 week"})
    assert file.vacuum(7 * 86_400_000) > 0


@pytest.mark.parametrize(
    ("name", "value", "more", "says"),
    [
        ("delta.targetFileSize", "1", "", "has a key of its own in the entry. Write target_file_size."),
        ("delta.enableDeletionVectors", "false", "", "has a key of its own in the entry"),
        ("headpond.keys", "[]", "", "is headpond's own"),
        ("delta.columnMapping.mode", "name", "", "which headpond does not write"),
        ("delta.constraints.c", "id > 0", "", "headpond does not check it"),
        ("delta.enableRowTracking", "true", "", "which headpond does not write"),
        ("delta.checkpointPolicy", "v2", "", "checkpoints that headpond does not read"),
        ("delta.feature.x", "supported", "", "follows from what the table uses"),
        ("delta.appendOnly", "true", "", "lets no row go, and rows of this table are replaced"),
        ("delta.enableChangeDataFeed", "yes", "", 'must be "true" or "false", not \'yes\''),
        ("delta.logRetentionDuration", "30", "", 'must be an interval as "interval 30 days"'),
        ("delta.checkpointInterval", "0", "", "must be a number of commits"),
        ("delta.appendOnly", "true", 'keep = "log"', None),
        ("delta.enableRowTracking", "false", "", None),
        ("delta.columnMapping.mode", "none", "", None),
        ("delta.dataSkippingNumIndexedCols", "5", "", None),
    ],
)
def test_what_commits_would_break_is_refused(
    name: str, value: str, more: str, says: str | None, tmp_path: Path
) -> None:
    """With the reason; before anything is made."""
    text = T + f'table_properties = {{ "{name}" = "{value}" }}\n{more}\n'
    if says is not None:
        with pytest.raises(ConfigurationError) as caught:
            lake_in(tmp_path, text)
        assert says in str(caught.value)
        assert name in caught.value.facts["key"]
        return
    lake, config = lake_in(tmp_path, text)
    apply_batch(lake, decoded(config, some_changes(9)))
    apply_batch(lake, decoded(config, some_changes(12)))
    assert lake.typed["public.t"].file.count() > 3


def test_readers_see_types_and_comments_of_columns(tmp_path: Path) -> None:
    """Of a table that is there, too, and of a column that comes later; catalogs as well."""
    plain = '[tables."public.t"]\nkeys = ["id"]\ncolumns = { id = "bigint", price = "numeric(12,2)" }\n'
    lake, config = lake_in(tmp_path, plain)
    file = lake.typed["public.t"].file

    def said() -> dict[str, dict[str, Any]]:
        return {field.name: field.metadata for field in file.open().schema().fields if field.metadata}

    types = {"id": "bigint", "price": "numeric(12,2)"}
    assert said() == {name: {"headpond.type": kind, "comment": kind} for name, kind in types.items()}
    lake, config = lake_in(tmp_path, plain + 'comments = { price = "net, in euros", note = "free text" }\n')
    apply_batch(lake, decoded(config, [change(1, "t", {"id": 1, "price": "1.50", "note": "x"})]))
    file = lake.typed["public.t"].file
    assert said()["price"] == {"headpond.type": "numeric(12,2)", "comment": "net, in euros"}
    assert said()["note"] == {"comment": "free text"}
    columns = table_input("t", "s3://b/t", file)["StorageDescriptor"]["Columns"]
    assert {each["Name"]: each.get("Comment") for each in columns}["price"] == "net, in euros"
    assert file.read(["price"])["price"].to_pylist()[0] is not None


def test_a_table_of_a_ledger_has_them_too(tmp_path: Path) -> None:
    """Properties, types and comments."""
    text = '[source]\narchive = "x.ion"\nformat = "qldb"\n[target]\npath = "lake"\n[tables.Person]\n'
    more = 'columns = { Name = "string" }\ncomments = { Name = "as in the passport" }\n'
    lake = open_lake(loads(text + more + FEED, tmp_path))
    lake.prepare()
    file = lake.typed["Person"].file
    assert file.open().metadata().configuration["delta.enableChangeDataFeed"] == "true"
    field = next(field for field in file.open().schema().fields if field.name == "Name")
    assert field.metadata == {"headpond.type": "string", "comment": "as in the passport"}
    with pytest.raises(ConfigurationError, match="lets no row go"):
        loads(text + 'table_properties = { "delta.appendOnly" = "true" }\n', tmp_path)
