"""The Python processes that Spark starts: which interpreter, what they import first, what is never collected.

::

    driver ── JVM ── script ── daemon (this module: imports) ── fork ── worker (freezes) ── task, task …

**The script.** Spark puts pyspark and py4j as zips of sources, and a jar, first on the path of each Python it
starts. Modules out of a zip are compiled in every process: most of a second of CPU, five times for a query
over a Python data source. The script drops those three and runs the driver's interpreter with the rest. Where
pyspark is not the one that Spark was installed with, or nothing can be written, Spark runs the interpreter.

**The daemon.** Spark's own (`pyspark.daemon`) forks workers that each import pyspark's worker, Arrow and our
modules: most of a second of CPU for every worker of the first batch. Here the imports are done once, before
the first fork. Spark runs this module by name (`spark.python.daemon.module`).

**Frozen heaps.** Spark's daemon collects all garbage after every task. With pyspark, Arrow and an AWS client
loaded, that walks some hundred thousand objects that never die: 40 ms of CPU for a task that may read one
small reply, and of the join a tenth of the CPU of 100,000 records.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import os
import shlex
import site
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headpond.spark.session.java import cache_folder, write_script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PRELOADED = ("pyspark.worker", "pandas", "headpond.spark.sources.kinesis")
"""What the workers of the main job import first.

Arrow imports pandas, where it is installed, to see that a list is not a series. Arrow and its allocator hook
into `fork`, so that they may be forked."""

_SCRIPT = """\
#!/bin/sh
# Written by headpond: runs {python} with pyspark from where it is installed, and not
# from Spark's zips, which every process would compile again.
set -f
kept=
IFS=:
for each in $PYTHONPATH; do
  case $each in
    */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip | */jars/spark-core_*.jar) ;;
    *) kept=${{kept:+$kept:}}$each ;;
  esac
done
export PYTHONPATH="$kept"
unset IFS kept each
set +f
exec {python} "$@"
"""


def worker_python(package: Path, home: Path, environ: Mapping[str, str] | None = None) -> str:
    """Return the Python that Spark on this machine starts: the script, else the driver's own interpreter.

    `package` is where this process has imported pyspark from, `home` the Spark whose JVM is about to start.
    """
    env = os.environ if environ is None else environ
    if package.resolve() != home.resolve() or not _found_by_itself(package.parent, env):
        return sys.executable
    text = _SCRIPT.format(python=shlex.quote(sys.executable))
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
    if os.pathsep in sys.executable or not sys.executable:
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


def main() -> None:
    """Import, then serve Spark as its own daemon does."""
    from pyspark.daemon import manager

    for name in PRELOADED:
        importlib.import_module(name)
    manager()


if __name__ == "__main__":
    main()
