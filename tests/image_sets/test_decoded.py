"""Pictures are decoded once, to a file that appears whole or not at all."""

import os
from pathlib import Path

import numpy as np
import pytest

from ckptzoo.environment import cache_root
from ckptzoo.errors import ZooError
from ckptzoo.image_sets import lookup, pictures, tables
from ckptzoo.image_sets.pictures import CACHE_ADDRESS, EncodedPicture, Shape, decode_all, decode_to_cache
from ckptzoo.remote.cache import cached_zoos, prune
from tests.faults.disks import disk
from tests.support import image_set_files as made

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CKPTZOO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def pictures_in(folder: Path, count: int = 3) -> list[EncodedPicture]:
    folder.mkdir(exist_ok=True)
    for number in range(count):
        pixels = RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8)
        (folder / f"{number}.jpg").write_bytes(made.jpeg(pixels))
    return [EncodedPicture(f"{number}.jpg", folder / f"{number}.jpg") for number in range(count)]


def files(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.npy"))


def test_a_second_call_decodes_nothing(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = made.write_tiny_imagenet(tmp_path / "tiny-imagenet", images=2)
    first = lookup.read(known, "train", tmp_path)
    assert len(files(cache)) == 1 and cache_root() == cache
    monkeypatch.setattr(pictures, "decode", lambda *_: pytest.fail("decoded again"))
    second = lookup.read(known, "train", tmp_path)
    assert first is not None and second is not None and first.digest == second.digest
    assert isinstance(second.images, np.memmap)
    held = files(cache)[0].read_bytes()
    second.images[0] = 0
    second.images.flush()
    assert files(cache)[0].read_bytes() == held, "what a reader writes to it stays in its memory"


def test_other_pictures_are_another_file(tmp_path: Path, cache: Path) -> None:
    found = pictures_in(tmp_path / "a")
    first = decode_to_cache(found, Shape(64))
    assert np.array_equal(first, decode_all(found, Shape(64)))
    path = tmp_path / "a" / "1.jpg"
    path.write_bytes(made.jpeg(np.zeros((64, 64, 3), np.uint8)))
    second = decode_to_cache(found, Shape(64))
    assert len(files(cache)) == 2 and not second[1].any() and np.array_equal(second[0], first[0])
    smaller = decode_to_cache(found, Shape(8, scaled=True))
    grey = decode_to_cache(found, Shape(64, 1))
    assert smaller.shape == (3, 3, 8, 8) and grey.shape == (3, 1, 64, 64) and len(files(cache)) == 4
    encoded = [
        EncodedPicture(item.where, item.content.read_bytes()) for item in found if isinstance(item.content, Path)
    ]
    assert np.array_equal(decode_to_cache(encoded, Shape(64)), second) and len(files(cache)) == 5
    assert np.array_equal(decode_to_cache(list(encoded), Shape(64)), second) and len(files(cache)) == 5


def test_a_file_that_is_not_whole_is_written_again(tmp_path: Path, cache: Path) -> None:
    found = pictures_in(tmp_path / "a")
    expected = np.array(decode_to_cache(found, Shape(64)))
    (path,) = files(cache)
    good = path.read_bytes()
    for wrong in (b"", good[:-1], good.replace(b"|u1", b"|i1"), good.replace(b"}", b"]")):
        path.write_bytes(wrong)
        assert np.array_equal(decode_to_cache(found, Shape(64)), expected)
        assert path.read_bytes() == good


def test_large_tables_are_decoded_to_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known, arrays = made.small("cifar10"), made.cifar_arrays(10)
    splits = made.table("cifar10", arrays)
    held = tables.from_datasets(known, "train", splits)
    assert not files(cache)
    monkeypatch.setattr(tables, "_HELD_BYTES", 1000)
    for _ in range(2):
        mapped = tables.from_datasets(known, "train", splits)
        assert isinstance(mapped.images, np.memmap) and mapped.digest == held.digest and len(files(cache)) == 1


def test_it_is_listed_and_removed_as_what_zoos_left(tmp_path: Path, cache: Path) -> None:
    decode_to_cache(pictures_in(tmp_path / "a"), Shape(64))
    (entry,) = cached_zoos(cache)
    assert entry.address == CACHE_ADDRESS and entry.files == 1 and entry.nbytes == files(cache)[0].stat().st_size
    assert prune(cache, address=CACHE_ADDRESS).files == 1 and not files(cache)


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = pictures_in(tmp_path / "a")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CKPTZOO_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(
        ZooError, match=r"cache of decoded pictures: expected to write it, got Not a directory\. Make room, or"
    ):
        decode_to_cache(found, Shape(64))


@pytest.mark.slow
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = pictures_in(tmp_path / "a", 40)
    with disk(tmp_path / "disk", 200_000) as full:
        monkeypatch.setenv("CKPTZOO_CACHE", str(full.path))
        with pytest.raises(
            ZooError, match=r"expected 492 kB of free disk, got .* Make room, or name another folder in"
        ):
            decode_to_cache(found, Shape(64))
        usage = pictures.shutil.disk_usage(tmp_path)
        monkeypatch.setattr(pictures.shutil, "disk_usage", lambda _: usage)
        with pytest.raises(ZooError, match="expected to write it, got No space left on device"):
            decode_to_cache(found, Shape(64))
        assert not [path for path in full.path.rglob("*") if path.is_file() and path.name != "address.json"]
        full.resize(10**7)
        assert decode_to_cache(found, Shape(64)).shape == (40, 3, 64, 64)
        monkeypatch.setattr(os, "utime", lambda *_: (_ for _ in ()).throw(OSError(30, "Read-only file system")))
        assert decode_to_cache(found, Shape(64)).shape == (40, 3, 64, 64), "what is there can be read"
