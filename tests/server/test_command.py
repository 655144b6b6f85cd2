"""``ckptzoo serve`` in a process of its own."""

import io
import json
import signal
import subprocess
import urllib.error
import urllib.request
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from ckptzoo.cli.app import run
from tests.support.effort import ALL
from tests.support.server_process import server_process


def run_serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    """``ckptzoo serve`` in this process: what starts no server needs none of its own."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = run(["serve", *arguments])
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def ask(url: str, token: str | None = None) -> tuple[int, bytes]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_tokens_are_made_and_revoked_while_it_runs(tmp_path: Path) -> None:
    with server_process(tmp_path, "--private") as (_, url):
        assert url.startswith("http://127.0.0.1:")
        results = {
            role: run_serve("token", "--root", str(tmp_path), "--user", role, f"--{role}")
            for role in ("write", "contribute")
        }
        results["read"] = run_serve("token", "--root", str(tmp_path), "--user", "read")
        for role, done in results.items():
            status, body = ask(f"{url}/api/whoami-v2", done.stdout.strip())
            assert status == 200 and json.loads(body)["auth"]["accessToken"]["role"] == role
        assert ask(f"{url}/api/datasets")[0] == 401
        assert "1 removed" in run_serve("token", "--root", str(tmp_path), "--user", "write", "--revoke").stdout
        assert ask(f"{url}/api/whoami-v2", results["write"].stdout.strip())[0] == 401
    assert exit_code(run_serve("token", "--root", str(tmp_path), "--write", "--revoke")) == 2
    assert exit_code(run_serve()) == 2


def test_accounts_are_made_and_listed(tmp_path: Path) -> None:
    root = ("--root", str(tmp_path))

    def listed(command: str, *arguments: str) -> list[dict[str, object]]:
        done = run_serve(command, *root, *arguments, "--json")
        assert done.returncode == 0, done.stderr
        (rows,) = (value for value in json.loads(done.stdout).values() if isinstance(value, list))
        return rows

    assert [item["name"] for item in listed("user", "ada")] == ["ada"]
    listed("org", "lab", "--member", "ada", "--role", "admin")
    assert listed("org", "--list")[0]["members"] == {"ada": "admin"}
    listed("user", "bob")
    assert listed("grant", "bob", "lab", "--role", "write") == [{"account": "bob", "role": "write", "target": "lab"}]
    assert listed("grant", "bob", "lab", "--revoke") == []
    made = run_serve("token", *root, "--user", "ada", "--write", "--name", "laptop", "--scope", "lab", "--days", "2")
    (token,) = listed("token", "--list")
    assert made.stdout.startswith("hf_") and (token["name"], token["scope"], token["used"]) == ("laptop", "lab", None)
    assert "1 removed" in run_serve("token", *root, "--user", "ada", "--revoke", "--number", "1").stdout
    assert listed("user", "ada", "--revoke")[0]["disabled"] is True and listed("org", "--list")[0]["members"] == {}
    for wrong in (("user",), ("grant", "bob"), ("grant", "--list", "bob")):
        assert exit_code(run_serve(wrong[0], *root, *wrong[1:])) == 2
    assert "Make it with ckptzoo serve user" in run_serve("org", *root, "lab", "--member", "nobody").stderr
    assert "expected one of read" in run_serve("org", *root, "lab", "--member", "bob", "--role", "king").stderr


def test_it_loads_no_library_of_arrays_or_tables(tmp_path: Path) -> None:
    """They would double its memory."""
    with server_process(tmp_path) as (process, url):
        assert ask(f"{url}/api/datasets")[0] == 200
        loaded = Path(f"/proc/{process.pid}/maps").read_text()
    assert "libpython" in loaded or "python" in loaded
    assert not any(library in loaded for library in ("pyarrow", "numpy", "torch"))


def exit_code(done: subprocess.CompletedProcess[str]) -> int:
    assert done.stdout == ""
    return done.returncode


def test_it_ends_when_it_is_interrupted(tmp_path: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM) if ALL else (signal.SIGINT,):
        with server_process(tmp_path) as (server, _):
            server.send_signal(number)
            out, err = server.communicate(timeout=20)
            assert (out, "Traceback" in err) == ("", False)
            assert server.returncode == 0
