"""Chunked changes that a table refuses once they are whole: their fragments go to quarantine with them."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from headpond.dsql.chunks import place_of
from headpond.lake.apply import Chunks, apply_batch
from headpond.lake.maintenance.requeue import requeue
from tests.lake.lakes import decoded, lake_in, watched
from tests.lake.test_pending import feed, group, line

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headpond.dsql.decode import DsqlConfig
    from headpond.lake.tables import Lake

TABLE = '[tables."public.t"]\nkeys = ["id"]\ncolumns = { id = "bigint", v = "text" }\n'
OTHER = '[tables."public.other"]\nkeys = ["id"]\n'
FULL = 'unknown_tables = "log"\nmax_unknown_tables = 1\n'
DAY_NS = 86_400 * 10**9
LATE = group(7, {"id": 1, "v": "late"}, 3)
PLACES = ["700", "701", "702", "703"]


class Crash(Exception):
    """The process dies here."""


def plain(number: int, image: dict[str, Any], ts_ns: int, *, op: str = "c", table: str = "t") -> bytes:
    """A change that is in one record."""
    source = {"version": "1.0", "ts_ns": ts_ns, "txId": "t", "schema": "public", "table": table}
    images = {"before": image, "after": None} if op == "d" else {"before": None, "after": image}
    return line(number, {"type": "full", "op": op, "source": source} | images)


def with_a_horizon(folder: Path) -> tuple[Lake, DsqlConfig]:
    """A lake whose tombstone of key 1 was dropped: an older change of that key is too late."""
    lake, config = lake_in(folder, TABLE)
    lines = [plain(1, {"id": 1}, DAY_NS, op="d"), plain(2, {"id": 2, "v": "new"}, 9 * DAY_NS)]
    apply_batch(lake, decoded(config, lines))
    assert lake.retire_tombstones(7 * 86_400 * 1000) == 1
    return lake, config


def with_full_logs(folder: Path) -> tuple[Lake, DsqlConfig]:
    """A lake in which no log of a table that is not configured can be made any more."""
    lake, config = lake_in(folder, FULL + OTHER)
    apply_batch(lake, decoded(config, [plain(1, {"id": 1}, 5, table="first")]))
    return lake, config


REASONS: dict[str, Callable[[Path], tuple[Lake, DsqlConfig]]] = {
    "too_late": with_a_horizon,
    "unknown_table": with_full_logs,
}


def refused(lake: Lake) -> list[tuple[str, str, bytes]]:
    """Reason, sequence number and bytes of what is in quarantine."""
    rows = lake.quarantine.read(["reason", "sequence_number", "data"]).to_pylist()
    return sorted((row["reason"], row["sequence_number"], row["data"]) for row in rows)


def all_of_it(reason: str) -> list[tuple[str, str, bytes]]:
    """Main record and fragments, untouched."""
    data = [base64.b64decode(json.loads(each)["data"]) for each in LATE]
    return [(reason, place, each) for place, each in zip(PLACES, data, strict=True)]


def waiting(lake: Lake) -> list[tuple[str, str]]:
    """Places and statuses of pending records."""
    rows = lake.pending.read(["sequence_number", "status"]).to_pylist()
    return sorted((row["sequence_number"], row["status"]) for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("cut", ["one batch", "two batches"])
@pytest.mark.parametrize("reason", REASONS)
def test_all_members_of_a_refused_change_are_kept(reason: str, cut: str, tmp_path: Path) -> None:
    """With the change's reason, whether fragments came with the main record or before it."""
    lake, config = REASONS[reason](tmp_path)
    chunks = Chunks(config)
    if cut == "two batches":
        feed(lake, chunks, LATE[1:])
    applied = feed(lake, chunks, LATE[:1] if cut == "two batches" else LATE)
    assert refused(lake) == all_of_it(reason)
    assert applied.quarantined == {reason: 4}
    assert applied.counters["chunk_groups_completed"] == 0
    assert waiting(lake) == [(place, "failed") for place in PLACES]
    again = feed(lake, chunks, LATE)
    assert again.quarantined == {reason: 4}
    assert refused(lake) == all_of_it(reason)


def test_without_the_bytes_of_each_change_a_refused_group_is_kept_all_the_same(tmp_path: Path) -> None:
    """A run begun when no tombstone was dropped yet keeps no bytes of changes; those of chunks it has."""
    lake, config = with_a_horizon(tmp_path)
    feed(lake, Chunks(replace(config, keep_data=False)), LATE)
    assert refused(lake) == all_of_it("too_late")


@pytest.mark.slow
@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("stage", ["quarantine", "pending", "schema changes", "chunks of whole changes"])
def test_a_crash_before_any_write_changes_nothing(stage: str, reason: str, tmp_path: Path) -> None:
    """The repeat leaves what an undisturbed batch leaves."""
    lake, config = REASONS[reason](tmp_path)
    batch = decoded(config, LATE)

    def die(name: str) -> None:
        if name == stage:
            raise Crash(name)

    with pytest.raises(Crash):
        apply_batch(watched(lake, die), batch, chunks=Chunks(config))
    apply_batch(lake, batch, chunks=Chunks(config))
    assert refused(lake) == all_of_it(reason)
    assert waiting(lake) == [(place, "failed") for place in PLACES]


def test_others_of_the_batch_become_whole(tmp_path: Path) -> None:
    """One group is refused, one is applied; each is counted as what it is."""
    lake, config = with_a_horizon(tmp_path)
    fine = group(9 * DAY_NS, {"id": 5, "v": "fine"}, 2)
    applied = feed(lake, Chunks(config), [*LATE, *fine])
    assert applied.counters["chunk_groups_completed"] == 1
    assert sorted(lake.typed["public.t"].file.read(["id"])["id"].to_pylist()) == [2, 5]
    assert refused(lake) == all_of_it("too_late")
    assert [status for _, status in waiting(lake)].count("finished") == 1


@pytest.mark.slow
@pytest.mark.parametrize("rows_at_once", [10_000, 1])
@pytest.mark.parametrize("when", ["before the time-out", "after it"])
@pytest.mark.parametrize("reason", REASONS)
def test_fed_in_again_it_is_refused_again_and_nothing_leaves(
    reason: str, when: str, rows_at_once: int, tmp_path: Path
) -> None:
    """Nothing is mended: everything stays in quarantine, and none of it is told to have left."""
    lake, config = REASONS[reason](tmp_path)
    feed(lake, Chunks(config), LATE)
    if when == "after it":
        lake.pending.let_go(map(place_of, lake.pending.read().to_pylist()))
    done = requeue(lake, reason, chunks=Chunks(config), rows_at_once=rows_at_once)
    assert (done.read, done.left, dict(done.stayed)) == (4, 0, {reason: 4})
    assert refused(lake) == all_of_it(reason)


@pytest.mark.slow
@pytest.mark.parametrize("rows_at_once", [10_000, 1])
@pytest.mark.parametrize("when", ["before the time-out", "after it"])
def test_fed_in_again_after_the_table_was_configured_it_is_a_row(
    when: str, rows_at_once: int, tmp_path: Path
) -> None:
    """The whole image is there again, and the quarantine empty."""
    lake, config = with_full_logs(tmp_path)
    feed(lake, Chunks(config), LATE)
    if when == "after it":
        lake.pending.let_go(map(place_of, lake.pending.read().to_pylist()))
    lake, config = lake_in(tmp_path, FULL + OTHER + TABLE)
    done = requeue(lake, "unknown_table", chunks=Chunks(config), rows_at_once=rows_at_once)
    assert (done.read, done.left, done.stayed) == (4, 4, {})
    assert lake.typed["public.t"].file.read(["id", "v"]).to_pylist() == [{"id": 1, "v": "late"}]
    assert (refused(lake), lake.pending.count()) == ([], 0)
