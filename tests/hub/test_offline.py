"""Offline, nothing is asked of a hub."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ckptzoo.errors import OfflineError
from ckptzoo.hub.client import Client
from ckptzoo.hub.contributions.contribute import contribute
from ckptzoo.hub.contributions.review import review
from ckptzoo.hub.push import plan, push, rewrite
from ckptzoo.hub.search import search
from tests.support.hosted import ZOO, Hosted
from tests.support.untrusted_files import card_of, saved, state_of


@pytest.mark.parametrize("name", ["CKPTZOO_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_nothing_is_asked(
    server: Hosted, make_zoo: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    zoo, file = make_zoo(), saved(tmp_path / "one.safetensors", state_of(1))
    url, token = server.url, server.tokens["write"]
    acts: list[Callable[[], object]] = [
        lambda: Client(url),
        lambda: push(zoo, ZOO, endpoint=url, token=token),
        lambda: plan(zoo, ZOO, endpoint=url, token=token),
        lambda: review(ZOO, 1, endpoint=url, token=token),
        lambda: rewrite(ZOO, endpoint=url, token=token),
        lambda: search(endpoint=url),
        lambda: contribute([file], to=ZOO, card=card_of(tmp_path), endpoint=url, token=token),
    ]
    monkeypatch.setenv(name, "1")
    for act in acts:
        with pytest.raises(OfflineError, match=r"got offline mode\. Unset CKPTZOO_OFFLINE and HF_HUB_OFFLINE"):
            act()
    assert server.request_log.entries == []
