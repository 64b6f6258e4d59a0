"""Quarantined records fed in again: what works leaves, what does not stays, and no crash loses one."""

from __future__ import annotations

import base64
import json
import random
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import crc32c
import pyarrow as pa
import pytest

from headpond.core.schemas import QUARANTINE_SCHEMA
from headpond.lake.apply import Chunks, apply_batch
from headpond.lake.maintenance.rebuild import rebuild
from headpond.lake.maintenance.requeue import ALL, Requeued, parts, requeue
from headpond.lake.state.insert_once import FactTable
from headpond.pipeline import loads
from headpond.pipeline.lake import open_lake
from tests.kit.support import vector_lines
from tests.lake.lakes import decoded, lake_in, watched

if TYPE_CHECKING:
    from headpond.dsql.decode import DsqlConfig
    from headpond.lake.tables import Lake

NARROW = '[tables."public.t"]\nkeys = ["id"]\ncolumns = { id = "smallint", v = "text" }\n'
WIDE_KEY = '[tables."public.u"]\nkeys = ["id"]\ncolumns = { id = "smallint" }\n'


class Crash(Exception):
    """The process is gone."""


def line(data: bytes, number: int) -> bytes:
    record = {"data": base64.b64encode(data).decode(), "shard": "s-0", "sequenceNumber": str(number)}
    return json.dumps(record).encode()


def change(table: str, number: int, ts_ns: int, after: dict[str, Any] | None, **more: Any) -> bytes:
    source = {
        "version": "1.0",
        "ts_ns": ts_ns,
        "txId": "t",
        "schema": "public",
        "table": table,
        "cluster": "c",
    }
    body = {"type": "full", "op": "c", "before": None, "after": after, "source": source} | more
    return line(json.dumps(body).encode(), number)


LINES = [
    change("t", 1, 10, {"id": 1, "v": "a"}),
    change("t", 2, 20, {"id": 2, "v": 7}),  # v is no text
    change("u", 3, 30, {"id": 3}),  # not configured at first
    change("u", 4, 40, {"id": 70_000}),  # nor will it fit then
    change("u", 5, 50, None, op="d", before={"id": 3}),
    line(b"no change", 6),
]


def first_run(folder: Path) -> None:
    """Apply everything while only one table is configured."""
    lake, config = lake_in(folder, NARROW)
    apply_batch(lake, decoded(config, LINES))
    assert dict(lake.quarantine.counts_by("reason")) == {
        "cast_error": 1,
        "invalid_json": 1,
        "unknown_table": 3,
    }


def mended(folder: Path) -> tuple[Lake, DsqlConfig]:
    return lake_in(folder, WIDE_KEY + NARROW)


def rows_of(lake: Lake, name: str) -> list[dict[str, Any]]:
    read = lake.typed[name].file.read()
    return sorted(read.to_pylist(), key=lambda row: row["id"])


def state(lake: Lake) -> Any:
    """Everything that a run may change, but for the order of rows."""
    tables = {name: rows_of(lake, name) for name in lake.typed}
    quarantine = sorted(map(str, lake.quarantine.read().to_pylist()))
    pending = sorted(map(str, lake.pending.read().to_pylist()))
    return tables, quarantine, pending, lake.tombstones.counts()


def test_what_works_now_leaves_and_the_rest_stays_under_its_new_reason(tmp_path: Path) -> None:
    """A table that was not configured is, and one of its changes does not fit it."""
    first_run(tmp_path)
    lake, _ = mended(tmp_path)
    done = requeue(lake, "unknown_table")
    assert (done.read, done.left, dict(done.stayed)) == (3, 2, {"cast_error": 1})
    assert done.applied.tables["public.u"]["superseded"] == 1
    assert rows_of(lake, "public.u") == []  # the delete is newer
    assert lake.tombstones.counts() == {"public.u": 1}
    assert dict(lake.quarantine.counts_by("reason")) == {"cast_error": 2, "invalid_json": 1}


def test_again_there_is_nothing_to_do(tmp_path: Path) -> None:
    """A second call finds no row of the reason, and changes nothing."""
    first_run(tmp_path)
    lake, _ = mended(tmp_path)
    requeue(lake, "unknown_table")
    before = state(lake)
    assert requeue(lake, "unknown_table") == Requeued()
    assert state(lake) == before


@pytest.mark.parametrize("rows_at_once", [1, 2, 3, 7, 100])
def test_parts_have_each_row_once(rows_at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where shards and places in an aggregate share a sequence number; a part asks for a span of it."""
    lake, _ = lake_in(tmp_path, NARROW)
    drawn = random.Random(rows_at_once)
    places = [(shard, str(number), sub) for shard in "ab" for number in range(30) for sub in range(2)]
    drawn.shuffle(places)
    for some in (places[:50], places[50:]):
        rows = [
            dict(zip(("shard_id", "sequence_number", "sub_sequence_number"), place, strict=True))
            | {"stream": "s", "reason": reason, "data": b"x" * drawn.randint(0, 9)}
            for place in some
            for reason in ("missing_key", "too_late")
        ]
        lake.quarantine.add(pa.Table.from_pylist(rows, QUARANTINE_SCHEMA))
    asked: list[str | None] = []

    def spied(self: FactTable, columns: Any = None, where: str | None = None) -> pa.Table:
        asked.append(where)
        return plain(self, columns, where)

    plain = FactTable.read
    monkeypatch.setattr(FactTable, "read", spied)
    found = list(parts(lake.quarantine, "reason = 'too_late'", rows_at_once))
    assert all(0 < part.num_rows <= rows_at_once for part in found)
    names = ("shard_id", "sequence_number", "sub_sequence_number")
    read = [tuple(row[name] for name in names) for part in found for row in part.to_pylist()]
    assert sorted(read) == sorted(places)
    assert len(asked) == len(found)
    assert max(len(where or "") for where in asked) < 50


@pytest.mark.slow
def test_all_reasons_and_small_parts_give_the_same(tmp_path: Path) -> None:
    """How rows are cut into parts changes nothing."""
    states = []
    for name, bound in (("whole", {}), ("rows", {"rows_at_once": 1}), ("bytes", {"bytes_at_once": 1})):
        (tmp_path / name).mkdir()
        first_run(tmp_path / name)
        lake, _ = mended(tmp_path / name)
        done = requeue(lake, ALL, **bound)
        assert (done.read, done.left) == (5, 2)
        assert done.stayed == {"cast_error": 2, "invalid_json": 1}
        states.append(state(lake))
    assert states[0] == states[1] == states[2]


def test_a_dry_run_counts_and_changes_nothing(tmp_path: Path) -> None:
    """The figures are those of the real one, as far as they do not depend on rows."""
    first_run(tmp_path)
    lake, _ = mended(tmp_path)
    before = state(lake)
    done = requeue(lake, ALL, dry_run=True)
    assert (done.read, done.left, dict(done.stayed)) == (5, 2, {"cast_error": 2, "invalid_json": 1})
    assert done.applied.tables == {"public.u": {"changes": 2}}
    assert state(lake) == before


WRITES = ["quarantine", "pending", "tombstones", "table public.u", "second look", "details", "rows that left"]


@pytest.mark.thorough
@pytest.mark.parametrize("stop_at", WRITES)
def test_a_crash_before_any_write_loses_nothing(tmp_path: Path, stop_at: str) -> None:
    """Fed in again after the crash, everything is as if there had been none."""
    (tmp_path / "calm").mkdir()
    first_run(tmp_path / "calm")
    calm, _ = mended(tmp_path / "calm")
    requeue(calm, ALL)
    (tmp_path / "torn").mkdir()
    first_run(tmp_path / "torn")
    lake, _ = mended(tmp_path / "torn")
    seen: list[str] = []

    def between(write: str) -> None:
        seen.append(write)
        if write == stop_at:
            raise Crash

    with pytest.raises(Crash):
        requeue(watched(lake, between), ALL)
    assert stop_at in seen
    every = {row["sequence_number"] for row in lake.quarantine.read().to_pylist()}
    assert every == {"2", "3", "4", "5", "6"}, "nothing leaves the quarantine before it is elsewhere"
    lake, _ = mended(tmp_path / "torn")
    requeue(lake, ALL)
    assert state(lake) == state(calm)


LOOSE = NARROW.replace('"text"', '"any"')


def loosened(folder: Path) -> Lake:
    """The lake after its column was declared otherwise and the table rebuilt."""
    text = f'[source]\narchive = "x.jsonl"\nformat = "dsql"\n[target]\npath = "lake"\n{LOOSE}'
    rebuild(open_lake(loads(text, folder)), "public.t")
    return lake_in(folder, LOOSE)[0]


def test_the_detail_of_a_row_that_stays_is_told_anew(tmp_path: Path) -> None:
    """The same reason in other words."""
    lake, config = lake_in(tmp_path, NARROW)
    apply_batch(lake, decoded(config, [change("t", 1, 10, {"id": 99_999, "v": 7})]))
    detail = "columns id (smallint expected, 99999 found), v (text expected, 7 found)"
    assert lake.quarantine.read()["detail"].to_pylist() == [detail]
    lake = loosened(tmp_path)
    done = requeue(lake, "cast_error")
    assert (done.read, done.left) == (1, 0)
    assert lake.quarantine.read()["detail"].to_pylist() == ["columns id (smallint expected, 99999 found)"]


def test_fragments_wait_again_and_complete(tmp_path: Path) -> None:
    """What timed out waits again, and is put together once all of it is there."""
    case = next(case for case in vector_lines("dsql/cases.jsonl") if case["name"] == "chunked_in_order")
    kinds = case["tables"]["public.t"]["columns"]
    columns = ", ".join(f'{name} = "{kind}"' for name, kind in kinds.items())
    lake, config = lake_in(tmp_path, f'[tables."public.t"]\nkeys = ["id"]\ncolumns = {{ {columns} }}\n')
    records = [json.dumps(record).encode() for record in case["records"]]
    late = datetime(2100, 1, 1, tzinfo=UTC)
    apply_batch(lake, decoded(config, records[:-1]), chunks=Chunks(config))
    apply_batch(lake, decoded(config, []), chunks=Chunks(config, now=late))
    reasons = dict(lake.quarantine.counts_by("reason"))
    assert reasons == {"incomplete_chunks": len(records) - 1}
    done = requeue(lake, "incomplete_chunks", chunks=Chunks(config))
    assert (done.left, done.pending) == (len(records) - 1, len(records) - 1)
    assert lake.quarantine.count() == 0
    apply_batch(lake, decoded(config, records[-1:], first_line=99), chunks=Chunks(config))
    assert len(rows_of(lake, "public.t")) == 1


def test_a_change_that_came_too_late_without_its_bytes_stays(tmp_path: Path) -> None:
    """Where nothing was kept there is nothing to feed in; the row is not renamed into invalid JSON."""
    lake, _ = lake_in(tmp_path, NARROW)
    row = {"reason": "too_late", "stream": "s", "shard_id": "s-0", "sequence_number": "1"}
    row |= {"sub_sequence_number": 0, "data": b"", "format_version": 1}
    lake.quarantine.add(pa.Table.from_pylist([row], schema=lake.quarantine.schema))
    done = requeue(lake, ALL)
    assert (done.read, done.left, done.without_data, dict(done.stayed)) == (1, 0, 1, {"too_late": 1})
    assert dict(lake.quarantine.counts_by("reason")) == {"too_late": 1}


def test_a_delete_of_another_process_in_between_wins(tmp_path: Path) -> None:
    """Its tombstone is written after ours were read and before our row is: the row goes all the same."""
    lake, config = lake_in(tmp_path, NARROW)
    apply_batch(lake, decoded(config, [change("t", 1, 10, {"id": 1, "v": 7})]))
    lake = loosened(tmp_path)
    other, _ = lake_in(tmp_path, LOOSE)

    def between(write: str) -> None:
        if write == "table public.t" and other.tombstones.counts() == {}:
            delete = change("t", 9, 20, None, op="d", before={"id": 1})
            apply_batch(other, decoded(config, [delete]))

    done = requeue(watched(lake, between), ALL)
    assert done.applied.tables["public.t"]["upserts"] == 1
    assert rows_of(lake, "public.t") == []
    assert lake.tombstones.counts() == {"public.t": 1}


def test_aggregates_and_lines_begin_where_they_failed(tmp_path: Path) -> None:
    """A damaged aggregate is opened again, a bad line of an archive read again: both stay as they are."""
    lake, config = lake_in(tmp_path, NARROW)
    blob = b"\xf3\x89\x9a\xc2" + b"x" * 40
    apply_batch(lake, decoded(config, [line(blob, 1), b"{no line"]))
    reasons = dict(lake.quarantine.counts_by("reason"))
    assert set(reasons) == {"archive_bad_line", "kpl_checksum_mismatch"}
    before = state(lake)
    done = requeue(lake, ALL)
    assert (done.read, done.left, dict(done.stayed)) == (2, 0, reasons)
    assert state(lake) == before


def test_a_line_that_can_be_read_now_becomes_a_change(tmp_path: Path) -> None:
    """What an older version could not read keeps the identity that its line gives it."""
    lake, _ = lake_in(tmp_path, NARROW)
    row = {"reason": "archive_bad_line", "stream": "s", "shard_id": "f", "sequence_number": "4"}
    row |= {"sub_sequence_number": 0, "data": change("t", 8, 10, {"id": 1}), "format_version": 1}
    lake.quarantine.add(pa.Table.from_pylist([row], schema=lake.quarantine.schema))
    assert requeue(lake, ALL).left == 1
    assert [row["id"] for row in rows_of(lake, "public.t")] == [1]


def of_table(**more: Any) -> bytes:
    source = {"version": "1.0", "ts_ns": 9, "txId": "t", "schema": "public", "table": "t", "cluster": "c"}
    body = {"type": "full", "op": "c", "before": None, "after": {"id": 9}, "source": source} | more
    return json.dumps({name: value for name, value in body.items() if value != "absent"}).encode()


def chunk(index: int, data: str, chunk_id: str = "g") -> bytes:
    return json.dumps({"type": "fragment", "chunk_id": chunk_id, "index": index, "data": data}).encode()


def main_of(text: str, total: int, *, checksum: int | None = None, **more: Any) -> bytes:
    found = crc32c.crc32c(text.encode()) if checksum is None else checksum
    chunked = {"after": {"chunk_id": "g", "total_fragments": total, "crc32c": str(found)}}
    return of_table(type="chunked", after=None, chunked=chunked, **more)


WHOLE = '{"id": 5}'
SOURCE = {"version": "1.0", "ts_ns": 9, "txId": "t", "schema": "public", "table": "t", "cluster": "c"}
REASONS: dict[str, list[bytes]] = {
    "not_utf8": [b"\xff"],
    "duplicate_json_key": [b'{"a": 1, "a": 2}'],
    "invalid_json": [b"{"],
    "not_an_object": [b"[]"],
    "unknown_type": [b'{"type": "x"}'],
    "bad_fragment": [b'{"type": "fragment", "chunk_id": "g", "index": true, "data": ""}'],
    "bad_op": [of_table(op="")],
    "bad_source": [of_table(source=1)],
    "unsupported_version": [of_table(source=SOURCE | {"version": "2.0"})],
    "bad_image": [of_table(after=1)],
    "unknown_table": [of_table(source=SOURCE | {"table": "x"})],
    "bad_chunked": [of_table(type="chunked", after=None, chunked={})],
    "delete_with_after": [of_table(op="d", before={"id": 1})],
    "missing_after": [of_table(after=None)],
    "future_commit": [of_table(source=SOURCE | {"ts_ns": (1_783_600_000_000 + 86_402_000) * 10**6})],
    "missing_before": [of_table(op="d", after=None)],
    "missing_key": [of_table(after={"v": "x"})],
    "key_mismatch": [of_table(op="d", after=None, before={"id": 1, "v": "x"})],
    "cast_error": [of_table(after={"id": 1, "v": 2})],
    "checksum_mismatch": [main_of(WHOLE, 2, checksum=1), chunk(0, WHOLE[:3]), chunk(1, WHOLE[3:])],
    "bad_reassembled_image": [main_of("[]", 1), chunk(0, "[]")],
    "fragment_conflict": [chunk(0, "{}"), chunk(0, WHOLE), main_of(WHOLE, 1)],
    "fragment_index_out_of_range": [main_of(WHOLE, 1), chunk(0, WHOLE), chunk(7, "x")],
    "chunk_conflict": [main_of(WHOLE, 1), main_of(WHOLE, 1, op="u"), chunk(0, WHOLE)],
    "incomplete_chunks": [main_of(WHOLE, 2), chunk(0, WHOLE[:3])],
    "orphan_fragment": [chunk(0, WHOLE, "nobody")],
}
"""Reason → records that are refused for it."""

START_MS = 1_783_600_000_000
LEFT_OVER = {
    "fragment_conflict": "orphan_fragment",
    "fragment_index_out_of_range": "orphan_fragment",
    "chunk_conflict": "incomplete_chunks",
}
"""Reasons for a part that a whole change did not need, and what it is called when that is long over."""


@pytest.mark.thorough
@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_can_be_fed_in_again(reason: str, tmp_path: Path) -> None:
    """Nothing mended: a record is refused for the same reason again, or waits and comes back; rows stand."""
    lake, config = lake_in(tmp_path, NARROW)
    lines = [
        json.dumps(json.loads(line(data, n)) | {"approximateArrivalTimestamp": START_MS + n}).encode()
        for n, data in enumerate(REASONS[reason])
    ]
    late = datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(hours=2)
    apply_batch(lake, decoded(config, lines), chunks=Chunks(config))
    apply_batch(lake, decoded(config, []), chunks=Chunks(config, now=late))
    before, rows = dict(lake.quarantine.counts_by("reason")), rows_of(lake, "public.t")
    assert set(before) == {reason}
    assert len(rows) == (reason in LEFT_OVER)
    done = requeue(lake, reason, chunks=Chunks(config))
    assert done.read == sum(before.values())
    apply_batch(lake, decoded(config, []), chunks=Chunks(config, now=late))
    assert rows_of(lake, "public.t") == rows
    assert dict(lake.quarantine.counts_by("reason")) == {LEFT_OVER.get(reason, reason): before[reason]}


def test_every_reason_of_the_documentation_is_tried() -> None:
    """Those of the layers below have tests of their own."""
    text = Path(__file__).parent.parent.parent.joinpath("docs/how-to/quarantine.md").read_text()
    rows = re.findall(r"^\| (`[^|]*`) \|", text.partition("## Reasons")[2], re.MULTILINE)
    told = {name for cell in rows for name in re.findall(r"`([a-z_0-9]+)`", cell)}
    of_ledgers = {"out_of_range", "conflicting_revision"}  # see test_ledger_lake
    elsewhere = {
        "internal_error",
        "archive_bad_line",
        "too_late",
        "unexpected_cluster",
        "too_many_columns",
        "chunks_too_large",
    }
    assert told - of_ledgers - elsewhere == set(REASONS)
