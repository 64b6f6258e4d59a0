"""Ordinary user code around window stores that must type-check under mypy strict. It is never run."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_type

from headpond.kstreams import (
    BytesSerde,
    StoreDirectory,
    StoreSettings,
    StringSerde,
    ValueAndHeaders,
    WindowStoreWithHeaders,
    migrate,
)
from headpond.kstreams.bytes.window_values import (
    ValueFormat,
    conversion,
    decode_value,
    encode_value,
)

if TYPE_CHECKING:
    from pathlib import Path


def keep_headers(task: Path) -> list[bytes | None]:
    settings = StoreSettings("orders", 600_000, 60_000, retain_duplicates=True)
    with WindowStoreWithHeaders.open(settings, StringSerde(), BytesSerde(), task) as store:
        assert_type(store, WindowStoreWithHeaders[str, bytes])
        store.put("k", ValueAndHeaders(b"v", (("trace-id", b"1"), ("trace-id", None))), 0)
        return [found.value for _, found in store.fetch("k", 0, 1)]


def convert(data: bytes) -> bytes | None:
    encoded = encode_value(data, 0, [("k", None)], ValueFormat.PLAIN_HEADERS)
    value, _, headers = decode_value(encoded, ValueFormat.PLAIN_HEADERS)
    assert_type(value, bytes)
    assert_type(headers, list[tuple[str, bytes | None]])
    return conversion(ValueFormat.TIMESTAMPED_HEADERS, ValueFormat.PLAIN_HEADERS)(data)


def bring_up_to_date(directory: Path) -> int:
    formats = {str(each) for each in StoreDirectory(directory).formats()}
    return 0 if formats == {"plain_headers"} else migrate(directory, drop_timestamps=True).entries
