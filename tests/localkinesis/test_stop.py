"""The end of a local Kinesis: nothing that it opened stays open."""

from __future__ import annotations

import gc
import json
import socket
import struct
import time
from contextlib import ExitStack
from threading import Event, Thread

import pytest

from headpond.localkinesis import LocalKinesis
from headpond.localkinesis.testing import put_all


@pytest.mark.slow
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_reply_that_nobody_reads_is_given_up() -> None:
    """A client asks for more than the sockets hold and reads nothing: its connection ends with the server."""
    with LocalKinesis() as kinesis, socket.create_connection(("127.0.0.1", kinesis.port)) as connection:
        kinesis.engine.create_stream("orders", 1)
        client = kinesis.client()
        put_all(client, "orders", [("k", b"x" * 1_000_000)] * 8)
        iterator = client.get_shard_iterator(
            StreamName="orders", ShardId="shardId-000000000000", ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        body = json.dumps({"ShardIterator": iterator}).encode()
        head = (
            "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Amz-Target: Kinesis_20131202.GetRecords\r\n"
            f"Content-Type: application/x-amz-json-1.1\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        connection.sendall(head.encode() + body)
        while not connection.recv(1, socket.MSG_PEEK):
            time.sleep(0.01)
        kinesis.stop()
        gc.collect()  # what is left open warns when it is collected


@pytest.mark.slow
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_connections_that_arrive_while_it_stops_are_closed() -> None:
    """Clients connect and it is stopped while it is busy: what its last turn accepts is closed."""
    asked, go_on = Event(), Event()

    def slow_clock() -> int:
        asked.set()
        assert go_on.wait(30)
        return 0

    kinesis = LocalKinesis(clock=slow_clock).start()
    body = json.dumps({"StreamName": "orders", "ShardCount": 1})
    head = (
        "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Amz-Target: Kinesis_20131202.CreateStream\r\n"
        f"Content-Type: application/x-amz-json-1.1\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with ExitStack() as clients:
        busy = clients.enter_context(socket.create_connection(("127.0.0.1", kinesis.port)))
        busy.sendall((head + body).encode())
        assert asked.wait(30)
        for _client in range(20):
            clients.enter_context(socket.create_connection(("127.0.0.1", kinesis.port)))
        stopping = Thread(target=kinesis.stop)
        stopping.start()
        time.sleep(0.1)  # it has asked the loop to stop by now
        go_on.set()
        stopping.join()
        gc.collect()


@pytest.mark.parametrize("sent", ["", '{"StreamName": '])
def test_of_a_client_that_is_gone_nothing_is_said(caplog: pytest.LogCaptureFixture, sent: str) -> None:
    """One that was killed amid its request: it is no error of the server."""
    head = (
        "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Amz-Target: Kinesis_20131202.CreateStream\r\n"
        "Content-Type: application/x-amz-json-1.1\r\nContent-Length: 100\r\n\r\n"
    )
    with LocalKinesis() as kinesis:
        connection = socket.create_connection(("127.0.0.1", kinesis.port))
        connection.sendall((head + sent).encode())
        time.sleep(0.2)  # until its request is being read
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()  # by a reset
        kinesis.client().list_streams()
    assert not [each.getMessage() for each in caplog.records if each.name.startswith("aiohttp")]
