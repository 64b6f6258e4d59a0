"""The batch reader says what the scalar reader says, whatever the records."""

from __future__ import annotations

import base64
import random
from typing import Any

import pyarrow as pa
import pytest

from headpond.core.errors import UsageError
from headpond.ion.text_reader import to_binary
from headpond.qldb.batch import DecodedQldb, decode_qldb
from headpond.qldb.schemas import BLOCK_CHECKS, REVISION_CHECKS
from tests.kit.support import vector_lines


def blobs_of(name: str) -> list[bytes]:
    return [base64.b64decode(line["data"]) for line in vector_lines(f"qldb/{name}.jsonl")]


CLEAN = blobs_of("clean")
OF_ONE_SHAPE = [blob for blob in CLEAN if b"LicensePlateNumber" in blob or b"PendingPenalty" in blob]


def one_by_one(blobs: list[bytes], *, verify: bool = True) -> DecodedQldb:
    return decode_qldb(pa.array(blobs, pa.binary()), verify=verify, max_batch_bytes=1)


def assert_same(blobs: list[bytes], **options: Any) -> DecodedQldb:
    found = decode_qldb(pa.array(blobs, pa.binary()), **options)
    expected = one_by_one(blobs, verify=options.get("verify", True))
    for name, table, other in zip(found._fields[:4], found[:4], expected[:4], strict=True):
        assert table.schema == other.schema, name
        for column in table.column_names:
            assert table[column].to_pylist() == other[column].to_pylist(), (name, column)
    return found


@pytest.mark.parametrize("name", ["clean", "malformed", "real_block", "page_examples"])
def test_vectors(name: str) -> None:
    """Every vector, alone and so often that shapes repeat."""
    blobs = blobs_of(name)
    assert_same(blobs if len(blobs) > 50 else blobs * 20)


@pytest.mark.parametrize(
    "name",
    [
        "duplicated",
        "shuffled",
        "aggregated",
        "tampered_revision",
        "tampered_revision_hash",
        "tampered_statement",
    ],
)
@pytest.mark.thorough
def test_more_vectors(name: str) -> None:
    """The long ones."""
    assert_same(blobs_of(name))


def test_what_is_checked() -> None:
    """Every hash of the clean stream holds, and the tampered ones do not."""
    clean = decode_qldb(pa.array(CLEAN, pa.binary()))
    assert (clean.blocks.num_rows, clean.revisions.num_rows) == (200, 392)
    assert set(clean.revisions["revision_hash_ok"].to_pylist()) == {True}
    for name in BLOCK_CHECKS[2:]:
        assert set(clean.blocks[name].to_pylist()) <= {True, None}
    changed = [blob for blob in blobs_of("tampered_revision") if blob not in CLEAN]
    wrong = decode_qldb(pa.array(changed, pa.binary())).revisions
    assert wrong["revision_hash_ok"].to_pylist() == [False]
    unverified = decode_qldb(pa.array(CLEAN, pa.binary()), verify=False)
    assert all(unverified.blocks[name].null_count == 200 for name in BLOCK_CHECKS)
    assert all(unverified.revisions[name].null_count == 392 for name in REVISION_CHECKS)
    assert unverified.revisions.drop(REVISION_CHECKS).equals(clean.revisions.drop(REVISION_CHECKS))


def test_input_forms() -> None:
    """Slices, chunks, large offsets and small pages give the same; other types are refused."""
    blobs = CLEAN[:30]
    whole = pa.array([b"x", *blobs, b"y"], pa.binary()).slice(1, len(blobs))
    expected = decode_qldb(pa.array(blobs, pa.binary()))
    chunked = pa.chunked_array([whole.slice(0, 20), whole.slice(20, 0), whole.slice(20)])
    for form in (whole, whole.cast(pa.large_binary()), chunked):
        for size in (1, 5000, 10**9):
            found = decode_qldb(form, max_batch_bytes=size)
            assert all(one.equals(other) for one, other in zip(found[:4], expected[:4], strict=True))
    empty = decode_qldb(pa.array([], pa.binary()))
    assert [table.num_rows for table in empty[:4]] == [0, 0, 0, 0]
    for wrong in (pa.array(["a"]), pa.array([b"a", None])):
        with pytest.raises(UsageError):
            decode_qldb(wrong)


def test_shapes_are_kept_for_their_depth_alone() -> None:
    """A shape remembered from a batch does not lift the bound of the next one."""
    blobs = pa.array(OF_ONE_SHAPE[:1] * 20, pa.binary())
    for depth, verdict in ((512, "ok"), (3, "too_deep"), (512, "ok"), (6, "ok")):
        assert set(decode_qldb(blobs, max_depth=depth).verdicts["verdict"].to_pylist()) == {verdict}


@pytest.mark.parametrize("other", ["#", "#::1", "{#: 1}", "[a, #]", "'a b'::{x: {#: #}}"])
def test_ids_of_documents_may_stand_anywhere(other: str) -> None:
    """As a symbol, an annotation or a name, in what is hashed: each block has its own."""
    assert_same([with_other(number, other.replace("#", f"D{number}")) for number in range(40)])


def with_other(number: int, other: str) -> bytes:
    """A block of one document, with one more field in what its transaction says."""
    hashed = f"{{{{{base64.b64encode(bytes(32)).decode()}}}}}"
    return to_binary(
        f"""{{qldbStreamArn: "arn", recordType: "BLOCK_SUMMARY", payload: {{
        blockAddress: {{strandId: "S", sequenceNo: {number}}}, transactionId: "X",
        blockTimestamp: 2020-01-01T00:00:00Z, blockHash: {hashed}, entriesHash: {hashed},
        previousBlockHash: {hashed}, entriesHashList: [{hashed}], revisionSummaries: [],
        transactionInfo: {{statements: [], other: {other},
        documents: {{D{number}: {{tableName: "T", tableId: "I", statements: [0]}}}} }} }} }}"""
    )


def damaged(blobs: list[bytes], rng: random.Random) -> list[bytes]:
    """Records with bytes changed, cut, put in and taken out, among good ones of their shape."""
    found = []
    for blob in blobs:
        raw = bytearray(blob)
        what = rng.randrange(5)
        at = rng.randrange(len(raw))
        if what == 0:
            raw[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            del raw[at:]
        elif what == 2:
            raw.insert(at, rng.randrange(256))
        elif what == 3:
            del raw[at]
        found += [bytes(raw), blob]
    return found


@pytest.mark.parametrize("rounds", [1, pytest.param(30, marks=pytest.mark.thorough)], ids=["few", "many"])
def test_damage(rounds: int) -> None:
    """Records of one shape, damaged: the same verdict as one by one, and good ones beside them are found."""
    rng = random.Random(5)
    for _ in range(rounds):
        assert_same(damaged(OF_ONE_SHAPE[:60], rng))
        assert_same(damaged([blob for blob in CLEAN if b"BLOCK_SUMMARY" in blob][:40], rng))


@pytest.mark.parametrize(
    "number", [0, pytest.param(1, marks=pytest.mark.thorough), pytest.param(2, marks=pytest.mark.thorough)]
)
def test_every_byte_flipped_among_its_like(number: int) -> None:
    """A changed byte is seen although the record is followed together with many good ones."""
    blob = (OF_ONE_SHAPE[0], blobs_of("real_block")[0], blobs_of("page_examples")[3])[number]
    step = 1 if number else 3
    for mask in (0xFF, 0x01) if number else (0xFF,):
        flipped = [blob[:at] + bytes([blob[at] ^ mask]) + blob[at + 1 :] for at in range(0, len(blob), step)]
        assert_same([blob] * 20 + flipped)
    assert_same([blob] * 20 + [blob[:end] for end in range(0, len(blob), step)])
