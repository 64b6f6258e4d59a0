"""The whole job, live stream → current tables, beside the loop people write by hand (`bench/dsql/loop.py`).

    python bench/kinesis/live.py [--changes 2000000] [--rounds 3] [--every 50000] [--shards 4] [--json FILE]
                                 [--folder FOLDER]

Changes of Aurora DSQL are aggregated as the KPL does it; all of a row go to one shard, or the loop would be
wrong. They are made first, which takes longer than the job: with `--folder` they are kept for another run.
The stream is in the local Kinesis, a process of its own whose CPU is on neither side. The loop is boto3,
aws-kinesis-agg, `json.loads` and a merge of deltalake for every so many changes, in an environment of its own
below `.bench/`. What is watched and compared is as in `bench/dsql/pipeline.py`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from base64 import b64encode
from pathlib import Path
from zlib import crc32

from run import HERE, peer_python, running

from headpond.kpl import UserRecord, encode
from headpond.kpl.aggregator import Aggregator, Packed

sys.path.append(str(HERE.parent / "dsql"))

from payloads import KEYS, records
from pipeline import compare


def write_records(file: Path, changes: int, keys: int, shards: int) -> None:
    """Write the Kinesis records of changes, each row's in one shard, as `server.py` loads them."""
    aggregators = [Aggregator[UserRecord]() for _ in range(shards)]
    with file.open("wb") as lines:

        def write(shard: int, packed: Packed[UserRecord]) -> None:
            lines.write(b"%d %b\n" % (shard, b64encode(encode(packed.records).data)))

        for data in records(changes, keys_per_table=keys):
            change = json.loads(data)
            table, image = change["source"]["table"], change["after"] or change["before"]
            key = f"{table}/{'/'.join(str(image[name]) for name in KEYS[table])}"
            shard = crc32(key.encode()) % shards
            for packed in aggregators[shard].add(UserRecord(key, data)):
                write(shard, packed)
        for shard, aggregator in enumerate(aggregators):
            last = aggregator.close()
            if last is not None:
                write(shard, last)


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
    parser.add_argument("--folder", type=Path, help="keep the records here, or take them from there")
    options = parser.parse_args()
    loop = [str(peer_python()), str(HERE.parent / "dsql" / "loop.py")]
    folder = Path(tempfile.mkdtemp(prefix="headpond-bench-"))
    kept = options.folder or folder
    kept.mkdir(parents=True, exist_ok=True)
    streams = {"one": (1, 1), "live": (options.changes, options.shards)}
    files = {name: kept / f"{changes}-{shards}" for name, (changes, shards) in streams.items()}
    for name, (changes, shards) in streams.items():
        if not files[name].exists():
            write_records(files[name], changes, max(1, changes // 5), shards)
    with running(sys.executable, HERE / "server.py") as server:
        endpoint = server.greeting
        for name, (_, shards) in streams.items():
            server.ask(f"load {name} {shards} {files[name]}")
        print(f"{options.changes:,} changes, aggregated, in {options.shards} shards")
        one, live = source(endpoint, "one"), source(endpoint, "live")
        compare(folder, [*loop, f"{endpoint}/live"], one, live, options)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
