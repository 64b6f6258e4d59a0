"""One Delta table: opened, created and read through `deltalake`, written and widened by `engine`.

Every write goes through `DeltaFile.merge`, so that repeating it changes nothing: rows are matched by
identity and written only where the new one wins. A commit that lost against another is computed again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from deltalake import ColumnProperties, DeltaTable, QueryBuilder, Schema, WriterProperties
from deltalake.exceptions import CommitFailedError, DeltaError

from headpond.core.errors import ServiceFailure, UsageError
from headpond.core.passing import PassingFolder
from headpond.lake.engine.folder import Folder
from headpond.lake.engine.log import WITH_VECTORS, DataFile, Overtaken, entry_name, newest_part, plain_type
from headpond.lake.engine.lookup import Wanted
from headpond.lake.engine.merge import Alone, Choose, Engine, Merge, Merged, Part, crowded, uneven
from headpond.lake.engine.parquet import EXACT_DIGITS, LONGEST_BOUND
from headpond.lake.engine.properties import CHECKPOINT_INTERVAL, LOG_RETENTION, MONTH_MS, interval_ms
from headpond.lake.engine.vacuum import cut_log, needed_checkpoint, vacuum
from headpond.lake.object_store import delta_url, in_full, is_remote
from headpond.lake.storage import storage_errors, write_document

CHECKPOINT_COMMITS = 100
"""After this many commits a checkpoint is written; a table may say otherwise, by `CHECKPOINT_INTERVAL`.

Entries before it go with maintenance, once a day: to find the old ones takes a list of all.
"""
MUCH_BYTES = 16 << 20
"""Where a commit replaces files of this many bytes, deletion vectors are worth their readers' while."""
COMMIT_ATTEMPTS = 10
"""How often a commit that lost against another writer is repeated."""
FIRST_PAUSE_S = 0.05

_BESIDE = "headpond-log-"
_DECIMAL = re.compile(r"decimal\((\d+),")

Result = TypeVar("Result")


def writer_of(table: DeltaTable) -> WriterProperties:
    """Return how deltalake writes the Parquet files of a table (`engine.parquet` says the same of ours).

    deltalake 1.6 writes the least and greatest decimals of a file into its commit as doubles, integers beyond
    64 bits as 2⁶³ - 1. Whoever goes by these misses rows: a merge finds no match in such a file and inserts
    a second row of a key. So there are none of decimals that a double may not hold exactly.
    """
    kinds = {
        field.name: _DECIMAL.match(str(getattr(field.type, "type", ""))) for field in table.schema().fields
    }
    wide = [name for name, found in kinds.items() if found is not None and int(found[1]) > EXACT_DIGITS]
    none = ColumnProperties(dictionary_enabled=True, statistics_enabled="NONE")
    return WriterProperties(
        statistics_truncate_length=LONGEST_BOUND, column_properties=dict.fromkeys(wide, none)
    )


def quoted(name: str) -> str:
    """Quote a column's name."""
    return '"' + name.replace('"', '""') + '"'


def literal(value: int | str) -> str:
    """Return a number or a text as a SQL literal."""
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class Size:
    """Rows (by the statistics), bytes and files of the newest version of a table, and `Log.bytes_to_read`."""

    rows: int
    bytes: int
    files: int
    log_bytes: int = 0


def plain_types(schema: pa.Schema) -> pa.Schema:
    """Return a schema without view types, which not all of pyarrow's kernels take."""
    return pa.schema([field.with_type(plain_type(field.type)) for field in schema])


def selected(
    table: DeltaTable, expressions: Sequence[str], where: str | None = None, limit: int | None = None
) -> Any:
    """Return a reader of SQL expressions (names quoted) over the rows for which SQL `where` holds."""
    condition = f" WHERE {where}" if where is not None else ""
    condition += f" LIMIT {limit}" if limit is not None else ""
    sql = f"SELECT {', '.join(expressions)} FROM t{condition}"  # noqa: S608 - quoted
    return QueryBuilder().register("t", table).execute(sql)


class DeltaFile:
    """A Delta table at a folder or object-store URL; the storage options are never printed."""

    def __init__(
        self, uri: str, storage_options: Mapping[str, str] | None = None, *, past: DeltaTable | None = None
    ) -> None:
        self.uri = uri
        self._url = delta_url(uri)
        self._options = in_full(uri, storage_options or {})
        self._table = past
        self._is_past = past is not None  # it stays at its version, and is not written
        self.tidies = True
        """Whether a merge tidies the table now and then; else somebody does it beside (`tidy`)."""
        self.is_new = False
        """Whether this object created the table; whoever lists tables sets it back."""
        self.engine = Engine(Folder(uri, self._options))

    def __reduce__(self) -> tuple[Any, ...]:
        return DeltaFile, (self.uri, self._options)

    def exists(self) -> bool:
        """Return whether there is a Delta table at the place."""
        if self._is_past:
            return True
        with storage_errors(self.uri, self._options):
            return self.engine.log.exists()

    def open(self) -> DeltaTable:
        """Open the table at its newest version."""
        with storage_errors(self.uri, self._options):
            if self._table is None:
                self._table = DeltaTable(self._url, storage_options=self._options)
            elif not self._is_past:
                self._table.update_incremental()
        return self._table

    def as_of(self, moment: int | datetime) -> DeltaFile:
        """Return the table as a version or time had it; for `schema`, `query` and `batches` alone.

        Raises:
            UsageError: there is no such version any more, or was no table at that time.
        """
        newest = self.version()
        table = DeltaTable(self._url, storage_options=self._options)
        with storage_errors(self.uri, self._options):
            try:
                table.load_as_version(moment)
                made = table.history(1)[0]["timestamp"]  # of the version that was found
            except DeltaError as error:
                raise UsageError(
                    f"{self.uri} cannot be read as of {moment}: it has no such version, or lost its files.",
                    next_step=f"Its newest version is {newest}; `optimize --vacuum` removes older ones.",
                    table=self.uri,
                ) from error
        if isinstance(moment, datetime) and made > moment.timestamp() * 1000:
            raise UsageError(
                f"{self.uri} cannot be read as of {moment}: its first version is of "
                f"{datetime.fromtimestamp(made / 1000, UTC).isoformat(timespec='seconds')}.",
                next_step="Name a later time.",
                table=self.uri,
            )
        return DeltaFile(self.uri, self._options, past=table)

    def create(
        self,
        schema: pa.Schema,
        *,
        description: str = "",
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Create the table unless it is there."""
        if not self.exists():
            # deltalake does not wait for the disk: what it writes beside gets its name once it is whole.
            beside = PassingFolder(_BESIDE)
            with storage_errors(self.uri, self._options), suppress(FileExistsError):
                DeltaTable.create(
                    beside.path,
                    schema=schema,
                    description=description or None,
                    partition_by=list(partition_by) or None,
                    configuration=dict(properties or {}),
                    raise_if_key_not_exists=False,
                )
                first = entry_name(0)
                self.engine.folder.put_new(first, Path(beside.path, first).read_bytes())
            self.is_new = True

    def schema(self) -> pa.Schema:
        """Return the table's columns as Arrow fields, their Delta metadata included."""
        if self._is_past:
            schema = self.open().schema()
        else:
            with storage_errors(self.uri, self._options):
                schema = Schema.from_json(self.engine.log.last().metadata["schemaString"])
        arrow = pa.schema(schema.to_arrow())
        metadata = {field.name: field.metadata for field in schema.fields}
        return pa.schema([field.with_metadata(metadata.get(field.name) or None) for field in arrow])

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        """Add nullable columns, keeping each field's metadata; columns already there are left."""
        self._retried(lambda: self.engine.alter({}, {}, fields))

    def alter(
        self, properties: Mapping[str, str], columns: Mapping[str, Mapping[str, str | None]] | None = None
    ) -> None:
        """Set properties, and metadata of columns; where all is so already nothing is committed."""
        self._retried(lambda: self.engine.alter(properties, columns or {}))

    def read(self, columns: Sequence[str] | None = None, where: str | None = None) -> pa.Table:
        """Read the named columns of those rows for which SQL `where` holds; see `query`."""
        return self.query([*map(quoted, columns)] if columns is not None else ["*"], where)

    def query(self, expressions: Sequence[str], where: str | None = None) -> pa.Table:
        """Read SQL expressions over the rows for which SQL `where` holds.

        DataFusion does the reading: it skips files by their statistics and knows deletion vectors.
        """
        table = self.open()
        with storage_errors(self.uri, self._options):
            rows = pa.table(selected(table, expressions, where).read_all())
            return rows.cast(plain_types(rows.schema))

    def batches(
        self, columns: Sequence[str] | None = None, where: str | None = None, limit: int | None = None
    ) -> tuple[Iterator[pa.RecordBatch], pa.Schema]:
        """Read like `read`, batch by batch, at most `limit` rows; return the batches and their schema."""
        names = ["*"] if columns is None else [*map(quoted, columns)]
        reader = selected(self.open(), names, where, limit)
        schema = plain_types(pa.schema(reader.schema))

        def read() -> Iterator[pa.RecordBatch]:
            with storage_errors(self.uri, self._options):
                for part in reader:
                    yield pa.record_batch(part).cast(schema)

        return read(), schema

    def count(self) -> int:
        """Count the rows, from the log where that is complete; 0 where the table does not exist."""
        if not self.exists():
            return 0
        with storage_errors(self.uri, self._options):
            known = self.engine.log.newest().count()
        return int(self.query(["count(*) AS n"])["n"][0].as_py()) if known is None else known

    def size(self) -> Size:
        """Return the size of the newest version, by its log alone."""
        with storage_errors(self.uri, self._options):
            log_bytes = self.engine.log.bytes_to_read()
        files = self.data_files()
        rows, size = sum(file.live or 0 for file in files), sum(file.size for file in files)
        return Size(rows, size, len(files), log_bytes)

    def data_files(self) -> list[DataFile]:
        """Return the files of the version that was looked at last, as its log has them."""
        with storage_errors(self.uri, self._options):
            return list(self.engine.log.last().files.values())

    def greatest(self, column: str) -> list[Any]:
        """Return the greatest value of a column in each file, as far as the log's statistics have it.

        There is none where the table does not exist.
        """
        found = (file.bounds(column)[1] for file in (self.data_files() if self.exists() else ()))
        return [value for value in found if value is not None]

    def version(self) -> int:
        """Look for a newer version, and return the newest one's number.

        Schema, files and bounds are those of the version that was looked at or made last, for in an object
        store a look takes two requests.
        """
        if self._is_past:
            return int(self.open().version())
        with storage_errors(self.uri, self._options):
            return self.engine.log.newest().version

    def look_up(self, wanted: Wanted) -> pa.Table:
        """Return where the rows are that are wanted, and their columns; see `engine.lookup`."""
        with storage_errors(self.uri, self._options):
            return self.engine.look_up(wanted)

    def merge(
        self, merge: Merge, *, transaction: tuple[str, int] | None = None, alone: Alone | None = None
    ) -> Merged:
        """Replace, remove and add rows in one commit; see `engine.merge`.

        `transaction` is an application's id and number, stored with the commit unless the table has that or a
        greater one.
        """
        return self._tidied(lambda: self.engine.merge(merge, transaction=transaction, alone=alone))

    def merge_parts(
        self, prepare: Callable[[], tuple[int, Sequence[Part]]], *, transaction: tuple[str, int] | None = None
    ) -> Merged:
        """Do in one commit what parts of a batch do to a version, which `prepare` gives with them.

        Where another writer was faster, they are prepared again.
        """
        return self._tidied(lambda: self.engine.merge_parts(*prepare(), transaction=transaction))

    def append(self, rows: pa.Table, *, transaction: tuple[str, int] | None = None) -> None:
        """Append rows in one commit, without looking at what is there."""
        self.merge(Merge(rows, ()), transaction=transaction)

    def compact(
        self, choose: Choose = uneven, *, file_bytes: int | None = None, alone: Alone | None = None
    ) -> bool:
        """Write the chosen files again, together, in some commits; return whether there were any.

        With `alone` (see `engine.merge`) files that others change meanwhile are left for another time.
        """
        attempt = partial(self.engine.compact, choose, file_bytes=file_bytes, alone=alone)

        once = attempt if alone is not None else partial(self._retried, attempt)
        found = 0
        with suppress(Overtaken), storage_errors(self.uri, self._options):
            found = left = once()
            while left and (now := once()) < left:
                left = now
        return bool(found)

    def allow_marks(self, *, allowed: bool) -> None:
        """Say whether deletion vectors may mark rows as gone where a file would be written again."""
        with storage_errors(self.uri, self._options):
            if self.engine.log.last().marks == allowed:
                return
        self.alter({WITH_VECTORS: "true" if allowed else "false"})

    def rewriting(self) -> int:
        """Return how many bytes each of the last commits wrote again where marks would avoid that; else 0."""
        with storage_errors(self.uri, self._options):
            known = self.engine.log.last()
            # A commit hardly replaces more than the table has, and its entries are a request each.
            if known.marks or sum(file.size for file in known.files.values()) < MUCH_BYTES:
                return 0
            found = self.engine.log.rewritten_bytes()
        return found if found >= MUCH_BYTES else 0

    def vacuum(self, retain_ms: int) -> int:
        """Remove the files that no version of this many milliseconds needs; return how many."""
        with storage_errors(self.uri, self._options):
            return vacuum(self.engine.folder, retain_ms)

    def tidy(self, before: int, alone: Alone | None = None, *, fresh: bool = True) -> int:
        """Combine small files where there are many, and write a checkpoint if due; of two writers one does.

        `before` is the version up to which the log was checked last, or -1; return that of this check.
        Without `fresh` it looks at the version that was read or made last.
        """
        with suppress(Overtaken), storage_errors(self.uri, self._options):
            self.engine.compact(crowded, alone=alone, fresh=fresh)
        version = self.engine.version
        said = self.engine.log.last().properties.get(CHECKPOINT_INTERVAL, "")
        every = int(said) if said.isdecimal() and int(said) else CHECKPOINT_COMMITS
        if version // every > (version - 1 if before < 0 else before) // every:
            self.write_checkpoint()
        return version

    def shorten_log(self, retain_ms: int | None = None) -> None:
        """Write a checkpoint, and remove entries of the log that no version is read by any more.

        Entries stay for as long as the table says, else for `retain_ms`, if only versions of this time have
        their files, else for 30 days, as Delta has it.
        """
        self.write_checkpoint()
        said = interval_ms(self.engine.log.last().properties.get(LOG_RETENTION, ""))
        kept_ms = next(each for each in (said, retain_ms, MONTH_MS) if each is not None)
        with storage_errors(self.uri, self._options):
            cut_log(self.engine.folder, needed_checkpoint(self.engine.folder, kept_ms))

    def write_checkpoint(self) -> None:
        """Write a checkpoint of the newest version: on a disk it is durable before entries go for it."""
        folder = self.engine.folder
        with storage_errors(self.uri, self._options):
            if is_remote(self.uri):
                self.open().create_checkpoint()
                return
            beside = PassingFolder(_BESIDE)
            Path(beside.path, "_delta_log").mkdir()
            entries, checkpoints = newest_part(folder)
            last = max(checkpoints, default=-1)
            for path in [*checkpoints.get(last, ()), *(entry_name(each) for each in entries if each > last)]:
                Path(beside.path, path).symlink_to(Path(self.uri, path).absolute())
            DeltaTable(beside.path).create_checkpoint()
            for new in sorted(Path(beside.path, "_delta_log").iterdir()):  # `_last_checkpoint` is the last
                if not new.is_symlink():
                    place = f"{self.uri}/_delta_log/{new.name}"
                    write_document(place, new.read_bytes(), self._options, durable=True)

    def committing(self, attempt: Callable[[DeltaTable], Result]) -> Result:
        """Do what commits with deltalake; where another writer was faster, repeat it on its result."""
        result = self._retried(lambda: attempt(self.open()))
        made = entry_name(self.version())
        added = [file.path for file in self.engine.log.last_added()]
        self.engine.folder.make_durable([*added, made])
        return result

    def check(self) -> None:
        """Raise `InvalidData` where the log is damaged, or a file of its newest entry is not whole."""
        with storage_errors(self.uri, self._options):
            self.engine.log.check()

    def _tidied(self, attempt: Callable[[], Merged]) -> Merged:
        before = self.engine.version
        merged = self._retried(attempt)
        if self.tidies:
            self.tidy(before, fresh=False)
        return merged

    def _retried(self, attempt: Callable[[], Result]) -> Result:
        pause = FIRST_PAUSE_S
        for number in range(1, COMMIT_ATTEMPTS + 1):
            try:
                with storage_errors(self.uri, self._options):
                    return attempt()
            except (CommitFailedError, Overtaken) as lost:
                # Another writer (OPTIMIZE, VACUUM, a second job) was faster: compute on its result.
                self._table = None
                if number == COMMIT_ATTEMPTS:
                    raise ServiceFailure(
                        f"Others wrote the Delta table at {self.uri} faster, {COMMIT_ATTEMPTS} times.",
                        next_step="Look for another writer of the same rows and stop one of the two.",
                        table=self.uri,
                    ) from lost
                time.sleep(pause)
                pause *= 2
        raise AssertionError  # the loop returns or raises
