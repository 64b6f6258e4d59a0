"""The window-store vectors as the tests of this room use them: directories to open, operations to repeat."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING, Any

from headpond.kstreams import StoreSettings, ValueFormat
from headpond.kstreams.bytes.window_values import decode_value
from tests.kit.support import vector_bytes, vector_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from headpond.kstreams import WindowKey

KINDS = {
    # the vectors' name: what lies on disk, what the operations' interface was
    "plain": (ValueFormat.PLAIN, ValueFormat.PLAIN),
    "timestamped": (ValueFormat.TIMESTAMPED, ValueFormat.TIMESTAMPED),
    "headers": (ValueFormat.TIMESTAMPED_HEADERS, ValueFormat.TIMESTAMPED_HEADERS),
    "plain-behind-headers-adapter": (ValueFormat.PLAIN, ValueFormat.TIMESTAMPED_HEADERS),
    "timestamped-behind-headers-adapter": (ValueFormat.TIMESTAMPED, ValueFormat.TIMESTAMPED_HEADERS),
}


def unhex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def headers_of(listed: Iterable[Any] | None) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((key, unhex(value)) for key, value in listed or ())


def unpacked(name: str, to: Path) -> Path:
    """Unpack a vector's archive; gives the folder that the store directories lie in."""
    with tarfile.open(fileobj=io.BytesIO(vector_bytes(f"window-store/{name}.tar.gz"))) as archive:
        archive.extractall(to, filter="data")
    return to


def disk_vector(name: str) -> Any:
    return vector_json(f"window-store/disk/{name}.json")


def settings_of(vector: dict[str, Any], name: str = "win") -> StoreSettings:
    return StoreSettings(
        name, vector["retention_ms"], vector["window_size_ms"], bool(vector.get("retain_duplicates", True))
    )


def raw_pairs(vector_raw: dict[str, Any]) -> dict[str, dict[str, dict[bytes, bytes]]]:
    """Segment → column family → pairs, as bytes."""
    return {
        segment: {
            family: {bytes.fromhex(key): bytes.fromhex(value) for key, value in pairs}
            for family, pairs in families.items()
        }
        for segment, families in vector_raw.items()
    }


def listed(entries: Iterable[tuple[WindowKey, tuple[bytes, int | None, Any]]]) -> Iterator[dict[str, Any]]:
    """Entries in the vectors' form; a format without timestamps or headers leaves them out."""
    for key, (value, timestamp, headers) in entries:
        yield {
            "key": key.key.hex(),
            "window_start": key.timestamp,
            "value": value.hex(),
            "timestamp": timestamp,
            "headers": [[each, None if data is None else data.hex()] for each, data in headers],
        }


def value_and_headers(data: bytes) -> tuple[bytes, list[Any]]:
    """What plain+headers bytes say."""
    value, _, headers = decode_value(data, ValueFormat.PLAIN_HEADERS)
    return value, headers
