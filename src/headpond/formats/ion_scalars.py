"""Texts, integers and decimals of Ion binary."""

from __future__ import annotations

from headpond.formats.ion import NEGATIVE_INT, SATURATED, Node, refuse, var_int


def text(data: bytes, node: Node) -> str:
    """Text of a string.

    Raises:
        RefusedIon: `bad_ion`: it is no UTF-8.
    """
    try:
        return data[node.body : node.stop].decode()
    except UnicodeDecodeError as error:
        refuse("bad_ion", node.body + error.start, f"the string is no UTF-8: {error.reason}")


def integer(data: bytes, node: Node) -> int:
    """Value of an int that is not null."""
    value = int.from_bytes(data[node.body : node.stop])
    if node.kind == NEGATIVE_INT:
        if not value:
            refuse("bad_ion", node.start, "a negative integer of value zero")
        return -value
    return value


def sign_and_magnitude(data: bytes, at: int, end: int) -> tuple[bool, int]:
    """Read an Int, whose topmost bit is its sign."""
    if at == end:
        return False, 0
    negative = bool(data[at] & 0x80)
    value = int.from_bytes(data[at:end])
    return negative, value - (0x80 << 8 * (end - at - 1)) if negative else value


def decimal_parts(data: bytes, node: Node) -> tuple[bool, int, int]:
    """Sign, coefficient (without it) and exponent of a decimal that is not null; -0 keeps its sign."""
    if node.body == node.stop:
        return False, 0, 0
    negative_exponent, exponent, at = var_int(data, node.body, node.stop)
    if exponent >= SATURATED:
        refuse("bad_ion", node.start, "a decimal's exponent beyond 64 bits")
    negative, coefficient = sign_and_magnitude(data, at, node.stop)
    return negative, coefficient, -exponent if negative_exponent else exponent
