"""A table that is committed to for months: its log is read from the last checkpoint on, whoever asks."""

from __future__ import annotations

import base64
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headpond.api.looking import look
from headpond.core.errors import InvalidData
from headpond.lake import delta
from headpond.lake.apply import apply_batch
from headpond.lake.delta import DeltaFile
from headpond.lake.engine.folder import Folder
from headpond.lake.engine.log import Log, newest_part
from headpond.lake.reports import sizes_of
from headpond.pipeline import loads
from headpond.pipeline.lake import open_lake, row_changes
from tests.kit.azurite import azure_store
from tests.kit.s3_server import s3_store
from tests.lake.lakes import decoded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headpond.dsql.decode import DsqlConfig
    from headpond.lake.tables import Lake

LAKE = """
[source]
archive = "x.jsonl"
format = "dsql"
[target]
path = "{root}"
storage_options = {options}
[tables."public.t"]
keys = ["id"]
columns = {{ id = "bigint" }}
"""
NAME = "public.t"
CHECKPOINT, NEWEST = 4, 6


@pytest.fixture(params=["folder", "s3", pytest.param("azure", marks=pytest.mark.thorough)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Where a lake may be, and the options that it takes."""
    if request.param == "folder":
        yield str(tmp_path / "lake"), "{}"
    elif request.param == "s3":
        with s3_store() as store:
            yield f"{store.root}/lake", store.toml
    else:
        with azure_store(tmp_path) as azure:
            yield f"{azure.root}/lake", azure.toml


def lake_at(root: str, options: str = "{}") -> tuple[Lake, DsqlConfig]:
    pipeline = loads(LAKE.format(root=root, options=options))
    return open_lake(pipeline), row_changes(pipeline)


def insert(number: int) -> bytes:
    source = {"version": "1.0", "ts_ns": number, "txId": "t", "cluster": "c"}
    source |= {"schema": "public", "table": "t"}
    body = {"type": "full", "op": "c", "before": None, "after": {"id": number}, "source": source}
    data = base64.b64encode(json.dumps(body).encode()).decode()
    return json.dumps({"data": data, "shard": "s", "sequenceNumber": str(number)}).encode()


def old_lake(root: str, options: str = "{}") -> None:
    """Six batches of one row each; the log has a checkpoint of the fourth, and all entries."""
    lake, config = lake_at(root, options)
    lake.prepare()
    for number in range(1, NEWEST + 1):
        apply_batch(lake, decoded(config, [insert(number)]))
        if number == CHECKPOINT:
            lake.typed[NAME].file.write_checkpoint()


def versions(paths: Any) -> set[int]:
    return {int(name[:20]) for path in paths if (name := path.rpartition("/")[2])[:1].isdigit()}


def test_nobody_lists_what_a_checkpoint_has(place: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each did, and a run asks for sizes every 30 seconds: it cost the more the older a lake was."""
    old_lake(*place)

    def listed(self: Folder, path: str = "", *, recursive: bool = False) -> Any:
        raise AssertionError((self.uri, path, recursive))

    monkeypatch.setattr(Folder, "listed", listed)
    seen: list[dict[str, int]] = []
    after = Folder.files_after

    def watched(self: Folder, path: str, name: str) -> dict[str, int]:
        found = after(self, path, name)
        if self.uri.endswith(NAME):
            seen.append(found)
        return found

    monkeypatch.setattr(Folder, "files_after", watched)
    lake, config = lake_at(*place)
    assert sizes_of(lake)[NAME].rows == NEWEST
    apply_batch(lake, decoded(config, [insert(7)]))
    assert lake.typed[NAME].file.count() == NEWEST + 1
    assert seen
    assert all(min(versions(found)) == CHECKPOINT for found in seen)
    monkeypatch.setattr(delta, "CHECKPOINT_COMMITS", 1)
    size = sizes_of(lake)[NAME]
    assert size.log_bytes == sum(seen[-1].values())
    assert versions(seen[-1]) == {CHECKPOINT, *range(CHECKPOINT, NEWEST + 2)}
    lake.typed[NAME].file.tidy(NEWEST)
    again, _ = lake_at(*place)
    sizes_of(again)
    assert versions(seen[-1]) == {NEWEST + 1}, "a checkpoint was written, and from it on it is read"


HINTS = {
    "none": None,
    "not JSON": b"{",
    "of another kind": b"[]",
    "without a version": b"{}",
    "of a checkpoint that is gone": b'{"version": 2, "size": 3}',
    "beyond the log": b'{"version": 900, "size": 3}',
    "no number": b'{"version": "new"}',
    "negative": b'{"version": -5}',
}


@pytest.mark.parametrize("hint", HINTS.values(), ids=HINTS)
def test_the_hint_is_no_more_than_that(tmp_path: Path, hint: bytes | None) -> None:
    """Whatever `_last_checkpoint` says, the newest version is found."""
    root = str(tmp_path / "lake")
    old_lake(root)
    last = Path(root, NAME, "_delta_log", "_last_checkpoint")
    assert json.loads(last.read_bytes())["version"] == CHECKPOINT
    if hint is None:
        last.unlink()
    else:
        last.write_bytes(hint)
    log = Log(Folder(str(last.parent.parent)))
    assert log.exists()
    assert log.newest().version == NEWEST
    assert log.newest().count() == NEWEST
    assert list(newest_part(log.folder)[1]) == [CHECKPOINT]


def test_a_table_that_is_gone_is_not_called_damaged(tmp_path: Path) -> None:
    """Nor does deltalake's own error come through where a version is asked for."""
    gone = DeltaFile(str(tmp_path / "gone"))
    assert not gone.exists()
    for ask in (gone.version, gone.schema, lambda: gone.as_of(1)):
        with pytest.raises(InvalidData, match=r"There is no Delta table at .*gone"):
            ask()


def test_an_entry_that_is_missing_behind_the_checkpoint_is_found(tmp_path: Path) -> None:
    """What comes before it may be gone."""
    root = str(tmp_path / "lake")
    old_lake(root)
    folder = Path(root, NAME, "_delta_log")
    for number in range(CHECKPOINT):
        (folder / f"{number:020}.json").unlink()
    assert Log(Folder(str(folder.parent))).newest().version == NEWEST
    (folder / f"{CHECKPOINT + 1:020}.json").unlink()
    with pytest.raises(InvalidData, match=r"00005\.json is missing, and later entries are there"):
        Log(Folder(str(folder.parent))).newest()


def test_each_log_is_read_once_for_the_state_of_a_lake(
    place: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Size, columns, definition and newest change, each of which asked for a newer version, too."""
    lake, config = lake_at(*place)
    lake.prepare()
    for number in range(1, 4):
        apply_batch(lake, decoded(config, [insert(number)]))
    asked: Counter[str] = Counter()
    reading, listing = Folder.read, Folder.files_after

    def read(folder: Folder, path: str) -> bytes | None:
        asked[f"read {Path(path).name}"] += folder.uri.endswith(NAME)
        return reading(folder, path)

    def files_after(folder: Folder, path: str, name: str) -> dict[str, int]:
        asked["listed"] += folder.uri.endswith(NAME)
        return listing(folder, path, name)

    monkeypatch.setattr(Folder, "read", read)
    monkeypatch.setattr(Folder, "files_after", files_after)
    found = look(loads(LAKE.format(root=place[0], options=place[1])))
    assert (found["tables"][NAME]["rows"], found["sizes"][NAME]["rows"]) == (3, 3)
    assert found["freshness"][NAME]["newest_commit_ns"]
    # With the list for the size, and one look for a newer version.
    entries = {f"read {version:020}.json": 1 for version in range(5)}
    assert +asked == {**entries, "listed": 2, "read _last_checkpoint": 3}
