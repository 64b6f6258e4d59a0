"""QLDB records to typed rows: each rule for columns, and each way into quarantine."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from headpond.core.errors import ConfigurationError, UsageError
from headpond.ion.stream import only_value
from headpond.ion.text import canonical_json, ion_text
from headpond.ion.text_reader import to_binary
from headpond.qldb.config import DocumentSpec
from headpond.qldb.decode import LedgerConfig
from tests.kit.support import vector_lines
from tests.lake.ledgers import hash_of, records, revision


def columns_of(contents: list[str], **spec: Any) -> tuple[dict[str, list[Any]], list[tuple[str, str]]]:
    """Columns of one table, and reasons and details of what was refused."""
    config = LedgerConfig(tables=(DocumentSpec(name="t", table="Person", **spec),))
    blobs = [revision(f"d{at}", 0, each) for at, each in enumerate(contents)]
    found = config.decode(records(blobs))
    rows = found.tables.get("t")
    columns = {} if rows is None else {
        name[2:]: rows.column(name).to_pylist() for name in rows.schema.names if name.startswith("c:")
    }  # fmt: skip
    refused = found.quarantine.to_pylist()
    return columns, [(row["reason"], row["detail"]) for row in refused]


def test_undeclared_fields_are_canonical_json() -> None:
    """Whatever their type, and though it changes: symbols, annotations and s-expressions as Ion text."""
    columns, refused = columns_of(
        ["{a: 1}", '{a: "x"}', "{a: [1, {b: 2.50}]}", "{a: sym}", "{a: k::(x 1)}", "{a: null.int}", "{}"]
    )
    assert columns["a"] == ["1", '"x"', '[1,{"b":2.50}]', '"sym"', '"k::(x 1)"', None, None]
    assert refused == []


def test_a_declared_type_that_does_not_fit() -> None:
    """Goes to quarantine with the reason and the field's name; the others stay."""
    columns, refused = columns_of(
        ["{a: 1.50}", '{a: "x"}', "{a: 1.505}", "{a: 1}"], columns={"a": "decimal(5,2)"}
    )
    assert [str(value) for value in columns["a"]] == ["1.50", "1.00"]
    assert refused == [
        ("cast_error", "the field 'a' cannot be decimal(5,2)"),
        ("out_of_range", "the field 'a' cannot be decimal(5,2)"),
    ]


def test_timestamps_have_their_offset_beside_the_instant() -> None:
    """Null where it is unknown; the exact text where it is declared as a string."""
    times = ["{t: 2020-01-01T01:00:00.1234567+01:00}", "{t: 2020-01-01T00:00:00-00:00}", "{}"]
    columns, _ = columns_of(times, columns={"t": "timestamp"})
    assert [None if t is None else t.isoformat() for t in columns["t"]] == [
        "2020-01-01T00:00:00.123456+00:00",
        "2020-01-01T00:00:00+00:00",
        None,
    ]
    assert columns["t#offset_minutes"] == [60, None, None]
    columns, _ = columns_of(times, columns={"t": "string"})
    assert columns["t"] == ["2020-01-01T01:00:00.1234567+01:00", "2020-01-01T00:00:00-00:00", None]


def test_names_that_meet() -> None:
    """A field twice in one struct, one called like a renamed one's new name, and one like an offset."""
    columns, _ = columns_of(["{a: 2, a: 1}"])
    assert columns == {"a": ["1"], "a#2": ["2"]}
    columns, _ = columns_of(["{old: 1, new: 2}", "{new: 3}"], rename={"old": "new"})
    assert columns == {"new": ["1", None], "new#2": ["2", "3"]}
    columns, _ = columns_of(["{a: 1, b: 2}"], rename={"a": "b", "b": "a"})
    assert columns == {"b": ["1"], "a": ["2"]}
    columns, _ = columns_of(["{'t#offset_minutes': 1}"], columns={"t": "timestamp"})
    assert columns == {"t": [None], "t#offset_minutes": [None], "t#offset_minutes#2": ["1"]}


def test_columns_may_be_left_out() -> None:
    """By their name after renaming."""
    columns, _ = columns_of(["{a: 1, b: 2, c: 3}"], rename={"a": "x"}, except_columns=("x", "b"))
    assert columns == {"c": ["3"]}


@pytest.mark.parametrize("count", [3, 200])
def test_the_whole_data_as_canonical_json(count: int) -> None:
    """One by one or followed together: all fields, those left out or twice among them; only on request."""
    contents = [f'{{b: {at}, left_out: "x", a: 1.50, b: sym}}' for at in range(count)]
    contents[1] = "{b: k::(x 1)}"
    blobs = [*(revision(f"d{at}", 0, each) for at, each in enumerate(contents)), revision("gone", 1, None)]
    spec = DocumentSpec(name="t", table="Person", columns={"a": "double"}, except_columns=("left_out",))
    for asked in (True, False):
        found = LedgerConfig(tables=(spec,), canonical_json=asked).decode(records(blobs)).tables["t"]
        texts = found.column("m:json").to_pylist()
        want: list[str | None] = [f'{{"a":1.50,"b":"sym","b#2":{at},"left_out":"x"}}' for at in range(count)]
        want[1] = '{"b":"k::(x 1)"}'
        assert texts == ([*want, None] if asked else [None] * len(blobs))


def test_what_is_no_row() -> None:
    """Tables that are not configured, records that were not opened, malformed ones; with their bytes."""
    config = LedgerConfig(tables=(DocumentSpec(name="t", table="Person"),))
    aggregate = base64.b64decode(vector_lines("qldb/aggregated.jsonl")[0]["data"])
    blobs = [revision("d", 0, "{}", table="Other"), aggregate, b""]
    found = config.decode(records(blobs)).quarantine.to_pylist()
    assert {(row["reason"], row["sequence_number"]) for row in found} == {
        ("unknown_table", "0"),
        ("not_binary_ion", "1"),
        ("empty", "2"),
    }
    assert {row["sequence_number"]: row["data"] for row in found} == {
        str(number): blob for number, blob in enumerate(blobs)
    }
    assert any("aggregate" in (row["detail"] or "") for row in found)
    (bad,) = config.decode(records([aggregate], problem="kpl_checksum_mismatch")).quarantine.to_pylist()
    assert (bad["reason"], bad["data"]) == ("kpl_checksum_mismatch", aggregate)


def test_revisions_of_other_tables_may_be_ignored() -> None:
    """They are counted, and their blocks' facts are kept all the same."""
    config = LedgerConfig(tables=(DocumentSpec(name="t", table="Person"),), unknown_tables="ignore")
    decoded = config.decode(records([revision("d", 0, "{}", table="Other"), revision("e", 0, "{}"), b""]))
    assert [row["reason"] for row in decoded.quarantine.to_pylist()] == ["empty"]
    assert (decoded.counters["ignored"], decoded.counters["changes"]) == (1, 1)
    assert [*decoded.tables] == ["t"]


def test_a_table_that_was_dropped_and_made_again_is_told_apart_by_its_id() -> None:
    """An entry may take one of them; what no entry takes is not lost."""
    again = revision("e", 0, "{}").replace(b"TPerson", b"UPerson")
    both = records([revision("d", 0, "{}"), again])
    old, new = (DocumentSpec(name=name, table="Person", table_id=f"{name}Person") for name in "TU")
    found = LedgerConfig(tables=(old, new)).decode(both)
    assert {name: rows.column("m:document_id").to_pylist() for name, rows in found.tables.items()} == {
        "T": ["d"], "U": ["e"],
    }  # fmt: skip
    found = LedgerConfig(tables=(new,)).decode(both)
    (row,) = found.quarantine.to_pylist()
    assert (row["reason"], row["sequence_number"]) == ("unknown_table", "0")
    assert row["detail"] == "the ledger's table 'Person' is not configured with this id"
    found = LedgerConfig(tables=(new,), unknown_tables="ignore").decode(both)
    assert (found.counters["ignored"], found.quarantine.num_rows) == (1, 0)


CONTENTS = (
    '{a: 1.50, t: 2020-01-02T03:04:05.678Z, s: "text", l: [1, sym, {x: -7}], b: {{AAEC}}, n: k::(y 2.5e0)}'
)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["stream", "export", "text", "json"])
def test_any_byte_flipped_or_cut_is_a_row_or_quarantine(kind: str) -> None:
    """Of a record, and of a block of an export in each form: nothing is raised, and nothing is lost."""
    time = "string" if kind == "json" else "timestamp"  # JSON lost its type
    spec = DocumentSpec(name="t", table="Person", columns={"a": "decimal(9,2)", "t": time})
    config = LedgerConfig(tables=(spec,), raw_ion=True, canonical_json=True, verify=True)
    whole = revision("d", 0, CONTENTS)
    if kind != "stream":
        stream = only_value(whole)
        text = ion_text(whole, stream.node, stream.symbols)
        inside = text[text.index("revision:") + len("revision:") : -2]
        hashed = hash_of(5)
        text = (
            f'{{blockAddress:{{strandId:"S",sequenceNo:7}},transactionId:"X",blockTimestamp:2020T,'
            f"blockHash:{hashed},entriesHash:{hashed},previousBlockHash:{hashed},entriesHashList:[{hashed}],"
            f'transactionInfo:{{statements:[],documents:{{d:{{tableName:"Person",tableId:"T",statements:[]}}}}}},'
            f"revisions:[{inside}]}}"
        )
        whole = to_binary(text)
        value = only_value(whole)
        if kind == "text":
            whole = text.encode()
        elif kind == "json":
            whole = canonical_json(whole, value.node, value.symbols).encode()
    (good,) = config.decode(records([whole])).tables["t"].to_pylist()
    assert good["m:document_id"] == "d"
    damaged = [whole[:at] for at in range(len(whole))]
    for mask in (0xFF, 0x01, 0x80):
        damaged += [whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1 :] for at in range(len(whole))]
    for blobs in (damaged[at : at + 500] for at in range(0, len(damaged), 500)):
        found = config.decode(records(blobs))
        rows = [
            row for name in found.tables for row in found.tables[name].column("m:sequence_number").to_pylist()
        ]
        refused = found.quarantine.column("sequence_number").to_pylist()
        blocks = found.facts["blocks"].num_rows if "blocks" in found.facts else 0
        assert {*rows, *refused} <= {str(at) for at in range(len(blobs))}
        assert len({*rows, *refused}) + (blocks if kind != "stream" else 0) >= len(blobs)


@pytest.mark.parametrize(
    "spec",
    [
        {"columns": {"a": "int"}},
        {"columns": {"a": "bigint"}, "except_columns": ("a",)},
        {"columns": {"a": "double"}, "partition_by": ("a",)},
    ],
)
def test_entries_that_contradict_themselves(spec: dict[str, Any]) -> None:
    """Are refused."""
    with pytest.raises((ConfigurationError, UsageError)):
        DocumentSpec(name="t", table="t", **spec)
