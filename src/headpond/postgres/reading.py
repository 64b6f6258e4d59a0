"""Rows of a table as the tokens that change records would carry, read in pages by primary key.

::

    SELECT now()             the moment, a little before ──► every row read counts as committed then
    BEGIN … REPEATABLE READ
      SELECT … WHERE (key) > (last key) ORDER BY key LIMIT n      a page; again until one is not full
    ROLLBACK

Pages need no cursor on the server, and a later transaction can go on behind the last key of an earlier one;
its rows have a moment of their own. Rows come one at a time from the socket, so that memory holds a part of a
page, however wide the rows are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from headpond.core.schemas import json_texts
from headpond.dsql.pg_types import SPECIAL_NUMERICS, parse_type

if TYPE_CHECKING:
    from headpond.postgres.catalog import DatabaseColumn, DatabaseTable
    from headpond.postgres.connection import Connection, Database

ROWS_AT_ONCE = 100_000
BYTES_AT_ONCE = 64 << 20
MARGIN_MS = 5_000
"""So much earlier than the snapshot its rows count: a change has its commit time before others can see it."""
LASTS_S = 240.0
"""So long a transaction is used in Aurora DSQL, which ends each after 5 minutes."""

_OVERHEAD = 64
"""Bytes that a text takes in Python beside its characters."""

_MICROS = "trunc(extract(epoch FROM {c}) * 1000000)"
_MOMENT = (
    f"CASE WHEN isfinite({{c}}) THEN {_MICROS}::text WHEN {{c}} = 'infinity' THEN '9223372036825200000' "
    "WHEN {c} = '-infinity' THEN '-9223372036832400000' END"
)
_SPAN = (
    "(((extract(year FROM {c}) * 12 + extract(month FROM {c})) * 2629800 + extract(day FROM {c}) * 86400"
    " + extract(hour FROM {c}) * 3600 + extract(minute FROM {c}) * 60) * 1000000"
    " + extract(microseconds FROM {c}))"
)
_BARE = {
    **dict.fromkeys(("smallint", "integer", "bigint", "oid", "boolean"), "{c}::text"),
    "date": "CASE WHEN isfinite({c}) THEN ({c} - DATE '1970-01-01')::text WHEN {c} = 'infinity' "
    "THEN '2147494604' WHEN {c} = '-infinity' THEN '-2147472691' END",
    "time": f"{_MICROS}::text",
    "timetz": f"mod(mod({_MICROS}, 86400000000) + 86400000000, 86400000000)::text",
    "timestamp": _MOMENT,
    "timestamptz": _MOMENT,
    # As the service counts them, which sends null for what 64 bits do not hold.
    "interval": f"CASE WHEN {_SPAN} BETWEEN -9223372036854775808 AND 9223372036854775807 "
    f"THEN trunc({_SPAN})::text END",
    "oidvector": "CASE WHEN {c} IS NOT NULL THEN '[]' END",
}
"""Type → SQL that gives its token; of all other types the token is their text, as a JSON string."""
_QUOTED = {"bytea": "translate(encode({c}, 'base64'), E'\\n', '')"}
_FLOATS = ("real", "double precision")


@dataclass(frozen=True, slots=True)
class Page:
    """Rows: tokens by column (binary; null is null), how many, and the key of each as PostgreSQL's text."""

    tokens: dict[str, pa.Array]
    count: int
    keys: list[tuple[str, ...]]


class Snapshot:
    """A repeatable-read transaction; its rows count as committed at `moment_ns`, ns since 1970."""

    def __init__(self, database: Database, connection: Connection, moment_ns: int, lasts_s: float) -> None:
        self.moment_ns = moment_ns
        self._database, self._connection = database, connection
        self._ends_s = time.monotonic() + lasts_s

    @property
    def has_time(self) -> bool:
        """Whether another page may be read."""
        return time.monotonic() < self._ends_s

    def pages(
        self,
        table: DatabaseTable,
        columns: Sequence[str],
        after: Sequence[str] | None = None,
        *,
        rows_at_once: int = ROWS_AT_ONCE,
        bytes_at_once: int = BYTES_AT_ONCE,
    ) -> Iterator[Page]:
        """Read columns of a table with a primary key, behind the key `after`, in the key's order.

        Raises:
            ServiceFailure: the connection or the transaction ended.
            AccessDenied, UsageError: the database does not allow it, or cannot do it.
        """
        wanted = [table.column(name) for name in columns]
        keys = [table.column(name) for name in table.key]
        while True:
            found = 0
            query = _query(table, wanted, keys, after, rows_at_once)
            rows, size = list[tuple[Any, ...]](), 0
            with self._database.errors(), self._connection.cursor() as cursor:
                for row in cursor.stream(query):
                    rows.append(row)
                    found += 1
                    size += sum(_OVERHEAD + len(value) for value in row if value is not None)
                    if size >= bytes_at_once:
                        page = _page(rows, wanted)
                        after, rows, size = page.keys[-1], [], 0
                        yield page
            if rows:
                page = _page(rows, wanted)
                after, rows = page.keys[-1], []
                yield page
            if found < rows_at_once:
                return


@contextmanager
def snapshot(database: Database, *, lasts_s: float | None = None) -> Iterator[Snapshot]:
    """Open a snapshot: its moment is `MARGIN_MS` before the database's time, taken before it begins.

    The transaction is used for `lasts_s`: by default `LASTS_S` in Aurora DSQL, else without end.
    """
    lasts_s = (LASTS_S if database.is_dsql else float("inf")) if lasts_s is None else lasts_s
    with database.connect() as connection, database.errors():
        now = connection.execute("SELECT trunc(extract(epoch FROM now()) * 1000000)::bigint").fetchone()
        assert now is not None
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        with connection.transaction(force_rollback=True):
            yield Snapshot(database, connection, now[0] * 1000 - MARGIN_MS * 1_000_000, lasts_s)


def _query(
    table: DatabaseTable,
    wanted: Sequence[DatabaseColumn],
    keys: Sequence[DatabaseColumn],
    after: Sequence[str] | None,
    limit: int,
) -> sql.Composed:
    """Return the query of a page, without parameters: names may hold what marks those."""
    # A bare name in ORDER BY would be that of a column of the result, which is text.
    names = sql.SQL(", ").join(sql.Identifier("r", key.name) for key in keys)
    texts = [sql.SQL("{}::text").format(sql.Identifier(key.name)) for key in keys]
    place = sql.Identifier(table.schema, table.table)
    shown = sql.SQL(", ").join([*map(_token, wanted), *texts])
    where: sql.Composable = sql.SQL("")
    if after is not None:
        values = sql.SQL(", ").join(
            sql.SQL("CAST({} AS {})").format(sql.Literal(text), sql.SQL(key.type))
            for text, key in zip(after, keys, strict=True)
        )
        where = sql.SQL(" WHERE ({}) > ({})").format(names, values)
    return sql.SQL("SELECT {} FROM {} AS r{} ORDER BY {} LIMIT {}").format(
        shown, place, where, names, sql.Literal(limit)
    )


def _token(column: DatabaseColumn) -> sql.Composed:
    kind = parse_type(column.declared).name
    template = _BARE.get(kind) or _QUOTED.get(kind, "{c}::text")
    return sql.SQL(template).format(c=sql.Identifier(column.name))


def _page(rows: list[tuple[Any, ...]], wanted: Sequence[DatabaseColumn]) -> Page:
    texts = list(zip(*rows, strict=True))
    tokens = {column.name: _tokens(column, values) for column, values in zip(wanted, texts, strict=False)}
    return Page(tokens, len(rows), list(zip(*texts[len(wanted) :], strict=True)))


def _tokens(column: DatabaseColumn, values: Sequence[str | None]) -> pa.Array:
    kind = parse_type(column.declared).name
    texts = pa.array(values, pa.string())
    if kind in _FLOATS:
        special = pc.is_in(texts, value_set=pa.array(sorted(SPECIAL_NUMERICS)))
        texts = pc.if_else(special, json_texts(texts), texts)
    elif kind not in _BARE:
        texts = json_texts(texts)
    return texts.cast(pa.binary())
