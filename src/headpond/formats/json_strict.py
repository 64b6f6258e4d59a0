"""A strict JSON reader that keeps the raw text of what it reads.

::

    { "op" : "c" , "after" : {"id": 1} }      text
      ────   ───   ───────   ─────────
      name   raw    name     raw            members: {"op": '"c"', "after": '{"id": 1}'}

Ordinary readers differ on which of two equal names wins, take `NaN`, take lone surrogates, round numbers and
lose the text they read. This one refuses the first three and never looks at the value of a number. It walks
with a stack of its own, so depth is a bound of ours and not of the interpreter.

Grammar: RFC 8259, with these refusals (reason codes of the change-record spec):

- `duplicate_json_key`: a name twice in one object, compared after unescaping. It is told when that object is
  read to its end, and outranks everything that is wrong after that, and `NaN` or lone surrogates anywhere.
- `invalid_json`: everything else, nesting deeper than `max_depth` included.
- `not_an_object`: a fine JSON value of another kind where an object was wanted.
"""

from __future__ import annotations

import json
import re
from typing import NoReturn

from headpond.errors import DamagedInput

MAX_DEPTH = 512
"""Default bound on nesting: arrays and objects that are open at once."""

_SPACE = re.compile(r"[ \t\n\r]*")
# Possessive repeats (`*+`) keep long strings from filling the matcher's backtracking memory.
_STRING = re.compile(r'"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+"')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?")
_WORD = re.compile(r"true|false|null|(?P<soft>NaN|-?Infinity)")
_SURROGATE = re.compile("[\ud800-\udfff]")
_INTEGER = re.compile(r"(-?)0*([0-9]+)")

INT64_MAX = 2**63 - 1


class RefusedJson(DamagedInput):
    """The text is not the JSON it should be; `reason` is a code of the spec, `detail` one phrase."""

    def __init__(self, message: str, *, next_step: str = "", reason: str, detail: str = "") -> None:
        super().__init__(message, next_step=next_step, reason=reason, detail=detail)
        self.reason = reason
        self.detail = detail


def _refuse(reason: str, detail: str) -> NoReturn:
    raise RefusedJson(f"The text is refused as {reason}: {detail}.", reason=reason, detail=detail)


def utf8_text(data: bytes) -> str:
    """Decode UTF-8.

    Raises:
        RefusedJson: `not_utf8`, with the offset of the first bad byte.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        detail = f"byte {error.start}: {error.reason}"
        raise RefusedJson(f"The data is no UTF-8 at {detail}.", reason="not_utf8", detail=detail) from None


def unescape(token: str) -> str:
    """The text a JSON string token stands for; the token must have been read as valid."""
    return str(json.loads(token)) if "\\" in token else token[1:-1]


def integer(token: str | None) -> int | None:
    """Value of a digit token, held inside ±(2⁶³ - 1); None for any other token (`1.0`, `1e3`, `true`)."""
    match = _INTEGER.fullmatch(token) if token is not None else None
    if match is None:
        return None
    sign, digits = match.groups()
    # Python refuses to read thousands of digits, and nobody needs a value beyond 64 bits.
    value = INT64_MAX if len(digits) > 19 else min(int(digits), INT64_MAX)  # noqa: PLR2004 - digits of 2^63
    return -value if sign else value


def read_object(text: str, *, max_depth: int = MAX_DEPTH) -> dict[str, str]:
    """Read one JSON object and give its members as name → raw text, in order.

    Raises:
        RefusedJson: see the top of the module.
    """
    members = _Walk(text, max_depth).run()
    if members is None:
        _refuse("not_an_object", f"the value begins with {text.strip()[:1]!r}")
    return members


class _Walk:
    """One pass over one text; `stack` holds per open container its names, None for an array."""

    def __init__(self, text: str, max_depth: int) -> None:
        self.text = text
        self.max_depth = max_depth
        self.at = 0
        self.stack: list[set[str] | None] = []
        self.repeated: list[str | None] = []  # per open container: its first repeated name
        self.soft = ""  # the first thing that is refused only after repeated names were looked for
        self.members: dict[str, str] = {}

    def run(self) -> dict[str, str] | None:  # noqa: C901 - one loop, the grammar at a glance
        """Members of the root object, or None where the root is another value."""
        self.skip_space()
        is_object = self.text.startswith("{", self.at)
        name, start = "", self.at  # of the root's member being read
        self.value()
        while self.stack:
            names = self.stack[-1]
            after_open = self.text[self.at - 1] in "{[" and self.fresh
            self.skip_space()
            char = self.text[self.at : self.at + 1]
            if char == ("]" if names is None else "}"):
                if len(self.stack) == 1 and is_object and not after_open:
                    self.members[name] = self.text[start : self.end]
                self.close()
                continue
            if not after_open:
                if char != ",":
                    self.broken("expected ',' or the end of the container")
                if len(self.stack) == 1 and is_object:
                    self.members[name] = self.text[start : self.end]
                self.at += 1
                self.skip_space()
            if names is not None:
                found = self.name(names)
                if len(self.stack) == 1:
                    name, start = found, self.at
            self.value()
        self.skip_space()
        if self.at < len(self.text):
            self.broken("text after the value")
        if self.soft:
            _refuse("invalid_json", self.soft)
        return self.members if is_object else None

    def skip_space(self) -> None:
        match = _SPACE.match(self.text, self.at)
        assert match is not None
        self.at = match.end()

    def broken(self, what: str) -> NoReturn:
        found = repr(self.text[self.at]) if self.at < len(self.text) else "the end"
        _refuse("invalid_json", f"{what} at character {self.at}, found {found}")

    def name(self, names: set[str]) -> str:
        """Read `"name" :` and the space after it."""
        if not self.text.startswith('"', self.at):
            self.broken("expected a name")
        name = self.string()
        if name in names and self.repeated[-1] is None:
            self.repeated[-1] = name
        names.add(name)
        self.skip_space()
        if not self.text.startswith(":", self.at):
            self.broken("expected ':'")
        self.at += 1
        self.skip_space()
        return name

    def string(self) -> str:
        match = _STRING.match(self.text, self.at)
        if match is None:
            self.broken("a string that does not end or holds a bad escape or a control character, begun")
        self.at = match.end()
        text = unescape(match[0])
        # The text was decoded from UTF-8, so a surrogate can only come from an escape without its other half.
        if not self.soft and "\\u" in match[0] and _SURROGATE.search(text):
            self.soft = f"a lone surrogate in the string at character {match.start()}"
        return text

    def value(self) -> None:
        """Read a scalar whole, or open a container; the space after it is not read."""
        char = self.text[self.at : self.at + 1]
        self.fresh = False
        if char == '"':
            self.string()
        elif char in {"{", "["}:
            if len(self.stack) >= self.max_depth:
                _refuse("invalid_json", f"nesting deeper than {self.max_depth}")
            self.stack.append(set() if char == "{" else None)
            self.repeated.append(None)
            self.at += 1
            self.fresh = True
        else:
            match = _WORD.match(self.text, self.at) or _NUMBER.match(self.text, self.at)
            if match is None:
                self.broken("expected a value")
            if match.lastgroup == "soft" and not self.soft:
                self.soft = f"the token {match[0]} at character {self.at}"
            self.at = match.end()
        self.end = self.at

    def close(self) -> None:
        self.at += 1
        self.end = self.at
        self.fresh = False
        self.stack.pop()
        repeated = self.repeated.pop()
        if repeated is not None:
            _refuse("duplicate_json_key", f"the name {repeated[:80]!r} twice in one object")
