"""What can go wrong with a window store beyond wrong arguments.

::

    NotAStore           (UsageError)        there is no window store at that place          exit 2
    StoreFormatMismatch (UsageError)        the directory's format is not the class's        exit 2
    StoreClosed         (UsageError)        the store was closed, or opened for reading only exit 2
    TimestampsWouldBeLost (UsageError)      a migration would drop timestamps that say something
    InconsistentStore   (DamagedInput)      what lies on disk contradicts itself             exit 1
    StoreLocked         (EnvironmentLacks)  another process has the directory open           exit 3
"""

from __future__ import annotations

from headpond.errors import DamagedInput, EnvironmentLacks, UsageError


class NotAStore(UsageError):
    """There is no window store at that place."""


class StoreFormatMismatch(UsageError):
    """The directory holds a format that this class of store cannot read; upgrades go one way only."""


class StoreClosed(UsageError):
    """The store was closed, or opened for reading only."""


class TimestampsWouldBeLost(UsageError):
    """Values hold timestamps of their own, and the new format has no place for them."""


class InconsistentStore(DamagedInput):
    """What lies on disk contradicts itself, or RocksDB cannot read it."""


class StoreLocked(EnvironmentLacks):
    """Another process, or another store object of this one, has the directory open."""
