"""Files of an archive that may be compressed with gzip, and may be cut short or damaged.

What comes after the damage no reader can have; the rows made of the file must show that it was there. So a
damaged file ends in words that cannot be a record, with the reader's reason::

    {"data": …}⏎ {"data": …}⏎ gzip file of 5120 bytes: Compressed file ended before …
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator

from headpond.kinesis.archive.lines import MAX_LINE_BYTES, TEXT_BYTES, cut_text, shortened

MAGIC = b"\x1f\x8b"
"""What a gzip file begins with."""
DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error)
"""What reading a file raises whose compression is cut short or damaged; not what a disk or a store does."""

MAX_WHOLE_BYTES = 256 << 20
"""What a compressed file that is read whole may expand to; it could be a thousand times its size."""
_READ_BYTES = 1 << 20


def opened(raw: io.BufferedIOBase, *, compressed: bool) -> io.BufferedIOBase:
    """Return a stream of what a file holds, decompressed where it is compressed."""
    return gzip.GzipFile(fileobj=raw) if compressed else raw


def opened_bytes(content: bytes) -> io.BufferedIOBase:
    """Return a stream of what the bytes of a file hold."""
    return opened(io.BytesIO(content), compressed=content.startswith(MAGIC))


def head(content: io.BufferedIOBase, size: int) -> bytes:
    """Read the first bytes; none where the compression is damaged, which is reported when it is read."""
    try:
        return content.read(size)
    except DAMAGE:
        return b""


def whole(content: io.BufferedIOBase, name: str, max_bytes: int = MAX_WHOLE_BYTES) -> bytes:
    """Read all of a file; of a damaged one what comes before the damage, and a line that is not a record.

    So is the end of a compressed file that expands to more than `max_bytes`.
    """
    found = io.BytesIO()
    try:
        while part := content.read(_READ_BYTES):
            found.write(part)
            if found.tell() > max_bytes and isinstance(content, gzip.GzipFile):
                found.truncate(max_bytes)
                raise EOFError(f"it expands to more than {max_bytes >> 20} MiB; decompress it first")
    except DAMAGE as error:
        found.seek(0, io.SEEK_END)
        found.write(f"\n{name}: {error}".encode())
    return found.getvalue()


def texts(content: io.BufferedIOBase, name: str, size_bytes: int = TEXT_BYTES) -> Iterator[tuple[bytes, int]]:
    """Read a file in pieces of whole lines, as `cut_text` cuts it.

    Of a damaged file the last line is not a record, and what came before it of a line is left out.
    """
    parts: list[bytes] = []
    size, enough, part = 0, size_bytes, b"?"
    while part:
        try:
            part, damage = content.read1(_READ_BYTES), None
        except DAMAGE as error:
            part, damage = b"", f"{name}: {error}".encode()
        parts.append(part)
        size += len(part)
        if part and size < enough:
            continue
        text = b"".join(parts)
        end = text.rfind(b"\n") + 1 if part or damage else len(text)
        if damage is not None:
            text, end = text[:end] + damage, end + len(damage)
        yield from cut_text(text[:end], size_bytes)
        rest = shortened(text[end:])
        parts, size = [rest], len(rest)
        # A line that does not end is not searched again each time.
        enough = size_bytes if end else min(2 * enough, MAX_LINE_BYTES + 1)
