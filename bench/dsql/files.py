"""What an archive of many small files costs, in a folder and in an object store.

Run: python bench/dsql/files.py [--files 2000] [--changes 100] [--delay-ms 30] [--json FILE]

Changes of one table lie in as many files as asked for, so many in each, and once more in sixteen files. Shown
are the runs of `headpond run` over them until they are caught up, and a run that finds nothing new; of the
store, which answers each request after the delay, also its requests. Beside it boto3 fetches the same
objects, one after the other as in a loop by hand, and 32 at a time, and does nothing else with them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config
from pipeline import WORKLOADS, of_archive, pipeline_file, run_headpond, write_archive
from store import asked, slow_store

if TYPE_CHECKING:
    from collections.abc import Callable

SECRETS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "us-east-1"}
BUCKET = "records"
AT_ONCE = 32


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def in_folder(folder: Path, name: str, archive: Path) -> dict[str, float]:
    """Run over an archive in a folder, and once more."""
    file = pipeline_file(folder / name, of_archive(archive), WORKLOADS["one"]["tables"])
    cache = {"HEADPOND_CACHE_DIR": str(folder / "cache")}
    first, again = run_headpond(file, cache), run_headpond(file, cache)
    print(f"{name}: {first.wall_s:.1f} s, CPU {first.cpu_s:.1f} s; nothing new: {again.wall_s:.1f} s")
    return {
        f"{name}, s": first.wall_s,
        f"{name}, CPU s": first.cpu_s,
        f"{name}, nothing new, s": again.wall_s,
    }


def in_store(folder: Path, archive: Path, delay_s: float) -> dict[str, float]:
    """Fetch the objects of a store, and run over them, and once more."""
    with slow_store(delay_s) as url:
        store = boto3.client(
            "s3",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id="a",
            aws_secret_access_key="s",
            config=Config(max_pool_connections=AT_ONCE),
        )
        store.create_bucket(Bucket=BUCKET)
        names = sorted(file.name for file in archive.iterdir())

        def put(name: str) -> object:
            return store.put_object(Bucket=BUCKET, Key=name, Body=(archive / name).read_bytes())

        def fetched(name: str) -> bytes:
            content: bytes = store.get_object(Bucket=BUCKET, Key=name)["Body"].read()
            return content

        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(put, names))
            loop_s = timed(lambda: [fetched(name) for name in names])
            at_once_s = timed(lambda: list(pool.map(fetched, names)))
        options = SECRETS | {"AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true"}
        file = pipeline_file(
            folder / "store", f'archive = "s3://{BUCKET}/*.jsonl"', WORKLOADS["one"]["tables"]
        )
        given = ", ".join(f"{name} = {json.dumps(value)}" for name, value in options.items())
        file.write_text(
            file.read_text().replace("[target]\n", f"[target]\nstorage_options = {{ {given} }}\n")
        )
        cache, before = {"HEADPOND_CACHE_DIR": str(folder / "cache")}, asked(url)
        first, between = run_headpond(file, cache), asked(url)
        again, after = run_headpond(file, cache), asked(url)
    print(f"store, boto3, one after the other: {loop_s:.1f} s; {AT_ONCE} at a time: {at_once_s:.1f} s")
    print(f"store, headpond run: {first.wall_s:.1f} s, {between - before} requests; ", end="")
    print(f"nothing new: {again.wall_s:.1f} s, {after - between} requests")
    return {
        "store, boto3 one after the other, s": loop_s,
        f"store, boto3 {AT_ONCE} at a time, s": at_once_s,
        "store, s": first.wall_s,
        "store, requests": between - before,
        "store, nothing new, s": again.wall_s,
        "store, nothing new, requests": after - between,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--files", type=int, default=2_000)
    parser.add_argument("--changes", type=int, default=100)
    parser.add_argument("--delay-ms", type=float, default=30)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for name, files in (("many", given.files), ("few", 16)):
            write_archive(folder / "archive" / name, given.files * given.changes, files, 20_000, "one")
        figures = in_folder(folder, "few", folder / "archive/few")
        figures |= in_folder(folder, "many", folder / "archive/many")
        figures |= in_store(folder, folder / "archive/many", given.delay_ms / 1000)
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
