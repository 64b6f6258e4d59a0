"""Parquet files to load from: by paths, URLs and patterns of them, read in parts."""

from __future__ import annotations

import glob
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from headpond.errors import UsageError
from headpond.tables.remote import file_system, is_remote, told

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class ParquetSource:
    """Parquet files by paths, URLs and patterns of them.

    Args:
        places: at least one of them.
        options: what gives access to an object store.
    """

    places: Sequence[str]
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def files(self) -> list[str]:
        """Every file, each once, in order.

        Raises:
            UsageError: a place matches no file.
        """
        found: dict[str, None] = {}
        for place in self.places:
            matched = self._remote(place) if is_remote(place) else sorted(glob.glob(place, recursive=True))  # noqa: PTH207 - a pattern may be absolute
            if not matched:
                raise UsageError(
                    f"No file matches {place}.",
                    next_step="Give Parquet files, or a pattern of them.",
                    place=place,
                )
            found.update(dict.fromkeys(matched))
        return list(found)

    def _remote(self, place: str) -> list[str]:
        scheme = place.partition("://")[0]
        folder, _, name = place.rpartition("/")
        files, root = file_system(folder, self.options)
        with told(place, self.options):
            infos = files.get_file_info(pafs.FileSelector(root, allow_not_found=True))
        return sorted(
            f"{scheme}://{info.path}"
            for info in infos
            if info.type == pafs.FileType.File and fnmatchcase(info.base_name, name)
        )

    def open(self, place: str) -> pq.ParquetFile:
        """Open one file.

        Raises:
            UsageError: it is no Parquet.
        """
        files, path = file_system(place, self.options)
        with told(place, self.options):
            try:
                return pq.ParquetFile(files.open_input_file(path))
            except pa.ArrowInvalid as error:
                raise UsageError(
                    f"{place} is no Parquet file: {error}.", next_step="Give Parquet files.", place=place
                ) from error

    def batches(
        self, place: str, rows: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read one file in parts."""
        with self.open(place) as opened, told(place, self.options):
            yield from opened.iter_batches(rows, columns=columns)
