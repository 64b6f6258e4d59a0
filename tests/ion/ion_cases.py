"""Ion values for the tests: texts of every type, and a strategy that makes more."""

from __future__ import annotations

import base64
from typing import Any

from hypothesis import strategies as st

from headpond.ion.stream import only_value
from headpond.ion.text import ion_text

TEXTS = [
    "null", "null.bool", "null.int", "null.struct", "null.sexp", "true", "false",
    "0", "-1", "255", "256", "-9223372036854775809", "123456789012345678901234567890", "11", "0x0b0c0e",
    "0e0", "-0e0", "1.5e0", "0.1e0", "1e300", "5e-324", "nan", "+inf", "-inf",
    "0.", "-0.", "0.00", "-0.0", "1.00", "11.12", "1d10", "5d-20", "-123456789012345678901234567890.123",
    "1d-40", "12d-1", "6d+2147483647",
    "2017T", "2017-08T", "2017-08-21", "2019-09-18T17:00Z", "2019-09-18T17:00:14Z",
    "1999-12-31T23:59:59.000-08:00",
    "2019-09-18T17:00:14.5+02:00", "2019-09-18T17:00:14.601000001Z", "2000-02-29T00:00:00-00:00",
    "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999999+23:59", "2020-01-01T00:00:00.00-00:30",
    "sym", "'two words'", "'é'", "'null'", "'$10'", "$foo", "$0", "''", "'a\\'b'",
    '""', '"Zoë"', '"李雷 \\U0001F600"', '"\\"quoted\\" \\\\ \\n \\0 \\x0b\\x0c\\x0e"',
    '{{"clob \\v\\f\\x0E\\xFF"}}', "{{}}", "{{C5T2eU3PvV6yMUE=}}", "{{CwwO}}",
    "[]", "()", "{}", "[1,two,[3.0,{}]]", "('+' 1 (2) x)", "{a:1,b:{c:[2]},a:3,$0:4,'':5}", "a::b::[1]",
    "{x:abc::sym,y:d::{z:e::null.int}}",
]  # fmt: skip
"""One value of every kind, and of every kind what makes it hard."""


def text_of(datum: bytes) -> str:
    """Ion text of a datum."""
    part = only_value(datum)
    return ion_text(part.data, part.node, part.symbols)


def _struct(members: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{_symbol(name)}:{value}" for name, value in members) + "}"


def _symbol(name: str) -> str:
    return "'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'"


_names = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=12)
_strings = _names.map(lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')
_blobs = st.binary(max_size=24).map(lambda raw: f"{{{{{base64.b64encode(raw).decode()}}}}}")
# amazon.ion rounds what has more than 34 digits.
_decimals = st.tuples(st.integers(-(10**34) + 1, 10**34 - 1), st.integers(-60, 60)).map(
    lambda pair: f"{pair[0]}d{pair[1]}"
)
_floats = st.floats(allow_nan=False, allow_infinity=False).map(
    lambda value: f"{value!r}" + ("" if "e" in repr(value) else "e0")
)
_scalars = st.one_of(
    st.sampled_from(TEXTS),
    st.integers(-(2**70), 2**70).map(str),
    _decimals,
    _floats,
    _strings,
    _names.map(_symbol),
    _blobs,
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda items: f"[{','.join(items)}]"),
        st.lists(inner, max_size=4).map(lambda items: f"({' '.join(items)})"),
        st.lists(st.tuples(_names, inner), max_size=4).map(_struct),
        st.tuples(_names, inner).map(lambda pair: f"{_symbol(pair[0])}::{pair[1]}"),
    ),
    max_leaves=12,
)
