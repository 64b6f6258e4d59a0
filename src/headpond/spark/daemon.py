"""The process that Spark forks its Python workers from, with their imports done beforehand.

Spark's own (`pyspark.daemon`) forks workers that each import pyspark's worker, Arrow and our modules anew:
most of a second of computing for every worker of the first batch. Here the imports are done once, before
the first fork. Spark runs this module by name (`spark.python.daemon.module`).
"""

from __future__ import annotations

import importlib

from pyspark.daemon import manager

PRELOADED = ("pyspark.worker", "pandas", "headpond.spark.decoding_kinesis")
"""What the workers of the main job import first.

pandas is not for us: Arrow imports it, where it is installed, to see that a list of values is none of its
series. Arrow starts threads of its own when imported; it and its allocator are made to be forked (they hook
into `fork`), which is what multiprocessing does with them everywhere."""


def main() -> None:
    """Import, then serve Spark as its own daemon does."""
    for name in PRELOADED:
        importlib.import_module(name)
    manager()


if __name__ == "__main__":
    main()
