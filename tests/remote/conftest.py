"""Files that the tests of this package share, and a cache of each test's own."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ckptzoo.remote.retry import RetryPolicy


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of this test's cache; nothing of the machine's environment matters."""
    for name in ("CKPTZOO_OFFLINE", "HF_HUB_OFFLINE", "CKPTZOO_CACHE_SIZE", "HF_TOKEN", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setenv("CKPTZOO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def quick() -> RetryPolicy:
    """A retry policy for tests: short pauses, and the end after a second."""
    return RetryPolicy(deadline=1.0, connection_deadline=0.4, first_pause=0.01, max_server_wait=2.0)


@pytest.fixture(scope="session")
def files() -> dict[str, bytes]:
    """A zoo's files in small, with a shard of 1 MiB."""
    random = np.random.default_rng(7)
    return {
        "zoo.json": b'{"format":"ckptzoo"}\n',
        "parts/000001-0123abcd/index.parquet": random.bytes(3000),
        "parts/000001-0123abcd/raw-00.safetensors": random.bytes(2**20),
        "a name with spaces & signs %.txt": b"odd",
        "empty": b"",
    }


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of 127.0.0.1, localhost and public.example, and its key, in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=127.0.0.1"
    names = "IP:127.0.0.1,DNS:localhost,DNS:public.example"
    command += f" -addext subjectAltName={names} -keyout key.pem -out cert.pem"
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    (folder / "both.pem").write_bytes((folder / "key.pem").read_bytes() + (folder / "cert.pem").read_bytes())
    return folder / "both.pem"
