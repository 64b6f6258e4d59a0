"""Put records through headpond's producer; prints one JSON line: records acknowledged a second."""

from __future__ import annotations

import asyncio
import json
import sys
import time

from headpond.kinesis.api.settings import ConnectionSettings
from headpond.kinesis.producer import Producer, ProducerSettings


async def main(endpoint: str, stream: str, records: int, keys: int, size: int) -> None:
    connection = ConnectionSettings(stream_name=stream, endpoint_url=endpoint, region="us-east-1")
    data = b"x" * size
    names = [f"key-{n}" for n in range(keys)]
    # The peer's limiter is opened as wide: the producers are measured, not the limits.
    async with Producer(connection, ProducerSettings(rate_limit=1_000_000)) as producer:
        await producer.put("warm", b"up")
        start, cpu = time.perf_counter(), time.process_time()
        futures = [await producer.submit(names[n % keys], data) for n in range(records)]
        for future in futures:
            await future
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    assert producer.acknowledged == records + 1
    print(json.dumps({"per_second": records / seconds, "cpu_us": cpu / records * 1e6}))


asyncio.run(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])))
