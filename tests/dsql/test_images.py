"""Images cut out of regular records: typed rows are those of images read one by one."""

from __future__ import annotations

import base64
import json
import random
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.core.formats import Decoded
from headpond.dsql.config import TableSpec
from headpond.dsql.decode import DsqlConfig
from headpond.dsql.rows import canonical
from headpond.dsql.versions import canonical_token
from tests.dsql.driver import user_records
from tests.kit.support import share_of

if TYPE_CHECKING:
    from headpond.core.formats import Decoded

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


def decoded_without_data(batch: pa.RecordBatch) -> dict[str, Any]:
    """Rows as decoded, but for the records' own bytes and positions in them."""
    found = rows_of(CONFIG.decode(batch))
    for _, rows in found["tables"].values():
        for row in rows:
            del row["m:data"]
    for row in found["quarantine"]:
        del row["data"]
        row["detail"] = re.sub(r"character \d+", "character", row["detail"])
    return found


@pytest.mark.thorough
@settings(max_examples=share_of(40))
@given(some=st.lists(changes(), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_rows_do_not_depend_on_how_their_records_are_read(some: list[bytes], seed: int) -> None:
    """Records of a few kinds, several of each: as they are, and with a field more that only `parse` reads."""
    records = [record for record in some for _ in range(3)]
    random.Random(seed).shuffle(records)
    slowly = [record.replace(b"{", b'{"added":1,', 1) for record in records]
    found, expected = (decoded_without_data(batch_of(lines)) for lines in (records, slowly))
    assert found == expected


def test_nested_values_keep_their_text() -> None:
    """Lists and objects in columns, spaces included."""
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
    rows = CONFIG.decode(batch_of(records)).tables["public.t"]
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
