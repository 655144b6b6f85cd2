"""What is no data set is refused by one sentence: the file, what was expected, what was found, and what to do."""

import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.io

from ckptzoo import image_sets
from ckptzoo.errors import SpecError, UnknownNameError, ZooError
from ckptzoo.image_sets import class_names, lookup, tables
from ckptzoo.image_sets.pictures import EncodedPicture, Shape, decode
from tests.support import image_set_files as made


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTZOO_CACHE", str(tmp_path / "cache"))


def refused(call: Callable[[], Any], *said: str) -> None:
    with pytest.raises(ZooError) as caught:
        call()
    message = str(caught.value)
    assert all(text in message for text in said), message
    assert "\n" not in message and len(caught.value.problems) == 1
    assert ": expected " in message and ", got " in message and message[-1] in ".?"


@pytest.mark.parametrize(("classes", "names"), [(10, ["data_batch_1"]), (100, ["train", "test", "meta"])])
def test_pickles_are_never_opened(tmp_path: Path, classes: int, names: list[str]) -> None:
    folder = tmp_path / {10: "cifar-10-batches-py", 100: "cifar-100-python"}[classes]
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(b"c__builtin__\nraise\n.")
    said = "expected the binary version", "got Python pickles, which are never opened", f"cifar-{classes}-binary.tar.gz"
    refused(lambda: image_sets.find(f"cifar{classes}", tmp_path), f"{folder.name}/{names[0]}: file: ", *said)
    known = made.small(f"cifar{classes}")
    made.write_binary(tmp_path / known.folders[0], classes, made.cifar_arrays(classes))
    assert lookup.read(known, "test", tmp_path) is not None, "the binary version beside them is read"


def test_rows_of_bytes(tmp_path: Path) -> None:
    known, arrays = made.small("cifar100"), made.cifar_arrays(100)
    made.write_binary(tmp_path / "a", 100, arrays)
    path = tmp_path / "a" / "test.bin"
    good = path.read_bytes()
    expected = "test.bin: size: expected 12,296 bytes (4 rows of 3,074), got"
    for wrong, got in (
        (good[:-1], "12,295 bytes"),
        (good + b"x", "12,297 bytes"),
        (good[:-3074], "9,222"),
        (b"", "0 bytes"),
    ):
        path.write_bytes(wrong)
        refused(lambda: lookup.read(known, "test", tmp_path / "a"), expected, got)
    for place, what in ((0, "coarse labels: expected 0 to 19, got 20"), (1, "labels: expected 0 to 99, got")):
        wrong = bytearray(good)
        wrong[place] = (20, 100)[place]
        path.write_bytes(wrong)
        refused(lambda: lookup.read(known, "test", tmp_path / "a"), "test.bin", what)
    path.write_bytes(good)
    names = list(class_names.CIFAR100)
    names[3], names[7] = names[7], names[3]
    (tmp_path / "a" / "fine_label_names.txt").write_text("\n".join(names))
    refused(lambda: lookup.read(known, "test", tmp_path / "a"), "name of class 3: expected bear, got beetle")
    (tmp_path / "a" / "fine_label_names.txt").write_text("apple\n")
    refused(lambda: lookup.read(known, "test", tmp_path / "a"), "classes: expected 100 names, got 1")


def test_a_missing_batch(tmp_path: Path) -> None:
    known, folder = made.small("cifar10"), tmp_path / "cifar10"
    made.write_binary(folder, 10, made.cifar_arrays(10))
    (folder / "data_batch_3.bin").unlink()
    refused(lambda: lookup.read(known, "train", tmp_path), "data_batch_3.bin: file", "got no such file")


def test_counts_of_the_whole_data_set(tmp_path: Path) -> None:
    made.write_binary(tmp_path / "cifar10", 10, made.cifar_arrays(10))
    refused(
        lambda: image_sets.find("cifar10", tmp_path), "expected 30,730,000 bytes (10,000 rows of 3,073), got 12,292"
    )
    found = image_sets.find("cifar10", tmp_path, count=4)
    assert found is not None and len(found) == 4
    refused(lambda: image_sets.find("cifar10", tmp_path, count=3), "got 12,292 bytes. Ask for as many as there are")


def test_parts_of_an_archive(tmp_path: Path) -> None:
    known, arrays = made.small("cifar100"), made.cifar_arrays(100)
    folder = tmp_path / "cifar100"
    made.write_npz(folder, 100, arrays)
    for names, said in (
        (class_names.CIFAR100[::-1], "name of class 0: expected apple, got worm"),
        (class_names.CIFAR100[:9], "expected 100 names, got 9"),
        ([1, 2], "expected a list of texts"),
    ):
        made.write_names(folder, names)
        refused(lambda: lookup.read(known, "train", tmp_path), "label_names.json: ", said)
    (folder / "label_names.json").write_text(json.dumps([1]))
    refused(
        lambda: lookup.read(known, "train", tmp_path),
        "label_names.json: fine_label_names: expected a list of texts, got None",
    )
    (folder / "label_names.json").unlink()
    last = folder / "cifar100_train_2of3.npz"
    np.savez(last, images=np.zeros((5, 16, 16, 3), np.uint8), fine_labels=np.zeros(5, np.uint8))
    refused(lambda: lookup.read(known, "train", tmp_path), "images: expected", "as in other parts")
    np.savez(last, images=np.zeros((4, 32, 32, 3), np.uint8), fine_labels=np.zeros(4, np.uint8))
    refused(lambda: lookup.read(known, "train", tmp_path), "train images: expected 15, got 14")
    last.unlink()
    refused(lambda: lookup.read(known, "train", tmp_path), "expected 3 of train, got no cifar100_train_2of3.npz")


def write_member(path: Path, shape: tuple[int, ...], dtype: str, data: bytes) -> None:
    """An .npz archive whose header says more than there is."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": dtype, "fortran_order": False, "shape": shape})
    labels = io.BytesIO()
    np.save(labels, np.zeros(4, np.uint8))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", header.getvalue() + data)
        archive.writestr("fine_labels.npy", labels.getvalue())


def test_archives_that_unpack_to_more_than_they_should(tmp_path: Path) -> None:
    known, path = made.small("cifar100"), tmp_path / "cifar100_test.npz"
    for shape, data, said in (
        ((10**12, 32, 32, 3), b"", "as its header says, got 128 B"),
        ((4, 32, 32, 3), b"", "images: expected 12.3 kB, as its header says, got"),
        ((4, 10**6, 10**6, 3), b"", "as its header says"),
        ((10_000, 32, 32, 3), bytes(10_000 * 3072), "images: expected at most 15, got 10,000"),
        ((4, 40, 40, 3), bytes(4 * 4800), "images: expected (3, 32, 32) each, got (3, 40, 40)"),
    ):
        write_member(path, shape, "|u1", data)
        refused(lambda: lookup.read(known, "test", tmp_path), path.name, said)
    write_member(path, (4,), "|O", b"")
    refused(lambda: lookup.read(known, "test", tmp_path), "images: expected uint8 pixels, got Python objects")
    np.savez(path, images=np.zeros((4, 32, 32, 3), np.uint8), fine_labels=np.array([0, 1, 2, 100]))
    refused(lambda: lookup.read(known, "test", tmp_path), "labels: expected 0 to 99, got 0 to 100")
    good = path.read_bytes()
    for wrong in (b"", b"no archive", good.replace(b"), }", b"), ]"), good[:-30], good[:300] + b"\1" * 50 + good[350:]):
        path.write_bytes(wrong)
        refused(lambda: lookup.read(known, "test", tmp_path), "cifar100_test.npz: file: expected an .npz file")


def test_damaged_pictures(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-imagenet"
    known = made.write_tiny_imagenet(folder, images=2)
    path = folder / "train" / "n01000000" / "images" / "n01000000_1.JPEG"
    good = path.read_bytes()
    name = "train/n01000000/images/n01000000_1.JPEG: picture"
    for wrong, said in (
        (good[: len(good) // 2], "expected a whole JPEG or PNG"),
        (b"", "expected a whole JPEG or PNG"),
        (b"\x80\x04.", "expected a whole JPEG or PNG"),
        (made.jpeg(np.zeros((63, 64, 3), np.uint8)), "expected 64 x 64 pixels, got 64 x 63"),
    ):
        path.write_bytes(wrong)
        refused(lambda: lookup.read(known, "train", tmp_path), name, said)
    assert not list((tmp_path / "cache").rglob("*.npy")) and not list((tmp_path / "cache").rglob(".tmp-*"))
    path.unlink()
    refused(lambda: lookup.read(known, "train", tmp_path), "tiny-imagenet/train: train images: expected 6, got 5")


def test_a_picture_that_claims_to_be_huge() -> None:
    from PIL import Image

    file = io.BytesIO()
    Image.new("L", (64, 64)).save(file, "PNG")
    data = bytearray(file.getvalue())
    data[16:24] = struct.pack(">II", 60_000, 60_000)
    refused(lambda: decode(EncodedPicture("x.png", bytes(data)), Shape(64, scaled=True)), "x.png: picture: expected")
    refused(lambda: decode(EncodedPicture("x.png", bytes(data)), Shape(64)), "x.png: picture: expected")
    deep = io.BytesIO()
    Image.fromarray(np.zeros((64, 64), np.uint16)).save(deep, "PNG")
    refused(
        lambda: decode(EncodedPicture("deep.png", deep.getvalue()), Shape(64)),
        "deep.png: picture: expected one of the modes",
    )


def test_listings_of_tiny_imagenet(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-imagenet"
    known = made.write_tiny_imagenet(folder, images=1)
    refused(lambda: image_sets.find("tinyimagenet", tmp_path), "wnids.txt: classes: expected 200 names, got 3")
    (folder / "wnids.txt").write_text("\n".join(sorted(made.TINY_CLASSES)))
    refused(
        lambda: lookup.read(known, "test", tmp_path), "wnids.txt: name of class 0: expected n02000000, got n01000000"
    )
    (folder / "wnids.txt").write_text("\n".join(made.TINY_CLASSES))
    listing = folder / "val" / "val_annotations.txt"
    good = listing.read_text().splitlines()
    for line in ("../../secret.JPEG\tn01000000\t0", "val_1.JPEG\tn09999999\t0", "val_1.JPEG"):
        listing.write_text("\n".join([good[0], line, *good[2:]]))
        refused(lambda: lookup.read(known, "test", tmp_path), "val_annotations.txt: line 2: expected val_<number>.JPEG")
    listing.write_text("\n".join([good[0], *good[:4]]))
    refused(lambda: lookup.read(known, "test", tmp_path), "val_annotations.txt: images: expected each once")
    listing.unlink()
    refused(lambda: lookup.read(known, "test", tmp_path), "val_annotations.txt: file: expected a text")
    (folder / "train" / made.TINY_CLASSES[1]).rename(folder / "elsewhere")
    refused(lambda: lookup.read(known, "train", tmp_path), f"train/{made.TINY_CLASSES[1]}/images: folder")


def test_textures_that_lack_a_class(tmp_path: Path) -> None:
    made.write_textures(tmp_path / "dtd")
    refused(lambda: image_sets.find("textures", tmp_path), "dtd/images: classes: expected 47 names, got 2")
    known = made.small("textures", counts={"test": 6}, class_names=("banded", "zigzagged"), classes=2)
    refused(lambda: lookup.read(known, "test", tmp_path), "dtd/images: test images: expected 6, got 5")


def test_matlab_files(tmp_path: Path) -> None:
    known, path = made.small("svhn", counts={"test": 3}), tmp_path / "test_32x32.mat"
    images, digits = np.zeros((32, 32, 3, 3), np.uint8), np.array([[1], [10], [3]], np.uint8)
    expected = "file: expected a MATLAB file of version 5 with X and y, got "
    for content, said in (
        ({"X": images}, f"{expected}no y"),
        ({"y": digits}, f"{expected}no X"),
        ({"X": images.astype(np.float64), "y": digits}, "variable X: expected uint8, got float64"),
        ({"X": images[..., :2], "y": digits}, f"{expected}X of 32 x 32 x 3 x 2 instead of 32 x 32 x 3 x 3"),
        ({"X": images, "y": digits.T}, f"{expected}y of 1 x 3 instead of 3 x 1"),
        ({"X": images, "y": digits - 1}, "labels: expected digits as 1 to 10, where 10 is 0, got 0 to 9"),
        ({"X": images, "y": digits + 0.5}, "labels: expected digits as 1 to 10"),
        ({"X": images, "y": digits + 1j}, f"{expected}y that is no array of real numbers"),
        ({"X": images, "y": np.array([[{}], [1], [2]], object)}, f"{expected}y that is no array of real numbers"),
    ):
        for packed in (False, True):
            scipy.io.savemat(path, content, do_compression=packed)
            refused(lambda: lookup.read(known, "test", tmp_path), "test_32x32.mat: ", said)
    scipy.io.savemat(path, {"X": images, "y": digits})
    good = path.read_bytes()
    for wrong in (b"", b"MATLAB 7.3 MAT-file", good[:-20], good[:300], good[:126] + b"xx" + good[128:]):
        path.write_bytes(wrong)
        refused(lambda: lookup.read(known, "test", tmp_path), f"test_32x32.mat: {expected}")


def test_corrupted_sets(tmp_path: Path) -> None:
    folder = tmp_path / "CIFAR-10-C"
    labels = made.write_corruption(folder, "fog")[1]

    def find(name: str, corruption: str, severity: int) -> object:
        return image_sets.find_corrupted(name, corruption, severity, tmp_path, count=3)

    refused(lambda: find("cifar10-c", "rain", 1), "corruption 'rain'")
    refused(lambda: find("cifar10-c", "fog", 6), "severity: expected 1 to 5, got 6")
    refused(lambda: find("cifar10", "fog", 1), "set of corrupted images: expected cifar10-c or cifar100-c")
    refused(lambda: find("cifar10-c", "snow", 1), "snow.npy: file: expected a .npy file, got no such file")
    refused(
        lambda: image_sets.find_corrupted("cifar10-c", "fog", 1, tmp_path), "fog.npy: array: expected uint8 (50000, 32"
    )
    mixed = np.tile(labels, 5)
    mixed[[1, 2]] = mixed[[2, 1]]
    for wrong, said in (
        (mixed, "labels.npy: labels: expected the same for each severity"),
        (np.tile(labels + 1, 5), "labels.npy: labels: expected 0 to 9, got 10"),
        (np.tile(labels.astype(float), 5), "labels.npy: array: expected integer (15,), got float64"),
        (np.array([{}] * 15), "labels.npy: file: expected a .npy file of numbers, got Python objects"),
    ):
        np.save(folder / "labels.npy", wrong, allow_pickle=True)
        refused(lambda: find("cifar10-c", "fog", 2), said)
    (folder / "labels.npy").write_bytes(b"\x80\x04.")
    refused(lambda: find("cifar10-c", "fog", 2), "labels.npy: file: expected a .npy file of numbers")
    np.save(folder / "labels.npy", np.tile(labels, 5))
    good = (folder / "fog.npy").read_bytes()
    for wrong in (good[:-1], good.replace(b"}", b"]", 1)):
        (folder / "fog.npy").write_bytes(wrong)
        refused(lambda: find("cifar10-c", "fog", 2), "fog.npy: file")


def test_tables(tmp_path: Path) -> None:
    known, arrays = made.small("cifar10"), made.cifar_arrays(10)
    splits = made.table("cifar10", arrays)

    def read(wrong: Any) -> object:
        return tables.from_datasets(known, "test", wrong)

    refused(lambda: read({"train": splits["train"]}), "uoft-cs/cifar10: splits: expected test, got train")
    renamed = splits["test"].rename_column("img", "image")
    refused(lambda: read({"test": renamed}), "uoft-cs/cifar10, test: columns: expected img and label, got image, label")
    refused(lambda: read({"test": splits["test"].select([0])}), "test images: expected 4, got 1")
    mixed = made.table("cifar10", arrays, class_names.CIFAR10[::-1])
    refused(lambda: read(mixed), "name of class 0: expected airplane, got truck")
    pictures = splits["test"].remove_columns("img").add_column("img", [[1, 2]] * 4)
    refused(lambda: read({"test": pictures}), "column img: expected pictures")
    folder = tmp_path / "cifar10"
    rows = {"img": [{"bytes": b"no picture", "path": None}] * 4, "label": [0, 1, 2, 3]}
    folder.mkdir()
    path = folder / "test-00000-of-00001.parquet"
    for changes, said in (
        ({}, "row 0: picture: expected a whole JPEG or PNG"),
        ({"label": [0, 1, 2, None]}, "labels: expected integers from 0, got None"),
        ({"label": [0, 1, 2, -1]}, "labels: expected integers from 0, got -1"),
        ({"label": pa.array([0, 1, 2, 2**64 - 1], pa.uint64())}, "labels: expected integers from 0, got 184467"),
        ({"label": [0, 1, 2, 10]}, "row 0: picture"),
        ({"img": [None] * 4}, "row 0: picture: expected at most 4,194,304 bytes of JPEG or PNG, got NoneType"),
        ({"img": ["text"] * 4}, "row 0: picture"),
    ):
        pq.write_table(pa.table({**rows, **changes}), path)
        refused(lambda: lookup.read(known, "test", tmp_path), path.name, said)
    pq.write_table(pa.table({"label": rows["label"]}), path)
    refused(lambda: lookup.read(known, "test", tmp_path), f"{path.name}: columns: expected img and label, got label")
    for wrong in (b"", b"PAR1", path.read_bytes()[:-20]):
        path.write_bytes(wrong)
        refused(lambda: lookup.read(known, "test", tmp_path), f"{path.name}: file: expected a Parquet file")


def test_names_that_are_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(image_sets.FOLDER_VARIABLE, raising=False)
    with pytest.raises(UnknownNameError, match="Did you mean cifar10"):
        image_sets.load("cifar", "train", tmp_path)
    with pytest.raises(SpecError, match="split: expected train or test, got 'val'"):
        image_sets.find("cifar10", tmp_path, split="val")
    refused(
        lambda: image_sets.load("cifar10", "train", tmp_path),
        "train images: expected cifar10 in a known form, got none",
    )
    refused(
        lambda: image_sets.load("textures", "test"), "textures: data set: expected files in a folder, got no folder"
    )
    for name in ("cifar10/validation", "cifar10-c/fog-9x", "cifar10/test-0", "digits/all", "mnist-14x14/both"):
        refused(lambda name=name: image_sets.find(name, tmp_path), "set of inputs: expected", repr(name))
    refused(lambda: image_sets.find("mnist/fog-3", tmp_path), "set of corrupted images")
    refused(
        lambda: image_sets.find("mnist/validation-5", tmp_path),
        "set of inputs: expected a data set and /test",
        "Choose such a one; inputs of your own are stored by ckptzoo predict ZOO SET --inputs FILE.npz.",
    )
    refused(
        lambda: image_sets.find("mnist/test", tmp_path, split="train"), "split: expected test, as 'mnist/test' says"
    )
    np.savez(tmp_path / "a_test.npz", images=np.zeros((2, 4, 4), np.uint8), labels=np.zeros(2, int))
    refused(lambda: image_sets.find("a/test-3", tmp_path), "images: expected at most 2 examples, got 3")
