"""Records of chunked changes that belong together: a main record and the fragments of its images.

::

    main       before: id b, 2 fragments;  after: id a, 3 fragments
    fragments  (b, 0) (b, 1) (a, 0) (a, 1) (a, 2)   each perhaps in several versions
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headpond.changes.model import image_hash
from headpond.changes.schemas import ORIGIN_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from headpond.formats.dsql import Chunked, ChunkRef

Row = dict[str, Any]
Place = tuple[Any, ...]
"""Stream, shard, sequence number and sub-sequence number of a record."""

MISSING_SHOWN = 20
"""Missing indices that a detail lists."""


@dataclass(slots=True)
class Group:
    """Records that belong together by their chunk ids."""

    old: list[Row] = field(default_factory=list)
    new: list[Row] = field(default_factory=list)
    main: Row | None = None
    change: Chunked | None = None
    # (chunk id, index) → versions of that fragment: its text (see `Texts`), and the record
    fragments: dict[tuple[str, int], dict[Hashable, Row]] = field(default_factory=dict)

    def members(self) -> list[Row]:
        """The main record, if there is one, and every version of every fragment."""
        rows = [row for versions in self.fragments.values() for row in versions.values()]
        return rows if self.main is None else [self.main, *rows]


def grouped(old: list[Row], new: list[Row]) -> list[Group]:
    """Rows that share a chunk id, directly or through a main record of two images."""
    parent: dict[str, str] = {}

    def root(chunk_id: str) -> str:
        while parent.setdefault(chunk_id, chunk_id) != chunk_id:
            chunk_id = parent[chunk_id]
        return chunk_id

    for row in (*old, *new):
        first, *others = _ids(row)
        for other in others:
            parent[root(other)] = root(first)
    groups: dict[str, Group] = {}
    for rows, is_new in ((old, False), (new, True)):
        for row in rows:
            group = groups.setdefault(root(_ids(row)[0]), Group())
            (group.new if is_new else group.old).append(row)
    return list(groups.values())


def _ids(row: Row) -> list[str]:
    found = [row[name] for name in ("chunk_id", "before_chunk_id", "after_chunk_id")]
    return [chunk_id for chunk_id in found if chunk_id is not None]


def main_of(group: Group) -> Row:
    """The main record of a group that has one."""
    assert group.main is not None
    return group.main


def place_of(row: Row) -> Place:
    """Where a record stands in its stream."""
    return tuple(row[name] for name in ORIGIN_COLUMNS[:4])


def has_time(row: Row) -> bool:
    """Whether a record's arrival time is known."""
    return row["approximate_arrival_timestamp"] is not None


def _arrival(row: Row) -> tuple[Any, ...]:
    time = row["approximate_arrival_timestamp"]
    return (time is not None, time, row["shard_id"], len(row["sequence_number"]), *place_of(row))


def in_order(row: Row) -> tuple[Any, ...]:
    """What members of a group are sorted by: finished main records first, then by arrival."""
    return (row.get("status") != "finished", *_arrival(row))


def filled(row: Row) -> Row:
    """A row without its nulls."""
    return {name: value for name, value in row.items() if value is not None}


def same_change(first: Chunked, second: Chunked) -> bool:
    """Whether two main records are one change delivered twice."""
    if (first.op, first.source) != (second.op, second.source):
        return False
    if (first.before_chunk, first.after_chunk) != (second.before_chunk, second.after_chunk):
        return False
    pairs = ((first.before, second.before), (first.after, second.after))
    return all(image_hash(one) == image_hash(other) for one, other in pairs)


def is_beyond(place: tuple[str, int], refs: Iterable[ChunkRef | None]) -> bool:
    """Whether a fragment's index lies beyond the end of its image."""
    return any(
        ref is not None and place[0] == ref.chunk_id and place[1] >= ref.total_fragments for ref in refs
    )


def missing_count(group: Group, ref: ChunkRef) -> int:
    """How many fragments of an image are not there; those beyond its end were taken out before."""
    here = sum(
        chunk_id == ref.chunk_id and index < ref.total_fragments for chunk_id, index in group.fragments
    )
    return ref.total_fragments - here


def missing_indices(group: Group, ref: ChunkRef) -> str:
    """The missing indices, for people; their number may be anything a record claims."""
    count = missing_count(group, ref)
    absent = (index for index in itertools.count() if (ref.chunk_id, index) not in group.fragments)
    shown = ", ".join(map(str, itertools.islice(absent, min(count, MISSING_SHOWN))))
    return shown + (f" and {count - MISSING_SHOWN} more" if count > MISSING_SHOWN else "")
