"""Connecting to Kinesis: the boto3 client made of the settings, and a check before anything is started.

The client differs from a plain one in one point: a reply that was cut short, or is not JSON, is retried as
a failure of the connection. botocore takes it for an empty success, which for GetRecords would read as the
end of the shard.
"""

from __future__ import annotations

import difflib
import json
import os
import time
from functools import partial
from http import HTTPStatus
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import boto3
import botocore.session
from botocore.config import Config
from botocore.credentials import AssumeRoleCredentialFetcher, Credentials, DeferredRefreshableCredentials
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    NoRegionError,
    ResponseStreamingError,
)

from headpond.core.errors import StreamNotFound
from headpond.kinesis.api.errors import error_code, translate

if TYPE_CHECKING:
    from collections.abc import Callable

    from mypy_boto3_kinesis import KinesisClient

    from headpond.kinesis.api.settings import ConnectionSettings

_CUT_SHORT = "ReplyCutShort"
_RECONNECT_S = 10.0
"""Credentials that were refused are looked for again once in so long."""


class Renewing:
    """A client that is made anew where its credentials are refused: they may have been replaced.

    Args:
        make: Makes a client, which reads the AWS configuration.
        fixed: Never make another one.
    """

    def __init__(self, make: Callable[[], KinesisClient], *, fixed: bool = False) -> None:
        self.client = make()
        self._make, self._fixed, self._made_s, self._lock = make, fixed, -_RECONNECT_S, Lock()

    def renewed(self, refused: KinesisClient) -> bool:
        """Take a new client in place of the one that was refused; return whether there is another one."""
        with self._lock:
            now_s = time.monotonic()
            if self.client is refused and not self._fixed and now_s - self._made_s >= _RECONNECT_S:
                self.client, self._made_s = self._make(), now_s
                refused.close()  # calls that are under way end as usual
            return self.client is not refused


class StreamSummary(NamedTuple):
    """What is known of a stream before it is read; `created_ms` tells it from a later one of its name."""

    name: str
    arn: str
    status: str
    created_ms: int
    retention_hours: int
    open_shards: int


def connect(
    settings: ConnectionSettings,
    *,
    max_pool_connections: int = 10,
    max_attempts: int = 5,
    connect_timeout_s: float = 5.0,
    read_timeout_s: float = 30.0,
    **config: Any,
) -> KinesisClient:
    """Make a boto3 client.

    `max_attempts` counts the first try; `config` is more of botocore's `Config`.

    Credentials come from boto3's ordinary chain and are read when first needed. For an endpoint on this
    machine the chain does not ask the cloud's metadata services, and where it finds nothing a placeholder
    serves.

    Raises:
        ConfigurationError: No region is known, or the profile does not exist.
        AccessDenied: The credentials to assume a role with cannot be found.
    """
    shared = Config(
        connect_timeout=connect_timeout_s,
        read_timeout=read_timeout_s,
        retries={"mode": "standard", "total_max_attempts": max_attempts},
        tcp_keepalive=True,
        user_agent_extra="headpond",
    )
    try:
        session = botocore.session.Session(profile=settings.profile)
        region = settings.effective_region or session.get_config_variable("region")
        # The other SDKs' variable, which botocore does not look at.
        region = region or os.environ.get("AWS_REGION")
        if region is None and settings.is_loopback:
            region = "us-east-1"  # only signed with; the local server takes any
        if region is None:
            raise NoRegionError
        _choose_credentials(session, settings, region, shared)
        maker = boto3.Session(botocore_session=session)
        own = Config(max_pool_connections=max_pool_connections, user_agent=_user_agent(session), **config)
        client = maker.client(
            "kinesis", region_name=region, endpoint_url=settings.endpoint_url, config=shared.merge(own)
        )
    except (BotoCoreError, ClientError) as error:
        raise translate(error, settings) from None
    client.meta.events.register("before-parse.kinesis", _mark_cut_reply)
    client.meta.events.register("after-call.kinesis", _refuse_cut_reply)
    return client


def local_client(endpoint_url: str, region: str, **config: Any) -> KinesisClient:
    """Return a plain boto3 client of a local Kinesis, with dummy credentials and without retries."""
    return boto3.client(
        "kinesis",
        endpoint_url=endpoint_url,
        region_name=region,
        aws_access_key_id="local",
        aws_secret_access_key="local",  # noqa: S106 - a local server checks none
        config=Config(**{"retries": {"mode": "standard", "total_max_attempts": 1}, **config}),
    )


def check_stream(settings: ConnectionSettings) -> StreamSummary:
    """Ask for the stream before anything slow is started; takes a few seconds at most.

    Raises:
        ConfigurationError: No region, no such profile, settings that the service refuses.
        EndpointUnreachable: Nobody answers.
        StreamNotFound: There is no such stream; names the nearest that exist, where they may be listed.
        AccessDenied: Credentials are missing or not allowed to describe the stream.
        ServiceFailure: The service fails.
    """
    client = connect(settings, max_attempts=2, connect_timeout_s=2.0, read_timeout_s=5.0)
    try:
        reply = client.describe_stream_summary(**settings.stream_argument)
    except (BotoCoreError, ClientError) as error:
        if error_code(error) == "ResourceNotFoundException":
            raise stream_not_found(client, settings) from None
        raise translate(error, settings, doing=f"describing stream {settings.name}") from None
    finally:
        client.close()
    found = reply["StreamDescriptionSummary"]
    return StreamSummary(
        name=found["StreamName"],
        arn=found["StreamARN"],
        status=found["StreamStatus"],
        created_ms=round(found["StreamCreationTimestamp"].timestamp() * 1000),
        retention_hours=found["RetentionPeriodHours"],
        open_shards=found["OpenShardCount"],
    )


def stream_not_found(client: KinesisClient, settings: ConnectionSettings) -> StreamNotFound:
    """Return the error of a stream that does not exist, which names the nearest that do."""
    shown = 5
    try:
        names = client.list_streams(Limit=1000)["StreamNames"]
    except (BotoCoreError, ClientError):
        # Listing is a courtesy and needs a right of its own.
        there = "which streams exist could not be listed"
        names = []
    else:
        near = difflib.get_close_matches(settings.name, names, n=shown, cutoff=0.0)
        more = f" and {len(names) - len(near)} more" if len(names) > len(near) else ""
        there = f"there are {', '.join(near)}{more}" if near else "there is no stream at all"
    return StreamNotFound(
        f"Stream {settings.stream} does not exist {settings.where}; {there}.",
        next_step="Check its name, the region and the account of the credentials, or create it.",
        stream=settings.stream,
        existing=names,
    )


def _choose_credentials(
    session: botocore.session.Session, settings: ConnectionSettings, region: str, config: Config
) -> None:
    if settings.is_loopback:
        resolver = session.get_component("credential_provider")
        for provider in ("container-role", "iam-role"):
            resolver.remove(provider)
        if session.get_credentials() is None:
            session.set_credentials("local", "local")
    if settings.role_arn is None:
        return
    source = session.get_credentials()
    if source is None:
        raise NoCredentialsError
    extra = {"RoleSessionName": settings.role_session_name or "headpond"}
    if settings.role_external_id is not None:
        extra["ExternalId"] = settings.role_external_id
    # The fetcher makes its client when credentials are first needed, and again at each renewal.
    fetcher = AssumeRoleCredentialFetcher(
        partial(
            session.create_client, region_name=region, endpoint_url=settings.sts_endpoint_url, config=config
        ),
        source,
        settings.role_arn,
        extra,
    )
    credentials: Credentials = DeferredRefreshableCredentials(
        refresh_using=fetcher.fetch_credentials, method="assume-role"
    )
    # botocore has no other way to set credentials that renew themselves.
    session._credentials = credentials  # type: ignore[attr-defined]  # noqa: SLF001 - see above


def _user_agent(session: botocore.session.Session) -> str:
    """Return the user agent; botocore would build it twice a call, a twelfth of what a call costs."""
    app_id = session.get_config_variable("user_agent_appid")
    return f"{session.user_agent()} app/{app_id}" if app_id else session.user_agent()


def _mark_cut_reply(
    response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any
) -> None:
    """Make a retryable failure of a reply whose body is shorter than it said, or breaks off in its JSON."""
    said = response_dict["headers"].get("content-length", "")
    body = response_dict["body"]
    if customized_response_dict or not isinstance(body, bytes):
        return  # read whole by another reader, or a stream
    if said.isdecimal() and len(body) < int(said):
        fault = f"{len(body)} of {said} bytes came"
    elif response_dict["status_code"] == HTTPStatus.OK and body and not _is_json(body):
        fault = f"the {len(body)} bytes that came are not JSON"
    else:
        return
    # botocore's standard retries know this code as a passing failure.
    failure = {"__type": "RequestTimeout", "message": fault}
    response_dict["status_code"] = 500
    response_dict["headers"] = {_CUT_SHORT: "true"}
    response_dict["body"] = json.dumps(failure).encode()


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


def _refuse_cut_reply(parsed: dict[str, Any], **_: Any) -> None:
    """Fail when all tries were cut: the HTTP status of the last one still says success."""
    if _CUT_SHORT.lower() in parsed.get("ResponseMetadata", {}).get("HTTPHeaders", {}):
        raise ResponseStreamingError(error=f"reply cut short: {parsed['Error']['Message']}")
