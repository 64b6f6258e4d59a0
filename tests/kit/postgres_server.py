"""A PostgreSQL server of a test's own, on loopback and in a temporary folder, without durability."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

DEBIAN = Path("/usr/lib/postgresql")
PATIENCE_S = 60.0


def programs() -> Path | None:
    """The folder with `initdb` and `postgres`; None where no server is installed."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).parent
    packaged = sorted(DEBIAN.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return packaged[-1].parent if packaged else None


@contextmanager
def postgres_server() -> Iterator[str]:
    """Start a server and give the DSN of its administrator; where none is installed the test is skipped."""
    folder = programs()
    if folder is None:
        pytest.skip("no PostgreSQL server is installed (Debian's package: postgresql)")
    place = Path(tempfile.mkdtemp(prefix="headpond-postgres-"))
    # The server does not run as root.
    names = [user.pw_name for user in pwd.getpwall()]
    user = None if os.geteuid() else next(name for name in ("postgres", "nobody") if name in names)
    if user is not None:
        shutil.chown(place, user)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data = place / "data"
    subprocess.run(
        [folder / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"],
        check=True, capture_output=True, user=user, cwd=place,
    )  # fmt: skip
    options = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off"}
    settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
    with (place / "log").open("wb") as log:
        server = subprocess.Popen(
            [folder / "postgres", "-D", data, "-p", str(port), *settings], stderr=log, user=user, cwd=place
        )
    dsn = f"postgresql://postgres@127.0.0.1:{port}/postgres"
    try:
        _wait(dsn, server, place / "log")
        yield dsn
    finally:
        server.send_signal(signal.SIGINT)  # fast: connections that are left are ended
        server.wait(PATIENCE_S)
        shutil.rmtree(place)


def _wait(dsn: str, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            psycopg.connect(dsn).close()
        except psycopg.OperationalError:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.1)
        else:
            return
