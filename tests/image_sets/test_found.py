"""Test sets are found in every layout, and what is not one is refused."""

import gzip
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from ckptzoo import image_sets
from ckptzoo.errors import IntegrityError

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (5, 4, 6, 3), dtype=np.uint8)
LABELS = RNG.integers(0, 10, 5)


def test_arrays_in_every_layout(tmp_path: Path) -> None:
    np.savez(tmp_path / "a_test.npz", images=IMAGES, labels=LABELS)
    np.savez(tmp_path / "b_test.npz", images=IMAGES.transpose(0, 3, 1, 2), fine_labels=LABELS, coarse_labels=LABELS)
    (tmp_path / "c").mkdir()
    np.savez_compressed(tmp_path / "c" / "c_test.npz", images=IMAGES[..., 0], labels=LABELS.astype(np.uint8))
    last, first, grey = (image_sets.find(name, tmp_path) for name in ("A", "someone/b", "c"))
    assert last is not None and first is not None and grey is not None
    assert last.images.shape == (5, 3, 4, 6) and last.digest == first.digest and len(last) == 5
    assert np.array_equal(last.images, first.images) and np.array_equal(grey.images[:, 0], IMAGES[..., 0])
    assert grey.labels.dtype == np.int64 and grey.digest != last.digest


def test_idx_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    images = RNG.integers(0, 256, (3, 28, 28), dtype=np.uint8)
    for name, array in (("images-idx3", images), ("labels-idx1", np.array([1, 2, 9], np.uint8))):
        head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
        (folder / f"t10k-{name}-ubyte.gz").write_bytes(gzip.compress(head + array.tobytes()))
    monkeypatch.setenv(image_sets.FOLDER_VARIABLE, str(tmp_path))
    found = image_sets.find("fashion-mnist")
    assert found is not None and np.array_equal(found.images[:, 0], images) and found.labels.tolist() == [1, 2, 9]
    assert image_sets.find("fashion-mnist", folder) is not None and image_sets.find("other", folder) is None
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(b"no gzip")
    with pytest.raises(IntegrityError, match="header"):
        image_sets.find("fashion-mnist")


@pytest.mark.parametrize("name", ["", "../a", "..", "/etc/passwd", "a b", "a\0", "x" * 100, "."])
def test_odd_names_are_not_looked_for(tmp_path: Path, name: str) -> None:
    np.savez(tmp_path / "a_test.npz", images=IMAGES, labels=LABELS)
    (tmp_path / "inner").mkdir()
    assert image_sets.find(name, tmp_path / "inner") is None


def test_nothing_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(image_sets.FOLDER_VARIABLE, raising=False)
    assert image_sets.find("mnist") is None and image_sets.find("mnist", tmp_path) is None


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"images": IMAGES}, "arrays"),
        ({"labels": LABELS}, "arrays"),
        ({"images": IMAGES.astype(np.float32), "labels": LABELS}, "images"),
        ({"images": IMAGES[0, 0], "labels": LABELS}, "images"),
        ({"images": np.zeros((2, 4, 4, 2), np.uint8), "labels": LABELS[:2]}, "images"),
        ({"images": IMAGES, "labels": LABELS[:2]}, "labels"),
        ({"images": IMAGES, "labels": LABELS - 20}, "labels"),
        ({"images": IMAGES, "labels": LABELS.astype(float)}, "labels"),
        ({"images": np.array([{}]), "labels": LABELS}, "images: .* Python objects, which are never unpickled"),
    ],
)
def test_arrays_that_are_no_test_set(tmp_path: Path, arrays: dict[str, np.ndarray], said: str) -> None:
    np.savez(tmp_path / "a_test.npz", **arrays)
    with pytest.raises(IntegrityError, match=f"a_test.npz: {said}"):
        image_sets.find("a", tmp_path)


def test_damaged_and_huge_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_test.npz").write_bytes(b"no archive")
    with pytest.raises(IntegrityError, match="npz"):
        image_sets.find("a", tmp_path)
    with zipfile.ZipFile(tmp_path / "b_test.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", bytes(2**20))
    monkeypatch.setattr("ckptzoo.image_sets.npz.MAX_BYTES", 2**19)
    with pytest.raises(IntegrityError, match="size"):
        image_sets.find("b", tmp_path)
