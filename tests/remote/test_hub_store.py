"""A repository is pinned, a file resolved once, its signed address kept and refreshed, the token sent to the hub only."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ckptzoo.errors import AbsentError, RemoteError
from ckptzoo.remote.address import HubAddress
from ckptzoo.remote.hub_store import HubStore, expiry
from ckptzoo.remote.retry import RetryPolicy, read_range
from ckptzoo.remote.stores import CancelToken
from tests.support.serving import COMMIT, Fault, HubHandler, Served, hub

SHARD = "parts/000001-0123abcd/raw-00.safetensors"
Both = tuple[Served, Served]


@pytest.fixture
def both(files: dict[str, bytes]) -> Iterator[Both]:
    with hub(files) as servers:
        yield servers


def opened(front: Served, quick: RetryPolicy, **place: str) -> HubStore:
    return HubStore.opened(HubAddress("org/zoo", **place), retry_policy=quick, endpoint=front.url)


def read(store: HubStore, name: str, start: int, stop: int, retry_policy: RetryPolicy) -> bytes:
    return b"".join(read_range(store, name, start, stop, retry_policy=retry_policy, cancel=CancelToken()))


def resolves(front: Served) -> int:
    return sum("/resolve/" in item.path for item in front.seen)


def test_opening_is_one_request_and_pins_the_commit(both: Both, quick: RetryPolicy) -> None:
    store = opened(both[0], quick, revision="refs/pr/1")
    assert store.revision == COMMIT
    assert [item.path for item in both[0].seen] == ["/api/datasets/org/zoo/revision/refs%2Fpr%2F1?blobs=true"]
    assert store.address == f"hf://datasets/org/zoo at {both[0].url}"


def test_a_file_is_resolved_once(both: Both, files: dict[str, bytes], quick: RetryPolicy) -> None:
    store = opened(both[0], quick)
    for start in (5, 500, 50_000):
        assert read(store, SHARD, start, start + 10, quick) == files[SHARD][start : start + 10]
        assert read(store, "zoo.json", 2, 9, quick) == files["zoo.json"][2:9]
    assert resolves(both[0]) == 1 + 3  # a small file is answered where it is resolved
    assert len(both[1].seen) == 3
    assert [item.range for item in both[1].seen] == ["bytes=5-14", "bytes=500-509", "bytes=50000-50009"]


def test_an_address_that_was_refused_is_resolved_again(both: Both, files: dict[str, bytes], quick: RetryPolicy) -> None:
    store = opened(both[0], quick)
    read(store, SHARD, 0, 10, quick)
    both[1].faults.append(Fault("forbidden", 1))
    assert read(store, SHARD, 5, 15, quick) == files[SHARD][5:15]
    assert resolves(both[0]) == 2


def test_an_address_that_expires_is_resolved_again(both: Both, files: dict[str, bytes], quick: RetryPolicy) -> None:
    store = opened(both[0], quick)
    read(store, SHARD, 0, 10, quick)
    (name,) = store._signed  # pyright: ignore[reportPrivateUsage]
    store._signed[name] += f"&Expires={time.time():.0f}"  # pyright: ignore[reportPrivateUsage]
    store._signed[name] = store._signed[name].replace("Expires=", "Was=", 1)  # pyright: ignore[reportPrivateUsage]
    assert read(store, SHARD, 5, 15, quick) == files[SHARD][5:15]
    assert resolves(both[0]) == 2 and len(both[1].seen) == 2


def test_an_address_that_is_refused_for_ever_ends(both: Both, quick: RetryPolicy) -> None:
    store = opened(both[0], quick)
    both[1].faults.append(Fault("forbidden", 10**9))
    with pytest.raises(RemoteError, match="permission to read it"):
        read(store, SHARD, 0, 10, quick)


def test_the_token_goes_to_the_hub_and_nowhere_else(
    files: dict[str, bytes], quick: RetryPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", HubHandler.token)
    with hub(files, private=True) as (front, other):
        store = opened(front, quick)
        assert read(store, SHARD, 0, 10, quick) == files[SHARD][:10]
        assert all(item.headers.get("Authorization") == f"Bearer {HubHandler.token}" for item in front.seen)
        assert other.seen and not any("Authorization" in item.headers for item in other.seen)
        assert HubHandler.token not in repr(store.__getstate__())
        monkeypatch.delenv("HF_TOKEN")
        with pytest.raises(AbsentError, match=r"one that is there and may be read.*hf auth login"):
            opened(front, quick)


def test_what_is_not_there(both: Both, quick: RetryPolicy) -> None:
    with pytest.raises(AbsentError, match="revision: expected one that is there"):
        opened(both[0], quick, revision="nope")
    with pytest.raises(AbsentError, match="hf://datasets/org/other: repository"):
        HubStore.opened(HubAddress("org/other"), retry_policy=quick, endpoint=both[0].url)
    with pytest.raises(AbsentError, match="no file in it"):
        opened(both[0], quick, folder="nowhere")


def test_a_folder_of_a_repository(both: Both, files: dict[str, bytes], quick: RetryPolicy) -> None:
    store = opened(both[0], quick, folder="parts/000001-0123abcd")
    assert list(store.entries) == ["index.parquet", "raw-00.safetensors"]
    assert read(store, "raw-00.safetensors", 7, 99, quick) == files[SHARD][7:99]


def test_a_busy_hub_is_asked_again(both: Both, quick: RetryPolicy) -> None:
    both[0].faults += [Fault("limited", 1, path="/api/", wait="0"), Fault("down", 1, path="/api/")]
    assert opened(both[0], quick).revision == COMMIT
    both[0].faults.append(Fault("down", 10**9, path="/api/"))
    with pytest.raises(RemoteError, match="status 503"):
        opened(both[0], quick)


def test_an_answer_that_makes_no_sense(both: Both, quick: RetryPolicy) -> None:
    both[0].faults.append(Fault("", 9, path="/api/"))  # empty bodies
    with pytest.raises(RemoteError, match="a commit and its files"):
        opened(both[0], quick)


def test_when_a_signed_address_ends() -> None:
    assert expiry("https://c/x?Expires=1700000000&Signature=a") == 1_700_000_000
    assert expiry("https://s/x?X-Amz-Date=20240101T000000Z&X-Amz-Expires=3600") == 1_704_067_200 + 3600
    assert expiry("https://s/x") == float("inf") == expiry("https://s/x?Expires=soon")


@pytest.mark.parametrize("kind", ["", "hangup", "down", "forbidden", "short", "busy"])
def test_a_file_that_many_ask_for_at_once_is_resolved_once_and_again_after_a_failure(
    both: Both, files: dict[str, bytes], quick: RetryPolicy, kind: str
) -> None:
    store = opened(both[0], quick)
    both[1].faults.extend([Fault(kind)] if kind else [])
    with ThreadPoolExecutor(8) as pool:
        starts = [7 * number for number in range(24)]
        found = list(pool.map(lambda start: read(store, SHARD, start, start + 100, quick), starts))
    assert found == [files[SHARD][start : start + 100] for start in starts]
    assert 1 <= resolves(both[0]) <= (1 if not kind else 9)
