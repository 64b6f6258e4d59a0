"""One PutRecords, and one listing of shards, as plain blocking functions to be run in threads.

boto3 in threads rather than an asynchronous client: signing, credential chain, endpoints and the
guard against cut replies stay those of the reader, and the asynchronous clients pin other versions of
botocore. A request carries hundreds of KB, so the thread's cost per user record is nothing. botocore's own
retries are off: each try is ours to count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from botocore.exceptions import BotoCoreError, ClientError

from headpond.formats.hash_keys import HashKeyRange
from headpond.formats.kpl import encode
from headpond.kinesis.aws_errors import error_code, translate
from headpond.kinesis.producer.outcome import Stored
from headpond.kinesis.producer.ranges import ShardRange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mypy_boto3_kinesis import KinesisClient

    from headpond.formats.kpl import UserRecord
    from headpond.kinesis.client import ConnectionSettings
    from headpond.kinesis.producer.records import Bundle

__all__ = ["CALL_FAILURES", "Refused", "Reply", "list_shards", "put_records"]

CALL_FAILURES = (BotoCoreError, ClientError)
"""What a call of boto3 raises when it fails."""


class Refused(NamedTuple):
    """Why an entry, or a whole request, was not stored."""

    code: str
    message: str


class Reply(NamedTuple):
    """An answer per entry, in request order; or one refusal of the whole request."""

    entries: list[Stored | Refused]
    whole: Refused | None = None


def put_records(
    client: KinesisClient,
    connection: ConnectionSettings,
    bundles: Sequence[Bundle],
    max_user_record_bytes: int,
) -> Reply:
    """Encode and send Kinesis records in one request."""
    entries = []
    for bundle in bundles:
        # Pending records have all that the encoder reads of a UserRecord; copying them would cost more.
        records = cast("Sequence[UserRecord]", bundle.records)
        record = encode(records, max_user_record_bytes=max_user_record_bytes, with_tags=True)
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


def list_shards(
    client: KinesisClient, connection: ConnectionSettings, *, closed_too: bool
) -> list[ShardRange]:
    """List the open shards, or all that are held."""
    found: list[ShardRange] = []
    more = {} if closed_too else {"ShardFilter": {"Type": "AT_LATEST"}}
    reply = client.list_shards(MaxResults=1000, **connection.stream_argument, **more)  # type: ignore[arg-type]
    while True:
        found += [
            ShardRange(
                shard["ShardId"],
                HashKeyRange(
                    int(shard["HashKeyRange"]["StartingHashKey"]), int(shard["HashKeyRange"]["EndingHashKey"])
                ),
            )
            for shard in reply["Shards"]
        ]
        token = reply.get("NextToken")
        if not token:
            return found
        reply = client.list_shards(MaxResults=1000, NextToken=token)
