"""A QLDB journal of any length whose hashes hold, as an archive of JSON Lines.

::

    templates, one per table, city and first or later version        (Ion text, made once)
    + ids, sequence numbers, times, amounts, hashes at their places  (NumPy, many records at once)

Blocks of one to three revisions, a document has four versions on average, each block is chained to the one
before it. Contents, metadata and transactionInfo are hashed by headpond itself, which the golden vectors and
a block that QLDB wrote hold to account; hashes over hashes are made here.

    python bench/qldb/journal.py 1000000 FILE
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
from base64 import b64encode
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))
import numpy as np
import pyarrow as pa
import records as made

from headpond.ion.text_reader import to_binary
from headpond.qldb.batch import decode_qldb
from headpond.qldb.hash import dot, merkle_root

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST = 0x100000
"""The first sequence number; all have three bytes."""
LAST_DAY = 28
BLOCKS_AT_ONCE = 20_000
SECONDS_BETWEEN = 7
_TABLES = list(made.TABLES)
_TABLE_IDS = ("9Tn8K3GqcdRBHmbk0wQqZV", "3hXQ0LTpdRJ6OLf0VwYF5A")
_CITIES = len(made.CITIES)
_LETTERS = np.frombuffer(made.ALPHABET.encode(), np.uint8)
_TIME = "2019-02-03T04:05:06"
_TIME_BYTES = bytes((0x0F, 0xE3, 0x82, 0x83, 0x84, 0x85, 0x86))
_NUMBER = 0x7A5A3C
_IDENTIFIER = 22
MARKS = tuple(one * _IDENTIFIER for one in "%+~")
"""Stand for the ids of a block's documents; `%` for that of a revision."""
_DOCUMENT = MARKS[0]
_TRANSACTION = "@" * _IDENTIFIER


def hash_mark(number: int) -> bytes:
    return bytes((0xF1, number)) * 16


class Template:
    """A datum and where what varies lies in it."""

    def __init__(self, text: str) -> None:
        self.raw = np.frombuffer(to_binary(text), np.uint8)
        self.text = self.raw.tobytes()

    def many(self, count: int) -> np.ndarray:
        return np.tile(self.raw, (count, 1))

    def places(self, what: bytes) -> list[int]:
        found, at = [], self.text.find(what)
        while at >= 0:
            found.append(at)
            at = self.text.find(what, at + 1)
        assert found, what
        return found

    def put(self, rows: np.ndarray, what: bytes, values: np.ndarray) -> None:
        """Write values, a row of bytes each, wherever the mark is."""
        for at in self.places(what):
            rows[:, at : at + values.shape[1]] = values

    def time(self, rows: np.ndarray, seconds: np.ndarray) -> None:
        """Write month, day, hour, minute and second; each is one byte in Ion."""
        days = seconds // 86_400
        parts = [1 + days // LAST_DAY % 12, 1 + days % LAST_DAY, *(seconds // s % m for s, m in _CLOCK)]
        values = (np.stack(parts, axis=1) | 0x80).astype(np.uint8)
        for at in self.places(_TIME_BYTES):
            rows[:, at + 2 : at + 7] = values


_CLOCK = ((3600, 24), (60, 60), (1, 60))


@cache
def revision_template(table: int, city: int, *, later: bool) -> Template:
    seed = random.Random(city)
    data = made.TABLES[_TABLES[table]](seed)
    for one in made.CITIES:
        data = data.replace(one, made.CITIES[city])
    return Template(
        f'{{qldbStreamArn:"{made.ARN}",recordType:"REVISION_DETAILS",payload:{{tableInfo:{{tableName:"{_TABLES[table]}",'
        f'tableId:"{_TABLE_IDS[table]}"}},revision:{{blockAddress:{{strandId:"{made.STRAND}",sequenceNo:{_NUMBER}}},'
        f'hash:{made.blob(hash_mark(0))},data:{data},metadata:{{id:"{_DOCUMENT}",'
        f'version:{0x6D if later else 0},txTime:{_TIME}.123Z,txId:"{_TRANSACTION}"}}}}}}}}'
    )


@cache
def block_template(tables: tuple[int, ...]) -> Template:
    statements = ",".join(
        f'{{statement:"INSERT INTO {_TABLES[table]} ?",startTime:{_TIME}.5{at}7Z,'
        f"statementDigest:{made.blob(hashlib.sha256(_TABLES[table].encode()).digest())}}}"
        for at, table in enumerate(tables)
    )
    documents = ",".join(
        f'\'{MARKS[at]}\':{{tableName:"{_TABLES[table]}",tableId:"{_TABLE_IDS[table]}",statements:[{at}]}}'
        for at, table in enumerate(tables)
    )
    summaries = ",".join(
        f'{{hash:{made.blob(hash_mark(10 + at))},documentId:"{MARKS[at]}"}}' for at in range(len(tables))
    )
    entries = ",".join(made.blob(hash_mark(20 + at)) for at in range(4))
    return Template(
        f'{{qldbStreamArn:"{made.ARN}",recordType:"BLOCK_SUMMARY",payload:{{'
        f'blockAddress:{{strandId:"{made.STRAND}",sequenceNo:{_NUMBER}}},transactionId:"{_TRANSACTION}",'
        f"blockTimestamp:{_TIME}.601000001Z,blockHash:{made.blob(hash_mark(1))},"
        f"entriesHash:{made.blob(hash_mark(2))},previousBlockHash:{made.blob(hash_mark(3))},"
        f"entriesHashList:[{entries}],transactionInfo:{{statements:[{statements}],documents:{{{documents}}}}},"
        f"revisionSummaries:[{summaries}]}}}}"
    )


def identifiers(numbers: np.ndarray, salt: int) -> np.ndarray:
    """An id for each number: 22 letters, the same for the same number."""
    digits = np.empty((len(numbers), _IDENTIFIER), np.uint8)
    state = numbers.astype(np.uint64) + np.uint64(salt)
    for at in range(0, _IDENTIFIER, 11):
        state = _mixed(state + np.uint64(at + 1))
        left = state.copy()
        for place in range(at, at + 11):
            digits[:, place] = left % np.uint64(62)
            left //= np.uint64(62)
    letters: np.ndarray = _LETTERS[digits]
    return letters


def _mixed(state: np.ndarray) -> np.ndarray:
    """SplitMix64: one to one, so that two numbers have two ids."""
    state = (state + np.uint64(0x9E3779B97F4A7C15)) & np.uint64(0xFFFFFFFFFFFFFFFF)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = state ^ (state >> np.uint64(31))
    return mixed


def numbers_in(values: np.ndarray, size: int) -> np.ndarray:
    shown: np.ndarray = values.astype(">u4").view(np.uint8).reshape(-1, 4)[:, 4 - size :]
    return shown


class Plan:
    """Which document each revision is of, and which revisions each block has."""

    def __init__(self, count: int, seed: int = 1) -> None:
        rng = np.random.default_rng(seed)
        sizes = rng.choice([1, 1, 2, 3], count)
        blocks = int(np.searchsorted(np.cumsum(sizes + 1), count, side="right"))
        self.sizes = sizes[:blocks]
        self.starts = np.concatenate([[0], np.cumsum(self.sizes)])
        revisions = int(self.starts[-1])
        documents = rng.integers(0, max(revisions // 4, 8), revisions)
        for _ in range(revisions):
            # A block has a document once; documents two apart at most can be of one block.
            again = np.zeros(revisions, np.bool_)
            again[1:] |= documents[1:] == documents[:-1]
            again[2:] |= documents[2:] == documents[:-2]
            if not again.any():
                break
            documents[again] = rng.integers(0, max(revisions // 4, 8), int(again.sum()))
        order = np.argsort(documents, kind="stable")
        ordered = documents[order]
        first = np.searchsorted(ordered, ordered)
        self.versions = np.empty(revisions, np.int64)
        self.versions[order] = np.arange(revisions) - first
        self.documents = documents
        self.cities = rng.integers(0, _CITIES, revisions)


def journal(count: int, seed: int = 1) -> Iterator[list[bytes]]:
    """Give at most `count` records in order, each block before its revisions, some blocks at a time."""
    plan = Plan(count, seed)
    rng = np.random.default_rng(seed + 1)
    previous = hashlib.sha256(b"before").digest()
    for first in range(0, len(plan.sizes), BLOCKS_AT_ONCE):
        last = min(first + BLOCKS_AT_ONCE, len(plan.sizes))
        low, high = int(plan.starts[first]), int(plan.starts[last])
        owners = np.repeat(np.arange(first, last), plan.sizes[first:last])
        revisions, hashes = _revisions(plan, low, high, owners, rng)
        shown, previous = _blocks(plan, first, last, hashes, previous)
        found: list[bytes] = []
        for block, datum in enumerate(shown, first):
            found.append(datum)
            found += revisions[plan.starts[block] - low : plan.starts[block + 1] - low]
        yield found


def _revisions(
    plan: Plan, low: int, high: int, owners: np.ndarray, rng: np.random.Generator
) -> tuple[list[Any], list[bytes]]:
    datums = np.empty(high - low, object)
    hashes = np.empty(high - low, object)
    documents, versions = plan.documents[low:high], plan.versions[low:high]
    ids, transactions = identifiers(documents, 1 << 60), identifiers(owners, 1 << 61)
    for table, city, later in product(range(2), range(_CITIES), (False, True)):
        here = np.flatnonzero(
            (documents % 2 == table) & (plan.cities[low:high] == city) & ((versions > 0) == later)
        )
        if not len(here):
            continue
        template = revision_template(table, city, later=later)
        rows = template.many(len(here))
        template.put(rows, _DOCUMENT.encode(), ids[here])
        template.put(rows, _TRANSACTION.encode(), transactions[here])
        template.put(rows, _NUMBER.to_bytes(3), numbers_in(FIRST + owners[here], 3))
        template.time(rows, owners[here] * SECONDS_BETWEEN)
        # A plate or a first name: every copy of it would else be equal.
        digits = (rng.integers(0, 10, (len(here), 2)) + ord("0")).astype(np.uint8)
        for name in (b"LEWIS", b"Raul"):
            at = template.text.find(name)
            if at >= 0 and template.text[at + len(name) : at + len(name) + 2].isdigit():
                rows[:, at + len(name) : at + len(name) + 2] = digits
        if later:
            at = template.places(bytes((0x21, 0x6D)))[-1]
            rows[:, at + 1] = np.minimum(versions[here], 127)
        decoded = decode_qldb(_binary(rows)).revisions
        assert decoded.num_rows == len(here)
        metadata, data = decoded["metadata_hash"].to_pylist(), decoded["data_hash_computed"].to_pylist()
        made_hashes = [dot(one, other) for one, other in zip(metadata, data, strict=True)]
        template.put(rows, hash_mark(0), _stacked(made_hashes))
        raw, size = rows.tobytes(), rows.shape[1]
        datums[here] = [raw[at : at + size] for at in range(0, len(raw), size)]
        hashes[here] = made_hashes
    return datums.tolist(), hashes.tolist()


def _blocks(
    plan: Plan, first: int, last: int, hashes: list[bytes], previous: bytes
) -> tuple[list[Any], bytes]:
    count, low = last - first, int(plan.starts[first])
    groups: dict[tuple[int, ...], list[int]] = {}
    tables = (plan.documents % 2).tolist()
    for block in range(first, last):
        groups.setdefault(tuple(tables[plan.starts[block] : plan.starts[block + 1]]), []).append(block)
    rows_of: dict[tuple[int, ...], np.ndarray] = {}
    infos: list[bytes] = [b""] * count
    for shape, of_group in groups.items():
        blocks = np.array(of_group)
        template = block_template(shape)
        rows = rows_of[shape] = template.many(len(blocks))
        template.put(rows, _TRANSACTION.encode(), identifiers(blocks, 1 << 61))
        template.put(rows, _NUMBER.to_bytes(3), numbers_in(FIRST + blocks, 3))
        template.time(rows, blocks * SECONDS_BETWEEN)
        for at in range(len(shape)):
            revisions = plan.starts[blocks] + at
            template.put(
                rows,
                MARKS[at].encode(),
                identifiers(plan.documents[revisions], 1 << 60),
            )
            template.put(rows, hash_mark(10 + at), _stacked([hashes[one - low] for one in revisions]))
        told = decode_qldb(_binary(rows)).blocks["transaction_info_hash"].to_pylist()
        assert len(told) == len(of_group)
        for block, info in zip(of_group, told, strict=True):
            infos[block - first] = info
    chained: list[list[bytes]] = []
    for block in range(first, last):
        mine = hashes[plan.starts[block] - low : plan.starts[block + 1] - low]
        system = [hashlib.sha256(bytes((at,)) + block.to_bytes(4)).digest() for at in range(2)]
        entries = [system[0], merkle_root(mine), system[1], infos[block - first]]
        root = merkle_root(entries)
        own = dot(root, previous)
        chained.append([own, root, previous, *entries])
        previous = own
    datums = np.empty(count, object)
    marks = [hash_mark(1), hash_mark(2), hash_mark(3), *(hash_mark(20 + at) for at in range(4))]
    for shape, of_group in groups.items():
        rows, template = rows_of[shape], block_template(shape)
        for at, what in enumerate(marks):
            template.put(rows, what, _stacked([chained[block - first][at] for block in of_group]))
        raw, size = rows.tobytes(), rows.shape[1]
        datums[np.array(of_group) - first] = [raw[at : at + size] for at in range(0, len(raw), size)]
    return datums.tolist(), previous


def _stacked(values: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(values), np.uint8).reshape(len(values), -1)


def _binary(rows: np.ndarray) -> pa.Array:
    offsets = np.arange(len(rows) + 1, dtype=np.int64) * rows.shape[1]
    return pa.Array.from_buffers(
        pa.large_binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(rows.tobytes())]
    )


def write(count: int, file: Path) -> int:
    """Write an archive, whole or not at all; give how many records it has."""
    partial, number = file.with_suffix(".partial"), 0
    with partial.open("wb") as out:
        for some in journal(count):
            lines = []
            for number, datum in enumerate(some, number + 1):  # noqa: B020 - counts on
                lines.append(
                    b'{"data":"%s","shard":"shardId-000000000000","sequenceNumber":"4960%052d"}\n'
                    % (b64encode(datum), number)
                )
            out.write(b"".join(lines))
    partial.replace(file)
    return number


def main() -> None:
    """Write one archive."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("count", type=int)
    arguments.add_argument("file", type=Path)
    chosen = arguments.parse_args()
    print(write(chosen.count, chosen.file), "records")


if __name__ == "__main__":
    main()
