"""What do the window stores cost on disk and in time, beside RocksDB used bare through the same binding?

Five questions, most of them of the project's targets; those on stores are answered in turn, so that a
busy moment of the machine meets all alike. Times are CPU times of the process: RocksDB's background threads
count, waiting for the disk does not (--wall: it does). Printed: medians, and ratios of the medians.

    disk        bytes a record of all four formats; 12-byte keys, 100-byte random values, no headers
    convert     batch conversion timestamped+headers → plain+headers, Arrow in and out
    migrate     offline migration of a directory, against reading and writing the same records bare
    puts, fetch the stores against bare puts and scans of the same bytes
    join        the windowed join on Spark, beside its peers: see join.py, which also runs alone

    python bench/windows/run.py [--records 1000000] [--rounds 5] [--only disk] [--wall] [--json FILE]
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from rocksdict import AccessType, CompactOptions, Options, Rdict, WriteOptions

from headpond.kstreams import (
    BytesSerde,
    StoreSettings,
    ValueAndHeaders,
    WindowBytesStore,
    WindowStoreWithHeaders,
    migrate,
)
from headpond.kstreams.bytes.window_keys import encode_store_key, lower_bound, upper_bound
from headpond.kstreams.bytes.window_values import ValueFormat, encode_value
from headpond.kstreams.bytes.window_values_arrow import convert_values
from headpond.kstreams.stores.rocks import COLUMN_FAMILIES, Database, column_families, database_options

if TYPE_CHECKING:
    from collections.abc import Callable

START_MS = 1_700_000_000_000
SETTINGS = StoreSettings("win", 2_400_000, 60_000, retain_duplicates=True)  # segments of 20 minutes
KEYS = 1000
TRACE = [("trace-id", bytes(16))]
KAFKA_STREAMS = {"plain": 121.35, "timestamped": 128.86, "timestamped_headers": 129.93}
TARGETS = {
    # figure: (at least, aim)
    "disk: bytes less than timestamped+headers": (7.3, 8.0),
    "convert: million records/s, no headers": (3.0, 10.0),
    "convert: million records/s, one header": (3.0, 10.0),
    "migrate: of bare read + write": (0.7, 0.9),
    "puts: of bare puts, store of bytes": (0.3, 0.6),
    "puts: of bare puts, typed store": (0.3, 0.6),
    "fetch: of bare scans, store of bytes": (0.3, 0.6),
    "fetch: of bare scans, typed store": (0.3, 0.6),
}


clock = time.process_time


def keys_and_starts(records: int) -> list[tuple[bytes, int]]:
    """12-byte keys at one record a millisecond."""
    return [(b"key-%08d" % (number * 7919 % KEYS), START_MS + number) for number in range(records)]


def timed(action: Callable[[], object]) -> float:
    gc.collect()
    gc.disable()
    started = clock()
    action()
    spent = clock() - started
    gc.enable()
    return spent


def filled(folder: Path, value_format: ValueFormat, records: int, headers: Any = ()) -> Path:
    chance = random.Random(1)
    directory = folder / value_format / "win"
    store = WindowBytesStore(SETTINGS, value_format, directory)
    for key, start in keys_and_starts(records):
        store.put(key, encode_value(chance.randbytes(100), start, headers, value_format), start)
    store.close()
    return directory


def disk(folder: Path, records: int, _rounds: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for value_format in ValueFormat:
        directory = filled(folder, value_format, records)
        for segment in directory.iterdir():
            with Database(segment, column_families(segment)) as database:
                database.families[COLUMN_FAMILIES[value_format]].compact_range(None, None, CompactOptions())
        files = list(directory.rglob("*.sst"))
        found[f"disk: {value_format}, bytes a record"] = sum(each.stat().st_size for each in files) / records
        shutil.rmtree(directory)
    ours, theirs = (
        found[f"disk: {each}, bytes a record"] for each in ("plain_headers", "timestamped_headers")
    )
    found["disk: bytes less than timestamped+headers"] = theirs - ours
    return found


def convert(_folder: Path, records: int, rounds: int) -> dict[str, float]:
    found = {}
    for name, headers in (("no headers", ()), ("one header", TRACE)):
        chance = random.Random(2)
        values = pa.array(
            [
                encode_value(
                    chance.randbytes(100), START_MS + number, headers, ValueFormat.TIMESTAMPED_HEADERS
                )
                for number in range(records)
            ],
            pa.binary(),
        )

        def once(values: Any = values) -> object:
            return convert_values(values, ValueFormat.TIMESTAMPED_HEADERS, ValueFormat.PLAIN_HEADERS)

        once()
        spent = statistics.median(timed(once) for _ in range(rounds))
        found[f"convert: million records/s, {name}"] = records / spent / 1e6
    return found


def bare(path: Path) -> tuple[Rdict, Rdict]:
    """RocksDB with the stores' options and one column family, writes without the write-ahead log."""
    db = Rdict(
        str(path),
        database_options(),
        column_families={"default": database_options(), "x": database_options()},
    )
    family = db.get_column_family("x")
    unlogged = WriteOptions()
    unlogged.disable_wal = True
    family.set_write_options(unlogged)
    return db, family


def migration(folder: Path, records: int, rounds: int) -> dict[str, float]:
    directory = filled(folder, ValueFormat.TIMESTAMPED_HEADERS, records, TRACE)
    spent: dict[str, list[float]] = {"ours": [], "bare": []}
    for number in range(rounds):
        out = folder / f"out-{number}" / "win"
        out.parent.mkdir()
        spent["ours"].append(timed(lambda out=out: migrate(directory, out=out)))
        shutil.rmtree(out.parent)
        spent["bare"].append(
            timed(lambda number=number: read_and_write(directory, folder / f"bare-{number}"))
        )
        shutil.rmtree(folder / f"bare-{number}")
    shutil.rmtree(directory)
    ours, theirs = (statistics.median(spent[each]) for each in ("ours", "bare"))
    return {
        "migrate: records/s": records / ours,
        "migrate: bare read + write, records/s": records / theirs,
        "migrate: of bare read + write": theirs / ours,
    }


def read_and_write(directory: Path, to: Path) -> None:
    """Copy entry by entry, unchanged, with nothing but the binding and its own options."""
    family_name = COLUMN_FAMILIES[ValueFormat.TIMESTAMPED_HEADERS]
    for segment in sorted(directory.iterdir()):
        db, family = bare(to / segment.name)
        options = {name: Options(raw_mode=True) for name in column_families(segment)}
        source = Rdict(str(segment), Options(raw_mode=True), options, AccessType.read_only())
        read = source.get_column_family(family_name)
        for key, value in read.items():
            family[key] = value
        family.flush()
        for each in (read, source, family, db):
            each.close()
        (segment / "rocksdict-config.json").unlink()


def puts_and_fetches(folder: Path, records: int, rounds: int) -> dict[str, float]:
    chance = random.Random(3)
    plan = [(key, start, chance.randbytes(100)) for key, start in keys_and_starts(records)]
    fetches = [(key, start) for key, start, _ in plan[:: max(1, records // 50_000)]]
    spent: dict[str, list[float]] = {}
    for number in range(rounds):
        for name, action in (("bare", bare_round), ("bytes", bytes_round), ("typed", typed_round)):
            place = folder / f"{name}-{number}"
            put, fetch = action(place, plan, fetches)
            spent.setdefault(f"puts {name}", []).append(put)
            spent.setdefault(f"fetch {name}", []).append(fetch)
            shutil.rmtree(place)
    median = {name: statistics.median(each) for name, each in spent.items()}
    found = {}
    for what, count in (("puts", records), ("fetch", len(fetches))):
        for name in ("bare", "bytes", "typed"):
            found[f"{what}: {name}, /s"] = count / median[f"{what} {name}"]
        found[f"{what}: of bare {'puts' if what == 'puts' else 'scans'}, store of bytes"] = (
            median[f"{what} bare"] / median[f"{what} bytes"]
        )
        found[f"{what}: of bare {'puts' if what == 'puts' else 'scans'}, typed store"] = (
            median[f"{what} bare"] / median[f"{what} typed"]
        )
    return found


# A fetch is a join's: one key, one second back and one ahead, among two segments' entries.
REACH_MS = 1000


def bare_round(place: Path, plan: Any, fetches: Any) -> tuple[float, float]:
    db, family = bare(place)
    stored = [
        (encode_store_key(key, start, n), b"\x00" + value) for n, (key, start, value) in enumerate(plan, 1)
    ]

    def put() -> None:
        for key, value in stored:
            family[key] = value

    def fetch() -> None:
        for lower, upper in bounds:
            for key in family.keys(from_key=lower):
                if key > upper:
                    break

    bounds = [
        (lower_bound(key, start - REACH_MS), upper_bound(key, start + REACH_MS)) for key, start in fetches
    ]
    spent = timed(put)
    family.flush()
    spent_fetching = timed(fetch)
    family.close()
    db.close()
    return spent, spent_fetching


def bytes_round(place: Path, plan: Any, fetches: Any) -> tuple[float, float]:
    store = WindowBytesStore(SETTINGS, ValueFormat.PLAIN_HEADERS, place / "win")
    stored = [(key, start, b"\x00" + value) for key, start, value in plan]

    def put() -> None:
        for key, start, value in stored:
            store.put(key, value, start)

    def fetch() -> None:
        for key, start in fetches:
            for _entry in store.fetch(key, start - REACH_MS, start + REACH_MS):
                pass

    spent = timed(put)
    store.flush()
    spent_fetching = timed(fetch)
    store.close()
    return spent, spent_fetching


def typed_round(place: Path, plan: Any, fetches: Any) -> tuple[float, float]:
    store = WindowStoreWithHeaders.open(SETTINGS, BytesSerde(), BytesSerde(), place)
    wrapped = [(key, start, ValueAndHeaders(value)) for key, start, value in plan]

    def put() -> None:
        for key, start, value in wrapped:
            store.put(key, value, start)

    def fetch() -> None:
        for key, start in fetches:
            for _entry in store.fetch(key, start - REACH_MS, start + REACH_MS):
                pass

    spent = timed(put)
    store.flush()
    spent_fetching = timed(fetch)
    store.close()
    return spent, spent_fetching


QUESTIONS = {"disk": disk, "convert": convert, "migrate": migration, "puts": puts_and_fetches}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=[*QUESTIONS, "join"])
    parser.add_argument("--wall", action="store_true", help="wall time instead of CPU time")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    if chosen.wall:
        global clock  # noqa: PLW0603 - one clock for the whole run
        clock = time.perf_counter
    found: dict[str, float] = {}
    for name, question in QUESTIONS.items():
        if chosen.only in (None, name):
            with tempfile.TemporaryDirectory(prefix="headpond-bench-") as folder:
                found |= question(Path(folder), chosen.records, chosen.rounds)
    for name, figure in found.items():
        least, aim = TARGETS.get(name, (None, None))
        verdict = (
            ""
            if least is None
            else f"   at least {least}, aim {aim}: "
            + ("aim met" if figure >= aim else "met" if figure >= least else "MISSED")
        )
        print(f"{name:48}{figure:14,.2f}{verdict}")
    if chosen.only in (None, "join"):
        import join  # noqa: PLC0415 - Spark, only for this question

        joined = join.measure(batches=8)
        join.show(joined)
        found |= joined
    for name, figure in KAFKA_STREAMS.items() if "disk: plain, bytes a record" in found else ():
        print(f"  Kafka Streams' own directory, {name}: {figure} bytes a record")
    if chosen.json:
        chosen.json.write_text(
            json.dumps({"records": chosen.records, "rounds": chosen.rounds, **found}, indent=1)
        )


if __name__ == "__main__":
    main()
