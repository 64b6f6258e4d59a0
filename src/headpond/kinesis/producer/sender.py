"""One PutRecords and one listing of shards, and what the reply means for each user record.

::

    entry failed    throttled   again, in front and alone; fails if `fail_if_throttled`
                    internal    again
                    refused     fails
    entry stored    in the predicted shard, or a record sent alone     acknowledged: the service placed it
                    in another shard whose range is known              those inside acknowledged, others again
                    in a shard nobody knows                            judged once the shard map is fresh

The calls block and are run in threads: signing, credentials, endpoints and the guard against cut replies
stay those of the reader, and asynchronous clients pin other versions of botocore. A request carries hundreds
of KB, so the thread costs nothing per user record. botocore's own retries are off: the producer counts each
try. Source: spec "KPL aggregated records", result classification.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from botocore.exceptions import BotoCoreError, ClientError

from headpond.kinesis.api.errors import REFUSED, SIGN_IN, WRONG_CALL, error_code, translate
from headpond.kinesis.api.shards import Shard, shard_of
from headpond.kpl import encode
from headpond.kpl.hash_keys import effective_hash_key

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient

    from headpond.kinesis.api.settings import ConnectionSettings
    from headpond.kinesis.producer.records import Bundle, Pending
    from headpond.kinesis.producer.settings import ProducerSettings
    from headpond.kpl import UserRecord
    from headpond.kpl.hash_keys import HashKeyRange

CALL_FAILURES = (BotoCoreError, ClientError)
"""What a call of boto3 raises when it fails."""
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
    *(SIGN_IN.keys() - {"RequestExpired"}),  # which a new signature helps
    *REFUSED,
    "KMSDisabledException",
    "KMSInvalidStateException",
    "KMSNotFoundException",
    "KMSOptInRequired",
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "ParamValidationError",
    "Record Count Mismatch",
    "ResourceNotFoundException",
    "UnknownOperationException",
}


class Stored(NamedTuple):
    """Where an entry was stored."""

    shard_id: str
    sequence_number: str


class Refused(NamedTuple):
    """Why an entry, or a whole request, was not stored."""

    code: str
    message: str


class Reply(NamedTuple):
    """An answer per entry, in request order; or one refusal of the whole request."""

    entries: list[Stored | Refused]
    whole: Refused | None = None


def put_records(
    connection: ConnectionSettings,
    bundles: Sequence[Bundle],
    settings: ProducerSettings,
    client: KinesisClient,
) -> Reply:
    """Encode and send Kinesis records in one request."""
    entries = []
    for bundle in bundles:
        # Pending records have all that the encoder reads of a UserRecord; copying them would cost more.
        records = cast("Sequence[UserRecord]", bundle.records)
        record = encode(
            records,
            max_user_record_bytes=settings.max_user_record_bytes,
            with_tags=True,
            # An aggregate that is copied from another stream stays one.
            wrap=settings.aggregation_enabled,
        )
        entries.append(
            {
                "PartitionKey": record.partition_key,
                "ExplicitHashKey": record.explicit_hash_key,
                "Data": record.data,
            }
        )
    try:
        reply = client.put_records(Records=entries, **connection.stream_argument)  # type: ignore[arg-type]
    except CALL_FAILURES as error:
        return Reply([], Refused(error_code(error), translate(error, connection).message))
    answers = reply["Records"]
    if len(answers) != len(entries):
        count = f"{len(answers)} answers for {len(entries)} records"
        return Reply([], Refused("Record Count Mismatch", count))
    return Reply(
        [
            Refused(answer["ErrorCode"], answer.get("ErrorMessage", ""))
            if "ErrorCode" in answer
            else Stored(answer["ShardId"], answer["SequenceNumber"])
            for answer in answers
        ]
    )


def list_shards(connection: ConnectionSettings, client: KinesisClient) -> list[Shard]:
    """List all shards that are held."""
    found: list[Shard] = []
    reply = client.list_shards(MaxResults=1000, **connection.stream_argument)
    while True:
        found += map(shard_of, reply["Shards"])
        token = reply.get("NextToken")
        if not token:
            return found
        reply = client.list_shards(MaxResults=1000, NextToken=token)


def remedy(code: str, *, fail_if_throttled: bool, entries: int) -> Remedy:
    """Return what to do with a Kinesis record that was refused.

    What the service calls wrong may be so for one record only, so where the request had more `entries` each
    is tried in a request of its own before it fails.
    """
    if code in _REFUSED or (code in _THROTTLING and fail_if_throttled):
        return "fail"
    if code in WRONG_CALL:
        return "alone" if entries > 1 else "fail"
    return "again"


def inside(bundle: Bundle, keys: HashKeyRange) -> tuple[list[int], list[Pending]]:
    """Return the places of an aggregate's records inside a shard's hash keys, and the records outside."""
    places: list[int] = []
    outside: list[Pending] = []
    for place, record in enumerate(bundle.records):
        if effective_hash_key(record.partition_key, record.explicit_hash_key) in keys:
            places.append(place)
        else:
            outside.append(record)
    return places, outside
