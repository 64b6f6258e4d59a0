r"""The words of Ion text: what each looks like, and the binary or the text that it stands for.

::

    1_000  0xFF  1.50d3   "a\u00e9"  'a symbol'  '''a long one'''   2e5  2007-01-01T  null.int  {{aGk=}}  [ {
    └──── number ─────┘   └──────────── text_of ───────────────┘   └──── found here, read by ion_from_text ┘

Repetitions are possessive: no text takes more than linear time to be found wrong.
Source: Amazon Ion specification, "Ion 1.0 text".
"""

from __future__ import annotations

import re
from decimal import Decimal

from headpond.formats import ion_write as write
from headpond.formats.ion import refuse

MAX_DIGITS = 300_000
"""Digits of a number; reading takes more than linear time."""
_BLANK = rb"(?:[ \t\r\n\v\f]+|//[^\r\n]*|/\*(?s:.*?)\*/)*+"
SKIP = re.compile(_BLANK)
_STOP = rb"(?=[{}\[\](),\"' \t\r\n\v\f]|/[/*]|\Z)"
_DIGITS = rb"[0-9](?:_?[0-9])*+"
_WHOLE = rb"-?(?:0|[1-9](?:_?[0-9])*+)"
TOKEN = re.compile(
    rb"(?P<long>'''(?s:[^'\\]|\\.|'(?!''))*+''')"
    rb'|(?P<string>"(?:[^"\\\r\n]|\\\r\n|\\(?s:.))*+")'
    rb"|(?P<quoted>'(?:[^'\\\r\n]|\\\r\n|\\(?s:.))*+')"
    rb"|(?P<timestamp>[0-9]{4}(?:T|-[0-9]{2}(?:T|-[0-9]{2}(?:T(?:[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?"
    rb"(?:Z|[+-][0-9]{2}:[0-9]{2}))?)?))" + _STOP + rb")"
    rb"|(?P<radix>-?0(?:[xX][0-9a-fA-F](?:_?[0-9a-fA-F])*+|[bB][01](?:_?[01])*+)" + _STOP + rb")"
    rb"|(?P<float>"
    + _WHOLE
    + rb"(?:\.(?:"
    + _DIGITS
    + rb")?)?[eE][+-]?[0-9]++"
    + _STOP
    + rb"|[+-]inf"
    + _STOP
    + rb")"
    rb"|(?P<decimal>"
    + _WHOLE
    + rb"(?:\.(?:"
    + _DIGITS
    + rb")?(?:[dD][+-]?[0-9]++)?|[dD][+-]?[0-9]++)"
    + _STOP
    + rb")"
    rb"|(?P<int>" + _WHOLE + _STOP + rb")"
    rb"|(?P<null>null\.[a-z]+)"
    rb"|(?P<word>[A-Za-z_$][A-Za-z0-9_$]*+)"
    rb"|(?P<lob>\{\{)"
    rb"|(?P<open>[\[({])|(?P<close>[\])}])|(?P<comma>,)|(?P<colons>::)|(?P<colon>:)"
    rb"|(?P<operator>[-!#%&*+./;<=>?@^`|~]++)"
)
_ESCAPE = re.compile(
    rb"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(\r\n|\r|\n)|([abtnfrv?0'\"/\\]))|\\"
)
_SIMPLE = {
    b"a": "\a", b"b": "\b", b"t": "\t", b"n": "\n", b"f": "\f", b"r": "\r", b"v": "\v", b"?": "?", b"0": "\0",
    b"'": "'", b'"': '"', b"/": "/", b"\\": "\\",
}  # fmt: skip
LOB = re.compile(
    rb"[ \t\r\n\v\f]*(?:(?P<blob>[A-Za-z0-9+/ \t\r\n\v\f=]*)|(?P<clob>\"(?:[^\"\\\r\n]|\\\r\n|\\(?s:.))*+\""
    rb"|(?:'''(?s:[^'\\]|\\.|'(?!''))*+'''[ \t\r\n\v\f]*)+))[ \t\r\n\v\f]*\}\}"
)
LONG_STRING = re.compile(rb"'''((?s:[^'\\]|\\.|'(?!''))*+)'''")


def text_of(raw: bytes, at: int) -> str:
    """Read what stands between quotes, escapes included.

    Args:
        raw: the bytes between the quotes.
        at: their place in the text, for the reason.

    Raises:
        RefusedIon: `bad_ion`: no UTF-8, an escape that says no character, half of a surrogate pair.
    """
    try:
        if b"\\" not in raw:
            return raw.decode()
        parts: list[str] = []
        end = 0
        for match in _ESCAPE.finditer(raw):
            parts.append(raw[end : match.start()].decode())
            parts.append(_escape(match, at))
            end = match.end()
        parts.append(raw[end:].decode())
        return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeError as error:
        refuse(
            "bad_ion",
            at,
            f"the text is no Unicode: {error.reason if hasattr(error, 'reason') else error}",
        )


def _escape(match: re.Match[bytes], at: int) -> str:
    two, four, eight, newline, simple = match.groups()
    digits = two or four or eight
    if digits is not None:
        number = int(digits, 16)
        if number <= 0x10FFFF:  # noqa: PLR2004 - the last code point
            return chr(number)
    elif simple is not None:
        return _SIMPLE[simple]
    elif newline is not None:
        return ""
    return refuse("bad_ion", at + match.start(), f"the escape {match[0].decode()!r} says no character")


def one_newline(raw: bytes) -> bytes:
    """Write every line end as one newline, which is what a long string means by it."""
    return raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def number(raw: bytes, at: int) -> bytes:
    """Write an integer or a decimal as binary, every digit kept.

    Raises:
        RefusedIon: `bad_ion`: more than MAX_DIGITS characters, or an exponent beyond 64 bits.
    """
    if len(raw) > MAX_DIGITS:
        refuse("bad_ion", at, f"a number of {len(raw)} characters")
    plain = raw.replace(b"_", b"").decode().lower()
    negative = plain.startswith("-")
    plain = plain.lstrip("-")
    if plain[:2] in ("0x", "0b"):
        value = int(plain, 0)
        return write.integer(-value if negative else value)
    mantissa, _, power = plain.partition("d")
    whole, point, fraction = mantissa.partition(".")
    # Python refuses to read thousands of digits into an int at once, but not into a Decimal.
    coefficient = int(Decimal(whole + fraction))
    if not point and "d" not in plain:
        return write.integer(-coefficient if negative else coefficient)
    if len(power) > 18:  # noqa: PLR2004 - digits that 64 bits surely hold
        refuse("bad_ion", at, "a decimal's exponent beyond 64 bits")
    exponent = int(power or 0) - len(fraction)
    return write.decimal(negative=negative, coefficient=coefficient, exponent=exponent)
