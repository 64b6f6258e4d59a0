"""The Python that Spark starts its own processes with: the driver's, without Spark's zips in the way.

Spark puts three archives before everything else on the path of each Python it starts: pyspark and py4j as
zips of sources, and a jar of the JVM's classes. Modules out of a zip are compiled anew in every process: most
of a second of computing, where the same files in `site-packages` were compiled when they were installed. A
query over a Python data source starts five such processes, one after the other.

So Spark is told to run a small script in their place. It drops those three and hands the rest, what a user
put on the path among it, to the driver's interpreter. It lies in headpond's cache folder and can be written
again at any time. Where pyspark is not the one that Spark was installed with, or nothing can be written,
Spark runs the interpreter itself, as ever.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import site
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headpond.spark.java import cache_folder, write_script

if TYPE_CHECKING:
    from collections.abc import Mapping

_SCRIPT = """\
#!/bin/sh
# Written by headpond: runs {python} with pyspark from where it is installed, and not
# from Spark's zips, which every process would compile anew.
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
    """Give the Python for Spark on this machine to start: the script, else the driver's own interpreter.

    Args:
        package: the folder that this process has imported pyspark from.
        home: Spark's own, whose JVM is about to start.
        environ: the environment to look in; the process's own by default.
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


def _found_by_itself(folder: Path, env: Mapping[str, str]) -> bool:
    """Say whether a fresh interpreter looks for packages in this folder, whatever this process has added."""
    if os.pathsep in sys.executable or not sys.executable:
        return False
    places = [*site.getsitepackages(), *env.get("PYTHONPATH", "").split(os.pathsep)]
    if site.ENABLE_USER_SITE:
        places.append(site.getusersitepackages())
    return folder.resolve() in {Path(each).resolve() for each in places if each}
