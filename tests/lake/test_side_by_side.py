"""A batch's tables, several at a time in an object store; and how often a batch asks for newer versions."""

from __future__ import annotations

import base64
import json
import random
import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from headpond.lake.apply import apply_batch
from headpond.lake.delta import DeltaFile
from headpond.lake.engine import lookup, parquet
from headpond.lake.engine.folder import Folder
from headpond.lake.engine.lookup import Wanted
from headpond.lake.engine.merge import Merge, Merged, always
from headpond.lake.reports import freshness, lake_summary, sizes_of
from headpond.lake.storage import AT_ONCE, of_each, of_each_file
from headpond.lake.targets.current import CurrentTable
from headpond.pipeline import loads
from headpond.pipeline.lake import open_lake
from tests.kit.s3_server import Store, s3_store
from tests.lake.lakes import decoded, watched

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headpond.lake.tables import Lake

TABLES = ("public.a", "public.b", "public.c")
FORMS = ("", 'keep = "history"', 'deletes = "soft"')
PARTITIONED = tuple(f'{form}\npartition_by = ["v"]' for form in FORMS)
WAIT_S = 60  # for what must happen; nothing is timed


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with s3_store() as running:
        yield running


def lake_at(path: str, store: Store | None = None, forms: tuple[str, ...] = ("", "", "")) -> Lake:
    options = "" if store is None else f"storage_options = {store.toml}"
    tables = "".join(
        f'[tables."{name}"]\nkeys = ["id"]\ncolumns = {{ id = "bigint", v = "text" }}\n{form}\n'
        for name, form in zip(TABLES, forms, strict=True)
    )
    text = f'[source]\narchive = "x.jsonl"\nformat = "dsql"\n[target]\npath = "{path}"\n{options}\n{tables}'
    lake = open_lake(loads(text))
    lake.prepare()
    return lake


def change(table: str, ts_ns: int, key: int, value: str | None) -> bytes:
    schema, name = table.split(".")
    source = {"version": "1.0", "ts_ns": ts_ns, "txId": "t", "schema": schema, "table": name, "cluster": "c"}
    gone = {"op": "d", "before": {"id": key}, "after": None}
    images = gone if value is None else {"op": "c", "after": {"id": key, "v": value}}
    data = base64.b64encode(json.dumps({"type": "full", "source": source, **images}).encode()).decode()
    return json.dumps({"data": data, "shard": "s", "sequenceNumber": str(ts_ns * 10 + key)}).encode()


def apply(lake: Lake, lines: list[bytes]) -> None:
    apply_batch(lake, decoded(lake.config, lines))  # type: ignore[arg-type]


def rows_of(lake: Lake) -> dict[str, list[dict[str, Any]]]:
    found = {name: typed.file.read().to_pylist() for name, typed in lake.typed.items()}
    return {name: sorted(rows, key=repr) for name, rows in found.items()}


@pytest.mark.slow
def test_tables_in_a_store_are_decided_and_written_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waits for the others: one after the other, none would ever go on."""
    lake = lake_at("s3://lake/at_once", store)
    meeting = {step: threading.Barrier(len(TABLES), timeout=WAIT_S) for step in ("decide", "write")}
    decide = CurrentTable.versions

    def versions(table: CurrentTable, *given: Any) -> Any:
        meeting["decide"].wait()
        return decide(table, *given)

    def before_write(step: str) -> None:
        if step.startswith("table "):
            meeting["write"].wait()

    monkeypatch.setattr(CurrentTable, "versions", versions)
    apply(watched(lake, before_write), [change(name, 1, 1, "x") for name in TABLES])
    assert {name: len(rows) for name, rows in rows_of(lake).items()} == dict.fromkeys(TABLES, 1)


@pytest.mark.slow
def test_files_of_a_table_in_a_store_are_read_and_written_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waits for those of the other partitions: one after the other, none would ever go on."""
    lake = lake_at("s3://lake/files", store, ('partition_by = ["v"]', "", ""))
    values = "wxyz"
    meeting = {step: threading.Barrier(len(values), timeout=WAIT_S) for step in ("read", "write")}
    create, opened = Folder.create, lookup.opened

    def created(folder: Folder, path: str) -> Any:
        if "v=" in path:
            meeting["write"].wait()
        return create(folder, path)

    def opening(folder: Folder, *given: Any) -> Any:
        if "public.a" in folder.uri:
            meeting["read"].wait()
        return opened(folder, *given)

    monkeypatch.setattr(Folder, "create", created)
    monkeypatch.setattr(lookup, "opened", opening)
    for ts_ns in (1, 2):
        apply(lake, [change("public.a", ts_ns, key, value) for key, value in enumerate(values * 2)])
    found = [(row["id"], row["v"], row["_ts_ns"]) for row in rows_of(lake)["public.a"]]
    assert found == [(key, value, 2) for key, value in enumerate(values * 2)]


def test_files_of_all_tables_share_what_is_done_at_once() -> None:
    now, most, lock = 0, 0, threading.Lock()
    full = threading.Barrier(AT_ONCE, timeout=WAIT_S)

    def work(_: int) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        full.wait()
        with lock:
            now -= 1

    files = range(2 * AT_ONCE)
    of_each("s3://bucket/lake", lambda table: of_each_file(f"s3://bucket/lake/{table}", work, files), "abc")
    assert (now, most) == (0, AT_ONCE)


def test_tables_in_a_folder_come_one_after_the_other(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []
    lake = lake_at(str(tmp_path))
    apply(
        watched(lake, lambda step: seen.append((step, threading.current_thread().name))),
        [change(name, 1, 1, "x") for name in reversed(TABLES)],
    )
    here = threading.current_thread().name
    written = [step for step in seen if step[0].startswith("table ")]
    assert written == [(f"table {name}", here) for name in TABLES]


@pytest.mark.slow
def test_one_table_that_fails_leaves_the_others_written_and_the_batch_to_come_again(store: Store) -> None:
    lake = lake_at("s3://lake/fails", store)
    lines = [change(name, 1, 1, "x") for name in TABLES]

    def before_write(step: str) -> None:
        if step == "table public.b":
            raise RuntimeError(step)

    with pytest.raises(RuntimeError, match=r"public\.b"):
        apply(watched(lake, before_write), lines)
    assert [len(rows) for rows in rows_of(lake).values()] == [1, 0, 1]
    apply(lake, lines)
    assert [len(rows) for rows in rows_of(lake).values()] == [1, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "forms", "read_whole"),
    [("same", FORMS, True), ("same_parts", PARTITIONED, True), ("same_in_parts", FORMS, False)],
)
def test_a_store_and_a_folder_hold_the_same(
    name: str,
    forms: tuple[str, ...],
    read_whole: bool,  # noqa: FBT001 - a parameter of the test
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tables of every form, deletes among the changes, batches cut at random and repeated."""
    if not read_whole:  # as files are that are larger
        monkeypatch.setattr(parquet, "_AT_ONCE_BYTES", 0)
    draw = random.Random(5)
    lines = [
        change(draw.choice(TABLES), ts_ns, draw.randrange(6), draw.choice([None, "x", "y", "z"]))
        for ts_ns in range(1, 81)
    ]
    lakes = [lake_at(str(tmp_path), forms=forms), lake_at(f"s3://lake/{name}", store, forms)]
    for lake in lakes:
        shuffled = draw.sample(lines, len(lines))
        cuts = [0, *sorted(draw.sample(range(len(lines)), 4)), len(lines)]
        for start, end in pairwise(cuts):
            apply(lake, shuffled[max(0, start - 5) : end])
    first, second = map(rows_of, lakes)
    assert first == second
    of_folder, of_store = map(lake_summary, lakes)
    assert of_folder["tombstones"] == of_store["tombstones"]
    assert of_folder["deletes"] == of_store["deletes"]
    assert list(of_store["tables"]) == list(TABLES)
    assert freshness(lakes[1], {}).keys() == freshness(lakes[0], {}).keys()
    assert {name: size.rows for name, size in sizes_of(lakes[1]).items()} == {
        name: size.rows for name, size in sizes_of(lakes[0]).items()
    }


@pytest.mark.parametrize("each", [of_each, of_each_file])
@pytest.mark.parametrize("place", ["folder", "s3://bucket/folder"])
def test_results_keep_their_order_and_the_first_error_is_raised(each: Any, place: str) -> None:
    assert each(place, lambda number: number * 2, range(20)) == [number * 2 for number in range(20)]
    assert each(place, str, []) == []
    with pytest.raises(ZeroDivisionError):
        each(place, lambda number: 1 // (number - 3), range(20))


@pytest.mark.parametrize("forms", [("", "", ""), ('keep = "history"',) * 3])
def test_what_is_known_of_deleted_keys_is_read_once_for_all_tables(
    forms: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = lake_at(str(tmp_path), forms=forms)
    apply(lake, [change(name, 1, key, None) for name in TABLES for key in range(3)])
    asked = []
    for method in ("look_up", "read"):
        original = getattr(DeltaFile, method)

        def counted(file: DeltaFile, *given: Any, original: Any = original, **named: Any) -> Any:
            if file in (lake.tombstones.file, lake.deletes.file):
                asked.append(file)
            return original(file, *given, **named)

        monkeypatch.setattr(DeltaFile, method, counted)
    apply(lake, [change(name, 2, key, "x") for name in TABLES for key in range(3)])
    looks = [file for file in asked if file is (lake.deletes if forms[0] else lake.tombstones).file]
    assert len(looks) == 1
    apply(lake, [change(name, 1, 0, "too old") for name in TABLES])
    assert all(row["v"] == "x" for rows in rows_of(lake).values() for row in rows if row["_ts_ns"] > 1)


def test_a_batch_asks_once_for_a_newer_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = lake_at(str(tmp_path))
    apply(lake, [change("public.a", 1, key, "x") for key in range(3)])
    asked: list[str] = []
    read = Folder.read

    def counted(folder: Folder, path: str) -> bytes | None:
        if folder.uri.endswith("public.a") and path.startswith("_delta_log/"):
            asked.append(path.rpartition("/")[2])
        return read(folder, path)

    monkeypatch.setattr(Folder, "read", counted)
    apply(lake, [change("public.a", 2, key, "y") for key in range(3)])
    assert asked == ["00000000000000000002.json", "_last_checkpoint"]


@pytest.mark.parametrize("ours_is_newer", [True, False])
def test_who_writes_between_decision_and_commit_is_noticed(ours_is_newer: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a parameter of the test
    lake, other = lake_at(str(tmp_path)), lake_at(str(tmp_path))
    apply(lake, [change("public.a", 1, 1, "first")])
    ours, theirs = (3, 2) if ours_is_newer else (2, 3)
    once = iter([True])

    def before_write(step: str) -> None:
        if step == "table public.a" and next(once, False):
            apply(other, [change("public.a", theirs, 1, "theirs"), change("public.a", theirs, 2, "new")])

    apply(watched(lake, before_write), [change("public.a", ours, 1, "ours")])
    found = {row["id"]: row["v"] for row in rows_of(other)["public.a"]}
    assert found == {1: "ours" if ours_is_newer else "theirs", 2: "new"}


def test_what_was_looked_up_serves_one_merge_alone(tmp_path: Path) -> None:
    """A second one asks again: another writer may have removed the rows meanwhile."""
    file, other = DeltaFile(str(tmp_path)), DeltaFile(str(tmp_path))
    rows = pa.table({"id": pa.array([1, 2], pa.int64())})
    file.create(rows.schema)
    file.append(rows)
    add = Merge(rows, ["id"])
    file.look_up(Wanted(rows, ["id"], ()))
    assert file.merge(add) == Merged()
    other.merge(Merge(rows, ["id"], wins=always, gone=pa.repeat(True, 2)))
    assert file.merge(add) == Merged(inserted=2)
    assert file.count() == 2


def test_properties_are_set_on_what_another_writer_committed_meanwhile(tmp_path: Path) -> None:
    file, other = DeltaFile(str(tmp_path)), DeltaFile(str(tmp_path))
    file.create(pa.schema([("id", pa.int64())]))
    assert file.exists()
    other.alter({"delta.logRetentionDuration": "interval 3 days"})
    file.alter({"delta.checkpointInterval": "7"})
    found = DeltaFile(str(tmp_path)).engine.log.newest().properties
    assert found["delta.logRetentionDuration"] == "interval 3 days"
    assert found["delta.checkpointInterval"] == "7"
