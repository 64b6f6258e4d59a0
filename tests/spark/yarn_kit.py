"""A YARN for tests: Hadoop's own resource manager and two node managers, in one JVM on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from headpond.spark.session.java import find_java
from headpond.spark.session.settings import spark_jars
from tests.kit.maven_jars import maven_jars
from tests.spark.standalone_kit import bare_environment, bare_interpreter

if TYPE_CHECKING:
    from collections.abc import Iterator

# What the mini cluster needs beside Spark's own jars, which are Hadoop's.
_BESIDE = [
    "org.junit.jupiter:junit-jupiter-api:5.13.4",
    "org.junit.platform:junit-platform-commons:1.13.4",
    "org.opentest4j:opentest4j:1.3.0",
    "org.bouncycastle:bcpkix-jdk18on:1.82",
    "org.bouncycastle:bcprov-jdk18on:1.82",
    "org.bouncycastle:bcutil-jdk18on:1.82",
]
_SETTINGS = {
    "fs.defaultFS": "file:///",
    "yarn.application.classpath": "",
    "yarn.nodemanager.resource.memory-mb": "6144",
    "yarn.scheduler.minimum-allocation-mb": "128",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99",
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.capacity": "100",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
}
_ADDRESSES = ("yarn.resourcemanager.address", "yarn.resourcemanager.scheduler.address")


@dataclass(frozen=True)
class Yarn:
    """A running YARN: the folder of its configuration, the one of its containers, and a Python for them."""

    conf: Path
    work: Path
    python: str

    def environment(self) -> dict[str, str]:
        """Give the environment of whoever submits to it."""
        return bare_environment() | {"HADOOP_CONF_DIR": str(self.conf), "PYSPARK_PYTHON": self.python}

    def logs(self, name: str) -> list[Path]:
        """Find the containers' logs of that name, `stdout` or `stderr`."""
        return sorted(self.work.glob(f"**/*logDir*/application_*/container_*/{name}"))


@contextmanager
def yarn_cluster(folder: Path) -> Iterator[Yarn]:
    """Run YARN on free ports, in a process of its own; its containers' Python has no headpond.

    Args:
        folder: takes the log, the configuration and the containers' folders.
    """
    there = spark_jars()
    assert there is not None
    (client,) = there.glob("hadoop-client-api-*.jar")
    version = client.stem.rpartition("-")[2]
    mini = f"org.apache.hadoop:hadoop-client-minicluster:{version}"
    jars = maven_jars(f"hadoop-minicluster-{version}", [mini, *_BESIDE], alone=True)
    conf = folder / "conf"
    with (folder / "yarn.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, __file__, str(folder), str(find_java().home), f"{jars}/*:{there}/*"],
            stdin=subprocess.PIPE, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            end = time.monotonic() + 120
            while not (conf / "core-site.xml").exists() and process.poll() is None and time.monotonic() < end:
                time.sleep(0.1)
            assert (conf / "core-site.xml").exists(), (folder / "yarn.log").read_text()[-2000:]
            yield Yarn(conf, folder / "work", bare_interpreter(folder / "bare"))
        finally:
            process.communicate(timeout=60)


def serve(folder: Path, java: Path, jars: str) -> None:
    """Start YARN, leave its configuration in `conf`, and end it when there is no more input."""
    # Hadoop asks what address the machine's name has.
    (folder / "hosts").write_text(f"127.0.0.1 localhost {os.uname().nodename}\n")
    port = launch_gateway(
        classpath=jars,
        javaopts=[f"-Djdk.net.hosts.file={folder}/hosts", f"-Dtest.build.data={folder}/work", "-Xmx512m"],
        java_path=str(java / "bin" / "java"),
        die_on_exit=True,
        redirect_stdout=sys.stdout,
        redirect_stderr=sys.stderr,
    )
    hadoop = JavaGateway(gateway_parameters=GatewayParameters(port=port)).jvm.org.apache.hadoop.yarn
    settings = hadoop.conf.YarnConfiguration()
    for name, value in _SETTINGS.items():
        settings.set(name, value)
    cluster = hadoop.server.MiniYARNCluster("headpond", 2, 1, 1)
    cluster.init(settings)
    cluster.start()
    found = cluster.getConfig()
    while any(found.get(name).endswith(":0") for name in _ADDRESSES):
        time.sleep(0.1)
    (folder / "conf").mkdir()
    _write(folder / "conf" / "yarn-site.xml", _SETTINGS | {name: found.get(name) for name in _ADDRESSES})
    _write(folder / "conf" / "core-site.xml", {"fs.defaultFS": "file:///"})
    sys.stdin.read()
    cluster.stop()


def _write(file: Path, settings: dict[str, str]) -> None:
    each = "".join(
        f"<property><name>{name}</name><value>{escape(value)}</value></property>"
        for name, value in settings.items()
    )
    file.write_text(f"<configuration>{each}</configuration>")


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
