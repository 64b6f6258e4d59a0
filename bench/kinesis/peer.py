"""A plain loop, as people write it: boto3, shard after shard, aggregates opened by aws-kinesis-agg.

Arguments: endpoint, stream, `open` or `plain`. Prints one JSON line: user records, bytes, seconds on the
clock and of CPU. Runs in an environment of its own, in one thread.
"""

from __future__ import annotations

import json
import sys
import time

import boto3


def main(endpoint: str, stream: str, kind: str) -> None:
    client = boto3.client(
        "kinesis",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )
    if kind == "open":
        from aws_kinesis_agg.deaggregator import iter_deaggregate_records  # noqa: PLC0415 - only where needed
    shards: list[str] = []
    reply = client.list_shards(StreamName=stream)
    while True:
        shards += [shard["ShardId"] for shard in reply["Shards"]]
        if "NextToken" not in reply:
            break
        reply = client.list_shards(NextToken=reply["NextToken"])
    start, cpu = time.perf_counter(), time.process_time()
    records = size = 0
    for shard in shards:
        found = client.get_shard_iterator(StreamName=stream, ShardId=shard, ShardIteratorType="TRIM_HORIZON")
        place = found["ShardIterator"]
        while True:
            page = client.get_records(ShardIterator=place, Limit=10_000)
            if kind == "open":
                for record in iter_deaggregate_records(page["Records"], data_format="Boto3"):
                    records += 1
                    size += len(record["kinesis"]["data"])  # base64 again: its users decode it once more
            else:
                for record in page["Records"]:
                    records += 1
                    size += len(record["Data"])
            place = page["NextShardIterator"]
            if not page["MillisBehindLatest"]:
                break
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    print(json.dumps({"records": records, "bytes": size, "seconds": seconds, "cpu_seconds": cpu}))


main(*sys.argv[1:4])
