"""Connecting to Kinesis: the boto3 client made of the settings.

The client tries each call once: `calls` knows better what to wait for. A reply that was cut short, or is not
JSON, is a failure of the connection: botocore takes it for an empty success, which for GetRecords would read
as the end of the shard.
"""

from __future__ import annotations

import difflib
import json
import os
import time
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from threading import Lock
from typing import TYPE_CHECKING, Any

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
from botocore.useragent import sanitize_user_agent_string_component

from headpond.core.errors import StreamNotFound
from headpond.kinesis.api.errors import translate
from headpond.kinesis.api.settings import ConnectionSettings

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient

RECONNECT_S = 10.0
"""Credentials that were refused are looked for again once in so long."""


class Renewing:
    """A client that is made again where its credentials are refused, unless `fixed`: they may be replaced."""

    def __init__(self, make: Callable[[], KinesisClient], *, fixed: bool = False) -> None:
        self.client = make()
        self._make, self._fixed, self._made_s, self._lock = make, fixed, -RECONNECT_S, Lock()

    def renewed(self, refused: KinesisClient) -> bool:
        """Take a new client in place of the one that was refused; return whether there is another one."""
        with self._lock:
            now_s = time.monotonic()
            if self.client is refused and not self._fixed and now_s - self._made_s >= RECONNECT_S:
                self.client, self._made_s = self._make(), now_s
                refused.close()  # calls that are under way end as usual
            return self.client is not refused


def connect(
    settings: ConnectionSettings,
    *,
    connect_timeout_s: float = 5.0,
    read_timeout_s: float = 30.0,
    **config: Any,
) -> KinesisClient:
    """Make a boto3 client; `config` is more of botocore's `Config`.

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
        retries={"mode": "standard", "total_max_attempts": 1},
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
        # The agent's name is put together here: botocore does it twice a call, a ninth of what a call costs.
        agent = f"Boto3/{boto3.__version__}"
        if application := session.get_config_variable("user_agent_appid"):
            agent += f" app/{sanitize_user_agent_string_component(application, allow_hash=False)}"
        config_all = shared.merge(Config(user_agent=agent, **config))
        client = maker.client(
            "kinesis", region_name=region, endpoint_url=settings.endpoint_url, config=config_all
        )
    except (BotoCoreError, ClientError) as error:
        raise translate(error, settings) from None
    client.meta.events.register("before-parse.kinesis", _refuse_cut_reply)
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


def _refuse_cut_reply(
    response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any
) -> None:
    """Fail where a body is shorter than it said, or breaks off in its JSON."""
    body, said = response_dict["body"], response_dict["headers"].get("content-length", "")
    if customized_response_dict or not isinstance(body, bytes):
        return  # read whole by another reader, or a stream
    fault = f"{len(body)} of {said} bytes came" if said.isdecimal() and len(body) < int(said) else None
    if fault is None and response_dict["status_code"] == HTTPStatus.OK and body:
        try:
            json.loads(body)
        except ValueError:
            fault = f"the {len(body)} bytes that came are not JSON"
    if fault is not None:
        raise ResponseStreamingError(error=f"reply cut short: {fault}")
