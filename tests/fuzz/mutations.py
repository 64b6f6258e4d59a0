"""Mutations of structure: of JSON, of Ion, and of the aggregates and archive lines that carry records.

Each takes a `Random`, so that a seed gives the same records again. A mutated record is of the right outer
form more often than not: what is wrong lies deep, where checks are fewer.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING, Any

from tests.fuzz.families import field, framed, var_uint, varint

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

TEXTS = [
    "",
    " ",
    "\0",
    "a\0b",
    "\x7f",
    "é",
    "\u202e",
    "\ufeff",
    "𝄞",
    "'",
    '"',
    "\\",
    "\\x",
    "\\xZZ",
    "\\x00ff",
    "null",
    "NULL",
    "NaN",
    "-NaN",
    "Infinity",
    "-Infinity",
    "infinity",
    "-infinity",
    "epoch",
    "now",
    "true",
    "t",
    "f",
    "0",
    "-0",
    "+1",
    "1e400",
    "-1e-400",
    "1e999999999",
    "0x10",
    "1_000",
    "١٢",
    "9223372036854775808",
    "-9223372036854775809",
    "170141183460469231731687303715884105728",
    "0.1" + "0" * 40,
    "1" * 5000,
    "0001-01-01",
    "0000-00-00",
    "10000-01-01",
    "294277-01-01 00:00:00",
    "4714-11-24 BC",
    "2024-02-30",
    "2024-01-01T00:00:00Z",
    "2024-01-01 24:00:00",
    "2024-01-01 23:59:60+15:59:59",
    "1970-01-01 00:00:00.123456789+00",
    "25:00",
    "1 year",
    "-178000000 years",
    "P1Y2M",
    "00000000-0000-0000-0000-000000000000",
    "{AAAAAAAA-bbbb-CCCC-dddd-eeeeeeeeeeee}",
    "not-a-uuid",
    "{}",
    "[]",
    "{1,2,NULL}",
    '{"a":[1,{"b":null}]}',
    "../../etc/passwd",
    "a/b",
    "CON",
    "x" * 300,
    "é" * 130,
    "%2F%00",
    "key=value",
    "__HIVE_DEFAULT_PARTITION__",
]
TOKENS = [
    "null",
    "true",
    "false",
    "0",
    "-0",
    "1",
    "-1",
    "0.0",
    "-0.0",
    "1E1",
    "1e-7",
    "0.1e400",
    "1e400",
    "-1e400",
    "1E999999999",
    "1e-999999999",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "-9223372036854775809",
    "18446744073709551616",
    "2147483648",
    "32768",
    "9" * 400,
    "9" * 5000,
    "0." + "1" * 300,
    "1.7976931348623157e308",
    "4.9e-324",
    "123456789012345678901234567890.123456789",
    "{}",
    "[]",
    '{"":""}',
    '{"a":1,"a":2}',
    "[" * 40 + "]" * 40,
    "[" * 3000 + "]" * 3000,
    '{"a":' * 200 + "1" + "}" * 200,
    '"\\ud800"',
    '"\\udc00\\ud800"',
    '"\\u0000"',
    '"\\/\\b\\f"',
    "NaN",
    "Infinity",
    "01",
    "1.",
    ".5",
    "'a'",
    '"a\nb"',
    "\t1 ",
    "[1,]",
    "{,}",
    "",
]


def _names(random: Random, known: list[str]) -> str:
    return random.choice(known) if random.random() < 0.6 else random.choice(TEXTS)


class Pairs(list[tuple[str, Any]]):
    """A JSON object as it stands, with the order of its members and those that come twice."""


class Token(str):
    """A piece of JSON as it stands."""

    __slots__ = ()


def json_of(value: Any) -> str:
    """Write a JSON value, tokens as they are."""
    if isinstance(value, Token):
        return value
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{json.dumps(name)}:{json_of(each)}" for name, each in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(json_of, value)) + "]"
    return json.dumps(value)


def parsed_json(text: bytes) -> Any:
    """Read a JSON value so that `json_of` writes it again."""
    return json.loads(text, object_pairs_hook=Pairs, parse_float=Token, parse_int=Token)


def _places(value: Any, found: list[tuple[Any, int]], names: list[str], times: int = 1) -> None:
    """Add the places of all values in an object or array, the deeper ones more often, and members' names."""
    if isinstance(value, Pairs):
        for at, (name, each) in enumerate(value):
            found += [(value, at)] * times
            names.append(name)
            _places(each, found, names, 16 * times if name in ("after", "before") else times)
    elif isinstance(value, list):
        for at, each in enumerate(value):
            found += [(value, at)] * times
            _places(each, found, names, times)


def mutated_json(random: Random, text: bytes, other: bytes) -> bytes:  # noqa: C901 - a case for each way
    """Change the structure of a JSON document in one to four places; the other gives values to put in."""
    document = parsed_json(text)
    for _ in range(random.choice((1, 1, 1, 2, 2, 4))):
        places: list[tuple[Any, int]] = []
        names: list[str] = []
        _places(document, places, names)
        if not places:
            break
        into, at = random.choice(places)
        name, value = into[at] if isinstance(into, Pairs) else (None, into[at])

        def put(new: Any, into: Any = into, at: int = at, name: str | None = name) -> None:
            into[at] = new if name is None else (name, new)

        match random.randrange(12):
            case 0 | 1 | 2:
                put(Token(random.choice(TOKENS)))
            case 3 | 4 | 5:
                put(random.choice(TEXTS))
            case 6:
                del into[at]
            case 7 if name is None or random.random() < 0.2:
                into.insert(at, into[at])
            case 8 if name is not None:
                into[at] = (_names(random, names), value)
            case 9:
                put([value] if random.random() < 0.5 else Pairs([("value", value)]))
            case 10:
                from_there: list[tuple[Any, int]] = []
                _places(parsed_json(other), from_there, [])
                if from_there:
                    there, where = random.choice(from_there)
                    put(there[where][1] if isinstance(there, Pairs) else there[where])
            case _:
                put(json_of(value))  # as a text that holds JSON
    return json_of(document).encode("utf-8", "surrogatepass")


def mutated_bytes(random: Random, data: bytes) -> bytes:
    """Change, cut out, repeat or insert a few bytes."""
    octets = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 8))):
        at = random.randrange(len(octets) + 1)
        match random.randrange(5):
            case 0:
                octets[at : at + 1] = bytes([random.randrange(256)])
            case 1:
                del octets[at : at + random.choice((1, 2, 30))]
            case 2:
                octets[at:at] = octets[at : at + random.choice((1, 4, 60))]
            case 3:
                octets[at:at] = random.randbytes(random.choice((1, 3, 20)))
            case _:
                del octets[at:]
    return bytes(octets)


# Ion, as a tree of (type, header's low nibble where there is no content, content or children, annotations)

MARKER = b"\xe0\x01\x00\xea"
_CONTAINERS = {0xB, 0xC, 0xD}


class Node:
    """One Ion value: `low` None leaves the length to the writer; `field` is a symbol in a struct."""

    __slots__ = ("children", "content", "field", "low", "type", "wrapper")

    def __init__(self, type_: int, low: int | None, content: bytes, children: list[Node] | None) -> None:
        self.type, self.low, self.content, self.children = type_, low, content, children
        self.field: int | None = None
        self.wrapper = b""


def _var_uint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    while True:
        octet = data[at]
        value, at = value << 7 | octet & 0x7F, at + 1
        if octet & 0x80:
            return value, at


def parsed_ion(data: bytes, at: int, end: int, *, fields: bool = False) -> list[Node]:
    """Read values one after another."""
    nodes = []
    while at < end:
        symbol = None
        if fields:
            symbol, at = _var_uint(data, at)
        if data[at : at + 4] == MARKER:
            node, at = Node(-1, None, MARKER, None), at + 4
        else:
            node, at = _node(data, at)
        node.field = symbol
        nodes.append(node)
    return nodes


def _node(data: bytes, at: int) -> tuple[Node, int]:
    kind, low = data[at] >> 4, data[at] & 15
    at += 1
    if low == 15 or kind == 1:
        return Node(kind, low, b"", None), at
    length = low
    if low == 14 or (kind == 0xD and low == 1):
        length, at = _var_uint(data, at)
    end = at + length
    if kind in _CONTAINERS:
        return Node(kind, None, b"", parsed_ion(data, at, end, fields=kind == 0xD)), end
    if kind == 0xE:
        size, start = _var_uint(data, at)
        (value,) = parsed_ion(data, start + size, end)
        value.wrapper = data[start : start + size]
        return value, end
    return Node(kind, None, data[at:end], None), end


def ion_of(node: Node) -> bytes:
    """Write a value, without the symbol of its field."""
    if node.type < 0:
        return node.content
    if node.low is not None:
        value = bytes([node.type << 4 | node.low]) + node.content
    else:
        content = node.content
        if node.children is not None:
            named = node.type == 0xD
            parts = [(var_uint(each.field or 0) if named else b"") + ion_of(each) for each in node.children]
            content = b"".join(parts)
        value = _headed(node.type, content)
    if node.wrapper:
        value = _headed(0xE, var_uint(len(node.wrapper)) + node.wrapper + value)
    return value


def _headed(kind: int, content: bytes) -> bytes:
    if len(content) < 14 and not (kind == 0xD and len(content) == 1):
        return bytes([kind << 4 | len(content)]) + content
    return bytes([kind << 4 | 14]) + var_uint(len(content)) + content


SYMBOL_TABLE = b"\x81\x83"


def _all_nodes(nodes: list[Node], found: list[tuple[list[Node], int]], times: int = 4) -> None:
    """Add the places of all values, those of symbol tables less often."""
    for at, node in enumerate(nodes):
        often = 1 if SYMBOL_TABLE.endswith(node.wrapper) and node.wrapper else times
        if node.type >= 0:
            found += [(nodes, at)] * often
        if node.children:
            _all_nodes(node.children, found, often if often == 1 else min(often * 2, 64))


def _scalar(random: Random) -> Node:  # noqa: C901 - a case for each type
    """Make a value of an odd kind."""
    kind = random.choice((0, 1, 2, 3, 4, 5, 5, 6, 6, 7, 8, 9, 10, 11, 12, 13))
    if random.random() < 0.15:
        return Node(kind, 15, b"", None)
    match kind:
        case 1:
            return Node(1, random.choice((0, 1, 2, 9)), b"", None)
        case 2 | 3:
            return Node(
                kind,
                None,
                random.choice((b"", b"\0", b"\1", b"\xff" * 8, b"\x80" + b"\0" * 8, b"\x7f" * 300)),
                None,
            )
        case 4:
            return Node(
                4,
                None,
                random.choice(
                    (b"", b"\x7f\xc0\0\0", b"\xff\xf0" + b"\0" * 6, b"\x7f\xf0" + b"\0" * 6, b"\1\2\3")
                ),
                None,
            )
        case 5:
            exponent = random.choice(
                (b"\xc0", b"\x80", b"\xc1", b"\xbf", b"\x7f\x7f\xff", b"\x3f\x7f\x7f\xff", b"\x40\xc0")
            )
            return Node(
                5,
                None,
                exponent + random.choice((b"", b"\0", b"\x80", b"\1", b"\x7f" * 20, b"\xff" * 200)),
                None,
            )
        case 6:
            return Node(6, None, _timestamp(random), None)
        case 7:
            return Node(7, None, random.choice((b"", b"\0", b"\1", b"\x0a", b"\x7f\xff", b"\xff" * 8)), None)
        case 8:
            text = random.choice(TEXTS).encode("utf-8", "surrogatepass")
            return Node(8, None, random.choice((text, text, b"\xff\xfe", b"\xed\xa0\x80")), None)
        case 9 | 10:
            return Node(kind, None, random.randbytes(random.choice((0, 1, 31, 32, 33))), None)
        case 11 | 12 | 13:
            return Node(kind, None, b"", [])
        case _:
            return Node(0, None, b"\0" * random.choice((0, 1, 20)), None)


def _timestamp(random: Random) -> bytes:
    offset = random.choice((b"\x80", b"\xc0", b"\x05\xbf", b"\x45\xbf", b"\x0b\xb4", b"\x7f\x7f\xff"))
    year = random.choice((b"\x80", b"\x81", b"\x0f\xe8", b"\x4e\x8f", b"\x4e\x90", b"\x7f\x7f\xff"))
    ends = ((1, 12, 0, 13), (1, 28, 31, 0), (0, 23, 24), (0, 59, 60), (0, 59, 60))
    fields = [bytes([0x80 | random.choice(numbers)]) for numbers in ends]
    fraction = random.choice(
        (b"", b"\xc3\1", b"\xc9" + b"\7" * 4, b"\x41\xff\1", b"\x83\1", b"\xbf\x7f", b"\xc0\1")
    )
    return offset + year + b"".join(fields[: random.choice((0, 1, 2, 4, 5, 5, 5))]) + fraction


def mutated_ion(random: Random, data: bytes, other: bytes) -> bytes:  # noqa: C901 - a case for each way
    """Change the structure of an Ion stream in one to four places; the other gives values to put in."""
    nodes = parsed_ion(data, 0, len(data))
    for _ in range(random.choice((1, 1, 1, 2, 2, 4))):
        places: list[tuple[list[Node], int]] = []
        _all_nodes(nodes, places)
        if not places:
            break
        into, at = random.choice(places)
        old = into[at]

        def put(new: Node, into: list[Node] = into, at: int = at, old: Node = old) -> None:
            new.field, new.wrapper = old.field, old.wrapper
            into[at] = new

        match random.randrange(12):
            case 0 | 1 | 2 | 3:
                put(_scalar(random))
            case 4:
                del into[at]
            case 5:
                into.insert(at, old)
            case 6:
                old.field = random.choice((0, 1, 4, 7, 9, 10, 11, 12, 15, 40, 1000, 2**31))
            case 7:
                wrapped = Node(random.choice((11, 12, 13)), None, b"", [old])
                wrapped.field, into[at] = old.field, wrapped
            case 8:
                old.wrapper = random.choice(
                    (b"\x83", b"\x80", b"\x8a", b"\x83\x8a", b"\x0f\xff", b"\x7f\xff" * 3)
                )
            case 9:
                there: list[tuple[list[Node], int]] = []
                _all_nodes(parsed_ion(other, 0, len(other)), there)
                if there:
                    from_, where = random.choice(there)
                    put(from_[where])
            case 10 if old.children:
                random.shuffle(old.children)
            case _:
                old.type = random.randrange(16)
    return b"".join(map(ion_of, nodes))


# What records come in


def aggregate(random: Random, records: list[bytes]) -> bytes:
    """Put records into a KPL aggregate, often one that is wrong in its fields, its index or its checksum."""
    parts = [field(1, f"key-{n}".encode()) for n in range(2)] + [field(2, b"12345")]
    for data in records:
        index = 0 if random.random() < 0.995 else random.choice((1, 2, 5, 2**31, 2**64 - 1))
        record = b"\x08" + varint(index) + field(3, data)
        if random.random() < 0.1:
            tag = field(1, random.choice(TEXTS).encode()) + field(2, b"v")
            record += random.choice(
                (field(4, tag), field(3, b"again"), b"\x10\x00", b"\x10\x07", field(9, b"new"))
            )
        parts.append(field(3, record))
    if random.random() < 0.1:
        random.shuffle(parts)
    message = b"".join(parts)
    if random.random() < 0.06:
        message = mutated_bytes(random, message)
    data = framed(message)
    return data if random.random() < 0.95 else mutated_bytes(random, data)


def archive_line(random: Random, number: int, data: bytes) -> bytes:
    """Write the line of an archive; one in twenty is mutated."""
    line = json.dumps(
        {
            "shard": f"shardId-{number % 3:012}",
            "sequenceNumber": str(number),
            "partitionKey": hashlib.sha1(data, usedforsecurity=False).hexdigest()[:8],
            "approximateArrivalTimestamp": 1_790_000_000_000 + number,
            "data": base64.b64encode(data).decode(),
        }
    ).encode()
    if random.random() < 0.03:
        line = mutated_json(random, line, line)
    if random.random() < 0.02:
        line = mutated_bytes(random, line)
    return line.replace(b"\n", b" ")


MUTATE: dict[str, Callable[[Random, bytes, bytes], bytes]] = {"dsql": mutated_json, "qldb": mutated_ion}
