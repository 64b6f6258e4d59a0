"""Remove what redactions took away from every file of a lake, for good.

::

    redactions ─┬► tables, histories, conflicts   contents set to null      ┐ then, of each of these:
                └► quarantine                     bytes and detail of rows  ┘ vacuum of everything old,
                                                  that hold such contents     checkpoint, no older log

Rows lose their contents by commits like any other, and a stop in between leaves a lake that is whole; run
again, it does the rest. Older versions of the tables cannot be read afterwards: that is the purpose. The log
of a Delta table has least and greatest values of its files, so that older entries go as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from headpond.core.errors import UsageError
from headpond.lake.delta import DeltaFile, literal
from headpond.lake.engine.merge import marked
from headpond.lake.engine.vacuum import cut_log
from headpond.lake.maintenance.requeue import parts
from headpond.lake.object_store import is_remote
from headpond.lake.state.ledger import LedgerTables
from headpond.lake.tables import Lake
from headpond.qldb.batch import decode_qldb
from headpond.qldb.records import OK

REMOVED = "its contents were removed: the ledger redacted them"


@dataclass(slots=True)
class Redacted:
    """What was done: rows per table, quarantined records and files that lost their contents now.

    `revisions` are all that the ledger redacted, as far as is known; `unreadable` quarantined records, which
    do not name such a document, are left.
    """

    revisions: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    quarantined: int = 0
    unreadable: int = 0
    files: int = 0


def redact(lake: Lake, *, on_step: Callable[[str], None] = lambda _: None) -> Redacted:
    """Remove the contents of redacted revisions from all files of a lake that nothing else uses meanwhile."""
    ledger = LedgerTables.of(lake)
    if not ledger.config.honour:
        raise UsageError(
            'The pipeline says target.redaction = "keep": contents of redacted revisions stay.',
            next_step='Write redaction = "honour" in [target] first.',
            key="target.redaction",
        )
    facts = ledger.facts["redactions"].read(["document_id", "version"])
    gone = facts.group_by(["document_id", "version"]).aggregate([])
    done = Redacted(revisions=gone.num_rows)
    for name in lake.tables:
        on_step(f"contents {name}")
        done.rows[name] = ledger.forget(name, gone)
    on_step("quarantine")
    _clear_quarantine(lake, gone, done)
    held = [typed.file for typed in lake.typed.values()]
    for file in (*held, ledger.conflicts.file, lake.quarantine.file):
        if file.exists():
            on_step(f"files {file.uri}")
            done.files += _only_newest(file)
    return done


def _clear_quarantine(lake: Lake, gone: pa.Table, done: Redacted) -> None:
    if gone.num_rows == 0:
        return
    pairs = set(zip(gone["document_id"].to_pylist(), gone["version"].to_pylist(), strict=True))
    quarantine = lake.quarantine
    for rows in parts(quarantine, f"detail IS NULL OR detail <> {literal(REMOVED)}"):
        held = list(_holds(rows, pairs))
        done.unreadable += held.count(None)
        hit = rows.filter(pa.array([each is True for each in held], pa.bool_()))
        if hit.num_rows == 0:
            continue
        done.quarantined += hit.num_rows
        cleared = hit.select(list(quarantine.identity))
        cleared = cleared.append_column("detail", pa.repeat(REMOVED, hit.num_rows))
        cleared = cleared.append_column("data", pa.array([b""] * hit.num_rows, pa.binary()))
        quarantine.replace(cleared, ["detail", "data"])


def _holds(rows: pa.Table, pairs: set[tuple[str, int]]) -> Iterator[bool | None]:
    """Yield whether each row holds contents of a redacted revision; None where that is not known."""
    found = decode_qldb(rows["data"].combine_chunks(), verify=False)
    revisions: dict[int, bool] = {
        row["index"]: (row["document_id"], row["version"]) in pairs and row["data"] is not None
        for row in found.revisions.select(["index", "document_id", "version", "data"]).to_pylist()
    }
    ids = sorted({document_id for document_id, _ in pairs})
    named = re.compile(b"|".join(re.escape(each.encode()) for each in ids))
    columns = (rows["data"].to_pylist(), rows["detail"].to_pylist())
    for index, (data, detail) in enumerate(zip(*columns, strict=True)):
        if found.verdicts["verdict"][index].as_py() == OK:
            yield revisions.get(index, False)
        elif named.search(data or b"") or named.search((detail or "").encode()):
            yield True
        else:
            yield None if data else False


def _only_newest(file: DeltaFile) -> int:
    """Remove every file that the newest version does not need, and the log before it."""
    file.compact(marked)
    removed = file.vacuum(0)
    file.write_checkpoint()
    removed += cut_log(file.engine.folder, file.version())
    if not is_remote(file.uri):
        _drop_empty_folders(Path(file.uri))
    return removed


def _drop_empty_folders(folder: Path) -> None:
    """Remove folders of partitions that have no file any more: their names are values."""
    for each in sorted(folder.rglob("*"), key=lambda path: len(path.parts), reverse=True):
        if each.is_dir() and each.name != "_delta_log" and not any(each.iterdir()):
            each.rmdir()
