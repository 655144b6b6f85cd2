"""The benchmark of the server runs through, and both servers answer; no time is judged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.exhaustive
def test_a_tiny_run_has_both_servers(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/server.py", "--connections", "5", "--seconds", "0.2", "--repeats", "2"]
    command += ["--megabytes", "2", "--folder", str(tmp_path), "--json", str(tmp_path / "server.json")]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    servers = json.loads((tmp_path / "server.json").read_text())["servers"]
    assert [server["name"] for server in servers] == ["ckptzoo serve", "static files"]
    assert all(len(server["rates"]) == 2 and min(server["rates"]) > 0 for server in servers)
