"""Every section and key of a pipeline file, declared once: name, type, bounds, default and description.

From these declarations come the checks (`reading`), and the tables and the JSON schema of docs/reference
(`scripts/pipeline_reference.py`). In an object of these classes units are resolved and paths absolute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform

from msgspec import Meta

from headpond.core.formats import MAX_COLUMNS
from headpond.core.options import LARGEST
from headpond.dsql.config import TableSpec
from headpond.dsql.pg_types import parse_type
from headpond.ion.column_types import parse_ion_type
from headpond.kinesis.reading.positions import read_start
from headpond.qldb.config import DocumentSpec

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
MAX_INT = 2**31 - 1
MAX_PORT = 65_535

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
"""Where measurements are served unless a file names another host."""


def read_address(text: str) -> str:
    """Return `HOST:PORT` of an address to listen at; raise a ValueError with what is expected."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) <= MAX_PORT:
        raise ValueError('an address such as "127.0.0.1:9464", or a port alone')
    return f"{host or LOOPBACK}:{int(port)}"


def _as_written(check: Callable[[str], object], expected: str) -> Meta:
    """Declare strings that another room can read; they are kept as written."""
    return Meta(min_length=1, extra={"check": check, "expected": expected})


Text = Annotated[str, Meta(min_length=1)]
Location = Annotated[str, Meta(min_length=1, extra={"located": True})]
Address = Annotated[str, Meta(min_length=1, extra={"read": read_address})]
Names = tuple[Text, ...]
Count = Annotated[int, Meta(ge=1, le=MAX_INT)]
Size = Annotated[int, Meta(ge=1, le=LARGEST, extra={"unit": "size"})]
Span = Annotated[int, Meta(ge=0, extra={"unit": "span"})]
Buckets = Annotated[int, Meta(ge=1, le=10_000)]
Start = Annotated[
    str, _as_written(read_start, '"LATEST", "TRIM_HORIZON", "AT_TIMESTAMP …" or a JSON object per shard')
]
ColumnType = Annotated[str, _as_written(parse_type, "a PostgreSQL type that change records have")]
IonType = Annotated[str, _as_written(parse_ion_type, "a type that columns of QLDB records have")]
Keep = Literal["current", "history", "log"]
"""What a table keeps: the newest row per key, every version of it, or every change."""
Timestamps = Literal["ntz", "utc"]
"""What becomes of a PostgreSQL `timestamp`: `timestamp_ntz`, or a UTC `timestamp`."""


def key(description: str, default: Any = None, *, secret: bool = False, **more: Any) -> Any:
    """Declare a key of a section.

    Args:
        description: in Markdown, for the page and for editors.
        default: its value in a file that does not have it; None where the type has none: `load` fills it in.
        secret: neither messages nor `repr` show the value.
        more: `each=True`: of one table, not for `[defaults]`. `stream=True`: refused beside `archive`.
            `ledger=True`: for `format = "qldb"`, and only at its default beside "dsql". `no_ledger="why"`:
            refused beside "qldb". `alias`: its name in AUTO CDC, with `alias_values` and `alias_expected`
            where its values are others.
    """
    metadata = {"description": description, "secret": secret, **more}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata, repr=not secret)
    return field(default=default, metadata=metadata, repr=not secret)


def required(description: str, **more: Any) -> Any:
    """Declare a key that a section must have; arguments as of `key`."""
    return key(description, MISSING, **more)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(key, required))
def section(cls: type[T]) -> type[T]:
    """Make the class of a section: frozen, of keyword arguments."""
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)


@section
class Source:
    """`[source]`: exactly one of `stream`, `stream_arn` and `archive` is set."""

    stream: Text | None = key("name of the stream")
    stream_arn: Text | None = key("its ARN, for a stream of another account")
    archive: Location | None = key(
        'files instead of a stream, as a pattern: `"records/*.jsonl"`; see [archives](../how-to/archive.md)'
    )
    format: Literal["dsql", "qldb"] = required(
        '`"dsql"`: Aurora DSQL changes, or `"qldb"`: QLDB stream records '
        "([what differs](#pipelines-that-read-qldb-records))"
    )
    cluster: Text | None = key(
        "DSQL: changes of any other cluster are quarantined as `unexpected_cluster`",
        no_ledger="a ledger has no cluster",
    )
    region: Text | None = key("the ARN's, the endpoint's, otherwise the one that boto3 finds", stream=True)
    profile: Text | None = key("a profile of the AWS configuration", stream=True)
    endpoint_url: Text | None = key("the Kinesis endpoint, if it is not AWS's", stream=True)
    role_arn: Text | None = key("a role to assume", stream=True)
    role_external_id: Text | None = key("the external id that this role requires", stream=True, secret=True)
    role_session_name: Text | None = key("the session's name in audit logs", stream=True)
    sts_endpoint_url: Text | None = key("the STS endpoint, if it is not AWS's", stream=True)
    start: Start = key(
        'where the first start begins: also `"LATEST"`, `"AT_TIMESTAMP 2026-01-01T00:00:00Z"`, or a JSON '
        "object with a position per shard",
        "TRIM_HORIZON",
        stream=True,
    )
    max_bytes_per_trigger: Size | None = key(
        "the most Kinesis data that one batch reads, or bytes of an archive's files; of a stream, setting it "
        "means reading twice. By default 10 minutes or about 1 GiB, of an archive 1 GiB; 64 MiB if a driver "
        "of a cluster writes the tables, or of a ledger there"
    )
    max_records_per_trigger: Count | None = key("the most Kinesis records that one batch reads")
    max_records_per_fetch: Annotated[int, Meta(ge=1, le=10000)] | None = key(
        "records asked for in one call", stream=True
    )
    shards_per_task: Count | None = key("shards that one Spark task reads", stream=True)
    shard_ordering: Literal["parent_first", "none"] = key(
        '`"none"` reads the children of a split without waiting for their parent\'s end',
        "parent_first",
        stream=True,
    )
    shard_discovery_interval_ms: Span | None = key("how often shards are listed", stream=True)
    probe_lag_ms: Span | None = key("how far behind the tip a batch ends", stream=True)
    fail_on_data_loss: bool = key(
        "stop when records that the checkpoint points at have expired", default=True, stream=True
    )
    deaggregate: bool = key("open KPL aggregates", default=True)
    on_malformed: Literal["passthrough", "fail"] = key(
        'a broken aggregate goes to quarantine; `"fail"` stops the run', "passthrough"
    )
    hash_range_filter: Literal["off", "per_record", "kcl"] = key(
        '`"per_record"` leaves out user records that are not of their shard\'s hash keys, `"kcl"` what the '
        "KCL leaves out; see [the source](../systems/kinesis-source.md)",
        "off",
        stream=True,
    )
    consumer_mode: Literal["polling", "efo"] = key(
        '`"efo"` reads by [enhanced fan-out](../systems/kinesis-source.md#enhanced-fan-out), with 2 MiB/s '
        "per shard of its own",
        "polling",
        stream=True,
    )
    consumer_name: Text | None = key('the registered consumer that `"efo"` reads as', stream=True)
    register_consumer: bool = key(
        "register that consumer if the stream does not have it, and wait until it is active; `headpond "
        "consumers deregister` ends it",
        default=False,
        stream=True,
    )
    kcl_leases: Location | None = key(
        "an exported lease table of a KCL application, to start where it stopped; see [the "
        "source](../systems/kinesis-source.md#move-over-from-a-kcl-application)",
        stream=True,
    )
    archive_as_written: str | None = None  # before it was made absolute: what rows name as their stream

    @property
    def name(self) -> str:
        """The stream's name or ARN, or the archive's pattern: what messages call this source."""
        return self.stream or self.stream_arn or self.archive or ""

    @property
    def described(self) -> str:
        """The source in a few words that stay the same when its folder moves, or its name becomes an ARN."""
        if self.archive is not None:
            return f"the archive {self.archive_as_written or self.archive}"
        return f"the stream {self.stream or (self.stream_arn or '').rpartition('/')[2]}"

    def connection_options(self) -> dict[str, str]:
        """Return the options of the Spark source that say where the stream is; `{}` for an archive."""
        known = ("stream", "stream_arn", "region", "profile", "endpoint_url")
        role = ("role_arn", "role_external_id", "role_session_name", "sts_endpoint_url")
        return self._options(*known, *role)

    def source_options(self) -> dict[str, str]:
        """Return all options of Spark's `kinesis` source; what is not set is left to its defaults."""
        beside = {"archive", "format", "cluster", "archive_as_written"}
        return self._options(*(name for name in self.__dataclass_fields__ if name not in beside))

    def _options(self, *names: str) -> dict[str, str]:
        values = {name: getattr(self, name) for name in names}
        return {option_name(name): _option(name, each) for name, each in values.items() if each is not None}


def option_name(name: str) -> str:
    """Return the name that a key has as an option of Spark's `kinesis` source."""
    own = {"stream": "streamName", "stream_arn": "streamARN", "start": "startingPosition"}
    first, *others = name.removesuffix("_ms").split("_")
    return own.get(name) or first + "".join(word.title() for word in others)


def _option(name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value} ms" if name.endswith("_ms") else str(value)


@section
class Target:
    """`[target]`: the lake and the rules for writing to it."""

    path: Location = required("the lake: a folder, or the URL of an object store")
    engine: Literal["auto", "embedded", "spark"] = key(
        "what writes large batches to the tables: [Spark's executors](../how-to/spark-engine.md) on a cluster"
        ' with the lake in an object store, otherwise the driver; or always the driver (`"embedded"`) or the '
        'executors (`"spark"`)',
        "auto",
    )
    checkpoint: Location = key("Spark's checkpoint; by default `_headpond/checkpoint` in the lake")
    trigger_ms: Span = key("pause between the starts of two batches", 5000)
    infinity: Literal["clamp", "null", "error"] = key(
        'infinite dates and timestamps become the last value that the type can hold; or `"null"`; or '
        '`"error"`: the change is quarantined, as it always is for such a value in [a '
        "key](../systems/dsql.md#types)",
        "clamp",
        no_ledger="Ion timestamps are finite",
    )
    special_numeric: Literal["error", "null"] = key(
        'NaN and infinity of `numeric` quarantine the change; or `"null"`, but never in a key',
        "error",
        no_ledger="Ion decimals are finite",
    )
    timestamps: Timestamps = key(
        'what a column declared `timestamp` becomes: `timestamp_ntz`, or with `"utc"` a `timestamp` in UTC, '
        "which [older readers](#timestamps) support",
        "ntz",
        no_ledger="Ion timestamps are instants with an offset",
    )
    deletion_vectors: bool | None = key(
        "whether rows may be marked as deleted instead of rewriting files: batches of random keys then cost "
        "little however large a table is, but [readers](../how-to/deletion-vectors.md) must support it. By "
        "default, existing tables stay as they are and new ones have none"
    )
    tombstone_retention_ms: Span = key(
        "how long deletes are remembered, back from the newest commit; more than the stream's retention",
        7 * DAY_MS,
        no_ledger="a document's id never comes back, so tombstones are few and kept",
    )
    max_commit_ahead_ms: Span = key(
        "how far a change's commit time may lie after its arrival: one with a later commit time is "
        "quarantined, because nothing would ever supersede it",
        DAY_MS,
        no_ledger="revisions are ordered by their version, not by time",
    )
    maintenance: bool = key(
        "whether a run that follows its source [compacts tables and removes old "
        "files](../how-to/optimize.md) by itself, while batches run",
        default=True,
    )
    version_retention_ms: Annotated[int, Meta(ge=HOUR_MS, extra={"unit": "span"})] = key(
        "how long maintenance keeps older versions of a table readable; at least 1 hour, and longer than "
        "the longest query of a table, which could otherwise lose its files",
        7 * DAY_MS,
    )
    chunk_timeout_ms: Annotated[int, Meta(ge=1, extra={"unit": "span"})] = key(
        "how long the pieces of a chunked change wait for the rest, by arrival time",
        3600000,
        no_ledger="QLDB records are not chunked",
    )
    unknown_tables: Literal["quarantine", "log", "ignore"] = key(
        'what happens to changes of tables without an entry below; `"log"`: each such table gets a '
        '[raw log](lake.md#_headpondunknown_tables-and-unknown); `"ignore"`: they are counted but not kept',
        "quarantine",
    )
    max_unknown_tables: Annotated[int, Meta(ge=0, le=MAX_INT)] = key(
        "how many such logs, and how many tables that match a [pattern](#patterns-and-defaults), are made; "
        "changes of further tables go to quarantine",
        1000,
    )
    max_columns: Annotated[int, Meta(ge=1, le=100000)] = key(
        "columns that one change may name, or fields of one document, and those of all that are decoded "
        "together; beyond that they are quarantined as `too_many_columns`",
        MAX_COLUMNS,
    )
    raw_ion: bool = key(
        "QLDB: rows have the bytes of `data`, one Ion value with its symbol table, in `_ion`",
        default=False,
        ledger=True,
    )
    canonical_json: bool = key(
        "QLDB: rows have the whole `data` as [canonical JSON](../systems/qldb.md#values) in `_json`",
        default=False,
        ledger=True,
    )
    redaction: Literal["keep", "honour"] = key(
        'QLDB: `"keep"` what came with contents, or `"honour"`: [drop it](../how-to/qldb.md#redactions)',
        "keep",
        ledger=True,
    )
    storage_options: dict[str, str] = key(
        "access to an [object store](../how-to/object-stores.md), with deltalake's names; also used for an "
        "archive; never printed",
        {},
        secret=True,
    )


@section
class Table:
    """`[tables."name"]`: one table to keep. Names of columns are those after renaming."""

    name: str  # as written in the file; names the folder in the lake
    schema: Text = key(
        "the schema, if the section's name does not say it", no_ledger="a ledger has no schemas", each=True
    )
    table: Text = key("the table, if the section's name does not say it", each=True)
    keys: Names = required(
        "the key columns, in order; `[]` for a table without a key, which is kept as a log",
        no_ledger="the key of a document is its id, in the column _document_id",
    )
    columns: dict[str, ColumnType] = key(
        "column = PostgreSQL type, as in `CREATE TABLE`; other columns are kept as raw JSON text",
        {},
        each=True,
    )
    keep: Keep = key(
        '`"current"` (the newest row per key; the default with keys), `"history"` (every version with its '
        'interval) or `"log"` (every change; the default without)',
        alias="stored_as_scd_type",
        alias_values={"1": "current", "2": "history"},
        alias_expected="1 (the newest row per key) or 2 (every version)",
    )
    rename: dict[str, Text] = key(
        "name in the stream = name in the lake; all other keys of the section go by the new name",
        {},
        each=True,
    )
    except_columns: Names = key("columns to leave out", (), alias="except_column_list")
    timestamps: Timestamps | None = key(
        "as in `[target]`, for this table", no_ledger="Ion timestamps are instants with an offset"
    )
    deletes: Literal["hard", "soft"] = key(
        'current rows: deleted rows are removed; or `"soft"`: they stay, [marked](../how-to/soft-deletes.md) '
        "by `_deleted`",
        "hard",
        no_ledger="a deleted document's revisions are in its history",
    )
    dedupe: Literal["identity", "content"] = key(
        'logs: two entries are one when they have the same place in the stream; `"content"`: when commit '
        "time, transaction, operation and image (of a delete the key it names) are equal",
        "identity",
        no_ledger="a revision is known by its document and version",
    )
    type_changes: Literal["refuse", "widen"] = key(
        "a type in `columns` that differs from the table's is an error until [`headpond "
        'rebuild`](../how-to/change-a-table.md) rewrites the table; or `"widen"`: for a wider type (`bigint` '
        "for `integer`, more digits of `numeric`) the next start rewrites it",
        "refuse",
        no_ledger="its types have none that is wider",
    )
    partition_by: Names = key(
        "columns whose values name folders of the table, or functions of columns, as in "
        '`["day(created_at)"]`; see [partitions](#partitions)',
        (),
    )
    buckets: Buckets | None = key("number of folders that rows are distributed over, by a hash of their key")
    target_file_size_bytes: Size | None = key(
        "the size that batches and [`headpond optimize`](cli.md#headpond-optimize) give files (the table "
        "property `delta.targetFileSize`); 100 MiB by default"
    )
    deletion_vectors: bool | None = key("as in `[target]`, for this table")
    table_properties: dict[str, str] = key(
        "[properties](#table-properties) of the Delta table, such as "
        '`{ "delta.enableChangeDataFeed" = "true" }`',
        {},
    )
    comments: dict[str, str] = key(
        "column = comment, which readers and catalogs show; by default a declared column's type",
        {},
        each=True,
    )


@section
class LedgerTable(Table):
    """`[tables.name]` of a pipeline that reads QLDB records."""

    schema: Text = key("", "", no_ledger="a ledger has no schemas")
    table: Text = key("its name in the ledger, if the section has another name", each=True)
    table_id: Text | None = key(
        "only revisions of the table with this id: one that was dropped and created again has the same name "
        "and another id. Those of other ids are `unknown_table`, unless another entry takes them"
    )
    keys: Names = key("", (), no_ledger="the key of a document is its id, in the column _document_id")
    columns: dict[str, IonType] = key(
        "column = `string`, `boolean`, `bigint`, `decimal(p,s)`, `double`, `timestamp`, `binary` or "
        "`json`; any other field is canonical JSON as text",
        {},
        each=True,
    )
    keep: Literal["current", "history"] = key(
        '`"current"` (the newest revision per document) or `"history"` (every revision)', "current"
    )
    except_columns: Names = key("columns to leave out", ())  # without its name in AUTO CDC
    partition_by: Names = key(
        "declared columns of type `string`, `boolean` or `bigint`, or functions of declared columns; see "
        "[partitions](#partitions)",
        (),
    )
    buckets: Buckets | None = key(
        "number of folders that rows are distributed over, by a hash of the document's id and, in a history, "
        "the version"
    )


def table_spec(table: Table, timestamps: Timestamps) -> TableSpec:
    """Return the entry of a table of rows; `timestamps` holds where the entry itself has none.

    Raises:
        ConfigurationError: parts of the entry contradict each other.
    """
    return TableSpec(**_shared(table, TableSpec) | {"timestamps": table.timestamps or timestamps})


def document_spec(table: Table) -> DocumentSpec:
    """Return the entry of a table of documents; it raises as `table_spec` does."""
    return DocumentSpec(**_shared(table, DocumentSpec))


def _shared(table: Table, spec: type[TableSpec | DocumentSpec]) -> dict[str, Any]:
    """Return what an entry of the file and a spec have under the same names."""
    return {each.name: getattr(table, each.name) for each in fields(spec) if hasattr(table, each.name)}


@section
class Verify:
    """`[verify]`: QLDB's proof as a step of the pipeline."""

    enabled: bool = key(
        "QLDB: check the journal with each batch, into `_headpond/anomalies` "
        "([the proof](../how-to/qldb.md#the-proof))",
        default=False,
        ledger=True,
    )
    digest: Location | None = key("QLDB: a saved digest and proof (JSON) to compare with", ledger=True)
    check_deletes: bool = key("QLDB: `false` does not check the hashes of deletes", default=True, ledger=True)


@section
class Monitor:
    """`[monitor]`: what is measured of each batch, and where it goes."""

    name: Text = key(
        "what [metrics](metrics.md) and log lines call this pipeline; by default the file's name without its "
        "ending"
    )
    batches: Annotated[int, Meta(ge=0, le=1000000)] = key(
        "rows kept in [`_headpond/batches`](lake.md#_headpondbatches); `0` keeps none", 10000
    )
    sizes_every_ms: Annotated[int, Meta(ge=1000, extra={"unit": "span"})] = key(
        "how often, at most, the tables' sizes are measured", 30000
    )
    prometheus: Address | None = key(
        '`"HOST:PORT"` to serve metrics at; a port alone serves only this machine (127.0.0.1)'
    )
    opentelemetry: bool = key("metrics to OpenTelemetry's global meter provider", default=False)


SECTIONS: dict[str, type | None] = {
    "source": Source,
    "target": Target,
    "defaults": Table,
    "tables": Table,
    "verify": Verify,
    "monitor": Monitor,
    "spark": None,
}
"""The sections of a file; `tables` has an entry per table, `spark` the names of Spark's settings.

`defaults` has what entries of `tables` say where they do not say otherwise; `load` puts it into them.
"""
