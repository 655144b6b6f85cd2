"""No header, query and form makes a mistake of the server, whatever bytes they are: what is malformed is refused."""

import contextlib
import json
import re
import socket
import urllib.parse
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.server.access import WRITE
from ckptzoo.server.app import PAGES, ROUTES, Route
from ckptzoo.server.oidc import Provider
from ckptzoo.server.store import repositories, sessions, tokens
from ckptzoo.server.store.audit import OPERATOR
from tests.server.test_least_of_token_and_account import FORMS, request_of
from tests.support.effort import examples
from tests.support.hosted import Hosted
from tests.support.in_process import ORIGIN, InProcess, in_process

HEADERS = (
    b"cookie", b"authorization", b"range", b"host", b"origin", b"content-length", b"content-type", b"if-none-match",
    b"if-range", b"accept", b"accept-encoding", b"x-forwarded-for", b"x-forwarded-proto", b"transfer-encoding",
)  # fmt: skip
TEXTS = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(
        [b"\xe9", b"\xc3\xa9", b"\0", b"\r\n", b"\x7f", b"\xff\xfe", b"[", b"[::1", b"\xb2", b"0", b"-1", b""]
    ),
    st.sampled_from(
        [b"9" * 5000, b"a" * 20_000, b"\xe9" * 20_000, b";" * 9000, b'"\\351\\000"', b'"', b"%", b"%ff", b"\\"]
    ),
)
STARTS = (
    b"", b"session=", b"oidc=", b"__Host-session=", b"__Host-oidc=", b"oidc=a; session=", b"Bearer ", b"bearer", b"Basic ",
    b"bytes=", b"bytes=0-", b"bytes=-", b"127.0.0.1:", b"localhost:", b"http://", b"application/json", b"W/", b'"',
    b"application/x-www-form-urlencoded; charset=",
)  # fmt: skip
VALUES = st.builds(lambda start, text: start + text, st.sampled_from(STARTS), TEXTS)


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    """A server with one repository, and a provider that is not there."""
    provider = Provider("http://localhost:9", "a", "b")
    provider._metadata = {"issuer": provider.issuer, "authorization_endpoint": "http://localhost:9/a"}
    with in_process(tmp_path_factory.mktemp("served"), oidc=provider) as inside:
        with inside.service.database.writing() as connection:
            tokens.make_token(connection, "ada", WRITE)
            repositories.create(connection, "dataset", "ada/zoo", private=False, author="ada")
        yield inside


@contextlib.contextmanager
def somebody(inside: InProcess) -> Iterator[tuple[str, str, str]]:
    """A token, a session's cookie and what its forms hold; what they do is taken back."""
    with inside.undone():
        with inside.service.database.writing() as connection:
            token = tokens.make_token(connection, "ada", WRITE)
            secret = sessions.use_link(connection, sessions.make_link(connection, "ada", actor=OPERATOR))
            assert secret is not None
            session = sessions.find(connection, secret)
        assert session is not None
        yield token, secret, inside.service.signer.code("form", session.digest)


ROUTE = st.sampled_from([*ROUTES, *PAGES])


@settings(max_examples=examples(2000, 30), deadline=None)
@given(ROUTE, st.lists(st.tuples(st.sampled_from(HEADERS), VALUES), min_size=1, max_size=3), st.booleans(), VALUES)
def test_any_bytes_in_headers(
    inside: InProcess, route: Route, headers: list[tuple[bytes, bytes]], is_head: bool, query: bytes
) -> None:
    path, body = request_of(route, "ada/zoo", "0" * 24, 1)
    data = body if isinstance(body, bytes) else b""
    if isinstance(body, dict):
        data = urllib.parse.urlencode(body).encode() if route.page else json.dumps(body).encode()
    method = "HEAD" if is_head and route.method == "GET" else route.method
    with inside.undone():
        answer = inside.ask(method, f"{path}?state={query.decode('latin-1')}&p=", data, headers)
    assert answer.status < 500, (route.name, headers, answer)


NAMES = (
    "form_token", "next", "token", "name", "role", "scope", "days", "comment", "status", "head", "target", "action",
    "account", "everywhere", "paths", "expand",
)  # fmt: skip
FIELD = st.one_of(
    st.text(max_size=8), st.sampled_from(["\0", "é", "\x85", "\u202e", "a" * 70_000, "ada", "\r\n", "𝒳", "-1"])
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | FIELD,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(FIELD, inner, max_size=2), max_leaves=3,
)  # fmt: skip


@settings(max_examples=examples(2000, 30), deadline=None)
@given(st.sampled_from([r for r in PAGES if r.method == "POST"]), st.data())
def test_any_text_in_forms(inside: InProcess, route: Route, data: st.DataObject) -> None:
    """As forms and as the JSON that some clients send in their place."""
    path, _ = request_of(route, "ada/zoo", "0" * 24, 1)
    with somebody(inside) as (_, secret, form_token):
        known = {"form_token": form_token, **FORMS.get(route.handler.__name__, {})}
        changed = data.draw(st.dictionaries(st.sampled_from(NAMES) | FIELD, JSON, max_size=3))
        headers = [(b"cookie", f"session={secret}".encode()), (b"origin", ORIGIN.encode())]
        if data.draw(st.booleans()):
            body = json.dumps({**known, **changed}).encode()
            headers.append((b"content-type", b"application/json"))
        else:
            pairs = [*known.items(), *((name, str(value)) for name, value in changed.items())]
            body = urllib.parse.urlencode(data.draw(st.permutations(pairs)), errors="surrogatepass").encode()
            body += data.draw(st.sampled_from([b"", b"&a=%ff", b"&%00=%00", b"\xff", b"&" * 2000]))
        answer = inside.ask("POST", path, body, headers)
    # 502: the provider is not there
    assert answer.status < 500 or answer.status == 502, (route.name, body[:500], answer)


@settings(max_examples=examples(1000, 25), deadline=None)
@given(st.sampled_from([r for r in ROUTES if r.method != "GET"]), st.data())
def test_any_json_of_the_protocol(inside: InProcess, route: Route, data: st.DataObject) -> None:
    path, body = request_of(route, "ada/zoo", "0" * 24, 1)
    with somebody(inside) as (token, _, _):
        if isinstance(body, dict):
            body = {
                **body,
                **data.draw(st.dictionaries(st.sampled_from([*body, "visibility", "parts"]), JSON, max_size=3)),
            }
            body = json.dumps(body).encode()
        answer = inside.ask(route.method, path, body or b"", [(b"authorization", f"Bearer {token}".encode())])
    assert answer.status < 500, (route.name, body, answer)


@pytest.mark.parametrize("value", ["é", "\xff\xfe", '"\\351"', "a" * 8000, "a b", '"', "=;=", "\x01"])
def test_malformed_cookies_are_none(inside: InProcess, value: str) -> None:
    for name in ("session", "oidc", "__Host-session", "__Host-oidc"):
        headers = [(b"cookie", f"{name}={value}".encode("latin-1")), (b"accept", b"text/html")]
        assert inside.ask("GET", "/-/oidc/callback?state=a&code=b", headers=headers).status == 400
        assert inside.ask("GET", "/-/tokens", headers=headers).status == 303
        assert inside.ask("GET", "/", headers=headers).status == 200


def test_an_attempt_at_the_provider_and_a_malformed_cookie(inside: InProcess) -> None:
    started = inside.ask("POST", "/-/oidc/start", b"", [(b"origin", ORIGIN.encode())])
    (address,) = re.findall(rb'http-equiv="refresh" content="0; url=([^"]*)"', started.body)
    query: dict[str, Any] = urllib.parse.parse_qs(urllib.parse.urlsplit(unescape(address.decode())).query)
    path = f"/-/oidc/callback?state={query['state'][0]}&code=b"
    assert inside.ask("GET", path, headers=[(b"cookie", b"oidc=\xe9")]).status == 400


@pytest.mark.parametrize("length", [b"\xe9", b"\xb2", b"-1", b"1_0", b" 1", b"9" * 5000, b"", b"2", b"1.0", b"0x1"])
def test_lengths_of_uploads(inside: InProcess, length: bytes) -> None:
    with somebody(inside) as (token, _, _):
        bearer = [(b"authorization", f"Bearer {token}".encode())]
        batch = {"operation": "upload", "objects": [{"oid": "1" * 64, "size": 1}]}
        answer = inside.ask("POST", "/datasets/ada/zoo.git/info/lfs/objects/batch", json.dumps(batch).encode(), bearer)
        address = answer.json()["objects"][0]["actions"]["upload"]["href"].removeprefix(ORIGIN)
        assert inside.ask("PUT", address, b"x", [(b"content-length", length)]).status == 400


def test_through_a_socket(zoo: Hosted) -> None:
    """What the HTTP parser lets pass, and what it does not."""
    host, port = zoo.url.removeprefix("http://").split(":")
    for header in HEADERS:
        for value in (
            b"\xe9",
            b"oidc=\xe9; session=\xe9",
            b"Bearer \xe9",
            b"bytes=\xb2-",
            b"[",
            b"9" * 40,
            b"\x01",
            b"a" * 9000,
        ):
            for path in (b"/-/oidc/callback?state=a", b"/-/tokens", b"/api/datasets", b"/datasets/lab/zoo"):
                with socket.create_connection((host, int(port)), timeout=10) as connection:
                    name = b"" if header == b"host" else b"Host: 127.0.0.1:%s\r\n" % port.encode()
                    request = b"GET %s HTTP/1.1\r\n%s%s: %s\r\nConnection: close\r\n\r\n" % (path, name, header, value)
                    connection.sendall(request)
                    with contextlib.suppress(ConnectionResetError):
                        answer = connection.recv(100)
                        assert not answer.startswith((b"HTTP/1.1 5",)), (header, value, path, answer)
