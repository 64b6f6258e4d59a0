"""Histories in Delta tables: the same, whatever the order, the cuts, the repeats and the crashes."""

from __future__ import annotations

import base64
import json
import random
import tempfile
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.core.errors import ConfigurationError
from headpond.dsql.config import TableSpec
from headpond.dsql.decode import DsqlConfig
from headpond.lake.definition import form_of
from headpond.lake.delta import DeltaFile
from headpond.lake.newest import BatchKeys, history_step
from headpond.lake.state.tombstones import TOMBSTONE_SCHEMA, Deletes
from headpond.lake.targets.current import CURRENT_OWN
from headpond.lake.targets.history import HISTORY_OWN, HistoryTable
from headpond.lake.targets.log import LOG_OWN
from headpond.lake.typed import TypedTable
from tests.kit.support import share_of, vector_bytes, vector_json
from tests.lake.lakes import decoded

SMALL = vector_bytes("dsql/small.jsonl").splitlines()
EXPECTED = vector_json("dsql/small.expected.json")


def spec_of(name: str, keys: list[str], columns: dict[str, str]) -> TableSpec:
    schema, _, table = name.partition(".")
    return TableSpec(name=name, schema=schema, table=table, keys=tuple(keys), columns=columns, keep="history")


class Histories:
    """History tables in a folder, written as a lake writes them: deletes first, then the table."""

    def __init__(self, folder: Path, *specs: TableSpec) -> None:
        self.config = DsqlConfig(tables=specs, unknown_tables="log")
        self.deletes = Deletes(DeltaFile(str(folder / "deletes")))
        self.tables: dict[str, HistoryTable] = {}
        for spec in specs:
            typed = TypedTable(DeltaFile(str(folder / spec.name)), HISTORY_OWN, spec)
            typed.prepare()
            self.tables[spec.name] = HistoryTable(typed, spec)

    def apply(self, lines: list[bytes], *, only_deletes: bool = False) -> Counter[str]:
        counters: Counter[str] = Counter()
        batch = decoded(self.config, lines)
        assert batch.quarantine.num_rows == 0
        for name, table in self.tables.items():
            if (changes := batch.tables.get(name)) is None:
                continue
            keys = BatchKeys(changes["m:key"])
            dead = self.deletes.of_keys(name, keys.texts, pc.min(changes["m:ts_ns"]).as_py())
            state = pa.concat_tables([table.versions(changes, keys), dead])
            outcome = history_step(state, changes)
            named = outcome.deletes.append_column("table", pa.repeat(name, outcome.deletes.num_rows))
            self.deletes.put(named)
            if not only_deletes:
                table.write(outcome)
            counters.update(outcome.counters)
        return counters

    def rows(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        """The named source columns and `_valid_from_ns, _valid_to_ns` of all rows, ordered."""
        typed = self.tables[name].typed
        names = [*map(typed.column, columns), "_valid_from_ns", "_valid_to_ns"]
        found = typed.file.read([*dict.fromkeys(names)]).to_pylist()
        return sorted((tuple(row[name] for name in names) for row in found), key=repr)


EXPECTED_SPECS = [spec_of(n, t["keys"], t["columns"]) for n, t in EXPECTED["tables"].items()]


def expected_rows(name: str) -> list[tuple[Any, ...]]:
    """Key and interval of each version; the expected history is ordered by key and time."""
    table = EXPECTED["tables"][name]
    rows = []
    history = table["history"]
    for change, after in zip(history, [*history[1:], None], strict=True):
        follows = after is not None and after["key"] == change["key"]
        if change["row"] is not None:
            end = after["ts_ns"] if follows else None
            rows.append((*(change["key"][key] for key in table["keys"]), change["ts_ns"], end))
    return sorted(rows, key=repr)


def assert_expected(histories: Histories) -> None:
    for name, table in EXPECTED["tables"].items():
        assert histories.rows(name, *table["keys"]) == expected_rows(name)
    deleted = {n: sum(h["row"] is None for h in t["history"]) for n, t in EXPECTED["tables"].items()}
    assert histories.deletes.counts() == {name: count for name, count in deleted.items() if count}


@pytest.mark.thorough
@settings(max_examples=share_of(12))
@given(st.integers(0, 2**32), st.integers(1, 5))
def test_the_histories_do_not_depend_on_order_cuts_or_repeats(seed: int, batches: int) -> None:
    """Lines permuted, some twice, cut anywhere, a batch applied twice or half: the expected versions."""
    draw = random.Random(seed)
    lines = SMALL + draw.sample(SMALL, 20)
    draw.shuffle(lines)
    cuts = [0, *sorted(draw.sample(range(1, len(lines)), batches - 1)), len(lines)]
    with tempfile.TemporaryDirectory() as folder:
        histories = Histories(Path(folder), *EXPECTED_SPECS)
        for start, end in pairwise(cuts):
            if draw.random() < 0.3:
                histories.apply(lines[start:end], only_deletes=True)
                histories = Histories(Path(folder), *EXPECTED_SPECS)
            histories.apply(lines[start:end])
            if draw.random() < 0.3:
                again = histories.apply(lines[start:end])
                assert (again["upserts"], again["deletes"]) == (0, 0)
        assert_expected(histories)


def change(ts_ns: int, row: dict[str, Any], *, op: str = "u", tx_id: str = "tx") -> bytes:
    """One archive line with a change of public.t."""
    source = {"version": "1.0", "ts_ns": ts_ns, "txId": tx_id, "schema": "public", "table": "t"}
    record = {"type": "full", "op": op, "source": source}
    record |= {"before": row, "after": None} if op == "d" else {"before": None, "after": row}
    data = base64.b64encode(json.dumps(record).encode()).decode()
    return json.dumps({"data": data}).encode()


ONE = spec_of("public.t", ["id"], {"id": "bigint"})


def test_a_version_holds_from_its_commit_to_the_next(tmp_path: Path) -> None:
    """Own columns tell the interval exactly, the operation as delivered, and the transaction."""
    histories = Histories(tmp_path, ONE)
    histories.apply([change(10, {"id": 1}, op="c"), change(11, {"id": 1, "v": 2}, tx_id="b")])
    found = histories.tables["public.t"].typed.file.read().to_pylist()
    own = [{n: v for n, v in row.items() if n.startswith("_") and n != "_image_hash"} for row in found]
    assert sorted(own, key=lambda row: row["_ts_ns"]) == [
        {"_ts_ns": 10, "_tx_id": "tx", "_op": "c", "_valid_from_ns": 10, "_valid_to_ns": 11},
        {"_ts_ns": 11, "_tx_id": "b", "_op": "u", "_valid_from_ns": 11, "_valid_to_ns": None},
    ]


def test_a_late_change_splits_an_interval_and_leaves_the_rest(tmp_path: Path) -> None:
    """One commit inserts it and shortens the row before it; values of other rows stay."""
    histories = Histories(tmp_path, ONE)
    histories.apply([change(10, {"id": 1, "v": "a"}), change(30, {"id": 1, "v": "c"}), change(5, {"id": 2})])
    before = histories.tables["public.t"].typed.file.version()
    histories.apply([change(20, {"id": 1, "v": "b"})])
    assert histories.rows("public.t", "id", "v") == [
        (1, '"a"', 10, 20),
        (1, '"b"', 20, 30),
        (1, '"c"', 30, None),
        (2, None, 5, None),
    ]
    assert histories.tables["public.t"].typed.file.version() == before + 1


def test_a_repeated_batch_makes_no_commit(tmp_path: Path) -> None:
    """Neither the table nor the deletes are written again."""
    histories = Histories(tmp_path, ONE)
    lines = [change(10, {"id": 1}), change(20, {"id": 1}, op="d"), change(25, {"id": 9}, op="d")]
    assert histories.apply(lines) == Counter(upserts=1, deletes=2)
    versions = [t.version() for t in (histories.tables["public.t"].typed.file, histories.deletes.file)]
    assert +histories.apply(lines) == Counter(duplicates=3)
    assert versions == [
        t.version() for t in (histories.tables["public.t"].typed.file, histories.deletes.file)
    ]
    assert histories.deletes.file.schema().names == TOMBSTONE_SCHEMA.names


def test_a_delete_before_what_it_deletes(tmp_path: Path) -> None:
    """The version that arrives later ends with it; a newer delete hides none."""
    histories = Histories(tmp_path, ONE)
    histories.apply([change(20, {"id": 1}, op="d"), change(40, {"id": 1}, op="d")])
    histories.apply([change(30, {"id": 1})])
    histories.apply([change(10, {"id": 1})])
    assert histories.rows("public.t", "id") == [(1, 10, 20), (1, 30, 40)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_greater_image_of_one_version_stays(order: tuple[int, int], tmp_path: Path) -> None:
    """Whichever arrives first, whole, and with the end that the row had or that the same batch brings."""
    histories = Histories(tmp_path, ONE)
    lines = [change(10, {"id": 1, "v": 1, "w": 7}), change(10, {"id": 1, "v": 2, "w": None})]
    histories.apply([change(5, {"id": 1, "w": 0})])
    for number in order:
        histories.apply([lines[number], change(20, {"id": 1, "v": 3})])
    greater = ("1", "7") if hash_of(lines[0]) > hash_of(lines[1]) else ("2", None)
    assert sorted(histories.rows("public.t", "v", "w"), key=lambda row: row[2]) == [
        (None, "0", 5, 10),
        (*greater, 10, 20),
        ("3", None, 20, None),
    ]


def hash_of(line: bytes) -> bytes:
    batch = decoded(DsqlConfig(tables=(ONE,)), [line]).tables["public.t"]
    return bytes(batch["m:image_hash"][0].as_py())


@pytest.mark.slow
def test_a_writer_that_read_too_early_cannot_undo_another(tmp_path: Path) -> None:
    """Of two outcomes computed from one state the earlier end and the greater image stay, in either order."""
    first, second = [change(30, {"id": 1, "v": 3})], [change(20, {"id": 1, "v": 2})]
    for order in ((first, second), (second, first)):
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            histories = Histories(Path(folder), ONE)
            histories.apply([change(10, {"id": 1, "v": 1})])
            table = histories.tables["public.t"]
            outcomes = []
            for lines in order:
                changes = decoded(histories.config, lines).tables["public.t"]
                outcomes.append(history_step(table.versions(changes, BatchKeys(changes["m:key"])), changes))
            for outcome in outcomes:
                table.write(outcome)
            for lines in order:  # the second look of a shared `apply_batch`
                histories.apply(lines)
            assert histories.rows("public.t", "v") == [("1", 10, 20), ("2", 20, 30), ("3", 30, None)]


def test_hostile_names_and_new_columns_keep_their_values(tmp_path: Path) -> None:
    """Names that Delta refuses or that are ours, keys among them; a column that a late change brings."""
    names = [
        "a.b",
        "a b",
        "a`b",
        "a,b=c",
        "_valid_to_ns",
        "_ts_ns",
        "_op",
        "v",
        "V",
        "%",
        'q"q',
        "q'q",
        "%full",
    ]
    spec = spec_of("public.t", ["the id", "_valid_from_ns"], {"the id": "text", "_valid_from_ns": "bigint"})
    histories = Histories(tmp_path, spec)
    key = {"the id": "it's", "_valid_from_ns": 7}
    for ts_ns in (10, 30, 20):
        values = {name: ts_ns * 100 + i for i, name in enumerate(names)}
        new = {"late only": "x"} if ts_ns == 20 else {}
        histories.apply([change(ts_ns, key | values | new)])
    wanted = []
    for ts_ns, end in ((10, 20), (20, 30), (30, None)):
        values = [str(ts_ns * 100 + i) for i in range(len(names))]
        wanted.append(("it's", 7, *values, '"x"' if ts_ns == 20 else None, ts_ns, end))
    assert histories.rows("public.t", *key, *names, "late only") == wanted
    histories.apply([change(40, key, op="d")])
    assert histories.rows("public.t", *key)[-1] == ("it's", 7, 30, 40)


def test_many_keys_at_once(tmp_path: Path) -> None:
    """More keys than a query names each are found by their range, rows and deletes alike."""
    histories = Histories(tmp_path, ONE)
    many = range(1, 501)
    histories.apply([change(10, {"id": n}) for n in many])
    histories.apply([change(20, {"id": n}, op="d") for n in many])
    counted = histories.apply([change(15, {"id": n}) for n in many] + [change(20, {"id": 3}, op="d")])
    assert +counted == Counter(upserts=500, duplicates=1)
    assert histories.rows("public.t") == [(10, 15)] * 500 + [(15, 20)] * 500


def table_of(file: DeltaFile, own: dict[str, Any]) -> TypedTable:
    """A table of the form that has these own columns."""
    spec = spec_of("public.t", ["id"], {"id": "bigint"})
    return TypedTable(file, own, replace(spec, keep=form_of([name for name, _ in own.values()])))


@pytest.mark.parametrize(
    ("made", "kept", "words"),
    [
        (HISTORY_OWN, CURRENT_OWN, 'made with keep = "history", but the configuration says keep = "current"'),
        (CURRENT_OWN, HISTORY_OWN, 'made with keep = "current", but the configuration says keep = "history"'),
        (LOG_OWN, HISTORY_OWN, 'made with keep = "log", but the configuration says keep = "history"'),
    ],
)
def test_a_table_keeps_its_form(
    made: dict[str, Any], kept: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """Rows of one form cannot be told from another's later: the table is refused, and left as it is."""
    file = DeltaFile(str(tmp_path / "t"))
    table_of(file, made).prepare()
    columns = file.schema().names
    with pytest.raises(ConfigurationError, match=words):
        table_of(file, kept).prepare()
    assert file.schema().names == columns
    table_of(file, made).prepare()


def test_an_empty_batch_reads_nothing(tmp_path: Path) -> None:
    """No keys, no state, no write."""
    histories = Histories(tmp_path, ONE)
    table = histories.tables["public.t"]
    none = decoded(histories.config, [change(1, {"id": 1})]).tables["public.t"].slice(0, 0)
    keys = BatchKeys(none["m:key"])
    assert table.versions(none, keys).num_rows == 0
    assert histories.deletes.of_keys("public.t", keys.texts).num_rows == 0
    table.write(history_step(table.versions(none, keys), none))
    assert (table.typed.file.version(), histories.deletes.counts()) == (0, {})


def test_deletes_of_thousands_of_tables_are_looked_up_together(tmp_path: Path) -> None:
    """By a query with a condition for each table the process died."""
    deletes = Deletes(DeltaFile(str(tmp_path / "deletes")))
    count = 3_000
    rows = {
        "table": [f"t{number}" for number in range(count)],
        "key": [f"[{number % 7}]" for number in range(count)],
        "version": pa.array([b"%08d" % number for number in range(count)], pa.binary()),
        "ts_ns": pa.array(range(count), pa.int64()),
        "tx_id": ["tx"] * count,
    }
    deletes.put(pa.table(rows))
    keys = pa.array([f"[{key}]" for key in range(4)])
    asked = {f"t{number}": keys for number in range(count)}
    with deletes.looked_up(asked, 1000):
        found = {name: deletes.of_keys(name, keys, 1000)["ts_ns"].to_pylist() for name in asked}
    expected = {number: [number] if number >= 1000 and number % 7 < 4 else [] for number in range(count)}
    assert found == {f"t{number}": ends for number, ends in expected.items()}
