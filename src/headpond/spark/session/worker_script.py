"""What Spark starts for each Python it wants: asks for a fork of one that has imported everything already.

Run by path, with the standard library alone (`-IS`). It tells the parent (`workers`) what it was started
with, and then stands in for the fork: Spark sees its streams, can end it, and learns how it ended::

    ──►  length of the rest (4 bytes, with standard input, output and error), then it, in JSON:
         arguments, environment
    ◄──  process number of the fork (4 bytes) … its exit code (1 byte), unless it was killed

Without a parent that answers, or where Spark wants anything but a module run, it runs the interpreter itself.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
import sys
from threading import Thread

PARENT = "HEADPOND_PYTHON_PARENT"
"""The environment's variable that says where the parent listens."""

_OF_SPARK = re.compile(r".*/python/lib/(pyspark\.zip|py4j-[^/]*-src\.zip)|.*/jars/spark-core_[^/]*\.jar")


def main(arguments: list[str]) -> None:
    """Be a Python with these arguments."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(each for each in given if not _OF_SPARK.fullmatch(each))
    if arguments[:1] == ["-m"] and (place := os.environ.get(PARENT)):
        # It is for the fork, as soon as there is one, and waits until a thread asks for it. A handler would
        # not run for one that comes just before `recv` does.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                fork = _forked(connection, place, arguments)
            except (OSError, struct.error):
                pass
            else:
                sys.exit(_stand_in(connection, fork))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 (this interpreter)


def _forked(connection: socket.socket, place: str, arguments: list[str]) -> int:
    connection.connect(place)
    told = {"arguments": arguments, "environment": dict(os.environ)}
    content = json.dumps(told).encode()
    socket.send_fds(connection, [struct.pack("!I", len(content))], [0, 1, 2])
    connection.sendall(content)
    fork: int = struct.unpack("!I", connection.recv(4))[0]
    return fork


def _stand_in(connection: socket.socket, fork: int) -> int:
    Thread(target=lambda: os.kill(fork, signal.sigwait({signal.SIGTERM})), daemon=True).start()
    code = connection.recv(1)
    connection.recv(1)  # its end
    return code[0] if code else 128 + signal.SIGKILL


if __name__ == "__main__":
    main(sys.argv[1:])
