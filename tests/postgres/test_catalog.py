"""The catalog of a real server: keys, types and NOT NULL, as a pipeline file declares them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from headpond.core.errors import AccessDenied, EndpointUnreachable, UsageError
from headpond.pipeline import loads
from headpond.postgres.catalog import tables_of
from headpond.postgres.connection import Database, _token

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

pytestmark = pytest.mark.slow

HEAD = '[source]\nstream = "s"\nformat = "dsql"\n[target]\npath = "lake"\n'
TYPES = {
    "smallint": "smallint",
    "int": "integer",
    "bigserial": "bigint",
    "oid": "oid",
    "real": "real",
    "float8": "double precision",
    "numeric(12,2)": "numeric(12,2)",
    "numeric(50,2)": "numeric",
    "numeric": "numeric",
    "boolean": "boolean",
    "text": "text",
    "varchar(20)": "varchar",
    "varchar": "varchar",
    "char(3)": "bpchar",
    "name": "name",
    '"char"': '"char"',
    "bytea": "bytea",
    "date": "date",
    "time(3)": "time",
    "timetz": "timetz",
    "timestamp(3)": "timestamp",
    "timestamptz": "timestamptz",
    "interval": "interval",
    "interval year to month": "any",
    "uuid": "uuid",
    "json": "json",
    "jsonb": "any",
    "text[]": "any",
    "amount": "numeric(9,3)",
    "mood": "any",
}


def run(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def test_every_type_is_declared_as_change_records_carry_it(dsn: str) -> None:
    """A domain counts as its type; what streams do not have is kept as it comes, and the note says so."""
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(TYPES))
    run(
        dsn,
        "CREATE DOMAIN amount AS numeric(9,3) CHECK (VALUE > 0)",
        "CREATE TYPE mood AS ENUM ('good')",
        f"CREATE TABLE t ({columns})",
    )
    table = tables_of(Database(dsn))["public", "t"]
    assert dict(zip(TYPES, (each.declared for each in table.columns), strict=True)) == TYPES
    notes = dict(zip(TYPES, (each.note for each in table.columns), strict=True))
    assert notes["jsonb"] == "jsonb: change records have no such type"
    assert notes["numeric(50,2)"] == "numeric(50,2): kept as text"
    assert notes["bigserial"] == "not null"


def test_keys_have_the_order_of_the_key(dsn: str) -> None:
    """Whatever the order of the columns; what an index includes beside them is not of the key."""
    run(
        dsn,
        "CREATE TABLE t (v text, b int, a int, n text NOT NULL, PRIMARY KEY (a, b) INCLUDE (v))",
        "CREATE TABLE no_key (v text UNIQUE)",
        "CREATE VIEW seen AS SELECT a FROM t",
        "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF parted FOR VALUES FROM (0) TO (9)",
        "ALTER TABLE t DROP COLUMN n",
    )
    found = tables_of(Database(dsn))
    assert {name: table.key for (_, name), table in found.items()} == {
        "t": ["a", "b"],
        "no_key": [],
        "parted": ["id"],
    }
    assert [(each.name, each.not_null) for each in found["public", "t"].columns] == [
        ("v", False),
        ("b", True),
        ("a", True),
    ]


def test_a_proposal_is_toml_that_a_pipeline_takes(dsn: str, cli: Cli, tmp_path: Path) -> None:
    """Without a FILE, and with one whose tables are named."""
    run(
        dsn,
        'CREATE SCHEMA "a.b"',
        'CREATE TABLE "a.b"."c ""d" ("Id" int PRIMARY KEY, "v\t" numeric(5,1))',
        "CREATE TABLE orders (id bigint PRIMARY KEY, price numeric(12,2) NOT NULL)",
        'CREATE TYPE "odd\nkeys = []" AS ENUM ()',
        'CREATE TABLE events (at timestamptz, odd "odd\nkeys = []")',
    )
    said = cli("suggest", "--from-database", dsn)
    assert said.code == 0, said.stderr
    (tmp_path / "p.toml").write_text(HEAD + said.stdout.decode())
    tables = {each.name: each for each in loads(HEAD + said.stdout.decode(), tmp_path).tables}
    assert (tables["public.orders"].keys, tables["public.orders"].columns["price"]) == (
        ("id",),
        "numeric(12,2)",
    )
    odd = tables['a.b.c "d']
    assert (odd.schema, odd.table, odd.keys, dict(odd.columns)) == (
        "a.b", 'c "d', ("Id",), {"Id": "integer", "v\t": "numeric(5,1)"},
    )  # fmt: skip
    assert tables["public.events"].keys == ()
    assert "# no primary key: kept as a log" in said.stdout.decode()
    assert '"price" = "numeric(12,2)"  # not null' in said.stdout.decode()
    again = cli("suggest", tmp_path / "p.toml", "--from-database", dsn, "--json").lines()[0]
    assert again["tables"]["public.orders"] == {
        "schema": "public",
        "table": "orders",
        "configured_as": "public.orders",
        "keys": ["id"],
        "keys_note": "the primary key",
        "columns": {
            "id": {"type": "bigint", "note": "not null"},
            "price": {"type": "numeric(12,2)", "note": "not null"},
        },
    }
    assert tomllib.loads(said.stdout.decode())


def test_no_password_is_repeated(server: str, cli: Cli) -> None:
    """Neither that of a DSN which cannot be read, nor that of a user who is not accepted."""
    wrong = server.replace("postgres@", "nobody_there:hunter2@")
    with pytest.raises(AccessDenied) as denied:
        Database(wrong).connect()
    with pytest.raises(EndpointUnreachable) as unreachable:
        Database("postgresql://u:hunter2@127.0.0.1:1/x").connect()
    with pytest.raises(UsageError) as unreadable:
        Database("postgresql://u:hunter2@host/x?no_such_option=1")
    for caught in (denied, unreachable, unreadable):
        assert "hunter2" not in str(caught.value)
    said = cli("suggest", "--from-database", "port=1 host=127.0.0.1 password=hunter2")
    assert (said.code, "hunter2" in said.stderr) == (3, False)


def test_a_user_without_rights_is_named_what_to_grant(dsn: str) -> None:
    """Reading a table is not the user's by default."""
    run(
        dsn,
        "CREATE TABLE t (id int PRIMARY KEY)",
        "DROP ROLE IF EXISTS reader",
        "CREATE ROLE reader LOGIN",
    )
    database = Database(dsn.replace("postgres@", "reader@"))
    refused = pytest.raises(AccessDenied, match="permission denied")
    with refused as caught, database.connect() as connection, database.errors():
        connection.execute("SELECT * FROM t")
    assert "GRANT" in caught.value.next_step.upper()


def test_a_cluster_of_aurora_dsql_gets_a_token_for_each_connection(dsn: str) -> None:
    """By its host alone; a password that is given is used."""
    made: list[tuple[str, ...]] = []

    def token(host: str, region: str, user: str, profile: str | None) -> str:
        made.append((host, region, user, str(profile)))
        return "token"

    host = "abc123.dsql.eu-west-1.on.aws"
    there = f"{dsn}?hostaddr=127.0.0.1&sslmode=disable".replace("127.0.0.1:", f"{host}:", 1)
    database = Database(there, profile="p", token=token)
    assert database.is_dsql
    for _ in range(2):
        database.connect().close()
    assert made == [(host, "eu-west-1", "postgres", "p")] * 2
    Database(there + "&password=x", token=token).connect().close()
    assert len(made) == 2
    assert not Database(dsn).is_dsql


def test_a_cluster_is_verified_before_it_gets_the_token(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the authorities that AWS's own client knows, unless the DSN says otherwise."""
    given: list[dict[str, object]] = []

    def connect(**settings: object) -> None:
        given.append(settings)
        raise psycopg.OperationalError("no")

    monkeypatch.setattr(psycopg, "connect", connect)
    host = "abc123.dsql.eu-west-1.on.aws"
    for more in ("", "?sslmode=require"):
        with pytest.raises(EndpointUnreachable):
            Database(f"postgresql://{host}{more}", token=lambda *_: "token").connect()
    first, second = given
    assert (first["sslmode"], second["sslmode"]) == ("verify-full", "require")
    assert Path(str(first["sslrootcert"])).is_file()
    assert "sslrootcert" not in second
    assert {name: first[name] for name in ("user", "dbname", "password")} == {
        "user": "admin", "dbname": "postgres", "password": "token",
    }  # fmt: skip


def test_the_token_is_that_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """`admin` has an action of its own."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    host = "abc123.dsql.eu-west-1.on.aws"
    assert "Action=DbConnectAdmin&" in _token(host, "eu-west-1", "admin", None)
    assert "Action=DbConnect&" in _token(host, "eu-west-1", "app", None)
    assert _token(host, "eu-west-1", "app", None).startswith(host)


def test_without_a_file_or_a_database_there_is_nothing_to_look_at(cli: Cli) -> None:
    """And both ways are named."""
    said = cli("suggest")
    assert said.code == 2
    assert "--from-database DSN" in said.stderr
