"""The setups of docs/hosting.md, with a real nginx and a real Caddy in front of the server."""

import configparser
import contextlib
import hashlib
import http.client
import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.support.hosted import ZOO, Hosted, hosted, push
from tests.support.ports import free_port

GUIDE = (Path(__file__).parents[2] / "docs/hosting.md").read_text()
HOST = "zoos.example.org"


def block(language: str) -> str:
    """The code block of the guide in this language."""
    (text,) = re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)
    return text


def program(name: str) -> str:
    """The path of a program. Where it is missing the test is left out, and fails with CI=true."""
    # Debian has nginx in a folder that is not on every user's path
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    if found is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"needs {name}")
    return found


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of the guide's host for this machine, and its key."""
    folder = tmp_path_factory.mktemp("certificate")
    paths = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        [program("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={HOST}",
         "-addext", f"subjectAltName=DNS:{HOST}", "-out", paths[0], "-keyout", paths[1]],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    return paths


def nginx_command(folder: Path, port: int, upstream: int, certificate: tuple[Path, Path]) -> list[str]:
    site = (
        block("nginx")
        .replace("listen 443", f"listen 127.0.0.1:{port}")
        .replace("127.0.0.1:8000", f"127.0.0.1:{upstream}")
    )
    site = site.replace(f"/etc/ssl/{HOST}.crt", str(certificate[0])).replace(
        f"/etc/ssl/{HOST}.key", str(certificate[1])
    )
    temporary = "".join(
        f"{name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/errors;\nevents {{}}\nhttp {{ access_log off; {temporary}{site} }}\n"
    )
    return [program("nginx"), "-c", str(folder / "nginx.conf")]


def caddy_command(folder: Path, port: int, upstream: int, certificate: tuple[Path, Path]) -> list[str]:
    site = block("caddy").replace("127.0.0.1:8000", f"127.0.0.1:{upstream}")
    # certificates of its own would need a network
    site = site.replace(
        f"{HOST} {{", f"https://{HOST}:{port} {{\n    bind 127.0.0.1\n    tls {certificate[0]} {certificate[1]}", 1
    )
    options = (
        f"{{\n admin off\n auto_https disable_redirects\n skip_install_trust\n storage file_system {folder}/caddy\n}}\n"
    )
    (folder / "Caddyfile").write_text(options + site)
    return [program("caddy"), "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


class ProxiedConnection(http.client.HTTPSConnection):
    """A connection to the proxy on this machine, under the name that it has elsewhere."""

    def connect(self) -> None:
        connected = socket.create_connection(("127.0.0.1", self.port), self.timeout)
        assert isinstance(self._context, ssl.SSLContext)
        self.sock = self._context.wrap_socket(connected, server_hostname=HOST)


@contextmanager
def proxied(kind: str, folder: Path, certificate: tuple[Path, Path]) -> Iterator[tuple[Hosted, ProxiedConnection]]:
    """A server, and a connection to it through a proxy."""
    port, context = free_port(), ssl.create_default_context(cafile=str(certificate[0]))
    url = f"https://{HOST}:{port}"
    with hosted(folder / "served", url=url, proxies=["127.0.0.1"]) as server:
        upstream = int(server.url.rpartition(":")[2])
        command = {"nginx": nginx_command, "caddy": caddy_command}[kind](folder, port, upstream, certificate)
        with (folder / "proxy.log").open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "HOME": str(folder)})
        try:
            deadline = time.monotonic() + 20
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    assert process.poll() is None and time.monotonic() < deadline, (folder / "proxy.log").read_text()
                    time.sleep(0.05)
            assert process.poll() is None, (folder / "proxy.log").read_text()  # another program has the port
            with closing(ProxiedConnection(HOST, port, timeout=30, context=context)) as connection:
                yield server, connection
        finally:
            process.terminate()
            process.wait(timeout=20)


@pytest.mark.parametrize("kind", ["nginx", pytest.param("caddy", marks=pytest.mark.exhaustive)])
def test_the_guide(kind: str, tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    with proxied(kind, tmp_path, certificate) as (server, connection):
        origin = f"https://{HOST}:{connection.port}"
        token = {"Authorization": f"Bearer {server.tokens['write']}"}

        def ask(method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None):
            connection.request(method, path.removeprefix(origin), body, headers or {})
            answer = connection.getresponse()
            if method == "POST" and answer.status in (403, 429) and kind == "caddy":
                # on a machine with many other processes Caddy 2.6 has ended answers of errors behind their heads
                with contextlib.suppress(http.client.IncompleteRead):
                    answer.read()
                connection.close()
                return answer.status, {}, b""
            return answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read()

        assert ask("POST", "/api/repos/create", b'{"name": "zoo", "type": "dataset"}', token)[0] == 200
        push(server, {"a.txt": b"text"})
        # an upload that is larger than the proxies' usual limits, to the address that the server gives
        large = os.urandom(3 * 2**20)
        oid = hashlib.sha256(large).hexdigest()
        asked = f'{{"operation": "upload", "objects": [{{"oid": "{oid}", "size": {len(large)}}}]}}'.encode()
        _, _, answer = ask("POST", f"/datasets/{ZOO}.git/info/lfs/objects/batch", asked, token)
        href = re.findall(rb'"href":"([^"]*)"', answer)[0].decode()
        assert href.startswith(f"{origin}/_uploads/")
        assert ask("PUT", href, large)[0] == 200
        lines = b'{"key":"header","value":{"summary":"x"}}\n{"key":"lfsFile","value":{"path":"b.bin","algo":"sha256","oid":"%s"}}\n'
        # the revision is one piece of the path, and stays one
        for pull in (1, 2):
            opened = b'{"title": "A pull request", "description": "", "pullRequest": true}'
            assert ask("POST", f"/api/datasets/{ZOO}/discussions", opened, token)[0] == 200
            assert ask("POST", f"/api/datasets/{ZOO}/commit/refs%2Fpr%2F{pull}", lines % oid.encode(), token)[0] == 200
        status, headers, _ = ask("GET", f"/datasets/{ZOO}/resolve/refs%2Fpr%2F1/b.bin", headers=token)
        assert status == 302 and headers["location"].startswith(f"{origin}/_blobs/")
        status, _, data = ask("GET", headers["location"], headers={"Range": "bytes=1000-69999"})
        assert (status, data) == (206, large[1000:70000])

        # pages: a session over TLS, and a form whose origin is the proxy's
        page = "text/html"
        form = f"token={server.tokens['write']}&next=/-/tokens".encode()
        sent = {"Accept": page, "Origin": origin, "Content-Type": "application/x-www-form-urlencoded"}
        status, headers, _ = ask("POST", "/-/sign-in", form, sent)
        assert (
            status == 303 and headers["set-cookie"].startswith("__Host-session=") and "Secure" in headers["set-cookie"]
        )
        cookie = headers["set-cookie"].partition(";")[0]
        assert b"Tokens of lab" in ask("GET", "/-/tokens", headers={"Accept": page, "Cookie": cookie})[2]
        assert ask("POST", "/-/sign-in", form, {**sent, "Origin": server.url})[0] == 403

        # who asks is the client of the proxy, whatever it claims
        for number in range(25):
            claimed = {"X-Forwarded-For": f"203.0.113.{number}", **sent}
            status, _, _ = ask("POST", "/-/sign-in", b"token=hf_wrong&next=/", claimed)
        assert status == 429


def test_the_unit(tmp_path: Path) -> None:
    """The command of the unit starts a server, and systemd, where it is, finds nothing wrong."""
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]
    unit.read_string(block("ini"))
    _, *words = shlex.split(unit["Service"]["ExecStart"])
    words = [{"/var/lib/ckptzoo": str(tmp_path / "served"), "8000": "0"}.get(word, word) for word in words]
    command = [sys.executable, "-m", "ckptzoo", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert "serving at http://127.0.0.1" in process.stdout.readline()
        finally:
            process.terminate()  # as systemd ends it
        assert process.wait(timeout=20) == 0
    analyze = shutil.which("systemd-analyze")
    if analyze is not None:
        path = tmp_path / "ckptzoo.service"
        path.write_text(
            block("ini").replace("/opt/ckptzoo/bin/ckptzoo", sys.executable).replace("User=ckptzoo", "User=root")
        )
        done = subprocess.run([analyze, "verify", path], capture_output=True, text=True, check=False, timeout=60)
        assert "ckptzoo.service" not in done.stderr, done.stderr


def test_the_provider_of_the_guide(tmp_path: Path) -> None:
    from ckptzoo.server.oidc import provider_in

    (tmp_path / "oidc.toml").write_text(block("toml"))
    found = provider_in(tmp_path / "oidc.toml")
    assert (found.name, found.create, found.claim) == ("Example University", True, "preferred_username")
