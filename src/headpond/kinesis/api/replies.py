"""Replies to GetRecords, read without the AWS client's own parser, which takes 12 µs and more a record.

::

    HTTP body ─► JSON into `Record`s, data left as base64 text ─► Page
                                       └─ anything unusual: botocore's parser ─► the same `Record`s

botocore offers the hook that is used here (`before-parse`), which may supply members of a reply itself. A
record's data is decoded when it is asked for: planning only looks at sizes.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec
import pybase64

from headpond.core.errors import ServiceFailure

_SHORT_TEXT = 512  # below this the JSON decoder's own base64 takes less time


class Record(msgspec.Struct, gc=False, frozen=True):
    """One Kinesis record of a reply."""

    sequence_number: str = msgspec.field(name="SequenceNumber")
    arrival_s: float = msgspec.field(name="ApproximateArrivalTimestamp")
    partition_key: str = msgspec.field(name="PartitionKey")
    text: msgspec.Raw = msgspec.field(name="Data")
    """The data as it came: base64 in quotes."""
    encryption_type: str | None = msgspec.field(name="EncryptionType", default=None)

    @property
    def number(self) -> int:
        """The sequence number, to be compared."""
        return int(self.sequence_number)

    @property
    def data(self) -> bytes:
        """The data, decoded at each call.

        Raises:
            ServiceFailure: It is not base64 text.
        """
        text = self.text
        try:
            if len(text) <= _SHORT_TEXT:
                return _decode_short(text)
            return pybase64.b64decode(memoryview(text)[1:-1], validate=True)
        except (msgspec.DecodeError, ValueError):
            pass
        try:  # as botocore does: escapes in the JSON text, and characters outside base64's passed over
            return b64decode(json.loads(bytes(text)))
        except (TypeError, ValueError) as error:
            raise ServiceFailure(
                f"The data of the Kinesis record {self.sequence_number} is not base64 text.",
                next_step="Check what answers at the endpoint; Kinesis itself sends base64.",
                sequence_number=self.sequence_number,
            ) from error

    @property
    def data_bytes(self) -> int:
        """Size of the data without decoding it."""
        text = bytes(memoryview(self.text)[-3:])
        return (len(self.text) - 2) // 4 * 3 - text.count(b"=")

    @property
    def size_bytes(self) -> int:
        """Bytes of data and partition key, which is what the service's limits count."""
        return self.data_bytes + len(self.partition_key.encode())

    @property
    def arrival_us(self) -> int:
        """When the record arrived, in microseconds since 1970, as `datetime.fromtimestamp` rounds them."""
        fraction, whole = math.modf(self.arrival_s)
        return int(whole) * 1_000_000 + round(fraction * 1e6)

    @property
    def arrival_ms(self) -> int:
        """When the record arrived."""
        return round(self.arrival_us / 1000)


class Page(NamedTuple):
    """What one reply holds."""

    records: list[Record]
    next_iterator: str | None  # None: the shard is closed and was read to its end
    behind_ms: int

    @property
    def about_bytes(self) -> int:
        """Bytes of data and partition keys, a few more than the service counts: for a shard's limits."""
        return sum(len(each.text) * 3 // 4 + len(each.partition_key) for each in self.records)


class _Reply(msgspec.Struct, gc=False):
    """The members of GetRecords' answer that are of use; others are ignored."""

    records: list[Record] = msgspec.field(name="Records")
    next_iterator: str | None = msgspec.field(name="NextShardIterator", default=None)
    behind_ms: int | None = msgspec.field(name="MillisBehindLatest", default=None)


_decode_reply = msgspec.json.Decoder(_Reply).decode
_decode_short = msgspec.json.Decoder(bytes).decode


def install_fast_parser(client: Any) -> None:
    """Make a client of boto3 answer GetRecords with `Record`s; `page_of` reads what it then returns."""
    # botocore calls a handler of one call before those of all calls: cut replies are judged after it.
    client.meta.events.register("before-parse.kinesis.GetRecords", _read_body, unique_id="headpond-read-fast")


def page_of(reply: Mapping[str, Any]) -> Page:
    """Return the page in a client's answer, whichever parser read it.

    Raises:
        ServiceFailure: The answer holds no list of records, which would read as the end of the shard.
    """
    records = reply.get("Records")
    if records is None:
        raise ServiceFailure(
            "The answer to GetRecords has no member Records.",
            next_step="Check what answers at the endpoint; Kinesis itself always sends it.",
        )
    return Page(records_of(records), reply.get("NextShardIterator"), reply.get("MillisBehindLatest") or 0)


def records_of(records: list[Any]) -> list[Record]:
    """Return records, whichever parser read them."""
    return records if records and isinstance(records[0], Record) else [record_of(each) for each in records]


def record_of(record: Mapping[str, Any]) -> Record:
    """Return a record that botocore's parser read."""
    return Record(
        record["SequenceNumber"],
        record["ApproximateArrivalTimestamp"].timestamp(),
        record["PartitionKey"],
        msgspec.Raw(b'"%b"' % b64encode(record["Data"])),
        record.get("EncryptionType"),
    )


def _read_body(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    """Hand botocore the parsed members, and its parser an empty object to read."""
    if response_dict["status_code"] != HTTPStatus.OK:
        return
    try:
        reply = _decode_reply(response_dict["body"])
    except msgspec.DecodeError:
        return  # something unusual: botocore's parser decides
    customized_response_dict["Records"] = reply.records
    if reply.next_iterator is not None:
        customized_response_dict["NextShardIterator"] = reply.next_iterator
    if reply.behind_ms is not None:
        customized_response_dict["MillisBehindLatest"] = reply.behind_ms
    response_dict["body"] = b"{}"
