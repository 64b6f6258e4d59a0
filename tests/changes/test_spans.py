"""Images cut out of regular records: typed rows are those of images read one by one."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import pyarrow as pa
import pytest
from driver import user_records
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headpond.changes.config import DsqlConfig, TableSpec
from headpond.changes.dsql import Decoded, decode
from headpond.changes.dsql_rows import canonical
from headpond.changes.model import canonical_token
from headpond.formats import dsql_batch

KEYED = TableSpec(
    name="public.t",
    schema="public",
    table="t",
    keys=("id", "key 2"),
    columns={"id": "bigint", "key 2": "text", "at": "timestamp", "price": "numeric(12,2)"},
    rename={"quantity": "qty"},
    except_columns=("secret",),
)
LOG = TableSpec(name="public.log", schema="public", table="log")
CONFIG = DsqlConfig(tables=(KEYED, LOG))

VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [
        1, -7, 0, 10**18, 10**30, 1.5, None, True, False, "", "x", 'a "b"', "é\n\\", "ends in \\", "1.25",
        "{", "null", "\U0001f600", {}, [], {"a": [1, "}"]}, {"id": 3, "after": {"b": None}}, [[], [{}]],
        1783600000000000,
    ]
)  # fmt: skip
NAMES = st.sampled_from(
    ["at", "price", "quantity", "qty", "secret", "note", "", "é", 'n"', "a.b", "after", "op"]
)
IMAGES = st.dictionaries(NAMES, VALUES, max_size=5)


@st.composite
def changes(draw: st.DrawFn) -> bytes:
    """One change, mostly sound."""
    row = {"id": draw(st.integers(0, 5)), "key 2": draw(st.sampled_from(["k", "é", 'q"', "\\"]))}
    table = draw(st.sampled_from(["t", "t", "log", "other"]))
    delete = draw(st.booleans()) and draw(st.booleans())
    after: dict[str, Any] | None = None if delete else {**row, **draw(IMAGES)}
    record = {
        "type": "full",
        "op": "d" if delete else draw(st.sampled_from(["c", "u", "truncate?"])),
        "before": {**row, **draw(st.sampled_from([{}, {}, {"note": 1}]))}
        if delete and table != "log"
        else None,
        "after": after,
        "source": {
            "version": "1.0",
            "ts_ms": 1_783_600_000_000,
            "ts_ns": draw(st.integers(1_783_600_000_000_000_000, 2**63)),
            "txId": draw(st.sampled_from(["aaa", "bb", 'b"', "ü"])),
            "schema": "public",
            "table": table,
            "db": "postgres",
            "cluster": "c",
        },
        "ts_ms": 1,
        "ts_ns": 1,
    }
    separators = draw(st.sampled_from([(",", ":"), (",", ":"), (", ", ": ")]))
    text = json.dumps(record, ensure_ascii=draw(st.booleans()), separators=separators)
    return draw(
        st.sampled_from([text, text, text.replace("é", "\\u00e9"), text.replace("null", "nul")])
    ).encode()


def batch_of(records: list[bytes]) -> pa.RecordBatch:
    lines = [
        {
            "shard": "shardId-000000000000",
            "sequenceNumber": str(number),
            "partitionKey": "p",
            "approximateArrivalTimestamp": 1_783_600_000_000,
            "data": base64.b64encode(record),
        }
        for number, record in enumerate(records)
    ]
    return user_records(lines)


def rows_of(found: Decoded) -> dict[str, Any]:
    for rows in found.tables.values():
        rows.validate(full=True)
    return {
        "tables": {name: (rows.schema, rows.to_pylist()) for name, rows in found.tables.items()},
        "quarantine": found.quarantine.to_pylist(),
        "counters": found.counters,
    }


@pytest.mark.thorough
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some=st.lists(changes(), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_rows_do_not_depend_on_how_their_images_are_found(
    some: list[bytes], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of a few shapes, several of each: cut out at their places, and read one by one."""
    records = [record for record in some for _ in range(3)]
    random.Random(seed).shuffle(records)
    monkeypatch.setattr(dsql_batch, "MIN_SHAPE_ROWS", 2)
    monkeypatch.setattr(dsql_batch, "BLOCK_BYTES", 3000)
    cut_out = rows_of(decode(batch_of(records), CONFIG))
    monkeypatch.setattr(dsql_batch, "MIN_SHAPE_ROWS", 10**9)
    assert cut_out == rows_of(decode(batch_of(records), CONFIG))


def test_regular_records_are_cut_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The images of a batch of one shape are not read again."""
    monkeypatch.setattr("headpond.changes.dsql_images._read", lambda _: pytest.fail("an image was read"))
    source = {"version": "1.0", "ts_ns": 7, "txId": "t", "schema": "public", "table": "t", "ts_ms": 1}
    records = [
        json.dumps(
            {
                "type": "full",
                "op": "c",
                "after": {"id": n, "key 2": f"k{n}", "deep": {"a": [n]}},
                "source": source,
            }
        ).encode()
        for n in range(100)
    ]
    rows = decode(batch_of(records), CONFIG).tables["public.t"]
    assert rows.column("c:id").to_pylist() == list(range(100))
    assert rows.column("c:deep").to_pylist() == [f'{{"a": [{n}]}}' for n in range(100)]


def test_canonical_tokens_of_a_column_are_those_of_each() -> None:
    """Every kind of escape, alone and after a backslash that stands for itself."""
    texts = [
        '"x"',
        '"\\n"',
        '"\\/"',
        '"\\u0041"',
        '"\\\\u0041"',
        '"\\\\/"',
        '"\\\\\\/"',
        '"\\u001f"',
        '"\\""',
        "7",
        "[ 1 ]",
    ]
    found = canonical(pa.array([text.encode() for text in texts] + [None], pa.binary()))
    assert found.to_pylist() == [*(canonical_token(text).encode() for text in texts), None]
