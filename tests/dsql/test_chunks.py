"""Chunked changes: every line of the spec's case table, in any order, cut and repeated."""

from __future__ import annotations

import base64
import itertools
import json
import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.core.schemas import ASSEMBLY_SCHEMA
from headpond.dsql.chunks import Chunks, assemble_step
from headpond.dsql.config import TableSpec
from headpond.dsql.decode import DsqlConfig
from tests.dsql.driver import MemoryLake, comparable, expected_row, spec_of
from tests.dsql.test_vectors import assert_expected, config_of, spelled
from tests.kit.support import share_of, vector_json, vector_lines

if TYPE_CHECKING:
    import pyarrow as pa

CASES = [case for case in vector_lines("dsql/cases.jsonl") if case["name"].startswith("chunk")]
STREAM = vector_lines("dsql/stream.jsonl")
EXPECTED = vector_json("dsql/stream.expected.json")
START = datetime(2026, 7, 9, tzinfo=UTC)


class AssemblingLake(MemoryLake):
    """A lake in memory that puts chunked changes together as they come."""

    waiting: pa.Table = ASSEMBLY_SCHEMA.empty_table()
    now: datetime | None = None

    def feed(self, lines: Any) -> Any:
        decoded = super().feed(lines)
        return self.assemble(decoded.pending)

    def assemble(self, arrived: pa.RecordBatch, now: datetime | None = None) -> Any:
        found = assemble_step(self.waiting, arrived, Chunks(self.config, now=now))
        found.state.validate(full=True)
        self.waiting = found.state
        self.apply(found.decoded)
        return found.decoded

    def open_ids(self) -> int:
        rows = [row for row in self.waiting.to_pylist() if row["status"] == "waiting"]
        return len(
            {row[name] for row in rows for name in ("chunk_id", "before_chunk_id", "after_chunk_id")} - {None}
        )

    def refused(self) -> list[tuple[str, str]]:
        return sorted((row["sequence_number"], row["reason"]) for row in self.quarantine.values())


def lake_of(case: dict[str, Any]) -> AssemblingLake:
    return AssemblingLake(
        DsqlConfig(tables=tuple(spec_of(name, table) for name, table in case["tables"].items()))
    )


def assert_rows(lake: AssemblingLake, case: dict[str, Any]) -> None:
    for name, rows in case["expect"]["rows"].items():
        columns = case["tables"][name]["columns"]
        found = [spelled(comparable(row)) for row in lake.rows.get(name, {}).values()]
        assert sorted(found) == sorted(spelled(expected_row(row, columns)) for row in rows)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_each_case(case: dict[str, Any]) -> None:
    """Rows, quarantine, open groups, and what the time-out adds."""
    lake, expect = lake_of(case), case["expect"]
    for line in case["records"]:
        lake.feed([line])
    assert_rows(lake, case)
    assert lake.refused() == sorted((q["sequenceNumber"], q["reason"]) for q in expect["quarantine"])
    assert lake.open_ids() == expect["pending_chunk_ids"]
    lake.assemble(lake.waiting.slice(0, 0).drop_columns("status"), datetime(2030, 1, 1, tzinfo=UTC))
    late = [*expect["quarantine"], *expect["quarantine_after_chunk_timeout"]]
    assert lake.refused() == sorted((q["sequenceNumber"], q["reason"]) for q in late)
    assert lake.waiting.num_rows == 0


@pytest.mark.thorough
@settings(max_examples=share_of(100))
@given(case=st.sampled_from(CASES), seed=st.integers(0, 2**32))
def test_each_case_in_any_order(case: dict[str, Any], seed: int) -> None:
    """Order, cuts and repeats do not change the rows."""
    draw = random.Random(seed)
    lines = case["records"] + draw.sample(case["records"], draw.randint(0, len(case["records"])))
    draw.shuffle(lines)
    lake = lake_of(case)
    while lines:
        cut = draw.randint(1, len(lines))
        lake.feed(lines[:cut])
        lines = lines[cut:]
    assert_rows(lake, case)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_the_whole_stream_gives_its_tables(seed: int) -> None:
    """700 transactions, chunked images, shuffled and cut anew."""
    draw = random.Random(seed)
    lines = STREAM if seed == 0 else draw.sample(STREAM, len(STREAM))
    lake = AssemblingLake(config_of(EXPECTED))
    while lines:
        cut = draw.randint(1, 900)
        lake.feed(lines[:cut])
        lines = lines[cut:]
    assert_expected(lake, EXPECTED)
    assert lake.open_ids() == 0


TABLE = TableSpec(name="t", schema="public", table="t", keys=("id",), columns={"id": "bigint"})


def line(number: int, record: dict[str, Any]) -> dict[str, Any]:
    return {
        "shard": "shardId-000000000000",
        "sequenceNumber": str(number),
        "partitionKey": "p",
        "approximateArrivalTimestamp": int(START.timestamp() * 1000) + number,
        "data": base64.b64encode(json.dumps(record).encode()),
    }


def main_record(
    number: int, image: str, total: int, chunk_id: str = "i", ts_ns: int = 5, **more: Any
) -> dict[str, Any]:
    chunk = {"chunk_id": chunk_id, "total_fragments": total, "crc32c": str(crc32c.crc32c(image.encode()))}
    source = {"version": "1.0", "ts_ns": ts_ns, "txId": "tx", "schema": "public", "table": "t"}
    return line(number, {"type": "chunked", "op": "c", "source": source, "chunked": {"after": chunk}, **more})


def part(number: int, index: int, data: str, chunk_id: str = "i") -> dict[str, Any]:
    return line(number, {"type": "fragment", "chunk_id": chunk_id, "index": index, "data": data})


def fed(*batches: list[dict[str, Any]]) -> AssemblingLake:
    lake = AssemblingLake(DsqlConfig(tables=(TABLE,)))
    for batch in batches:
        lake.feed(batch)
    return lake


def ids(lake: AssemblingLake) -> list[int]:
    return sorted(row["c:id"] for row in lake.rows.get("t", {}).values())


def test_other_data_at_one_index_is_tried_until_the_checksum_holds() -> None:
    """The version that does not fit goes to quarantine."""
    lake = fed(
        [part(1, 0, '{"id": 9'), part(2, 0, '{"id": 7'), part(3, 1, "}"), main_record(4, '{"id": 7}', 2)]
    )
    assert ids(lake) == [7]
    assert lake.refused() == [("1", "fragment_conflict")]


def test_only_one_fragment_of_an_image_may_have_versions() -> None:
    """Where two have, nothing is tried: all of the group is in quarantine."""
    image = '{"id": 7}'
    lake = fed(
        [
            part(1, 0, image[:4]),
            part(2, 0, "x"),
            part(3, 1, image[4:]),
            part(4, 1, "y"),
            main_record(5, image, 2),
        ]
    )
    assert ids(lake) == []
    assert lake.refused() == [(str(number), "checksum_mismatch") for number in range(1, 6)]
    details = {row["detail"] for row in lake.quarantine.values()}
    assert details == {"more than one fragment came in several versions: 0, 1"}


def decode_lines(lines: list[dict[str, Any]]) -> pa.RecordBatch:
    return MemoryLake(DsqlConfig(tables=(TABLE,))).feed(lines).pending


def test_a_better_fragment_reopens_a_failed_group() -> None:
    """Its members were quarantined, and still complete the change."""
    lake = fed(
        [main_record(1, '{"id": 7}', 2), part(2, 0, '{"id": 9'), part(3, 1, "}")], [part(4, 0, '{"id": 7')]
    )
    assert ids(lake) == [7]
    assert ("1", "checksum_mismatch") in lake.refused()
    assert ("2", "fragment_conflict") in lake.refused()


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ("[7]", "bad_reassembled_image"),
        ('{"id": 7, "id": 7}', "bad_reassembled_image"),
        ('{"id": "x"}', "cast_error"),
        ("{}", "missing_key"),
    ],
)
def test_a_bad_image_takes_its_whole_group_along(image: str, reason: str) -> None:
    """Text that is no object, a repeated name, and every later check."""
    lake = fed([main_record(1, image, 2), part(2, 0, image[:1]), part(3, 1, image[1:])])
    assert lake.refused() == [(str(n), reason) for n in (1, 2, 3)]
    assert ids(lake) == []


def test_an_index_beyond_the_total_is_refused_alone() -> None:
    """The rest completes."""
    lake = fed(
        [part(1, 0, '{"id": 7}'), part(2, 1, "x"), part(3, 2**70, "x")], [main_record(4, '{"id": 7}', 1)]
    )
    assert ids(lake) == [7]
    assert lake.refused() == [("2", "fragment_index_out_of_range"), ("3", "fragment_index_out_of_range")]


def test_an_index_beyond_the_total_of_a_finished_group_is_no_copy() -> None:
    """It belongs to no change that is there: it goes to quarantine, whenever it comes."""
    lake = fed([main_record(1, '{"id": 7}', 1), part(2, 0, '{"id": 7}')], [part(3, 1, "x"), part(4, 0, "y")])
    assert ids(lake) == [7]
    assert lake.refused() == [("3", "fragment_index_out_of_range")]
    assert lake.waiting.column("status").to_pylist() == ["finished"]


def test_a_second_change_with_the_same_chunk_id_is_refused() -> None:
    """The later one, before or after the first is whole; a redelivered main record is no second change."""
    lake = fed(
        [main_record(1, '{"id": 7}', 1)],
        [main_record(2, '{"id": 7}', 1, ts_ns=6), main_record(3, '{"id": 7}', 1, ts_ms=99)],
        [part(4, 0, '{"id": 7}')],
        [main_record(5, '{"id": 7}', 1, ts_ns=6), part(6, 0, '{"id": 7}')],
    )
    assert ids(lake) == [7]
    assert lake.refused() == [("2", "chunk_conflict"), ("5", "chunk_conflict")]


IMAGE, OTHER = '{"id": 7}', '{"id": 8}'
WRONG_MAINS = {
    "another checksum": main_record(1, OTHER, 2, ts_ns=9),
    "fewer fragments": main_record(1, IMAGE[:4], 1, ts_ns=9),
    "more fragments": main_record(1, IMAGE, 3, ts_ns=9),
    "no object": main_record(1, IMAGE[:4] + "!", 2, ts_ns=9),
}


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG_MAINS)
def test_of_two_main_records_the_one_that_fits_wins_in_any_order(wrong: str) -> None:
    """Whichever is there first, in batches of one record and all at once; nothing of either is lost."""
    records = [WRONG_MAINS[wrong], main_record(2, IMAGE, 2), part(3, 0, IMAGE[:4]), part(4, 1, IMAGE[4:])]
    for order in itertools.permutations(records):
        for size in (1, 2, 4):
            lake = fed(*(list(order[start : start + size]) for start in range(0, 4, size)))
            lake.assemble(decode_lines([]), START + timedelta(hours=2))
            assert [row["m:ts_ns"] for row in lake.rows["t"].values()] == [5], (order, size)
            assert "1" in {number for number, _ in lake.refused()}
            assert lake.waiting.num_rows == 0


PIECES = [
    main_record(1, IMAGE, 3),
    main_record(2, IMAGE, 3, ts_ms=4),
    main_record(3, OTHER, 3, ts_ns=6),
    main_record(4, OTHER, 2, ts_ns=7),
    part(5, 0, IMAGE[:3]),
    part(6, 0, IMAGE[:3]),
    part(7, 1, IMAGE[3:6]),
    part(8, 1, "damaged"),
    part(9, 2, IMAGE[6:]),
    part(10, 3, "beyond"),
    main_record(11, IMAGE, 2, chunk_id="k", ts_ns=8),
    part(12, 0, IMAGE[:2], "k"),
    part(13, 0, "nobody's", "n"),
]
"""A change with all that may come with it, a change that lacks a fragment, and one that nobody knows."""


@pytest.mark.slow
@settings(max_examples=share_of(60))
@given(
    order=st.permutations(range(len(PIECES))),
    again=st.lists(st.integers(0, len(PIECES) - 1), max_size=8),
    cuts=st.sets(st.integers(0, len(PIECES) + 8)),
)
def test_order_cuts_and_repeats_change_nothing_and_lose_nothing(
    order: list[int], again: list[int], cuts: set[int]
) -> None:
    """The same rows; each record made them, is equal to one that did, or is in quarantine at the end."""
    told = [PIECES[number] for number in (*order, *again)]
    bounds = [0, *sorted(cut for cut in cuts if cut < len(told)), len(told)]
    lake = fed(*(told[start:stop] for start, stop in itertools.pairwise(bounds)))
    assert [(row["c:id"], row["m:ts_ns"]) for row in lake.rows["t"].values()] == [(7, 5)]
    lake.assemble(decode_lines([]), START + timedelta(hours=2))
    assert lake.waiting.num_rows == 0
    made = {"1", "2", "5", "6", "7", "9"}
    # Once a group is finished its fragments' texts are gone: one with other data is a copy then.
    refused = {number for number, _ in lake.refused()}
    assert {str(number) for number in range(1, 14)} - made - refused <= {"8"}


def test_a_fragment_of_another_change_of_the_group_waits_on() -> None:
    """Two main records share the id of one image: what belongs to the other image alone is not gone."""
    chunk = json.loads(base64.b64decode(main_record(1, IMAGE, 1)["data"]))
    key = chunk["chunked"]["after"] | {"chunk_id": "b"}
    one = chunk | {"chunked": {"before": key, "after": chunk["chunked"]["after"]}}
    other = one | {"chunked": {"before": key, "after": key | {"chunk_id": "c", "total_fragments": 2}}}
    lake = fed(
        [part(1, 0, "x", "c"), line(2, one), line(3, other), part(4, 0, IMAGE, "b"), part(5, 0, IMAGE)]
    )
    assert ids(lake) == [7]
    assert lake.refused() == [("3", "chunk_conflict")]
    lake.assemble(decode_lines([]), START + timedelta(hours=2))
    assert lake.refused() == [("1", "orphan_fragment"), ("3", "chunk_conflict")]


def test_late_copies_are_ignored_as_long_as_the_time_out() -> None:
    """The finished id is remembered, then forgotten."""
    records = [main_record(1, '{"id": 7}', 1), part(2, 0, '{"id": 7}')]
    lake = fed(records, records[1:])
    assert lake.waiting.column("status").to_pylist() == ["finished"]
    lake.assemble(decode_lines([]), START + timedelta(hours=2))
    assert (lake.waiting.num_rows, lake.refused()) == (0, [])


def test_a_group_that_waits_too_long_is_quarantined_and_can_come_again() -> None:
    """By the arrival of its last member; the detail names what is missing."""
    lake = fed([main_record(1, '{"id": 7}', 30), part(2, 1, "x")])
    empty = decode_lines([])
    lake.assemble(empty, START + timedelta(minutes=59))
    assert not lake.refused()
    lake.assemble(empty, START + timedelta(minutes=61))
    assert lake.refused() == [("1", "incomplete_chunks"), ("2", "incomplete_chunks")]
    details = {row["detail"] for row in lake.quarantine.values()}
    assert details == {"image after lacks 0, " + ", ".join(map(str, range(2, 21))) + " and 9 more"}
    again = [main_record(1, '{"id": 7}', 2), part(2, 1, "}"), part(3, 0, '{"id": 7')]
    lake.feed(again)
    assert ids(lake) == [7]


def nested(depth: int) -> str:
    """An image that brackets are so deep in, itself the first of them."""
    return '{"id": 7, "x": ' + "[" * (depth - 1) + "]" * (depth - 1) + "}"


@pytest.mark.parametrize("bound", [20, 512, 700])
def test_a_whole_change_may_be_as_deep_as_one_that_came_whole(bound: int) -> None:
    """By the bound of the configuration, which the envelope of a main record keeps to as well."""
    config = DsqlConfig(tables=(TABLE,), max_depth=bound)
    for depth, fits in ((bound - 1, True), (bound, False)):
        image, chunked, plain = nested(depth), AssemblingLake(config), AssemblingLake(config)
        note = json.loads(nested(bound - 1))
        chunked.feed([main_record(1, image, 2, note=note), part(2, 0, image[:9]), part(3, 1, image[9:])])
        source = {"version": "1.0", "ts_ns": 5, "txId": "tx", "schema": "public", "table": "t"}
        plain.feed([line(1, {"type": "full", "op": "c", "source": source, "after": json.loads(image)})])
        assert ids(chunked) == ids(plain) == [7] * fits
        assert {reason for _, reason in plain.refused()} == (set() if fits else {"invalid_json"})
        found = {"bad_reassembled_image"}
        assert {reason for _, reason in chunked.refused()} == (set() if fits else found)


@pytest.mark.parametrize("step", ["another member", "time-out"])
def test_a_record_that_cannot_be_read_any_more_is_refused_and_not_gone(step: str) -> None:
    """It waited under other rules; what was with it waits on, or times out under a reason of its own."""
    deep = main_record(1, '{"id": 7}', 2, note=json.loads(nested(40)))
    lake = fed([deep, part(2, 0, '{"id"')])
    assert lake.open_ids() == 1
    lake.config = DsqlConfig(tables=(TABLE,), max_depth=20)
    if step == "another member":
        lake.feed([part(3, 1, ": 7}")])
        assert lake.refused() == [("1", "invalid_json")]
        lake.feed([main_record(4, '{"id": 7}', 2)])
        assert ids(lake) == [7]
    else:
        lake.assemble(decode_lines([]), START + timedelta(hours=2))
        assert lake.refused() == [("1", "invalid_json"), ("2", "orphan_fragment")]


def test_a_claim_of_endless_fragments_waits_without_harm() -> None:
    """Numbers of any size cost nothing."""
    lake = fed([main_record(1, "{}", 10**30), part(2, 0, "x")])
    assert lake.open_ids() == 1
    lake.assemble(decode_lines([]), START + timedelta(hours=2))
    assert lake.refused() == [("1", "incomplete_chunks"), ("2", "incomplete_chunks")]


def test_both_images_may_be_chunked() -> None:
    """A delete with its key in fragments; the images have ids of their own."""
    image = '{"id": 7}'
    record = json.loads(base64.b64decode(main_record(1, image, 1)["data"]))
    record |= {"op": "d", "chunked": {"before": record["chunked"]["after"]}}
    lake = fed([part(2, 0, image)], [line(3, record)])
    assert list(lake.tombstones["t"]) == ["[7]"]


@pytest.mark.thorough
def test_a_large_image_is_put_together() -> None:
    """40 MiB of text in fragments of 9 MiB."""
    image = json.dumps({"id": 7, "v": "x" * (40 << 20)})
    size = 9 << 20
    cuts = [image[at : at + size] for at in range(0, len(image), size)]
    lake = fed([main_record(1, image, len(cuts)), *(part(n + 2, n, cut) for n, cut in enumerate(cuts))])
    assert ids(lake) == [7]
    assert len(lake.rows["t"]["[7]"]["c:v"]) == (40 << 20) + 2
