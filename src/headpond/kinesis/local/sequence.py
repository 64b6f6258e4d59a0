"""Sequence numbers of the local Kinesis: 56 decimal digits, like the service's.

::

    49 cccccccccccccc eeeeeeee oooooooooooooooooooo ssssssssssss
    │  │              │        │                    └ shard number (12 digits)
    │  │              │        └ ordinal in the shard (20): 0 start, then one per record, last one the end
    │  │              └ generation (8): a child's is greater than its parents'
    │  └ creation time of the stream in ms (14): a stream made anew has other numbers
    └ so that there is no leading zero

So they rise within a shard, are not dense, a child starts above its parents' end, and a number tells
which shard of which stream it belongs to. Needs nothing but integers; spec: kinesis §2.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["STEP", "SequenceParts", "pack", "unpack"]

STEP = 10**12
"""Distance between neighbouring ordinals of one shard."""
_GENERATION = 10**32
_CREATED = 10**40
_LEAD = 49 * 10**54
_DIGITS = 56


class SequenceParts(NamedTuple):
    """What a sequence number is made of; `created_ms` is the stream's creation time."""

    created_ms: int
    generation: int
    ordinal: int
    shard_number: int


def pack(parts: SequenceParts) -> int:
    """Build the number."""
    return (
        _LEAD
        + parts.created_ms * _CREATED
        + parts.generation * _GENERATION
        + parts.ordinal * STEP
        + parts.shard_number
    )


def unpack(number: int) -> SequenceParts | None:
    """Take a number apart; None if this server cannot have made it."""
    rest = number - _LEAD
    if len(str(number)) != _DIGITS or not 0 <= rest < 10**54:
        return None
    created_ms, rest = divmod(rest, _CREATED)
    generation, rest = divmod(rest, _GENERATION)
    ordinal, shard_number = divmod(rest, STEP)
    return SequenceParts(created_ms, generation, ordinal, shard_number)
