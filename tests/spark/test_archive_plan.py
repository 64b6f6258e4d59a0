"""Planning an archive: every byte once, in whole lines, whatever the bounds."""

from __future__ import annotations

import gzip
import json
import os
from itertools import pairwise
from pathlib import Path
from threading import Barrier

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.core.errors import ConfigurationError, DataLoss, InvalidData, UsageError
from headpond.spark.sources import archive
from headpond.spark.sources import archive_files as ap
from headpond.spark.sources.archive_files import open_pattern
from tests.kit.support import share_of


class Held(ap.PatternFiles):
    """Files in memory, as in an object store."""

    def __init__(self, files: dict[str, bytes], rested_ms: int = 0) -> None:
        super().__init__("memory://", "*")
        self.__dict__ |= {"files": files, "rested_ms": rested_ms, "reads": []}

    def listed(self) -> dict[str, ap.Listed]:
        return {name: ap.Listed(len(content), 0, self.rested_ms) for name, content in self.files.items()}

    def read(self, name: str, start: int, end: int) -> bytes:
        assert 0 <= start <= end
        self.reads.append((name, start, end))
        return self.files[name][start:end]


def batches(files: Held, max_bytes: int | None) -> list[ap.Offset]:
    """Plan until nothing is left; the offsets, from nothing read to all read."""
    offsets: list[ap.Offset] = [{}]
    while len(offsets) < 500:
        end = ap.plan(files, files.listed(), offsets[-1], max_bytes)
        if end == offsets[-1]:
            return offsets
        offsets.append(ap.from_json(ap.to_json(end)))
    raise AssertionError("planning does not end")


CONTENTS = st.lists(st.binary(max_size=6).map(lambda b: b.replace(b"\x1f", b"")), max_size=12).map(b"\n".join)


@given(
    st.dictionaries(st.sampled_from("abcd"), CONTENTS, max_size=4),
    st.one_of(st.none(), st.integers(1, 30)),
    st.integers(1, 20),
)
@settings(max_examples=share_of(150))
@pytest.mark.slow
def test_every_line_is_read_once(contents: dict[str, bytes], max_bytes: int | None, piece: int) -> None:
    """However batches and tasks are cut, the pieces are the files, in whole lines with their numbers."""
    files = Held(contents)
    got: dict[str, bytes] = dict.fromkeys(contents, b"")
    for start, end in pairwise(batches(files, max_bytes)):
        for task in ap.pieces(files, start, end, piece):
            for part in task:
                assert len(got[part.file]) == part.start
                assert got[part.file].count(b"\n") + 1 == part.first_line
                text = files.read(part.file, part.start, part.end)
                assert text.endswith(b"\n") or part.end == len(contents[part.file])
                got[part.file] += text
    assert contents == got


def test_a_batch_keeps_to_its_bound_in_whole_lines() -> None:
    """Lines of 10 bytes under a bound of 25: two a batch; a longer line alone goes whole."""
    files = Held({"a": b"123456789\n" * 3 + b"x" * 99 + b"\n"})
    ends = [offset["a"].size for offset in batches(files, 25)[1:]]
    assert ends == [20, 30, 130]


def test_gzip_is_taken_whole_and_only_once() -> None:
    """A gzip file is known by its first bytes, not by its name, and counts as it is stored."""
    packed = gzip.compress(b"one\ntwo\n")
    files = Held({"a.jsonl": packed, "b.jsonl": b"three\n"})
    first, second = batches(files, 1)[1:]
    assert first == {"a.jsonl": ap.FilePosition(len(packed), whole=True)}
    assert second["b.jsonl"] == ap.FilePosition(6, 1)
    assert [[ap.Piece("a.jsonl", 0, len(packed), 1, whole=True)]] == ap.pieces(files, {}, first)


def test_files_are_looked_at_side_by_side() -> None:
    """In an object store each look takes a while: all files that fit the bound are asked at once."""

    class Slow(Held):
        together = Barrier(3)

        def read(self, name: str, start: int, end: int) -> bytes:
            if start == 0:
                self.together.wait(10)
            return super().read(name, start, end)

    files = Slow(dict.fromkeys("abc", b"123456789\n"))
    assert set(ap.plan(files, files.listed(), {}, 30)) == {"a", "b", "c"}


def test_a_task_reads_small_files_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an object store, where each takes a while; their records come in the order of the files."""
    together = Barrier(3)

    class Slow(Held):
        def read(self, name: str, start: int, end: int) -> bytes:
            together.wait(10)
            return super().read(name, start, end)

    files = Slow({name: b'{"data": "%s"}\n' % (name.encode() * 4) for name in "abc"})
    monkeypatch.setattr(archive, "open_pattern", lambda *_: files)
    reader = archive.ArchiveReader(archive.read_options({"path": "s3://records/*.jsonl"}))
    (partition,) = reader.partitions()
    rows = [row for batch in reader.read(partition) for row in batch["shard_id"].to_pylist()]
    assert rows == ["a", "b", "c"]


def test_half_a_line_holds_nobody_up() -> None:
    """Not even one that is longer than a batch."""
    files = Held({"a": b"x" * 99, "b": b"12345\n"})
    assert ap.plan(files, files.listed(), {}, 25, last_line_wait_ms=1000) == {"b": ap.FilePosition(6)}


def test_half_a_line_waits_until_it_ends_or_the_file_rests() -> None:
    """It is not taken in two halves, however often is planned."""
    files = Held({"a": b'{}\n{"data":'})
    end = ap.plan(files, files.listed(), {}, None, last_line_wait_ms=1000)
    assert end == {"a": ap.FilePosition(3, 1)}
    assert end == ap.plan(files, files.listed(), end, None, last_line_wait_ms=1000)
    files.__dict__["rested_ms"] = 1000
    assert ap.plan(files, files.listed(), end, None, last_line_wait_ms=1000) == {"a": ap.FilePosition(11, 2)}
    assert ap.plan(files, files.listed(), {}, None, last_line_wait_ms=1000) == {"a": ap.FilePosition(11)}
    files.__dict__["rested_ms"], files.files["a"] = 0, b'{}\n{"data":""}'
    assert ap.plan(files, files.listed(), end, None, last_line_wait_ms=1000) == {"a": ap.FilePosition(14, 2)}


@given(st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3), st.integers(0, 60))
def test_a_line_without_its_end_is_taken_only_whole(value: dict[str, str], cut: int) -> None:
    """No part of an object is one: a writer may be caught at any byte."""
    line = json.dumps(value).encode()
    files = Held({"a": line[:cut]})
    found = ap.plan(files, files.listed(), {}, None, last_line_wait_ms=1000)
    assert found == ({"a": ap.FilePosition(len(line), 1)} if cut >= len(line) else {})


@pytest.mark.parametrize("content", [b"1\n2\n", b"x" * 2000 + b"\n2\n", gzip.compress(b"1\n", mtime=0)])
def test_another_file_of_the_same_name_is_loss(content: bytes) -> None:
    """Its beginning tells, whether it is as long as the one that was read or longer."""
    files = Held({"a": content})
    end = ap.from_json(ap.to_json(ap.plan(files, files.listed(), {}, None)))
    ap.check_unchanged(files, end, files.listed(), {})
    files.files["a"] += b"3\n" if content[:1] != b"\x1f" else b""
    ap.check_unchanged(files, end, files.listed(), {})
    for other in (b"z" + content[1:], b"z" + files.files["a"][1:]):
        with pytest.raises(DataLoss, match="a is not the one that was read before"):
            ap.check_unchanged(Held({"a": other}), end, {"a": ap.Listed(len(other), 0)}, {})


def test_only_files_that_may_be_others_are_opened_again() -> None:
    """A start looks at what was written since or is longer; a run at what its listings show changed."""
    files = Held({"a": b"1\n", "b": b"2\n"})
    end = ap.plan(files, {"a": ap.Listed(2, 1000), "b": ap.Listed(2, 1500)}, {}, None)

    def opened(listed: dict[str, ap.Listed], known: dict[str, ap.Listed], written_ms: int) -> set[str]:
        files.reads.clear()
        ap.check_unchanged(files, end, listed, known, written_ms)
        return {name for name, _, _ in files.reads}

    now = {"a": ap.Listed(2, 1000), "b": ap.Listed(2, 1500)}
    assert opened(now, {}, 0) == {"a", "b"}
    assert opened(now, {}, 1500) == {"b"}  # written in the same moment as the newest
    assert opened(now, {}, 1501) == set()
    assert opened(now, now, 0) == set()
    touched = now | {"a": ap.Listed(2, 2000)}
    assert opened(touched, now, 1501) == opened(touched, {}, 1501) == {"a"}
    files.files["a"] += b"3\n"
    assert opened(now | {"a": ap.Listed(4, 1000)}, {}, 1501) == {"a"}
    assert ap.newest_ms(now) == 1500
    assert ap.newest_ms(now | {"c": ap.Listed(1, 10**15)}) < 10**15  # of a clock that is wrong
    assert ap.newest_ms({}) == 0


def test_a_file_that_is_taken_as_it_lies_is_not_read_to_plan_it() -> None:
    """But its first KiB, and where it did not rest its last byte."""
    files = Held(dict.fromkeys("abc", b"123456789\n" * 1000))
    ap.plan(files, files.listed(), {}, None)
    assert {(start, end) for _, start, end in files.reads} == {(0, 1024)}
    files.reads.clear()
    ap.plan(files, files.listed(), {}, None, last_line_wait_ms=1000)
    assert {(start, end) for _, start, end in files.reads} == {(0, 1024), (9999, 10000)}


def test_files_that_are_gone_are_forgotten() -> None:
    """With the next step: an archive of which old files are deleted may go on for years."""
    files = Held({"a": b"1\n", "b": b"2\n"})
    end = ap.plan(files, files.listed(), {}, None)
    del files.files["a"]
    assert ap.plan(files, files.listed(), end, None) is end
    assert ap.plan(files, {}, end, None) is end  # a folder that is not mounted
    files.files["c"] = b"3\n"
    assert set(ap.plan(files, files.listed(), end, None)) == {"b", "c"}


@given(*[st.text("ab\n", max_size=30).map(str.encode)] * 3, st.integers(1, 20))
def test_lines_of_a_file_that_grows_have_their_numbers(
    first: bytes, second: bytes, third: bytes, piece: int
) -> None:
    """They are counted where it was read to, the first time that it grew; each half of a line is one."""
    files, start, got, lines = Held({"a": b""}), ap.Offset(), b"", 0
    for more in (first, second, third):
        files.files["a"] += more
        end = ap.from_json(ap.to_json(ap.plan(files, files.listed(), start, None)))
        for part in (part for task in ap.pieces(files, start, end, piece) for part in task):
            assert (part.start, part.first_line) == (len(got), lines + 1)
            text = files.read("a", part.start, part.end)
            got, lines = got + text, lines + text.count(b"\n") + (not text.endswith(b"\n"))
        start = end
    assert got == first + second + third


def test_positions_of_older_versions_have_no_head() -> None:
    """They are taken as they are, and get one when their file is read on."""
    files = Held({"a": b"1\n2\n"})
    old = ap.from_json({"v": 1, "files": {"a": {"bytes": 2, "lines": 1}}})
    ap.check_unchanged(files, old, files.listed(), {})
    assert ap.plan(files, files.listed(), old, None)["a"].head is not None
    assert ap.to_json(old) == {"v": 2, "files": {"a": {"bytes": 2, "lines": 1}}}


def test_files_found_later_and_grown_files_are_read_on() -> None:
    """New files may sort before old ones; grown files go on where they ended."""
    files = Held({"b": b"1\n"})
    end = ap.plan(files, files.listed(), {}, None)
    files.files |= {"a": b"0\n", "b": b"1\n2\n"}
    later = ap.plan(files, files.listed(), end, None)
    (task,) = ap.pieces(files, end, later)
    assert [(p.file, p.start, p.end, p.first_line) for p in task] == [("a", 0, 2, 1), ("b", 2, 4, 2)]


@pytest.mark.parametrize("at", [ap.FilePosition(5, whole=True), ap.FilePosition(9, 2)])
def test_a_file_that_changed_is_loss(at: ap.FilePosition) -> None:
    """A gzip file of another size, or a plain one that shrank, is not what was read."""
    with pytest.raises(DataLoss, match=f"had {at.size} bytes and has 7 now"):
        ap.check_unchanged(Held({}), {"a": at, "gone": at}, {"a": ap.Listed(7, 0)}, {})


@pytest.mark.parametrize("value", [{"v": 3, "files": {}}, {"v": 1}, {"v": 2, "files": {"a": {"lines": 1}}}])
def test_foreign_offsets_are_refused(value: dict[str, object]) -> None:
    """An offset of another version or shape is named as such."""
    with pytest.raises(InvalidData, match="offset"):
        ap.from_json(value)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.jsonl", {"a.jsonl", "b.jsonl"}),
        ("a.jsonl", {"a.jsonl"}),
        ("[!a].jsonl", {"b.jsonl"}),
        ("?.jsonl", {"a.jsonl", "b.jsonl"}),
        (".*", {".hidden.jsonl"}),
        ("**/*.jsonl", {"a.jsonl", "b.jsonl", "x/c.jsonl", "x/y/d.jsonl"}),
        ("*/*.jsonl", {"x/c.jsonl"}),
        ("*/y/*.jsonl", {"x/y/d.jsonl"}),
        ("*/**/?.jsonl", {"x/c.jsonl", "x/y/d.jsonl"}),
        (".?/*.jsonl", {".h/e.jsonl"}),
        ("x/**", {"c.jsonl", "y/d.jsonl"}),
        ("**/y/**", {"x/y/d.jsonl"}),
        ("x/**/*.jsonl", {"c.jsonl", "y/d.jsonl"}),
        ("nowhere/*.jsonl", set()),
    ],
)
def test_patterns(tmp_path: Path, pattern: str, expected: set[str]) -> None:
    """Names are relative to the fixed folder; hidden files and folders need to be asked for."""
    for name in ("a.jsonl", "b.jsonl", "c.txt", ".hidden.jsonl", "x/c.jsonl", "x/y/d.jsonl", ".h/e.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    files = open_pattern(f"{tmp_path}/{pattern}")
    assert expected == set(files.listed())
    assert open_pattern(f"file://{tmp_path}/{pattern}").listed() == files.listed()
    for name, file in files.listed().items():
        assert len(files.read(name, 0, 1000)) == file.size
        assert files.read(name, file.size, 1000) == b""
        assert file.written_ms == (Path(files.root) / name).stat().st_mtime_ns // 1_000_000
        assert 0 <= file.rested_ms <= 60_000


def test_folders_and_files_may_be_named_like_patterns(tmp_path: Path) -> None:
    """`archive = "*.jsonl"` in a pipeline file below a folder `data [2024]` matched nothing."""
    folder = tmp_path / "data [2024]*?"
    folder.mkdir()
    for name in ("a.jsonl", "b[1].jsonl"):
        (folder / name).write_bytes(b"1")
    assert set(open_pattern(f"{folder}/*.jsonl").listed()) == {"a.jsonl", "b[1].jsonl"}
    assert set(open_pattern(f"{folder}/b[1].jsonl").listed()) == {"b[1].jsonl"}
    assert set(open_pattern(f"{tmp_path}/*/a.jsonl").listed()) == {"data [2024]*?/a.jsonl"}


def test_manifests_stand_for_the_objects_they_name(tmp_path: Path) -> None:
    """Below the manifest's folder, by as much of a key as is there; never records themselves."""
    for name in ("x/2024/one.ion", "x/two.ion", "x/three.ion", "x/e.started.manifest"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"1234")
    manifest = tmp_path / "x" / "e.s.completed.manifest"
    manifest.write_text('{keys:["bucket/x/2024/one.ion", "bucket/x/two.ion"]}')
    for pattern, folder in (("x/e.s.completed.manifest", ""), ("x/*.manifest", ""), ("*/*.manifest", "x/")):
        files = open_pattern(f"{tmp_path}/{pattern}")
        assert {n: f.size for n, f in files.listed().items()} == {
            f"{folder}2024/one.ion": 4,
            f"{folder}two.ion": 4,
        }
        assert files.read(f"{folder}two.ion", 1, 3) == b"23"
    assert set(open_pattern(f"{tmp_path}/x/*").listed()) == {"two.ion", "three.ion"}
    for wrong in ('{keys:["bucket/x/four.ion"]}', '{keys:["../x/two.ion"]}', "{}", "no Ion {"):
        manifest.write_text(wrong)
        with pytest.raises(UsageError, match=r"e\.s\.completed\.manifest"):
            open_pattern(f"{tmp_path}/x/*.manifest").listed()
    manifest.write_text('{keys:["' + "a/" * 400_000 + 'one.ion"]}')  # a name for each part would be 300 GB
    with pytest.raises(UsageError, match="does not exist below its folder") as refused:
        open_pattern(f"{tmp_path}/x/*.manifest").listed()
    assert len(str(refused.value)) < 2_000


def test_folders_may_lie_as_deep_as_a_system_allows() -> None:
    """Nor does it take long to see that a name does not fit, however often `**` is there."""
    assert ap._matches(["a"] * 2_000 + ["x.jsonl"], ["**", "*.jsonl"])
    assert not ap._matches(["a"] * 2_000, ["**", "a"] * 10 + ["**", "b"])


def test_a_folder_is_no_pattern(tmp_path: Path) -> None:
    """A folder is refused with the pattern that was probably meant."""
    with pytest.raises(ConfigurationError) as caught:
        open_pattern(str(tmp_path))
    assert caught.value.next_step.endswith(f"{tmp_path}/*.jsonl.")
    with pytest.raises(ConfigurationError):
        open_pattern("records/")


def test_a_file_name_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    """It cannot be opened, and passing it over would be a loss without a word."""
    Path(os.fsdecode(bytes(tmp_path) + b"/a\xff.jsonl")).write_bytes(b"{}")
    with pytest.raises(InvalidData, match=r"a\\xff\.jsonl"):
        open_pattern(str(tmp_path / "*.jsonl")).listed()
