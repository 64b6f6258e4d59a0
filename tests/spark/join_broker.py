"""A Kafka broker for tests: one process on loopback, in KRaft mode, of jars that Maven fetched.

It is its own controller, keeps its log in a folder of the test, and is ended by its process.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING

from tests.kit.support import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VERSION = "4.3.0"
ARTIFACTS = [f"org.apache.kafka:kafka_2.13:{VERSION}"]
START_TIMEOUT_S = 60
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
log.dirs={folder}/log
# Records of tests are years old.
log.retention.ms=-1
auto.create.topics.enable=false
num.partitions=1
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


@contextlib.contextmanager
def broker(jars: Path, folder: Path) -> Iterator[str]:
    """Run a broker; gives its address."""
    port, controller = free_ports(2)
    settings = folder / "server.properties"
    settings.write_text(_SETTINGS.format(port=port, controller=controller, folder=folder))
    java = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*"]
    cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
    words = ["kafka.tools.StorageTool", "format", "--standalone", "-t", cluster, "-c", str(settings)]
    subprocess.run([*java, *words], check=True, capture_output=True, text=True, timeout=START_TIMEOUT_S)
    with (folder / "broker.log").open("wb") as log:
        process = subprocess.Popen([*java, "kafka.Kafka", str(settings)], stdout=log, stderr=log)
    try:
        end = time.monotonic() + START_TIMEOUT_S
        while not _answers(port):
            said = (folder / "broker.log").read_text()[-2000:]
            assert process.poll() is None, f"The broker ended: {said}"
            assert time.monotonic() < end, f"The broker does not answer: {said}"
            time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
