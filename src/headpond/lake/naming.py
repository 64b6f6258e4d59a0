"""Names of columns and folders, one encoding for both engines and both formats, and tables in partitions.

A column of a source may be called anything; a Delta column without column mapping may not. The rule:

- letters and digits (of any script) and ``_ - $ # @ :`` stay as they are;
- every other character becomes ``%XX`` per UTF-8 byte, as in a URL; so does ``%`` itself;
- a name that is one of headpond's own columns (in any case) has its first character written so;
- the empty name is a lone ``%``;
- of names that differ only in case (readers of Delta do not tell them apart), a declared one keeps its form,
  else the one in lower case, whichever came first (`renames`); the others get ``%%`` and the positions of
  their upper-case letters as a hexadecimal number, and where these do not say all (the Kelvin sign is a k,
  too) ``%%`` and their UTF-8 bytes.

The original name is in the field's metadata under `ORIGINAL_NAME`; it, not the encoding, says which
column of the source a column holds.

A table's folder is named like the table, with what a path could not hold written as ``~XX``, a leading
``_`` too (`_headpond` must stay ours). No name can leave the lake: ``/`` and a leading ``.`` are encoded. Not
``%XX``: deltalake writes to a folder of such a name and reads from the one that it stands for.

How rows are dealt out to folders: by columns, by a hash of the key, or both::

    partition_by = ["day"], buckets = 16      lake/public.orders/day=2026-07-09/_bucket=11/part-….parquet

    _bucket = CRC-32 (ISO-HDLC) of the UTF-8 text of the key, modulo the number of buckets
    text    = canonical JSON array of the key's values, as `_headpond/tombstones` has it: ["a b",11]

A row's bucket depends on its key alone, so a merge that compares buckets too reads only the folders that its
keys can be in. The number of buckets is kept with the table (`PROPERTY`).
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headpond.core.errors import ConfigurationError

if TYPE_CHECKING:
    from headpond.lake.delta import DeltaFile

ORIGINAL_NAME = "headpond.name"
"""Key of the field metadata that holds the name a column has at its source."""

SOURCE_TYPE = "headpond.type"
"""Key of the field metadata that holds the type a column is declared with."""

OWN_COLUMNS = frozenset(
    {
        # DSQL
        "_ts_ns", "_tx_id", "_image_hash", "_valid_from_ns", "_valid_to_ns", "_op", "_before", "_after",
        "_stream", "_shard_id", "_sequence_number", "_sub_sequence_number", "_deleted_tx_id",
        # QLDB
        "_document_id", "_version", "_tx_time", "_block_sequence_no", "_hash", "_kind", "_ion", "_json",
        "_table_id", "_redacted",
        # both
        "_bucket",
    }
)  # fmt: skip
"""Columns that headpond adds; a column of the source never takes one of these names."""

_PLAIN = frozenset("_-$#@:")
MAX_FOLDER_BYTES = 255
"""Longest name of one folder on the file systems in use."""


def _escape(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def folded(name: str) -> str:
    """Return what is equal for names that some reader of Delta takes for one.

    Beyond Unicode's case folding these are the Turkish letters, which Java compares as i.

    >>> folded("K") == folded("k") == folded("\u212a"), folded("\u0131") == folded("\u0130") == folded("I")
    (True, True)
    """
    return name.casefold().upper().casefold().replace("i\u0307", "i")


def column_name(original: str) -> str:
    """Encode a column's name; a function of the name alone (see `Columns` for names that differ in case).

    >>> column_name("unit price (EUR)"), column_name("_ts_ns"), column_name("createdAt")
    ('unit%20price%20%28EUR%29', '%5Fts_ns', 'createdAt')
    """
    if not original:
        return "%"
    encoded = "".join(c if c in _PLAIN or c.isalnum() else _escape(c) for c in original)
    if folded(original) in OWN_COLUMNS:
        return _escape(original[0]) + encoded[1:]
    return encoded


def with_case_mark(original: str) -> str:
    """Encode a name that differs only in case from one already taken; a function of the name alone.

    Of names that fold to one, no two have one mark.

    >>> with_case_mark("aB"), with_case_mark("\u212a")
    ('aB%%2', '\u212a%%1%%e284aa')
    """
    positions = sum(1 << i for i, c in enumerate(original) if c != c.lower())
    marked = f"{column_name(original)}%%{positions:x}"
    unique = all(c in (folded(c), folded(c).upper()) for c in original)
    return marked if unique else _with_bytes(marked, original)


def _with_bytes(marked: str, original: str) -> str:
    return f"{marked}%%{original.encode('utf-8', 'surrogatepass').hex()}"


class Columns:
    """The columns of one table: original name → name in Delta, injective under case folding.

    `reserved` are more names that no column of the source gets.
    """

    def __init__(self, taken: Mapping[str, str] | None = None, reserved: Iterable[str] = ()) -> None:
        self._encoded: dict[str, str] = dict(taken or {})
        self._folded: set[str] = {*map(folded, self._encoded.values()), *map(folded, reserved)}

    def encode(self, original: str) -> str:
        """Return the column's name in Delta, choosing one if it has none yet."""
        if (known := self._encoded.get(original)) is not None:
            return known
        name = column_name(original)
        if folded(name) in self._folded:
            name = with_case_mark(original)
        if folded(name) in self._folded:  # by a column that was named when marks said less
            name = _with_bytes(name, original)
        self._encoded[original] = name
        self._folded.add(folded(name))
        return name

    def add(self, originals: Iterable[str]) -> None:
        """Choose names for columns that come together, in whatever order."""
        for original in sorted(originals, key=str.swapcase):  # as they are before those with capitals
            self.encode(original)

    @property
    def encoded(self) -> dict[str, str]:
        """All names so far, original → encoded."""
        return dict(self._encoded)


def table_folder(name: str) -> str:
    """Encode a table's name as the name of one folder.

    >>> table_folder("public.orders"), table_folder("_headpond"), table_folder("../../etc")
    ('public.orders', '~5Fheadpond', '~2E.~2F..~2Fetc')
    """
    if not name:
        raise ConfigurationError("a table has an empty name", next_step='Name it in [tables."…"].')
    encoded = _folder(name, "_-.$#@")
    if (why := too_long(name)) is not None:
        raise ConfigurationError(
            f"{why[0].upper()}{why[1:]}.",
            next_step="Give the table a shorter name and write schema = and table = inside its entry.",
            table=name,
        )
    return encoded


def too_long(name: str) -> str | None:
    """Return why a table's name cannot be that of a folder; None where it can."""
    size = len(_folder(name, "_-.$#@").encode())
    if size <= MAX_FOLDER_BYTES:
        return None
    return f"the folder name of table {name[:40]!r}… takes {size} bytes, more than {MAX_FOLDER_BYTES}"


def log_folder(schema: str, table: str) -> str:
    """Encode schema and table as the name of one folder: that of a raw log.

    A name that a file system could mistake for another one (upper case, composed characters), or that is too
    long, ends with ``~~`` and a part of the SHA-256 of both names.

    >>> log_folder("public", "orders"), log_folder("a.b", "c/d"), log_folder("public", "Orders")[:15]
    ('public.orders', 'a~2Eb.c~2Fd', 'public.Orders~~')
    """
    encoded = f"{_folder(schema, _DOTLESS)}.{_folder(table, _DOTLESS)}"
    if encoded[0] == ".":
        encoded = _tilde(".") + encoded[1:]
    same_when_folded = all(part == unicodedata.normalize("NFC", part).casefold() for part in (schema, table))
    if same_when_folded and len(encoded.encode()) <= MAX_FOLDER_BYTES:
        return encoded
    mark = "~~" + hashlib.sha256(json.dumps([schema, table]).encode()).hexdigest()[:32]
    return encoded.encode()[: MAX_FOLDER_BYTES - len(mark)].decode(errors="ignore") + mark


_DOTLESS = "_-$#@"


def _folder(name: str, plain: str) -> str:
    encoded = "".join(c if c in plain or c.isalnum() else _tilde(c) for c in name)
    return _tilde(name[0]) + encoded[1:] if encoded[:1] in ("_", ".") else encoded


def _tilde(character: str) -> str:
    return _escape(character).replace("%", "~")


BUCKET = "_bucket"
PROPERTY = "headpond.buckets"
"""Table property that holds the number of buckets."""
FILE_SIZE = "delta.targetFileSize"


@dataclass(frozen=True, slots=True)
class Partitions:
    """How the rows of one table are dealt out: by columns, by buckets of the key, and the size of files.

    Two are equal that deal rows out to the same folders.
    """

    columns: tuple[str, ...] = ()
    buckets: int | None = None
    target_file_bytes: int | None = field(default=None, compare=False)
    expressions: Mapping[str, str] = field(default_factory=dict)
    """How those of the columns follow from others that do."""

    @property
    def all_columns(self) -> list[str]:
        """The partition columns, the bucket's last."""
        return [*self.columns, *([BUCKET] if self.buckets else [])]

    def properties(self) -> dict[str, str]:
        """Return the table properties that go with it."""
        found = {}
        if self.buckets:
            found[PROPERTY] = str(self.buckets)
        if self.target_file_bytes:
            found[FILE_SIZE] = str(self.target_file_bytes)
        return found

    def of_file(self, file: DeltaFile) -> Partitions:
        """Return how a table that is there is partitioned."""
        snapshot = file.engine.log.last()
        have, properties = snapshot.partition_columns, snapshot.properties
        buckets, size = properties.get(PROPERTY), properties.get(FILE_SIZE)
        return Partitions(
            tuple(column for column in have if column != BUCKET),
            int(buckets) if BUCKET in have and buckets and buckets.isdigit() else None,
            int(size) if size and size.isdigit() else None,
            {column: text for column, text in snapshot.expressions.items() if column in have},
        )

    def words(self) -> str:
        """Say by what rows are dealt out."""
        parts = [*self.columns, *([f"{self.buckets} buckets"] if self.buckets else [])]
        return f"partitioned by {', '.join(parts) or 'nothing'}"

    def check(self, name: str, file: DeltaFile) -> None:
        """Raise where a table is not partitioned so, with how that can be changed."""
        have = self.of_file(file)
        if have != self:
            raise ConfigurationError(
                f"Table {name!r} in {file.uri} is {have.words()}, but the configuration says {self.words()}.",
                next_step="Change the entry back, or run "
                f"`headpond rebuild FILE {name}`, which writes the table again.",
                table=name,
            )
