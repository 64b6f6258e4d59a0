"""Sessions that run elsewhere: on a cluster's executors, or behind Spark Connect.

Executors import headpond to read, decode and join. Where it is not installed on their machines, Spark carries
it there as it does any Python file (`addPyFile`), as a zip of this package. What headpond itself needs
(pyarrow, boto3, …) is not in the zip; see docs/how-to/cluster.md.

With Spark Connect, sources, the sink and the windowed join work as everywhere. What works in the driver's
own process, such as the merge into a lake, is refused before anything is done.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headpond.core.errors import UsageError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


def over_connect(spark: SparkSession) -> bool:
    """Return whether a session is a client of Spark Connect."""
    # Its class is not imported to ask: that needs packages that a classic session does without.
    return type(spark).__module__.startswith("pyspark.sql.connect")


def refuse_connect(spark: SparkSession, what: str) -> None:
    """Raise UsageError where `what`, which works in the driver's process alone, is asked of Spark Connect."""
    if over_connect(spark):
        raise UsageError(
            f"{what} works in the process of Spark's driver, and this session is a client of Spark Connect.",
            next_step="Run it where the driver is: with `headpond run`, or by spark-submit.",
        )


PACKAGE = Path(__file__).resolve().parents[2]
_FILE_SETTINGS = ("spark.submit.pyFiles", "spark.archives", "spark.yarn.dist.archives", "spark.files")


def ship(spark: SparkSession) -> None:
    """Hand this headpond to the executors of a session; call it before `register`, `follow` or a join.

    Does nothing if Spark runs only on this machine.

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
    # that does not exist (Spark 4.3: `streaming_job` below theirs), so PYTHONPATH
    # names headpond. Elsewhere the path leads nowhere, which does no harm.
    paths = str(place), context.environment.get("PYTHONPATH")
    context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def needs_shipping(settings: Mapping[str, str]) -> bool:
    """Return whether executors may lack headpond: they are elsewhere, and no setting brings it."""
    return not _local(settings) and not any("headpond" in settings.get(name, "") for name in _FILE_SETTINGS)


def _local(settings: Mapping[str, str]) -> bool:
    # Executors on this machine (`local-cluster`, too) run the driver's own interpreter.
    return settings.get("spark.master", "local").startswith("local")


def package_zip(folder: Path) -> Path:
    """Write this package, as it is imported now, as a zip that Python imports from.

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
