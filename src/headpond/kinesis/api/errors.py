"""Errors of the AWS client as headpond's errors: one sentence of facts, one of advice, no secret in either.

What a service or a proxy says is not passed on, since it may quote signatures, tokens or URLs with
passwords; only its error code is, and for a refused action the action's name.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any

import boto3
from botocore import exceptions as boto

from headpond.core.errors import (
    AccessDenied,
    ConfigurationError,
    EndpointUnreachable,
    HeadpondError,
    MissingRequirement,
    ServiceFailure,
    StreamNotFound,
)
from headpond.kinesis.api.settings import ConnectionSettings

SIGN_IN = {
    "ExpiredToken": "the credentials have expired",
    "ExpiredTokenException": "the credentials have expired",
    "RequestExpired": "the request's time is too far from the service's clock",
    "IncompleteSignature": "the signature is incomplete",
    "InvalidClientTokenId": "the access key is not known",
    "InvalidSignatureException": "the secret key does not fit the access key, or the clock is wrong",
    "MissingAuthenticationToken": "no credentials were sent",
    "MissingAuthenticationTokenException": "no credentials were sent",
    "SignatureDoesNotMatch": "the secret key does not fit the access key",
    "UnrecognizedClientException": "the access key or session token is not known",
}
REFUSED = {
    "AccessDenied",
    "AccessDeniedException",
    "KMSAccessDeniedException",
    "OptInRequired",
    "AuthFailure",
}
WRONG_CALL = {"InvalidArgumentException", "ValidationException", "ValidationError", "SerializationException"}
_BUSY = {"429", "500", "502", "503", "504"}  # what a proxy says for a service that does not answer
_ACTION = re.compile(r"\b(?:kinesis|sts|kms):[A-Za-z]+\b")


def error_code(error: BaseException) -> str:
    """Return the service's error code, or the name of the client's exception."""
    if isinstance(error, boto.ClientError):
        return error.response.get("Error", {}).get("Code", "Unknown")
    return type(error).__name__


def translate(error: Exception, settings: ConnectionSettings, *, doing: str = "") -> HeadpondError:
    """Return an error of boto3 as one of headpond's; one that is that already is returned as it is.

    `doing` says during what, for the sentence: `reading shard shardId-…`.

    Returns:
        The error to raise, usually `from None`: the original may quote what must not be shown.
    """
    if isinstance(error, HeadpondError):
        return error
    during = f" while {doing}" if doing else ""
    on = "" if f"stream {settings.name}" in doing else f" on stream {settings.stream}"
    meaning = _refusal if isinstance(error, boto.ClientError) else _client_side
    kind, fact, advice = meaning(error, settings, during, on)
    return kind(fact, next_step=advice, code=error_code(error), stream=settings.stream)


def _refusal(
    error: Any, settings: ConnectionSettings, during: str, on: str
) -> tuple[type[HeadpondError], str, str]:
    """Return what an answer of the service means: the error's class, facts and advice."""
    code, call, where = error_code(error), error.operation_name, settings.where
    kind: type[HeadpondError] = ServiceFailure
    fact = f"Kinesis answered {call} with {code}{during}{on} {where}."
    advice = "Try again later; if it lasts, look at the service's health and at the stream's limits."
    if code == "ResourceNotFoundException":
        kind, advice = StreamNotFound, "Check its name, the region and the account of the credentials."
        fact = f"Stream {settings.stream} does not exist{during} {where}."
    elif code in SIGN_IN:
        kind, advice = AccessDenied, f"Renew or choose the credentials {settings.credentials_hint}."
        fact = f"Kinesis did not accept the credentials{during}{on} {where}: {SIGN_IN[code]} ({code})."
    elif code in REFUSED or code.startswith("AccessDenied"):
        action = _ACTION.search(str(error.response.get("Error", {}).get("Message", "")))
        service = "sts" if call == "AssumeRole" else "kinesis"
        named = action.group() if action else f"the action {service}:{call}"
        kind, fact = AccessDenied, f"The credentials may not do {named}{during}{on} {where} ({code})."
        advice = f"Allow {named} in their policy, or use other credentials {settings.credentials_hint}."
    elif code.startswith("KMS"):
        kind, advice = MissingRequirement, "Check the state of the stream's KMS key and the right to use it."
        fact = f"Stream {settings.stream} is encrypted with a key that cannot be used{during} ({code})."
    elif code in WRONG_CALL:
        kind, advice = ConfigurationError, "Check the names, positions and sizes that were given."
        fact = f"Kinesis refused the call {call}{during}{on} ({code})."
    elif code.isdecimal() and code not in _BUSY and settings.endpoint_url is not None:
        got = f"{call} got HTTP {code} without an AWS error code{during}{on}"
        fact = f"The endpoint {where} is not a Kinesis endpoint: {got}."
        advice = "Check endpoint_url, and what listens there."
    return kind, fact, advice


def _client_side(
    error: Exception, settings: ConnectionSettings, during: str, on: str
) -> tuple[type[HeadpondError], str, str]:
    """Return what an error means that the AWS client raised by itself: class, facts and advice."""
    code = error_code(error)
    # What it raises beside those that are named comes from finding credentials.
    kind: type[HeadpondError] = AccessDenied
    fact = f"No usable AWS credentials were found{during}{on} ({code})."
    advice = f"Provide credentials {settings.credentials_hint}."
    cut = not isinstance(error, (boto.BotoCoreError, RuntimeError))  # an error of the connection itself
    if isinstance(error, boto.NoRegionError):
        kind, fact = ConfigurationError, f"No AWS region is known for stream {settings.stream}."
        advice = "Set region, give the stream by ARN, or set AWS_REGION."
    elif isinstance(error, boto.ProfileNotFound):
        kind, advice = ConfigurationError, "Check profile and AWS_PROFILE against ~/.aws/config."
        fact = f"The AWS profile {settings.profile or 'named by the environment'} does not exist."
    elif cut or isinstance(error, (boto.ConnectionError, boto.HTTPClientError)):
        kind, fact = EndpointUnreachable, f"Kinesis did not answer{during}{on} {settings.where} ({code})."
        advice = "Check endpoint_url, region, network and proxy; for `headpond local`, that it runs."
        if isinstance(error, boto.SSLError):
            advice = "Check whether https:// in endpoint_url is meant, and AWS_CA_BUNDLE for its certificate."
        regions = boto3.Session().get_available_regions("kinesis") if settings.endpoint_url is None else []
        near = get_close_matches(settings.region or "", regions)
        if near and settings.region not in regions:
            advice = (
                f"AWS has no region {settings.region} that boto3 knows. The nearest are {', '.join(near)}."
            )
    elif isinstance(error, (boto.ParamValidationError, boto.InvalidRegionError, boto.UnknownEndpointError)):
        kind, advice = ConfigurationError, "Check region, endpoint_url and the names that were given."
        fact = f"The AWS client does not take these settings for stream {settings.stream} ({code})."
    return kind, fact, advice
