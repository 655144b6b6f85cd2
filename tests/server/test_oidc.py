"""Signing in with an OpenID Connect provider that runs beside the server."""

import re
import threading
import urllib.parse
from collections.abc import Iterator
from datetime import timedelta
from html import unescape
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests

from ckptzoo.errors import SpecError
from ckptzoo.server.errors import Refusal
from ckptzoo.server.oidc import Provider, provider_in
from ckptzoo.server.store import accounts, sessions
from ckptzoo.server.store.audit import OPERATOR
from ckptzoo.server.store.tokens import make_token, revoke
from tests.support.chromium import chromium
from tests.support.hosted import Hosted, hosted
from tests.support.pages import Browser, Page

# the provider's own, of the Authlib that it uses
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
CLIENT = ("ckptzoo", "a secret")


@pytest.fixture
def issuer() -> Iterator[str]:
    """The address of a provider."""
    from oidc_provider_mock import run_server_in_thread  # which brings a web framework along

    with run_server_in_thread() as running:
        yield f"http://localhost:{running.server_port}"


def provider(issuer: str, *, create: bool = True) -> Provider:
    return Provider(issuer, *CLIENT, name="Example", create=create)


@pytest.fixture
def server(tmp_path: Path, issuer: str) -> Iterator[Hosted]:
    """A server whose users sign in there."""
    for name in ("ada", "eve"):
        claims = {"preferred_username": name}
        requests.put(f"{issuer}/users/{name}@example.org", json=claims, timeout=10).raise_for_status()
    with hosted(tmp_path / "served", oidc=provider(issuer)) as running:
        yield running


def at_the_provider(browser: Browser, name: str) -> str:
    """Start, and sign in at the provider; returns the path that it sends the browser back to."""
    started = browser.post("/-/oidc/start", next="/-/tokens")
    assert started.status == 200, started.text
    (address,) = re.findall(r'http-equiv="refresh" content="0; url=([^"]*)"', started.text)
    address = unescape(address)
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(address).query)
    assert query["code_challenge_method"] == ["S256"] and query["response_type"] == ["code"]
    answer = requests.post(address, data={"sub": f"{name}@example.org"}, allow_redirects=False, timeout=10)
    assert answer.status_code == 302, answer.text
    return answer.headers["location"].removeprefix(browser.server.url)


def signed_in(server: Hosted, name: str) -> tuple[Browser, Page]:
    browser = Browser(server)
    callback = at_the_provider(browser, name)
    return browser, browser.get(callback)


def test_the_first_time_and_the_second(server: Hosted) -> None:
    for _ in range(2):
        browser, page = signed_in(server, "ada")
        assert page.status == 303 and page.headers["location"] == "/-/tokens", page.text
        assert browser.get("/-/tokens").title == "Tokens of ada"
    with server.service.database.reading() as connection:
        assert [item.name for item in accounts.listed(connection, accounts.USER)].count("ada") == 1


@pytest.mark.browser
def test_a_real_browser_signs_in_and_connects_an_identity(server: Hosted) -> None:
    """A client that follows every redirect does not know what browsers refuse."""
    with chromium() as running:
        page = running.new_context().new_page()
        page.goto(f"{server.url}/-/sign-in")
        page.get_by_role("button", name="Sign in with Example").click()
        page.locator("input[name=sub]").first.fill("ada@example.org")
        page.locator("button[type=submit], button").first.click()
        page.wait_for_url(f"{server.url}/**")
        page.goto(f"{server.url}/-/tokens")
        assert page.get_by_role("heading", name="Tokens of ada").is_visible()
        page.get_by_role("button", name="Disconnect ada@example.org").click()
        assert page.get_by_text("None is connected.").is_visible()
        page.get_by_role("button", name="Connect an identity of Example").click()
        page.locator("input[name=sub]").first.fill("ada@example.org")
        page.locator("button[type=submit], button").first.click()
        page.wait_for_url(f"{server.url}/-/tokens")
        assert page.get_by_role("button", name="Disconnect ada@example.org").is_visible()
    assert identities(server) == {"ada": "ada"}


def test_a_replayed_callback_is_refused(server: Hosted) -> None:
    browser = Browser(server)
    callback = at_the_provider(browser, "ada")
    at_provider = browser.cookie
    assert browser.get(callback).status == 303
    browser.cookie = at_provider
    page = browser.get(callback)
    assert page.status == 400 and "expected a fresh answer" in page.text


def test_a_callback_of_another_browser_is_refused(server: Hosted) -> None:
    """Somebody makes somebody else sign in as him."""
    callback = at_the_provider(Browser(server), "eve")
    victim = Browser(server)
    at_the_provider(victim, "ada")
    assert victim.get(callback).status == 400
    assert Browser(server).get(callback).status == 400


@pytest.mark.parametrize("query", ["", "state=x&code=y", "error=access_denied", "state=%00&code=%ff"])
def test_callbacks_that_nobody_asked_for(server: Hosted, query: str) -> None:
    assert Browser(server).get(f"/-/oidc/callback?{query}").status == 400


def test_what_the_provider_refuses(server: Hosted) -> None:
    browser = Browser(server)
    state = urllib.parse.parse_qs(urllib.parse.urlsplit(at_the_provider(browser, "ada")).query)["state"][0]
    page = browser.get(f"/-/oidc/callback?state={state}&error=access_denied")
    assert page.status == 400 and "access_denied" in page.text
    browser = Browser(server)
    state = urllib.parse.parse_qs(urllib.parse.urlsplit(at_the_provider(browser, "ada")).query)["state"][0]
    assert browser.get(f"/-/oidc/callback?state={state}&code=forged").status == 400


def test_a_name_that_is_taken_is_not_taken_over(server: Hosted) -> None:
    with server.service.database.writing() as connection:
        accounts.add(connection, "Ada", accounts.USER, actor=OPERATOR)
        code = sessions.make_link(connection, "Ada", actor=OPERATOR)
    _, page = signed_in(server, "ada")
    assert page.status == 403 and "there is an account of this name already" in page.text
    # its owner connects the two
    browser = Browser(server)
    browser.post(f"/-/link/{code}")
    session = browser.cookie
    callback = at_the_provider(browser, "ada")
    browser.cookie = f"{session}; {browser.cookie}"
    assert browser.get(callback).status == 303
    browser, page = signed_in(server, "ada")
    assert page.status == 303 and browser.get("/-/tokens").title == "Tokens of Ada"


def together(browser: Browser, session: str) -> Browser:
    """The browser with the cookie that it got at the start, and that of a session."""
    browser.cookie = f"{session}; {browser.cookie}"
    return browser


def link_of(server: Hosted, user: str) -> str:
    with server.service.database.writing() as connection:
        return f"/-/link/{sessions.make_link(connection, user, actor=OPERATOR)}"


def identities(server: Hosted) -> dict[str, str]:
    with server.service.database.reading() as connection:
        rows = connection.execute("SELECT subject, user FROM identities").fetchall()
    return {row["subject"].partition("@")[0]: row["user"] for row in rows}


@pytest.mark.parametrize("role", ["read", "contribute", "write"])
@pytest.mark.parametrize("scope", ["", "ada/pub"])
@pytest.mark.sampled(2)
def test_a_token_connects_no_identity(server: Hosted, role: str, scope: str) -> None:
    """As was tried: with a leaked token of a day, somebody else's identity was the account's for good."""
    with server.service.database.writing() as connection:
        text = make_token(connection, "ada", role, scope=scope, expires=timedelta(days=1))
    server.tokens["leaked"] = text
    browser = Browser(server)
    assert browser.sign_in("leaked").status == 303
    session = browser.cookie
    callback = at_the_provider(browser, "eve")
    page = together(browser, session).get(callback)
    assert page.status == 403 and "one-time link" in page.text and "set-cookie" not in page.headers
    assert identities(server) == {}
    # eve's own account is another one, also where she starts in that session
    assert signed_in(server, "eve")[0].get("/-/tokens").title == "Tokens of eve"
    browser = Browser(server, session)
    callback = at_the_provider(browser, "eve")
    assert together(browser, session).get(callback).status == 303
    assert browser.get("/-/tokens").title == "Tokens of eve" and identities(server) == {"eve": "eve"}


@pytest.mark.parametrize("start", ["none", "token", "link", "other"])
@pytest.mark.parametrize("finish", ["none", "token", "link", "other", "revoked", "signed out"])
@pytest.mark.sampled(5)
def test_an_attempt_ends_in_the_session_in_which_it_began(server: Hosted, start: str, finish: str) -> None:
    with server.service.database.writing() as connection:
        accounts.add(connection, "Ada", accounts.USER, actor=OPERATOR)
        server.tokens["own"] = make_token(connection, "Ada", "write")
    cookies = {"none": ""}
    for name, path in (("link", link_of(server, "Ada")), ("other", link_of(server, "bob"))):
        browser = Browser(server)
        assert browser.post(path).status == 303
        cookies[name] = browser.cookie
    browser = Browser(server)
    assert browser.sign_in("own").status == 303
    cookies["token"] = cookies["revoked"] = browser.cookie
    cookies["signed out"] = cookies[start]
    browser = Browser(server, cookies[start])
    callback = at_the_provider(browser, "eve")
    with server.service.database.writing() as connection:
        if finish == "revoked":
            revoke(connection, "Ada")
        elif finish == "signed out":
            sessions.end_all(connection, "Ada")
            sessions.end_all(connection, "bob")
    page = together(browser, cookies[finish]).get(callback) if cookies[finish] else browser.get(callback)
    is_same = start == finish or (start, finish) in (("none", "signed out"), ("none", "revoked"))
    expected = {"none": 303, "token": 403, "link": 303, "other": 303}[start] if is_same else 400
    assert page.status == expected, page.text
    connected = {"none": "eve", "link": "Ada", "other": "bob"}[start] if expected == 303 else None
    assert identities(server) == ({} if connected is None else {"eve": connected})


def test_a_connected_identity_stays_with_its_account(server: Hosted) -> None:
    signed_in(server, "eve")
    browser = Browser(server)
    browser.post(link_of(server, "ada"))
    session = browser.cookie
    callback = at_the_provider(browser, "eve")
    assert together(browser, session).get(callback).status == 303
    assert browser.get("/-/tokens").title == "Tokens of eve" and identities(server) == {"eve": "eve"}
    with server.service.database.writing() as connection, pytest.raises(Refusal, match="got that of eve"):
        sessions.set_identity(connection, server.service.oidc.issuer, "eve@example.org", "ada")  # pyright: ignore


def test_a_token_that_is_revoked_while_the_provider_answers(server: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = Browser(server)
    browser.post(link_of(server, "ada"))
    session = browser.cookie
    callback = at_the_provider(browser, "eve")
    claims = Provider._claims

    def slow(self: Provider, *arguments: Any) -> Any:
        found = claims(self, *arguments)
        with server.service.database.writing() as connection:
            sessions.end_all(connection, "ada")
        return found

    monkeypatch.setattr(Provider, "_claims", slow)
    assert together(browser, session).get(callback).status == 409
    assert identities(server) == {}


def test_accounts_are_made_where_the_operator_says(tmp_path: Path, issuer: str) -> None:
    requests.put(f"{issuer}/users/ada@example.org", json={"preferred_username": "ada"}, timeout=10).raise_for_status()
    with hosted(tmp_path / "served", oidc=provider(issuer, create=False)) as server:
        _, page = signed_in(server, "ada")
    assert page.status == 403 and "there is no account yet" in page.text
    requests.put(f"{issuer}/users/odd@example.org", json={"preferred_username": "a b"}, timeout=10).raise_for_status()
    with hosted(tmp_path / "other", oidc=provider(issuer)) as server:
        assert signed_in(server, "odd")[1].status == 400


def test_a_provider_that_is_not_there(tmp_path: Path) -> None:
    with hosted(tmp_path / "served", oidc=Provider("http://localhost:9", *CLIENT)) as server:
        page = Browser(server).post("/-/oidc/start")
    assert page.status == 502 and "http://localhost:9: expected a sound answer" in page.text


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        # discovery says which provider it is; another one's answer is none (OpenID Connect Discovery 1.0, 4.3)
        (b'{"issuer": "https://other.example.org"}', "issuer: expected"),
        (b'{"issuer": 3}', "AttributeError"),
        (b"[]", "TypeError"),
        (b"<html>", "JSONDecodeError"),
    ],
)
def test_a_provider_that_is_none(said: bytes, expected: str) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.handle_request, daemon=True).start()
        known = Provider(f"http://127.0.0.1:{running.server_port}", *CLIENT)
        with pytest.raises(Refusal, match=expected):
            known.start("http://x/", "browser", "/")


def test_many_attempts_at_once(issuer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckptzoo.server.oidc._ATTEMPTS", 3)
    known = provider(issuer)
    threads = [threading.Thread(target=known.start, args=("http://x/", "browser", "/")) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(known._attempts) == 3


SOUND = 'issuer = "https://id.example.org"\nclient_id = "a"\nclient_secret = "b"\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("issuer = ", "expected TOML"),
        ('issuer = "https://id.example.org"', "client_id: expected str, got None"),
        (f'{SOUND}create = "yes"', "create: expected bool, got 'yes'"),
        (f"{SOUND}colour = 1", "expected one of issuer, client_id"),
        (SOUND.replace("https", "http"), "issuer: expected an https address"),
    ],
)
def test_files_that_describe_no_provider(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "oidc.toml"
    path.write_text(text)
    with pytest.raises(SpecError, match=expected):
        provider_in(path)
    path.write_text(SOUND)
    assert provider_in(path).name == "id.example.org"


def test_identities_are_seen_and_disconnected_by_who_signed_in_to_the_account(server: Hosted) -> None:
    """Of several the others stay; sessions that may have begun with it end, and a token sees and changes none."""
    issuer = server.service.oidc.issuer  # pyright: ignore
    first, other = Browser(server), Browser(server)
    for browser in (first, other):
        browser.post(link_of(server, "ada"))
    with server.service.database.writing() as connection:
        for name in ("eve", "bob"):
            accounts.add(connection, name, accounts.USER, actor=OPERATOR)
        for name in ("ada@home", "ada@<b>work", "eve@home"):
            sessions.set_identity(connection, issuer, name, "eve" if name.startswith("eve") else "ada")
        server.tokens["own"] = make_token(connection, "ada", "write")
    limited = Browser(server)
    assert limited.sign_in("own").status == 303 and "ada@home" not in limited.get("/-/tokens").text
    gone = {"issuer": issuer, "subject": "ada@home"}
    assert limited.post("/-/identities/disconnect", **gone).status == 403
    page = first.get("/-/tokens").text
    assert "ada@home" in page and "ada@&lt;b&gt;work" in page and "eve@home" not in page
    for wrong in ({"subject": "eve@home"}, {"issuer": "https://elsewhere"}, {"subject": ""}):
        assert first.post("/-/identities/disconnect", **gone | wrong).status == 303
    assert other.get("/-/tokens").status == 200
    for _ in range(2):
        assert first.post("/-/identities/disconnect", **gone).status == 303
    with server.service.database.reading() as connection:
        assert sessions.identities_of(connection, "ada") == [(issuer, "ada@<b>work")]
        assert sessions.user_of_identity(connection, issuer, "eve@home") == "eve"
    assert other.get("/-/tokens").status == 303 and limited.get("/-/tokens").status == 200
    assert first.get("/-/tokens").status == 200 and "disconnect identity" in first.get("/-/audit").text
    # whoever is called so at the provider is nobody here any more
    with server.service.database.writing() as connection:
        sessions.set_identity(connection, issuer, "ada@home", "bob")
