"""Rows of one source table on their way into one Delta table, and out of it by their keys.

A batch comes with columns ``c:<name at the source>`` (values) and ``m:<own>`` (facts about the change); the
Delta table has the encoded names of `naming`, of all columns that were declared or seen, and own columns that
start with ``_``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from headpond.core.arrow import taken
from headpond.core.derived import Derived, bucket_of, derived_in, derived_of
from headpond.core.errors import ConfigurationError
from headpond.core.formats import TableEntry
from headpond.core.schemas import OWN, VALUE, filled
from headpond.lake.definition import PROPERTY, Definition, columns_of, differences, found_in, refuse
from headpond.lake.delta import DeltaFile
from headpond.lake.engine.log import EXPRESSION, Snapshot
from headpond.lake.engine.lookup import Test, Wanted, places
from headpond.lake.naming import (
    BUCKET,
    FILE_SIZE,
    ORIGINAL_NAME,
    SOURCE_TYPE,
    Columns,
    Partitions,
    column_name,
    folded,
)
from headpond.lake.newest import BatchKeys
from headpond.lake.renames import rename


@dataclass(frozen=True, slots=True)
class Layout:
    """How typed rows lie in a Delta table; may travel to another process."""

    fields: pa.Schema
    encoded: Mapping[str, str]  # source column → Delta column
    own: Mapping[str, tuple[str, pa.DataType]]  # batch column (without `m:`) → (Delta column, Arrow type)
    buckets: int | None = None
    derived: Mapping[str, tuple[str, Derived]] = field(default_factory=dict)
    """Delta column that follows from another → that one, and how."""

    def physical(self, rows: pa.Table) -> pa.Table:
        """Return typed rows with the Delta table's columns, null where they have none."""
        arrays = {
            self.encoded[name[len(VALUE) :]]: rows[name]
            for name in rows.column_names
            if name.startswith(VALUE)
        }
        for batch_column, (column, kind) in self.own.items():
            arrays[column] = rows[OWN + batch_column].cast(kind)
        if self.buckets:
            arrays[BUCKET] = bucket_of(rows[OWN + "key"], self.buckets)
        arrays |= {name: how.values(arrays[of]) for name, (of, how) in self.derived.items() if of in arrays}
        return filled(arrays, self.fields, rows.num_rows)

    def marked(self, mark: str, parts: Iterable[tuple[pa.Table, bool]]) -> pa.Table:
        """Return the rows of some parts as `physical` does, with a column that says of what part they are."""
        return pa.concat_tables(
            [self.physical(rows).append_column(mark, pa.repeat(of, rows.num_rows)) for rows, of in parts]
        )


@dataclass(frozen=True, slots=True)
class Made:
    """What a Delta table is made with: columns with their metadata, properties, how rows lie in it."""

    schema: pa.Schema
    partitions: Partitions
    properties: Mapping[str, str]
    layout: Layout


class TypedTable:
    """A Delta table that holds rows of one source table.

    `own` has, by batch column (without `m:`), Delta column and Arrow type; `spec` is the table's entry, which
    is kept with it if it is `configured`.
    """

    def __init__(
        self,
        file: DeltaFile,
        own: Mapping[str, tuple[str, pa.DataType]],
        spec: TableEntry,
        *,
        configured: bool = True,
    ) -> None:
        self.name, self.buckets = spec.name, spec.buckets
        self.file = file
        self.own = dict(own)
        self._declared = dict(spec.declared())
        self._spec, self._configured = spec, configured
        self._rebuilt = 0
        # A key need not be declared, but is looked for before any change has brought its column.
        plain = [column for column in spec.partition_by if derived_of(column) is None]
        for column in (*(spec.keys if spec.keep != "log" else ()), *plain):
            self._declared.setdefault(column, pa.string())
        self.derived = {each.name(column_name(each.column)): each for each in derived_in(spec.partition_by)}
        """The columns that follow from others, by their Delta names."""
        self._fields: dict[str, pa.Field] = {}
        self._names = Columns(reserved=self._own_columns)

    def prepare(self) -> None:
        """Create the table, or check an existing one against the configuration and widen it."""
        own = self._own_fields
        if not self.file.exists():
            made = self.made()
            self.file.create(
                made.schema, partition_by=made.partitions.all_columns, properties=made.properties
            )
        self.check()
        if self._configured:
            size = self._partitions(self._names).properties().get(FILE_SIZE)
            said = replace(Definition.of(self._spec), rebuilt=self._rebuilt)
            properties = {**self._spec.table_properties, PROPERTY: said.text()} | (
                {FILE_SIZE: size} if size else {}
            )
            self.file.alter(properties, self._described(own))
            if self._spec.deletion_vectors is not None:
                self.file.allow_marks(allowed=self._spec.deletion_vectors)
        self._widen([*(self._field(c, self._names.encode(c), k) for c, k in self._declared.items()), *own])

    def made(self, more: Mapping[str, pa.DataType] | None = None, *, rebuilt: int = 0) -> Made:
        """Return what the table is made with, as configured, with `more` columns; `rebuilt` so often."""
        names = Columns(reserved=self._own_columns)
        names.add(self._declared)
        names.add(more or ())
        columns = self._declared | {n: kind for n, kind in (more or {}).items() if n not in self._declared}
        values = [self._field(name, names.encode(name), kind) for name, kind in columns.items()]
        partitions, properties = self._partitions(names), {}
        if self._configured:
            properties[PROPERTY] = Definition.of(self._spec, rebuilt=rebuilt).text()
        schema = pa.schema([*values, *self._own_fields])
        fields = pa.schema([pa.field(each.name, each.type) for each in schema])
        derived = {column: (names.encode(each.column), each) for column, each in self.derived.items()}
        layout = Layout(fields, names.encoded, self.own, self.buckets, derived)
        return Made(schema, partitions, partitions.properties() | properties, layout)

    def _described(self, own: Sequence[pa.Field]) -> dict[str, dict[str, str | None]]:
        """Return what the metadata of columns that are there should say."""
        columns = {*self._fields} - {field.name for field in own}
        named = {encoded: original for original, encoded in self._names.encoded.items()}
        return {column: {**self._metadata(named[column])} for column in columns if column in named}

    def _metadata(self, original: str) -> dict[str, str]:
        """Return what readers see of a column beside its values: its type at the source, and a comment."""
        kind = self._spec.columns.get(original)
        found = {SOURCE_TYPE: kind, "comment": self._spec.comments.get(original, kind)}
        return {name: value for name, value in found.items() if value is not None}

    def check(self) -> None:
        """Raise where a table that is there contradicts the configuration; nothing is written."""
        self._look()
        have = found_in(self.file, self._spec)
        self._rebuilt = have.rebuilt
        as_made = have.applied_to(self._spec)
        there = columns_of(pa.schema(self._fields.values()))
        refuse(self.name, self.file.uri, differences(as_made, self._spec, there))
        kinds = as_made.declared()
        version, kind = next(iter(self.own.values()))
        self._refuse_others(
            {version: kind} | {each.name: kinds[name] for name, each in there.items() if name in kinds},
            pa.schema(self._fields.values()),
        )
        self._partitions(self._names).check(self.name, self.file)
        self.file.engine.admits = self._admit

    def _admit(self, snapshot: Snapshot) -> None:
        """Raise where a version is not the table that was looked at: rows would mean something else."""
        text = snapshot.properties.get(PROPERTY)
        if text is not None and Definition.read(text, self.file.uri).rebuilt != self._rebuilt:
            raise ConfigurationError(
                f"Table {self.name!r} in {self.file.uri} was rebuilt meanwhile: changes that were read for "
                "what it was are not written.",
                next_step="Start again, with the file that it was rebuilt for; nothing is lost.",
                table=self.name,
            )
        self._refuse_others({name: each.type for name, each in self._fields.items()}, snapshot.schema)

    def _refuse_others(self, columns: Mapping[str, pa.DataType], there: pa.Schema) -> None:
        """Raise where a table lacks columns that headpond made, or has them with other types."""
        found = {each.name: each.type for each in there}
        wrong = [name for name, kind in columns.items() if found.get(name) != kind]
        if wrong:
            said = "; ".join(f"{name} is {found.get(name, 'not there')}" for name in wrong)
            raise ConfigurationError(
                f"Another writer made or overwrote the table {self.name!r} in {self.file.uri}: {said}.",
                next_step="Restore the version before that (DeltaTable.restore), or move the folder away and "
                "fill the table from its source (headpond bootstrap FILE TABLE --from-start).",
                table=self.name,
                columns=wrong,
            )

    def fit(self, schema: pa.Schema) -> Layout:
        """Return how a typed batch with these columns lies, first adding to the table those it lacks."""
        wanted: list[pa.Field] = []
        columns = [name[len(VALUE) :] for name in schema.names if name.startswith(VALUE)]
        if names := self.misnamed(columns):
            rename(self, names)
        self._names.add(columns)
        for each in schema:
            if not each.name.startswith(VALUE):
                continue
            original = each.name[len(VALUE) :]
            encoded = self._names.encode(original)
            have = self._fields.get(encoded)
            if have is None:
                wanted.append(self._field(original, encoded, each.type))
            elif have.type != each.type:
                raise ConfigurationError(
                    f"column {original!r} of table {self.name!r} is {have.type} in {self.file.uri}, "
                    f"but the changes bring {each.type}",
                    next_step="Declare the column with the type the table has, or declare `any`.",
                    table=self.name,
                    column=original,
                )
        self._widen(wanted)
        fields = pa.schema([pa.field(name, field.type) for name, field in self._fields.items()])
        derived = {column: (self.column(each.column), each) for column, each in self.derived.items()}
        return Layout(fields, self._names.encoded, self.own, self.buckets, derived)

    def misnamed(self, columns: Iterable[str]) -> dict[str, str]:
        """Return which Delta columns get which other names beside these source columns (see `renames`)."""
        there = self.originals()
        together = {*there, *columns}
        if not self._configured or len({*map(folded, together)}) == len(together):
            return {}
        names = Columns(reserved=self._own_columns)
        names.add(self._declared)
        names.add(together)
        return {old: names.encode(name) for name, old in there.items() if names.encode(name) != old}

    def column(self, original: str) -> str:
        """Return the Delta name of a source column."""
        return self._names.encode(original)

    @property
    def _own_columns(self) -> list[str]:
        return [*(column for column, _ in self.own.values()), *self.derived]

    def _expression(self, each: Derived) -> str:
        return each.expression(column_name(each.column), self._declared[each.column])

    @property
    def found_by(self) -> list[str]:
        """The columns beside the key by which a merge finds the folders that a key's rows can be in."""
        of_keys = [column for column, each in self.derived.items() if each.column in self._spec.keys]
        return [*([BUCKET] if self.buckets else []), *of_keys]

    def _partitions(self, names: Columns) -> Partitions:
        columns = tuple(
            names.encode(text) if (each := derived_of(text)) is None else each.name(column_name(each.column))
            for text in self._spec.partition_by
        )
        expressions = {column: self._expression(each) for column, each in self.derived.items()}
        return Partitions(columns, self._spec.buckets, self._spec.target_file_size_bytes, expressions)

    @property
    def _own_fields(self) -> list[pa.Field]:
        """The columns that are no values of the source: facts, and what rows are dealt out by."""
        found = [pa.field(column, kind) for column, kind in self.own.values()]
        found += [
            pa.field(column, each.type, metadata={EXPRESSION: self._expression(each), "comment": str(each)})
            for column, each in self.derived.items()
        ]
        return [*found, *([pa.field(BUCKET, pa.int32())] if self.buckets else [])]

    def originals(self) -> dict[str, str]:
        """Source column → Delta column, for all that are there."""
        if not self._fields:
            self._look()
        return {o: e for o, e in self._names.encoded.items() if e in self._fields}

    def renamed(self) -> dict[str, str]:
        """Source column → Delta column, for those that Delta has under another name."""
        return {o: e for o, e in self.originals().items() if o != e}

    def _field(self, original: str, encoded: str, kind: pa.DataType) -> pa.Field:
        metadata = self._metadata(original) | ({ORIGINAL_NAME: original} if original != encoded else {})
        return pa.field(encoded, kind, metadata=metadata or None)

    def _look(self) -> None:
        schema = self.file.schema()
        self._fields = {field.name: field for field in schema}
        source = pa.schema([field for field in schema if field.name not in self._own_columns])
        taken = {original: field.name for original, field in columns_of(source).items()}
        self._names = Columns(taken, self._own_columns)

    def _widen(self, fields: Sequence[pa.Field]) -> None:
        missing = [field for field in fields if field.name not in self._fields]
        if missing:
            self._admit(self.file.engine.log.newest())
            self.file.add_columns(missing)
            self._look()


def rows_of_keys(
    typed: TypedTable,
    key: Sequence[str],
    changes: pa.Table,
    keys: BatchKeys,
    reads: Sequence[str],
    *,
    later: Sequence[str] = (),
    needs: Test | None = None,
    since: tuple[str, int] | None = None,
    least: Mapping[str, int] | None = None,
) -> pa.Table:
    """Read `m:key` and own columns of the rows that have one of the keys of a typed batch.

    The columns of the `key` are named as at the source, the others as in Delta; the other arguments are as
    `engine.lookup.Wanted` has them.
    """
    named = {VALUE + name: typed.column(name) for name in key}
    one_of_each = taken(changes.select(list(named)), keys.first)
    rows = pa.table([keys.texts, *one_of_each.columns], names=["m:key", *named.values()])
    on = [*typed.found_by, *named.values()]
    if typed.buckets:
        rows = rows.append_column(BUCKET, bucket_of(rows["m:key"], typed.buckets))
    for name in typed.found_by:
        if (each := typed.derived.get(name)) is not None:
            rows = rows.append_column(name, each.values(rows[typed.column(each.column)]))
    found = typed.file.look_up(Wanted(rows, on, reads, later, needs, since, least or {}))
    of_keys = rows["m:key"].take(pa.array(places(found, rows, on)))
    own = [name for name, _ in typed.own.values() if name in found.column_names]
    return found.select(own).add_column(0, "m:key", of_keys)
