"""Files of records one after the other, and journal exports."""

from __future__ import annotations

import base64
import random
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from headpond.ion.binary import MARKER, RefusedIon, children, fields
from headpond.ion.stream import only_value
from headpond.ion.text import canonical_json, ion_text
from headpond.ion.text_reader import to_binary
from headpond.ion.write import restated
from headpond.qldb import records as qldb
from headpond.qldb.batch import ExportRows, decode_export, decode_qldb
from headpond.qldb.files import MAX_DATUM_BYTES, read_manifest, split_datums
from headpond.qldb.schemas import BLOCK_CHECKS
from headpond.qldb.shapes import LEAST
from tests.kit.support import vector_lines

CLEAN = [base64.b64decode(line["data"]) for line in vector_lines("qldb/clean.jsonl")]
BLOBS = CLEAN[: next(at for at in range(160, 200) if b"BLOCK_SUMMARY" in CLEAN[at])]
"""Whole blocks."""


def test_datums_without_and_with_newlines() -> None:
    """The stream as one file gives the same datums, and their places."""
    datums = list(split_datums(b"".join(CLEAN)))
    assert [datum.data for datum in datums] == CLEAN
    assert datums[0].start == 0
    assert all(one.stop == other.start for one, other in pairwise(datums))
    assert [datum.data for datum in split_datums(b"\n".join(CLEAN) + b"\r\n")] == CLEAN
    assert list(split_datums(b"")) == list(split_datums(b"\n\n")) == []


@pytest.mark.parametrize("rounds", [40, pytest.param(1500, marks=pytest.mark.thorough)], ids=["few", "many"])
def test_damage_costs_one_datum(rounds: int) -> None:
    """A datum cut short, changed or replaced in the middle: every other one is found."""
    rng = random.Random(3)
    for number in range(rounds):
        blobs = CLEAN[:12]
        which = rng.randrange(len(blobs))
        at = rng.randrange(1, len(blobs[which]))
        if number % 4 == 0:
            broken = blobs[which][:at]
        elif number % 4 == 1:
            broken = blobs[which][: -rng.randrange(1, 12)]
        elif number % 4 == 2:
            changed = bytearray(blobs[which])
            changed[at] ^= 1 << rng.randrange(8)
            broken = bytes(changed)
        else:
            broken = rng.randbytes(at)
        others = blobs[:which] + blobs[which + 1 :]
        whole = b"".join([*blobs[:which], broken, *blobs[which + 1 :]])
        datums = list(split_datums(whole))
        lost = set(others) - {datum.data for datum in datums}
        if lost:  # cut right behind its symbol table: what is left is legal before the next marker
            whole_now = [datum.data for datum in datums if datum.data.endswith(tuple(lost))]
            assert len(lost) == len(whole_now) == 1, (number, which, at)
            assert not isinstance(qldb.read(whole_now[0]), qldb.Refused)
        assert sum(datum.stop - datum.start for datum in datums) == len(whole)


def test_values_that_share_a_marker() -> None:
    """Each comes with the symbol tables before it; padding at the end belongs to nobody."""
    one, two = to_binary("{a:1}"), to_binary("{b:2}")
    whole = one + two[len(MARKER) :] + two[-4:] + b"\x00\x00" + one
    texts = []
    for datum in split_datums(whole):
        value = only_value(datum.data)
        texts.append(ion_text(datum.data, value.node, value.symbols))
    assert texts == ["{a:1}", "{b:2}", "{b:2}", "{a:1}"]


def shared(texts: list[str]) -> tuple[bytes, list[bytes]]:
    """Values under one marker and one symbol table, and the bytes of each."""
    whole = to_binary(f"[{','.join(texts)}]")
    value = only_value(whole)
    raw = [whole[child.start : child.stop] for child in children(whole, value.node)]
    return value.symbols.preamble, raw


def hashes(datums: list[bytes]) -> list[bytes]:
    """Ion hashes of values that can be read alone."""
    return [only_value(datum).ion_hash() for datum in datums]


@pytest.mark.thorough
@pytest.mark.parametrize("bound", [MAX_DATUM_BYTES, 400])
def test_a_large_table_that_many_values_share(bound: int) -> None:
    """Each value has the names that it uses, however long the file and its table are."""
    texts = [
        f'{{name_{at}: a::{{b: [sym_{at}, null.int, true, 1.50, k::"x", 2020T]}}, x: k::null.symbol}}'
        for at in range(500)
    ]
    head, raw = shared(texts)
    assert len(head) > 8192
    datums = [datum.data for datum in split_datums(head + b"".join(raw), max_datum_bytes=bound + len(head))]
    assert sum(map(len, datums)) < 5 * sum(map(len, raw))
    assert hashes(datums) == hashes([to_binary(text) for text in texts])


def test_a_symbol_without_text_keeps_the_tables_it_came_with() -> None:
    """There is nothing that it could be written as."""
    head, (raw,) = shared(["{a: b}"])
    datum = MARKER + raw
    value = only_value(datum)
    assert restated(datum, value.node, value.symbols) == datum
    value = only_value(head + raw)
    assert restated(head + raw, value.node, value.symbols) == to_binary("{a: b}")


def test_damage_among_values_that_share_a_table() -> None:
    """A value whose inside does not hold is found by its length, and those behind it are read."""
    texts = [f'{{a: "text", b: {at}, c: [1, 2, 3]}}' for at in range(6)]
    head, raw = shared(texts)
    hits = 0
    for at in range(2, len(raw[2])):
        broken = raw[2][:at] + b"\xff" + raw[2][at + 1 :]
        datums = [datum.data for datum in split_datums(head + b"".join([*raw[:2], broken, *raw[3:]]))]
        if len(datums) != len(raw):  # its length was hit
            continue
        hits += 1
        assert [datums[number] for number in (0, 1, 3, 4, 5)] == [
            head + raw[number] for number in (0, 1, 3, 4, 5)
        ]
        assert datums[2] == head + broken
    assert hits > len(raw[2]) - 6


def test_a_record_that_holds_a_record() -> None:
    """Ion in a blob is contents, not the next datum."""
    inner = base64.b64encode(CLEAN[1]).decode()
    blob = to_binary(f"{{data:{{{{{inner}}}}}}}")
    assert [datum.data for datum in split_datums(blob + CLEAN[2] + blob)] == [blob, CLEAN[2], blob]


def exported() -> tuple[list[str], list[str]]:
    """The first blocks of the clean stream as an export has them: Ion text, and JSON."""
    revisions: dict[tuple[int, str], tuple[str, str]] = {}
    blocks: list[tuple[bytes, qldb.Record]] = []
    for blob in BLOBS:
        record = qldb.read(blob)
        assert isinstance(record, qldb.Record)
        if record.type == "REVISION_DETAILS":
            _, node, symbols = only_value(blob)
            for name in ("payload", "revision"):
                node = next(child for sid, child in fields(blob, node) if symbols.text(sid) == name)
            both = ion_text(blob, node, symbols), canonical_json(blob, node, symbols)
            revisions[record.row["sequence_no"], record.row["document_id"]] = both
        elif record.type == "BLOCK_SUMMARY":
            blocks.append((blob, record))
    texts, documents = [], []
    for blob, record in blocks:
        _, node, symbols = only_value(blob)
        node = next(child for sid, child in fields(blob, node) if symbols.text(sid) == "payload")
        parts, members = [], []
        for sid, child in fields(blob, node):
            if (name := symbols.text(sid)) != "revisionSummaries":
                parts.append(f"{name}:{ion_text(blob, child, symbols)}")
                members.append(f'"{name}":{canonical_json(blob, child, symbols)}')
        listed = []
        for one in record.row["revision_summaries"]:
            raw = base64.b64encode(one["hash"]).decode()
            system = (f"{{hash:{{{{{raw}}}}}}}", f'{{"hash":"{raw}"}}')
            key = (record.row["sequence_no"], one["document_id"] or "")
            listed.append(revisions[key] if one["document_id"] else system)
        parts.append(f"revisions:[{','.join(text for text, _ in listed)}]")
        members.append(f'"revisions":[{",".join(document for _, document in listed)}]')
        texts.append("{" + ",\n  ".join(parts) + "}")
        documents.append("{" + ",".join(members) + "}")
    return texts, documents


TEXTS, DOCUMENTS = exported()
STREAM = decode_qldb(pa.array(BLOBS, pa.binary()))


@pytest.mark.slow
def test_an_export_says_what_the_stream_says() -> None:
    """Ion text and Ion binary: blocks and revisions are those of the stream, hashes verified."""
    for data in ("\n".join(["$ion_1_0", *TEXTS]).encode(), b"".join(map(to_binary, TEXTS))):
        found = decode_export(data)
        assert found.exact
        assert set(found.verdicts["verdict"].to_pylist()) == {"ok"}
        same = [name for name in STREAM.blocks.column_names if name not in ("index", "stream_arn")]
        assert found.blocks.select(same).to_pylist() == STREAM.blocks.select(same).to_pylist()
        rows = {(row["document_id"], row["version"]): row for row in found.revisions.to_pylist()}
        for row in STREAM.revisions.to_pylist():
            other = rows[row["document_id"], row["version"]]
            for name in set(row) - {"index", "stream_arn", "data", "table_name", "table_id"}:
                assert other[name] == row[name], name
            assert other["table_name"] in (row["table_name"], None)  # None: a block without transactionInfo


def read_blocks(datums: list[bytes], *, verify: bool = True) -> tuple[Any, ...]:
    """Verdicts, blocks and revisions of exported blocks, each a record of its own."""
    rows = ExportRows(verify=verify)
    for index, datum in enumerate(datums):
        rows.add(datum, index, step=0)
    blocks, revisions = rows.tables()
    return rows.verdicts, blocks.to_pylist(), revisions.to_pylist()


def assert_as_one_by_one(datums: list[bytes], *, verify: bool = True) -> None:
    """What is read together is what is read one by one."""
    verdicts, blocks, revisions = read_blocks(datums, verify=verify)
    alone = [read_blocks([datum], verify=verify) for datum in datums]
    assert verdicts == [row for found, _, _ in alone for row in found]
    for index, (_, its_blocks, its_revisions) in enumerate(alone):
        for row in (*its_blocks, *its_revisions):
            row["index"] = index
    assert blocks == [row for _, found, _ in alone for row in found]
    assert revisions == [row for _, _, found in alone for row in found]


@pytest.mark.thorough
@pytest.mark.parametrize("verify", [True, False])
def test_blocks_that_are_alike_are_read_as_one_by_one(*, verify: bool) -> None:
    """Shuffled among others; documents, statements and system revisions of any number."""
    datums = [to_binary(text) for text in TEXTS] * (LEAST + 8)
    random.Random(2).shuffle(datums)
    assert_as_one_by_one(datums, verify=verify)


@pytest.mark.thorough
def test_a_damaged_block_among_its_like() -> None:
    """Every byte flipped and every cut: the same verdict, or the same rows."""
    block = to_binary(next(text for text in TEXTS if text.count("metadata") > 1))
    damaged = [block[:at] + bytes([block[at] ^ 0xFF]) + block[at + 1 :] for at in range(len(block))]
    assert_as_one_by_one([block] * LEAST + damaged + [block[:at] for at in range(0, len(block), 3)])


def test_json_lines_are_honest() -> None:
    """What a down-conversion lost is not claimed: hashes of contents are null, those of blocks hold."""
    found = decode_export("\n".join(DOCUMENTS).encode())
    assert not found.exact
    assert set(found.verdicts["verdict"].to_pylist()) == {"ok"}
    assert set(found.blocks["block_hash_ok"].to_pylist()) == {True}
    assert set(found.blocks["revisions_in_entries"].to_pylist()) == {True, None}
    for name in BLOCK_CHECKS[:4]:
        assert found.blocks[name].null_count == found.blocks.num_rows
    assert found.revisions["revision_hash_ok"].null_count == STREAM.revisions.num_rows
    assert found.blocks["block_timestamp_ns"].to_pylist() == STREAM.blocks["block_timestamp_ns"].to_pylist()


def test_damage_in_an_exported_text() -> None:
    """A broken block is one verdict with its bytes; the others are read."""
    broken = [*TEXTS[:5], TEXTS[5][:-40], *TEXTS[6:12]]
    data = "\n".join(broken).encode()
    found = decode_export(data)
    verdicts = found.verdicts["verdict"].to_pylist()
    assert verdicts.count("ok") == 11
    refused = [row for row in found.verdicts.to_pylist() if row["verdict"] != "ok"]
    start = len("\n".join(broken[:5]).encode())
    assert len(refused) == 1
    assert refused[0]["detail"].startswith(f"bytes {start} to ")
    assert decode_export(b"").verdicts.num_rows == 0
    assert decode_export(b"[1]").verdicts["verdict"].to_pylist() == ["not_struct"]


def test_a_manifest() -> None:
    """The keys of an export's objects, from Ion text or binary."""
    text = '{keys:["x/strand.1-5.ion","x/strand.6-9.ion"],more:1}'
    assert (
        read_manifest(text.encode())
        == read_manifest(to_binary(text))
        == [
            "x/strand.1-5.ion",
            "x/strand.6-9.ion",
        ]
    )
    for wrong in ("{}", "[]", "{keys:[1]}", "{keys:null}"):
        with pytest.raises(RefusedIon):
            read_manifest(wrong.encode())
