"""What a pipeline file may not say: each refusal as a whole message."""

from __future__ import annotations

import pytest

from headpond.pipeline import loads
from headpond.pipeline.model import Source
from headpond.pipeline.reading import keys_of
from tests.pipeline.texts import SMALLEST, refusal, smallest


def wrong(key: str, fact: str) -> str:
    """The message of a key whose value cannot be used."""
    return f"{key} {fact}. Correct {key} in the pipeline file."


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
        wrong("spark.memory", 'must be a setting whose name begins with "spark.", not "2g"'),
    ),
    "spark value of a wrong type": (
        SMALLEST + "[spark]\n'spark.x' = [1]\n",
        wrong('spark."spark.x"', "must be a string, not a list"),
    ),
    "missing key": (
        SMALLEST.replace('format = "dsql"', ""),
        "source.format is missing. Add it to [source].",
    ),
    "missing keys of a table": (
        SMALLEST.replace('keys = ["order_id"]', ""),
        (
            'tables."public.orders".keys is missing. Add it to [tables."public.orders"], or to [defaults] '
            "for all tables."
        ),
    ),
    "missing path": (
        SMALLEST.replace('path = "lake"', ""),
        "target.path is missing. Add it to [target].",
    ),
    "section that is no table": (
        "source = 5\n" + SMALLEST.replace('[source]\nstream = "orders-cdc"\nformat = "dsql"\n', ""),
        wrong("source", "must be a table, not the integer 5"),
    ),
    "table that is no table": (
        SMALLEST.replace('[tables."public.orders"]\nkeys', "[tables]\nkeys"),
        wrong("tables.keys", "must be a table, not a list"),
    ),
    "bound of memory, gone": (
        smallest(target="chunk_memory = '1 GiB'"),
        (
            "target.chunk_memory is no longer a setting: the records of one chunked change may have 64 MiB "
            "together, none goes through a file. Remove target.chunk_memory."
        ),
    ),
    "bound of what waits, gone": (
        smallest(target="chunk_disk = '8 GiB'"),
        (
            "target.chunk_disk is no longer a setting: the records of one chunked change may have 64 MiB "
            "together, and wait for chunk_timeout. Remove target.chunk_disk."
        ),
    ),
    "string": (
        SMALLEST.replace('"orders-cdc"', "5"),
        wrong("source.stream", "must be a string, not the integer 5"),
    ),
    "date": (
        smallest(source="region = 2026-01-01"),
        wrong("source.region", "must be a string, not the date or time 2026-01-01"),
    ),
    "empty string": (
        smallest(source="region = ''"),
        wrong("source.region", 'must be a string that is not empty, not ""'),
    ),
    "NUL": (
        smallest(source='region = "a\\u0000b"'),
        wrong("source.region", 'must be a string without NUL characters, not "a\\u0000b"'),
    ),
    "size beyond any machine": (
        smallest(source="max_bytes_per_trigger = 4611686018427387905"),
        wrong(
            "source.max_bytes_per_trigger",
            "must be from one byte to 2^62, not the integer 4611686018427387905",
        ),
    ),
    "boolean": (
        smallest(source="fail_on_data_loss = 'no'"),
        wrong("source.fail_on_data_loss", 'must be true or false, not "no"'),
    ),
    "integer": (
        smallest(source="max_records_per_trigger = 0"),
        wrong("source.max_records_per_trigger", "must be an integer from 1 to 2147483647, not the integer 0"),
    ),
    "boolean where an integer belongs": (
        smallest(source="shards_per_task = true"),
        wrong("source.shards_per_task", "must be an integer from 1 to 2147483647, not the boolean true"),
    ),
    "integer beyond the service's bound": (
        smallest(source="max_records_per_fetch = 10001"),
        wrong("source.max_records_per_fetch", "must be an integer from 1 to 10000, not the integer 10001"),
    ),
    "choice": (
        smallest(source="shard_ordering = 'parents_first'"),
        (
            'source.shard_ordering must be "none" or "parent_first", not "parents_first". '
            'Did you mean "parent_first"?'
        ),
    ),
    "choice near nothing": (
        smallest(target="infinity = 'zzz'"),
        wrong("target.infinity", 'must be "clamp", "error" or "null", not "zzz"'),
    ),
    "size without a unit": (
        smallest(source="max_bytes_per_trigger = '64'"),
        wrong("source.max_bytes_per_trigger", "must be a number and a unit, as in '64 MiB', not \"64\""),
    ),
    "no size": (
        smallest(source="max_bytes_per_trigger = 0"),
        wrong("source.max_bytes_per_trigger", "must be from one byte to 2^62, not the integer 0"),
    ),
    "span": (
        smallest(target="trigger = 'soon'"),
        wrong("target.trigger", "must be a number and a unit, as in '5 seconds', not \"soon\""),
    ),
    "span as a number": (
        smallest(target="trigger = 5"),
        wrong("target.trigger", "must be a number and a unit, as in '5 seconds', not the integer 5"),
    ),
    "span too short": (
        smallest(target="chunk_timeout = '0 s'"),
        wrong("target.chunk_timeout", 'must be at least 1 ms, not "0 s"'),
    ),
    "versions kept too short": (
        smallest(target="version_retention = '59 minutes'"),
        wrong("target.version_retention", 'must be at least 1.0 h, not "59 minutes"'),
    ),
    "start": (
        smallest(source="start = 'AT_TIMESTAMP 2026-01-01T00:00:00'"),
        (
            "source.start is wrong: The starting position 'AT_TIMESTAMP 2026-01-01T00:00:00' cannot be used: "
            "'2026-01-01T00:00:00' has no time zone, such as Z or +02:00. "
            "Use LATEST, TRIM_HORIZON, AT_TIMESTAMP 2026-01-01T00:00:00Z, or a JSON object of shard ids "
            "and such positions or AFTER_SEQUENCE_NUMBER n."
        ),
    ),
    "entry of a list": (
        SMALLEST.replace('["order_id"]', '["order_id", 5]'),
        wrong('tables."public.orders".keys[1]', "must be a string, not the integer 5"),
    ),
    "no list": (
        SMALLEST.replace('["order_id"]', '"order_id"'),
        wrong('tables."public.orders".keys', 'must be a list of strings, not "order_id"'),
    ),
    "name twice": (
        SMALLEST.replace('["order_id"]', '["a", "a"]'),
        wrong('tables."public.orders".keys[1]', 'must be a name that is not in the list yet, not "a"'),
    ),
    "secret of a wrong type": (
        smallest(target="storage_options = { key = 12345 }"),
        wrong("target.storage_options.key", "must be a string, not an integer"),
    ),
    "long value": (
        smallest(target=f"infinity = '{'x' * 100}'"),
        wrong("target.infinity", f'must be "clamp", "error" or "null", not "{"x" * 60}…"'),
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
        SMALLEST + "[tables.again]\nschema = 'public'\ntable = 'orders'\nkeys = ['order_id']\n",
        (
            'tables.again and tables."public.orders" both keep the current rows of the table orders of the '
            "schema public. Keep one of the two entries, or keep another form in one of them: keep = "
            '"history".'
        ),
    ),
    "a pattern whose name says too little": (
        SMALLEST + "[tables.all]\nschema = 'public'\ntable = '*'\nkeys = []\n",
        (
            "tables.all stands for all tables public.*, but its name does not say what each is called. "
            'Name it as they are, as in [tables."public.*"], or with one star for the one in schema or '
            'table, as in [tables."history.*"] with schema = "public" and table = "*".'
        ),
    ),
    "a pattern that says too much, behind a table whose name it has": (
        SMALLEST + "[tables.'*']\nschema = 'audit'\ntable = 'events'\nkeys = []\n",
        (
            'tables."*" stands for all tables audit.events, but its name does not say what each is called. '
            'Name it as they are, as in [tables."public.*"], or with one star for the one in schema or '
            'table, as in [tables."history.*"] with schema = "public" and table = "*".'
        ),
    ),
    "a name that a pattern gives to another table": (
        SMALLEST.replace("public.orders", "a.b")
        + "schema = 'x'\ntable = 'y'\n[tables.'a.*']\nkeys = ['id']\n",
        (
            'tables."a.b" has the name that tables."a.*" would give to another table. '
            "Give one of the two another name."
        ),
    ),
    "two patterns that give one name": (
        SMALLEST.replace("public.orders", "*.*")
        + "[tables.'old.*']\nschema = 'x'\ntable = '*'\nkeys = ['id']\n",
        (
            'tables."old.*" has the name that tables."*.*" would give to another table. '
            "Give one of the two another name."
        ),
    ),
    "a default of one table": (
        SMALLEST + "[defaults]\nrename = { a = 'b' }\n",
        "defaults.rename is of one table. Write it in the entries of [tables].",
    ),
    "a default that is wrong": (
        SMALLEST + "[tables.'public.b']\nkeys = []\n[defaults]\nkeep = 'latest'\n",
        (
            'defaults.keep must be "current", "history" or "log", not "latest". Correct defaults.keep in the '
            "pipeline file."
        ),
    ),
    "current without a key": (
        SMALLEST.replace('["order_id"]', "[]\nkeep = 'current'"),
        (
            "tables.\"public.orders\" is wrong: The table 'public.orders' has no keys but keep = 'current'. "
            'Name its keys, or write keep = "log".'
        ),
    ),
    "dedupe of a table that is no log": (
        smallest(tables="dedupe = 'content'"),
        wrong('tables."public.orders".dedupe', 'must be "identity" unless keep = "log", not "content"'),
    ),
    "unknown column type": (
        smallest(tables="columns = { a = 'bigintt' }"),
        (
            "tables.\"public.orders\".columns.a is wrong: Unknown PostgreSQL type 'bigintt': "
            "change records have no such type. "
            "Did you mean bigint?"
        ),
    ),
    "key left out": (
        smallest(tables="except_columns = ['order_id']"),
        (
            "tables.\"public.orders\" is wrong: The table 'public.orders' leaves out its key 'order_id'. "
            "Keep key columns."
        ),
    ),
    "two columns renamed to one": (
        smallest(tables="rename = { a = 'c', b = 'c' }"),
        wrong(
            'tables."public.orders".rename.b', 'must be a name that no other column gets (a gets it), not "c"'
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


STREAM_ONLY = [name for name, key in keys_of(Source).items() if key.more.get("stream")]


@pytest.mark.parametrize("key", STREAM_ONLY)
def test_keys_for_streams_are_refused_beside_an_archive(key: str) -> None:
    """A key that would do nothing is not taken silently."""
    values = {"fail_on_data_loss": "true", "start": "'LATEST'", "shard_ordering": "'none'"}
    values |= {"hash_range_filter": "'off'", "consumer_mode": "'polling'", "kcl_leases": "'x'"}
    values |= dict.fromkeys(("max_records_per_fetch", "shards_per_task"), "1")
    values |= dict.fromkeys(("shard_discovery_interval", "probe_lag"), "'1 s'")
    text = smallest(source=f"{key} = {values.get(key, repr('x'))}").replace("stream =", "archive =")
    assert refusal(text) == (
        f"source.{key} cannot be used with source.archive: it is for streams. "
        f"Remove source.{key}, or read from a stream."
    )


S = "s3cr3t/x"


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("target.path", smallest().replace('path = "lake"', f'path = "s3://AKIA:{S}@bucket/lake"')),
        ("target.path", smallest().replace('path = "lake"', 'path = "s3a://AKIA:s3cr3t@bucket/lake"')),
        (
            "target.path",
            smallest().replace('path = "lake"', 'path = "abfss://c:s3cr3t@a.dfs.core.windows.net/l"'),
        ),
        ("target.checkpoint", smallest(target='checkpoint = "s3://s3cr3t@bucket/c"')),
        (
            "source.archive",
            smallest().replace('stream = "orders-cdc"', 'archive = "s3://A:s3cr3t@bucket/*.jsonl"'),
        ),
        (
            "target.storage_options.AWS_ENDPOINT_URL",
            smallest(target='storage_options = { AWS_ENDPOINT_URL = "https://me:s3cr3t@host:9000" }'),
        ),
    ],
)
def test_keys_in_a_url_are_refused_and_not_shown(key: str, text: str) -> None:
    """As Hadoop once took them: a place is shown, logged and kept, so no secret may be a part of it."""
    said = refusal(text)
    assert said.startswith(f"{key} carries a user name, a key or a password in its URL. Remove it;")
    assert "s3cr3t" not in said


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/a@b:c",
        "s3://arn:aws:s3:eu-west-1:000000000000:accesspoint/a",
        "abfss://container@account.dfs.core.windows.net/lake",
        "hdfs://name-node:8020/lake",
    ],
)
def test_urls_without_keys_are_taken(url: str) -> None:
    """Containers, ports, ARNs and names with signs in them are no secrets."""
    assert loads(smallest().replace('path = "lake"', f'path = "{url}"')).target.path == url


BUCKET = smallest(target='storage_options = { NAME = "s3cr3t" }').replace('"lake"', '"s3://bucket/lake"')


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("AWS_ACESS_KEY_ID", "is not known. Did you mean AWS_ACCESS_KEY_ID?"),
        ("secret_acces_key", "is not known. Did you mean secret_access_key?"),
        ("AWS_PROFILE", "would not be used for all of a lake. Remove it. A profile, a role"),
        ("aws_server_side_encryption", "would not be used for all of a lake. Remove it."),
        ("proxy_url", "would not be used for all of a lake. Remove it."),
    ],
)
def test_an_option_that_only_some_requests_would_take_is_refused(name: str, said: str) -> None:
    text = BUCKET.replace("NAME", name)
    assert refusal(text).startswith(f"target.storage_options.{name} {said}")
    assert "s3cr3t" not in refusal(text)
    archive = smallest(target=f'storage_options = {{ {name} = "x" }}').replace(
        'stream = "orders-cdc"', 'archive = "s3://records/*.jsonl"'
    )
    assert said in refusal(archive)


@pytest.mark.parametrize(
    "name",
    ["AWS_SESSION_TOKEN", "aws_region", "endpoint", "fsync", "AWS_S3_ALLOW_UNSAFE_RENAME",
     "AZURE_STORAGE_SAS_KEY", "AZURE_CLIENT_SECRET", "AWS_CONDITIONAL_PUT", "AWS_S3_LOCKING_PROVIDER"],
)  # fmt: skip
def test_options_that_are_used_or_do_no_harm_are_taken(name: str) -> None:
    assert loads(BUCKET.replace("NAME", name)).target.storage_options == {name: "s3cr3t"}


def test_a_lake_in_a_folder_may_have_any() -> None:
    """They are of no use there, and were never refused."""
    text = smallest(target='storage_options = { AWS_PROFILE = "x" }')
    assert loads(text).target.storage_options == {"AWS_PROFILE": "x"}
