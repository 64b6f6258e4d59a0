"""A QLDB journal's proof: the same anomalies as told, whatever the order, cuts and repeats of its records."""

from __future__ import annotations

import base64
import json
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.qldb.batch import decode_qldb
from headpond.qldb.journal.check import OTHER_TABLE, OTHER_TRANSACTION, check_gaps
from headpond.qldb.journal.facts import JournalFacts, journal_facts
from headpond.qldb.journal.known import Checked, Journal, Strand, summarize
from tests.kit.support import share_of, vector_json, vector_lines
from tests.qldb.anomaly_kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

EXPECTED = vector_json("qldb/expected.json")
FILES = [name for name, told in EXPECTED["files"].items() if "anomalies" in told]
NAMES = {"sequence_no": "sequenceNo", "document_id": "documentId"}
STRAND = EXPECTED["strandId"]


def datums(name: str) -> list[bytes]:
    return [base64.b64decode(line["data"]) for line in vector_lines(f"qldb/{name}")]


def facts_of(blobs: Sequence[bytes]) -> JournalFacts:
    decoded = decode_qldb(pa.array(blobs, pa.binary()))
    return journal_facts(decoded.blocks, decoded.revisions)


def told(anomalies: pa.Table) -> list[dict[str, Any]]:
    """As the expected files write them, sorted."""
    rows = [
        {
            NAMES.get(name, name): value
            for name, value in row.items()
            if value is not None and name != "strand_id"
        }
        for row in anomalies.to_pylist()
    ]
    return in_order(rows)


def in_order(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


def cut(blobs: list[bytes], draw: random.Random) -> Iterator[list[bytes]]:
    while blobs:
        size = draw.randint(1, 200)
        yield blobs[:size]
        blobs = blobs[size:]


def change(facts: JournalFacts, part: str, row: int, **values: Any) -> JournalFacts:
    """Facts with one row of one table changed."""
    table = getattr(facts, part)
    rows = table.to_pylist()
    rows[row].update(values)
    return facts._replace(**{part: pa.Table.from_pylist(rows, table.schema)})


def checked(*parts: JournalFacts, journal: Journal | None = None, **options: Any) -> Checked:
    journal = journal or Journal()
    for facts in parts:
        journal.add_facts(facts)
    return journal.checked(**options)


@pytest.fixture(scope="module")
def clean() -> JournalFacts:
    return facts_of(datums("clean.jsonl"))


@pytest.mark.thorough
@pytest.mark.parametrize("name", FILES)
def test_each_file_has_its_anomalies_and_counts(name: str) -> None:
    """Shuffled, cut and with every tenth record twice; the counts are those of the records as they are."""
    blobs = datums(name)
    journal = Journal()
    journal.add(decode_qldb(pa.array(blobs, pa.binary())))
    expected = EXPECTED["files"][name]
    counts = {**journal.counts, **journal.distinct()}
    keys = (
        "records",
        "control",
        "distinct_blocks",
        "distinct_revisions",
        "duplicate_blocks",
        "duplicate_revisions",
    )
    assert {key: counts[key] for key in keys} == {key: expected[key] for key in keys}
    assert told(journal.checked().anomalies) == in_order(expected["anomalies"])

    draw = random.Random(name)
    again = blobs + blobs[::10]
    draw.shuffle(again)
    other = Journal()
    for part in cut(again, draw):
        other.add(decode_qldb(pa.array(part, pa.binary())))
    assert other.checked().anomalies == journal.checked().anomalies


@pytest.mark.parametrize("name", ["page_examples", "real_block"])
def test_what_qldb_itself_wrote(name: str) -> None:
    """The blocks whose hashes the service made verify."""
    journal = Journal()
    journal.add(decode_qldb(pa.array(datums(f"{name}.jsonl"), pa.binary())))
    assert told(journal.checked().anomalies) == in_order(
        vector_json(f"qldb/{name}.expected.json")["anomalies"]
    )


@pytest.mark.thorough
@settings(max_examples=share_of(8))
@given(
    seed=st.integers(0, 2**32), size=st.sampled_from([1, 2, 7, 64]), compact=st.sampled_from([1, 50, 10**6])
)
def test_slices_and_cuts_change_nothing(seed: int, size: int, compact: int) -> None:
    """All tampered journals in one, in slices of any size."""
    draw = random.Random(seed)
    blobs = [blob for name in FILES if name != "clean.jsonl" for blob in datums(name)[300:340]]
    whole = checked(facts_of(blobs)).anomalies
    draw.shuffle(blobs)
    journal = Journal(compact_rows=compact, slice_blocks=size)
    assert checked(*map(facts_of, cut(blobs, draw)), journal=journal).anomalies == whole
    assert whole.num_rows


def test_two_strands_and_two_streams_are_kept_apart_and_together(clean: JournalFacts) -> None:
    """A strand's numbers are its own; records of a second stream of the ledger are repeats."""
    other = JournalFacts(
        *(table.set_column(0, "strand_id", pa.repeat("other", table.num_rows)) for table in clean)
    )
    assert checked(clean, clean, other).anomalies.num_rows == 0
    broken = change(other, "blocks", 5, block_hash=bytes(32))
    rows = checked(clean, broken).anomalies.to_pylist()
    assert {row["strand_id"] for row in rows} == {"other"}
    assert {row["kind"] for row in rows} == {"chain_break"}


@pytest.mark.parametrize(
    ("part", "values", "kinds"),
    [
        ("blocks", {"transaction_info_in_entries": False}, {"transaction_info_not_in_entries"}),
        ("blocks", {"redaction_info_in_entries": False}, {"redaction_info_not_in_entries"}),
        ("blocks", {"revisions_in_entries": False}, {"revisions_not_in_entries"}),
        ("blocks", {"entries_hash_ok": False}, {"entries_hash_mismatch"}),
        ("blocks", {"block_hash_ok": False}, {"block_hash_mismatch"}),
        ("blocks", {"previous_block_hash": b""}, {"chain_break"}),
        ("listed", {"document_id": "x"}, {"revision_missing", "revision_not_in_block"}),
        ("listed", {"hash": bytes(32)}, {"revision_not_in_block"}),
        ("revisions", {"revision_hash_ok": False}, {"revision_hash_mismatch"}),
        ("revisions", {"version": 77}, set()),
    ],
)
def test_each_fact_is_looked_at(
    clean: JournalFacts, part: str, values: dict[str, Any], kinds: set[str]
) -> None:
    """One fact changed gives the anomalies that tell it; a version alone is covered by the hash."""
    anomalies = checked(change(clean, part, 9, **values)).anomalies
    assert set(anomalies["kind"].to_pylist()) == kinds


def test_a_revision_of_which_the_block_says_otherwise_is_told(clean: JournalFacts) -> None:
    """Another table than the block's transactionInfo names, another transaction than the block's."""
    for column, detail in (
        ("table_name", OTHER_TABLE),
        ("table_id", OTHER_TABLE),
        ("tx_id", OTHER_TRANSACTION),
    ):
        (row,) = checked(change(clean, "revisions", 3, **{column: "x"})).anomalies.to_pylist()
        assert (row["kind"], row["detail"]) == ("revision_not_in_block", detail)
        assert row["document_id"] == clean.revisions["document_id"][3].as_py()


def test_a_block_twice_with_other_contents_is_a_conflict(clean: JournalFacts) -> None:
    """The other copy does not hide what is wrong with it; the chain holds where one copy fits."""
    row = clean.blocks.slice(50, 1).to_pylist()[0]
    other = clean._replace(
        blocks=pa.Table.from_pylist([{**row, "block_hash": bytes(32)}], clean.blocks.schema)
    )
    rows = checked(clean, other).anomalies.to_pylist()
    assert [(row["kind"], row["sequence_no"]) for row in rows] == [("conflicting_block", row["sequence_no"])]


def test_what_may_still_come_is_pending(clean: JournalFacts) -> None:
    """Until the journal is closed, absent records are no anomaly; a revision before its block never is."""
    first = clean.blocks["sequence_no"][0].as_py()
    part = clean._replace(
        blocks=clean.blocks.filter(pa.compute.not_equal(clean.blocks["sequence_no"], first + 3)),
        revisions=clean.revisions.slice(0, 300),
    )
    opened = checked(part, closed=False)
    assert opened.anomalies.num_rows == 0
    missing = clean.listed.num_rows - 300
    assert opened.pending["blocks"] == 1
    assert opened.pending["revisions"] == missing
    closed = checked(part)
    kinds = closed.anomalies["kind"].to_pylist()
    assert (kinds.count("missing_blocks"), kinds.count("revision_missing")) == (1, missing)
    assert closed.pending == {"revisions_without_block": opened.pending["revisions_without_block"]}


@pytest.mark.slow
def test_a_completed_stream_misses_the_blocks_of_its_last_revisions() -> None:
    """COMPLETED says that nothing follows: revisions beyond the last block prove that blocks are absent."""
    blobs = datums("clean.jsonl")
    last = EXPECTED["first_sequence_no"] + EXPECTED["blocks"] - 1
    decoded = decode_qldb(pa.array(blobs, pa.binary()))
    keep = pa.compute.less(decoded.blocks["sequence_no"], last)
    journal = Journal()
    journal.add(decoded._replace(blocks=decoded.blocks.filter(keep)))
    listed = facts_of(blobs).listed["sequence_no"].to_pylist().count(last)
    expected = [{"kind": "missing_blocks", "first": last, "last": last}] if listed else []
    assert told(journal.checked().anomalies) == expected
    journal.completed = False
    assert told(journal.checked().anomalies) == []


def test_deletes_may_go_unchecked(clean: JournalFacts) -> None:
    """No real delete's hash is known: its verdict can be left out."""
    row = clean.revisions["kind"].to_pylist().index("delete")
    broken = change(clean, "revisions", row, revision_hash_ok=False)
    assert told(checked(broken).anomalies)[0]["kind"] == "revision_hash_mismatch"
    assert checked(broken, deletes=False).anomalies.num_rows == 0


def test_numbers_far_apart_cost_nothing(clean: JournalFacts) -> None:
    """One missing range, found without walking it."""
    far = 2**63 - 1
    journal = checked(change(clean, "blocks", 199, sequence_no=far))
    (gap,) = [row for row in told(journal.anomalies) if row["kind"] == "missing_blocks"]
    assert gap["last"] == far - 1


def test_gaps_are_ranges() -> None:
    """Both ends belong to what is missing."""
    rows = check_gaps("s", [1, 2, 5, 9, 9], reach=11).to_pylist()
    assert [(row["first"], row["last"]) for row in rows] == [(3, 4), (6, 8), (10, 11)]


def test_the_kinds_are_those_of_the_documentation() -> None:
    """Every kind that the vectors name is one of ours."""
    seen = {anomaly["kind"] for name in FILES for anomaly in EXPECTED["files"][name]["anomalies"]}
    assert seen <= set(KINDS)
    assert len(KINDS) == len(set(KINDS)) == 12


def test_the_figures_are_those_of_the_journal(clean: JournalFacts) -> None:
    """Ranges, days and tables; repeats count once."""
    summary = summarize(JournalFacts.together([clean, clean]))
    first, blocks = EXPECTED["first_sequence_no"], EXPECTED["blocks"]
    assert summary.strands == (Strand(STRAND, first, first + blocks - 1, ((first, first + blocks - 1),)),)
    assert summary.strands[0].blocks == blocks
    assert sum(count for _, count in summary.days) == blocks
    assert [table.name for table in summary.tables] == [
        "Mixed",
        "Person",
        "VehicleRegistration",
        "Über-Konten",
    ]
    kinds = {
        kind: sum(table.revisions.get(kind, 0) for table in summary.tables) for kind in ("delete", "redacted")
    }
    assert kinds == {"delete": EXPECTED["counts"]["deletes"], "redacted": EXPECTED["counts"]["redacted"]}
    assert sum(table.documents for table in summary.tables) == len(EXPECTED["final_state"])


def test_a_gap_makes_two_ranges() -> None:
    """The missing block lies between."""
    (strand,) = summarize(facts_of(datums("missing_block.jsonl"))).strands
    gone = EXPECTED["files"]["missing_block.jsonl"]["removed_sequence_no"]
    assert strand.ranges == ((strand.first, gone - 1), (gone + 1, strand.last))
    assert summarize(JournalFacts.none()).strands == ()
