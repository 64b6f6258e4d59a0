"""A process to be killed: puts, restores or migrates, and says on standard output what it has flushed.

python crash_child.py puts DIRECTORY        puts entries 0, 1, 2 … and flushes now and then
python crash_child.py upgrade DIRECTORY     opens a timestamped+headers directory as plain+headers; reads,
                                            overwrites and deletes its entries in turn, flushes now and then
python crash_child.py restore DIRECTORY     restores records 0, 1, 2 … and flushes with offsets
python crash_child.py migrate DIRECTORY     migrates it offline
"""

from __future__ import annotations

import sys
from pathlib import Path

from headpond.kstreams import ChangelogRecord, StoreSettings, WindowBytesStore, migrate
from headpond.kstreams.bytes.window_keys import encode_store_key
from headpond.kstreams.bytes.window_values import ValueFormat, encode_value

SETTINGS = StoreSettings("win", 600_000, 60_000)
START = 1_700_000_000_000
PARTITION = "app-win-changelog-0"
HEADERS = [("trace-id", b"x" * 16)]
OLD_ENTRIES = 3000


def start_of(number: int) -> int:
    """Entries spread over three segments within the retention."""
    return START + number % 3 * 290_000


def key_of(number: int) -> bytes:
    return b"key-%06d" % number


def value_of(number: int, value_format: ValueFormat = ValueFormat.PLAIN_HEADERS) -> bytes:
    return encode_value(b"value-%06d" % number, start_of(number), HEADERS, value_format)


def say(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def puts(store: WindowBytesStore) -> None:
    for number in range(10**6):
        store.put(key_of(number), value_of(number), start_of(number))
        if number % 700 == 699:
            store.flush()
            say(number + 1)


def restore(store: WindowBytesStore) -> None:
    for first in range(0, 10**6, 500):
        store.restore(
            ChangelogRecord(
                encode_store_key(key_of(number), start_of(number)),
                b"value-%06d" % number,
                start_of(number),
                tuple(HEADERS),
            )
            for number in range(first, first + 500)
        )
        store.flush({PARTITION: first + 499})
        say(first + 500)


def upgrade(store: WindowBytesStore) -> None:
    for number in range(OLD_ENTRIES):
        if number % 3 == 0:
            assert store.fetch_at(key_of(number), start_of(number)) == value_of(number)
        else:
            value = value_of(number + 500_000) if number % 3 == 1 else None
            store.put(key_of(number), value, start_of(number))
        if number % 100 == 99:
            store.flush()
            say(number + 1)


def main(what: str, directory: Path) -> None:
    if what == "migrate":
        say(0)
        migrate(directory)
        return
    store = WindowBytesStore(SETTINGS, ValueFormat.PLAIN_HEADERS, directory)
    say(0)
    {"puts": puts, "restore": restore, "upgrade": upgrade}[what](store)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
