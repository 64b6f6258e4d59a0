"""Replies to GetRecords, read without the AWS client's own parser, which takes 12 µs and more a record.

::

    HTTP body ─► JSON into `Record`s, data left as base64 text ─► Page

botocore offers the hook that is used here (`before-parse`), which may supply members of a reply itself. A
record's data is decoded when it is asked for: planning only looks at sizes.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec
import pybase64
from botocore.exceptions import ResponseStreamingError

from headpond.core.errors import ServiceFailure


class Record(msgspec.Struct, gc=False, frozen=True):
    """One Kinesis record of a reply."""

    sequence_number: str = msgspec.field(name="SequenceNumber")
    arrival_s: float = msgspec.field(name="ApproximateArrivalTimestamp")
    partition_key: str = msgspec.field(name="PartitionKey")
    text: str = msgspec.field(name="Data")
    """The data as it came, in base64."""
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
        try:
            return pybase64.b64decode(self.text, validate=True)
        except ValueError:
            raise ServiceFailure(
                f"The data of the Kinesis record {self.sequence_number} is not base64 text.",
                next_step="Check what answers at the endpoint; Kinesis itself sends base64.",
                sequence_number=self.sequence_number,
            ) from None

    @property
    def size_bytes(self) -> int:
        """Bytes of data and partition key, which is what the service's limits count; data is not decoded."""
        return len(self.text) // 4 * 3 - self.text[-2:].count("=") + len(self.partition_key.encode())

    @property
    def arrival_ms(self) -> int:
        """When the record arrived."""
        return round(self.arrival_s * 1000)


class Page(msgspec.Struct, gc=False):
    """What one reply to GetRecords holds; other members are ignored."""

    records: list[Record] = msgspec.field(name="Records")
    next_iterator: str | None = msgspec.field(name="NextShardIterator", default=None)
    """None: the shard is closed and was read to its end."""
    behind_ms: int = msgspec.field(name="MillisBehindLatest", default=0)

    @property
    def about_bytes(self) -> int:
        """Bytes of data and partition keys, a few more than the service counts: for a shard's limits."""
        return sum(len(each.text) * 3 // 4 + len(each.partition_key) for each in self.records)


_decode_page = msgspec.json.Decoder(Page).decode


def read_pages_of(client: Any) -> None:
    """Make a client of boto3 answer GetRecords with `{"Page": Page}`."""
    # botocore calls a handler of one call before those of all calls.
    client.meta.events.register("before-parse.kinesis.GetRecords", _read, unique_id="headpond-pages")


def _read(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    if response_dict["status_code"] != HTTPStatus.OK:
        return
    try:
        customized_response_dict["Page"] = _decode_page(response_dict["body"])
    except msgspec.DecodeError as error:
        raise ResponseStreamingError(error=f"reply cut short, or not one to GetRecords: {error}") from None
    response_dict["body"] = b"{}"
