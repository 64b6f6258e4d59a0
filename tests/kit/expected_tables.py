"""What the tables of the vectors must be: a pipeline file for them, and a comparison with a lake.

The expected tables are written in wire JSON (what a change record holds for a value) with the PostgreSQL
type of each column. Each expected value is read by the scalar caster, one at a time; the tables were written
by the batch path: the two have nothing but the specification in common.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from headpond import kpl
from headpond.dsql.pg_types import cast, parse_type
from tests.kit.support import vector_bytes, vector_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headpond.lake.tables import Lake

MAX_LISTED = 20
"""So many differences of one table are listed; the rest is counted."""
RUN_LENGTH = 8
"""So many records go out plain, then so many as one aggregate, and so on."""


def archive_lines() -> list[bytes]:
    """Return the change records of the small vector as the lines of an archive."""
    return vector_bytes("dsql/small.jsonl").splitlines()


def change_records() -> list[kpl.UserRecord]:
    """Return the change records of the small vector as user records, in arrival order."""
    read = map(json.loads, archive_lines())
    return [kpl.UserRecord(line["partitionKey"], base64.b64decode(line["data"])) for line in read]


def fill(client: Any, stream: str, records: Sequence[kpl.UserRecord]) -> None:
    """Put records into a stream, half of them plain and half of them in aggregates."""
    runs = [records[at : at + RUN_LENGTH] for at in range(0, len(records), RUN_LENGTH)]
    groups = [group for n, run in enumerate(runs) for group in ([run] if n % 2 else [[r] for r in run])]
    for each in map(kpl.encode, groups):
        key = {} if each.explicit_hash_key is None else {"ExplicitHashKey": each.explicit_hash_key}
        client.put_record(StreamName=stream, PartitionKey=each.partition_key, Data=each.data, **key)


def pipeline_text(source: str, *, path: str, wanted: dict[str, Any] | None = None) -> str:
    """Write a pipeline file for expected tables.

    Args:
        source: lines of `[source]` that say where the records are.
        path: the lake.
        wanted: the expected tables; those of the small vector unless given.
    """
    parts = [f'[source]\n{source}\nformat = "dsql"\n', f'[target]\npath = "{path}"\n']
    wanted = wanted or vector_json("dsql/small.expected.json")
    logs = {name: log | {"keys": []} for name, log in wanted["append_logs"].items()}
    for name, table in (wanted["tables"] | logs).items():
        # JSON's arrays and strings are TOML's too.
        columns = ", ".join(f"{json.dumps(c)} = {json.dumps(kind)}" for c, kind in table["columns"].items())
        parts.append(
            f"[tables.{json.dumps(name)}]\nkeys = {json.dumps(table['keys'])}\ncolumns = {{ {columns} }}\n"
        )
    return "\n".join(parts)


def differences(lake: Lake, expected: dict[str, Any]) -> list[str]:
    """Return where a lake differs from the expected tables, one sentence each; empty when it does not.

    Args:
        lake: the lake.
        expected: `tables` (name → `keys`, `columns`, `rows`) and `append_logs` (name → `columns`, `changes`).
    """
    found: list[str] = []
    for name, table in expected["tables"].items():
        wanted = {_row(table["columns"], row["row"], (row["ts_ns"], row["txId"])) for row in table["rows"]}
        have = Counter(_lake_rows(lake, name, table["columns"], ("_ts_ns", "_tx_id")))
        found += _compare(name, Counter(wanted), have)
    for name, log in expected["append_logs"].items():
        wanted_log = Counter(
            _row(log["columns"], change["after"] or {}, (change["ts_ns"], change["txId"], change["op"]))
            for change in log["changes"]
        )
        entries = Counter(_lake_rows(lake, name, log["columns"], ("_ts_ns", "_tx_id", "_op")))
        # A log holds every delivery: a redelivered change stands there more than once.
        extra = {row: min(count, 1) for row, count in entries.items() if row not in wanted_log}
        enough = {row: min(count, wanted_log[row]) for row, count in entries.items() if row in wanted_log}
        found += _compare(name, wanted_log, Counter(enough | extra))
    return found


def _row(columns: dict[str, str], row: dict[str, Any], own: tuple[Any, ...]) -> tuple[Any, ...]:
    values = []
    for name, kind in columns.items():
        token = json.dumps(row.get(name), ensure_ascii=False)
        values.append(_comparable(cast(parse_type(kind), token), loose=kind == "any"))
    return (*own, *values)


def _lake_rows(lake: Lake, name: str, columns: dict[str, str], own: tuple[str, ...]) -> list[tuple[Any, ...]]:
    typed = lake.typed[name]
    typed.prepare()
    table = typed.file.read()
    nothing = [None] * table.num_rows
    lists = [table[c].to_pylist() for c in own]
    for original, kind in columns.items():
        column = typed.column(original)
        cells = table[column].to_pylist() if column in table.column_names else nothing
        lists.append([_comparable(cell, loose=kind == "any") for cell in cells])
    return list(zip(*lists, strict=True))


def _comparable(value: Any, *, loose: bool = False) -> Any:
    if loose and isinstance(value, str):
        return json.dumps(json.loads(value), sort_keys=True)
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, float):
        return repr(value)  # NaN equals itself here
    return value


def _compare(name: str, wanted: Counter[Any], have: Counter[Any]) -> list[str]:
    missing, extra = wanted - have, have - wanted
    said = [f"{name}: this row is missing or differs: {row}" for row in list(missing.elements())[:MAX_LISTED]]
    said += [f"{name}: this row should not be there: {row}" for row in list(extra.elements())[:MAX_LISTED]]
    left = missing.total() + extra.total() - len(said)
    return [*said, f"{name}: and {left} more rows"] if left else said
