"""The options of the `kinesis` source, read strictly, and what they mean.

Names and defaults are the documented ones; each is listed in OPTIONS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from headpond.core.errors import ConfigurationError
from headpond.core.options import Options
from headpond.kinesis.api.settings import ConnectionSettings
from headpond.kinesis.reading.cursor import MOST_RECORDS_PER_PAGE
from headpond.kinesis.reading.positions import Start, as_utc, read_end, read_start

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headpond.kpl.model import HashRangeFilter

CONNECTION_OPTIONS = (
    "streamName",
    "streamARN",
    "region",
    "profile",
    "endpointUrl",
    "roleArn",
    "roleExternalId",
    "roleSessionName",
    "stsEndpointUrl",
)
OPTIONS = (
    *CONNECTION_OPTIONS,
    "startingPosition",
    "endingPosition",
    "kclLeases",
    "deaggregate",
    "includeTags",
    "includeEncryptionType",
    "onMalformed",
    "hashRangeFilter",
    "shardOrdering",
    "consumerMode",
    "consumerName",
    "registerConsumer",
    "maxRecordsPerTrigger",
    "maxBytesPerTrigger",
    "maxSpanPerTrigger",
    "maxRecordsPerFetch",
    "shardsPerTask",
    "probeLag",
    "shardDiscoveryInterval",
    "failOnDataLoss",
)

DEFAULT_MAX_SPAN_MS = 600_000
"""At a shard's limit of 1 MiB/s, 600 MiB of it: five minutes of reading at its 2 MiB/s."""
DEFAULT_ABOUT_BYTES = 1 << 30
"""What a batch without a bound of its own is to have, judged by the first MiB of each shard."""
DEFAULT_PROBE_LAG_MS = 500
DEFAULT_DISCOVERY_MS = 1_000


class Limits(NamedTuple):
    """Bounds of one batch; None is none."""

    records: int | None = None
    size_bytes: int | None = None
    span_ms: int | None = None  # of arrival, in each shard; only where neither of the others is set
    about_bytes: int | None = None  # judged by a look at each shard; shortens the span

    @property
    def looks_ahead(self) -> bool:
        """Whether records have to be looked at one by one."""
        return self.records is not None or self.size_bytes is not None


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
    max_records: int | None  # Kinesis records of a batch; None: no bound
    max_bytes: int | None  # bytes of data and partition keys of a batch; None: no bound
    max_span_ms: int | None  # of arrival, in each shard; only without the two above; None: no bound
    about_bytes: int | None  # beside a span that was not given
    records_per_page: int
    shards_per_task: int | None  # None: so that a batch has not many tasks
    probe_lag_ms: int
    discovery_ms: int
    fail_on_data_loss: bool
    consumer_name: str | None = None  # of enhanced fan-out; None: polling
    register_consumer: bool = False  # where it is not registered
    end_ms: int | None = None  # nothing is read that arrived then or later; None: no end


def read_options(given: Mapping[str, str]) -> SourceSettings:
    """Read the options of the `kinesis` source.

    Raises:
        ConfigurationError: An option is unknown, missing or wrong; an unknown one's nearest is named.
    """
    options = Options(given, OPTIONS, "source kinesis")
    connection = {name: value for name in CONNECTION_OPTIONS if (value := options.text(name)) is not None}
    start, leases = read_start(options.text("startingPosition") or "LATEST"), options.text("kclLeases")
    if leases is not None and start.shards:
        raise ConfigurationError(
            "Options startingPosition and kclLeases of the source kinesis both say where each shard begins.",
            next_step="Remove one of the two.",
            option="kclLeases",
        )
    return SourceSettings(
        connection=ConnectionSettings.from_options(connection),
        start=start,
        kcl_leases=leases,
        deaggregate=options.flag("deaggregate", default=True),
        tags=options.flag("includeTags", default=False),
        encryption_type=options.flag("includeEncryptionType", default=False),
        on_malformed="fail" if _fails(options) else "passthrough",
        hash_range_filter=cast(
            "HashRangeFilter", options.choice("hashRangeFilter", ("off", "per_record", "kcl"), "off")
        ),
        parent_first=options.choice("shardOrdering", ("parent_first", "none"), "parent_first")
        == "parent_first",
        max_records=options.count("maxRecordsPerTrigger"),
        max_bytes=_bound(options),
        max_span_ms=(span_ms := _span(options)),
        about_bytes=DEFAULT_ABOUT_BYTES if span_ms and not options.text("maxSpanPerTrigger") else None,
        records_per_page=options.count("maxRecordsPerFetch", most=MOST_RECORDS_PER_PAGE)
        or MOST_RECORDS_PER_PAGE,
        shards_per_task=options.count("shardsPerTask"),
        probe_lag_ms=options.time_ms("probeLag", DEFAULT_PROBE_LAG_MS),
        discovery_ms=options.time_ms("shardDiscoveryInterval", DEFAULT_DISCOVERY_MS),
        fail_on_data_loss=options.flag("failOnDataLoss", default=True),
        consumer_name=_consumer(options),
        end_ms=_end(options, start),
        register_consumer=options.flag("registerConsumer", default=False),
    )


def _fails(options: Options) -> bool:
    return options.choice("onMalformed", ("passthrough", "fail"), "passthrough") == "fail"


def _bound(options: Options) -> int | None:
    """Read maxBytesPerTrigger; `none` is what it is when left out."""
    if (options.text("maxBytesPerTrigger") or "none").lower() == "none":
        return None
    return options.size_bytes("maxBytesPerTrigger", None)


def _span(options: Options) -> int | None:
    """Read maxSpanPerTrigger, which stands in for the exact bounds; `none` takes its default away."""
    exact = [
        name
        for name in ("maxRecordsPerTrigger", "maxBytesPerTrigger")
        if (options.text(name) or "none").lower() != "none"
    ]
    given = options.text("maxSpanPerTrigger")
    if given is None:
        return None if exact else DEFAULT_MAX_SPAN_MS
    if given.lower() == "none":
        return None
    if exact:
        raise ConfigurationError(
            f"Option maxSpanPerTrigger of the source kinesis means nothing beside {exact[0]}.",
            next_step="Remove one of the two.",
            option="maxSpanPerTrigger",
        )
    span_ms = options.time_ms("maxSpanPerTrigger", DEFAULT_MAX_SPAN_MS)
    if span_ms == 0:
        raise options.wrong("maxSpanPerTrigger", "more than no time, or none")
    return span_ms


def _end(options: Options, start: Start) -> int | None:
    end_ms = read_end(options.text("endingPosition") or "LATEST")
    if end_ms is not None and start.rule != "LATEST" and (start.rule.time_ms or 0) >= end_ms:
        raise ConfigurationError(
            f"The source kinesis is to begin at {as_utc(start.rule.time_ms or 0)} and to end before, at "
            f"{as_utc(end_ms)}.",
            next_step="Set endingPosition to a later time than startingPosition.",
            option="endingPosition",
        )
    return end_ms


def _consumer(options: Options) -> str | None:
    """Read consumerMode and consumerName, which need each other."""
    name = options.text("consumerName")
    if name is None and options.flag("registerConsumer", default=False):
        raise ConfigurationError(
            "Option registerConsumer of the source kinesis is true, and consumerName is missing.",
            next_step="Name the consumer to register in consumerName, and set consumerMode to efo.",
            option="registerConsumer",
        )
    efo = options.choice("consumerMode", ("polling", "efo"), "polling") == "efo"
    if efo == (name is not None):
        return name
    missing = "consumerName" if efo else "consumerMode"
    raise ConfigurationError(
        "Option consumerMode of the source kinesis is efo, and consumerName is missing."
        if efo
        else "Option consumerName of the source kinesis needs consumerMode to be efo.",
        next_step="Name a registered consumer of the stream in consumerName, or leave consumerMode out."
        if efo
        else "Set consumerMode to efo, or leave consumerName out.",
        option=missing,
    )
