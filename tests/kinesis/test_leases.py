"""Starting from a KCL application's lease table: nothing lost, at most one Kinesis record again."""

from __future__ import annotations

import gzip
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from headpond.core.errors import ConfigurationError, DataLoss
from headpond.kinesis.leases import read_leases
from headpond.kinesis.reading.positions import END, HORIZON, Start, at_time, before
from headpond.kpl import UserRecord, encode
from headpond.localkinesis.testing import ManualClock, local_kinesis
from tests.kinesis.source_kit import STREAM, Driver, held, put

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headpond.localkinesis import LocalKinesis

FIRST, SECOND, THIRD = (f"shardId-00000000000{n}" for n in range(3))
NUMBER = "49680000000000000000000000000000000000000000000000000001"
ROWS: list[dict[str, Any]] = [
    {"leaseKey": FIRST, "checkpoint": NUMBER, "checkpointSubSequenceNumber": 17, "leaseCounter": 4},
    {"leaseKey": SECOND, "checkpoint": "SHARD_END", "checkpointSubSequenceNumber": 0},
    {"leaseKey": THIRD, "checkpoint": "TRIM_HORIZON", "parentShardId": [SECOND]},
]
GIVEN = Start(HORIZON)
CREATED_MS = 1_767_225_600_000


@pytest.fixture
def kinesis(clock: ManualClock) -> Iterator[LocalKinesis]:
    with local_kinesis(STREAM, shards=2, clock=clock) as running:
        yield running


def typed(row: dict[str, Any]) -> dict[str, Any]:
    """A row with DynamoDB's types."""
    kinds = {int: "N", str: "S", list: "SS"}
    return {
        name: {kinds[type(value)]: str(value) if isinstance(value, int) else value}
        for name, value in row.items()
    }


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


SHAPES = {
    "list": json.dumps(ROWS),
    "lines": lines(ROWS),
    "export": lines([{"Item": typed(row)} for row in ROWS]),
    "scan": json.dumps({"Items": [typed(row) for row in ROWS], "Count": 3}, indent=2),
    "several streams": lines(
        [{**row, "leaseKey": f"123456789012:{STREAM}:1767225600:{row['leaseKey']}"} for row in ROWS]
        + [{**row, "leaseKey": f"123456789012:other:1767225600:{row['leaseKey']}"} for row in ROWS]
    ),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.slow
def test_every_shape_of_export_reads_the_same(shape: str, *, packed: bool, tmp_path: Path) -> None:
    """A list, lines, an export to S3, a scan, a table of several streams; gzipped or not."""
    path = tmp_path / "leases.json"
    raw = SHAPES[shape].encode()
    path.write_bytes(gzip.compress(raw) if packed else raw)
    leases = read_leases(str(path), STREAM, GIVEN, created_ms=CREATED_MS)
    shards = {FIRST: before(NUMBER), SECOND: END, THIRD: HORIZON}
    assert leases == Start(HORIZON, shards, {FIRST: 17, SECOND: 0, THIRD: 0})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "line 1 is not JSON"),
        ("", "no lease of orders"),
        ("[3]", "row 1 is 3"),
        ('[{"checkpoint": "1"}]', "row 1 has no leaseKey"),
        (json.dumps([ROWS[0], {"leaseKey": SECOND}]), "checkpoint of row 2 is null"),
        (json.dumps([{"leaseKey": FIRST, "checkpoint": "12x"}]), 'checkpoint of row 1 is "12x"'),
        (json.dumps([ROWS[0], ROWS[0]]), "a second lease of " + FIRST),
        (json.dumps([{**ROWS[0], "checkpointSubSequenceNumber": "-1"}]), 'row 1 is "-1"'),
        (json.dumps([{**ROWS[0], "leaseKey": f"1:other:2:{FIRST}"}]), "no lease of orders, but 1 of others"),
        ("\udcff", "not UTF-8"),
        ("x" * 2001, "more than 2000 bytes"),
    ],
)
def test_what_is_no_lease_table_is_refused(text: str, says: str, tmp_path: Path) -> None:
    """The message names the file and the row."""
    path = tmp_path / "leases.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigurationError, match=re.escape(str(path))) as caught:
        read_leases(str(path), STREAM, GIVEN, created_ms=CREATED_MS, most_bytes=2000)
    assert says in caught.value.message


def test_a_missing_or_broken_file_is_refused(tmp_path: Path) -> None:
    """Not there, and a gzip file cut short."""
    with pytest.raises(ConfigurationError, match="No such file"):
        read_leases(str(tmp_path / "none.json"), STREAM, GIVEN, created_ms=CREATED_MS)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"x" * 1000)[:-12])
    with pytest.raises(ConfigurationError, match=r"cut\.gz"):
        read_leases(str(tmp_path / "cut.gz"), STREAM, GIVEN, created_ms=CREATED_MS)


def test_times_come_from_the_option(tmp_path: Path) -> None:
    """AT_TIMESTAMP means the time of startingPosition, without which it is refused; LATEST stays open."""
    path = tmp_path / "leases.json"
    rows = [{"leaseKey": FIRST, "checkpoint": "AT_TIMESTAMP"}, {"leaseKey": SECOND, "checkpoint": "LATEST"}]
    path.write_text(json.dumps(rows))
    found = read_leases(str(path), STREAM, Start(at_time(9)), created_ms=CREATED_MS)
    assert found.shards == {FIRST: at_time(9), SECOND: "LATEST"}
    with pytest.raises(ConfigurationError, match="does not say which time"):
        read_leases(str(path), STREAM, GIVEN, created_ms=CREATED_MS)


def full_row(shard_id: str, checkpoint: str, *parents: str) -> dict[str, Any]:
    """A row as KCL 3 writes it, with all its attributes and DynamoDB's types."""
    row: dict[str, Any] = {
        "leaseKey": {"S": shard_id},
        "leaseOwner": {"S": "worker-1"},
        "leaseCounter": {"N": "912"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
        "checkpoint": {"S": checkpoint},
        "checkpointSubSequenceNumber": {"N": "0"},
        "pendingCheckpoint": {"NULL": True},
        "pendingCheckpointSubSequenceNumber": {"NULL": True},
        "pendingCheckpointState": {"NULL": True},
        "childShardIds": {"SS": ["shardId-000000000007", "shardId-000000000008"]},
        "startingHashKey": {"S": "0"},
        "endingHashKey": {"S": "170141183460469231731687303715884105727"},
        "throughputKBps": {"N": "12.75"},
        "checkpointOwner": {"S": "worker-2"},
        "lastCounterIncrementNanos": {"NULL": True},
        "isMarkedForLeaseSteal": {"BOOL": False},
    }
    return row | ({"parentShardId": {"SS": list(parents)}} if parents else {})


def test_rows_with_all_attributes(tmp_path: Path) -> None:
    """What KCL 2 and 3 keep beside the checkpoint changes nothing, a prepared checkpoint neither."""
    rows = [full_row(FIRST, NUMBER), full_row(SECOND, "SHARD_END"), full_row(THIRD, "TRIM_HORIZON", SECOND)]
    rows[0]["pendingCheckpoint"] = {"S": NUMBER + "9"}
    rows[0]["pendingCheckpointState"] = {"B": "c3RhdGU="}
    path = tmp_path / "leases.json"
    for text in (
        json.dumps({"Items": rows, "Count": 3, "ScannedCount": 3, "ConsumedCapacity": None}),
        "".join(json.dumps({"Item": row}) + "\n" for row in rows),
    ):
        path.write_text(text)
        leases = read_leases(str(path), STREAM, GIVEN, created_ms=CREATED_MS)
        assert leases.shards == {FIRST: before(NUMBER), SECOND: END, THIRD: HORIZON}
    path.write_text(json.dumps({"Items": [{**rows[0], "checkpoint": {"NULL": True}}]}))
    with pytest.raises(ConfigurationError, match="checkpoint of row 1 is true"):
        read_leases(str(path), STREAM, GIVEN, created_ms=CREATED_MS)


def test_leases_of_an_earlier_stream_are_not_taken(tmp_path: Path) -> None:
    """The creation time in a key tells a stream from the one that had its name before."""
    path = tmp_path / "leases.json"

    def keyed(created_s: int, checkpoint: str) -> str:
        return json.dumps(full_row(f"123456789012:{STREAM}:{created_s}:{FIRST}", checkpoint)) + "\n"

    path.write_text(keyed(1_700_000_000, "SHARD_END") + keyed(1_767_225_600, NUMBER))
    for created_ms in (CREATED_MS, CREATED_MS + 999):
        leases = read_leases(str(path), STREAM, GIVEN, created_ms=created_ms)
        assert leases.shards == {FIRST: before(NUMBER)}
    with pytest.raises(
        ConfigurationError, match=r"created at 1700000000, 1767225600 s, and .* 1767225601 s"
    ) as e:
        read_leases(str(path), STREAM, GIVEN, created_ms=CREATED_MS + 1_000)
    assert "write the right one into the leaseKeys" in e.value.next_step
    path.write_text(keyed(1_767_225_600, NUMBER).replace("1767225600", "soon"))
    with pytest.raises(ConfigurationError, match="created at soon s"):
        read_leases(str(path), STREAM, GIVEN, created_ms=CREATED_MS)


def driver(kinesis: LocalKinesis, path: Path, rows: list[dict[str, Any]], **options: str) -> Driver:
    path.write_text(json.dumps(rows))
    return Driver(kinesis, kclLeases=str(path), **options)


@pytest.mark.slow
@pytest.mark.parametrize("bound", ["64 MiB", "none"])
def test_goes_on_after_the_checkpoints(kinesis: LocalKinesis, tmp_path: Path, bound: str) -> None:
    """Plain records: all after the checkpoints, none of those up to them."""
    put(kinesis, 40)
    rows = held(kinesis)
    cut = {shard: [n for s, n, _ in rows if s == shard][3] for shard in (FIRST, SECOND)}
    leases = [{"leaseKey": shard, "checkpoint": str(number)} for shard, number in cut.items()]
    reader = driver(kinesis, tmp_path / "l.json", leases, maxBytesPerTrigger=bound)
    start = reader.initial()
    (tmp_path / "l.json").unlink()
    _, batches = Driver(kinesis, kclLeases=str(tmp_path / "l.json"), maxBytesPerTrigger=bound).run(start)
    assert sorted(row for batch in batches for row in batch) == [row for row in rows if row[1] > cut[row[0]]]


@pytest.mark.slow
@pytest.mark.parametrize(("done", "again"), [(0, True), (1, True), (2, False)])
@pytest.mark.parametrize("bound", ["1000", "1"])
def test_an_aggregate_half_done_is_read_again(
    kinesis: LocalKinesis, tmp_path: Path, done: int, *, again: bool, bound: str
) -> None:
    """A checkpoint inside an aggregate re-reads that Kinesis record alone; one at its end does not."""
    packed = encode([UserRecord(key, b"1") for key in "abc"])
    put(kinesis, 10)
    key = {"PartitionKey": "x", "ExplicitHashKey": "0"}
    place = kinesis.client().put_record(StreamName=STREAM, Data=packed.data, **key)
    put(kinesis, 10, first=10)
    number = place["SequenceNumber"]
    leases = [
        {"leaseKey": FIRST, "checkpoint": number, "checkpointSubSequenceNumber": done},
        {"leaseKey": SECOND, "checkpoint": "TRIM_HORIZON"},
    ]
    reader = driver(kinesis, tmp_path / "l.json", leases, maxRecordsPerTrigger=bound)
    _, batches = reader.run(reader.initial())
    wanted = [row for row in held(kinesis) if row[0] != FIRST or row[1] > int(number) - again]
    assert sorted(row for batch in batches for row in batch) == wanted


def test_finished_shards_and_their_children(
    kinesis: LocalKinesis, clock: ManualClock, tmp_path: Path
) -> None:
    """Leases of finished shards may be there or deleted; a child without a lease starts at its horizon."""
    put(kinesis, 20)
    clock.advance(1000)
    low, high = kinesis.engine.split_shard(STREAM, FIRST)
    put(kinesis, 20, first=20)
    expected = [row for row in held(kinesis) if row[0] in (low.shard_id, high.shard_id)]
    other = {"leaseKey": SECOND, "checkpoint": str(max(n for s, n, _ in held(kinesis) if s == SECOND))}
    for rows in (
        [other, {"leaseKey": FIRST, "checkpoint": "SHARD_END"}],
        [other, {"leaseKey": low.shard_id, "checkpoint": "TRIM_HORIZON"}],
        [other, {"leaseKey": "shardId-000000000099", "checkpoint": "SHARD_END"}]
        + [{"leaseKey": shard.shard_id, "checkpoint": "TRIM_HORIZON"} for shard in (low, high)],
    ):
        reader = driver(kinesis, tmp_path / "l.json", rows)
        _, batches = reader.run(reader.initial())
        assert sorted(row for batch in batches for row in batch) == expected


@pytest.mark.slow
def test_what_leases_point_at_and_is_gone_is_loss(
    kinesis: LocalKinesis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A shard that is not listed, a record that was trimmed: fatal, or a warning and all that is left."""
    put(kinesis, 20)
    numbers = [n for s, n, _ in held(kinesis) if s == FIRST]
    kinesis.engine.trim(STREAM, FIRST, numbers[4])
    gone = [{"leaseKey": "shardId-000000000099", "checkpoint": "TRIM_HORIZON"}]
    trimmed = [{"leaseKey": FIRST, "checkpoint": str(numbers[1])}]
    for rows in (gone, trimmed):
        with pytest.raises(DataLoss):
            driver(kinesis, tmp_path / "l.json", rows).initial()
        reader = driver(kinesis, tmp_path / "l.json", rows, failOnDataLoss="false")
        _, batches = reader.run(reader.initial())
        assert sorted(row for batch in batches for row in batch) == held(kinesis)
        assert "are lost" in caplog.text
        caplog.clear()


def test_leases_and_positions_per_shard_contradict(kinesis: LocalKinesis) -> None:
    """Two sources of the same truth are refused."""
    with pytest.raises(ConfigurationError, match="both say"):
        Driver(kinesis, kclLeases="x", startingPosition=json.dumps({FIRST: "LATEST"}))


def test_latest_in_a_lease_is_resolved_once(kinesis: LocalKinesis, tmp_path: Path) -> None:
    """What came before the first plan is left out, what comes after it is read."""
    put(kinesis, 10)
    rows = [{"leaseKey": shard, "checkpoint": "LATEST"} for shard in (FIRST, SECOND)]
    reader = driver(kinesis, tmp_path / "l.json", rows)
    kinesis.engine.clock.advance(2000)  # type: ignore[attr-defined]
    start = reader.initial()
    at = reader.next(start)
    assert reader.read(start, at) == []
    before_now = held(kinesis)
    put(kinesis, 10, first=10)
    _, batches = reader.run(at)
    assert sorted(row for batch in batches for row in batch) == [
        row for row in held(kinesis) if row not in before_now
    ]
