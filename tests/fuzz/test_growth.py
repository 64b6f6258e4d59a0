"""Whatever a record repeats, the time to refuse or read it grows as its length, and it is accounted for."""

from __future__ import annotations

import base64
import gc
import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from headpond.core.formats import decoded_parts
from headpond.core.schemas import USER_RECORD_SCHEMA
from headpond.dsql.chunks import Chunks
from headpond.dsql.config import TableSpec
from headpond.dsql.decode import DsqlConfig
from headpond.kpl.records import KINESIS_RECORD_SCHEMA, open_records
from headpond.lake.state.pending import put_together
from headpond.qldb.config import DocumentSpec
from headpond.qldb.decode import LedgerConfig
from tests.fuzz.families import FAMILIES
from tests.lake.lakes import decoded, lake_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ROWS = TableSpec(name="t", schema="public", table="t", keys=("id",), columns={"id": "bigint", "j": "json"})
CONFIGS = {
    "dsql": DsqlConfig(tables=(ROWS,)),
    "qldb": LedgerConfig(tables=(DocumentSpec(name="t", table="t"),)),
}
PLACE = {"stream": "s", "shard_id": "a", "sequence_number": "1"}
CASES = [(kind, what) for kind, families in FAMILIES.items() for what in families]


def opened(data: bytes) -> list[pa.RecordBatch]:
    """Its user records."""
    return list(open_records(pa.RecordBatch.from_pylist([PLACE | {"data": data}], KINESIS_RECORD_SCHEMA)))


def accounted_for(kind: str, data: bytes) -> int:
    """How many rows, quarantined ones and facts come of a record."""
    if kind == "kpl":
        return sum(batch.num_rows for batch in opened(data))
    row = PLACE | {"data": data, "sub_sequence_number": 0, "aggregated": False}
    batch = pa.RecordBatch.from_pylist([row], USER_RECORD_SCHEMA)
    (found,) = decoded_parts(CONFIGS[kind], batch)
    assert "internal_error" not in found.quarantine["reason"].to_pylist()
    return found.quarantine.num_rows + sum(rows.num_rows for rows in found.tables.values())


def test_fields_around_a_document_are_bounded() -> None:
    """Those of the document itself are columns, which are bounded by themselves."""
    data = FAMILIES["qldb"]["fields of one name"](30_000)
    row = PLACE | {"data": data, "sub_sequence_number": 0, "aggregated": False}
    (found,) = decoded_parts(CONFIGS["qldb"], pa.RecordBatch.from_pylist([row], USER_RECORD_SCHEMA))
    assert "more than 10000 fields" in found.quarantine["detail"][0].as_py()


def least_cpu_s(run: Callable[[], Any]) -> float:
    """Of three runs."""
    spent = []
    for _ in range(3):
        begun = time.process_time()
        run()
        spent.append(time.process_time() - begun)
    return min(spent)


def linked_changes(count: int) -> list[bytes]:
    """Chunked changes of which each shares a chunk with the next: one group."""
    lines = []
    for number in range(count):
        place = {"version": "1.0", "ts_ns": 10**18 + number, "txId": "a", "schema": "public", "table": "t"}
        refs = {
            image: {"chunk_id": f"c{number + more}", "total_fragments": 2, "crc32c": "1"}
            for more, image in enumerate(("after", "before"))
        }
        change = {"type": "chunked", "op": "u", "before": None, "after": None, "source": place}
        data = base64.b64encode(json.dumps(change | {"chunked": refs}).encode()).decode()
        lines.append(json.dumps({"data": data}).encode())
    return lines


@pytest.mark.slow
def test_time_of_linked_changes_grows_as_their_number(tmp_path: Path) -> None:
    """2,000 of them took half a minute: each was compared with all others."""

    def apply(count: int) -> Callable[[], Any]:
        lake, config = lake_in(tmp_path / str(count), '[tables."public.t"]\nkeys = ["id"]\n')
        batch = decoded(config, linked_changes(count))
        return lambda: put_together(lake.pending, batch, Chunks(config))

    short, long = apply(250), apply(2_000)
    assert least_cpu_s(long) < 24 * max(least_cpu_s(short), 0.01)


@pytest.fixture
def of_its_own() -> Iterator[None]:
    """Leave the objects of the whole test run out of garbage collections: they are not the record's."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.thorough
@pytest.mark.usefixtures("of_its_own")
@pytest.mark.parametrize(("kind", "what"), CASES)
def test_time_grows_as_length(kind: str, what: str) -> None:
    """Eight times as long takes some eight times as long; what is quadratic would take 64 times."""
    make = FAMILIES[kind][what]
    size = 40_000
    short, long = make(size), make(8 * size)
    assert accounted_for(kind, short) > 0 < accounted_for(kind, long)
    # A busy machine spoils one comparison, as caches are shared; what is quadratic fails each of them.
    grown = []
    for _ in range(4):
        least = max(least_cpu_s(lambda: accounted_for(kind, short)), 0.002)
        grown.append(least_cpu_s(lambda: accounted_for(kind, long)) / least)
        if grown[-1] <= 24:
            return
    pytest.fail(f"Eight times the bytes took {grown} times as long.")


PEAK = """
import sys
from pathlib import Path
from tests.fuzz.test_growth import FAMILIES, accounted_for
from tests.kit.support import peak_kib
kind, what = sys.argv[1:]
data = FAMILIES[kind][what](10 << 20)
accounted_for(kind, FAMILIES[kind][what](1000))
Path("/proc/self/clear_refs").write_text("5")
before = peak_kib()
accounted_for(kind, data)
print((peak_kib() - before) * 1024 / len(data))
"""


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "what"), CASES)
def test_memory_is_at_most_sixteen_times_the_record(kind: str, what: str) -> None:
    """Of a record of 10 MiB, in a process of its own."""
    command = [sys.executable, "-c", PEAK, kind, what]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert float(done.stdout) < 16
