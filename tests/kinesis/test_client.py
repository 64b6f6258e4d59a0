"""Connecting: settings, the check before anything starts, and errors that tell no secrets."""

from __future__ import annotations

import pickle
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore import exceptions as boto
from botocore.stub import Stubber
from hypothesis import given
from hypothesis import strategies as st

from headpond.core.errors import (
    AccessDenied,
    ConfigurationError,
    EndpointUnreachable,
    HeadpondError,
    MissingRequirement,
    ServiceFailure,
    StreamNotFound,
)
from headpond.kinesis.api.calls import ServiceCalls, StreamFacts, check_stream
from headpond.kinesis.api.client import connect, translate
from headpond.kinesis.api.settings import ConnectionSettings
from headpond.localkinesis.testing import local_kinesis

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headpond.localkinesis import LocalKinesis

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
ROLE = "arn:aws:iam::123456789012:role/reader"
SECRETS = ("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG", "FQoGZXIvYXdzEXAMPLETOKEN", "hunter2")


@pytest.fixture(autouse=True)
def _no_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither this machine's AWS configuration nor the cloud's metadata service is asked."""
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def kinesis() -> Iterator[LocalKinesis]:
    with local_kinesis("orders", "orders-cdc", "zebra", shards=2) as running:
        yield running


def at(kinesis: LocalKinesis, stream: str = "orders") -> ConnectionSettings:
    return ConnectionSettings(stream_name=stream, endpoint_url=kinesis.endpoint_url)


@pytest.mark.slow
def test_check_stream_tells_what_is_there(kinesis: LocalKinesis) -> None:
    """The check gives creation time, retention and ARN, by name and by ARN."""
    found = check_stream(at(kinesis))
    stream = kinesis.engine.stream("orders")
    assert found == StreamFacts(stream.created_ms, 24 * 3_600_000, stream.arn)
    assert check_stream(ConnectionSettings(stream_arn=stream.arn, endpoint_url=kinesis.endpoint_url)) == found


@pytest.mark.slow
def test_a_missing_stream_names_the_nearest(kinesis: LocalKinesis) -> None:
    """A wrong name is answered with the streams that exist, nearest first, where they may be listed."""
    with pytest.raises(
        StreamNotFound, match=r"order does not exist .* there are orders, orders-cdc, zebra"
    ) as caught:
        check_stream(at(kinesis, "order"))
    for ask in (ServiceCalls.describe, ServiceCalls.list_shards):  # whichever a query does first
        with pytest.raises(StreamNotFound, match="there are orders, orders-cdc, zebra"):
            ask(ServiceCalls(at(kinesis, "order")))
    assert caught.value.facts["existing"] == ["orders", "orders-cdc", "zebra"]
    assert caught.value.exit_code == 3
    kinesis.faults.refuse("AccessDeniedException", calls=("ListStreams",))
    with pytest.raises(StreamNotFound, match="could not be listed"):
        check_stream(at(kinesis, "order"))


def test_an_unreachable_endpoint_is_told_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody at the address: said with the address, after two tries that may take 2 s each."""
    made: list[Any] = []
    tries: list[str] = []

    def connect_and_count(*given: Any, **settings: Any) -> Any:
        client = connect(*given, **settings)
        client.meta.events.register("before-send", lambda request, **_: tries.append(request.url))
        made.append(client)
        return client

    monkeypatch.setattr("headpond.kinesis.api.calls.connect", connect_and_count)
    with pytest.raises(EndpointUnreachable, match=r"http://127\.0\.0\.1:1 "):
        check_stream(ConnectionSettings(stream_name="orders", endpoint_url="http://127.0.0.1:1"))
    assert tries == ["http://127.0.0.1:1/"] * 2
    assert [client.meta.config.connect_timeout for client in made] == [2.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("AccessDeniedException", AccessDenied),
        ("UnrecognizedClientException", AccessDenied),
        ("ExpiredTokenException", AccessDenied),
        ("InvalidSignatureException", AccessDenied),
        ("KMSDisabledException", MissingRequirement),
        ("ValidationException", ConfigurationError),
        ("LimitExceededException", ServiceFailure),
        ("InternalFailureException", ServiceFailure),
    ],
)
def test_refusals_become_our_errors_without_the_service_words(
    kinesis: LocalKinesis, code: str, kind: type[HeadpondError]
) -> None:
    """Each refusal becomes a sentence and a next step with the code and none of the service's text."""
    kinesis.faults.refuse(code, message=f"Credential={SECRETS[0]}/{SECRETS[1]} token {SECRETS[2]}")
    with pytest.raises(kind, match=code) as caught:
        check_stream(at(kinesis))
    assert caught.value.next_step
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + repr(caught.value.facts)
    assert not [secret for secret in SECRETS if secret in shown]


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (501, "is not a Kinesis endpoint: DescribeStreamSummary got HTTP 501"),
        (503, "answered DescribeStreamSummary with 503"),
    ],
)
@pytest.mark.slow
def test_what_is_no_kinesis_is_told_from_one_that_is_busy(status: int, told: str) -> None:
    """Another server at the address answers in words of its own; the stream is named once."""

    class Other(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            with pytest.raises(ServiceFailure, match=told) as caught:
                check_stream(
                    ConnectionSettings(
                        stream_name="orders", endpoint_url=f"http://127.0.0.1:{server.server_port}"
                    )
                )
        finally:
            server.shutdown()
            thread.join()
    assert str(caught.value).count("orders") == 1


def test_a_denied_action_is_named(kinesis: LocalKinesis) -> None:
    """The action that the policy lacks is told."""
    kinesis.faults.refuse(
        "AccessDeniedException",
        message=f"User: {SECRETS[3]} is not authorized to perform: kinesis:DescribeStreamSummary",
    )
    with pytest.raises(AccessDenied, match="kinesis:DescribeStreamSummary") as caught:
        check_stream(at(kinesis))
    assert SECRETS[3] not in str(caught.value)


def test_no_region_no_profile_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the AWS configuration lacks is said before any call."""
    with pytest.raises(ConfigurationError, match="region"):
        check_stream(ConnectionSettings(stream_name="orders"))
    with pytest.raises(ConfigurationError, match="profile nobody does not exist"):
        check_stream(ConnectionSettings(stream_name="orders", profile="nobody"))
    with pytest.raises(AccessDenied, match="credentials"):
        check_stream(ConnectionSettings(stream_name="orders", region="eu-west-1"))
    with pytest.raises(AccessDenied, match="credentials"):
        check_stream(ConnectionSettings(stream_name="orders", region="eu-west-1", role_arn=ROLE))
    monkeypatch.setenv("AWS_REGION", "eu-west-3")
    assert connect(ConnectionSettings(stream_name="orders")).meta.region_name == "eu-west-3"


@pytest.mark.slow
def test_region_of_the_arn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ARN's region is used, before that of the environment; another one beside it is refused."""
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    assert connect(ConnectionSettings(stream_arn=ARN)).meta.region_name == "eu-west-1"
    assert connect(ConnectionSettings(stream_arn=ARN, region="eu-west-1")).meta.region_name == "eu-west-1"
    with pytest.raises(ConfigurationError, match=r"'eu-west-2'.*eu-west-1"):
        ConnectionSettings(stream_arn=ARN, region="eu-west-2")


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("kinesis.eu-west-1.amazonaws.com", "eu-west-1"),
        ("kinesis-fips.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("kinesis.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("kinesis.eu-west-1.api.aws", "eu-west-1"),
        ("vpce-0a1b-c2d3.kinesis.eu-west-1.vpce.amazonaws.com", "eu-west-1"),
        ("127.0.0.1:4567", None),
        ("kinesis.eu-west-1.example.com", None),
    ],
)
def test_region_of_the_endpoint(host: str, region: str | None) -> None:
    """The host of an endpoint of AWS names it; what is given goes first."""
    url = f"https://{host}"
    assert ConnectionSettings("orders", endpoint_url=url).effective_region == region
    assert ConnectionSettings("orders", endpoint_url=url, region="eu-west-2").effective_region == "eu-west-2"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "neither"),
        ({"stream_name": "a", "stream_arn": ARN}, "both"),
        ({"stream_name": "a b"}, "stream_name"),
        ({"stream_arn": "arn:aws:s3:::x"}, "stream_arn"),
        ({"stream_name": "a", "role_arn": "admin"}, "role_arn"),
        ({"stream_name": "a", "role_external_id": "x"}, "role_arn"),
        ({"stream_name": "a", "endpoint_url": "localhost:4567"}, "endpoint_url does not begin with http"),
        ({"stream_name": "a", "endpoint_url": "https://:4567"}, "endpoint_url names no host"),
        ({"stream_name": "a", "endpoint_url": f"http://h/?t={SECRETS[3]}"}, "endpoint_url carries more than"),
        ({"stream_name": "a", "endpoint_url": f"http://me:{SECRETS[3]}@host"}, "user name or password"),
    ],
)
def test_wrong_settings_name_the_option(given: dict[str, Any], named: str) -> None:
    """A wrong setting is refused at once with its name; a password in a URL is not repeated."""
    with pytest.raises(ConfigurationError, match=named) as caught:
        ConnectionSettings(**given)
    assert SECRETS[3] not in str(caught.value)


def test_settings_from_options_in_any_case() -> None:
    """Spark hands options over in lower case; all of ours are taken, others ignored, and they pickle."""
    options = {
        "streamarn": ARN,
        "REGION": "eu-west-1",
        "endpointUrl": "http://localhost:1",
        "roleArn": ROLE,
        "roleexternalid": SECRETS[3],
        "roleSessionName": "me",
        "stsEndpointUrl": "http://127.0.0.1:4568",
        "profile": "p",
        "startingPosition": "LATEST",
        "streamName": "",
    }
    settings = ConnectionSettings.from_options(options)
    assert settings == ConnectionSettings(
        stream_arn=ARN,
        region="eu-west-1",
        endpoint_url="http://localhost:1",
        role_arn=ROLE,
        role_external_id=SECRETS[3],
        role_session_name="me",
        sts_endpoint_url="http://127.0.0.1:4568",
        profile="p",
    )
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert SECRETS[3] not in repr(settings)
    assert settings.stream_argument == {"StreamARN": ARN}
    assert settings.name == "orders"


@pytest.mark.slow
def test_a_role_is_assumed_when_first_needed(kinesis: LocalKinesis, monkeypatch: pytest.MonkeyPatch) -> None:
    """With role_arn the calls are signed with the role's credentials, asked for with external id and name."""
    asked: list[dict[str, Any]] = []
    real = boto3.Session().client("sts", region_name="us-east-1")

    class Sts:
        def assume_role(self, **arguments: Any) -> dict[str, Any]:
            asked.append(arguments)
            with Stubber(real) as stub:
                stub.add_response(
                    "assume_role",
                    {
                        "Credentials": {
                            "AccessKeyId": SECRETS[0],
                            "SecretAccessKey": SECRETS[1],
                            "SessionToken": SECRETS[2],
                            "Expiration": "2099-01-01T00:00:00Z",
                        }
                    },
                )
                return dict(real.assume_role(**arguments))

    create = boto3.session.botocore.session.Session.create_client

    def replaced(self: Any, service_name: str, *args: Any, **arguments: Any) -> Any:
        return Sts() if service_name == "sts" else create(self, service_name, *args, **arguments)

    monkeypatch.setattr("botocore.session.Session.create_client", replaced)
    settings = ConnectionSettings(
        stream_name="orders",
        endpoint_url=kinesis.endpoint_url,
        role_arn=ROLE,
        role_external_id="ours",
        role_session_name="etl",
    )
    client = connect(settings)
    signed: list[str] = []

    def look(request: Any, **_: Any) -> None:
        signed.append(str(request.headers["Authorization"]))

    client.meta.events.register("before-send.kinesis", look)
    assert not asked
    client.describe_stream_summary(StreamName="orders")
    client.describe_stream_summary(StreamName="orders")
    assert asked == [{"RoleArn": ROLE, "RoleSessionName": "etl", "ExternalId": "ours"}]
    assert all(SECRETS[0] in header for header in signed)


@pytest.mark.slow
def test_passing_failures_are_retried(kinesis: LocalKinesis) -> None:
    """Cut connections, cut replies, throttling and internal failures are tried again."""
    calls = ServiceCalls(at(kinesis), sleep=lambda _seconds: None)
    for lay in (kinesis.faults.cut, kinesis.faults.throttle, kinesis.faults.internal_failure):
        lay(times=1)
        assert calls.describe().retention_ms == 24 * 3_600_000
    kinesis.faults.cut(when="reply", times=2)
    assert len(calls.list_shards()) == 2


@pytest.mark.slow
def test_a_reply_cut_every_time_is_an_error(kinesis: LocalKinesis) -> None:
    """A reply that stays cut is unreachable, never an empty success."""
    kinesis.faults.cut(when="reply")
    client = connect(at(kinesis))
    with pytest.raises(boto.ResponseStreamingError) as caught:
        client.list_streams()
    assert isinstance(translate(caught.value, at(kinesis)), EndpointUnreachable)
    with pytest.raises(EndpointUnreachable):
        check_stream(at(kinesis))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("region", "endpoint_url", "advice"),
    [
        (
            "us-esat-1",
            None,
            "AWS has no region us-esat-1 that boto3 knows. The nearest are us-west-1, us-east-1, ",
        ),
        (
            "us-east-1",
            None,
            "Check endpoint_url, region, network and proxy; for `headpond local`, that it runs.",
        ),
        ("us-esat-1", "http://127.0.0.1:1", "Check endpoint_url, region, network and proxy; "),
    ],
)
def test_a_slip_in_the_region_is_seen(region: str, endpoint_url: str | None, advice: str) -> None:
    """Where nobody answers; an endpoint of one's own may call its region as it likes."""
    settings = ConnectionSettings(stream_name="orders", region=region, endpoint_url=endpoint_url)
    error = translate(boto.EndpointConnectionError(endpoint_url="x"), settings)
    assert isinstance(error, EndpointUnreachable)
    assert error.next_step.startswith(advice)


def test_https_where_nothing_speaks_it_is_said(kinesis: LocalKinesis) -> None:
    """A slip in the endpoint, or a certificate of one's own."""
    url = kinesis.endpoint_url.replace("http:", "https:")
    with pytest.raises(EndpointUnreachable) as caught:
        check_stream(ConnectionSettings(stream_name="orders", region="us-east-1", endpoint_url=url))
    assert caught.value.next_step.startswith("Check whether https:// in endpoint_url is meant")


BOTO_ERRORS = [
    boto.NoCredentialsError(),
    boto.PartialCredentialsError(provider="env", cred_var="x"),
    boto.CredentialRetrievalError(provider="p", error_msg=SECRETS[1]),
    boto.ProxyConnectionError(proxy_url=f"http://u:{SECRETS[3]}@proxy"),
    boto.ConnectTimeoutError(endpoint_url=f"http://u:{SECRETS[3]}@x"),
    boto.ReadTimeoutError(endpoint_url="x"),
    boto.SSLError(endpoint_url="x", error=SECRETS[2]),
    boto.ParamValidationError(report=SECRETS[1]),
    boto.UnknownEndpointError(service_name="kinesis", region_name="x"),
]


@pytest.mark.slow
@pytest.mark.parametrize("error", BOTO_ERRORS, ids=lambda e: type(e).__name__)
def test_client_errors_become_ours(error: Exception) -> None:
    """Every error of the client has a class, its name in the sentence, a next step, and no secret."""
    found = translate(error, ConnectionSettings(stream_name="orders", region="x"), doing="reading")
    assert found.exit_code in {2, 3}
    assert type(error).__name__ in str(found) or isinstance(found, ConfigurationError)
    assert found.next_step
    assert not [secret for secret in SECRETS if secret in str(found)]
    assert translate(found, ConnectionSettings(stream_name="orders")) is found


@given(st.text(max_size=40), st.text(max_size=200))
def test_no_text_of_the_service_is_passed_on(code: str, message: str) -> None:
    """Whatever the service says, the sentence holds at most its code and the name of an action."""
    marker = "SECRETMARKER"
    error = boto.ClientError({"Error": {"Code": code, "Message": marker + message}}, "GetRecords")
    assert marker not in str(translate(error, ConnectionSettings(stream_name="orders")))


def test_every_call_says_who_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's own name, ours, and what the account's owner calls the application."""
    monkeypatch.setenv("AWS_SDK_UA_APP_ID", "shop")
    said: list[str] = []
    with local_kinesis("orders") as kinesis:
        client = connect(ConnectionSettings(stream_name="orders", endpoint_url=kinesis.endpoint_url))
        client.meta.events.register(
            "before-send.kinesis", lambda request, **_: said.append(request.headers["User-Agent"].decode())
        )
        client.list_shards(StreamName="orders")
        client.close()
    assert len(said) == 1
    assert "Boto3/" in said[0]
    assert "Botocore/" in said[0]
    assert said[0].split()[-1] == "headpond"
    assert "app/shop" in said[0]
