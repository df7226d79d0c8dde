"""Who may speak to a session over the web: addresses, tokens, hosts, origins, encryption."""

import hmac
import ipaddress
import os
import re
import secrets
import socket
import ssl
import stat
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from evkf.errors import InputError
from evkf.live.addresses import is_loopback

TOKEN = "token"
"""Name of the file in the folder of a session."""

TOKEN_BYTES = 32
PROTOCOL, CARRIER = "evkf", "evkf.token."
"""Subprotocol of our WebSockets, and what a browser puts before the token to send it as another:
its scripts cannot set headers of a WebSocket."""

HOST = "127.0.0.1"
_PLACE = re.compile(r"(?:(?P<host>[^:\[\]]+|\[[0-9a-fA-F:.]+\]):)?(?P<port>[0-9]{1,5})")
_HOST = re.compile(r"(?P<host>[A-Za-z0-9.-]+|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?")


class Place(NamedTuple):
    """Where to listen."""

    host: str
    port: int

    @staticmethod
    def read(text: str) -> "Place":
        """From HOST:PORT, or PORT alone, which is on loopback.

        Example:
            >>> Place.read("8765"), Place.read("[::1]:0")
            (Place(host='127.0.0.1', port=8765), Place(host='::1', port=0))
        """
        found = _PLACE.fullmatch(text)
        if found is None or int(found["port"]) > 65535:
            remedy = "pass HOST:PORT, such as 127.0.0.1:8765; port 0 takes a free one"
            raise InputError(repr(text), "--web", remedy)
        return Place((found["host"] or HOST).strip("[]"), int(found["port"]))

    def url(self, port: int, encrypted: bool = False) -> str:
        """Where a browser finds it.

        Args:
            port: That is listened at: the system may have chosen it.
            encrypted: Whether it is.

        Example:
            >>> Place("::1", 0).url(8765)
            'http://[::1]:8765'
        """
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if encrypted else 'http'}://{host}:{port}"


class Tls(NamedTuple):
    """Files of a certificate and of its key."""

    certificate: str
    key: str


def check_tls(place: Place, tls: Tls | None, without: bool) -> None:
    """Refuse to listen to other machines unencrypted, and certificates that cannot be used.

    Args:
        place: Where to listen.
        tls: The certificate, if there is one.
        without: Whether it was said that none is wanted.

    Example:
        >>> check_tls(Place("0.0.0.0", 8765), None, without=False)
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: '0.0.0.0' can be reached from other machines (in --web): pass \
--tls-cert and --tls-key, or --no-tls on a network that you trust
    """
    if tls is not None:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(*tls)
        except (OSError, ssl.SSLError) as error:
            what = f"cannot be used: {error}"
            raise InputError(what, tls.certificate, "pass PEM files that belong together") from None
    elif not is_loopback(place.host) and not without:
        what = f"{place.host!r} can be reached from other machines"
        remedy = "pass --tls-cert and --tls-key, or --no-tls on a network that you trust"
        raise InputError(what, "--web", remedy)


def listen(place: Place) -> socket.socket:
    """A socket that listens; it can be handed to one process after another."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(
            place.host, place.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        if is_loopback(place.host) and not is_loopback(str(where[0])):
            raise OSError(f"{place.host} is {where[0]} here, not this machine alone")
        found = socket.socket(family, kind)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(where)
            found.listen(128)
        except OSError:
            found.close()
            raise
    except OSError as error:
        what = f"cannot listen at {place.host}:{place.port}: {error}"
        raise InputError(
            what, "--web", "name another address or port; 0 takes a free one"
        ) from None
    return found


def keep_token(folder: Path) -> Path:
    """The file with the token of a session; made if there is none, for its owner alone."""
    path = folder / TOKEN
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        read_token(path)
        return path
    except OSError as error:
        what = f"cannot write the token of the page: {error.strerror}"
        raise InputError(what, str(folder), "copy the session to a folder of your own") from None
    with os.fdopen(handle, "w", encoding="ascii") as file:
        os.fchmod(handle, 0o600)
        file.write(secrets.token_hex(TOKEN_BYTES) + "\n")
    return path


def read_token(path: Path) -> str:
    """The token in a file, if nobody else can have read or written it."""
    remedy = "remove it: a new one is made when the session is taken up again"
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise InputError(f"no token: {error.strerror}", str(path), remedy) from None
    with os.fdopen(handle, encoding="ascii", errors="replace") as file:
        state = os.fstat(handle)
        if not stat.S_ISREG(state.st_mode) or state.st_mode & 0o077:
            raise InputError("a token that others can read", str(path), remedy)
        if state.st_uid != os.geteuid():
            raise InputError("a token of another user", str(path), remedy)
        token = file.read(1000).strip()
    if not re.fullmatch(rf"[0-9a-f]{{{2 * TOKEN_BYTES}}}", token):
        raise InputError("not a token", str(path), remedy)
    return token


class Why(StrEnum):
    """Why someone is refused, or sent away."""

    HOST = "host"
    """Asked for under a name that is not this machine's: as a page does that had its own name
    point here."""
    ORIGIN = "origin"
    """Asked for by a page of somebody else."""
    TOKEN = "token"
    """The token is wrong, or missing where it is needed."""
    CROWDED = "crowded"
    """Too many are connected."""
    SECOND = "second"
    """Another sender is connected."""
    TEXT = "text"
    """Text where binary messages are due, or the reverse."""
    UNASKED = "unasked"
    """A message where none is due."""
    LARGE = "large"
    """A message that is too large."""
    SLOW = "slow"
    """Did not read what it was sent."""
    FRAME = "frame"
    """A frame that cannot be handed on."""
    ACTION = "action"
    """What was asked for is no action."""


class Denied(NamedTuple):
    """A request that is refused before anything looks at it."""

    status: int
    why: Why
    text: str


class Access:
    """Who may do what.

    Without the token, and at a loopback address alone, one can look at what is named readable. For
    everything else the token is needed, everywhere.

    Args:
        token: The secret.
        loopback: Whether only this machine can reach us.
        names: Under which others know this machine.
        readable: Paths that can be looked at.
        public: Paths of files that are the same for everybody and every session: of these no token
            is needed anywhere.

    Example:
        >>> access = Access("secret", True, [], ["/metrics"])
        >>> scope = {"type": "http", "method": "GET", "path": "/metrics", "scheme": "http"}
        >>> scope |= {"server": ("127.0.0.1", 8765), "headers": [(b"host", b"localhost:8765")]}
        >>> access.judge(scope)
        >>> access.judge(scope | {"path": "/actions"})
        Denied(status=401, why=<Why.TOKEN: 'token'>, text='a token is needed here')
        >>> access.judge(scope | {"headers": [(b"host", b"example.com")]}).why
        <Why.HOST: 'host'>
    """

    def __init__(
        self,
        token: str,
        loopback: bool,
        names: Iterable[str],
        readable: Iterable[str],
        public: Iterable[str] = (),
    ):
        self._token, self._loopback = token.encode(), loopback
        self._names = {"localhost", *(name.lower() for name in names)}
        self._readable, self._public = frozenset(readable), frozenset(public)

    def judge(self, scope: Mapping[str, Any]) -> Denied | None:
        """Why a request is refused; None if it may go on."""
        headers = [(name.lower(), value) for name, value in scope["headers"]]
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        if len(hosts) != 1 or not self._ours(hosts[0], scope):
            return Denied(403, Why.HOST, f"not a name of this machine: {shown(hosts)}")
        scheme = "https" if scope["scheme"] in ("https", "wss") else "http"
        own = f"{scheme}://{hosts[0]}".lower().encode("latin-1")
        origins = [value for name, value in headers if name == b"origin"]
        if any(origin.lower() != own for origin in origins):
            return Denied(403, Why.ORIGIN, f"a page of another origin: {shown(origins)}")
        given = _tokens(headers, scope)
        # All are compared, whichever is wrong.
        wrong = sum(not hmac.compare_digest(each, self._token) for each in given)
        if wrong:
            return Denied(401, Why.TOKEN, "a wrong token")
        looks = scope["type"] == "websocket" or scope["method"] in ("GET", "HEAD")
        free = self._loopback and looks and scope["path"] in self._readable
        free |= looks and scope["type"] == "http" and scope["path"] in self._public
        return None if given or free else Denied(401, Why.TOKEN, "a token is needed here")

    def _ours(self, host: str, scope: Mapping[str, Any]) -> bool:
        """Whether a Host header names this machine: by a known name, or by the very address that
        was connected to. The port may be another: that of a tunnel."""
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = found["host"].strip("[]").lower()
        number, server = _number(name), scope.get("server")
        if number is None:
            return name in self._names
        return server is not None and number == _number(str(server[0]))


def _number(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(name)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _tokens(headers: list[tuple[bytes, bytes]], scope: Mapping[str, Any]) -> list[bytes]:
    """Tokens that a request carries, in its header or as a subprotocol; never in its address,
    which ends up in logs and histories."""
    said = [value.partition(b" ") for name, value in headers if name == b"authorization"]
    found = [token.strip() if kind.lower() == b"bearer" else b"" for kind, _, token in said]
    for protocol in scope.get("subprotocols") or ():
        if protocol.startswith(CARRIER):
            found.append(protocol.removeprefix(CARRIER).encode("latin-1", errors="replace"))
    return found


def shown(what: object) -> str:
    """Something that came from outside, for a log: one line, not a long one."""
    text = ascii(what)
    return text if len(text) <= 120 else f"{text[:117]}..."
