"""The same columns by way of amazon.ion: bare values for the envelope, Ion objects for the hashes."""

from __future__ import annotations

import hashlib
import math
import struct
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from amazon.ion import simpleion
from amazon.ion.core import IonType, TimestampPrecision
from amazon.ion.simpleion import IonPyValueModel

from headpond.qldb.hash import dot

if TYPE_CHECKING:
    from decimal import Decimal

C_EXTENSION = simpleion.c_ext
BARE = IonPyValueModel.MAY_BE_BARE | IonPyValueModel.SYMBOL_AS_TEXT | IonPyValueModel.STRUCT_AS_STD_DICT


def decode(blobs: list[bytes], kind: str) -> dict[str, pa.Array]:
    """Envelope columns, and `data` as Ion of its own."""
    read = simpleion.loads
    payloads = [read(blob, value_model=BARE) for blob in blobs]
    return _revisions(payloads) if kind == "revisions" else _blocks(payloads)


def _revisions(records: list[Any]) -> dict[str, pa.Array]:
    revisions = [record["payload"]["revision"] for record in records]
    tables = [record["payload"]["tableInfo"] for record in records]
    metadata = [revision["metadata"] for revision in revisions]
    # Its C extension gives no bytes of a part; writing `data` again, which a table with raw bytes would
    # need, is left out here in its favour.
    return {
        "stream_arn": pa.array([record["qldbStreamArn"] for record in records]),
        "table_name": pa.array([table["tableName"] for table in tables]),
        "table_id": pa.array([table["tableId"] for table in tables]),
        "strand_id": pa.array([revision["blockAddress"]["strandId"] for revision in revisions]),
        "sequence_no": pa.array(
            [revision["blockAddress"]["sequenceNo"] for revision in revisions], pa.int64()
        ),
        "hash": pa.array([bytes(revision["hash"]) for revision in revisions], pa.binary(32)),
        "document_id": pa.array([one["id"] for one in metadata]),
        "version": pa.array([one["version"] for one in metadata], pa.int64()),
        "tx_time_ns": pa.array([_ns(one["txTime"]) for one in metadata], pa.int64()),
        "tx_id": pa.array([one["txId"] for one in metadata]),
    }


def _ns(time: Any) -> int:
    seconds = int(time.replace(microsecond=0).timestamp())
    fraction = getattr(time, "fractional_seconds", None)
    if fraction is None:
        return seconds * 10**9 + time.microsecond * 1000
    return seconds * 10**9 + int(fraction.scaleb(9))


def _blocks(records: list[Any]) -> dict[str, pa.Array]:
    payloads = [record["payload"] for record in records]
    infos = [payload.get("transactionInfo") or {} for payload in payloads]
    return {
        "stream_arn": pa.array([record["qldbStreamArn"] for record in records]),
        "strand_id": pa.array([payload["blockAddress"]["strandId"] for payload in payloads]),
        "sequence_no": pa.array([payload["blockAddress"]["sequenceNo"] for payload in payloads], pa.int64()),
        "transaction_id": pa.array([payload["transactionId"] for payload in payloads]),
        "block_timestamp_ns": pa.array([_ns(payload["blockTimestamp"]) for payload in payloads], pa.int64()),
        "block_hash": pa.array([bytes(payload["blockHash"]) for payload in payloads], pa.binary(32)),
        "entries_hash": pa.array([bytes(payload["entriesHash"]) for payload in payloads], pa.binary(32)),
        "previous_block_hash": pa.array([bytes(payload["previousBlockHash"]) for payload in payloads]),
        "entries_hash_list": pa.array(
            [[bytes(one) for one in payload["entriesHashList"]] for payload in payloads],
            pa.list_(pa.binary(32)),
        ),
        "statements": pa.array(
            [
                [
                    {
                        "statement": one["statement"],
                        "start_time": _text(one["startTime"]),
                        "start_time_ns": _ns(one["startTime"]),
                        "statement_digest": bytes(one["statementDigest"]),
                    }
                    for one in info.get("statements", ())
                ]
                for info in infos
            ]
        ),
        "documents": pa.array(
            [
                [
                    {
                        "document_id": name,
                        "table_name": one["tableName"],
                        "table_id": one["tableId"],
                        "statements": list(one["statements"]),
                    }
                    for name, one in info.get("documents", {}).items()
                ]
                for info in infos
            ]
        ),
        "revision_summaries": pa.array(
            [
                [
                    {"hash": bytes(one["hash"]), "document_id": one.get("documentId")}
                    for one in payload.get("revisionSummaries", ())
                ]
                for payload in payloads
            ]
        ),
    }


def _text(time: Any) -> str:
    digits = -time.fractional_seconds.as_tuple().exponent if hasattr(time, "fractional_seconds") else 3
    fraction = f".{_ns(time) % 10**9:09}"[: digits + 1] if digits else ""
    return f"{time:%Y-%m-%dT%H:%M:%S}{fraction}Z"


def verify(blobs: list[bytes], kind: str) -> dict[str, pa.Array]:
    """The columns of `decode`, and the check of each revision or of each block's transactionInfo."""
    records = [simpleion.loads(blob) for blob in blobs]
    if kind == "blocks":
        columns = _blocks(records)
        columns["transaction_info_in_entries"] = pa.array(
            [
                ion_hash(payload["transactionInfo"]) in {bytes(one) for one in payload["entriesHashList"]}
                if "transactionInfo" in payload
                else None
                for payload in (record["payload"] for record in records)
            ]
        )
        return columns
    columns = _revisions(records)
    oks = []
    for record in records:
        revision = record["payload"]["revision"]
        metadata = ion_hash(revision["metadata"])
        data, given = revision.get("data"), revision.get("dataHash")
        if data is not None and data.ion_type == IonType.STRUCT:
            oks.append(bytes(revision["hash"]) == dot(metadata, ion_hash(data)))
        elif given is not None:
            oks.append(bytes(revision["hash"]) == dot(metadata, bytes(given)))
        else:
            forms = (b"", hashlib.sha256(b"\x0b\x0f\x0e").digest(), hashlib.sha256(b"").digest())
            oks.append(bytes(revision["hash"]) in [dot(metadata, form) for form in forms])
    columns["revision_hash_ok"] = pa.array(oks)
    return columns


def ion_hash(value: Any) -> bytes:
    """The Ion hash of a value that amazon.ion read."""
    return hashlib.sha256(_serialised(value)).digest()


def _escape(raw: bytes) -> bytes:
    return raw.replace(b"\x0c", b"\x0c\x0c").replace(b"\x0b", b"\x0c\x0b").replace(b"\x0e", b"\x0c\x0e")


def _symbol(text: str) -> bytes:
    return b"\x0b\x70" + _escape(text.encode()) + b"\x0e"


def _serialised(value: Any) -> bytes:
    names = value.ion_annotations
    if names:
        marks = b"".join(_symbol(name.text) for name in names)
        return b"\x0b\xe0" + marks + _plain(value) + b"\x0e"
    return _plain(value)


def _plain(value: Any) -> bytes:  # noqa: C901 - one per type
    kind = value.ion_type
    if type(value).__name__ == "IonPyNull":
        codes = {IonType.NULL: 0, IonType.BOOL: 1, IonType.INT: 2, IonType.FLOAT: 4, IonType.DECIMAL: 5}
        codes |= {
            IonType.TIMESTAMP: 6,
            IonType.SYMBOL: 7,
            IonType.STRING: 8,
            IonType.CLOB: 9,
            IonType.BLOB: 10,
        }
        codes |= {IonType.LIST: 11, IonType.SEXP: 12, IonType.STRUCT: 13}
        return bytes((0x0B, codes[kind] << 4 | 15, 0x0E))
    if kind == IonType.STRUCT:
        digests = [
            hashlib.sha256(_symbol(name) + _serialised(one)).digest() for name, one in value.iteritems()
        ]
        return b"\x0b\xd0" + _escape(b"".join(sorted(digests))) + b"\x0e"
    if kind in (IonType.LIST, IonType.SEXP):
        tag = b"\xb0" if kind == IonType.LIST else b"\xc0"
        return b"\x0b" + tag + b"".join(_serialised(one) for one in value) + b"\x0e"
    if kind == IonType.STRING:
        return b"\x0b\x80" + _escape(str(value).encode()) + b"\x0e"
    if kind == IonType.SYMBOL:
        return _symbol(value.text)
    if kind == IonType.BOOL:
        return b"\x0b\x11\x0e" if value else b"\x0b\x10\x0e"
    if kind == IonType.INT:
        number = int(value)
        raw = abs(number).to_bytes((number.bit_length() + 7) // 8)
        return b"\x0b" + (b"\x30" if number < 0 else b"\x20") + _escape(raw) + b"\x0e"
    if kind == IonType.BLOB:
        return b"\x0b\xa0" + _escape(bytes(value)) + b"\x0e"
    if kind == IonType.CLOB:
        return b"\x0b\x90" + _escape(bytes(value)) + b"\x0e"
    if kind == IonType.FLOAT:
        number = float(value)
        positive_zero = number == 0 and math.copysign(1, number) > 0
        raw = b"" if positive_zero else struct.pack(">d", number)
        return b"\x0b\x40" + _escape(raw) + b"\x0e"
    if kind == IonType.DECIMAL:
        return b"\x0b\x50" + _escape(_decimal(value)) + b"\x0e"
    return b"\x0b\x60" + _escape(_timestamp(value)) + b"\x0e"


def _var_uint(value: int) -> bytes:
    groups = [value & 0x7F | 0x80]
    while value := value >> 7:
        groups.append(value & 0x7F)
    return bytes(reversed(groups))


def _var_int(value: int) -> bytes:
    sign, value = (0x40 if value < 0 else 0), abs(value)
    groups, end = [], 0x80
    while value > 0x3F:
        groups.append(value & 0x7F | end)
        value >>= 7
        end = 0
    groups.append(value | sign | end)
    return bytes(reversed(groups))


def _signed(magnitude: int, *, negative: bool) -> bytes:
    if not magnitude and not negative:
        return b""
    raw = bytearray(magnitude.to_bytes((magnitude.bit_length() + 8) // 8))
    if negative:
        raw[0] |= 0x80
    return bytes(raw)


def _decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    coefficient = int("".join(map(str, digits)))
    if not (sign or coefficient or exponent):
        return b""
    return _var_int(int(exponent)) + _signed(coefficient, negative=bool(sign))


def _timestamp(value: Any) -> bytes:
    offset = value.utcoffset()
    utc = value.replace(tzinfo=None) - (offset or timedelta(0))
    minutes = None if offset is None else round(offset.total_seconds() / 60)
    body = b"\xc0" if minutes is None else _var_int(minutes)
    count = {
        TimestampPrecision.YEAR: 1,
        TimestampPrecision.MONTH: 2,
        TimestampPrecision.DAY: 3,
        TimestampPrecision.MINUTE: 5,
        TimestampPrecision.SECOND: 6,
    }[value.precision]
    fields = (utc.year, utc.month, utc.day, utc.hour, utc.minute, utc.second)[:count]
    body += b"".join(map(_var_uint, fields))
    fraction = value.fractional_seconds
    if count == 6 and fraction is not None:
        _, digits, exponent = fraction.as_tuple()
        if exponent:
            body += _var_int(int(exponent)) + _signed(int("".join(map(str, digits))), negative=False)
    return body
