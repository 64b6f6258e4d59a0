"""The local Kinesis beside two other stand-ins: the same calls, the same answers, where those are right.

Where one of them answers otherwise, DIFFERENCES says why ours is taken to be right. The table is held in
both directions: an answer that differs must be listed, and one that is listed must differ.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from headpond.localkinesis import LocalKinesis
from tests.kit.support import free_ports
from tests.localkinesis.peer_script import STEPS, World

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(180)]

NPM_FOLDER = Path(__file__).parents[2] / ".bench" / "peers" / "node_modules" / "kinesis-local"
START_S = 90

NO_ERROR_CODE = "answers with HTTP 500 where the API reference has a code"
WRONG_CODE = "another code than ValidationException, which the service has for a member's length or value"
NUMBERS_UNCHECKED = "does not check where a number came from; the reference: InvalidArgumentException"
HALVES = "cuts the ring into ranges of (2^128 - 1) / n; the service's own, as in its guide, are of 2^128 / n"
NO_END = "a closed shard never ends; the reference: NextShardIterator is null, with ChildShards"
FILTERS = "ignores ShardFilter"

DIFFERENCES: dict[str, dict[str, str]] = {
    "moto": {
        "numbers_have_56_digits": "counts 1, 2, 3",
        "hash_key_at_the_top": "fails on 2^128 - 1, which the reference allows",
        "key_of_257_characters": WRONG_CODE,
        "record_over_1_mib": "takes records of any size",
        "limit_over_10000": "takes any Limit; the reference: 10,000 at most",
        "read_at_a_time_to_come": "takes times to come; the reference: InvalidArgumentException",
        "number_of_another_shard": NUMBERS_UNCHECKED,
        "number_of_no_stream": NUMBERS_UNCHECKED,
        "iterator_that_is_none": NO_ERROR_CODE,
        "arn_that_is_none": NO_ERROR_CODE,
        "listing_in_pages": "refuses a NextToken that comes with MaxResults, which the reference allows",
        "children_begin_above_their_parent": "numbers begin at 1 again in every shard",
        "end_of_a_closed_shard": NO_END,
        "put_after_a_split": "still puts into the closed shard",
        "open_shards_only": FILTERS,
        "shards_after_a_shard": FILTERS,
        "consumers": "an ARN without the consumer's path",
        "consumer_again": "registers a second consumer of one name; the reference: ResourceInUseException",
        "consumer_gone": "does not find a consumer by stream and name",
        "larger_records": "does not know UpdateMaxRecordSize",
    },
    "kinesis-local": {
        "list_shards": HALVES,
        "split": HALVES,
        "merge": HALVES,
        "more_than_500_records": "takes any number of records; the reference: 500 at most",
        "key_of_257_characters": WRONG_CODE,
        "record_over_1_mib": WRONG_CODE,
        "limit_over_10000": WRONG_CODE,
        "number_of_another_shard": "ResourceNotFoundException; the reference: InvalidArgumentException",
        "number_of_no_stream": "ResourceNotFoundException; the reference: InvalidArgumentException",
        "iterator_that_is_none": NO_ERROR_CODE,
        "arn_that_is_none": "SerializationException, which is for bodies that cannot be read",
        "split_a_closed_shard": "ResourceInUseException, which is for streams that are not active",
        "merge_what_is_not_adjacent": "ResourceInUseException; the reference: InvalidArgumentException",
    },
}

ALONE = {
    "key_of_257_characters",  # both: InvalidArgumentException; a member's length is a ValidationException
    "iterator_that_is_none",  # both: HTTP 500
}


def client(url: str) -> Any:
    return boto3.client(
        "kinesis",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=Config(retries={"total_max_attempts": 1}),
    )


def answers_at(url: str) -> dict[str, Any]:
    asking = client(url)
    try:
        return World(asking).run()
    finally:
        asking.close()


@pytest.fixture(scope="module")
def ours() -> dict[str, Any]:
    with LocalKinesis() as kinesis:
        return answers_at(kinesis.endpoint_url)


@pytest.fixture(scope="module")
def moto() -> Iterator[dict[str, Any]]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield answers_at(f"http://{host}:{port}")
    finally:
        server.stop()


@pytest.fixture(scope="module")
def kinesis_local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    if shutil.which("node") is None:
        pytest.skip("There is no node on the PATH, on which kinesis-local runs.")
    if not (NPM_FOLDER / "main.js").exists():
        pytest.skip("kinesis-local is not installed: `make test-thorough` does it where there is npm.")
    plain, secure = free_ports(2)
    environment = {
        **os.environ,
        "KINESIS_MOCK_CERT_PATH": str(NPM_FOLDER / "server.json"),
        "KINESIS_MOCK_PLAIN_PORT": str(plain),
        "KINESIS_MOCK_TLS_PORT": str(secure),
        "LOG_LEVEL": "ERROR",
    }
    log = tmp_path_factory.mktemp("kinesis-local") / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["node", str(NPM_FOLDER / "main.js")], env=environment, stdout=out, stderr=out
        )
    try:
        url = f"http://127.0.0.1:{plain}"
        wait_until_up(url, process, log)
        yield answers_at(url)
    finally:
        process.kill()  # asked to end it takes half a minute
        process.wait()


def wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    asking, end = client(url), time.monotonic() + START_S
    while True:
        try:
            asking.list_streams()
        except (BotoCoreError, ClientError):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.3)
        else:
            asking.close()
            return


def compared(ours: dict[str, Any], theirs: dict[str, Any], peer: str) -> None:
    different = {name for name in STEPS if ours[name] != theirs[name]}
    for name in sorted(different - DIFFERENCES[peer].keys()):
        pytest.fail(f"{name}: ours {ours[name]!r}, {peer} {theirs[name]!r}")
    assert different == DIFFERENCES[peer].keys(), "listed as different and alike"


def test_moto_answers_alike(ours: dict[str, Any], moto: dict[str, Any]) -> None:
    """Every step, but for what moto is known to do otherwise."""
    compared(ours, moto, "moto")


def test_kinesis_local_answers_alike(ours: dict[str, Any], kinesis_local: dict[str, Any]) -> None:
    """Every step, but for what kinesis-local is known to do otherwise."""
    compared(ours, kinesis_local, "kinesis-local")


def test_ours_seldom_stands_alone(
    ours: dict[str, Any], moto: dict[str, Any], kinesis_local: dict[str, Any]
) -> None:
    """Against two that agree with each other only where the reference is plain."""
    alone = {name for name in STEPS if moto[name] == kinesis_local[name] != ours[name]}
    assert alone == ALONE
