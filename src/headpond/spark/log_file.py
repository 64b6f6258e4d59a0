"""Where Spark's words of a run go: a file that no other user of the machine can have put there.

::

    the lake is a folder    LAKE/_headpond/logs/spark.log
    the lake is a URL       CACHE/logs/NAME-xxxxxxxx.log    CACHE as for `java.cache_folder`, logs only ours
    no such folder          a new folder of the machine's for passing things

Spark's words hold names of tables and places, and a log is opened to be appended to: in a folder that others
can write, under a name that they can guess, they would read it, or have it written into another file.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from headpond.spark.java import cache_folder
from headpond.tables.remote import is_remote

if TYPE_CHECKING:
    from headpond.pipeline import Pipeline

_SHOWN_CHARACTERS = 60
_ODD = re.compile(r"[^A-Za-z0-9._-]+")


def log_path(pipeline: Pipeline) -> Path:
    """Give the file for a pipeline; its folder is there already where the lake is a URL."""
    target = pipeline.target
    if not is_remote(target.path):
        return Path(target.path) / "_headpond" / "logs" / "spark.log"
    # Two pipelines may be called alike, and two runs of one share a log.
    apart = hashlib.sha256(target.path.encode()).hexdigest()[:8]
    name = _ODD.sub("_", pipeline.monitor.name)[:_SHOWN_CHARACTERS]
    return private_logs() / f"{name}-{apart}.log"


def private_logs() -> Path:
    """Give a folder for logs that only this user can look into; it is there."""
    folder = cache_folder() / "logs"
    return folder if _is_private(folder) else Path(tempfile.mkdtemp(prefix="headpond-logs-"))


def _is_private(folder: Path) -> bool:
    """Make a folder that only this user can look into, and say whether that is so."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return False
        folder.chmod(0o700)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)
