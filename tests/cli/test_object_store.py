"""Pipelines whose lake, archive or checkpoint is in S3, as their user sees them."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headpond.core.errors import ConfigurationError, MissingRequirement
from headpond.pipeline import load, loads
from headpond.spark.session.settings import check_checkpoint, check_lasting, spark_jars
from tests.kit.s3_server import SECRET, Store, s3_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Cli

# A process that fails when anything of pyspark is imported.
GUARD = "import sys; sys.modules['pyspark'] = None; from headpond.cli.main import main; sys.exit(main())"


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with s3_store() as running:
        yield running


def pipeline_text(store: Store, name: str, *, checkpoint: str = "", spark: str = "") -> str:
    return f"""[source]
archive = "s3://lake/{name}/records/*.jsonl"
format = "dsql"
[target]
path = "s3://lake/{name}/tables"
storage_options = {store.toml}
{checkpoint}
[tables."public.t"]
keys = ["id"]
columns = {{ id = "bigint" }}
[spark]
{spark}
"""


def put_records(store: Store, name: str) -> None:
    lines = []
    for number in (1, 2):
        source = {"version": "1.0", "ts_ns": 1, "txId": "t", "schema": "public", "table": "t", "cluster": "c"}
        change = {"type": "full", "op": "c", "after": {"id": number}, "source": source}
        data = base64.b64encode(json.dumps(change).encode()).decode()
        lines.append(json.dumps({"data": data, "shard": "s", "sequenceNumber": str(number)}))
    client = store.client()
    client.put_object(Bucket="lake", Key=f"{name}/records/a.jsonl", Body="\n".join(lines).encode())
    client.close()


def run(file: Path, *, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, "run", str(file), "--until-caught-up", "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env=os.environ | {"AWS_EC2_METADATA_DISABLED": "true"},
    )


@pytest.mark.slow
def test_a_checkpoint_in_s3_without_its_jars_is_refused_before_spark(store: Store, tmp_path: Path) -> None:
    """The checkpoint of a lake in S3 is in S3 unless told otherwise; the sentence tells how."""
    (tmp_path / "p.toml").write_text(pipeline_text(store, "refused"))
    done = run(tmp_path / "p.toml", code=GUARD)
    assert done.returncode == 3
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) <= 4
    assert "The checkpoint s3://lake/refused/tables/_headpond/checkpoint is in an object store" in done.stderr
    assert 'checkpoint = "checkpoint"' in done.stderr
    assert SECRET not in done.stderr


@pytest.mark.slow
def test_a_checkpoint_in_s3_is_taken_with_its_jars(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come with Spark, by a setting, or by spark-submit; a checkpoint in a folder needs none."""
    bare = loads(pipeline_text(store, "x"))
    with pytest.raises(MissingRequirement):
        check_checkpoint(bare, jars=tmp_path)
    packages = '"spark.jars.packages" = "org.apache.hadoop:hadoop-aws:3.5.0"'
    check_checkpoint(loads(pipeline_text(store, "x", spark=packages)), jars=tmp_path)
    check_checkpoint(loads(pipeline_text(store, "x", checkpoint='checkpoint = "here"')), jars=tmp_path)
    with monkeypatch.context() as patch:
        patch.setenv("PYSPARK_GATEWAY_PORT", "1")  # spark-submit has options for jars of its own
        check_checkpoint(bare, jars=tmp_path)
    (tmp_path / "hadoop-aws-3.5.0.jar").touch()
    check_checkpoint(bare, jars=tmp_path)


@pytest.mark.parametrize(
    ("target", "key"),
    [
        ('path = "lake"', "target.path"),
        ('path = "s3://lake/x"\ncheckpoint = "here"', "target.checkpoint"),
        ('path = "s3://lake/x"', None),
        ('path = "/lakes/x"', None),
    ],
)
def test_a_folder_that_yarn_deletes_is_refused(target: str, key: str | None, tmp_path: Path) -> None:
    """In cluster mode the pipeline file lies in a container's folder, and what is relative to it, too."""
    container = tmp_path / "appcache" / "application_1" / "container_1"
    container.mkdir(parents=True)
    for name in ("link", "other"):
        (tmp_path / name).symlink_to(tmp_path / "appcache")
    environ = {"CONTAINER_ID": "container_1", "LOCAL_DIRS": f"/other,{tmp_path}/link/application_1"}
    (container / "p.toml").write_text(
        f'[source]\narchive = "a"\nformat = "dsql"\n[target]\n{target}\n[tables."a.t"]\nkeys = ["k"]\n'
    )
    pipeline = load(tmp_path / "other" / "application_1" / "container_1" / "p.toml")
    if key is None:
        check_lasting(pipeline, environ)
    else:
        with pytest.raises(ConfigurationError, match=f"^{key} is .*container_1/.* YARN deletes") as caught:
            check_lasting(pipeline, environ)
        assert caught.value.facts["key"] == key
    check_lasting(pipeline, {"LOCAL_DIRS": str(tmp_path)})  # not YARN's


@pytest.mark.slow
def test_the_jars_of_spark_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the package, or of the Spark that SPARK_HOME names."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    jars = spark_jars()
    assert jars is not None
    assert any(jars.glob("spark-core*.jar"))
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert spark_jars() == Path("/opt/spark/jars")


@pytest.mark.slow
def test_status_looks_into_the_object_store(cli: Cli, store: Store, tmp_path: Path) -> None:
    """The checkpoint too, with the same options."""
    (tmp_path / "p.toml").write_text(pipeline_text(store, "status"))
    said = cli("status", tmp_path / "p.toml", "--json")
    assert said.code == 0
    (found,) = said.lines()
    assert found["batch"] is None
    assert found["lake"] == "s3://lake/status/tables"
    assert SECRET not in said.stdout.decode() + said.stderr


@pytest.mark.spark
def test_from_an_archive_in_s3_to_a_lake_in_s3(store: Store, tmp_path: Path) -> None:
    """The whole job; and no key is in what it says, nor in what Spark says."""
    put_records(store, "whole")
    (tmp_path / "p.toml").write_text(pipeline_text(store, "whole", checkpoint='checkpoint = "checkpoint"'))
    log = tmp_path / "cache"
    log.mkdir()
    code = "import sys; from headpond.cli.main import main; sys.exit(main())"
    os.environ["HEADPOND_CACHE_DIR"] = str(log)
    try:
        done = run(tmp_path / "p.toml", code=code)
    finally:
        del os.environ["HEADPOND_CACHE_DIR"]
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["tables"]["public.t"]["rows"] == 2
    assert SECRET not in done.stdout + done.stderr
    for place in (log, tmp_path / "checkpoint"):
        texts = [file.read_bytes() for file in place.rglob("*") if file.is_file()]
        assert texts
        assert not any(SECRET.encode() in text for text in texts)
