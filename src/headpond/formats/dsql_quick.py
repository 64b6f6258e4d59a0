"""One change record read by msgspec, where a count proves that no name is repeated.

msgspec refuses all that the oracle refuses but repeated names, bytes that are no UTF-8 and deep nesting. With
every member of the envelope and of `source` present once, a record has as many names as colons outside its
strings. Colons that follow a quote or white space are at least those; if they are no more than the different
names found, no name came twice.
"""

from __future__ import annotations

from typing import Any

import msgspec

_ENVELOPE_NAMES = 15


class _Source(msgspec.Struct, gc=False, forbid_unknown_fields=True, rename={"tx_id": "txId"}):
    version: str
    ts_ns: int
    tx_id: str
    schema: str
    table: str
    db: str
    cluster: str
    ts_ms: int


class _Envelope(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    type: str
    op: str
    before: msgspec.Raw
    after: msgspec.Raw
    source: _Source
    ts_ms: int
    ts_ns: int


_ENVELOPE = msgspec.json.Decoder(_Envelope)
_IMAGE = msgspec.json.Decoder(dict[str, msgspec.Raw])


def quick_parse(data: bytes, max_depth: int) -> dict[str, Any] | None:
    """The row of a regular `full` record, or None: it may be anything, ask the oracle."""
    if data.count(b"{") + data.count(b"[") > max_depth or not _is_utf8(data):
        return None
    try:
        record = _ENVELOPE.decode(data)
        before, after = bytes(record.before), bytes(record.after)
        names = _ENVELOPE_NAMES
        for image in (before, after):
            if image != b"null":
                names += len(_IMAGE.decode(image))
    except (msgspec.DecodeError, RecursionError):
        return None
    source = record.source
    # A quote after exactly one backslash is inside a string; after more of them it may not be.
    inside = data.count(b'\\":') - data.count(b'\\\\":')
    if names != sum(map(data.count, (b'":', b" :", b"\t:", b"\n:", b"\r:"))) - inside:
        return None
    has_after = after != b"null"
    if (
        record.type != "full"
        or not record.op
        or (record.op == "d") == has_after
        or source.version.partition(".")[0] != "1"
        or not 0 <= source.ts_ns < 2**63
    ):
        return None
    return {
        "verdict": "full",
        "op": record.op,
        "schema": source.schema,
        "table": source.table,
        "cluster": source.cluster,
        "version": source.version,
        "ts_ns": source.ts_ns,
        "tx_id": source.tx_id,
        "before": None if before == b"null" else before.decode(),
        "after": after.decode() if has_after else None,
    }


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
