"""One Spark session, started fast and silent.

Everything the JVM and its Python workers say goes to a log file: the JVM is started with both of its
output streams opened on that file, and the workers inherit them. Nothing of Spark's reaches the
terminal. Whatever the caller sets in `conf` wins over the settings chosen here.

On a cluster, executors that lack headpond get it from here (`headpond.spark.shipping`).

Settings that may hold a secret (an S3 key, a password) are kept off the JVM's command line, where
every user of the machine could read them, and are handed over through the gateway instead.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headpond.errors import EnvironmentLacks
from headpond.spark.classes import keep_at_exit, kept_classes
from headpond.spark.java import find_java
from headpond.spark.redaction import SECRET_SETTING
from headpond.spark.shipping import ship_to
from headpond.spark.workers import worker_python

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from headpond.spark.classes import Classes
    from headpond.spark.java import Java

LOOPBACK = "127.0.0.1"

QUICK_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""Compile once and lightly: a second less until the first job, at the price of a slower long run."""

CHECKPOINTS_CLASS = "spark.sql.streaming.checkpointFileManagerClass"
_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing"
REMOTE_CHECKPOINTS = f"{_CHECKPOINTS}.FileContextBasedCheckpointFileManager"
"""Spark's own choice. On a disk it asks about links and rights by starting some 70 programs a batch, which
takes a sixth of a second; the other one writes the same files in the same way: beside, then renamed."""
_LOCAL_CHECKPOINTS = f"{_CHECKPOINTS}.FileSystemBasedCheckpointFileManager"

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_HOLDS_JAVA_OPTIONS = {_JAVA_OPTIONS, "spark.driver.defaultJavaOptions"}

_LAUNCHER_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""For the short-lived JVM that only prints the command line of the real one."""

_MISSING_PACKAGE = re.compile(r"\[(?:unresolved dependency|download failed): (.*?)\]")

_COMPLAINT = re.compile(r"(?i)exception|error|could not|unrecognized|invalid")


class SparkNotStarted(EnvironmentLacks):
    """The JVM or the Spark context in it did not come up; `facts["log"]` is where the reason stands."""


def spark_session(
    app_name: str,
    *,
    conf: Mapping[str, str] | None = None,
    log_path: Path | str,
    quick: bool = False,
    ends: bool = False,
) -> SparkSession:
    """Start Spark, or return the session that already runs in this process.

    Args:
        app_name: The name of the Spark application.
        conf: Spark settings; they win over the ones chosen here. Without `spark.master` Spark runs
            in this machine's memory, on all cores and at least two.
        log_path: The file that takes what the JVM and the Python workers print; appended to.
        quick: Start-up counts more than throughput (a demonstration, a test): see QUICK_JAVA_OPTIONS and
            `headpond.spark.daemon`.
        ends: This process ends by itself, and its end may take some seconds longer, once: see
            `headpond.spark.classes`.

    Raises:
        JavaMissing: No Java 17 or newer.
        SparkNotStarted: Anything else that kept Spark from starting.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 (half a second that JavaMissing need not wait for)

    running = SparkSession.getActiveSession()
    if running is not None:
        for key, value in (_submitted() | dict(conf or {})).items():
            if running.conf.isModifiable(key):
                running.conf.set(key, value)
        return running
    started_context(app_name, conf=conf, log_path=log_path, quick=quick, ends=ends)
    return SparkSession.builder.getOrCreate()


def started_context(
    app_name: str,
    *,
    conf: Mapping[str, str] | None = None,
    log_path: Path | str,
    quick: bool = False,
    ends: bool = False,
) -> SparkContext:
    """Start Spark, or give what runs in this process; arguments and errors as of `spark_session`."""
    from pyspark import SparkContext  # noqa: PLC0415 (as above)

    context = SparkContext._active_spark_context  # noqa: SLF001 (getOrCreate would start one)
    if context is not None:
        return context
    given = _submitted() | dict(conf or {})
    settings = {**_defaults(given, quick=quick), **given, "spark.app.name": app_name}
    log = Path(log_path)
    java = find_java()
    _set_environment(settings, java)
    classes = _kept_classes(settings, given, java, ends=ends)
    if classes is not None and classes.options:
        settings[_JAVA_OPTIONS] = f"{settings.get(_JAVA_OPTIONS, '')} {classes.options}".strip()
    return _start_context(settings, log, classes)


def _submitted() -> dict[str, str]:
    """Settings that `spark-submit` gave, the master among them; none where this process starts Spark."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 (as above)

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
    if master.startswith("local"):
        settings |= {
            # Never the machine's own name: looking it up may hang for seconds, and need not answer.
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.sql.warehouse.dir": _passing_folder(),
            # Plans of a few rows: planning again at run time costs more than it saves.
            "spark.sql.adaptive.enabled": "false",
            CHECKPOINTS_CLASS: _LOCAL_CHECKPOINTS,
        }
    if quick:
        settings[_JAVA_OPTIONS] = QUICK_JAVA_OPTIONS
        if master.startswith("local"):
            settings["spark.python.daemon.module"] = "headpond.spark.daemon"
    return settings


def _kept_classes(
    settings: Mapping[str, str], given: Mapping[str, str], java: Java, *, ends: bool
) -> Classes | None:
    """What the JVM is told about kept classes: on this machine, unless the user tells it something else."""
    if not settings["spark.master"].startswith("local") or _HOLDS_JAVA_OPTIONS & given.keys():
        return None
    told = " ".join(settings.get(each, "") for each in (_JAVA_OPTIONS, "spark.driver.extraClassPath"))
    return kept_classes(java, _spark_places()[1], told, may_write=ends)


def _set_environment(settings: Mapping[str, str], java: Java) -> None:
    """Set what the launcher, the JVM and the workers read from the environment."""
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
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", _LAUNCHER_OPTIONS)


def _start_context(settings: Mapping[str, str], log: Path, classes: Classes | None = None) -> SparkContext:
    """Launch the JVM with its output in `log` and create the Spark context in it."""
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 (as above)
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415

    already = log.stat().st_size if log.exists() else 0
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            gateway = None
            if SparkContext._gateway is None:  # noqa: SLF001 (a JVM outlives its context; there can be only one)
                shown = SparkConf(loadDefaults=False).setAll(_for_command_line(settings))
                with _home_known():
                    gateway = launch_gateway(shown, popen_kwargs={"stdout": out, "stderr": out})
                if classes is not None and classes.aside is not None and (jvm := gateway.proc) is not None:
                    keep_at_exit(classes, jvm)
            context = SparkContext(conf=_full_conf(gateway, settings), gateway=gateway)
            ship_to(context)
            return context
    except OSError as exc:
        raise SparkNotStarted(
            f"Spark's log {log} cannot be written: {exc.strerror or exc}.",
            next_step="Give a log path in a folder that can be written.",
            log=str(log),
        ) from exc
    except (PySparkException, RuntimeError, ValueError, _java_error()) as exc:
        reason = _reason(exc, log, already)
        if missing := _MISSING_PACKAGE.search(reason):
            raise SparkNotStarted(
                f"Spark did not start: a package it was told to fetch could not be had ({missing[1]}).",
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
    """Where pyspark was imported from, and the Spark whose JVM it starts."""
    import pyspark  # noqa: PLC0415 (as above)
    from pyspark.find_spark_home import _find_spark_home  # noqa: PLC0415

    return Path(pyspark.__file__).parent, Path(_find_spark_home())


@contextmanager
def _home_known() -> Iterator[None]:
    """Spare Spark's launching scripts, each of which would ask a Python of its own where Spark is."""
    if "SPARK_HOME" in os.environ:
        yield
        return
    os.environ["SPARK_HOME"] = str(_spark_places()[1])
    try:
        yield
    finally:
        # Another Python that this process starts may have another Spark.
        del os.environ["SPARK_HOME"]


def _full_conf(gateway: Any, settings: Mapping[str, str]) -> Any:
    """All settings as a SparkConf, which needs a JVM only where one is running already."""
    from pyspark import SparkConf  # noqa: PLC0415 (as above)

    jvm = gateway.jvm if gateway is not None else None
    return SparkConf(_jvm=jvm).setAll(list(settings.items()))


def _for_command_line(settings: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the settings that may be seen in a process list."""
    return [(key, value) for key, value in settings.items() if not SECRET_SETTING.search(key)]


def _java_error() -> type[Exception]:
    from py4j.protocol import Py4JError  # noqa: PLC0415 (comes with pyspark)

    error: type[Exception] = Py4JError
    return error


def _reason(exc: Exception, log: Path, since: int) -> str:
    """Return one line that tells most: the first complaint this start wrote, else the exception's own."""
    with log.open("rb") as opened:
        opened.seek(since)
        said = opened.read(1 << 20).decode(errors="replace").splitlines()
    complaints = [line for line in said if _COMPLAINT.search(line) and " WARN " not in line]
    return (complaints or str(exc).splitlines() or [type(exc).__name__])[0].strip().rstrip(".")


def _passing_folder() -> str:
    """Return a folder for a catalogue nobody uses, gone when this process ends."""
    folder = tempfile.mkdtemp(prefix="headpond-warehouse-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
