"""The log of a Delta table: which files are live, by the newest checkpoint and the commits after it.

::

    _delta_log/
      00000000000000000100.checkpoint.parquet     everything live at version 100
      00000000000000000101.json                   one commit: a line for each file added or removed, …
      00000000000000000102.json

A process that has read the log once reads only commits that came since. A commit is the next entry, written
only where nobody wrote it before (`Folder.put_new`).
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import orjson
import pyarrow.parquet as pq
from deltalake import Schema

from headpond import __version__
from headpond.core.errors import ConfigurationError, InvalidData
from headpond.lake.engine.properties import APPEND_ONLY, CHANGES, is_true
from headpond.lake.object_store import is_remote
from headpond.lake.storage import AT_ONCE, of_each_file

if TYPE_CHECKING:
    import pyarrow as pa

    from headpond.lake.engine.folder import Folder

ENTRY = re.compile(r"_delta_log/(\d{20})\.(json|checkpoint(?:\.\d{10}\.\d{10})?\.parquet)")
_KINDS = ("add", "remove", "metaData", "protocol", "txn")
VECTORS = "deletionVectors"
WITH_VECTORS = "delta.enableDeletionVectors"
"""Table property that says whether writers may mark rows instead of rewriting files."""
EXPRESSION = "delta.generationExpression"
"""Key of a column's metadata: how its value follows from other columns."""
_HARMLESS = frozenset(
    {
        *(VECTORS, "appendOnly", "timestampNtz", "vacuumProtocolCheck", "domainMetadata"),
        *("changeDataFeed", "generatedColumns"),
    }
)
# Features that ask nothing of a writer while a property or a column's metadata does not use them.
_DORMANT = {
    "invariants": "delta.invariants",
    "checkConstraints": "delta.constraints.",
    "columnMapping": "delta.columnMapping.mode",
    "identityColumns": "delta.identity.",
    "allowColumnDefaults": "CURRENT_DEFAULT",
    "inCommitTimestamp": "delta.enableInCommitTimestamps",
    # deltalake names it in every table with features of which it changes a property or a column.
    "variantType": 'type":"variant"',
}
_MOST_READER, _MOST_WRITER = 3, 7


class Overtaken(Exception):
    """Another writer made the commit of this number."""


class DataFile:
    """A live file, as the log has it: by the action that added it."""

    def __init__(self, add: Mapping[str, Any]) -> None:
        self.add = add
        self.path = unquote(add["path"])
        self.size = int(add["size"])
        self.values: dict[str, str | None] = dict(add.get("partitionValues") or {})  # by partition column
        self.vector: Mapping[str, Any] | None = add.get("deletionVector")

    @cached_property
    def stats(self) -> dict[str, Any]:
        """Statistics: `numRecords`, `minValues`, `maxValues`, `nullCount`, as far as they are known."""
        found: dict[str, Any] = orjson.loads(self.add.get("stats") or b"{}")
        return found

    @property
    def dead(self) -> int:
        """How many of its rows are gone."""
        return int(self.vector["cardinality"]) if self.vector else 0

    @property
    def live(self) -> int | None:
        """How many of its rows are left; None where that is not known."""
        rows = self.stats.get("numRecords")
        return None if rows is None else int(rows) - self.dead

    def bounds(self, column: str) -> tuple[Any, Any]:
        """Return the least and the greatest value of a column; None where they are not known."""
        least, most = (self.stats.get(side) or {} for side in ("minValues", "maxValues"))
        return least.get(column), most.get(column)

    def nulls(self, column: str) -> Any:
        """Return how many rows have no value in a column; None where that is not known."""
        return (self.stats.get("nullCount") or {}).get(column)

    def greatest(self, column: str) -> Any:
        """Return the greatest value of a column; None where it is not known, or one may be null."""
        return self.bounds(column)[1] if self.nulls(column) == 0 else None

    def is_mixed(self, column: str) -> bool:
        """Return whether some rows have a value in a column and others have none, as far as that is known."""
        return self.nulls(column) not in {None, 0, self.stats.get("numRecords")}

    def marked(self, vector: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
        """Return the action that adds it again with other marks."""
        stats = orjson.dumps(self.stats | {"tightBounds": False}).decode()
        more = {"deletionVector": vector, "modificationTime": now_ms, "dataChange": True, "stats": stats}
        return {"add": {**self.add, **more}}

    def removal(self, now_ms: int, *, data_change: bool) -> dict[str, Any]:
        """Return the action that removes it."""
        action = {
            "path": self.add["path"],
            "deletionTimestamp": now_ms,
            "dataChange": data_change,
            "extendedFileMetadata": True,
            "partitionValues": self.values,
            "size": self.size,
        }
        return {"remove": action | ({"deletionVector": self.vector} if self.vector else {})}


@dataclass(slots=True)
class Snapshot:
    """A version of a table.

    `files` are those live by the path as the log has it; `removed` the actions that removed others, as far
    as the log that was read goes back, or None where nobody asks.
    """

    uri: str
    version: int = -1
    files: dict[str, DataFile] = field(default_factory=dict)
    removed: list[Mapping[str, Any]] | None = None
    transactions: dict[str, int] = field(default_factory=dict)
    protocol: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    _schema: pa.Schema | None = None

    def take(self, kind: str, action: Mapping[str, Any]) -> None:
        """Apply one action."""
        if kind == "add":
            file = DataFile(action)
            if "://" in file.path or file.path.startswith(("/", "file:")):
                raise ConfigurationError(
                    f"The Delta table at {self.uri} has a file outside its folder ({file.path}), as a "
                    "shallow clone has; headpond writes to tables that hold their own files.",
                    next_step="Make a deep copy of the table.",
                    table=self.uri,
                )
            self.files[action["path"]] = file
        elif kind == "remove":
            self.files.pop(action["path"], None)
            if self.removed is not None:
                self.removed.append(action)
        elif kind == "txn":
            self.transactions[action["appId"]] = int(action["version"])
        elif kind == "protocol":
            self.protocol = action
        elif kind == "metaData":
            self.metadata, self._schema = action, None

    @property
    def properties(self) -> dict[str, str]:
        """The table's properties."""
        return dict(self.metadata.get("configuration") or {})

    @property
    def partition_columns(self) -> list[str]:
        """The columns by which files are dealt out."""
        return list(self.metadata.get("partitionColumns") or ())

    @property
    def expressions(self) -> dict[str, str]:
        """How columns follow from others, of those that do."""
        fields = orjson.loads(self.metadata["schemaString"])["fields"]
        found = {each["name"]: each.get("metadata", {}).get(EXPRESSION) for each in fields}
        return {name: text for name, text in found.items() if text is not None}

    @property
    def schema(self) -> pa.Schema:
        """The table's columns, without their metadata."""
        import pyarrow as pa  # noqa: PLC0415 - for types elsewhere

        if self._schema is None:
            arrow = pa.schema(Schema.from_json(self.metadata["schemaString"]).to_arrow())
            self._schema = pa.schema([pa.field(each.name, plain_type(each.type)) for each in arrow])
        return self._schema

    @property
    def marks(self) -> bool:
        """Whether rows may be marked as gone in place."""
        allowed = self.properties.get(WITH_VECTORS, "").lower() == "true"
        return allowed and VECTORS in (self.protocol.get("writerFeatures") or ())

    def count(self) -> int | None:
        """Return how many rows there are; None where some file does not say."""
        counts = [file.live for file in self.files.values()]
        return None if None in counts else sum(each for each in counts if each is not None)

    def refuse_unknown(self) -> None:
        """Raise where the table's protocol asks something of writers that headpond does not do."""
        reader = int(self.protocol.get("minReaderVersion", 1))
        writer = int(self.protocol.get("minWriterVersion", 1))
        named = {*(self.protocol.get("readerFeatures") or ()), *(self.protocol.get("writerFeatures") or ())}
        used = {name for name, mark in _DORMANT.items() if self._uses(mark)}
        unknown = sorted((named - _HARMLESS - _DORMANT.keys()) | used)
        if reader > _MOST_READER or writer > _MOST_WRITER:
            unknown.append(f"protocol {reader}/{writer}")
        if unknown:
            raise ConfigurationError(
                f"The Delta table at {self.uri} uses {', '.join(unknown)}, which headpond does not write.",
                next_step="Take that off the table with the tool that put it there; nothing was changed.",
                table=self.uri,
                features=unknown,
            )

    def _uses(self, mark: str) -> bool:
        if any(
            name.startswith(mark) and value.lower() not in ("false", "none")
            for name, value in self.properties.items()
        ):
            return True
        return f'"{mark}' in self.metadata.get("schemaString", "")


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type without views, which not all of pyarrow's kernels take."""
    import pyarrow as pa  # noqa: PLC0415 - for types elsewhere

    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind, kind)


class Log:
    """The log of the table in a folder; with `removed`, what was removed is known, too.

    With `at` it ends at that version, whatever is committed after it.
    """

    def __init__(self, folder: Folder, *, removed: bool = False, at: Snapshot | None = None) -> None:
        self.folder = folder
        self._removed = removed
        self._snapshot, self._ends = at, at is not None
        self._overtaken = False

    @property
    def version(self) -> int:
        """The number of the newest commit that was read or made; -1 before any."""
        return -1 if self._snapshot is None else self._snapshot.version

    def newest(self) -> Snapshot:
        """Return the newest version."""
        self._overtaken = False
        if self._snapshot is None:
            self._snapshot = self._load(*newest_part(self.folder))
            return self._snapshot
        snapshot = self._snapshot
        if self._ends:
            return snapshot
        while (entry := self.folder.read(entry_name(snapshot.version + 1))) is not None:
            self._take(snapshot, snapshot.version + 1, entry)
        # The next entry may be gone because a checkpoint made it superfluous.
        if _hinted(self.folder) > snapshot.version:
            snapshot = self._snapshot = self._load(*newest_part(self.folder))
        return snapshot

    def last(self) -> Snapshot:
        """Return the version that was read or made last, without asking for a newer one.

        It is the newest at first, and after a commit that was Overtaken because there was a newer one.
        """
        return self.newest() if self._snapshot is None or self._overtaken else self._snapshot

    def exists(self) -> bool:
        """Return whether the folder has a log."""
        if self._snapshot is None and any(found := newest_part(self.folder)):
            self._snapshot = self._load(*found)
        return self._snapshot is not None

    def is_free(self, version: int) -> bool:
        """Return whether a commit is surely not there and will not be: what fails on a disk is over."""
        return not is_remote(self.folder.uri) and self.folder.read(entry_name(version)) is None

    def bytes_to_read(self) -> int:
        """Return how many bytes of it a reader of the table reads: the last checkpoint, and what follows.

        The version that was read last is the newest then, found by the same list.
        """
        there = _newest_files(self.folder)
        entries, checkpoints = by_version(there)
        if max([*entries, *checkpoints], default=-1) > self.version:
            self.newest()
        return sum(there.values())

    def rewritten_bytes(self, commits: int = 10) -> int:
        """Return how many bytes of files each of the last commits replaced, in the mean."""
        newest = self.last().version
        total = counted = 0
        for version in range(max(0, newest - commits + 1), newest + 1):
            lines = (self.folder.read(entry_name(version)) or b"").splitlines()
            actions = [orjson.loads(line) for line in lines]
            again = {action["add"]["path"] for action in actions if "add" in action}
            gone = [action["remove"] for action in actions if "remove" in action]
            if any(action.get("dataChange") for action in gone):
                counted += 1
                total += sum(action.get("size") or 0 for action in gone if action["path"] not in again)
        return total // counted if counted else 0

    def check(self) -> None:
        """Read the log, and look for the files that the entry read last added.

        Raises:
            InvalidData: the log is damaged, or one of these files is gone or cut.
        """
        for file in self.last_added():
            found = self.folder.size(file.path)
            if found != file.size:
                is_there = "is gone" if found is None else f"has {found} bytes where the log says {file.size}"
                raise self.folder.damaged(file.path, is_there)

    def last_added(self) -> list[DataFile]:
        """Return the files that the entry read or made last added, or added again."""
        entry = self.folder.read(entry_name(self.last().version)) or b""
        return [
            DataFile(action["add"]) for action in map(orjson.loads, entry.splitlines()) if "add" in action
        ]

    def commit(self, snapshot: Snapshot, actions: Sequence[Mapping[str, Any]]) -> None:
        """Write the commit that follows a version; raise Overtaken where another one does.

        After any other error it may be there or not: what it names must be left.
        """
        content = b"".join(orjson.dumps(action) + b"\n" for action in actions)
        path = entry_name(snapshot.version + 1)
        try:
            self.folder.put_new(path, content)
        except FileExistsError:
            # A request that was sent again, because its answer was lost, meets its own result.
            if self.folder.read(path) != content:
                self._overtaken = True
                raise Overtaken from None
        if snapshot is self._snapshot:
            self._take(snapshot, snapshot.version + 1, content)

    def _load(self, entries: Sequence[int], checkpoints: Mapping[int, list[str]]) -> Snapshot:
        snapshot = Snapshot(self.folder.uri, removed=[] if self._removed else None)
        if checkpoints:
            snapshot.version = max(checkpoints)
            actions = [each for path in checkpoints[snapshot.version] for each in self._checkpoint(path)]
            _take_all(snapshot, actions)
        last = max(entries, default=snapshot.version)
        for first in range(snapshot.version + 1, last + 1, AT_ONCE):
            some = range(first, min(first + AT_ONCE, last + 1))
            read = of_each_file(self.folder.uri, self.folder.read, map(entry_name, some))
            for version, entry in zip(some, read, strict=True):
                if entry is None:
                    raise self.folder.damaged(entry_name(version), "is missing, and later entries are there")
                self._take(snapshot, version, entry)
        if not entries and not checkpoints:
            raise InvalidData(
                f"There is no Delta table at {self.folder.uri}.",
                next_step="If its folder was moved or deleted, put it back, or restore it from a backup.",
                table=self.folder.uri,
            )
        if not snapshot.protocol or not snapshot.metadata:
            raise self.folder.damaged("_delta_log", "tells neither the table's columns nor its protocol")
        return snapshot

    def _take(self, snapshot: Snapshot, version: int, entry: bytes) -> None:
        actions = []
        for number, line in enumerate(entry.splitlines(), 1):
            if not line.strip():
                continue
            try:
                actions += [(kind, action) for kind, action in orjson.loads(line).items() if kind in _KINDS]
            except (ValueError, AttributeError) as error:
                is_wrong = f"has a line {number} that is not JSON"
                raise self.folder.damaged(entry_name(version), is_wrong) from error
        if not entry.strip():  # as the system may leave a file that it had not written when the power failed
            raise self.folder.damaged(entry_name(version), "is empty")
        _take_all(snapshot, actions)
        snapshot.version = version

    def _checkpoint(self, path: str) -> list[tuple[str, Mapping[str, Any]]]:
        try:
            with self.folder.files.open_input_file(self.folder.place(path)) as opened:
                file = pq.ParquetFile(opened)
                asked = [kind for kind in _KINDS if kind != "remove" or self._removed]
                there = [kind for kind in asked if kind in file.schema_arrow.names]
                table = file.read(columns=there)
        except (ValueError, OSError) as error:
            raise self.folder.damaged(path, f"cannot be read ({error})") from error
        # Most rows of an old table say what was removed: each row has one action, and all else is null.
        found = ((kind, table[kind].drop_null().to_pylist()) for kind in there)
        return [(kind, _plain(action)) for kind, actions in found for action in actions]


def _take_all(snapshot: Snapshot, actions: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Apply the actions of a commit or a checkpoint: a file that is removed and added has other marks now."""
    for kind, action in sorted(actions, key=lambda each: each[0] != "remove"):
        snapshot.take(kind, action)


def entry_name(version: int) -> str:
    """Return the path of a commit's entry."""
    return f"_delta_log/{version:020}.json"


def information(operation: str, snapshot: Snapshot, now_ms: int, **metrics: int) -> dict[str, Any]:
    """Return the action that says what a commit did."""
    return {
        "commitInfo": {
            "timestamp": now_ms,
            "operation": operation,
            "operationParameters": {},
            "readVersion": snapshot.version,
            "txnId": str(uuid.uuid4()),
            "isBlindAppend": False,
            "engineInfo": f"headpond:{__version__}",
            "operationMetrics": metrics,
        }
    }


def milliseconds() -> int:
    """Return the time of now, milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def newest_part(folder: Folder) -> tuple[list[int], dict[int, list[str]]]:
    """Return the entries and whole checkpoints of a log, or those from its last checkpoint on."""
    return by_version(_newest_files(folder))


def _newest_files(folder: Folder) -> dict[str, int]:
    hinted = _hinted(folder)
    found = folder.files_after("_delta_log", f"{hinted:020}") if hinted >= 0 else {}
    # It is a hint and no more: where there is no such checkpoint, all of the log is read.
    return found if by_version(found)[1] else folder.files_after("_delta_log", "")


def _hinted(folder: Folder) -> int:
    """Return the version of the last checkpoint, as far as the log says it; -1 where it does not."""
    with suppress(ValueError, TypeError, KeyError):
        return int(orjson.loads(folder.read("_delta_log/_last_checkpoint") or b"{}")["version"])
    return -1


def by_version(paths: Iterable[str]) -> tuple[list[int], dict[int, list[str]]]:
    """Return the versions of the entries among files of a log, and the files of each whole checkpoint."""
    entries, parts = list[int](), dict[int, list[str]]()
    for path in paths:
        if (match := ENTRY.fullmatch(path)) is None:
            continue
        if match[2] == "json":
            entries.append(int(match[1]))
        else:
            parts.setdefault(int(match[1]), []).append(path)
    return entries, {version: found for version, found in parts.items() if _is_whole(found)}


def _is_whole(names: Sequence[str]) -> bool:
    if any(name.endswith(".checkpoint.parquet") for name in names):
        return True
    return any(len(names) == int(name.split(".")[-2]) for name in names)


def _plain(action: Mapping[str, Any]) -> dict[str, Any]:
    """Return an action of a checkpoint as a commit would have it: maps are mappings, nothing is null."""
    maps = ("partitionValues", "tags", "configuration", "options")
    found = {}
    for name, value in action.items():
        if value is not None and name not in ("stats_parsed", "partitionValues_parsed"):
            found[name] = dict(value) if name in maps else value
    return found


_BY_VERSION = {"appendOnly": 2, "changeDataFeed": 4, "generatedColumns": 4}
"""Feature → the version from which every writer supports it, without its being listed."""
_NAMED = 7
NTZ, _NTZ_TYPE = "timestampNtz", '"timestamp_ntz"'


def alteration(
    snapshot: Snapshot,
    properties: Mapping[str, str],
    columns: Mapping[str, Mapping[str, str | None]],
    new: Sequence[pa.Field] = (),
) -> list[dict[str, Any]]:
    """Return the actions that set properties and metadata of columns, by their names; none if all is so.

    Metadata that is to be None goes. Columns that are `new` come with their own, unless they are there.
    """
    import pyarrow as pa  # noqa: PLC0415 - for types elsewhere

    schema = orjson.loads(snapshot.metadata["schemaString"])
    for one in schema["fields"]:
        said = {**one.get("metadata", {}), **columns.get(one["name"], {})}
        one["metadata"] = {name: value for name, value in said.items() if value is not None}
    there = {one["name"] for one in schema["fields"]}
    if missing := [one for one in new if one.name not in there]:
        schema["fields"] += orjson.loads(Schema.from_arrow(pa.schema(missing)).to_json())["fields"]
    metadata = {
        **snapshot.metadata,
        "configuration": {**snapshot.properties, **properties},
        "schemaString": orjson.dumps(schema).decode(),
        "format": {"provider": "parquet", "options": {}},
    }
    protocol = protocol_of(snapshot.protocol, metadata)
    same = orjson.loads(snapshot.metadata["schemaString"]) == schema
    if same and metadata["configuration"] == snapshot.properties and protocol == snapshot.protocol:
        return []
    operation = "ADD COLUMNS" if missing else "SET TBLPROPERTIES"
    actions = [information(operation, snapshot, milliseconds())]
    if protocol != snapshot.protocol:
        actions.append({"protocol": protocol})
    return [*actions, {"metaData": metadata}]


def protocol_of(protocol: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the protocol with what the metadata uses."""
    properties = metadata["configuration"]
    used = {
        "appendOnly": is_true(properties.get(APPEND_ONLY)),
        "changeDataFeed": is_true(properties.get(CHANGES)),
        "generatedColumns": f'"{EXPRESSION}"' in metadata["schemaString"],
    }
    wanted = {name for name, is_used in used.items() if is_used}
    found = dict(protocol)
    of_readers = {VECTORS: is_true(properties.get(WITH_VECTORS)), NTZ: _NTZ_TYPE in metadata["schemaString"]}
    readers = {name for name, is_used in of_readers.items() if is_used}
    if int(found.get("minWriterVersion", 1)) < _NAMED and not readers:
        versions = [int(found.get("minWriterVersion", 1)), *(_BY_VERSION[name] for name in wanted)]
        return found | {"minWriterVersion": max(versions)} if wanted else found
    named = {*(found.get("writerFeatures") or ()), *wanted, *readers}
    if named == set(found.get("writerFeatures") or ()):
        return found
    found |= {"minWriterVersion": _NAMED, "writerFeatures": sorted(named)}
    if readers:
        features = sorted({*(found.get("readerFeatures") or ()), *readers})
        found |= {"minReaderVersion": 3, "readerFeatures": features}
    return found
