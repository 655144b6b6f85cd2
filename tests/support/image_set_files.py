"""The same few images in every form that data sets are published in."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ckptzoo.image_sets import KNOWN
from ckptzoo.image_sets.image_set import KnownSet

SEED = 7
COUNTS = {"train": 15, "test": 4}
"""CIFAR-10 has five files of training images."""


def small(name: str, **changes: Any) -> KnownSet:
    """A known data set of few images."""
    return replace(KNOWN[name], **{"counts": COUNTS, **changes})


def cifar_arrays(classes: int) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Images (N, 3, 32, 32), labels and coarse labels of both splits; the largest label is there."""
    rng = np.random.default_rng(SEED)
    made: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
    for split, count in COUNTS.items():
        labels = rng.integers(0, classes, count, dtype=np.uint8)
        labels[-1] = classes - 1
        images = rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
        made[split] = images, labels, rng.integers(0, 20, count, dtype=np.uint8)
    return made


def write_binary(folder: Path, classes: int, arrays: dict[str, Any]) -> None:
    """The binary version of CIFAR-10 or CIFAR-100."""
    folder.mkdir(parents=True)
    for split, (images, labels, coarse) in arrays.items():
        columns = [labels[:, None], images.reshape(len(images), -1)]
        rows = np.concatenate(columns if classes == 10 else [coarse[:, None], *columns], axis=1)
        if classes == 100:
            (folder / f"{split}.bin").write_bytes(rows.tobytes())
        elif split == "test":
            (folder / "test_batch.bin").write_bytes(rows.tobytes())
        else:
            for number, part in enumerate(np.split(rows, 5), 1):
                (folder / f"data_batch_{number}.bin").write_bytes(part.tobytes())
    names = KNOWN[f"cifar{classes}"].class_names
    assert names is not None
    name = "batches.meta.txt" if classes == 10 else "fine_label_names.txt"
    (folder / name).write_text("\n".join(names) + "\n\n")


def write_npz(folder: Path, classes: int, arrays: dict[str, Any], parts: int = 3) -> None:
    """Parts of training images and one file of test images, channels last."""
    folder.mkdir(parents=True)
    for split, (images, labels, coarse) in arrays.items():
        key = "labels" if classes == 10 else "fine_labels"
        for number in range(count := parts if split == "train" else 1):
            rows = slice(len(images) * number // count, len(images) * (number + 1) // count)
            end = f"_{number}of{count}" if count > 1 else ""
            content = {"images": images[rows].transpose(0, 2, 3, 1), key: labels[rows], "coarse_labels": coarse[rows]}
            np.savez_compressed(folder / f"cifar{classes}_{split}{end}.npz", **content)


def write_names(folder: Path, names: Any) -> None:
    """Names of classes beside .npz files."""
    (folder / "label_names.json").write_text(json.dumps({"fine_label_names": list(names)}))


def table(name: str, arrays: dict[str, Any], names: Any = None) -> dict[str, Any]:
    """A ``datasets.DatasetDict`` as the hub has it."""
    import datasets

    known = KNOWN[name]
    layout, names = known.table, list(names or known.class_names or "0123456789")
    assert layout is not None
    features = datasets.Features({layout.image: datasets.Image(), layout.label: datasets.ClassLabel(names=names)})
    return datasets.DatasetDict(
        {
            layout.splits[split]: datasets.Dataset.from_dict(
                {layout.image: list(images.transpose(0, 2, 3, 1).squeeze()), layout.label: labels.tolist()}, features
            )
            for split, (images, labels, *_) in arrays.items()
        }
    )


def write_parquet(folder: Path, splits: dict[str, Any]) -> None:
    """Parquet files as the hub has them, the first split in two."""
    folder.mkdir(parents=True)
    for split, rows in splits.items():
        count = min(2, len(rows))
        for number in range(count):
            path = folder / f"{split}-{number:05d}-of-{count:05d}.parquet"
            rows.shard(count, number, contiguous=True).to_parquet(path)


def jpeg(pixels: np.ndarray) -> bytes:
    """(H, W) or (H, W, 3) uint8 as JPEG."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95)
    return file.getvalue()


def pixels_of(data: bytes, size: int | None = None) -> np.ndarray:
    """(3, H, W) uint8 as Pillow decodes it."""
    from PIL import Image

    picture = Image.open(io.BytesIO(data)).convert("RGB")
    if size is not None:
        picture = picture.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(picture).transpose(2, 0, 1)


TINY_CLASSES = ("n02000000", "n01000000", "n03000000")
"""Not sorted."""


def write_tiny_imagenet(folder: Path, images: int = 11) -> KnownSet:
    """TinyImageNet of three classes, with grey pictures among the others, and of five validation images."""
    rng = np.random.default_rng(SEED)
    (folder / "val" / "images").mkdir(parents=True)
    (folder / "wnids.txt").write_text("\n".join(TINY_CLASSES))
    for wnid in TINY_CLASSES:
        (folder / "train" / wnid / "images").mkdir(parents=True)
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text("")
        for number in range(images):
            shape = (64, 64) if number % 4 == 0 else (64, 64, 3)
            data = jpeg(rng.integers(0, 256, shape, dtype=np.uint8))
            (folder / "train" / wnid / "images" / f"{wnid}_{number}.JPEG").write_bytes(data)
    lines: list[str] = []
    for number in range(5):
        (folder / "val" / "images" / f"val_{number}.JPEG").write_bytes(
            jpeg(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8))
        )
        lines.append(f"val_{number}.JPEG\t{TINY_CLASSES[(2 * number + 1) % 3]}\t0\t32\t44\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    counts = {"train": 3 * images, "test": 5}
    return small("tinyimagenet", counts=counts, class_names=TINY_CLASSES, classes=3)


def write_textures(folder: Path) -> KnownSet:
    """Describable Textures of two classes and pictures of several sizes."""
    rng = np.random.default_rng(SEED)
    sizes = {"zigzagged": [(70, 90), (300, 64)], "banded": [(64, 64), (20, 30), (100, 100)]}
    for name, shapes in sizes.items():
        (folder / "images" / name).mkdir(parents=True)
        for number, shape in enumerate(shapes):
            data = jpeg(rng.integers(0, 256, (*shape, 3), dtype=np.uint8))
            (folder / "images" / name / f"{name}_{number:04d}.jpg").write_bytes(data)
    (folder / "images" / "banded" / ".directory").write_text("left by a file manager")
    return small("textures", counts={"test": 5}, class_names=("banded", "zigzagged"), classes=2)


def write_corruption(folder: Path, name: str, count: int = 3, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """One file of CIFAR-C and its labels; returns images (5, count, 32, 32, 3) and labels (count,)."""
    rng = np.random.default_rng(SEED)
    folder.mkdir(parents=True, exist_ok=True)
    images = rng.integers(0, 256, (5, count, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(classes - count, classes)
    np.save(folder / f"{name}.npy", images.reshape(5 * count, 32, 32, 3))
    np.save(folder / "labels.npy", np.tile(labels, 5))
    return images, labels
