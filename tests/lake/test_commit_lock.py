"""The lock under which a table is committed to where Spark writes it in a plain folder."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from headpond.core.errors import ServiceFailure
from headpond.lake import delta as locks
from headpond.lake.delta import LOCK, DeltaFile, commit_lock
from headpond.lake.engine.merge import Merge

ROWS = pa.table({"id": pa.array([1], pa.int64())})
HOLDER = """
import sys
from headpond.lake.delta import commit_lock
with commit_lock(sys.argv[1], leave=True):
    print("held", flush=True)
    sys.stdin.read()
"""


def file_in(folder: Path) -> DeltaFile:
    file = DeltaFile(str(folder / "t"))
    file.create(ROWS.schema)
    return file


def merge(file: DeltaFile) -> None:
    file.merge(Merge(ROWS, ["id"]))


def test_where_only_deltalake_writes_there_is_no_lock(tmp_path: Path) -> None:
    """A table of the embedded engine is as Delta made it."""
    file = file_in(tmp_path)
    merge(file)
    assert not (tmp_path / "t/_delta_log" / LOCK).exists()
    with commit_lock("s3://bucket/t", leave=True):
        assert not Path("s3:").exists()


@pytest.mark.slow
def test_a_commit_waits_for_another_process_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told when that takes too long, and done when the other lets go or dies."""
    file = file_in(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, file.uri], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        monkeypatch.setattr(locks, "PATIENCE_S", 0.1)
        with pytest.raises(ServiceFailure, match="has kept the lock of the Delta table"):
            merge(file)
        assert file.count() == 0
        monkeypatch.setattr(locks, "PATIENCE_S", 60.0)
        waiting = threading.Thread(target=merge, args=(file,))
        waiting.start()
        waiting.join(0.1)
        assert waiting.is_alive()
        holder.kill()
        waiting.join(60)
    assert file.count() == 1


def test_a_lock_file_does_not_disturb_a_table(tmp_path: Path) -> None:
    """Compaction, vacuum and a checkpoint pass over it, and it stays."""
    file = file_in(tmp_path)
    with commit_lock(file.uri, leave=True):
        pass
    merge(file)
    file.committing(lambda table: table.optimize.compact())
    file.committing(
        lambda table: table.vacuum(
            retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True
        )
    )
    file.open().create_checkpoint()
    assert DeltaFile(file.uri).count() == 1
    assert (tmp_path / "t/_delta_log" / LOCK).exists()
