"""Addresses that are listened at: what others can reach is opened only if that is asked for."""

import ipaddress

from evkf.errors import InputError

INSIDE = ("ipc:", "inproc:")
"""Transports of ZeroMQ that end at this machine."""


def is_loopback(host: str) -> bool:
    """Whether a name or a number can be reached from this machine alone.

    Example:
        >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "*")]
        [True, True, True, False, False]
    """
    if host.lower() in ("localhost", "lo"):
        return True
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return False
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


def check_zmq(address: str, open_to_all: bool = False) -> str:
    """The address, if ZeroMQ may listen at it.

    Args:
        address: As ZeroMQ has it, such as tcp://127.0.0.1:5555.
        open_to_all: Whether others may reach it: they need no token there, and nothing is
            encrypted.

    Raises:
        InputError: If others could reach it, and that was not asked for.

    Example:
        >>> check_zmq("tcp://127.0.0.1:5555")
        'tcp://127.0.0.1:5555'
        >>> check_zmq("tcp://*:5555")
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: 'tcp://*:5555' can be reached from other machines, without a token \
or encryption (in address): bind tcp://127.0.0.1:PORT, or pass --open on a network that you trust
    """
    host = address.partition("://")[2].rpartition(":")[0].strip("[]")
    if open_to_all or address.startswith(INSIDE) or is_loopback(host):
        return address
    what = f"{address!r} can be reached from other machines, without a token or encryption"
    remedy = "bind tcp://127.0.0.1:PORT, or pass --open on a network that you trust"
    raise InputError(what, "address", remedy)
