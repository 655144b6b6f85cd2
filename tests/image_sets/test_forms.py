"""Every form of a data set gives the same arrays and one digest."""

import hashlib
import itertools
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from builders.data import Data, load
from builders.recipe import Recipe
from ckptzoo import image_sets
from ckptzoo.errors import IntegrityError
from ckptzoo.image_sets import class_names, lookup, tables
from ckptzoo.image_sets.image_set import ImageSet
from tests.support import image_set_files as made

REAL = Path(image_sets.folder_of(None) or Path(__file__).parents[3] / "shared" / "data")

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTZOO_CACHE", str(tmp_path / "cache"))


def same(first: ImageSet, second: ImageSet) -> bool:
    equal = np.array_equal(first.images, second.images) and np.array_equal(first.labels, second.labels)
    return equal and first.class_names == second.class_names and first.digest == second.digest


@pytest.mark.parametrize("classes", [10, 100])
def test_cifar_is_the_same_in_every_form(tmp_path: Path, classes: int) -> None:
    known, arrays = made.small(f"cifar{classes}"), made.cifar_arrays(classes)
    made.write_binary(tmp_path / "binary" / known.folders[0], classes, arrays)
    made.write_npz(tmp_path / "npz" / known.name, classes, arrays)
    made.write_names(tmp_path / "npz" / known.name, known.class_names)
    splits = made.table(known.name, arrays)
    made.write_parquet(tmp_path / "parquet" / known.name / "data", splits)
    data: set[str] = set()
    halves: dict[str, list[ImageSet]] = {}
    for split, (images, labels, _) in arrays.items():
        found = [lookup.read(known, split, tmp_path / form) for form in ("binary", "npz", "parquet")]
        found.append(tables.from_datasets(known, split, splits))
        for item in found:
            assert item is not None and same(
                item, ImageSet(known.name, images, labels.astype(np.int64), known.class_names)
            )
            assert item.images.dtype == np.uint8 and item.labels.dtype == np.int64
        halves[split] = [item for item in found if item is not None]
    for train, test in zip(halves["train"], halves["test"], strict=True):
        data.add(Data.of(train, test).digest)
    assert len(data) == 1


def test_a_digest_is_of_pixels_labels_and_names_of_classes() -> None:
    images, labels, _ = made.cifar_arrays(10)["test"]
    first = ImageSet("cifar10", images, labels.astype(np.int64), class_names.CIFAR10)
    other = images.copy()
    other[0, 0, 0, 0] ^= 1
    others = [
        ImageSet("cifar10", other, first.labels, first.class_names),
        ImageSet("cifar10", images, first.labels[::-1], first.class_names),
        ImageSet("cifar10", images, first.labels, class_names.CIFAR10[::-1]),
        ImageSet("cifar10", images, first.labels),
    ]
    assert len({item.digest for item in [first, *others]}) == 5


def test_class_names_are_those_of_the_archives() -> None:
    assert list(class_names.CIFAR100) == sorted(class_names.CIFAR100) and len(set(class_names.CIFAR100)) == 100
    assert len(set(class_names.TINY_IMAGENET)) == 200 and len(class_names.CIFAR10) == 10
    assert list(class_names.TINY_IMAGENET) != sorted(class_names.TINY_IMAGENET)
    known = image_sets.KNOWN["cifar100"]
    spelled = ["cra" if name == "crab" else name.removesuffix("_tree") for name in class_names.CIFAR100]
    known.check_class_names(spelled, "label_names.json")


def test_tiny_imagenet_from_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-imagenet-200"
    known = made.write_tiny_imagenet(folder)
    train, test = (lookup.read(known, split, tmp_path) for split in ("train", "test"))
    assert train is not None and test is not None
    # labels in the order of wnids.txt, images by number: 10 comes after 9
    assert np.array_equal(train.labels, np.repeat([0, 1, 2], 11)) and test.labels.tolist() == [1, 0, 2, 1, 0]
    for row, wnid, number in ((0, made.TINY_CLASSES[0], 0), (10, made.TINY_CLASSES[0], 10), (13, "n01000000", 2)):
        data = (folder / "train" / wnid / "images" / f"{wnid}_{number}.JPEG").read_bytes()
        assert np.array_equal(train.images[row], made.pixels_of(data))
    assert np.array_equal(train.images[0, 0], train.images[0, 2]), "a grey picture has three equal channels"
    assert np.array_equal(test.images[3], made.pixels_of((folder / "val" / "images" / "val_3.JPEG").read_bytes()))
    assert isinstance(train.images, np.memmap) and train.images.shape == (33, 3, 64, 64)
    assert Data.of(train, test).half("train")[0].shape == (33, 3, 64, 64)


def test_tiny_imagenet_from_datasets_has_the_labels_of_the_folder(tmp_path: Path) -> None:
    known = made.small("tinyimagenet", class_names=made.TINY_CLASSES, classes=3, counts={"train": 6, "test": 3})
    images = RNG.integers(0, 256, (6, 3, 64, 64), dtype=np.uint8)
    labels = np.array([0, 1, 2, 2, 1, 0])
    splits = made.table(
        "tinyimagenet", {"train": (images, labels), "test": (images[:3], labels[:3])}, sorted(made.TINY_CLASSES)
    )
    found = tables.from_datasets(known, "train", splits)
    # sorted, the classes are 1, 0 and 2 of wnids.txt
    assert found.labels.tolist() == [1, 0, 2, 2, 0, 1] and np.array_equal(found.images, images)
    assert tables.from_datasets(known, "test", splits).labels.tolist() == [1, 0, 2]
    plain = made.table("tinyimagenet", {"train": (images, labels)}, made.TINY_CLASSES)
    assert tables.from_datasets(known, "train", plain).labels.tolist() == labels.tolist()
    wrong = made.table("tinyimagenet", {"train": (images, labels)}, made.TINY_CLASSES[::-1])
    with pytest.raises(IntegrityError, match="name of class 0: expected n02000000, got n03000000"):
        tables.from_datasets(known, "train", wrong)


def test_textures_are_scaled_without_their_aspect(tmp_path: Path) -> None:
    folder = tmp_path / "dtd"
    known = made.write_textures(folder)
    found = lookup.read(known, "test", tmp_path)
    assert (
        found is not None and found.class_names == ("banded", "zigzagged") and found.labels.tolist() == [0, 0, 0, 1, 1]
    )
    data = (folder / "images" / "zigzagged" / "zigzagged_0001.jpg").read_bytes()
    assert found.images.shape == (5, 3, 64, 64) and np.array_equal(found.images[4], made.pixels_of(data, 64))
    assert lookup.read(known, "train", tmp_path) is None


def test_svhn_has_the_digit_0_for_10(tmp_path: Path) -> None:
    known, images = made.small("svhn", counts={"test": 5}), RNG.integers(0, 256, (5, 3, 32, 32), dtype=np.uint8)
    digits = np.array([1, 10, 9, 10, 5], np.uint8)
    for compressed, kind in itertools.product((False, True), (np.uint8, np.int64, np.float64)):
        content = {"name": "digits", "X": images.transpose(2, 3, 1, 0), "y": digits[:, None].astype(kind)}
        scipy.io.savemat(tmp_path / "test_32x32.mat", content, do_compression=compressed)
        found = lookup.read(known, "test", tmp_path)
        assert found is not None and found.labels.tolist() == [1, 0, 9, 0, 5] and np.array_equal(found.images, images)
    other = tables.from_datasets(known, "test", made.table("svhn", {"test": (images, digits % 10)}))
    assert same(found, other)
    assert np.array_equal(found.first(2).images, images[:2]) and found.first(None) is found
    named = image_sets.find("svhn", tmp_path, count=5)
    assert named is not None and same(named, other)


def test_corrupted_cifar_is_read_severity_by_severity(tmp_path: Path) -> None:
    folder = tmp_path / "CIFAR-10-C"
    images, labels = made.write_corruption(folder, "gaussian_noise")
    for severity in (1, 3, 5):
        found = image_sets.find_corrupted("cifar10-c", "gaussian-noise", severity, tmp_path, count=3)
        assert found is not None and np.array_equal(found.labels, labels)
        assert np.array_equal(found.images, images[severity - 1].transpose(0, 3, 1, 2))
        assert found.class_names == class_names.CIFAR10
    assert image_sets.find_corrupted("cifar100-c", "fog", 1, tmp_path) is None
    assert image_sets.find_corrupted("cifar10-c", "fog", 1, tmp_path / "CIFAR-100-C") is None
    assert len(image_sets.CORRUPTIONS) == len(set(image_sets.CORRUPTIONS)) == 19
    assert len(image_sets.STANDARD_CORRUPTIONS) == 15
    assert set(image_sets.EXTRA_CORRUPTIONS) == {"speckle_noise", "gaussian_blur", "spatter", "saturate"}


def test_sets_by_name(tmp_path: Path) -> None:
    labels = np.arange(4)
    np.savez(tmp_path / "clothes_test.npz", images=np.zeros((4, 8, 8), np.uint8), labels=labels)
    whole, some = (image_sets.find(f"clothes/test{end}", tmp_path) for end in ("", "-3"))
    assert whole is not None and some is not None and len(whole) == 4 and some.labels.tolist() == [0, 1, 2]
    assert image_sets.find("cifar10-c/fog-3", tmp_path) is None
    assert image_sets.find("textures/test", tmp_path) is None
    for name in ("clothes", "Clothes/test", "org/clothes"):
        found = image_sets.find(name, tmp_path)
        assert found is not None and found.digest == whole.digest
    assert image_sets.find("clothes/train", tmp_path) is None
    digits = [image_sets.find(name, split=split) for name, split in (("digits/train-5", None), ("digits", "train"))]
    assert digits[0] is not None and digits[1] is not None and digits[0].digest == digits[1].first(5).digest


needs_cifar100 = pytest.mark.skipif(not (REAL / "cifar100").is_dir(), reason="no CIFAR-100 under $CKPTZOO_DATA")


@needs_cifar100
def test_the_real_test_set_of_cifar100(tmp_path: Path) -> None:
    found = image_sets.find("cifar100", REAL)
    assert found is not None and found.images.shape == (10_000, 3, 32, 32) and found.class_names is not None
    assert np.array_equal(np.bincount(found.labels), np.full(100, 100))
    assert found.digest == "sha256:584a3a84c54c8c2b5a46eb04365040ae31dd7627d2d1cf3a87c0a11174f1cd17"
    # the first test images are known to be a mountain, a forest and a seal
    assert [found.class_names[label] for label in found.labels[:3]] == ["mountain", "forest", "seal"]
    with np.load(REAL / "cifar100" / "cifar100_test.npz") as arrays:
        coarse = arrays["coarse_labels"]
    arrays = {"test": (found.images, found.labels.astype(np.uint8), coarse)}
    made.write_binary(tmp_path / "cifar-100-binary", 100, arrays)
    packed = (tmp_path / "cifar-100-binary" / "test.bin").read_bytes()
    # of test.bin in cifar-100-binary.tar.gz
    assert hashlib.md5(packed, usedforsecurity=False).hexdigest() == "4499cfba6c016c1be1438163640a0898"
    binary = image_sets.find("cifar100", tmp_path)
    assert binary is not None and same(binary, found)


@needs_cifar100
@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_real_cifar100_that_its_recipe_trains_on() -> None:
    found = load(Recipe.load("cifar100-resnet18"), REAL)
    assert found.digest == "sha256:32acb6efa44d4846a00b30ee82249ac2de68e77264642deae078ab472c3085bc"
    assert np.array_equal(np.bincount(found.train_labels), np.full(100, 500)) and len(found.test_images) == 10_000
    # histograms, because the mean of all pixels needs no floating-point copy of them
    channels = [np.bincount(found.train_images[:, channel].ravel(), minlength=256) for channel in range(3)]
    pixels = np.arange(256) / 255
    means = [float(counts @ pixels / counts.sum()) for counts in channels]
    assert means == pytest.approx([0.5071, 0.4865, 0.4409], abs=1e-4)
    deviations = [
        np.sqrt(counts @ (pixels - mean) ** 2 / counts.sum()) for counts, mean in zip(channels, means, strict=True)
    ]
    assert deviations == pytest.approx([0.2673, 0.2564, 0.2762], abs=1e-4)
