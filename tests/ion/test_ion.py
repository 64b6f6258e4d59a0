"""Ion: the walker over the bytes, symbol tables, text both ways; amazon.ion is the oracle."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from amazon.ion import simpleion
from hypothesis import given, settings

from headpond.ion.binary import MARKER, RefusedIon, node
from headpond.ion.stream import IonPart, check, only_value, values
from headpond.ion.symbols import SYSTEM_SYMBOLS, read_table
from headpond.ion.text import canonical_json, int_text, ion_text
from headpond.ion.text_reader import text_values, to_binary
from headpond.ion.write import SymbolWriter, tagged, var_uint
from tests.fuzz.families import table, typed
from tests.ion.ion_cases import TEXTS, VALUES, text_of
from tests.kit.support import share_of


def theirs(datum: bytes) -> Any:
    return simpleion.loads(datum)


def same_value(one: bytes, other: bytes) -> bool:
    return only_value(one).ion_hash() == only_value(other).ion_hash()


@pytest.mark.parametrize("text", TEXTS)
def test_text_to_binary_and_back(text: str) -> None:
    """Our binary says what the text says, and our text of it says the same again."""
    datum = to_binary(text)
    check_whole(datum)
    assert same_value(to_binary(text_of(datum)), datum)
    if "2147483647" in text or text.startswith("9999"):
        return  # beyond what amazon.ion can hold
    assert same_value(simpleion.dumps(simpleion.loads(text), binary=True), datum)
    assert same_value(simpleion.dumps(simpleion.loads(text_of(datum)), binary=True), datum)


@pytest.mark.slow
@settings(max_examples=share_of(50))
@given(VALUES)
def test_any_value_reads_back(text: str) -> None:
    """Text, binary, text, binary: nothing is lost on the way, and amazon.ion writes the same value."""
    datum = to_binary(text)
    again = to_binary(text_of(datum))
    assert same_value(again, datum)
    assert text_of(again) == text_of(datum)
    canonical_json(*only_value(datum))
    beyond = any(odd in text for odd in ("d+2147483647", "9999-12-31", "$0"))
    if not beyond and text.count("::") < 10:
        assert same_value(simpleion.dumps(simpleion.loads(text), binary=True), datum)


def test_numbers_of_any_size() -> None:
    """Thousands of digits, which Python's own conversion refuses."""
    digits = "123456789" * 2000
    assert text_of(to_binary(digits)) == digits
    assert text_of(to_binary(f"-{digits}.5")) == f"-{digits}.5"
    assert int_text(-(10**5000)) == "-1" + "0" * 5000


def test_symbol_tables() -> None:
    """Replace, append, import what is not known; ids resolve as the tables say at that place."""
    names = [tagged(8, name.encode()) for name in ("first", "second")]

    def table(*fields: bytes) -> bytes:
        return tagged(14, b"\x81\x83" + tagged(13, b"".join(fields)))

    first = table(b"\x87" + tagged(11, names[0]))
    append = table(b"\x86\x71\x03", b"\x87" + tagged(11, names[1]))
    shared = tagged(13, b"\x84" + tagged(8, b"of others") + b"\x85\x21\x01" + b"\x88\x21\x03")
    imports = table(b"\x86" + tagged(11, shared), b"\x87" + tagged(11, names[1]))
    pad = b"\x02\xff\xff"
    parts = [MARKER, b"\x71\x04", first, b"\x71\x0a", pad, append, b"\x71\x0a\x71\x0b", imports, b"\x71\x0d"]
    stream = b"".join([*parts, MARKER, first, MARKER, b"\x71\x05"])
    found = [ion_text(stream, node, symbols) for _, node, symbols in values(stream)]
    assert found == ["name", "first", "first", "second", "second", "version"]
    alone = [IonPart(stream, node, symbols).raw for _, node, symbols in values(stream)]
    assert [text_of(datum) for datum in alone] == found
    with pytest.raises(RefusedIon) as refused:
        text_of(MARKER + imports + b"\x71\x0a")
    assert refused.value.reason == "unknown_symbol"
    assert "has no text" in refused.value.detail
    with pytest.raises(RefusedIon) as refused:
        text_of(MARKER + imports + b"\x71\x0e")
    assert "13 is the greatest defined" in refused.value.detail


def check_whole(data: bytes) -> None:
    """Look at all of a datum."""
    _, node, symbols = only_value(data)
    check(data, node.start, len(data), symbols=symbols)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "no_value"),
        ("0f0f", "multiple_values"),
        ("12", "bad_ion"),
        ("1e81", "bad_ion"),
        ("43000000", "bad_ion"),
        ("30", "bad_ion"),
        ("3100", "bad_ion"),
        ("d180", "bad_ion"),
        ("e0010101", "bad_ion"),
        ("e180", "bad_ion"),
        ("e380840f0f", "bad_ion"),
        ("e3818400", "bad_ion"),
        ("e48184200f", "bad_ion"),
        ("e68184e381840f", "bad_ion"),
        ("ef", "bad_ion"),
        ("f0", "bad_ion"),
        ("60", "bad_ion"),
        ("64c00fe08d", "bad_ion"),
        ("66c00fe0818181", "bad_ion"),
        ("6ac00fe082818080808101", "bad_ion"),
        ("82ff00", "bad_ion"),
        ("8e", "truncated"),
        ("8e0000", "truncated"),
        ("8eff", "truncated"),
        ("8e017f7f7f7f7f7f7f7f7f7f7f7f7fff", "truncated"),
        ("8e3f7f7f7f7f7f7f7f7fff", "truncated"),
        ("b28a00", "truncated"),
        ("d20a", "truncated"),
        ("510a", "truncated"),
        ("5a0000000000000000007f", "truncated"),
        ("710a", "unknown_symbol"),
        ("d28a11", "unknown_symbol"),
        ("e3818a0f", "unknown_symbol"),
    ],
)
def test_what_is_refused(body: str, reason: str) -> None:
    """Each break of the grammar has its verdict, with the byte where."""
    data = MARKER + bytes.fromhex(body)
    with pytest.raises(RefusedIon) as refused:
        check_whole(data)
    assert refused.value.reason == reason
    assert 4 <= refused.value.offset <= len(data)


@pytest.mark.parametrize("body", ["0000", "01ff0f", "0e83aabbcc20", "d58a01ff8a11", "d480008a11"])
def test_padding_is_no_value(body: str) -> None:
    """Padding of every form, at the top and as a field."""
    data = MARKER + bytes.fromhex(body)
    found = [ion_text(data, node, symbols) for _, node, symbols in values(data)] if body[0] != "d" else None
    if found is not None:
        assert len(found) == (0 if body == "0000" else 1)
    check(data, 4, len(data))


def nested(kind: str, depth: int) -> bytes:
    """Containers in containers, each with one."""
    size, opens = 1, []
    for _ in range(depth):
        name = b"\x84" if kind == "{}" else b""
        size += len(name)
        head = bytes(({"[]": 0xBE, "()": 0xCE, "{}": 0xDE}[kind],)) + var_uint(size)
        opens.append(head + name)
        size += len(head)
    return MARKER + b"".join(reversed(opens)) + b"\x20"


@pytest.mark.parametrize(
    "depth", [3000, pytest.param(40_000, marks=pytest.mark.thorough)], ids=["deep", "very deep"]
)
@pytest.mark.parametrize("kind", ["[]", "{}", "()"])
def test_deep_nesting(depth: int, kind: str) -> None:
    """A bound of ours, and beyond it no recursion: text, JSON and hash of many levels."""
    data = nested(kind, depth)
    assert sys.getrecursionlimit() < depth
    with pytest.raises(RefusedIon) as refused:
        only_value(data)
    assert refused.value.reason == "too_deep"
    _, node, symbols = only_value(data, max_depth=depth)
    part = IonPart(data, node, symbols)
    shown = ion_text(*part)
    assert shown.count(kind[0]) == shown.count(kind[1]) == depth
    assert len(part.ion_hash()) == 32
    assert canonical_json(*part).count(kind[0]) == depth


def test_lengths_of_two_to_the_63() -> None:
    """Lengths no memory has are refused as what they are."""
    for kind in (0x8E, 0xBE, 0xDE, 0xEE, 0x0E, 0x2E):
        data = MARKER + bytes((kind,)) + var_uint(2**63) + b"\x00" * 8
        with pytest.raises(RefusedIon) as refused:
            only_value(data)
        assert refused.value.reason == "truncated"


@pytest.mark.parametrize(
    ("reason", "texts"),
    [
        ("truncated", ['"open', "[1", "{a:1", "{{aGk=", "{a", "a::"]),
        (
            "bad_ion",
            ["{a}", "[1 2]", "[1,,2]", "(1]", "{{!}}", "null.none", "01", "1__0", "2020-02-30", "+", "é"],
        ),
        ("bad_ion", ['"\\q"', '"\\ud83d"', "2020-01-01T25:00Z", '{{"é"}}']),
        ("unknown_symbol", ["$11", "{$12:1}", "$13::1"]),
        ("multiple_values", ["1 2"]),
        ("no_value", ["// nothing", ""]),
        ("too_deep", ["[" * 600 + "]" * 600]),
    ],
)
def test_text_that_is_refused(reason: str, texts: list[str]) -> None:
    """Each break of the text's grammar has its verdict."""
    for text in texts:
        with pytest.raises(RefusedIon) as refused:
            to_binary(text)
        assert refused.value.reason == reason, text


def test_text_of_many_forms() -> None:
    """Comments, long strings, digits grouped, other radixes, a comma before the end, a version marker."""
    text = b"""$ion_1_0 /* c */ [ 0x1_0 , -0b101, 1_000, '''a
b''' // joined
    '''c''', ] {"k": (a - b.c && d::+)} '''x\\
y'''"""
    found = [text_of(value.datum) for value in text_values(text)]
    assert found == ['[16,-5,1000,"a\\nbc"]', "{k:(a '-' b '.' c '&&' d::'+')}", '"xy"']
    assert [text[value.start : value.start + 1] for value in text_values(text)] == [b"[", b"{", b"'"]


def test_json_of_every_type() -> None:
    """The rules at the top of the module, one value each."""
    expected = {
        "null.int": "null",
        "1.00": "1.00",
        "-0.": "-0",
        "1d10": "1E+10",
        "5d-20": "5E-20",
        "123d-9": "1.23E-7",
        "1.5e0": "1.5",
        "nan": '"nan"',
        "-inf": '"-inf"',
        "2017-08T": '"2017-08T"',
        "'two words'": '"two words"',
        "$0": '"$0"',
        "{{CwwO}}": '"CwwO"',
        '{{"\\xFFa"}}': '"ÿa"',
        "(a 1)": '"(a 1)"',
        "a::b::[1]": '"a::b::[1]"',
        "{b:1,a:{x:y::2,z:[(q)]}}": '{"a":{"x":"y::2","z":["(q)"]},"b":1}',
        "{a:2,a:1,'a#2':0,a:[]}": '{"a":1,"a#2":0,"a#3":2,"a#4":[]}',
    }
    found = {text: canonical_json(*only_value(to_binary(text))) for text in expected}
    assert found == expected


def test_a_symbol_writer_makes_what_the_oracle_reads() -> None:
    """A datum without symbols has no table, one with symbols has them in order."""
    writer = SymbolWriter()
    assert writer.datum(b"\x11") == MARKER + b"\x11"
    assert [writer.id_of(name) for name in ("name", "x", "y", "x")] == [4, 10, 11, 10]
    assert str(theirs(writer.datum(b"\x71\x0b")).text) == "y"
    assert SYSTEM_SYMBOLS.max_id == 9


def test_symbol_tables_are_bounded() -> None:
    """How many lead to a value, and how many symbols they name: beyond the bounds a record is refused."""
    chain = MARKER + table([b"a"]) * 6 + b"\xd0"
    assert only_value(chain, max_tables=7).symbols.count == 16
    with pytest.raises(RefusedIon) as refused:
        only_value(chain, max_tables=6)
    assert refused.value.reason == "too_many_symbols"
    one = table([b"a", b"b", b"c"], appends=False)
    whole = node(one, 0, len(one))
    assert read_table(one, whole, SYSTEM_SYMBOLS, max_symbols=3).count == 13
    with pytest.raises(RefusedIon) as refused:
        read_table(one, whole, SYSTEM_SYMBOLS, max_symbols=2)
    assert refused.value.reason == "too_many_symbols"


def test_imports_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes time, though none may have a name."""
    monkeypatch.setattr("headpond.ion.symbols.MAX_IMPORTS", 3)
    for count in (3, 4):
        one = typed(14, b"\x81\x83" + typed(13, b"\x86" + typed(11, b"\xd0" * count)))
        if count == 3:
            assert read_table(one, node(one, 0, len(one)), SYSTEM_SYMBOLS).count == 10
            continue
        with pytest.raises(RefusedIon) as refused:
            read_table(one, node(one, 0, len(one)), SYSTEM_SYMBOLS)
        assert refused.value.reason == "too_many_symbols"


def test_tables_that_append_do_not_change_those_before() -> None:
    """Values keep the symbols of their place, whatever tables follow, and can be written out alone."""
    data = MARKER + table([b"a"], appends=False)
    for number in range(5):
        data += table([b"s%d" % number]) + typed(13, var_uint(11 + number) + b"\x11")
    seen = list(values(data))
    assert [value.symbols.count for value in seen] == [12, 13, 14, 15, 16]
    for number, value in enumerate(seen):
        assert value.symbols.text(11 + number) == f"s{number}"
        assert value.symbols.text(12 + number) is None
        alone = only_value(IonPart(data, value.node, value.symbols).raw)
        assert ion_text(*alone) == f"{{s{number}:true}}"
    again = list(values(data))  # a table that was kept is not changed by what continued it
    assert [value.symbols.count for value in again] == [12, 13, 14, 15, 16]
