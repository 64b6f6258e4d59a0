"""The Python that Spark starts: pyspark from where it is installed, all else as it was."""

from __future__ import annotations

import os
import site
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headpond.spark.session.workers import worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SITE = Path(site.getsitepackages()[0])
PACKAGE = SITE / "pyspark"


def environ(tmp_path: Path) -> dict[str, str]:
    return {"HEADPOND_CACHE_DIR": str(tmp_path / "cache")}


def test_sparks_archives_are_dropped_and_the_rest_is_kept(tmp_path: Path) -> None:
    """Paths of the user stay, in order, blanks and stars in them; arguments arrive as they were given."""
    python = worker_python(PACKAGE, PACKAGE, environ(tmp_path))
    assert python != sys.executable
    assert python == worker_python(PACKAGE, PACKAGE, environ(tmp_path))
    kept = [str(tmp_path / "a b"), str(tmp_path / "*"), "/x/my-spark-core.zip"]
    given = [
        "/s/python/lib/pyspark.zip",
        kept[0],
        "/s/python/lib/py4j-0.10.9.9-src.zip",
        "/s/jars/spark-core_2.13-4.3.0.jar",
        *kept[1:],
    ]
    show = "import os, sys; print([os.environ['PYTHONPATH'], sys.executable, *sys.argv[1:]])"
    done = subprocess.run(
        [python, "-c", show, "a b", "", "*"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": ":".join(given)},
    )
    assert done.stdout.strip() == str([":".join(kept), sys.executable, "a b", "", "*"])


def test_the_interpreter_itself_where_the_script_could_do_harm(tmp_path: Path) -> None:
    """Another Spark's jars, a pyspark that a fresh Python would not find, no folder to write to."""
    env = environ(tmp_path)
    assert worker_python(PACKAGE, tmp_path, env) == sys.executable
    assert worker_python(tmp_path / "pyspark", tmp_path / "pyspark", env) == sys.executable
    (tmp_path / "file").touch()
    taken = {"HEADPOND_CACHE_DIR": str(tmp_path / "file")}
    assert worker_python(PACKAGE, PACKAGE, taken) == sys.executable
    on_path = {**env, "PYTHONPATH": str(tmp_path)}
    assert worker_python(tmp_path / "pyspark", tmp_path / "pyspark", on_path) != sys.executable


@pytest.mark.spark
def test_workers_import_pyspark_from_where_it_is_installed(spark: SparkSession) -> None:
    """Not from Spark's zip, out of which it would be compiled in every process."""

    def told(_batches: object) -> object:
        import pyarrow as pa
        import pyspark

        yield pa.RecordBatch.from_pydict({"place": [pyspark.__file__]})

    place = spark.range(1).mapInArrow(told, "place string").collect()[0].place
    assert Path(place).parent.resolve() == PACKAGE.resolve()
