"""headpond for the executors of a cluster: a zip of this package, handed out by Spark.

Executors import headpond to read, decode and join. Where it is not installed on their machines, Spark
carries it there as it does for any Python file (`addPyFile`): the zip goes from the driver to each executor
once. What headpond itself needs (pyarrow, boto3, …) is not in it and must be there; see
docs/how-to/cluster.md.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from headpond.errors import UsageError
from headpond.spark.connect import over_connect

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

PACKAGE = Path(__file__).resolve().parent.parent
_FILE_SETTINGS = ("spark.submit.pyFiles", "spark.archives", "spark.yarn.dist.archives", "spark.files")


def ship(spark: SparkSession) -> None:
    """Hand this headpond to the executors of a session; call it before `register`, `follow` or a join.

    Does nothing where Spark runs on this machine alone.

    Raises:
        UsageError: the session is a client of Spark Connect: planners of sources do not see its files.
    """
    if over_connect(spark):
        raise UsageError(
            "headpond cannot be handed to a Spark Connect server: the process that plans a source's batches "
            "there does not look at a client's files.",
            next_step="Install headpond into the Python environment of the server and its executors.",
        )
    ship_to(spark.sparkContext)


def ship_to(context: SparkContext) -> None:
    """Hand this headpond to the executors of a context."""
    settings = dict(context.getConf().getAll())
    if needs_shipping(settings):
        folder = Path(tempfile.mkdtemp(prefix="headpond-package-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        place = package_zip(folder)
        context.addPyFile(str(place))
    elif not _local(settings) and PACKAGE.parent.is_file():
        place = PACKAGE.parent  # imported from a zip that a setting brought
    else:
        return
    # The process in which Spark plans a source's batches, on this machine, looks for such files in a folder
    # that does not exist (Spark 4.3: `streaming_job` below theirs), and so must be told where headpond is.
    # Elsewhere the path leads nowhere, which does no harm.
    paths = str(place), context.environment.get("PYTHONPATH")
    context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def needs_shipping(settings: Mapping[str, str]) -> bool:
    """Say whether executors may lack headpond: they are elsewhere, and no setting brings it."""
    return not _local(settings) and not any("headpond" in settings.get(name, "") for name in _FILE_SETTINGS)


def _local(settings: Mapping[str, str]) -> bool:
    # Executors on this machine (`local-cluster`, too) run the driver's own interpreter.
    return settings.get("spark.master", "local").startswith("local")


def package_zip(folder: Path) -> Path:
    """Write this package, as it is imported now, as a zip that Python imports from.

    Args:
        folder: a folder to write it in.

    Returns:
        `folder/headpond.zip`. The same package gives the same bytes.
    """
    target = folder / "headpond.zip"
    if PACKAGE.parent.is_file():
        shutil.copyfile(PACKAGE.parent, target)
        return target
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as written:
        for path in sorted(PACKAGE.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                name = f"headpond/{path.relative_to(PACKAGE).as_posix()}"
                written.writestr(zipfile.ZipInfo(name), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return target
