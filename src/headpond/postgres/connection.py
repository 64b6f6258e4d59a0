"""Connections to a database: PostgreSQL by what the DSN says, Aurora DSQL with a token of IAM.

::

    DSN ─► libpq's own reading of it ─► host is CLUSTER.dsql.REGION.on.aws? ─► token of 15 minutes as password
                                        any other                           ─► password, PGPASSFILE, …

Every connection to Aurora DSQL has a token of its own, which counts only while the connection is made. What
libpq says is passed on without the password; a DSN that cannot be read is not repeated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from headpond.core.errors import AccessDenied, EndpointUnreachable, ServiceFailure, UsageError
from headpond.kinesis.aws import aws_client, aws_errors, certificates

OLDEST = 140_000
"""PostgreSQL 14: since then `extract` gives the microseconds of a timestamp exactly."""
CONNECT_TIMEOUT_S = 10
# What a role or database may have set otherwise: keys as text that reads back as the same, as much time as is
# needed, and an error in place of rows that a policy hides.
_EXACT = """
SET extra_float_digits = 1; SET DateStyle = ISO; SET IntervalStyle = postgres; SET row_security = off;
SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0
"""
_DSQL = re.compile(r"[a-z0-9]+\.dsql(?:-[a-z0-9]+)?\.([a-z0-9-]+)\.on\.aws", re.IGNORECASE)
_SIGN_IN = re.compile(r"password|authentication|pg_hba|role .* does not exist|access denied", re.IGNORECASE)

Connection = psycopg.Connection[tuple[Any, ...]]


def _token(host: str, region: str, user: str, profile: str | None) -> str:
    client = aws_client("dsql", region=region, profile=profile)
    admin = user == "admin"
    make = client.generate_db_connect_admin_auth_token if admin else client.generate_db_connect_auth_token
    with aws_errors("dsql"):
        return str(make(Hostname=host, Region=region))


class Database:
    """A database by its DSN, `postgresql://user@host/name` or `host=… dbname=…`, as libpq reads it.

    What the DSN leaves out comes from libpq's environment (PGPASSWORD, PGPASSFILE, PGSERVICE). `profile` is
    the AWS profile that makes the token of an Aurora DSQL cluster; `token` makes it from host, region, user
    and profile.

    Raises:
        UsageError: the DSN cannot be read.
    """

    def __init__(
        self,
        dsn: str,
        *,
        profile: str | None = None,
        token: Callable[[str, str, str, str | None], str] = _token,
    ) -> None:
        try:
            self._given: dict[str, Any] = dict(conninfo_to_dict(dsn))
        except psycopg.ProgrammingError:
            raise UsageError(
                "The DSN of the database cannot be read.",  # it may hold a password
                next_step="Write it as postgresql://USER@HOST:PORT/DATABASE; the password is better in "
                "PGPASSWORD or a password file.",
            ) from None
        host = str(self._given.get("host") or "")
        found = _DSQL.fullmatch(host)
        self.region = found[1].lower() if found else None
        self._profile, self._token = profile, token
        self.name = f"{host or 'the default host'}/{self._given.get('dbname') or ''}".rstrip("/")

    @property
    def is_dsql(self) -> bool:
        """Whether it is a cluster of Aurora DSQL, by its host."""
        return self.region is not None

    def connect(self) -> Connection:
        """Open a connection, in autocommit.

        Raises:
            EndpointUnreachable, AccessDenied: nobody answers, or the user is not accepted.
            ServiceFailure: it ended at once; another one may go on.
            UsageError: the server is too old.
        """
        settings: dict[str, Any] = {"connect_timeout": CONNECT_TIMEOUT_S, **self._given}
        if self.region is not None:
            settings = {"user": "admin", "dbname": "postgres", **settings}
            if "sslmode" not in settings:  # the token is for the cluster's eyes alone
                settings |= {"sslmode": "verify-full", "sslrootcert": certificates()}
            if "password" not in settings:
                settings["password"] = self._token(
                    settings["host"], self.region, settings["user"], self._profile
                )
        try:
            connection = psycopg.connect(
                **settings, autocommit=True, client_encoding="utf8", application_name="headpond"
            )
        except psycopg.OperationalError as error:
            said = self._words(error, str(settings.get("password") or ""))
            if _SIGN_IN.search(said):
                raise AccessDenied(
                    f"{self.name} did not accept the connection: {said}.",
                    next_step="Check user and password, or for Aurora DSQL the right dsql:DbConnect.",
                ) from None
            raise EndpointUnreachable(
                f"{self.name} cannot be reached: {said}.", next_step="Check host, port, network and TLS."
            ) from None
        connection.prepare_threshold = None  # a pooler need not keep statements
        if not self.is_dsql:
            if connection.info.server_version < OLDEST:
                connection.close()
                raise UsageError(
                    f"{self.name} is PostgreSQL {connection.info.server_version // 10_000}; "
                    "14 or newer is needed.",
                    next_step="Load the table from Parquet files instead.",
                )
            try:
                with self.errors():
                    connection.execute(_EXACT)
            except BaseException:
                connection.close()
                raise
        return connection

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise what the database says while it is read as an error of headpond.

        Raises:
            ServiceFailure: the connection or the transaction ended; another one may go on.
            AccessDenied: the user may not read.
            UsageError: the database does not do what is asked.
        """
        try:
            yield
        except psycopg.errors.InsufficientPrivilege as error:
            raise AccessDenied(
                f"The database {self.name} does not allow it: {self._words(error)}.",
                next_step="Grant SELECT on the tables, and USAGE on their schemas, to the user.",
            ) from None
        except (psycopg.OperationalError, psycopg.InternalError, psycopg.InterfaceError) as error:
            raise ServiceFailure(
                f"The database {self.name} ended the reading: {self._words(error)}.",
                next_step="Start the command again: it continues where it was.",
            ) from None
        except psycopg.Error as error:
            raise UsageError(
                f"The database {self.name} did not do what was asked: {self._words(error)}.",
                next_step="Look at its version and at the table's definition.",
            ) from None

    def _words(self, error: Exception, password: str = "") -> str:
        said = " ".join(str(error).split()).partition(" Is the server running")[0].rstrip(".")
        for secret in filter(None, (password, str(self._given.get("password") or ""))):
            said = said.replace(secret, "***")
        return said
