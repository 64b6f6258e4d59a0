"""Source options: documented names, units, and refusals that say what to write instead."""

from __future__ import annotations

import pickle
from operator import attrgetter

import pytest

from headpond.core.errors import ConfigurationError
from headpond.kinesis.planning.options import OPTIONS, Limits, read_options
from headpond.kinesis.reading.positions import HORIZON, Start

BASE = {"streamName": "orders"}


def test_defaults() -> None:
    """What a source does when only the stream is named."""
    settings = read_options(BASE)
    assert settings.start == Start("LATEST")
    assert settings.limits == Limits(span_ms=600_000, about_bytes=1 << 30)
    assert (settings.probe_lag_ms, settings.discovery_ms, settings.shards_per_task) == (500, 1000, None)
    assert settings.fail_on_data_loss
    assert settings.parent_first
    assert settings.deaggregate
    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize(
    ("name", "value", "attribute", "expected"),
    [
        ("maxBytesPerTrigger", "1.5 MiB", "limits.size_bytes", 3 << 19),
        ("maxBytesPerTrigger", "67108864", "limits.size_bytes", 64 << 20),
        ("maxBytesPerTrigger", "2kb", "limits.size_bytes", 2000),
        ("maxBytesPerTrigger", "none", "limits.size_bytes", None),
        ("maxBytesPerTrigger", "none", "limits.span_ms", 600_000),
        ("maxBytesPerTrigger", "64 MiB", "limits.span_ms", None),
        ("maxRecordsPerTrigger", "7", "limits.span_ms", None),
        ("maxSpanPerTrigger", "1 hour", "limits.span_ms", 3_600_000),
        ("maxSpanPerTrigger", "None", "limits.span_ms", None),
        ("MAXRECORDSPERTRIGGER", "7", "limits.records", 7),
        ("probeLag", "0 ms", "probe_lag_ms", 0),
        ("probeLag", "2 seconds", "probe_lag_ms", 2000),
        ("shardDiscoveryInterval", "1 min", "discovery_ms", 60000),
        ("maxRecordsPerFetch", "10000", "records_per_page", 10000),
        ("shardsPerTask", "5", "shards_per_task", 5),
        ("inStep", "paid orders", "in_step", "paid orders"),
        ("failOnDataLoss", "FALSE", "fail_on_data_loss", False),
        ("startingPosition", "TRIM_HORIZON", "start", Start(HORIZON)),
        ("onMalformed", "fail", "on_malformed", "fail"),
        ("includeEncryptionType", "true", "encryption_type", True),
        ("shardOrdering", "none", "parent_first", False),
        ("consumerMode", "polling", "parent_first", True),
        ("hashRangeFilter", "off", "hash_range_filter", "off"),
        ("hashRangeFilter", "per_record", "hash_range_filter", "per_record"),
        ("hashRangeFilter", "KCL", "hash_range_filter", "kcl"),
    ],
)
def test_values_are_read_with_their_units(name: str, value: str, attribute: str, expected: object) -> None:
    """Names in any case; sizes and times with a unit, or bare in bytes and milliseconds."""
    assert expected == attrgetter(attribute)(read_options({**BASE, name: value}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxBytesPerTrigger", "0"),
        ("maxBytesPerTrigger", "-1 MiB"),
        ("maxBytesPerTrigger", "64 furlongs"),
        ("maxBytesPerTrigger", "0.3 B"),
        ("maxSpanPerTrigger", "0 s"),
        ("maxSpanPerTrigger", "64 MiB"),
        ("maxRecordsPerTrigger", "0"),
        ("maxRecordsPerTrigger", "1e3"),
        ("maxRecordsPerTrigger", "٣"),
        ("maxRecordsPerFetch", "10001"),
        ("probeLag", "soon"),
        ("failOnDataLoss", "no"),
        ("onMalformed", "drop"),
        ("shardOrdering", "random"),
        ("hashRangeFilter", "on"),
    ],
)
def test_wrong_values_name_the_option(name: str, value: str) -> None:
    """The message says which option, what it takes and what was given."""
    with pytest.raises(ConfigurationError) as caught:
        read_options({**BASE, name: value})
    assert name in caught.value.message
    assert repr(value) in caught.value.message


@pytest.mark.parametrize("exact", [{"maxBytesPerTrigger": "1 MiB"}, {"maxRecordsPerTrigger": "5"}])
def test_a_span_beside_an_exact_bound_is_refused(exact: dict[str, str]) -> None:
    """Whoever names both would believe that both hold."""
    with pytest.raises(ConfigurationError, match=f"means nothing beside {next(iter(exact))}"):
        read_options({**BASE, **exact, "maxSpanPerTrigger": "1 hour"})
    assert read_options({**BASE, **exact, "maxSpanPerTrigger": "none"}).limits.span_ms is None


def test_an_unknown_option_names_the_nearest() -> None:
    """A slip of the pen is named; a stranger gets the list."""
    with pytest.raises(ConfigurationError) as caught:
        read_options({**BASE, "maxBytePerTriger": "1"})
    assert caught.value.next_step == "Did you mean maxBytesPerTrigger?"
    with pytest.raises(ConfigurationError) as caught:
        read_options({**BASE, "zzz": "1"})
    assert all(name in caught.value.next_step for name in OPTIONS)
