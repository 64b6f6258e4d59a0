"""A standalone cluster for tests: a master and two workers whose Python has no headpond."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from headpond.spark.session.java import find_java
from headpond.spark.session.start import QUICK_JAVA_OPTIONS
from tests.kit.expected_tables import change_records, fill, pipeline_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headpond.localkinesis import LocalKinesis

SPARK_HOME = Path(pyspark.__file__).parent
HOSTS = ("127.0.0.1", "127.0.0.2")
"""Of the workers: two, for Spark runs a speculative task on another host only."""
WORKERS = len(HOSTS)
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK_JAVA_OPTIONS,
}


@dataclass(frozen=True)
class Cluster:
    """A running cluster: its address, its Python, and where its workers work."""

    master: str
    python: str
    work: list[Path]

    def environment(self, driver: str | None = None) -> dict[str, str]:
        """Give the environment of a driver, whose interpreter is the cluster's unless told."""
        bare = bare_environment()
        return bare | {"PYSPARK_PYTHON": self.python, "PYSPARK_DRIVER_PYTHON": driver or self.python}


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[Cluster]:
    """Run a master and its workers on loopback, on free ports.

    Args:
        folder: takes the logs, the workers' folders and their interpreter.
    """
    python = bare_interpreter(folder / "bare")
    with spark_class(folder / "master.log", "master.Master", "--host", "127.0.0.1") as said:
        master = said(r"Starting Spark master at (spark://\S+)")
        work = [folder / f"work {number}" for number in range(WORKERS)]
        each = ("--cores", "1", "--memory", "1g")
        first, second = (
            spark_class(
                folder / f"{place.name}.log", "worker.Worker", "--host", host, *each,
                "--work-dir", str(place), master, home=folder / f"home of {place.name}",
            )
            for host, place in zip(HOSTS, work, strict=True)
        )  # fmt: skip
        with first as one, second as other:
            one("Successfully registered with master")
            other("Successfully registered with master")
            yield Cluster(master, python, work)


@contextmanager
def spark_class(
    log: Path, name: str, *arguments: str, home: Path | None = None
) -> Iterator[Callable[[str], str]]:
    """Run a daemon of Spark's, with a home and a place for temporary files of its own if told so.

    Yields:
        What waits for words of its log, and gives them.
    """
    command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
    environment = bare_environment()
    if home is not None:
        (home / "tmp").mkdir(parents=True)
        environment |= {"HOME": str(home), "TMPDIR": str(home / "tmp")}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--port", "0", "--webui-port", "0", *arguments],
            stdout=out, stderr=out, env=environment, cwd=home or log.parent,
        )  # fmt: skip

    def said(words: str) -> str:
        end = time.monotonic() + 60
        while time.monotonic() < end and process.poll() is None:
            if found := re.search(words, log.read_text(errors="replace")):
                return found[found.lastindex or 0]
            time.sleep(0.1)
        raise AssertionError(log.read_text(errors="replace")[-2000:])

    try:
        yield said
    finally:
        process.terminate()
        process.wait(20)


def pipeline_in(folder: Path, kinesis: LocalKinesis, settings: dict[str, str]) -> Path:
    """Fill a stream, and write the pipeline that reads it; its lake is named by its whole path."""
    kinesis.engine.create_stream("changes", 4)
    fill(kinesis.client(), "changes", change_records())
    source = f'stream = "changes"\nendpoint_url = "{kinesis.endpoint_url}"\nstart = "TRIM_HORIZON"'
    lines = "".join(f'"{name}" = "{value}"\n' for name, value in settings.items())
    file = folder / "p.toml"
    file.write_text(pipeline_text(source, path=str(folder / "lake")) + f"\n[spark]\n{lines}")
    return file


def bare_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "PYTHON"))}
    return kept | {
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA_OPTIONS,
    }


def bare_interpreter(folder: Path) -> str:
    """Make an environment with every package of this one except headpond."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(
        subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.strip()
    )
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if "headpond" not in package.name:
            (site / package.name).symlink_to(package)
    lacks = subprocess.run(
        [python, "-c", "import headpond"], capture_output=True, text=True, cwd=folder, check=False
    )
    assert "No module named 'headpond'" in lacks.stderr
    (site / "sitecustomize.py").write_text(REFUSING.format(told=str(folder / "refused")))
    return str(python)


REFUSING = """
import os, sys

def refuse(event, arguments):
    if event in ("open", "os.listdir", "os.scandir", "os.mkdir", "import") and os.path.exists({told!r}):
        with_path = arguments and isinstance(arguments[0], str) and arguments[0].startswith("/")
        if with_path and arguments[0] != {told!r}:
            if arguments[0].startswith(folder()):
                raise PermissionError(13, "of the driver alone", arguments[0])

def folder():
    handle = os.open({told!r}, os.O_RDONLY)
    try:
        return os.read(handle, 4096).decode()
    finally:
        os.close(handle)

sys.addaudithook(refuse)
"""
"""Makes an interpreter refuse paths below the folder that a file beside it names."""
