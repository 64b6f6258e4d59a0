"""Following the fields of many messages at once, one field of each per step.

::

    message 0   0A len key  0A len key  1A len record  1A len record │ end, stays there
    message 1   0A len key  1A len record  1A len record  1A len record │
    message 2   0A len key  0A len key  1A len record │ end, stays there
                ^ step 0    ^ step 1    ^ step 2       ^ step 3

A step takes a few array operations however many messages there are, so this pays where messages are
many and fields few; searching all bytes (`kpl_batch_scan.search`) pays in the opposite case. A
length of three bytes or more, and a field that leaves its message, bring it to its end at once. So
does much that is no message of ours: nothing is proven here, the proof follows in `kpl_batch_scan`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headpond.formats.kpl_batch_scan import Bytes, Ints  # noqa: TC001 - a NamedTuple's field types

_KEY, _HASH_KEY, _RECORD = 0x0A, 0x12, 0x1A
_CONTINUED = 0x80
_STEPS_PER_LOOK = 16
_FEWEST_STEPS = 16
"""With less to spend it is not tried at all."""
_BYTES_PER_STEP, _BYTES_PER_FIELD = 16_000, 12
"""Bytes that are searched in the time of a step, and in the time that every message adds to it."""
_FAR = 1 << 32
"""Beyond the end of every piece."""


class Walked(NamedTuple):
    """Positions, ascending, where fields of ours seem to begin."""

    entries: Ints
    """Of both tables."""
    records: Ints


def _advances() -> Ints:
    """Tabulate, for the two bytes after a field's tag, how far it is to the next field."""
    both = np.arange(1 << 16)
    low, high = both & 0xFF, both >> 8
    two = np.where(high < _CONTINUED, 3 + (low & 0x7F | high << 7), _FAR)
    table: Ints = np.where(low < _CONTINUED, 2 + low, two).astype(np.int64)
    return table


_ADVANCES = _advances()


def walk_abreast(data: Bytes, start: Ints, end: Ints) -> Walked | None:
    """Follow the messages at [start, end).

    Args:
        data: All bytes; at least two follow each message.
        start: Where each message begins, ascending.
        end: Where each ends.

    Returns:
        What was passed, or None where searching is likely to be faster.
    """
    budget = int((end - start).sum()) // (_BYTES_PER_STEP + _BYTES_PER_FIELD * len(start))
    if budget < _FEWEST_STEPS:
        return None
    lengths = np.ndarray((len(data) - 2,), "<u2", buffer=data, offset=1, strides=(1,))
    advance = _ADVANCES.take
    fields = np.empty((budget + _STEPS_PER_LOOK + 1, len(start)), np.int64)
    fields[0] = start
    step = 0
    while (fields[step] < end).any():
        if step and step + _steps_left(data, fields[step - _STEPS_PER_LOOK], fields[step], end) > budget:
            return None
        for now in range(step, step + _STEPS_PER_LOOK):
            here, there = fields[now], fields[now + 1]
            np.add(here, advance(lengths[here]), out=there)
            np.minimum(there, end, out=there)
        step += _STEPS_PER_LOOK
    by_message = np.ascontiguousarray(fields[:step].T)
    position = by_message[by_message < end[:, np.newaxis]]
    is_record = data[position] == _RECORD
    rest = position[~is_record]
    tags = data[rest]
    return Walked(rest[(tags == _KEY) | (tags == _HASH_KEY)], position[is_record])


def _steps_left(data: Bytes, before: Ints, now: Ints, end: Ints) -> int:
    """Estimate the steps to come from the message that has most bytes left; 1 while in its tables."""
    longest = int((end - now).argmax())
    low, high = int(before[longest]), int(now[longest])
    if data[low] != _RECORD or data[high] != _RECORD:
        return 1
    return int(end[longest] - high) * _STEPS_PER_LOOK // (high - low)
