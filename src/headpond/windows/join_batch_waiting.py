"""Which records wait unmatched during a batch, in the order in which rounds visit them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from headpond.formats.outer_join_buffer import Side
from headpond.windows.join_batch_expiry import NEVER, Waiting
from headpond.windows.rules import OTHER_SIDE

if TYPE_CHECKING:
    from headpond.windows.join_batch_results import Pairs, Source
    from headpond.windows.join_batch_runs import Bool, Int64


@dataclass
class Candidates:
    """Records of one side that wait or begin to wait: global row ascending, time, arrival, and since when."""

    side: Side
    gids: Int64
    ts: Int64
    seq: Int64
    since: Int64


def walk_order(
    waiting: list[Candidates], pairs: dict[Side, Pairs], sources: dict[Side, Source]
) -> tuple[Waiting, Bool, Int64]:
    """Put all that wait into walk order: timestamp, right before left, key, arrival."""
    gids, ts, seq, since = (
        np.concatenate([getattr(each, name) for each in waiting]) for name in ("gids", "ts", "seq", "since")
    )
    left = np.concatenate([np.full(len(each.gids), each.side is Side.LEFT) for each in waiting])
    taken = np.full(len(gids), NEVER, np.int64)
    offset = 0
    for each in waiting:
        found = pairs[OTHER_SIDE[each.side]]
        if len(each.gids) and len(found.partner):
            # The partner that takes a record out is the first trigger of the other side that met it.
            at = np.minimum(np.searchsorted(each.gids, found.partner), len(each.gids) - 1)
            hit = each.gids[at] == found.partner
            np.minimum.at(taken, offset + at[hit], found.trigger[hit])
        offset += len(each.gids)
    order = np.lexsort((seq, left, ts))
    # Keys decide among records of one side and time only.
    same = (ts[order][1:] == ts[order][:-1]) & (left[order][1:] == left[order][:-1])
    if same.any():
        tied = np.zeros(len(order), np.bool_)
        tied[1:] |= same
        tied[:-1] |= same
        places = np.flatnonzero(tied)
        which = order[places]
        rank = np.empty(len(which), np.int64)
        for side, source in sources.items():
            mine = np.flatnonzero(left[which] == (side is Side.LEFT))
            (key,) = source.gather(gids[which[mine]], ["key"])
            rank[mine] = np.asarray(pc.rank(key, tiebreaker="dense")) if len(key) else 0
        order[places] = which[np.lexsort((seq[which], rank, left[which], ts[which]))]
    return Waiting(ts[order], left[order], since[order], taken[order]), left[order], gids[order]
