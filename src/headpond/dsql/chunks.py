r"""Chunked changes put together: from what waits and what arrived to whole changes and what then waits.

::

    main      chunked.after: id i, 3 fragments, crc32c ─┐
    fragment  i, 0   {"id": 1, "v": "caf\u              ├─► text ─► crc ─► a JSON object ─► the change, as if
    fragment  i, 2   end"}                              │                                  it came `full`
    fragment  i, 1   00e9 and the                      ─┘

Members come in any order, from any shard, in any batch, and more than once. Records that share a chunk id are
a group; a main record of two images joins two ids. Nothing is parsed before all fragments are there. A group
times out by arrival time. Of several main records the first to arrive whose checksum fits wins; one that does
not fit waits as long as the group does. The caller writes what waits after all else of a batch: after a crash
in between the group is complete again, which versions (or a log entry's place) make harmless.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

import crc32c
import pyarrow as pa

from headpond.core.formats import Decoded
from headpond.core.schemas import (
    ASSEMBLY_SCHEMA,
    FORMAT_VERSION,
    ORIGIN_COLUMNS,
    PENDING_SCHEMA,
    QUARANTINE_SCHEMA,
    USER_RECORD_SCHEMA,
)
from headpond.dsql.config import RowChanges
from headpond.dsql.decode import CHUNK_IDS, sort_out
from headpond.dsql.opened import DECODED_SCHEMA
from headpond.dsql.records import Change, ChunkRef, Fragment, Refused, parse
from headpond.dsql.strict_json import RefusedJson, read_object
from headpond.dsql.versions import image_hash

Row = dict[str, Any]
Place = tuple[Any, ...]
"""Stream, shard, sequence number and sub-sequence number of a record."""

WAITING, FAILED, FINISHED = "waiting", "failed", "finished"
TOO_LARGE = "chunks_too_large"
MAX_BYTES = 64 << 20
"""Of the records of one group; a row of DSQL has 2 MiB at most, which escapes make 12."""
MAX_RECORDS = 4_000
"""As well."""
_MISSING_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Chunks:
    """How chunked changes are put together: for what tables, how long they wait, how large they may be.

    Time-outs are measured from the arrival of a group's last member to `now`, the arrival up to which all was
    read; None times nothing out.
    """

    config: RowChanges
    timeout_ms: int = 3_600_000
    max_bytes: int = MAX_BYTES
    max_records: int = MAX_RECORDS
    now: datetime | None = None

    def is_over(self, rows: Iterable[Row]) -> bool:
        """Return whether the last member of a group arrived longer ago than the time-out."""
        last = last_arrival(rows)
        if self.now is None or last is None:
            return False
        return (self.now - last).total_seconds() * 1000 > self.timeout_ms

    def excess(self, rows: list[Row]) -> str:
        """Return in which way a group is beyond its bounds, in words; empty where it is not.

        The rows have their `data_bytes`, and whether they are `new`: of these, copies of what waits or of
        each other do not count.
        """
        sizes: dict[Place, int] = {}
        waiting = {_piece_of(row) for row in rows if not row["new"]}
        for row in rows:
            at = _piece_of(row) if row["new"] else place_of(row)
            if at not in waiting:
                sizes[at] = max(sizes.get(at, 0), row["data_bytes"])
        if (size := sum(sizes.values())) > self.max_bytes:
            return f"its group has {size} bytes of records so far, more than the {self.max_bytes} allowed"
        if len(sizes) > self.max_records:
            return f"its group has {len(sizes)} records so far, more than the {self.max_records} allowed"
        return ""


@dataclass(frozen=True, slots=True)
class Assembled:
    """What waits after a step (`ASSEMBLY_SCHEMA`), and what the completed changes are.

    `finished` has the members of each completed change, the main record first: a table may still refuse the
    change, and then all of them go to quarantine.
    """

    state: pa.Table
    decoded: Decoded
    finished: list[list[Row]] = field(default_factory=list)


def place_of(row: Row) -> Place:
    """Return a record's position in its stream."""
    return tuple(row[name] for name in ORIGIN_COLUMNS[:4])


def _piece_of(row: Row) -> Place:
    return (*(row[name] for name in CHUNK_IDS), row["fragment_index"])


def last_arrival(rows: Iterable[Row]) -> datetime | None:
    """Return when the last of some records arrived; None where no arrival is known."""
    times = (row["approximate_arrival_timestamp"] for row in rows)
    return max((time for time in times if time is not None), default=None)


def grouped(rows: Iterable[Row]) -> list[list[Row]]:
    """Return rows by group: those that share a chunk id, directly or through a main record of two images."""
    parent: dict[str, str] = {}

    def root(chunk_id: str) -> str:
        while (above := parent.setdefault(chunk_id, chunk_id)) != chunk_id:
            parent[chunk_id] = chunk_id = parent[above]  # half the way for the next one
        return chunk_id

    firsts: list[tuple[str, Row]] = []
    for row in rows:
        first, *others = (row[name] for name in CHUNK_IDS if row[name] is not None)
        firsts.append((first, row))
        for other in others:
            parent[root(other)] = root(first)
    groups: dict[str, list[Row]] = {}
    for first, row in firsts:
        groups.setdefault(root(first), []).append(row)
    return list(groups.values())


def quarantine_row(row: Row, reason: str, detail: str) -> Row:
    """Return a member of a group as a row of `QUARANTINE_SCHEMA`."""
    origin = {name: row[name] for name in (*ORIGIN_COLUMNS, "data")}
    return {"reason": reason, "detail": detail, **origin, "format_version": FORMAT_VERSION}


def assemble_step(state: pa.Table, arrived: pa.Table | pa.RecordBatch, chunks: Chunks) -> Assembled:
    """Add what arrived (`PENDING_SCHEMA`), put together what is complete, and let go of what waited too long.

    `state` are rows that waited, of that schema or `ASSEMBLY_SCHEMA`. The bounds are for the caller to look
    at, who knows what is large without reading it.
    """
    new = arrived.to_pylist()
    places = {place_of(row) for row in new}
    step = _Step(chunks)
    whole: list[tuple[_Group, _Main, Row]] = []
    for members in grouped([*state.to_pylist(), *new]):
        group = step.read(members)
        winner = None if places.isdisjoint(map(place_of, members)) else step.complete(group)
        if winner is not None:
            whole.append((group, *winner))
        elif chunks.is_over(members):
            step.time_out(group)
        else:
            step.kept.extend(group.rows())
    decoded = step.type_whole(whole)
    kept = [row | {"status": row.get("status") or WAITING} for row in step.kept]
    return Assembled(pa.Table.from_pylist(kept, schema=ASSEMBLY_SCHEMA), decoded, step.finished)


@dataclass(slots=True, eq=False)
class _Main:
    """A main record."""

    row: Row
    change: Change

    def has_room_for(self, piece: tuple[str, int]) -> bool | None:
        """Return whether a fragment is below the total of its image; None where it is not of these images."""
        totals = [ref.total_fragments for ref in self.change.chunks.values() if ref.chunk_id == piece[0]]
        return piece[1] < max(totals) if totals else None


@dataclass(slots=True)
class _Group:
    """What the members of a group say: different main records, and different texts of each fragment."""

    mains: list[_Main] = field(default_factory=list)
    fragments: dict[tuple[str, int], dict[str, Row]] = field(default_factory=dict)

    def rows(self) -> list[Row]:
        """Return the members, main records first."""
        return [main.row for main in self.mains] + [
            row for versions in self.fragments.values() for row in versions.values()
        ]

    def missing(self, ref: ChunkRef) -> int:
        """Return how many fragments of an image are not there."""
        here = sum(
            chunk_id == ref.chunk_id and index < ref.total_fragments for chunk_id, index in self.fragments
        )
        return ref.total_fragments - here

    def what_lacks(self) -> str:
        """Return the missing indices in words; how many there are may be anything a record claims."""
        details = []
        for name, ref in itertools.chain.from_iterable(main.change.chunks.items() for main in self.mains):
            count = self.missing(ref)
            absent = (index for index in itertools.count() if (ref.chunk_id, index) not in self.fragments)
            shown = ", ".join(map(str, itertools.islice(absent, min(count, _MISSING_SHOWN))))
            more = f" and {count - _MISSING_SHOWN} more" if count > _MISSING_SHOWN else ""
            details += [f"image {name} lacks {shown}{more}"] if count else []
        return "; ".join(details)


@dataclass(frozen=True, slots=True)
class _Failed:
    reason: str
    detail: str


class _Step:
    def __init__(self, chunks: Chunks) -> None:
        self.chunks = chunks
        self.kept: list[Row] = []
        self.refused: list[Row] = []
        self.finished: list[list[Row]] = []
        self.counters: Counter[str] = Counter()

    def refuse(self, rows: Iterable[Row], reason: str, detail: str) -> None:
        """Send members to quarantine."""
        self.refused.extend(quarantine_row(row, reason, detail) for row in rows)

    def fail(self, rows: Iterable[Row], why: _Failed) -> None:
        """Quarantine members that stay in the state too: a better one can still complete them."""
        for row in rows:
            self.refuse([row], why.reason, why.detail)
            row["status"] = FAILED

    def read(self, members: list[Row]) -> _Group:
        """Sort members into main records and fragments; copies are counted and do not stay.

        What cannot be read any more, because the rules were others when it was kept, is refused.
        """
        group, seen = _Group(), set[object]()
        for row in sorted(members, key=_in_order):
            record = parse(row["data"], max_depth=self.chunks.config.max_depth)
            if isinstance(record, Fragment):
                versions = group.fragments.setdefault((record.chunk_id, record.index), {})
                self.counters["chunk_copies"] += record.data in versions
                versions.setdefault(record.data, row)
            elif isinstance(record, Change):
                if (same := _same_for_copies(record)) in seen:
                    self.counters["chunk_copies"] += 1
                else:
                    seen.add(same)
                    group.mains.append(_Main(row, record))
            elif isinstance(record, Refused):
                self.refuse([row], record.reason, record.detail)
        return group

    def complete(self, group: _Group) -> tuple[_Main, Row] | None:
        """Put a group's images together.

        Returns:
            The main record that fits, and its change as a `DECODED_SCHEMA` row. What belongs to other changes
            is kept or refused by then: the members are those of this change.
        """
        if finished := [main for main in group.mains if main.row.get("status") == FINISHED]:
            self.clear(group, finished)
            late = [piece for piece in group.fragments if any(main.has_room_for(piece) for main in finished)]
            self.counters["chunk_copies"] += sum(len(group.fragments.pop(piece)) for piece in late)
            return None
        failed: list[tuple[_Main, _Failed]] = []
        for main in group.mains:
            if any(group.missing(ref) for ref in main.change.chunks.values()):
                continue
            images = {name: self.image(group, ref) for name, ref in main.change.chunks.items()}
            wrong = [image for image in images.values() if isinstance(image, _Failed)]
            if not wrong:
                found = {name: image for name, image in images.items() if not isinstance(image, _Failed)}
                self.choose(group, main, found)
                change = main.change
                whole = {"before": change.before, "after": change.after}
                whole |= {name: "".join(texts) for name, texts in found.items()}
                return main, {"verdict": "full", "op": change.op, **asdict(change.source), **whole}
            failed.append((main, wrong[0]))
        for main, why in failed:
            own = [versions for piece, versions in group.fragments.items() if main.has_room_for(piece)]
            self.fail([main.row, *(row for versions in own for row in versions.values())], why)
        return None

    def image(self, group: _Group, ref: ChunkRef) -> list[str] | _Failed:
        """Return the texts of an image whose fragments are all there; one of these may have versions."""
        versions = [list(group.fragments[piece]) for piece in _pieces(ref)]
        several = [index for index, texts in enumerate(versions) if len(texts) > 1]
        if len(several) > 1:
            indices = ", ".join(map(str, several[:_MISSING_SHOWN]))
            return _Failed("checksum_mismatch", f"more than one fragment came in several versions: {indices}")
        texts = [found[0] for found in versions]
        at = several[0] if several else 0
        for text in versions[at]:
            texts[at] = text
            if crc32c.crc32c("".join(texts).encode()) == ref.crc32c:
                break
        else:
            count = len(versions[at])
            which = (
                f"none of {count} versions of fragment {at} gives" if count > 1 else "the text does not have"
            )
            return _Failed("checksum_mismatch", f"{which} the crc32c {ref.crc32c}")
        try:
            # An image lies inside of a change, which takes one of the levels.
            read_object("".join(texts), max_depth=self.chunks.config.max_depth - 1)
        except RefusedJson as error:
            return _Failed("bad_reassembled_image", f"{error.reason}: {error.detail}")
        return texts

    def choose(self, group: _Group, main: _Main, images: dict[str, list[str]]) -> None:
        """Leave in a group only what made the images of a main record."""
        used: set[tuple[tuple[str, int], str]] = set()
        for name, ref in main.change.chunks.items():
            used.update(zip(_pieces(ref), images[name], strict=True))
        for piece in {piece for piece, _ in used}:
            versions = group.fragments[piece]
            others = [versions.pop(text) for text in list(versions) if (piece, text) not in used]
            self.refuse(others, "fragment_conflict", f"fragment {piece[1]} came with other data, which fits")
        self.clear(group, [main])
        for piece in [piece for piece in group.fragments if main.has_room_for(piece) is None]:
            self.kept.extend(group.fragments.pop(piece).values())

    def clear(self, group: _Group, winners: list[_Main]) -> None:
        """Refuse the main records that did not win, and fragments beyond the total of one that did."""
        others = [main.row for main in group.mains if main not in winners]
        self.refuse(others, "chunk_conflict", "another change has the same chunk_id")
        group.mains = winners
        for piece in list(group.fragments):
            if {main.has_room_for(piece) for main in winners} - {None} == {False}:
                self.refuse(group.fragments.pop(piece).values(), _BEYOND, _beyond(piece))

    def time_out(self, group: _Group) -> None:
        """Quarantine what waited too long; what failed is there already."""
        lacks = group.what_lacks()
        self.refuse(_waiting(main.row for main in group.mains), "incomplete_chunks", lacks)
        for piece, versions in group.fragments.items():
            rooms = {main.has_room_for(piece) for main in group.mains} - {None}
            reason, detail = "orphan_fragment", "its main record did not come in time"
            if rooms:
                reason, detail = ("incomplete_chunks", lacks) if True in rooms else (_BEYOND, _beyond(piece))
            self.refuse(_waiting(versions.values()), reason, detail)

    def type_whole(self, whole: list[tuple[_Group, _Main, Row]]) -> Decoded:
        """Make the checks that follow for whole changes; a refused one takes its whole group along."""
        records = pa.RecordBatch.from_pylist(
            [{"partition_key": None, "aggregated": False, **main.row} for _, main, _ in whole],
            schema=pa.schema([USER_RECORD_SCHEMA.field(name) for name in (*ORIGIN_COLUMNS, "data")]),
        )
        rows = pa.RecordBatch.from_pylist([row for _, _, row in whole], schema=DECODED_SCHEMA)
        # Where a whole change came from must be known: a table may refuse it, and its fragments with it.
        config = replace(self.chunks.config, keep_data=True)
        decoded = sort_out(records, rows, config, Counter(), [])
        refused = {place_of(row): row for row in decoded.quarantine.to_pylist()}
        for group, main, _ in whole:
            why = refused.get(place_of(main.row))
            if why is None:
                self.kept.append({**main.row, "status": FINISHED})
                self.finished.append(group.rows())
                self.counters["chunk_groups_completed"] += 1
            else:
                self.fail(group.rows(), _Failed(why["reason"], why["detail"]))
                self.kept.extend(group.rows())
        counters = Counter(decoded.counters) + self.counters
        quarantine = pa.RecordBatch.from_pylist(self.refused, schema=QUARANTINE_SCHEMA)
        pending = pa.RecordBatch.from_pylist([], schema=PENDING_SCHEMA)
        return Decoded(decoded.tables, quarantine, pending, dict(counters), newest=decoded.newest)


_BEYOND = "fragment_index_out_of_range"


def _beyond(piece: tuple[str, int]) -> str:
    return f"index {piece[1]} of a group with fewer fragments"


def _pieces(ref: ChunkRef) -> list[tuple[str, int]]:
    return [(ref.chunk_id, index) for index in range(ref.total_fragments)]


def _waiting(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row.get("status") in {None, WAITING}]


def _in_order(row: Row) -> Place:
    """Return what members are sorted by: those of finished changes first, then by arrival.

    Of several copies the first to arrive stays, whether a crash made some of them old or not.
    """
    time = row["approximate_arrival_timestamp"]
    known = (row.get("status") != FINISHED, time is not None, time)
    return (*known, row["shard_id"], len(row["sequence_number"]), *place_of(row))


def _same_for_copies(change: Change) -> object:
    """Return what is equal of two main records that are one change delivered twice."""
    inline = image_hash(change.before), image_hash(change.after)
    return change.op, change.source, inline, frozenset(change.chunks.items())
