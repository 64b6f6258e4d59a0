"""A server for the room's tests, and an empty database of it for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.cli.conftest import cli
from tests.kit.postgres_server import postgres_server

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["cli"]


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with postgres_server() as dsn:
        yield dsn


@pytest.fixture
def dsn(server: str) -> str:
    """The DSN of a database of the test's own."""
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute("DROP DATABASE IF EXISTS test WITH (FORCE)")
        admin.execute("CREATE DATABASE test")
    return server.removesuffix("postgres") + "test"
