"""Make tasks cheap in a Python worker that is used again: out of the garbage collector's way with what stays.

Spark's daemon collects all garbage after every task. With pyspark, Arrow and an AWS client loaded, that walks
some hundred thousand objects that never die: 40 ms of computing for a task that may read one small reply.
"""

from __future__ import annotations

import gc
from functools import cache

__all__ = ["settle_worker"]


@cache
def settle_worker() -> None:
    """Exempt everything there is by now from later collections; once in a process, to be called in a task.

    Nothing is freed later for it but what was garbage in cycles at this moment, which is collected first.
    """
    gc.collect()
    gc.freeze()
