"""QLDB records one by one: every vector, every verdict, every byte damaged."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from typing import Any

import pytest

from headpond.ion.stream import only_value
from headpond.ion.text import ion_text
from headpond.ion.text_reader import to_binary
from headpond.qldb import records as qldb
from headpond.qldb.hash import digest_of_proof, dot, merkle_root, revision_hash_ok
from tests.kit.support import vector_json, vector_lines

MALFORMED = vector_lines("qldb/malformed.jsonl")
EXPECTED = vector_json("qldb/expected.json")


def blobs_of(name: str) -> list[bytes]:
    return [base64.b64decode(line["data"]) for line in vector_lines(f"qldb/{name}.jsonl")]


def record_of(text: str) -> Any:
    return qldb.read(to_binary(text))


@pytest.mark.parametrize("case", MALFORMED, ids=lambda case: case["what"][:40])
def test_every_verdict(case: dict[str, Any]) -> None:
    """Each malformed datum gets the verdict of the vectors, with where and what."""
    record = qldb.read(base64.b64decode(case["data"]))
    if not isinstance(record, qldb.Refused):
        assert case["expect"].startswith("ok")
        return
    assert record.verdict in (case["expect"], "too_deep" if "too_deep" in case["expect"] else "")
    assert record.verdict in qldb.VERDICTS
    assert record.detail.startswith(f"byte {record.offset}: ")


def test_an_aggregate_is_told_as_one() -> None:
    """The commonest "invalid Ion": nobody opened the aggregate."""
    record = qldb.read(blobs_of("aggregated")[0])
    assert isinstance(record, qldb.Refused)
    assert record.verdict == "not_binary_ion"
    assert "KPL aggregate that was not opened" in record.detail


def test_the_real_block() -> None:
    """What QLDB itself computed in 2019: every hash is found again."""
    expected = vector_json("qldb/real_block.expected.json")
    block, revision = (qldb.read(blob) for blob in blobs_of("real_block"))
    assert isinstance(block, qldb.Record)
    assert isinstance(revision, qldb.Record)
    info, metadata, data = block.parts["transaction_info"], revision.parts["metadata"], revision.parts["data"]
    assert info
    assert metadata
    assert data
    entries, entries_hash = block.row["entries_hash_list"], block.row["entries_hash"]
    (statement, *_) = block.row["statements"]
    hashes = {
        "ion_hash_metadata_hex": metadata.ion_hash(),
        "ion_hash_data_hex": data.ion_hash(),
        "revision_hash_hex": revision.row["hash"],
        "ion_hash_transaction_info_hex": info.ion_hash(),
        "entries_hash_hex": merkle_root(entries),
        "previous_block_hash_hex": block.row["previous_block_hash"],
        "block_hash_hex": dot(entries_hash, block.row["previous_block_hash"]),
        "statement_digest_hex": statement["statement_digest"],
    }
    assert {name: found.hex() for name, found in hashes.items()} == {name: expected[name] for name in hashes}
    assert (entries_hash, block.row["block_hash"]) == (
        merkle_root(entries),
        dot(entries_hash, block.row["previous_block_hash"]),
    )
    assert entries.index(info.ion_hash()) == expected["transaction_info_index_in_entries"]
    root = merkle_root([one["hash"] for one in block.row["revision_summaries"]])
    assert entries.index(root) == expected["revisions_root_index_in_entries"]
    text = to_binary(json.dumps(statement["statement"]))
    assert statement["statement_digest"] == only_value(text).ion_hash()


def test_the_page_examples() -> None:
    """The documentation's own records; the block's hashes hold although the page says they are not real."""
    created, completed, block, revision = (record_in(blob) for blob in blobs_of("page_examples"))
    words = [record.row["control_record_type"] for record in (created, completed)]
    assert words == ["CREATED", "COMPLETED"]
    row = block.row
    assert (row["strand_id"], row["sequence_no"]) == ("ElYL30RGoqrFCbbaQn3K6m", 60807)
    assert row["block_timestamp"] == "2019-09-18T17:00:14.601000001Z"
    assert row["block_timestamp_ns"] == 1_568_826_014_601_000_001
    assert [one["statement"] for one in row["statements"]][1] == "INSERT INTO Person ?"
    assert [(one["document_id"], one["statements"]) for one in row["documents"]] == [
        ("7z2OpEBgVCvCtwvx4a2JGn", [1]),
        ("K0FpsSLpydLDr7hi6KUzqk", [2]),
    ]
    assert merkle_root(row["entries_hash_list"]) == row["entries_hash"]
    assert dot(row["entries_hash"], row["previous_block_hash"]) == row["block_hash"]
    assert [revision.row[name] for name in ("table_name", "document_id", "version", "kind")] == [
        "VehicleRegistration",
        "K0FpsSLpydLDr7hi6KUzqk",
        0,
        "insert",
    ]


def record_in(blob: bytes) -> qldb.Record:
    record = qldb.read(blob)
    assert isinstance(record, qldb.Record)
    return record


def test_the_clean_stream() -> None:
    """Counts and the final state of the vectors, by the Ion hash of each document's data."""
    records = [record_in(blob) for blob in blobs_of("clean")]
    counts = EXPECTED["counts"]
    assert Counter(record.type for record in records) == {
        "CONTROL": counts["control"],
        "BLOCK_SUMMARY": counts["block_summary"],
        "REVISION_DETAILS": counts["revision_details"],
    }
    newest: dict[str, qldb.Record] = {}
    revisions = [record for record in records if record.type == "REVISION_DETAILS"]
    for record in revisions:
        before = newest.get(record.row["document_id"])
        if before is None or before.row["version"] < record.row["version"]:
            newest[record.row["document_id"]] = record
        metadata, data = (part and part.ion_hash() for part in record.parts.values())
        assert revision_hash_ok(record.row["hash"], metadata, data, record.row["data_hash_given"])
    kinds = Counter(record.row["kind"] for record in revisions)
    assert (kinds["redacted"], kinds["delete"]) == (counts["redacted"], counts["deletes"])
    assert len(newest) == len(EXPECTED["final_state"])
    for document in EXPECTED["final_state"]:
        record = newest[document["documentId"]]
        assert record.row["version"] == document["version"]
        assert record.row["table_name"] == document["tableName"]
        assert (record.row["kind"] == "delete") == document["deleted"]
        if (data := record.parts["data"]) is not None:
            assert data.ion_hash().hex() == document["data_ion_hash_hex"]


def test_a_saved_digest() -> None:
    """The proof folds from the last block's hash to the digest."""
    check = EXPECTED["digest_check"]
    proof = [base64.b64decode(one) for one in check["proof_b64"]]
    leaf = bytes.fromhex(EXPECTED["last_block_hash_hex"])
    assert digest_of_proof(leaf, proof) == base64.b64decode(check["digest_b64"])
    assert digest_of_proof(leaf, proof[:-1]) != base64.b64decode(check["digest_b64"])


def test_dot_compares_signed_bytes_from_the_last() -> None:
    """Order of the two does not matter; what is smaller does."""
    low, high = bytes(31) + b"\x80", bytes(31) + b"\x7f"  # -128 is less than 127
    assert dot(low, high) == dot(high, low) == dot(bytes(low), high)
    assert dot(b"", high) == dot(high, b"") == high
    odd = [bytes([number]) * 32 for number in range(3)]
    assert merkle_root(odd) == dot(dot(odd[0], odd[1]), odd[2])
    assert (merkle_root([]), merkle_root(odd[:1])) == (b"", odd[0])


ARN = "arn:aws:qldb:us-east-1:123456789012:stream/exampleLedger/IiPT4brpZCqCq3f4MTHbYy"
H = "{{" + base64.b64encode(bytes(range(32))).decode() + "}}"
REVISION = (
    '{qldbStreamArn:"%s",recordType:"REVISION_DETAILS",payload:{tableInfo:{tableName:"T",tableId:"t"},'  # noqa: UP031 - braces all over
    'revision:{blockAddress:{strandId:"s",sequenceNo:7},hash:%s,data:{a:1,a:2},'
    'metadata:{id:"d",version:1,txTime:2019-09-18T17:00:14.602Z,txId:"x"}}}}' % (ARN, H)
)


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ("data:{a:1,a:2}", "data:x::{a:1,a:2}", "update"),
        ("data:{a:1,a:2}", "data:null", "delete"),
        ("data:{a:1,a:2}", "data:null.struct", "delete"),
        ("data:{a:1,a:2},", "", "delete"),
        ("data:{a:1,a:2}", f"dataHash:{H}", "redacted"),
        ("data:{a:1,a:2}", f"data:{{}},dataHash:{H}", "update"),
        ("data:{a:1,a:2}", "data:{},dataHash:null.blob", "update"),
        ("data:{a:1,a:2}", "dataHash:{{AAAA}}", "wrong_type"),
        ("data:{a:1,a:2}", "data:[1]", "wrong_type"),
        ("data:{a:1,a:2}", "data:{a:1},data:{a:1}", "wrong_type"),
        ('tableName:"T"', 'tableName:"T",tableName:"T"', "wrong_type"),
        ('tableName:"T"', "tableName:T,more:[1],more:2", "update"),
        ('tableName:"T"', 'tableName:"T",$0:1', "unknown_symbol"),
        ('tableName:"T"', "tableName:$0", "unknown_symbol"),
        ("sequenceNo:7", "sequenceNo:-7", "wrong_type"),
        ("sequenceNo:7", "sequenceNo:9223372036854775807", "update"),
        ("sequenceNo:7", "sequenceNo:9223372036854775808", "wrong_type"),
        ("version:1", "version:0", "insert"),
        ("version:1", "version:1,reason:[{}]", "update"),
        ("2019-09-18T17:00:14.602Z", "2019-09-18", "update"),
        ("2019-09-18T17:00:14.602Z", "null.timestamp", "wrong_type"),
    ],
)
def test_forms_of_a_revision(old: str, new: str, verdict: str) -> None:
    """Optional parts, unknown fields, repeated names, nulls: the kind, or what is refused."""
    assert old in REVISION
    record = record_of(REVISION.replace(old, new))
    found = record.verdict if isinstance(record, qldb.Refused) else record.row["kind"]
    assert found == verdict


def outcome(data: bytes) -> str:
    record = qldb.read(data)
    if isinstance(record, qldb.Refused):
        assert record.verdict in qldb.VERDICTS
        return record.verdict
    if record.type == "REVISION_DETAILS":
        data_part = record.parts["data"]
        if data_part is not None:
            assert only_value(record.row["data"]).ion_hash() == data_part.ion_hash()
    return "ok"


@pytest.mark.parametrize("number", [0, 1])
def test_every_byte_cut_and_flipped(number: int) -> None:
    """A verdict for every prefix; a verdict or a record for every byte changed; nothing else."""
    datum = blobs_of("real_block")[number]
    cuts = Counter(outcome(datum[:end]) for end in range(len(datum)))
    assert set(cuts) <= {"empty", "not_binary_ion", "truncated", "no_value"}
    assert cuts["truncated"] > len(datum) - 20
    flips = Counter()
    for at in range(len(datum)):
        damaged = bytearray(datum)
        damaged[at] ^= 0xFF
        flips[outcome(bytes(damaged))] += 1
    assert flips["ok"] > 20  # contents that mean nothing to the reader
    assert flips["truncated"] > 20
    assert outcome(datum + b"\x0f") == "multiple_values"


def test_contents_that_claim_to_be_a_symbol_table_are_refused() -> None:
    """Taken out of the record they would not be a value any more; such a record once ended every run."""
    data = next(blob for blob in blobs_of("clean") if record_in(blob).type == "REVISION_DETAILS")
    value = only_value(data)
    text = ion_text(data, value.node, value.symbols)
    changed = re.sub(r"\bdata: ?\{", "data:$ion_symbol_table::{", text, count=1)
    assert changed != text
    record = record_of(changed)
    assert isinstance(record, qldb.Refused)
    assert (record.verdict, "a symbol table" in record.detail) == ("wrong_type", True)


@pytest.mark.parametrize("size", [3, 17, 1_800, 30_000])
def test_huge_integers_are_told_by_their_size(size: int) -> None:
    """Python does not write integers of more than 4,300 digits: their number of bits is said."""
    huge = b"\x2e" + var_uint_of(size) + b"\xff" * size
    one = b"\xde" + var_uint_of(len(huge) + 4) + b"\x84\x81x\x88" + huge
    imports = b"\xbe" + var_uint_of(len(one)) + one
    table = b"\xde" + var_uint_of(len(imports) + 1) + b"\x86" + imports
    wrapped = b"\xee" + var_uint_of(len(table) + 2) + b"\x81\x83" + table
    symbol = b"\x7e" + var_uint_of(size) + b"\xff" * size
    for data in (wrapped + b"\xd0", b"\xde" + var_uint_of(len(symbol) + 1) + b"\x84" + symbol):
        record = qldb.read(b"\xe0\x01\x00\xea" + data)
        assert isinstance(record, qldb.Refused)
        assert len(record.detail) < 200


def var_uint_of(value: int) -> bytes:
    """A VarUInt of two bytes or more, as long contents need."""
    groups = [value & 0x7F | 0x80]
    while value := value >> 7:
        groups.insert(0, value & 0x7F)
    return bytes(groups)
