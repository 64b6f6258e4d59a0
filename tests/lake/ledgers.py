"""Drive QLDB records into a lake without Spark: the same decoder and the same writes."""

from __future__ import annotations

import base64
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from amazon.ion import simpleion

from headpond.core.schemas import USER_RECORD_SCHEMA
from headpond.ion.stream import only_value
from headpond.ion.text_reader import to_binary
from headpond.lake.tables import Lake
from headpond.lake.target import DecodedBatch
from headpond.qldb.config import DocumentSpec
from headpond.qldb.decode import LedgerConfig
from tests.kit.support import vector_json, vector_lines

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TABLES = ("Person", "VehicleRegistration", "Mixed", "Über-Konten")
SEQUENCE_NO = 7


def datums(name: str) -> list[bytes]:
    """The records of a file of the vectors."""
    return [base64.b64decode(line["data"]) for line in vector_lines(f"qldb/{name}.jsonl")]


def hash_of(number: int) -> str:
    """A hash as Ion text; a greater number makes a greater hash."""
    return "{{" + base64.b64encode(bytes([number]) * 32).decode() + "}}"


def revision(
    document: str,
    version: int,
    contents: str | None,
    *,
    table: str = "Person",
    hashed: int = 1,
    redacted: bool = False,
    sequence_no: int = SEQUENCE_NO,
) -> bytes:
    """Make a revision; its hash is taken as given, for nothing here verifies it."""
    data = "" if contents is None else f", data: {contents}"
    gone = f", dataHash: {hash_of(99)}" if redacted else ""
    return to_binary(
        f"""{{qldbStreamArn: "arn", recordType: "REVISION_DETAILS", payload: {{
        tableInfo: {{tableName: "{table}", tableId: "T{table}"}},
        revision: {{blockAddress: {{strandId: "S", sequenceNo: {sequence_no}}}, hash: {hash_of(hashed)},
        metadata: {{id: "{document}", version: {version}, txTime: 2020-01-01T00:00:00Z, txId: "X{version}"}}
        {data}{gone} }} }} }}"""
    )


def block(
    listed: Sequence[tuple[str, int]],
    *,
    redacts: Sequence[tuple[str, int]] = (),
    sequence_no: int = SEQUENCE_NO,
) -> bytes:
    """Make a block that lists (document, hash) and asks to redact (document, version)."""
    summaries = ", ".join(f'{{hash: {hash_of(number)}, documentId: "{doc}"}}' for doc, number in listed)
    named = ", ".join(
        f'{{blockAddress: {{strandId: "S", sequenceNo: 1}}, tableId: "TPerson", documentId: "{doc}", '
        f"version: {version}}}"
        for doc, version in redacts
    )
    redaction = f", redactionInfo: {{revisions: [{named}]}}" if redacts else ""
    return to_binary(
        f"""{{qldbStreamArn: "arn", recordType: "BLOCK_SUMMARY", payload: {{
        blockAddress: {{strandId: "S", sequenceNo: {sequence_no}}}, transactionId: "X",
        blockTimestamp: 2020-01-01T00:00:00Z, blockHash: {hash_of(5)}, entriesHash: {hash_of(5)},
        previousBlockHash: {hash_of(5)}, entriesHashList: [],
        revisionSummaries: [{summaries}]{redaction} }} }}"""
    )


def exported() -> list[dict[str, Any]]:
    """The clean stream as blocks of a journal export."""
    payloads = [simpleion.loads(datum)["payload"] for datum in datums("clean")]
    details = {
        (one["revision"]["metadata"]["id"], one["revision"]["blockAddress"]["sequenceNo"]): one["revision"]
        for one in payloads
        if "revision" in one
    }
    blocks = []
    for payload in payloads:
        if "blockHash" not in payload:
            continue
        number = payload["blockAddress"]["sequenceNo"]
        block = {name: payload[name] for name in payload if name != "revisionSummaries"}
        listed = payload.get("revisionSummaries", [])
        found = [details.get((one.get("documentId"), number), {"hash": one["hash"]}) for one in listed]
        blocks.append(block | ({"revisions": found} if found else {}))
    return blocks


def records(blobs: Sequence[bytes], *, first: int = 0, problem: str | None = None) -> pa.Table:
    """User records of some datums."""
    rows = [
        {
            "stream": "s",
            "shard_id": "file",
            "sequence_number": str(first + number),
            "sub_sequence_number": 0,
            "aggregated": False,
            "problem": problem,
            "data": data,
        }
        for number, data in enumerate(blobs)
    ]
    return pa.Table.from_pylist(rows, schema=USER_RECORD_SCHEMA)


def decoded(config: LedgerConfig, blobs: Sequence[bytes], *, first: int = 0) -> DecodedBatch:
    """Decode some datums as one micro-batch."""
    return decoded_records(config, records(blobs, first=first))


def decoded_records(config: LedgerConfig, some: pa.Table | pa.RecordBatch) -> DecodedBatch:
    """Decode user records as one micro-batch."""
    found = config.decode(some)
    return DecodedBatch(
        tables={name: pa.Table.from_batches([rows]) for name, rows in found.tables.items()},
        quarantine=pa.Table.from_batches([found.quarantine]),
        counters=Counter(found.counters),
        facts={name: pa.Table.from_batches([rows]) for name, rows in found.facts.items()},
    )


def config_of(
    *tables: str,
    past: bool = True,
    current: bool = True,
    raw_ion: bool = False,
    canonical_json: bool = False,
    honour: bool = False,
) -> LedgerConfig:
    """Tables of the ledger as current state, as history, or both (`NAME.history`)."""
    specs = [DocumentSpec(name=name, table=name) for name in tables if current]
    specs += [DocumentSpec(name=f"{name}.history", table=name, keep="history") for name in tables if past]
    return LedgerConfig(tables=tuple(specs), raw_ion=raw_ion, canonical_json=canonical_json, honour=honour)


def ledger_in(folder: Path, config: LedgerConfig) -> Lake:
    """Open and prepare a lake."""
    lake = Lake(str(folder), config)
    lake.prepare()
    return lake


def rows_of(lake: Lake) -> dict[str, list[dict[str, Any]]]:
    """Every row of every configured table, in an order of their own."""
    return {
        name: sorted(
            table.typed.file.read().to_pylist(), key=lambda row: (row["_document_id"], row["_version"])
        )
        for name, table in lake.tables.items()
    }


def state_of(lake: Lake) -> dict[str, tuple[str, int, str]]:
    """Document → table, version and Ion hash of the data, of every live document."""
    return {
        row["_document_id"]: (name, row["_version"], only_value(row["_ion"]).ion_hash().hex())
        for name, rows in rows_of(lake).items()
        if not lake.tables[name].past
        for row in rows
    }


def expected_state() -> dict[str, tuple[str, int, str]]:
    """What `state_of` gives for the clean stream of the vectors."""
    return {
        one["documentId"]: (one["tableName"], one["version"], one["data_ion_hash_hex"])
        for one in vector_json("qldb/expected.json")["final_state"]
        if not one["deleted"]
    }
