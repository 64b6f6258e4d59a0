"""The smallest time in a join's buffer as a stopped application knew it, found by playing its records again.

That number is neither in the stores nor in the changelogs. It is set by every round of emission to the last
entry that the round looked at, and decides when the next round is due; so it depends on what came before.
The records that are still there, expired ones included, are joined again in the order in which they must have
come: each side in the order of its sequence numbers, the two sides merged by the smaller time.
Source: spec "window store", section 8.1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from headpond.formats.outer_join_buffer import BufferFormat, Side
from headpond.formats.window_values import plain_headers_to_plain
from headpond.windows.join_scalar import JoinRecord, StreamJoin
from headpond.windows.join_stores import JoinStores
from headpond.windows.rules import NO_MIN_TIME, HeadersOf, JoinClock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headpond.windows.join_state import Stored, Unmatched
    from headpond.windows.rules import JoinRules

REPLAYED_RECORDS = 5_000
"""Records of each side that are played again at most, the last ones."""
PHASES = 4
"""Times at which the first round may have been, beside at once: evenly over the time between two rounds."""


def replayed_min_time(
    rules: JoinRules, stored: Sequence[Stored], unmatched: Sequence[Unmatched]
) -> int | None:
    """Find the smallest time in the buffer.

    The records on disk begin in the middle of the application's life, at an unknown time between two rounds.
    So they are played from several such times; None where these do not all end with the application's buffer
    and with one number.
    """
    records = list(_merged([list(_arrivals(each)) for each in stored]))
    waits = [
        (each.timestamp, each.side, each.key, waiting.value) for each in unmatched for waiting in each.waiting
    ]
    first = min((record.timestamp for record in records), default=0)
    period = max(map(rules.after_ms, Side)) + rules.windows.grace_ms
    starts = [NO_MIN_TIME, *(first - period + period * number // PHASES for number in range(1, PHASES + 1))]
    found: set[int | None] = set()
    for start in starts:
        found.add(_replayed(rules, records, waits, start))
        if len(found) > 1 or None in found:
            return None
    return found.pop()


def _replayed(
    rules: JoinRules, records: list[JoinRecord], waits: list[tuple[int, Side, bytes, bytes]], start: int
) -> int | None:
    quiet = replace(rules, headers=HeadersOf.TRIGGER, emit_interval_ms=0)
    stores = JoinStores.build(quiet, buffer_format=BufferFormat.PLAIN)
    with StreamJoin(quiet, stores, JoinClock(min_time=start)) as join:
        for record in records:
            join.process(record)
        found = [(timestamp, side, key, each.value) for timestamp, side, key, each in join.waiting()]
        return join.clock.min_time if found == waits else None


def _arrivals(stored: Stored) -> Iterator[JoinRecord]:
    order = pc.sort_indices(stored.seqnums)[-REPLAYED_RECORDS:]
    columns = (each.take(order).to_pylist() for each in (stored.keys, stored.payloads, stored.timestamps))
    for key, payload, timestamp in zip(*columns, strict=True):
        yield JoinRecord(stored.side, key, plain_headers_to_plain(payload), timestamp)


def _merged(sides: list[list[JoinRecord]]) -> Iterator[JoinRecord]:
    """Take from the side whose next record is the earlier one; what is behind follows its predecessor."""
    at = [0] * len(sides)
    newest = [-1] * len(sides)
    for _ in range(sum(map(len, sides))):
        heads = [
            (max(newest[number], side[at[number]].timestamp), number)
            for number, side in enumerate(sides)
            if at[number] < len(side)
        ]
        newest_of, number = min(heads)
        newest[number] = newest_of
        yield sides[number][at[number]]
        at[number] += 1
