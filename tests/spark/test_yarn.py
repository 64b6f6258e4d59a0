"""On YARN: the driver where it is started, and in a container that is killed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from headpond.localkinesis import LocalKinesis
from headpond.pipeline import load
from headpond.pipeline.lake import open_lake
from headpond.spark.session.cluster import package_zip
from headpond.spark.session.start import QUICK_JAVA_OPTIONS
from tests.kit.expected_tables import change_records, differences
from tests.kit.support import vector_json
from tests.spark.standalone_kit import SETTINGS, SPARK_HOME, pipeline_in
from tests.spark.yarn_kit import Yarn, yarn_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.spark, pytest.mark.maven, pytest.mark.timeout(600)]

EXPECTED = vector_json("dsql/small.expected.json")
MEMORY = {"spark.executor.memory": "512m", "spark.executor.instances": "2"}
LOOPBACK = {f"spark.{each}.SPARK_LOCAL_IP": "127.0.0.1" for each in ("executorEnv", "yarn.appMasterEnv")}


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    """One for all of these tests."""
    with yarn_cluster(tmp_path_factory.mktemp("yarn")) as started:
        yield started


def said_in(yarn: Yarn, name: str, *, whole: bool = False) -> str:
    return "\n".join(path.read_text(errors="replace")[0 if whole else -2000 :] for path in yarn.logs(name))


def test_a_pipeline_brings_headpond_along(yarn: Yarn, tmp_path: Path) -> None:
    """`headpond run` with `spark.master = "yarn"`: containers decode, whose Python has no headpond."""
    with LocalKinesis() as kinesis:
        file = pipeline_in(tmp_path, kinesis, SETTINGS | MEMORY | LOOPBACK | {"spark.master": "yarn"})
        done = subprocess.run(
            [sys.executable, "-m", "headpond", "run", str(file), "--until-caught-up", "--json"],
            capture_output=True, text=True, check=False, timeout=280,
            env=yarn.environment() | {"PYSPARK_DRIVER_PYTHON": sys.executable},
        )  # fmt: skip
    assert done.returncode == 0, done.stderr + said_in(yarn, "stderr")
    assert json.loads(done.stdout)["counters"]["records"] == len(change_records())
    assert differences(open_lake(load(file)), EXPECTED) == []
    assert "Running task" in said_in(yarn, "stderr", whole=True)


def running(lake: Path) -> int:
    """Give the process that keeps the lake, by its mark; 0 where there is none."""
    try:
        mark = json.loads((lake / "_headpond" / "run.json").read_text())
    except (OSError, ValueError):
        return 0
    return int(mark["pid"]) if mark["state"] == "running" else 0


def test_a_driver_in_a_container_that_is_killed_is_begun_again(yarn: Yarn, tmp_path: Path) -> None:
    """`spark-submit --deploy-mode cluster`, as the how-to says; YARN's second attempt ends the work."""
    settings = MEMORY | LOOPBACK | {
        "spark.yarn.appMasterEnv.PYSPARK_PYTHON": yarn.python,
        "spark.executorEnv.PYSPARK_PYTHON": yarn.python,
        "spark.yarn.maxAppAttempts": "2",
        "spark.driver.memory": "768m",
        "spark.driver.extraJavaOptions": QUICK_JAVA_OPTIONS,
        "spark.executor.extraJavaOptions": QUICK_JAVA_OPTIONS,
        "spark.yarn.report.interval": "200ms",
    }  # fmt: skip
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    script = tmp_path / "headpond_run.py"
    script.write_text("import sys\n\nfrom headpond.cli.main import main\n\nsys.exit(main())\n")
    with LocalKinesis() as kinesis, (tmp_path / "submit.log").open("wb") as log:
        file = pipeline_in(tmp_path, kinesis, {})
        process = subprocess.Popen(
            [
                str(SPARK_HOME / "bin" / "spark-submit"), "--master", "yarn", "--deploy-mode", "cluster",
                *conf, "--py-files", str(package_zip(tmp_path)), "--files", str(file), str(script),
                "run", file.name, "--until-caught-up", "--json",
            ],
            stdout=log, stderr=log, env=yarn.environment(), cwd=tmp_path,
        )  # fmt: skip
        try:
            first = await_driver(tmp_path / "lake", process)
            psutil.Process(first).parent().kill()
            assert await_driver(tmp_path / "lake", process, other_than=first)
            code = process.wait(280)
        finally:
            process.kill()
            process.wait()
    assert code == 0, (tmp_path / "submit.log").read_text()[-2000:] + said_in(yarn, "stdout")
    assert differences(open_lake(load(file)), EXPECTED) == []


def await_driver(lake: Path, submit: subprocess.Popen[bytes], other_than: int = 0) -> int:
    """Wait for a driver that keeps the lake."""
    end = time.monotonic() + 200
    while (found := running(lake)) in (0, other_than) and submit.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    return 0 if found == other_than else found
