"""An S3 server (moto's, a process of its own), and one that refuses everything."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import boto3

if TYPE_CHECKING:
    from collections.abc import Iterator

_SERVER = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""

SECRET = "s3cr3t-wJalrXUtnFEMI"


@dataclass(frozen=True)
class Store:
    """A bucket called `lake` on a server of our own."""

    url: str
    root: str = "s3://lake"

    @property
    def options(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }

    @property
    def toml(self) -> str:
        """The same as a value of a pipeline file."""
        return "{ " + ", ".join(f'{name} = "{value}"' for name, value in self.options.items()) + " }"

    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id="AKIAEXAMPLE",
            aws_secret_access_key=SECRET,
        )


@contextmanager
def s3_store() -> Iterator[Store]:
    """Serve S3 on the loopback for as long as the block lasts."""
    # Not in this process: a native client that keeps the interpreter's lock would wait for it forever.
    command = [sys.executable, "-c", _SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            store = Store(f"http://127.0.0.1:{int(server.stdout.readline())}")
            client = store.client()
            client.create_bucket(Bucket="lake")
            client.close()
            yield store
        finally:
            server.stdin.close()  # it ends with its input
            server.wait(20)


@contextmanager
def refusing_store(status: int, body: str) -> Iterator[Store]:
    """Serve nothing but one answer."""

    class Refusal(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            content = body.encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer  # noqa: N815 - names of http.server

        def log_message(self, *_: Any) -> None:
            pass

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Refusal)) as port:
        yield Store(f"http://127.0.0.1:{port}")


@contextmanager
def served(server: ThreadingHTTPServer) -> Iterator[int]:
    """Have a server answer for as long as the block lasts; give its port."""
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
