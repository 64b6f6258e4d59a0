"""User records to typed changes: routing, keys, casts, renames, and what is refused."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from headpond.core.errors import ConfigurationError
from headpond.core.formats import Decoded
from headpond.core.schemas import OWN_FIELDS, PENDING_SCHEMA, QUARANTINE_SCHEMA
from headpond.dsql.batch import open_batch
from headpond.dsql.config import TableSpec, schema_and_table, unknown_name
from headpond.dsql.decode import DsqlConfig
from headpond.dsql.versions import decode_versions, image_hash
from tests.dsql.driver import records_of

if TYPE_CHECKING:
    from headpond.core.formats import Decoded

TABLE = TableSpec(
    name="t", schema="public", table="t", keys=("id",), columns={"id": "bigint", "n": "numeric(5,2)"}
)
CONFIG = DsqlConfig(tables=(TABLE,))


def change(op: str = "c", *, after: Any = None, before: Any = None, **more: Any) -> bytes:
    source = {"version": "1.0", "ts_ns": 5, "txId": "tx", "schema": "public", "table": "t", "cluster": "kmab"}
    source.update(more.pop("source", {}))
    return json.dumps(
        {"type": "full", "op": op, "before": before, "after": after, "source": source, **more}
    ).encode()


def reasons(decoded: Decoded) -> list[tuple[str, str]]:
    return [(row["reason"], row["detail"]) for row in decoded.quarantine.to_pylist()]


def only_reason(record: bytes, config: DsqlConfig = CONFIG) -> str:
    (found,) = reasons(config.decode(records_of(record)))
    assert found[1]
    return found[0]


def test_a_typed_batch_has_own_and_table_columns() -> None:
    """Own columns first, declared columns in their order, undeclared ones as raw JSON text."""
    decoded = CONFIG.decode(records_of(change(after={"x": [1, 2.50], "id": 7, "n": "1.5"})))
    rows = decoded.tables["t"]
    assert rows.schema.names == [*(field.name for field in OWN_FIELDS), "c:id", "c:n", "c:x"]
    (row,) = rows.to_pylist()
    assert (row["m:key"], row["m:op"], row["m:delete"], row["m:ts_ns"], row["m:tx_id"]) == (
        "[7]",
        "c",
        False,
        5,
        "tx",
    )
    assert (row["c:id"], str(row["c:n"]), row["c:x"]) == (7, "1.50", "[1, 2.5]")
    version = decode_versions(pa.array([row["m:version"]]))
    assert [part.to_pylist() for part in version] == [[5], ["tx"], [False]]
    assert decoded.counters == {"records": 1, "changes": 1}
    assert decoded.quarantine.schema == QUARANTINE_SCHEMA
    assert decoded.pending.schema == PENDING_SCHEMA


def test_names_that_only_refused_images_have_are_not_looked_at() -> None:
    """A record of 10 MiB can name a million columns: an array for each would take a minute."""
    wide, narrow = change(after={f"w{n}": n for n in range(7)} | {"id": 1}), change(after={"id": 2, "a": 1})
    records = records_of(wide, narrow)
    images = open_batch(records["data"]).images
    members = images.members(np.arange(2), np.zeros(2, bool), delete_image="before", max_columns=5)
    tokens = {name: images.tokens.take(pa.array(at, mask=at < 0)) for name, at in members.tokens.items()}
    assert {name: values.to_pylist() for name, values in tokens.items()} == {
        "id": [None, b"2"],
        "a": [None, b"1"],
    }
    assert [len(members.shapes[code]) for code in members.codes] == [8, 2]
    decoded = DsqlConfig(tables=(TABLE,), max_columns=5).decode(records)
    assert reasons(decoded) == [("too_many_columns", "the image names 8 columns, more than 5")]
    assert decoded.tables["t"]["c:id"].to_pylist() == [2]


def test_a_delete_fills_its_key_from_before() -> None:
    """The other columns are null, and every delete has the hash of no image."""
    decoded = CONFIG.decode(records_of(change("d", before={"id": 7}), change(after={"id": 8, "n": "1"})))
    gone, kept = decoded.tables["t"].to_pylist()
    assert (gone["m:key"], gone["m:delete"], gone["c:id"], gone["c:n"]) == ("[7]", True, 7, None)
    assert gone["m:image_hash"] == image_hash(None)
    assert kept["m:image_hash"] == image_hash('{"id":8,"n":"1"}')


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (change("d"), "missing_before"),
        (change("d", before={"id": None}), "missing_key"),
        (change("d", before={"other": 1}), "missing_key"),
        (change("d", before={"id": 1, "n": None}), "key_mismatch"),
        (change(after={"n": "1"}), "missing_key"),
        (change(after={"id": None, "n": "bad"}), "missing_key"),
        (change(after={"id": 1, "n": "1.005"}), "cast_error"),
        (change(after={"id": "1"}), "cast_error"),
        (change(after={"id": 10**400}), "cast_error"),
        (change("d", before={"id": 1.5}), "cast_error"),
        (change(after={"id": 1}, source={"table": "other"}), "unknown_table"),
        (change(source={"table": "other"}), "unknown_table"),
        (change("d", after={"id": 1}, source={"schema": "other"}), "unknown_table"),
        (change(type="chunked", chunked={}, source={"table": "other"}), "unknown_table"),
        (change(after=[], source={"table": "other"}), "bad_image"),
        (change(), "missing_after"),
    ],
)
def test_checks_that_need_the_tables(record: bytes, reason: str) -> None:
    """Routing ranks above the checks of images, keys above casts."""
    assert only_reason(record) == reason


def test_a_failed_cast_names_its_columns_and_spares_the_others() -> None:
    """One bad change goes whole, its neighbours stay."""
    spec = TableSpec(
        name="t", schema="public", table="t", keys=("id",), columns={"id": "bigint", "a": "date", "b": "uuid"}
    )
    config = DsqlConfig(tables=(spec,), infinity="error")
    records = records_of(change(after={"id": 1, "a": 2932897, "b": "x"}), change(after={"id": 2, "a": 0}))
    decoded = config.decode(records)
    detail = 'columns a (out_of_range: date expected, 2932897 found), b (uuid expected, "x" found)'
    assert reasons(decoded) == [("cast_error", detail)]
    assert decoded.tables["t"].column("c:id").to_pylist() == [2]
    assert decoded.counters["out_of_range"] == 1
    row = decoded.quarantine.to_pylist()[0]
    assert row["data"] == records.column("data")[0].as_py()
    assert row["sequence_number"] == records.column("sequence_number")[0].as_py()


def test_a_record_with_a_problem_is_not_decoded() -> None:
    """The KPL layer's reason is kept."""
    records = records_of(change(after={"id": 1}))
    at = records.schema.get_field_index("problem")
    records = records.set_column(at, records.schema.field(at), pa.array(["kpl_checksum_mismatch"]))
    decoded = CONFIG.decode(records)
    assert [reason for reason, _ in reasons(decoded)] == ["kpl_checksum_mismatch"]
    assert not decoded.tables


def test_changes_of_another_cluster_are_refused() -> None:
    """Only where a cluster is configured; a missing one is another one."""
    config = DsqlConfig(tables=(TABLE,), cluster="kmab")
    assert (
        only_reason(change(after={"id": 1}, source={"cluster": "else", "table": "x"}), config)
        == "unexpected_cluster"
    )
    assert only_reason(change(after={"id": 1}, source={"cluster": None}), config) == "unexpected_cluster"
    assert config.decode(records_of(change(after={"id": 1}))).tables["t"].num_rows == 1


def test_an_open_configuration_logs_unknown_tables() -> None:
    """Each unknown table becomes a raw log of its own, with the image as it came."""
    config = DsqlConfig(tables=(TABLE,), unknown_tables="log")
    upsert = change(after={"v": 1.50}, source={"table": "x"})
    delete = change(op="d", before={"id": 1}, source={"table": "x"})
    rows = config.decode(records_of(upsert, delete)).tables["unknown:public.x"]
    assert rows.schema.names == [field.name for field in OWN_FIELDS]
    images = [(row["m:key"], row["m:before"], row["m:after"]) for row in rows.to_pylist()]
    assert images == [(None, None, '{"v": 1.5}'), (None, '{"id": 1}', None)]


def test_changes_of_unknown_tables_may_be_ignored() -> None:
    """They are counted and go nowhere; what cannot be read is quarantined as ever."""
    config = DsqlConfig(tables=(TABLE,), unknown_tables="ignore")
    others = [change(after={"v": 1}, source={"table": "x"}), change(after={"v": 2}, source={"table": "y"})]
    decoded = config.decode(records_of(change(after={"id": 1}), *others, b"{"))
    assert [*decoded.tables] == [TABLE.name]
    assert decoded.counters == {"records": 4, "changes": 1, "ignored": 2}
    assert [reason for reason, _ in reasons(decoded)] == ["invalid_json"]
    assert decoded.pending.num_rows == 0


def test_names_of_unknown_tables_are_told_apart_and_found_back() -> None:
    """Whatever they hold; those that no database has are refused."""
    pairs = [
        ("a.b", "c"),
        ("a", "b.c"),
        ("", "a.b.c"),
        ("A", "b"),
        ("a", "B"),
        ("a", "%62"),
        ("../..", "etc"),
        ("a\0", "\u202e"),
        ("ü", "表"),
        ("unknown:a", "b"),
    ]
    names = [unknown_name(*pair) for pair in pairs]
    assert len(set(names)) == len(pairs)
    assert [schema_and_table(name) for name in names] == pairs
    assert all(name.isprintable() for name in names)
    config = DsqlConfig(tables=(), unknown_tables="log")
    long = records_of(
        change(after={}, source={"table": "ü" * 127 + "x"}), change(after={}, source={"table": "ü" * 128})
    )
    decoded = config.decode(long)
    assert [rows.num_rows for rows in decoded.tables.values()] == [1]
    (row,) = decoded.quarantine.to_pylist()
    assert (row["reason"], "256 bytes" in row["detail"]) == ("unknown_table", True)


def test_no_configured_table_takes_the_name_of_an_unknown_one() -> None:
    """The prefix is not for configured tables."""
    with pytest.raises(ConfigurationError, match="does not begin with 'unknown:'"):
        DsqlConfig(tables=(TableSpec(name="unknown:public.x", schema="public", table="y"),))


def test_chunks_and_fragments_wait() -> None:
    """They keep their records whole, and what groups them."""
    main = change(type="chunked", chunked={"after": {"chunk_id": "i", "total_fragments": 2, "crc32c": "1"}})
    part = b'{"type": "fragment", "chunk_id": "i", "index": 1, "data": ""}'
    pending = CONFIG.decode(records_of(main, part)).pending.to_pylist()
    assert [
        (row["kind"], row["chunk_id"], row["fragment_index"], row["after_chunk_id"]) for row in pending
    ] == [
        ("chunked", None, None, "i"),
        ("fragment", "i", 1, None),
    ]
    assert [row["data"] for row in pending] == [main, part]


def test_renamed_columns_meet_under_the_new_name() -> None:
    """Old and new records interleave; a record that holds both values is refused."""
    spec = TableSpec(
        name="t",
        schema="public",
        table="t",
        keys=("id",),
        columns={"quantity": "integer"},
        rename={"qty": "quantity"},
    )
    records = records_of(
        change(after={"id": 1, "qty": 5}),
        change(after={"id": 2, "quantity": 6}),
        change(after={"id": 3, "qty": None, "quantity": 7}),
        change(after={"id": 4, "qty": 1, "quantity": 7}),
    )
    decoded = DsqlConfig(tables=(spec,)).decode(records)
    assert decoded.tables["t"].column("c:quantity").to_pylist() == [5, 6, 7]
    assert [reason for reason, _ in reasons(decoded)] == ["cast_error"]


def test_a_renamed_key_is_found_in_deletes() -> None:
    """The check of `before` uses the names after renaming."""
    spec = TableSpec(name="t", schema="public", table="t", keys=("id",), rename={"nr": "id"})
    decoded = DsqlConfig(tables=(spec,)).decode(records_of(change("d", before={"nr": 1})))
    assert decoded.tables["t"].column("m:key").to_pylist() == ["[1]"]


def test_columns_left_out_do_not_appear() -> None:
    """They are not cast either, so their values cannot be wrong."""
    spec = TableSpec(
        name="t", schema="public", table="t", keys=("id",), columns={"s": "uuid"}, except_columns=("s", "u")
    )
    rows = (
        DsqlConfig(tables=(spec,))
        .decode(records_of(change(after={"id": 1, "s": 5, "u": 1, "v": 2})))
        .tables["t"]
    )
    assert [name for name in rows.schema.names if name.startswith("c:")] == ["c:id", "c:v"]


def test_refused_rows_bring_no_columns() -> None:
    """A column seen only in a refused change does not widen the table."""
    rows = CONFIG.decode(records_of(change(after={"x": 1}), change(after={"id": 1}))).tables["t"]
    assert "c:x" not in rows.schema.names


def test_keys_are_canonical() -> None:
    """One key has one text, however the record spelled it."""
    spec = TableSpec(name="t", schema="public", table="t", keys=("a", "b"), columns={"b": "bytea"})
    first = change(after={"a": "é", "b": "AA=="})
    second = change("d", before={"b": "AA==", "a": "X"}).replace(b'"X"', b'"\\u00e9"')
    rows = DsqlConfig(tables=(spec,)).decode(records_of(first, second)).tables["t"]
    assert rows.column("m:key").to_pylist() == ['["é","AA=="]'] * 2


def test_the_image_hash_ignores_what_does_not_matter() -> None:
    """Order, spaces, escapes and nulls of an image change nothing; a value does."""
    same = [
        '{"a": 1, "b": "é", "c": [1, {"y": 1, "x": 2}]}',
        '{"c":[1,{"x":2,"y":1}],"b":"\\u00e9","d":null,"a":1}',
    ]
    assert image_hash(same[0]) == image_hash(same[1])
    assert image_hash('{"a": 1}') != image_hash('{"a": 2}')
    assert image_hash("{}") != image_hash(None)
    spec = TableSpec(name="t", schema="public", table="t")
    records = [
        change(after=1).replace(b'"after": 1', b'"after": ' + image.encode()) for image in [*same, "{}"]
    ]
    rows = DsqlConfig(tables=(spec,)).decode(records_of(*records)).tables["t"]
    assert rows.column("m:image_hash").to_pylist() == [image_hash(same[0])] * 2 + [image_hash("{}")]


def test_a_key_deeper_than_the_default_bound_is_read_where_the_bound_is_another() -> None:
    """In a log that tells deletes apart by what they name."""
    spec = TableSpec(name="t", schema="public", table="t", keys=("id",), keep="log", dedupe="content")
    deep = '{"id": ' + "[" * 700 + "]" * 700 + "}"
    record = change("d", before={"id": 0}).replace(b'{"id": 0}', deep.encode())
    decoded = DsqlConfig(tables=(spec,), max_depth=1_000).decode(records_of(record))
    assert (reasons(decoded), decoded.tables["t"]["m:before"].to_pylist()) == ([], [deep])


@pytest.mark.parametrize("rename", [{}, {"old": "secret"}])
def test_a_column_that_is_left_out_is_nowhere(rename: dict[str, str]) -> None:
    """Not in the columns, the images of a log, nor the hash; the rest of an image is as it came."""
    name = "old" if rename else "secret"
    spec = TableSpec(
        name="t", schema="public", table="t", keep="log", except_columns=("secret",), rename=rename
    )
    records = [
        change(after={"a": 1.50, name: text, "b": {"y": 1, "x": "é"}}, before={name: text})
        for text in ("one", "two")
    ]
    rows = DsqlConfig(tables=(spec,)).decode(records_of(*records, change(after={"a": 1}))).tables["t"]
    assert not [field for field in rows.schema.names if "secret" in field or "old" in field]
    kept = ['{"a":1.5,"b":{"y": 1, "x": "\\u00e9"}}'] * 2
    assert rows.column("m:after").to_pylist() == [*kept, '{"a": 1}']
    assert rows.column("m:before").to_pylist() == ["{}", "{}", None]
    one, other, _ = rows.column("m:image_hash").to_pylist()
    assert one == other == image_hash(kept[0])


def test_an_unknown_op_is_counted() -> None:
    """It is an upsert."""
    decoded = CONFIG.decode(records_of(change("D", after={"id": 1}), change("u", after={"id": 2})))
    assert decoded.counters == {"records": 2, "changes": 2, "unknown_op": 1}
    assert decoded.tables["t"].column("m:delete").to_pylist() == [False, False]


def test_an_empty_batch_gives_nothing() -> None:
    """No rows in, no tables out, schemas kept."""
    decoded = CONFIG.decode(records_of())
    assert (decoded.tables, decoded.counters, decoded.quarantine.num_rows) == ({}, {}, 0)


def test_the_configuration_travels() -> None:
    """Executors get it by pickle."""
    assert pickle.loads(pickle.dumps(CONFIG)) == CONFIG


@pytest.mark.parametrize(
    "wrong",
    [
        {"keep": "current"},
        {"keys": ("a", "a")},
        {"keys": ("a",), "except_columns": ("a",)},
        {"keep": "history", "keys": ("a",), "deletes": "soft"},
        {"buckets": 4},
        {"keys": ("a",), "partition_by": ("b",)},
        {"columns": {"a": "intger"}},
    ],
)
def test_a_table_that_contradicts_itself_is_refused(wrong: dict[str, Any]) -> None:
    """The message names the table or the type."""
    with pytest.raises(ConfigurationError):
        TableSpec(name="t", schema="public", table="t", **wrong)


def test_one_name_is_configured_once() -> None:
    """One of two entries of a name would be lost in silence."""
    with pytest.raises(ConfigurationError, match="twice"):
        DsqlConfig(tables=(TABLE, TABLE))
