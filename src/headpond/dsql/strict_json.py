"""A strict JSON reader that keeps the raw text of what it reads.

::

    { "op" : "c" , "after" : {"id": 1} }      text
      ────   ───   ───────   ─────────
      name   raw    name     raw            members: {"op": '"c"', "after": '{"id": 1}'}

Ordinary readers differ on which of two equal names wins, accept `NaN` and lone surrogates, round numbers and
lose the text they read. This one refuses the first three and never looks at the value of a number. The
standard library's reader walks the text and calls a hook at the end of each object; msgspec, which refuses
lone surrogates, cuts out the members.

Grammar: RFC 8259, with these refusals (reason codes of the change-record spec):

- `duplicate_json_key`: a name twice in one object, compared after unescaping. It is raised when that object
  is read to its end, and outranks everything that is wrong after that, and `NaN` or lone surrogates anywhere.
- `invalid_json`: everything else, nesting deeper than `max_depth`, more than `max_containers` arrays and
  objects, and more than `max_names` names in one object included.
- `not_an_object`: a valid JSON value of another kind where an object was wanted.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from contextlib import suppress
from typing import Any, NoReturn

import msgspec

from headpond.core.errors import InvalidData

MAX_DEPTH = 512
"""Default bound on nesting: arrays and objects that are open at once."""
MAX_CONTAINERS = 1_000_000
"""Default bound on the arrays and objects of a text: in 10 MiB there is room for five times as many."""
MAX_NAMES = 200_000
"""Default bound on the names of one object, which take 300 bytes each to read; DSQL's values hold 1 MiB."""
DEEPEST = 768
"""Greatest bound on nesting: both readers use the interpreter's stack of 1000, and so do their callers."""

_MARK = re.compile(
    r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?(?:[ \t\n\r]*+(?P<name>:))?|(?P<open>[\[{])|(?P<close>[\]}])', re.DOTALL
)
_INTEGER = re.compile(r"(-?)0*([0-9]+)")
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_VALUE = msgspec.json.Decoder(msgspec.Raw)
_OBJECT = object()

INT64_MAX = 2**63 - 1


class RefusedJson(InvalidData):
    """The text is not the JSON it should be; `reason` is a code of the spec, `detail` one phrase."""

    def __init__(self, message: str, *, next_step: str = "", reason: str, detail: str = "") -> None:
        super().__init__(message, next_step=next_step, reason=reason, detail=detail)
        self.reason = reason
        self.detail = detail


def _refuse(reason: str, detail: str) -> NoReturn:
    raise RefusedJson(f"The text is refused as {reason}: {detail}.", reason=reason, detail=detail) from None


def utf8_text(data: bytes) -> str:
    """Return the text of UTF-8 bytes.

    Raises:
        RefusedJson: `not_utf8`, with the offset of the first bad byte.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        detail = f"byte {error.start}: {error.reason}"
        raise RefusedJson(f"The data is not UTF-8 at {detail}.", reason="not_utf8", detail=detail) from None


def unescape(token: str) -> str:
    """Return the text a JSON string token stands for; the token must have been read as valid."""
    return str(json.loads(token)) if "\\" in token else token[1:-1]


def integer(token: str | None) -> int | None:
    """Return the value of a digit token, held inside ±(2⁶³ - 1); None for others (`1.0`, `1e3`, `true`)."""
    match = _INTEGER.fullmatch(token) if token is not None else None
    if match is None:
        return None
    sign, digits = match.groups()
    # Python refuses to read thousands of digits, and nobody needs a value beyond 64 bits.
    value = INT64_MAX if len(digits) > 19 else min(int(digits), INT64_MAX)
    return -value if sign else value


def read_object(text: str, *, max_depth: int = MAX_DEPTH) -> dict[str, str]:
    """Read one JSON object and return its members as name → raw text, in order.

    Raises:
        RefusedJson: see the top of the module.
    """
    if not check_json(text, max_depth=max_depth):
        _refuse("not_an_object", f"the value begins with {text.strip()[:1]!r}")
    return {name: str(raw, "utf-8") for name, raw in _MEMBERS.decode(text).items()}


def check_json(
    text: str,
    *,
    max_depth: int = MAX_DEPTH,
    max_containers: int = MAX_CONTAINERS,
    max_names: int = MAX_NAMES,
) -> bool:
    """Return whether a text, which must be one JSON value, is an object.

    Raises:
        RefusedJson: `duplicate_json_key` or `invalid_json`.
    """
    most = min(max_depth, DEEPEST)
    brackets = text.count("{") + text.count("[")
    is_large = brackets > min(most, max_containers) or text.count('"') > 2 * max_names
    beyond = _first_beyond(text, most, max_containers, max_names) if is_large else None
    end, why = beyond or (None, "")
    # What comes before the one too many may hold a repeated name, which outranks it.
    text = text[:end]
    try:
        value = _STRICT.decode(text)
        if "\\u" in text:
            _VALUE.decode(text)
    except _NotJson as token:
        with suppress(json.JSONDecodeError, RecursionError):
            _LENIENT.decode(text)  # a repeated name outranks it
        _refuse("invalid_json", f"the token {token} is not JSON")
    except json.JSONDecodeError as error:
        if beyond is not None:
            _refuse("invalid_json", why)
        found = repr(text[error.pos]) if error.pos < len(text) else "the end"
        _refuse("invalid_json", f"{error.msg} at character {error.pos}, found {found}")
    except msgspec.DecodeError:
        _refuse("invalid_json", "a lone surrogate in a string")
    except RecursionError:
        _refuse("invalid_json", "nesting deeper than the interpreter's stack")
    return value is _OBJECT


def is_strict(text: str) -> bool:
    """Return whether `check_json` takes a text whose nesting is known to be bounded."""
    try:
        _STRICT.decode(text)
        if "\\u" in text:
            _VALUE.decode(text)
    except (RefusedJson, _NotJson, json.JSONDecodeError, msgspec.DecodeError, RecursionError):
        return False
    return True


class _NotJson(Exception):
    """The text contains `NaN` or an infinity."""


def _first_beyond(text: str, most: int, containers: int, most_names: int) -> tuple[int, str] | None:
    """Return where the first container opens that is too deep or one too many, or a name that is, and why."""
    depth, left, names = 0, containers, Counter[int]()
    for match in _MARK.finditer(text):
        if match.lastgroup == "open":
            depth += 1
            left -= 1
            names[depth] = 0
            if depth > most:
                return match.start(), f"nesting deeper than {most}"
            if left < 0:
                return match.start(), f"more than {containers} arrays and objects"
        elif match.lastgroup == "close":
            depth -= 1
        elif match.lastgroup == "name":
            names[depth] += 1
            if names[depth] > most_names:
                return match.start(), f"more than {most_names} names in one object"
    return None


def _at_end_of_object(members: list[tuple[str, Any]]) -> object:
    if len(dict(members)) < len(members):
        seen: set[str] = set()
        for name, _ in members:
            if name in seen:
                _refuse("duplicate_json_key", f"the name {name[:80]!r} twice in one object")
            seen.add(name)
    return _OBJECT


def _not_json(token: str) -> NoReturn:
    raise _NotJson(token)


_STRICT = json.JSONDecoder(
    object_pairs_hook=_at_end_of_object, parse_constant=_not_json, parse_int=str, parse_float=str
)
_LENIENT = json.JSONDecoder(object_pairs_hook=_at_end_of_object, parse_int=str, parse_float=str)
