"""Open a window store's directory that Kafka Streams left, and print the trace ids of records that join.

    python window_store_trace_ids.py LEFT_DIRECTORY RIGHT_DIRECTORY [--within-ms 5000] [--header trace-id]

Two directories are the stores of a join's two sides: <task>/<join>-this-join-store and
<task>/<join>-other-join-store. For each pair of records of one key that are close enough in time, one line:
key, the two times, and the header's values on both sides. Kafka Streams keeps both sides' headers in its
stores and gives a joined record only one of them; this prints both. No Spark, no JVM, and nothing in the
directories is changed.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

from headpond.kstreams import StoredEntry, StoreDirectory


def values_of(entry: StoredEntry, header: str) -> str:
    """Give all values of one header, in order; a header may repeat, and its value may be null."""
    found = [value for name, value in entry.headers if name == header]
    return ",".join("null" if value is None else value.hex() for value in found) or "-"


def main() -> None:
    """Read the right side into memory, then go through the left one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("left")
    parser.add_argument("right")
    parser.add_argument("--within-ms", type=int, default=5000)
    parser.add_argument("--header", default="trace-id")
    chosen = parser.parse_args()
    right: dict[bytes, list[StoredEntry]] = defaultdict(list)
    for entry in StoreDirectory(chosen.right).entries():
        right[entry.key.key].append(entry)
    for entry in StoreDirectory(chosen.left).entries():
        for other in right[entry.key.key]:
            if abs(entry.key.timestamp - other.key.timestamp) <= chosen.within_ms:
                ids = f"{values_of(entry, chosen.header)} + {values_of(other, chosen.header)}"
                key = entry.key.key.decode(errors="backslashreplace")
                print(f"{key}  {entry.key.timestamp} + {other.key.timestamp}  {ids}")


if __name__ == "__main__":
    main()
