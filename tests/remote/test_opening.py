"""``open_remote``: an address opens its zoo; what was read once is read from the cache, also offline."""

import hashlib
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest

from ckptzoo.errors import AbsentError, IntegrityError, OfflineError, RemoteError
from ckptzoo.format.maintenance import LISTING, describe
from ckptzoo.remote.cache import blobs_of, cached_zoos
from ckptzoo.remote.remote import Remote, open_remote
from ckptzoo.remote.retry import RetryPolicy
from ckptzoo.remote.stores import decode
from ckptzoo.schema.documents import seal
from ckptzoo.schema.layout import Span
from tests.remote.test_stores import entries_of, listing_of, write
from tests.support.serving import COMMIT, Served, hub, running

Files = dict[str, bytes]
SHARD = "parts/000001-0123abcd/raw-00.safetensors"
INDEX = "parts/000001-0123abcd/index.parquet"


def blocks_of(files: Files, count: int = 4) -> list[Span]:
    step = len(files[SHARD]) // count
    return [
        Span(SHARD, at, at + step, hashlib.sha256(files[SHARD][at : at + step]).digest())
        for at in range(0, len(files[SHARD]), step)
    ]


@pytest.fixture
def front(files: Files) -> Iterator[Served]:
    with hub(files) as (server, _):
        yield server


@pytest.fixture
def static(files: Files) -> Iterator[Served]:
    served = {f"/zoo/{name}": data for name, data in files.items()}
    with running(Served({**served, f"/zoo/{LISTING}": listing_of(files)})) as server:
        yield server


def test_a_folder_wins_over_a_repository(
    front: Served, files: Files, quick: RetryPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_remote("org/zoo", endpoint=front.url, retry_policy=quick).revision == COMMIT
    asked = len(front.seen)
    (tmp_path / "org/zoo").mkdir(parents=True)
    (tmp_path / "org/zoo/zoo.json").write_bytes(b"mine")
    for address in ("org/zoo", tmp_path / "org/zoo"):
        mine = open_remote(address, endpoint=front.url, retry_policy=quick)
        assert mine.read("zoo.json", max_bytes=10) == b"mine" and mine.cache is None
    assert len(front.seen) == asked


def test_when_neither_is_there_both_are_named(
    front: Served, quick: RetryPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AbsentError, match=r"org/none \(nothing\); hf://datasets/org/none \(status 404\)"):
        open_remote("org/none", endpoint=front.url, retry_policy=quick)
    with pytest.raises(AbsentError, match="got nothing"):
        open_remote("nothing", retry_policy=quick)
    (tmp_path / "file").write_text("")
    with pytest.raises(AbsentError, match="a file"):
        open_remote("file", retry_policy=quick)


def test_a_near_name_of_a_folder_is_said_before_a_hub_is_asked(
    front: Served, quick: RetryPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "optunet").mkdir(parents=True)
    (tmp_path / "org" / "optunet" / "zoo.json").write_text("{}")
    asked = len(front.seen)
    with pytest.raises(AbsentError, match=r"got a file\. Name the folder that it is in: org/optunet"):
        open_remote("org/optunet/zoo.json", retry_policy=quick)
    for address in ("org/optunett", "org/optnet", str(tmp_path / "org" / "optunett")):
        with pytest.raises(AbsentError, match=r"Did you mean .*org/optunet\?"):
            open_remote(address, endpoint=front.url, retry_policy=quick)
    assert len(front.seen) == asked
    with pytest.raises(AbsentError, match="status 404"):
        open_remote("org/none", endpoint=front.url, retry_policy=quick)


def test_a_server_without_a_listing_says_how_to_write_one(quick: RetryPolicy) -> None:
    with (
        running(Served({"/zoo/zoo.json": b"{}"})) as server,
        pytest.raises(AbsentError, match="ckptzoo compact ZOO --index"),
    ):
        open_remote(f"{server.url}/zoo", retry_policy=quick)


def check_reads(remote: Remote, files: Files) -> None:
    wanted = blocks_of(files)
    for name in ("zoo.json", INDEX, "empty"):
        assert remote.read(name, max_bytes=10_000) == files[name]
    assert b"".join(remote.in_order(wanted)) == files[SHARD]
    assert {at: bytes(data) for at, data in remote.as_ready(wanted)} == {
        at: files[SHARD][block.start : block.stop] for at, block in enumerate(wanted)
    }


@pytest.mark.parametrize("kind", ["hub", "static", "s3-like"])
def test_what_was_read_once_is_not_fetched_again_and_serves_offline(
    front: Served,
    static: Served,
    files: Files,
    quick: RetryPolicy,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    kind: str,
) -> None:
    address = {"hub": "hf://datasets/org/zoo", "static": f"{static.url}/zoo", "s3-like": f"file://{tmp_path}/there"}[
        kind
    ]
    for name, data in {**files, LISTING: listing_of(files)}.items():
        (tmp_path / "there" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "there" / name).write_bytes(data)
    first = open_remote(address, endpoint=front.url, retry_policy=quick)
    first.read("zoo.json", max_bytes=100)
    list(first.in_order(blocks_of(files)[:2]))
    check_reads(first, files)
    asked = len(front.seen), len(static.seen)
    check_reads(first, files)
    assert (len(front.seen), len(static.seen)) == asked
    check_reads(open_remote(address, endpoint=front.url, retry_policy=quick), files)
    assert len(front.seen) + len(static.seen) <= sum(asked) + 1  # the listing

    monkeypatch.setenv("CKPTZOO_OFFLINE", "1")
    asked = len(front.seen), len(static.seen)
    offline = open_remote(address, endpoint=front.url, retry_policy=quick)
    assert offline.revision == first.revision
    check_reads(offline, files)
    check_reads(ForkingPickler.loads(ForkingPickler.dumps(offline)), files)
    assert (len(front.seen), len(static.seen)) == asked
    with pytest.raises(OfflineError, match=r"a name with.*3 bytes missing"):
        offline.read("a name with spaces & signs %.txt", max_bytes=10)
    lacking = [Span(SHARD, 0, 100, bytes(32)), *blocks_of(files), Span(INDEX, 0, 50, bytes(32))]
    with pytest.raises(OfflineError, match=r"2 blocks: expected in the cache, got 150 bytes missing of parts.*raw-00"):
        next(offline.in_order(lacking))
    with pytest.raises(OfflineError, match="revision v2: expected in the cache"):
        open_remote("hf://datasets/org/zoo@v2", endpoint=front.url, retry_policy=quick)


def test_a_commit_is_asked_for_once(front: Served, quick: RetryPolicy) -> None:
    open_remote("hf://datasets/org/zoo", endpoint=front.url, retry_policy=quick)
    asked = len(front.seen)
    assert open_remote(f"hf://datasets/org/zoo@{COMMIT}", endpoint=front.url, retry_policy=quick).revision == COMMIT
    assert len(front.seen) == asked


def test_damage_in_the_cache_is_mended(static: Served, files: Files, quick: RetryPolicy, cache: Path) -> None:
    remote = open_remote(f"{static.url}/zoo", retry_policy=quick)
    check_reads(remote, files)
    for number, blob in enumerate(blobs_of(cache)):
        blob.path.unlink() if number % 2 else blob.path.write_bytes(b"?" * blob.nbytes)
    asked = len(static.seen)
    check_reads(remote, files)
    assert len(static.seen) > asked
    asked = len(static.seen)
    check_reads(remote, files)
    assert len(static.seen) == asked


def test_a_zoo_that_has_gone_is_kept(static: Served, quick: RetryPolicy, cache: Path) -> None:
    open_remote(f"{static.url}/zoo", retry_policy=quick).read("zoo.json", max_bytes=100)
    static.files.clear()
    with pytest.raises(AbsentError):
        open_remote(f"{static.url}/zoo", retry_policy=quick)
    assert [item.gone for item in cached_zoos(cache)] == [True]


def test_whole_files_are_bounded_and_checked(static: Served, files: Files, quick: RetryPolicy) -> None:
    remote = open_remote(f"{static.url}/zoo", retry_policy=quick)
    with pytest.raises(IntegrityError, match="at most 2999 bytes"):
        remote.read(INDEX, max_bytes=2999)
    with pytest.raises(AbsentError, match="nothing"):
        remote.read("nothing", max_bytes=10)
    static.files[f"/zoo/{INDEX}"] = bytes(3000)
    asked = len(static.seen)
    with pytest.raises(IntegrityError, match="another, twice"):
        remote.read(INDEX, max_bytes=3000)
    assert len(static.seen) == asked + 2
    static.files[f"/zoo/{INDEX}"] = files[INDEX] + b"x"
    with pytest.raises(RemoteError):
        remote.read(INDEX, max_bytes=3000)


def test_several_files_at_once_and_spans(static: Served, files: Files, quick: RetryPolicy) -> None:
    remote = open_remote(f"{static.url}/zoo", retry_policy=quick)
    names = ["zoo.json", INDEX, "empty"]
    assert remote.read_many(names, max_bytes=10_000) == [files[name] for name in names]
    assert remote.read_many([], max_bytes=1) == []
    with pytest.raises(AbsentError, match="nothing"):
        remote.read_many(["zoo.json", "nothing"], max_bytes=10_000)
    assert remote.span(SHARD, 10, 99) == files[SHARD][10:99]
    asked = len(static.seen)
    assert remote.span(SHARD, 10, 99) == files[SHARD][10:99]
    assert len(static.seen) == asked + 1


def test_a_folder_is_described_as_it_is(files: Files, tmp_path: Path) -> None:
    root = write(files, tmp_path / "zoo")
    data = describe(root, {})
    assert data == listing_of({name: data for name, data in files.items() if name[:4] in ("zoo.", "part")})
    (root / LISTING).write_bytes(data)
    assert describe(root, {}) == data
    claimed = "0" * 64
    assert decode(describe(root, {SHARD: claimed}), location="zoo")[0][SHARD].digest == f"sha256:{claimed}"


def test_a_listing_is_sealed_and_says_what_it_holds(files: Files) -> None:
    data = listing_of(files)
    entries, digest = decode(data, location="zoo")
    assert list(entries.values()) == sorted(entries_of(files), key=lambda entry: entry.name)
    assert digest.startswith("sha256:") and digest.encode() in data
    assert listing_of(dict(reversed(files.items()))) == data
    with pytest.raises(IntegrityError, match="digest"):
        decode(data.replace(b'"empty":[0', b'"empty":[1'), location="zoo")
    for bad in (
        {"../x": [1, None]},
        {"x": [1]},
        {"x": [-1, None]},
        {"x": ["1", None]},
        {"x": [1, "ab"]},
        {"x": [True, None]},
    ):
        with pytest.raises(IntegrityError):
            decode(seal({"files": bad, "version": 1}), location="zoo")
    with pytest.raises(IntegrityError, match="Upgrade"):
        decode(seal({"files": {}, "version": 2}), location="zoo")
