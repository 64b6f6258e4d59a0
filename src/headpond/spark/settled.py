"""Make tasks cheap in a Python worker that is used again: out of the garbage collector's way with what stays.

Spark's daemon collects all garbage after every task. With pyspark, Arrow and an AWS client loaded, that walks
some hundred thousand objects that never die: 40 ms of computing for a task that may read one small reply. Of
the join, with pandas, it was 28 ms a task and 8 tasks a micro-batch: a tenth of the computing of 100,000
records.
"""

from __future__ import annotations

import gc
import sys

__all__ = ["settle_worker"]

_settled = 0
"""How many modules were loaded when objects were exempted last."""


def settle_worker() -> None:
    """Exempt everything there is by now from later collections; to be called when a task begins.

    Any worker gets tasks of any kind, and some modules are loaded only when first used: this is done again
    where modules have come since. Nothing is freed later for it but what was garbage in cycles at this
    moment, which is collected first; all else goes when nothing refers to it, as ever.
    """
    global _settled  # noqa: PLW0603 - one number for the process, as the collector is
    modules = len(sys.modules)
    if modules > _settled:
        gc.collect()
        gc.freeze()
        _settled = modules
