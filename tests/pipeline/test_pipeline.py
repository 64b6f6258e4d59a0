"""The pipeline file: every key in its field, and how the file is read."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from headpond.core.errors import ConfigurationError
from headpond.kinesis.planning.options import Limits, read_options
from headpond.pipeline import Source, Table, Target, Verify, load, loads
from headpond.pipeline.lake import row_changes
from tests.pipeline.texts import ENVIRON, FULL, SMALLEST, refusal, smallest


def test_the_smallest_file_has_the_documented_defaults() -> None:
    """A stream, a folder and a table with its key are enough."""
    pipeline = loads(SMALLEST, "/base", environ={})
    assert pipeline.source.name == "orders-cdc"
    assert pipeline.source.start == "TRIM_HORIZON"
    assert pipeline.source.max_bytes_per_trigger is None
    archive = loads(SMALLEST.replace('stream = "orders-cdc"', 'archive = "*.jsonl"'), "/base", environ={})
    assert archive.source.max_bytes_per_trigger is None
    assert pipeline.source.fail_on_data_loss is True
    assert pipeline.target.path == "/base/lake"
    assert pipeline.target.checkpoint == "/base/lake/_headpond/checkpoint"
    assert (pipeline.target.engine, pipeline.target.trigger_ms) == ("auto", 5_000)
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
        sts_endpoint_url="http://127.0.0.1:4568",
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
        register_consumer=False,
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
            deletion_vectors=None,
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
            deletion_vectors=None,
        ),
    )
    assert pipeline.verify == Verify(enabled=False, digest=None, check_deletes=True)
    assert pipeline.spark == {
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": "4",
        "spark.ui.enabled": "false",
    }


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
        "stsEndpointUrl": "http://127.0.0.1:4568",
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
        "registerConsumer": "false",
    }
    by_arn = SMALLEST.replace("stream =", "stream_arn =")
    assert loads(by_arn).source.connection_options() == {"streamARN": "orders-cdc"}


def test_the_source_takes_the_options_it_is_given() -> None:
    """What the file says is what the Kinesis source reads out of its options."""
    settings = read_options(loads(FULL, "/base", environ=ENVIRON).source.source_options())
    assert settings.connection.role_external_id == "hush-id"
    assert (settings.limits, settings.records_per_page) == (Limits(5000, 2**25), 10_000)
    assert (settings.probe_lag_ms, settings.discovery_ms, settings.shards_per_task) == (250, 30_000, 2)
    assert (settings.parent_first, settings.fail_on_data_loss, settings.on_malformed) == (
        False,
        False,
        "fail",
    )
    assert read_options(loads(SMALLEST).source.source_options()).limits.size_bytes is None


def test_the_decoder_gets_tables_and_rules() -> None:
    """The configuration of the DSQL decoder says what the file says."""
    config = row_changes(loads(FULL, "/base", environ=ENVIRON))
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
    with pytest.raises(ConfigurationError, match=r"is not valid UTF-8 \(byte 1\)"):
        load(file)


def test_a_file_that_is_no_toml_is_refused_with_the_place() -> None:
    """Line and column come from the TOML reader."""
    assert re.match(
        r"The pipeline file is not valid TOML: .*line 2, column.*\. Correct the file",
        refusal("a = 1\nb = =\n"),
    )


def test_an_archive_given_as_a_pipeline_file_is_recognised() -> None:
    """JSON is not TOML, and the next step is not to correct it."""
    assert "It looks like JSON; for an archive, `headpond init`" in refusal('{"data": "e30="}')


def test_a_file_that_is_nested_without_end_is_refused() -> None:
    """A hostile file is a wrong file, not a crash."""
    assert "is not valid TOML: it is nested too deeply." in refusal("a = " + "[" * 100_000)
