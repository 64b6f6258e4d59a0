"""The new interface on top of a store that keeps an older format, without migrating anything.

::

    adapter                            what is written                     what is read
    plain → plain+headers              the value; headers are lost         no headers, value
    timestamped → plain+headers        timestamp -1, value; headers lost   no headers, value
    timestamped+headers → plain+headers   headers, timestamp -1, value     headers, value
    plain → timestamped+headers        the value                           no headers, timestamp -1, value
    timestamped → timestamped+headers  timestamp, value                    no headers, timestamp, value

An adapter translates values and never touches keys. It stands on a persistent store only: one in memory
holds the new format's bytes from the start. Headers that an older format has no place for are lost by
design. Source: KIP-1300, "Adapter Classes"; spec "window store", section 5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from headpond.errors import UsageError
from headpond.formats.window_values import ValueFormat, conversion
from headpond.windows.wrapped import WrappedStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headpond.windows.contract import Entries, Entry, WindowBytesStore


class FormatAdapter(WrappedStore):
    """Translates between the format that callers see and that of the store underneath.

    Raises:
        UsageError: The store is in memory, or of another format than this adapter's.
    """

    INNER: ClassVar[ValueFormat]
    OUTER: ClassVar[ValueFormat]

    def __init__(self, inner: WindowBytesStore) -> None:
        if not inner.persistent:
            raise UsageError(
                f"Store {inner.settings.name} is in memory: it needs no {type(self).__name__}.",
                name=inner.settings.name,
            )
        if inner.value_format is not self.INNER:
            raise UsageError(
                f"{type(self).__name__} stands on a {self.INNER} store, and {inner.settings.name} is "
                f"{inner.value_format}.",
                name=inner.settings.name,
            )
        super().__init__(inner)
        self._to_inner = conversion(self.OUTER, self.INNER)
        self._to_outer = conversion(self.INNER, self.OUTER)

    @property
    def value_format(self) -> ValueFormat:
        """The format that callers see."""
        return self.OUTER

    def put(self, key: bytes, value: bytes | None, window_start: int) -> None:
        """Translate and store a value."""
        self.inner.put(key, self._to_inner(value), window_start)

    def fetch_at(self, key: bytes, window_start: int) -> bytes | None:
        """Read and translate one value."""
        return self._to_outer(self.inner.fetch_at(key, window_start))

    def fetch(self, key: bytes, time_from: int, time_to: int, *, backward: bool = False) -> Entries:
        """Read and translate the entries of one key."""
        return self._translated(self.inner.fetch(key, time_from, time_to, backward=backward))

    def fetch_range(
        self,
        key_from: bytes | None,
        key_to: bytes | None,
        time_from: int,
        time_to: int,
        *,
        backward: bool = False,
    ) -> Entries:
        """Read and translate the entries of a range of keys."""
        return self._translated(
            self.inner.fetch_range(key_from, key_to, time_from, time_to, backward=backward)
        )

    def fetch_all(self, time_from: int, time_to: int, *, backward: bool = False) -> Entries:
        """Read and translate entries by time."""
        return self._translated(self.inner.fetch_all(time_from, time_to, backward=backward))

    def all(self, *, backward: bool = False) -> Entries:
        """Read and translate all entries."""
        return self._translated(self.inner.all(backward=backward))

    def _translated(self, entries: Entries) -> Iterator[Entry]:
        for key, value in entries:
            translated = self._to_outer(value)
            assert translated is not None
            yield key, translated


class PlainToPlainHeadersWindowStoreAdapter(FormatAdapter):
    """Plain underneath; headers are lost."""

    INNER = ValueFormat.PLAIN
    OUTER = ValueFormat.PLAIN_HEADERS


class TimestampedToPlainHeadersWindowStoreAdapter(FormatAdapter):
    """Timestamped underneath; headers are lost, the timestamp written is -1."""

    INNER = ValueFormat.TIMESTAMPED
    OUTER = ValueFormat.PLAIN_HEADERS


class TimestampedHeadersToPlainHeadersWindowStoreAdapter(FormatAdapter):
    """Timestamped+headers underneath; headers are kept, the timestamp written is -1."""

    INNER = ValueFormat.TIMESTAMPED_HEADERS
    OUTER = ValueFormat.PLAIN_HEADERS


class PlainToHeadersWindowStoreAdapter(FormatAdapter):
    """Plain underneath a timestamped+headers interface; headers and timestamps are lost."""

    INNER = ValueFormat.PLAIN
    OUTER = ValueFormat.TIMESTAMPED_HEADERS


class TimestampedToHeadersWindowStoreAdapter(FormatAdapter):
    """Timestamped underneath a timestamped+headers interface; headers are lost."""

    INNER = ValueFormat.TIMESTAMPED
    OUTER = ValueFormat.TIMESTAMPED_HEADERS


_ADAPTERS = {
    (each.OUTER, each.INNER): each
    for each in (
        PlainToPlainHeadersWindowStoreAdapter,
        TimestampedToPlainHeadersWindowStoreAdapter,
        TimestampedHeadersToPlainHeadersWindowStoreAdapter,
        PlainToHeadersWindowStoreAdapter,
        TimestampedToHeadersWindowStoreAdapter,
    )
}


def adapted(store: WindowBytesStore, wanted: ValueFormat) -> WindowBytesStore:
    """Put the adapter around a store that its format needs, or none.

    The markers of the KIP's table are asked in this order: a store with headers and timestamps carries two
    of them, and must not be taken for one with timestamps only.

    Raises:
        UsageError: No adapter leads from the store's format to the wanted one.
    """
    if not store.persistent or store.value_format is wanted:
        return store
    if store.value_format.has_headers:
        found = _ADAPTERS.get((wanted, ValueFormat.TIMESTAMPED_HEADERS))
        # A plain+headers store has the headers marker too; nothing leads from it to an older interface.
        found = found if store.value_format.has_timestamp else None
    elif store.value_format.has_timestamp:
        found = _ADAPTERS.get((wanted, ValueFormat.TIMESTAMPED))
    else:
        found = _ADAPTERS.get((wanted, ValueFormat.PLAIN))
    if found is None:
        raise UsageError(
            f"A {wanted} store cannot be built on {store.settings.name}, which is {store.value_format}.",
            next_step="Use the supplier of the wanted format, or of an older one.",
            name=store.settings.name,
        )
    return found(store)
