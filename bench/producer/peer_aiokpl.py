"""Put records through aiokpl, in its own environment; prints one JSON line: records acknowledged a second."""

from __future__ import annotations

import asyncio
import json
import sys
import time

import aiokpl


async def main(endpoint: str, stream: str, records: int, keys: int, size: int) -> None:
    config = aiokpl.Config(
        region="us-east-1",
        endpoint_url=endpoint,
        aws_access_key_id="local",
        aws_secret_access_key="local",
        rate_limit_records_per_sec_per_shard=1e7,
        rate_limit_bytes_per_sec_per_shard=1e10,
    )
    data = b"x" * size
    names = [f"key-{n}" for n in range(keys)]
    async with aiokpl.Producer(config) as producer:
        warm = await producer.put_record(stream=stream, partition_key="warm", data=b"up")
        await warm.wait()
        start, cpu = time.perf_counter(), time.process_time()
        outcomes = [
            await producer.put_record(stream=stream, partition_key=names[n % keys], data=data)
            for n in range(records)
        ]
        results = [await outcome.wait() for outcome in outcomes]
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    assert all(result.success for result in results)
    print(json.dumps({"per_second": records / seconds, "cpu_us": cpu / records * 1e6}))


asyncio.run(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])))
