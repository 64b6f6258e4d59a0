"""headpond turns Kinesis change streams into correct Delta tables, on Spark, from Python.

::

    import headpond

    headpond.run("pipeline.toml")                               # returns a summary
    headpond.status("pipeline.toml")                            # lag, last batches, quarantine
    headpond.tables("lake")["public.orders"].to_pandas()
    headpond.quarantine("lake")                                 # records that could not be used, and why
    headpond.inspect(data)                                      # what a record's bytes hold

Each part is loaded when you first use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headpond.core.errors import HeadpondError
from headpond.core.lazy import lazy

if TYPE_CHECKING:
    from headpond.api.looking import status
    from headpond.api.reading import quarantine, tables
    from headpond.api.records import inspect
    from headpond.api.running import run
    from headpond.pipeline.load import Pipeline

__version__ = "0.1.0"
__all__ = ["HeadpondError", "Pipeline", "inspect", "quarantine", "run", "status", "tables"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "HeadpondError": "headpond.core.errors",
        "Pipeline": "headpond.pipeline.load",
        "inspect": "headpond.api.records",
        "quarantine": "headpond.api.reading",
        "run": "headpond.api.running",
        "status": "headpond.api.looking",
        "tables": "headpond.api.reading",
        **{room: f"headpond.{room}" for room in ("kinesis", "kpl", "kstreams", "pipeline", "spark")},
    },
    on_spark=("run",),
)
