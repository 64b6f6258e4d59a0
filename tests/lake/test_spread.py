"""Batches applied by executors: the same tables, figures and facts as when the driver applies them."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from headpond.lake.apply import Applied, apply_batch
from tests.lake.lakes import cells, decoded, lake_in, watched, written_by
from tests.lake.test_apply import (
    EXPECTED,
    ONE_TABLE,
    SMALL,
    STREAM,
    STREAM_EXPECTED,
    Crash,
    change,
    tables_text,
    tombstones,
    with_chunks,
)
from tests.lake.test_pending import group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from headpond.lake.lake import Lake

pytestmark = [pytest.mark.maven, pytest.mark.timeout(900)]


@pytest.fixture
def spread(delta_spark: SparkSession) -> Iterator[Callable[..., Applied]]:
    """Apply lines on executors, however few they are."""
    from headpond.spark.following.delta_file import SparkFiles
    from headpond.spark.following.distributed import apply_frame

    def apply(lake: Lake, config: Any, lines: Sequence[bytes], *, parts: int = 2, **more: Any) -> Applied:
        frame = delta_spark.createDataFrame(cells(config, lines, parts=parts, summary=True))
        return apply_frame(lake, frame, above_bytes=-1, **more)

    written_by(SparkFiles(delta_spark))
    yield apply
    written_by(None)


def entry(name: str, more: str = "") -> str:
    """The `[tables]` entry of one table of the expected ones."""
    table = (EXPECTED["tables"] | EXPECTED["append_logs"])[name]
    return tables_text({name: {"keys": []} | table}) + more + "\n"


THREE = entry("sales.Evolving") + entry("public.accounts", 'keep = "history"') + entry("public.events_nopk")
"""A table of each kind; the changes of all others go to quarantine, through the driver."""


def contents(lake: Lake) -> dict[str, Any]:
    """Everything a lake says, in an order of its own."""
    stores = {"quarantine": lake.quarantine, "pending": lake.pending, "deletes": lake.deletes.facts}
    rows = {name: store.read() for name, store in stores.items()}
    rows |= {name: typed.file.read() for name, typed in lake.typed.items()}
    rows |= {"schema changes": lake.beside.schema_changes.read()}
    found: dict[str, Any] = {name: sorted(map(repr, table.to_pylist())) for name, table in rows.items()}
    return found | {"tombstones": tombstones(lake)}


def test_executors_leave_what_the_driver_leaves(spread: Callable[..., Applied], tmp_path: Path) -> None:
    """Two batches, lines permuted and some of them twice, then one of them again: tables, figures, facts."""
    draw = random.Random(5)
    lines = SMALL + draw.sample(SMALL, 20)
    draw.shuffle(lines)
    lake, config = lake_in(tmp_path / "a", THREE)
    written_by(None)
    other, _ = lake_in(tmp_path / "b", THREE)
    for number, part in enumerate((lines[:90], lines[90:], lines[90:])):
        there = spread(lake, config, part, transaction=("query", min(number, 1)))
        assert there == apply_batch(other, decoded(config, part, parts=2))
    assert contents(lake) == contents(other)


def test_chunked_changes_join_those_on_the_executors(spread: Callable[..., Applied], tmp_path: Path) -> None:
    """Fragments wait in the driver; what becomes whole there and what came whole are one table."""
    name = "public.accounts"
    tables = tables_text({name: STREAM_EXPECTED["tables"][name]})
    lines = STREAM
    lake, config = lake_in(tmp_path / "a", tables)
    written_by(None)
    other, _ = lake_in(tmp_path / "b", tables)
    spread(lake, config, lines, chunks=lambda _: with_chunks(config))
    apply_batch(other, decoded(config, lines), chunks=with_chunks(config))
    assert contents(lake) == contents(other)


def test_a_chunked_change_that_is_too_late_keeps_its_fragments(
    spread: Callable[..., Applied], tmp_path: Path
) -> None:
    """It becomes whole in the driver, beside changes on the executors; all of its records are kept."""
    day = 86_400 * 10**9
    lake, config = lake_in(tmp_path, ONE_TABLE)
    spread(lake, config, [change(1, {"id": 1}, ts_ns=day, op="d"), change(2, {"id": 2}, ts_ns=9 * day)])
    lake.retire_tombstones(7 * 86_400 * 1000)
    lines = [*group(7, {"id": 1}, 3), change(3, {"id": 1}, ts_ns=6), change(4, {"id": 3}, ts_ns=9 * day)]
    applied = spread(lake, replace(config, keep_data=True), lines, chunks=lambda _: with_chunks(config))
    assert applied.quarantined == {"too_late": 5}
    rows = lake.quarantine.read(["sequence_number", "data"]).to_pylist()
    assert {row["sequence_number"] for row in rows} == {"3", "700", "701", "702", "703"}
    assert all(row["data"] for row in rows)


def test_hostile_names_new_columns_and_late_changes(spread: Callable[..., Applied], tmp_path: Path) -> None:
    """Names that differ in case, that Delta refuses, that are ours; a change older than what is known."""
    names = ["a.b", "a b", "a`b", "a,b=c", "_ts_ns", "v", "V", "%", "ü", 'q"q', "q'q", "m:key", "c:x", "c0"]
    day = 86_400 * 10**9
    lake, config = lake_in(tmp_path, ONE_TABLE)
    spread(lake, config, [change(1, {"id": 1}, ts_ns=day, op="d"), change(2, {"id": 2}, ts_ns=9 * day)])
    lake.retire_tombstones(7 * 86_400 * 1000)
    config = replace(config, keep_data=True)
    image = {"id": 2} | {name: i for i, name in enumerate(names)}
    lines = [change(3, {"id": 1}, ts_ns=day - 1), change(4, image, ts_ns=10 * day)]
    applied = spread(lake, config, lines)
    assert applied.quarantined == {"too_late": 1}
    assert [json.loads(data)["after"] for data in lake.quarantine.read(["data"])["data"].to_pylist()] == [
        {"id": 1}
    ]
    typed = lake.typed["public.t"]
    (row,) = typed.file.read().to_pylist()
    assert [row[typed.column(name)] for name in names] == [str(i) for i in range(len(names))]


def test_a_crash_between_two_writes_is_healed_by_the_repeat(
    spread: Callable[..., Applied], tmp_path: Path
) -> None:
    """Another write is the last one in each batch; the driver repeats every second of them."""
    stages = [
        "tombstones",
        "table sales.Evolving",
        "table public.accounts",
        "tombstones of keys that live again",
    ]
    size = -(-len(SMALL) // len(stages))
    lake, config = lake_in(tmp_path / "a", THREE)

    for number, stage in enumerate(stages):
        lines = SMALL[number * size : (number + 1) * size]

        def die(name: str, stage: str = stage) -> None:
            if name == stage:
                raise Crash(name)

        with pytest.raises(Crash):
            spread(watched(lake, die), config, lines, transaction=("query", number))
        if number % 2:
            apply_batch(lake, decoded(config, lines), transaction=("query", number))
        else:
            spread(lake, config, lines, transaction=("query", number))
    written_by(None)
    other, _ = lake_in(tmp_path / "b", THREE)
    apply_batch(other, decoded(config, SMALL))
    assert contents(lake) == contents(other)
