"""On a standalone cluster, master and two workers, whose Python has what headpond needs but not headpond."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headpond.localkinesis import LocalKinesis
from headpond.localkinesis.testing import local_kinesis, put_all, read_all
from headpond.pipeline import load
from headpond.pipeline.lake import open_lake
from headpond.spark.session.cluster import needs_shipping, package_zip
from headpond.spark.session.start import QUICK_JAVA_OPTIONS
from tests.kit.expected_tables import change_records, differences
from tests.kit.support import vector_json
from tests.soak import soak_join
from tests.soak.soak_put import held
from tests.spark.cluster_kit import JOB, begun, rows_found, tasks_of
from tests.spark.standalone_kit import (
    SETTINGS,
    SPARK_HOME,
    WORKERS,
    Cluster,
    bare_environment,
    pipeline_in,
    standalone_cluster,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(400)]

JOIN_JOB = Path(soak_join.__file__).with_name("soak_join_job.py")
EXPECTED = vector_json("dsql/small.expected.json")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for all of these tests."""
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@contextmanager
def of_the_driver_alone(cluster: Cluster, folder: Path) -> Iterator[None]:
    """Keep the cluster's interpreters out of a folder, as on other machines; root's rights do not help."""
    told = Path(cluster.python).parents[1] / "refused"
    told.write_text(str(folder))
    try:
        look = f"import os; os.listdir({str(folder)!r})"
        tried = subprocess.run(
            [cluster.python, "-c", look], capture_output=True, text=True, env=bare_environment(), check=False
        )
        assert "of the driver alone" in tried.stderr
        yield
    finally:
        told.unlink()


def _log(folder: Path) -> str:
    """Give what Spark's log says of errors."""
    logs = [path.read_text(errors="replace") for path in folder.rglob("spark.log")]
    return "\n".join(line for log in logs for line in log.splitlines() if "Error" in line)[:3000]


def check(folder: Path, summary: str) -> None:
    assert differences(open_lake(load(folder / "p.toml")), EXPECTED) == []
    assert json.loads(summary)["counters"]["records"] == len(change_records())


def apps(cluster: Cluster) -> set[tuple[str, str]]:
    """Say which worker ran an executor of which application."""
    return {(place.name, app.name) for place in cluster.work for app in place.glob("app-*")}


def test_a_pipeline_on_a_cluster_brings_headpond_along(cluster: Cluster, tmp_path: Path) -> None:
    """`headpond run` with the cluster's address under [spark]: the executors get headpond from the driver.

    They have homes and temporary folders of their own, and cannot open what is in the pipeline's folder.
    """
    before = apps(cluster)
    with LocalKinesis() as kinesis:
        file = pipeline_in(tmp_path, kinesis, SETTINGS | {"spark.master": cluster.master})
        with of_the_driver_alone(cluster, tmp_path):
            run = subprocess.run(
                [sys.executable, "-m", "headpond", "run", str(file), "--until-caught-up", "--json"],
                capture_output=True, text=True, env=cluster.environment(sys.executable), check=False,
            )  # fmt: skip
    assert run.returncode == 0, run.stderr + _log(tmp_path)
    check(tmp_path, run.stdout)
    assert {worker for worker, _ in apps(cluster) - before} == {"work 0", "work 1"}
    assert [path for place in cluster.work for path in place.glob("app-*/*/headpond.zip")]


def start_submitted(cluster: Cluster, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start `spark-submit` as the how-to says, from an interpreter that lacks headpond as well.

    Where the folder has a `headpond.zip`, that is brought along, else the package as it is. What it prints
    goes to `said.log` and `words.log` in the folder.
    """
    settings = [word for name, value in SETTINGS.items() for word in ("--conf", f"{name}={value}")]
    zipped = folder / "headpond.zip"
    with (folder / "said.log").open("wb") as out, (folder / "words.log").open("wb") as err:
        return subprocess.Popen(
            [
                str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.master, *settings,
                "--driver-java-options", QUICK_JAVA_OPTIONS,
                "--py-files", str(zipped if zipped.exists() else package_zip(folder)), *arguments,
            ],
            stdout=out, stderr=err, text=True, env=cluster.environment(), cwd=folder,
        )  # fmt: skip


def submitted(cluster: Cluster, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `spark-submit` to its end."""
    process = start_submitted(cluster, folder, *arguments)
    code = process.wait()
    out, words = ((folder / name).read_text(errors="replace") for name in ("said.log", "words.log"))
    return subprocess.CompletedProcess(process.args, code, out, words)


def test_a_pipeline_by_spark_submit(cluster: Cluster, tmp_path: Path) -> None:
    """The settings of spark-submit hold; the wheel under --py-files is all there is of headpond."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    subprocess.run(build, cwd=Path(__file__).parents[2], check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("headpond-*.whl")
    wheel.rename(tmp_path / "headpond.zip")
    with LocalKinesis() as kinesis:
        file = pipeline_in(tmp_path, kinesis, {})
        (tmp_path / "headpond_run.py").write_text(
            "import sys\n\nfrom headpond.cli.main import main\n\nsys.exit(main())\n"
        )
        before = apps(cluster)
        run = submitted(cluster, tmp_path, "headpond_run.py", "run", str(file), "--until-caught-up", "--json")
    assert run.returncode == 0, run.stdout + _log(tmp_path)
    check(tmp_path, run.stdout.splitlines()[-1])
    assert len(apps(cluster) - before) == WORKERS


def test_a_slow_task_is_run_twice_and_counts_once(cluster: Cluster, tmp_path: Path) -> None:
    """With speculation a copy of a slow task overtakes it; both actions of a batch have each record once."""
    with local_kinesis("orders", shards=4) as kinesis:
        put_all(kinesis.client(), "orders", [(f"k{n}", b"%d" % n) for n in range(240)])
        process = start_submitted(
            cluster, tmp_path, str(JOB), kinesis.endpoint_url, str(tmp_path), cluster.master
        )
        try:
            seen, end = 0, time.monotonic() + 200
            while process.poll() is None and time.monotonic() < end:
                if begun(tmp_path) > seen:  # the next read is a task's, or, of what is planned ahead, none
                    seen += 1
                    kinesis.faults.delay(6000, calls=("GetRecords",), times=1)
                time.sleep(0.01)
        finally:
            process.kill()
            process.wait()
        expected = sorted(
            (r.shard_id, r.sequence_number, 0, r.data) for r in read_all(kinesis.client(), "orders")
        )
    assert process.returncode == 0, (tmp_path / "words.log").read_text(errors="replace")[-3000:]
    assert len(expected) == 240
    assert rows_found(tmp_path) == expected
    tasks = tasks_of(tmp_path)
    assert tasks["speculative"] >= 1, tasks
    assert tasks["speculative and first"] >= 1, tasks
    assert tasks["TaskKilled"] >= 1, tasks


def test_a_join_by_spark_submit(cluster: Cluster, tmp_path: Path) -> None:
    """The Python API: the source, and a join whose state is with the executors."""
    sides = ("left", "right")
    with local_kinesis(*sides, shards=2) as kinesis:
        for side in sides:
            maker = soak_join.KeyedMaker(side, 7, keys=4)
            _put(kinesis, side, [maker.record() for _ in range(150)])
        run = submitted(
            cluster, tmp_path, str(JOIN_JOB), kinesis.endpoint_url, str(tmp_path), cluster.master, "out"
        )
        wanted = soak_join.expect(*([each for _, each in held(kinesis.endpoint_url, side)] for side in sides))
    errors = [line for line in run.stderr.splitlines() if "Error" in line]
    assert run.returncode == 0, "\n".join(errors)[:3000]
    assert wanted.total() > 100
    assert soak_join.results(tmp_path / "out") == wanted


def _put(kinesis: LocalKinesis, stream: str, records: list[tuple[object, ...]]) -> None:
    from headpond.kinesis.api.settings import ConnectionSettings
    from headpond.kinesis.producer import BlockingProducer

    connection = ConnectionSettings(stream_name=stream, endpoint_url=kinesis.endpoint_url, region="us-east-1")
    with BlockingProducer(connection) as producer:
        producer.send_all(records)


def test_who_needs_headpond_brought(tmp_path: Path) -> None:
    """Executors elsewhere, unless a setting brings it; the zip is the whole package, the same each time."""
    assert not needs_shipping({"spark.master": "local[2]"})
    assert not needs_shipping({"spark.master": "local-cluster[2,1,1024]"})
    assert needs_shipping({"spark.master": "spark://127.0.0.1:7077"})
    assert not needs_shipping({"spark.master": "yarn", "spark.submit.pyFiles": "s3://b/headpond.zip"})
    first = package_zip(tmp_path).read_bytes()
    assert package_zip(tmp_path).read_bytes() == first
    (tmp_path / "headpond.zip").rename(tmp_path / "other.zip")
    # What is imported from a zip is shipped as that zip.
    asked = """
import sys; sys.path.insert(0, "other.zip")
from pathlib import Path
import headpond.spark.session.cluster as shipping
other = Path("other.zip").read_bytes()
print(shipping.PACKAGE.parent.name, shipping.package_zip(Path()).read_bytes() == other)
"""
    run = [sys.executable, "-I", "-c", asked]
    said = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path, check=True).stdout
    assert said.split() == ["other.zip", "True"]
