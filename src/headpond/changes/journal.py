"""A QLDB journal as it becomes known, batch by batch, and what can be said of it.

::

    decoded batch ─► add ─┐
    decoded batch ─► add ─┼─► facts (each once) + counts ─► checked() ─► anomalies, pending
    decoded batch ─► add ─┘

The step function of verification: adding in any order, any cut, with any repeats, ends in the same answer.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.journal_check import check_documents, check_gaps, check_slice
from headpond.changes.journal_facts import BLOCK, REVISION, JournalFacts, journal_facts, told_apart
from headpond.changes.journal_ranges import FactRanges, numbers_of

if TYPE_CHECKING:
    from headpond.formats.qldb_batch import DecodedQldb

COMPACT_ROWS = 100_000
"""Facts added before those that are there twice are dropped; more where there are many."""
SLICE_BLOCKS = 20_000
"""Blocks that are checked in one go, up to twice as many; bounds the memory of the joins."""


class Checked(NamedTuple):
    """What a journal's facts say."""

    anomalies: pa.Table
    """`journal_check.ANOMALIES`, sorted by strand, block, document, version and kind."""
    pending: dict[str, int]
    """What waits for records that may still come: revisions without their block; unless closed also listed
    revisions that are absent, and blocks missing between others."""


@dataclass(slots=True)
class Journal:
    """Facts of a journal, its records counted."""

    counts: Counter[str] = field(default_factory=Counter)
    """`records`, `control`, `block_summary`, `revision_details`, and malformed ones by verdict."""
    completed: bool = False
    """A control record said that the stream has ended."""
    _ranges: FactRanges = field(default_factory=lambda: FactRanges(COMPACT_ROWS, SLICE_BLOCKS))

    @property
    def facts(self) -> JournalFacts:
        """All facts, each once."""
        self._ranges.settle()
        return JournalFacts.together(self._ranges)

    def add(self, decoded: DecodedQldb) -> None:
        """Take in a batch that was decoded with `verify`."""
        self.counts.update(
            records=decoded.verdicts.num_rows,
            control=decoded.controls.num_rows,
            block_summary=decoded.blocks.num_rows,
            revision_details=decoded.revisions.num_rows,
        )
        verdicts = decoded.verdicts["verdict"]
        for one in pc.value_counts(verdicts.filter(pc.not_equal(verdicts, "ok"))).to_pylist():
            self.counts[f"malformed.{one['values']}"] += one["counts"]
        self.completed |= bool(
            pc.any(pc.equal(decoded.controls["control_record_type"], "COMPLETED"), min_count=0).as_py()
        )
        self.add_facts(journal_facts(decoded.blocks, decoded.revisions))

    def absorb(self, other: Journal) -> None:
        """Take in what another one has read."""
        self.counts.update(other.counts)
        self.completed |= other.completed
        self._ranges.absorb(other._ranges)

    def add_facts(self, facts: JournalFacts) -> None:
        """Take in facts without counting records."""
        self._ranges.add(facts)

    def distinct(self) -> dict[str, int]:
        """Count what is there once: blocks and revisions by identity, and repeats of equal content."""
        facts = self.facts
        blocks = [told_apart(part.blocks, BLOCK, "block_hash") for part in self._ranges]
        revisions = told_apart(facts.revisions, REVISION, "hash")
        return {
            "distinct_blocks": sum(some.identities for some in blocks),
            "distinct_revisions": revisions.identities,
            "duplicate_blocks": self.counts["block_summary"] - sum(some.contents for some in blocks),
            "duplicate_revisions": self.counts["revision_details"] - revisions.contents,
        }

    def checked(self, *, closed: bool = True, deletes: bool = True) -> Checked:
        """Check everything known.

        Args:
            closed: nothing more will come: what is absent is missing, not pending.
            deletes: check the hash of deletes.
        """
        found, waiting, gaps = [check_documents(self.facts.revisions)], 0, []
        for strand, ranges in self._ranges.strands.items():
            before, known, last = None, [], 0
            for facts in ranges:
                checked = check_slice(facts, before, deletes=deletes)
                found.append(checked.anomalies)
                waiting += checked.waiting.num_rows
                known.append(facts.blocks["sequence_no"].to_numpy())
                last = int(numbers_of(facts)[-1])
                before = facts.blocks.filter(pc.equal(facts.blocks["sequence_no"], last))
            gaps.append(check_gaps(strand, np.concatenate(known), reach=last if self.completed else None))
        anomalies, pending = pa.concat_tables(found), {"revisions_without_block": waiting}
        if closed:
            anomalies = pa.concat_tables([anomalies, *gaps])
        else:
            absent = pc.equal(anomalies["kind"], "revision_missing")
            anomalies = anomalies.filter(pc.invert(absent))
            pending["revisions"] = pc.sum(absent, min_count=0).as_py()
            pending["blocks"] = sum(
                pc.sum(pc.add(pc.subtract(gap["last"], gap["first"]), 1), min_count=0).as_py() for gap in gaps
            )
        keys = ["strand_id", "sequence_no", "first", "document_id", "version", "kind"]
        return Checked(anomalies.sort_by([(key, "ascending") for key in keys]), pending)
