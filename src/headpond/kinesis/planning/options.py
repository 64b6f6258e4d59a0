"""The options of the `kinesis` source, read strictly, and what they mean.

Names and defaults are the documented ones; each is listed in OPTIONS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

from headpond.core.errors import ConfigurationError
from headpond.core.options import Options
from headpond.core.times import as_utc
from headpond.kinesis.api.settings import ConnectionSettings
from headpond.kinesis.reading.cursor import MOST_RECORDS_PER_PAGE
from headpond.kinesis.reading.positions import Start, read_end, read_start
from headpond.kpl.model import HashRangeFilter

CONNECTION_OPTIONS = (
    "streamName", "streamARN", "region", "profile", "endpointUrl", "roleArn", "roleExternalId",
    "roleSessionName", "stsEndpointUrl",
)  # fmt: skip
OPTIONS = (
    *CONNECTION_OPTIONS, "startingPosition", "endingPosition", "kclLeases", "deaggregate", "includeTags",
    "includeEncryptionType", "onMalformed", "hashRangeFilter", "shardOrdering", "consumerMode",
    "consumerName", "registerConsumer", "maxRecordsPerTrigger", "maxBytesPerTrigger", "maxSpanPerTrigger",
    "inStep", "maxRecordsPerFetch", "shardsPerTask", "probeLag", "shardDiscoveryInterval", "failOnDataLoss",
)  # fmt: skip

DEFAULT_MAX_SPAN_MS = 600_000
"""At a shard's limit of 1 MiB/s, 600 MiB of it: five minutes of reading at its 2 MiB/s."""
DEFAULT_ABOUT_BYTES = 1 << 30
"""What a batch without a bound of its own is to have, judged by the first MiB of each shard."""
DEFAULT_PROBE_LAG_MS = 500
DEFAULT_DISCOVERY_MS = 1_000


class Limits(NamedTuple):
    """Bounds of one batch; None is none."""

    records: int | None = None  # of Kinesis
    size_bytes: int | None = None  # of data and partition keys
    span_ms: int | None = None  # of arrival, in each shard; only where neither of the others is set
    about_bytes: int | None = None  # judged by a look at each shard; shortens the span

    @property
    def looks_ahead(self) -> bool:
        """Whether records have to be looked at one by one."""
        return self.records is not None or self.size_bytes is not None

    def share(self, shards: int) -> Limits:
        """Return the bounds that each of this many shards has; a span is the same for all."""
        names = ("records", "size_bytes", "about_bytes")
        parts = {name: max(1, each // shards) for name in names if (each := getattr(self, name)) is not None}
        return self._replace(**parts)


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """All options of the source, checked; picklable, holds no secret."""

    connection: ConnectionSettings
    start: Start
    kcl_leases: str | None  # path of an exported lease table; read when a new query starts
    deaggregate: bool
    tags: bool
    encryption_type: bool
    on_malformed: Literal["passthrough", "fail"]
    hash_range_filter: HashRangeFilter
    parent_first: bool
    limits: Limits
    records_per_page: int
    shards_per_task: int | None  # None: so that a batch has not many tasks
    probe_lag_ms: int
    discovery_ms: int
    fail_on_data_loss: bool
    consumer_name: str | None = None  # of enhanced fan-out; None: polling
    register_consumer: bool = False  # where it is not registered
    end_ms: int | None = None  # nothing is read that arrived then or later; None: no end
    in_step: str | None = None  # group of sources whose batches end at one arrival time; None: by itself


def read_options(given: Mapping[str, str], *, start: str = "LATEST") -> SourceSettings:
    """Read the options of the `kinesis` source; `start` is where reading begins when none says so.

    Raises:
        ConfigurationError: An option is unknown, missing or wrong; an unknown one's nearest is named.
    """
    options = Options(given, OPTIONS, "source kinesis")
    connection = {name: value for name in CONNECTION_OPTIONS if (value := options.text(name)) is not None}
    begin, leases = read_start(options.text("startingPosition") or start), options.text("kclLeases")
    if leases is not None and begin.shards:
        raise ConfigurationError(
            "Options startingPosition and kclLeases of the source kinesis both say where each shard begins.",
            next_step="Remove one of the two.",
            option="kclLeases",
        )
    hash_range_filter = options.choice("hashRangeFilter", ("off", "per_record", "kcl"), "off")
    fails = options.choice("onMalformed", ("passthrough", "fail"), "passthrough") == "fail"
    most = MOST_RECORDS_PER_PAGE
    return SourceSettings(
        connection=ConnectionSettings.from_options(connection),
        start=begin,
        kcl_leases=leases,
        deaggregate=options.flag("deaggregate", default=True),
        tags=options.flag("includeTags", default=False),
        encryption_type=options.flag("includeEncryptionType", default=False),
        on_malformed="fail" if fails else "passthrough",
        hash_range_filter=cast("HashRangeFilter", hash_range_filter),
        parent_first=options.choice("shardOrdering", ("parent_first", "none"), "parent_first") != "none",
        limits=_limits(options),
        records_per_page=options.count("maxRecordsPerFetch", most=most) or most,
        shards_per_task=options.count("shardsPerTask"),
        probe_lag_ms=options.time_ms("probeLag", DEFAULT_PROBE_LAG_MS),
        discovery_ms=options.time_ms("shardDiscoveryInterval", DEFAULT_DISCOVERY_MS),
        fail_on_data_loss=options.flag("failOnDataLoss", default=True),
        consumer_name=_consumer(options),
        end_ms=_end(options, begin),
        in_step=options.text("inStep"),
        register_consumer=options.flag("registerConsumer", default=False),
    )


def _limits(options: Options) -> Limits:
    """Read the bounds: a span of arrival stands in for the exact ones, and `none` takes any of them away."""
    given = {name: options.text(name) for name in ("maxBytesPerTrigger", "maxSpanPerTrigger")}
    none = {name for name, text in given.items() if (text or "").lower() == "none"}
    records, size_bytes = options.count("maxRecordsPerTrigger"), None
    if "maxBytesPerTrigger" not in none:
        size_bytes = options.size_bytes("maxBytesPerTrigger", None)
    span_is_given = given["maxSpanPerTrigger"] is not None
    if "maxSpanPerTrigger" in none or (not span_is_given and (records or size_bytes)):
        return Limits(records, size_bytes)
    span_ms = options.time_ms("maxSpanPerTrigger", DEFAULT_MAX_SPAN_MS)
    if records or size_bytes:
        raise ConfigurationError(
            "Option maxSpanPerTrigger of the source kinesis means nothing beside "
            f"{'maxRecordsPerTrigger' if records else 'maxBytesPerTrigger'}.",
            next_step="Remove one of the two.",
            option="maxSpanPerTrigger",
        )
    if span_ms == 0:
        raise options.wrong("maxSpanPerTrigger", "more than no time, or none")
    return Limits(span_ms=span_ms, about_bytes=None if span_is_given else DEFAULT_ABOUT_BYTES)


def _end(options: Options, start: Start) -> int | None:
    end_ms = read_end(options.text("endingPosition") or "LATEST")
    begin_ms = 0 if start.rule == "LATEST" else start.rule.time_ms or 0
    if end_ms is not None and begin_ms >= end_ms:
        raise ConfigurationError(
            f"The source kinesis is to begin at {as_utc(begin_ms)} and to end before, at {as_utc(end_ms)}.",
            next_step="Set endingPosition to a later time than startingPosition.",
            option="endingPosition",
        )
    return end_ms


def _consumer(options: Options) -> str | None:
    """Read consumerMode and consumerName, which need each other."""
    name, registers = options.text("consumerName"), options.flag("registerConsumer", default=False)
    is_efo = options.choice("consumerMode", ("polling", "efo"), "polling") == "efo"
    if (name is not None) != is_efo or (registers and not is_efo):
        raise ConfigurationError(
            "Options consumerMode = efo and consumerName of the source kinesis need each other, and "
            f"registerConsumer needs both; {'consumerName' if name is None else 'consumerMode'} is missing.",
            next_step="Name a consumer of the stream in consumerName and set consumerMode to efo, or leave "
            "all three out.",
            option="consumerName" if name is None else "consumerMode",
        )
    return name
