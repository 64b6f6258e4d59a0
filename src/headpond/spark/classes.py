"""The JVM's classes, kept from one start of Spark to the next: half of what a start computes.

Spark loads some 14,000 classes, each read from a jar, checked and linked anew in every JVM. Java can write
what it made of them into a file at its end and map that file at the next start (class data sharing)::

    1st to 3rd start   are counted
    4th start          writes aside, at the JVM's end ─► renamed when the JVM has ended well
    5th …              maps the file

Writing costs about what three starts gain. So it is done where there have been three, which are likely to be
followed by more, and never on a machine that forgets (a container made anew for each run). Only runs that end
by themselves write; others only read, so that no stop takes longer.

A file is good for one Java, one set of jars and one list of options, which its name is made of; Java itself
compares them again. Java would crash over a file that is cut off, so the name also tells its size, and one
of another size is removed. What else may happen to a file, Java finds by its check sums and passes it over.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headpond.spark.java import cache_folder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from headpond.spark.java import Java

SWITCH = "HEADPOND_JAVA_CLASSES"
"""The environment variable that says `off`: nothing is read, nothing written."""

STARTS_BEFORE = 3
"""Starts that are counted before one writes."""

UNUSED_DAYS = 30
"""Files that no start has used for so long are removed when a new one comes."""

WRITE_TIMEOUT_S = 120.0

_SUFFIX, _SEEN, _ASIDE = ".jsa", ".seen", ".new"
_QUIET = "-Xlog:cds*=off"
"""Java would name each class that it leaves out."""
_CHECKED = f"-XX:+IgnoreUnrecognizedVMOptions -XX:+VerifySharedSpaces {_QUIET}"
"""Sums of 163 MB take 0.15 s."""
_MORE_PLACES = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")
"""Put folders on the JVM's class path, with which Java writes nothing."""


@dataclass(frozen=True, slots=True)
class Classes:
    """What a JVM is told about kept classes.

    Attributes:
        options: for its command line; empty: nothing.
        aside: what the JVM writes at its end; null: nothing.
    """

    options: str = ""
    aside: Path | None = None


def kept_classes(
    java: Java,
    home: Path,
    options: str,
    *,
    may_write: bool,
    environ: Mapping[str, str] | None = None,
) -> Classes | None:
    """Say what to tell the JVM that is about to start.

    Args:
        java: its Java.
        home: Spark's folder.
        options: everything else that is told to the JVM and may change its classes.
        may_write: whether this process ends by itself, and may take some seconds more for it, once.
        environ: the environment to look in; the process's own by default.

    Returns:
        Null where no classes can be kept: switched off, no folder to write, folders on the class path, or a
        Java that was installed without the file of its own classes, which this adds to.
    """
    env = os.environ if environ is None else environ
    if not _possible(java, home, env):
        return None
    folder = cache_folder(env) / "java-classes"
    name = _name(java, home, options)
    seen = folder / (name + _SEEN)
    try:
        if (place := _whole(folder, name)) is not None:
            os.utime(place)
            return Classes(f"-XX:SharedArchiveFile={place} {_CHECKED}")
        if not seen.exists() or seen.stat().st_size < STARTS_BEFORE:
            folder.mkdir(parents=True, exist_ok=True)
            with seen.open("ab") as counted:
                counted.write(b".")
        elif may_write:
            aside = folder / f"{name}.{os.getpid()}{_ASIDE}"
            return Classes(f"-XX:ArchiveClassesAtExit={aside} {_QUIET}", aside)
    except OSError:
        return None
    return Classes()


def _whole(folder: Path, name: str) -> Path | None:
    """The file of that name, if it is whole and nobody else's: what is in it runs as this user."""
    for place in folder.glob(f"{name}.*{_SUFFIX}"):
        facts = place.stat()
        if str(facts.st_size) != place.stem.rpartition(".")[2]:
            place.unlink()
        elif facts.st_uid in {os.getuid(), 0}:
            return place
    return None


def _possible(java: Java, home: Path, env: Mapping[str, str]) -> bool:
    """Say whether classes can be kept here at all."""
    if env.get(SWITCH, "").lower() in {"off", "0", "no", "false"} or any(
        env.get(each) for each in _MORE_PLACES
    ):
        return False
    if " " in str(cache_folder(env)):  # Spark takes it for the end of an option
        return False
    return not (home / "conf").exists() and (java.home / "lib" / "server" / "classes.jsa").exists()


_WAITED_FOR: list[subprocess.Popen[bytes]] = []


def keep_at_exit(classes: Classes, jvm: subprocess.Popen[bytes]) -> None:
    """When this process ends, end the JVM, wait for what it writes, and give that its name."""
    _WAITED_FOR.append(jvm)
    atexit.register(_keep, classes, jvm)


def keep_nothing() -> None:
    """Do not wait after all, for somebody waits for this process; call it when Spark has been stopped."""
    atexit.unregister(_keep)
    while _WAITED_FOR:
        _WAITED_FOR.pop().kill()  # asked to end, it would write first


def _keep(classes: Classes, jvm: subprocess.Popen[bytes]) -> None:
    assert classes.aside is not None
    if sys.stderr.isatty():
        sys.stderr.write(f"Keeping Spark's classes for later starts, once ({SWITCH}=off: never).\n")
    try:
        if jvm.stdin is not None:
            jvm.stdin.close()  # for which the JVM ends
        if jvm.wait(WRITE_TIMEOUT_S) == 0 and classes.aside.exists():
            name, size = classes.aside.name.partition(".")[0], classes.aside.stat().st_size
            classes.aside.replace(classes.aside.with_name(f"{name}.{size}{_SUFFIX}"))
            _clean(classes.aside.parent)
    except (OSError, subprocess.TimeoutExpired, KeyboardInterrupt):
        return  # the next run tries again


def _clean(folder: Path) -> None:
    """Remove what nobody uses any more, and what a run that was killed left."""
    now = time.time()
    for each in folder.iterdir():
        most_s = {_SUFFIX: UNUSED_DAYS * 86_400, _ASIDE: 3_600}.get(each.suffix)
        with contextlib.suppress(OSError):
            if most_s is not None and now - each.stat().st_mtime > most_s:
                each.unlink()


def _name(java: Java, home: Path, options: str) -> str:
    """A name for this Java, these jars and these options."""
    parts = [str(java.home.resolve()), java.build, options]
    for jar in sorted((home / "jars").glob("*.jar")):
        facts = jar.stat()
        parts.append(f"{jar} {facts.st_size} {facts.st_mtime_ns}")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
