"""Keys with very many records: worked off in bounded memory, or refused before anything is made."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from headpond.core.errors import UsageError
from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.join.arrivals import Arrivals
from headpond.kstreams.join.by_batch import BatchJoin, initial_state
from headpond.kstreams.join.rules import JoinRules, JoinWindows
from tests.kit.support import peak_kib, share_of
from tests.kstreams.join_cuts import SCHEMA, SCHEMAS

RULES = JoinRules("inner", JoinWindows(1 << 40, 1 << 40))


def one_key(records: int) -> dict[Side, Arrivals]:
    """Records of both sides in turns, all of one key and near enough to join."""
    found = {}
    for number, side in enumerate((Side.LEFT, Side.RIGHT)):
        at = np.arange(number, records, 2)
        columns = [pa.array([each] * len(at), pa.binary()) for each in (b"hot", b"", b"x" * 20)]
        found[side] = Arrivals(pa.RecordBatch.from_arrays(columns, schema=SCHEMA), 1000 + at, at)
    return found


def test_ten_thousand_million_candidates_are_refused() -> None:
    """With the key, how many it has, and what to do; nothing is made before."""
    join = BatchJoin(RULES, SCHEMAS)
    with pytest.raises(UsageError, match=r"10000000000 of them of the key b'hot'; 1000000000 ") as failure:
        next(join.steps(initial_state(RULES), one_key(200_000)))
    told = failure.value.facts
    assert (told["candidates"], told["key"]) == (10**10, b"hot".hex())
    assert "max_candidates" in failure.value.next_step


def peak_of(records: int) -> tuple[int, int]:
    """Pairs of so many records, and what a process of its own needed for them, in MiB."""
    code = f"from tests.kstreams.test_join_hot_keys import work_off; work_off({records})"
    # What is needed is measured, not what several threads' pools hold back.
    pools = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | pools
    )
    pairs, mib = run.stdout.split()
    return int(pairs), int(mib)


def work_off(records: int) -> None:
    """Print how many pairs there are and the greatest resident set in MiB."""
    state, pairs = initial_state(RULES), 0
    for step in BatchJoin(RULES, SCHEMAS).steps(state, one_key(records)):
        pairs += sum(batch.num_rows for batch in step.results.batches())
    sys.stdout.write(f"{pairs} {peak_kib() // 1024}\n")


@pytest.mark.thorough
def test_a_hundred_million_pairs_of_one_key_are_done_within_a_gigabyte() -> None:
    """A quarter of them, all at once, would take some three; how they are allotted differs."""
    side = math.isqrt(max(25_000_000, share_of(100_000_000)))
    pairs, mib = peak_of(2 * side)
    assert pairs == side**2
    assert mib < 1024
