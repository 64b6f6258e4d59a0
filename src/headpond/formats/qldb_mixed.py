"""A file of QLDB stream records one after the other, some of them still in KPL aggregates, cut into both.

::

    F3 89 9A C2 … digest │ E0 01 00 EA table struct │ 0A │ F3 89 9A C2 … digest
    aggregate              datum                      newline, skipped

An aggregate has no length: it ends where its digest holds, before the next record or the end.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from headpond.formats.ion import MARKER
from headpond.formats.kpl import MAGIC
from headpond.formats.qldb_files import split_datums

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_AGGREGATE_BYTES = 10 << 20
"""Bytes an aggregate may have: a Kinesis record's bound."""
_DIGEST_BYTES = 16


def split_mixed(data: bytes) -> Iterator[bytes]:
    """Cut records that lie one after the other, aggregates among them, with or without newlines between.

    An aggregate has no length: it ends where its digest holds, before the next record or the end.
    """
    at = 0
    while at < len(data):
        if data.startswith(MAGIC, at):
            stop = _end_of_aggregate(data, at)
            yield data[at:stop]
            at = stop
            while data[at : at + 1] in (b"\n", b"\r"):
                at += 1
            continue
        stop = _next_aggregate(data, at)
        yield from (datum.data for datum in split_datums(data[at:stop]))
        at = stop


def _next_aggregate(data: bytes, at: int) -> int:
    """Where the next aggregate begins whose digest holds; the end where there is none."""
    found = data.find(MAGIC, at)
    while found >= 0:
        if _digest_holds(data, found) is not None:
            return found
        found = data.find(MAGIC, found + 1)
    return len(data)


def _end_of_aggregate(data: bytes, at: int) -> int:
    stop = _digest_holds(data, at)
    if stop is not None:
        return stop
    # Damaged: it costs the bytes up to the next aggregate that holds.
    return _next_aggregate(data, at + len(MAGIC))


def _digest_holds(data: bytes, at: int) -> int | None:
    """Where an aggregate ends, going from one place where a record may begin to the next."""
    digest = hashlib.md5(usedforsecurity=False)
    hashed = at + len(MAGIC)
    for stop in _ends(data, hashed + _DIGEST_BYTES):
        if stop - _DIGEST_BYTES > hashed:
            digest.update(data[hashed : stop - _DIGEST_BYTES])
            hashed = stop - _DIGEST_BYTES
        if digest.digest() == data[stop - _DIGEST_BYTES : stop]:
            return stop
        if stop - at > MAX_AGGREGATE_BYTES:
            return None
    return None


def _ends(data: bytes, at: int) -> Iterator[int]:
    """Places at or after `at` where a record may end: before a marker, an aggregate, a newline, the end."""
    nexts = {mark: data.find(mark, at) for mark in (MARKER, MAGIC, b"\n")}
    while True:
        stop = min((found for found in nexts.values() if found >= 0), default=len(data))
        yield stop
        if stop >= len(data):
            return
        for mark, found in nexts.items():
            if found == stop:
                nexts[mark] = data.find(mark, stop + 1)
