"""Binary values as integers that compare alike: what the step functions sort by."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.schemas import whole

Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]


def ranked(columns: list[pa.ChunkedArray]) -> tuple[Ints, pa.Array]:
    """Rank of each binary value among all, -1 for null, and the different values in order."""
    encoded = pa.concat_arrays([whole(column).cast(pa.binary()) for column in columns]).dictionary_encode()
    order = pc.sort_indices(encoded.dictionary)
    rank = np.empty(len(order), np.int64)
    rank[order.to_numpy()] = np.arange(len(order))
    codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
    ranks = np.full(len(codes), -1, np.int64)
    ranks[codes >= 0] = rank[codes[codes >= 0]]
    return ranks, encoded.dictionary.take(order)


def key_codes(columns: list[pa.ChunkedArray]) -> tuple[Ints, int]:
    """A number from 0 for each different text, and how many different ones there are."""
    encoded = pa.concat_arrays([whole(column) for column in columns]).dictionary_encode()
    codes: Ints = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, len(encoded.dictionary)


def run_ends(groups: Any) -> Bools:
    """True at the last of each run of equal values."""
    ends = np.ones(len(groups), bool)
    ends[:-1] = groups[:-1] != groups[1:]
    return ends
