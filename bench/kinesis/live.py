"""The whole job, live stream → current tables, beside the loop people write by hand (`bench/dsql/loop.py`).

    python bench/kinesis/live.py [--changes 2000000] [--rounds 3] [--every 50000] [--shards 4] [--json FILE]

A producer aggregates changes of Aurora DSQL into a stream of the local Kinesis, which runs in a process of
its own whose CPU is on neither side; all changes of a row go to one shard, or the loop would be wrong. The
loop is boto3, aws-kinesis-agg, `json.loads` and a merge of deltalake for every so many changes, in an
environment of its own below `.bench/`. What is watched and compared is as in `bench/dsql/pipeline.py`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from run import HERE, peer_python, running

from headpond.kinesis import BlockingProducer, ConnectionSettings, ProducerSettings
from headpond.kinesis.api.client import local_client

sys.path.append(str(HERE.parent / "dsql"))

from payloads import KEYS, records
from pipeline import compare

if TYPE_CHECKING:
    from collections.abc import Iterator


def keyed(changes: int, keys: int) -> Iterator[tuple[str, bytes]]:
    """Yield changes with their rows as partition keys."""
    for data in records(changes, keys_per_table=keys):
        change = json.loads(data)
        table, image = change["source"]["table"], change["after"] or change["before"]
        yield f"{table}/{'/'.join(str(image[name]) for name in KEYS[table])}", data


def fill(endpoint: str, stream: str, shards: int, changes: Iterator[tuple[str, bytes]]) -> None:
    """Make a stream, and put changes into it as fast as it takes them."""
    local_client(endpoint, "us-east-1").create_stream(StreamName=stream, ShardCount=shards)
    connection = ConnectionSettings(stream_name=stream, endpoint_url=endpoint)
    with BlockingProducer(connection, ProducerSettings(rate_limit=1_000_000)) as producer:
        producer.send_all(changes)


def source(endpoint: str, stream: str) -> str:
    """Return what a pipeline file says of a stream."""
    return f'stream = "{stream}"\nendpoint_url = "{endpoint}"'


def main() -> None:
    """Fill, measure, print, and write the figures where asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--changes", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--every", type=int, default=50_000)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    loop = [str(peer_python()), str(HERE.parent / "dsql" / "loop.py")]
    folder = Path(tempfile.mkdtemp(prefix="headpond-bench-"))
    with running(sys.executable, HERE / "server.py") as server:
        endpoint = server.greeting
        fill(endpoint, "one", 1, keyed(1, 1))
        fill(endpoint, "live", options.shards, keyed(options.changes, max(1, options.changes // 5)))
        print(f"{options.changes:,} changes, aggregated, in {options.shards} shards")
        one, live = source(endpoint, "one"), source(endpoint, "live")
        compare(folder, [*loop, f"{endpoint}/live"], one, live, options)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
