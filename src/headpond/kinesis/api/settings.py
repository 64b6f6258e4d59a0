"""Which stream, where, and as whom: the settings that every connection to Kinesis is made of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self
from urllib.parse import urlsplit

from headpond.core.errors import ConfigurationError

_ARN = re.compile(r"arn:aws[\w-]*:kinesis:([\w-]+):\d{12}:stream/([a-zA-Z0-9_.-]{1,128})")
_HOST = re.compile(
    r"(?:[\w-]+\.)?kinesis(?:-fips)?\.([a-z]{2}(?:-[a-z]+)+-\d)\.(?:vpce\.)?(?:amazonaws\.com(?:\.cn)?|api\.aws)"
)
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_ROLE = re.compile(r"arn:aws[\w-]*:iam::\d{12}:role/\S+")
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Which stream, where, and as whom. Exactly one of name and ARN; holds no secret.

    Attributes:
        stream_name: Name of a stream of the credentials' account.
        stream_arn: ARN of a stream, of any account.
        region: AWS region; by default the ARN's, the endpoint's or that of the AWS configuration.
        profile: Profile of the AWS configuration files.
        endpoint_url: Another address of the service, such as that of `headpond local`.
        role_arn: Role to assume; renewed for as long as the client lives.
        role_external_id: External id that the role asks for.
        role_session_name: Name of the role's sessions in the account's audit trail.
        sts_endpoint_url: Another address to assume the role at, such as a VPC's endpoint.

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
    sts_endpoint_url: str | None = None

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
        found = _ARN.fullmatch(self.stream_arn or "")
        if found and self.region not in (None, found.group(1)):
            raise ConfigurationError(
                f"region is {self.region!r}, and stream_arn names a stream of {found.group(1)}.",
                next_step="Drop region, or correct it.",
                option="region",
            )
        of_role = ("role_external_id", "role_session_name", "sts_endpoint_url")
        if self.role_arn is None and any(getattr(self, name) for name in of_role):
            raise ConfigurationError(
                f"{', '.join(of_role[:2])} and {of_role[2]} belong to role_arn, which is not given.",
                next_step="Give role_arn, or drop them.",
            )
        for option in ("endpoint_url", "sts_endpoint_url"):
            _check_url(option, getattr(self, option))

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Read the connection's options of a data source, named in any case; empty ones do not count.

        `streamName, streamARN, region, profile, endpointUrl, roleArn, roleExternalId, roleSessionName,
        stsEndpointUrl`.
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
        """The region given, or that of the ARN, or of the endpoint where that is one of AWS."""
        if self.region:
            return self.region
        host = urlsplit(self.endpoint_url or "").hostname or ""
        found = _ARN.fullmatch(self.stream_arn or "") or _HOST.fullmatch(host)
        return found.group(1) if found else None

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


def _match(option: str, value: str | None, pattern: re.Pattern[str], shape: str) -> None:
    if value is not None and not pattern.fullmatch(value):
        raise ConfigurationError(
            f"{option} is {value!r}; expected {shape}.", next_step=f"Correct {option}.", option=option
        )


def _check_url(option: str, url: str | None) -> None:
    if url is None:
        return
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        # Nothing of it is shown: a password would come into logs and checkpoints.
        fault = "carries a user name or password, which belong into the AWS configuration"
    elif parts.scheme not in {"http", "https"}:
        fault = "does not begin with http:// or https://"
    elif not parts.hostname:
        fault = "names no host"
    elif parts.query or parts.fragment:
        fault = f"carries more than an address behind {parts.scheme}://{parts.hostname}"  # it may be a token
    else:
        return
    raise ConfigurationError(
        f"{option} {fault}.",
        next_step="Write it as http(s)://HOST[:PORT], for example http://127.0.0.1:4567.",
        option=option,
    )
