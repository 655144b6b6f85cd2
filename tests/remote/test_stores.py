"""One suite for every store; a folder of this machine is the reference."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest

from ckptzoo.errors import AbsentError, IntegrityError, RemoteError
from ckptzoo.format.maintenance import LISTING, encode
from ckptzoo.remote.address import HubAddress
from ckptzoo.remote.hub_store import HubStore
from ckptzoo.remote.retry import RetryPolicy, read_range
from ckptzoo.remote.stores import CancelToken, FileEntry, FilesystemStore, FolderStore, Store, listed
from ckptzoo.remote.web_store import StaticStore
from tests.support.serving import Served, hub, running

Files = dict[str, bytes]
SHARD = "parts/000001-0123abcd/raw-00.safetensors"


def entries_of(files: Files) -> list[FileEntry]:
    return [FileEntry(name, len(data), f"sha256:{hashlib.sha256(data).hexdigest()}") for name, data in files.items()]


def listing_of(files: Files) -> bytes:
    return encode({name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items()})


def write(files: Files, root: Path) -> Path:
    for name, data in {**files, ".hidden/x": b"x", "parts/.tmp-1": b"x"}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def of_folder(files: Files, root: Path, retry_policy: RetryPolicy) -> Iterator[Store]:
    yield FolderStore(write(files, root))


def of_file_address(files: Files, root: Path, retry_policy: RetryPolicy) -> Iterator[Store]:
    write(files, root)
    yield FilesystemStore(f"file://{root}")


def of_memory(files: Files, root: Path, retry_policy: RetryPolicy) -> Iterator[Store]:
    import fsspec

    system = fsspec.filesystem("memory")
    for name, data in {**files, ".hidden": b"x"}.items():
        system.pipe_file(f"/{root.name}/{name}", data)
    yield FilesystemStore(f"memory://{root.name}")
    system.rm(f"/{root.name}", recursive=True)


def of_static(files: Files, root: Path, retry_policy: RetryPolicy) -> Iterator[Store]:
    served = {f"/some/zoo/{name}": data for name, data in files.items()}
    served[f"/some/zoo/{LISTING}"] = listing_of(files)
    with running(Served(served)) as server:
        yield StaticStore.opened(f"{server.url}/some/zoo", retry_policy=retry_policy)


def of_hub(files: Files, root: Path, retry_policy: RetryPolicy) -> Iterator[Store]:
    with hub(files) as (front, _):
        yield HubStore.opened(HubAddress("org/zoo"), retry_policy=retry_policy, endpoint=front.url)


def of_paged_hub(files: Files, root: Path, retry_policy: RetryPolicy) -> Iterator[Store]:
    with hub(files, sizes=False) as (front, _):
        yield HubStore.opened(HubAddress("org/zoo"), retry_policy=retry_policy, endpoint=front.url)


Make = Callable[[Files, Path, RetryPolicy], Iterator[Store]]


@pytest.fixture(params=[of_folder, of_file_address, of_memory, of_static, of_hub, of_paged_hub])
def store(request: pytest.FixtureRequest, files: Files, tmp_path: Path, quick: RetryPolicy) -> Iterator[Store]:
    make: Make = request.param
    yield from make(files, tmp_path / "zoo-here", quick)


def whole(store: Store, name: str, start: int, stop: int) -> bytes:
    with contextlib.closing(store.get(name, start, stop, CancelToken())) as pieces:
        return b"".join(pieces)


def test_lists_every_file_with_its_size(store: Store, files: Files) -> None:
    assert {name: entry.size for name, entry in store.entries.items()} == {n: len(d) for n, d in files.items()}
    assert list(store.entries) == sorted(files)
    for name, entry in store.entries.items():
        if entry.digest and entry.digest.startswith("sha256:"):
            assert entry.digest == f"sha256:{hashlib.sha256(files[name]).hexdigest()}"
    assert store.revision


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (0, 2**20), (1, 2**20), (999_999, 1_000_001), (2**20 - 1, 2**20)])
@pytest.mark.sampled(2)
def test_ranges_are_exact(store: Store, files: Files, start: int, stop: int) -> None:
    assert whole(store, SHARD, start, stop) == files[SHARD][start:stop]
    assert whole(store, SHARD, start, stop) == files[SHARD][start:stop]


def test_whole_files(store: Store, files: Files) -> None:
    for name, data in files.items():
        assert whole(store, name, 0, len(data)) == data


def test_what_is_not_there_is_absent(store: Store) -> None:
    with pytest.raises(AbsentError, match="parts/nothing"):
        whole(store, "parts/nothing", 0, 10)


@pytest.mark.slow
def test_a_range_past_the_end_is_an_error(store: Store, files: Files, quick: RetryPolicy) -> None:
    size = len(files[SHARD])
    for start in (size - 10, size + 10):
        with pytest.raises(RemoteError):
            b"".join(read_range(store, SHARD, start, size + 20, retry_policy=quick, cancel=CancelToken()))


def test_another_process_can_have_it(store: Store, files: Files) -> None:
    whole(store, SHARD, 5, 10)
    again = ForkingPickler.loads(ForkingPickler.dumps(store))
    assert (again.address, again.revision, again.entries) == (store.address, store.revision, store.entries)
    assert whole(again, SHARD, 5, 10) == files[SHARD][5:10]


def test_a_reader_may_stop_in_the_middle(store: Store, files: Files) -> None:
    for _ in range(20):
        pieces = store.get(SHARD, 0, 2**20, CancelToken())
        first = next(pieces)
        pieces.close()
        assert first and files[SHARD].startswith(first)
    assert whole(store, "zoo.json", 0, 21) == files["zoo.json"]


@pytest.mark.parametrize(
    "name", ["../x", "/x", "a//b", "a/../b", "./a", "a/.", "", "a\nb", "a\\b", "x" * 256, "a/" * 600 + "b"]
)
def test_names_that_lead_out_of_a_folder_are_refused(name: str) -> None:
    with pytest.raises(IntegrityError, match="relative names"):
        listed([FileEntry("fine", 1), FileEntry(name, 1)], location="zoo")


def test_names_that_are_merely_odd_are_taken() -> None:
    names = ["a b", "...", "a..b", ".gitattributes", "ü/ß", "a/b.c/..d"]
    assert list(listed([FileEntry(name, 0) for name in names], location="zoo")) == sorted(names)


def test_a_name_twice_and_a_negative_size_are_refused() -> None:
    with pytest.raises(IntegrityError) as caught:
        listed([FileEntry("a", 1), FileEntry("a", 1), FileEntry("b", -1)], location="zoo")
    assert len(caught.value.problems) == 2
