"""Pipeline files for the tests of reading them: the smallest, and one with every key."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from headpond.core.errors import ConfigurationError
from headpond.pipeline import loads

ROOT = Path(__file__).parents[2]
REFERENCE = runpy.run_path(str(ROOT / "scripts" / "pipeline_reference.py"))
"""What writes the tables and the schema of docs/reference."""

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
sts_endpoint_url = "http://127.0.0.1:4568"
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
register_consumer = false

[target]
path = "lake"
engine = "embedded"
checkpoint = "elsewhere/checkpoint"
trigger = "1.5 seconds"
infinity = "null"
special_numeric = "null"
tombstone_retention = "2 weeks"
chunk_timeout = "1 hour"
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
    """The whole message of a file with one mistake, without its line, which must show a part of the key."""
    with pytest.raises(kind) as caught:
        loads(text, "/base", environ=ENVIRON)
    said = str(caught.value)
    (mistake,) = caught.value.facts.get("mistakes", [None])  # type: ignore[attr-defined]
    if mistake is None or not mistake["line"]:
        return said
    assert said.startswith(f"line {mistake['line']}: {mistake['message']}")
    shown = text.splitlines()[mistake["line"] - 1]
    assert any(part.strip('"') in shown for part in re.split(r"[.\[]", mistake["key"])), shown
    return said.partition(": ")[2]
