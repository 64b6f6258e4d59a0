"""What typed columns and canonical JSON of revisions cost: where alike together, and one by one.

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

from headpond.qldb.batch import decode_qldb
from headpond.qldb.columns import ion_columns, ion_json_column
from headpond.qldb.shapes import LEAST

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
    tasks: dict[str, Callable[[pa.Array], object]] = {
        "six declared fields, the rest as JSON": lambda some: ion_columns(some, DECLARED),
        "canonical JSON": ion_json_column,
    }
    print(f"{len(data)} revisions of two tables, CPU time of one thread per revision")
    for name, work in tasks.items():
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(chosen.rounds + 1):
            # In pieces of fewer than `LEAST` every value is read by itself.
            for step, figures in zip((len(data), LEAST - 1), times, strict=True):
                start = time.process_time()
                for at in range(0, len(data), step):
                    work(data.slice(at, step))
                figures.append((time.process_time() - start) / len(data) * 1e6)
        together, single = (statistics.median(some[1:]) for some in times)
        print(
            f"{name:40}{together:8.1f} µs together{single:8.1f} µs one by one: {single / together:.1f} times"
        )


if __name__ == "__main__":
    main()
