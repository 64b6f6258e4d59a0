"""From a pipeline file, or from keywords, to a checked Pipeline, or to one error with every mistake in it."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from headpond.core.errors import ConfigurationError, UsageError
from headpond.kinesis.reading.positions import read_end
from headpond.pipeline import rules
from headpond.pipeline.mistakes import Mistake, Place, expectation, raise_all, unknown_key
from headpond.pipeline.model import (
    SECTIONS,
    LedgerTable,
    Monitor,
    Source,
    Table,
    Target,
    Verify,
    document_spec,
    table_spec,
)
from headpond.pipeline.reading import Read, Reader, Wrong, keys_of


@dataclass(frozen=True, slots=True, kw_only=True, init=False, repr=False)
class Pipeline:
    """What to read and what to keep: a pipeline file, or its sections as keywords.

    Sections are mappings with the keys of the file; `target` may be just the path of the lake.
    `dataclasses.replace` makes a copy with other sections.

    Raises:
        ConfigurationError: keys or values are wrong; all of them are listed.

    Examples:
        >>> pipeline = Pipeline(
        ...     source={"stream": "orders-cdc", "format": "dsql", "region": "us-east-1"},
        ...     target="lake",
        ...     tables={"public.orders": {"keys": ["order_id"]}},
        ... )
        >>> pipeline
        Pipeline(source='orders-cdc', format='dsql', tables=['public.orders'])
        >>> Pipeline(source={"stream": "s", "format": "dsql"}, target={"path": "lake", "engin": "spark"})
        Traceback (most recent call last):
        ...
        headpond.core.errors.ConfigurationError: The pipeline has 2 mistakes:
          target.engin is not a known key. Did you mean engine?
          There is no [tables] entry, so every change would be quarantined. Add one per table, ...
    """

    file: str | None  # None where it does not come from a file
    source: Source
    target: Target
    tables: tuple[Table, ...]
    verify: Verify
    monitor: Monitor
    spark: dict[str, str]

    def __init__(
        self,
        *,
        source: Source | Mapping[str, Any],
        target: Target | Mapping[str, Any] | str | os.PathLike[str],
        tables: Iterable[Table] | Mapping[str, Mapping[str, Any]] = (),
        verify: Verify | Mapping[str, Any] | None = None,
        monitor: Monitor | Mapping[str, Any] | None = None,
        spark: Mapping[str, Any] | None = None,
        defaults: Mapping[str, Any] | None = None,
        file: str | None = None,
    ) -> None:
        given: dict[str, Any] = {"source": source, "target": target, "tables": tables, "spark": spark or {}}
        given |= {"verify": verify or {}, "monitor": monitor or {}, "file": file}
        if not isinstance(source, Source):
            sections = {name: part for name, part in given.items() if name != "file"}
            given = _checked(sections | {"defaults": defaults or {}}, file)
        for each in fields(self):
            object.__setattr__(self, each.name, given[each.name])

    def __repr__(self) -> str:
        names = [table.name for table in self.tables]
        return f"Pipeline(source={self.source.name!r}, format={self.source.format!r}, tables={names!r})"


def load(
    path: str | os.PathLike[str], *, environ: Mapping[str, str] | None = None, tables_needed: bool = True
) -> Pipeline:
    """Read a pipeline file; relative paths in it are relative to its folder.

    Args:
        path: The file.
        environ: What `env:NAME` reads; by default the process's environment.
        tables_needed: Whether a file without any table is a mistake.

    Raises:
        ConfigurationError: The file cannot be read or is not TOML, or keys or values in it are wrong.
    """
    file = Path(path)
    try:
        text = file.read_bytes().decode()
    except OSError as error:
        raise ConfigurationError(
            f"The pipeline file {file} cannot be read: {error.strerror or error}.",
            next_step="Give the path of a pipeline file, as in `headpond run pipeline.toml`.",
            file=str(file),
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"The pipeline file {file} is not valid UTF-8 (byte {error.start}).",
            next_step="Save it as UTF-8 text; for an archive, `headpond init` writes a pipeline file.",
            file=str(file),
        ) from error
    return loads(text, file.parent, file=str(file), environ=environ, tables_needed=tables_needed)


def loads(
    text: str,
    base: str | os.PathLike[str] = ".",
    *,
    file: str | None = None,
    environ: Mapping[str, str] | None = None,
    tables_needed: bool = True,
) -> Pipeline:
    """Read the text of a pipeline file; relative paths in it are relative to `base`.

    Raises:
        ConfigurationError: The text is not TOML, or keys or values in it are wrong: all are listed with their
            lines, and each is a part of the fact `mistakes`.
    """
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        next_step = "Correct the file at that place; strings and names with dots need quotes."
        if text.lstrip().startswith("{"):
            next_step = "It looks like JSON; for an archive, `headpond init` writes a pipeline file."
        raise ConfigurationError(
            f"{file or 'The pipeline file'} is not valid TOML: {reason}.",
            next_step=next_step,
            file=file,
        ) from error
    reader = Reader(os.environ if environ is None else environ, Path(base).absolute())
    values = _values(document, reader, file, tables_needed=tables_needed)
    raise_all(reader.mistakes, text, file)
    return Pipeline(**values)


def _checked(given: dict[str, Any], file: str | None) -> dict[str, Any]:
    if isinstance(given["target"], str | os.PathLike):
        given["target"] = {"path": given["target"]}
    reader = Reader(os.environ, Path.cwd())
    values = _values(_as_toml(given), reader, file, tables_needed=True)
    raise_all(reader.mistakes, None, file)
    return values


def _as_toml(value: Any) -> Any:
    """Return a value as `tomllib` would: dictionaries, lists, and paths as text."""
    if isinstance(value, Mapping):
        return {str(name): _as_toml(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_as_toml(each) for each in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _values(
    document: dict[str, Any], reader: Reader, file: str | None, *, tables_needed: bool
) -> dict[str, Any]:
    """Return what a `Pipeline` is made of; the reader has the mistakes, with which it is empty."""
    mistakes = reader.mistakes
    mistakes += [unknown_key(Place((name,)), SECTIONS) for name in document if name not in SECTIONS]
    raw = document.get("source", {})
    format_ = _format(raw, reader)
    refuse = rules.refusals(raw if isinstance(raw, dict) else {}, format_)

    source = reader.section(raw, Source, Place(("source",)), refuse)
    target = reader.section(document.get("target", {}), Target, Place(("target",)), refuse, rules.GONE)
    verify = reader.section(document.get("verify", {}), Verify, Place(("verify",)), refuse)
    monitor = reader.section(document.get("monitor", {}), Monitor, Place(("monitor",))).values
    spark = _spark(document.get("spark", {}), reader)
    mistakes += rules.judged(source, *rules.OF_SOURCE)
    mistakes += rules.judged(target, *rules.OF_TARGET, partial(rules.usable_options, source))
    if format_ == "qldb":
        mistakes += rules.judged(target, rules.no_logs_of_a_ledger)
    mistakes += rules.judged(verify, *rules.OF_VERIFY)
    defaults = document.get("defaults", {})
    tables = _tables(document.get("tables", {}), defaults, format_, target, reader, needed=tables_needed)
    if mistakes:
        return {}
    if source["archive"] is not None:
        source.values["archive_as_written"] = reader.text(source.raw["archive"], source.place["archive"])
    target.values["path"] = path = target["path"].rstrip("/") or "/"
    target.values["checkpoint"] = target["checkpoint"] or f"{path.rstrip('/')}/_headpond/checkpoint"
    monitor["name"] = monitor["name"] or Path(file or "headpond").stem
    return {
        "file": file,
        "source": Source(**source.values),
        "target": Target(**target.values),
        "tables": tables,
        "verify": Verify(**verify.values),
        "monitor": Monitor(**monitor),
        "spark": spark,
    }


def _format(raw: Any, reader: Reader) -> str | None:
    """Return the format, on which it depends what else the file may have; None when it is wrong."""
    try:
        return str(reader.value(raw["format"], keys_of(Source)["format"].type, Place()))
    except (Wrong, KeyError, TypeError):
        return None


def _spark(raw: Any, reader: Reader) -> dict[str, str]:
    """Read settings of the session: strings, or numbers and booleans as Spark spells them."""
    place = Place(("spark",))
    settings = {}
    for name, value in reader.table(raw, place).items():
        at = place[name]
        if isinstance(value, dict):
            fix = 'Write the whole name of a setting in quotes, as in "spark.driver.memory" = "2g".'
            reader.mistakes.append(expectation(at, "one setting", value, fix))
        elif not name.startswith("spark."):
            reader.mistakes.append(expectation(at, 'a setting whose name begins with "spark."', value))
        else:
            try:
                settings[name] = reader.text(str(value).lower() if isinstance(value, int) else value, at)
            except Wrong as wrong:
                reader.mistakes += wrong.mistakes
    return settings


def _tables(
    raw: Any, defaults: Any, format_: str | None, target: Read, reader: Reader, *, needed: bool
) -> tuple[Table, ...]:
    if format_ is None:
        # Which keys an entry may have depends on it: list what is wrong whichever is meant.
        tries = [Reader(reader.environ, reader.folder) for _ in range(2)]
        for each, meant in zip(tries, ("dsql", "qldb"), strict=True):
            _tables(raw, defaults, meant, target, each, needed=needed)
        reader.mistakes += min(tries, key=lambda each: len(each.mistakes)).mistakes
        return ()
    place, ledger = Place(("tables",)), format_ == "qldb"
    if raw == {} and needed and (ledger or target.values.get("unknown_tables") != "log"):
        reader.mistakes.append(rules.no_tables(place, ledger=ledger))
    entries, tables = [], []
    defaults = _defaults(defaults, reader, ledger=ledger)
    for name, inner in reader.table(raw, place).items():
        before = len(reader.mistakes)
        entries.append(_entry(place[name], _with_defaults(inner, defaults), reader, ledger=ledger))
        if len(reader.mistakes) == before:
            table = _table(entries[-1], ledger=ledger)
            try:
                document_spec(table) if ledger else table_spec(table, target.values.get("timestamps", "ntz"))
            except ConfigurationError as error:
                message = f"{place[name]} is wrong: {error.message}"
                reader.mistakes.append(Mistake(place[name], message, error.next_step))
            tables.append(table)
    reader.mistakes += rules.same_tables(entries, ledger=ledger)
    reader.mistakes += rules.patterns_fit(tables)
    return tuple(tables)


def _defaults(raw: Any, reader: Reader, *, ledger: bool) -> dict[str, Any]:
    """Return what is said for all entries, as the file has it; `{}` where that is wrong."""
    before = len(reader.mistakes)
    model, format_ = (LedgerTable, "qldb") if ledger else (Table, "dsql")
    reader.section(
        raw, model, Place(("defaults",)), rules.refusals({}, format_), rules.NOT_TAKEN, partly=True
    )
    return dict(raw) if len(reader.mistakes) == before else {}


def _with_defaults(raw: Any, defaults: Mapping[str, Any]) -> Any:
    """Return an entry with the defaults that it does not say otherwise and that have a meaning for it."""
    if not isinstance(raw, dict):
        return raw
    said = [key.names for key in keys_of(Table).values() if key.names & raw.keys()]
    known = {name: value for name, value in defaults.items() if not any(name in names for names in said)}
    whole = known | raw
    keep = str(
        whole.get("keep") or whole.get("stored_as_scd_type") or ("current" if whole.get("keys") else "log")
    )
    without = {"deletes"} if keep not in ("current", "1") else set()
    without |= {"dedupe"} if keep != "log" else set()
    without |= {"buckets"} if whole.get("keys") == [] else set()
    return {name: value for name, value in whole.items() if name in raw or name not in without}


def _entry(place: Place, raw: Any, reader: Reader, *, ledger: bool) -> Read:
    if ledger:
        entry = reader.section(raw, LedgerTable, place, rules.refusals({}, "qldb"))
        reader.mistakes += rules.judged(entry, *rules.OF_LEDGER_TABLE)
        return entry
    if isinstance(raw, dict) and raw and not keys_of(Table).keys() & raw.keys():
        inner = next(iter(raw))
        if isinstance(raw[inner], dict):  # TOML read [tables.public.orders] as a table inside a table
            hint = f'A name with a dot needs quotes: [tables."{place.keys[-1]}.{inner}"].'
            reader.mistakes.append(unknown_key(place[inner], (), hint))
            return Read(place, {})
    entry = reader.section(raw, Table, place, gone=rules.NOT_TAKEN)
    reader.mistakes += rules.judged(entry, *rules.OF_TABLE)
    return entry


def _table(entry: Read, *, ledger: bool) -> Table:
    name = str(entry.place.keys[-1])
    if ledger:
        return LedgerTable(name=name, **entry.values | {"table": entry["table"] or name})
    schema, table = rules.identity(entry) or ("", "")
    return Table(name=name, **entry.values | {"schema": schema, "table": table, "keep": rules.kept_as(entry)})


def check_until(pipeline: Pipeline, until: str | None, *, until_caught_up: bool) -> None:
    """Raise where the time that a run is to end at cannot be one, or cannot be met."""
    if until is None:
        return
    read_end(until)
    if until_caught_up or pipeline.source.archive is not None:
        raise UsageError(
            "--until is for streams, and not beside --until-caught-up.",
            next_step="Leave one of the two out; an archive is read to its end.",
        )
