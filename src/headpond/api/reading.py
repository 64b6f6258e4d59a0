"""Tables and quarantine of a lake, by its path or by the pipeline that keeps it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from headpond.api.records import inspect, tables_of
from headpond.core.errors import UsageError
from headpond.core.tabular import Tabular
from headpond.lake.delta import DeltaFile
from headpond.lake.object_store import is_remote
from headpond.lake.reading import LakeTable, Tables
from headpond.pipeline import Pipeline, load

QUARANTINE = "_headpond/quarantine"
SHOWN_ROWS = 20

Place = Pipeline | str | os.PathLike[str]
"""A lake: its folder or URL, or the pipeline or pipeline file (`….toml`) that keeps it."""


def pipeline_of(given: Place) -> Pipeline:
    """Return the pipeline, loaded from its file if it is a path; raises as `load` does."""
    return given if isinstance(given, Pipeline) else load(given)


def tables(lake: Place, storage_options: Mapping[str, str] | None = None) -> Tables:
    """Open the tables of a lake, to read whole, in part, or as of an earlier time.

    Args:
        lake: its folder or URL, or the pipeline or pipeline file that keeps it.
        storage_options: keys of an object store; a pipeline has its own.

    Raises:
        ConfigurationError: the pipeline file is wrong.
        UsageError: there is no such folder.
        KeyError (UnknownTable, from `[…]`): the lake has no such table; the message lists those it has.

    Examples:
        >>> list(headpond.tables("lake"))
        ['public.orders']
        >>> orders = headpond.tables("lake")["public.orders"]
        >>> orders.to_pandas(columns=["id", "item"], where="id = 1")
           id    item
        0   1  anchor
        >>> orders.at(0).to_arrow().num_rows
        0
    """
    path, options = _place(lake, storage_options)
    return Tables(path, options)


def quarantine(lake: Place, storage_options: Mapping[str, str] | None = None) -> Quarantine:
    """Open the quarantine of a lake: records that could not be used, with the reason and their bytes.

    Arguments and errors are those of `tables`; a lake without a quarantine has an empty one.

    Examples:
        >>> found = headpond.quarantine("lake")
        >>> found
        1 record in quarantine
        reason        table  records  detail of the first
        unknown_type               1  type is "sideways"
        >>> [record["data"] for record in found.records()]
        [b'{"type": "sideways"}']
    """
    path, options = _place(lake, storage_options)
    return Quarantine(QUARANTINE, DeltaFile(f"{path.rstrip('/')}/{QUARANTINE}", options))


def _place(lake: Place, options: Mapping[str, str] | None) -> tuple[str, Mapping[str, str]]:
    if isinstance(lake, Pipeline) or (not is_remote(os.fspath(lake)) and os.fspath(lake).endswith(".toml")):
        target = pipeline_of(lake).target
        return target.path, target.storage_options if options is None else options
    if not (is_remote(os.fspath(lake)) or Path(lake).is_dir()):
        raise UsageError(
            f"There is no lake at {lake}.", next_step="Give a pipeline file (.toml) or the folder of a lake."
        )
    return os.fspath(lake), options or {}


class Quarantine(LakeTable):
    """The quarantine of a lake: a table like any other, with its records opened."""

    def __len__(self) -> int:
        return self._file.count() if self._file.exists() else 0

    def records(self, reason: str | None = None, table: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield records, optionally only those of a reason or a table, with what their bytes hold.

        Each has the columns of the quarantine, `table` (None if the record does not name one) and `found`,
        what `headpond.inspect` says about its data.
        """
        if not self._file.exists():
            return
        where = None if reason is None else "reason = '" + reason.replace("'", "''") + "'"
        for batch in self.scan(where=where):
            rows = batch.to_pylist()
            for row, name in zip(rows, tables_of([row["data"] for row in rows]), strict=True):
                if table in (None, name):
                    found = {} if row["data"] is None else inspect(row["data"])
                    yield {**row, "table": name, "found": found}

    def counts(self) -> list[dict[str, Any]]:
        """Return `reason`, `table`, `records` and the `detail` of the first, most records first."""
        groups: dict[tuple[str, str | None], dict[str, Any]] = {}
        names = ("reason", "detail", "data")
        for batch in self.scan(names) if self._file.exists() else ():
            reasons, details, data = (batch.column(name).to_pylist() for name in names)
            for reason, table, detail in zip(reasons, tables_of(data), details, strict=True):
                group = {"reason": reason, "table": table, "records": 0, "detail": detail}
                groups.setdefault((reason, table), group)["records"] += 1
        return sorted(groups.values(), key=lambda it: (-it["records"], it["reason"], it["table"] or ""))

    def _shown(self) -> Iterable[Tabular]:
        count = len(self)
        title = f"{count:,} record{'s' * (count != 1)} in quarantine"
        rows = [list(group.values()) for group in self.counts()]
        names = ["reason", "table", "records", "detail of the first"]
        yield Tabular(title, names, rows[:SHOWN_ROWS])
