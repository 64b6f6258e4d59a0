"""How window stores are made: formats, suppliers, builders, and the KIP's `Stores`.

::

    supplier   which store, where: in memory or on RocksDB, of which format
    builder    supplier + serdes + layers → a typed store

    typed store (serialises) → [cache] → [changelog] → [adapter] → store of bytes

The builder asks the supplied store for its format and puts the adapter in between that it needs, so that a
new interface runs on an old directory. A supplier gives its directory's parent at build time: the task's
directory. Source: KIP-1300, "Public Interfaces" and "New Store Wrapper Stack".
"""

# ruff: noqa: FBT001 - whether duplicates are kept is positional in the KIP's signatures
from __future__ import annotations

import datetime as dt
import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headpond.errors import UsageError
from headpond.formats.window_values import ValueFormat
from headpond.windows.adapters import adapted
from headpond.windows.caching import MAX_CACHED_BYTES, CachingWindowStore
from headpond.windows.changelog import (
    ChangeLoggingWindowBytesStore,
    ChangeLoggingWindowBytesStoreWithHeaders,
    RecordContext,
)
from headpond.windows.metered import (
    MeteredWindowStore,
    TimestampedWindowStore,
    TimestampedWindowStoreWithHeaders,
    WindowStore,
    WindowStoreWithHeaders,
)
from headpond.windows.rocks_store import ROCKSDB_STORES
from headpond.windows.segmented import InMemoryWindowStore
from headpond.windows.segments import StoreSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from headpond.windows.contract import ChangelogRecord, WindowBytesStore
    from headpond.windows.serdes import Serde

_log = logging.getLogger("headpond.windows")
K = TypeVar("K")
V = TypeVar("V")
Duration = int | dt.timedelta
"""A time span: milliseconds, or a timedelta."""
S = TypeVar("S", bound=MeteredWindowStore[Any, Any, Any])


class DslStoreFormat(StrEnum):
    """The formats that a join's or an aggregation's store may have; the last one is KIP-1300's."""

    PLAIN = "PLAIN"
    TIMESTAMPED = "TIMESTAMPED"
    HEADERS = "HEADERS"
    PLAIN_HEADERS = "PLAIN_HEADERS"

    @property
    def value_format(self) -> ValueFormat:
        """The layout of the values."""
        return _VALUE_FORMATS[self]

    @classmethod
    def parse(cls, name: str) -> DslStoreFormat:
        """Find a format by its name, in any case.

        Raises:
            UsageError: There is no format of that name.
        """
        try:
            return cls(name.upper())
        except ValueError as error:
            known = ", ".join(cls)
            raise UsageError(
                f"{name!r} is no store format.", next_step=f"The formats are {known}."
            ) from error


_VALUE_FORMATS = {
    DslStoreFormat.PLAIN: ValueFormat.PLAIN,
    DslStoreFormat.TIMESTAMPED: ValueFormat.TIMESTAMPED,
    DslStoreFormat.HEADERS: ValueFormat.TIMESTAMPED_HEADERS,
    DslStoreFormat.PLAIN_HEADERS: ValueFormat.PLAIN_HEADERS,
}


class WindowBytesStoreSupplier(ABC):
    """Makes one store of bytes."""

    settings: StoreSettings
    value_format: ValueFormat

    @abstractmethod
    def get(self, directory: Path | str | None = None) -> WindowBytesStore:
        """Make the store; a persistent one lies at `directory/<name>`."""


@dataclass(frozen=True, slots=True)
class RocksDbWindowBytesStoreSupplier(WindowBytesStoreSupplier):
    """Makes a store on RocksDB; the two switches are those of `SegmentedWindowStore`."""

    settings: StoreSettings
    value_format: ValueFormat
    seed_counter: bool = True
    recover_stream_time: bool = False

    def get(self, directory: Path | str | None = None) -> WindowBytesStore:
        """Open or make the store at `directory/<name>`.

        Raises:
            UsageError: No directory was given.
        """
        if directory is None:
            raise UsageError(
                f"Store {self.settings.name} is persistent and needs a directory.",
                next_step="Pass the task's directory to build().",
            )
        return ROCKSDB_STORES[self.value_format](
            Path(directory) / self.settings.name,
            self.settings,
            seed_counter=self.seed_counter,
            recover_stream_time=self.recover_stream_time,
        )


@dataclass(frozen=True, slots=True)
class InMemoryWindowBytesStoreSupplier(WindowBytesStoreSupplier):
    """Makes a store in memory. It holds the bytes of whatever interface it is built for."""

    settings: StoreSettings
    value_format: ValueFormat

    def get(self, directory: Path | str | None = None) -> WindowBytesStore:
        """Make the store; it needs no directory."""
        del directory
        return InMemoryWindowStore(self.settings, self.value_format)


class WindowStoreBuilder(Generic[S]):
    """Puts a typed store together.

    Args:
        store_class: The typed store.
        supplier: Where the bytes are.
        key_serde: Turns keys into bytes.
        value_serde: Turns values into bytes.
    """

    def __init__(
        self,
        store_class: type[S],
        supplier: WindowBytesStoreSupplier,
        key_serde: Serde[Any],
        value_serde: Serde[Any],
    ) -> None:
        self._store_class = store_class
        self._supplier = supplier
        self._key_serde = key_serde
        self._value_serde = value_serde
        self._log: Callable[[ChangelogRecord], object] | None = None
        self._first_seqnum: int | None = None
        self._cache_bytes: int | None = None

    def with_logging_enabled(
        self, log: Callable[[ChangelogRecord], object], *, first_seqnum: int | None = None
    ) -> WindowStoreBuilder[S]:
        """Hand every change to `log`; see `ChangeLoggingWindowBytesStore` for `first_seqnum`."""
        self._log, self._first_seqnum = log, first_seqnum
        return self

    def with_caching_enabled(self, *, max_bytes: int = MAX_CACHED_BYTES) -> WindowStoreBuilder[S]:
        """Hold writes back in a cache; with duplicates there is none, and a warning says so."""
        if self._supplier.settings.retain_duplicates:
            _log.warning(
                "Store %s keeps duplicates and is not cached: each of its entries is written once anyway.",
                self._supplier.settings.name,
            )
        else:
            self._cache_bytes = max_bytes
        return self

    def build(self, directory: Path | str | None = None, context: RecordContext | None = None) -> S:
        """Make the store; a persistent one lies at `directory/<name>`."""
        context = context or RecordContext()
        wanted = self._store_class.FORMAT
        store = self._supplier.get(directory)
        try:
            store = adapted(store, wanted)
            if self._log is not None:
                layer = (
                    ChangeLoggingWindowBytesStoreWithHeaders
                    if wanted is ValueFormat.PLAIN_HEADERS
                    else ChangeLoggingWindowBytesStore
                )
                store = layer(store, self._log, context, first_seqnum=self._first_seqnum)
            if self._cache_bytes is not None:
                store = CachingWindowStore(store, max_bytes=self._cache_bytes)
            return self._store_class(store, self._key_serde, self._value_serde, context)
        except BaseException:
            store.close()
            raise


class Stores:
    """Makes suppliers and builders, by the names that Kafka Streams gives them."""

    @staticmethod
    def persistent_window_store(
        name: str, retention: Duration, window_size: Duration, retain_duplicates: bool
    ) -> WindowBytesStoreSupplier:
        """Supply a plain store on RocksDB."""
        return _persistent(ValueFormat.PLAIN, name, retention, window_size, retain_duplicates)

    @staticmethod
    def persistent_timestamped_window_store(
        name: str, retention: Duration, window_size: Duration, retain_duplicates: bool
    ) -> WindowBytesStoreSupplier:
        """Supply a timestamped store on RocksDB."""
        return _persistent(ValueFormat.TIMESTAMPED, name, retention, window_size, retain_duplicates)

    @staticmethod
    def persistent_timestamped_window_store_with_headers(
        name: str, retention: Duration, window_size: Duration, retain_duplicates: bool
    ) -> WindowBytesStoreSupplier:
        """Supply a timestamped store with headers on RocksDB."""
        return _persistent(ValueFormat.TIMESTAMPED_HEADERS, name, retention, window_size, retain_duplicates)

    @staticmethod
    def persistent_window_store_with_headers(
        name: str, retention: Duration, window_size: Duration, retain_duplicates: bool
    ) -> WindowBytesStoreSupplier:
        """Supply KIP-1300's store on RocksDB: headers, and no timestamp in the value."""
        return _persistent(ValueFormat.PLAIN_HEADERS, name, retention, window_size, retain_duplicates)

    @staticmethod
    def in_memory_window_store(
        name: str,
        retention: Duration,
        window_size: Duration,
        retain_duplicates: bool,
        value_format: ValueFormat = ValueFormat.PLAIN_HEADERS,
    ) -> WindowBytesStoreSupplier:
        """Supply a store in memory, for the interface of the given format."""
        settings = StoreSettings(name, _ms(retention), _ms(window_size), retain_duplicates)
        return InMemoryWindowBytesStoreSupplier(settings, value_format)

    @staticmethod
    def window_store_builder(
        supplier: WindowBytesStoreSupplier, key_serde: Serde[K], value_serde: Serde[V]
    ) -> WindowStoreBuilder[WindowStore[K, V]]:
        """Build a store of values alone."""
        return WindowStoreBuilder(WindowStore, supplier, key_serde, value_serde)

    @staticmethod
    def timestamped_window_store_builder(
        supplier: WindowBytesStoreSupplier, key_serde: Serde[K], value_serde: Serde[V]
    ) -> WindowStoreBuilder[TimestampedWindowStore[K, V]]:
        """Build a store of values with timestamps."""
        return WindowStoreBuilder(TimestampedWindowStore, supplier, key_serde, value_serde)

    @staticmethod
    def timestamped_window_store_with_headers_builder(
        supplier: WindowBytesStoreSupplier, key_serde: Serde[K], value_serde: Serde[V]
    ) -> WindowStoreBuilder[TimestampedWindowStoreWithHeaders[K, V]]:
        """Build a store of values with timestamps and headers; runs on older stores through an adapter."""
        return WindowStoreBuilder(TimestampedWindowStoreWithHeaders, supplier, key_serde, value_serde)

    @staticmethod
    def window_store_with_headers_builder(
        supplier: WindowBytesStoreSupplier, key_serde: Serde[K], value_serde: Serde[V]
    ) -> WindowStoreBuilder[WindowStoreWithHeaders[K, V]]:
        """Build KIP-1300's store; runs on each older store through an adapter."""
        return WindowStoreBuilder(WindowStoreWithHeaders, supplier, key_serde, value_serde)


WindowStoreWithHeadersBuilder = WindowStoreBuilder[WindowStoreWithHeaders[K, V]]
"""The KIP's name for what `Stores.window_store_with_headers_builder` gives."""


class RocksDBDslStoreSuppliers:
    """The suppliers that a join's stores come from when they are kept on RocksDB."""

    @staticmethod
    def window_store(
        store_format: DslStoreFormat,
        name: str,
        retention: Duration,
        window_size: Duration,
        retain_duplicates: bool,
    ) -> WindowBytesStoreSupplier:
        """Supply the store of a format."""
        return _persistent(store_format.value_format, name, retention, window_size, retain_duplicates)


def _persistent(
    value_format: ValueFormat, name: str, retention: Duration, window_size: Duration, retain_duplicates: bool
) -> WindowBytesStoreSupplier:
    settings = StoreSettings(name, _ms(retention), _ms(window_size), retain_duplicates)
    return RocksDbWindowBytesStoreSupplier(settings, value_format)


def _ms(span: Duration) -> int:
    return span if isinstance(span, int) else span // dt.timedelta(milliseconds=1)
