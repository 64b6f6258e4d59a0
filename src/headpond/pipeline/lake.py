"""What a pipeline file describes: the format of its changes, and the lake they go to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from headpond.core.errors import ConfigurationError
from headpond.core.formats import ChangeFormat, TableEntry
from headpond.core.patterns import is_pattern
from headpond.dsql.chunks import Chunks
from headpond.dsql.config import RowChanges
from headpond.dsql.decode import DsqlConfig
from headpond.lake.tables import Lake
from headpond.pipeline.load import Pipeline
from headpond.pipeline.model import Target, document_spec, table_spec
from headpond.qldb.decode import LedgerConfig
from headpond.qldb.journal.proof import SavedDigest, read_digest

Spec = TypeVar("Spec", bound="TableEntry")


def row_changes(pipeline: Pipeline, kind: type[RowChanges] = DsqlConfig) -> RowChanges:
    """Return the tables and rules of a pipeline whose records are changes of rows."""
    target = pipeline.target
    entries = [_marks(table_spec(table, target.timestamps), target) for table in pipeline.tables]
    return kind(
        tables=tuple(entry for entry in entries if not is_pattern(entry.name)),
        patterns=tuple(entry for entry in entries if is_pattern(entry.name)),
        cluster=pipeline.source.cluster,
        unknown_tables=target.unknown_tables,
        max_unknown_tables=target.max_unknown_tables,
        max_columns=target.max_columns,
        max_commit_ahead_ms=target.max_commit_ahead_ms,
        infinity=target.infinity,
        special_numeric=target.special_numeric,
    )


def ledger_config(pipeline: Pipeline) -> LedgerConfig:
    """Return the tables and rules of a pipeline that reads QLDB records, with the saved digest."""
    target, verify = pipeline.target, pipeline.verify
    entries = [_marks(document_spec(table), target) for table in pipeline.tables]
    return LedgerConfig(
        tables=tuple(entry for entry in entries if not is_pattern(entry.name)),
        patterns=tuple(entry for entry in entries if is_pattern(entry.name)),
        max_unknown_tables=target.max_unknown_tables,
        raw_ion=target.raw_ion,
        canonical_json=target.canonical_json,
        honour=target.redaction == "honour",
        max_columns=target.max_columns,
        verify=verify.enabled,
        digest=None if verify.digest is None else _saved(verify.digest),
        check_deletes=verify.check_deletes,
        unknown_tables="ignore" if target.unknown_tables == "ignore" else "quarantine",
    )


def _marks(spec: Spec, target: Target) -> Spec:
    """Return an entry with the target's `deletion_vectors` where it has none."""
    own = spec.deletion_vectors
    return replace(spec, deletion_vectors=target.deletion_vectors if own is None else own)


def _saved(digest: str) -> SavedDigest:
    try:
        return read_digest(Path(digest).read_bytes())
    except OSError as error:
        raise ConfigurationError(
            f"The digest {digest} cannot be read: {error.strerror or error}.",
            next_step="Correct verify.digest; a relative path is relative to the pipeline file.",
            key="verify.digest",
        ) from error


FORMATS: dict[str, Callable[[Pipeline], ChangeFormat]] = {"dsql": row_changes, "qldb": ledger_config}
"""`source.format` → what makes the format's tables and rules out of a pipeline."""


def change_format(pipeline: Pipeline) -> ChangeFormat:
    """Return the format of a pipeline's changes, with its tables and rules.

    Raises:
        ConfigurationError: the saved digest of a ledger cannot be read.
        InvalidData: it is not a saved digest.
    """
    return FORMATS[pipeline.source.format](pipeline)


def open_lake(pipeline: Pipeline) -> Lake:
    """Return the lake of a pipeline; nothing is created, or read but for the list of what patterns made.

    It raises as `change_format` does.
    """
    target = pipeline.target
    return Lake(target.path, change_format(pipeline), target.storage_options)


def chunk_rules(pipeline: Pipeline, config: ChangeFormat) -> Chunks | None:
    """Return how a pipeline puts chunked changes together; None for a format whose changes come whole."""
    if not isinstance(config, RowChanges):
        return None
    return Chunks(config, pipeline.target.chunk_timeout_ms)
