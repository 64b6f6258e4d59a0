"""The Python that Spark starts: pyspark from where it is installed, all else as it was."""

from __future__ import annotations

import json
import os
import signal
import site
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import psutil
import pytest

from headpond.spark.session import worker_script
from headpond.spark.session.workers import worker_python

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

SITE = Path(site.getsitepackages()[0])
PACKAGE = SITE / "pyspark"


def environ(tmp_path: Path) -> dict[str, str]:
    return {"HEADPOND_CACHE_DIR": str(tmp_path / "cache")}


def test_sparks_archives_are_dropped_and_the_rest_is_kept(tmp_path: Path) -> None:
    """Paths of the user stay, in order, blanks and stars in them; arguments arrive as they were given."""
    python = worker_python(PACKAGE, PACKAGE, environ(tmp_path))
    assert python != sys.executable
    assert python == worker_python(PACKAGE, PACKAGE, environ(tmp_path))
    kept = [str(tmp_path / "a b"), str(tmp_path / "*"), "/x/my-spark-core.zip"]
    given = [
        "/s/python/lib/pyspark.zip",
        kept[0],
        "/s/python/lib/py4j-0.10.9.9-src.zip",
        "/s/jars/spark-core_2.13-4.3.0.jar",
        *kept[1:],
    ]
    show = "import os, sys; print([os.environ['PYTHONPATH'], sys.executable, *sys.argv[1:]])"
    done = subprocess.run(
        [python, "-c", show, "a b", "", "*"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": ":".join(given)},
    )
    assert done.stdout.strip() == str([":".join(kept), sys.executable, "a b", "", "*"])


def test_the_interpreter_itself_where_the_script_could_do_harm(tmp_path: Path) -> None:
    """Another Spark's jars, pyspark or Python not where they are by themselves, no folder to write to."""
    env = environ(tmp_path)
    assert worker_python(PACKAGE, tmp_path, env) == sys.executable
    assert worker_python(tmp_path / "pyspark", tmp_path / "pyspark", env) == sys.executable
    assert worker_python(PACKAGE, PACKAGE, {**env, "PYTHONHOME": sys.prefix}) == sys.executable
    (tmp_path / "file").touch()
    taken = {"HEADPOND_CACHE_DIR": str(tmp_path / "file")}
    assert worker_python(PACKAGE, PACKAGE, taken) == sys.executable
    on_path = {**env, "PYTHONPATH": str(tmp_path)}
    assert worker_python(tmp_path / "pyspark", tmp_path / "pyspark", on_path) != sys.executable


@pytest.mark.spark
def test_workers_import_pyspark_from_where_it_is_installed(spark: SparkSession) -> None:
    """Not from Spark's zip, out of which it would be compiled in every process."""

    def told(_batches: object) -> object:
        import pyarrow as pa
        import pyspark

        yield pa.RecordBatch.from_pydict({"place": [pyspark.__file__]})

    place = spark.range(1).mapInArrow(told, "place string").collect()[0].place
    assert Path(place).parent.resolve() == PACKAGE.resolve()


@dataclass
class Family:
    """A parent, started as the driver starts it, and the script that asks it for forks."""

    python: str
    environ: dict[str, str]
    folder: Path

    def run(self, module: str, *arguments: str, **given: str) -> subprocess.CompletedProcess[str]:
        """Run one of the modules below, with standard input and further variables."""
        return subprocess.run(
            [self.python, "-m", module, *arguments],
            check=False,
            capture_output=True,
            text=True,
            input="from Spark",
            env=self.environ | {"PYTHONPATH": str(self.folder)} | given,
            timeout=60,
        )


TELL = """
import json, os, sys
import headpond
print(json.dumps({"said": sys.stdin.read(), "arguments": sys.argv[1:],
    "a": os.environ.get("A"), "home": os.environ.get("HOME"), "name": __name__, "hash": hash("a"),
    "forked": "headpond.spark.sources.kinesis" in sys.modules}), flush=True)
print("to the log", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""
WAIT = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("waiting", flush=True)
signal.sigwait({signal.SIGTERM})
sys.exit(7)
"""
DRIVER = """
import os, sys
from pathlib import Path
from headpond.spark.session.workers import start_parent
from headpond.spark.session.worker_script import PARENT
with open(sys.argv[1] + "/log", "ab") as log:
    start_parent(Path(sys.argv[1]), log)
print(os.environ[PARENT], flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Family]:
    made = tmp_path_factory.mktemp("modules")
    for name, text in {"tell_headpond": TELL, "wait_headpond": WAIT}.items():
        (made / f"{name}.py").write_text(text)
    python = worker_python(PACKAGE, PACKAGE, environ(made))
    # The address of a socket has room for a hundred characters.
    with TemporaryDirectory(prefix="headpond-test-") as folder:
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with driver:
            assert driver.stdout is not None
            env = {**os.environ, worker_script.PARENT: driver.stdout.readline().strip()}
            yield Family(python, env, made)
        assert driver.returncode == 0
        assert (Path(folder) / "log").read_text() == ""


def test_a_fork_is_what_spark_asked_for(family: Family) -> None:
    """Streams, arguments, environment, exit code: as of an interpreter, without its imports."""
    done = family.run("tell_headpond", "3", "a b", A="1")
    told = json.loads(done.stdout)
    assert told.pop("forked")
    assert (done.returncode, done.stderr) == (3, "to the log\n")
    usual = family.run("tell_headpond", "3", "a b", A="1", PYTHONHASHSEED="0", **{worker_script.PARENT: ""})
    expected = json.loads(usual.stdout)
    assert not expected.pop("forked")
    assert told == expected
    assert (expected["said"], expected["name"], expected["a"]) == ("from Spark", "__main__", "1")
    assert family.run("tell_headpond", "0").returncode == 0
    assert "no_such_module" in family.run("no_such_module").stderr


def test_an_end_that_comes_before_the_fork_is_passed_on_to_it(tmp_path: Path) -> None:
    """The stand-in must not exit and leave the fork behind."""
    place = str(tmp_path / "s")
    env = os.environ | {worker_script.PARENT: place}
    with socket.socket(socket.AF_UNIX) as parent, subprocess.Popen(["sleep", "60"]) as fork:
        parent.bind(place)
        parent.listen()
        parent.settimeout(30)
        script = [sys.executable, "-IS", str(worker_script.__file__), "-m", "nothing"]
        with subprocess.Popen(script, env=env) as process:
            connection, _ = parent.accept()
            with connection:
                told, streams, _, _ = socket.recv_fds(connection, 4, 3)
                for each in streams:
                    os.close(each)
                assert len(connection.recv(*struct.unpack("!I", told), socket.MSG_WAITALL)) > 0
                process.terminate()
                time.sleep(0.2)
                connection.sendall(struct.pack("!I", fork.pid))
                assert fork.wait(30) == -signal.SIGTERM
                connection.sendall(b"\7")
            assert process.wait(30) == 7


def test_a_fork_ends_when_spark_ends_it(family: Family) -> None:
    """Spark knows the stand-in: SIGTERM goes on to the fork, whose own end is the stand-in's."""
    command = [family.python, "-m", "wait_headpond"]
    env = family.environ | {"PYTHONPATH": str(family.folder)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        assert process.wait(30) == 7
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        process.stdout.readline()
        forks = [each for each in psutil.process_iter() if each.name() == "wait_headpond"]
        for each in forks:
            each.kill()
        assert len(forks) == 1
        assert process.wait(30) == 128 + signal.SIGKILL


def test_without_a_parent_python_runs_as_ever(family: Family, tmp_path: Path) -> None:
    """It may have been killed, before it was asked or while it was."""
    gone = family.run("tell_headpond", "0", **{worker_script.PARENT: str(tmp_path / "gone")})
    assert not json.loads(gone.stdout)["forked"]
    with TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{folder}/python")
        listening.listen()
        refusing = threading.Thread(target=lambda: listening.accept()[0].close())  # noqa: PLW0108 (it waits)
        refusing.start()
        done = family.run("tell_headpond", "0", **{worker_script.PARENT: f"{folder}/python"})
        refusing.join()
    assert json.loads(done.stdout)["said"] == "from Spark"
