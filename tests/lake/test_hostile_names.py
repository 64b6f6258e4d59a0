"""Names and values from records become parts of paths: none leaves the lake, or stops the pipeline."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from headpond.core.formats import MAX_FOLDER_BYTES, unwritable
from headpond.lake.apply import apply_batch
from headpond.lake.naming import table_folder
from headpond.qldb.config import DocumentSpec
from headpond.qldb.decode import LedgerConfig
from tests.lake import lakes, ledgers
from tests.lake.test_unknown_tables import HOSTILE, change

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NAMES = [
    *(
        "../../etc",
        "..",
        ".",
        "/etc/passwd",
        "a/../../b",
        "nul\0name",
        "\x01\x1b[31m\n",
        "_headpond",
        "_delta_log",
    ),
    *("x" * 254, "é" * 100, "%2e%2e%2f", "~2E~2E", "a=b", " ", "\\..\\..", "C:\\x", "con"),
]
ENTRY = '[tables."public.t"]\nkeys = ["k"]\ncolumns = { k = "text" }\n'
TOO_LONG = ["x" * 300, "é" * 200, "/" * 90]


def inside(folder: Path) -> set[str]:
    """The lake's own folders; fails if anything lies beside the lake."""
    assert [path.name for path in folder.iterdir()] == ["lake"]
    for path in (folder / "lake").rglob("*"):
        assert path.resolve().is_relative_to((folder / "lake").resolve())
    return {path.name for path in (folder / "lake").iterdir()}


def test_dsql_tables_of_any_name_go_to_quarantine(tmp_path: Path) -> None:
    """No folder is made for a table that is not configured, whatever it is called; its bytes are kept."""
    lake, config = lakes.lake_in(tmp_path, ENTRY)
    pairs = [*HOSTILE, *((name, name) for name in NAMES)]
    lines = [change(n, table, {"k": "v"}, schema=schema) for n, (schema, table) in enumerate(pairs)]
    applied = apply_batch(lake, lakes.decoded(config, lines))
    assert applied.quarantined == {"unknown_table": len(pairs)}
    assert inside(tmp_path) == {"public.t", "_headpond"}
    kept = [json.loads(row["data"])["source"] for row in lake.quarantine.read(["data"]).to_pylist()]
    assert {(source["schema"], source["table"]) for source in kept} == set(pairs)


def test_qldb_tables_of_any_name_go_to_quarantine(tmp_path: Path) -> None:
    """The same for a ledger's tables."""
    lake = ledgers.ledger_in(tmp_path / "lake", ledgers.config_of("Person", past=False))
    blobs = [
        ledgers.revision(f"D{n}", 0, "{a: 1}", table=json.dumps(name)[1:-1].replace("\\u00", "\\x"))
        for n, name in enumerate(NAMES)
    ]
    applied = apply_batch(lake, ledgers.decoded(lake.config, blobs))
    assert applied.quarantined == {"unknown_table": len(NAMES)}
    assert inside(tmp_path) == {"Person", "_headpond"}
    assert sorted(lake.quarantine.read(["data"])["data"].to_pylist()) == sorted(blobs)


def test_dsql_values_that_name_folders_stay_in_the_lake(tmp_path: Path) -> None:
    """A partition column's value is escaped, and comes back as it was; one too long is refused, not fatal."""
    lake, config = lakes.lake_in(tmp_path, f'{ENTRY}partition_by = ["k"]\n')
    values = [name for name in NAMES if name not in ("x" * 254, "é" * 100)]
    lines = [change(n, "t", {"k": value}) for n, value in enumerate([*values, *TOO_LONG], start=1)]
    applied = apply_batch(lake, lakes.decoded(config, lines))
    assert applied.quarantined == {"cast_error": len(TOO_LONG)}
    assert {row["k"] for row in lake.typed["public.t"].file.read(["k"]).to_pylist()} == set(values)
    assert inside(tmp_path) == {"public.t", "_headpond"}
    assert "longer than a folder's name" in lake.quarantine.read(["detail"])["detail"][0].as_py()
    # Again, and deletes: the rows are found under their escaped names.
    apply_batch(lake, lakes.decoded(config, lines))
    gone = [change(100 + n, "t", None, op="d", before={"k": value}) for n, value in enumerate(values)]
    apply_batch(lake, lakes.decoded(config, gone, first_line=100))
    assert lake.typed["public.t"].file.count() == 0


def test_qldb_values_that_name_folders_stay_in_the_lake(tmp_path: Path) -> None:
    """The same for a field of documents."""
    spec = DocumentSpec(name="Person", table="Person", columns={"k": "string"}, partition_by=("k",))
    lake = ledgers.ledger_in(tmp_path / "lake", LedgerConfig(tables=(spec,)))
    values = ["../../etc", "..", "/etc/passwd", "a=b", "%2e%2e"]
    blobs = [
        ledgers.revision(f"D{n}", 0, f"{{k: {json.dumps(value)}}}")
        for n, value in enumerate([*values, "x" * 300])
    ]
    applied = apply_batch(lake, ledgers.decoded(lake.config, blobs))
    assert applied.quarantined == {"out_of_range": 1}
    assert {row["k"] for row in lake.tables["Person"].typed.file.read(["k"]).to_pylist()} == set(values)
    assert inside(tmp_path) == {"Person", "_headpond"}


def test_folders_of_configured_tables_are_single_names() -> None:
    """What a pipeline file calls a table is one folder of the lake, too."""
    for name in NAMES:
        folder = table_folder(name) if len(table_name_bytes(name)) <= MAX_FOLDER_BYTES else "refused"
        assert "/" not in folder
        assert "\0" not in folder
        assert folder not in (".", "..")
        assert folder[0] not in "._"


def table_name_bytes(name: str) -> bytes:
    """At most what a name takes as a folder."""
    return b"".join(b"~XX" * len(c.encode()) if not c.isalnum() else c.encode() for c in name)


@pytest.mark.parametrize("length", range(240, 262))
def test_what_is_refused_is_what_could_not_be_written(tmp_path: Path, length: int) -> None:
    """Just the values whose folder a file system does not take."""
    refused = unwritable("k", pa.array(["v" * length, None, "short"]))
    folder = tmp_path / ("k=" + "v" * length)
    try:
        folder.mkdir()
    except OSError:
        assert refused == [0]
    else:
        assert refused == []


def escaped(values: Sequence[Any]) -> list[int]:
    return unwritable("k", pa.array(values))


def test_escapes_count_for_what_they_take() -> None:
    """Three bytes for each that is no plain one; numbers never are too long."""
    assert escaped(["/" * 84, "/" * 85, "é" * 42, "é" * 43]) == [1, 3]
    assert escaped([1, 2]) == []
    assert escaped([]) == []
    assert unwritable("c" * 250, pa.array(["v" * 4, "v" * 5])) == [1]


def test_dsql_changes_with_too_many_columns_are_refused(tmp_path: Path) -> None:
    """The table keeps its columns; other changes of the batch are applied; the bound can be raised."""
    wide = change(1, "t", {"k": "w", **{f"c{n}": n for n in range(6)}})
    lines = [
        change(2, "t", {"k": "v", "a": 1}),
        wide,
        change(3, "t", {"k": "u", **{f"d{n}": 0 for n in range(3)}}),
    ]
    lake, config = lakes.lake_in(tmp_path / "bounded", f"max_columns = 5\n{ENTRY}")
    applied = apply_batch(lake, lakes.decoded(config, lines))
    assert applied.quarantined == {"too_many_columns": 1}
    assert lake.quarantine.read(["detail"])["detail"].to_pylist() == [
        "the image names 7 columns, more than 5"
    ]
    columns = set(lake.typed["public.t"].file.schema().names)
    assert {"k", "a", "d0", "d2"} <= columns
    assert not columns & {f"c{n}" for n in range(6)}
    assert lake.typed["public.t"].file.count() == 2
    lake, config = lakes.lake_in(tmp_path / "wider", f"max_columns = 11\n{ENTRY}")
    assert not apply_batch(lake, lakes.decoded(config, lines)).quarantined


def test_qldb_documents_with_too_many_fields_are_refused(tmp_path: Path) -> None:
    """The same for documents."""
    spec = DocumentSpec(name="Person", table="Person", columns={"k": "string"})
    lake = ledgers.ledger_in(tmp_path / "lake", LedgerConfig(tables=(spec,), max_columns=5))
    fields = ", ".join(f"c{n}: {n}" for n in range(6))
    blobs = [ledgers.revision("A", 0, f"{{{fields}}}"), ledgers.revision("B", 0, '{k: "v", a: 1}')]
    applied = apply_batch(lake, ledgers.decoded(lake.config, blobs))
    assert applied.quarantined == {"too_many_columns": 1}
    columns = set(lake.tables["Person"].typed.file.schema().names)
    assert {"k", "a"} <= columns
    assert not columns & {f"c{n}" for n in range(6)}


def test_dsql_changes_that_each_bring_new_columns_are_bounded_together(tmp_path: Path) -> None:
    """A batch of narrow images with names of their own makes no more columns than one wide image may."""
    lines = [change(n, "t", {"k": f"{n}", f"c{n}": n}) for n in range(9)]
    lake, config = lakes.lake_in(tmp_path, f"max_columns = 5\n{ENTRY}")
    applied = apply_batch(lake, lakes.decoded(config, lines))
    assert applied.quarantined == {"too_many_columns": 5}
    assert set(lake.quarantine.read(["detail"])["detail"].to_pylist()) == {
        "the image names 1 columns beside the 5 of others of its batch; together they are more than 5"
    }
    table = lake.typed["public.t"].file
    assert {"k", "c0", "c1", "c2", "c3"} <= set(table.schema().names)
    assert table.count() == 4


def test_qldb_documents_that_each_bring_new_fields_are_bounded_together(tmp_path: Path) -> None:
    """The same for documents, alike or not."""
    spec = DocumentSpec(name="Person", table="Person", columns={"k": "string"})
    lake = ledgers.ledger_in(tmp_path / "lake", LedgerConfig(tables=(spec,), max_columns=5))
    alike = [ledgers.revision(f"L{n}", 0, '{k: "v", a: 1, b: 2}') for n in range(60)]
    single = [ledgers.revision(f"S{n}", 0, f'{{k: "v", c{n}: {n}}}') for n in range(6)]
    applied = apply_batch(lake, ledgers.decoded(lake.config, [*alike, *single]))
    assert applied.quarantined == {"too_many_columns": 4}
    (detail,) = set(lake.quarantine.read(["detail"])["detail"].to_pylist())
    assert detail == (
        "the document has 1 fields beside the 5 of others of its batch; together they are more than 5"
    )
    assert {"k", "a", "b", "c0", "c1"} <= set(lake.tables["Person"].typed.file.schema().names)


HUGE = ["1e999999999", "-1e-999999999", '"1e999999999"']


@pytest.mark.parametrize("number", HUGE)
@pytest.mark.slow
def test_dsql_numbers_are_not_written_out(tmp_path: Path, number: str) -> None:
    """A short number that stands for a thousand million digits stays short, or is refused."""
    source = '{"version": "1.0", "ts_ns": 1, "txId": "t", "schema": "public", "table": "t"}'
    image = f'{{"k": "v", "raw": {number}, "n": {number}}}'
    record = f'{{"type": "full", "op": "c", "source": {source}, "after": {image}}}'
    data = base64.b64encode(record.encode()).decode()
    line = json.dumps({"shardId": "s", "sequenceNumber": "1", "data": data}).encode()
    lake, config = lakes.lake_in(tmp_path / "raw", ENTRY)
    assert not apply_batch(lake, lakes.decoded(config, [line])).quarantined
    (row,) = lake.typed["public.t"].file.read(["raw"]).to_pylist()
    assert len(row["raw"]) <= len(number)
    typed = ENTRY.replace('k = "text"', 'k = "text", n = "numeric(38,2)"')
    lake, config = lakes.lake_in(tmp_path / "typed", typed)
    refused = apply_batch(lake, lakes.decoded(config, [line])).quarantined
    rows = lake.typed["public.t"].file.read(["n"]).to_pylist()
    assert refused == {"cast_error": 1} or rows == [{"n": 0}]


@pytest.mark.parametrize("number", ["1d999999999", "-1d-999999999"])
def test_qldb_numbers_are_not_written_out(tmp_path: Path, number: str) -> None:
    """The same for Ion decimals, as JSON too."""
    spec = DocumentSpec(name="Person", table="Person", columns={"n": "decimal(38,2)"})
    config = LedgerConfig(tables=(spec,), canonical_json=True)
    lake = ledgers.ledger_in(tmp_path / "lake", config)
    blobs = [ledgers.revision("A", 0, f"{{n: {number}}}"), ledgers.revision("B", 0, f"{{u: {number}}}")]
    assert apply_batch(lake, ledgers.decoded(config, blobs)).quarantined == {"out_of_range": 1}
    (row,) = lake.tables["Person"].typed.file.read(["u", "_json"]).to_pylist()
    assert len(row["_json"]) < 40
    assert len(row["u"]) < 20
