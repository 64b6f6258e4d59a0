"""What typed columns, canonical JSON and Ion text of revisions cost: where alike together, and one by one.

python bench/qldb/columns.py [--count 6000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent))
import pyarrow as pa
from journal import journal

from headpond.formats import ion_columns as module
from headpond.formats.ion_columns_quick import MIN_ALIKE
from headpond.formats.qldb_batch import decode_qldb

if TYPE_CHECKING:
    from collections.abc import Callable

DECLARED = {
    "VIN": "string",
    "State": "string",
    "PendingPenaltyTicketAmount": "decimal(10,2)",
    "ValidFromDate": "timestamp",
    "FirstName": "string",
    "DOB": "timestamp",
}
NEVER = 10**9


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--count", type=int, default=6000)
    arguments.add_argument("--rounds", type=int, default=5)
    chosen = arguments.parse_args()
    blobs = [datum for some in journal(chosen.count) for datum in some]
    data = decode_qldb(pa.array(blobs, pa.binary())).revisions["data"].combine_chunks()
    tasks: dict[str, Callable[[], object]] = {
        "six declared fields": lambda: module.ion_columns(data, DECLARED, others=False),
        "these, the rest as JSON": lambda: module.ion_columns(data, DECLARED),
        "canonical JSON": lambda: module.ion_json_column(data),
        "Ion text": lambda: module.ion_text_column(data),
    }
    print(f"{len(data)} revisions of two tables, CPU time of one thread per revision")
    for name, work in tasks.items():
        times: dict[int, list[float]] = {MIN_ALIKE: [], NEVER: []}
        for least in [MIN_ALIKE, NEVER] * (chosen.rounds + 1):
            setattr(module, "MIN_ALIKE", least)  # noqa: B010 - imported there, not its own
            start = time.process_time()
            work()
            times[least].append((time.process_time() - start) / len(data) * 1e6)
        together, single = (statistics.median(some[1:]) for some in times.values())
        print(
            f"{name:26}{together:8.1f} µs together{single:8.1f} µs one by one: {single / together:.1f} times"
        )


if __name__ == "__main__":
    main()
