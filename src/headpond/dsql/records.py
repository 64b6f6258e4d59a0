"""Aurora DSQL change records: one JSON object in the Data of one Kinesis record.

::

    type = full                       type = chunked                       type = fragment
    ┌──────────────────────────┐      ┌──────────────────────────────┐     ┌───────────────────┐
    │ op      "c" | "u" | "d"  │      │ op, source as full           │     │ chunk_id  string  │
    │ before  {key} | null     │      │ before/after: what is inline │     │ index     0 …     │
    │ after   {row} | null     │      │ chunked                      │     │ data      string  │
    │ source  version ts_ns    │      │   before | after             │     └───────────────────┘
    │         txId schema table│      │     chunk_id                 │      the image's JSON text,
    │         cluster …        │      │     total_fragments  ≥ 1     │      cut at UTF-8 characters
    └──────────────────────────┘      │     crc32c  "decimal"        │
                                      └──────────────────────────────┘

`parse` is the strict scalar reader and the oracle of the batch reader in `batch`. It makes every check
that needs no configuration of tables, in the order of the spec, and keeps images as the exact text that came.
Source: Aurora DSQL documentation, "Understanding CDC records".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from headpond.dsql.strict_json import (
    INT64_MAX,
    MAX_DEPTH,
    RefusedJson,
    integer,
    read_object,
    unescape,
    utf8_text,
)

Verdict = Literal["full", "chunked", "fragment", "quarantine"]

CHECKED_AFTER_ROUTING = frozenset({"bad_chunked", "delete_with_after", "missing_after"})
"""Reasons that rank below `unknown_table`: whoever knows the tables asks about the table first."""

_DECIMAL = re.compile(r"[0-9]+")
_CRC_LIMIT = 2**32
_EXACT = re.compile(r"-?[0-9]{1,15}")
_WORDS = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, slots=True)
class Source:
    """Where and when a change was committed; `ts_ns` is nanoseconds since 1970 UTC, exact."""

    version: str
    ts_ns: int
    tx_id: str
    schema: str
    table: str
    cluster: str | None = None


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """What the main record says of an image in fragments; `crc32c` is over the image's UTF-8 text."""

    chunk_id: str
    total_fragments: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class Change:
    """A change; images are raw JSON text, but for those in `chunks`, which come in fragments.

    `sent_ns` is when the source processed the record, None where it does not say; a copy has its own.
    """

    op: str
    source: Source
    before: str | None
    after: str | None
    sent_ns: int | None = field(default=None, compare=False)
    chunks: Mapping[str, ChunkRef] = field(default_factory=dict)
    """`before`, `after` or both; empty where the change is whole."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """One piece of an image; `index` is 0-based and saturates at 2⁶³ - 1."""

    chunk_id: str
    index: int
    data: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A record that goes to quarantine; `op` and `source` are there where the reason ranks below routing."""

    reason: str
    detail: str
    op: str | None = None
    source: Source | None = None


class _Stop(Exception):
    def __init__(self, reason: str, detail: str, op: str | None = None, source: Source | None = None) -> None:
        super().__init__(reason)
        self.refused = Refused(reason, detail, op, source)


def parse(data: bytes, *, max_depth: int = MAX_DEPTH) -> Change | Fragment | Refused:
    """Read one record; never raises, whatever the bytes are."""
    try:
        return _record(read_object(utf8_text(data), max_depth=max_depth), max_depth)
    except RefusedJson as error:
        return Refused(error.reason, error.detail)
    except _Stop as stop:
        return stop.refused


def verdict_of(record: Change | Fragment | Refused) -> Verdict:
    """Return what a record is."""
    if isinstance(record, Change):
        return "chunked" if record.chunks else "full"
    return "fragment" if isinstance(record, Fragment) else "quarantine"


def inspect_view(data: bytes) -> dict[str, Any]:
    """Return what `headpond inspect --as dsql` prints of a record.

    Returns:
        `verdict`, `reason` and `detail`; of a change, and of what can be known of a quarantined one, also
        `table`, `op`, `key` (the `before` image: of a deleted row), `row` (the `after` image), `committed`
        (ISO 8601, to the nanosecond), `ts_ns` and `tx_id`; of a piece of a change `chunk_id` and `index`. In
        images, numbers that JSON readers may round, lists and objects are their JSON text.
    """
    record = parse(data)
    reason, detail = (record.reason, record.detail) if isinstance(record, Refused) else (None, None)
    found: dict[str, Any] = {"verdict": verdict_of(record), "reason": reason, "detail": detail}
    if isinstance(record, Fragment):
        return found | {"chunk_id": record.chunk_id, "index": record.index}
    source = record.source
    if source is None:
        return found
    images = (None, None) if isinstance(record, Refused) else (record.before, record.after)
    before, after = (None if image is None else _values(image) for image in images)
    seconds, nanoseconds = divmod(source.ts_ns, 10**9)
    committed = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09}Z"
    found |= {"table": f"{source.schema}.{source.table}", "op": record.op, "key": before, "row": after}
    return found | {"committed": committed, "ts_ns": source.ts_ns, "tx_id": source.tx_id}


def _values(image: str) -> dict[str, Any]:
    """Return the columns of an image for people: nothing is rounded, and nothing is nested."""
    found: dict[str, Any] = {}
    for name, token in read_object(image).items():
        text = _string(token)
        found[name] = text if text is not None else _WORDS.get(token, token)
        if _EXACT.fullmatch(token):
            found[name] = int(token)
    return found


def _record(envelope: dict[str, str], max_depth: int) -> Change | Fragment:
    kind = _string(envelope.get("type"))
    if kind == "fragment":
        return _fragment(envelope)
    if kind not in {"full", "chunked"}:
        raise _Stop("unknown_type", f"type is {_shown(envelope.get('type'))}")
    op = _string(envelope.get("op"))
    if not op:
        raise _Stop("bad_op", f"op is {_shown(envelope.get('op'))}")
    source = _source(envelope.get("source"), max_depth)
    if source.version.partition(".")[0] != "1":
        raise _Stop("unsupported_version", f"source.version is {source.version[:80]!r}")
    before, after = _image(envelope, "before"), _image(envelope, "after")
    sent_ns = _time_ns(envelope.get("ts_ns"))
    if kind == "full":
        _check_images(op, source, has_after=after is not None)
        return Change(op, source, before, after, sent_ns)
    try:
        chunks = _chunks(envelope, max_depth)
    except _Stop as stop:
        raise _Stop(stop.refused.reason, stop.refused.detail, op, source) from None
    _check_images(op, source, has_after=after is not None or "after" in chunks)
    return Change(op, source, before, after, sent_ns, chunks)


def _check_images(op: str, source: Source, *, has_after: bool) -> None:
    if op == "d" and has_after:
        raise _Stop("delete_with_after", "op is d and there is an after image", op, source)
    if op != "d" and not has_after:
        raise _Stop("missing_after", f"op is {op[:80]!r} and there is no after image", op, source)


def _fragment(envelope: dict[str, str]) -> Fragment:
    chunk_id, index = _string(envelope.get("chunk_id")), integer(envelope.get("index"))
    data = _string(envelope.get("data"))
    if chunk_id is None or index is None or index < 0 or data is None:
        wrong = "chunk_id" if chunk_id is None else "index" if index is None or index < 0 else "data"
        raise _Stop("bad_fragment", f"{wrong} is {_shown(envelope.get(wrong))}")
    return Fragment(chunk_id, index, data)


def _source(token: str | None, max_depth: int) -> Source:
    if token is None or not token.startswith("{"):
        raise _Stop("bad_source", f"source is {_shown(token)}")
    members = read_object(token, max_depth=max_depth)
    texts: dict[str, str] = {}
    for name in ("version", "txId", "schema", "table"):
        text = _string(members.get(name))
        if text is None:
            raise _Stop("bad_source", f"source.{name} is {_shown(members.get(name))}")
        texts[name] = text
    token = members.get("ts_ns")
    if (ts_ns := _time_ns(token)) is None:
        raise _Stop("bad_source", f"source.ts_ns is {_shown(token)}")
    cluster = _string(members.get("cluster"))
    return Source(texts["version"], ts_ns, texts["txId"], texts["schema"], texts["table"], cluster)


def _time_ns(token: str | None) -> int | None:
    """Return nanoseconds since 1970; None for what is not an integer of 0 … 2^63 - 1."""
    ts_ns = integer(token)
    # A saturated value has the digits of a larger number: only the exact text tells 2^63 - 1 from more.
    if ts_ns is None or ts_ns < 0 or (ts_ns == INT64_MAX and (token or "").lstrip("0") != str(INT64_MAX)):
        return None
    return ts_ns


def _image(envelope: dict[str, str], name: str) -> str | None:
    token = envelope.get(name)
    if token is None or token == "null":  # noqa: S105 - a JSON token
        return None
    if not token.startswith("{"):
        raise _Stop("bad_image", f"{name} is {_shown(token)}")
    return token


def _chunks(envelope: dict[str, str], max_depth: int) -> dict[str, ChunkRef]:
    token = envelope.get("chunked")
    if token is None or not token.startswith("{"):
        raise _Stop("bad_chunked", f"chunked is {_shown(token)}")
    members = read_object(token, max_depth=max_depth)
    if not members or not members.keys() <= {"before", "after"}:
        raise _Stop("bad_chunked", f"chunked names {', '.join(sorted(members))[:80] or 'nothing'}")
    chunks: dict[str, ChunkRef] = {}
    for name, inner in members.items():
        if envelope.get(name, "null") != "null":
            raise _Stop("bad_chunked", f"{name} is inline and in fragments")
        fields = read_object(inner, max_depth=max_depth) if inner.startswith("{") else {}
        chunk_id, total = _string(fields.get("chunk_id")), integer(fields.get("total_fragments"))
        text = _string(fields.get("crc32c")) or ""
        crc = integer(text) if _DECIMAL.fullmatch(text) else None
        if chunk_id is None or total is None or total < 1 or crc is None or crc >= _CRC_LIMIT:
            wrong = "total_fragments" if total is None or total < 1 else "crc32c"
            wrong = "chunk_id" if chunk_id is None else wrong
            raise _Stop("bad_chunked", f"chunked.{name}.{wrong} is {_shown(fields.get(wrong))}")
        chunks[name] = ChunkRef(chunk_id, total, crc)
    if len({chunk.chunk_id for chunk in chunks.values()}) < len(chunks):
        raise _Stop("bad_chunked", "both images have one chunk_id, so their fragments cannot be told apart")
    return chunks


def _string(token: str | None) -> str | None:
    return unescape(token) if token is not None and token.startswith('"') else None


def _shown(token: str | None) -> str:
    """Return a raw token for a message: absent ones named, long ones cut."""
    if token is None:
        return "absent"
    return token if len(token) <= 80 else token[:77] + "..."
