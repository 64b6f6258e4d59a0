"""What a pipeline file says, checked: frozen, typed, picklable.

::

    Pipeline
    ├── source: Source      where records come from, and how they are read
    ├── target: Target      where tables go, and the rules for writing them
    ├── tables: Table …     the tables to keep, in the order of the file
    ├── verify: Verify      QLDB's proof
    ├── monitor: Monitor    what is measured of each batch, and where it goes
    └── spark               settings passed to the session

Fields that hold a size or a span carry the unit in their name. Paths are absolute or URLs. Values that may
hold a secret are left out of `repr`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from headpond.changes.config import DsqlConfig, TableSpec
from headpond.errors import UsageError

Keep = Literal["current", "history", "log"]
"""What a table keeps: the newest row per key, every version of it, or every change."""
Timestamps = Literal["ntz", "utc"]
"""What becomes of a PostgreSQL `timestamp`: `timestamp_ntz`, or a UTC `timestamp`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """`[source]`: exactly one of `stream`, `stream_arn` and `archive` is set."""

    stream: str | None
    stream_arn: str | None
    archive: str | None
    format: Literal["dsql", "qldb"]
    cluster: str | None
    region: str | None
    profile: str | None
    endpoint_url: str | None
    role_arn: str | None
    role_external_id: str | None = field(repr=False)
    role_session_name: str | None
    start: str
    max_bytes_per_trigger: int | None  # null, of an archive alone: as its rows come to the driver
    max_records_per_trigger: int | None
    max_records_per_fetch: int | None
    shards_per_task: int | None
    shard_ordering: Literal["parent_first", "none"]
    shard_discovery_interval_ms: int | None
    probe_lag_ms: int | None
    fail_on_data_loss: bool
    deaggregate: bool
    on_malformed: Literal["passthrough", "fail"]
    hash_range_filter: Literal["off", "per_record", "kcl"]
    consumer_mode: Literal["polling", "efo"]
    consumer_name: str | None
    kcl_leases: str | None
    archive_as_written: str | None = None  # before it was made absolute: what rows name as their stream

    @property
    def name(self) -> str:
        """The stream's name or ARN, or the archive's pattern: what messages call this source."""
        return self.stream or self.stream_arn or self.archive or ""

    def connection_options(self) -> dict[str, str]:
        """The options of the Spark source that say where the stream is; `{}` for an archive."""
        options = {
            "streamName": self.stream,
            "streamARN": self.stream_arn,
            "region": self.region,
            "profile": self.profile,
            "endpointUrl": self.endpoint_url,
            "roleArn": self.role_arn,
            "roleExternalId": self.role_external_id,
            "roleSessionName": self.role_session_name,
        }
        return {name: value for name, value in options.items() if value is not None}

    def source_options(self) -> dict[str, str]:
        """All options of Spark's `kinesis` source; what is not set is left to the source's defaults."""
        options: dict[str, str | int | None] = {
            **self.connection_options(),
            "startingPosition": self.start,
            "maxBytesPerTrigger": self.max_bytes_per_trigger,
            "maxRecordsPerTrigger": self.max_records_per_trigger,
            "maxRecordsPerFetch": self.max_records_per_fetch,
            "shardsPerTask": self.shards_per_task,
            "shardOrdering": self.shard_ordering,
            "shardDiscoveryInterval": _milliseconds(self.shard_discovery_interval_ms),
            "probeLag": _milliseconds(self.probe_lag_ms),
            "failOnDataLoss": str(self.fail_on_data_loss).lower(),
            "deaggregate": str(self.deaggregate).lower(),
            "onMalformed": self.on_malformed,
            "hashRangeFilter": self.hash_range_filter,
            "consumerMode": self.consumer_mode,
            "consumerName": self.consumer_name,
            "kclLeases": self.kcl_leases,
        }
        return {name: str(value) for name, value in options.items() if value is not None}


def _milliseconds(value: int | None) -> str | None:
    return None if value is None else f"{value} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`[target]`: the lake and the rules for writing to it."""

    path: str
    checkpoint: str
    engine: Literal["embedded", "spark"]
    trigger_ms: int
    infinity: Literal["clamp", "null", "error"]
    special_numeric: Literal["error", "null"]
    timestamps: Timestamps
    tombstone_retention_ms: int
    chunk_timeout_ms: int
    chunk_memory_bytes: int
    chunk_disk_bytes: int
    unknown_tables: Literal["quarantine", "log"]
    max_unknown_tables: int
    max_columns: int
    raw_ion: bool
    canonical_json: bool
    redaction: Literal["keep", "honour"]
    storage_options: dict[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """`[tables."name"]`: one table to keep."""

    # Column names in keys, columns and except_columns are those after renaming.
    name: str  # as written in the file; names the folder in the lake
    schema: str
    table: str
    keys: tuple[str, ...]  # empty: no key, an append-only log
    columns: dict[str, str]  # declared column → PostgreSQL type; others hold raw JSON text
    keep: Keep
    rename: dict[str, str]  # name in the stream → name in the lake
    except_columns: tuple[str, ...]
    timestamps: Timestamps | None  # as the target says when None
    dedupe: Literal["identity", "content"]
    partition_by: tuple[str, ...]
    buckets: int | None
    target_file_size_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify:
    """`[verify]`: QLDB's proof as a step of the pipeline."""

    enabled: bool
    digest: str | None
    check_deletes: bool  # of no real delete the hash is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitor:
    """`[monitor]`: what is measured of each batch, and where it goes."""

    name: str  # what measurements and logs call this pipeline
    batches: int  # rows kept in `_headpond/batches`; 0: none
    sizes_every_ms: int
    prometheus: str | None  # HOST:PORT
    textfile: str | None
    opentelemetry: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One pipeline file."""

    file: str | None  # None when it was read from a string
    source: Source
    target: Target
    tables: tuple[Table, ...]
    verify: Verify
    monitor: Monitor
    spark: dict[str, str] = field(repr=False)

    def dsql_config(self) -> DsqlConfig:
        """What the decoder of DSQL changes must know; picklable, for executors.

        Raises:
            UsageError: the pipeline reads QLDB records, for which what is asked for is not there.
        """
        if self.source.format == "qldb":
            raise UsageError(
                'This is for pipelines that read DSQL changes, and source.format is "qldb".',
                next_step="Use it with another pipeline file.",
                key="source.format",
            )
        return DsqlConfig(
            tables=tuple(
                TableSpec(
                    name=table.name,
                    schema=table.schema,
                    table=table.table,
                    keys=table.keys,
                    columns=table.columns,
                    keep=table.keep,
                    rename=table.rename,
                    except_columns=table.except_columns,
                    dedupe=table.dedupe,
                    timestamps=table.timestamps or self.target.timestamps,
                    partition_by=table.partition_by,
                    buckets=table.buckets,
                    target_file_size_bytes=table.target_file_size_bytes,
                )
                for table in self.tables
            ),
            format=self.source.format,
            cluster=self.source.cluster,
            unknown_tables=self.target.unknown_tables,
            max_columns=self.target.max_columns,
            infinity=self.target.infinity,
            special_numeric=self.target.special_numeric,
        )
