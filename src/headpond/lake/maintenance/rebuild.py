"""A table written again as the pipeline file has it now, in one commit.

::

    look     what differs, values that do not fit, which rows stay       nothing is written
    deletes  under the new name that goes with the new key texts         nobody reads them yet
    write    new files from the old ones, some at a time                 nobody reads them yet
    commit   these files, columns and definition instead of the old, only where nobody else committed
    deletes  those of before go

A pipeline may run meanwhile: where it committed in between, what it wrote is done as well. From the commit
on its batches are refused; started again with the new file it reads them again. Killed at any moment, the
table is what it was or what it was to be, and the command may be repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Schema as DeltaSchema

from headpond.core.errors import InvalidData, ServiceFailure, UsageError
from headpond.core.formats import TableEntry, unwritable
from headpond.core.schemas import OWN, VALUE, whole
from headpond.dsql.config import TableSpec
from headpond.dsql.pg_types import CastOptions
from headpond.dsql.rows import kept_image
from headpond.dsql.strict_json import DEEPEST
from headpond.dsql.versions import cast_values, key_column
from headpond.lake.definition import PROPERTY, Difference, columns_of, continued, differences, found_in, moved
from headpond.lake.engine.log import DataFile, Overtaken, Snapshot
from headpond.lake.engine.parquet import FILE_BYTES, Shape, Writing, opened, paths_of
from headpond.lake.maintenance.bootstrap import Unfit, wire_tokens
from headpond.lake.maintenance.rekey import (
    AT_FILE,
    AT_ROW,
    Outcome,
    Rekey,
    deletes_of,
    loose_rows,
    refuse_form,
)
from headpond.lake.naming import PROPERTY as BUCKETS
from headpond.lake.storage import storage_errors
from headpond.lake.tables import Lake
from headpond.lake.target import named

logger = logging.getLogger(__name__)

ATTEMPTS = 20
"""How often what a running pipeline wrote meanwhile is done as well."""
UNIT_BYTES = 64 << 20
"""Files of about this many bytes are written again at a time, in memory."""
LISTED = 20
_SHOWN = 3


@dataclass(slots=True)
class Rebuilt:
    """What a rebuild does to a table; nothing is written where values do not fit."""

    table: str
    differences: list[Difference] = field(default_factory=list)
    rows: int = 0  # that it had
    unfit: int = 0
    listed: list[dict[str, Any]] = field(default_factory=list)  # some of these: column, value, and why
    superseded: int = 0  # rows replaced by a newer row with the same key
    deleted: int = 0  # rows whose key has a newer delete
    lost_deletes: int = 0  # that are not known under the new keys
    lost_ns: int | None = None  # their newest commit time
    finer: bool = False  # keys have columns that they did not have: rows of different keys were taken for one
    written: bool = False


def rebuild(
    lake: Lake,
    table: str,
    *,
    dry_run: bool = False,
    listed: int = LISTED,
    unit_bytes: int = UNIT_BYTES,
    say: Callable[[str], None] = lambda _: None,
) -> Rebuilt:
    """Write a table again as its entry has it, or with `dry_run` say what that would do.

    Raises:
        UsageError: the table is not there, or cannot become what the file says.
        InvalidData: values do not fit; they are in the fact `listed`, and nothing was written.
        ServiceFailure: others wrote the table all the time.
    """
    job = Rebuild(lake, table, listed=listed, unit_bytes=unit_bytes, say=say)
    with storage_errors(job.file.uri, lake.storage_options):
        done = job.look(job.file.engine.log.newest())[0]
        if dry_run or not done.differences:
            return done
        if done.unfit:
            raise InvalidData(
                f"{done.unfit} values of the table {table!r} do not fit: "
                + "; ".join(
                    f"{each['column']} {each['value']} ({each['why']})" for each in done.listed[:_SHOWN]
                )
                + ("; …" if done.unfit > _SHOWN else "")
                + ". Nothing was written.",
                next_step="Declare a type that holds them; --dry-run lists more of them.",
                reason="unfit_value",
                table=table,
                listed=done.listed,
            )
        return job.run()


def widen(lake: Lake) -> list[Rebuilt]:
    """Rebuild the tables with `type_changes = "widen"` whose entries differ in wider types alone."""
    given: Any = lake.given
    done = []
    for entry in given.tables:
        is_wanted = isinstance(entry, TableSpec) and entry.type_changes == "widen"
        if is_wanted and lake.places()[entry.name].exists():
            job = Rebuild(lake, entry.name, listed=LISTED, unit_bytes=UNIT_BYTES, say=lambda _: None)
            if job.only_widens():
                done.append(job.run())
                words = ", ".join(each.wanted for each in done[-1].differences)
                logger.warning("The table %s was rebuilt: %s.", entry.name, words)
    if done:
        lake.look_again()
    return done


class Rebuild:
    """One rebuild of one table."""

    def __init__(
        self, lake: Lake, table: str, *, listed: int, unit_bytes: int, say: Callable[[str], None]
    ) -> None:
        self.lake, self.name, self._listed, self._say = lake, table, listed, say
        self._unit_bytes = unit_bytes
        given: Any = lake.given
        asked = given.entry(table)
        if asked is None:
            names = ", ".join(entry.name for entry in given.tables) or "none"
            raise UsageError(
                f"The pipeline has no table {table!r}.", next_step=f"It has {names}.", table=table
            )
        lake.take_in([table])
        self.file = lake.places()[table]
        if not self.file.exists():
            raise UsageError(
                f"The table {table!r} does not exist yet.",
                next_step="There is nothing to do: it will be created as its entry says.",
                table=table,
            )
        self.definition = found_in(self.file, asked)
        self.have = self.definition.applied_to(asked)
        columns = columns_of(self.file.schema())
        self._delta = {name: each.name for name, each in columns.items()}
        self.wanted, self.rekeys = self._asked(asked)
        self.moves = moved(self.have, self.wanted, columns)
        self.sources = self._sources(self.wanted)
        target = lake.extras.target(self.wanted, self.file)
        self._own, self._target = target.typed.own, target
        columns_there = {new: self._kind(new) for new in self.sources}
        self.made = target.typed.made(columns_there, rebuilt=self.definition.rebuilt + 1)
        wanted = self.made.partitions
        have = wanted.of_file(self.file)
        self._dealt = [] if have == wanted else [Difference(have.words(), wanted.words())]
        config: Any = lake.given
        self._options = CastOptions(
            infinity=getattr(config, "infinity", "clamp"),
            special_numeric=getattr(config, "special_numeric", "error"),
        )
        self._units: list[_Unit] = []

    def _asked(self, asked: TableEntry) -> tuple[TableEntry, bool]:
        """Return the entry that the table is to have, and whether rows are known by other keys then."""
        wanted = continued(asked, self.definition)
        if not isinstance(wanted, TableSpec) or not isinstance(self.have, TableSpec):
            if wanted.form != self.have.form:
                raise UsageError(
                    f"The table {self.name!r} of documents cannot be rebuilt from {self.have.form} to "
                    f"{wanted.form}.",
                    next_step="Give the table a new name and fill it from the ledger's records.",
                    table=self.name,
                )
            return wanted, False
        wanted = replace(wanted, keys=asked.keys, key_rule=2)
        refuse_form(self.have, wanted)
        moves = moved(self.have, wanted, columns_of(self.file.schema()))
        order = [moves.get(name, name) for name in self.have.key_order]
        kinds = {moves.get(name, name): self.have.written_as(name) for name in self.have.keys}
        same = order == list(wanted.key_order) and all(wanted.written_as(k) == v for k, v in kinds.items())
        rekeys = wanted.form != self.have.form or (wanted.form != "log" and not same)
        if rekeys:
            wanted = replace(wanted, key_epoch=self.definition.rebuilt + 1)
        return wanted, rekeys

    def only_widens(self) -> bool:
        """Return whether all that differs are types, and each is a wider one."""
        there = columns_of(self.file.schema())
        unlike = differences(self.have, self.wanted, there)
        assert isinstance(self.wanted, TableSpec)
        assert isinstance(self.have, TableSpec)
        changed = [name for name in there if self.have.stored_as(name) != self.wanted.stored_as(name)]
        alone = len(unlike) == len(changed) > 0 and not self._dealt
        return alone and self.wanted.widens(self.have, changed)

    def _sources(self, wanted: TableEntry) -> dict[str, list[str]]:
        """Return which columns of before each column that has values of the table gets them from."""
        found: dict[str, list[str]] = {}
        for old in sorted(self._delta, key=lambda name: name in self.moves):
            new = self.moves.get(old, old)
            if new not in wanted.except_columns:
                found.setdefault(new, []).append(old)
        return found

    def _kind(self, new: str) -> pa.DataType:
        if isinstance(self.wanted, TableSpec):
            return self.wanted.type_of(new)
        return self.wanted.declared().get(new, pa.string())

    def look(self, snapshot: Snapshot) -> tuple[Rebuilt, Outcome]:
        """Return what is to be done to a version; nothing is written."""
        snapshot.refuse_unknown()
        there = columns_of(self.file.schema())
        unlike = [*differences(self.have, self.wanted, there), *self._dealt]
        done = Rebuilt(self.name, unlike, snapshot.count() or 0)
        outcome = Outcome()
        if self.rekeys:
            before = {self.moves.get(name, name) for name in self.have.keys}
            done.finer = self.have.form != "log" and not before >= set(self.wanted.keys)
            rekey = self._rekey()
            outcome = rekey.decide(self._changes(snapshot, rekey, done))
            done.superseded, done.deleted = outcome.superseded, outcome.deleted
            done.lost_deletes, done.lost_ns = outcome.lost, outcome.lost_ns
        else:
            for _ in self._changes(snapshot, None, done):
                pass
        return done, outcome

    def _rekey(self) -> Rekey:
        assert isinstance(self.have, TableSpec)
        assert isinstance(self.wanted, TableSpec)

        def convert(new: str, old: str, values: pa.Array) -> pa.Array:
            return self._converted(new, old, values)[0]

        return Rekey(self.lake, self.have, self.wanted, self.moves, self._options, convert)

    def _changes(self, snapshot: Snapshot, rekey: Rekey | None, done: Rebuilt) -> Iterator[pa.Table]:
        """Convert what has to be converted of all rows, note what does not fit, and yield rows as changes."""
        changed = [
            new
            for new, olds in self.sources.items()
            if len(olds) > 1 or self.have.stored_as(olds[0]) != self.wanted.stored_as(new)
            or (new in self.wanted.partition_by and new not in self.have.keys)
        ]  # fmt: skip
        keys = list(self.wanted.keys) if rekey is not None else []
        names = list(dict.fromkeys([*changed, *keys]))
        facts = rekey.facts() if rekey is not None else []
        if not names:
            return
        for number, file in enumerate(snapshot.files.values()):
            for part, rows in self._parts(snapshot, file, names, facts):
                values = {new: self._value(new, part, done) for new in names}
                if rekey is not None:
                    of_keys = {key: values[key] for key in keys}
                    self._no_nulls(of_keys, part, done)
                    if not done.unfit:
                        yield from rekey.changes(part, of_keys, number, rows)
            self._say(f"{number + 1} of {len(snapshot.files)} files checked")

    def _no_nulls(self, keys: dict[str, pa.Array], part: pa.Table, done: Rebuilt) -> None:
        """Note rows without a key, but for deletes, which may have it elsewhere or not at all."""
        has_image = pa.repeat(True, part.num_rows)
        if self.have.form == "log":
            has_image = pc.not_equal(whole(part["_op"]), "d")
        elif self.have.form == "soft":
            has_image = pc.is_valid(whole(part["_ts_ns"]))
        for key, values in keys.items():
            bad = pc.and_(pc.is_null(values), has_image)
            self._note(done, key, values, dict.fromkeys(pc.indices_nonzero(bad).to_pylist(), "null in a key"))

    def _parts(
        self, snapshot: Snapshot, file: DataFile, names: Sequence[str], own: Sequence[str]
    ) -> Iterator[tuple[pa.Table, np.ndarray[Any, Any]]]:
        """Read the columns of before that some columns come from, and own ones, with the rows' numbers."""
        olds = [self._delta[old] for new in names for old in self.sources.get(new, ())]
        columns = list(dict.fromkeys([*olds, *(name for name in own if name in snapshot.schema.names)]))
        if not columns:
            return
        with opened(self.file.engine.folder, file, snapshot.schema) as reader:
            for part, rows in reader.live(columns):
                yield part.combine_chunks(), rows

    def _value(self, new: str, part: pa.Table, done: Rebuilt | None = None) -> pa.Array:
        """Return the values of a column, and note those that do not fit."""
        kind, value = self._kind(new), None
        for old in self.sources.get(new, ()):
            before = whole(part[self._delta[old]])
            found, failures = self._converted(new, old, before)
            if value is not None:
                both = pc.and_(pc.is_valid(value), pc.is_valid(found))
                twice = pc.indices_nonzero(pc.and_(both, pc.not_equal(value, found)))
                failures |= dict.fromkeys(twice.to_pylist(), f"another value is there for {new}")
                found = pc.coalesce(value, found)
            if failures and done is not None:
                self._note(done, old, before, failures)
            value = found
        value = pa.nulls(part.num_rows, kind) if value is None else value
        if done is not None and new in self.wanted.partition_by:
            long = dict.fromkeys(unwritable(new, value), "longer than a folder's name")
            self._note(done, new, value, long)
        return value

    def _note(self, done: Rebuilt, column: str, values: pa.Array, failures: dict[int, str]) -> None:
        done.unfit += len(failures)
        for row, why in list(failures.items())[: self._listed - len(done.listed)]:
            done.listed.append({"column": column, "value": str(values[row].as_py())[:200], "why": why})

    def _converted(self, new: str, old: str, values: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """Return values of a column of before as the new one has them, and which of them do not fit."""
        have, wanted = self.have, self.wanted
        if have.stored_as(old) == wanted.stored_as(new):
            return values, {}
        if not isinstance(have, TableSpec) or not isinstance(wanted, TableSpec):
            try:
                same_kind = have.stored_as(old)[1] == wanted.stored_as(new)[1]
                return values.cast(self._kind(new) if same_kind else pa.null()), {}
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise UsageError(
                    f"The column {old!r} of {self.name!r} cannot become {new} = "
                    f"{wanted.columns.get(new, 'json')}: {error}.",
                    next_step="Change the entry back, or give the table a new name and fill it from the "
                    "ledger's records.",
                    table=self.name,
                ) from error
        kind = wanted.columns.get(new, "any")
        try:
            tokens = values.cast(pa.binary()) if have.is_raw(old) else _tokens(values, kind)
        except Unfit as error:
            return pa.nulls(len(values), wanted.type_of(new)), {error.row or 0: error.why}
        cast = cast_values(wanted, new, tokens, self._options)
        return cast.values, dict.fromkeys(cast.failures, f"not a valid {kind}")

    def run(self) -> Rebuilt:
        """Do it."""
        engine = self.file.engine
        for _ in range(ATTEMPTS):
            snapshot = engine.log.newest()
            done, outcome = self.look(snapshot)
            if done.unfit:  # of what a running pipeline wrote since
                self._remove(self._units)
                return done
            if self.rekeys:
                self._put_deletes(outcome)
            added = self._write(snapshot, outcome)
            self.lake.before_write(f"table {self.name}")
            if self.rekeys and self._rekey().remembered().num_rows != outcome.known:
                continue
            with suppress(Overtaken):
                engine.rewrite(snapshot, self._metadata(snapshot), added)
                if self.rekeys:
                    self._drop_deletes(outcome)
                done.written = True
                return done
        self._remove(self._units)
        raise ServiceFailure(
            f"Others wrote the table {self.name!r} each time before its rebuild could be committed.",
            next_step="Stop the pipeline and run the command again.",
            table=self.name,
        )

    def _put_deletes(self, outcome: Outcome) -> None:
        """Write the deletes that go with the new keys, which nobody reads before the table says so."""
        lake, name = self.lake, self.wanted.known_as
        lake.before_write("deletes of the new keys")
        if self.wanted.form == "history":
            lake.deletes.forget(name)
            lake.deletes.put(named(name, outcome.deletes))
        if self.wanted.form == "current":
            lake.tombstones.forget(name)
            lake.tombstones.put(named(name, outcome.deletes))
            known = (
                lake.tombstones.horizons_ns().get(self.have.known_as) if self.have.form == "current" else None
            )
            horizon = max((each for each in (known, outcome.lost_ns) if each is not None), default=None)
            if horizon is not None:
                lake.tombstones.set_horizon(name, horizon)

    def _drop_deletes(self, outcome: Outcome) -> None:
        """Drop the deletes of the old keys, and keep those that came in the moment of the commit."""
        rekey, lake = self._rekey(), self.lake
        remembered = rekey.remembered()
        if remembered.num_rows != outcome.known:
            for changes in rekey.known(remembered):
                deletes = named(self.wanted.known_as, deletes_of(changes))
                (lake.deletes if self.wanted.form == "history" else lake.tombstones).put(deletes)
        lake.before_write("deletes of the old keys")
        lake.tombstones.forget(self.have.known_as)
        lake.deletes.forget(self.have.known_as)

    def _write(self, snapshot: Snapshot, outcome: Outcome) -> list[dict[str, Any]]:
        """Write what is not yet written of a version, and return the actions that add all of it."""
        files = {_mark(file): (number, file) for number, file in enumerate(snapshot.files.values())}
        stays = [unit for unit in self._units if not self.rekeys and unit.marks <= files.keys()]
        self._remove([unit for unit in self._units if unit not in stays])
        self._units = stays
        done = {mark for unit in stays for mark in unit.marks}
        left = [(mark, *each) for mark, each in files.items() if mark not in done]
        while left:
            ends = np.cumsum([file.size for _, _, file in left])
            count = max(1, int(np.searchsorted(ends, self._unit_bytes, side="right")))
            unit, left = left[:count], left[count:]
            parts = [part for _, number, file in unit for part in self._rows(snapshot, file, number, outcome)]
            self.lake.before_write(f"files of {self.name}")
            self._units.append(_Unit(frozenset(mark for mark, _, _ in unit), self._written(parts)))
            self._say(f"{len(files) - len(left)} of {len(files)} files written")
        if outcome.loose:
            alone = [self.made.layout.physical(loose_rows(rows, self._own)) for rows in outcome.loose]
            self._units.append(_Unit(frozenset(), self._written(alone)))
        return [action for unit in self._units for action in unit.added]

    def _written(self, parts: list[pa.Table]) -> list[dict[str, Any]]:
        engine, made = self.file.engine, self.made
        size = made.partitions.target_file_bytes or FILE_BYTES
        shape = Shape(made.layout.fields, made.partitions.all_columns, size)
        rows = pa.concat_tables([made.layout.fields.empty_table(), *parts])
        return Writing(engine.folder, shape, data_change=True)((), rows)

    def _rows(self, snapshot: Snapshot, file: DataFile, number: int, outcome: Outcome) -> Iterator[pa.Table]:
        kept = outcome.rows
        if kept is not None:
            at = kept[AT_FILE].to_numpy()
            first, last = np.searchsorted(at, [number, number + 1])
            kept = kept.slice(first, last - first)
        for part, rows in self._parts(snapshot, file, list(self.sources), snapshot.schema.names):
            decided: dict[str, Any] = {}
            if kept is not None:
                numbers = kept[AT_ROW].to_numpy()
                stays = np.isin(rows, numbers)
                part = part.filter(pa.array(stays)).combine_chunks()  # noqa: PLW2901 - what stays of it
                mine = kept.take(pa.array(np.searchsorted(numbers, rows[stays])))
                decided = {name: mine[name] for name in mine.column_names if name.startswith(OWN)}
            values = {VALUE + new: self._value(new, part) for new in self.sources}
            yield self.made.layout.physical(pa.table(values | self._own_columns(part, decided)))

    def _own_columns(self, part: pa.Table, decided: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, (column, kind) in self._own.items():
            before = "_ts_ns" if name == "valid_from_ns" else column
            there = part[before] if before in part.column_names else pa.nulls(part.num_rows, kind)
            if column in ("_before", "_after") and isinstance(self.wanted, TableSpec):
                there = kept_image(whole(there), self.wanted, DEEPEST)
            found[OWN + name] = decided.get(OWN + name, there)
        if self._target.typed.buckets:
            if isinstance(self.wanted, TableSpec):
                keys = {key: self._value(key, part) for key in self.wanted.keys}
                found["m:key"] = key_column(self.wanted, keys)
            else:
                found["m:key"] = self._target.key_texts(part)
        return found

    def _metadata(self, snapshot: Snapshot) -> dict[str, Any]:
        kept = {name: value for name, value in snapshot.properties.items() if name not in _REPLACED}
        return {
            **snapshot.metadata,
            "schemaString": DeltaSchema.from_arrow(self.made.schema).to_json(),
            "partitionColumns": self.made.partitions.all_columns,
            "configuration": kept | dict(self.made.properties),
        }

    def _remove(self, units: Sequence[_Unit]) -> None:
        self.file.engine.folder.remove(paths_of(action for unit in units for action in unit.added))


_REPLACED = (PROPERTY, BUCKETS)


@dataclass(frozen=True, slots=True)
class _Unit:
    """Files of before that were written together, and the actions that add the new ones."""

    marks: frozenset[tuple[str, str]]
    added: list[dict[str, Any]]


def _mark(file: DataFile) -> tuple[str, str]:
    """Return what is another one for a file whose rows are others."""
    return file.path, str(file.vector)


def _tokens(values: pa.Array, kind: str) -> pa.Array:
    """Return values as the tokens of a declared type where they are some, else as what the stream had."""
    try:
        return wire_tokens(values, kind)
    except Unfit:
        return wire_tokens(values, "any")
