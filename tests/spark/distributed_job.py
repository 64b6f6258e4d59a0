"""What tests run in a process of its own: headpond's command, with every batch spread over executors.

Arguments: a folder, a stage, then the command's. With a folder each task says there when it has written
(`written-N`), and ends when there is a file `go`. Before a write of the stage's name the process is killed.
`-` stands for neither.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from headpond.cli.main import main
from headpond.lake.tables import Lake
from headpond.spark.following import distributed

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

PATIENCE_S = 120


class Waiting(distributed.Share):
    """A share that is applied, and whose task then waits; it travels whole, for it is of the main module."""

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Say that the share is written, and wait."""
        for done in distributed.Share.run(self, batches):
            (Path(FOLDER) / f"written-{uuid.uuid4()}").write_text(str(os.getppid()))
            end = time.monotonic() + PATIENCE_S
            while not (Path(FOLDER) / "go").exists() and time.monotonic() < end:
                time.sleep(0.02)
            yield done


FOLDER, STAGE = sys.argv[1:3]

if __name__ == "__main__":
    distributed.DISTRIBUTE_ABOVE_BYTES = 0
    distributed.LEAST_BYTES = 1 << 10
    if FOLDER != "-":
        distributed.Share = Waiting  # type: ignore[misc]  # what travels is what is there then

    def between(name: str) -> None:
        """Be killed before a write."""
        if name == STAGE:
            os.kill(os.getpid(), signal.SIGKILL)

    opened = Lake.__init__

    def watched(lake: Lake, *arguments: object) -> None:
        """Open a lake that can be killed."""
        opened(lake, *arguments)  # type: ignore[arg-type]
        lake.before_write = between

    Lake.__init__ = watched  # type: ignore[method-assign,assignment]
    sys.exit(main(sys.argv[3:]))
