"""A lake in a store that the environment describes: its endpoint, a proxy, who signed its certificate."""

from __future__ import annotations

import pickle
import ssl
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from headpond.core.errors import ConfigurationError, EndpointUnreachable
from headpond.lake.delta import DeltaFile
from headpond.lake.engine.folder import Folder
from headpond.lake.storage import file_system, storage_errors
from tests.kit.s3_server import Store, s3_store, served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})
NOWHERE = "127.0.0.2:9"  # nobody answers there


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with s3_store() as running:
        yield running


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_the_environment_alone_leads_all_of_a_table_to_one_store(
    store: Store, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Its files went to AWS, whatever the endpoint, and its commits to the endpoint."""
    for option, value in store.options.items():
        monkeypatch.setenv(name if option == "AWS_ENDPOINT_URL" else option, value)
    file = DeltaFile(f"{store.root}/{name}")
    file.create(ROWS.schema)
    file.append(ROWS)
    assert file.read().equals(ROWS)
    assert file.count() == 2
    elsewhere = pickle.dumps((file, Folder(file.uri)))
    monkeypatch.setenv(name, f"http://{NOWHERE}")  # what is given comes first, and what went along
    moved, folder = pickle.loads(elsewhere)
    assert moved.count() == 2
    assert folder.read("_delta_log/00000000000000000001.json") is not None
    given = DeltaFile(file.uri, {"endpoint": store.url})
    given.append(ROWS)
    assert given.read().num_rows == 4
    monkeypatch.setenv(name, store.url)
    assert DeltaFile(file.uri, {"AZURE_STORAGE_ENDPOINT": f"http://{NOWHERE}"}).read().num_rows == 4


def test_http_must_be_allowed_for_an_endpoint_of_the_environment(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
    monkeypatch.delenv("AWS_ALLOW_HTTP", raising=False)
    with pytest.raises(ConfigurationError, match="is plain HTTP, which is not allowed by default"):
        file_system(f"{store.root}/x", {"AWS_REGION": "us-east-1"})


@pytest.fixture
def behind(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store at an address that only a proxy knows: moto's server takes a proxy's requests as any others."""
    for name in ("http_proxy", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", store.url)
    return Store(f"http://{NOWHERE}")


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("prefix", ["http://", ""], ids=["a URL", "host and port"])
def test_all_of_a_table_goes_through_the_proxy(
    behind: Store, store: Store, monkeypatch: pytest.MonkeyPatch, name: str, prefix: str
) -> None:
    """It is made by deltalake, Arrow writes its files, obstore commits, and all of them read it."""
    monkeypatch.delenv("HTTP_PROXY")
    monkeypatch.setenv(name, prefix + store.url.removeprefix("http://"))
    file = DeltaFile(f"{behind.root}/{name} {len(prefix)}", behind.options)
    file.create(ROWS.schema)
    file.append(ROWS)
    assert file.read().equals(ROWS)
    assert file.count() == 2


def test_what_needs_no_proxy_does_without(behind: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "example.com,127.0.0.2")
    files, place = file_system(f"{behind.root}/x", behind.options)
    with pytest.raises(EndpointUnreachable, match="HTTPS_PROXY"), storage_errors(behind.root):
        files.get_file_info(place)


def certified(folder: Path) -> Path:
    """Write a certificate of 127.0.0.1 that signs itself, with its key."""
    key, name = (
        ec.generate_private_key(ec.SECP256R1()),
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")]),
    )
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(1))
        .not_valid_after(now + timedelta(1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8
    private = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    (folder / "both.pem").write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return folder / "both.pem"


@contextmanager
def serving(certificate: Path) -> Iterator[Store]:
    class Empty(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET  # noqa: N815 - names of http.server

        def log_message(self, *_: Any) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """Clients that do not trust the certificate hang up."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = Quiet(("127.0.0.1", 0), Empty)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with served(server) as port:
        yield Store(f"https://localhost:{port}")


@pytest.mark.slow
def test_a_certificate_that_nobody_knows_is_told_apart(tmp_path: Path) -> None:
    """By Arrow and by obstore."""
    with serving(certified(tmp_path)) as store:
        folder = Folder(store.root, store.options)
        for read in (lambda: folder.read("a"), lambda: folder.files.get_file_info(folder.place("a"))):
            with (
                pytest.raises(EndpointUnreachable, match=r"certificate.*SSL_CERT_FILE"),
                storage_errors(store.root),
            ):
                read()
