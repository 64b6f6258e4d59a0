"""A value out of a stream whose symbol tables serve many values, as a datum with a table of its own names.

::

    table of 10,000 names │ {a: 1, b: x} │ {c: 2} │ …     →    names a b x │ {a: 1, b: x}

Only symbol ids and lengths are written anew, so the Ion hash stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headpond.formats.ion import BOOL, MARKER, SYMBOL, Node, annotation_ids
from headpond.formats.ion_walk import Step, walk
from headpond.formats.ion_write import SymbolWriter, annotated, symbol, tagged, var_uint

if TYPE_CHECKING:
    from headpond.formats.ion_symbols import Symbols


class _NoTextError(Exception):
    """A symbol that is used has no text."""


def restated(data: bytes, found: Node, symbols: Symbols) -> bytes:
    """Give a value that was checked as a datum of its own.

    Where a symbol it uses has no text (it is of a shared table that is not here, or not defined), the datum
    has the tables that the value came with.
    """
    try:
        return _restated(data, found, symbols)
    except _NoTextError:
        return MARKER + symbols.tables + data[found.start : found.stop]


def _restated(data: bytes, found: Node, symbols: Symbols) -> bytes:  # noqa: C901 - a branch per kind of value
    writer = SymbolWriter()
    ids = {0: 0}

    def new_id(sid: int) -> int:
        known = ids.get(sid)
        if known is None:
            text = symbols.text(sid)
            if text is None:
                raise _NoTextError
            known = ids[sid] = writer.id_of(text)
        return known

    bodies: list[bytearray] = [bytearray()]
    for step, node, sid in walk(data, found):
        if step is not Step.CLOSE:
            if sid is not None:
                bodies[-1] += var_uint(new_id(sid))
            if step is Step.OPEN:
                bodies.append(bytearray())
                continue
            if not node.annotated and (node.kind != SYMBOL or node.is_null):
                bodies[-1] += data[node.start : node.stop]
                continue
        if step is Step.CLOSE:
            value = tagged(node.kind, bodies.pop())
        elif node.is_null or node.kind == BOOL:
            value = bytes((node.kind << 4 | node.low,))
        elif node.kind == SYMBOL:
            value = symbol(new_id(int.from_bytes(data[node.body : node.stop])))
        else:
            value = tagged(node.kind, data[node.body : node.stop])
        bodies[-1] += annotated([new_id(one) for one in annotation_ids(data, node)], value)
    return writer.datum(bytes(bodies[0]))
