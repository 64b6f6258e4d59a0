"""A ledger from the vectors, its pipeline file, and its revisions as amazon.ion reads them."""

from __future__ import annotations

import base64
import gzip
import json
from functools import cache
from typing import TYPE_CHECKING, Any

from amazon.ion import simpleion

from tests.kit.support import VECTORS

if TYPE_CHECKING:
    from headpond.lake.tables import Lake

TABLES = ("Person", "VehicleRegistration", "Mixed", "Über-Konten")
PERSON = {"FirstName": "string", "DOB": "timestamp", "GovId": "string"}
"""Declared columns of the one table that has some."""
BLOCKS = 40


@cache
def ledger_lines() -> list[bytes]:
    """Return the lines of the clean stream up to the end of its 40th block, as an archive has them."""
    kept, blocks = [], 0
    for line in gzip.decompress((VECTORS / "qldb" / "clean.jsonl.gz").read_bytes()).splitlines():
        record = json.loads(line)
        blocks += datum(record)["recordType"] == "BLOCK_SUMMARY"
        if blocks > BLOCKS:
            break
        chosen = {"partitionKey": record["partition_key"], "data": record["data"]}
        kept.append(json.dumps(chosen, separators=(",", ":")).encode())
    return kept


def datum(line: dict[str, Any]) -> Any:
    """Read the record of a line with amazon.ion."""
    return simpleion.loads(base64.b64decode(line["data"]))


@cache
def revisions() -> list[tuple[str, str, int, str, bool]]:
    """Return table, document, version and hash of each revision, and whether it deletes; in this order."""
    found = []
    for record in map(datum, map(json.loads, ledger_lines())):
        if record["recordType"] != "REVISION_DETAILS":
            continue
        payload = record["payload"]
        metadata, revision = payload["revision"]["metadata"], payload["revision"]
        told = base64.b64encode(revision["hash"]).decode()
        gone = revision.get("data") is None and "dataHash" not in revision
        found.append((payload["tableInfo"]["tableName"], metadata["id"], metadata["version"], told, gone))
    return sorted(found)


def ledger_text(source: str, *, path: str) -> str:
    """Write the pipeline file: each table as it is now and with every revision, and the proof beside them."""
    parts = [f'[source]\n{source}\nformat = "qldb"\n', f'[target]\npath = "{path}"\n']
    for table in TABLES:
        columns = ", ".join(f"{name} = {json.dumps(kind)}" for name, kind in PERSON.items())
        declared = f"columns = {{ {columns} }}\n" if table == "Person" else ""
        named = json.dumps(table, ensure_ascii=False)
        history = json.dumps(f"{table}_history", ensure_ascii=False)
        parts.append(f"[tables.{named}]\n{declared}")
        parts.append(f'[tables.{history}]\ntable = {named}\nkeep = "history"\n')
    parts.append("[verify]\nenabled = true\n")
    return "\n".join(parts)


def wanted_rows() -> dict[str, set[tuple[str, int, str]]]:
    """Return document, version and hash of each row that each table must have."""
    wanted: dict[str, set[tuple[str, int, str]]] = {}
    for table in TABLES:
        mine = [row[1:] for row in revisions() if row[0] == table]
        newest = {row[0]: row for row in mine}
        wanted[table] = {row[:3] for row in newest.values() if not row[3]}
        wanted[f"{table}_history"] = {row[:3] for row in mine}
    return wanted


def ledger_differences(lake: Lake) -> list[str]:
    """Return where the tables differ from the expected revisions, one sentence each."""
    found = []
    for name, wanted in wanted_rows().items():
        lake.typed[name].prepare()
        rows = lake.typed[name].file.read(["_document_id", "_version", "_hash"]).to_pylist()
        have = {(r["_document_id"], r["_version"], base64.b64encode(r["_hash"]).decode()) for r in rows}
        found += [f"{name}: revision {row} is missing" for row in sorted(wanted - have)]
        found += [f"{name}: revision {row} should not be there" for row in sorted(have - wanted)]
    return found
