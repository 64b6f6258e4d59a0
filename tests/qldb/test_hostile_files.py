"""Files that are made to keep a reader busy: what is read in vain is bounded, nothing is dropped."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from headpond.ion.binary import MARKER, RefusedIon
from headpond.ion.stream import only_value
from headpond.ion.text_reader import text_values, to_binary
from headpond.ion.write import var_uint
from headpond.kpl import MAGIC
from headpond.qldb import files
from headpond.qldb.files import OVERLONG, Search, ion_records, split_datums, split_export, split_mixed

if TYPE_CHECKING:
    from collections.abc import Callable

GOOD = to_binary("{a:1}")
BLOB = b"\xae\x8e" + (MARKER + b"\x21\x01") * 2


def long_uint(number: int) -> bytes:
    """A VarUInt of five bytes."""
    return bytes(5 - len(var_uint(number))) + var_uint(number)


def each(count: int, start: bytes, rest: bytes) -> bytes:
    """Many beginnings, each of which says that it goes on to the end of all of them, and what is there."""
    lengths = (number * (len(start) + 5) for number in reversed(range(count)))
    return b"".join(start + long_uint(length) for length in lengths) + rest


LIST, PADDING, FIELD = MARKER + b"\xbe", MARKER + b"\x0e", MAGIC + b"\x1a"
BINARY: dict[str, Callable[[int], bytes]] = {
    "padding": lambda size: MARKER + b"\x00" * size,
    "markers": lambda size: MARKER * (size // 4),
    "markers and padding": lambda size: (MARKER + b"\x00") * (size // 5),
    "empty symbol tables": lambda size: MARKER + bytes.fromhex("e38183d0") * (size // 4),
    "newlines behind a value": lambda size: GOOD + b"\n" * size + b"x",
    "lists that reach to one end": lambda size: each(size // 24, LIST, b"\x0f" * (size // 2) + b"\xff"),
    "padding that reaches to one place": lambda size: each(size // 24, PADDING, bytes(size // 2)),
    "records in blobs": lambda size: MARKER + (BLOB + b"\x00\x00") * (size // 16),
    "beginnings of aggregates": lambda size: MARKER + MAGIC * (size // 4),
    "newlines in an aggregate": lambda size: MAGIC + b"\n" * size,
    "fields of half the file": lambda size: (
        (FIELD + bytes((size // 2 & 127 | 128, size // 256 & 127)) + bytes(5)) * (size // 24)
        + b"\x1a\x00" * (size // 2)
    ),
}
TEXT: dict[str, Callable[[int], bytes]] = {
    "braces": lambda size: b"$ion_1_0 1" + b"\n{" * (size // 2),
    "comments": lambda size: b"$ion_1_0 1" + b"\n{/*" * (size // 4),
    "long strings": lambda size: b"$ion_1_0 1" + b"\n{a:'''" * (size // 7),
    "lists within structs": lambda size: b"$ion_1_0 1" + b"\n{a:[" * (size // 100) + b"1," * (size // 3),
    "good and bad lines": lambda size: b"$ion_1_0 1" + b"\n{a:1}\n{b:[1,1,1,1,1,1," * (size // 24),
}


def steps(run: Callable[[], Any]) -> int:
    """How many lines of headpond's own code are executed: time, without a clock."""
    count = 0

    def traced(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        if "headpond" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(
    ("split", "made"),
    [
        *(pytest.param(split_mixed, made, id=name) for name, made in BINARY.items()),
        *(
            pytest.param(lambda data: [one.data for one in split_export(data)], made, id=name)
            for name, made in TEXT.items()
        ),
    ],
)
def test_time_grows_as_the_file(
    split: Callable[[bytes], list[bytes]], made: Callable[[int], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice as long a file takes at most some three times as long, whatever it repeats."""
    monkeypatch.setattr(files, "LEAST_SEARCH_BYTES", 1 << 12)
    monkeypatch.setattr(files, "MAX_TABLES", 100)
    single, double = (steps(lambda size=size: list(split(made(size)))) for size in (6_000, 12_000))  # type: ignore[misc]
    assert double < 3 * single + 3_000


@pytest.mark.parametrize("name", BINARY)
def test_nothing_of_a_hostile_file_is_dropped(name: str) -> None:
    """But for newlines between datums, and tables that values are returned with."""
    data = BINARY[name](3_000)
    if data.startswith(MAGIC):
        assert b"".join(split_mixed(data)) == data
    else:
        datums = list(split_datums(data))
        assert sum(one.stop - one.start for one in datums) + data.count(b"\n") >= len(data)


def test_very_many_newlines_are_padding() -> None:
    """Those between two records are in neither, but no record looks through more than some thousand."""
    first, second = split_datums(GOOD + b"\n" * 9_000 + GOOD)
    assert (first.data[: len(GOOD)], second.data) == (GOOD, GOOD)
    assert only_value(first.data).ion_hash() == only_value(GOOD).ion_hash()
    assert 4_000 < len(first.data) < 9_000 + len(GOOD)


def test_behind_much_damage_the_rest_of_a_file_is_one_datum() -> None:
    """The bound is a parameter; within it damage costs itself alone."""
    damage = MARKER + b"\xff"
    data = damage * 40 + GOOD
    assert [one.data for one in split_datums(data)] == [damage * 40, GOOD]
    search = Search(0)
    search.left = 10_000
    assert [one.data for one in split_datums(data, search=search)] == [data]
    assert search.is_over


def test_of_damage_longer_than_any_record_the_beginning_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would be held several times over on its way to quarantine."""
    monkeypatch.setattr(files, "MAX_DAMAGED_BYTES", 2_000)
    (batch,) = ion_records(GOOD + b"\xff" * 3_000 + GOOD, stream="s", file="f")
    one, damaged, other = batch["data"].to_pylist()
    assert one == other == GOOD
    assert damaged == OVERLONG + b"\xff" * 1_024


@pytest.mark.parametrize("text", [b"{a: 1 /* no end", b"{a: '''no end", b"/* no end", b"[1, /* no end"])
def test_what_has_no_end_is_truncated(text: bytes) -> None:
    """Looked for once, up to the end of the text."""
    with pytest.raises(RefusedIon) as refused:
        list(text_values(text))
    assert refused.value.reason == "truncated"
    assert text[refused.value.offset :][:2] in (b"/*", b"''")


def test_comments_are_passed_over() -> None:
    """With stars in them, one after the other, and within an s-expression."""
    assert to_binary("/** a * b **//***/ (a /* b */ * /**/ c)") == to_binary("(a * c)")
