"""The cache: damage is noticed, the size is limited, processes share it, and it survives that they are killed."""

import errno
import fcntl
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.environment import cache_limit, cache_root, is_offline
from ckptzoo.errors import UnknownNameError, ZooError
from ckptzoo.remote.cache import (
    Cache,
    RevisionRecord,
    blobs_of,
    cached_zoos,
    is_right,
    prune,
    sweep,
)
from ckptzoo.remote.stores import FileEntry
from ckptzoo.schema.documents import seal
from ckptzoo.text import parse_size
from tests.support.effort import examples

ROOT = Path(__file__).parents[2]
MIB = 2**20


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def blob(seed: int, size: int = 1000) -> bytes:
    return random.Random(seed).randbytes(size)


def only(cache: Cache) -> Path:
    (found,) = blobs_of(cache.root)
    return found.path


def age(cache: Cache, data: bytes, seconds: float) -> None:
    path = next(item.path for item in blobs_of(cache.folder) if item.path.name.endswith(digest_of(data)[7:]))
    os.utime(path, (time.time() - seconds,) * 2)


def test_what_is_written_is_read(cache: Path) -> None:
    of = Cache(cache, "hf://datasets/org/zoo", limit=MIB)
    data = blob(1)
    assert of.read(digest_of(data)) is None and not of.holds(digest_of(data))
    of.write(digest_of(data), memoryview(data))
    assert of.read(digest_of(data)) == data and of.holds(digest_of(data))
    git = "git:" + hashlib.sha1(b"blob 1000\0" + data).hexdigest()
    of.write(git, data)
    assert of.read(git) == data
    assert (cache / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")
    assert Cache(cache, "hf://datasets/org/other", limit=MIB).read(git) is None
    with pytest.raises(ValueError, match="not a digest"):
        of.read("sha256:../../etc/passwd")


@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "empty"])
def test_what_was_damaged_is_dropped(cache: Path, damage: str) -> None:
    of = Cache(cache, "zoo", limit=MIB)
    data = blob(1)
    of.write(digest_of(data), data)
    bad = {"flip": data[:500] + b"?" + data[501:], "cut": data[:-1], "grow": data + b"x", "empty": b""}[damage]
    only(of).write_bytes(bad)
    assert of.read(digest_of(data)) is None
    assert not of.holds(digest_of(data))
    of.write(digest_of(data), data)
    assert of.read(digest_of(data)) == data


def test_room_is_made_from_what_was_not_used_for_longest(cache: Path) -> None:
    of = Cache(cache, "zoo", limit=10_000)
    datas = [blob(seed) for seed in range(8)]
    for at, data in enumerate(datas):
        of.write(digest_of(data), data)
        age(of, data, 1000 - at)
    assert of.read(digest_of(datas[0])) == datas[0]  # now the one used last
    another = Cache(cache, "another", limit=10_000)
    for seed in range(100, 104):
        another.write(digest_of(blob(seed)), blob(seed))
    assert sum(item.nbytes for item in blobs_of(cache)) <= 10_000 + 10_000 // 32 + 1000
    assert of.holds(digest_of(datas[0])) and not of.holds(digest_of(datas[1]))
    assert all(another.holds(digest_of(blob(seed))) for seed in range(100, 104))


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=60))
@settings(max_examples=examples(30), deadline=None)
def test_the_bound_holds_whatever_is_read_and_written(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, bool]]
) -> None:
    of = Cache(tmp_path_factory.mktemp("c"), "zoo", limit=5000)
    for seed, reads in steps:
        data = blob(seed, 100 + seed * 37)
        if reads:
            assert of.read(digest_of(data)) in (None, data)
        else:
            of.write(digest_of(data), data)
            assert of.holds(digest_of(data))
        assert sum(item.nbytes for item in blobs_of(of.root)) <= 5000 + 5000 // 32 + len(data)


def test_what_is_larger_than_the_cache_is_not_kept(cache: Path) -> None:
    of = Cache(cache, "zoo", limit=999)
    of.write(digest_of(blob(1)), blob(1))
    assert not of.holds(digest_of(blob(1)))


def test_what_cannot_be_fetched_again_stays(cache: Path) -> None:
    lost, new = Cache(cache, "lost", limit=5000), Cache(cache, "new", limit=5000)
    for seed in range(4):
        lost.write(digest_of(blob(seed)), blob(seed))
        age(lost, blob(seed), 10_000)
    lost.mark_gone()
    for seed in range(10, 20):
        new.write(digest_of(blob(seed)), blob(seed))
    assert all(lost.holds(digest_of(blob(seed))) for seed in range(4))
    assert prune(cache, max_bytes=0).files > 0
    assert [(item.address, item.files) for item in cached_zoos(cache)] == [("lost", 4), ("new", 0)]
    lost.remember("main", RevisionRecord("c1", {}))  # it is there again
    assert prune(cache, max_bytes=0).files == 4
    offline = Cache(cache, "offline", limit=1500, evicts=False)
    for seed in range(3):
        offline.write(digest_of(blob(seed)), blob(seed))
    assert all(offline.holds(digest_of(blob(seed))) for seed in range(3))


def test_revisions_are_remembered(cache: Path) -> None:
    of = Cache(cache, "zoo", limit=MIB)
    found = RevisionRecord("c" * 40, {"a": FileEntry("a", 3, digest_of(b"abc")), "b": FileEntry("b", 0)})
    assert of.remembered("main") is None
    of.remember("main", found)
    assert of.remembered("main") == of.remembered("c" * 40) == found
    newer = RevisionRecord("d" * 40, {})
    of.remember("main", newer)
    assert of.remembered("main") == newer and of.remembered("c" * 40) == found
    for path in (of.folder / "revisions").iterdir():
        path.write_text("{")
    assert of.remembered("main") is None
    of.remember("main", found)
    assert of.remembered("main") == found


def test_a_full_disk_is_said_once_and_reading_goes_on(cache: Path) -> None:
    program = f"""
import resource, signal, sys, warnings
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from ckptzoo.remote.cache import Cache
from tests.remote.test_cache import blob, digest_of
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))  # every file ends at 5,000 bytes, as on a full disk
of = Cache(Path({str(cache)!r}), "zoo", limit=10**9)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    of.write(digest_of(blob(1)), blob(1))
    for seed in (2, 3):
        of.write(digest_of(blob(seed, 20_000)), blob(seed, 20_000))
assert of.read(digest_of(blob(1))) == blob(1)
assert not of.holds(digest_of(blob(2, 20_000))) and len(said) == 1, said
print(said[0].message)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert os.strerror(errno.EFBIG) in done.stdout and "CKPTZOO_CACHE" in done.stdout
    assert not list(cache.rglob(".tmp-*"))


def test_a_root_that_is_no_folder_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    of = Cache(tmp_path / "file" / "cache", "zoo", limit=MIB)
    with pytest.warns(UserWarning, match="reading goes on without") as said:
        of.remember("main", RevisionRecord("c", {}))
        of.write(digest_of(blob(1)), blob(1))
    assert len(said) == 1
    assert of.read(digest_of(blob(1))) is None and of.remembered("main") is None


WRITER = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from ckptzoo.remote.cache import Cache
from tests.remote.test_cache import blob, digest_of
of = Cache(Path({cache!r}), "zoo", limit={limit})
print("ready", flush=True)
for seed in range(10**6 if {endless} else 40):
    data = blob(seed % 40, 200_000)
    of.write(digest_of(data), data)
    assert of.read(digest_of(data)) in (None, data)
"""


def writer(cache: Path, *, limit: int, endless: bool) -> "subprocess.Popen[bytes]":
    program = WRITER.format(root=str(ROOT), cache=str(cache), limit=limit, endless=endless)
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)


@pytest.mark.exhaustive
def test_a_writer_killed_at_any_moment_leaves_nothing_wrong(cache: Path) -> None:
    for attempt in range(6):
        with writer(cache, limit=3 * MIB, endless=True) as process:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            time.sleep(0.03 + 0.037 * attempt)
            process.send_signal(signal.SIGKILL)
        for item in blobs_of(cache):
            kind, _, name = item.path.name.partition("-")
            assert is_right(f"{kind}:{name}", item.path.read_bytes())
    of = Cache(cache, "zoo", limit=3 * MIB)
    of.folder.joinpath("blobs/00").mkdir(parents=True, exist_ok=True)
    of.folder.joinpath("blobs/00/.tmp-left").write_bytes(b"half")
    sweep(cache)
    assert not list(cache.rglob(".tmp-*"))
    assert sum(item.nbytes for item in blobs_of(cache)) <= 3 * MIB * 33 // 32 + 200_000


@pytest.mark.slow
@pytest.mark.parametrize("limit", [100 * MIB, 2 * MIB])
@pytest.mark.sampled(2)
def test_processes_that_fetch_the_same_all_succeed(cache: Path, limit: int) -> None:
    processes = [writer(cache, limit=limit, endless=False) for _ in range(2)]
    for process in processes:
        with process:
            assert process.wait(60) == 0
    assert not list(cache.rglob(".tmp-*"))
    of = Cache(cache, "zoo", limit=limit)
    found = [of.read(digest_of(blob(seed, 200_000))) for seed in range(40)]
    assert all(data in (None, blob(seed, 200_000)) for seed, data in enumerate(found))
    if limit > 10 * MIB:
        assert None not in found


def test_what_is_being_written_is_not_swept(cache: Path) -> None:
    folder = Cache(cache, "zoo", limit=MIB).folder / "blobs" / "00"
    folder.mkdir(parents=True)
    with (folder / ".tmp-live").open("wb") as live:
        fcntl.flock(live, fcntl.LOCK_EX)
        (folder / ".tmp-dead").write_bytes(b"x")
        sweep(cache)
        assert [path.name for path in folder.iterdir()] == [".tmp-live"]


def test_a_file_swept_before_it_is_locked_is_written_all_the_same(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of, swept, flock = Cache(cache, "zoo", limit=MIB), list[str](), fcntl.flock

    def sweep_then_lock(file: int, operation: int) -> None:
        if not swept:
            swept.extend(path.name for path in cache.rglob(".tmp-*"))
            sweep(cache)
        flock(file, operation)

    of.write(digest_of(blob(0)), blob(0))  # makes room, which locks too
    monkeypatch.setattr(fcntl, "flock", sweep_then_lock)
    of.write(digest_of(blob(1)), blob(1))
    assert len(swept) == 1 and of.holds(digest_of(blob(1))) and not list(cache.rglob(".tmp-*"))


def test_listing_and_pruning(cache: Path) -> None:
    a, b = Cache(cache, "hf://datasets/org/a", limit=MIB), Cache(cache, "https://host/b", limit=MIB)
    assert cached_zoos(cache) == []
    for of, seeds, old in ((a, range(3), 1000), (b, range(10, 15), 10)):
        of.remember("main", RevisionRecord("c1", {}))
        for seed in seeds:
            of.write(digest_of(blob(seed)), blob(seed))
            age(of, blob(seed), old + seed)
    listed = cached_zoos(cache)
    assert [(item.address, item.files, item.nbytes, item.gone) for item in listed] == [
        ("https://host/b", 5, 5000, False),
        ("hf://datasets/org/a", 3, 3000, False),
    ]
    assert abs(time.time() - 20 - listed[0].used) < 5
    assert prune(cache, max_bytes=7000).files == 1 and not a.holds(digest_of(blob(2)))
    pruned = prune(cache, before=time.time() - 500)
    assert (pruned.files, pruned.nbytes) == (2, 2000)
    assert prune(cache, address="https://host/b").nbytes == 5000
    assert [item.address for item in cached_zoos(cache)] == ["hf://datasets/org/a"]
    with pytest.raises(UnknownNameError, match="hf://datasets/org/a"):
        prune(cache, address="hf://datasets/org/b")
    with pytest.raises(ZooError, match="Name one"):
        prune(cache)


def test_where_the_cache_is() -> None:
    assert cache_root({"CKPTZOO_CACHE": "/a", "HF_HOME": "/b", "XDG_CACHE_HOME": "/c"}) == Path("/a")
    assert cache_root({"CKPTZOO_CACHE": "", "HF_HOME": "/b", "XDG_CACHE_HOME": "/c"}) == Path("/b/ckptzoo")
    assert cache_root({"XDG_CACHE_HOME": "/c"}) == Path("/c/ckptzoo")
    assert cache_root({}) == Path("~/.cache/ckptzoo").expanduser()
    assert is_offline({"CKPTZOO_OFFLINE": "1"}) and is_offline({"HF_HUB_OFFLINE": "TRUE"})
    assert not is_offline({}) and not is_offline({"CKPTZOO_OFFLINE": "0"})


def test_sizes_as_people_write_them() -> None:
    assert cache_limit({}) == 32 * 2**30 and cache_limit({"CKPTZOO_CACHE_SIZE": "5GB"}) == 5 * 10**9
    texts = ["0", "1500", "1k", "1.5 MB", "2MiB", "1Gi", "1T"]
    assert [parse_size(text, location="x") for text in texts] == [0, 1500, 1000, 1_500_000, 2 * MIB, 2**30, 10**12]
    for text in ("", "-1", "1X", "many", "1 2"):
        with pytest.raises(ZooError, match="size"):
            parse_size(text, location="x")


@pytest.mark.parametrize("damage", ["entry", "digit", "deep", "moved", "old", "name"])
def test_a_damaged_revision_is_as_good_as_none(cache: Path, damage: str) -> None:
    """A pinned revision is read from the cache alone, so that a lost entry would be a lost checkpoint."""
    of = Cache(cache, "org/zoo", limit=2**20)
    found = RevisionRecord("c" * 40, {name: FileEntry(name, 12, "sha256:" + "a" * 64) for name in ("one", "two")})
    of.remember("main", found)
    paths = sorted((of.folder / "revisions").iterdir())
    data = paths[0].read_bytes()
    content = json.loads(data)
    broken = {
        "entry": lambda: json.dumps(content | {"entries": {"one": [12, None]}}).encode(),
        "digit": lambda: data.replace(b'[12,"sha256:aa', b'[12,"sha256:ba', 1),
        "deep": lambda: b"[" * 100_000,
        "moved": lambda: seal({k: v for k, v in content.items() if k != "digest"} | {"asked": "x", "revision": "y"}),
        "old": lambda: json.dumps({k: v for k, v in content.items() if k != "digest"}).encode(),
        "name": lambda: seal({"asked": "main", "revision": "c" * 40, "entries": {"../x": [1, None]}, "saved": 1.0}),
    }[damage]()
    assert broken != data
    for path in paths:
        path.write_bytes(broken)
    assert of.remembered("main") is None and of.remembered("c" * 40) is None
    assert len(cached_zoos(cache)) == 1
    of.remember("main", found)
    assert of.remembered("main") == of.remembered("c" * 40) == found


@pytest.mark.parametrize(
    "facts",
    [
        [12, 5],
        [12, "sha256:a"],
        [12, "../../etc/passwd"],
        [12, ["sha256:" + "a" * 64]],
        ["12", None],
        [12.5, None],
        [True, None],
        [12],
        [12, None, None],
        "ab",
        None,
    ],
)
def test_a_sealed_revision_of_other_types_is_as_good_as_none(cache: Path, facts: object) -> None:
    """Whoever can write to the cache can seal a record again."""
    of = Cache(cache, "zoo", limit=MIB)
    found = RevisionRecord("c" * 40, {"a": FileEntry("a", 12)})
    of.remember("main", found)
    content = {"asked": "main", "revision": "c" * 40, "entries": {"a": [12, None]}, "saved": 10**400}
    for path in (of.folder / "revisions").iterdir():
        path.write_bytes(seal(content))
    assert of.remembered("main") == found and cached_zoos(cache)[0].revisions == ()
    for odd in ({"entries": {"a": facts}}, {"revision": 5}, {"revision": ["c"]}, {"entries": [12]}):
        for path in (of.folder / "revisions").iterdir():
            path.write_bytes(seal({**content, **odd, "saved": 1.0}))
        assert of.remembered("main") is None, odd
        assert (cached_zoos(cache)[0].revisions == ()) == ("revision" in odd)


@pytest.mark.parametrize("name", ["blobs/aa/.tmp-0", "address.json", "gone", "revisions/x.json", "../.lock"])
def test_pipes_in_a_shared_cache_stop_nobody(cache: Path, name: str) -> None:
    """Opening a pipe would wait for its writer."""
    of = Cache(cache, "zoo", limit=2000)
    of.write(digest_of(blob(1)), blob(1))
    pipe = of.folder / name
    pipe.parent.mkdir(parents=True, exist_ok=True)
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    of = Cache(cache, "zoo", limit=2000)
    of.remember("main", RevisionRecord("c" * 40, {}))
    for seed in range(2, 6):
        of.write(digest_of(blob(seed)), blob(seed))
    assert of.read(digest_of(blob(5))) == blob(5)
    assert len(cached_zoos(cache)) == 1 and prune(cache, before=0.0).files == 0


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_what_is_no_file_does_not_keep_the_cache_from_its_limit(cache: Path, tmp_path: Path, kind: str) -> None:
    of = Cache(cache, "zoo", limit=3000)
    path = of._path(digest_of(blob(1)))
    path.parent.mkdir(parents=True)
    (tmp_path / "own").write_bytes(blob(1) * 9)
    {"folder": path.mkdir, "link": lambda: path.symlink_to(tmp_path / "own"), "pipe": lambda: os.mkfifo(path)}[kind]()
    os.utime(path, (0, 0), follow_symlinks=False)
    for seed in range(2, 12):
        of.write(digest_of(blob(seed)), blob(seed))
    kept = [seed for seed in range(2, 12) if of.holds(digest_of(blob(seed)))]
    assert kept and kept[-1] == 11 and sum(item.nbytes for item in blobs_of(cache)) <= 3000
    assert of.read(digest_of(blob(1))) is None and (tmp_path / "own").read_bytes() == blob(1) * 9
    assert prune(cache, max_bytes=0).files == len(kept)
