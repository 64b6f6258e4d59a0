"""Tables made known to Glue, against moto's: what Athena and Spark go by, and nothing of others touched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import boto3
import pyarrow as pa
import pytest

from headpond.core.errors import AccessDenied, ConfigurationError, UsageError
from headpond.lake.apply import apply_batch
from headpond.lake.maintenance.glue import glue_names, hive_type, register
from headpond.pipeline import loads
from headpond.pipeline.lake import open_lake, row_changes
from tests.kit.s3_server import SECRET, s3_store
from tests.lake.lakes import decoded, lake_in
from tests.lake.test_bootstrap import change

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headpond.lake.tables import Lake
    from tests.kit.s3_server import Store

TABLES = """
[tables."public.t"]
keys = ["id"]
columns = { id = "bigint", v = "text", price = "numeric(12,2)", at = "timestamptz" }
[tables."Public.Other Table"]
keys = ["id"]
columns = { id = "uuid" }
"""


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with s3_store() as running:
        yield running


@pytest.fixture
def glue(store: Store) -> Any:
    """A client, and the databases `shop` and `other` without tables."""
    client = boto3.client(
        "glue", endpoint_url=store.url, region_name="us-east-1",
        aws_access_key_id="AKIAEXAMPLE", aws_secret_access_key=SECRET,
    )  # fmt: skip
    for name in [each["Name"] for each in client.get_databases()["DatabaseList"]]:
        client.delete_database(Name=name)
    client.create_database(DatabaseInput={"Name": "shop"})
    return client


def pipeline_text(store: Store, path: str, tables: str = TABLES) -> str:
    options = f"storage_options = {store.toml}\n"
    return f'[source]\narchive = "x.jsonl"\nformat = "dsql"\n[target]\npath = "{path}"\n{options}{tables}'


def lake_at(store: Store, folder: Path, path: str, tables: str = TABLES) -> tuple[Lake, Any]:
    pipeline = loads(pipeline_text(store, path, tables), folder)
    return open_lake(pipeline), row_changes(pipeline)


@pytest.mark.slow
def test_a_table_is_found_by_its_name(store: Store, glue: Any, tmp_path: Path) -> None:
    """Athena goes by `table_type` and the place, Spark by its provider and the path."""
    lake, _ = lake_at(store, tmp_path, "s3a://lake/a")
    lake.prepare()
    done = register(lake, glue, "shop")
    assert done.created == {"public.t": "public_t", "Public.Other Table": "public_other_table"}
    found = glue.get_table(DatabaseName="shop", Name="public_t")["Table"]
    assert found["TableType"] == "EXTERNAL_TABLE"
    assert found["Parameters"] == {
        "EXTERNAL": "TRUE",
        "table_type": "DELTA",
        "spark.sql.sources.provider": "delta",
    }
    described = found["StorageDescriptor"]
    assert described["Location"] == "s3://lake/a/public.t"
    assert described["SerdeInfo"]["Parameters"]["path"] == "s3://lake/a/public.t"
    assert {each["Name"]: each["Type"] for each in described["Columns"]} == {
        "id": "bigint",
        "v": "string",
        "price": "decimal(12,2)",
        "at": "timestamp",
        "_ts_ns": "bigint",
        "_tx_id": "string",
        "_image_hash": "binary",
    }


@pytest.mark.slow
def test_registering_again_brings_new_columns_and_keeps_the_rest(
    store: Store, glue: Any, tmp_path: Path
) -> None:
    """What somebody wrote into the entry stays; without a change nothing is written."""
    lake, config = lake_at(store, tmp_path, "s3://lake/b")
    lake.prepare()
    register(lake, glue, "shop")
    assert register(lake, glue, "shop").unchanged == {
        "public.t": "public_t",
        "Public.Other Table": "public_other_table",
    }
    entry = glue.get_table(DatabaseName="shop", Name="public_t")["Table"]
    kept = {part: entry[part] for part in ("Name", "TableType", "StorageDescriptor")}
    changed = kept | {"Description": "orders", "Parameters": entry["Parameters"] | {"owner": "me"}}
    glue.update_table(DatabaseName="shop", TableInput=changed)
    apply_batch(lake, decoded(config, [change(1, 5, {"id": 1, "new": True})]))
    done = register(lake, glue, "shop")
    assert (done.updated, list(done.unchanged)) == ({"public.t": "public_t"}, ["Public.Other Table"])
    found = glue.get_table(DatabaseName="shop", Name="public_t")["Table"]
    assert "new" in [each["Name"] for each in found["StorageDescriptor"]["Columns"]]
    assert (found["Description"], found["Parameters"]["owner"]) == ("orders", "me")
    assert found["Parameters"]["table_type"] == "DELTA"


@pytest.mark.slow
def test_an_entry_of_another_place_is_not_touched(store: Store, glue: Any, tmp_path: Path) -> None:
    """Nor is any other table registered then."""
    lake, _ = lake_at(store, tmp_path, "s3://lake/c")
    lake.prepare()
    other = {"Name": "public_other_table", "StorageDescriptor": {"Location": "s3://elsewhere/x"}}
    glue.create_table(DatabaseName="shop", TableInput=other)
    with pytest.raises(UsageError, match=r"is at s3://elsewhere/x, and the table 'Public\.Other Table'"):
        register(lake, glue, "shop")
    assert [each["Name"] for each in glue.get_tables(DatabaseName="shop")["TableList"]] == [
        "public_other_table"
    ]


def test_what_cannot_be_registered_is_said(store: Store, glue: Any, tmp_path: Path) -> None:
    """A folder, a database that is not there, a table that is not made yet, names that meet, no rights."""
    folder, _ = lake_in(tmp_path, TABLES)
    with pytest.raises(UsageError, match="is not in S3"):
        register(folder, glue, "shop")
    lake, _ = lake_at(store, tmp_path, "s3://lake/d")
    assert register(lake, glue, "shop").absent == ["public.t", "Public.Other Table"]
    with pytest.raises(ConfigurationError, match="no database 'nowhere'") as caught:
        register(lake, glue, "nowhere")
    assert "aws glue create-database" in caught.value.next_step
    with pytest.raises(ConfigurationError, match=r"'a.b_c' and 'a_b.c' would both be called a_b_c"):
        glue_names(["a.b_c", "a_b.c"])
    nobody = boto3.client("glue", endpoint_url=store.url, region_name="us-east-1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.delenv("AWS_ACCESS_KEY_ID", raising=False)
        with pytest.raises(AccessDenied, match="No usable AWS credentials"):
            register(lake, nobody, "shop")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (pa.int16(), "smallint"),
        (pa.float32(), "float"),
        (pa.date32(), "date"),
        (pa.timestamp("us"), "timestamp"),
        (pa.large_string(), "string"),
        (pa.binary_view(), "binary"),
        (pa.list_(pa.int64()), "array<bigint>"),
        (pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))]), "struct<a:int,b:array<string>>"),
        (pa.map_(pa.string(), pa.decimal128(5, 1)), "map<string,decimal(5,1)>"),
    ],
)
def test_types_have_their_names_in_glue(kind: pa.DataType, name: str) -> None:
    """Those of Hive."""
    assert hive_type(kind) == name


@pytest.mark.slow
def test_the_command_says_what_it_did(
    store: Store, glue: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """With the credentials and the region of the environment."""
    from headpond.cli.main import main

    lake, _ = lake_at(store, tmp_path, "s3://lake/e", TABLES.partition('[tables."P')[0])
    lake.prepare()
    (tmp_path / "p.toml").write_text(pipeline_text(store, "s3://lake/e"))
    for name, value in store.options.items():
        monkeypatch.setenv(name, value)
    assert main(["register", str(tmp_path / "p.toml"), "--glue", "shop"]) == 0
    said = capfd.readouterr().out.splitlines()
    assert said == [
        "shop.public_t: created for public.t",
        "Public.Other Table does not exist yet: `headpond run` creates it.",
    ]
    assert main(["register", str(tmp_path / "p.toml"), "--glue", "shop", "--json"]) == 0
    assert capfd.readouterr().out == (
        '{"database":"shop","created":{},"updated":{},"unchanged":{"public.t":"public_t"},'
        '"absent":["Public.Other Table"]}\n'
    )
