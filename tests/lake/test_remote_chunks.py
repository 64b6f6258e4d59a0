"""Chunked changes, a history and a crash, on an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headpond.lake.apply import Chunks, apply_batch
from headpond.pipeline import loads
from headpond.pipeline.lake import open_lake, row_changes
from tests.kit.s3_server import Store, s3_store
from tests.lake.lakes import decoded, lake_in, watched
from tests.lake.test_pending import group, line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headpond.dsql.decode import DsqlConfig
    from headpond.lake.tables import Lake

TABLES = """
[tables."public.t"]
keys = ["id"]
keep = "history"
columns = { id = "bigint", v = "text" }
[tables."public.now"]
keys = ["id"]
columns = { id = "bigint", v = "text" }
"""
STAGES = [
    "quarantine",
    "pending",
    "tombstones",
    "deletes",
    "table public.now",
    "table public.t",
    "schema changes",
    "chunks of whole changes",
]


class Crash(Exception):
    """The process dies here."""


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with s3_store() as running:
        yield running


def lake_at(store: Store, path: str) -> tuple[Lake, DsqlConfig]:
    text = f'[source]\narchive = "x.jsonl"\nformat = "dsql"\n[target]\npath = "{path}"\n'
    pipeline = loads(f"{text}storage_options = {store.toml}\n{TABLES}")
    lake = open_lake(pipeline)
    lake.prepare()
    return lake, row_changes(pipeline)


def plain(number: int, image: dict[str, Any], *, op: str = "c", table: str = "t") -> bytes:
    source = {"version": "1.0", "ts_ns": number, "txId": "t", "schema": "public", "table": table}
    images = {"before": image, "after": None} if op == "d" else {"before": None, "after": image}
    return line(number, {"type": "full", "op": op, "source": source} | images)


FIRST, SECOND = group(10, {"id": 1, "v": "first"}, 3), group(30, {"id": 1, "v": "second" * 50}, 2)
BATCHES = [
    [FIRST[2], SECOND[1], plain(5, {"id": 2, "v": "x"}), plain(6, {"id": 2}, table="now")],
    [SECOND[0], SECOND[2], FIRST[1], plain(20, {"id": 1}, op="d"), plain(7, {"id": 2}, op="d", table="now")],
    [FIRST[0], FIRST[3], plain(40, {"id": 3, "v": 4}), plain(8, {"id": 4, "v": "y"}, table="now")],
]
"""A version that is whole before the one before it; the delete in between; a change that is refused."""


AT_ONCE = ["table public.t", "chunks of whole changes"]
CASES = [
    *AT_ONCE,
    *(pytest.param(stage, marks=pytest.mark.thorough) for stage in STAGES if stage not in AT_ONCE),
]


def contents(lake: Lake) -> dict[str, list[str]]:
    found = {name: typed.file.read() for name, typed in lake.typed.items()}
    found |= {"quarantine": lake.quarantine.read(), "pending": lake.pending.read()}
    found |= {"deletes": lake.deletes.read()}
    return {name: sorted(map(repr, rows.to_pylist())) for name, rows in found.items()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What is in a lake in a folder, after all batches and no crash."""
    calm, config = lake_in(tmp_path_factory.mktemp("calm"), TABLES)
    for lines in BATCHES:
        apply_batch(calm, decoded(config, lines), chunks=Chunks(config))
    return contents(calm)


@pytest.mark.thorough
@pytest.mark.parametrize("stage", CASES)
def test_a_crash_in_each_batch_leaves_what_no_crash_leaves(
    stage: str, store: Store, undisturbed: dict[str, list[str]]
) -> None:
    """Before the same write each time, a new process after it: as in a folder without a crash."""
    place = f"s3://lake/{stage.replace(' ', '-')}"

    def die(name: str) -> None:
        if name == stage:
            raise Crash(name)

    crashes = 0
    for lines in BATCHES:
        lake, config = lake_at(store, place)
        try:
            apply_batch(watched(lake, die), decoded(config, lines), chunks=Chunks(config))
        except Crash:
            crashes += 1
        lake, config = lake_at(store, place)
        apply_batch(lake, decoded(config, lines), chunks=Chunks(config))
    assert crashes >= 1
    assert contents(lake) == undisturbed
    times = lake.typed["public.t"].file.read(["id", "_valid_from_ns", "_valid_to_ns"]).to_pylist()
    assert sorted((row["id"], row["_valid_from_ns"], row["_valid_to_ns"]) for row in times) == [
        (1, 10, 20),
        (1, 30, None),
        (2, 5, None),
    ]
    assert dict(lake.quarantine.counts_by("reason")) == {"cast_error": 1}
    assert lake.pending.count() == 0
