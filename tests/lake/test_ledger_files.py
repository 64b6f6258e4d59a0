"""Files of Ion as an archive: records one after the other, and objects of a journal export."""

from __future__ import annotations

import base64
import gzip
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from amazon.ion import simpleion

from headpond.kpl.records import open_records
from headpond.lake.apply import apply_batch
from headpond.qldb.columns import ion_json_column
from headpond.qldb.files import ion_records, is_ion, split_datums
from headpond.spark.sources.archive import read_piece
from headpond.spark.sources.archive_files import Listed, PatternFiles, pieces, plan
from tests.kit.support import vector_lines
from tests.lake.ledgers import (
    TABLES,
    config_of,
    datums,
    decoded,
    decoded_records,
    expected_state,
    exported,
    ledger_in,
    state_of,
)

if TYPE_CHECKING:
    from pathlib import Path

    from headpond.lake.tables import Lake

CONFIG = config_of(*TABLES, past=False, raw_ion=True)


def read(folder: Path, content: bytes, *, whole: bool = True) -> Lake:
    """A lake of one file of an archive, planned and read as Spark's source does it."""
    files = OneFile(content)
    end = plan(files, files.listed(), {}, None)
    assert end["file"].whole == whole
    lake = ledger_in(folder, CONFIG)
    for task in pieces(files, {}, end):
        for piece in task:
            for records in read_piece(files.read(piece.file, piece.start, piece.end), piece, "archive"):
                for opened in open_records(records):
                    apply_batch(lake, decoded_records(CONFIG, opened))
    return lake


class OneFile(PatternFiles):
    """An archive of one file in memory."""

    def __init__(self, content: bytes) -> None:
        super().__init__("memory", "file")
        self.__dict__["content"] = content

    def listed(self) -> dict[str, Listed]:
        """Its size."""
        return {"file": Listed(len(self.content), 0)}

    def read(self, name: str, start: int, end: int) -> bytes:
        """Some of its bytes."""
        assert name == "file"
        return self.content[start:end]


@pytest.mark.parametrize("packed", [False, pytest.param(True, marks=pytest.mark.thorough)])
@pytest.mark.slow
def test_records_one_after_the_other(tmp_path: Path, *, packed: bool) -> None:
    """Without delimiters or with newlines, compressed or not; a damaged one loses only itself."""
    blobs = datums("shuffled")
    damaged = blobs[0][: len(blobs[0]) // 2]
    content = b"".join(blobs[:200]) + damaged + b"\n".join(blobs[200:])
    lake = read(tmp_path, gzip.compress(content) if packed else content)
    assert state_of(lake) == expected_state()
    (bad,) = lake.quarantine.read(["reason", "stream", "shard_id", "sequence_number", "data"]).to_pylist()
    assert (bad["stream"], bad["shard_id"], bad["sequence_number"]) == ("archive", "file", "201")
    assert bad["data"] == damaged


@pytest.mark.parametrize("binary", [True, pytest.param(False, marks=pytest.mark.thorough)])
@pytest.mark.slow
def test_an_export_becomes_the_documents_of_the_stream(tmp_path: Path, *, binary: bool) -> None:
    """Ion binary and Ion text, with the blocks and statements that the stream has."""
    content = simpleion.dumps(exported(), binary=binary, sequence_as_stream=True)
    lake = read(tmp_path, bytes(content) if binary else content.encode())
    assert state_of(lake) == expected_state()
    assert {name: table.count() for name, table in lake.extras.facts.items()} == {
        "controls": 0, "blocks": 200, "statements": 421, "redactions": 17
    }  # fmt: skip
    assert lake.quarantine.count() == 0


@pytest.mark.thorough
def test_an_export_and_the_stream_may_fill_one_lake(tmp_path: Path) -> None:
    """Of the first blocks and of the last ones, some in both: versions decide, and nothing is there twice."""
    first = simpleion.dumps(exported()[:120], binary=True, sequence_as_stream=True)
    lake = read(tmp_path, bytes(first))
    apply_batch(lake, decoded(CONFIG, datums("clean")[150:]))
    assert state_of(lake) == expected_state()
    assert lake.extras.facts["blocks"].count() == 200
    assert lake.quarantine.count() == 0


def as_json_lines() -> list[bytes]:
    """The export down-converted, a block a line."""
    binary = simpleion.dumps(exported(), binary=True, sequence_as_stream=True)
    data = pa.array([datum.data for datum in split_datums(bytes(binary))], pa.binary())
    return [text.encode() for text in ion_json_column(data).to_pylist()]


@pytest.mark.thorough
@pytest.mark.parametrize("packed", [False, True])
def test_an_export_of_json_lines_has_the_same_revisions(tmp_path: Path, *, packed: bool) -> None:
    """Its contents lost their types, so that only identities are those of the stream; a bad line is one."""
    lines = as_json_lines()
    content = b"\n".join([*lines[:7], lines[7][:-20], *lines])
    lake = read(tmp_path, gzip.compress(content) if packed else content, whole=packed)
    want = {document: found[:2] for document, found in expected_state().items()}
    assert {document: found[:2] for document, found in state_of(lake).items()} == want
    assert lake.extras.facts["blocks"].count() == 200
    (bad,) = lake.quarantine.read(["reason", "sequence_number", "data"]).to_pylist()
    assert (bad["reason"], bad["sequence_number"]) == ("archive_bad_line", "8")
    assert bad["data"] == lines[7][:-20]


@pytest.mark.thorough
@pytest.mark.parametrize("binary", [True, False])
def test_a_damaged_block_loses_only_itself(tmp_path: Path, *, binary: bool) -> None:
    """In Ion binary and in Ion text; its bytes are in quarantine."""
    parts = [simpleion.dumps([block], binary=binary, sequence_as_stream=True) for block in exported()[10:20]]
    parts = [bytes(part) if binary else part.encode().removeprefix(b"$ion_1_0 ") for part in parts]
    damaged = parts[4][: len(parts[4]) * 2 // 3]
    lake = read(tmp_path, (b"" if binary else b"\n").join([*parts[:4], damaged, *parts[5:]]))
    assert lake.extras.facts["blocks"].count() == 9
    (bad,) = lake.quarantine.read(["reason", "data"]).to_pylist()
    assert bad["data"].strip() == damaged.strip()
    assert bad["reason"] == "truncated"


@pytest.mark.thorough
def test_aggregates_may_lie_between_records(tmp_path: Path) -> None:
    """As archives of consumers that did not open them have it."""
    packed = [base64.b64decode(line["data"]) for line in vector_lines("qldb/aggregated.jsonl")]
    lake = read(tmp_path, packed[0] + b"".join(datums("clean")[:40]) + b"".join(packed[1:]))
    assert state_of(lake) == expected_state()


@pytest.mark.parametrize(
    ("head", "ion"),
    [
        (b"\xe0\x01\x00\xea\xee", True),
        (b"\xf3\x89\x9a\xc2..", True),
        (b"$ion_1_0 {a: 1}", True),
        (b"{\n  blockAddress: {", True),
        (b'{"data": "e30="}', False),
        (b'{"blockAddress": {}}', False),
        (b"", False),
    ],
)
def test_the_content_decides(head: bytes, *, ion: bool) -> None:
    """Not the file's name."""
    assert is_ion(head) == ion


def test_numbers_go_on_over_batches() -> None:
    """A record's number is its place in the file, whatever the batches."""
    blobs = datums("clean")[:3] * 1000
    batches = list(ion_records(b"".join(blobs), stream="s", file="f"))
    numbers = [number for batch in batches for number in batch["sequence_number"].to_pylist()]
    assert numbers == [str(number) for number in range(1, 3001)]
