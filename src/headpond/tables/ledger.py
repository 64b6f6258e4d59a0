"""A lake of a ledger's documents: a folder with a Delta table per configured table, and `_headpond/`.

::

    lake/
      Person/                   a table, named as configured
      _headpond/
        quarantine/             what was refused: reason, detail, origin, the untouched bytes
        tombstones/             versions of deleted documents
        blocks/                 block summaries: hashes, the revisions that each block lists
        statements/             the statements of each block's transaction
        controls/               CREATED, COMPLETED
        redactions/             revisions whose contents were redacted
        conflicts/              revisions that contradict each other
        anomalies/, journal_…/  with `[verify]`: what is wrong with the journal, and what that is found by
        checkpoint/             Spark's (not a table)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headpond.changes.qldb_facts import FACTS, IDENTITIES
from headpond.changes.schemas import QUARANTINE_SCHEMA
from headpond.tables.conflicts import Conflicts
from headpond.tables.delta import DeltaFile
from headpond.tables.documents import CURRENT_OWN, HISTORY_OWN, ION_OWN, JSON_OWN, DocumentTable
from headpond.tables.journal import JournalTables
from headpond.tables.lake import OWN_FOLDER
from headpond.tables.naming import table_folder
from headpond.tables.own_formats import refuse_later_formats
from headpond.tables.state import ORIGIN, FactTable
from headpond.tables.tombstones import Tombstones
from headpond.tables.typed import TypedTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headpond.changes.journal_proof import SavedDigest
    from headpond.changes.qldb_config import LedgerConfig
    from headpond.tables.lake import FileMaker


class LedgerLake:
    """The tables of one pipeline that reads QLDB records.

    Args:
        path: a folder, or an object-store URL.
        config: the tables to keep, and the rules.
        storage_options: for `deltalake`; never printed.
        files: makes the file of each table of documents.
        digest: a saved digest to compare the journal with.
    """

    def __init__(
        self,
        path: str,
        config: LedgerConfig,
        storage_options: Mapping[str, str] | None = None,
        *,
        files: FileMaker = DeltaFile,
        digest: SavedDigest | None = None,
    ) -> None:
        self.path = path.rstrip("/")
        self.config = config
        self.digest = digest
        self.storage_options = dict(storage_options or {})
        self.quarantine = FactTable(self._own("quarantine"), QUARANTINE_SCHEMA, (*ORIGIN, "reason"))
        self.tombstones = Tombstones(self._own("tombstones"))
        self.conflicts = Conflicts(self._own("conflicts"))
        self.facts = {
            name: FactTable(self._own(name), schema, IDENTITIES[name]) for name, schema in FACTS.items()
        }
        self.journal = JournalTables(self._own, deletes=config.check_deletes)
        self.documents: dict[str, DocumentTable] = {}
        for spec in config.tables:
            past = spec.keep == "history"
            own = HISTORY_OWN if past else CURRENT_OWN
            own = own | (ION_OWN if config.raw_ion else {}) | (JSON_OWN if config.canonical_json else {})
            file = files(f"{self.path}/{table_folder(spec.name)}", self.storage_options)
            typed = TypedTable(spec.name, file, spec.declared(), own, spec)
            self.documents[spec.name] = DocumentTable(typed, past=past)

    def prepare(self) -> None:
        """Create the tables that are not there, and check those that are against the configuration.

        Raises:
            ConfigurationError: a table's columns contradict the configuration, or a later headpond has
                written here.
        """
        refuse_later_formats(self.own_files())
        for typed in self.typed.values():
            typed.prepare()

    def close_journal(self) -> None:
        """Say that nothing more will come: what is absent from the journal is missing."""
        self.journal.close(completed=self.completed())

    def completed(self) -> bool:
        """Say whether a stream has said that it ended."""
        kinds = self.facts["controls"].read(["control_record_type"])["control_record_type"]
        return "COMPLETED" in kinds.to_pylist()

    @property
    def typed(self) -> dict[str, TypedTable]:
        """Every table by its name."""
        return {name: table.typed for name, table in self.documents.items()}

    def files(self) -> Iterator[tuple[str, DeltaFile]]:
        """Every Delta table that is there, the configured ones first, then `_headpond/…`."""
        found = {name: typed.file for name, typed in self.typed.items()}
        found |= {f"{OWN_FOLDER}/{file.uri.rpartition('/')[2]}": file for file in self.own_files()}
        yield from ((name, file) for name, file in found.items() if file.exists())

    def own_files(self) -> list[DeltaFile]:
        """The Delta tables below `_headpond/`."""
        own = [self.quarantine.file, self.tombstones.file, self.conflicts.file]
        return own + [fact.file for fact in self.facts.values()] + self.journal.files

    def _own(self, name: str) -> DeltaFile:
        return DeltaFile(f"{self.path}/{OWN_FOLDER}/{name}", self.storage_options)
