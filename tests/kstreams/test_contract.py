"""What every window store does, whatever it is kept in: one set of tests for memory or RocksDB."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headpond.core.errors import UsageError
from headpond.kstreams import (
    ChangelogRecord,
    StoreClosed,
    StoreSettings,
    ValueFormat,
    WindowBytesStore,
)
from headpond.kstreams.bytes.window_keys import encode_store_key
from headpond.kstreams.bytes.window_values import encode_value
from headpond.kstreams.stores.segments import segment_interval_ms
from tests.kit.support import share_of

if TYPE_CHECKING:
    from pathlib import Path

Make = "Callable[..., Any]"
RETENTION_MS = 120_000  # segments of 60 s
UNIQUE = StoreSettings("s", RETENTION_MS, 10_000)
DUPLICATES = StoreSettings("s", RETENTION_MS, 10_000, retain_duplicates=True)


def in_memory(tmp_path: Path, store_settings: StoreSettings) -> Any:
    return WindowBytesStore(store_settings, ValueFormat.PLAIN)


def on_rocksdb(tmp_path: Path, store_settings: StoreSettings) -> Any:
    return WindowBytesStore(store_settings, ValueFormat.PLAIN, tmp_path / store_settings.name)


@pytest.fixture(params=[in_memory, on_rocksdb])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return lambda store_settings: request.param(tmp_path, store_settings)


@pytest.fixture(params=[in_memory, on_rocksdb])
def make_unique(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return lambda: request.param(tmp_path, UNIQUE)


def keys_of(entries: Any) -> list[tuple[bytes, int, int]]:
    return [tuple(key) for key, _ in entries]


def test_bounds_are_inclusive_on_both_ends(make_unique: Any) -> None:
    """A window start equal to a bound is within it."""
    store = make_unique()
    for start in (1000, 2000, 3000):
        store.put(b"k", b"%d" % start, start)
    assert [value for _, value in store.fetch(b"k", 1000, 2000)] == [b"1000", b"2000"]
    assert [value for _, value in store.fetch(b"k", 1001, 2999)] == [b"2000"]
    assert list(store.fetch(b"k", 3001, 9000)) == list(store.fetch(b"k", 2000, 1999)) == []
    store.close()


def test_a_later_put_replaces_and_null_deletes(make_unique: Any) -> None:
    """Without duplicates a key and window start have one value; an empty value is not null."""
    store = make_unique()
    store.put(b"k", b"old", 1000)
    store.put(b"k", b"", 1000)
    assert store.fetch_at(b"k", 1000) == b""
    store.put(b"k", None, 1000)
    store.put(b"never", None, 1000)
    assert store.fetch_at(b"k", 1000) is None
    assert list(store.all()) == []
    store.close()


def test_duplicates_are_kept_in_order(make: Any) -> None:
    """With duplicates every value stays, under the next number; a null changes nothing at all."""
    store = make(DUPLICATES)
    for value in (b"a", None, b"b", b"a"):
        store.put(b"k", value, 1000)
    assert [(key.seqnum, value) for key, value in store.fetch(b"k", 0, 5000)] == [
        (1, b"a"),
        (2, b"b"),
        (3, b"a"),
    ]
    assert store.last_seqnum == 3
    assert store.fetch_at(b"k", 1000) == b"a"
    store.close()


def test_keys_do_not_leak_into_each_other(make_unique: Any) -> None:
    """Keys that continue one another, byte by byte up to another's suffix, are told apart."""
    store = make_unique()
    longer = [b"k" + encode_store_key(b"", start) for start in (500, 1000, 1500)]
    for key in (b"", b"k", b"k\x00", b"kk", *longer):
        store.put(key, key + b"!", 1000)
    for key in (b"", b"k", b"k\x00", b"kk", *longer):
        assert list(store.fetch(key, 0, 2000)) == [((key, 1000, 0), key + b"!")]
    store.close()


def test_order_is_by_segment_then_by_bytes(make_unique: Any) -> None:
    """Across keys the segment comes first; backward is exactly the other way round."""
    store = make_unique()
    for start in (61_000, 1000, 60_000, 59_999):
        for key in (b"b", b"a"):
            store.put(key, b"v", start)
    expected = [
        *((key, start, 0) for key in (b"a", b"b") for start in (1000, 59_999)),
        *((key, start, 0) for key in (b"a", b"b") for start in (60_000, 61_000)),
    ]
    assert keys_of(store.all()) == expected
    assert keys_of(store.all(backward=True)) == expected[::-1]
    assert keys_of(store.fetch_all(59_999, 60_000)) == [
        (b"a", 59_999, 0), (b"b", 59_999, 0), (b"a", 60_000, 0), (b"b", 60_000, 0)
    ]  # fmt: skip
    assert keys_of(store.fetch(b"a", 0, 99_999, backward=True)) == [
        (b"a", start, 0) for start in (61_000, 60_000, 59_999, 1000)
    ]
    store.close()


def test_reads_are_stricter_than_what_is_kept(make_unique: Any) -> None:
    """What is older than the retention is not returned, though its segment is still there."""
    store = make_unique()
    store.put(b"k", b"old", 61_000)
    store.put(b"k", b"edge", 61_001)
    store.put(b"k", b"new", 61_000 + RETENTION_MS)
    assert store.observed_stream_time == 61_000 + RETENTION_MS
    assert [value for _, value in store.fetch(b"k", 0, 10**9)] == [b"edge", b"new"]
    assert store.fetch_at(b"k", 61_000) is None
    assert store.fetch_at(b"k", 61_001) == b"edge"
    assert len(list(store.all())) == 2
    store.close()


def test_a_segment_goes_once_nothing_in_it_can_live(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Puts into expired segments are dropped and counted; those into the oldest live one still work."""
    store = make(UNIQUE)
    store.put(b"k", b"1", 59_999)
    store.put(b"k", b"2", 60_000)
    store.put(b"k", b"3", 180_000)
    assert sorted(store.segments()) == [1, 3]
    with caplog.at_level(logging.WARNING):
        store.put(b"k", b"late", 59_999)
        store.put(b"k", b"late", 10)
    assert store.expired_puts == 2
    assert len(caplog.records) == 1
    store.put(b"k", b"in time", 60_001)
    assert [value for _, value in store.all()] == [b"in time", b"3"]
    store.close()


def test_a_key_range_has_both_or_one_or_no_end(make_unique: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Ends are inclusive and may be absent; ends in the wrong order give nothing and a warning."""
    store = make_unique()
    for key in (b"a", b"ab", b"b", b"b\xff", b"c"):
        store.put(key, key, 1000)
    assert [value for _, value in store.fetch_range(b"ab", b"b", 0, 2000)] == [b"ab", b"b"]
    assert [value for _, value in store.fetch_range(None, b"ab", 0, 2000)] == [b"a", b"ab"]
    assert [value for _, value in store.fetch_range(b"b", None, 0, 2000, backward=True)] == [
        b"c",
        b"b\xff",
        b"b",
    ]
    assert len(list(store.fetch_range(None, None, 0, 2000))) == 5
    with caplog.at_level(logging.WARNING):
        assert list(store.fetch_range(b"b", b"a", 0, 2000)) == []
    assert "wrong order" in caplog.text
    store.close()


def test_an_iterator_does_not_see_later_puts(make: Any) -> None:
    """What was started before a put goes on as if it had not happened."""
    store = make(UNIQUE)
    for start in range(3):
        store.put(b"k", b"v", start)
    entries = store.fetch(b"k", 0, 9)
    first = next(entries)
    store.put(b"k", b"v", 4)
    store.put(b"k", None, 2)
    assert [key.timestamp for key, _ in [first, *entries]] == [0, 1, 2]
    store.close()


def test_a_closed_store_says_so(make: Any) -> None:
    """Nothing works after closing, except closing again."""
    store = make(UNIQUE)
    store.put(b"k", b"v", 1000)
    store.close()
    store.close()
    for call in (
        lambda: store.put(b"k", b"v", 1000),
        lambda: store.fetch_at(b"k", 1000),
        lambda: store.fetch(b"k", 0, 1),
        store.all,
        store.flush,
    ):
        with pytest.raises(StoreClosed, match="closed"):
            call()


def test_restoring_raises_stream_time_first(make: Any) -> None:
    """In a batch the newest record decides what is live, even if it comes last."""
    store = make(DUPLICATES)
    store.restore(
        [
            ChangelogRecord(encode_store_key(b"k", 1000, 7), b"expired", 1000),
            ChangelogRecord(encode_store_key(b"k", 200_000, 9), b"kept", 200_000),
            ChangelogRecord(encode_store_key(b"k", 200_000, 8), b"gone", 200_000),
            ChangelogRecord(encode_store_key(b"k", 200_000, 8), None, 200_000),
        ]
    )
    assert keys_of(store.all()) == [(b"k", 200_000, 9)]
    assert store.observed_stream_time == 200_000
    assert store.expired_puts == 1
    store.put(b"k", b"next", 200_000)
    assert store.last_seqnum == 10
    store.close()


STARTS = st.integers(0, 400_000)
KEYS = st.sampled_from([b"", b"a", b"ab", b"a\x00", b"b", b"\xff"])
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.one_of(st.none(), st.binary(max_size=3)), STARTS),
        st.tuples(st.just("fetch"), KEYS, STARTS, STARTS, st.booleans()),
        st.tuples(st.just("range"), KEYS, KEYS, STARTS, STARTS, st.booleans()),
        st.tuples(st.just("flush")),
    ),
    max_size=25,
)


@pytest.mark.thorough
@pytest.mark.parametrize("duplicates", [False, True])
@given(operations=OPERATIONS)
@example(operations=[("put", b"a", b"", 1), ("range", b"", b"a\0", 0, 1, False)])  # Kafka Streams' gap
@example(operations=[("put", b"a", b"", 1), ("range", b"", b"a\0", 0, 256, False)])  # and its edge
@settings(max_examples=share_of(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_memory_and_disk_agree_with_a_model(
    *, duplicates: bool, operations: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any sequence of puts and reads gives what a list of entries and the spec's sentences give."""
    folder = tmp_path_factory.mktemp("stores")
    chosen = DUPLICATES if duplicates else UNIQUE
    stores = [make(folder / make.__name__, chosen) for make in (in_memory, on_rocksdb)]
    model = Model(chosen)
    for name, *arguments in operations:
        for store in stores:
            if name == "put":
                store.put(*arguments)
            elif name == "flush":
                store.flush()
            elif name == "fetch":
                *bounds, backward = arguments
                expected = model.read(bounds[0], bounds[0], *bounds[1:], backward=backward)
                assert list(store.fetch(*bounds, backward=backward)) == expected
            else:
                *bounds, backward = arguments
                expected = model.read(*bounds, backward=backward)
                assert list(store.fetch_range(*bounds, backward=backward)) == expected
        if name == "put":
            model.put(*arguments)
    for store in stores:
        assert list(store.all()) == model.read(None, None, 0, 10**9, backward=False)
        store.close()


class Model:
    """Section 4 of the spec, as plainly as possible."""

    def __init__(self, store_settings: StoreSettings) -> None:
        self.settings = store_settings
        self.entries: dict[tuple[bytes, int, int], bytes] = {}
        self.observed = -1
        self.counter = 0

    def put(self, key: bytes, value: bytes | None, start: int) -> None:
        if self.settings.retain_duplicates:
            if value is None:
                return
            self.counter += 1
        self.observed = max(self.observed, start)
        interval = segment_interval_ms(self.settings.retention_ms)
        least = int((self.observed - self.settings.retention_ms) / interval)
        if start // interval < least:
            return
        self.entries = {each: data for each, data in self.entries.items() if each[1] // interval >= least}
        self.entries.pop((key, start, self.counter), None)
        if value is not None:
            self.entries[key, start, self.counter] = value

    def read(
        self, low: bytes | None, high: bytes | None, start: int, end: int, *, backward: bool
    ) -> list[tuple[tuple[bytes, int, int], bytes]]:
        start = max(start, self.observed - self.settings.retention_ms + 1)
        found = [
            (key, value)
            for key, value in self.entries.items()
            if (low is None or low <= key[0])
            and (high is None or key[0] <= high)
            and start <= key[1] <= end
            # Kafka Streams' own gap: below a bound that is the key and a zero byte, its start is read one
            # byte off, as if it were 256 times as great.
            and not (high == key[0] + b"\0" and key[1] * 256 > end)
        ]
        interval = segment_interval_ms(self.settings.retention_ms)
        found.sort(key=lambda each: (each[0][1] // interval, encode_store_key(*each[0])), reverse=backward)
        return found


def test_a_restart_overwrites_nothing(tmp_path: Path) -> None:
    """Numbers go on above the greatest stored one; upstream's way, from 0, can be had and overwrites."""
    for seed, expected in ((True, [b"first", b"second"]), (False, [b"second"])):
        directory = tmp_path / str(seed) / "s"
        for value in (b"first", b"second"):
            store = WindowBytesStore(DUPLICATES, ValueFormat.PLAIN, directory, seed_counter=seed)
            store.put(b"k", value, 1000)
            store.close()
        store = WindowBytesStore(DUPLICATES, ValueFormat.PLAIN, directory, seed_counter=seed)
        assert [value for _, value in store.fetch(b"k", 0, 2000)] == expected
        store.close()


def test_stream_time_after_a_restart(tmp_path: Path) -> None:
    """Upstream starts blind and shows expired entries until the first put; recovering can be asked for."""
    store = WindowBytesStore(UNIQUE, ValueFormat.PLAIN, tmp_path / "s")
    store.put(b"k", b"old", 61_000)
    store.put(b"k", b"new", 61_000 + RETENTION_MS)
    store.close()
    store = WindowBytesStore(UNIQUE, ValueFormat.PLAIN, tmp_path / "s")
    assert store.observed_stream_time == -1
    assert len(list(store.all())) == 2
    store.close()
    store = WindowBytesStore(UNIQUE, ValueFormat.PLAIN, tmp_path / "s", recover_stream_time=True)
    assert store.observed_stream_time == 61_000 + RETENTION_MS
    assert [value for _, value in store.all()] == [b"new"]
    store.close()


@pytest.mark.parametrize("value_format", list(ValueFormat))
def test_restored_values_have_the_stores_format(value_format: ValueFormat) -> None:
    """Record timestamp and headers go where the format has a place for them; a null stays null."""
    store = WindowBytesStore(UNIQUE, value_format)
    headers = (("k", b"v"), ("k", None))
    store.restore([ChangelogRecord(encode_store_key(b"k", 1000), b"value", 55, headers)])
    assert store.fetch_at(b"k", 1000) == encode_value(b"value", 55, headers, value_format)
    store.restore([ChangelogRecord(encode_store_key(b"k", 1000), None, 56, headers)])
    assert store.fetch_at(b"k", 1000) is None


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("", 10, 5), "directory's name"),
        (("a/b", 10, 5), "directory's name"),
        (("s", -1, 0), "not negative"),
        (("s", 10, 11), "shorter than the windows"),
    ],
)
def test_impossible_settings_are_refused(arguments: tuple[str, int, int], match: str) -> None:
    """The message names the store and the consequence."""
    with pytest.raises(UsageError, match=match):
        StoreSettings(*arguments)
