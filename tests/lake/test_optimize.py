"""Housekeeping: the same rows in fewer files, beside writers that do not notice."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headpond.lake.apply import apply_batch
from headpond.lake.delta import DeltaFile
from headpond.lake.engine.folder import Folder
from headpond.lake.maintenance.optimize import HOUR_MS, optimize_file
from tests.lake.lakes import decoded, lake_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from headpond.dsql.decode import DsqlConfig
    from headpond.lake.tables import Lake

TABLES = '[tables."public.t"]\nkeys = ["id"]\ncolumns = { id = "bigint", v = "text" }\n'


def change(number: int) -> bytes:
    source = {
        "version": "1.0",
        "ts_ns": number,
        "txId": "t",
        "schema": "public",
        "table": "t",
        "cluster": "c",
    }
    body = {"type": "full", "op": "c", "after": {"id": number, "v": "x" * 200}, "source": source}
    data = base64.b64encode(json.dumps(body).encode()).decode()
    return json.dumps({"data": data, "shard": "s", "sequenceNumber": str(number)}).encode()


@pytest.fixture
def filled(tmp_path: Path) -> tuple[Lake, DsqlConfig]:
    """A lake of eight small files in one table, and two in its quarantine."""
    lake, config = lake_in(tmp_path, TABLES)
    for number in range(8):
        bad = [b"bad"] if number < 2 else []
        apply_batch(lake, decoded(config, [change(number), *bad], first_line=10 * number))
    return lake, config


def ids(lake: Lake) -> list[int]:
    found: list[int] = lake.typed["public.t"].file.read(["id"])["id"].to_pylist()
    return sorted(found)


@pytest.mark.slow
def test_many_files_become_one_and_the_rows_stay(filled: tuple[Lake, DsqlConfig]) -> None:
    """Of every table that is there, those of headpond's own too; the log gets a checkpoint."""
    lake, _ = filled
    found = {name: optimize_file(file) for name, file in lake.files()}
    assert list(found) == ["public.t", "_headpond/quarantine", "_headpond/schema_changes"]
    assert (found["public.t"].before.files, found["public.t"].after.files) == (8, 1)
    assert found["_headpond/quarantine"].after.files == 1
    assert found["public.t"].after.bytes < found["public.t"].before.bytes
    assert found["public.t"].vacuumed is None
    assert ids(lake) == list(range(8))
    log = Path(lake.typed["public.t"].file.uri) / "_delta_log"
    assert (log / "_last_checkpoint").exists()


@pytest.mark.slow
def test_a_target_size_is_kept_to(filled: tuple[Lake, DsqlConfig]) -> None:
    """Files that are large enough are left as they are."""
    lake, _ = filled
    found = optimize_file(lake.typed["public.t"].file, target_bytes=1)
    before, after = (replace(size, log_bytes=0) for size in (found.before, found.after))  # a checkpoint came
    assert before == after


@pytest.mark.slow
def test_a_vacuum_removes_what_is_old_and_nothing_younger(filled: tuple[Lake, DsqlConfig]) -> None:
    """Files of versions within the retention stay."""
    lake, _ = filled
    file = lake.typed["public.t"].file
    assert optimize_file(file, retain_ms=HOUR_MS).vacuumed == 0
    kept = optimize_file(file, retain_ms=0)
    assert kept.vacuumed == 8
    assert len(list(Path(file.uri).glob("*.parquet"))) == 1
    assert ids(lake) == list(range(8))


def interfering(monkeypatch: pytest.MonkeyPatch, uri: str, meanwhile: Callable[[], object]) -> list[str]:
    """Do something once, when the next commit of the table at `uri` is planned, just before its entry."""
    put_new, done = Folder.put_new, list[str]()

    def wait_and_put(self: Folder, path: str, content: bytes) -> None:
        if self.uri == uri and not done:
            done.append(path)
            meanwhile()
        put_new(self, path, content)

    monkeypatch.setattr(Folder, "put_new", wait_and_put)
    return done


@pytest.mark.slow
def test_a_batch_whose_table_is_compacted_meanwhile_is_applied(
    filled: tuple[Lake, DsqlConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files that its merge planned to rewrite are gone when it commits: it computes anew."""
    lake, config = filled
    uri = lake.typed["public.t"].file.uri
    done = interfering(monkeypatch, uri, lambda: optimize_file(DeltaFile(uri)))
    apply_batch(lake, decoded(config, [change(number) for number in range(4, 12)]))
    assert done
    assert ids(lake) == list(range(12))


@pytest.mark.slow
def test_a_compaction_whose_table_is_written_meanwhile_ends_well(
    filled: tuple[Lake, DsqlConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that a merge rewrote do not come back, and new ones stay."""
    lake, config = filled
    file = lake.typed["public.t"].file
    other, _ = lake_in(Path(lake.path).parent, TABLES)
    newer = [change(number + 100) for number in range(3)]
    done = interfering(
        monkeypatch, file.uri, lambda: apply_batch(other, decoded(config, newer, first_line=500))
    )
    optimize_file(DeltaFile(file.uri))
    assert done
    assert ids(lake) == [*range(8), 100, 101, 102]
