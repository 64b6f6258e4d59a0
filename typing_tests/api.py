"""Ordinary user code that must type-check under mypy strict. It is never run."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_type

import headpond
from headpond import kpl
from headpond.api.looking import Status
from headpond.api.reading import Quarantine
from headpond.api.running import Summary
from headpond.core.errors import ConfigurationError, HeadpondError, InvalidData
from headpond.dsql import records as dsql
from headpond.localkinesis import LocalKinesis
from headpond.pipeline import Pipeline, load, loads

if TYPE_CHECKING:
    from pathlib import Path


def read_a_pipeline(path: Path) -> list[str]:
    pipeline = load(path)
    assert_type(pipeline, Pipeline)
    try:
        loads("[source]\n", path.parent, environ={"NAME": "value"})
    except ConfigurationError as error:
        assert_type(error.next_step, str)
    options: dict[str, str] = pipeline.source.source_options()
    return [table.name for table in pipeline.tables if table.keep == "current"] + list(options)


def run_and_look(folder: Path) -> str:
    pipeline = headpond.Pipeline(
        source={"archive": folder / "*.jsonl", "format": "dsql"},
        target=folder / "lake",
        tables={"public.orders": {"keys": ["id"]}},
    )
    summary = headpond.run(pipeline, until_caught_up=True)
    assert_type(summary, Summary)
    assert_type(headpond.status(pipeline), Status)
    assert_type(headpond.quarantine(pipeline), Quarantine)
    orders = headpond.tables(folder / "lake")["public.orders"]
    rows: int = orders.at("2026-11-01T00:00:00Z").to_polars(where="price > 1").height
    frame = orders.to_pandas(["id"], limit=rows)
    return f"{summary.quarantined} {len(frame)} {headpond.inspect(b'{}')['verdict']}"


def pack_and_open(data: bytes) -> list[bytes]:
    packed = kpl.encode([kpl.UserRecord("key", data), kpl.UserRecord("other", b"", explicit_hash_key="7")])
    match kpl.decode(packed.data):
        case kpl.Aggregate(records=records):
            return [record.data for record in records]
        case kpl.Plain():
            return [packed.data]
        case kpl.Malformed(reason=reason):
            raise InvalidData(f"Cannot be opened: {reason}.", reason=reason)


def look_at_a_change(data: bytes) -> str | None:
    match dsql.parse(data):
        case dsql.Change(op=op, after=after, chunks=chunks):
            assert_type(after, str | None)
            return chunks["after"].chunk_id if "after" in chunks else op
        case dsql.Fragment(chunk_id=chunk_id):
            return chunk_id
        case dsql.Refused(reason=reason):
            return reason


def use_a_local_kinesis() -> str:
    with LocalKinesis(port=0) as kinesis:
        kinesis.engine.create_stream("orders", 2)
        client = kinesis.client()
        put = client.put_record(StreamName="orders", PartitionKey="k", Data=b"x")
        return put["SequenceNumber"] + kinesis.endpoint_url


def exit_code_of(error: HeadpondError) -> int:
    return error.exit_code
