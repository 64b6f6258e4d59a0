"""Hash keys: where on the ring of shards a partition key falls.

::

    hash key = MD5(UTF-8 of the partition key), 16 bytes read as one unsigned big-endian number
             = 0 … 2^128 - 1, divided among the shards in ranges with both ends inclusive

A user may name the number instead ("explicit hash key", decimal text). Writers get the strict
reading `canonical_hash_key`; readers meet whatever text is in the stream and use `number_of`.
MD5 is asked for as "not for security", which builds of Python with FIPS rules allow.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from headpond.core.errors import UsageError

MAX_HASH_KEY = (1 << 128) - 1
"""The largest hash key; the last shard's range ends here."""

_DIGITS = re.compile(r"[0-9]+")
_SIGNED_DIGITS = re.compile(r"[+-]?\d+")
_MAX_DIGITS = 39  # of 2^128 - 1; longer texts need not be converted to know they are too large


class InvalidHashKey(UsageError):
    """An explicit hash key is not a decimal number from 0 to 2^128 - 1."""


class HashKeyRange(NamedTuple):
    """The hash keys of one shard, both ends inclusive."""

    start: int
    end: int

    def __contains__(self, hash_key: object) -> bool:
        return isinstance(hash_key, int) and self.start <= hash_key <= self.end


FULL_RANGE = HashKeyRange(0, MAX_HASH_KEY)
"""The range of a stream's only shard."""


def hash_key(partition_key: str | bytes) -> int:
    """Compute the hash key of a partition key (text, or its UTF-8 bytes).

    Raises:
        UnicodeEncodeError: The text has a lone surrogate and therefore no UTF-8 form.
    """
    raw = partition_key if isinstance(partition_key, bytes) else partition_key.encode()
    return int.from_bytes(hashlib.md5(raw, usedforsecurity=False).digest(), "big")


def canonical_hash_key(text: str) -> str:
    """Bring an explicit hash key into its one spelling: decimal, no sign, no leading zeros.

    Blanks around it are dropped.

    Raises:
        InvalidHashKey: It is not `[0-9]+` or exceeds 2^128 - 1.
    """
    given: object = text
    digits = text.strip(" \t\r\n") if isinstance(given, str) else ""
    if _DIGITS.fullmatch(digits):
        digits = digits.lstrip("0") or "0"
        if len(digits) <= _MAX_DIGITS and int(digits) <= MAX_HASH_KEY:
            return digits
    shown = repr(given if len(digits) <= 2 * _MAX_DIGITS else f"{digits[:_MAX_DIGITS]}…")
    raise InvalidHashKey(
        f"The explicit hash key {shown} is not text with a decimal number from 0 to 2^128 - 1.",
        next_step="Give a text of digits only, or leave it out to have the partition key hashed.",
        what="explicit_hash_key",
        limit=MAX_HASH_KEY,
        actual=shown,
    )


def number_of(text: str) -> int | None:
    """Read explicit-hash-key text as the KCL does: an optional sign, then decimal digits of any script.

    Returns:
        The number; `MAX_HASH_KEY + 1` or -1 stands for anything above or below the ring, so
        that a text of a million digits costs nothing; None if the text is not a number.
    """
    if not _SIGNED_DIGITS.fullmatch(text):
        return None
    negative = text[0] == "-"
    digits = text.lstrip("+-")
    if len(digits) > _MAX_DIGITS:
        # Every script has a zero of its own; one pass, no conversion of long numbers.
        digits = digits.lstrip("0") or "0"
        first = next((at for at, digit in enumerate(digits) if int(digit)), len(digits) - 1)
        digits = digits[first:]
        if len(digits) > _MAX_DIGITS:
            return -1 if negative else MAX_HASH_KEY + 1
    value = int(digits)
    if negative:
        return -1 if value else 0
    return min(value, MAX_HASH_KEY + 1)


def effective_hash_key(partition_key: str | bytes, explicit_hash_key: str | None) -> int | None:
    """Compute the hash key a user record routes by; None if its explicit one is not a number."""
    if explicit_hash_key is None:
        return hash_key(partition_key)
    return number_of(explicit_hash_key)
