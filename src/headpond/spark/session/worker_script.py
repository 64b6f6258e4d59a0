"""What Spark starts for each Python it wants: asks for a fork of one that has imported everything already.

Run by path, with the standard library alone (`-IS`). It tells the parent (`workers`) what it was started
with, and stays as the fork's stand-in: Spark sees its streams, may end it, and is told how it ended::

    ──►  length of the rest (4 bytes, with standard input, output and error), then it, in JSON:
         arguments, environment
    ◄──  process number of the fork (4 bytes) … its exit code (1 byte), unless it was killed

Where there is no parent, or it has ended, or this is to be another Python than one that runs a module, it
runs the interpreter itself.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
import sys

PARENT = "HEADPOND_PYTHON_PARENT"
"""The environment's variable that says where the parent listens."""

_OF_SPARK = re.compile(r".*/python/lib/(pyspark\.zip|py4j-[^/]*-src\.zip)|.*/jars/spark-core_[^/]*\.jar")


def main(arguments: list[str]) -> None:
    """Be a Python with these arguments."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(each for each in given if not _OF_SPARK.fullmatch(each))
    if arguments[:1] == ["-m"] and (place := os.environ.get(PARENT)):
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                sys.exit(_stand_in(connection, place, arguments))
        except (OSError, struct.error):
            pass
    os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 (this interpreter)


def _stand_in(connection: socket.socket, place: str, arguments: list[str]) -> int:
    connection.connect(place)
    told = {"arguments": arguments, "environment": dict(os.environ)}
    content = json.dumps(told).encode()
    socket.send_fds(connection, [struct.pack("!I", len(content))], [0, 1, 2])
    connection.sendall(content)
    (fork,) = struct.unpack("!I", connection.recv(4))
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(fork, number))
    code = connection.recv(1)
    connection.recv(1)  # its end
    return code[0] if code else 128 + signal.SIGKILL


if __name__ == "__main__":
    main(sys.argv[1:])
