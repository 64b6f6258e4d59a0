"""Snapshots of a real server: tokens as change records have them, and loads that nothing tears."""

from __future__ import annotations

import base64
import json
import random
import shutil
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from headpond.core.errors import AccessDenied, InvalidData, ServiceFailure, UsageError
from headpond.lake.apply import apply_batch
from headpond.lake.maintenance.compare import Compare
from headpond.lake.maintenance.from_database import DatabaseLoad, DatabaseRows
from headpond.postgres import connection as connections
from headpond.postgres.catalog import tables_of
from headpond.postgres.connection import Database
from headpond.postgres.reading import snapshot
from tests.lake.lakes import decoded, lake_in
from tests.postgres.test_catalog import run

if TYPE_CHECKING:
    from pathlib import Path

    from headpond.lake.tables import Lake
    from headpond.postgres.connection import Connection
    from tests.cli.conftest import Cli

pytestmark = pytest.mark.slow

# What the service's documentation says of each type, and PostgreSQL's text of the value.
TOKENS = [
    ("smallint", "-32768", "-32768"),
    ("integer", "7", "7"),
    ("bigint", "9223372036854775807", "9223372036854775807"),
    ("oid", "4294967295", "4294967295"),
    ("real", "0.1", "0.1"),
    ("real", "NaN", '"NaN"'),
    ("double precision", "0.1", "0.1"),
    ("double precision", "1e300", "1e+300"),
    ("double precision", "-Infinity", '"-Infinity"'),
    ("numeric(12,2)", "1.50", '"1.50"'),
    ("numeric", "1e40", '"1' + "0" * 40 + '"'),
    ("numeric", "NaN", '"NaN"'),
    ("boolean", "t", "true"),
    ("text", 'a "b"\n\\ é\u2028', '"a \\"b\\"\\n\\\\ é\u2028"'),
    ("varchar(3)", "", '""'),
    ("char(5)", "ab", '"ab"'),
    ("bytea", "\\x" + "00ff" * 60, '"' + base64.b64encode(b"\x00\xff" * 60).decode() + '"'),
    ("bytea", "", '""'),
    ("date", "1970-01-02", "1"),
    ("date", "0044-03-15 BC", "-735160"),
    ("date", "infinity", "2147494604"),
    ("date", "-infinity", "-2147472691"),
    ("time", "24:00:00", "86400000000"),
    ("time", "00:00:00.000001", "1"),
    ("timetz", "01:00:00+02", "82800000000"),
    ("timetz", "23:00:00-02", "3600000000"),
    ("timestamp", "1969-12-31 23:59:59.999999", "-1"),
    ("timestamp", "infinity", "9223372036825200000"),
    ("timestamptz", "2026-07-09 14:26:40.000001+02", "1783600000000001"),
    ("timestamptz", "-infinity", "-9223372036832400000"),
    ("interval", "1 year 1 month 1 day 00:00:00.000001", str((13 * 2_629_800 + 86_400) * 10**6 + 1)),
    ("interval", "-1 month", str(-2_629_800 * 10**6)),
    ("interval", "178000000 years", None),
    ("uuid", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", '"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"'),
    ("json", '{"b": 1,  "a": 2}', '"{\\"b\\": 1,  \\"a\\": 2}"'),
    ("oidvector", "1 2", "[]"),
    ("text[]", "{a,b}", '"{a,b}"'),
]


def read(dsn: str, name: str, after: list[str] | None = None, **bounds: int) -> list[list[str | None]]:
    table = tables_of(Database(dsn))["public", name]
    columns = [each.name for each in table.columns]
    with snapshot(Database(dsn)) as taken:
        pages = list(taken.pages(table, columns, after, **bounds))
    rows = [
        list(row)
        for page in pages
        for row in zip(*(page.tokens[c].to_pylist() for c in columns), strict=True)
    ]
    return [[None if token is None else token.decode() for token in row] for row in rows]


def test_a_value_has_the_token_of_a_change_record(dsn: str) -> None:
    """Each type, its ends and its special values; NULL is null."""
    columns = ", ".join(f"c{number} {kind}" for number, (kind, _, _) in enumerate(TOKENS))
    run(dsn, f"CREATE TABLE t (id int PRIMARY KEY, {columns})", "INSERT INTO t VALUES (2)")
    with psycopg.connect(dsn, autocommit=True) as connection:
        values = ", ".join(f"%s::{kind}" for kind, _, _ in TOKENS)
        connection.execute(f"INSERT INTO t VALUES (1, {values})", [value for _, value, _ in TOKENS])
    full, empty = read(dsn, "t")
    assert dict(zip([*map(str, TOKENS)], full[1:], strict=True)) == {str(each): each[2] for each in TOKENS}
    assert empty == ["2"] + [None] * len(TOKENS)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("double precision", ["-Infinity", "-0.1", "0.1", "0.30000000000000004", "1e300", "NaN"]),
        ("timestamptz", ["-infinity", "0044-03-15 12:00:00 BC", "2026-07-09 14:26:40.000001+02", "infinity"]),
        ("text", ["", "%s", "'; DROP TABLE t; --", "\\", "é", "𝄞"]),
        ('text COLLATE "en-x-icu"', ["", "a", "A", "b", "B", "é"]),
        ("char(4)", ["", "a", "b"]),
        ("bytea", ["", "\\x00", "\\xff"]),
        ("numeric", ["-1e30", "0.10", "1.5"]),
        ("interval", ["-1 month", "1 day", "100 years"]),
    ],
)
def test_pages_meet_without_a_gap_whatever_the_key(dsn: str, kind: str, values: list[str]) -> None:
    """Each row once, when a page ends at each key, and when a later transaction goes on behind it."""
    run(dsn, f'CREATE TABLE t ("k%s{{x}}" {kind}, n int, v text, PRIMARY KEY ("k%s{{x}}", n))')
    with psycopg.connect(dsn, autocommit=True) as connection:
        for value in values:
            for number in (1, 2):
                connection.execute("INSERT INTO t VALUES (%s, %s, 'x')", (value, number))
    whole = read(dsn, "t")
    assert len(whole) == 2 * len(values)
    for bounds in ({"rows_at_once": 1}, {"rows_at_once": 3}, {"bytes_at_once": 1}):
        assert read(dsn, "t", **bounds) == whole
    table = tables_of(Database(dsn))["public", "t"]
    with snapshot(Database(dsn)) as taken:
        (page,) = taken.pages(table, ["n"])
    for number, key in enumerate(page.keys):
        assert read(dsn, "t", list(key)) == whole[number + 1 :]


def test_a_part_of_a_page_is_bounded_by_its_bytes(dsn: str) -> None:
    """Wide rows come in parts, though the page of the query is long."""
    run(
        dsn,
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT n, repeat('x', 1000) FROM generate_series(1, 50) n",
    )
    table = tables_of(Database(dsn))["public", "t"]
    with snapshot(Database(dsn)) as taken:
        counts = [page.count for page in taken.pages(table, ["id", "v"], bytes_at_once=10_000)]
    assert sum(counts) == 50
    assert max(counts) < 10


TABLES = """
[tables."public.t"]
keys = ["id"]
columns = { id = "bigint", v = "text" }
[tables."public.u"]
keys = ["b", "a"]
columns = { a = "integer", b = "text", price = "numeric(12,2)" }
except_columns = ["secret"]
[tables."public.log"]
keys = []
"""


def fill(dsn: str, rows: int = 20) -> None:
    run(
        dsn,
        "CREATE TABLE t (id bigint PRIMARY KEY, v text)",
        f"INSERT INTO t SELECT n, 'snapshot ' || n FROM generate_series(1, {rows}) n",
        "CREATE TABLE u (a int, b text, price numeric(12,2), secret text, PRIMARY KEY (a, b))",
        "INSERT INTO u VALUES (1, 'x', 1.50, 's'), (2, 'y', NULL, 's')",
        "CREATE TABLE log (v text)",
    )


def change(ts_ns: int, row: dict[str, Any], *, delete: bool = False, table: str = "t") -> bytes:
    source = {
        "version": "1.0",
        "ts_ns": ts_ns,
        "txId": "t",
        "schema": "public",
        "table": table,
        "cluster": "c",
    }
    images = {"before": {"id": row["id"]}, "after": None} if delete else {"after": row}
    body = {"type": "full", "op": "d" if delete else "c", "source": source} | images
    data = base64.b64encode(json.dumps(body).encode()).decode()
    return json.dumps({"data": data, "shard": "s", "sequenceNumber": str(ts_ns)}).encode()


def rows_of(lake: Lake, name: str = "public.t") -> dict[int, Any]:
    found = lake.typed[name].file.read(["id", "v", "_ts_ns"]).to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row["v"] for row in found}


def load(lake: Lake, dsn: str, *tables: str, **options: Any) -> DatabaseLoad:
    waits: list[float] = []
    job = DatabaseLoad(lake, Database(dsn), tables or ("public.t",), sleep=waits.append, **options)
    job.load()
    return job


def test_a_row_is_that_of_the_change_record(dsn: str, tmp_path: Path) -> None:
    """The same image, so that both are one; columns that are left out are not read."""
    fill(dsn)
    lake, config = lake_in(tmp_path, TABLES)
    done = load(lake, dsn, "public.t", "public.u").done
    assert (done["public.t"].rows, done["public.u"].rows) == (20, 2)
    row = {"a": 1, "b": "x", "price": "1.50", "secret": "other"}
    (loaded,) = lake.typed["public.u"].file.read(["_image_hash", "price"], "a = 1").to_pylist()
    assert "secret" not in lake.typed["public.u"].file.schema().names
    apply_batch(lake, decoded(config, [change(2**62, row, table="u")]))
    (applied,) = lake.typed["public.u"].file.read(["_image_hash", "price"], "a = 1").to_pylist()
    assert applied == loaded


@pytest.mark.parametrize("seed", range(4))
def test_later_changes_win_in_any_order(dsn: str, tmp_path: Path, seed: int) -> None:
    """Before, between and after parts of the load; deletes too, and a repetition changes nothing."""
    fill(dsn, rows=6)
    choice = random.Random(seed)
    lake, config = lake_in(tmp_path, TABLES)
    far = 2**62
    changes = [
        change(1, {"id": 1, "v": "older"}),
        change(far, {"id": 2, "v": "newer"}),
        change(far, {"id": 3}, delete=True),
        change(1, {"id": 4}, delete=True),
        change(far, {"id": 9, "v": "not in the snapshot"}),
    ]
    steps: list[Any] = [[line] for line in changes] + [None] * choice.choice([1, 2])
    choice.shuffle(steps)
    for step in steps:
        if step is None:
            load(lake, dsn, rows_at_once=choice.choice([1, 2, 100]))
        else:
            apply_batch(lake, decoded(config, step))
    kept = {number: f"snapshot {number}" for number in (1, 4, 5, 6)}
    assert rows_of(lake) == kept | {2: "newer", 9: "not in the snapshot"}


def test_the_moment_is_before_the_snapshot(dsn: str, tmp_path: Path) -> None:
    """What commits while the load runs is later than all moments, and the transaction sees none of it."""
    fill(dsn, rows=3)
    lake, _ = lake_in(tmp_path, TABLES)
    with psycopg.connect(dsn, autocommit=True) as other:

        def meanwhile(_words: str) -> None:
            other.execute("UPDATE t SET v = 'changed' WHERE id = 3")

        before = other.execute("SELECT extract(epoch FROM now()) * 1000000000").fetchone()
        job = DatabaseLoad(lake, Database(dsn), ["public.t"], rows_at_once=1)
        job.load(say=meanwhile)
    assert before is not None
    (moment,) = job.done["public.t"].moments_ns
    assert moment < before[0]
    assert rows_of(lake) == {number: f"snapshot {number}" for number in (1, 2, 3)}


def test_a_transaction_that_has_lasted_is_followed_by_another(dsn: str, tmp_path: Path) -> None:
    """Each part has its own moment, and what was changed behind the last key comes with the next."""
    fill(dsn, rows=4)
    lake, _ = lake_in(tmp_path, TABLES)
    with psycopg.connect(dsn, autocommit=True) as other:

        def meanwhile(words: str) -> None:
            if "1" in words:
                other.execute("UPDATE t SET v = 'changed' WHERE id IN (1, 4)")

        job = DatabaseLoad(lake, Database(dsn), ["public.t"], rows_at_once=1, lasts_s=0.0)
        job.load(say=meanwhile)
    assert len(job.done["public.t"].moments_ns) == 4
    assert rows_of(lake) == {1: "snapshot 1", 2: "snapshot 2", 3: "snapshot 3", 4: "changed"}


def test_a_connection_that_is_lost_is_made_anew(dsn: str, tmp_path: Path) -> None:
    """The load goes on behind the last key that was written."""
    fill(dsn)
    lake, _ = lake_in(tmp_path, TABLES)
    said: list[str] = []
    with psycopg.connect(dsn, autocommit=True) as other:

        def kill(words: str) -> None:
            said.append(words)
            if len(said) % 3 == 0:
                other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = 'headpond'"
                )

        job = DatabaseLoad(lake, Database(dsn), ["public.t"], rows_at_once=4, sleep=lambda _: None)
        done = job.load(say=kill)
    assert done["public.t"].rows == 20
    assert len(done["public.t"].moments_ns) > 1
    assert len(rows_of(lake)) == 20


def test_a_database_that_always_ends_it_is_given_up(dsn: str, tmp_path: Path) -> None:
    """After some tries without a page, with what the database said."""

    class Ending(Database):
        def connect(self) -> Connection:
            connection = super().connect()
            connection.close()
            return connection

    fill(dsn)
    lake, _ = lake_in(tmp_path, TABLES)
    waits: list[float] = []
    job = DatabaseLoad(lake, Database(dsn), ["public.t"], sleep=waits.append)
    job.database = Ending(dsn)
    with pytest.raises(ServiceFailure, match="connection is closed"):
        job.load()
    assert waits == [2.0, 4.0, 8.0, 16.0]


def test_what_a_role_has_set_changes_no_row(dsn: str, tmp_path: Path) -> None:
    """Neither the digits of a float nor a time-out; rows that a policy would hide are an error."""
    run(
        dsn,
        "CREATE TABLE f (id double precision PRIMARY KEY, v text)",
        "INSERT INTO f VALUES (0.30000000000000004, 'a'), (0.3, 'b')",
        "DROP ROLE IF EXISTS odd",
        "CREATE ROLE odd LOGIN",
        "GRANT SELECT ON f TO odd",
        "ALTER ROLE odd SET extra_float_digits = -10",
        "ALTER ROLE odd SET statement_timeout = '250ms'",
        "ALTER ROLE odd SET DateStyle = 'SQL, DMY'",
    )
    odd = dsn.replace("postgres@", "odd@")
    assert read(odd, "f", rows_at_once=1) == read(dsn, "f")
    with Database(odd).connect() as connection:
        connection.execute("SELECT pg_sleep(0.3)")
    run(dsn, "ALTER TABLE f ENABLE ROW LEVEL SECURITY", "CREATE POLICY few ON f USING (v = 'a')")
    with pytest.raises(AccessDenied, match="row-level security"):
        read(odd, "f")


def test_a_connection_that_ends_before_it_is_used_is_closed(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a role's time-out is shorter than its first statement takes; a load tries again."""
    monkeypatch.setattr(connections, "_EXACT", "SET statement_timeout = 10; SELECT pg_sleep(1)")
    with pytest.raises(ServiceFailure, match="statement timeout"):
        Database(dsn).connect()


class Killed(Exception):
    """The process is gone."""


@pytest.mark.parametrize("stop_at", range(1, 8))
def test_a_load_that_is_killed_goes_on(dsn: str, tmp_path: Path, stop_at: int) -> None:
    """Wherever it ended; rows that were written are not read again, and the marks go in the end."""
    fill(dsn)
    lake, _ = lake_in(tmp_path, TABLES)
    count = 0

    def stop(_words: str) -> None:
        nonlocal count
        count += 1
        if count == stop_at:
            raise Killed

    names = ("public.u", "public.t")
    with pytest.raises(Killed):
        DatabaseLoad(lake, Database(dsn), names, rows_at_once=3).load(say=stop)
    run(dsn, "DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (99, 'new')")
    done = load(lake, dsn, *names, rows_at_once=3).done
    assert done["public.u"].rows == 0
    assert done["public.t"].rows == 21 - 3 * (stop_at - 1) - (stop_at == 1)  # one gone, one new
    found = rows_of(lake)
    assert found.pop(99) == "new"
    assert set(found) == set(range(1, 21)) - ({1} if stop_at == 1 else set())
    left = tmp_path / "lake" / "_headpond" / "bootstrap"
    assert not any(left.iterdir())
    assert load(lake, dsn, *names).done["public.t"].rows == 20  # a new snapshot, and not "loaded before"


def test_a_table_that_was_made_anew_is_loaded_from_its_start(dsn: str, tmp_path: Path) -> None:
    """A mark of the table that was there before counts for nothing."""
    fill(dsn)
    lake, _ = lake_in(tmp_path, TABLES)

    def stop(_words: str) -> None:
        raise Killed

    with pytest.raises(Killed):
        DatabaseLoad(lake, Database(dsn), ["public.t"], rows_at_once=7).load(say=stop)
    shutil.rmtree(tmp_path / "lake" / "public.t")
    (tmp_path / "lake" / "_headpond" / "tables.json").unlink()
    lake, _ = lake_in(tmp_path, TABLES)
    load(lake, dsn)
    assert len(rows_of(lake)) == 20


@pytest.mark.parametrize(
    ("tables", "statements", "match"),
    [
        ('[tables."public.gone"]\nkeys = ["id"]\n', [], "no table public.gone"),
        ('[tables."public.t"]\nkeys = ["v"]\n', [], r"primary key of public.t is \(id\)"),
        ('[tables."public.t"]\nkeys = ["id"]\n', ["ALTER TABLE t DROP CONSTRAINT t_pkey"], r"is \(\)"),
        ('[tables."public.t"]\nkeys = ["id"]\ncolumns = { x = "text" }\n', [], "column 'x' .* is not there"),
        ('[tables."public.log"]\nkeys = []\n', [], "is a log"),
    ],
)
def test_what_contradicts_the_catalog_is_refused_before_a_row_is_read(
    dsn: str, tmp_path: Path, tables: str, statements: list[str], match: str
) -> None:
    """With both sides."""
    fill(dsn)
    run(dsn, *statements)
    lake, _ = lake_in(tmp_path, tables)
    with pytest.raises(UsageError, match=match):
        DatabaseLoad(lake, Database(dsn), list(lake.tables))


def test_a_value_that_does_not_fit_is_named_by_its_key(dsn: str, tmp_path: Path) -> None:
    """And when the entry is right, the load goes on."""
    fill(dsn)
    run(dsn, "UPDATE t SET v = 'seven' WHERE id = 7")
    wrong = TABLES.replace('v = "text"', 'v = "smallint"')
    run(dsn, "UPDATE t SET v = id", "UPDATE t SET v = 'seven' WHERE id = 7")
    lake, _ = lake_in(tmp_path, wrong)
    with pytest.raises(InvalidData, match=r"'v' of public.t holds .* in the row with the key \(1\)"):
        load(lake, dsn)


def test_a_loaded_table_is_compared_with_its_database(dsn: str, tmp_path: Path, cli: Cli) -> None:
    """Equal at once; what the database changed without the stream is listed, and ends with 1."""
    fill(dsn)
    file = tmp_path / "p.toml"
    file.write_text(f'[source]\narchive = "x.jsonl"\nformat = "dsql"\n[target]\npath = "lake"\n{TABLES}')
    assert cli("bootstrap", file, "--from-database", dsn).code == 0
    for name in ("public.t", "public.u"):
        said = cli("check-against", file, name, "--from-database", dsn, "--json")
        assert (said.code, said.lines()[0]["equal"]) == (0, True), said.stderr
    run(
        dsn,
        "UPDATE t SET v = 'changed' WHERE id = 3",
        "DELETE FROM t WHERE id = 4",
        "INSERT INTO t VALUES (77, 'new')",
    )
    said = cli("check-against", file, "public.t", "--from-database", dsn)
    assert said.code == 1
    assert said.stdout.decode().splitlines() == [
        "public.t: 20 of 20 rows: 1 missing, 1 too many, 1 different",
        "  missing [77]",
        "  too many [4]",
        "  different [3] in v",
    ]
    assert cli("check-against", file, "public.t").code == 2
    assert cli("check-against", file, "public.t", "--from-database", dsn, "--ts-ns", 1).code == 2


def test_a_long_table_is_compared_in_several_transactions(dsn: str, tmp_path: Path) -> None:
    """The first moment is the one that counts."""
    fill(dsn)
    lake, _ = lake_in(tmp_path, TABLES)
    load(lake, dsn)
    database = Database(dsn)
    rows = DatabaseRows.of(lake, "public.t", tables_of(database))
    read = rows.read(database, rows_at_once=6, lasts_s=0.0)
    found = Compare(lake, "public.t", rows.called).run(read, lambda: min(rows.moments_ns))
    assert (found.equal, found.rows_there, len(rows.moments_ns)) == (True, 20, 5)


def test_the_command_loads_every_table_that_keeps_rows(dsn: str, tmp_path: Path, cli: Cli) -> None:
    """Or those that are named; the log is left out."""
    fill(dsn)
    file = tmp_path / "p.toml"
    file.write_text(f'[source]\narchive = "x.jsonl"\nformat = "dsql"\n[target]\npath = "lake"\n{TABLES}')
    said = cli("bootstrap", file, "public.u", "--from-database", dsn, "--json")
    assert said.code == 0, said.stderr
    (document,) = said.lines()
    assert list(document["tables"]) == ["public.u"]
    said = cli("bootstrap", file, "--from-database", dsn)
    assert said.code == 0, said.stderr
    assert said.stdout.decode().splitlines() == [
        "public.t: 20 of 20 rows were written.",
        "public.u: 2 of 2 rows were written.",  # of a later moment
    ]
    assert cli("bootstrap", file, "--from-database", dsn, "--ts-ns", "1").code == 2
    assert cli("bootstrap", file).code == 2


def test_tables_that_patterns_stand_for_are_loaded_too(dsn: str, tmp_path: Path, cli: Cli) -> None:
    """Those of the database that match; a later start finds them."""
    run(dsn, "CREATE TABLE a (id bigint PRIMARY KEY)", "CREATE TABLE b (id bigint PRIMARY KEY, v text)")
    run(dsn, "INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (1, 'x'), (2, 'y')")
    file = tmp_path / "p.toml"
    head = '[source]\narchive = "x.jsonl"\nformat = "dsql"\n[target]\npath = "lake"\n'
    file.write_text(f'{head}[tables."public.*"]\nkeys = ["id"]\ncolumns = {{ id = "bigint" }}\n')
    said = cli("bootstrap", file, "--from-database", dsn)
    assert said.code == 0, said.stderr
    assert said.stdout.decode().splitlines() == [
        "public.a: 1 of 1 rows were written.",
        "public.b: 2 of 2 rows were written.",
    ]
    assert cli("check-against", file, "public.b", "--from-database", dsn).code == 0
    file.write_text(f'{head}[tables."other.*"]\nkeys = ["id"]\n')
    assert cli("bootstrap", file, "--from-database", dsn).code == 2
