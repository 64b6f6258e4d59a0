"""Files of an archive whose compression is cut short or damaged: what is whole, and words about the rest."""

from __future__ import annotations

import gzip
import io

import pytest

from headpond.kinesis.archive.compressed import MAGIC, head, lines, opened, opened_bytes, whole

TEXT = b"".join(b'{"n": %d}\n' % number for number in range(20_000))


def test_plain_and_compressed_files_are_read_alike() -> None:
    """By their first bytes."""
    for content in (TEXT, gzip.compress(TEXT)):
        assert head(opened_bytes(content), 8) == TEXT[:8]
        assert whole(opened_bytes(content), "it") == TEXT
        assert b"".join(lines(opened_bytes(content), "it")) == TEXT


@pytest.mark.parametrize("cut", [3, 15, 2_000, 10_000])
def test_of_a_file_cut_short_the_end_tells(cut: int) -> None:
    """Every line of it is one of the whole file's or the reader's words, which come last and once."""
    content = gzip.compress(TEXT)[:cut]
    assert content.startswith(MAGIC)
    *good, last = lines(opened_bytes(content), "gzip file")
    assert all(line in TEXT for line in good)
    assert last.startswith(b"gzip file: ")
    assert whole(opened_bytes(content), "gzip file").split(b"\n")[-1] == last


def test_a_damaged_beginning_is_no_head_and_is_told_when_read() -> None:
    """Whatever it would have been."""
    content = MAGIC + b"\xff" * 100
    assert head(opened_bytes(content), 8) == b""
    assert [line[:3] for line in lines(opened_bytes(content), "it")] == [b"it:"]


def test_what_the_disk_raises_is_no_damage() -> None:
    """A store that does not answer must not look like a file that ends."""

    class Failing(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: object) -> int:  # noqa: ARG002
            raise OSError("no route")

    for compressed in (True, False):
        for read in (whole, lambda content, name: list(lines(content, name))):
            content = opened(io.BufferedReader(Failing()), compressed=compressed)
            with pytest.raises(OSError, match="no route"):
                read(content, "it")
