"""The order in which a task takes the records of a batch: a function of the data, never of a shuffle.

::

    partition 0   t: 5 · 9 · 7 · 12        running maximum: 5 · 9 · 9 · 12
    partition 1   t: 6 · 8                                  6 · 8
    taken         5 · 6 · 8 · 9 · 7 · 12

Each source partition is taken in its own order, and always the one whose next record has the smallest
timestamp; a record that lies behind its predecessor follows it at once. That is the order by (running maximum
of the partition's timestamps, side: left first, partition, position). A batch that is run again has the same
records, so the same order. Source: spec "join on Spark", section 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headpond.windows.join_batch_runs import Int64


def running_maximum(ts: Int64, partitions: Int64) -> Int64:
    """Give the greatest timestamp so far of each record's partition.

    Args:
        ts: timestamps, not negative; by partition, in each by position.
        partitions: rank of each record's partition, ascending.
    """
    if not len(ts):
        return ts
    starts = np.flatnonzero(np.diff(partitions, prepend=partitions[0] - 1))
    if len(starts) == 1:
        return np.maximum.accumulate(ts)
    found = np.empty_like(ts)
    for start, stop in zip(starts, [*starts[1:], len(ts)], strict=True):
        np.maximum.accumulate(ts[start:stop], out=found[start:stop])
    return found


def arrival_order(sides: Sequence[tuple[Int64, Int64]]) -> list[tuple[Int64, Int64]]:
    """Put the records of the sides into one order of arrival.

    Args:
        sides: per side timestamps and partition ranks, by partition and position; only sides with records.

    Returns:
        Per side the order in which its own rows arrive, and the places that they take among those of all
        sides, ascending.
    """
    if not sides:
        return []
    heads = [running_maximum(ts, partitions) for ts, partitions in sides]
    # Stable: what is equal keeps the order of sides, partitions and positions.
    order = np.argsort(np.concatenate(heads), kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    found, start = [], 0
    for head in heads:
        mine = place[start : start + len(head)]
        rows = np.argsort(mine, kind="stable")
        found.append((rows, mine[rows]))
        start += len(head)
    return found
