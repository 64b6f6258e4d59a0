"""An Azure Blob Storage: Azurite, Microsoft's own, from npm; `make test-thorough` installs it."""

from __future__ import annotations

import shutil
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.fs as pafs
import pytest

from tests.kit.support import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = Path(__file__).parents[2] / ".bench/peers/node_modules/azurite/dist/src/blob/main.js"
ACCOUNT = "devstoreaccount1"
# The one key that Azurite knows: https://learn.microsoft.com/azure/storage/common/storage-use-azurite
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
START_S = 60


@dataclass(frozen=True)
class AzureStore:
    """A container called `lake` on a server of our own."""

    url: str
    key: str = KEY
    root: str = f"abfss://lake@{ACCOUNT}.dfs.core.windows.net"

    @property
    def options(self) -> dict[str, str]:
        return {
            "AZURE_STORAGE_ENDPOINT": f"{self.url}/{ACCOUNT}",
            "AZURE_ALLOW_HTTP": "true",
            "AZURE_STORAGE_ACCOUNT_KEY": self.key,
        }

    @property
    def toml(self) -> str:
        """The same as a value of a pipeline file."""
        return "{ " + ", ".join(f'{name} = "{value}"' for name, value in self.options.items()) + " }"


@contextmanager
def azure_store(folder: Path) -> Iterator[AzureStore]:
    """Serve Blob Storage on the loopback for as long as the block lasts; `folder` takes its log."""
    node = shutil.which("node")
    if node is None or not SCRIPT.exists():
        pytest.skip("Azurite is not installed: `make test-thorough` does it where there is npm.")
    (port,) = free_ports(1)
    command = [
        node, str(SCRIPT), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence",
        "--skipApiVersionCheck", "--disableTelemetry", "--silent",
    ]  # fmt: skip
    with (folder / "azurite.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            authority = {f"{each}_storage_authority": f"127.0.0.1:{port}" for each in ("blob", "dfs")}
            scheme = {f"{each}_storage_scheme": "http" for each in ("blob", "dfs")}
            files = pafs.AzureFileSystem(ACCOUNT, account_key=KEY, **authority, **scheme)
            end = time.monotonic() + START_S
            while True:
                try:
                    files.create_dir("lake")
                    break
                except OSError:
                    if server.poll() is not None or time.monotonic() > end:
                        raise AssertionError((folder / "azurite.log").read_text()) from None
                    time.sleep(0.2)
            yield AzureStore(f"http://127.0.0.1:{port}")
        finally:
            server.terminate()
            server.wait(20)
