"""What a worker of the join has at hand: chunks in its memory, and in files of its machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from headpond.spark.join.at_hand import FileCache, MemoryCache
from tests.kstreams.test_join_chunks import SCHEMA, rows, same

if TYPE_CHECKING:
    from pathlib import Path


def test_caches_give_what_was_put_or_nothing(tmp_path: Path) -> None:
    """Files by uid and columns, memory by task and uid, those asked for last."""
    files = FileCache(tmp_path / "a" / "b")
    written = rows(50)
    assert files.get(b"u", SCHEMA) is None
    files.keep_only(set())
    files.put(b"u", written)
    files.put(b"other", written)
    found = files.get(b"u", SCHEMA)
    assert found is not None
    assert same(found, written)
    assert files.get(b"u", pa.schema([*SCHEMA, ("more", pa.int8())])) is None
    files.keep_only({b"u"})
    assert files.get(b"other", SCHEMA) is None
    (next((tmp_path / "a" / "b").iterdir())).write_bytes(b"cut")
    assert files.get(b"u", SCHEMA) is None
    one = MemoryCache()
    one.put("a", b"u", written)
    one.put("a", b"u", written)
    memory = MemoryCache(max_bytes=3 * one.bytes)
    for task, uid in (("a", b"1"), ("a", b"2"), ("b", b"1")):
        memory.put(task, uid, written)
    assert memory.get("a", b"1") is written
    memory.put("b", b"2", written)
    assert memory.get("a", b"2") is None
    assert [memory.get(*at) for at in (("a", b"1"), ("b", b"1"), ("b", b"2"))] == [written] * 3
    assert memory.keep_only("b", {b"2", b"3"}) == 1
    assert memory.get("b", b"1") is None
    assert memory.bytes == 2 * one.bytes
    small = MemoryCache(max_bytes=1)
    small.put("a", b"1", written)
    small.put("a", b"2", written)
    assert small.get("a", b"1") is None
    assert small.get("a", b"2") is written
