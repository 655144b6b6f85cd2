"""Which servers references may make a reader ask: public ones by https, and those that the user named."""

import ipaddress
import os
import random
import select
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptzoo.errors import RemoteError, ZooError
from ckptzoo.remote import http
from ckptzoo.remote.http import Connections
from ckptzoo.remote.servers import AllowedServers, special
from ckptzoo.remote.stores import CancelToken
from tests.remote.test_http import Redirecting
from tests.support.effort import examples
from tests.support.serving import Served, running

# IANA's registries of special-purpose addresses, as far as no server of the internet can have one
REFUSED = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/29",
    "192.0.2.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "::/127",
    "::/96",
    "::ffff:0:0/96",
    "64:ff9b:1::/48",
    "100::/64",
    "2001::/32",
    "2001:2::/48",
    "2001:db8::/32",
    "2002::/16",
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
]
PUBLIC = [
    "1.0.0.0/8",
    "8.0.0.0/8",
    "93.184.0.0/16",
    "185.199.108.0/22",
    "2606:4700::/32",
    "2a00:1450::/32",
    "2400:cb00::/32",
]


def one_of(network: str, rng: random.Random) -> Any:
    """An address of a network: the first, the last, or one between."""
    block = ipaddress.ip_network(network)
    return block[rng.choice([0, block.num_addresses - 1, rng.randrange(block.num_addresses)])]


def test_addresses_of_special_blocks_are_refused_however_they_are_written() -> None:
    rng = random.Random(5)
    for _ in range(examples(2000, 200)):
        refused, public = one_of(rng.choice(REFUSED), rng), one_of(rng.choice(PUBLIC), rng)
        assert special(str(refused)), refused
        assert not special(str(public)), public
        for address, is_refused in ((refused, True), (public, False)):
            if address.version == 4:
                number = int(address)
                assert special(str(ipaddress.IPv6Address((0xFFFF << 32) + number)))
                assert special(str(ipaddress.IPv6Address((0x2002 << 112) + (number << 80) + 1)))
                translated = special(str(ipaddress.IPv6Address((0x64FF9B << 96) + number)))
                assert bool(translated) == is_refused, address
    assert special("fe80::1%eth0") == "link-local"


def ask(connections: Connections, url: str) -> bytes:
    with http.get(connections, url, location="the zoo's reference", cancel=CancelToken(), headers={}) as answer:
        return http.document(answer, location="the zoo's reference")


def accepted(served: Served) -> int:
    return len(served.seen)


HERE = [
    "127.0.0.1",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "localhost",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "0.0.0.0",
]


@pytest.mark.parametrize("host", HERE)
def test_this_machine_is_refused_by_every_name(host: str, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with running(Served({"/file": b"mine"}), certificate=certificate) as served:
        port = served.url.rpartition(":")[2]
        with pytest.raises(RemoteError, match=r"expected a public address, got .*, which is") as raised:
            ask(Connections(1.0, AllowedServers()), f"https://{host}:{port}/file")
        assert str(raised.value).startswith("the zoo's reference: server ")
        with pytest.raises(RemoteError, match="expected https, got http"):
            ask(Connections(1.0, AllowedServers()), f"http://{host}:{port}/file")
        assert accepted(served) == 0
        # the same server, by the name that the certificate has, once the user names it
        named = AllowedServers([f"https://127.0.0.1:{port}/what/ever"])
        assert ask(Connections(1.0, named), f"https://127.0.0.1:{port}/file") == b"mine"


Resolver = Callable[..., list[Any]]


def resolving(names: dict[str, list[list[str]]]) -> Resolver:
    """A resolver that gives each name its lists of addresses in turn, and the last one from then on."""
    genuine = socket.getaddrinfo

    def resolve(host: str, port: int, *args: Any, **kinds: Any) -> list[Any]:
        if host not in names:
            return genuine(host, port, *args, **kinds)
        answers = names[host]
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return [entry for address in found for entry in genuine(address, port, *args, **kinds)]

    return resolve


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["2606:4700::1", "10.0.0.1"]])
def test_every_address_of_a_name_is_checked(
    addresses: list[str], certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setattr(socket, "getaddrinfo", resolving({"public.example": [addresses]}))
    with running(Served({"/file": b"mine"}), certificate=certificate) as served:
        port = served.url.rpartition(":")[2]
        with pytest.raises(
            RemoteError, match=rf"server public\.example: expected a public address, got {addresses[-1]}"
        ):
            ask(Connections(1.0, AllowedServers()), f"https://public.example:{port}/file")
        assert accepted(served) == 0


def test_a_user_names_one_origin(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    files = {"/file": b"mine"}
    with (
        running(Served(files), Redirecting) as named,
        running(Served(files), Redirecting) as other,
        running(Served(files), Redirecting, certificate=certificate) as encrypted,
    ):
        connections = Connections(1.0, AllowedServers([named.url]))
        assert ask(connections, f"{named.url}/to//file") == b"mine"
        # another port, another scheme, and both behind redirects
        for target in (other.url, encrypted.url, f"https://{named.url.partition('//')[2]}"):
            for url in (f"{target}/file", f"{named.url}/to/{target}/file", f"{named.url}/to//to/{target}/file"):
                with pytest.raises(RemoteError, match=r"expected (https|a public address), got"):
                    ask(connections, url)
        assert (accepted(other), accepted(encrypted)) == (0, 0)
        both = Connections(1.0, AllowedServers([named.url, other.url, encrypted.url]))
        assert ask(both, f"{named.url}/to/{other.url}/file") == b"mine"
        assert ask(both, f"{named.url}/to/{encrypted.url}/to//file") == b"mine"
        with pytest.raises(RemoteError, match="a redirect to https"):
            ask(both, f"{encrypted.url}/to/{named.url}/file")


@pytest.mark.parametrize(
    "server", ["", "host", "127.0.0.1:80", "ftp://host", "https://", "http://host:99999", "https://[::1"]
)
def test_what_names_no_server(server: str) -> None:
    with pytest.raises(ZooError, match=r"server: expected http://host or https://host"):
        AllowedServers(["https://host", server])


class Tunnel(Redirecting):
    """A proxy that notes where it was asked to tunnel to, and refuses, or does so."""

    refuses = True

    def do_CONNECT(self) -> None:
        self.do_GET()

    def answer(self, path: str) -> None:
        if self.refuses:
            return self.plain(403, b"no")
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host, int(port)), 5) as there:
            self.plain(200, b"")
            ends = {self.connection: there, there: self.connection}
            ended = False
            while not ended:
                for one in select.select(list(ends), [], [], 5)[0]:
                    piece = one.recv(2**16)
                    ends[one].sendall(piece)
                    ended = ended or not piece


def test_a_proxy_gets_the_address_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"public.example": [["2606:4700::1111", "8.8.8.8"]], "inside.example": [["10.0.0.1"]]}
    monkeypatch.setattr(socket, "getaddrinfo", resolving(names))
    with running(Served({}), Tunnel) as proxy:
        monkeypatch.setenv("https_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", "")
        for allowed, url in (
            (AllowedServers(), "https://public.example/x"),
            (AllowedServers(["https://inside.example"]), "https://inside.example/x"),
            (AllowedServers(), "https://inside.example/x"),
        ):
            with pytest.raises(RemoteError):
                ask(Connections(1.0, allowed), url)
        # the second goes to a server that the user named, whose name the proxy looks up
        assert [seen.path for seen in proxy.seen] == ["8.8.8.8:443", "inside.example:443"]


# A network of its own, in which addresses of the internet are this machine's: those of the second interface's end are
# asked from another address, as a server elsewhere would be.
NETWORK = """
ip link set lo up
ip addr add 8.8.8.8/32 dev lo
ip addr add 8.8.4.4/32 dev lo
ip addr add 9.9.9.9/32 dev lo
ip route replace local 8.8.8.8 dev lo src 8.8.4.4 table local
exec "$0" "$@"
"""
INSIDE = """
import contextlib, os, socket, sys
sys.path.insert(0, os.getcwd())
from pathlib import Path
from ckptzoo.errors import RemoteError
from ckptzoo.remote.http import Connections
from ckptzoo.remote.servers import AllowedServers
from tests.remote.test_servers import Tunnel, ask, resolving
from tests.support import serving

certificate = Path(sys.argv[1])
names = {
    "public.example": [["8.8.8.8"], ["127.0.0.1"]],  # as who rebinds a name answers: first so, and then so
    "own.example": [["9.9.9.9"]],
}
socket.getaddrinfo = resolving(names)


def serve(address, content):
    class Server(serving.Server):
        def __init__(self, _, handler):
            super().__init__((address, 4430), handler)
    serving_class, serving.Server = serving.Server, Server
    try:
        return stack.enter_context(serving.running(serving.Served({"/file": content}), certificate=certificate))
    finally:
        serving.Server = serving_class


with contextlib.ExitStack() as stack:
    public, private = serve("8.8.8.8", b"public"), serve("127.0.0.1", b"private")
    own = serve("9.9.9.9", b"own")
    connections = Connections(2.0, AllowedServers())
    assert ask(connections, "https://public.example:4430/file") == b"public"
    assert public.seen[0].headers["Host"] == "public.example:4430"
    assert ask(connections, "https://public.example:4430/file") == b"public"  # the same connection
    for name, reason in (("public", "127.0.0.1, which is loopback"), ("own", "9.9.9.9, which is this one")):
        try:
            ask(Connections(2.0, AllowedServers()), f"https://{name}.example:4430/file")
        except RemoteError as error:
            assert reason in str(error), error
        else:
            raise AssertionError(name)
    # a proxy connects to the address that was checked, whatever it would find for the name
    names["public.example"] = [["8.8.8.8"], ["127.0.0.1"]]
    proxy = stack.enter_context(serving.running(serving.Served({}), Tunnel, refuses=False))
    os.environ["https_proxy"] = proxy.url
    assert ask(Connections(2.0, AllowedServers()), "https://public.example:4430/file") == b"public"
    assert [seen.path for seen in proxy.seen] == ["8.8.8.8:4430"]
    assert (len(public.seen), len(private.seen), len(own.seen)) == (3, 0, 0)
print("all as it should be")
"""


@pytest.mark.slow
def test_the_checked_address_is_the_one_that_is_connected_to(certificate: Path, tmp_path: Path) -> None:
    """A name that leads to a public address when it is checked, and to this machine whenever it is looked up again."""
    if shutil.which("unshare") is None or shutil.which("ip", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        pytest.skip("needs unshare and ip, to make a network")
    separate = ["unshare", "--map-root-user", "--net"]
    if subprocess.run([*separate, "true"], capture_output=True).returncode:
        pytest.skip("this system lets no user make a network")
    (tmp_path / "inside.py").write_text(INSIDE)
    command = [*separate, "sh", "-c", NETWORK, sys.executable, str(tmp_path / "inside.py"), str(certificate)]
    environment = {**os.environ, "SSL_CERT_FILE": str(certificate), "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.stdout == "all as it should be\n", done.stderr
