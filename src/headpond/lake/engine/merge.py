"""One commit that replaces rows: look up, plan, write, commit.

::

    rows of a batch ─► look up      which rows of the table they meet: file and row number
                       decide       which of those go, and what comes
                       plan         per file: leave it, mark the rows that go, or write what stays again
                       write        new files; the marks of all files in one more
                       commit       one entry of the log, only where nobody else made it

A file is written again where that costs little, where much of it is gone, and where the table does not allow
marks (deletion vectors). Compaction is the same without a batch: small files of a partition become one.

All but plan and commit may be done in parts, each by a process of its own: a `PartEngine` looks up and
decides in the version that it is given, writes new rows, and says what goes (`Part`).

Who loses the race for a commit looks up again, on the winner's result. Files of a commit that failed are
removed, or left for a vacuum. What does not hurry (compaction, dropping tombstones) is committed when no
batch is under way (`alone`), on top of whatever batches did to other files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.arrow import distinct
from headpond.core.errors import ConfigurationError
from headpond.core.schemas import filled, whole
from headpond.lake.engine import vectors
from headpond.lake.engine.folder import Folder
from headpond.lake.engine.index import KeyIndex
from headpond.lake.engine.log import (
    DataFile,
    Log,
    Overtaken,
    Snapshot,
    alteration,
    information,
    milliseconds,
    protocol_of,
)
from headpond.lake.engine.lookup import FILE, ROW, Wanted, look_up, places
from headpond.lake.engine.parquet import (
    ENDS,
    FILE_BYTES,
    GROUP_BYTES,
    Again,
    Shape,
    Writing,
    changed_rows,
    opened,
    paths_of,
    write_changes,
)
from headpond.lake.engine.properties import APPEND_ONLY, CHANGES, is_true
from headpond.lake.storage import of_each_file

Pairs = Callable[[pa.Table, pa.Table], Any]
Write = Callable[["Writing", Again, pa.Table], list[dict[str, Any]]]
Choose = Callable[[Sequence[DataFile], int], list[DataFile]]
Alone = Callable[[], AbstractContextManager[None]]

SMALL_BYTES = 1 << 20
"""A file up to this many bytes is written again rather than marked."""
MOST_DEAD = 0.25
"""A file of whose rows more than this share are gone is written again."""
ROUND_BYTES = 256 << 20
"""A compaction takes files of about this many bytes at a time, or four full ones where these are larger."""
CROWD = 16
"""So many files of a size that are not yet full become one."""
_LEAST_TIER, _GROWTH = 1 << 20, 16  # bytes of files of the least size; how much larger those of the next are


@dataclass(frozen=True)
class Merge:
    """What a batch does to the rows of a table that it meets.

    `t` and `s` are aligned: row by row what was found in the table, and the row of the batch that met it.
    """

    rows: pa.Table  # the batch, each row with another identity
    on: Sequence[str]  # the identity: columns in which a row of the table and one of the batch are equal
    reads: Sequence[str] = ()  # more columns of the table, for `wins`
    wins: Pairs | None = None
    """(t, s) → whether the row of the table is replaced, or goes; None: never."""
    gone: pa.ChunkedArray | pa.Array | None = None
    """Whether each row of the batch takes away and brings nothing; None: none does."""
    insert: pa.ChunkedArray | pa.Array | None = None
    """Whether each row of the batch is written where it met none; None: all that are not `gone`."""
    update: Pairs | None = None
    """(t with all columns, s) → what replaces the rows of the table; None: the batch's rows do."""
    whole: Pairs | None = None
    """(t, s) → which rows `update` needs with all columns of t, and not as they were read; None: all."""


@dataclass(frozen=True, slots=True)
class Merged:
    """How many rows a commit inserted, updated and deleted."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """What a part of a batch does to a version of a table, but for the commit."""

    added: list[dict[str, Any]]  # actions that add the files of its new rows
    going: Mapping[str, vectors.Positions]  # file, as the log names it → numbers of the rows that go
    done: Merged


def always(t: pa.Table, _: pa.Table) -> pa.Array:
    """Replace every row of the table that a batch meets, or have it go; for `Merge.wins`."""
    return pa.repeat(pa.scalar(value=True), t.num_rows)


def with_columns(t: pa.Table, s: pa.Table, columns: Iterable[str]) -> pa.Table:
    """Return rows of the table with some columns of the batch; for `Merge.update`."""
    for name in columns:
        at = t.schema.get_field_index(name)
        t = t.set_column(at, t.schema.field(at), s[name].cast(t.schema.field(at).type))
    return t


@dataclass(slots=True)
class Plan:
    """What becomes of files: no row of some is left, others get more marks, or are written again.

    `marked` come with all rows that are, `rewritten` with those that go now.
    """

    gone: list[DataFile] = field(default_factory=list)
    marked: list[tuple[DataFile, vectors.Positions]] = field(default_factory=list)
    rewritten: list[tuple[DataFile, vectors.Positions]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Known:
    snapshot: tuple[int, int]
    wanted: Wanted
    found: pa.Table

    def says(self, snapshot: tuple[int, int], other: Wanted, *, decided: bool) -> bool:
        """Return whether what is wanted now is among it."""
        mine = self.wanted
        same = self.snapshot == snapshot and (decided or mine.is_plain)
        if not (same and set(mine.on) <= set(other.on) and set(mine.columns) >= set(other.columns)):
            return False
        # Most other questions are about other keys altogether, so the first row is enough to say no.
        first = other.rows.slice(0, 1)
        if not all(pc.any(pc.is_in(mine.rows[on], value_set=whole(first[on]))).as_py() for on in mine.on):
            return not first.num_rows
        return bool((places(other.rows, mine.rows, mine.on) >= 0).all())


class Engine:
    """Looks up and replaces the rows of the table in a folder.

    What was looked up last is known until somebody commits: a batch that decides by it does not look again.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.log = Log(folder)
        self.group_bytes = GROUP_BYTES
        """About as many bytes are in a row group of the files that it writes."""
        self.write: Write = Writing.__call__
        """Writes the files of a commit here, or has them written."""
        self.admits: Callable[[Snapshot], None] = lambda _: None
        """Raises where a version of the table is not read or written any more as it is here."""
        self._known: _Known | None = None
        self._decides = False  # the last look-up was of a batch that is not written yet
        self._index: KeyIndex | None = KeyIndex(folder.uri)

    @property
    def version(self) -> int:
        """The number of the newest commit that was read or made."""
        return self.log.version

    def look_up(self, wanted: Wanted) -> pa.Table:
        """Return the rows of the newest version that are wanted; see `lookup.look_up`."""
        found, may_be_more = self._found(self.log.newest(), wanted, decided=False)
        self._decides = True
        return found.filter(pa.array(places(found, wanted.rows, wanted.on) >= 0)) if may_be_more else found

    def merge(
        self, merge: Merge, *, transaction: tuple[str, int] | None = None, alone: Alone | None = None
    ) -> Merged:
        """Do it in one commit, or in none where it changes nothing; raise Overtaken where another came first.

        Rows that were looked up just before are those of that version: it is not asked again for a newer one.
        With `alone` the commit is made inside it, and others may have come first that touched no file that
        rows go from.
        """
        snapshot, found = self._basis(_wanted(merge))
        going, new, done, changes = self._changes(snapshot, merge, found)
        if new.num_rows + len(going):
            plan = self._plan(snapshot, going)
            feed = write_changes(self.folder, self.shape(snapshot), changes) if going else []
            self._commit(snapshot, plan, new, "MERGE", transaction, done, feed, alone=alone)
            self._known = None
        return done

    def _basis(self, wanted: Wanted) -> tuple[Snapshot, pa.Table]:
        """Return the version to merge into, and the rows that are wanted of it, among others perhaps.

        It is the one in which these rows were looked up last, if nothing was merged since.
        """
        decides, self._decides = self._decides, False
        if decides and self._known is not None:
            snapshot = self.log.last()
            if self._known.says((id(snapshot), snapshot.version), wanted, decided=True):
                return snapshot, self._known.found
        snapshot = self.log.newest()
        return snapshot, self._found(snapshot, wanted, decided=True)[0]

    def merge_parts(
        self, version: int, parts: Sequence[Part], *, transaction: tuple[str, int] | None = None
    ) -> Merged:
        """Commit what parts of a batch do to a version, as `merge` does it; each row of a file goes once."""
        added = [action for part in parts for action in part.added]
        going: dict[str, list[vectors.Positions]] = {}
        for part in parts:
            for path, rows in part.going.items():
                going.setdefault(path, []).append(rows)
        figures = [(part.done.inserted, part.done.updated, part.done.deleted) for part in parts]
        done = Merged(*map(sum, zip(*figures, strict=True)))
        if added or going:
            snapshot = self.log.newest()
            if snapshot.version != version:
                self.folder.remove(paths_of(added))
                raise Overtaken
            plan = self._plan(
                snapshot, {path: distinct(np.concatenate(rows)) for path, rows in going.items()}
            )
            self._commit(snapshot, plan, snapshot.schema.empty_table(), "MERGE", transaction, done, added)
        return done

    def _changes(
        self, snapshot: Snapshot, merge: Merge, found: pa.Table
    ) -> tuple[dict[str, vectors.Positions], pa.Table, Merged, pa.Table | None]:
        """Return which rows of which files go, those that come, the figures, and what a feed has."""
        schema = snapshot.schema
        at = places(found, merge.rows, merge.on)
        met = found.take(pa.array(np.flatnonzero(at >= 0)))
        at = at[at >= 0]
        hit = np.zeros(len(at), bool)
        if merge.wins is not None and len(at):
            hit = _mask(merge.wins(met, merge.rows.take(pa.array(at))))
        gone = np.zeros(merge.rows.num_rows, bool) if merge.gone is None else _mask(merge.gone)
        insert = ~gone if merge.insert is None else _mask(merge.insert)
        insert[at] = False
        going, by = met.filter(pa.array(hit)), at[hit]
        brings, feed = ~gone[by], is_true(snapshot.properties.get(CHANGES))
        replaced, coming = going.filter(pa.array(brings)), merge.rows.take(pa.array(by[brings]))
        changes = None
        read: Callable[[pa.Table], pa.Table] = partial(self._whole, snapshot)
        if feed:
            replaced, read = self._whole(snapshot, replaced), lambda rows: rows
        parts = [_fit(rows, schema) for rows in _updated(merge, replaced, coming, read)]
        updated = pa.concat_tables([schema.empty_table(), *parts])
        inserted = _fit(merge.rows.filter(pa.array(insert)), schema)
        if feed:
            removed = self._whole(snapshot, going.filter(pa.array(~brings)))
            changes = changed_rows(replaced, updated, removed, inserted)
        done = Merged(int(insert.sum()), int(brings.sum()), int((~brings).sum()))
        new = pa.concat_tables([updated, inserted])
        return dict(_by_file(list(snapshot.files), going)), new, done, changes

    def compact(
        self,
        choose: Choose,
        *,
        file_bytes: int | None = None,
        alone: Alone | None = None,
        fresh: bool = True,
    ) -> int:
        """Write files again, those that are chosen of a partition together, about `ROUND_BYTES` of them.

        `file_bytes` is the size they are to have, by default what the table says; `alone` is as of `merge`;
        without `fresh` they are those of the version that was read or made last. Return how many were chosen;
        more than were written again where these are large.
        """
        snapshot = self.log.newest() if fresh else self.log.last()
        shape = self.shape(snapshot)
        most = file_bytes or shape.file_bytes
        alike: dict[tuple[Any, ...], list[DataFile]] = {}  # partition, and whether all rows ended
        for file in snapshot.files.values():
            of = *sorted(file.values.items()), file.greatest(ENDS) is not None
            alike.setdefault(of, []).append(file)
        chosen = [file for files in alike.values() for file in choose(files, most)]
        if not chosen:
            return 0
        snapshot.refuse_unknown()
        ends = np.cumsum([file.size for file in chosen])
        now = chosen[: max(1, int(np.searchsorted(ends, max(ROUND_BYTES, 4 * most), side="right")))]
        plan = Plan(rewritten=[(file, vectors.NONE) for file in now])
        nothing = snapshot.schema.empty_table()
        self._commit(snapshot, plan, nothing, "OPTIMIZE", None, Merged(), file_bytes=file_bytes, alone=alone)
        return len(chosen)

    def rewrite(
        self, snapshot: Snapshot, metadata: Mapping[str, Any], added: Sequence[dict[str, Any]]
    ) -> None:
        """Put other files in the place of all of a version, with another description of the table.

        Raises Overtaken where another commit came first; the files are left then.
        """
        now_ms = milliseconds()
        protocol = protocol_of(snapshot.protocol, metadata)
        actions = [
            information("REBUILD", snapshot, now_ms),
            *([{"protocol": protocol}] if protocol != snapshot.protocol else []),
            {"metaData": {**metadata, "format": {"provider": "parquet", "options": {}}}},
            *(file.removal(now_ms, data_change=True) for file in snapshot.files.values()),
            *added,
        ]
        self.log.commit(snapshot, actions)

    def alter(
        self,
        properties: Mapping[str, str],
        columns: Mapping[str, Mapping[str, str | None]],
        new: Sequence[pa.Field] = (),
    ) -> None:
        """Commit what `log.alteration` returns, if anything."""
        snapshot = self.log.last()
        if actions := alteration(snapshot, properties, columns, new):
            snapshot.refuse_unknown()
            self.log.commit(snapshot, actions)

    def _found(self, snapshot: Snapshot, wanted: Wanted, *, decided: bool) -> tuple[pa.Table, bool]:
        """Return the rows that are wanted; what was looked up before, if that says it, which may be more.

        With `decided` it was looked up to decide on these rows, and what that left out does not matter.
        """
        snapshot.refuse_unknown()
        self.admits(snapshot)
        name, known = (id(snapshot), snapshot.version), self._known
        if known is not None and known.says(name, wanted, decided=decided):
            return known.found, True
        found = look_up(self.folder, snapshot.schema, snapshot.files.values(), wanted, self._index)
        self._known = _Known(name, wanted, found)
        return found, False

    def _plan(self, snapshot: Snapshot, going: Mapping[str, vectors.Positions]) -> Plan:
        plan = Plan()
        marked: list[tuple[DataFile, vectors.Positions]] = []
        for path, rows in going.items():
            file = snapshot.files[path]
            if file.live is not None and len(rows) == file.live:
                plan.gone.append(file)
                continue
            total = file.stats.get("numRecords")
            may = snapshot.marks and file.size > SMALL_BYTES
            if may and total is not None and len(rows) + file.dead <= MOST_DEAD * int(total):
                marked.append((file, rows))
            else:
                plan.rewritten.append((file, rows))

        def also(each: tuple[DataFile, vectors.Positions]) -> tuple[DataFile, vectors.Positions]:
            file, rows = each
            return file, vectors.union(vectors.read(self.folder, file.vector), rows)

        plan.marked += of_each_file(self.folder.uri, also, marked)
        return plan

    def _commit(
        self,
        snapshot: Snapshot,
        plan: Plan,
        new: pa.Table,
        operation: str,
        transaction: tuple[str, int] | None,
        done: Merged,
        written: Sequence[dict[str, Any]] = (),
        *,
        file_bytes: int | None = None,
        alone: Alone | None = None,
    ) -> None:
        """Write what a plan and new rows ask for, and the commit; `written` adds files that are there."""
        change = operation != "OPTIMIZE"
        now_ms = milliseconds()
        shape = self.shape(snapshot)
        if file_bytes is not None:
            shape = replace(shape, file_bytes=file_bytes)
        gone = [*plan.gone, *(file for file, _ in plan.marked), *(file for file, _ in plan.rewritten)]
        if gone and change and is_true(snapshot.properties.get(APPEND_ONLY)):
            raise ConfigurationError(
                f"The Delta table at {self.folder.uri} is append-only (delta.appendOnly): no row may go.",
                next_step="Take that property off the table, or keep it as a log.",
                table=self.folder.uri,
            )
        self.admits(snapshot)
        writing = Writing(self.folder, shape, change)
        added = [*written, *self.write(writing, plan.rewritten, new)]
        begun = paths_of(added)
        actions = [
            information(
                operation,
                snapshot,
                now_ms,
                numTargetRowsInserted=done.inserted,
                numTargetRowsUpdated=done.updated,
                numTargetRowsDeleted=done.deleted,
            )
        ]
        try:
            if plan.marked:
                path, said = vectors.write(self.folder, [dead for _, dead in plan.marked])
                begun.append(path)
                self.folder.make_durable([path])
                pairs = zip(plan.marked, said, strict=True)
                added += [file.marked(vector, now_ms) for (file, _), vector in pairs]
            if transaction is not None and snapshot.transactions.get(transaction[0], -1) < transaction[1]:
                application, number = transaction
                actions.append({"txn": {"appId": application, "version": number, "lastUpdated": now_ms}})
            actions += [file.removal(now_ms, data_change=change) for file in gone]
            if alone is None:
                self.log.commit(snapshot, [*actions, *added])
            else:
                with alone():
                    snapshot = self._with(gone)
                    self.admits(snapshot)
                    self.log.commit(snapshot, [*actions, *added])
        except BaseException as error:
            # A request may be served though its answer was lost: what its commit names is left then.
            if isinstance(error, Overtaken) or self.log.is_free(snapshot.version + 1):
                self.folder.remove(begun)
            raise

    def _with(self, files: Sequence[DataFile]) -> Snapshot:
        """Return the newest version if it has these files as they are; raise Overtaken."""
        newest = self.log.newest()
        for file in files:
            there = newest.files.get(file.add["path"])
            if there is None or there.vector != file.vector:
                raise Overtaken
        return newest

    def _whole(self, snapshot: Snapshot, found: pa.Table) -> pa.Table:
        """Return all columns of rows that were found, in their order; read, unless they were looked up."""
        schema, known = snapshot.schema, self._known
        if known is not None and known.wanted.is_exact and {*schema.names} <= {*found.column_names}:
            return found.select(schema.names)
        parts, order = [schema.empty_table()], [np.empty(0, np.int64)]
        files = list(snapshot.files.values())
        numbers, rows = (found[name].to_numpy() for name in (FILE, ROW))
        for number in distinct(numbers).tolist():
            mine = np.flatnonzero(numbers == number)
            with opened(self.folder, files[number], schema) as reader:
                for group, first, count in reader.groups():
                    here = mine[(rows[mine] >= first) & (rows[mine] < first + count)]
                    if len(here):
                        parts.append(reader.read(group, schema.names).take(pa.array(rows[here] - first)))
                        order.append(here)
        back = np.argsort(np.concatenate(order), kind="stable")
        return pa.concat_tables(parts).take(pa.array(back))

    def shape(self, snapshot: Snapshot) -> Shape:
        """Return how the files of a version are written."""
        said = snapshot.properties.get("delta.targetFileSize", "")
        most = int(said) if said.isdigit() else FILE_BYTES
        return Shape(snapshot.schema, snapshot.partition_columns, most, self.group_bytes, snapshot.marks)


class PartEngine(Engine):
    """Does to a version of a table what a part of a batch asks for, but for the commit: `parts` says what."""

    def __init__(self, folder: Folder, snapshot: Snapshot) -> None:
        super().__init__(folder)
        self.log = Log(folder, at=snapshot)
        self.parts: list[Part] = []
        if not snapshot.marks:
            self._index = None  # parts ask for a file one after the other, and their batch writes it again

    def merge(self, merge: Merge, **_: Any) -> Merged:
        """Write the new rows, and note what goes."""
        snapshot, found = self._basis(_wanted(merge))
        going, new, done, changes = self._changes(snapshot, merge, found)
        shape = self.shape(snapshot)
        added = Writing(self.folder, shape, data_change=True)((), new)
        added += write_changes(self.folder, shape, changes)
        self.parts.append(Part(added, going, done))
        return done

    def compact(self, *_: Any, **__: Any) -> int:
        """Leave that to whoever commits."""
        return 0


def _updated(
    merge: Merge, replaced: pa.Table, coming: pa.Table, read: Callable[[pa.Table], pa.Table]
) -> Iterator[pa.Table]:
    """Yield what replaces rows of the table, of which `read` gives all columns where a merge needs them."""
    if merge.update is None:
        yield coming
        return
    is_whole = np.ones(coming.num_rows, bool)
    if merge.whole is not None:
        is_whole = _mask(merge.whole(replaced, coming))
    for which, columns_of in ((is_whole, read), (~is_whole, lambda rows: rows)):
        if which.any():
            rows = pa.array(which)
            yield merge.update(columns_of(replaced.filter(rows)), coming.filter(rows))


def _wanted(merge: Merge) -> Wanted:
    """Return what a merge has to know of the table."""
    rows = merge.rows if merge.on else merge.rows.slice(0, 0)
    return Wanted(rows, merge.on, merge.reads if merge.on else ())


def _mask(values: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return booleans, null as False, that may be written to."""
    found = values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values)
    if isinstance(found, pa.ChunkedArray):
        found = found.combine_chunks()
    return np.array(pc.fill_null(found, fill_value=False).to_numpy(zero_copy_only=False), bool)


def _fit(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the table's columns; marks (`%…`) are left out."""
    kinds = dict(zip(schema.names, schema.types, strict=True))
    columns = dict(zip(rows.column_names, rows.columns, strict=True))
    if lost := [name for name in columns if name not in kinds and not name.startswith("%")]:
        raise ConfigurationError(f"the table has no column {lost[0]!r}", next_step="Add it first.")
    fitting = {name: values.cast(kinds[name]) for name, values in columns.items() if name in kinds}
    return filled(fitting, schema, rows.num_rows)


def _by_file(files: Sequence[str], going: pa.Table) -> Iterator[tuple[str, vectors.Positions]]:
    """Yield the files that rows go from, with the numbers of these in order."""
    numbers, rows = (going[name].to_numpy() for name in (FILE, ROW))
    for number in distinct(numbers).tolist():
        yield files[number], distinct(rows[numbers == number])


def crowded(files: Sequence[DataFile], most: int) -> list[DataFile]:
    """Return the files of the least size of which there are too many.

    So each row is written again a few times at most, however many batches there are.
    """
    limit = _LEAST_TIER
    while limit <= most // 2:
        small = [file for file in files if file.size < limit]
        if len(small) > CROWD:
            return small
        limit *= _GROWTH
    return []


def uneven(files: Sequence[DataFile], most: int) -> list[DataFile]:
    """Return files that are not full, where there are several, and those that are to be sorted out.

    Those have marks, or both rows of a history that ended and rows that hold.
    """
    found = [file for file in files if file.vector or file.is_mixed(ENDS)]
    small = [file for file in files if file.size < most // 2 and not (file.vector or file.is_mixed(ENDS))]
    return [*(small if len(small) > 1 or found else []), *found]


def marked(files: Sequence[DataFile], _: int) -> list[DataFile]:
    """Return the files that have marks."""
    return [file for file in files if file.vector]
