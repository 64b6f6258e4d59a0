"""Texts of fragments in a file while their group is put together: one fragment in memory at a time.

::

    put("…")   file  ├─ text 0 ─┼─ text 1 ─┼─ text 2 ─┤      a piece: SHA-256, start, length
    crc32c     read in order, a block at a time
    joined     read in order, into the one text that is wanted
"""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Self

import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """One text: equal to another piece of the same text."""

    digest: bytes
    start: int = field(compare=False)
    length: int = field(compare=False)


class SpilledTexts:
    """Texts in a passing file, which is gone when this is closed (or the process ends)."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="headpond-chunks-")  # noqa: SIM115 - closed with this
        self._end = 0
        self._known: dict[bytes, Piece] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def size_bytes(self) -> int:
        """How large the file is."""
        return self._end

    def put(self, text: str) -> Piece:
        """Write a text, unless it is there."""
        content = text.encode()
        digest = hashlib.sha256(content).digest()
        if (known := self._known.get(digest)) is not None:
            return known
        self._file.seek(self._end)
        self._file.write(content)
        piece = self._known[digest] = Piece(digest, self._end, len(content))
        self._end += len(content)
        return piece

    def crc32c(self, pieces: Sequence[Piece]) -> int:
        """CRC-32C of the texts one after the other."""
        found = 0
        for block in self._blocks(pieces):
            found = crc32c.crc32c(block, found)
        return found

    def joined(self, pieces: Sequence[Piece]) -> str:
        """The texts one after the other."""
        content = bytearray(sum(piece.length for piece in pieces))
        at = 0
        for block in self._blocks(pieces):
            content[at : at + len(block)] = block
            at += len(block)
        return content.decode()

    def _blocks(self, pieces: Sequence[Piece]) -> Iterator[bytes]:
        for piece in pieces:
            self._file.seek(piece.start)
            left = piece.length
            while left:
                block = self._file.read(min(left, BLOCK_BYTES))
                left -= len(block)
                yield block
