"""From the text of a pipeline file to a checked Pipeline."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headpond.errors import ConfigurationError
from headpond.pipeline.auto_cdc import TAKEN, in_our_words
from headpond.pipeline.keys import Place, read_section, unknown_key
from headpond.pipeline.ledger import check_ledger_only, check_meaning, ledger_tables
from headpond.pipeline.model import Monitor, Pipeline, Source, Table, Target, Verify
from headpond.pipeline.schema import (
    MONITOR,
    SECTIONS,
    SOURCE,
    SPARK,
    STREAM_BYTES_PER_TRIGGER,
    STREAM_ONLY,
    TABLE,
    TARGET,
    VERIFY,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_PERCENT = re.compile("%[0-9A-Fa-f]{2}")
_CONTAINERS = {"abfs", "abfss", "wasb", "wasbs"}


def load(
    path: str | os.PathLike[str],
    *,
    environ: Mapping[str, str] | None = None,
    tables_needed: bool = True,
) -> Pipeline:
    """Read a pipeline file; relative paths in it are relative to its folder.

    Args:
        path: The file.
        environ: What `env:NAME` reads; the process's environment when not given.
        tables_needed: Whether a file without any table is refused.

    Raises:
        ConfigurationError: The file cannot be read, is no TOML, or a key or value in it is wrong.
    """
    file = Path(path)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"The pipeline file {file} cannot be read: {error.strerror or error}.",
            next_step="Give the path of a pipeline file, as in `headpond run pipeline.toml`.",
            file=str(file),
        ) from error
    try:
        decoded = content.decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"The pipeline file {file} is not UTF-8 (byte {error.start}).",
            next_step="Save it as UTF-8 text.",
            file=str(file),
        ) from error
    return loads(decoded, file.parent, file=str(file), environ=environ, tables_needed=tables_needed)


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
        ConfigurationError: The text is no TOML, or a key or value in it is wrong.
    """
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ConfigurationError(
            f"{file or 'The pipeline file'} is not valid TOML: {reason}.",
            next_step="Correct the file at that place; strings and names with dots need quotes.",
            file=file,
        ) from error
    root = Place("", os.environ if environ is None else environ)
    for name in document:
        if name not in SECTIONS:
            raise unknown_key(name, SECTIONS, root)
    folder = Path(base).absolute()
    source = _source(document.get("source", {}), folder, root.child("source"))
    target = _target(document.get("target", {}), folder, root.child("target"))
    verify = _verify(document.get("verify", {}), folder, root.child("verify"))
    if source.format == "qldb":
        check_meaning(document, root)
        tables = ledger_tables(document.get("tables", {}), root.child("tables"), needed=tables_needed)
    else:
        check_ledger_only(asdict(target), TARGET, "target", root.child("target"))
        check_ledger_only(asdict(verify), VERIFY, "verify", root.child("verify"))
        needed = tables_needed and target.unknown_tables == "quarantine"
        tables = _tables(document.get("tables", {}), root.child("tables"), needed=needed)
    monitor = _monitor(document.get("monitor", {}), folder, file, root.child("monitor"))
    spark = SPARK(document.get("spark", {}), root.child("spark"))
    return Pipeline(
        file=file, source=source, target=target, tables=tables, verify=verify, monitor=monitor, spark=spark
    )


def _located(value: str, folder: Path, place: Place) -> str:
    """Make a path absolute; leave the URL of an object store as it is, unless it has a secret in it."""
    if "://" in value:
        _refuse_credentials(value, place)
        return value
    return os.path.normpath(folder / Path(value).expanduser())


def _refuse_credentials(url: str, place: Place) -> None:
    """Refuse keys or a password in a URL: URLs are shown, logged and kept in the lake.

    In Azure's URLs a container stands where others have a user's name.
    """
    scheme, _, rest = url.lower().partition("://")
    authority = rest.partition("/")[0]
    user, named, _ = authority.rpartition("@")
    # A key with a slash in it ends what looks like the bucket; only an ARN has colons there.
    is_key = scheme.startswith("s3") and ":" in authority and not authority.startswith("arn:")
    if ":" in user or is_key or (named and scheme not in _CONTAINERS):
        raise ConfigurationError(
            f"{place.path} carries a user name, a key or a password in its URL.",
            next_step="Remove it; keys belong into target.storage_options, as in "
            'AWS_SECRET_ACCESS_KEY = "env:NAME".',
            key=place.path,
        )


def _source(raw: Any, folder: Path, place: Place) -> Source:
    values = read_section(raw, SOURCE, place)
    origins = [name for name in ("stream", "stream_arn", "archive") if values[name] is not None]
    if len(origins) != 1:
        found = " and ".join(f"{place.path}.{name}" for name in origins) or "none of them"
        raise ConfigurationError(
            f"[{place.path}] must have exactly one of stream, stream_arn and archive; it has {found}.",
            next_step='Name the stream, as in stream = "orders-cdc", or files, as in archive = "*.jsonl".',
            key=place.path,
        )
    if values["archive"] is not None:
        for name in STREAM_ONLY:
            if name in raw:
                path = place.child(name).path
                raise ConfigurationError(
                    f"{path} has no meaning beside {place.path}.archive: it is for streams.",
                    next_step=f"Remove {path}, or read from a stream.",
                    key=path,
                )
        values["archive_as_written"] = values["archive"]
        values["archive"] = _located(values["archive"], folder, place.child("archive"))
    elif values["max_bytes_per_trigger"] is None:
        values["max_bytes_per_trigger"] = STREAM_BYTES_PER_TRIGGER
    if (values["consumer_mode"] == "efo") != (values["consumer_name"] is not None):
        raise ConfigurationError(
            f'{place.path}.consumer_mode = "efo" and {place.path}.consumer_name need each other; '
            f"{place.path}.consumer_{'name' if values['consumer_name'] is None else 'mode'} is missing.",
            next_step="Set both, or leave both out.",
            key=place.child("consumer_mode").path,
        )
    if values["kcl_leases"] is not None:
        values["kcl_leases"] = _located(values["kcl_leases"], folder, place.child("kcl_leases"))
    return Source(**values)


def _target(raw: Any, folder: Path, place: Place) -> Target:
    values = read_section(raw, TARGET, place)
    values["path"] = _located(values["path"], folder, place.child("path")).rstrip("/") or "/"
    if "://" not in values["path"] and _PERCENT.search(values["path"]):
        raise place.child("path").wrong(
            "a path without % and two hexadecimal digits, which deltalake reads as one character",
            raw["path"],
            next_step="Call the folder otherwise.",
        )
    if values["checkpoint"] is None:
        values["checkpoint"] = f"{values['path'].rstrip('/')}/_headpond/checkpoint"
    else:
        values["checkpoint"] = _located(values["checkpoint"], folder, place.child("checkpoint"))
    for name, value in values["storage_options"].items():
        if "endpoint" in name.lower() and "://" in value:
            _refuse_credentials(value, place.child("storage_options").child(name))
    return Target(**values)


def _verify(raw: Any, folder: Path, place: Place) -> Verify:
    values = read_section(raw, VERIFY, place)
    if values["digest"] is not None:
        if not values["enabled"]:
            raise place.child("enabled").wrong("true where there is a digest", values["enabled"])
        values["digest"] = _located(values["digest"], folder, place.child("digest"))
    return Verify(**values)


def _monitor(raw: Any, folder: Path, file: str | None, place: Place) -> Monitor:
    values = read_section(raw, MONITOR, place)
    if values["name"] is None:
        values["name"] = Path(file).stem if file is not None else "headpond"
    if values["textfile"] is not None:
        values["textfile"] = _located(values["textfile"], folder, place.child("textfile"))
    return Monitor(**values)


def _tables(raw: Any, place: Place, *, needed: bool) -> tuple[Table, ...]:
    if not isinstance(raw, dict):
        raise place.wrong("a table", raw)
    if not raw and needed:
        raise ConfigurationError(
            "There is no [tables] entry, so every change would be quarantined.",
            next_step='Add one per table, as in [tables."public.orders"] with keys = ["order_id"], or write '
            'unknown_tables = "log" in [target].',
            key=place.path,
        )
    tables = tuple(_table(name, value, place.child(name)) for name, value in raw.items())
    seen: dict[tuple[str, str], str] = {}
    for table in tables:
        identity = (table.schema, table.table)
        if identity in seen:
            raise ConfigurationError(
                f"{place.child(table.name).path} and {place.child(seen[identity]).path} are both the table "
                f"{table.table} of the schema {table.schema}.",
                next_step="Keep one of the two entries.",
                key=place.child(table.name).path,
            )
        seen[identity] = table.name
    return tables


def _table(name: str, raw: Any, place: Place) -> Table:
    if isinstance(raw, dict) and raw and not any(key in TABLE or key in TAKEN for key in raw):
        inner = next(iter(raw))
        if isinstance(raw[inner], dict):
            # TOML read [tables.public.orders] as a table inside a table.
            hint = f'A name with a dot needs quotes: [tables."{name}.{inner}"].'
            raise unknown_key(inner, TABLE, place, next_step=hint)
    if isinstance(raw, dict):
        raw = in_our_words(raw, place)
    values = read_section(raw, TABLE, place)
    values["schema"], values["table"] = _identity(name, values["schema"], values["table"], place)
    keys = values["keys"]
    if values["keep"] is None:
        values["keep"] = "current" if keys else "log"
    if values["keep"] != "log":
        if not keys:
            raise place.child("keep").wrong(
                '"log" where keys = [] (rows without a key cannot be replaced)',
                values["keep"],
                next_step='Write keep = "log", or name the key columns in keys.',
            )
        if values["dedupe"] != "identity":
            raise place.child("dedupe").wrong('"identity" unless keep = "log"', values["dedupe"])
    _check_columns(values, place)
    return Table(name=name, **values)


def _identity(name: str, schema: str | None, table: str | None, place: Place) -> tuple[str, str]:
    """Take schema and table from the entry's name, unless both stand inside."""
    if schema is not None and table is not None:
        return schema, table
    parts = name.split(".")
    if schema is None and table is None and len(parts) == 2 and all(parts):  # noqa: PLR2004 - schema, table
        return parts[0], parts[1]
    raise ConfigurationError(
        f"{place.path} does not say which schema and which table it is.",
        next_step='Name it [tables."schema.table"], or write both schema = "…" and table = "…" inside.',
        key=place.path,
    )


def _check_columns(values: dict[str, Any], place: Place) -> None:
    """Refuse names that cannot all hold at once; only `rename` itself knows the old ones."""
    for index, name in enumerate(values["except_columns"]):
        if name in values["keys"]:
            raise place.child("except_columns").item(index).wrong("a column that is no key", name)
    rename: dict[str, str] = values["rename"]
    origin_of: dict[str, str] = {}
    for old, new in rename.items():
        if new in origin_of:
            raise (
                place.child("rename")
                .child(old)
                .wrong(f"a name that no other column gets ({origin_of[new]} gets it)", new)
            )
        origin_of[new] = old
    for key in ("keys", "columns", "except_columns"):
        for name in values[key]:
            if name in rename and name not in origin_of:
                raise ConfigurationError(
                    f"{place.child(key).path} names the column {name}, which {place.path}.rename calls "
                    f"{rename[name]}.",
                    next_step=f"Write {rename[name]} in {key}.",
                    key=place.child(key).path,
                )
