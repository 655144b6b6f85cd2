"""What operators set: metrics, rates, proxies, and the links of new accounts."""

import json
import re
from pathlib import Path

import pytest

from ckptzoo.server.limits import ServerLimits
from tests.server.test_command import run_serve
from tests.support.hosted import SMALL, Hosted, ask, hosted
from tests.support.pages import Browser

SECRET = "a token of 16 or more"


def test_metrics_for_those_who_have_the_token(tmp_path: Path) -> None:
    with hosted(tmp_path / "served", metrics_token=SECRET) as server:
        server.api().create_repo("lab/secret", repo_type="dataset", private=True)
        for sent in ({}, {"Authorization": "Bearer x"}, {"Authorization": f"Bearer {server.tokens['write']}"}):
            assert ask(server, "GET", "/metrics", role=None, **sent).status == 401
        answer = ask(server, "GET", "/metrics", role=None, Authorization=f"Bearer {SECRET}")
    text = answer.body.decode()
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert 'ckptzoo_requests_total{handler="repositories.create",status="200"} 1.0' in text
    assert "ckptzoo_held_bytes 0.0" in text
    assert "secret" not in text and "lab" not in re.sub(r'\{[^}]*handler="[a-z_.]+"[^}]*\}', "", text)


def test_without_a_token_there_are_no_metrics(server: Hosted) -> None:
    assert ask(server, "GET", "/metrics", role=None, Authorization="Bearer ").status == 404


def test_requests_of_one_address(tmp_path: Path) -> None:
    limits = ServerLimits(rates={"requests": "5/minute"})
    with hosted(tmp_path / "served", limits=limits) as server:
        answers = [ask(server, "GET", "/api/datasets", role=None) for _ in range(8)]
        assert [item.status for item in answers] == [200] * 5 + [429] * 3
        assert re.fullmatch(r'"requests";r=0;t=\d+', answers[-1].headers["ratelimit"])
        assert Browser(server).get("/").status == 200  # pages are counted apart


def addresses(server: Hosted) -> list[int]:
    """Two clients of a proxy, by what it says of them, and the answers to their requests."""
    return [
        ask(server, "GET", "/api/datasets", role=None, X_Forwarded_For=client).status
        for client in ("203.0.113.1", "203.0.113.2", "203.0.113.1")
    ]


@pytest.mark.parametrize(
    ("proxies", "expected"),
    [((), [200, 429, 429]), (("127.0.0.1",), [200, 200, 429]), (("10.0.0.1",), [200, 429, 429])],
)
def test_only_a_proxy_is_believed(tmp_path: Path, proxies: tuple[str, ...], expected: list[int]) -> None:
    limits = ServerLimits(rates={"requests": "1/minute"})
    with hosted(tmp_path / "served", limits=limits, proxies=proxies) as server:
        assert addresses(server) == expected


def test_tls_of_a_proxy(tmp_path: Path) -> None:
    for proxies, name in (((), "session"), (("127.0.0.1",), "__Host-session")):
        with hosted(tmp_path / name, proxies=proxies, limits=SMALL) as server:
            browser = Browser(server, sent={"X-Forwarded-Proto": "https"})
            browser.origin = server.url.replace("http:", "https:") if proxies else server.url
            assert browser.sign_in("read").headers["set-cookie"].startswith(f"{name}=")


def test_a_new_account_gets_a_link(server: Hosted) -> None:
    done = run_serve("user", "--root", str(server.root), "ada", "--json")
    made = json.loads(done.stdout)
    assert made["users"][0]["name"] == "ada"
    link = made["link"].removeprefix("http://127.0.0.1:8000")
    browser = Browser(server)
    assert browser.post(link).status == 303 and browser.get("/-/tokens").title == "Tokens of ada"
    done = run_serve("user", "--root", str(server.root), "ada")
    assert re.search(r"Signs in once, within 24 hours: http://127.0.0.1:8000/-/link/\S{43}", done.stdout)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--rate", "often"), "expected one such as 3000/minute"),
        (("--metrics-token", "short"), "16 characters or more"),
    ],
)
def test_options_that_mean_nothing(tmp_path: Path, options: tuple[str, str], expected: str) -> None:
    (tmp_path / "short").write_text("abc\n")
    words = [str(tmp_path / word) if word == "short" else word for word in options]
    done = run_serve("--root", str(tmp_path / "served"), *words)
    assert done.returncode == 2 and expected in " ".join(re.sub("[│╭╮╰╯─]", " ", done.stderr).split())
