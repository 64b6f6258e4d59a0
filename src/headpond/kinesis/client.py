"""Connecting to Kinesis: settings, the boto3 client made of them, and a check before anything is started.

The client differs from a plain one in one point: a reply that was cut short, or is no JSON, is retried as
a failure of the connection. botocore takes it for an empty success, which for GetRecords would read as the
end of the shard.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from dataclasses import dataclass, field, fields
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import urlsplit

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

from headpond.errors import ConfigurationError, StreamMissing
from headpond.kinesis.aws_errors import error_code, translate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mypy_boto3_kinesis import KinesisClient

__all__ = ["ConnectionSettings", "StreamSummary", "check_stream", "connect", "translate"]

_ARN = re.compile(r"arn:aws[\w-]*:kinesis:([\w-]+):\d{12}:stream/([a-zA-Z0-9_.-]{1,128})")
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_ROLE = re.compile(r"arn:aws[\w-]*:iam::\d{12}:role/\S+")
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_CUT_SHORT = "ReplyCutShort"


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Which stream, where, and as whom. Exactly one of name and ARN; holds no secret.

    Attributes:
        stream_name: Name of a stream of the credentials' account.
        stream_arn: ARN of a stream, of any account.
        region: AWS region; the ARN's, or that of the AWS configuration, unless told.
        profile: Profile of the AWS configuration files.
        endpoint_url: Another address of the service, such as that of `headpond local`.
        role_arn: Role to assume; renewed for as long as the client lives.
        role_external_id: External id that the role asks for.
        role_session_name: Name of the role's sessions in the account's audit trail.

    Raises:
        ConfigurationError: A setting is missing, malformed or contradicts another.
    """

    stream_name: str | None = None
    stream_arn: str | None = None
    region: str | None = None
    profile: str | None = None
    endpoint_url: str | None = None
    role_arn: str | None = None
    role_external_id: str | None = field(default=None, repr=False)
    role_session_name: str | None = None

    def __post_init__(self) -> None:
        if (self.stream_name is None) == (self.stream_arn is None):
            raise ConfigurationError(
                "A stream is named by stream_name or by stream_arn; "
                f"{'neither' if self.stream_name is None else 'both'} of them is given.",
                next_step="Give one of the two.",
            )
        _match("stream_name", self.stream_name, _NAME, "1 to 128 letters, digits, '_', '.' or '-'")
        _match("stream_arn", self.stream_arn, _ARN, "arn:aws:kinesis:REGION:ACCOUNT:stream/NAME")
        _match("role_arn", self.role_arn, _ROLE, "arn:aws:iam::ACCOUNT:role/NAME")
        if self.role_arn is None and (self.role_external_id or self.role_session_name):
            raise ConfigurationError(
                "role_external_id and role_session_name belong to role_arn, which is not given.",
                next_step="Give role_arn, or drop them.",
            )
        if self.endpoint_url is not None:
            _check_url(self.endpoint_url)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Take the connection's options out of a data source's, named in any case; empty ones do not count.

        `streamName, streamARN, region, profile, endpointUrl, roleArn, roleExternalId, roleSessionName`.
        """
        given = {name.lower(): value for name, value in options.items() if value}
        names = {each.name: each.name.replace("_", "") for each in fields(cls)}
        return cls(**{name: given[option] for name, option in names.items() if option in given})

    @property
    def stream(self) -> str:
        """The stream as the user named it."""
        return self.stream_arn or self.stream_name or ""

    @property
    def name(self) -> str:
        """The stream's name without the ARN around it."""
        return self.stream.rpartition("/")[2]

    @property
    def stream_argument(self) -> dict[str, Any]:
        """`StreamARN` or `StreamName` as the calls of boto3 take it."""
        return {"StreamARN": self.stream_arn} if self.stream_arn else {"StreamName": self.stream_name}

    @property
    def effective_region(self) -> str | None:
        """The region given, or the ARN's."""
        found = _ARN.fullmatch(self.stream_arn or "")
        return self.region or (found.group(1) if found else None)

    @property
    def where(self) -> str:
        """Where the service is looked for, for sentences."""
        if self.endpoint_url is not None:
            return f"at {self.endpoint_url}"
        return f"in region {self.effective_region or 'of the AWS configuration'}"

    @property
    def credentials_hint(self) -> str:
        """Where credentials come from, for sentences."""
        of = f"of profile {self.profile}" if self.profile else "by environment, profile or instance role"
        return f"{of} that may assume {self.role_arn}" if self.role_arn else of

    @property
    def is_loopback(self) -> bool:
        """Whether the endpoint is on this machine."""
        return self.endpoint_url is not None and urlsplit(self.endpoint_url).hostname in _LOOPBACK


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

    Credentials come from boto3's ordinary chain and are read when first needed. For an endpoint on this
    machine the chain does not ask the cloud's metadata services, and where it finds nothing a placeholder
    serves.

    Args:
        settings: The connection.
        max_pool_connections: Connections kept open; at least the threads that use the client.
        max_attempts: Tries per call in botocore's standard retry mode, the first included.
        connect_timeout_s: Seconds to wait for a connection.
        read_timeout_s: Seconds to wait between bytes of a reply.
        **config: More of botocore's `Config`.

    Raises:
        ConfigurationError: No region is known, or the profile does not exist.
        AccessRefused: The credentials to assume a role with cannot be found.
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
        client = boto3.Session(botocore_session=session).client(
            "kinesis",
            region_name=region,
            endpoint_url=settings.endpoint_url,
            config=shared.merge(Config(max_pool_connections=max_pool_connections, **config)),
        )
    except (BotoCoreError, ClientError) as error:
        raise translate(error, settings) from None
    client.meta.events.register("before-parse.kinesis", _mark_cut_reply)
    client.meta.events.register("after-call.kinesis", _refuse_cut_reply)
    return client


def check_stream(settings: ConnectionSettings) -> StreamSummary:
    """Ask for the stream before anything slow is started; takes a few seconds at most.

    Raises:
        ConfigurationError: No region, no such profile, settings that the service refuses.
        EndpointUnreachable: Nobody answers.
        StreamMissing: There is no such stream; names the nearest that exist, where they may be listed.
        AccessRefused: Credentials are missing or not allowed to describe the stream.
        ServiceFailure: The service fails.
    """
    client = connect(settings, max_attempts=2, connect_timeout_s=2.0, read_timeout_s=5.0)
    try:
        reply = client.describe_stream_summary(**settings.stream_argument)
    except (BotoCoreError, ClientError) as error:
        if error_code(error) == "ResourceNotFoundException":
            raise _missing(client, settings) from None
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


def _missing(client: KinesisClient, settings: ConnectionSettings) -> StreamMissing:
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
    return StreamMissing(
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
        partial(session.create_client, region_name=region, config=config), source, settings.role_arn, extra
    )
    credentials: Credentials = DeferredRefreshableCredentials(
        refresh_using=fetcher.fetch_credentials, method="assume-role"
    )
    # botocore has no other way to set credentials that renew themselves.
    session._credentials = credentials  # type: ignore[attr-defined]  # noqa: SLF001 - see above


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
        fault = f"the {len(body)} bytes that came are no JSON"
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


def _match(option: str, value: str | None, pattern: re.Pattern[str], shape: str) -> None:
    if value is not None and not pattern.fullmatch(value):
        raise ConfigurationError(
            f"{option} is {value!r}; expected {shape}.", next_step=f"Correct {option}.", option=option
        )


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        # Not shown: it would carry the password into logs and checkpoints.
        raise ConfigurationError(
            "endpoint_url carries a user name or password.",
            next_step="Remove it; credentials come from the AWS configuration.",
            option="endpoint_url",
        )
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ConfigurationError(
            f"endpoint_url is {parts.scheme}://{parts.hostname or ''}…; expected http(s)://HOST[:PORT].",
            next_step="Correct endpoint_url.",
            option="endpoint_url",
        )
