"""A checkpoint's files, wherever Spark can have a checkpoint: a folder here, S3, HDFS.

They are read and written through Hadoop's file systems, as Spark itself does: whoever can run the query can
look into its checkpoint, with the same settings and permissions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headpond.core.errors import ServiceFailure
from headpond.spark.errors import headpond_error_of, telling, text_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Folder:
    """A folder, by its path or URL; `name` is always relative to it."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        jvm: Any = spark._jvm  # noqa: SLF001 - there is no public way
        self._hadoop = jvm.org.apache.hadoop.fs
        self._read_all = jvm.org.apache.commons.io.IOUtils.toByteArray
        self._conf = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 - likewise
        path = self._hadoop.Path(url)
        self._files = path.getFileSystem(self._conf)
        self._root = self._files.makeQualified(path)

    @property
    def text(self) -> str:
        """The folder as Spark writes it into files: its URL, or its path on this machine."""
        return str(self._root.toUri().toString()).removeprefix("file://").removeprefix("file:")

    def _path(self, name: str) -> Any:
        return self._hadoop.Path(self._root, name) if name else self._root

    def exists(self, name: str = "") -> bool:
        """Return whether there is a file or folder of that name."""
        return bool(self._files.exists(self._path(name)))

    def names(self, name: str = "") -> list[str]:
        """Return the names of what lies in a folder; none where there is none."""
        if not self.exists(name):
            return []
        return sorted(str(each.getPath().getName()) for each in self._files.listStatus(self._path(name)))

    def walk(self, name: str = "") -> Iterator[str]:
        """Yield all files below a folder."""
        below = True
        found = self._files.listFiles(self._path(name), below)
        start = len(str(self._root.toString())) + 1
        while found.hasNext():
            yield str(found.next().getPath().toString())[start:]

    def read(self, name: str) -> str:
        """Read a file of text."""
        stream = self._files.open(self._path(name))
        try:
            return bytes(self._read_all(stream)).decode()
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Write a file of text."""
        stream = self._files.create(self._path(name))
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def copy(self, name: str, to: Folder, new_name: str) -> None:
        """Copy a file into a folder."""
        there, move = to._path(new_name), False
        self._hadoop.FileUtil.copy(self._files, self._path(name), to._files, there, move, self._conf)

    def rename(self, to: Folder) -> None:
        """Give the folder another place in its file system."""
        self._files.rename(self._root, to._root)

    def remove(self) -> None:
        """Remove the folder and all below it."""
        below = True
        self._files.delete(self._root, below)


@contextmanager
def checkpoint_errors(log: Path) -> Iterator[None]:
    """Say in a sentence what Spark meets in a checkpoint: a store without a jar or without access, say.

    Raises:
        HeadpondError: ours, where it is one; else a ServiceFailure that names Spark's log.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        if (found := headpond_error_of(error)) is not None:
            raise found from error
        said = telling(text_of(error).splitlines()).removeprefix(": ")
        raise ServiceFailure(
            f"Spark failed on the checkpoint: {said}",
            next_step="Give the checkpointLocation as its query has it, and what Spark needs to reach it, "
            f"such as --conf spark.jars.packages=…; {log} has all that Spark says.",
            log=str(log),
        ) from error
