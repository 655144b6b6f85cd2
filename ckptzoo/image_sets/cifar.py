"""CIFAR-10 and CIFAR-100 from their binary version, and their corruptions, CIFAR-10-C and CIFAR-100-C.

Sources: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009; Hendrycks and Dietterich,
"Benchmarking Neural Network Robustness to Common Corruptions and Perturbations", ICLR 2019 (arXiv 1903.12261).
"""

from pathlib import Path

import numpy as np

from ckptzoo.errors import Problem, UnknownNameError, ZooError
from ckptzoo.image_sets.image_set import ImageSet, KnownSet, file_error, first_line
from ckptzoo.image_sets.npz import map_npy

STANDARD_CORRUPTIONS = (
    *("gaussian_noise", "shot_noise", "impulse_noise"),
    *("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness"),
    *("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
"""The 15 that the mean corruption error is taken over."""
EXTRA_CORRUPTIONS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""The four that the mean leaves out; they are there for choosing settings."""
CORRUPTIONS = STANDARD_CORRUPTIONS + EXTRA_CORRUPTIONS
SEVERITIES = 5
_SHAPE = (3, 32, 32)
_BATCH_FILES = {"train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test": ("test_batch.bin",)}
_FILES = {"cifar10": _BATCH_FILES, "cifar100": {"train": ("train.bin",), "test": ("test.bin",)}}
_NAMES = {"cifar10": "batches.meta.txt", "cifar100": "fine_label_names.txt"}
_LABEL_BYTES = {"cifar10": 1, "cifar100": 2}
"""CIFAR-100 has the coarse label before the fine one."""
# CIFAR-100 has 20 superclasses of five classes each
_COARSE = 20
_PICKLES = {
    "cifar10": (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"),
    "cifar100": ("train", "test", "meta"),
}


def read_binary(known: KnownSet, split: str, folder: Path) -> ImageSet | None:
    """Rows of one label (CIFAR-10) or of a coarse and a fine one (CIFAR-100), and 3x32x32 bytes; see ``Form``."""
    paths = [folder / name for name in _FILES[known.name][split]]
    if not any(path.is_file() for path in paths):
        return None
    label_bytes = _LABEL_BYTES[known.name]
    row_bytes = label_bytes + int(np.prod(_SHAPE))
    for path in paths:
        if not path.is_file():
            raise file_error(path, "file", f"a batch of {row_bytes:,} bytes an image", "no such file", known.step)
    # sizes are compared before memory is taken
    counts = _row_counts(known, split, paths, row_bytes)
    images = np.empty((sum(counts), *_SHAPE), np.uint8)
    labels = np.empty(len(images), np.uint8)
    start = 0
    for path, count in zip(paths, counts, strict=True):
        rows = np.fromfile(path, np.uint8, count * row_bytes)
        if len(rows) != count * row_bytes:  # it has become shorter meanwhile
            raise file_error(path, "size", f"{count * row_bytes:,} bytes", f"{len(rows):,}", known.step)
        rows = rows.reshape(count, row_bytes)
        if label_bytes == 2 and rows[:, 0].max(initial=0) >= _COARSE:
            raise file_error(path, "coarse labels", f"0 to {_COARSE - 1}", f"{rows[:, 0].max()}", known.step)
        images[start : start + count] = rows[:, label_bytes:].reshape(count, *_SHAPE)
        labels[start : start + count] = rows[:, label_bytes - 1]
        start += count
    _check_names(known, folder)
    where = paths[0].name if len(paths) == 1 else f"{paths[0].name} to {paths[-1].name}"
    return known.image_set(split, images, labels, where)


def _row_counts(known: KnownSet, split: str, paths: list[Path], row_bytes: int) -> list[int]:
    """How many rows each file has, by its size: equally many, as many as are expected together."""
    sizes = [path.stat().st_size for path in paths]
    count = known.counts.get(split)
    each = sizes[0] // row_bytes if count is None else count // len(paths)
    for path, nbytes in zip(paths, sizes, strict=True):
        if nbytes != each * row_bytes:
            expected = f"{each * row_bytes:,} bytes ({each:,} rows of {row_bytes:,})"
            raise file_error(path, "size", expected, f"{nbytes:,} bytes", known.step)
    return [each] * len(paths)


def _check_names(known: KnownSet, folder: Path) -> None:
    path = folder / _NAMES[known.name]
    if path.is_file():
        try:
            lines = path.read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            raise file_error(path, "names of classes", "a text", first_line(error), known.step) from error
        known.check_class_names(lines, path.name)


def refuse_pickles(known: KnownSet, split: str, folder: Path) -> None:
    """Refuse the Python version of CIFAR, which is a pickle, with a ``ZooError``; None where the folder has none."""
    names = _PICKLES[known.name]
    found = [name for name in names if (folder / name).is_file()]
    # files called train and test may be anything unless all three are there
    if found and (known.name == "cifar10" or found == list(names)):
        expected = f"the binary version ({', '.join(_FILES[known.name][split][:2])})"
        got = "Python pickles, which are never opened"
        raise ZooError(Problem(str(folder / found[0]), "file", expected, got, known.step))


def read_corrupted(
    known: KnownSet, folder: Path, corruption: str, severity: int, *, classes: int, count: int
) -> ImageSet:
    """The test images under one corruption of one severity: rows ``(severity - 1) * count`` onwards of its file.

    Returns an image set whose pixels are copied from a memory map, of this severity alone: 31 MB. Raises ``ZooError``
    if there is no such corruption, severity or file, and ``IntegrityError`` if a file is not as expected.
    ``corruption`` is one of ``CORRUPTIONS``, in which ``-`` may stand for ``_``; ``severity`` is 1 to 5; labels are
    below ``classes``; ``count`` is the number of test images, of which a file has five times as many, of rising
    severity.
    """
    name = corruption.replace("-", "_")
    if name not in CORRUPTIONS:
        raise UnknownNameError(known.name, "corruption", corruption, CORRUPTIONS)
    if not 1 <= severity <= SEVERITIES:
        problem = Problem(known.name, "severity", f"1 to {SEVERITIES}", str(severity), "Choose one of them.")
        raise ZooError(problem)
    rows = slice((severity - 1) * count, severity * count)
    images = map_npy(folder / f"{name}.npy", (SEVERITIES * count, *_SHAPE[1:], _SHAPE[0]), "uint8")
    labels = map_npy(folder / "labels.npy", (SEVERITIES * count,), "integer")
    if not (labels.reshape(SEVERITIES, count) == labels[:count]).all():
        raise file_error("labels.npy", "labels", "the same for each severity", "others", known.step)
    if len(labels) and labels.max() >= classes:
        raise file_error("labels.npy", "labels", f"0 to {classes - 1}", str(labels.max()), known.step)
    # the authors' arrays have the channels last
    pixels = np.ascontiguousarray(images[rows].transpose(0, 3, 1, 2))
    return known.image_set("test", pixels, np.array(labels[rows]), f"{name}.npy")
