"""As whom the source reads: profiles, roles and their renewal, other accounts; no secret comes out."""

from __future__ import annotations

import json
import logging
import pickle
import traceback
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from headpond.core.errors import AccessDenied, HeadpondError
from headpond.kinesis.api.calls import ServiceCalls, check_stream
from headpond.kinesis.api.client import connect
from headpond.kinesis.api.retry import Patience
from headpond.kinesis.api.settings import ConnectionSettings
from headpond.kinesis.planning.planner import Planner
from headpond.localkinesis import LocalKinesis, Settings
from headpond.localkinesis.testing import local_kinesis
from tests.kinesis.source_kit import CONSUMER, STREAM, Driver, held, put
from tests.kit.token_service import EXTERNAL_ID, KEY, PROFILE_KEY, ROLE, SECRET, TOKEN, Sts, leaks, signer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Credentials that look like secrets, in the environment and in a profile."""
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    config = tmp_path / "config"
    config.write_text(
        "[profile etl]\nregion = eu-west-3\n"
        f"aws_access_key_id = {PROFILE_KEY}\naws_secret_access_key = {SECRET}\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


@pytest.fixture
def sts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sts]:
    service = Sts()
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", service.url)
    yield service
    service.stop()


@pytest.fixture
def kinesis() -> Iterator[LocalKinesis]:
    with local_kinesis(STREAM, settings=Settings(resubscribe_ms=0, heartbeat_ms=5)) as running:
        running.engine.consumers.register(STREAM, CONSUMER)
        yield running


def signers_of(client: Any) -> list[str]:
    """The access keys of the client's requests from now on."""
    found: list[str] = []

    def look(request: Any, **_: Any) -> None:
        header = request.headers["Authorization"]
        found.append(signer(header.decode() if isinstance(header, bytes) else header))

    client.meta.events.register("before-send.kinesis", look)
    return found


@pytest.mark.slow
def test_the_profile_signs(kinesis: LocalKinesis) -> None:
    """With a profile its keys and region are used, without one the environment's."""
    named = ConnectionSettings(stream_name=STREAM, endpoint_url=kinesis.endpoint_url, profile="etl")
    client = connect(named)
    signers = signers_of(client)
    client.list_shards(StreamName=STREAM)
    assert (signers, client.meta.region_name) == ([PROFILE_KEY], "eu-west-3")
    other = connect(replace(named, profile=None, region="eu-west-1"))
    signers = signers_of(other)
    other.list_shards(StreamName=STREAM)
    assert signers == [KEY]


@pytest.mark.slow
def test_a_role_is_renewed_before_it_expires(
    kinesis: LocalKinesis, sts: Sts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The profile's keys assume the role; near its end it is assumed again, while it is good it is not."""
    now = [datetime.now(UTC)]
    settings = ConnectionSettings(
        stream_name=STREAM,
        endpoint_url=kinesis.endpoint_url,
        profile="etl",
        role_arn=ROLE,
        role_external_id=EXTERNAL_ID,
        role_session_name="nightly",
    )
    client = connect(settings)
    # botocore looks at the clock in two places: for the credentials, and for its cache of them.
    client._request_signer._credentials._time_fetcher = lambda: now[0]  # type: ignore[attr-defined]
    monkeypatch.setattr("botocore.credentials._local_now", lambda: now[0])
    signers = signers_of(client)
    assert sts.asked == []
    for minutes in (0, 20, 30, 20):
        now[0] += timedelta(minutes=minutes)
        client.list_shards(StreamName=STREAM)
    assert signers == ["ROLEKEY1", "ROLEKEY1", "ROLEKEY2", "ROLEKEY2"]
    assert sts.signers == [PROFILE_KEY] * 2
    assert [(call["RoleArn"], call["ExternalId"], call["RoleSessionName"]) for call in sts.asked] == [
        (ROLE, EXTERNAL_ID, "nightly")
    ] * 2


@pytest.mark.slow
def test_a_role_is_assumed_at_the_endpoint_given(kinesis: LocalKinesis) -> None:
    """Neither the region's service nor one of the environment is asked for it."""
    service = Sts()
    try:
        options = {"streamname": STREAM, "endpointurl": kinesis.endpoint_url, "rolearn": ROLE}
        settings = ConnectionSettings.from_options({**options, "stsEndpointUrl": service.url})
        client = connect(settings)
        signers = signers_of(client)
        client.list_shards(StreamName=STREAM)
        assert (signers, [call["RoleArn"] for call in service.asked]) == (["ROLEKEY1"], [ROLE])
    finally:
        service.stop()


def test_a_long_reader_goes_on_over_renewals(kinesis: LocalKinesis, sts: Sts) -> None:
    """Calls that are kept for the life of a process read on as the role is renewed under them."""
    put(kinesis, 30)
    sts.lifetimes_s = [20, 20, 20, 3600]
    driver = Driver(kinesis)
    connection = replace(driver.settings.connection, role_arn=ROLE)
    calls = ServiceCalls(connection)
    planner = Planner(calls, replace(driver.settings, connection=connection, consumer_name=None))
    driver.planner, driver.calls, driver.settings = planner, calls, planner._settings
    _, batches = driver.run(driver.initial())
    assert sorted(row for batch in batches for row in batch) == held(kinesis)
    assert len(sts.asked) == 4


@pytest.mark.parametrize("code", ["AccessDenied", "ExpiredTokenException", "InvalidClientTokenId"])
@pytest.mark.slow
def test_a_role_that_is_refused_is_told(kinesis: LocalKinesis, sts: Sts, code: str) -> None:
    """What may not be done, and for which role; none of the service's words."""
    sts.refusing = code
    settings = ConnectionSettings(
        stream_name=STREAM, endpoint_url=kinesis.endpoint_url, role_arn=ROLE, role_external_id=EXTERNAL_ID
    )
    with pytest.raises(AccessDenied, match=code) as caught:
        check_stream(settings)
    assert ROLE in str(caught.value)
    assert "kinesis:AssumeRole" not in str(caught.value)
    assert not leaks(said(caught.value))


def test_another_accounts_stream_is_named_by_its_arn_in_every_call() -> None:
    """With a stream ARN no call goes by name, which would mean the caller's own account."""
    with local_kinesis(STREAM, shards=2, settings=Settings(account="999999999999")) as kinesis:
        put(kinesis, 20)
        arn = kinesis.engine.stream(STREAM).arn
        assert ":999999999999:" in arn
        driver = Driver(kinesis, streamName="", streamARN=arn, region="us-east-1")
        asked: list[tuple[str, dict[str, Any]]] = []

        def look(params: dict[str, Any], model: Any, **_: Any) -> None:
            asked.append((model.name, json.loads(params["body"])))

        driver.calls._client.meta.events.register("before-call.kinesis", look)
        kinesis.engine.split_shard(STREAM, "shardId-000000000000")
        end, batches = driver.run(driver.initial())
        assert sorted(row for batch in batches for row in batch) == held(kinesis)
        assert end.stream == arn
    names = {name for name, _ in asked}
    assert names == {"DescribeStreamSummary", "ListShards", "GetShardIterator", "GetRecords"}
    assert {body.get("StreamARN") for _, body in asked} == {arn}
    assert not [body for _, body in asked if "StreamName" in body]


def said(error: BaseException) -> str:
    """Everything an error carries out of its process, and shows in it."""
    shown = "".join(traceback.format_exception(error))
    return "\n".join([shown, repr(error), str(error), repr(vars(error)), repr(pickle.dumps(error))])


FAILING_CALLS = (
    "DescribeStreamSummary",
    "ListShards",
    "GetShardIterator",
    "GetRecords",
    "DescribeStreamConsumer",
    "SubscribeToShard",
)
FAILURES = (
    "AccessDeniedException",
    "KMSAccessDeniedException",
    "InternalFailureException",
    "SomethingNew",
)


@pytest.mark.slow
def test_no_secret_comes_out(kinesis: LocalKinesis, sts: Sts, caplog: pytest.LogCaptureFixture) -> None:
    """Planning, reading and failing in every way, with all of our logs on: nothing secret in anything."""
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, logger="headpond")
    out: list[str] = []
    put(kinesis, 10)
    words = f"signed by {KEY} {SECRET} with {TOKEN} for {EXTERNAL_ID} as ROLEKEY ROLESECRET ROLETOKEN"

    driver = Driver(kinesis, roleArn=ROLE, roleExternalId=EXTERNAL_ID, failOnDataLoss="false")
    patience = Patience(0.001, 0.001, 0.002, 0.002)
    driver.calls = ServiceCalls(driver.settings.connection, patience=patience, sleep=lambda _seconds: None)

    def attempt() -> None:
        driver.planner = Planner(driver.calls, driver.settings)
        out.extend(map(repr, (driver.settings, driver.settings.connection, driver.calls, driver.planner)))
        try:
            with driver.reading() as calls:
                out.append(repr(calls))
            start = driver.initial()
            end = driver.next(start)
            out.extend([json.dumps(start.to_json()), repr(end), repr(driver.planner.ranges(start, end))])
            driver.read(start, end)
        except HeadpondError as error:
            out.append(said(error))
        finally:
            driver.planner.close()

    attempt()
    fine = len(out)
    for call in FAILING_CALLS:
        for code in FAILURES:
            rule = kinesis.faults.refuse(code, calls=(call,), message=words)
            attempt()
            kinesis.faults.remove(rule)
    for code in FAILURES:
        rule = kinesis.faults.fail_events(code=code, message=words)
        attempt()
        kinesis.faults.remove(rule)
    planner = Planner(driver.calls, driver.settings)
    driver.planner, start = planner, planner.initial()
    end = driver.next(start)
    put(kinesis, 1)
    kinesis.engine.trim(STREAM, "shardId-000000000000", kinesis.engine.records(STREAM)[-1].sequence_number)
    driver.read(start, end)
    planner.close()
    sts.refusing = "AccessDenied"
    driver.calls = ServiceCalls(driver.settings.connection)
    attempt()
    assert len(out) > fine + len(FAILING_CALLS) * len(FAILURES)
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("headpond")]
    assert ours
    assert not leaks("\n".join([*out, *ours]))


def test_credentials_replaced_in_their_file_are_found(
    kinesis: LocalKinesis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A worker keeps its client: when its credentials are refused, it looks for others once, and goes on."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    file = tmp_path / "config"
    calls = ServiceCalls(ConnectionSettings(STREAM, endpoint_url=kinesis.endpoint_url, profile="etl"))
    assert signing_key(calls) == PROFILE_KEY
    file.write_text(file.read_text().replace(PROFILE_KEY, "AKIAROTATED"))
    kinesis.faults.refuse("ExpiredTokenException", times=1)
    assert calls.describe().created_ms
    assert signing_key(calls) == "AKIAROTATED"
    kinesis.faults.refuse("ExpiredTokenException")
    with pytest.raises(AccessDenied, match="expired"):
        calls.describe()


def signing_key(calls: ServiceCalls) -> str:
    """Return the access key that a call would be signed with."""
    request_signer = calls._client._request_signer
    return str(request_signer._credentials.access_key)
