"""What a power cut leaves of a checkpoint is named before Spark starts, and what to do is harmless."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from headpond.core.errors import InvalidData
from headpond.pipeline import load
from headpond.pipeline.lake import open_lake
from headpond.spark.following.checkpoint import check_whole, standing, take_away, torn_file

if TYPE_CHECKING:
    from pathlib import Path

PIPELINE = """
[source]
archive = "*.jsonl"
format = "dsql"
[target]
path = "lake"
checkpoint = "checkpoint"
[tables."public.t"]
keys = ["id"]
columns = { id = "integer" }
"""


def put(folder: Path, name: str, first: int) -> None:
    """Ten changes in a file of the archive."""
    lines = []
    for number in range(first, first + 10):
        place = {"schema": "public", "table": "t"}
        source = {"version": "1.0", "ts_ns": 10**18 + number, "txId": f"{number}", **place}
        change = {"type": "full", "op": "c", "before": None, "after": {"id": number}, "source": source}
        data = base64.b64encode(json.dumps(change).encode()).decode()
        lines.append(json.dumps({"data": data}) + "\n")
    (folder / name).write_text("".join(lines))


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    """`headpond run` to the end of the archive."""
    command = [sys.executable, "-m", "headpond", "run", str(folder / "p.toml"), "--until-caught-up"]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


def repair(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """`headpond repair`."""
    command = [sys.executable, "-m", "headpond", "repair", str(folder / "p.toml"), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def files_of(folder: Path) -> set[tuple[str, bytes]]:
    """Names and contents of all files of the checkpoint, wherever they lie."""
    places = folder.glob("checkpoint*/**/*")
    return {(file.name, file.read_bytes()) for file in places if file.is_file()}


def ids(folder: Path) -> list[int]:
    """The rows of the table."""
    table = open_lake(load(folder / "p.toml")).typed["public.t"]
    return sorted(row["id"] for row in table.file.read(["id"]).to_pylist())


WHOLE = {"offsets": 'v1\n{"batchWatermarkMs":0}\n{"a":1}', "commits": 'v1\n{"nextBatchWatermarkMs":0}'}


@pytest.mark.parametrize("left", ["", "v1\n{", None])
def test_the_offsets_of_the_batch_before_are_read_too(tmp_path: Path, left: str | None) -> None:
    """They are needed to begin, whole or not at all; with them what came later is taken away."""
    for of, numbers in (("offsets", (0, 1, 2)), ("commits", (0, 1))):
        (tmp_path / of).mkdir()
        for number in numbers:
            (tmp_path / of / str(number)).write_text(WHOLE[of])
    (tmp_path / "metadata").write_text('{"id":"a"}')
    assert torn_file(str(tmp_path)) is None
    (tmp_path / "offsets" / "1").unlink() if left is None else (tmp_path / "offsets" / "1").write_text(left)
    torn = torn_file(str(tmp_path))
    assert torn is not None
    assert torn.name == "offsets/1"
    take_away(str(tmp_path), torn, str(tmp_path / "kept"))
    assert torn_file(str(tmp_path)) is None
    stands = standing(str(tmp_path))
    assert (stands.batch_id, stands.planned_batch_id) == (0, None)


@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_moving_a_torn_file_away_is_harmless(tmp_path: Path) -> None:
    """No step but the one of the message, and every row is there once, whichever it is."""
    (tmp_path / "p.toml").write_text(PIPELINE)
    put(tmp_path, "0.jsonl", 0)
    assert run(tmp_path).returncode == 0
    assert ids(tmp_path) == [*range(10)]
    checkpoint = tmp_path / "checkpoint"
    for number, of in enumerate(("commits", "offsets", "metadata"), 1):
        torn = max((checkpoint / of).iterdir()) if of != "metadata" else checkpoint / of
        torn.write_bytes(b"")
        put(tmp_path, f"{number}.jsonl", 10 * number)
        refused = run(tmp_path)
        assert refused.returncode == 1, refused.stderr
        assert f"{torn} is not whole" in refused.stderr
        before = files_of(tmp_path)
        assert repair(tmp_path).returncode == 1, "it shows what it would do"
        assert files_of(tmp_path) == before
        assert repair(tmp_path, "--yes").returncode == 0
        assert before - files_of(tmp_path) == set(), "what is taken away is kept"
        done = run(tmp_path)
        assert done.returncode == 0, done.stderr
        assert ids(tmp_path) == [*range(10 * number + 10)]


@pytest.mark.slow
def test_a_damaged_table_is_named_and_left_alone(tmp_path: Path) -> None:
    """Its positions could begin again; what its log held is not guessed."""
    (tmp_path / "p.toml").write_text(PIPELINE)
    open_lake(load(tmp_path / "p.toml")).prepare()
    entry = next((tmp_path / "lake" / "public.t" / "_delta_log").glob("*0.json"))
    whole = entry.read_bytes()
    assert "No damage found" in repair(tmp_path).stdout
    entry.write_bytes(b"")
    found = repair(tmp_path, "--yes", "--json")
    assert found.returncode == 1, found.stderr
    document = json.loads(found.stdout)
    assert document["checkpoint"] == []
    assert [table["table"] for table in document["tables"]] == ["public.t"]
    assert "bootstrap --from-start" in document["tables"][0]["next_step"]
    assert entry.read_bytes() == b""
    entry.write_bytes(whole)
    assert repair(tmp_path).returncode == 0


@pytest.mark.slow
def test_all_that_is_torn_is_moved_at_once(tmp_path: Path) -> None:
    """A batch's commit, and the offsets of the one after it."""
    (tmp_path / "p.toml").write_text(PIPELINE)
    checkpoint = tmp_path / "checkpoint"
    offset = b'v1\n{"batchWatermarkMs":0}\n{"files":{}}'
    contents = {"metadata": b'{"id":"a"}', "offsets/5": offset, "offsets/6": offset, "offsets/7": b""}
    contents["commits/6"] = b"v1"
    for name, content in contents.items():
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_bytes(content)
    shown = repair(tmp_path)
    assert shown.returncode == 1
    assert "offsets/7 is damaged" in shown.stdout
    assert "With --yes" in shown.stdout
    done = repair(tmp_path, "--yes", "--json")
    assert done.returncode == 0, done.stderr
    assert [torn["torn"] for torn in json.loads(done.stdout)["checkpoint"]] == [
        f"{checkpoint}/offsets/7",
        f"{checkpoint}/commits/6",
    ]
    assert {file.name for file in checkpoint.rglob("*") if file.is_file()} == {"metadata", "5", "6"}
    check_whole(str(checkpoint))


@pytest.mark.parametrize(
    "left", [None, b"", b"v1", b"v1\n{", b"\0\0"], ids=["gone", "empty", "head", "cut", "zeros"]
)
@pytest.mark.parametrize("torn", ["metadata", "offsets/7", "commits/7"])
def test_a_torn_file_is_named(tmp_path: Path, torn: str, left: bytes | None) -> None:
    """Its path, and what can be done; a batch that was begun and not done is no damage."""
    for name, content in (
        ("metadata", '{"id":"a"}'),
        ("offsets/6", 'v1\n{"batchWatermarkMs":0}\n{"files":{}}'),
        ("offsets/7", 'v1\n{"batchWatermarkMs":0}\n{"files":{}}'),
        ("commits/6", 'v1\n{"nextBatchWatermarkMs":0}'),
        ("commits/7", 'v1\n{"nextBatchWatermarkMs":0}'),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    check_whole(str(tmp_path))
    if left is None:
        (tmp_path / torn).unlink()
    else:
        (tmp_path / torn).write_bytes(left)
    if torn == "commits/7" and left is None:
        check_whole(str(tmp_path))
        return
    with pytest.raises(InvalidData, match="is not whole") as refused:
        check_whole(str(tmp_path))
    assert refused.value.facts["path"] == str(tmp_path / torn)
    assert "away" in (refused.value.next_step or "")


def test_a_checkpoint_that_is_not_there_is_whole(tmp_path: Path) -> None:
    """So is one of which nothing was written but its folder."""
    check_whole(str(tmp_path / "none"))
    (tmp_path / "offsets").mkdir()
    check_whole(str(tmp_path))
