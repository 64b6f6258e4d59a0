"""Fuzz the whole path: lines of an archive → aggregates → decoder → tables; every record is accounted for.

    python -m tests.fuzz.whole_path [--records 1000000] [--seed N]

Records are mutated in their structure, not only in their bytes (`tests.fuzz.mutations`). Nothing may raise,
nothing may be an `internal_error`, and each user record is a change, pending, quarantined or a fact.
"""

from __future__ import annotations

import argparse
import base64
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from headpond.core.formats import INTERNAL_ERROR, decoded_parts
from headpond.kinesis.archive.lines import read_lines
from headpond.kpl.records import open_records
from headpond.lake.apply import apply_batch
from headpond.lake.target import DecodedBatch
from headpond.pipeline import loads
from headpond.pipeline.lake import open_lake
from tests.fuzz.mutations import MUTATE, aggregate, archive_line, mutated_bytes
from tests.kit.support import vector_json, vector_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from headpond.lake.tables import Lake

LINES_AT_A_TIME = 1_000
LAKE_RECORDS = 10_000
"""User records that go to one lake, so that its tables stay small."""
SOURCES = {
    "dsql": ["dsql/small.jsonl", "dsql/stream.jsonl", "dsql/cases.jsonl"],
    "qldb": ["qldb/clean.jsonl", "qldb/page_examples.jsonl", "qldb/real_block.jsonl", "qldb/malformed.jsonl"],
}
OUTCOMES = ("changes", "blocks", "controls", "pending", "quarantined")
"""Each user record has one of them."""
HEAD = '[source]\narchive = "x.jsonl"\nformat = "{kind}"\n[target]\npath = "lake"\n'
TABLES = {
    "dsql": """
[tables."public.order_items"]
keys = ["order_id", "item_id"]
columns = { order_id = "integer", item_id = "integer", quantity = "integer", price = "numeric(10,2)" }
deletion_vectors = true
[tables."public.accounts"]
keys = ["id"]
columns = { id = "bigint", balance = "numeric", created_at = "timestamptz", limit = "real" }
keep = "history"
[tables."public.all_types"]
keys = ["k"]
partition_by = ["c_date"]
columns = { ALL_TYPES }
[tables."audit.docs"]
keys = ["tenant", "doc_id"]
columns = { tenant = "text", doc_id = "bigint", blob = "bytea" }
partition_by = ["tenant"]
[tables."sales.Evolving"]
keys = ["id"]
[tables."public.events_nopk"]
keys = []
keep = "log"
""",
    "qldb": """
[tables.Person]
columns = { FirstName = "string", DOB = "timestamp" }
partition_by = ["FirstName"]
[tables.VehicleRegistration]
deletion_vectors = true
[tables.VehicleRegistration_history]
table = "VehicleRegistration"
keep = "history"
[tables.Mixed]
keep = "history"
""",
}


@cache
def seeds(kind: str) -> list[bytes]:
    """Records of the vectors that are whole."""
    found = []
    for name in SOURCES[kind]:
        for record in [each for line in vector_lines(name) for each in line.get("records", [line])]:
            data = base64.b64decode(record["data"])
            try:
                MUTATE[kind](Random(0), data, data)
            except (ValueError, IndexError, RecursionError):
                continue
            found.append(data)
    return found


def mutated(random: Random, kind: str) -> bytes:
    """Return a record: one in ten as it was, one in ten with bytes changed, the others in their structure."""
    known = seeds(kind)
    data, how = random.choice(known), random.random()
    if how < 0.1:
        return data
    if how < 0.2:
        return mutated_bytes(random, data)
    return MUTATE[kind](random, data, random.choice(known))


def lines_of(random: Random, kind: str, count: int) -> Iterator[bytes]:
    """Yield lines with that many user records, some of them in aggregates."""
    number = 0
    while number < count:
        size = random.choice((1, 1, 1, 8))
        records = [mutated(random, kind) for _ in range(size)]
        yield archive_line(random, number, records[0] if size == 1 else aggregate(random, records))
        number += size


def text_of(kind: str) -> str:
    """Return the pipeline file: tables of each form, with columns of every type."""
    types = vector_json("dsql/stream.expected.json")["tables"]["public.all_types"]["columns"]
    all_types = ", ".join(f"{name} = '{type_}'" for name, type_ in types.items())
    return HEAD.format(kind=kind) + TABLES[kind].replace("ALL_TYPES", all_types)


def fuzz(kind: str, seed: int, count: int, folder: Path) -> Counter[str]:
    """Take that many records to the tables of a lake; return what became of them.

    Raises:
        AssertionError: a record is not accounted for.
        Exception: whatever a record did.
    """
    random = Random(f"{kind} {seed}")
    pipeline = loads(text_of(kind), folder)
    lake = open_lake(pipeline)
    lake.prepare()
    config = lake.config
    outcome: Counter[str] = Counter()
    lines = list(lines_of(random, kind, count))
    for at in range(0, len(lines), LINES_AT_A_TIME):
        records = read_lines(lines[at : at + LINES_AT_A_TIME], stream="s", file="f", first_line=at + 1)
        opened = list(open_records(records))
        batch = DecodedBatch.of(part for each in opened for part in decoded_parts(config, each))
        outcome["records"] += sum(each.num_rows for each in opened)
        outcome["changes"] += once_each(lake, batch.tables)
        for name in ("blocks", "controls"):
            outcome[name] += batch.counters[name]
        changes = sum(rows.num_rows for rows in batch.tables.values())
        refused = batch.quarantine.num_rows
        outcome["pending"] += batch.pending.num_rows
        applied = apply_batch(lake, batch, transaction=("fuzz", at))
        figures = sum(sum(counted.values()) for counted in applied.tables.values())
        twice = figures + applied.quarantined.total() - changes - refused
        # Revisions that contradict each other are decided on again with each block that may list one.
        assert twice == 0 if kind == "dsql" else twice >= 0, (applied.tables, twice)
        outcome["quarantined"] += refused
        outcome.update({f"  {reason}": n for reason, n in applied.quarantined.items()})
    assert outcome["records"] == sum(outcome[name] for name in OUTCOMES), outcome
    assert outcome[f"  {INTERNAL_ERROR}"] == 0
    for _, file in lake.files():
        file.read(None)
    return outcome


def once_each(lake: Lake, tables: Mapping[str, pa.Table]) -> int:
    """Count changes, those of a table that is kept in two forms once."""
    entries = {entry.table: entry.name for entry in lake.config.tables}
    forms = {entry.name for entry in lake.config.tables} - set(entries.values())
    return sum(rows.num_rows for name, rows in tables.items() if name not in forms)


def _fuzz(kind: str, seed: int) -> tuple[str, Counter[str]]:
    folder = Path(tempfile.mkdtemp(prefix="headpond-fuzz-"))
    try:
        return kind, fuzz(kind, seed, LAKE_RECORDS, folder)
    except BaseException as error:
        raise RuntimeError(f"{kind} with seed {seed}: {type(error).__name__}: {error}") from error
    finally:
        shutil.rmtree(folder)


def main() -> None:
    """Fuzz in two processes until so many records are through."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=time.time_ns() // 1_000_000_000)
    given = parser.parse_args()
    rounds = max(1, given.records // (2 * LAKE_RECORDS))
    sys.stderr.write(f"Seeds {given.seed} to {given.seed + rounds - 1}\n")
    outcomes = {kind: Counter[str]() for kind in MUTATE}
    begun = time.monotonic()
    with ProcessPoolExecutor(2) as pool:
        asked = [pool.submit(_fuzz, kind, given.seed + n) for n in range(rounds) for kind in MUTATE]
        for each in asked:
            kind, found = each.result()
            outcomes[kind].update(found)
    for kind, found in outcomes.items():
        sys.stderr.write(f"{kind} after {time.monotonic() - begun:.0f} s\n")
        for name, number in sorted(found.items(), key=lambda item: -item[1]):
            sys.stderr.write(f"  {name:<28} {number:>10,}\n")


if __name__ == "__main__":
    main()
