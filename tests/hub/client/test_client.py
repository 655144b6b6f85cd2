"""The client against a real server: reading, commits, pull requests, and the errors when a hub refuses."""

import hashlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from ckptzoo.cli.exits import code_of
from ckptzoo.errors import HubError, IntegrityError
from ckptzoo.hub.client import Client
from ckptzoo.hub.client.models import RepoFile
from ckptzoo.hub.client.retry import HubRetryPolicy, NotThereError, RaceError
from ckptzoo.remote.retry import SAID_SECONDS
from tests.support.hosted import ZOO, Hosted
from tests.support.hub_zoos import inject_faults

QUICK = HubRetryPolicy(first_pause=0.01, read_timeout=5.0)


def client_of(server: Hosted, role: str = "write", retry_policy: HubRetryPolicy = QUICK) -> Client:
    return Client(server.url, server.tokens[role], retry_policy=retry_policy)


def noise(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


@pytest.fixture
def client(server: Hosted) -> Client:
    client = client_of(server)
    client.create(ZOO)
    return client


def test_what_is_committed_is_listed_and_read(client: Client, tmp_path: Path) -> None:
    large, small = noise(200_000), b"# a card\n"
    (tmp_path / "a.safetensors").write_bytes(large)
    files = {"w/a.safetensors": tmp_path / "a.safetensors", "note.md": small}
    reports: list[tuple[int, int]] = []
    first = client.head(ZOO)
    made = client.commit(
        ZOO, files, title="two", parent=first, progress=lambda done, total: reports.append((done, total))
    )
    found = client.listing(ZOO)
    assert found.commit == made.commit != first and made.sent == len(large) + 9
    assert found.files["w/a.safetensors"] == RepoFile(
        len(large), hashlib.sha256(large).hexdigest(), found.files["w/a.safetensors"].oid
    )
    assert found.files["note.md"] == RepoFile(9, None, hashlib.sha1(b"blob 9\0" + small).hexdigest())
    assert client.read_many(ZOO, ["note.md", "w/a.safetensors"], found) == [small, large]
    assert reports[-1] == (len(large) + 9,) * 2 and len({done for done, _ in reports}) > 2
    again = client.commit(ZOO, {"b.safetensors": large}, title="again", parent=made.commit, delete=["note.md"])
    assert set(client.files(ZOO)) == {".gitattributes", "b.safetensors", "w/a.safetensors"}
    assert client.listing(ZOO, made.commit).files == found.files and client.head(ZOO) == again.commit


def test_large_files_are_stored_once(client: Client, server: Hosted, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(noise(200_000))
    head = client.commit(ZOO, {"a.safetensors": tmp_path / "a"}, title="a", parent=client.head(ZOO)).commit
    parts = server.request_log.count("part")
    made = client.commit(ZOO, {"b.safetensors": tmp_path / "a"}, title="b", parent=head)
    assert made.sent == 0 and parts == server.request_log.count("part") == 4


def test_files_with_another_digest_are_not_sent(client: Client, server: Hosted, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"other bytes")
    before = len(server.request_log.entries)
    with pytest.raises(IntegrityError, match=r"a\.safetensors: sha256: expected 00"):
        client.commit(
            ZOO, {"a.safetensors": tmp_path / "a"}, title="a", parent="0" * 40, sha256={"a.safetensors": "0" * 64}
        )
    assert len(server.request_log.entries) == before


def test_a_race_is_lost(client: Client) -> None:
    first = client.head(ZOO)
    client.commit(ZOO, {"a.txt": b"1"}, title="a", parent=first)
    with pytest.raises(RaceError) as caught:
        client.commit(ZOO, {"b.txt": b"1"}, title="b", parent=first)
    assert not caught.value.unanswered


def test_a_lost_answer_is_distinguished_from_a_lost_race(client: Client, server: Hosted) -> None:
    first = client.head(ZOO)
    with inject_faults(server, at=(0,), kinds=("lost",), operations=("commit",)), pytest.raises(RaceError) as caught:
        client.commit(ZOO, {"a.txt": b"1"}, title="a", parent=first)
    assert caught.value.unanswered and "a.txt" in client.files(ZOO)


@pytest.mark.parametrize("kind", ["broken", "limited", "reset"])
def test_transient_failures_are_tried_again(client: Client, server: Hosted, kind: str) -> None:
    with inject_faults(server, rate=0.3, seed=4, kinds=(kind,), operations=("info", "commit", "preupload"), wait=0.0):
        first = client.head(ZOO)
        made = client.commit(ZOO, {"a.txt": b"1"}, title="a", parent=first)
        assert client.head(ZOO) == made.commit
    assert server.faults.injected


def test_a_long_wait_for_a_hub_is_said(client: Client, server: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckptzoo.remote.retry.SILENT_SECONDS", 0.0)
    monkeypatch.setattr("ckptzoo.remote.retry._said", -SAID_SECONDS)
    with (
        inject_faults(server, at=(0,), kinds=("broken",), operations=("info",)),
        pytest.warns(UserWarning, match=r"revision main: expected an answer, got .* Trying again in 1 s\.$"),
    ):
        client.head(ZOO)


def test_pull_requests_are_opened_once_read_discussed_and_merged(client: Client, server: Hosted) -> None:
    stranger = client_of(server, "contribute")
    assert (stranger.whoami().name, stranger.whoami().role) == ("stranger", "contribute")
    with inject_faults(server, at=(0,), kinds=("lost",), operations=("commit",)):
        number, url = stranger.pull_requests.propose(
            ZOO, {"p/a.safetensors": noise(500)}, title="Mine", description="**Why**"
        )
    assert (number, url) == (1, None)  # no hub but the public one is known to have pages
    assert [item.number for item in client.pull_requests.listed(ZOO)] == [1]
    found = client.pull_requests.read(ZOO, 1)
    assert (found.title, found.author, found.status, found.revision) == ("Mine", "stranger", "open", "refs/pr/1")
    assert found.comments[0].text == "**Why**" and found.conflicts == () and found.merged is None
    assert "p/a.safetensors" in client.files(ZOO, "refs/pr/1") and "p/a.safetensors" not in client.files(ZOO)
    with inject_faults(server, at=(0,), kinds=("lost",), operations=("discussion",)):
        client.pull_requests.comment(ZOO, 1, "Looks right.")
    assert [item.text for item in client.pull_requests.read(ZOO, 1).comments] == ["**Why**", "Looks right."]
    with inject_faults(server, at=(0,), kinds=("lost",), operations=("merge",)):
        merged = client.pull_requests.merge(ZOO, 1)
    assert merged == client.head(ZOO) and client.pull_requests.read(ZOO, 1).status == "merged"
    assert client.pull_requests.listed(ZOO) == [] and len(client.pull_requests.listed(ZOO, status="all")) == 1


def test_a_conflict_is_named(client: Client, server: Hosted) -> None:
    number, _ = client.pull_requests.propose(ZOO, {"a.txt": b"theirs"}, title="Theirs", description="")
    client.commit(ZOO, {"a.txt": b"ours"}, title="ours", parent=client.head(ZOO))
    assert client.pull_requests.read(ZOO, number).conflicts == ("a.txt",)
    with pytest.raises(HubError, match=r"merge of pull request 1: .*conflicts in a\.txt"):
        client.pull_requests.merge(ZOO, number)


def test_repositories_are_found_by_tags_and_text(client: Client) -> None:
    card = b"---\nlicense: mit\ntags: [ckptzoo, 'arch:optunet']\n---\n"
    head = client.commit(ZOO, {"README.md": card}, title="card", parent=client.head(ZOO)).commit
    client.create("lab/other")
    (found,) = client.search(["ckptzoo", "arch:optunet"])
    assert (found.id, found.sha, found.card["license"]) == (ZOO, head, "mit")
    assert {"ckptzoo", "arch:optunet"} <= set(found.tags) and found.updated is not None and not found.private
    assert [item.id for item in client.search([], text="oth")] == ["lab/other"]
    assert client.search(["ckptzoo", "arch:mlp"]) == [] and len(client.search([], limit=1)) == 1


def test_private_repositories_need_a_token(client: Client, server: Hosted) -> None:
    client.create("lab/hidden", private=True)
    assert client.find("lab/hidden") is not None
    assert Client(server.url).find("lab/hidden") is None


def refusal(error: HubError, server: Hosted) -> str:
    text = str(error)
    assert ": expected " in text and ", got " in text
    assert not any(token in text for token in server.tokens.values()) and "/_uploads" not in text
    return text


def test_refusals_say_what_to_do(client: Client, server: Hosted) -> None:
    def said(of: Client, repo: str = ZOO) -> str:
        with pytest.raises(HubError) as caught:
            of.commit(repo, {"a.safetensors": noise(10)}, title="a", parent="0" * 40)
        return refusal(caught.value, server)

    assert "may read). Use a token that may write there." in said(client_of(server, "read"))
    assert "Log in with hf auth login" in said(Client(server.url, "hf_wrong"))
    assert "Log in with hf auth login" in said(Client(server.url))
    assert "Check the name" in said(client, "lab/none")
    with pytest.raises(NotThereError, match="revision gone: expected something that is there") as gone:
        client.listing(ZOO, "gone")
    assert code_of(gone.value) == 2 and code_of(HubError(gone.value.problem)) == 5
    with pytest.raises(HubError, match="token: expected a token, got none"):
        Client(server.url).whoami()
    with pytest.raises(HubError, match="expected permission to do so, got status 403"):
        client_of(server, "read").create("lab/mine")
    assert repr(client) == f"Client({server.url!r})"


def test_only_the_public_hub_is_known_to_have_pages(client: Client) -> None:
    assert Client("https://huggingface.co/").page(ZOO) == f"https://huggingface.co/datasets/{ZOO}"
    assert client.page(ZOO) is None and client.listing(ZOO).private is False


def test_no_server_is_reported_in_time() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(HubError, match=r"expected an answer, got ConnectError.*Check the network"):
        Client(url, "hf_x", retry_policy=HubRetryPolicy(max_attempts=2, first_pause=0.01)).head(ZOO)


def test_a_server_that_falls_silent_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(HubError, match="expected an answer, got ReadTimeout"):
            Client(url, "hf_x", retry_policy=HubRetryPolicy(max_attempts=2, first_pause=0.01, read_timeout=0.3)).head(
                ZOO
            )
        assert time.monotonic() - began < 5


def test_a_hub_that_asks_for_too_long_a_wait_is_given_up(client: Client, server: Hosted) -> None:
    files = {"a.safetensors": noise(100)}
    first = client.head(ZOO)
    with inject_faults(server, rate=1.0, kinds=("limited",), operations=("preupload",), wait=3600.0):
        began = time.monotonic()
        with pytest.raises(HubError, match="expected a pause of at most 660 s, got 3600 s"):
            client.commit(ZOO, files, title="a", parent=first)
        assert time.monotonic() - began < 5


def test_the_session_is_left_as_it_was(client: Client) -> None:
    from huggingface_hub import get_session

    hooks = {name: list(listed) for name, listed in get_session().event_hooks.items()}
    with pytest.raises(HubError):
        client.listing("lab/none")
    assert get_session().event_hooks == hooks
    assert logging.getLogger("huggingface_hub._commit_api").filters == []


def test_plain_hubs_are_not_asked_for_xet_storage(
    client: Client, server: Hosted, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("hf_xet")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", False)
    client.commit(ZOO, {"a.safetensors": noise(100)}, title="a", parent=client.head(ZOO))
    assert "a.safetensors" in client.files(ZOO)
    assert not [entry for entry in server.request_log.entries if "xet" in entry.path] and "Xet" not in caplog.text


INTERRUPTED = """
import signal
import sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started without it
from ckptzoo.hub.client import Client
client = Client(sys.argv[1], sys.argv[2])
print("ready", flush=True)
try:
    client.commit("lab/zoo", {"a.safetensors": Path(sys.argv[3])}, title="a", parent=client.head("lab/zoo"))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_an_interrupt_ends_an_upload_soon(client: Client, server: Hosted, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(noise(3_000_000))
    with inject_faults(server, rate=1.0, kinds=("stall",), operations=("part",), wait=1.0):
        command = [sys.executable, "-c", INTERRUPTED, server.url, server.tokens["write"], str(tmp_path / "a")]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ
        )
        try:
            deadline = threading.Event()
            while server.request_log.count("batch") == 0 and process.poll() is None:
                deadline.wait(0.05)
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert "interrupted" in out and "a.safetensors" not in client.files(ZOO)
