"""A stand-in for AWS' token service (STS), and words that must not come out wherever they go in."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs

ROLE = "arn:aws:iam::123456789012:role/reader"
KEY, SECRET, TOKEN = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG", "FQoGZXIvYXdzEXAMPLETOKEN"
PROFILE_KEY, EXTERNAL_ID = "AKIAI44QH8DHBEXAMPLE", "external-id-hunter2"
SECRETS = (KEY, SECRET, TOKEN, PROFILE_KEY, EXTERNAL_ID, "ROLEKEY", "ROLESECRET", "ROLETOKEN")


class Sts:
    """A token service that gives numbered credentials, each for as long as told."""

    def __init__(self) -> None:
        self.lifetimes_s: list[int] = []
        self.asked: list[dict[str, str]] = []
        self.signers: list[str] = []
        self.refusing: str | None = None
        self.refused_roles: set[str] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                outer.asked.append({name: values[0] for name, values in parse_qs(body).items()})
                outer.signers.append(signer(self.headers["Authorization"]))
                status, reply = outer.answer()
                self.send_response(status)
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, *_arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def answer(self) -> tuple[int, bytes]:
        refusing = "AccessDenied" if self.asked[-1].get("RoleArn") in self.refused_roles else self.refusing
        if refusing is not None:
            return 403, (
                "<ErrorResponse><Error><Type>Sender</Type>"
                f"<Code>{refusing}</Code><Message>User {KEY} with {EXTERNAL_ID} may not</Message>"
                "</Error></ErrorResponse>"
            ).encode()
        number = len(self.asked)
        lifetime_s = self.lifetimes_s.pop(0) if self.lifetimes_s else 3600 * number
        until = datetime.now(UTC) + timedelta(seconds=lifetime_s)
        return 200, (
            "<AssumeRoleResponse><AssumeRoleResult><Credentials>"
            f"<AccessKeyId>ROLEKEY{number}</AccessKeyId><SecretAccessKey>ROLESECRET</SecretAccessKey>"
            f"<SessionToken>ROLETOKEN</SessionToken><Expiration>{until:%Y-%m-%dT%H:%M:%SZ}</Expiration>"
            "</Credentials></AssumeRoleResult></AssumeRoleResponse>"
        ).encode()

    def stop(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def signer(authorization: str) -> str:
    """The access key that a request is signed with."""
    found = re.search(r"Credential=([^/]+)/", authorization)
    assert found
    return found.group(1)


def leaks(text: str) -> list[str]:
    """The secrets that a text shows."""
    return [secret for secret in SECRETS if secret in text]
