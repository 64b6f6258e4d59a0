"""The soak's model beside headpond without Spark: it agrees, and it notices what is wrong."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headpond.core.schemas import USER_RECORD_SCHEMA
from headpond.kpl import Tag, UserRecord
from headpond.lake.apply import Chunks, DecodedBatch, apply_batch
from headpond.pipeline import load
from headpond.pipeline.lake import open_lake, row_changes
from tests.lake.ledgers import config_of, decoded_records, ledger_in
from tests.soak import soak_changes, soak_checks, soak_join, soak_ledger
from tests.soak.soak_changes import ChangeMaker
from tests.soak.soak_jobs import Job, JobFailedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.thorough

Placed = list[tuple[tuple[str, str, int], bytes]]


def placed(blobs: Sequence[bytes]) -> Placed:
    """Give records the places of a stream."""
    return [
        ((f"shard-{number % 3}", str(1000 + number), number % 2), data) for number, data in enumerate(blobs)
    ]


def table_of(records: Placed) -> pa.Table:
    rows = [
        {
            "stream": "s", "shard_id": shard, "sequence_number": number, "sub_sequence_number": place,
            "aggregated": False, "data": data,
        }
        for (shard, number, place), data in records
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=USER_RECORD_SCHEMA)


def lake_of(folder: Path, records: Placed) -> None:
    """Apply records in batches, without Spark."""
    (folder / "p.toml").write_text(
        '[source]\nstream = "changes"\nformat = "dsql"\n[target]\npath = "lake"\n' + soak_changes.tables()
    )
    pipeline = load(folder / "p.toml")
    lake, config = open_lake(pipeline), row_changes(pipeline)
    lake.prepare()
    for start in range(0, len(records), 90):
        found = config.decode(table_of(records[start : start + 90]))
        batch = DecodedBatch(
            tables={name: pa.Table.from_batches([rows]) for name, rows in found.tables.items()},
            quarantine=pa.Table.from_batches([found.quarantine]),
            pending=pa.Table.from_batches([found.pending]),
        )
        apply_batch(lake, batch, chunks=Chunks(config))


def test_the_model_of_changes_agrees_and_notices(tmp_path: Path) -> None:
    """Shuffled records give the model's tables; each thing that is then spoilt is told of."""
    maker = ChangeMaker(4, keys=6)
    blobs = [data for _ in range(150) for _, data in maker.transaction()]
    random.Random(1).shuffle(blobs)
    records = placed(blobs)
    lake_of(tmp_path, records)
    wanted = soak_changes.expect(records, maker.meanings)
    lake = tmp_path / "lake"
    assert soak_checks.check_changes(lake, wanted) == []
    assert wanted.fates.total() == wanted.records == len(blobs)
    assert set(wanted.fates) == {"applied", "superseded", "duplicate", "pending", "quarantined"}
    assert wanted.whole
    for table in (*soak_changes.KEYS, "_headpond/quarantine", "_headpond/pending", "_headpond/tombstones"):
        before = DeltaTable(str(lake / table)).to_pyarrow_table()
        # Of what once waited, rows of finished changes stay for a while: any one row need not be missed.
        _spoil(lake / table, before.slice(0, 0) if table.endswith("pending") else before.slice(1))
        assert soak_checks.check_changes(lake, wanted), table
        _spoil(lake / table, before)
    assert soak_checks.check_changes(lake, wanted) == []


def _spoil(place: Path, rows: pa.Table) -> None:
    from deltalake import write_deltalake

    write_deltalake(str(place), rows, mode="overwrite")


def test_the_model_of_a_ledger_agrees_and_notices(tmp_path: Path) -> None:
    """Likewise with the journal of the vectors and documents of our own."""
    maker = soak_ledger.LedgerMaker(4, documents=5)
    blobs = [data for _ in range(40) for _, data in maker.some(0.01)] + [data for _, data in maker.rest()]
    random.Random(2).shuffle(blobs)
    records = placed(blobs)
    config = config_of(*soak_ledger.TABLES, raw_ion=True)
    lake = ledger_in(tmp_path / "lake", config)
    for start in range(0, len(records), 300):
        apply_batch(lake, decoded_records(config, table_of(records[start : start + 300])))
    wanted = soak_ledger.expect(records, maker, tmp_path / "reference")
    assert soak_checks.check_ledger(lake, wanted) == []
    assert wanted.fates.total() == wanted.records == len(blobs)
    wanted.quarantine.popitem()
    wanted.ours.popitem()
    assert len(soak_checks.check_ledger(lake, wanted)) == 4  # a line of figures and the culprit, twice


def test_the_pairs_of_a_join() -> None:
    """A right record from 700 ms before to 400 ms after a left one, both ends included."""

    def record(at: int, side: str, tags: Any = ()) -> UserRecord:
        return UserRecord("k", b"%d|%s" % (at, side.encode()), None, tags)

    left = [record(1000, "l", (Tag("n", None),))]
    right = [record(at, "r", (Tag("t", "x"),)) for at in (299, 300, 1400, 1401)]
    found = soak_join.expect(left, right)
    assert [(pair[2], pair[3], pair[4]) for pair in found] == [
        (b"300|r", 1000, (("n", None), ("t", b"x"))),
        (b"1400|r", 1400, (("n", None), ("t", b"x"))),
    ]
    assert not soak_join.expect(left, [UserRecord("other", b"1000|r")])


def test_a_job_that_ends_by_itself_is_told_of(tmp_path: Path) -> None:
    """One that was killed is started again; one that ended though nobody had killed it is a failure."""
    job = Job("sleeper", lambda master, until: ["sleep", "60" if until == "on" else master], tmp_path)
    draw = random.Random(1)
    job.start("any")
    try:
        assert [job.strike(draw, {"executor"}) for _ in range(50)] == [None] * 50
        while job.strike(draw) != "driver":
            pass  # it looks as if it were only starting, and mostly goes free
        job.watch("other")
        assert job.starts == {"any": 1, "other": 1}
        assert job.killed == {"driver": 1}
        job.kill_all()
        with pytest.raises(JobFailedError, match=r"^sleeper ended with -9"):
            job.watch("any")
        job.start("0", "out")
        job.ended(10)
        job.start("no number", "out")
        with pytest.raises(JobFailedError, match="invalid time interval"):
            job.ended(10)
        job.start("9", "out")
        with pytest.raises(JobFailedError, match="did not end within 0 s"):
            job.ended(0.1)
    finally:
        job.kill_all()


def test_a_replay_that_writes_is_told() -> None:
    """Figures of reading again must add up, and nothing may be written."""
    maker = ChangeMaker(5)
    records = placed([data for _ in range(150) for _, data in maker.transaction()])
    wanted = soak_changes.expect(records, maker.meanings)
    tables = {name: {"duplicates": wanted.full[name]} for name in soak_changes.KEYS}
    pieces = wanted.records - sum(wanted.full.values()) - len(wanted.quarantine)
    summary = {
        "tables": tables,
        "counters": {"records": wanted.records, "chunk_copies": pieces},
        "quarantined": Counter(wanted.quarantine.values()),
        "pending": len(wanted.pending),
        "deletes": wanted.deletes,
    }
    assert wanted.quarantine
    assert wanted.pending
    assert wanted.deletes
    assert soak_checks.check_replay_of_changes(summary, wanted) == []
    tables[soak_changes.ORDERS] = {"duplicates": wanted.full[soak_changes.ORDERS] - 1, "upserts": 1}
    assert soak_checks.check_replay_of_changes(summary, wanted) == [
        "public.orders: reading everything again wrote 1 rows (upserts)"
    ]
    tables[soak_changes.ORDERS]["duplicates"] -= 1
    assert len(soak_checks.check_replay_of_changes(summary, wanted)) > 1
    tables[soak_changes.ORDERS] = {"duplicates": wanted.full[soak_changes.ORDERS]}
    assert soak_checks.check_replay_of_changes(summary, wanted) == []
    # Headpond's own sums are held beside the records it says it read, each part for itself.
    for part, other in (
        ("counters", {"records": wanted.records, "chunk_copies": pieces - 1}),
        ("quarantined", {}),
        ("pending", 0),
        ("deletes", {}),
    ):
        assert soak_checks.check_replay_of_changes(summary | {part: other}, wanted), part


def test_a_join_that_drops_or_repeats_is_told() -> None:
    """Its counters must be those of all records and of all pairs."""
    good = {"records": 10, "joined": 4, "emitted": 4}
    assert soak_checks.check_replay_of_join(good, records=10, pairs=4) == []
    for name in ("records", "joined", "emitted", "late", "dropped_null_key", "dropped_late", "unmatched"):
        spoilt = Counter(good) + Counter({name: 1})
        assert soak_checks.check_replay_of_join(spoilt, records=10, pairs=4), name


def test_a_soak_that_did_nothing_is_told() -> None:
    """Each kind of kill and of weather must have been."""
    least, kinds = {"driver": 1, "worker": 2}, ("throttle", "splits")
    done = Counter(driver=1, worker=2)
    assert soak_checks.check_faults(done, least, {"throttle": 1, "splits": 3}, kinds) == []
    assert soak_checks.check_faults(
        Counter(driver=1, worker=1), least, {"throttle": 1, "splits": 0}, kinds
    ) == [
        "killed: 1 of worker, 2 must be",
        "the weather had no splits",
    ]
