"""Kept classes of the JVM: when they are written, read and passed over, and who may."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from headpond.spark import classes, session
from headpond.spark.java import Java, find_java

if TYPE_CHECKING:
    from pathlib import Path

    from headpond.spark.classes import Classes

OPTIONS = "-XX:+UseSerialGC"


@pytest.fixture
def java(tmp_path: Path) -> Java:
    (tmp_path / "jdk/lib/server").mkdir(parents=True)
    (tmp_path / "jdk/lib/server/classes.jsa").touch()
    return Java(tmp_path / "jdk", 17, "JAVA_HOME", "17.0.15")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "spark/jars").mkdir(parents=True)
    (tmp_path / "spark/jars/a.jar").write_bytes(b"1")
    return tmp_path / "spark"


def ask(
    tmp_path: Path, java: Java, home: Path, *, may_write: bool = True, options: str = OPTIONS, **more: str
) -> Classes | None:
    environ = {"HEADPOND_CACHE_DIR": str(tmp_path / "cache"), **more}
    return classes.kept_classes(java, home, options, may_write=may_write, environ=environ)


def counted(tmp_path: Path, java: Java, home: Path) -> Classes:
    """The answer after the starts that are only counted."""
    for _ in range(classes.STARTS_BEFORE):
        found = ask(tmp_path, java, home)
        assert found is not None
        assert (found.options, found.aside) == ("", None)
    found = ask(tmp_path, java, home)
    assert found is not None
    return found


def test_written_after_some_starts_and_read_from_then_on(tmp_path: Path, java: Java, home: Path) -> None:
    """Written aside; the JVM's success gives it its name, and what nobody uses any more goes."""
    found = counted(tmp_path, java, home)
    assert found.aside is not None
    assert f"-XX:ArchiveClassesAtExit={found.aside} " in found.options
    old, left = found.aside.with_name("old.1.jsa"), found.aside.with_name("x.1.new")
    for each, age_s in ((old, 31 * 86_400), (left, 7_200)):
        each.touch()
        os.utime(each, (time.time() - age_s,) * 2)
    jvm = subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.stdin.read(); open({str(found.aside)!r}, 'w').write('123')"],
        stdin=subprocess.PIPE,
    )
    classes._keep(found, jvm)
    (place,) = (each for each in found.aside.parent.iterdir() if each.suffix != ".seen")
    assert place.name.endswith(".3.jsa")
    for may_write in (True, False):
        again = ask(tmp_path, java, home, may_write=may_write)
        assert again is not None
        assert again.aside is None
        assert f"-XX:SharedArchiveFile={place} " in again.options


def test_not_kept_where_the_jvm_did_not_end_well(tmp_path: Path, java: Java, home: Path) -> None:
    """What it wrote is left aside, and the next start tries again."""
    found = counted(tmp_path, java, home)
    assert found.aside is not None
    found.aside.touch()
    jvm = subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"], stdin=subprocess.PIPE)
    classes._keep(found, jvm)
    assert not list(found.aside.parent.glob("*.jsa"))
    again = ask(tmp_path, java, home)
    assert again is not None
    assert "ArchiveClassesAtExit" in again.options


def test_a_file_that_is_cut_off_is_removed(tmp_path: Path, java: Java, home: Path) -> None:
    """Java would crash over it; another one is written in its place."""
    found = counted(tmp_path, java, home)
    assert found.aside is not None
    place = found.aside.with_name(found.aside.name.partition(".")[0] + ".5.jsa")
    place.write_bytes(b"1234")
    again = ask(tmp_path, java, home)
    assert again is not None
    assert "ArchiveClassesAtExit" in again.options
    assert not place.exists()


def test_a_run_that_is_stopped_does_not_wait(tmp_path: Path) -> None:
    """Its JVM is not asked to end, for which it would write, but ended."""
    jvm = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    classes.keep_at_exit(classes.Classes("-X", tmp_path / "a.1.new"), jvm)
    classes.keep_nothing()
    assert jvm.wait(20) == -signal.SIGKILL
    assert jvm.stdin is not None
    jvm.stdin.close()
    classes.keep_nothing()


def test_a_run_that_goes_on_never_writes(tmp_path: Path, java: Java, home: Path) -> None:
    """It is stopped by somebody, who waits for it."""
    counted(tmp_path, java, home)
    found = ask(tmp_path, java, home, may_write=False)
    assert found is not None
    assert found.options == ""


def test_another_java_other_jars_and_other_options_have_files_of_their_own(
    tmp_path: Path, java: Java, home: Path
) -> None:
    """A file is never looked for under the name of one that would not fit."""
    counted(tmp_path, java, home)
    (home / "jars/b.jar").touch()
    jars = ask(tmp_path, java, home)
    options = ask(tmp_path, java, home, options="-XX:+UseG1GC")
    update = ask(tmp_path, Java(java.home, 17, "PATH", "17.0.16"), home)
    assert [jars, options, update] == [classes.Classes()] * 3
    assert len(list((tmp_path / "cache/java-classes").glob("*.seen"))) == 4


@pytest.mark.parametrize("name", ["HEADPOND_JAVA_CLASSES", "SPARK_CONF_DIR", "HADOOP_CONF_DIR"])
def test_switched_off_or_not_possible(tmp_path: Path, java: Java, home: Path, name: str) -> None:
    """By the switch, and where folders are on the class path; then nothing is counted either."""
    assert ask(tmp_path, java, home, **{name: "off"}) is None
    assert not (tmp_path / "cache").exists()


def test_no_folder_no_classes_of_java_no_blank(tmp_path: Path, java: Java, home: Path) -> None:
    """What cannot be had is done without."""
    (tmp_path / "file").touch()
    assert ask(tmp_path, java, home, HEADPOND_CACHE_DIR=str(tmp_path / "file")) is None
    assert ask(tmp_path, java, home, HEADPOND_CACHE_DIR=str(tmp_path / "a b")) is None
    (java.home / "lib/server/classes.jsa").unlink()
    assert ask(tmp_path, java, home) is None


def test_only_on_this_machine_and_never_beside_the_users_own_options(java: Java) -> None:
    """Their options may hold an archive of their own, or another collector."""
    for given in ({"spark.master": "yarn"}, {"spark.driver.extraJavaOptions": "-Xss4m"}):
        settings = {**session._defaults(given, quick=True), **given}
        assert session._kept_classes(settings, given, java, ends=True) is None


@pytest.mark.spark
def test_java_passes_over_a_damaged_file(tmp_path: Path) -> None:
    """Of something else, or with other bytes in it: Java starts as ever, and says nothing."""
    java = str(find_java().home / "bin" / "java")
    whole = tmp_path / "whole.jsa"
    write = [java, f"-XX:ArchiveClassesAtExit={whole}", *classes._QUIET.split(), "-version"]
    made = subprocess.run(write, capture_output=True, check=True)
    content = whole.read_bytes()
    half = len(content) // 2
    changed = content[:half] + b"\xff" * 4096 + content[half + 4096 :]
    for number, damaged in enumerate((content, changed, b"\0" * 4096 + content[4096:], b"x" * 100_000, b"")):
        file = tmp_path / f"{number}.jsa"
        file.write_bytes(damaged)
        read = [java, f"-XX:SharedArchiveFile={file}", *classes._CHECKED.split(), "-version"]
        done = subprocess.run(read, capture_output=True, check=True)
        assert done.stderr.splitlines()[0] == made.stderr.splitlines()[0]
        assert done.stdout == made.stdout
