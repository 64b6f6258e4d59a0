"""What a Python worker of the join does once, so that its tasks are cheap.

Spark's daemon collects all garbage after every task of a worker. With pandas, Arrow and pyspark loaded that
walks some 80,000 objects that never die: 28 ms a task and 8 tasks a micro-batch, a tenth of the computing of
100,000 records.
"""

from __future__ import annotations

import gc
import sys

__all__ = ["settle"]

_settled = 0
"""How many modules were loaded when objects were exempted last."""


def settle() -> None:
    """Exempt everything there is by now from later collections; to be called when a task begins.

    Any worker gets any of the join's three kinds of tasks, and some modules are loaded only when first used:
    this is done again where modules have come since. Nothing is freed later for it but what was garbage in
    cycles at this moment, which is collected first; all else goes when nothing refers to it, as ever.
    """
    global _settled  # noqa: PLW0603 - one number for the process, as the collector is
    modules = len(sys.modules)
    if modules > _settled:
        gc.collect()
        gc.freeze()
        _settled = modules
