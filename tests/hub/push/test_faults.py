"""Pushes that meet every fault: they succeed or say why not, and what is there is a valid zoo."""

import errno
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import ckptzoo
from ckptzoo.errors import HubError, ZooError
from ckptzoo.hub.client.retry import HubRetryPolicy
from ckptzoo.hub.push import push
from tests.support.effort import ALL
from tests.support.hosted import ZOO, Hosted
from tests.support.hub_zoos import (
    assert_same_except_generated,
    downloaded,
    grown,
    inject_faults,
    own_commits,
    pushed,
    repeated_uploads,
)
from tests.support.server_layers import FAULT_KINDS

Make = Callable[..., Path]
QUICK = HubRetryPolicy(first_pause=0.01, read_timeout=5.0)
pytestmark = pytest.mark.usefixtures("hasty")


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.sampled(2)
def test_a_server_that_cannot_write_says_so(server: Hosted, make_zoo: Make, tmp_path: Path, full: bool) -> None:
    zoo = make_zoo()
    whole, limit = server.service.blobs.arrive, 3
    count = iter(range(10_000))

    def arrive(size: int) -> object:
        if next(count) >= limit:
            raise OSError(errno.ENOSPC if full else errno.EIO, "no")
        return whole(size)

    server.service.blobs.arrive = arrive  # pyright: ignore[reportAttributeAccessIssue]
    expected = "room on the hub's disk, got status 507" if full else "an answer, got status 500"
    with pytest.raises(HubError, match=expected) as caught:
        pushed(server, zoo, retry_policy=HubRetryPolicy(first_pause=0.01, max_attempts=2))
    assert "/_uploads" not in str(caught.value)
    del server.service.blobs.arrive
    assert len(pushed(server, zoo).parts) == 2 and repeated_uploads(server) == []
    assert_same_except_generated(zoo, downloaded(server, tmp_path))


@pytest.mark.exhaustive  # by default tests/faults/test_matrix.py samples it, operations "push" and "grow"
@pytest.mark.parametrize("kind", sorted(FAULT_KINDS))
def test_faults_now_and_then_cost_nothing(server: Hosted, make_zoo: Make, tmp_path: Path, kind: str) -> None:
    """A push either succeeds or says why not; what is there is a valid zoo, and the next push completes it."""
    zoo = make_zoo("zoo", (2,))
    pushed(server, zoo)
    grown(zoo, (1, 2), start=1)
    with inject_faults(server, seed=3, rate=0.25, kinds=(kind,), wait=0.2):
        try:
            pushed(server, zoo, retry_policy=QUICK)
        except ZooError as error:
            assert "expected" in str(error) and not any(token in str(error) for token in server.tokens.values())
            assert kind in ("wrong", "short", "whole", "stale"), error
    down = downloaded(server, tmp_path)
    assert ckptzoo.verify(down) == []
    pushed(server, zoo)
    down = downloaded(server, tmp_path)
    assert_same_except_generated(zoo, down)
    assert ckptzoo.verify(down) == [] and len(own_commits(server)) <= 3


@pytest.mark.parametrize("kind", ["broken", "reset", "limited", "expired"] if ALL else ["reset"])
def test_faults_without_end_are_an_error_in_time(server: Hosted, make_zoo: Make, tmp_path: Path, kind: str) -> None:
    zoo = make_zoo()
    began = time.monotonic()
    with (
        inject_faults(server, rate=1.0, kinds=(kind,), operations=("upload", "part", "commit"), wait=0.0),
        pytest.raises(HubError) as caught,
    ):
        push(
            zoo,
            ZOO,
            endpoint=server.url,
            token=server.tokens["write"],
            retry_policy=HubRetryPolicy(max_attempts=3, first_pause=0.01),
        )
    assert "Try again" in str(caught.value) or "try again" in str(caught.value)
    assert time.monotonic() - began < 20
    pushed(server, zoo)  # where the answer was lost with the connection, the commit is there already
    assert len(own_commits(server)) == 1 and ckptzoo.verify(downloaded(server, tmp_path)) == []
