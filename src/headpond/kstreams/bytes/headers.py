"""Record headers as Kafka Streams' header-aware stores write them.

::

    headersBytes   count | header | header | …            nothing at all when there are no headers
    header         key length | key, UTF-8 | value length, or -1 for None | value
    prefix         headersSize | headersBytes             00 when there are no headers

Counts, lengths and sizes are zigzag varints of 32 bits: little-endian groups of seven bits, the high
bit says that more follow. Order and repeated keys are kept; a value of None differs from an empty one.

What a reader accepts is what Kafka Streams' reader accepts: a count of zero or less inside a block means
no headers, bytes after the last header of a block are skipped, a varint may be longer than needed, and
ill-formed UTF-8 in a key becomes U+FFFD. Everything else is a `SerializationError` with a reason.
Source: KIP-1271 and KIP-1300; spec "window store", sections 1 and 2.
"""

from __future__ import annotations

from collections.abc import Sequence

from headpond.core.errors import InvalidData, UsageError

Header = tuple[str, bytes | None]
"""Key and value of one header; the value may be None."""
Headers = Sequence[Header]
"""The headers of a record, in order; keys may repeat."""

_INT32_LIMIT = 1 << 31
_MAX_VARINT_BYTES = 5
_MORE = 0x80
_MASK32 = 0xFFFFFFFF


class SerializationError(InvalidData):
    """Bytes of a store's value or key are not of the format that they are read in.

    `facts["reason"]` is one of: `empty`, `varint_cut`, `varint_too_long`, `negative_length`,
    `length_beyond_end`, `headers_cut`, `timestamp_cut`, `key_too_short`, `bad_side`, `bad_list`.
    """


def damaged(reason: str, message: str, **facts: object) -> SerializationError:
    """Build the error; the remedy is the same for all, since formats are declared and not guessed."""
    return SerializationError(
        message,
        next_step="Check that the store is read in the format that it was written in.",
        reason=reason,
        **facts,
    )


def encode_varint(number: int) -> bytes:
    """Encode a signed 32-bit number as a zigzag varint of 1 to 5 bytes.

    Raises:
        UsageError: The number does not fit into 32 bits.
    """
    if not -_INT32_LIMIT <= number < _INT32_LIMIT:
        raise UsageError(f"A varint holds 32 bits, not {number}.", number=number)
    rest = (number << 1) ^ (number >> 31)
    if rest < _MORE:
        return bytes((rest,))
    groups = bytearray()
    while rest >= _MORE:
        groups.append(rest & 0x7F | _MORE)
        rest >>= 7
    groups.append(rest)
    return bytes(groups)


def decode_varint(data: bytes, at: int = 0, end: int | None = None) -> tuple[int, int]:
    """Decode the zigzag varint at `at`; return the number and the position after it.

    Raises:
        SerializationError: `varint_cut` or `varint_too_long`.
    """
    end = len(data) if end is None else end
    value = shift = 0
    for position in range(at, at + _MAX_VARINT_BYTES):
        if position >= end:
            raise damaged(
                "varint_cut", f"A varint at byte {at} is cut off after {end - at} bytes.", offset=at
            )
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < _MORE:
            # The fifth byte holds four bits; Java shifts the others out silently.
            value &= _MASK32
            return (value >> 1) ^ -(value & 1), position + 1
        shift += 7
    raise damaged("varint_too_long", f"A varint at byte {at} is longer than 5 bytes.", offset=at)


def encode_headers(headers: Headers | None) -> bytes:
    """Encode headers as headersBytes; no headers are no bytes.

    Raises:
        UsageError: They are not pairs, a key is not text, holds half a surrogate pair, or a value is not
            bytes.
    """
    if not headers:
        return b""
    try:
        pairs = [(key, value) for key, value in headers]
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"Headers are pairs of key and value, and these are {headers!r:.200}.",
            next_step="Write them as (('trace-id', b'4bf9'), …).",
        ) from error
    parts = [encode_varint(len(pairs))]
    for key, value in pairs:
        key_bytes = _key_bytes(key)
        parts += (encode_varint(len(key_bytes)), key_bytes)
        if value is None:
            parts.append(b"\x01")
        elif isinstance(value, bytes):
            parts += (encode_varint(len(value)), value)
        else:
            raise UsageError(f"The value of header {key!r} is {type(value).__name__}, not bytes.", key=key)
    return b"".join(parts)


def _key_bytes(key: str) -> bytes:
    if not isinstance(key, str):
        raise UsageError(f"The key of a header is {type(key).__name__}, not text.", key=key)
    try:
        return key.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"The header key {key!r} holds half a surrogate pair.", key=key) from error


def decode_headers(data: bytes, at: int = 0, end: int | None = None) -> list[Header]:
    """Decode the headersBytes that fill `data[at:end]`.

    Raises:
        SerializationError: The block is damaged.
    """
    end = len(data) if end is None else end
    if at == end:
        return []
    count, at = decode_varint(data, at, end)
    headers: list[Header] = []
    for _ in range(count):
        if at >= end:
            raise damaged(
                "headers_cut",
                f"{count} headers are announced, {len(headers)} are there.",
                offset=at,
                count=count,
            )
        key_size, at = decode_varint(data, at, end)
        key_end = _end_of(at, key_size, end, "key of a header")
        key = data[at:key_end].decode(errors="replace")
        value_size, at = decode_varint(data, key_end, end)
        if value_size == -1:
            headers.append((key, None))
            continue
        value_end = _end_of(at, value_size, end, "value of a header")
        headers.append((key, data[at:value_end]))
        at = value_end
    return headers


def encode_prefix(headers: Headers | None) -> bytes:
    """Encode what comes before the value in every format with headers: headersSize and headersBytes."""
    if not headers:
        return b"\x00"
    block = encode_headers(headers)
    return encode_varint(len(block)) + block


def prefix_bounds(data: bytes) -> tuple[int, int]:
    """Find where the headersBytes of a value start and end, without reading them.

    Raises:
        SerializationError: There is no sound size, or it points beyond the end.
    """
    if not data:
        raise damaged("empty", "A value with headers has at least one byte, and this one has none.", offset=0)
    size = data[0]
    if size < _MORE:
        start = 1
        size = (size >> 1) ^ -(size & 1)
    else:
        size, start = decode_varint(data)
    return start, _end_of(start, size, len(data), "headers block")


def decode_prefix(data: bytes) -> tuple[list[Header], int]:
    """Decode the headers of a value; return them and where the rest starts.

    Raises:
        SerializationError: The size or the block is damaged.
    """
    if data[:1] == b"\x00":
        return [], 1
    start, end = prefix_bounds(data)
    return decode_headers(data, start, end), end


def _end_of(at: int, size: int, end: int, what: str) -> int:
    if size < 0:
        raise damaged(
            "negative_length", f"The {what} has the negative length {size}.", offset=at, length=size
        )
    if at + size > end:
        raise damaged(
            "length_beyond_end",
            f"The {what} has {size} bytes by its length, and {end - at} are left.",
            offset=at,
            length=size,
            left=end - at,
        )
    return at + size
