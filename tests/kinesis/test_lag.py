"""How long the oldest unread record of each shard has waited."""

from __future__ import annotations

from headpond.kinesis.api.calls import ServiceCalls
from headpond.kinesis.api.settings import ConnectionSettings
from headpond.kinesis.reading.positions import END, HORIZON, Offset, after, at_time
from headpond.kinesis.reading.reader import lags_ms
from headpond.localkinesis import LocalKinesis

SHARD = "shardId-000000000000"


def test_the_lag_is_the_age_of_the_oldest_unread_record() -> None:
    """Read to the end it is 0; before a record it is that record's age, however many records follow."""
    with LocalKinesis() as kinesis:
        kinesis.engine.create_stream("s", 1)
        client = kinesis.client()
        numbers = [
            client.put_record(StreamName="s", PartitionKey="k", Data=b"x")["SequenceNumber"] for _ in range(3)
        ]
        iterator = client.get_shard_iterator(StreamName="s", ShardId=SHARD, ShardIteratorType="TRIM_HORIZON")
        records = client.get_records(ShardIterator=iterator["ShardIterator"])["Records"]
        arrivals = [round(record["ApproximateArrivalTimestamp"].timestamp() * 1000) for record in records]

        class Later(ServiceCalls):
            """A service whose clock is a minute past the first record."""

            def now_ms(self) -> int:
                return arrivals[0] + 60_000

        settings = ConnectionSettings(stream_name="s", endpoint_url=kinesis.endpoint_url)
        calls = Later(settings, client=client)

        def lag(position: object) -> int | None:
            return lags_ms(calls, Offset("s", 0, {SHARD: position}))[SHARD]  # type: ignore[dict-item]

        assert lag(HORIZON) == lag(at_time(arrivals[0])) == 60_000
        assert lag(after(numbers[0], arrivals[0])) == 60_000 - (arrivals[1] - arrivals[0])
        assert lag(after(numbers[2], arrivals[2])) == 0
        assert lag(END) == 0
        gone = lags_ms(calls, Offset("s", 0, {"shardId-000000000009": HORIZON}))
        assert gone == {"shardId-000000000009": None}


def test_an_empty_shard_has_no_lag() -> None:
    """Nothing was ever put."""
    with LocalKinesis() as kinesis:
        kinesis.engine.create_stream("s", 1)
        settings = ConnectionSettings(stream_name="s", endpoint_url=kinesis.endpoint_url)
        calls = ServiceCalls(settings, client=kinesis.client())
        assert lags_ms(calls, Offset("s", 0, {SHARD: HORIZON})) == {SHARD: 0}
