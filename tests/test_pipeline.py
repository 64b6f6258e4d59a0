"""The pipeline file: every key, every refusal."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headpond.errors import ConfigurationError, HeadpondError
from headpond.kinesis.options import read_options
from headpond.pipeline import Pipeline, Source, Table, Target, Verify, load, loads
from headpond.pipeline.auto_cdc import REFUSED
from headpond.pipeline.keys import REQUIRED, Key
from headpond.pipeline.ledger import NO_MEANING, ledger_config
from headpond.pipeline.schema import SECTIONS, SOURCE, STREAM_ONLY, TABLE, TARGET, VERIFY

SMALLEST = """
[source]
stream = "orders-cdc"
format = "dsql"
[target]
path = "lake"
[tables."public.orders"]
keys = ["order_id"]
"""

FULL = """
[source]
stream = "orders-cdc"
format = "dsql"
cluster = "kmabugl"
region = "us-east-1"
profile = "work"
endpoint_url = "http://127.0.0.1:4567"
role_arn = "arn:aws:iam::000000000000:role/reader"
role_external_id = "env:EXTERNAL_ID"
role_session_name = "headpond"
start = "AT_TIMESTAMP 2026-01-01T00:00:00Z"
max_bytes_per_trigger = "32 MiB"
max_records_per_trigger = 5000
max_records_per_fetch = 10000
shards_per_task = 2
shard_ordering = "none"
shard_discovery_interval = "30 seconds"
probe_lag = "250 ms"
fail_on_data_loss = false
deaggregate = true
on_malformed = "fail"
hash_range_filter = "off"
consumer_mode = "polling"

[target]
path = "lake"
engine = "embedded"
checkpoint = "elsewhere/checkpoint"
trigger = "1.5 seconds"
infinity = "null"
special_numeric = "null"
tombstone_retention = "2 weeks"
chunk_timeout = "1 hour"
chunk_memory = "256 MiB"
chunk_disk = "8 GiB"
timestamps = "utc"
unknown_tables = "quarantine"
max_unknown_tables = 9
raw_ion = false
redaction = "keep"
storage_options = { region = "us-east-1", aws_secret_access_key = "env:SECRET" }

[tables."public.orders"]
keys = ["order_id", "item_id"]
columns = { order_id = "bigint", item_id = "integer", price = "numeric(12,2)" }
keep = "current"
rename = { qty = "quantity" }
except_columns = ["note"]
timestamps = "ntz"

[tables.events]
schema = "audit.v2"
table = "events"
keys = []
keep = "log"
dedupe = "content"

[verify]
enabled = false

[spark]
"spark.driver.memory" = "2g"
"spark.sql.shuffle.partitions" = 4
"spark.ui.enabled" = false
"""

ENVIRON = {"EXTERNAL_ID": "hush-id", "SECRET": "hush-secret"}


def smallest(**changed: str) -> str:
    """The smallest file with lines added to sections: `source='region = "x"'`."""
    text = SMALLEST
    for section, lines in changed.items():
        mark = '[tables."public.orders"]' if section == "tables" else f"[{section}]"
        if mark not in text:
            text += f"{mark}\n"
        text = text.replace(mark, f"{mark}\n{lines}")
    return text


def refusal(text: str, kind: type[Exception] = ConfigurationError) -> str:
    """The whole message of the refusal of a file."""
    with pytest.raises(kind) as caught:
        loads(text, "/base", environ=ENVIRON)
    return str(caught.value)


def test_the_smallest_file_has_the_documented_defaults() -> None:
    """A stream, a folder and a table with its key are enough."""
    pipeline = loads(SMALLEST, "/base", environ={})
    assert pipeline.source.name == "orders-cdc"
    assert pipeline.source.start == "TRIM_HORIZON"
    assert pipeline.source.max_bytes_per_trigger == 64 * 1024 * 1024
    archive = loads(SMALLEST.replace('stream = "orders-cdc"', 'archive = "*.jsonl"'), "/base", environ={})
    assert archive.source.max_bytes_per_trigger is None
    assert pipeline.source.fail_on_data_loss is True
    assert pipeline.target.path == "/base/lake"
    assert pipeline.target.checkpoint == "/base/lake/_headpond/checkpoint"
    assert (pipeline.target.engine, pipeline.target.trigger_ms) == ("embedded", 5_000)
    assert pipeline.target.tombstone_retention_ms == 7 * 86_400_000
    (table,) = pipeline.tables
    assert (table.name, table.schema, table.table) == ("public.orders", "public", "orders")
    assert (table.keys, table.keep, table.dedupe) == (("order_id",), "current", "identity")


def test_every_key_arrives_in_its_field() -> None:
    """A file that uses every key that is built gives each value, with units resolved."""
    pipeline = loads(FULL, "/base", environ=ENVIRON)
    assert pipeline.source == Source(
        stream="orders-cdc",
        stream_arn=None,
        archive=None,
        format="dsql",
        cluster="kmabugl",
        region="us-east-1",
        profile="work",
        endpoint_url="http://127.0.0.1:4567",
        role_arn="arn:aws:iam::000000000000:role/reader",
        role_external_id="hush-id",
        role_session_name="headpond",
        start="AT_TIMESTAMP 2026-01-01T00:00:00Z",
        max_bytes_per_trigger=32 * 1024 * 1024,
        max_records_per_trigger=5000,
        max_records_per_fetch=10_000,
        shards_per_task=2,
        shard_ordering="none",
        shard_discovery_interval_ms=30_000,
        probe_lag_ms=250,
        fail_on_data_loss=False,
        deaggregate=True,
        on_malformed="fail",
        hash_range_filter="off",
        consumer_mode="polling",
        consumer_name=None,
        kcl_leases=None,
    )
    assert pipeline.target == Target(
        path="/base/lake",
        engine="embedded",
        checkpoint="/base/elsewhere/checkpoint",
        trigger_ms=1_500,
        infinity="null",
        special_numeric="null",
        tombstone_retention_ms=1_209_600_000,
        chunk_timeout_ms=3_600_000,
        chunk_memory_bytes=256 * 1024**2,
        chunk_disk_bytes=8 * 1024**3,
        timestamps="utc",
        unknown_tables="quarantine",
        max_unknown_tables=9,
        max_columns=1_600,
        raw_ion=False,
        canonical_json=False,
        redaction="keep",
        storage_options={"region": "us-east-1", "aws_secret_access_key": "hush-secret"},
    )
    assert pipeline.tables == (
        Table(
            name="public.orders",
            schema="public",
            table="orders",
            keys=("order_id", "item_id"),
            columns={"order_id": "bigint", "item_id": "integer", "price": "numeric(12,2)"},
            keep="current",
            rename={"qty": "quantity"},
            except_columns=("note",),
            timestamps="ntz",
            dedupe="identity",
            partition_by=(),
            buckets=None,
            target_file_size_bytes=None,
        ),
        Table(
            name="events",
            schema="audit.v2",
            table="events",
            keys=(),
            columns={},
            keep="log",
            rename={},
            except_columns=(),
            timestamps=None,
            dedupe="content",
            partition_by=(),
            buckets=None,
            target_file_size_bytes=None,
        ),
    )
    assert pipeline.verify == Verify(enabled=False, digest=None, check_deletes=True)
    assert pipeline.spark == {
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": "4",
        "spark.ui.enabled": "false",
    }


@pytest.mark.parametrize(
    ("keys", "model"),
    [(SOURCE, Source), (TARGET, Target), (TABLE, Table), (VERIFY, Verify)],
    ids=["source", "target", "tables", "verify"],
)
def test_each_key_has_a_field_and_each_field_a_key(keys: dict[str, Key], model: Any) -> None:
    """The declared keys and the model say the same."""
    beside = {Table: {"name"}, Source: {"archive_as_written"}}
    stored = {key.stored_as or name for name, key in keys.items()} | beside.get(model, set())
    assert {field.name for field in fields(model)} == stored


def test_a_pipeline_is_picklable_and_frozen() -> None:
    """It travels to other processes and nobody changes it."""
    pipeline = loads(FULL, "/base", environ=ENVIRON)
    assert pickle.loads(pickle.dumps(pipeline)) == pipeline
    with pytest.raises(AttributeError):
        pipeline.source = pipeline.source  # type: ignore[misc]


def test_secrets_are_not_in_the_text_form() -> None:
    """Printing a pipeline shows no value that may be secret."""
    assert "hush" not in repr(loads(FULL, "/base", environ=ENVIRON))


def test_the_options_of_the_spark_source_are_strings() -> None:
    """What is set goes to the source under its names there; what is not set stays the source's default."""
    assert loads(FULL, "/base", environ=ENVIRON).source.source_options() == {
        "streamName": "orders-cdc",
        "region": "us-east-1",
        "profile": "work",
        "endpointUrl": "http://127.0.0.1:4567",
        "roleArn": "arn:aws:iam::000000000000:role/reader",
        "roleExternalId": "hush-id",
        "roleSessionName": "headpond",
        "startingPosition": "AT_TIMESTAMP 2026-01-01T00:00:00Z",
        "maxBytesPerTrigger": "33554432",
        "maxRecordsPerTrigger": "5000",
        "maxRecordsPerFetch": "10000",
        "shardsPerTask": "2",
        "shardOrdering": "none",
        "shardDiscoveryInterval": "30000 ms",
        "probeLag": "250 ms",
        "failOnDataLoss": "false",
        "deaggregate": "true",
        "onMalformed": "fail",
        "hashRangeFilter": "off",
        "consumerMode": "polling",
    }
    by_arn = SMALLEST.replace("stream =", "stream_arn =")
    assert loads(by_arn).source.connection_options() == {"streamARN": "orders-cdc"}


def test_the_source_takes_the_options_it_is_given() -> None:
    """What the file says is what the Kinesis source reads out of its options."""
    settings = read_options(loads(FULL, "/base", environ=ENVIRON).source.source_options())
    assert settings.connection.role_external_id == "hush-id"
    assert (settings.max_bytes, settings.max_records, settings.records_per_page) == (2**25, 5000, 10_000)
    assert (settings.probe_lag_ms, settings.discovery_ms, settings.shards_per_task) == (250, 30_000, 2)
    assert (settings.parent_first, settings.fail_on_data_loss, settings.on_malformed) == (
        False,
        False,
        "fail",
    )
    assert read_options(loads(SMALLEST).source.source_options()).max_bytes == 64 * 1024**2


def test_the_decoder_gets_tables_and_rules() -> None:
    """The configuration of the DSQL decoder says what the file says."""
    config = loads(FULL, "/base", environ=ENVIRON).dsql_config()
    assert (config.cluster, config.infinity, config.special_numeric) == ("kmabugl", "null", "null")
    orders, events = config.tables
    assert (orders.name, orders.keys, orders.keep) == ("public.orders", ("order_id", "item_id"), "current")
    assert dict(orders.columns)["price"] == "numeric(12,2)"
    assert (dict(orders.rename), orders.except_columns) == ({"qty": "quantity"}, ("note",))
    assert (events.schema, events.table, events.keep, events.dedupe) == (
        "audit.v2",
        "events",
        "log",
        "content",
    )


# Reading the file.


def test_a_file_is_read_with_paths_relative_to_it(tmp_path: Path) -> None:
    """The working folder does not matter; URLs stay as they are."""
    file = tmp_path / "pipeline.toml"
    file.write_text(SMALLEST.replace('stream = "orders-cdc"', 'archive = "records/*.jsonl"'))
    pipeline = load(file)
    assert pipeline.source.archive == f"{tmp_path}/records/*.jsonl"
    assert pipeline.source.archive_as_written == "records/*.jsonl"
    # Rows of an archive name it as the file does, wherever the file lies.
    assert pipeline.source.archive_as_written == "records/*.jsonl"
    assert pipeline.target.path == f"{tmp_path}/lake"
    assert pipeline.file == str(file)
    assert loads(smallest().replace('"lake"', '"s3://bucket/lake/"')).target.checkpoint == (
        "s3://bucket/lake/_headpond/checkpoint"
    )


def test_home_and_absolute_paths_are_understood() -> None:
    """`~` is the home folder and an absolute path stays where it is."""
    assert loads(SMALLEST.replace('"lake"', '"~/lake"')).target.path == str(Path.home() / "lake")
    assert loads(SMALLEST.replace('"lake"', '"/data/../lake"')).target.path == "/lake"


def test_an_absent_file_is_refused(tmp_path: Path) -> None:
    """The message names the path and the system's reason."""
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path / "nope.toml")
    assert str(caught.value) == (
        f"The pipeline file {tmp_path}/nope.toml cannot be read: No such file or directory. "
        "Give the path of a pipeline file, as in `headpond run pipeline.toml`."
    )


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    """A byte that is not UTF-8 is named by its place."""
    file = tmp_path / "pipeline.toml"
    file.write_bytes(b"a\xff")
    with pytest.raises(ConfigurationError, match=r"is not UTF-8 \(byte 1\)"):
        load(file)


def test_a_file_that_is_no_toml_is_refused_with_the_place() -> None:
    """Line and column come from the TOML reader."""
    assert re.match(
        r"The pipeline file is not valid TOML: .*line 2, column.*\. Correct the file",
        refusal("a = 1\nb = =\n"),
    )


def test_a_file_that_is_nested_without_end_is_refused() -> None:
    """A hostile file is a wrong file, not a crash."""
    assert "is not valid TOML: it is nested too deeply." in refusal("a = " + "[" * 100_000)


# Refusals, each as a whole message.


REFUSALS = {
    "unknown section": (
        SMALLEST + "[sources]\n",
        "sources is not a known key. Did you mean source?",
    ),
    "unknown key": (
        smallest(source="regoin = 'x'"),
        "source.regoin is not a known key. Did you mean region?",
    ),
    "unknown key in a table": (
        smallest(tables="colums = {}"),
        'tables."public.orders".colums is not a known key. Did you mean columns?',
    ),
    "unknown key near nothing": (
        smallest(verify="zzz = 1"),
        "verify.zzz is not a known key. Known here: enabled, digest, check_deletes.",
    ),
    "key of the model that is no key of the file": (
        smallest(target="trigger_ms = 5"),
        "target.trigger_ms is not a known key. Did you mean trigger?",
    ),
    "table name without quotes": (
        SMALLEST.replace('tables."public.orders"', "tables.public.orders"),
        'tables.public.orders is not a known key. A name with a dot needs quotes: [tables."public.orders"].',
    ),
    "spark name without quotes": (
        SMALLEST + "[spark]\nspark.driver.memory = '2g'\n",
        (
            "spark.spark must be one setting, not a table. "
            'Write the whole name of a setting in quotes, as in "spark.driver.memory" = "2g".'
        ),
    ),
    "not a setting of spark": (
        SMALLEST + "[spark]\nmemory = '2g'\n",
        (
            'spark.memory must be a setting whose name begins with "spark.", not "2g". '
            "Correct spark.memory in the pipeline file."
        ),
    ),
    "spark value of a wrong type": (
        SMALLEST + "[spark]\n'spark.x' = [1]\n",
        'spark."spark.x" must be a string, not a list. Correct spark."spark.x" in the pipeline file.',
    ),
    "missing key": (
        SMALLEST.replace('format = "dsql"', ""),
        "source.format is missing. Add it to [source].",
    ),
    "missing keys of a table": (
        SMALLEST.replace('keys = ["order_id"]', ""),
        'tables."public.orders".keys is missing. Add it to [tables."public.orders"].',
    ),
    "missing path": (
        SMALLEST.replace('path = "lake"', ""),
        "target.path is missing. Add it to [target].",
    ),
    "section that is no table": (
        "source = 5\n" + SMALLEST.replace('[source]\nstream = "orders-cdc"\nformat = "dsql"\n', ""),
        "source must be a table, not the integer 5. Correct source in the pipeline file.",
    ),
    "table that is no table": (
        SMALLEST.replace('[tables."public.orders"]\nkeys', "[tables]\nkeys"),
        "tables.keys must be a table, not a list. Correct tables.keys in the pipeline file.",
    ),
    "string": (
        SMALLEST.replace('"orders-cdc"', "5"),
        "source.stream must be a string, not the integer 5. Correct source.stream in the pipeline file.",
    ),
    "date": (
        smallest(source="region = 2026-01-01"),
        (
            "source.region must be a string, not the date or time 2026-01-01. "
            "Correct source.region in the pipeline file."
        ),
    ),
    "empty string": (
        smallest(source="region = ''"),
        (
            'source.region must be a string that is not empty, not "". Correct source.region '
            "in the pipeline file."
        ),
    ),
    "NUL": (
        smallest(source='region = "a\\u0000b"'),
        (
            'source.region must be a string without NUL characters, not "a\\u0000b". '
            "Correct source.region in the pipeline file."
        ),
    ),
    "size beyond any machine": (
        smallest(source="max_bytes_per_trigger = 4611686018427387905"),
        (
            "source.max_bytes_per_trigger must be from one byte to 2^62, "
            "not the integer 4611686018427387905. "
            "Correct source.max_bytes_per_trigger in the pipeline file."
        ),
    ),
    "boolean": (
        smallest(source="fail_on_data_loss = 'no'"),
        (
            'source.fail_on_data_loss must be true or false, not "no". '
            "Correct source.fail_on_data_loss in the pipeline file."
        ),
    ),
    "integer": (
        smallest(source="max_records_per_trigger = 0"),
        (
            "source.max_records_per_trigger must be an integer from 1 to 2147483647, not the integer 0. "
            "Correct source.max_records_per_trigger in the pipeline file."
        ),
    ),
    "boolean where an integer belongs": (
        smallest(source="shards_per_task = true"),
        (
            "source.shards_per_task must be an integer from 1 to 2147483647, not the boolean true. "
            "Correct source.shards_per_task in the pipeline file."
        ),
    ),
    "integer beyond the service's bound": (
        smallest(source="max_records_per_fetch = 10001"),
        (
            "source.max_records_per_fetch must be an integer from 1 to 10000, not the integer 10001. "
            "Correct source.max_records_per_fetch in the pipeline file."
        ),
    ),
    "choice": (
        smallest(source="shard_ordering = 'parents_first'"),
        (
            'source.shard_ordering must be "parent_first" or "none", not "parents_first". '
            'Did you mean "parent_first"?'
        ),
    ),
    "choice near nothing": (
        smallest(target="infinity = 'zzz'"),
        (
            'target.infinity must be "clamp", "null" or "error", not "zzz". '
            "Correct target.infinity in the pipeline file."
        ),
    ),
    "size without a unit": (
        smallest(source="max_bytes_per_trigger = '64'"),
        (
            "source.max_bytes_per_trigger must be a number and a unit, as in '64 MiB', not \"64\". "
            "Correct source.max_bytes_per_trigger in the pipeline file."
        ),
    ),
    "no size": (
        smallest(source="max_bytes_per_trigger = 0"),
        (
            "source.max_bytes_per_trigger must be from one byte to 2^62, not the integer 0. "
            "Correct source.max_bytes_per_trigger in the pipeline file."
        ),
    ),
    "span": (
        smallest(target="trigger = 'soon'"),
        (
            "target.trigger must be a number and a unit, as in '5 seconds', not \"soon\". "
            "Correct target.trigger in the pipeline file."
        ),
    ),
    "span as a number": (
        smallest(target="trigger = 5"),
        "target.trigger must be a string, not the integer 5. Correct target.trigger in the pipeline file.",
    ),
    "span too short": (
        smallest(target="chunk_timeout = '0 s'"),
        (
            'target.chunk_timeout must be at least 1 ms, not "0 s". '
            "Correct target.chunk_timeout in the pipeline file."
        ),
    ),
    "start": (
        smallest(source="start = 'AT_TIMESTAMP 2026-01-01T00:00:00'"),
        (
            "source.start is wrong: The starting position 'AT_TIMESTAMP 2026-01-01T00:00:00' cannot be used: "
            "'2026-01-01T00:00:00' says no time zone, as Z or +02:00 would. "
            "Use LATEST, TRIM_HORIZON, AT_TIMESTAMP 2026-01-01T00:00:00Z, or a JSON object of shard ids "
            "and such positions or AFTER_SEQUENCE_NUMBER n."
        ),
    ),
    "entry of a list": (
        SMALLEST.replace('["order_id"]', '["order_id", 5]'),
        (
            'tables."public.orders".keys[1] must be a string, not the integer 5. '
            'Correct tables."public.orders".keys[1] in the pipeline file.'
        ),
    ),
    "no list": (
        SMALLEST.replace('["order_id"]', '"order_id"'),
        (
            'tables."public.orders".keys must be a list of strings, not "order_id". '
            'Correct tables."public.orders".keys in the pipeline file.'
        ),
    ),
    "name twice": (
        SMALLEST.replace('["order_id"]', '["a", "a"]'),
        (
            'tables."public.orders".keys[1] must be a name that is not in the list yet, not "a". '
            'Correct tables."public.orders".keys[1] in the pipeline file.'
        ),
    ),
    "secret of a wrong type": (
        smallest(target="storage_options = { key = 12345 }"),
        (
            "target.storage_options.key must be a string, not an integer. "
            "Correct target.storage_options.key in the pipeline file."
        ),
    ),
    "long value": (
        smallest(target=f"infinity = '{'x' * 100}'"),
        (
            f'target.infinity must be "clamp", "null" or "error", not "{"x" * 60}…". '
            "Correct target.infinity in the pipeline file."
        ),
    ),
    "variable that is not set": (
        smallest(source="region = 'env:NOWHERE'"),
        (
            "source.region takes its value from the environment variable NOWHERE, which is not set. "
            "Set NOWHERE before the start."
        ),
    ),
    "two origins": (
        smallest(source="archive = '*.jsonl'"),
        (
            "[source] must have exactly one of stream, stream_arn and archive; it has source.stream and "
            'source.archive. Name the stream, as in stream = "orders-cdc", or files, as in '
            'archive = "*.jsonl".'
        ),
    ),
    "no origin": (
        SMALLEST.replace('stream = "orders-cdc"', ""),
        (
            "[source] must have exactly one of stream, stream_arn and archive; it has none of them. "
            'Name the stream, as in stream = "orders-cdc", or files, as in archive = "*.jsonl".'
        ),
    ),
    "no tables": (
        SMALLEST.replace('[tables."public.orders"]\nkeys = ["order_id"]\n', ""),
        (
            "There is no [tables] entry, so every change would be quarantined. "
            'Add one per table, as in [tables."public.orders"] with keys = ["order_id"], or write '
            'unknown_tables = "log" in [target].'
        ),
    ),
    "table without a schema": (
        SMALLEST.replace("public.orders", "orders"),
        (
            "tables.orders does not say which schema and which table it is. "
            'Name it [tables."schema.table"], or write both schema = "…" and table = "…" inside.'
        ),
    ),
    "table with two dots": (
        SMALLEST.replace("public.orders", "a.b.c"),
        (
            'tables."a.b.c" does not say which schema and which table it is. '
            'Name it [tables."schema.table"], or write both schema = "…" and table = "…" inside.'
        ),
    ),
    "schema alone": (
        smallest(tables="schema = 'other'"),
        (
            'tables."public.orders" does not say which schema and which table it is. '
            'Name it [tables."schema.table"], or write both schema = "…" and table = "…" inside.'
        ),
    ),
    "one table twice": (
        SMALLEST + "[tables.again]\nschema = 'public'\ntable = 'orders'\nkeys = []\n",
        (
            'tables.again and tables."public.orders" are both the table orders of the schema public. '
            "Keep one of the two entries."
        ),
    ),
    "current without a key": (
        SMALLEST.replace('["order_id"]', "[]\nkeep = 'current'"),
        (
            'tables."public.orders".keep must be "log" where keys = [] (rows without a key '
            "cannot be replaced), not "
            '"current". Write keep = "log", or name the key columns in keys.'
        ),
    ),
    "dedupe of a table that is no log": (
        smallest(tables="dedupe = 'content'"),
        (
            'tables."public.orders".dedupe must be "identity" unless keep = "log", not "content". '
            'Correct tables."public.orders".dedupe in the pipeline file.'
        ),
    ),
    "unknown column type": (
        smallest(tables="columns = { a = 'bigintt' }"),
        (
            "tables.\"public.orders\".columns.a is wrong: 'bigintt' is no PostgreSQL type "
            "that change records have. "
            "Did you mean bigint?"
        ),
    ),
    "key left out": (
        smallest(tables="except_columns = ['order_id']"),
        (
            'tables."public.orders".except_columns[0] must be a column that is no key, not "order_id". '
            'Correct tables."public.orders".except_columns[0] in the pipeline file.'
        ),
    ),
    "two columns renamed to one": (
        smallest(tables="rename = { a = 'c', b = 'c' }"),
        (
            'tables."public.orders".rename.b must be a name that no other column gets (a gets it), not "c". '
            'Correct tables."public.orders".rename.b in the pipeline file.'
        ),
    ),
    "fan-out without a consumer": (
        smallest(source='consumer_mode = "efo"'),
        (
            'source.consumer_mode = "efo" and source.consumer_name need each other; '
            "source.consumer_name is missing. Set both, or leave both out."
        ),
    ),
    "consumer without fan-out": (
        smallest(source='consumer_name = "app"'),
        (
            'source.consumer_mode = "efo" and source.consumer_name need each other; '
            "source.consumer_mode is missing. Set both, or leave both out."
        ),
    ),
    "old name in keys": (
        smallest(tables="rename = { order_id = 'id' }"),
        (
            'tables."public.orders".keys names the column order_id, which '
            'tables."public.orders".rename calls id. '
            "Write id in keys."
        ),
    ),
}


@pytest.mark.parametrize(("text", "message"), REFUSALS.values(), ids=REFUSALS)
def test_a_wrong_file_is_refused_with_the_path_the_fact_and_the_next_step(text: str, message: str) -> None:
    """Each refusal, word for word."""
    assert refusal(text) == message


@pytest.mark.parametrize("key", STREAM_ONLY)
def test_keys_for_streams_are_refused_beside_an_archive(key: str) -> None:
    """A key that would do nothing is not taken silently."""
    assert key in SOURCE
    values = {"fail_on_data_loss": "true", "start": "'LATEST'", "shard_ordering": "'none'"}
    values |= {"hash_range_filter": "'off'", "consumer_mode": "'polling'", "kcl_leases": "'x'"}
    values |= dict.fromkeys(("max_records_per_fetch", "shards_per_task"), "1")
    values |= dict.fromkeys(("shard_discovery_interval", "probe_lag"), "'1 s'")
    text = smallest(source=f"{key} = {values.get(key, repr('x'))}").replace("stream =", "archive =")
    assert refusal(text) == (
        f"source.{key} has no meaning beside source.archive: it is for streams. "
        f"Remove source.{key}, or read from a stream."
    )


@pytest.mark.parametrize(
    ("written", "ours"),
    [
        ("stored_as_scd_type = 1", 'keep = "current"'),
        ("stored_as_scd_type = 2", 'keep = "history"'),
        ('stored_as_scd_type = "2"', 'keep = "history"'),
        ('except_column_list = ["note"]', 'except_columns = ["note"]'),
    ],
)
def test_names_of_auto_cdc_are_taken_for_ours(written: str, ours: str) -> None:
    """Where both mean the same."""
    assert loads(smallest(tables=written)) == loads(smallest(tables=ours))


@pytest.mark.parametrize("name", REFUSED)
def test_names_of_auto_cdc_without_a_meaning_here_are_refused(name: str) -> None:
    """With the reason, and what there is instead."""
    why, next_step = REFUSED[name]
    assert refusal(smallest(tables=f'{name} = "x"')) == (
        f'tables."public.orders".{name} is a name of AUTO CDC that is not taken here: {why}. {next_step}'
    )


@pytest.mark.parametrize(
    ("written", "start"),
    [
        ("stored_as_scd_type = 3", 'tables."public.orders".stored_as_scd_type must be 1 (the newest row'),
        ("stored_as_scd_type = true", 'tables."public.orders".stored_as_scd_type must be 1'),
        ('stored_as_scd_type = "BITEMPORAL"', 'tables."public.orders".stored_as_scd_type must be 1'),
        (
            'stored_as_scd_type = 1\nkeep = "current"',
            'tables."public.orders".stored_as_scd_type and tables."public.orders".keep say the same thing.',
        ),
        ("except_column_list = [1]", 'tables."public.orders".except_column_list[0] must be a string'),
        ('except_column_list = ["order_id"]', 'tables."public.orders".except_columns[0] must be a column'),
    ],
)
def test_wrong_values_under_names_of_auto_cdc(written: str, start: str) -> None:
    """The path is the one that was written."""
    assert refusal(smallest(tables=written)).startswith(start)


def test_a_table_says_otherwise_than_the_target_what_its_timestamps_are() -> None:
    """And follows it where it says nothing."""
    text = smallest(target='timestamps = "utc"')
    assert loads(text).dsql_config().tables[0].timestamps == "utc"
    text = text.replace("keys =", 'timestamps = "ntz"\nkeys =')
    assert loads(text).dsql_config().tables[0].timestamps == "ntz"
    assert loads(SMALLEST).dsql_config().tables[0].timestamps == "ntz"


def test_an_open_configuration_needs_no_table() -> None:
    """Every table gets a log then."""
    text = SMALLEST.replace('[tables."public.orders"]\nkeys = ["order_id"]\n', "")
    assert loads(text.replace("[target]", '[target]\nunknown_tables = "log"')).tables == ()


def test_a_lake_whose_path_deltalake_would_misread_is_refused() -> None:
    """It writes to such a folder and reads from another one."""
    message = refusal(SMALLEST.replace('path = "lake"', 'path = "my%20lake"'), ConfigurationError)
    assert message.startswith("target.path must be a path without % and two hexadecimal digits")
    assert loads(SMALLEST.replace('path = "lake"', 'path = "50% lake"')).target.path.endswith("/50% lake")


def test_a_key_at_its_default_changes_nothing() -> None:
    """A file may say what is so anyway."""
    defaults = (
        """chunk_timeout = "60 minutes"\nchunk_memory = "256 MiB"\nredaction = "keep"\nraw_ion = false"""
    )
    assert loads(smallest(target=defaults)) == loads(SMALLEST)


# Values from the environment.


TEXT_KEYS = [
    ("source", "region", None),
    ("target", "path", None),
    ("target", "trigger", "7 s"),
    ("target", "infinity", "null"),
    ("source", "max_bytes_per_trigger", "1 MiB"),
]


@pytest.mark.parametrize(("section", "key", "value"), TEXT_KEYS)
def test_every_string_may_come_from_the_environment(section: str, key: str, value: str | None) -> None:
    """`env:NAME` is as good as the value itself, whatever the kind."""
    value = value or "somewhere"
    base = SMALLEST.replace('path = "lake"\n', "" if key == "path" else 'path = "lake"\n')
    mark = f"[{section}]"
    written = base.replace(mark, f'{mark}\n{key} = "{value}"')
    taken = base.replace(mark, f'{mark}\n{key} = "env:HERE"')
    assert loads(taken, environ={"HERE": value}) == loads(written)


@pytest.mark.parametrize(
    "text",
    [
        smallest(target="infinity = 'env:SECRET'"),
        smallest(target="trigger = 'env:SECRET'"),
        smallest(source="start = 'env:SECRET'"),
        smallest(source="max_bytes_per_trigger = 'env:SECRET'"),
        smallest(tables="columns = { a = 'env:SECRET' }"),
    ],
)
def test_a_value_from_the_environment_is_never_shown(text: str) -> None:
    """A refusal shows the reference that stands in the file."""
    message = refusal(text)
    assert "hush" not in message
    assert '"env:SECRET"' in message


def test_an_empty_variable_is_refused_where_a_string_must_not_be_empty() -> None:
    """Set but empty is not set to something."""
    with pytest.raises(ConfigurationError, match='must be a string that is not empty, not "env:E"'):
        loads(smallest(source="region = 'env:E'"), environ={"E": ""})


def test_measurements_are_for_this_machine_unless_told(tmp_path: Path) -> None:
    """A port alone is loopback's; a host is taken as written; a name is the file's."""
    text = smallest() + '[monitor]\nprometheus = "{}"\ntextfile = "m.prom"\n'
    for written, read in (
        ("9464", "127.0.0.1:9464"),
        (":9464", "127.0.0.1:9464"),
        ("0.0.0.0:9464", "0.0.0.0:9464"),
        ("[::1]:9464", "[::1]:9464"),
    ):
        assert loads(text.format(written), environ={}).monitor.prometheus == read
    for wrong in ("nine", "host", "127.0.0.1:", "127.0.0.1:65536", ":-1", "1 2"):
        with pytest.raises(ConfigurationError, match=r"monitor\.prometheus must be an address"):
            loads(text.format(wrong), environ={})
    (tmp_path / "orders.toml").write_text(text.format("9464"))
    monitor = load(tmp_path / "orders.toml", environ={}).monitor
    assert (monitor.name, monitor.textfile) == ("orders", str(tmp_path / "m.prom"))


# Whatever is written.


@given(st.text(max_size=30))
def test_any_text_in_any_place_is_a_value_or_a_refusal(text: str) -> None:
    """Whatever stands in a string, reading ends with a pipeline or one of our errors."""
    escaped = "".join(f"\\U{ord(c):08x}" if not 0xD800 <= ord(c) < 0xE000 else "?" for c in text)
    for section, key in (
        ("target", "trigger"),
        ("source", "start"),
        ("tables", "keep"),
        ("source", "region"),
    ):
        try:
            result = loads(smallest(**{section: f'{key} = "{escaped}"'}), environ={})
        except ConfigurationError:
            continue
        assert isinstance(result, Pipeline)


def test_sections_and_required_keys_are_declared() -> None:
    """The sections of the design are there, and just these keys must be given."""
    assert list(SECTIONS) == ["source", "target", "tables", "verify", "monitor", "spark"]
    tables = {"source": SOURCE, "target": TARGET, "tables": TABLE, "verify": VERIFY}
    required = {
        (section, n) for section, keys in tables.items() for n, k in keys.items() if k.default is REQUIRED
    }
    assert required == {("source", "format"), ("target", "path"), ("tables", "keys")}


# Pipelines that read QLDB records.


LEDGER = """
[source]
archive = "x.jsonl"
format = "qldb"
[target]
path = "lake"
{target}
[tables.Person]
{table}
"""


def ledger(target: str = "", table: str = "") -> str:
    """Give the text of the smallest pipeline of a ledger, with more."""
    return LEDGER.format(target=target, table=table)


def test_a_pipeline_of_a_ledger() -> None:
    """Its tables are named as in the ledger; one may have its history beside its state."""
    more = '[tables.past]\ntable = "Person"\nkeep = "history"\ncolumns = { n = "decimal(5,2)" }'
    config = ledger_config(
        loads(ledger('redaction = "honour"\nraw_ion = true\ncanonical_json = true') + more)
    )
    assert [(spec.name, spec.table, spec.keep) for spec in config.tables] == [
        ("Person", "Person", "current"),
        ("past", "Person", "history"),
    ]
    assert (config.honour, config.raw_ion, config.canonical_json) == (True, True, True)


@pytest.mark.parametrize("path", [f"{section}.{key}" for section, keys in NO_MEANING.items() for key in keys])
def test_keys_without_a_meaning_for_a_ledger_are_refused(path: str) -> None:
    """With the reason."""
    section, key = path.split(".")
    line = f'{key} = "x"'
    texts = {
        "source": ledger().replace('format = "qldb"', f'format = "qldb"\n{line}'),
        "target": ledger(target=line),
        "tables": ledger(table=line),
    }
    if section == "target":  # a value that the key may have
        value = TARGET[key].default
        shown = {"tombstone_retention": '"1 day"', "chunk_timeout": '"1 day"'}.get(key, json.dumps(value))
        texts["target"] = ledger(target=f"{key} = {shown}")
    place = f"tables.Person.{key}" if section == "tables" else path
    assert refusal(texts[section]) == (
        f'{place} has no meaning beside source.format = "qldb": {NO_MEANING[section][key]}. Remove {place}.'
    )


@pytest.mark.parametrize(
    ("text", "start"),
    [
        (ledger(target='unknown_tables = "log"'), 'target.unknown_tables = "log" has no meaning beside'),
        (ledger(table='columns = { a = "integer" }'), "tables.Person.columns.a is wrong: There is no type"),
        (ledger(table='keep = "log"'), 'tables.Person.keep must be "current" or "history"'),
        (ledger(table='partition_by = ["a"]'), "tables.Person is wrong: The table 'Person' is partitioned"),
        (
            ledger() + '[tables.again]\ntable = "Person"',
            "tables.again and tables.Person both keep",
        ),
        (ledger().replace("[tables.Person]", ""), "There is no [tables] entry"),
        (ledger() + '[verify]\ndigest = "d.json"', "verify.enabled must be true where there is a digest"),
        (smallest(verify="check_deletes = false"), "verify.check_deletes has no meaning beside"),
        (smallest(verify="enabled = true"), "verify.enabled has no meaning beside source.format"),
        (smallest(target="raw_ion = true"), "target.raw_ion has no meaning beside source.format"),
        (smallest(target="canonical_json = true"), "target.canonical_json has no meaning beside"),
        (smallest(target='redaction = "honour"'), "target.redaction has no meaning beside source.format"),
    ],
)
def test_what_a_ledger_cannot_have_is_refused(text: str, start: str) -> None:
    """And what only a ledger can have."""
    with pytest.raises(HeadpondError) as caught:
        loads(text)
    assert str(caught.value).startswith(start)
