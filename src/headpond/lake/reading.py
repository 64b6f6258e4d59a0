"""Read the tables of a lake without a pipeline file: whole, in part, as they are or as they were.

::

    lake/
      public.orders/            tables("lake")["public.orders"]
      _headpond/quarantine/     tables("lake")["_headpond/quarantine"]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake.exceptions import DeltaError

from headpond.core.errors import UsageError
from headpond.core.lazy import needed
from headpond.core.tabular import Shown, Tabular
from headpond.lake.delta import DeltaFile
from headpond.lake.naming import table_folder
from headpond.lake.state.run_mark import OWN_FOLDER
from headpond.lake.storage import file_system, storage_errors

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

HEAD_ROWS = 10
"""Rows that a table shows of itself."""
HEAD_COLUMNS = 12

Moment = int | str | datetime
"""A version's number, or a time: ISO 8601 (without an offset it is UTC) or a datetime."""


class LakeTable(Shown):
    """A table of a lake, at its newest version or the one that `at` names; rows are read on demand.

    `where` is a condition in SQL, `columns` are names, `limit` bounds the rows::

        orders = headpond.tables("lake")["public.orders"]
        orders.to_pandas(where="price > 10", columns=["id", "price"])
        orders.at("2026-11-01T12:00:00Z").to_polars()
    """

    def __init__(self, name: str, file: DeltaFile) -> None:
        self.name = name
        self._file = file

    @property
    def version(self) -> int:
        """The version that is read."""
        return self._file.version()

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        self._file.version()  # a look at the newest
        return [str(name) for name in self._file.schema().names]

    def __len__(self) -> int:
        return int(self._file.query(["count(*) AS n"])["n"][0].as_py())

    def at(self, moment: Moment) -> LakeTable:
        """Return the table as of a version or time.

        Raises:
            UsageError: there is no such version, or the table did not exist at that time.
        """
        return type(self)(self.name, self._file.as_of(_moment(moment)))

    def to_arrow(
        self, columns: Sequence[str] | None = None, where: str | None = None, limit: int | None = None
    ) -> pa.Table:
        """Read rows as an Arrow table.

        Raises:
            UsageError: a column does not exist, or the condition is wrong.
        """
        with self._asked():
            return pa.Table.from_batches(*self._file.batches(columns, where, limit))

    def to_pandas(
        self, columns: Sequence[str] | None = None, where: str | None = None, limit: int | None = None
    ) -> pd.DataFrame:
        """Read rows as a pandas frame, which must be installed; errors as of `to_arrow`."""
        needed("pandas", "to_pandas()", "pandas")
        frame: pd.DataFrame = self.to_arrow(columns, where, limit).to_pandas()
        return frame

    def to_polars(
        self, columns: Sequence[str] | None = None, where: str | None = None, limit: int | None = None
    ) -> pl.DataFrame:
        """Read rows as a Polars frame, which must be installed; errors as of `to_arrow`."""
        polars = needed("polars", "to_polars()", "polars")
        frame: pl.DataFrame = polars.from_arrow(self.to_arrow(columns, where, limit))
        return frame

    def scan(self, columns: Sequence[str] | None = None, where: str | None = None) -> pa.RecordBatchReader:
        """Read rows batch by batch, for a table that is larger than memory; errors as of `to_arrow`.

        DuckDB, Polars and anything else that accepts Arrow streams can read it: `duckdb.sql("FROM scan")`.
        """
        with self._asked():
            batches, schema = self._file.batches(columns, where)
        return pa.RecordBatchReader.from_batches(schema, batches)

    @contextmanager
    def _asked(self) -> Iterator[None]:
        try:
            yield
        except DeltaError as error:
            raise UsageError(
                f"{self.name} cannot be read so: {_said(error)}.",
                next_step=f"Its columns are {', '.join(self.columns)}. A condition is SQL: price > 10.",
                table=self.name,
            ) from error

    def _shown(self) -> Iterable[Tabular]:
        names = self.columns
        rows = self.to_arrow(names[:HEAD_COLUMNS], limit=HEAD_ROWS)
        count = len(self)
        more = f", the first {rows.num_rows} of which are shown" if count > rows.num_rows else ""
        title = f"{self.name}: {count:,} row{'s' * (count != 1)} in version {self.version}{more}"
        yield Tabular(title, rows.column_names, [list(row.values()) for row in rows.to_pylist()])


class Tables(Shown, Mapping[str, LakeTable]):
    """The tables of a lake, by name; those below `_headpond` can be opened too, but are not listed."""

    def __init__(self, lake: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.lake = lake.rstrip("/") or "/"
        self._options = dict(storage_options or {})

    def __getitem__(self, name: str) -> LakeTable:
        head, _, inner = name.partition("/")
        folder = name if head == OWN_FOLDER and inner else table_folder(name)
        file = DeltaFile(f"{self.lake}/{folder}", self._options)
        if not file.exists():
            there = ", ".join(self)
            raise UnknownTable(
                f"The lake {self.lake} has no table {name!r}.",
                next_step=f"It has {there}." if there else "It has none yet: start `headpond run`.",
                table=name,
            )
        return LakeTable(name, file)

    def __iter__(self) -> Iterator[str]:
        files, root = file_system(self.lake, self._options)
        with storage_errors(self.lake, self._options):
            found = files.get_file_info(pafs.FileSelector(root, allow_not_found=True))
            folders = sorted(each.base_name for each in found if each.type == pafs.FileType.Directory)
            logs = files.get_file_info([f"{root}/{folder}/_delta_log" for folder in folders])
        for folder, log in zip(folders, logs, strict=True):
            if folder != OWN_FOLDER and log.type == pafs.FileType.Directory:
                yield unquote(folder.replace("~", "%"))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _shown(self) -> Iterable[Tabular]:
        rows = [[name, len(table), table.version] for name, table in self.items()]
        title = f"{self.lake}: {len(rows)} table{'s' * (len(rows) != 1)}"
        yield Tabular(title, ["table", "rows", "version"], rows)


class UnknownTable(UsageError, KeyError):
    """A lake has no table of that name."""

    __str__ = UsageError.__str__


def _moment(moment: Moment) -> int | datetime:
    if isinstance(moment, str):
        if moment.isdecimal():
            return int(moment)
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError as error:
            raise UsageError(
                f"{moment!r} is neither a version nor a time.",
                next_step="Write a version as 12, and a time as 2026-11-01T12:00:00Z.",
            ) from error
    if isinstance(moment, datetime):
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    return moment


def _said(error: DeltaError) -> str:
    """Return the last of DataFusion's reasons, which is the one that a person can act on."""
    return str(error).rpartition("caused by\n")[2].partition("\n")[0].rstrip(".")
