"""Planning and reading on the local Kinesis: exact, repeatable, bounded, through reshards and restarts."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from headpond.core.errors import ConfigurationError, DataLoss
from headpond.kinesis.reading.cursor import LossRule
from headpond.kinesis.reading.positions import END, Offset, after
from headpond.kinesis.reading.reader import in_batches, read_pages
from headpond.kpl import UserRecord, encode
from headpond.kpl.records import open_records
from tests.kinesis.source_kit import STREAM, WAYS, Driver, Row, held, put, read_both_ways

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headpond.localkinesis import LocalKinesis
    from headpond.localkinesis.testing import ManualClock

HOUR_MS = 3_600_000


@pytest.fixture(params=WAYS)
def kinesis(clock: ManualClock, request: pytest.FixtureRequest) -> Iterator[LocalKinesis]:
    """A stream of two shards, whose batches are read by polling and by subscription alike."""
    with read_both_ways(request.param, clock, shards=2) as running:
        yield running


def flat(batches: list[list[Row]]) -> list[Row]:
    return sorted(row for batch in batches for row in batch)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"maxRecordsPerTrigger": "7"},
        {"maxBytesPerTrigger": "100"},
        {"maxBytesPerTrigger": "64 MiB"},
        {"maxRecordsPerTrigger": "1", "maxRecordsPerFetch": "1"},
        {"maxRecordsPerTrigger": "9", "maxRecordsPerFetch": "2", "shardOrdering": "none"},
    ],
)
def test_every_record_is_read_once_under_any_bound(kinesis: LocalKinesis, options: dict[str, str]) -> None:
    """All records, each once, batches that read the same twice, none over its bound."""
    put(kinesis, 40)
    driver = Driver(kinesis, **options)
    end, batches = driver.run(driver.initial())
    assert flat(batches) == held(kinesis)
    most = int(options.get("maxRecordsPerTrigger", 40))
    assert max(map(len, batches)) <= most
    if options.get("maxBytesPerTrigger") == "100":
        assert max(len(batch) for batch in batches) <= 9  # 10 bytes of data and a key of 2 or 3
    put(kinesis, 5, first=40)
    _, more = driver.run(end)
    assert flat(batches + more) == held(kinesis)


def test_a_record_over_the_bound_goes_alone(kinesis: LocalKinesis) -> None:
    """A bound smaller than a record does not stop the stream."""
    put(kinesis, 3, size_bytes=500)
    driver = Driver(kinesis, maxBytesPerTrigger="100")
    _, batches = driver.run(driver.initial())
    assert [len(batch) for batch in batches] == [1, 1, 1]


def test_a_restart_plans_on_from_the_offset_alone(kinesis: LocalKinesis) -> None:
    """A new planner after each batch reads what one planner would have read."""
    put(kinesis, 30)
    at, rows = Driver(kinesis).initial(), []
    for _ in range(40):
        driver = Driver(kinesis, maxRecordsPerTrigger="4")
        end = driver.next(at)
        rows += driver.read(at, end)
        if end == at:
            break
        at = end
    assert sorted(rows) == held(kinesis)


@pytest.mark.parametrize("records", ["3", "1000"])
@pytest.mark.slow
def test_parents_are_read_before_children(kinesis: LocalKinesis, clock: ManualClock, records: str) -> None:
    """Through a split and a merge of its children, no child's batch comes before its parents'."""
    put(kinesis, 12)
    driver = Driver(kinesis, maxRecordsPerTrigger=records)
    at, batches = driver.run(driver.initial())
    clock.advance(1000)
    first, second = kinesis.engine.split_shard(STREAM, "shardId-000000000000")
    put(kinesis, 12, first=12)
    clock.advance(1000)
    merged = kinesis.engine.merge_shards(STREAM, first.shard_id, second.shard_id)
    put(kinesis, 12, first=24)
    # Stopped and started again in the middle.
    half = driver.next(at)
    batches.append(driver.read(at, half))
    _, more = Driver(kinesis, maxRecordsPerTrigger=records).run(half)
    batches += more
    assert flat(batches) == held(kinesis)
    spread: dict[str, list[int]] = defaultdict(list)
    for number, batch in enumerate(batches):
        for shard_id, _, _ in batch:
            spread[shard_id].append(number)
    for child in (first, second, merged):
        for parent in child.parents:
            if spread[parent] and spread[child.shard_id]:
                assert max(spread[parent]) < min(spread[child.shard_id])


def test_unordered_shards_are_read_at_once(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """With shardOrdering=none a child does not wait for its parent."""
    put(kinesis, 10)
    clock.advance(1000)
    kinesis.engine.split_shard(STREAM, "shardId-000000000000")
    put(kinesis, 10, first=10)
    driver = Driver(kinesis, shardOrdering="none")
    _, batches = driver.run(driver.initial())
    assert len(batches) == 1
    assert flat(batches) == held(kinesis)


def test_end_marks_stay_until_their_shard_is_unlisted(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """A closed shard is read once, empty or not, and forgotten when the stream forgets it."""
    kinesis.engine.split_shard(STREAM, "shardId-000000000000")
    driver = Driver(kinesis)
    at, batches = driver.run(driver.initial())
    assert at.shards["shardId-000000000000"] == END
    assert flat(batches) == []
    clock.advance(1000)
    kinesis.engine.forget_shard(STREAM, "shardId-000000000000")
    put(kinesis, 10)
    at, batches = driver.run(at)
    assert "shardId-000000000000" not in at.shards
    assert flat(batches) == held(kinesis)


def test_latest_is_resolved_once(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """LATEST leaves out what was there, and loses nothing that comes before the second batch."""
    put(kinesis, 10)
    clock.advance(5000)
    driver = Driver(kinesis, startingPosition="LATEST")
    start = driver.initial()
    assert start.shards == {}
    at = driver.next(start)
    assert driver.read(start, at) == []
    assert {at.shards[name].kind for name in at.shards} == {"TS"}
    assert driver.next(at) == at
    clock.advance(5000)
    put(kinesis, 5, first=10)
    kinesis.engine.split_shard(STREAM, "shardId-000000000001")
    put(kinesis, 5, first=15)
    # Started anew: LATEST must not be resolved again.
    _, batches = Driver(kinesis, startingPosition="LATEST").run(at)
    assert sorted(int(row[2].rstrip(b".")) for row in flat(batches)) == list(range(10, 20))


def test_at_timestamp_starts_at_the_moment(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """Records that arrived at the moment or later, to the millisecond."""
    put(kinesis, 5)
    clock.advance(1500)
    moment = clock()
    put(kinesis, 5, first=5)
    from datetime import UTC, datetime

    text = datetime.fromtimestamp(moment / 1000, UTC).isoformat()
    driver = Driver(kinesis, startingPosition=f"AT_TIMESTAMP {text}")
    _, batches = driver.run(driver.initial())
    assert sorted(int(row[2].rstrip(b".")) for row in flat(batches)) == list(range(5, 10))


def test_positions_per_shard(kinesis: LocalKinesis) -> None:
    """Each named shard starts where told; the others at their horizon."""
    put(kinesis, 20)
    first = [row for row in held(kinesis) if row[0].endswith("0")]
    driver = Driver(
        kinesis,
        startingPosition=f'{{"shardId-000000000000": "AFTER_SEQUENCE_NUMBER {first[2][1]}"}}',
    )
    _, batches = driver.run(driver.initial())
    assert flat(batches) == sorted(set(held(kinesis)) - set(first[:3]))
    with pytest.raises(ConfigurationError, match="shardId-7"):
        Driver(kinesis, startingPosition='{"shardId-7": "LATEST"}').planner.latest(
            Offset(STREAM, kinesis.engine.stream(STREAM).created_ms)
        )


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"maxRecordsPerTrigger": "3"}, {"maxBytesPerTrigger": "64 MiB"}])
def test_available_now_stops_at_the_ends_of_its_start(
    kinesis: LocalKinesis, clock: ManualClock, options: dict[str, str]
) -> None:
    """What comes after the ends were taken waits, also in shards that are split then."""
    put(kinesis, 20)
    clock.advance(10 * 60_000)
    kinesis.engine.split_shard(STREAM, "shardId-000000000001")
    put(kinesis, 20, first=20)
    clock.advance(30_000)
    there = held(kinesis)
    driver = Driver(kinesis, probeLag="500 ms", **options)
    driver.planner.fix_ends()
    clock.advance(2_001)
    put(kinesis, 10, first=40)
    kinesis.engine.split_shard(STREAM, "shardId-000000000000")
    put(kinesis, 10, first=50)
    at, batches = driver.run(driver.initial())
    assert flat(batches) == there
    _, rest = Driver(kinesis, **options).run(at)
    assert flat(batches + rest) == held(kinesis)


def test_the_youngest_records_wait(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """Records younger than probeLag come with a later batch."""
    put(kinesis, 5)
    clock.advance(60_000)
    put(kinesis, 5, first=5)
    for options in ({}, {"maxBytesPerTrigger": "64 MiB"}):
        driver = Driver(kinesis, probeLag="30 s", **options)
        _, batches = driver.run(driver.initial())
        assert sorted(int(row[2].rstrip(b".")) for row in flat(batches)) == list(range(5))


@pytest.mark.parametrize("bound", ["none", "64 MiB"])
def test_another_stream_of_the_same_name_is_refused(
    kinesis: LocalKinesis, clock: ManualClock, bound: str
) -> None:
    """A checkpoint of a stream that was deleted and made anew does not fit, and the message says so."""
    driver = Driver(kinesis)
    at = driver.initial()
    clock.advance(5000)
    kinesis.engine.delete_stream(STREAM)
    clock.advance(5000)
    kinesis.engine.create_stream(STREAM, 2)
    clock.advance(60_000)
    with pytest.raises(ConfigurationError, match="deleted and created again"):
        Driver(kinesis, maxBytesPerTrigger=bound).next(at)
    with pytest.raises(ConfigurationError, match="is of stream other"):
        driver.next(Offset("other", at.created_ms, at.shards))


def test_a_checkpoint_by_name_goes_on_by_arn_and_back(kinesis: LocalKinesis) -> None:
    """The time of creation proves that both are one stream; an ARN of another account is another stream."""
    put(kinesis, 6)
    arn = kinesis.client().describe_stream_summary(StreamName=STREAM)["StreamDescriptionSummary"]["StreamARN"]
    by_arn = {"streamName": "", "streamARN": arn, "region": ""}
    half = Driver(kinesis, maxRecordsPerTrigger="3").next(Driver(kinesis).initial())
    end, batches = Driver(kinesis, **by_arn).run(half)
    put(kinesis, 6, first=6)
    _, more = Driver(kinesis).run(replace(end, stream=arn))
    assert flat([Driver(kinesis).read(Driver(kinesis).initial(), half), *batches, *more]) == held(kinesis)
    other = arn.replace(":000000000000:", ":111111111111:")
    with pytest.raises(ConfigurationError, match="is of stream"):
        Driver(kinesis, **by_arn).next(replace(half, stream=other))


class TestLoss:
    """What is gone is reported, or warned of and gone on from; what only aged is not taken for loss."""

    def trimmed(self, kinesis: LocalKinesis) -> Offset:
        """Read a part, then lose the next records of shard 0."""
        put(kinesis, 40)
        driver, shard = Driver(kinesis, maxRecordsPerTrigger="10"), "shardId-000000000000"
        at = driver.next(driver.initial())
        while at.shards[shard].kind != "SEQ":  # records of one millisecond may all come from the other shard
            at = driver.next(at)
        mine = [row[1] for row in held(kinesis) if row[0] == shard]
        kinesis.engine.trim(STREAM, shard, mine[mine.index(at.shards[shard].number) + 3])
        return at

    @pytest.mark.parametrize("bound", ["none", "64 MiB"])
    def test_trimmed_records_stop_the_query(self, kinesis: LocalKinesis, bound: str) -> None:
        """The message names shard and position."""
        at = self.trimmed(kinesis)
        number = at.shards["shardId-000000000000"].sequence_number
        with pytest.raises(DataLoss, match=f"position {number} is gone") as caught:
            Driver(kinesis, maxBytesPerTrigger=bound).next(at)
        assert caught.value.facts["shard_id"] == "shardId-000000000000"

    @pytest.mark.parametrize("bound", ["none", "64 MiB"])
    @pytest.mark.slow
    def test_or_are_warned_of(
        self, kinesis: LocalKinesis, caplog: pytest.LogCaptureFixture, bound: str
    ) -> None:
        """With failOnDataLoss=false what is left is read, and the gap is counted once."""
        at = self.trimmed(kinesis)
        driver = Driver(kinesis, failOnDataLoss="false", maxBytesPerTrigger=bound)
        _, batches = driver.run(at)
        assert driver.planner.tolerated_losses == 1
        left = held(kinesis)
        taken = at.shards["shardId-000000000001"].number
        assert flat(batches) == [r for r in left if r[0].endswith("0") or r[1] > taken]
        assert "is gone" in caplog.text

    def test_a_planned_batch_whose_end_was_trimmed(
        self, kinesis: LocalKinesis, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A batch that was planned and cannot be read whole any more is loss, not a shorter batch."""
        put(kinesis, 40)
        driver = Driver(kinesis, maxRecordsPerTrigger="10")
        start = driver.initial()
        end = driver.next(start)
        mine = [row[1] for row in held(kinesis) if row[0].endswith("0")]
        kinesis.engine.trim(STREAM, "shardId-000000000000", mine[-1])
        first = end.shards["shardId-000000000000"].first
        with pytest.raises(DataLoss, match=f"the position {first} is gone.*{mine[-1]}"):
            driver.read(start, end)
        tolerant = Driver(kinesis, failOnDataLoss="false")
        assert {row[0] for row in tolerant.read(start, end)} == {"shardId-000000000001"}
        last = end.shards["shardId-000000000000"].sequence_number
        assert f"the batch's end {last} is gone; the records left are those before" in caplog.text
        assert f"before the position at {first} and from {mine[-1]} on" in caplog.text

    def test_a_vanished_shard(self, kinesis: LocalKinesis, caplog: pytest.LogCaptureFixture) -> None:
        """A shard that expired before its end was read is loss; one with an END mark is not."""
        put(kinesis, 20)
        driver = Driver(kinesis, maxRecordsPerTrigger="4")
        at = driver.next(driver.initial())
        kinesis.engine.split_shard(STREAM, "shardId-000000000000")
        kinesis.engine.forget_shard(STREAM, "shardId-000000000000")
        with pytest.raises(DataLoss, match="not listed any more"):
            Driver(kinesis).next(at)
        _, batches = Driver(kinesis, failOnDataLoss="false").run(at)
        assert "not listed any more" in caplog.text
        assert {row[0] for row in flat(batches)} == {"shardId-000000000001"}

    @pytest.mark.parametrize("bound", ["64 MiB", "none"])
    @pytest.mark.slow
    def test_an_idle_shard_that_was_watched_lost_nothing(
        self, kinesis: LocalKinesis, clock: ManualClock, bound: str
    ) -> None:
        """The last record may expire: a planner that saw that nothing followed it goes on."""
        put(kinesis, 10)
        driver = Driver(kinesis, maxBytesPerTrigger=bound)
        at, _ = driver.run(driver.initial())
        for _ in range(5):
            clock.advance(10 * HOUR_MS)
            assert driver.next(at) == at
        put(kinesis, 10, first=10)
        _, batches = driver.run(at)
        assert sorted(int(row[2].rstrip(b".")) for row in flat(batches)) == list(range(10, 20))

    def test_after_a_stop_beyond_retention_loss_cannot_be_ruled_out(
        self, kinesis: LocalKinesis, clock: ManualClock
    ) -> None:
        """A query that was away longer than the stream keeps records says so."""
        put(kinesis, 10)
        driver = Driver(kinesis)
        at, _ = driver.run(driver.initial())
        clock.advance(30 * HOUR_MS)
        put(kinesis, 10, first=10)
        with pytest.raises(DataLoss, match="is gone"):
            Driver(kinesis).next(at)

    def test_a_foreign_position_is_loss(self, kinesis: LocalKinesis) -> None:
        """A number that the shard never gave is refused by the service, and named."""
        at = Offset(STREAM, kinesis.engine.stream(STREAM).created_ms, {"shardId-000000000000": after("7", 1)})
        with pytest.raises(DataLoss, match="does not start at 7"):
            Driver(kinesis).next(at)


class TestFaults:
    """Failures of the service that pass are waited out; the rows stay the same."""

    @pytest.mark.slow
    @pytest.mark.parametrize("bound", [{"maxRecordsPerTrigger": "7"}, {"maxSpanPerTrigger": "1 s"}])
    def test_half_of_all_calls_throttled_and_a_tenth_failing(
        self, kinesis: LocalKinesis, bound: dict[str, str]
    ) -> None:
        """Throttling, internal failures, gaps of empty replies and expired iterators, all at once."""
        put(kinesis, 60)
        expected = held(kinesis)
        kinesis.faults.throttle(0.5)
        kinesis.faults.internal_failure(0.1)
        kinesis.faults.empty_reads(0.3)
        kinesis.faults.expire_iterators(0.2)
        driver = Driver(kinesis, maxRecordsPerFetch="5", **bound)
        _, batches = driver.run(driver.initial())
        assert flat(batches) == expected

    @pytest.mark.slow
    def test_cut_connections(self, kinesis: LocalKinesis) -> None:
        """A reply cut in the middle is read again."""
        put(kinesis, 60)
        expected = held(kinesis)
        kinesis.faults.cut(0.2, when="reply")
        kinesis.faults.cut(0.1)
        driver = Driver(kinesis, maxRecordsPerTrigger="20")
        driver.calls = type(driver.calls)(driver.settings.connection, sleep=lambda _seconds: None)
        driver.planner = type(driver.planner)(driver.calls, driver.settings)
        _, batches = driver.run(driver.initial())
        assert flat(batches) == expected


@pytest.mark.parametrize(("mode", "kept"), [("off", [0, 1, 2]), ("per_record", [0, 2]), ("kcl", [])])
@pytest.mark.slow
def test_ranges_carry_the_shards_hash_keys(kinesis: LocalKinesis, mode: str, kept: list[int]) -> None:
    """An aggregate with a record of the other shard: all, those inside, or none; also after a restart."""
    low, high = "1", str((1 << 128) - 1)
    packed = encode([UserRecord("a", b"x", low), UserRecord("b", b"y", high), UserRecord("c", b"z", low)])
    kinesis.client().put_record(StreamName=STREAM, PartitionKey="a", ExplicitHashKey=low, Data=packed.data)
    first = Driver(kinesis, hashRangeFilter=mode)
    start = first.initial()
    end = first.next(start)
    for driver in (first, Driver(kinesis, hashRangeFilter=mode)):
        found = []
        for wanted in driver.planner.ranges(start, end):
            loss = LossRule(STREAM, driver.planner.retention_ms)
            pages = read_pages(
                driver.calls,
                wanted,
                loss,
            )
            for batch in in_batches(((wanted.shard_id, page) for page in pages), STREAM):
                for opened in open_records(batch, hash_range_filter=mode, hash_keys=wanted.hash_keys):
                    found += opened["sub_sequence_number"].to_pylist()
        assert found == kept
