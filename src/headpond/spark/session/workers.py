"""The Pythons that Spark starts: forked from one that has imported everything, with heaps that are frozen.

::

    driver ──┬─ JVM ── script: the Python that Spark knows, one for each it wants ─┐ pid, exit code
             └─ parent: imports once, forks ── daemon ── worker, worker …  ◄───────┘ arguments, environment,
                                            └─ planner …                             standard streams

Spark starts half a dozen Pythons until a query has its first record, most of them one after the other, and
each would import pyspark, Arrow and our modules anew: up to a second of CPU. What Spark starts is a script
(`worker_script`), which asks the parent for a fork, hands over what it was started with, and stays as that
fork's stand-in: it passes SIGTERM on, and ends as it ends. Without a parent it runs Python itself.

Spark also puts pyspark and py4j as zips of sources, and a jar, first on the path of each Python. Modules out
of a zip are compiled in every process; the script drops those three. Where pyspark is not the one that Spark
was installed with, or nothing can be written, Spark runs the interpreter.

**Frozen heaps.** Spark's daemon collects all garbage after every task. With pyspark, Arrow and an AWS client
loaded, that walks some hundred thousand objects that never die: 40 ms of CPU for a task that may read one
small reply, and of the join a tenth of the CPU of 100,000 records.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import hashlib
import importlib
import json
import os
import runpy
import select
import shlex
import signal
import site
import socket
import struct
import subprocess
import sys
import warnings
from collections.abc import Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn, cast

from headpond.core.passing import cache_folder
from headpond.spark.session import worker_script
from headpond.spark.session.java import write_script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PRELOADED = (
    "pyspark.worker",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pandas",
    "headpond.spark.sources.archive",
    "headpond.spark.sources.decoded",
    "headpond.spark.sources.kinesis",
)
"""What the parent imports: all that the main job needs; what is not there is imported by whoever needs it.

Arrow imports pandas, where it is installed, to see that a list is not a series. Arrow and its allocator hook
into `fork`, so that they may be forked."""

_SCRIPT = """\
#!/bin/sh
# Written by headpond: Python with pyspark from where it is installed, and not from Spark's zips.
exec {python} -IS {script} "$@"
"""


def worker_python(package: Path, home: Path, environ: Mapping[str, str] | None = None) -> str:
    """Return the Python that Spark on this machine starts: the script, else the driver's own interpreter.

    `package` is where this process has imported pyspark from, `home` the Spark whose JVM is about to start.
    """
    env = os.environ if environ is None else environ
    if package.resolve() != home.resolve() or not _found_by_itself(package.parent, env):
        return sys.executable
    text = _SCRIPT.format(python=shlex.quote(sys.executable), script=shlex.quote(worker_script.__file__))
    name = hashlib.sha256(text.encode()).hexdigest()[:12]
    target = cache_folder(env) / "python" / name / "python"
    try:
        write_script(target, text)
    except OSError:
        return sys.executable
    # A cache folder may be on a disk from which nothing is run.
    return str(target) if os.access(target, os.X_OK) else sys.executable


def use_this_python(spark: SparkSession) -> None:
    """Have Spark on this machine run this interpreter, unless another one was chosen.

    Spark's own choice is the `python3` of the PATH, which lacks headpond where its environment is not active.
    """
    from headpond.spark.session.cluster import over_connect

    if over_connect(spark) or "PYSPARK_PYTHON" in os.environ:
        return
    if spark.sparkContext.master.startswith("local"):
        spark.sparkContext.pythonExec = sys.executable


def _found_by_itself(folder: Path, env: Mapping[str, str]) -> bool:
    """Return whether a fresh interpreter looks for packages in this folder."""
    if os.pathsep in sys.executable or not sys.executable or "PYTHONHOME" in env:
        return False
    places = [*site.getsitepackages(), *env.get("PYTHONPATH", "").split(os.pathsep)]
    if site.ENABLE_USER_SITE:
        places.append(site.getusersitepackages())
    return folder.resolve() in {Path(each).resolve() for each in places if each}


COLLECTED_AFTER = 100_000
"""Objects that a worker makes, more than it lets go of, before Python looks for garbage among the young.
Python's 700 are reached twice in a thousand records, all of which live until their batch is written: a tenth
of the CPU of decoding alone, in one process. What is left over goes when the task ends, as ever."""

_frozen = {"modules": 0}
"""How many modules were loaded when objects were exempted last."""


def freeze_worker_heap() -> None:
    """Exempt all present objects from later collections, and have these be few; called as a task begins.

    Any worker gets tasks of any kind, so this is done again where modules were loaded since.
    """
    modules = len(sys.modules)
    if modules > _frozen["modules"]:
        gc.collect()
        gc.freeze()
        gc.set_threshold(COLLECTED_AFTER)
        _frozen["modules"] = modules


def start_parent(folder: Path, log: IO[bytes]) -> None:
    """Start the process that those of Spark are forked from, with its socket in a folder that is ours alone.

    It ends with this process. The JVM that is started next tells its Pythons where it is.
    """
    place = str(folder / "python")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(place)
        listening.listen()
        parent = subprocess.Popen(  # noqa: S603 (this interpreter)
            [sys.executable, "-m", __name__, str(listening.fileno())],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[listening.fileno()],
            start_new_session=True,  # as the JVM
            env=os.environ | {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")},  # Spark's choice
        )
    os.environ[worker_script.PARENT] = place
    atexit.register(parent.communicate)
    atexit.register(parent.kill)  # before that: it may still be importing


def main() -> None:
    """Import, then fork whatever is asked for, until the driver's end of standard input closes."""
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    # From 3.12 on Python warns of a fork beside threads, of which NumPy's and Arrow's hook into it.
    warnings.filterwarnings("ignore", ".*multi-threaded.*fork", DeprecationWarning)
    signal.signal(signal.SIGCHLD, _wait_for_ended)
    with socket.socket(fileno=int(sys.argv[1])) as listening:
        while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
            connection, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                _become(connection)
            connection.close()


def _wait_for_ended(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _become(connection: socket.socket) -> NoReturn:
    """Be the Python that was asked for: its streams, environment and arguments; then run its module."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, fds, _, _ = socket.recv_fds(connection, 4, 3)
    for target, given in enumerate(fds):
        os.dup2(given, target)
        os.close(given)
    with connection.makefile("rb") as opened:
        asked = json.loads(opened.read(*struct.unpack("!I", size)))
    connection.sendall(struct.pack("!I", os.getpid()))
    os.register_at_fork(after_in_child=connection.close)  # its end tells of this process alone
    os.environ.clear()
    os.environ.update(asked["environment"])
    _, name, *arguments = asked["arguments"]
    sys.argv = [name, *arguments]
    for stream in (sys.stdout, sys.stderr):
        cast("TextIOWrapper", stream).reconfigure(line_buffering=True)
    sys.path[1:1] = [each for each in os.environ["PYTHONPATH"].split(os.pathsep) if each not in sys.path]
    sys.modules.pop(name, None)  # it runs once more, as the program
    with contextlib.suppress(OSError):  # what `top` and `ps -e` show; Linux has it
        Path("/proc/self/comm").write_text(sys.argv[-1].rpartition(".")[2])
    code = 1
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    finally:
        # A pipe that nobody reads any more is no news at the end.
        with contextlib.suppress(OSError):
            connection.sendall(bytes([code & 0xFF]))
    sys.exit()


if __name__ == "__main__":
    main()
