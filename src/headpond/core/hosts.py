"""Which requests a server on this machine's loopback answers.

A page in a browser may point a name of its own to 127.0.0.1 and so reach what listens there (DNS
rebinding); its requests carry that name in `Host`. A server that listens on loopback answers to loopback's
names alone; one that is set to listen elsewhere answers to any.
"""

from __future__ import annotations

from ipaddress import ip_address


def is_loopback(name: str) -> bool:
    """Return whether a host name or address, without a port, is this machine's own.

    >>> [is_loopback(name) for name in ("localhost", "127.0.0.1", "::1", "evil.example", "")]
    [True, True, True, False, False]
    """
    if name.lower().rstrip(".") == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def may_ask(listens_on: str, host_header: str) -> bool:
    """Return whether a request with this `Host` is answered by a server that listens on this address."""
    name = host_header.strip()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    return is_loopback(name) or not is_loopback(listens_on)
