"""A table written again as the file has it: by a dictionary, killed at every write, beside a pipeline."""

from __future__ import annotations

import base64
import json
import random
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, DeltaProtocolError

from headpond.core.errors import ConfigurationError, InvalidData, UsageError
from headpond.lake.apply import apply_batch
from headpond.lake.engine import merge
from headpond.lake.maintenance.rebuild import rebuild, widen
from headpond.lake.naming import BUCKET
from headpond.pipeline import loads
from headpond.pipeline.lake import open_lake
from tests.kit.support import share_of
from tests.lake.lakes import decoded, lake_in, watched

if TYPE_CHECKING:
    from pathlib import Path

    from headpond.lake.tables import Lake

T = "public.t"
HEAD = '[source]\narchive = "x.jsonl"\nformat = "dsql"\n[target]\npath = "lake"\n'


def change(ts_ns: int, row: dict[str, Any], *, op: str = "c", table: str = "t") -> bytes:
    """One change of the table; of a delete the row is the key."""
    source = {"version": "1.0", "ts_ns": ts_ns, "txId": f"t{ts_ns}", "schema": "public", "table": table}
    body = {
        "type": "full",
        "op": op,
        "before": row if op == "d" else None,
        "source": source | {"cluster": "c"},
    }
    body["after"] = None if op == "d" else row
    data = base64.b64encode(json.dumps(body).encode()).decode()
    return json.dumps({"data": data, "shard": "s", "sequenceNumber": str(ts_ns)}).encode()


def entry(**parts: Any) -> str:
    """The part of a file with the table."""
    lines = [f"{name} = {toml(value)}" for name, value in parts.items()]
    return "\n".join([f'[tables."{T}"]', *lines, ""])


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {toml(each)}" for name, each in value.items()) + " }"
    return json.dumps(value)


def opened(folder: Path, tables: str) -> Lake:
    """Open a lake without preparing it, as a command does."""
    return open_lake(loads(HEAD + tables, folder))


def rows_of(lake: Lake) -> list[dict[str, Any]]:
    """All rows, without what depends on how they are dealt out."""
    rows = lake.typed[T].file.read().to_pylist()
    return sorted(
        ({k: v for k, v in row.items() if k not in (BUCKET, "_image_hash")} for row in rows), key=repr
    )


def filled(folder: Path, tables: str, lines: list[bytes], cuts: int = 3) -> Lake:
    """Make a lake of some changes, in so many batches."""
    lake, _ = lake_in(folder, tables)
    for start in range(0, len(lines), -(-len(lines) // cuts)):
        part = lines[start : start + -(-len(lines) // cuts)]
        apply_batch(lake, decoded(lake.config, part, first_line=start + 1))  # type: ignore[arg-type]
    return lake


BEFORE = entry(keys=["id"], columns={"id": "integer", "n": "numeric(10,2)", "gone": "text"})
ROWS = [
    change(1, {"id": 1, "n": "1.50", "gone": "a", "new": 7}),
    change(2, {"id": 2, "n": "2.25", "gone": None, "new": 8}),
    change(3, {"id": 3, "n": None, "gone": "c"}),
    change(4, {"id": 2}, op="d"),
]


def test_types_names_and_partitions_become_what_the_file_says(tmp_path: Path) -> None:
    """And what comes afterwards meets the rows, as deletes meet theirs."""
    filled(tmp_path, BEFORE, ROWS)
    after = entry(
        keys=["id"],
        columns={"id": "bigint", "n": "numeric(20,4)", "new": "smallint", "left": "text"},
        rename={"gone": "left"},
        buckets=3,
    )
    with pytest.raises(
        ConfigurationError, match=r'made with .*id = "integer".*says .*id = "bigint"'
    ) as refused:
        lake_in(tmp_path, after)
    assert f"headpond rebuild FILE {T}" in (refused.value.next_step or "")
    said = rebuild(opened(tmp_path, after), T, dry_run=True)
    assert (said.rows, said.unfit, said.written) == (2, 0, False)
    assert [(each.made, each.wanted) for each in said.differences] == [
        ("the column gone", "the column left"),
        ('id = "integer"', 'id = "bigint"'),
        ('n = "numeric(10,2)"', 'n = "numeric(20,4)"'),
        ("new undeclared", 'new = "smallint"'),
        ("partitioned by nothing", "partitioned by 3 buckets"),
    ]
    assert rebuild(opened(tmp_path, after), T).written
    assert not rebuild(opened(tmp_path, after), T).written  # it is as the file has it
    lake, _ = lake_in(tmp_path, after)
    fresh = filled(tmp_path / "fresh", after, ROWS)
    assert rows_of(lake) == rows_of(fresh)
    assert str(lake.typed[T].file.schema().field("id").type) == "int64"
    more = [
        change(5, {"id": 1, "gone": "b"}),
        change(3, {"id": 2, "gone": "late"}),
        change(6, {"id": 3}, op="d"),
    ]
    for each in (lake, fresh):
        apply_batch(each, decoded(each.config, more))  # type: ignore[arg-type]
    assert rows_of(lake) == rows_of(fresh)
    assert lake.tombstones.counts() == fresh.tombstones.counts()


def test_values_that_do_not_fit_are_listed_and_nothing_is_written(tmp_path: Path) -> None:
    """With their column and why; the table is at its version."""
    lake = filled(tmp_path, BEFORE, [change(1, {"id": 70_000, "new": "x"}), change(2, {"id": 1, "new": 5})])
    version = lake.typed[T].file.version()
    after = entry(
        keys=["id"], columns={"id": "smallint", "n": "numeric(10,2)", "gone": "text", "new": "integer"}
    )
    said = rebuild(opened(tmp_path, after), T, dry_run=True)
    assert said.unfit == 2
    assert {(each["column"], each["value"]) for each in said.listed} == {("id", "70000"), ("new", '"x"')}
    with pytest.raises(InvalidData, match="2 values of the table"):
        rebuild(opened(tmp_path, after), T)
    assert lake.typed[T].file.version() == version
    lake_in(tmp_path, BEFORE)


def test_two_columns_with_values_do_not_become_one(tmp_path: Path) -> None:
    """Where one row has another value in each."""
    after = entry(keys=["id"], columns={"id": "integer"}, rename={"b": "a"})
    before = entry(keys=["id"], columns={"id": "integer"})
    filled(tmp_path / "1", before, [change(1, {"id": 1, "a": 1}), change(2, {"id": 2, "b": 2})])
    assert rebuild(opened(tmp_path / "1", after), T).written
    lake, _ = lake_in(tmp_path / "1", after)
    assert [(row["id"], row["a"]) for row in rows_of(lake)] == [(1, "1"), (2, "2")]
    filled(tmp_path / "2", before, [change(1, {"id": 1, "a": 1, "b": 2})])
    with pytest.raises(InvalidData, match="another value is there for a"):
        rebuild(opened(tmp_path / "2", after), T)


def test_columns_that_are_left_out_go(tmp_path: Path) -> None:
    """Their values are in no file of the new version."""
    filled(tmp_path, BEFORE, ROWS)
    after = entry(keys=["id"], columns={"id": "integer", "n": "numeric(10,2)"}, except_columns=["gone"])
    with pytest.raises(ConfigurationError, match="except_columns"):
        lake_in(tmp_path, after)
    assert rebuild(opened(tmp_path, after), T).written
    lake, _ = lake_in(tmp_path, after)
    assert "gone" not in lake.typed[T].file.schema().names


def test_images_of_a_log_lose_what_is_left_out(tmp_path: Path) -> None:
    """They would show it to whoever reads the table."""
    filled(tmp_path, entry(keys=[]), ROWS)
    after = entry(keys=[], except_columns=["gone"])
    assert rebuild(opened(tmp_path, after), T).written
    lake, _ = lake_in(tmp_path, after)
    fresh = filled(tmp_path / "fresh", after, ROWS)
    assert [row["_after"] for row in rows_of(lake)] == [row["_after"] for row in rows_of(fresh)]
    assert "gone" not in repr(rows_of(lake))


def test_rows_that_are_marked_as_gone_stay_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a type that asks more of readers is named in the protocol."""
    monkeypatch.setattr(merge, "SMALL_BYTES", 0)
    marks = entry(keys=["id"], columns={"id": "integer"}, deletion_vectors=True)
    lake = filled(tmp_path, marks, [change(n, {"id": n, "at": n}) for n in range(1, 30)], cuts=1)
    apply_batch(lake, decoded(lake.config, [change(50, {"id": 7}, op="d")]))  # type: ignore[arg-type]
    assert any(file.vector for file in lake.typed[T].file.data_files())
    after = entry(keys=["id"], columns={"id": "bigint", "at": "timestamp"}, deletion_vectors=True)
    assert rebuild(opened(tmp_path, after), T).written
    lake, _ = lake_in(tmp_path, after)
    assert sorted(row["id"] for row in rows_of(lake)) == [n for n in range(1, 30) if n != 7]
    features = lake.typed[T].file.engine.log.newest().protocol["readerFeatures"]
    assert features == ["deletionVectors", "timestampNtz"]
    assert DeltaTable(lake.typed[T].file.uri).count() == 28


@pytest.mark.parametrize(
    ("form", "wanted", "why"),
    [
        ({"keep": "current"}, {"keep": "log"}, "a change at its place in the stream"),
        ({"keep": "current"}, {"keep": "history"}, "versions that were replaced are not there"),
        ({"deletes": "soft"}, {"keep": "history"}, "versions that were replaced are not there"),
        ({"keep": "history"}, {"keep": "log"}, "a change at its place in the stream"),
    ],
)
def test_forms_that_cannot_be_had_are_refused_with_the_reason(
    form: dict[str, str], wanted: dict[str, str], why: str, tmp_path: Path
) -> None:
    """And the way out."""
    lake_in(tmp_path, entry(keys=["id"], **form))
    with pytest.raises(UsageError, match=why) as refused:
        rebuild(opened(tmp_path, entry(keys=["id"], **wanted)), T)
    assert "bootstrap --from-start" in (refused.value.next_step or "")


@pytest.mark.slow
@pytest.mark.parametrize("keys", [["id"], []])
@pytest.mark.parametrize("form", [{"keep": "current"}, {"keep": "history"}, {"deletes": "soft"}])
def test_a_log_becomes_whatever_its_entries_make(
    keys: list[str], form: dict[str, str], tmp_path: Path
) -> None:
    """Also one that was kept without keys: deletes name theirs in their image before."""
    filled(tmp_path, entry(keys=keys, columns={"id": "integer"}, keep="log"), [*ROWS, *ROWS[:1]])
    after = entry(keys=["id"], columns={"id": "bigint", "n": "numeric(10,2)"}, **form)
    assert rebuild(opened(tmp_path, after), T).written
    lake, _ = lake_in(tmp_path, after)
    fresh = filled(tmp_path / "fresh", after, ROWS)
    more = [
        change(5, {"id": 1}, op="d"),
        change(3, {"id": 2, "n": "1.00"}),
        change(6, {"id": 2, "n": "1.00"}),
    ]
    for _ in range(2):
        assert rows_of(lake) == rows_of(fresh)
        assert lake.by_table(lake.tombstones.counts()) == fresh.tombstones.counts()
        for each in (lake, fresh):
            apply_batch(each, decoded(each.config, more))  # type: ignore[arg-type]


@pytest.mark.parametrize("form", [{"deletes": "soft"}, {}])
def test_marks_of_deleted_rows_are_not_columns_of_the_source(form: dict[str, str], tmp_path: Path) -> None:
    """Rebuilt from soft deletes a table has the columns that it would have from the beginning."""
    filled(tmp_path, entry(keys=["id"], columns={"id": "integer"}, deletes="soft"), ROWS)
    after = entry(keys=["id"], columns={"id": "bigint"}, **form)
    assert rebuild(opened(tmp_path, after), T).written
    lake, _ = lake_in(tmp_path, after)
    fresh = filled(tmp_path / "fresh", after, ROWS)
    assert rows_of(lake) == rows_of(fresh)
    assert not rebuild(opened(tmp_path, after), T).differences


def test_deletes_that_are_not_known_by_the_new_keys_make_late_changes_too_late(tmp_path: Path) -> None:
    """They could bring back what was deleted: they go to quarantine, and newer ones are taken."""
    lines = [change(1, {"a": 1, "b": 1}), change(5, {"a": 1}, op="d"), change(6, {"a": 2, "b": 2})]
    filled(tmp_path, entry(keys=["a"]), lines)
    after = entry(keys=["a", "b"])
    done = rebuild(opened(tmp_path, after), T)
    assert (done.lost_deletes, done.lost_ns, done.finer) == (1, 5, True)
    lake, _ = lake_in(tmp_path, after)
    late = [change(3, {"a": 1, "b": 1}), change(7, {"a": 1, "b": 3})]
    applied = apply_batch(lake, decoded(lake.config, late))  # type: ignore[arg-type]
    assert applied.quarantined == {"too_late": 1}
    assert [(row["a"], row["b"]) for row in rows_of(lake)] == [("1", "3"), ("2", "2")]


@pytest.mark.parametrize(
    ("was", "now", "is_wider"),
    [
        ("smallint", "integer", True),
        ("smallint", "bigint", True),
        ("integer", "bigint", True),
        ("real", "double precision", True),
        ("numeric(10,2)", "numeric(20,4)", True),
        ("numeric(10,2)", "numeric(10,4)", False),
        ("numeric(10,2)", "numeric(9,2)", False),
        ("bigint", "integer", False),
        ("integer", "numeric(20,4)", False),
        ("integer", "any", False),
    ],
)
def test_types_widen_by_themselves_where_the_entry_says_so(
    was: str, now: str, *, is_wider: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At a start, with a line about it; any other difference is refused as ever."""
    first = [change(1, {"id": 1, "v": "1.5" if "numeric" in was else 1})]
    filled(tmp_path, entry(keys=["id"], columns={"id": "integer", "v": was}), first)
    wider = {"keys": ["id"], "columns": {"id": "integer", "v": now}, "type_changes": "widen"}
    lake = opened(tmp_path, entry(**wider))
    assert lake.typed[T].file.exists()  # it may have been looked at
    assert len(widen(lake)) == is_wider
    if not is_wider:
        with pytest.raises(ConfigurationError, match="headpond rebuild"):
            lake.prepare()
        return
    lake.prepare()
    assert caplog.messages == [f'The table {T} was rebuilt: v = "{now}".']
    assert [row["v"] for row in rows_of(lake)] == [Decimal("1.5") if "numeric" in was else 1]
    assert widen(lake) == []
    other = opened(tmp_path, entry(**wider | {"keys": ["v"], "columns": {"id": "bigint", "v": now}}))
    assert widen(other) == []
    assert (
        widen(opened(tmp_path, entry(**wider | {"columns": {"id": "bigint"}, "type_changes": "refuse"})))
        == []
    )


def test_widening_writes_the_table_again_because_readers_do_not_know_deltas_own(tmp_path: Path) -> None:
    """As soon as this fails, a commit of the log may do instead of new files."""
    filled(tmp_path, entry(keys=["id"], columns={"id": "integer"}), [change(1, {"id": 1})])
    wider = entry(keys=["id"], columns={"id": "bigint"}, type_changes="widen")
    lake = opened(tmp_path, wider)
    before = {each.path for each in lake.typed[T].file.data_files()}
    assert len(widen(lake)) == 1
    file = lake.typed[T].file
    assert before.isdisjoint({each.path for each in file.data_files()})
    assert pl.read_delta(file.uri)["id"].to_list() == [1]
    snapshot = file.engine.log.newest()
    named = {"readerFeatures": ["typeWidening"], "writerFeatures": ["typeWidening"]}
    features = {"minReaderVersion": 3, "minWriterVersion": 7, **named}
    file.engine.log.commit(snapshot, [{"protocol": features}])
    with pytest.raises(DeltaError, match="TypeWidening"):
        QueryBuilder().register("t", DeltaTable(file.uri)).execute("SELECT * FROM t").read_all()
    with pytest.raises(DeltaProtocolError, match="typeWidening"):
        pl.read_delta(file.uri)


def test_a_table_that_is_not_there_is_not_rebuilt(tmp_path: Path) -> None:
    """Nor one that the file does not have."""
    with pytest.raises(UsageError, match="does not exist yet"):
        rebuild(opened(tmp_path, BEFORE), T)
    with pytest.raises(UsageError, match=r"no table 'u'"):
        rebuild(opened(tmp_path, BEFORE), "u")


def test_a_pipeline_that_runs_meanwhile_loses_nothing_and_ends(tmp_path: Path) -> None:
    """What it wrote before the commit is in the new table; after it its batches are refused."""
    running = filled(tmp_path, BEFORE, ROWS)
    after = entry(keys=["id"], columns={"id": "bigint", "n": "numeric(20,4)", "gone": "text"}, buckets=2)
    late = [change(9, {"id": 9, "n": "9.00"}), change(10, {"id": 3}, op="d")]
    pending = [late[:1], late[1:]]
    writes: list[str] = []

    def meanwhile(write: str) -> None:
        writes.append(write)
        if write == f"table {T}" and pending:
            apply_batch(running, decoded(running.config, pending.pop(0)))  # type: ignore[arg-type]

    assert rebuild(watched(opened(tmp_path, after), meanwhile), T).written
    assert not pending
    assert writes.count(f"table {T}") == 3
    with pytest.raises(ConfigurationError, match="was rebuilt meanwhile"):
        apply_batch(running, decoded(running.config, [change(11, {"id": 11})]))  # type: ignore[arg-type]
    lake, _ = lake_in(tmp_path, after)
    fresh = filled(tmp_path / "fresh", after, [*ROWS, *late])
    assert rows_of(lake) == rows_of(fresh)
    # What was written for the rounds that lost is gone again.
    files = {path.name for path in (tmp_path / "lake" / T).rglob("*.parquet")}
    known = {each.path.rpartition("/")[2] for each in lake.typed[T].file.data_files()}
    before = {path.name for path in (tmp_path / "lake" / T).glob("*.parquet")}  # not in a bucket: of before
    assert files == known | before


# A model: every change that the table still knows of, keyed anew.

TYPES = {
    "a": ["integer", "bigint", "smallint"],
    "b": ["text", "varchar(9)"],
    "c": ["uuid"],
    "v": ["integer", "bigint"],
}
FORMS: list[dict[str, str]] = [{}, {"deletes": "soft"}, {"keep": "history"}]


def definition(draw: random.Random, keep: dict[str, str]) -> dict[str, Any]:
    """A random entry of the table."""
    keys = draw.choice([["a"], ["a", "b"], ["b", "a"], ["c", "a"], ["c"], ["b"]])
    columns = {
        name: draw.choice(kinds) for name, kinds in TYPES.items() if draw.random() < 0.7 or name == "a"
    }
    found: dict[str, Any] = {"keys": keys, "columns": columns, **keep}
    if draw.random() < 0.4:
        found["rename"] = {"v": "w"}
        if "v" in columns:
            columns["w"] = columns.pop("v")
    if draw.random() < 0.3:
        found["buckets"] = draw.choice([2, 5])
    return found


def random_changes(
    draw: random.Random, keys: list[str], count: int, after: int = 0
) -> list[tuple[int, dict[str, Any], str]]:
    """Changes of few rows, so that keys of any list meet."""
    found = []
    for ts_ns in draw.sample(range(after + 1, after + 10 * count), count):
        a, b = draw.randrange(4), draw.choice("xy")
        row = {"a": a, "b": b, "c": f"00000000-0000-0000-0000-00000000000{draw.choice('ab')}", "v": ts_ns}
        gone = draw.random() < 0.3
        found.append((ts_ns, {name: row[name] for name in keys} if gone else row, "d" if gone else "c"))
    return found


class Model:
    """What a table knows, as plain Python has it: images and deletes by their time."""

    def __init__(
        self, changes: list[tuple[int, dict[str, Any], str]], keys: list[str], form: dict[str, str]
    ) -> None:
        self.images = {ts: row for ts, row, op in changes if op == "c"}
        self.deletes = {ts: row for ts, row, op in changes if op == "d"}
        self.form = form
        self.keyed(keys)

    def keyed(self, keys: list[str]) -> None:
        """Forget what a table with these keys does not keep."""
        self.keys = keys
        self.deletes = {ts: row for ts, row in self.deletes.items() if set(keys) <= set(row)}
        if self.form != {"keep": "history"}:
            self.images = self._newest(self.images)
            self.deletes = self._newest(self.deletes)
            images, deletes = self._by_key(self.images), self._by_key(self.deletes)
            if self.form == {}:
                self.images = {t: r for k, (t, r) in images.items() if t > deletes.get(k, (0, r))[0]}
            self.deletes = {t: r for k, (t, r) in deletes.items() if t > images.get(k, (0, r))[0]}
        self.deletes = {ts: {name: row[name] for name in keys} for ts, row in self.deletes.items()}
        if self.form == {"deletes": "soft"}:  # a row that stays says which it was
            there = self._by_key(self.images)
            self.deletes = {t: there.get(self._key(r), (0, r))[1] for t, r in self.deletes.items()}

    def _key(self, row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.keys)

    def _by_key(self, changes: dict[int, dict[str, Any]]) -> dict[Any, tuple[int, dict[str, Any]]]:
        return {self._key(row): (ts, row) for ts, row in sorted(changes.items())}

    def _newest(self, changes: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        return dict(self._by_key(changes).values())

    def rows(self) -> set[tuple[Any, ...]]:
        """What the table shows: values, their time, and when they ended or were deleted."""
        found = set()
        images, deletes = self._by_key(self.images), self._by_key(self.deletes)
        if self.form == {"keep": "history"}:
            for ts, row in self.images.items():
                after = [
                    t
                    for t, r in (*self.images.items(), *self.deletes.items())
                    if self._key(r) == self._key(row)
                ]
                end = min((t for t in after if t > ts), default=None)
                found.add((row["a"], row["b"], row["c"], row["v"], ts, end))
            return found
        for ts, row in images.values():
            gone = deletes.get(self._key(row), (0, row))[0]
            found.add((row["a"], row["b"], row["c"], row["v"], ts, gone if gone > ts else None))
        if self.form == {"deletes": "soft"}:
            for key, (ts, row) in deletes.items():
                if key not in images:
                    found.add((*(row.get(name) for name in "abcv"), None, ts))
        return found


def shown(lake: Lake, parts: dict[str, Any]) -> set[tuple[Any, ...]]:
    """What a table shows, in the model's words."""
    found = set()
    for row in lake.typed[T].file.read().to_pylist():
        v = row.get(parts.get("rename", {}).get("v", "v"))
        values = [row.get("a"), *(_plain(row.get(name), name in parts["columns"]) for name in "bc")]
        v = int(v) if v is not None else None
        end = row.get("_valid_to_ns") or row.get("_deleted_ns")
        found.add(
            (
                *(int(x) if isinstance(x, str) and x.isdigit() else x for x in values[:1]),
                *values[1:],
                v,
                row["_ts_ns"],
                end,
            )
        )
    return found


def _plain(value: Any, declared: bool) -> Any:  # noqa: FBT001
    return value if declared or value is None else json.loads(value)


def went_from_one_definition_to_another(folder: Path, seed: int, *, kills: int) -> None:
    """Changes, a rebuild that is killed at some of its writes, more changes: always what the model has."""
    draw = random.Random(seed)
    form = draw.choice(FORMS)
    first = definition(draw, form)
    switch = {"history": FORMS, "current": FORMS[:2], "soft": FORMS[:2]}
    second = definition(draw, draw.choice(switch[form.get("keep", "soft" if form else "current")]))
    second["columns"] |= {
        name: kind
        for name, kind in first["columns"].items()
        if name not in second["columns"] and name not in ("v", "w")
    }
    changes = random_changes(draw, first["keys"], 40)
    lake = filled(folder, entry(**first), [change(ts, row, op=op) for ts, row, op in changes])
    model = Model(changes, first["keys"], form)
    assert shown(lake, first) == model.rows(), seed
    lost = form == {"keep": "history"} and second.get("keep") == "history"
    if lost and not set(second["keys"]) <= set(first["keys"]) and model.deletes:
        with pytest.raises(UsageError, match="do not say which keys"):
            rebuild(opened(folder, entry(**second)), T)
        return

    class Killed(BaseException):
        pass

    for at in range(kills):
        count = 0

        def stop(write: str, at: int = at) -> None:
            nonlocal count
            if count == at:
                raise Killed(write)
            count += 1

        try:
            rebuild(watched(opened(folder, entry(**second)), stop), T, unit_bytes=4000)
        except Killed:
            if at == kills - 1:
                break
            continue
        break
    rebuild(opened(folder, entry(**second)), T, unit_bytes=4000)
    lake, _ = lake_in(folder, entry(**second))
    model.form = {name: second[name] for name in ("keep", "deletes") if name in second}
    before = dict(model.deletes)
    model.keyed(second["keys"])
    assert shown(lake, second) == model.rows(), seed
    # What comes later meets what is there, and so does what comes late, but where deletes are not known any
    # more: then what is as old as they are is not taken.
    rekeyed = not set(second["keys"]) <= set(first["keys"])
    first_ns = max(before, default=0) if rekeyed else 0
    known = {*model.images, *model.deletes}
    more = [each for each in random_changes(draw, second["keys"], 20, first_ns) if each[0] not in known]
    apply_batch(lake, decoded(lake.config, [change(ts, row, op=op) for ts, row, op in more]))  # type: ignore[arg-type]
    for ts, row, op in more:
        (model.deletes if op == "d" else model.images)[ts] = row
    model.keyed(second["keys"])
    assert shown(lake, second) == model.rows(), seed


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_any_definition_becomes_any_other(seed: int, tmp_path: Path) -> None:
    """Some, each killed at a write."""
    went_from_one_definition_to_another(tmp_path, seed, kills=seed % 5)


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(4))
def test_two_hundred_definitions_become_others(part: int, tmp_path: Path) -> None:
    """Each killed at every write."""
    for seed in range(1000 + part * 50, 1000 + part * 50 + share_of(50)):
        went_from_one_definition_to_another(tmp_path / str(seed), seed, kills=99)
