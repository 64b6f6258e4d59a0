"""`headpond inspect` and `headpond aggregate` on the golden vectors and on bad input."""

from __future__ import annotations

import base64
import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

from headpond.cli.inputs import input_parts, whole_lines
from headpond.kpl import UserRecord, encode
from tests.cli.test_verify import exported
from tests.kit.support import vector_bytes, vector_json, vector_lines

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Cli

DECODE = vector_json("kpl/decode.json")
ENCODE = vector_json("kpl/encode.json")
TWO = [UserRecord("a", b"one"), UserRecord("b", b"\x00\x01", explicit_hash_key="7")]


def archive(*blobs: bytes) -> bytes:
    """JSON Lines with one Kinesis record each."""
    return b"".join(json.dumps({"data": base64.b64encode(b).decode()}).encode() + b"\n" for b in blobs)


def test_every_kpl_vector_is_told_as_expected(cli: Cli) -> None:
    """One line per record, with the outcome, reason and records of the vectors."""
    blobs = [base64.b64decode(case["blob_b64"]) for case in DECODE]
    result = cli("inspect", "--as", "kpl", "--json", "-", stdin=archive(*blobs))
    assert (result.code, result.stderr) == (0, "")
    lines = result.lines()
    assert [line["n"] for line in lines] == list(range(1, len(DECODE) + 1))
    for case, line in zip(DECODE, lines, strict=True):
        expected = case["expected"]
        assert (line["outcome"], line["reason"]) == (expected["outcome"], expected.get("reason")), case[
            "name"
        ]
        if expected["outcome"] == "aggregate":
            assert [(r["partition_key"], r["data"]) for r in line["records"]] == [
                (r["partition_key"], r["data_b64"]) for r in expected["records"]
            ], case["name"]


def record_document(record: dict[str, Any]) -> dict[str, Any]:
    """A user record of the vectors as `headpond aggregate` takes it."""
    return {
        "partition_key": record["partition_key"],
        "explicit_hash_key": record.get("explicit_hash_key"),
        "data": record["data_b64"],
        "tags": record.get("tags"),
    }


def test_every_encode_vector_is_packed_byte_for_byte(cli: Cli) -> None:
    """Lists of user records in, the KPL's own bytes out."""
    lines = [{"records": [record_document(r) for r in case["records"]]} for case in ENCODE]
    result = cli("aggregate", stdin="\n".join(json.dumps(line) for line in lines).encode())
    assert (result.code, result.stderr) == (0, "")
    assert result.lines() == [
        {
            "partition_key": case["expected"]["api_partition_key"],
            "explicit_hash_key": case["expected"]["api_explicit_hash_key"],
            "data": case["expected"]["blob_b64"],
        }
        for case in ENCODE
    ]


def test_aggregate_and_inspect_are_opposites(cli: Cli) -> None:
    """What one packs, tags included, the other opens."""
    records = [
        {
            "partition_key": "a",
            "data": "b25l",
            "tags": [{"key": "k", "value": None}, {"key": "l", "value": "v"}],
        },
        {"partition_key": "b", "data": "AAE=", "explicit_hash_key": "7", "tags": []},
    ]
    packed = cli("aggregate", stdin=json.dumps({"records": records}).encode()).stdout
    (line,) = cli("inspect", "--json", stdin=packed).lines()
    assert line == {
        "n": 1,
        "outcome": "aggregate",
        "reason": None,
        "records": [
            {"sub_sequence_number": 0, "explicit_hash_key": None, **records[0]},
            {"sub_sequence_number": 1, **records[1]},
        ],
    }


def test_dsql_vectors_are_told_with_verdict_and_reason(cli: Cli) -> None:
    """Records that a case expects in quarantine before any table is known are told with that reason."""
    before_routing = {
        "not_utf8", "duplicate_json_key", "invalid_json", "not_an_object", "unknown_type",
        "bad_fragment", "bad_op", "bad_source", "unsupported_version", "bad_image",
    }  # fmt: skip
    seen = set()
    for case in vector_lines("dsql/cases.jsonl"):
        lines = "\n".join(json.dumps(record) for record in case["records"]).encode()
        result = cli("inspect", "--as", "dsql", "--json", stdin=lines)
        assert result.code == 0
        told = {r["sequenceNumber"]: line for r, line in zip(case["records"], result.lines(), strict=True)}
        for entry in case["expect"].get("quarantine", []):
            number, reason = _number_and_reason(entry)
            if reason in before_routing:
                seen.add(reason)
                assert (told[number]["verdict"], told[number]["reason"]) == ("quarantine", reason), case[
                    "name"
                ]
                assert told[number]["detail"]
    assert seen == {"invalid_json", "duplicate_json_key", "unknown_type"}


def _number_and_reason(entry: Any) -> tuple[str, str]:
    if isinstance(entry, dict):
        return entry["sequenceNumber"], entry["reason"]
    return entry[0], entry[1]


def test_a_compressed_archive_of_good_changes(cli: Cli, tmp_path: Path) -> None:
    """Gzip is recognised by its bytes, and auto finds the format."""
    file = tmp_path / "changes"
    file.write_bytes(gzip.compress(vector_bytes("dsql/small.jsonl")))
    result = cli("inspect", "--json", file)
    count = len(vector_lines("dsql/small.jsonl"))
    assert (result.code, result.stderr) == (0, "")
    lines = result.lines()
    known = ("n", "verdict", "reason", "detail")
    assert [[line[name] for name in known] for line in lines] == [
        [n, "full", None, None] for n in range(1, count + 1)
    ]
    assert all(
        line["table"] and line["committed"] and bool(line["row"]) == (line["op"] != "d") for line in lines
    )


def test_auto_tells_each_record_by_what_it_is(cli: Cli) -> None:
    """An aggregate, a change, a user's own bytes, in one archive."""
    lines = cli(
        "inspect", "--json", stdin=archive(encode(TWO).data, b' {"type": "fragment"}', b"hello")
    ).lines()
    assert [line.get("outcome") or line["verdict"] for line in lines] == ["aggregate", "quarantine", "plain"]


def test_raw_takes_one_blob_as_it_is(cli: Cli, tmp_path: Path) -> None:
    """Data that starts like gzip is not decompressed, and lines do not matter."""
    blob = tmp_path / "blob"
    blob.write_bytes(encode(TWO).data)
    (line,) = cli("inspect", "--raw", "--json", blob).lines()
    assert (line["n"], line["outcome"], len(line["records"])) == (1, "aggregate", 2)
    (line,) = cli("inspect", "--raw", "--json", stdin=gzip.compress(b"x")).lines()
    assert line == {"n": 1, "outcome": "plain", "reason": "no_magic", "records": []}
    (line,) = cli("inspect", "--raw", "--as", "dsql", "--json", stdin=b"\xff").lines()
    assert (line["verdict"], line["reason"]) == ("quarantine", "not_utf8")


def test_a_person_gets_words_and_a_table(cli: Cli) -> None:
    """Without --json: the outcome, the reason, and the user records with an excerpt of their data."""
    blobs = archive(encode(TWO).data, b"hello [bold]", encode([*TWO, UserRecord("c", b"x" * 100)]).data)
    result = cli("inspect", "--as", "kpl", stdin=blobs)
    assert (result.code, result.stderr) == (0, "")
    assert [line.rstrip() for line in result.stdout.decode().splitlines()] == [
        "     1 aggregate",
        "       sub  partition key  hash key  data",
        "       0    a                        one",
        "       1    b              7         00 01",
        "     2 plain  no_magic",
        "     3 aggregate",
        "       sub  partition key  hash key  data",
        "       0    a                        one",
        "       1    b              7         00 01",
        f"       2    c                        {'x' * 60} … (100 bytes)",
    ]


def test_a_line_that_is_no_record_is_told_and_the_rest_goes_on(cli: Cli) -> None:
    """The line keeps its number, empty lines are passed over, and the command ends with 1."""
    stdin = b"no json\n\n" + archive(b"hello") + b'{"data": "?"}\n'
    result = cli("inspect", "--json", "--as", "kpl", stdin=stdin)
    assert result.lines() == [
        {"n": 1, "outcome": "malformed", "reason": "archive_bad_line", "records": []},
        {"n": 3, "outcome": "plain", "reason": "no_magic", "records": []},
        {"n": 4, "outcome": "malformed", "reason": "archive_bad_line", "records": []},
    ]
    assert (result.code, result.stderr) == (
        1,
        (
            "Error: 2 of the lines are not records of an archive.\n"
            'Each line must be a JSON object with "data" in base64; use --raw for one blob.\n'
        ),
    )
    (line,) = cli("inspect", "--json", "--as", "dsql", stdin=b"[]\n").lines()
    assert (line["verdict"], line["reason"], line["detail"]) == (
        "quarantine",
        "archive_bad_line",
        "not a record: Expected `object`, got `array`",
    )


def test_aggregates_read_as_changes_are_hinted_at(cli: Cli) -> None:
    """Whoever reads packed changes as plain ones learns what to do."""
    result = cli("inspect", "--json", "--as", "dsql", stdin=archive(encode(TWO).data))
    assert result.lines()[0]["reason"] == "not_utf8"
    assert result.stderr == "1 of the records look like KPL aggregates: --as kpl opens them.\n"


def test_every_qldb_vector_is_told_as_expected(cli: Cli) -> None:
    """One line per record, with the verdict of the vectors; auto knows Ion binary."""
    cases = vector_lines("qldb/malformed.jsonl")
    result = cli("inspect", "--as", "qldb", "--json", stdin=vector_bytes("qldb/malformed.jsonl"))
    assert (result.code, result.stderr) == (0, "")
    lines = result.lines()
    assert [line["n"] for line in lines] == list(range(1, len(cases) + 1))
    for case, line in zip(cases, lines, strict=True):
        assert line["verdict"] in (case["expect"], *case["expect"].split("_or_")), case["what"]
    auto = cli("inspect", "--json", stdin=vector_bytes("qldb/real_block.jsonl"))
    assert [(line["verdict"], line["record_type"], line["identity"]) for line in auto.lines()] == [
        ("ok", "BLOCK_SUMMARY", {"strand_id": "HbD9IggL584EPHmfwjmVz0", "sequence_no": 3}),
        (
            "ok",
            "REVISION_DETAILS",
            {
                "table_name": "Person",
                "table_id": "1SUXCa3wwV0GD7kV78RbSg",
                "document_id": "D35qd3e2prnJYmtKW6kok1",
                "version": 0,
            },
        ),
    ]


def test_qldb_for_a_person(cli: Cli) -> None:
    """A line of words: what the record is and whose, or where it is damaged; aggregates are hinted at."""
    blobs = [base64.b64decode(line["data"]) for line in vector_lines("qldb/real_block.jsonl")]
    result = cli("inspect", "--as", "qldb", stdin=archive(blobs[0], blobs[1][:-1], encode(TWO).data))
    first, second, third = result.stdout.decode().splitlines()
    assert first.split() == ["1", "ok", "BLOCK_SUMMARY", "HbD9IggL584EPHmfwjmVz0", "3"]
    assert second.split()[:4] == ["2", "truncated", "byte", "200:"]
    assert third.split()[1] == "not_binary_ion"
    assert third.endswith("this is a KPL aggregate that was not opened")
    assert "--as kpl opens them" in result.stderr
    result = cli("inspect", "--as", "qldb", "--json", stdin=b"no record")
    assert result.code == 1
    assert result.lines()[0]["verdict"] == "archive_bad_line"


def test_lines_are_numbered_across_the_pieces_that_a_file_is_read_in(cli: Cli, tmp_path: Path) -> None:
    """Of three million empty lines none is looked at by itself; a record longer than a piece is whole."""
    file = tmp_path / "mostly-empty.jsonl.gz"
    record = archive(b"x" * 3_000_000)
    file.write_bytes(gzip.compress(b"\n" * 3_000_000 + record + b"\r\n" + archive(b"y")[:-1]))
    assert len(list(whole_lines(input_parts(str(file))))) < 10
    lines = cli("inspect", "--as", "dsql", "--json", file).lines()
    assert [(line["n"], line["size"]) for line in lines] == [(3_000_001, 3_000_000), (3_000_003, 1)]


@pytest.mark.parametrize("packed", [bytes, gzip.compress])
def test_files_of_ion_are_read_as_an_archive_is(
    cli: Cli, tmp_path: Path, packed: Callable[[bytes], bytes]
) -> None:
    """Records one after the other, of which one is damaged, and the blocks of an export's objects."""
    file = tmp_path / "records"
    blobs = [base64.b64decode(line["data"]) for line in vector_lines("qldb/clean.jsonl")][:20]
    file.write_bytes(packed(b"".join([*blobs[:5], blobs[5][:-9], *blobs[6:]])))
    found = cli("inspect", "--json", file).lines()
    assert [each["n"] for each in found] == list(range(1, 21))
    assert [each["n"] for each in found if each["verdict"] != "ok"] == [6]
    for binary in (True, False):
        file.write_bytes(packed(exported(binary=binary)))
        blocks = cli("inspect", "--json", file).lines()
        assert {(each["verdict"], each["record_type"]) for each in blocks} == {("ok", "BLOCK")}
        assert sum(each["identity"]["revisions"] for each in blocks) > len(blocks) > 100


@pytest.mark.parametrize("command", ["inspect", "aggregate"])
def test_an_input_that_cannot_be_read_is_wrong_use(cli: Cli, command: str, tmp_path: Path) -> None:
    """An absent file, a folder, a damaged compression: one sentence each."""
    step = "Give the path of a file, or `-` for standard input.\n"
    assert cli(command, "nope") == (2, b"", f"Error: nope cannot be read: No such file or directory.\n{step}")
    assert cli(command, tmp_path) == (2, b"", f"Error: {tmp_path} cannot be read: Is a directory.\n{step}")
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(archive(b"hello" * 1000))[:-20])
    result = cli(command, cut)
    assert result.code == 2
    assert result.stderr.startswith(f"Error: {cut} cannot be decompressed: ")


@pytest.mark.parametrize(
    ("line", "code", "begins"),
    [
        (b"{", 1, "Error: Line 2: The line is not a list of user records: "),
        (b'{"records": [{"partition_key": 5, "data": ""}]}', 1, "Error: Line 2: The line is not a list"),
        (b'{"records": [{"partition_key": "", "data": ""}]}', 2, "Error: Line 2: "),
        (
            b'{"records": [{"partition_key": "a", "data": "", "explicit_hash_key": "-1"}]}',
            2,
            "Error: Line 2: ",
        ),
        (b'{"records": []}', 2, "Error: Line 2: "),
    ],
)
def test_a_bad_line_of_aggregate_is_named(cli: Cli, line: bytes, code: int, begins: str) -> None:
    """The number of the line stands before the reason; what came before is out already."""
    good = b'{"records": [{"partition_key": "a", "data": ""}]}\n'
    result = cli("aggregate", stdin=good + line + b"\n")
    assert result.code == code, result.stderr
    assert result.stderr.startswith(begins)
    assert len(result.lines()) == 1
