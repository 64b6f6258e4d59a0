"""The soak's records of a QLDB ledger, and what must come of them.

The journal of the vectors comes in disorder and with its repeats, between it revisions of documents of our
own, and records that nobody can read. What must be in the tables is said twice: by the vectors (documents by
the hash of their contents) and our own numbers, and by a lake that took each record once, in one batch, in
process.
"""

from __future__ import annotations

import base64
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headpond.lake.apply import apply_batch
from tests.kit.support import vector_lines
from tests.lake.ledgers import (
    TABLES,
    config_of,
    datums,
    decoded,
    expected_state,
    ledger_in,
    revision,
    rows_of,
    state_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from headpond.lake.tables import Lake

OURS = "soak-"
Identity = tuple[str, str, int]


@dataclass
class LedgerMaker:
    """Makes records; remembers those that must be refused, and the versions of our own documents."""

    seed: int
    documents: int = 30
    refused: dict[bytes, str] = field(default_factory=dict)
    versions: dict[bytes, tuple[str, int, bool]] = field(default_factory=dict)
    journal: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)
        self._vectors = datums("duplicated")
        self._draw.shuffle(self._vectors)
        self.journal = set(self._vectors)
        self._bad = [
            (line["expect"], base64.b64decode(line["data"]))
            for line in vector_lines("qldb/malformed.jsonl")
            if not line["expect"].startswith("ok")
        ]
        self._newest: Counter[str] = Counter()

    def some(self, share: float) -> list[tuple[float, bytes]]:
        """Make about `share` of the journal and some of ours, each with the seconds it is to come late."""
        draw = self._draw
        count = max(1, round(share * len(self.journal)))
        found = [(0.0, self._vectors.pop()) for _ in range(min(count, len(self._vectors)))]
        for _ in range(draw.randint(1, 3)):
            document = f"{OURS}{draw.randrange(self.documents)}"
            version = self._newest[document]
            self._newest[document] += 1
            gone = version > 0 and draw.random() < 0.1
            contents = None if gone else f"{{n: {version}}}"
            data = revision(document, version, contents, hashed=version % 250, sequence_no=10_000 + version)
            self.versions[data] = (document, version, not gone)
            found.append((draw.choice((0.0, 0.0, 2.0, 8.0)), data))
            if draw.random() < 0.1:
                found.append((draw.uniform(0, 10), data))
        if draw.random() < 0.1:
            reason, data = draw.choice(self._bad)
            self.refused[data] = reason
            found.append((0.0, data))
        return found

    def rest(self) -> list[tuple[float, bytes]]:
        """Give what is left of the journal."""
        left, self._vectors = self._vectors, []
        return [(0.0, data) for data in left]


@dataclass
class ExpectedLedger:
    """What must be in the lake, and what became of each record."""

    rows: dict[str, list[dict[str, Any]]]
    state: dict[str, tuple[str, int, str]]
    ours: dict[str, int]  # document of ours that lives → its newest version
    quarantine: dict[Identity, str]
    facts: dict[str, int]
    fates: Counter[str]
    records: int


def tables() -> str:
    """Write the tables of the pipeline file: each as it is now, and with its past."""
    named = "".join(f'[tables."{name}"]\n' for name in TABLES)
    return named + "".join(
        f'[tables."{name}.history"]\ntable = "{name}"\nkeep = "history"\n' for name in TABLES
    )


def expect(stream: Iterable[tuple[Identity, bytes]], made: LedgerMaker, folder: Path) -> ExpectedLedger:
    """Work out what must come of the records of a stream.

    Args:
        stream: identity and bytes of each user record.
        made: what was made.
        folder: a new folder, for the lake of the reference.
    """
    placed = list(stream)
    fates: Counter[str] = Counter()
    quarantine: dict[Identity, str] = {}
    distinct: dict[bytes, None] = {}
    plain = set(datums("clean"))
    for identity, data in placed:
        if data in made.refused:
            quarantine[identity] = made.refused[data]
            fates["quarantined"] += 1
            continue
        # The journal's repeats are not all equal to the byte.
        again = data in distinct or (data in made.journal and data not in plain)
        fates["duplicate" if again else "applied"] += 1
        distinct[data] = None
    reference = _reference(folder, list(distinct))
    whole = made.journal <= distinct.keys()
    state = {k: v for k, v in state_of(reference).items() if not k.startswith(OURS)}
    newest: dict[str, tuple[int, bool]] = {}
    for data, (document, version, lives) in made.versions.items():
        if data in distinct:
            newest[document] = max(newest.get(document, (-1, False)), (version, lives))
    return ExpectedLedger(
        rows=rows_of(reference),
        state=expected_state() if whole else state,
        ours={name: version for name, (version, lives) in newest.items() if lives},
        quarantine=quarantine,
        facts={name: table.count() for name, table in reference.extras.facts.items()},
        fates=fates,
        records=len(placed),
    )


def _reference(folder: Path, records: list[bytes]) -> Lake:
    config = config_of(*TABLES, raw_ion=True)
    lake = ledger_in(folder, config)
    apply_batch(lake, decoded(config, records))
    return lake
