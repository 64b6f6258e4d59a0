"""Fuzz the KPL decoders: any bytes have an outcome, the batch agrees with the scalar codec, quickly.

    python tests/fuzz/fuzz_kpl.py -max_total_time=600 [folder for the corpus]

Options are libFuzzer's. Not part of the test run: needs atheris, which is listed in the group `fuzz`.
The first byte of an input says how the rest becomes blobs, so that checksums do not stop the fuzzer.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import time
from base64 import b64decode
from pathlib import Path
from typing import Any

import atheris

# atheris keeps what an instrumented comparison gives; of the large arrays compared there that would be
# 64 KiB per input.
LARGE_ARRAYS = ["headpond.kpl.opener"]
with atheris.instrument_imports(include=["headpond"], exclude=LARGE_ARRAYS):
    import pyarrow as pa

    from headpond.kpl import Aggregate, Malformed, UserRecord, decode, encode
    from headpond.kpl.batch import open_batch

MAGIC = b"\xf3\x89\x9a\xc2"
MAX_SECONDS = 5.0
"""For one input of a few kilobytes; an ordinary one takes about a millisecond."""


def framed(body: bytes) -> bytes:
    """Put magic and the right MD5 around a message."""
    return MAGIC + body + hashlib.md5(body, usedforsecurity=False).digest()


NEIGHBOUR = encode([UserRecord("key-1", b"alpha", "7"), UserRecord("k", b"beta")]).data


def blobs_of(data: bytes) -> list[bytes]:
    """Turn an input into Kinesis records."""
    if not data:
        return []
    how, rest = data[0], data[1:]
    cut = len(rest) // 2
    match how % 4:
        case 0:
            return [rest]
        case 1:
            return [framed(rest)]
        case 2:
            return [NEIGHBOUR, framed(rest[:cut]), rest[cut:], framed(rest[cut:])]
        case _:
            return [framed(b"\x0a\x01k\x12\x017" + rest), NEIGHBOUR]


def rows_of(origin: int, blob: bytes) -> list[tuple[Any, ...]]:
    """Say with the scalar codec what the batch must give."""
    found = decode(blob)
    if isinstance(found, Aggregate):
        return [
            (origin, at, one.partition_key, one.explicit_hash_key, one.data, True, None, list(one.tags))
            for at, one in enumerate(found.records)
        ]
    problem = None
    if isinstance(found, Malformed):
        assert 4 <= found.offset <= len(blob)
        problem = f"kpl_{found.reason}"
    elif found.reason == "checksum_mismatch":
        problem = "kpl_checksum_mismatch"
    return [(origin, 0, None, None, blob, False, problem, [])]


def check(data: bytes) -> None:
    """Try one input."""
    start = time.process_time()
    blobs = blobs_of(data)
    expected = [row for origin, blob in enumerate(blobs) for row in rows_of(origin, blob)]
    array = pa.array(blobs, pa.binary())
    batch = open_batch(array, tags=True).batch
    batch.validate(full=True)
    # So few are followed alone; among many others they are followed in lockstep and must come out the same.
    crowd = open_batch(pa.array(blobs + [NEIGHBOUR] * 40, pa.binary()), tags=True).batch
    assert crowd.slice(0, batch.num_rows) == batch
    seen = [
        (*list(row.values())[:-1], [(tag["key"], tag["value"]) for tag in row["tags"]])
        for row in batch.to_pylist()
    ]
    assert seen == expected, (seen, expected)
    assert time.process_time() - start < MAX_SECONDS


def main() -> None:
    """Seed the corpus from the vectors, then fuzz."""
    vectors = Path(__file__).parent.parent / "vectors" / "kpl" / "decode.json"
    options = [argument for argument in sys.argv[1:] if argument.startswith("-")]
    folders = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    with tempfile.TemporaryDirectory() as seeds:
        for number, case in enumerate(json.loads(vectors.read_text())):
            blob = b64decode(case["blob_b64"])
            Path(seeds, f"whole-{number}").write_bytes(b"\x00" + blob)
            Path(seeds, f"body-{number}").write_bytes(b"\x01" + blob[4:-16])
        if not any(option.startswith("-max_len") for option in options):
            options.append("-max_len=4096")
        atheris.Setup([sys.argv[0], *options, *(folders or [tempfile.mkdtemp()]), seeds], check)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
