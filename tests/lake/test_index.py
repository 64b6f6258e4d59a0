"""Keys of large files, kept in the cache folder: they tell what the files themselves tell, or nothing."""

from __future__ import annotations

import os
import pwd
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headpond.lake.delta import DeltaFile
from headpond.lake.engine import index
from headpond.lake.engine.index import Keys, numbers_of
from headpond.lake.engine.log import DataFile
from headpond.lake.engine.lookup import Wanted
from headpond.lake.engine.merge import Merge, PartEngine, always

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the keys of the smallest file, in a folder of this test's own."""
    monkeypatch.setattr(index, "LEAST_ROWS", 1)
    monkeypatch.setenv("HEADPOND_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "keys"


def table(place: Path, keys: pa.Array, *, marks: bool = True) -> DeltaFile:
    """Make a table of one file, each row with its number."""
    file = DeltaFile(str(place))
    rows = pa.table({"k": keys, "v": pa.array(range(len(keys)), pa.int64())})
    file.create(rows.schema)
    file.allow_marks(allowed=marks)
    file.append(rows)
    return file


def found(file: DeltaFile, keys: Iterable[Any]) -> dict[Any, int]:
    kind = file.schema().field("k").type
    rows = file.look_up(Wanted(pa.table({"k": pa.array(keys, kind)}), ["k"], ["v"]))
    return dict(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True))


def looked_up_twice(file: DeltaFile, keys: Iterable[Any]) -> dict[Any, int]:
    """Look up, from another object each time, as processes do one after the other."""
    first, again = (found(DeltaFile(file.uri), keys) for _ in range(2))
    assert first == again
    return again


BACKWARDS = list(range(999, -1, -1))
IN_ORDER = sorted(BACKWARDS)


@pytest.mark.parametrize("numbers", [IN_ORDER, BACKWARDS])
def test_integers_are_read_once_more_and_never_again(
    numbers: list[int], tmp_path: Path, cache: Path, reads: list[str]
) -> None:
    file = table(tmp_path / "t", pa.array(numbers))
    wanted = [-5, 3, 500, 998, 2000]
    expected = {key: numbers.index(key) for key in (3, 500, 998)}
    assert looked_up_twice(file, wanted) == expected
    kept = list(cache.glob("*/*.npy"))
    assert [np.load(each).shape for each in kept] == [(1 + (numbers is BACKWARDS), 1000)]
    reads.clear()
    assert found(DeltaFile(file.uri), wanted) == expected
    assert reads == ["v"]


def test_a_file_that_has_none_of_the_keys_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = table(tmp_path / "t", pa.array([f"key {number}" for number in range(0, 1000, 2)]))
    wanted = [f"key {number}" for number in range(101, 200, 2)]
    assert looked_up_twice(file, wanted) == {}
    monkeypatch.setattr("headpond.lake.engine.lookup.opened", None)
    assert found(DeltaFile(file.uri), wanted) == {}


@pytest.mark.parametrize("mask", [0, 7, -1])
def test_texts_whose_hashes_are_equal(mask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, only those that are wanted are found."""
    hashed = index.hash_keys
    monkeypatch.setattr(index, "hash_keys", lambda keys: hashed(keys) & np.int64(mask).view(np.uint64))
    texts = [f"{'x' * (number % 20)}é{number}" for number in range(300)]
    file = table(tmp_path / "t", pa.array(texts))
    wanted = [*texts[10:250:7], "é", "", "xé1000"]
    expected = {key: texts.index(key) for key in texts[10:250:7]}
    assert looked_up_twice(file, wanted) == expected
    assert found(DeltaFile(file.uri), wanted) == expected


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        (pa.array([1, None, 3]), [None, 3]),
        (pa.array([10, 20, 30], pa.date32()), [10]),
        (pa.array([1.5, 2.5, 2.5]), [2.5]),
    ],
    ids=["nulls", "dates", "floats"],
)
def test_what_has_no_keys_is_read_each_time(keys: pa.Array, wanted: list[Any], tmp_path: Path) -> None:
    file = table(tmp_path / "t", keys)
    wanted = pa.array(wanted, keys.type)
    first = looked_up_twice(file, wanted)
    assert set(first) == set(wanted.to_pylist())
    assert found(DeltaFile(file.uri), wanted) == first
    assert numbers_of(keys) is None


def test_a_column_with_nulls_is_not_read_for_nothing(tmp_path: Path, cache: Path) -> None:
    looked_up_twice(table(tmp_path / "t", pa.array([1, None, 3])), [3])
    assert not list(cache.glob("*/*"))


def test_null_is_wanted_where_none_is(tmp_path: Path) -> None:
    file = table(tmp_path / "t", pa.array([1, 2, 3]))
    looked_up_twice(file, [None, 2])
    assert found(DeltaFile(file.uri), [None, 2]) == {2: 1}


def test_rows_that_are_gone_stay_gone(tmp_path: Path, cache: Path) -> None:
    file = table(tmp_path / "t", pa.array(BACKWARDS))
    file.engine.look_up(Wanted(pa.table({"k": [1]}), ["k"]))
    for keys in ([5, 900], [6, 900], [7]):  # marks: the file stays, and so does what is kept of it
        merge = Merge(pa.table({"k": keys}), ["k"], (), always, gone=pa.repeat(True, len(keys)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("headpond.lake.engine.merge.SMALL_BYTES", 0)
            file.merge(merge)
        assert found(DeltaFile(file.uri), [5, 6, 7, 8, 900]).keys() <= {6, 7, 8}
    assert found(file, [5, 6, 7, 8, 900]) == {8: BACKWARDS.index(8)}
    assert len([each for each in cache.glob("*/*.npy") if each.stat().st_size]) == 1


def cut(content: bytes) -> bytes:
    return content[:-8]


def of_another_kind(content: bytes) -> bytes:
    return content.replace(b"'<i8'", b"'<f8'")


def nothing(content: bytes) -> bytes:
    return content[:0]


def of_another_file(content: bytes) -> bytes:
    return content.replace(b"1000", b"999 ")[:-8]


@pytest.mark.parametrize("damage", [cut, of_another_kind, nothing, of_another_file])
def test_what_is_damaged_is_made_again(damage: Callable[[bytes], bytes], tmp_path: Path, cache: Path) -> None:
    file = table(tmp_path / "t", pa.array(IN_ORDER))
    looked_up_twice(file, [1])
    (place,) = cache.glob("*/*.npy")
    whole = place.read_bytes()
    damaged = damage(whole)
    assert damaged != whole
    place.write_bytes(damaged)
    assert found(DeltaFile(file.uri), [7, 999, 1000]) == {7: 7, 999: 999}
    assert place.read_bytes() == whole


def test_tables_of_one_relative_path_are_not_one(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        looked_up_twice(table(Path("t"), pa.array(IN_ORDER)), [1])
    assert len(list(cache.iterdir())) == 2


def test_statistics_that_do_not_say(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = table(tmp_path / "t", pa.array(IN_ORDER))
    monkeypatch.setattr(DataFile, "stats", {"numRecords": None, "nullCount": None})
    assert looked_up_twice(file, [7]) == {7: 7}
    assert not list(cache.glob("*/*"))


def test_another_user_cannot_read_it(tmp_path: Path, cache: Path) -> None:
    looked_up_twice(table(tmp_path / "t", pa.array(IN_ORDER)), [1])
    assert {each.stat().st_mode & 0o777 for each in (cache, *cache.iterdir())} == {0o700}


def test_without_a_folder_to_write_to(tmp_path: Path, cache: Path) -> None:
    cache.parent.write_text("a file")
    file = table(tmp_path / "t", pa.array(BACKWARDS))
    assert looked_up_twice(file, [7]) == {7: 992}


def test_a_user_without_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADPOND_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {}[uid])
    with pytest.raises(RuntimeError):
        Path("~").expanduser()
    assert looked_up_twice(table(tmp_path / "t", pa.array(BACKWARDS)), [7]) == {7: 992}


def test_a_full_disk(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    file = table(tmp_path / "t", pa.array(BACKWARDS))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert found(DeltaFile(file.uri), [7]) == {7: 992}
        again = DeltaFile(file.uri)
        assert [found(again, [key]) for key in (7, 8)] == [{7: 992}, {8: 991}]
    assert [each.stat().st_size for each in cache.glob("*/*")] == [0]
    assert found(DeltaFile(file.uri), [7]) == {7: 992}
    assert all(each.stat().st_size for each in cache.glob("*/*"))


def test_a_file_that_each_batch_writes_again_is_never_kept(tmp_path: Path, cache: Path) -> None:
    file = table(tmp_path / "t", pa.array(IN_ORDER), marks=False)
    for number in range(5):
        file.merge(Merge(pa.table({"k": [number], "v": [-1]}), ["k"], (), always))
        assert not any(each.stat().st_size for each in cache.glob("*/*"))
    assert len(list(cache.glob("*/*"))) == 1


@pytest.mark.parametrize("marks", [False, True])
def test_parts_of_a_batch(tmp_path: Path, cache: Path, *, marks: bool) -> None:
    """They ask one after the other: only of a table whose files stay is that a second time."""
    file = table(tmp_path / "t", pa.array(IN_ORDER), marks=marks)
    snapshot = file.engine.log.newest()
    for number in range(3):
        engine = PartEngine(file.engine.folder, snapshot)
        engine.merge(Merge(pa.table({"k": [number], "v": [-1]}), ["k"], (), always))
        assert [part.going[name].tolist() for part in engine.parts for name in part.going] == [[number]]
    assert any(each.stat().st_size for each in cache.glob("*/*")) == marks


def test_what_is_kept_goes_after_its_file(tmp_path: Path, cache: Path) -> None:
    place = tmp_path / "t"
    file = table(place, pa.array(IN_ORDER))
    looked_up_twice(file, [1])
    (kept,) = cache.glob("*/*.npy")
    file.append(pa.table({"k": [5000], "v": [1]}))
    file.compact()
    looked_up_twice(file, [1])
    assert kept.exists()  # another process may just have made it
    long_ago = time.time() - 7200
    os.utime(kept, (long_ago, long_ago))
    file.append(pa.table({"k": [5001], "v": [1]}))
    file.compact()
    assert looked_up_twice(file, [1, 5001]) == {1: 1, 5001: 1}
    assert not kept.exists()


def test_a_table_that_nobody_asks_for_a_month(tmp_path: Path, cache: Path) -> None:
    first, second = (table(tmp_path / name, pa.array(IN_ORDER)) for name in "ab")
    looked_up_twice(first, [1])
    (kept,) = cache.iterdir()
    long_ago = time.time() - 40 * 86_400
    os.utime(kept, (long_ago, long_ago))
    found(DeltaFile(first.uri), [2])  # asked for again
    looked_up_twice(second, [1])
    assert kept.exists()
    os.utime(kept, (long_ago, long_ago))
    second.append(pa.table({"k": [5000], "v": [1]}))
    found(DeltaFile(second.uri), [5000])
    assert not kept.exists()
    assert looked_up_twice(first, [1]) == {1: 1}


@given(
    keys=st.lists(st.integers(-9, 9), min_size=1),
    wanted=st.sets(st.integers(-12, 12)),
    in_order=st.booleans(),
)
def test_rows_of_keys(*, keys: list[int], wanted: set[int], in_order: bool) -> None:
    keys = sorted(keys) if in_order else keys
    order = np.argsort(keys, kind="stable")
    content = np.array([np.array(keys)[order], *([] if in_order else [order])], np.int64)
    hits = Keys(content).find(np.array(sorted(wanted), np.int64))
    expected = [(row, key) for row, key in enumerate(keys) if key in wanted]
    assert list(zip(hits.rows.tolist(), hits.keys.tolist(), strict=True)) == expected
