"""What is applied: one micro-batch as the decoders give it, and how its chunks are put together."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headpond.changes.assemble import ChunkRules
from headpond.changes.schemas import PENDING_SCHEMA, QUARANTINE_SCHEMA

if TYPE_CHECKING:
    from datetime import datetime

    import pyarrow as pa

    from headpond.changes.config import DsqlConfig


OPEN = "chunk_groups_open"
"""The one counter that tells a state, not what was done: groups of chunks that wait after the last batch."""


@dataclass(slots=True)
class DecodedBatch:
    """What the decoders made of one micro-batch: typed changes per table, and what is no change."""

    tables: dict[str, pa.Table] = field(default_factory=dict)
    quarantine: pa.Table = field(default_factory=QUARANTINE_SCHEMA.empty_table)
    pending: pa.Table = field(default_factory=PENDING_SCHEMA.empty_table)
    counters: Counter[str] = field(default_factory=Counter)
    facts: dict[str, pa.Table] = field(default_factory=dict)
    """What a QLDB stream says beside the rows (`changes.qldb_facts`)."""
    newest_arrivals_us: dict[str, int] = field(default_factory=dict)
    """Shard → arrival of its newest record in the batch, µs since 1970."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """How chunked changes are put together; without it they only wait.

    Attributes:
        config: tables and rules for the changes that become whole.
        rules: bounds of reassembly.
        memory_bytes: how much of what waits is read at once; a larger group goes through a file.
        disk_bytes: how much may wait; beyond it the groups that wait longest are given up.
        now: what time-outs are measured against; null times nothing out.
    """

    config: DsqlConfig
    rules: ChunkRules = field(default_factory=ChunkRules)
    memory_bytes: int = 256 << 20
    disk_bytes: int = 8 << 30
    now: datetime | None = None
