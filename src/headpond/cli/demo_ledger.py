"""The ledger of the demonstration: 40 blocks of a QLDB journal, kept as tables and proven.

`data/ledger.jsonl.gz` holds the stream records, one Kinesis record a line, as an archive has them;
`data/ledger_expected.json.gz` the revisions in them, as amazon.ion reads them.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from headpond.cli.demo_stream import packaged, user_records
from headpond.cli.verify_files import pieces
from headpond.cli.verify_pieces import Examined, examine

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from headpond.formats import kpl
    from headpond.tables.ledger import LedgerLake

LEDGER = "vehicle-ledger"
TABLES = ("Person", "VehicleRegistration", "Mixed", "Über-Konten")
PERSON = {"FirstName": "string", "DOB": "timestamp", "GovId": "string"}
"""Declared columns of the one table that has some."""
FIRST_NAME, FORGED = b"Lewis", b"Louis"


def ledger_lines() -> list[bytes]:
    """Give the stream's records as the lines of an archive."""
    return packaged("ledger.jsonl.gz").splitlines()


def ledger_records() -> list[kpl.UserRecord]:
    """Give the stream's records as user records, in order of the journal."""
    return user_records(ledger_lines())


def ledger_text(source: str, *, path: str) -> str:
    """Write the pipeline file: each table as it is now and with every revision, and the proof beside them."""
    parts = [f'[source]\n{source}\nformat = "qldb"\n', f'[target]\npath = "{path}"\n']
    for table in TABLES:
        columns = ", ".join(f"{name} = {json.dumps(kind)}" for name, kind in PERSON.items())
        declared = f"columns = {{ {columns} }}\n" if table == "Person" else ""
        parts.append(f"[tables.{json.dumps(table, ensure_ascii=False)}]\n{declared}")
        history = json.dumps(f"{table}_history", ensure_ascii=False)
        named = json.dumps(table, ensure_ascii=False)
        parts.append(f'[tables.{history}]\ntable = {named}\nkeep = "history"\n')
    parts.append("[verify]\nenabled = true\n")
    return "\n".join(parts)


def ledger_differences(lake: LedgerLake) -> list[str]:
    """Say where the tables differ from the expected revisions, one sentence each; empty when they do not."""
    revisions = json.loads(packaged("ledger_expected.json.gz"))["revisions"]
    found = []
    for table in TABLES:
        every = {(document, version, told) for name, document, version, told, _ in revisions if name == table}
        newest = {d: (v, told, gone) for name, d, v, told, gone in revisions if name == table}
        now = {(d, v, told) for d, (v, told, gone) in newest.items() if not gone}
        for name, wanted in ((table, now), (f"{table}_history", every)):
            have = _rows(lake, name)
            found += [f"{name}: revision {row} is missing" for row in sorted(wanted - have)]
            found += [f"{name}: revision {row} should not be there" for row in sorted(have - wanted)]
    return found


def with_a_letter_changed() -> list[bytes]:
    """Give the lines with one letter of one revision changed, and every length as it was."""
    lines = ledger_lines()
    for number, line in enumerate(lines):
        record = json.loads(line)
        data = base64.b64decode(record["data"])
        at = data.find(FIRST_NAME)
        if b"REVISION_DETAILS" in data and at >= 0:
            forged = data[:at] + FORGED + data[at + len(FORGED) :]
            lines[number] = json.dumps(record | {"data": base64.b64encode(forged).decode()}).encode()
            return lines
    raise AssertionError  # the packaged ledger has such a name; a test holds it


def anomalies_of(archive: Path) -> list[dict[str, Any]]:
    """Prove an archive, as `headpond verify` does; in this process, without Spark."""
    found = Examined()
    parts: Iterable[Examined] = examine(pieces(str(archive)), workers=1)
    for part in parts:
        found.absorb(part)
    rows: list[dict[str, Any]] = found.journal.checked(closed=True, deletes=True).anomalies.to_pylist()
    return rows


def _rows(lake: LedgerLake, name: str) -> set[tuple[str, int, str]]:
    typed = lake.typed[name]
    typed.prepare()
    rows = typed.file.read(["_document_id", "_version", "_hash"]).to_pylist()
    return {(r["_document_id"], r["_version"], base64.b64encode(r["_hash"]).decode()) for r in rows}
