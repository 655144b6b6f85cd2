"""Which servers may be asked for what somebody else's reference names: ``AllowedServers``.

A zoo's author chooses the addresses of its references, and the reader's machine connects to them. Without a rule such
an address could name a service that this machine alone reaches (the metadata of a cloud at 169.254.169.254, a router,
a database on loopback), and its answer would be taken for weights. So a server is asked if it speaks https and all its
addresses are public, or if the user named it.
"""

import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from ckptzoo.errors import Problem, RemoteError, ZooError
from ckptzoo.text import excerpt

Origin = tuple[str, str, int]
"""Scheme, host, port."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""Addresses that a network without IPv4 makes of IPv4 addresses, in their last 32 bits (RFC 6052)."""
# Of IPv6 only this block has been given to networks of the internet (IANA, IPv6 Address Space).
_UNICAST = ipaddress.IPv6Network("2000::/3")
_KINDS = ("unspecified", "loopback", "link_local", "multicast", "reserved", "private")
"""Properties of ``ipaddress`` that no public server's address has, the most telling first."""
_STEP = "References may name public servers by https; any other server has to be named by you, not by the zoo."


def origin_of(url: str) -> Origin:
    """Return scheme, host and port of an address; raises ValueError for what is not http or https."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"not an http address: {url[:200]!r}")
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def special(address: str) -> str:
    """Return what kind of address no public server has, or an empty text for one that it may have.

    >>> special("169.254.169.254"), special("8.8.8.8"), special("::ffff:8.8.8.8"), special("64:ff9b::7f00:1")
    ('link-local', '', 'IPv4-mapped', 'loopback')
    """
    number = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(number, ipaddress.IPv6Address):
        if number in _NAT64:
            return special(str(ipaddress.IPv4Address(int(number) % 2**32)))
        if number.ipv4_mapped is not None:
            return "IPv4-mapped"
        if number.sixtofour is not None:
            return "6to4"
    for kind in _KINDS:
        if getattr(number, f"is_{kind}"):
            return kind.replace("_", "-")
    is_unicast = number.version == 4 or number in _UNICAST
    # is_private and is_global are both false for 100.64.0.0/10, the addresses behind a provider's NAT
    return "" if number.is_global and is_unicast else "special-purpose"


class AllowedServers:
    """The servers that references may name: public ones by https, and those whose addresses the user gave.

    A server that the user names is one origin: scheme, host and port. Other ports of its host stay closed, because a
    reference could name any service there. Raises ZooError: one is no address of a server.
    """

    def __init__(self, named: Iterable[str] = ()) -> None:
        self._named = frozenset(map(_named, named))

    def is_named(self, origin: Origin) -> bool:
        """Whether the user named a server."""
        return origin in self._named

    def addresses(self, origin: Origin, location: str) -> list[str]:
        """Return the checked addresses of a server, to one of which the connection has to be made; none where the user
        named it, and any will do.

        Every address that its name has now is checked, and names are not looked up again: the second answer could be
        another. Raises RemoteError: it may not be asked. Raises OSError: its name has no address.
        """
        scheme, host, port = origin
        if self.is_named(origin):
            return []
        if scheme != "https":
            raise RemoteError(_refused(location, host, "https", scheme))
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        for address in addresses:
            if kind := special(address):
                raise RemoteError(_refused(location, host, "a public address", f"{address}, which is {kind}"))
        return addresses


def connect(addresses: list[str], port: int, timeout: float, location: str, host: str) -> socket.socket:
    """Return a socket to the first of the checked addresses that takes the connection.

    Raises OSError: none does. Raises RemoteError: the address is one of this machine's own.
    """
    failure = OSError("no address")
    for address in addresses:
        try:
            connected = socket.create_connection((address, port), timeout)
        except OSError as error:
            failure = error
            continue
        # a connection to an own address comes from it; services behind a firewall may be reached in this way
        if connected.getsockname()[0] == connected.getpeername()[0]:
            connected.close()
            raise RemoteError(_refused(location, host, "another machine", f"{address}, which is this one"))
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected
    raise failure


def _named(url: str) -> Origin:
    try:
        return origin_of(url)
    except ValueError:
        expected, step = "http://host or https://host", "Correct the address."
        raise ZooError(Problem(excerpt(url), "server", expected, "another address", step)) from None


def _refused(location: str, host: str, expected: str, got: str) -> Problem:
    return Problem(location, f"server {excerpt(host, 100)}", expected, got, _STEP)
