"""A session starts silent, with its chatter in a file, secrets off the command line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from headpond.pipeline import loads
from headpond.spark.session import start as session
from headpond.spark.session import worker_script
from headpond.spark.session.settings import session_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_secrets_stay_off_the_command_line() -> None:
    """What a process list would show holds no key, password or token."""
    settings = {
        "spark.driver.memory": "1g",
        "spark.hadoop.fs.s3a.secret.key": "x",
        "spark.hadoop.fs.s3a.access.key": "x",
        "spark.hadoop.fs.s3a.session.token": "x",
        "spark.ssl.keyStorePassword": "x",
    }
    assert session._for_command_line(settings) == [("spark.driver.memory", "1g")]


def test_only_a_local_master_is_bound_to_loopback() -> None:
    """A cluster's driver must be reachable from the cluster."""
    assert session._defaults({}, quick=False)["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.host" not in session._defaults({"spark.master": "spark://h:7077"}, quick=False)


def test_another_sessions_parent_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that a session's driver started inherits where that one's Pythons are forked from."""
    from pyspark import SparkContext

    monkeypatch.setenv(worker_script.PARENT, str(tmp_path / "python"))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    inherited = []

    def launched(*_: object, **__: object) -> None:
        inherited.append(os.environ.get(worker_script.PARENT))
        raise RuntimeError("it was launched")

    monkeypatch.setattr("pyspark.java_gateway.launch_gateway", launched)
    with pytest.raises(session.SparkNotStarted, match="it was launched"):
        session._start_context({"spark.master": "local-cluster[2,1,1024]"}, tmp_path / "spark.log")
    assert inherited == [None]


def test_workers_are_reached_over_unix_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """On this machine alone, and only where the socket's name fits into an address."""
    key = "spark.python.unix.domain.socket.enabled"
    longest = "/" + "x" * (session.MAX_SOCKET_FOLDER_BYTES - 1)
    for folder, found in ((longest, "true"), (longest + "x", None), (longest[:-1] + "é", None)):
        monkeypatch.setattr(session, "_passing", lambda folder=folder: SimpleNamespace(path=folder))
        assert session._defaults({}, quick=False).get(key) == found
        assert key not in session._defaults({"spark.master": "yarn"}, quick=False)


@pytest.mark.spark
def test_a_socket_in_the_longest_folder_has_an_address(spark: SparkSession) -> None:
    """Spark's names take 43 bytes; macOS has room for 104 with the one that ends them."""
    folder = Path(session._passing().path)
    if len(os.fsencode(folder)) > session.MAX_SOCKET_FOLDER_BYTES:
        pytest.skip("this machine's temporary folder has too long a name")
    spark.range(1).mapInArrow(lambda batches: batches, "id long").collect()
    names = [each.name for each in folder.glob(".*.sock")]
    assert names
    assert session.MAX_SOCKET_FOLDER_BYTES + max(1 + len(each) for each in names) < 104


def test_checkpoints_on_a_disk_are_written_without_starting_programs(tmp_path: Path) -> None:
    """Only there: those of a cluster and in other file systems are written as Spark chooses."""
    key = session.CHECKPOINTS_CLASS
    assert session._defaults({}, quick=False)[key].endswith(".FileSystemBasedCheckpointFileManager")
    assert key not in session._defaults({"spark.master": "yarn"}, quick=False)
    text = (
        '[source]\narchive = "x"\nformat = "dsql"\n[target]\npath = "lake"\ncheckpoint = "%s"\n'
        '[tables."a.b"]\nkeys = ["id"]\n'
    )
    assert key not in session_settings(loads(text % "checkpoint", tmp_path))
    remote = session_settings(loads(text % "hdfs://name/checkpoint", tmp_path))
    assert remote[key].endswith(".FileContextBasedCheckpointFileManager")


def test_quick_means_lighter_compilation_and_an_ordered_class_path() -> None:
    """Only where asked for, and workers of another machine are left as they are."""
    quick, usual = session._defaults({}, quick=True), session._defaults({}, quick=False)
    only_here = {"spark.driver.extraClassPath"}
    assert set(quick) - set(usual) == only_here
    assert session.QUICK_JAVA_OPTIONS in quick["spark.driver.extraJavaOptions"]
    assert session.QUICK_JAVA_OPTIONS not in usual["spark.driver.extraJavaOptions"]
    assert not only_here & session._defaults({"spark.master": "yarn"}, quick=True).keys()
    jars = [Path(each) for each in quick["spark.driver.extraClassPath"].split(os.pathsep)]
    assert all(jar.is_file() for jar in jars)
    names = {re.split("[-_]2", jar.name)[0] for jar in jars}
    assert {"spark-core", "spark-catalyst", "spark-sql", "scala-library"} <= names


@pytest.mark.spark
def test_workers_find_their_imports_done(spark: SparkSession) -> None:
    """A worker that has not imported anything of ours finds it there: the daemon it was forked from did."""

    def loaded(_batches: object) -> object:
        import sys

        import pyarrow as pa

        yield pa.RecordBatch.from_pydict({"there": ["headpond.spark.sources.kinesis" in sys.modules]})

    assert spark.range(1).mapInArrow(loaded, "there boolean").collect()[0].there


@pytest.mark.spark
def test_a_running_session_is_handed_out_again(spark: SparkSession, tmp_path: Path) -> None:
    """Asking twice gives one session, with the settings that can still be changed."""
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    again = session.spark_session("other", conf={name: "3"}, log_path=tmp_path / "x")
    assert again.sparkContext is spark.sparkContext
    assert spark.conf.get(name) == "3"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert before is not None
    spark.conf.set(name, before)  # unset, it would be Spark's own: 200 tasks for each later shuffle


FAILING = """
import sys
import threading
from headpond.spark.session.start import SparkNotStarted, spark_session
conf = {"spark.driver.memory": "plenty"} if sys.argv[2] == "memory" else {}
try:
    spark_session("x", conf=conf, log_path=sys.argv[1])
except SparkNotStarted as exc:
    print(exc.message)
"""


def failed_start(tmp_path: Path, how: str = "", **changed: str) -> subprocess.CompletedProcess[str]:
    """What a process says in which Spark cannot start."""
    return subprocess.run(
        [sys.executable, "-c", FAILING, str(tmp_path / "spark.log"), how],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | changed,
        timeout=120,
    )


@pytest.mark.spark
@pytest.mark.parametrize(
    ("how", "changed", "reason"),
    [("memory", {}, "plenty"), ("", {"PATH": "/nowhere"}, "bash")],
    ids=["the JVM's", "the shell's"],
)
def test_a_start_is_silent_and_its_failure_is_one_sentence(
    tmp_path: Path, how: str, changed: dict[str, str], reason: str
) -> None:
    """What keeps the JVM from starting is the reason that SparkNotStarted has, and nothing is on stderr."""
    done = failed_start(tmp_path, how, **changed)
    assert done.stderr == ""
    assert done.stdout.startswith("Spark did not start: ")
    assert reason in done.stdout
    assert done.stdout.count("\n") == 1


@pytest.mark.spark
def test_the_jvm_opens_any_path_in_any_locale(tmp_path: Path) -> None:
    """With LC_ALL=C it could not open a checkpoint below a folder whose name is not ASCII."""
    code = (
        "import sys\n"
        "from headpond.spark.session.start import spark_session\n"
        "spark = spark_session('x', log_path=sys.argv[1])\n"
        "print(spark._jvm.java.io.File(sys.argv[1]).exists())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "läke" / "spark.log")],
        capture_output=True,
        check=True,
        env=os.environ | {"LC_ALL": "C"},
        timeout=120,
    )
    assert done.stdout == b"True\n"


@pytest.mark.spark
def test_a_user_without_a_name_may_start_it(tmp_path: Path) -> None:
    """Containers run under any number: Java's home was `?` then, and Hadoop's login failed."""
    code = (
        "import os, pwd, sys\n"
        "def getpwuid(uid): raise KeyError(uid)\n"
        "pwd.getpwuid = getpwuid\n"
        "from headpond.spark.session.start import spark_session\n"
        "spark = spark_session('x', log_path=sys.argv[1])\n"
        "home = spark._jvm.java.lang.System.getProperty('user.home')\n"
        "print(spark.range(3).count(), spark.sparkContext.sparkUser() == str(os.getuid()), home)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "spark.log")],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"HOME": str(tmp_path)},
        timeout=120,
    )
    assert done.stdout == f"3 True {tmp_path}\n"


def test_another_spark_must_be_there(tmp_path: Path) -> None:
    """What was not found was said to be the log."""
    done = failed_start(tmp_path, SPARK_HOME=str(tmp_path / "none"))
    assert done.stdout.startswith(f"There is no Spark in SPARK_HOME: {tmp_path}/none/")


@pytest.mark.spark
def test_queries_that_begin_at_once_share_the_workers_variables(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark writes into the map while it serializes tasks of another query: it must be made for that."""
    from pyspark.sql.datasource import DataSourceRegistration

    from headpond.spark import register

    context: Any = spark.sparkContext
    before, found = context.environment, []
    monkeypatch.setattr(
        DataSourceRegistration, "register", lambda *_: found.append(context.environment.getClass().getName())
    )
    register(spark)
    assert set(found) == {"java.util.concurrent.ConcurrentHashMap"}
    assert context.environment is before


def test_the_folder_of_the_sockets_may_go_before_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """An accumulators' thread that met this wrote a stack trace behind the output of a run."""
    raised: list[Any] = []
    shut = threading.Event()

    def shutdown() -> None:
        shut.set()
        raise FileNotFoundError("socket")

    monkeypatch.setattr(threading, "excepthook", raised.append)
    context = SimpleNamespace(_accumulatorServer=SimpleNamespace(shutdown=shutdown))
    before = set(threading.enumerate())
    session.stop_spark(SimpleNamespace(sparkContext=context, stop=lambda: None))  # type: ignore[arg-type]
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
    assert (shut.wait(60), raised) == (True, [])
