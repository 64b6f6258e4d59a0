"""Files of an archive whose compression is cut short or damaged: what is whole, and words about the rest."""

from __future__ import annotations

import gzip
import io
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.kinesis.archive.compressed import MAGIC, head, opened, opened_bytes, texts, whole
from headpond.kinesis.archive.lines import OVERLONG, read_lines, read_text, shortened
from tests.kit.support import share_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TEXT = b"".join(b'{"n": %d}\n' % number for number in range(20_000))


def lines(content: io.BufferedIOBase, name: str) -> Iterator[bytes]:
    """What a file's pieces have, line by line."""
    for text, count in texts(content, name, 1_000):
        found = text.splitlines(keepends=True)
        assert len(found) == count
        yield from found


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


@settings(max_examples=share_of(50))
@given(
    st.lists(st.sampled_from([b"", b"a", b"b" * 70, b" "]), max_size=60),
    st.sampled_from([b"", b"\n"]),
    st.integers(1, 90),
)
def test_pieces_make_up_the_file(rows: list[bytes], end: bytes, size_bytes: int) -> None:
    """Whole lines each, whatever the bounds; plain and compressed."""
    text = b"\n".join(rows) + end
    for content in (text, gzip.compress(text)):
        pieces = list(texts(opened_bytes(content), "it", size_bytes))
        assert b"".join(piece for piece, _ in pieces) == text
        assert [len(piece.splitlines()) for piece, _ in pieces] == [count for _, count in pieces]


@pytest.mark.slow
def test_a_file_may_expand_to_very_many_empty_lines() -> None:
    """Fifty million, which no loop in Python looks at one by one, and a record behind them."""
    content = gzip.compress(b"\n" * (50 << 20) + b'{"data": "eA=="}\n', 1)
    first, found = 1, []
    for text, count in texts(opened_bytes(content), "it", 16 << 20):
        found += read_text(text, stream="s", file="f", first_line=first).to_pylist()
        first += count
    assert [(row["data"], row["sequence_number"]) for row in found] == [(b"x", str((50 << 20) + 1))]


def test_what_a_file_that_is_read_whole_expands_to_is_bounded() -> None:
    """The end tells, as that of a damaged one; a plain file is as large as it is."""
    text = b"x" * (3 << 20)
    assert whole(opened_bytes(text), "it", 1 << 20) == text
    assert whole(opened_bytes(gzip.compress(text)), "it", 3 << 20) == text
    held = whole(opened_bytes(gzip.compress(text)), "it", 1 << 20)
    assert held == b"x" * (1 << 20) + b"\nit: it expands to more than 1 MiB; decompress it first"


def test_a_line_of_64_mebibytes_is_the_longest() -> None:
    """Without a word from anybody."""
    longest = b"x" * (64 << 20)
    assert shortened(longest) is longest
    assert len(shortened(longest + b"x")) < 2_000


@pytest.mark.parametrize("packed", [bytes, gzip.compress])
def test_a_line_that_is_too_long_is_a_bad_line(
    monkeypatch: pytest.MonkeyPatch, packed: Callable[[bytes], bytes]
) -> None:
    """A small file may expand to one: no more than its beginning is held, and those around it are read."""
    for module in ("lines", "compressed"):
        monkeypatch.setattr(f"headpond.kinesis.archive.{module}.MAX_LINE_BYTES", 3 << 20)
    good = b'{"data":"aGVsbG8="}\n'
    content = packed(good + b"x" * (20 << 20) + b"\n" + good * 2)
    pieces = list(texts(opened_bytes(content), "it"))
    assert max(len(text) for text, _ in pieces) <= (3 << 20)
    assert sum(count for _, count in pieces) == 4
    rows = [
        row for text, _ in pieces for row in read_lines(text.splitlines(), stream="s", file="f").to_pylist()
    ]
    assert [row["problem"] for row in rows] == [None, "archive_bad_line", None, None]
    assert rows[1]["data"].startswith(OVERLONG + b"xxx")
