"""The soak's change records of an Aurora DSQL cluster, and what must come of them.

The maker knows what each record means when it makes it. The model takes the records that are in the stream in
the end, looks each one up by its bytes, and works out tables and fates; it decodes nothing, so that it shares
nothing with headpond but the specification.
"""

from __future__ import annotations

import base64
import json
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable

START_NS = 1_783_600_000_000_000_000
ORDERS, ACCOUNTS, BLOBS, EVENTS = "public.orders", "public.accounts", "Sales.Blobs", "public.events"
KEYS = {ORDERS: ("order_id", "item_id"), ACCOUNTS: ("id",), BLOBS: ("id",), EVENTS: ()}
COLUMNS = {
    ORDERS: {"order_id": "bigint", "item_id": "integer", "quantity": "integer", "price": "numeric(12,2)"},
    ACCOUNTS: {"id": "bigint", "email": "varchar", "balance": "numeric(18,4)", "active": "boolean"},
    BLOBS: {"id": "bigint", "body": "text", "raw": "bytea"},
    EVENTS: {"kind": "text", "payload": "json", "amount": "bigint"},
}
KEEP = {ORDERS: "current", ACCOUNTS: "history", BLOBS: "current", EVENTS: "log"}
Identity = tuple[str, str, int]


@dataclass(frozen=True, eq=False)
class Change:
    """A change, as the cluster knows it; `row` is null for a delete."""

    table: str
    key: tuple[int, ...]
    ts_ns: int
    tx_id: str
    row: dict[str, Any] | None


@dataclass(frozen=True, eq=False)
class Meaning:
    """What a record is: a change, a part of one (`chunk`, with its place), or damaged (`reason`)."""

    change: Change | None = None
    chunk: str | None = None
    part: int = -1  # -1: the main record
    parts: int = 0
    reason: str | None = None


@dataclass
class ChangeMaker:
    """Makes records, in order of commits; `meanings` tells what was made."""

    seed: int
    keys: int = 40
    meanings: dict[bytes, Meaning] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)
        self._now = START_NS
        self._made = 0

    def transaction(self) -> list[tuple[float, bytes]]:
        """Make the records of a transaction, each with the seconds by which it is to come late."""
        draw = self._draw
        self._now += draw.choice((1, 1, 1000, 1_000_000, 50_000_000))
        tx_id = "".join(draw.choices("abcdefghijklmnopqrstuvwxyz234567", k=26))
        found: list[tuple[float, bytes]] = []
        touched: set[tuple[str, tuple[int, ...]]] = set()
        for _ in range(draw.choice((1, 1, 1, 2, 5))):
            table = draw.choices((ORDERS, ACCOUNTS, BLOBS, EVENTS), (5, 3, 2, 2))[0]
            key = tuple(draw.randrange(self.keys) for _ in KEYS[table])
            if key and (table, key) in touched:
                continue  # the service sends the net effect of a transaction, once
            touched.add((table, key))
            gone = bool(key) and draw.random() < 0.2
            change = Change(table, key, self._now, tx_id, None if gone else self._row(table, key))
            found += self._sent(change)
        if draw.random() < 0.04:
            found.append((0.0, self._damaged()))
        return found

    def _row(self, table: str, key: tuple[int, ...]) -> dict[str, Any]:
        draw = self._draw
        self._made += 1
        values: dict[str, Any] = {
            "quantity": draw.randrange(-(2**31), 2**31),
            "price": f"{draw.randrange(10**8) / 100:.2f}",
            "email": f"user{self._made}@example.com",
            "balance": f"{draw.randrange(10**10) / 10_000:.4f}",
            "active": draw.random() < 0.5,
            "body": "".join(draw.choices('abc "\\\n\té水🚀', k=draw.randint(0, 400))),
            "raw": base64.b64encode(draw.randbytes(draw.randint(0, 30))).decode(),
            "kind": draw.choice(("in", "out", "")),
            "payload": json.dumps({"n": self._made}),
            "amount": 2**53 + draw.randrange(2**60),
        }
        keys = dict(zip(KEYS[table], key, strict=True))
        others = [column for column in COLUMNS[table] if column not in keys]
        return keys | {c: None if draw.random() < 0.1 else values[c] for c in others}

    def _sent(self, change: Change) -> list[tuple[float, bytes]]:
        draw = self._draw
        if change.row is not None and change.key and draw.random() < 0.12:
            return self._chunked(change)
        late = draw.choice((0.5, 3.0, 12.0)) if draw.random() < 0.1 else 0.0
        found = [(late, self._remember(self._full(change), Meaning(change)))]
        if draw.random() < 0.06:  # once more, as it was or as another delivery wrote it
            again = found[0][1] if draw.random() < 0.5 else self._full(change)
            found.append((draw.uniform(0, 15), self._remember(again, Meaning(change))))
        return found

    def _full(self, change: Change) -> bytes:
        gone = change.row is None
        keys = dict(zip(KEYS[change.table], change.key, strict=True))
        return self._written(change, {"type": "full", "before": keys if gone else None, "after": change.row})

    def _chunked(self, change: Change) -> list[tuple[float, bytes]]:
        draw = self._draw
        text = json.dumps(change.row, ensure_ascii=draw.random() < 0.5)
        cuts = sorted(draw.randint(0, len(text)) for _ in range(draw.randint(0, 4)))
        texts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        chunk = f"{draw.getrandbits(128):032x}"
        told = {"chunk_id": chunk, "total_fragments": len(texts), "crc32c": str(crc32c.crc32c(text.encode()))}
        whole = len(texts)
        records = [
            self._remember(
                self._written(change, {"type": "chunked", "before": None, "chunked": {"after": told}}),
                Meaning(change, chunk, -1, whole),
            )
        ]
        for index, part in enumerate(texts):
            fragment = {"type": "fragment", "chunk_id": chunk, "index": index, "data": part}
            records.append(
                self._remember(json.dumps(fragment).encode(), Meaning(change, chunk, index, whole))
            )
        draw.shuffle(records)
        if draw.random() < 0.12:
            records.pop()  # one never comes: the others wait
        again = [draw.choice(records)] if records and draw.random() < 0.15 else []
        return [(draw.choice((0.0, 0.0, 1.0, 6.0)), record) for record in [*records, *again]]

    def _written(self, change: Change, envelope: dict[str, Any]) -> bytes:
        gone = change.row is None
        schema, table = change.table.split(".")
        after_ns = change.ts_ns + self._draw.randrange(-(10**6), 10**9)
        source = {
            "version": "1.0", "ts_ns": change.ts_ns, "ts_ms": change.ts_ns // 10**6, "txId": change.tx_id,
            "schema": schema, "table": table, "db": "postgres", "cluster": "soak",
        }  # fmt: skip
        op = "d" if gone else self._draw.choice("cu") if envelope["type"] == "full" else "c"
        record = envelope | {"op": op, "source": source, "ts_ns": after_ns, "ts_ms": after_ns // 10**6}
        if not change.key and envelope["type"] == "full":
            record["op"] = "c"
        return json.dumps(record).encode()

    def _damaged(self) -> bytes:
        draw = self._draw
        change = Change(ORDERS, (1, 1), self._now, "damaged", self._row(ORDERS, (1, 1)))
        good = json.loads(self._full(change))
        reason, data = draw.choice(
            (
                ("not_utf8", b'{"type": "\xff\xfe"}' + draw.randbytes(4).hex().encode()),
                ("invalid_json", json.dumps(good).encode()[: -draw.randint(1, 40)]),
                ("unknown_type", json.dumps(good | {"type": "half"}).encode()),
                ("bad_op", json.dumps(good | {"op": ""}).encode()),
                ("bad_source", json.dumps(good | {"source": {"table": "orders"}}).encode()),
                ("missing_after", json.dumps(good | {"after": None, "op": "c"}).encode()),
                ("cast_error", json.dumps(good | {"after": good["after"] | {"quantity": "many"}}).encode()),
                ("missing_key", json.dumps(good | {"after": {"order_id": 3}}).encode()),
                ("unsupported_version", _with_source(good, version="2.0")),
                ("unknown_table", _with_source(good, table="../../etc")),
                ("unknown_table", _with_source(good, table="or\0ders")),
                ("unknown_table", _with_source(good, schema="\0")),
            )
        )
        return self._remember(data, Meaning(reason=reason))

    def _remember(self, data: bytes, meaning: Meaning) -> bytes:
        self.meanings.setdefault(data, meaning)
        return data


def _with_source(good: dict[str, Any], **other: str) -> bytes:
    return json.dumps(good | {"source": good["source"] | other}).encode()


@dataclass
class Expected:
    """What must be in the lake, and what became of each record."""

    current: dict[str, dict[tuple[int, ...], Change]] = field(default_factory=dict)
    tombstones: Counter[str] = field(default_factory=Counter)
    history: set[tuple[Any, ...]] = field(default_factory=set)
    deletes: Counter[str] = field(default_factory=Counter)  # versions of histories that end a key
    log: dict[Identity, Change] = field(default_factory=dict)
    quarantine: dict[Identity, str] = field(default_factory=dict)
    pending: set[tuple[str, int]] = field(default_factory=set)
    fates: Counter[str] = field(default_factory=Counter)
    full: Counter[str] = field(default_factory=Counter)  # full changes by table, copies included
    whole: Counter[str] = field(default_factory=Counter)  # chunked changes with all their parts, by table
    records: int = 0


def expect(stream: Iterable[tuple[Identity, bytes]], meanings: dict[bytes, Meaning]) -> Expected:
    """Work out what must come of the records of a stream, whatever their order.

    Args:
        stream: identity (shard, sequence number, place in its aggregate) and bytes of each user record.
        meanings: what the maker made.
    """
    found = Expected()
    found.current = {name: {} for name, keep in KEEP.items() if keep == "current"}
    placed = [(identity, meanings[data]) for identity, data in stream]
    found.records = len(placed)
    parts: dict[str, set[int]] = defaultdict(set)
    for _, meaning in placed:
        if meaning.chunk is not None:
            parts[meaning.chunk].add(meaning.part)
    whole = {m.chunk for _, m in placed if m.chunk and len(parts[m.chunk]) == m.parts + 1}
    changes = {
        m.change: None for _, m in placed if m.change is not None and (m.chunk is None or m.chunk in whole)
    }
    versions: dict[tuple[str, tuple[int, ...]], list[Change]] = defaultdict(list)
    for change in changes:
        if change.key:
            versions[change.table, change.key].append(change)
    newest = set()
    for (table, key), each in versions.items():
        each.sort(key=lambda change: change.ts_ns)
        newest.add(each[-1])
        if KEEP[table] == "history":
            if gone := sum(change.row is None for change in each):
                found.deletes[table] += gone
            ends = [change.ts_ns for change in each[1:]] + [None]
            found.history |= {
                (wire(table, change.row), change.ts_ns, change.tx_id, end)
                for change, end in zip(each, ends, strict=True)
                if change.row is not None
            }
        elif each[-1].row is None:
            found.tombstones[table] += 1
        else:
            found.current[table][key] = each[-1]
    seen: set[Any] = set()
    for identity, meaning in placed:
        found.fates[_fate(identity, meaning, found, seen, whole=whole, newest=newest)] += 1
    found.whole = Counter(
        m.change.table for m in {m.chunk: m for _, m in placed if m.chunk in whole}.values()
    )  # type: ignore[union-attr]
    return found


def _fate(
    identity: Identity,
    meaning: Meaning,
    found: Expected,
    seen: set[Any],
    *,
    whole: set[Any],
    newest: set[Any],
) -> str:
    """Say what becomes of one record, and note it where the lake has a place for it."""
    change, chunk = meaning.change, meaning.chunk
    if change is None:
        assert meaning.reason is not None
        found.quarantine[identity] = meaning.reason
        return "quarantined"
    if chunk is None:
        found.full[change.table] += 1
    if not change.key:
        found.log[identity] = change
        return "applied"  # a log has every delivery
    what = (change, chunk, meaning.part)
    again, _ = what in seen, seen.add(what)
    if chunk is not None and chunk not in whole:
        found.pending.add((chunk, meaning.part))
        return "duplicate" if again else "pending"
    if again:
        return "duplicate"
    return "applied" if KEEP[change.table] == "history" or change in newest else "superseded"


def tables() -> str:
    """Write the tables of the pipeline file."""
    # JSON's arrays and strings are TOML's too.
    return "".join(
        f'[tables."{name}"]\nkeys = {json.dumps(KEYS[name])}\nkeep = "{KEEP[name]}"\n'
        "columns = { " + ", ".join(f'{column} = "{kind}"' for column, kind in columns.items()) + " }\n"
        for name, columns in COLUMNS.items()
    )


def wire(table: str, row: dict[str, Any]) -> tuple[Any, ...]:
    """Give the values of a row as Delta holds them, in the order of the declared columns."""
    kinds = {"numeric": Decimal, "bytea": base64.b64decode}
    return tuple(
        None if row[column] is None else kinds.get(kind.partition("(")[0], lambda value: value)(row[column])
        for column, kind in COLUMNS[table].items()
    )
