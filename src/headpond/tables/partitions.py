"""How a table's rows are dealt out to folders: by columns, by a hash of the key, or both.

::

    partition_by = ["day"], buckets = 16      lake/public.orders/day=2026-07-09/_bucket=11/part-….parquet

    _bucket = CRC-32 (ISO-HDLC) of the UTF-8 text of the key, modulo the number of buckets
    text    = canonical JSON array of the key's values, as `_headpond/tombstones` has it: ["a b",11]

A row's bucket depends on its key alone, so a merge that compares buckets too reads only the folders that its
keys can be in. The number of buckets is kept with the table (`PROPERTY`).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headpond.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headpond.changes.config import TableSpec
    from headpond.changes.qldb_config import DocumentSpec
    from headpond.tables.delta import DeltaFile

BUCKET = "_bucket"
PROPERTY = "headpond.buckets"
"""Table property that holds the number of buckets."""
FILE_SIZE = "delta.targetFileSize"
"""Delta's own property: what writers of the table aim at."""


@dataclass(frozen=True, slots=True)
class Partitions:
    """How the rows of one table are dealt out.

    Attributes:
        columns: Delta columns whose values name folders.
        buckets: how many buckets of the key there are besides; null: none.
        target_file_bytes: size that files are to have; null leaves it to each writer.
    """

    columns: tuple[str, ...] = ()
    buckets: int | None = None
    target_file_bytes: int | None = None

    @property
    def all_columns(self) -> list[str]:
        """The partition columns, the bucket's last."""
        return [*self.columns, *([BUCKET] if self.buckets else [])]

    def properties(self) -> dict[str, str]:
        """The table properties that go with it."""
        found = {}
        if self.buckets:
            found[PROPERTY] = str(self.buckets)
        if self.target_file_bytes:
            found[FILE_SIZE] = str(self.target_file_bytes)
        return found

    def of_file(self, file: DeltaFile) -> Partitions:
        """Give what a table is like that is there."""
        metadata = file.open().metadata()
        have = list(metadata.partition_columns)
        buckets = metadata.configuration.get(PROPERTY)
        size = metadata.configuration.get(FILE_SIZE)
        return Partitions(
            tuple(column for column in have if column != BUCKET),
            int(buckets) if BUCKET in have and buckets and buckets.isdigit() else None,
            int(size) if size and size.isdigit() else None,
        )

    def check(self, name: str, file: DeltaFile) -> None:
        """Refuse a table that is dealt out another way.

        Raises:
            ConfigurationError: with how it is, and how it can be changed.
        """
        have = self.of_file(file)
        if (have.columns, have.buckets) != (self.columns, self.buckets):
            raise ConfigurationError(
                f"table {name!r} in {file.uri} is partitioned by {_words(have)}, "
                f"but the configuration says {_words(self)}",
                next_step="Change the entry back, or stop the pipeline and run "
                f"`headpond optimize FILE {name} --repartition`, which writes the table anew.",
                table=name,
            )


def partitions_of(spec: TableSpec | DocumentSpec, columns: Sequence[str]) -> Partitions:
    """Give what a table's entry asks for.

    Args:
        spec: the entry.
        columns: the Delta names of `spec.partition_by`.
    """
    return Partitions(tuple(columns), spec.buckets, spec.target_file_size_bytes)


def bucket_of(keys: pa.ChunkedArray | pa.Array, buckets: int) -> pa.Array:
    """Give the bucket of each canonical key text."""
    texts = keys.cast(pa.binary()).to_pylist()
    found = np.fromiter(map(zlib.crc32, texts), np.uint32, len(texts)) % np.uint32(buckets)
    return pa.array(found.astype(np.int32))


def _words(partitions: Partitions) -> str:
    parts = [*partitions.columns, *([f"{partitions.buckets} buckets"] if partitions.buckets else [])]
    return ", ".join(parts) or "nothing"
