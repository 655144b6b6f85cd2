"""The hub and the token, asked of a real server; a token is never shown."""

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from ckptzoo.doctor import NOTE, OK, PROBLEM, Check, hub
from ckptzoo.server.store.tokens import revoke
from tests.support.hosted import Hosted, hosted

pytestmark = pytest.mark.usefixtures("isolated_clients")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosted]:
    """A hub that the environment names."""
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no token"))
    with hosted(tmp_path / "served") as found:
        monkeypatch.setenv("HF_ENDPOINT", found.url)
        yield found


def found(*, needed: bool = False) -> dict[str, Check]:
    return {check.name: check for check in hub.checks(needed=needed)}


@pytest.mark.parametrize(
    ("role", "shown"), [("read", "reader, role read"), ("contribute", "stranger, role"), ("write", "lab, role write")]
)
def test_whose_token_it_is(server: Hosted, monkeypatch: pytest.MonkeyPatch, role: str, shown: str) -> None:
    monkeypatch.setenv("HF_TOKEN", server.tokens[role])
    checks = found()
    assert checks["hub"].outcome == checks["token"].outcome == OK
    assert checks["hub"].detail.startswith(f"{server.url} answers in 0.")
    assert checks["token"].detail.startswith(f"the token of HF_TOKEN: {shown}")
    assert server.tokens[role] not in str(checks)


def test_no_token(server: Hosted) -> None:
    checks = found()
    assert checks["token"].outcome == NOTE and checks["token"].detail.startswith("none: public zoos can be read")


def test_a_token_that_was_revoked(server: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", server.tokens["write"])
    with server.service.database.writing() as connection:
        assert revoke(connection, "lab") == 1
    checks = found()
    assert checks["hub"].outcome == OK and checks["token"].outcome == PROBLEM
    assert "refused" in checks["token"].detail and "hf auth login" in checks["token"].step
    assert server.tokens["write"] not in str(checks)


@pytest.mark.parametrize(
    ("needed", "named", "outcome"), [(False, True, PROBLEM), (True, False, PROBLEM), (False, False, NOTE)]
)
def test_a_hub_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, needed: bool, named: bool, outcome: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # nobody listens there
        nowhere = f"http://127.0.0.1:{free.getsockname()[1]}"
        if named:
            monkeypatch.setenv("HF_ENDPOINT", nowhere)
        else:
            monkeypatch.setenv("https_proxy", nowhere)  # so that huggingface.co is not reached from any machine
        (check,) = hub.checks(needed=needed)
    assert (check.name, check.outcome) == ("hub", outcome)
    assert "no answer: " in check.detail and "refused" in check.detail and "HF_ENDPOINT" in check.step


def test_a_hub_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        (check,) = hub.checks(needed=False)
    assert time.monotonic() - began < 3 and check.outcome == PROBLEM


class _Failing(BaseHTTPRequestHandler):
    """Answers that the server is at fault."""

    def do_GET(self) -> None:
        self.send_error(503)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_hub_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with HTTPServer(("127.0.0.1", 0), _Failing) as failing:
        threading.Thread(target=failing.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{failing.server_port}")
        (check,) = hub.checks(needed=False)
        failing.shutdown()
    assert check.outcome == PROBLEM and check.detail.endswith("no answer: status 503")


@pytest.mark.parametrize("endpoint", ["ftp://hub", "hub", "http://"])
def test_an_address_that_is_none(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    (check,) = hub.checks(needed=False)
    assert check.outcome == PROBLEM and "no answer" in check.detail


def test_offline_nothing_is_asked(server: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTZOO_OFFLINE", "1")
    (check,) = hub.checks(needed=True)
    assert check.outcome == NOTE and "offline" in check.detail and not server.request_log.entries


def test_which_addresses_are_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lab" / "here").mkdir(parents=True)
    on_hub = {
        "lab/few": True,
        "hf://datasets/lab/few@main": True,
        "lab/here": False,
        "https://host/zoo": False,
        "": False,
    }
    assert {address: hub.is_on_hub(address) for address in on_hub} == on_hub
