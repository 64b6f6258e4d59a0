"""What a reply means for each user record: in the stream, to be sent again, or failed.

::

    entry failed    throttled   again, in front and alone; fails if `fail_if_throttled`
                    internal    again
                    refused     fails
    entry stored    in the predicted shard, or a record sent alone     acknowledged: the service placed it
                    in another shard whose range is known              those inside acknowledged, others again
                    in a shard nobody knows                            judged once the shard map is fresh

Pure: codes and ranges in, a verdict out. Source: spec "KPL aggregated records", result classification.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from headpond.formats.hash_keys import effective_hash_key

if TYPE_CHECKING:
    from headpond.formats.hash_keys import HashKeyRange
    from headpond.kinesis.producer.records import Bundle, Pending

__all__ = ["Remedy", "Stored", "inside", "is_throttling", "remedy"]

Remedy = Literal["again", "alone", "fail"]

_THROTTLING = {
    "ProvisionedThroughputExceededException",
    "LimitExceededException",
    "KMSThrottlingException",
    "ThrottlingException",
    "Throttling",
    "RequestLimitExceeded",
}
_REFUSED = {
    "AccessDeniedException",
    "AccessDenied",
    "ExpiredTokenException",
    "ExpiredToken",
    "IncompleteSignature",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "KMSAccessDeniedException",
    "KMSDisabledException",
    "KMSInvalidStateException",
    "KMSNotFoundException",
    "KMSOptInRequired",
    "MissingAuthenticationTokenException",
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "ParamValidationError",
    "Record Count Mismatch",
    "ResourceNotFoundException",
    "SignatureDoesNotMatch",
    "UnknownOperationException",
    "UnrecognizedClientException",
}
_WRONG = {"InvalidArgumentException", "SerializationException", "ValidationException"}


class Stored(NamedTuple):
    """Where an entry was stored."""

    shard_id: str
    sequence_number: str


def is_throttling(code: str) -> bool:
    """Whether the service said: too much."""
    return code in _THROTTLING


def remedy(code: str, *, fail_if_throttled: bool, entries: int) -> Remedy:
    """What to do with a Kinesis record that was refused.

    Args:
        code: The error code.
        fail_if_throttled: The setting.
        entries: Records in the request. One that the service calls wrong may be so for one record only,
            so each is tried in a request of its own before it fails.
    """
    if code in _REFUSED or (code in _THROTTLING and fail_if_throttled):
        return "fail"
    if code in _WRONG:
        return "alone" if entries > 1 else "fail"
    return "again"


def inside(bundle: Bundle, keys: HashKeyRange) -> tuple[list[int], list[Pending]]:
    """Which user records of an aggregate belong to a shard's hash keys.

    Returns:
        The places of those inside, and the records outside, which readers may filter out.
    """
    places: list[int] = []
    outside: list[Pending] = []
    for place, record in enumerate(bundle.records):
        if effective_hash_key(record.partition_key, record.explicit_hash_key) in keys:
            places.append(place)
        else:
            outside.append(record)
    return places, outside
