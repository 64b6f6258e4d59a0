"""Ordinary user code around window stores that must type-check under mypy strict. It is never run."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_type

from headpond.formats.window_values import (
    decode_plain_headers,
    encode_plain_headers,
    timestamped_headers_to_plain_headers,
)
from headpond.windows import (
    BytesSerde,
    DslStoreFormat,
    RocksDBDslStoreSuppliers,
    StoreDirectory,
    Stores,
    StringSerde,
    ValueAndHeaders,
    WindowStoreWithHeaders,
    migrate,
)

if TYPE_CHECKING:
    from pathlib import Path


def keep_headers(task: Path) -> list[bytes | None]:
    supplier = RocksDBDslStoreSuppliers.window_store(
        DslStoreFormat.PLAIN_HEADERS, "orders", 600_000, 60_000, retain_duplicates=True
    )
    builder = Stores.window_store_with_headers_builder(supplier, StringSerde(), BytesSerde())
    with builder.build(task) as store:
        assert_type(store, WindowStoreWithHeaders[str, bytes])
        store.put("k", ValueAndHeaders.make(b"v", [("trace-id", b"1"), ("trace-id", None)]), 0)
        return [found.value for _, found in store.fetch("k", 0, 1)]


def convert(data: bytes) -> bytes | None:
    value, headers = decode_plain_headers(encode_plain_headers(data, [("k", None)]))
    assert_type(value, bytes)
    assert_type(headers, list[tuple[str, bytes | None]])
    return timestamped_headers_to_plain_headers(data)


def bring_up_to_date(directory: Path) -> int:
    formats = {str(each) for each in StoreDirectory(directory).formats()}
    return 0 if formats == {"plain_headers"} else migrate(directory, drop_timestamps=True).entries
