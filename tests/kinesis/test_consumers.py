"""Registered consumers: found, registered once and waited for, listed, deregistered; also by command."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from headpond.cli.main import main
from headpond.core.errors import ConfigurationError, MissingRequirement, StreamNotFound
from headpond.kinesis.api.calls import ServiceCalls
from headpond.kinesis.api.retry import Patience
from headpond.kinesis.api.settings import ConnectionSettings
from headpond.kinesis.consumers import Consumers, consumer_of
from headpond.kinesis.planning.options import read_options
from headpond.localkinesis import Settings
from headpond.localkinesis.testing import ManualClock, local_kinesis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headpond.localkinesis import LocalKinesis

STREAM = "orders"
SETTLE_MS = 30_000


@pytest.fixture
def kinesis(clock: ManualClock) -> Iterator[LocalKinesis]:
    """A stream whose consumers take half a minute to come and to go."""
    with local_kinesis(STREAM, clock=clock, settings=Settings(max_consumers=2)) as running:
        settle(running, SETTLE_MS)
        yield running


def settle(kinesis: LocalKinesis, settle_ms: int) -> None:
    kinesis.engine.settings = replace(kinesis.engine.settings, settle_ms=settle_ms)


def settings_of(kinesis: LocalKinesis) -> ConnectionSettings:
    return ConnectionSettings(stream_name=STREAM, endpoint_url=kinesis.endpoint_url)


def consumers(kinesis: LocalKinesis, clock: ManualClock, **more: Any) -> Consumers:
    """What is asked; waiting moves the clock."""

    def sleep(seconds: float) -> None:
        clock.advance(round(seconds * 1000))

    patience = Patience(0.001, 0.002, 0.01, 0.01)
    calls = ServiceCalls(settings_of(kinesis), client=kinesis.client(), patience=patience)
    return Consumers(calls, settings_of(kinesis), sleep=sleep, **more)


def statuses(kinesis: LocalKinesis, clock: ManualClock) -> dict[str, str]:
    return {each.name: each.status for each in consumers(kinesis, clock).each()}


def test_a_consumer_is_registered_once_and_waited_for(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """ACTIVE when it returns; a second time it is the same one, also where it is still being registered."""
    asked = consumers(kinesis, clock)
    began_ms = clock()
    arn = asked.register("app")
    assert clock() - began_ms >= SETTLE_MS
    assert (asked.register("app"), asked.find("app")) == (arn, arn)
    kinesis.engine.consumers.register(STREAM, "other")
    assert statuses(kinesis, clock) == {"app": "ACTIVE", "other": "CREATING"}
    asked.register("other")
    asked.deregister("app")
    assert statuses(kinesis, clock) == {"other": "ACTIVE"}
    with pytest.raises(MissingRequirement, match=r"no registered consumer app .*; there is other"):
        asked.deregister("app")


def test_one_that_is_being_deleted_is_registered_anew(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """Once it is gone: until then the service does not take the name."""
    asked = consumers(kinesis, clock)
    arn = asked.register("app")
    kinesis.client().deregister_stream_consumer(ConsumerARN=arn)
    assert statuses(kinesis, clock) == {"app": "DELETING"}
    assert asked.register("app") != arn
    assert statuses(kinesis, clock) == {"app": "ACTIVE"}


def test_waiting_has_an_end_that_says_what_for(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """Stream, consumer, how long, and how it stands."""
    with pytest.raises(MissingRequirement, match=r"orders has no ACTIVE consumer app after 5 s.*CREATING"):
        consumers(kinesis, clock, most_s=5).register("app")
    kinesis.faults.refuse("ResourceInUseException", calls=["RegisterStreamConsumer"])
    with pytest.raises(MissingRequirement, match=r"after 5 s .*answered ResourceInUseException"):
        consumers(kinesis, clock, most_s=5).register("another")
    clock.advance(SETTLE_MS)
    with pytest.raises(MissingRequirement, match="still has the consumer app after 5 s"):
        consumers(kinesis, clock, most_s=5).deregister("app")


def test_a_stream_with_as_many_as_it_may_have(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """Who waits for nothing is refused at once, with those that could go."""
    asked = consumers(kinesis, clock)
    asked.register("a")
    asked.register("b")
    began_ms = clock()
    with pytest.raises(MissingRequirement, match="no more consumers than its 2") as caught:
        asked.register("c")
    assert clock() == began_ms
    assert "Deregister one of a, b" in caught.value.next_step
    kinesis.client().deregister_stream_consumer(ConsumerARN=asked.find("a"))
    assert asked.register("c")


def test_faults_are_waited_out(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """Throttling and lost replies of each call: in the end it is there, or gone."""
    kinesis.faults.throttle(0.3)
    kinesis.faults.cut(when="after", calls=["RegisterStreamConsumer", "DeregisterStreamConsumer"], times=1)
    patience = Patience(0.001, 0.002, 5.0, 5.0)
    calls = ServiceCalls(settings_of(kinesis), client=kinesis.client(), patience=patience)
    asked = Consumers(calls, settings_of(kinesis), sleep=lambda s: clock.advance(round(s * 1000)))
    asked.register("app")
    asked.deregister("app")
    kinesis.faults.clear()
    assert statuses(kinesis, clock) == {}


@pytest.mark.slow
def test_a_query_registers_only_where_it_is_asked_to(kinesis: LocalKinesis) -> None:
    """By the option, which needs a name."""
    settle(kinesis, 0)
    calls = ServiceCalls(settings_of(kinesis), client=kinesis.client())
    with pytest.raises(MissingRequirement, match="there is none"):
        consumer_of(calls, settings_of(kinesis), "app", register=False)
    assert consumer_of(calls, settings_of(kinesis), "app", register=True).count("/consumer/app:") == 1
    given = {"streamName": STREAM, "consumerMode": "efo", "consumerName": "app", "registerConsumer": "true"}
    assert read_options(given).register_consumer
    with pytest.raises(ConfigurationError, match="consumerName is missing"):
        read_options({"streamName": STREAM, "registerConsumer": "true"})


@pytest.mark.slow
def test_the_command(kinesis: LocalKinesis, capfd: pytest.CaptureFixture[str]) -> None:
    """Registers, lists and deregisters, by name and by ARN; words for people, lines for programs."""
    settle(kinesis, 0)
    at = ["--endpoint-url", kinesis.endpoint_url]
    arn = kinesis.engine.stream(STREAM).arn
    assert main(["consumers", "register", STREAM, "app", *at]) == 0
    assert "app is ACTIVE: arn:" in capfd.readouterr().out
    assert main(["consumers", "list", arn, *at, "--json"]) == 0
    (line,) = capfd.readouterr().out.splitlines()
    assert {**json.loads(line), "created": ""} == {
        "name": "app",
        "arn": kinesis.engine.consumers.of_stream(STREAM)[0].arn,
        "status": "ACTIVE",
        "created": "",
    }
    assert main(["consumers", "list", STREAM, *at]) == 0
    assert "app" in capfd.readouterr().out
    assert main(["consumers", "deregister", STREAM, "app", *at]) == 0
    assert main(["consumers", "deregister", STREAM, "app", *at]) == MissingRequirement.exit_code
    assert "no registered consumer app" in capfd.readouterr().err
    assert main(["consumers", "list", "nowhere", *at]) == StreamNotFound.exit_code
    assert "orders" in capfd.readouterr().err
