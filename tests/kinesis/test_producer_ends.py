"""Programs that end, or fork, with a producer that nobody closed."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from tests.kinesis.producer_kit import stored

if TYPE_CHECKING:
    from headpond.localkinesis import LocalKinesis

pytestmark = pytest.mark.slow

PROGRAM = """
import asyncio, atexit, os, sys
from headpond.kinesis import BlockingProducer, ConnectionSettings, Producer, ProducerSettings

connection = ConnectionSettings(stream_name="s", region="us-east-1", endpoint_url=sys.argv[1])
settings = ProducerSettings(record_max_buffered_time_ms=60_000, record_ttl_ms=800)
"""


def said_by(kinesis: LocalKinesis, program: str, *, returns: int = 0) -> str:
    """Run a program that has a connection and settings; return what it wrote to standard error."""
    text = PROGRAM + dedent(program)
    run = subprocess.run(
        [sys.executable, "-c", text, kinesis.endpoint_url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == returns, run.stderr
    return run.stderr


LEFT_OPEN = """
producer = BlockingProducer(connection, settings)
producer.start()
for _ in range(5):
    producer.put("k", b"x")
"""


@pytest.mark.parametrize(
    ("ending", "returns"),
    [("", 0), ("atexit.register(producer.close)", 0), ("sys.exit(3)", 3), ("1 / 0", 1)],
)
def test_the_end_of_a_program_sends_what_was_put(kinesis: LocalKinesis, ending: str, returns: int) -> None:
    """However it ends. It lost them without a word, and `close` at that time failed as a bug would."""
    said = said_by(kinesis, LEFT_OPEN + ending, returns=returns)
    assert ("ZeroDivisionError" in said) == ("1 / 0" in ending)
    assert "producer" not in said
    assert [record.data for record in stored(kinesis)] == [b"x"] * 5


def test_what_cannot_be_sent_at_the_end_is_logged(kinesis: LocalKinesis) -> None:
    """Nobody looks at futures any more, so standard error has it."""
    kinesis.faults.throttle(calls=("PutRecords",))
    assert "5 user records for stream s were still waiting when the program ended, and failed: " in said_by(
        kinesis, LEFT_OPEN
    )


def test_what_an_event_loop_leaves_unsent_is_logged(kinesis: LocalKinesis) -> None:
    """Without its loop a producer cannot send; it says how many records that are."""
    said = said_by(
        kinesis,
        """
        async def main():
            producer = Producer(connection, settings)
            await producer.start()
            for _ in range(5):
                await producer.submit("k", b"x")

        asyncio.run(main())
        """,
    )
    assert said.startswith("5 user records for stream s were not sent: their producer was never closed. ")


def test_a_forked_process_is_told_to_start_its_own(kinesis: LocalKinesis) -> None:
    """As a server that forks its workers does. The child waited for ever; the parent sends what it took."""
    said = said_by(
        kinesis,
        LEFT_OPEN
        + """
if child := os.fork():
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
else:
    try:
        producer.put("k", b"of the child")
    except ValueError as error:
        print(error, file=sys.stderr)
    producer.close()
    with BlockingProducer(connection, settings) as own:
        own.put("k", b"of its own")
""",
    )
    assert "from which this one was forked. Start one in each process, after the fork." in said
    assert sorted(record.data for record in stored(kinesis)) == [b"of its own", *[b"x"] * 5]
