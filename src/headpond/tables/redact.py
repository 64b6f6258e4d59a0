"""Remove what redactions took away from every file of a lake, for good.

::

    redactions ─┬► tables, histories, conflicts   contents set to null      ┐ then, of each of these:
                └► quarantine                     bytes and detail of rows  ┘ vacuum of everything old,
                                                  that hold such contents     checkpoint, no older log

Rows lose their contents by commits like any other, and a stop in between leaves a lake that is whole; run
again, it does the rest. Older versions of the tables cannot be read afterwards: that is the purpose. The log
of a Delta table tells least and greatest values of its files, so that older entries go as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs as pafs

from headpond.errors import UsageError
from headpond.formats.qldb_batch import decode_qldb
from headpond.formats.qldb_model import OK
from headpond.tables.delta import copied, literal, quoted, same
from headpond.tables.remote import file_system, is_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deltalake import DeltaTable

    from headpond.tables.delta import DeltaFile
    from headpond.tables.ledger import LedgerLake

ROWS_AT_ONCE = 1_000
"""Quarantined records that are looked at together."""
REMOVED = "its contents were removed: the ledger redacted them"

_COMMIT = re.compile(r"0*(\d+)\..*")


@dataclass(slots=True)
class Redacted:
    """What was done.

    Attributes:
        revisions: revisions that the ledger redacted, as far as is known.
        rows: per table, rows that lost their contents now.
        quarantined: quarantined records that lost theirs.
        unreadable: quarantined records that cannot be read and do not name such a document; they are left.
        files: files removed.
    """

    revisions: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    quarantined: int = 0
    unreadable: int = 0
    files: int = 0


def redact(lake: LedgerLake, *, between: Callable[[str], None] = lambda _: None) -> Redacted:
    """Remove the contents of redacted revisions from all files.

    Args:
        lake: a prepared lake that nothing else uses meanwhile.
        between: called with the name of each step before it is done.

    Raises:
        UsageError: the lake keeps the contents of redacted revisions.
    """
    if not lake.config.honour:
        raise UsageError(
            'The pipeline says target.redaction = "keep": contents of redacted revisions stay.',
            next_step='Write redaction = "honour" in [target] first.',
            key="target.redaction",
        )
    facts = lake.facts["redactions"].read(["document_id", "version"])
    gone = facts.group_by(["document_id", "version"]).aggregate([])
    done = Redacted(revisions=gone.num_rows)
    for name, table in lake.documents.items():
        between(f"contents {name}")
        done.rows[name] = table.forget(gone)
        lake.conflicts.forget(name, gone)
    between("quarantine")
    _clear_quarantine(lake, gone, done)
    held = [table.typed.file for table in lake.documents.values()]
    for file in (*held, lake.conflicts.file, lake.quarantine.file):
        if file.exists():
            between(f"files {file.uri}")
            done.files += _only_newest(file, lake.storage_options)
    return done


def _clear_quarantine(lake: LedgerLake, gone: pa.Table, done: Redacted) -> None:
    quarantine = lake.quarantine
    if gone.num_rows == 0 or not quarantine.file.exists():
        return
    pairs = set(zip(gone["document_id"].to_pylist(), gone["version"].to_pylist(), strict=True))
    identity = list(quarantine.identity)
    for rows in _parts(lake):
        held = [_holds(*each) for each in _looked_at(rows, pairs)]
        done.unreadable += held.count(None)
        hit = rows.filter(pa.array([each is True for each in held], pa.bool_()))
        if hit.num_rows == 0:
            continue
        done.quarantined += hit.num_rows
        cleared = hit.select(identity)
        cleared = cleared.append_column("detail", pa.repeat(REMOVED, hit.num_rows))
        cleared = cleared.append_column("data", pa.array([b""] * hit.num_rows, pa.binary()))
        columns = copied(["detail", "data"])
        quarantine.file.merge(cleared, match=same(identity), update=columns)


def _parts(lake: LedgerLake) -> Iterator[pa.Table]:
    """The rows of the quarantine in parts, those left out whose contents are gone."""
    quarantine = lake.quarantine
    where = f"detail IS NULL OR detail <> {literal(REMOVED)}"
    keys = quarantine.file.query([quoted("sequence_number")], where)["sequence_number"].unique()
    for at in range(0, len(keys), ROWS_AT_ONCE):
        wanted = ", ".join(map(literal, keys.slice(at, ROWS_AT_ONCE).to_pylist()))
        yield quarantine.read(None, f"({where}) AND sequence_number IN ({wanted})")


def _looked_at(
    rows: pa.Table, pairs: set[tuple[str, int]]
) -> Iterator[tuple[str, bool | None, bool, dict[str, Any]]]:
    """Per row its verdict, whether it is a revision among the pairs, whether it names one, and the row."""
    found = decode_qldb(rows["data"].combine_chunks(), verify=False)
    revisions: dict[int, bool] = {
        row["index"]: (row["document_id"], row["version"]) in pairs and row["data"] is not None
        for row in found.revisions.select(["index", "document_id", "version", "data"]).to_pylist()
    }
    ids = sorted({document_id for document_id, _ in pairs})
    named = re.compile(b"|".join(re.escape(each.encode()) for each in ids))
    verdicts = found.verdicts["verdict"].to_pylist()
    for index, row in enumerate(rows.to_pylist()):
        told = bool(named.search(row["data"] or b"")) or bool(named.search((row["detail"] or "").encode()))
        yield verdicts[index], revisions.get(index), told, row


def _holds(verdict: str, redacted: bool | None, named: bool, row: dict[str, Any]) -> bool | None:  # noqa: FBT001 - one row's facts
    """Say whether a row holds contents of a redacted revision; null where that cannot be told."""
    if verdict == OK:
        return bool(redacted)
    if named:
        return True
    return None if row["data"] else False


def _only_newest(file: DeltaFile, options: dict[str, str]) -> int:
    """Remove every file that the newest version does not need, and the log before it.

    Raises:
        UsageError: the table has deletion vectors, whose files deltalake would take for needless ones.
    """
    if file.has_deletion_vectors():
        raise UsageError(
            f"The Delta table at {file.uri} has deletion vectors: what they took away is still in its files.",
            next_step="Rewrite it with Spark (ALTER TABLE … DROP FEATURE deletionVectors), and redact again.",
            table=file.uri,
        )

    def vacuum(table: DeltaTable) -> list[str]:
        return table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)

    removed = len(file.committing(vacuum))
    table = file.open()
    table.create_checkpoint()
    removed += _cut_log(file.uri, table.version(), options)
    if not is_remote(file.uri):
        _drop_empty_folders(Path(file.uri))
    return removed


def _cut_log(uri: str, version: int, options: dict[str, str]) -> int:
    """Remove log entries and checkpoints before the checkpoint of a version."""
    files, path = file_system(uri, options)
    old = [
        info.path
        for info in files.get_file_info(pafs.FileSelector(f"{path}/_delta_log"))
        if (match := _COMMIT.fullmatch(info.base_name)) is not None and int(match[1]) < version
    ]
    for each in old:
        files.delete_file(each)
    return len(old)


def _drop_empty_folders(folder: Path) -> None:
    """Remove folders of partitions that have no file any more: their names are values."""
    for each in sorted(folder.rglob("*"), key=lambda path: len(path.parts), reverse=True):
        if each.is_dir() and each.name != "_delta_log" and not any(each.iterdir()):
            each.rmdir()
