"""A saved digest and its proof against the journal it was taken of."""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa
import pytest

from headpond.core.errors import InvalidData
from headpond.qldb.batch import decode_qldb
from headpond.qldb.journal.facts import JournalFacts, journal_facts
from headpond.qldb.journal.proof import MAX_PROOF, check_digest, read_digest
from tests.kit.support import vector_json, vector_lines

EXPECTED = vector_json("qldb/expected.json")
LAST = EXPECTED["first_sequence_no"] + EXPECTED["blocks"] - 1


def saved(**changes: Any) -> bytes:
    told = EXPECTED["digest_check"]
    file = {
        "Ledger": "exampleLedger",
        "Digest": told["digest_b64"],
        "DigestTipAddress": {"strandId": EXPECTED["strandId"], "sequenceNo": LAST + 3},
        "Export": "QKogjcgQg5xDMYY8FVKYpH",
        "LastBlockNum": LAST,
        "LastBlockTimestamp": "2024-05-30T00:00:00.000Z",
        "Proof": told["proof_b64"],
    }
    return json.dumps({**file, **changes}).encode()


@pytest.fixture(scope="module")
def facts() -> JournalFacts:
    blobs = [base64.b64decode(line["data"]) for line in vector_lines("qldb/clean.jsonl")]
    decoded = decode_qldb(pa.array(blobs, pa.binary()))
    return journal_facts(decoded.blocks, decoded.revisions)


def test_the_digest_of_the_vectors_holds(facts: JournalFacts) -> None:
    """The proof folded over the last block's hash gives the digest."""
    assert check_digest(read_digest(saved()), facts).verdict == "ok"
    assert check_digest(read_digest(saved(LastBlockNum=str(LAST))), facts).verdict == "ok"


def test_another_block_proof_or_digest_does_not(facts: JournalFacts) -> None:
    """Each part counts; the order of the proof, too. What was found is told."""
    proof = EXPECTED["digest_check"]["proof_b64"]
    for wrong in (
        {"LastBlockNum": LAST - 1},
        {"Proof": proof[::-1]},
        {"Proof": proof[:-1]},
        {"Digest": base64.b64encode(bytes(32)).decode()},
    ):
        checked = check_digest(read_digest(saved(**wrong)), facts)
        assert checked.verdict == "mismatch"
        assert checked.as_json()["found"] not in {None, checked.as_json()["expected"]}


def test_a_block_that_is_not_there_is_pending(facts: JournalFacts) -> None:
    """Of another number, or of another strand."""
    for wrong in ({"LastBlockNum": LAST + 1}, {"DigestTipAddress": {"strandId": "x", "sequenceNo": LAST}}):
        checked = check_digest(read_digest(saved(**wrong)), facts)
        assert (checked.verdict, checked.found) == ("pending", None)


def test_one_copy_that_fits_is_enough(facts: JournalFacts) -> None:
    """A conflicting copy is another finding."""
    row = facts.blocks.filter(pa.compute.equal(facts.blocks["sequence_no"], LAST)).to_pylist()[0]
    other = pa.Table.from_pylist([{**row, "block_hash": bytes(32)}], facts.blocks.schema)
    both = facts._replace(blocks=pa.concat_tables([other, facts.blocks]))
    assert check_digest(read_digest(saved()), both).verdict == "ok"


@pytest.mark.parametrize(
    ("text", "member"),
    [
        (b"{", "not JSON"),
        (b"[]", "one object"),
        (saved(Proof=None), "found None."),
        (saved(Proof=["x"]), "Proof[0]"),
        (saved(Proof=["AAAA"] * (MAX_PROOF + 1)), "Proof"),
        (saved(Digest="AAAA"), "Digest"),
        (saved(Digest=7), "Digest"),
        (saved(LastBlockNum=-1), "LastBlockNum"),
        (saved(LastBlockNum=True), "LastBlockNum"),
        (saved(DigestTipAddress=[1]), "DigestTipAddress"),
    ],
)
def test_a_damaged_file_names_the_member(text: bytes, member: str) -> None:
    """What was expected and what to give."""
    with pytest.raises(InvalidData, match="digest file") as caught:
        read_digest(text)
    assert member in str(caught.value)


def test_a_file_without_the_number_takes_the_tip() -> None:
    """Then the proof is of the tip's block."""
    file = json.loads(saved())
    del file["LastBlockNum"]
    assert read_digest(json.dumps(file).encode()).sequence_no == LAST + 3
