"""Starting from a KCL application's lease table: nothing lost, at most one Kinesis record again."""

from __future__ import annotations

import gzip
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from source_kit import STREAM, Driver, held, put

from headpond.errors import ConfigurationError, DataLoss
from headpond.formats.kpl import UserRecord, encode
from headpond.kinesis.leases import read_leases
from headpond.kinesis.positions import END, HORIZON, Start, at_time, before
from headpond.kinesis.testing import ManualClock, local_kinesis

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headpond.kinesis.local import LocalKinesis

FIRST, SECOND, THIRD = (f"shardId-00000000000{n}" for n in range(3))
NUMBER = "49680000000000000000000000000000000000000000000000000001"
ROWS: list[dict[str, Any]] = [
    {"leaseKey": FIRST, "checkpoint": NUMBER, "checkpointSubSequenceNumber": 17, "leaseCounter": 4},
    {"leaseKey": SECOND, "checkpoint": "SHARD_END", "checkpointSubSequenceNumber": 0},
    {"leaseKey": THIRD, "checkpoint": "TRIM_HORIZON", "parentShardId": [SECOND]},
]
GIVEN = Start(HORIZON)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


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
def test_every_shape_of_export_reads_the_same(shape: str, *, packed: bool, tmp_path: Path) -> None:
    """A list, lines, an export to S3, a scan, a table of several streams; gzipped or not."""
    path = tmp_path / "leases.json"
    raw = SHAPES[shape].encode()
    path.write_bytes(gzip.compress(raw) if packed else raw)
    leases = read_leases(str(path), STREAM, GIVEN)
    assert leases.start == Start(HORIZON, {FIRST: before(NUMBER), SECOND: END, THIRD: HORIZON})
    assert leases.done == {FIRST: 17, SECOND: 0, THIRD: 0}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "line 1 is no JSON"),
        ("", "no lease of orders"),
        ("[3]", "row 1 is 3"),
        ('[{"checkpoint": "1"}]', "row 1 has no leaseKey"),
        (json.dumps([ROWS[0], {"leaseKey": SECOND}]), "checkpoint of row 2 is null"),
        (json.dumps([{"leaseKey": FIRST, "checkpoint": "12x"}]), 'checkpoint of row 1 is "12x"'),
        (json.dumps([ROWS[0], ROWS[0]]), "a second lease of " + FIRST),
        (json.dumps([{**ROWS[0], "checkpointSubSequenceNumber": "-1"}]), 'row 1 is "-1"'),
        (json.dumps([{**ROWS[0], "leaseKey": f"1:other:2:{FIRST}"}]), "no lease of orders, but 1 of others"),
        ("\udcff", "no UTF-8"),
        ("x" * 2001, "more than 2000 bytes"),
    ],
)
def test_what_is_no_lease_table_is_refused(text: str, says: str, tmp_path: Path) -> None:
    """The message names the file and the row."""
    path = tmp_path / "leases.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigurationError, match=re.escape(str(path))) as caught:
        read_leases(str(path), STREAM, GIVEN, most_bytes=2000)
    assert says in caught.value.message


def test_a_missing_or_broken_file_is_refused(tmp_path: Path) -> None:
    """Not there, and a gzip file cut short."""
    with pytest.raises(ConfigurationError, match="No such file"):
        read_leases(str(tmp_path / "none.json"), STREAM, GIVEN)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"x" * 1000)[:-12])
    with pytest.raises(ConfigurationError, match=r"cut\.gz"):
        read_leases(str(tmp_path / "cut.gz"), STREAM, GIVEN)


def test_times_come_from_the_option(tmp_path: Path) -> None:
    """AT_TIMESTAMP means the time of startingPosition, without which it is refused; LATEST stays open."""
    path = tmp_path / "leases.json"
    rows = [{"leaseKey": FIRST, "checkpoint": "AT_TIMESTAMP"}, {"leaseKey": SECOND, "checkpoint": "LATEST"}]
    path.write_text(json.dumps(rows))
    found = read_leases(str(path), STREAM, Start(at_time(9))).start
    assert found.shards == {FIRST: at_time(9), SECOND: "LATEST"}
    with pytest.raises(ConfigurationError, match="does not say which time"):
        read_leases(str(path), STREAM, GIVEN)


def driver(kinesis: LocalKinesis, path: Path, rows: list[dict[str, Any]], **options: str) -> Driver:
    path.write_text(json.dumps(rows))
    return Driver(kinesis, kclLeases=str(path), **options)


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
