"""One Spark session, started while the pipeline is checked, with its output in a log file.

::

    main      ── imports ── checks ──┐
    JVM           └─ launch ─ context ┴ session ── query ── first batch
    workers                              └ daemon, imports ┘

What the checks find is reported at once. The JVM is started with both of its output streams opened on the
log, and the workers inherit them: nothing of Spark's reaches the terminal.

Settings that may hold a secret (an S3 key, a password) are kept off the JVM's command line, where
every user of the machine could read them, and are handed over through the gateway instead.
"""

from __future__ import annotations

import contextlib
import importlib
import locale
import os
import pwd
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from headpond.core.errors import HeadpondError, MissingRequirement
from headpond.core.passing import PassingFolder
from headpond.spark.errors import sentences_for_people, telling
from headpond.spark.session.cluster import ship_to
from headpond.spark.session.java import Java, find_java
from headpond.spark.session.settings import (
    CHECKPOINTS_CLASS,
    LOCAL_CHECKPOINTS,
    SECRET_SETTING,
    UNDER_SUBMIT,
    check_checkpoint,
    session_settings,
)
from headpond.spark.session.worker_script import PARENT
from headpond.spark.session.workers import start_parent, worker_python

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from headpond.pipeline import Pipeline

LOOPBACK = "127.0.0.1"
MAX_SOCKET_FOLDER_BYTES = 60
"""Of a Unix socket: with the name that Spark gives it (43) it must fit into an address (104 on macOS)."""

QUICK_JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -XX:MetaspaceSize=256m "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""Compile once and lightly: a second less until the first job, at the price of a slower long run. Do not
collect garbage each time the classes need more room, which takes a fifth of a second. Do not check the
bytecode of the 12,000 classes that Spark loads: two seconds of `headpond run`'s start on two cores. They come
from jars whose entries carry check sums, and a jar that someone adds under [spark] may do anything anyway.

The launcher, a short-lived JVM that only prints the command line of the real one, always gets them."""

FIRST_JARS = ("spark-c", "scala-", "spark-s", "log4j-", "jackson-", "arrow-", "janino-", "hadoop-", "netty-")
"""How the jars begin that most of these classes are in. The JVM looks for a class in one jar after the other,
of 280 in no order: with these at the head it finds them a third of a second sooner."""

SLOWEST_CLASS = "org.apache.spark.sql.ml.InternalFunctionRegistration$"
"""Where most of the time goes that a session takes to make (a second): loaded while the context is made."""

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"

_MISSING_PACKAGE = re.compile(r"\[(?:unresolved dependency|download failed): (.*?)\]")

_COMPLAINT = re.compile(r"(?i)exception|error|could not|cannot|no such file|not found|unrecognized|invalid")
_SAYS_NOTHING = re.compile(r" WARN |Error initializing SparkContext")


class SparkNotStarted(MissingRequirement):
    """The JVM or the Spark context in it did not come up; `facts["log"]` is the file with the reason."""


def spark_session(
    app_name: str,
    *,
    conf: Mapping[str, str] | None = None,
    log_path: Path | str,
    quick: bool = False,
) -> SparkSession:
    """Start Spark, or return the session that already runs in this process.

    Args:
        app_name: The name of the Spark application.
        conf: Spark settings; they win over the ones chosen here. Without `spark.master` Spark runs
            in this machine's memory, on all cores and at least two.
        log_path: The file that takes what the JVM and the Python workers print; appended to.
        quick: Start-up counts more than throughput (a demonstration, a test): see QUICK_JAVA_OPTIONS and
            `headpond.spark.session.workers`.

    Raises:
        JavaMissing: No Java 17 or newer.
        SparkNotStarted: Anything else that kept Spark from starting.
    """
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        for key, value in (_submitted() | dict(conf or {})).items():
            if running.conf.isModifiable(key):
                running.conf.set(key, value)
        return running
    started_context(app_name, conf=conf, log_path=log_path, quick=quick)
    sentences_for_people()
    return SparkSession.builder.getOrCreate()


def started_context(
    app_name: str,
    *,
    conf: Mapping[str, str] | None = None,
    log_path: Path | str,
    quick: bool = False,
) -> SparkContext:
    """Start Spark, or return what runs in this process; arguments and errors as of `spark_session`."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context  # noqa: SLF001 (getOrCreate would start one)
    if context is not None:
        return context
    given = _submitted() | dict(conf or {})
    settings = {**_defaults(given, quick=quick), **given, "spark.app.name": app_name}
    log = Path(log_path)
    java = find_java()
    _set_environment(settings, java)
    return _start_context(settings, log)


class Starting:
    """A Spark context that comes up in a thread of its own, with its log at a path."""

    def __init__(self, conf: dict[str, str], log: Path) -> None:
        self._made = _missing(log)
        self._lock = threading.Lock()
        self._context: SparkContext | None = None
        self._error: BaseException | None = None
        self._given_up = False
        # A daemon: a process whose checks failed does not wait for Spark, whose JVM ends with it.
        self._thread = threading.Thread(target=self._start, args=(conf, log), daemon=True)
        self._thread.start()

    def _start(self, conf: dict[str, str], log: Path) -> None:
        try:
            context = started_context("headpond", conf=conf, log_path=log, quick=True)
        except BaseException as error:  # noqa: BLE001 - raised by `wait`
            self._error = error
            return
        with self._lock:
            self._context = context
            if self._given_up:
                self._end()

    def wait(self) -> None:
        """Wait until Spark is up; from then on it is the caller's to end.

        Raises:
            JavaMissing, SparkNotStarted: as `spark_session`.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        self._context = None

    def give_up(self) -> None:
        """End what is up, now or as soon as it is, and remove the log unless it was there before."""
        if not self._thread.is_alive() and self._context is None:
            return
        self._given_up = True
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._context is not None:
            self._context.stop()
        for place in self._made:
            # A folder that is not empty any more is in use.
            with contextlib.suppress(OSError):
                place.rmdir() if place.is_dir() else place.unlink()


def _missing(place: Path) -> list[Path]:
    """Return the parts of a path that do not exist yet, innermost first."""
    return [each for each in (place, *place.parents) if not each.exists()]


@contextmanager
def given_up_on_failure(starting: Starting | None) -> Iterator[None]:
    """Give up a start if something goes wrong before it was waited for."""
    try:
        yield
    except BaseException:
        if starting is not None:
            starting.give_up()
        raise


def start_early(pipeline: Pipeline, log: Path) -> Starting | None:
    """Begin to start Spark for a pipeline, with its log at a path.

    Returns:
        None where Spark is up already, where `spark-submit` has started it, and where the settings are wrong,
        which the checks report.
    """
    pyspark = sys.modules.get("pyspark")
    running = None if pyspark is None else pyspark.SparkContext._active_spark_context  # noqa: SLF001 (getOrCreate would start one)
    if running is not None or UNDER_SUBMIT in os.environ:
        return None
    try:
        check_checkpoint(pipeline)
        conf = session_settings(pipeline)
        find_java()
    except HeadpondError:
        return None
    with contextlib.suppress(ImportError):  # where it is not installed, what the checks find comes first
        importlib.import_module("pyspark")  # in the thread it would take turns with the imports of the checks
    return Starting(conf, log)


def warm(work: Callable[[], object]) -> None:
    """Do in a thread of its own what makes a later step quicker; what is wrong, that step will meet, too."""

    def quietly() -> None:
        with contextlib.suppress(Exception):
            work()

    threading.Thread(target=quietly, name="warming", daemon=True).start()


def warm_workers(spark: SparkSession) -> None:
    """Have Spark start the process that its Python workers come from, while the query is being planned."""
    warm(lambda: spark.sparkContext.parallelize([0], 1).map(abs).collect())


def stop_spark(spark: SparkSession) -> None:
    """Stop Spark, without waiting for threads of its accumulators that look up once a second."""
    context = spark.sparkContext
    server, context._accumulatorServer = context._accumulatorServer, None  # noqa: SLF001 (`stop` would wait)

    def shut() -> None:
        # It looks for its socket and then removes it; in between the folder may go.
        with contextlib.suppress(FileNotFoundError):
            server.shutdown()

    threading.Thread(target=shut, daemon=True).start()
    spark.stop()


_jvms: list[subprocess.Popen[bytes]] = []
"""Those that were launched here; a process has one as a rule."""


def ended_jvm(error: BaseException, wait_s: float = 5) -> int | None:
    """Return the exit code of the JVM that was started here, if what broke is the way to it; else None.

    A signal that killed it is a negative code.
    """
    from py4j.protocol import Py4JNetworkError

    if not _jvms or not isinstance(error, (OSError, Py4JNetworkError)):
        return None
    with contextlib.suppress(subprocess.TimeoutExpired):
        return _jvms[-1].wait(wait_s)
    return None


def _submitted() -> dict[str, str]:
    """Settings that `spark-submit` gave, the master among them; none where this process starts Spark."""
    if UNDER_SUBMIT not in os.environ:
        return {}
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # noqa: SLF001 (connects to the JVM that is there; no public way)
    return dict(SparkConf().getAll())


def _defaults(given: Mapping[str, str], *, quick: bool) -> dict[str, str]:
    """Settings for a small, quiet engine; `given` only decides what depends on the master."""
    cores = max(2, os.cpu_count() or 1)
    master = given.get("spark.master", f"local[{cores}]")
    settings = {
        "spark.master": master,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # The rows of one micro-batch are few and large; a shuffle of 200 tasks would cost seconds.
        "spark.sql.shuffle.partitions": str(cores),
        # Python rows are written by Arrow; a worker that lives on saves its start in every batch.
        "spark.python.worker.reuse": "true",
    }
    options = [QUICK_JAVA_OPTIONS] if quick else []
    if master.startswith("local"):
        passing = _passing().path
        options.append(f'"-Djava.io.tmpdir={passing}"')
        if not _has_name():  # Java would take `?` for their home, of which Spark cannot make a path
            home = os.environ.get("HOME", passing)
            options.append(f'"-Duser.home={home if os.access(home, os.W_OK) else passing}"')
        settings |= {
            # Never the machine's own name: looking it up may hang for seconds, and need not answer.
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.sql.warehouse.dir": f"file://{passing}",  # of a catalogue that nobody uses
            "spark.local.dir": passing,
            # Plans of a few rows: planning again at run time costs more than it saves.
            "spark.sql.adaptive.enabled": "false",
            CHECKPOINTS_CLASS: LOCAL_CHECKPOINTS,
        }
        if _has_sockets(master):
            # Over TCP, a task that moves little waits 40 ms for a delayed acknowledgement.
            settings["spark.python.unix.domain.socket.enabled"] = "true"
        if quick:
            jars = _spark_places()[1] / "jars"
            first = [str(jar) for name in FIRST_JARS for jar in sorted(jars.glob(f"{name}*.jar"))]
            settings["spark.driver.extraClassPath"] = os.pathsep.join(first)
    return settings | ({_JAVA_OPTIONS: " ".join(options)} if options else {})


def _has_name() -> bool:
    """Return whether the system has a name for the user: containers may run under any number."""
    try:
        return bool(pwd.getpwuid(os.getuid()))
    except KeyError:
        return False


def _has_sockets(master: str) -> bool:
    """Return whether all runs on this machine, with a temporary folder that sockets can be in."""
    return master.startswith("local") and len(os.fsencode(_passing().path)) <= MAX_SOCKET_FOLDER_BYTES


def _set_environment(settings: Mapping[str, str], java: Java) -> None:
    local = settings["spark.master"].startswith("local")
    os.environ["JAVA_HOME"] = str(java.home)
    if local:
        # Any other Python would lack headpond, or be of another version than this one.
        os.environ["PYSPARK_PYTHON"] = worker_python(*_spark_places())
        os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    elif "spark.pyspark.python" in settings:  # of pyspark's own start, only spark-submit looks at it
        os.environ["PYSPARK_PYTHON"] = settings["spark.pyspark.python"]
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = os.environ["PYSPARK_PYTHON"] if local else sys.executable
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", QUICK_JAVA_OPTIONS)
    if locale.getencoding().lower() != "utf-8":
        # With LC_ALL=C, which Python makes the best of, the JVM opens no path that is not ASCII.
        os.environ["LC_ALL"] = "C.UTF-8"


def _start_context(settings: Mapping[str, str], log: Path) -> SparkContext:
    """Launch the JVM with its output in `log` and create the Spark context in it."""
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway

    already = log.stat().st_size if log.exists() else 0
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            gateway = None
            if SparkContext._gateway is None:  # noqa: SLF001 (a JVM outlives its context; there can be only one)
                conf = SparkConf(loadDefaults=False).setAll(_for_command_line(settings))
                # In a session of its own: Ctrl-C and a supervisor's signal to the group are for this process,
                # which ends its batch first. The JVM ends when its standard input does, with this process.
                apart = {"stdout": out, "stderr": out, "start_new_session": True}
                master, python = settings["spark.master"], os.environ["PYSPARK_PYTHON"]
                # Executors of their own (`local-cluster`) start Pythons as on other machines. The parent of
                # another session, whose driver may have begun this process, forks for none of ours.
                os.environ.pop(PARENT, None)
                if _has_sockets(master) and "cluster" not in master and python != sys.executable:
                    start_parent(Path(_passing().path), out)
                gateway = launch_gateway(conf, popen_kwargs=apart)
                _jvms.extend([gateway.proc] if hasattr(gateway, "proc") else [])  # none that was there before
                if not _has_name():  # Hadoop would ask the system for one, and fail
                    users = gateway.jvm.org.apache.hadoop.security.UserGroupInformation
                    users.setLoginUser(users.createRemoteUser(str(os.getuid())))
                warm(partial(gateway.jvm.java.lang.Class.forName, SLOWEST_CLASS))
            jvm = gateway.jvm if gateway is not None else None
            conf = SparkConf(_jvm=jvm).setAll(list(settings.items()))
            context = SparkContext(conf=conf, gateway=gateway)
            ship_to(context)
            return context
    except OSError as exc:
        if str(exc.filename).endswith("spark-submit"):
            raise SparkNotStarted(
                f"There is no Spark in SPARK_HOME: {exc.filename} is not there.",
                next_step="Unset it, for the Spark that comes with pyspark, or set it to another.",
                path=str(exc.filename),
            ) from exc
        raise SparkNotStarted(
            f"Spark's log {log} cannot be written: {exc.strerror or exc}.",
            next_step="Give a log path in a folder that can be written.",
            log=str(log),
        ) from exc
    except (PySparkException, RuntimeError, ValueError, Py4JError) as exc:
        reason = _reason(exc, log, already)
        if missing := _MISSING_PACKAGE.search(reason):
            raise SparkNotStarted(
                f"Spark did not start: a package could not be fetched ({missing[1]}).",
                next_step="Check the network (or, behind a mirror, spark.jars.ivySettings), or bring the "
                "jars in spark.jars.",
                log=str(log),
            ) from exc
        raise SparkNotStarted(
            f"Spark did not start: {reason}.",
            next_step=f"Read {log} and the settings under [spark].",
            log=str(log),
        ) from exc


def _spark_places() -> tuple[Path, Path]:
    """Return where pyspark was imported from, and the Spark whose JVM it starts."""
    import pyspark
    from pyspark.find_spark_home import _find_spark_home

    return Path(pyspark.__file__).parent, Path(_find_spark_home())


def _for_command_line(settings: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the settings that may be seen in a process list."""
    return [(key, value) for key, value in settings.items() if not SECRET_SETTING.search(key)]


def _reason(exc: Exception, log: Path, since: int) -> str:
    """Return the most telling line: the first complaint this start wrote, else the exception's own."""
    with log.open("rb") as opened:
        opened.seek(since)
        said = opened.read(1 << 20).decode(errors="replace").splitlines()
    complaints = [line for line in said if _COMPLAINT.search(line) and not _SAYS_NOTHING.search(line)]
    return telling(complaints or [*str(exc).splitlines(), type(exc).__name__]).rstrip(".")


@cache
def _passing() -> PassingFolder:
    """Return what Spark's temporary files are in: a JVM that is killed would leave them for ever."""
    return PassingFolder("headpond-spark-")
