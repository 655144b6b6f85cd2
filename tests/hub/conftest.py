"""A server for each test, clients that keep to the test's folder, and small zoos."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("huggingface_hub")

from tests.hub.made import zoo_of
from tests.server.hosted import Hosted, hosted

HERE = Path(__file__).parent
UNSET = (
    "CKPTZOO_OFFLINE",
    "CKPTZOO_CACHE_SIZE",
    "HF_ENDPOINT",
    "HF_HUB_OFFLINE",
    "HF_TOKEN",
    "HTTP_PROXY",
    "http_proxy",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The client library warns of itself when it uploads large files; tests of this folder let it."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"))


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Clients keep caches and tokens in the test's folder and draw no bars; nothing of the environment matters."""
    for name in UNSET:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CKPTZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr("huggingface_hub.constants.HF_STORED_TOKENS_PATH", str(tmp_path / "no-tokens"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_PROGRESS_BARS", True)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Hosted]:
    """A server with no repositories; ``server.tokens`` has one for each of the roles read, contribute and write."""
    with hosted(tmp_path / "served") as found:
        yield found


@pytest.fixture
def make_zoo(tmp_path: Path) -> Callable[..., Path]:
    """``make_zoo(name="zoo", parts=(3, 2), label="m")``: the folder of a new zoo of OptuNets with random weights."""

    def make(name: str = "zoo", parts: tuple[int, ...] = (3, 2), *, label: str = "m") -> Path:
        return zoo_of(tmp_path / name, parts, label=label)

    return make
