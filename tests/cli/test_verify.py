"""`headpond verify`: every kind of file gives the same findings; words and exit codes."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import re
import tracemalloc
from itertools import chain
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from amazon.ion import simpleion

from headpond.cli.inputs import whole_lines
from headpond.cli.verify_pieces import ALONE_PIECES
from headpond.kinesis.archive.lines import OVERLONG
from headpond.qldb.files import split_mixed
from tests.kit.support import vector_bytes, vector_json, vector_lines
from tests.lake.ledgers import exported as exported_blocks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.cli.conftest import Cli

EXPECTED = vector_json("qldb/expected.json")
FILES = [name for name, told in EXPECTED["files"].items() if "anomalies" in told]
COUNTS = (
    *("records", "control", "distinct_blocks", "distinct_revisions"),
    *("duplicate_blocks", "duplicate_revisions"),
)


def in_order(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


def datums(name: str) -> list[bytes]:
    return [base64.b64decode(line["data"]) for line in vector_lines(f"qldb/{name}")]


def found(cli: Cli, *arguments: object, code: int = 0) -> dict[str, Any]:
    outcome = cli("verify", "--json", *arguments)
    assert outcome.code == code, outcome.stderr
    (document,) = outcome.lines()
    assert isinstance(document, dict)
    return document


def exported(*, binary: bool, tampered: bool = False) -> bytes:
    """The clean stream as the object of a journal export, written by amazon.ion."""
    blocks = exported_blocks()
    if tampered:
        written = next(
            block for block in blocks if any("metadata" in one for one in block.get("revisions", ()))
        )
        written["transactionId"] = "another"
        blocks[9]["entriesHash"] = bytes(32)
    return (
        bytes(simpleion.dumps(blocks, binary=True, sequence_as_stream=True))
        if binary
        else (simpleion.dumps(blocks, binary=False, sequence_as_stream=True).encode())
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_each_archive_of_the_vectors(cli: Cli, tmp_path: Path, name: str) -> None:
    """Anomalies exactly as expected, with no member more or less; the code says whether there are any."""
    path = tmp_path / name
    path.write_bytes(vector_bytes(f"qldb/{name}"))
    expected = EXPECTED["files"][name]
    document = found(cli, path, code=int(bool(expected["anomalies"])))
    assert in_order(document["anomalies"]) == in_order(expected["anomalies"])
    assert {key: document["counts"][key] for key in COUNTS} == {key: expected[key] for key in COUNTS}
    assert document["pending"] == {"revisions_without_block": 0}


@pytest.mark.thorough
def test_aggregates_are_opened(cli: Cli, tmp_path: Path) -> None:
    """As lines of an archive, and as an archive object without any delimiter."""
    lines, raw = tmp_path / "a.jsonl.gz", tmp_path / "a"
    lines.write_bytes(gzip.compress(vector_bytes("qldb/aggregated.jsonl")))
    raw.write_bytes(b"".join(datums("aggregated.jsonl")))
    for path in (lines, raw):
        document = found(cli, path)
        assert document["counts"]["distinct_revisions"] == EXPECTED["counts"]["revision_details"]
        assert document["counts"]["malformed"] == 0


def test_a_file_that_expands_too_far_is_rejected(cli: Cli, tmp_path: Path) -> None:
    """Where it has to be held as a whole; of lines only the one that is read is held."""
    path = tmp_path / "bomb.ion.gz"
    path.write_bytes(gzip.compress(b"\xe0\x01\x00\xea" + bytes(300 << 20), 1))
    outcome = cli("verify", path)
    assert outcome.code == 2
    assert "expands to more than 256 MiB" in outcome.stderr


def test_lines_that_are_too_long_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than its beginning is held of one; those around it are whole."""
    for module in ("cli.inputs", "kinesis.archive.lines"):
        monkeypatch.setattr(f"headpond.{module}.MAX_LINE_BYTES", 3 << 20)
    long_parts = (b"x" * size for size in range(1 << 20, (1 << 20) + 20))
    tracemalloc.start()
    texts = list(whole_lines(chain([b"a\nb", b"c\nx"], long_parts, [b"x\nd\n", b"e"])))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 14 << 20
    assert max(map(len, texts)) <= 3 << 20
    first, second, long, *others = b"".join(texts).split(b"\n")
    assert (first, second, others) == (b"a", b"bc", [b"d", b"e"])
    assert long.startswith(OVERLONG + b"xxx")


@pytest.mark.slow
@pytest.mark.parametrize("between", [b"", b"\n"])
def test_records_one_after_the_other(cli: Cli, tmp_path: Path, between: bytes) -> None:
    """With a delimiter or none; one damaged in the middle costs itself alone."""
    path = tmp_path / "firehose"
    blobs = datums("clean.jsonl")
    path.write_bytes(between.join(blobs))
    assert found(cli, path)["counts"]["records"] == len(blobs)
    blobs[300] = blobs[300][:-40]
    path.write_bytes(between.join(blobs))
    document = found(cli, path, code=1)
    assert document["counts"]["malformed"] == 1
    assert document["counts"]["control"] == 2
    assert document["counts"]["records"] == len(blobs)
    assert document["malformed_examples"][0]["n"] == 300


def test_aggregates_and_records_may_lie_in_one_object(cli: Cli, tmp_path: Path) -> None:
    """An aggregate has no length: its digest tells where it ends; a damaged one costs itself alone."""
    packed, plain = datums("aggregated.jsonl"), datums("clean.jsonl")
    path = tmp_path / "mixed"
    path.write_bytes(plain[0] + packed[0] + b"\n" + packed[1] + plain[1] + plain[2] + packed[2])
    assert list(split_mixed(path.read_bytes())) == [
        plain[0],
        packed[0],
        packed[1],
        plain[1],
        plain[2],
        packed[2],
    ]
    broken = bytearray(packed[1])
    broken[100] ^= 1
    parts = list(split_mixed(packed[0] + bytes(broken) + packed[2]))
    assert parts == [packed[0], bytes(broken), packed[2]]


@pytest.mark.thorough
@pytest.mark.parametrize("binary", [True, False])
def test_a_journal_export_is_proved_alike(cli: Cli, tmp_path: Path, *, binary: bool) -> None:
    """Ion and Ion text; what is tampered with in it is found."""
    path = tmp_path / "p8ve4vVNfK6gSG6cksiAP4.4846-5045.ion"
    path.write_bytes(exported(binary=binary))
    document = found(cli, path)
    assert document["counts"]["distinct_blocks"] == EXPECTED["blocks"]
    assert document["counts"]["distinct_revisions"] == EXPECTED["counts"]["revision_details"]
    path.write_bytes(exported(binary=binary, tampered=True))
    kinds = {anomaly["kind"] for anomaly in found(cli, path, code=1)["anomalies"]}
    assert kinds == {"revision_not_in_block", "entries_hash_mismatch", "block_hash_mismatch"}


@pytest.mark.slow
def test_a_manifest_names_the_objects_beside_it(cli: Cli, tmp_path: Path) -> None:
    """A key's folders may be there or not; an object that is not there is named."""
    (tmp_path / "one.ion").write_bytes(exported(binary=True))
    manifest = tmp_path / "export.completed.manifest"
    manifest.write_text('{keys:["prefix/2024/one.ion"]}')
    assert found(cli, manifest)["counts"]["distinct_blocks"] == EXPECTED["blocks"]
    manifest.write_text('{keys:["prefix/2024/two.ion"]}')
    outcome = cli("verify", manifest)
    assert outcome.code == 2
    assert "prefix/2024/two.ion" in outcome.stderr
    manifest.write_text('{keys:["../../etc/passwd"]}')
    assert cli("verify", manifest).code == 2


@pytest.mark.thorough
def test_folders_patterns_and_standard_input(cli: Cli, tmp_path: Path) -> None:
    """Many files on all cores are one journal; a file that is named twice is read once."""
    lines = vector_bytes("qldb/shuffled.jsonl").splitlines(keepends=True)
    count = ALONE_PIECES * 3
    for part in range(count):
        (tmp_path / f"part-{part}.jsonl").write_bytes(b"".join(lines[part::count]))
    (tmp_path / "_SUCCESS").write_bytes(b"")
    for arguments in ([tmp_path], [f"{tmp_path}/part-*.jsonl", tmp_path], [tmp_path, "--workers", 1]):
        document = found(cli, *arguments)
        assert document["counts"]["records"] == len(lines)
        assert document["anomalies"] == []
    outcome = cli("verify", "-", "--json", stdin=gzip.compress(b"".join(lines)))
    assert outcome.lines()[0]["counts"]["records"] == len(lines)


def test_malformed_records_are_counted_by_verdict_and_shown(cli: Cli, tmp_path: Path) -> None:
    """Each verdict as the vectors tell it; a line that is none, and a broken aggregate, too."""
    lines = vector_lines("qldb/malformed.jsonl")
    path = tmp_path / "m.jsonl"
    extra = orjson.dumps({"data": base64.b64encode(b"\xf3\x89\x9a\xc2" + b"x" * 40).decode()})
    path.write_bytes(vector_bytes("qldb/malformed.jsonl") + b"nothing\n" + extra + b"\n")
    document = found(cli, path, code=1)
    told = EXPECTED["files"]["malformed.jsonl"]["by_expect"]
    for verdict in set(told) - {"ok", "ok_or_too_deep", "not_binary_ion"}:
        assert document["malformed"][verdict] == told[verdict], verdict
    assert document["malformed"]["archive_bad_line"] == 1
    assert document["counts"]["malformed"] == sum(document["malformed"].values())
    first = next(number for number, line in enumerate(lines, 1) if line["expect"] == "truncated")
    assert any(one["n"] == first and one["verdict"] == "truncated" for one in document["malformed_examples"])


@pytest.mark.slow
def test_a_saved_digest_is_checked(cli: Cli, tmp_path: Path) -> None:
    """Holding, not holding, and no such file."""
    archive, digest = tmp_path / "c.jsonl", tmp_path / "digest.json"
    archive.write_bytes(vector_bytes("qldb/clean.jsonl"))
    last = EXPECTED["first_sequence_no"] + EXPECTED["blocks"] - 1
    saved = {
        "Digest": EXPECTED["digest_check"]["digest_b64"],
        "DigestTipAddress": {"strandId": EXPECTED["strandId"], "sequenceNo": last},
        "LastBlockNum": last,
        "Proof": EXPECTED["digest_check"]["proof_b64"],
    }
    digest.write_text(json.dumps(saved))
    assert found(cli, archive, "--digest", digest)["digest"]["verdict"] == "ok"
    digest.write_text(json.dumps({**saved, "LastBlockNum": last - 1}))
    assert found(cli, archive, "--digest", digest, code=1)["digest"]["verdict"] == "mismatch"
    said = cli("verify", archive, "--digest", digest).stdout.decode()
    assert "does not match" in said
    assert "The journal verifies" not in said
    digest.write_text("{}")
    assert cli("verify", archive, "--digest", digest).code == 1
    assert cli("verify", archive, "--digest", tmp_path / "none").code == 2


@pytest.mark.slow
def test_what_may_still_come_is_pending(cli: Cli, tmp_path: Path) -> None:
    """--open turns absences into pending ones, and the code into 0."""
    path = tmp_path / "m.jsonl"
    path.write_bytes(vector_bytes("qldb/missing_revision.jsonl"))
    document = found(cli, path, "--open")
    assert (document["anomalies"], document["pending"]["revisions"]) == ([], 1)
    assert "Pending" in cli("verify", path, "--open").stdout.decode()


@pytest.mark.slow
def test_the_page_is_written(cli: Cli, tmp_path: Path) -> None:
    """With what was found; a place that cannot be written is said."""
    archive, page = tmp_path / "c.jsonl", tmp_path / "report.html"
    archive.write_bytes(vector_bytes("qldb/tampered_statement.jsonl"))
    outcome = cli("verify", archive, "--html", page)
    assert outcome.code == 1
    assert "transaction_info_not_in_entries" in page.read_text(encoding="utf-8")
    assert str(page) in outcome.stderr
    assert cli("verify", archive, "--html", tmp_path / "no" / "report.html").code == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FILES if EXPECTED["files"][name]["anomalies"]])
def test_what_is_wrong_has_its_place(cli: Cli, tmp_path: Path, name: str) -> None:
    """Block and table: of a revision as its record claims, in the JSON, in the text, and red on the page."""
    path, page = tmp_path / name, tmp_path / "report.html"
    path.write_bytes(vector_bytes(f"qldb/{name}"))
    (document,) = cli("verify", path, "--html", page, "--json").lines()
    claimed = {}
    for line in vector_lines(f"qldb/{name}"):
        record = simpleion.loads(base64.b64decode(line["data"]))
        if record["recordType"] == "REVISION_DETAILS":
            payload = record["payload"]
            metadata = payload["revision"]["metadata"]
            place = (payload["revision"]["blockAddress"]["sequenceNo"], payload["tableInfo"]["tableName"])
            claimed[metadata["id"], metadata["version"]] = place
    told, shown = cli("verify", path).stdout.decode(), page.read_text(encoding="utf-8")
    for anomaly, place in zip(document["anomalies"], document["places"], strict=True):
        if "version" in anomaly:
            number, table = claimed[anomaly["documentId"], anomaly["version"]]
            assert place == {"sequenceNo": number, "table": table}
            assert f"block {number}, table {table}, document {anomaly['documentId']}" in told
            assert re.search(rf"block {number} \({table}\): [a-z_, ]*{anomaly['kind']}", shown)
    assert '<rect class="anomaly"' in shown or '<rect class="missing"' in shown
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert document["inputs"] == [{"file": str(path), "bytes": path.stat().st_size, "sha256": digest}]
    assert digest in shown


@pytest.mark.slow
def test_a_person_is_told_in_words(cli: Cli, tmp_path: Path) -> None:
    """What it is, where, and what to do; and when all is well."""
    path = tmp_path / "c.jsonl"
    path.write_bytes(vector_bytes("qldb/missing_block.jsonl"))
    told = cli("verify", path).stdout.decode()
    assert "Blocks are absent" in told
    assert "block 4942" in told
    assert f"next: headpond verify {path} --html report.html" in told
    path.write_bytes(vector_bytes("qldb/clean.jsonl"))
    assert "The journal verifies" in cli("verify", path).stdout.decode()
    path.write_bytes(b"")
    nothing = cli("verify", path)
    assert nothing.code == 1  # nothing was proved
    assert b"Nothing to verify" in nothing.stdout
    assert f"next: headpond inspect {path}  (what it holds)" in nothing.stdout.decode()


def test_names_that_lead_nowhere(cli: Cli, tmp_path: Path) -> None:
    """A missing file, an empty folder, a pattern without a match."""
    for name, words in (
        (tmp_path / "no", "does not exist"),
        (tmp_path, "holds no file"),
        (f"{tmp_path}/*.x", "matches no"),
    ):
        outcome = cli("verify", name)
        assert outcome.code == 2
        assert words in outcome.stderr
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - names are enough
