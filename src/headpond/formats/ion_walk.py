"""A value of Ion binary as a row of steps: scalars, containers that open, containers that close.

::

    {a: [1, 2], b: x}    OPEN struct, OPEN a list, SCALAR 1, SCALAR 2, CLOSE, SCALAR b x, CLOSE

The walk keeps a stack of its own, so what is built on it needs no recursion either.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from headpond.formats.ion import LIST, NULL, STRUCT, Node, node, var_uint

if TYPE_CHECKING:
    from collections.abc import Iterator


class Step(Enum):
    """What a step is."""

    SCALAR = 1
    """A scalar or a null of any type."""
    OPEN = 2
    CLOSE = 3


class Walked(NamedTuple):
    """One step; of CLOSE, `node` is the container that ends."""

    step: Step
    node: Node
    field: int | None
    """Symbol id of its name inside a struct, else None."""


def walk(data: bytes, found: Node) -> Iterator[Walked]:
    """Walk a value that was checked; padding is skipped."""
    if found.kind < LIST or found.is_null:
        yield Walked(Step.SCALAR, found, None)
        return
    yield Walked(Step.OPEN, found, None)
    stack: list[tuple[Node, int | None]] = [(found, None)]
    at = found.body
    while stack:
        parent, parent_field = stack[-1]
        if at >= parent.stop:
            stack.pop()
            yield Walked(Step.CLOSE, parent, parent_field)
            continue
        sid = None
        if parent.kind == STRUCT:
            sid, at = var_uint(data, at, parent.stop)
        child = node(data, at, parent.stop)
        at = child.stop
        if child.kind >= LIST and not child.is_null:
            stack.append((child, sid))
            at = child.body
            yield Walked(Step.OPEN, child, sid)
        elif child.kind != NULL or child.is_null:
            yield Walked(Step.SCALAR, child, sid)
