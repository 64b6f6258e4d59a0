"""A proposal takes everything that was seen, says what it does not know, and is a valid file."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from headpond.cli.commands.suggest import toml
from headpond.core.schemas import USER_RECORD_SCHEMA
from headpond.dsql.config import TableSpec
from headpond.dsql.suggest import ColumnSeen, Survey, document
from headpond.kinesis.archive.lines import read_lines
from headpond.kpl.records import open_records
from headpond.pipeline import loads
from headpond.pipeline.lake import row_changes
from tests.kit.support import vector_bytes

HEAD = '[source]\narchive = "x"\nformat = "dsql"\n[target]\npath = "lake"\n'


def surveyed(changes: list[dict[str, Any]]) -> Survey:
    survey = Survey()
    data = [json.dumps({"type": "full"} | change).encode() for change in changes]
    survey.add(records(data))
    return survey


def records(data: list[bytes]) -> pa.RecordBatch:
    rows = [
        {
            "stream": "s",
            "shard_id": "0",
            "sequence_number": str(n),
            "sub_sequence_number": 0,
            "aggregated": False,
        }
        | {"data": each}
        for n, each in enumerate(data)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=USER_RECORD_SCHEMA)


def change(op: str = "c", schema: str = "public", table: str = "t", **images: Any) -> dict[str, Any]:
    source = {"version": "1.0", "ts_ns": 1, "txId": "t", "schema": schema, "table": table, "cluster": "c"}
    return {"op": op, "source": source} | images


@pytest.mark.parametrize(
    ("tokens", "guess", "note"),
    [
        (["1", "-2", "null"], "bigint", "-2 to 1: or integer"),
        (["1783600000000000"], "bigint", "timestamp or timestamptz"),
        (
            ["1", "980"],
            "bigint",
            "1 to 980: or integer, smallint, oid, date (days since 1970), time (microsec",
        ),
        (["-2", "1"], "bigint", "-2 to 1: or integer, smallint, date (days since 1970), interval"),
        (["0", str(2**31)], "bigint", f"0 to {2**31}: or oid, time (microseconds), interval"),
        ([str(2**63 - 1), str(-(2**63))], "bigint", f"{2**63 - 1}: or interval (microseconds)"),
        ([str(2**63)], "any", "beyond 64 bits"),
        (["1" * 5_000], "any", "beyond 64 bits"),
        (["1", "1.5"], "double precision", "or real"),
        (["1", '"NaN"', '"-Infinity"'], "double precision", "or real"),
        (["0.0", "0e5"], "double precision", "or real"),
        (["1e999"], "any", "number beyond a double"),
        (["1e-999"], "any", "number beyond a double"),
        (['"NaN"'], "text", "numeric"),
        (["true", "false"], "boolean", ""),
        (["true", "1"], "any", "boolean, integer"),
        (["null"], "any", "only null"),
        (['"1.50"', '"-7"'], "text", "every value looks like numeric"),
        (['"1.50"', '"x"'], "text", ""),
        (['"6f1c2d3e-0000-4000-8000-000000000001"'], "text", "uuid"),
        (['"{\\"a\\": 1}"', '"[]"'], "text", "json"),
        (['"AAECAwQFBgc="'], "text", "bytea"),
        (["[]"], "any", "oidvector"),
        (["[1]"], "any", "list"),
        (["{}"], "any", "object"),
        (['"a"', "7"], "any", "integer, text"),
    ],
)
def test_types_are_guessed_so_that_all_values_fit(tokens: list[str], guess: str, note: str) -> None:
    """Digits alone are integers, text stays text; what it could be besides is only said."""
    seen = ColumnSeen()
    for token in tokens:
        seen.add(token)
    assert seen.guess()[0] == guess
    assert note in seen.guess()[1]


def keys_of(*changes: dict[str, Any]) -> tuple[list[str], str]:
    found = document(surveyed(list(changes)))["tables"]["public.t"]
    return found["keys"], found["keys_note"]


ROW = change(after={"a": 1, "b": 2, "c": 3})


def test_keys_are_what_deletes_name() -> None:
    """In the order of the table's columns, whatever their order in a delete."""
    keys, note = keys_of(ROW, change("d", before={"b": 2, "a": 1}), change("d", before={"a": 5, "b": 2}))
    assert keys == ["a", "b"]
    assert note == "as 2 deletes name them"


def test_without_a_delete_no_key_is_proposed() -> None:
    """It says what that means."""
    keys, note = keys_of(ROW)
    assert keys == []
    assert "no delete was seen" in note


def test_deletes_without_a_key_make_a_log() -> None:
    """So does the service with tables that have none."""
    keys, note = keys_of(ROW, change("d", before=None))
    assert keys == []
    assert "the table has none" in note


def test_deletes_that_disagree_are_told() -> None:
    """None of them is chosen."""
    keys, note = keys_of(ROW, change("d", before={"a": 1}), change("d", before={"b": 1}), change("d"))
    assert keys == []
    assert '["a"] (1), ["b"] (1), none (1)' in note


def test_odd_names_are_written_so_that_the_file_can_be_read() -> None:
    """Dots, quotes, line ends and DEL; two tables whose joined names are one; an entry that is there."""
    odd = 'a "b"\n#.\x7f\\'
    changes = [
        change(schema="a.b", table="c", after={odd: 1}),
        change(schema="a", table="b.c", after={"x": True}),
        change("d", schema=odd, table="t", before={odd: "x"}),
    ]
    proposal = document(surveyed(changes), [TableSpec(name="old name", schema="a", table="b.c")])
    text = toml(proposal)
    pipeline = loads(HEAD + text)
    assert [(table.schema, table.table) for table in pipeline.tables] == [
        ("a.b", "c"),
        ("a", "b.c"),
        (odd, "t"),
    ]
    assert pipeline.tables[0].columns == {odd: "bigint"}
    assert pipeline.tables[2].keys == (odd,)
    assert '# this table already has an entry: "old name"' in text


def test_what_is_no_change_is_counted() -> None:
    """By reason; fragments and chunked records too."""
    survey = surveyed([ROW])
    chunked = change(chunked={"after": {"chunk_id": "x", "total_fragments": 1, "crc32c": "0"}}) | {
        "type": "chunked"
    }
    fragment = {"type": "fragment", "chunk_id": "x", "index": 0, "data": "{}"}
    survey.add(records([b"", b"[]", b"\xff", json.dumps(chunked).encode(), json.dumps(fragment).encode()]))
    proposal = document(survey)
    assert proposal["records"] == 6
    assert proposal["refused"] == {"invalid_json": 1, "not_an_object": 1, "not_utf8": 1}
    assert proposal["fragments"] == 1
    assert (proposal["tables"]["public.t"]["upserts"], proposal["tables"]["public.t"]["chunked"]) == (2, 1)
    text = toml(proposal)
    assert "# 1 record would be quarantined: not_an_object" in text
    assert "# 1 fragments of chunked changes" in text


@pytest.mark.parametrize("name", ["dsql/small.jsonl", "dsql/stream.jsonl"])
@pytest.mark.slow
def test_a_proposal_refuses_nothing_that_was_seen(name: str) -> None:
    """Decoding the same records with it finds no cast error, no wrong key and no unknown table."""
    batches = list(open_records(read_lines(vector_bytes(name).splitlines(), stream="s", file="f")))
    survey = Survey()
    for batch in batches:
        survey.add(batch)
    config = row_changes(loads(HEAD + toml(document(survey))))
    refused: Counter[str] = Counter()
    for batch in batches:
        refused.update(config.decode(batch).quarantine.column("reason").to_pylist())
    assert refused - survey.refused <= Counter({"missing_key": 10_000, "missing_before": 10_000})
    assert not {"cast_error", "unknown_table", "key_mismatch"} & set(refused)
    assert survey.tables
