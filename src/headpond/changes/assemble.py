r"""Chunked changes put together: a step from (what waits, what arrived) to whole changes and what then waits.

::

    main      chunked.after: id i, 3 fragments, crc32c ─┐
    fragment  i, 0   {"id": 1, "v": "caf\u              ├─► text ─► crc ─► a JSON object ─► the change, as if
    fragment  i, 2   end"}                              │                                  it came `full`
    fragment  i, 1   00e9 and the                      ─┘

Members come in any order, from any shard, in any batch, and more than once. Fragments are cut without regard
to JSON, so nothing is parsed before all of them are there. Groups time out by arrival time.

The caller keeps `state` and writes it after everything else of a batch: when a crash comes between, the batch
comes again, the group completes again, and versions (or a log entry's place) make that harmless.

A group that is too large for the memory is fed without its fragments' data: each record is asked for when it
is looked at, its text is put away (`Texts`), and quarantine rows come without data; the caller fills it in.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import crc32c
import pyarrow as pa

from headpond.changes.chunk_groups import (
    Group,
    Place,
    Row,
    filled,
    grouped,
    has_time,
    in_order,
    is_beyond,
    main_of,
    missing_count,
    missing_indices,
    place_of,
    same_change,
)
from headpond.changes.dsql import Decoded, sort_out
from headpond.changes.schemas import (
    ASSEMBLY_SCHEMA,
    FORMAT_VERSION,
    ORIGIN_COLUMNS,
    PENDING_SCHEMA,
    QUARANTINE_SCHEMA,
)
from headpond.formats.dsql import Chunked, ChunkRef, Fragment, Refused, parse
from headpond.formats.dsql_batch import DECODED_SCHEMA
from headpond.formats.json_strict import RefusedJson, read_object
from headpond.formats.rows import USER_RECORD_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence
    from datetime import datetime

    from headpond.changes.config import DsqlConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRules:
    """Bounds of reassembly.

    Attributes:
        timeout_ms: after the arrival of a group's last member; below the stream's retention, so that a second
            reading can mend what timed out.
        max_combinations: of fragments that came in several versions, tried until the checksum holds.
    """

    timeout_ms: int = 3_600_000
    max_combinations: int = 64


class Texts(Protocol):
    """Where the texts of fragments are kept while their group is put together."""

    def put(self, text: str) -> Hashable:
        """Keep a text and give what stands for it; equal texts give equal ones."""

    def crc32c(self, pieces: Sequence[Any]) -> int:
        """CRC-32C of the UTF-8 bytes of texts one after the other."""

    def joined(self, pieces: Sequence[Any]) -> str:
        """The texts one after the other."""


class TextsInMemory:
    """Texts that stand for themselves."""

    def put(self, text: str) -> str:
        """Give the text."""
        return text

    def crc32c(self, pieces: Sequence[str]) -> int:
        """CRC-32C of the texts one after the other."""
        return int(crc32c.crc32c(self.joined(pieces).encode()))

    def joined(self, pieces: Sequence[str]) -> str:
        """The texts one after the other."""
        return "".join(pieces)


@dataclass(frozen=True, slots=True)
class Assembled:
    """What waits after a step (`ASSEMBLY_SCHEMA`), and what the completed changes are.

    `decoded.counters` has `chunk_groups_completed` and `chunk_copies` beside the others.
    `finished` has, per completed change, the places of its records, the main record's first: a table may
    still refuse the change, and then all of them are wanted.
    """

    state: pa.Table
    decoded: Decoded
    finished: list[tuple[Place, ...]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Failed:
    reason: str
    detail: str


def assemble_step(
    state: pa.Table,
    arrived: pa.Table | pa.RecordBatch,
    config: DsqlConfig,
    *,
    now: datetime | None,
    rules: ChunkRules = ChunkRules(),
    texts: Texts | None = None,
    data_of: Callable[[Row], bytes] | None = None,
    no_room: str = "",
) -> Assembled:
    """Add what arrived and put together what is complete.

    Args:
        state: `ASSEMBLY_SCHEMA` or `PENDING_SCHEMA` rows that waited.
        arrived: `PENDING_SCHEMA` rows, of `dsql.decode`.
        config: tables and rules, for the checks of whole changes.
        now: for time-outs: the service's clock, or the greatest arrival time read from an archive; None times
            nothing out.
        rules: bounds.
        texts: where fragments' texts are kept; null: in memory.
        data_of: gives the record of a row whose data is null; null when all data is there.
        no_room: why none of the groups can wait any longer; empty when they can.
    """
    step = _Step(rules, texts or TextsInMemory(), data_of, no_room, config.max_depth)
    groups = grouped(state.to_pylist(), arrived.to_pylist())
    whole: list[tuple[Group, Row]] = []
    for group in groups:
        if not group.new and data_of is None:
            step.keep_or_time_out(group.old, now)
            continue
        step.take_in(group)
        change = step.complete(group)
        if change is None:
            step.keep_or_time_out(group.members(), now)
        else:
            whole.append((group, change))
    decoded = step.type_whole(whole, config)
    rows = [{**row, "format_version": FORMAT_VERSION} for row in step.kept]
    return Assembled(pa.Table.from_pylist(rows, schema=ASSEMBLY_SCHEMA), decoded, step.finished)


class _Step:
    """Outputs of one step."""

    def __init__(
        self,
        rules: ChunkRules,
        texts: Texts,
        data_of: Callable[[Row], bytes] | None,
        no_room: str,
        max_depth: int,
    ) -> None:
        self.rules = rules
        self.texts = texts
        self.data_of = data_of
        self.no_room = no_room
        self.max_depth = max_depth
        self.kept: list[Row] = []
        self.refused: list[Row] = []
        self.finished: list[tuple[Place, ...]] = []
        self.counters: Counter[str] = Counter()

    def refuse(self, rows: Iterable[Row], reason: str, detail: str) -> None:
        """Send members to quarantine."""
        for row in rows:
            origin = {name: row[name] for name in (*ORIGIN_COLUMNS, "data")}
            self.refused.append(
                {"reason": reason, "detail": detail, **origin, "format_version": FORMAT_VERSION}
            )

    def take_in(self, group: Group) -> list[Row]:
        """Sort members into main and fragments; copies and conflicting mains do not stay.

        Returns:
            The rows without those that went to quarantine: conflicting ones, and those that cannot be read
            any more, because the rules were others when they were kept.
        """
        read: list[Row] = []
        # Of several copies the first to arrive stays, whether a crash made some of them old or not.
        for row in sorted((*group.old, *group.new), key=in_order):
            data = self.data_of(row) if row["data"] is None and self.data_of is not None else row["data"]
            record = parse(data, max_depth=self.max_depth)
            if isinstance(record, Refused):
                self.refuse([row], record.reason, record.detail)
                continue
            if isinstance(record, Fragment):
                versions = group.fragments.setdefault((record.chunk_id, record.index), {})
                text = self.texts.put(record.data)
                self.counters["chunk_copies"] += text in versions
                versions.setdefault(text, row)
            elif isinstance(record, Chunked):
                if group.main is None:
                    group.main, group.change = row | {"data": data}, record
                elif group.change is not None and same_change(group.change, record):
                    self.counters["chunk_copies"] += 1
                else:
                    self.refuse([row], "chunk_conflict", "another change has the same chunk_id")
                    continue
            read.append(row)
        return read

    def complete(self, group: Group) -> Row | None:
        """Put a group's images together; give the whole change as `DECODED_SCHEMA` row, or None."""
        main, change = group.main, group.change
        if main is None or change is None:
            return None
        refs = {"before": change.before_chunk, "after": change.after_chunk}
        for place in [p for p in group.fragments if is_beyond(p, refs.values())]:
            detail = f"index {place[1]} of a group with fewer fragments"
            self.refuse(group.fragments.pop(place).values(), "fragment_index_out_of_range", detail)
        if main.get("status") == "finished":
            own = {ref.chunk_id for ref in refs.values() if ref is not None}
            late = [place for place in group.fragments if place[0] in own]
            self.counters["chunk_copies"] += sum(len(group.fragments.pop(place)) for place in late)
            return None
        if any(missing_count(group, ref) for ref in refs.values() if ref is not None):
            return None
        images = {"before": change.before, "after": change.after}
        for name, ref in refs.items():
            if ref is None:
                continue
            found = self.image(group, ref)
            if isinstance(found, _Failed):
                self.fail(group, found)
                return None
            images[name] = found
        source = change.source
        return {
            "verdict": "full",
            "op": change.op,
            "schema": source.schema,
            "table": source.table,
            "cluster": source.cluster,
            "version": source.version,
            "ts_ns": source.ts_ns,
            "tx_id": source.tx_id,
            **images,
        }

    def image(self, group: Group, ref: ChunkRef) -> str | _Failed:
        """The text of one image whose fragments are all there; versions that lose go to quarantine."""
        places = [(ref.chunk_id, index) for index in range(ref.total_fragments)]
        combinations = itertools.product(*(group.fragments[place] for place in places))
        for texts in itertools.islice(combinations, self.rules.max_combinations):
            if self.texts.crc32c(texts) == ref.crc32c:
                break
        else:
            count = math.prod(len(group.fragments[place]) for place in places)
            of = f"none of {count} combinations"
            if count > (most := self.rules.max_combinations):
                of = f"none of the {most} combinations tried, of {count},"
            return _Failed("checksum_mismatch", f"{of} has the crc32c {ref.crc32c}")
        whole = self.texts.joined(texts)
        try:
            read_object(whole, max_depth=self.max_depth - 1)  # it lies inside of a change
        except RefusedJson as error:
            return _Failed("bad_reassembled_image", f"{error.reason}: {error.detail}")
        for place, text in zip(places, texts, strict=True):
            versions = group.fragments[place]
            losers = [versions.pop(other) for other in list(versions) if other != text]
            self.refuse(losers, "fragment_conflict", f"fragment {place[1]} came with other data, which fits")
        return whole

    def fail(self, group: Group, why: _Failed) -> None:
        """Quarantine all members; they stay in the state, since a better fragment can still complete them."""
        self.refuse(group.members(), why.reason, why.detail)
        for row in group.members():
            row["status"] = "failed"

    def keep_or_time_out(self, rows: list[Row], now: datetime | None) -> None:
        """Keep a group's members for the next step, or let go of them."""
        last = max((row["approximate_arrival_timestamp"] for row in rows if has_time(row)), default=None)
        settled = any(row.get("status") in {"failed", "finished"} for row in rows)
        in_time = now is None or last is None or (now - last).total_seconds() * 1000 <= self.rules.timeout_ms
        if in_time and not self.no_room:
            self.kept.extend({"status": "waiting", **filled(row)} for row in rows)
        elif not settled:  # what failed is in quarantine already
            self.time_out(rows)

    def time_out(self, rows: list[Row]) -> None:
        """Quarantine a group that waited too long."""
        group = Group(new=rows)
        rows = self.take_in(group)
        change = group.change
        why = f"; {self.no_room}" if self.no_room else ""
        if change is None:
            self.refuse(rows, "orphan_fragment", f"its main record did not come in time{why}")
            return
        details = [
            f"image {name} lacks {missing_indices(group, ref)}"
            for name, ref in (("before", change.before_chunk), ("after", change.after_chunk))
            if ref is not None and missing_count(group, ref)
        ]
        own = {ref.chunk_id for ref in (change.before_chunk, change.after_chunk) if ref is not None}
        orphans = [
            row
            for (chunk_id, _), found in group.fragments.items()
            if chunk_id not in own
            for row in found.values()
        ]
        alone = set(map(id, orphans))
        members = [row for row in rows if id(row) not in alone]
        self.refuse(members, "incomplete_chunks", "; ".join(details) + why)
        self.refuse(orphans, "orphan_fragment", f"its main record did not come in time{why}")

    def type_whole(self, whole: list[tuple[Group, Row]], config: DsqlConfig) -> Decoded:
        """Make the checks that follow for whole changes; a refused one takes its whole group along."""
        records = pa.RecordBatch.from_pylist(
            [{"partition_key": None, "aggregated": False, **main_of(group)} for group, _ in whole],
            schema=pa.schema([USER_RECORD_SCHEMA.field(name) for name in (*ORIGIN_COLUMNS, "data")]),
        )
        rows = pa.RecordBatch.from_pylist([row for _, row in whole], schema=DECODED_SCHEMA)
        # Where a whole change came from must be told: a table may refuse it, and its fragments with it.
        decoded = sort_out(records, rows, replace(config, keep_data=True), Counter(), [])
        refused = {place_of(row): row for row in decoded.quarantine.to_pylist()}
        for group, _ in whole:
            main = main_of(group)
            why = refused.get(place_of(main))
            if why is None:
                self.kept.append({**main, "status": "finished"})
                self.finished.append(tuple(place_of(row) for row in group.members()))
                self.counters["chunk_groups_completed"] += 1
            else:
                self.fail(group, _Failed(why["reason"], why["detail"]))
                self.kept.extend(group.members())
        counters = Counter(decoded.counters) + self.counters
        quarantine = pa.RecordBatch.from_pylist(self.refused, schema=QUARANTINE_SCHEMA)
        pending = pa.RecordBatch.from_pylist([], schema=PENDING_SCHEMA)
        return Decoded(decoded.tables, quarantine, pending, dict(counters))
