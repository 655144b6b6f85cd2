"""Contributions, reviews and merges that meet every fault: done once, or an error that says what to do."""

from collections.abc import Callable
from pathlib import Path

import pytest

import ckptzoo
from ckptzoo.errors import ZooError
from ckptzoo.hub.client.retry import HubRetryPolicy
from ckptzoo.hub.contributions.contribute import contribute
from ckptzoo.hub.contributions.result import Contribution
from ckptzoo.hub.contributions.review import Review, review
from tests.support.effort import ALL
from tests.support.hosted import ZOO, Hosted
from tests.support.hub_zoos import downloaded, inject_faults, pushed
from tests.support.server_layers import FAULT_KINDS
from tests.support.untrusted_files import card_of, heldout_in, saved, state_of

QUICK = HubRetryPolicy(first_pause=0.01, read_timeout=5.0)


@pytest.fixture(autouse=True)
def hasty(hasty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """So do readers of the zoo."""
    monkeypatch.setattr("ckptzoo.remote.retry.RetryPolicy.pause", lambda *_: 0.01)


# by default tests/faults/test_matrix.py samples the others, operations "contribute" and "merge"
@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", sorted(FAULT_KINDS) if ALL else ["lost"])
def test_every_fault(server: Hosted, make_zoo: Callable[..., Path], tmp_path: Path, kind: str) -> None:
    """Whatever fails, nothing is doubled, nothing wrong is merged, and the same command again completes it."""
    pushed(server, make_zoo("zoo", (2,)))
    data, file, card = (
        heldout_in(tmp_path / "data"),
        saved(tmp_path / "one.safetensors", state_of(1)),
        card_of(tmp_path),
    )

    def bring() -> Contribution:
        how = {"data": data, "endpoint": server.url, "retry_policy": QUICK}
        return contribute([file], to=ZOO, card=card, token=server.tokens["contribute"], **how)

    def merge() -> Review:
        how = {"data": data, "endpoint": server.url, "retry_policy": QUICK}
        return review(ZOO, 1, merge=True, token=server.tokens["write"], **how)

    met: list[str] = []
    where = {"at": (0,)} if kind == "conflict" else {"rate": 0.25}
    for act, ends in ((bring, ("proposed", "open")), (merge, ("open", "merged"))):
        with inject_faults(server, seed=4, kinds=(kind,), wait=0.2, **where):
            try:
                assert act().status in ends
            except ZooError as error:
                assert "expected" in str(error) and not any(token in str(error) for token in server.tokens.values())
            met += [item.operation for item in server.faults.injected]
        assert act().status in ends
    assert met
    assert [item.num for item in server.api().get_repo_discussions(ZOO, repo_type="dataset")] == [1]
    down = downloaded(server, tmp_path)
    assert ckptzoo.verify(down) == [] and ckptzoo.open(down).ids == ["m0-0", "m0-1", "stranger/one"]
