"""Which data sets are known, and how one is found in folders, fetched, and named."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ckptzoo.arguments import checked
from ckptzoo.errors import MissingExtraError, Problem, UnknownNameError, ZooError
from ckptzoo.image_sets import class_names, tables
from ckptzoo.image_sets.cifar import CORRUPTIONS, read_binary, read_corrupted, refuse_pickles
from ckptzoo.image_sets.digits import DIGITS_TEST, read_digits
from ckptzoo.image_sets.idx import read_idx_files
from ckptzoo.image_sets.image_set import FOLDER_VARIABLE, HubTable, ImageSet, KnownSet, check_split
from ckptzoo.image_sets.npz import read_npz_files
from ckptzoo.image_sets.picture_folders import read_textures, read_tiny_imagenet
from ckptzoo.image_sets.svhn import read_mat
from ckptzoo.schema.layout import SET_NAME

_CIFAR_SOURCE = "Fetch {} from https://www.cs.toronto.edu/~kriz/cifar.html and unpack it."
# Zenodo's numbers of the records, by the number of classes
_CORRUPTED_RECORDS = {10: 2535967, 100: 3555552}
_FORMS = (read_npz_files, read_idx_files)
"""Readers that are tried for a data set that is not known."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")
_RESIZED = re.compile(r"(.+?)-(?:([1-9])x)?([1-9]\d{0,3})x\3")
"""``mnist-14x14`` and ``fashion-mnist-3x32x32``: a known data set with images of another size."""
_SET = re.compile(r"([^/]+)/(?:(test|train)(?:-([1-9]\d{0,8}))?|([a-z]+(?:-[a-z]+)*)-([1-9]))")
"""``svhn/test``, ``svhn/test-10000``, ``svhn/train-500`` and ``cifar10-c/gaussian-noise-3``."""


def _cifar(classes: int, names: tuple[str, ...], archives: tuple[str, ...], table: HubTable) -> KnownSet:
    return KnownSet(
        name=f"cifar{classes}",
        forms=(read_binary, read_npz_files, tables.read_parquet, refuse_pickles),
        counts={"train": 50_000, "test": 10_000},
        size=32,
        channels=3,
        classes=classes,
        class_names=names,
        spellings=class_names.CIFAR100_SPELLINGS if classes == 100 else {},
        folders=archives,
        table=table,
        source=_CIFAR_SOURCE.format(f"cifar-{classes}-binary.tar.gz"),
    )


def _corrupted(classes: int) -> KnownSet:
    return KnownSet(
        name=f"cifar{classes}-c",
        forms=(),
        size=32,
        channels=3,
        classes=classes,
        class_names=class_names.CIFAR10 if classes == 10 else class_names.CIFAR100,
        folders=(f"CIFAR-{classes}-C",),
        source=f"Fetch CIFAR-{classes}-C.tar from https://zenodo.org/records/{_CORRUPTED_RECORDS[classes]}.",
    )


def _grey(name: str, address: str) -> KnownSet:
    forms = (*_FORMS, tables.read_parquet)
    return KnownSet(name=name, forms=forms, size=28, channels=1, classes=10, table=HubTable(address))


KNOWN: Mapping[str, KnownSet] = {
    known.name: known
    for known in (
        _grey("mnist", "ylecun/mnist"),
        _grey("fashion-mnist", "zalando-datasets/fashion_mnist"),
        _cifar(
            10,
            class_names.CIFAR10,
            ("cifar-10-batches-bin", "cifar-10-batches-py"),
            HubTable("uoft-cs/cifar10", image="img"),
        ),
        _cifar(
            100,
            class_names.CIFAR100,
            ("cifar-100-binary", "cifar-100-python"),
            HubTable("uoft-cs/cifar100", image="img", label="fine_label"),
        ),
        KnownSet(
            name="tinyimagenet",
            forms=(read_tiny_imagenet, read_npz_files, tables.read_parquet),
            # 500 and 50 images a class; the test set is the archive's validation set, since its own has no labels
            counts={"train": 100_000, "test": 10_000},
            size=64,
            channels=3,
            classes=200,
            class_names=class_names.TINY_IMAGENET,
            folders=("tiny-imagenet-200", "tiny-imagenet"),
            table=HubTable("zh-plus/tiny-imagenet", splits={"train": "train", "test": "valid"}, sorted_names=True),
            source="Fetch http://cs231n.stanford.edu/tiny-imagenet-200.zip and unpack it.",
        ),
        KnownSet(
            name="svhn",
            forms=(read_mat, read_npz_files, tables.read_parquet),
            counts={"train": 73_257, "test": 26_032},
            size=32,
            channels=3,
            classes=10,
            class_names=class_names.DIGITS,
            table=HubTable("ufldl-stanford/svhn", "cropped_digits"),
            source="Fetch train_32x32.mat and test_32x32.mat from http://ufldl.stanford.edu/housenumbers.",
        ),
        KnownSet(
            name="textures",
            forms=(read_textures, read_npz_files),
            # 120 images for each of 47 textures
            counts={"test": 5_640},
            size=64,
            channels=3,
            classes=47,
            class_names=class_names.TEXTURES,
            folders=("dtd",),
            source="Fetch dtd-r1.0.1.tar.gz from https://www.robots.ox.ac.uk/~vgg/data/dtd and unpack it.",
        ),
        _corrupted(10),
        _corrupted(100),
    )
}
"""Data sets by name; one of any other name may be found too, in ``_FORMS``."""
TRAINING_SETS = tuple(known.name for known in KNOWN.values() if known.table is not None)
"""Those that have a training set."""


_DIGITS = ("digits", "mnist", "svhn")
"""Data sets whose labels are the digits 0 to 9."""


def have_same_classes(one: str, other: str) -> bool:
    """Whether labels of two data sets mean the same, so that a network of one can be scored on the other.

    >>> have_same_classes("mnist", "digits"), have_same_classes("cifar10", "cifar10-c")
    (True, True)
    >>> have_same_classes("cifar10", "svhn"), have_same_classes("ylecun/mnist", "mnist-14x14")
    (False, True)

    ``one`` and ``other`` are names of data sets, as ``find`` takes them.
    """
    first, second = (_full_size(name) for name in (one, other))
    return first == second or {first, second} <= set(_DIGITS)


def _full_size(name: str) -> str:
    """A data set without the size of its images and their corruption, which change no label."""
    name = _sized(name.lower().rpartition("/")[2])[0]
    return name.removesuffix("-c") if name in KNOWN else name


@checked
def find(
    name: str, folder: str | Path | None = None, *, split: str | None = None, count: int | None = None
) -> ImageSet | None:
    """A data set or a set of inputs, where it is on this machine; None where it is not. Nothing is fetched.

    Parameters
    ----------
    name
        such as ``mnist`` or ``ylecun/mnist``; case does not matter, and what is no plain name is not looked for.
        ``mnist-14x14`` are its images with a side of 14 pixels, see ``ImageSet.reduced``; so for every known set.
        ``mnist-3x32x32`` are its images amid black margins, in three equal channels, see ``ImageSet.padded``.
        Or a set of inputs: ``mnist/test``; ``svhn/test-10000`` for its first 10,000 images, ``svhn/train-500`` for the
        first 500 training images; ``cifar10-c/gaussian-noise-3`` for the test images of CIFAR-10 under a corruption,
        with its severity from 1 to 5.
    folder
        holds the files of the data set, or a folder of its name, or of the name that its archive has, that does. By
        default the one that the environment variable ``CKPTZOO_DATA`` names. ``digits`` needs no folder where
        scikit-learn is installed.
    split
        ``test``, the default, or ``train``, where the name does not say it.
    count
        how many images there have to be; by default as many as the data set is known to have, any number where that is
        not known.

    Raises
    ------
    IntegrityError
        Files are there, and are not what they should be.
    ZooError
        They are pickles, or the cache for decoded pictures cannot be written; the name says another split, or more
        images than there are, or a corruption that the data set does not have.

    Notes
    -----
    Any data set may be stored as ``<name>_<split>.npz`` with ``images`` and ``labels``, or in parts of it. The other
    forms are: MNIST and Fashion-MNIST as idx files; CIFAR-10 and CIFAR-100 as rows of bytes (the binary version);
    SVHN as MATLAB files of cropped digits; TinyImageNet and Textures as folders of JPEG files; and all that the hub
    has, as Parquet files of it. The same data set has the same ``digest`` in any of them, but for JPEG files that
    another version of the decoder reads, and for tables in another order.

    Examples
    --------
    >>> find("no-such-set") is None
    True
    """
    name = name.lower()
    if (named := set_of(name)) is not None:
        dataset, own_split, limit, corruption, severity = named
        if corruption is not None:
            return find_corrupted(dataset, corruption, severity, folder)
        if split not in (None, own_split):
            raise ZooError(Problem("data", "split", f"{own_split}, as {name!r} says", str(split), "Name one of both."))
        found = find(dataset, folder, split=own_split, count=count)
        return None if found is None else found.first(limit)
    if "/" in name and is_known(name.partition("/")[0]):
        raise not_a_set(name)
    split = split or "test"
    check_split(name, split)
    # an address on the hub, such as ylecun/mnist, names its data set last
    name, root = name.rpartition("/")[2], folder_of(folder)
    if not _NAME.fullmatch(name):
        return None
    full_size, size = _sized(name)
    if size is not None:
        found = find(full_size, folder, split=split, count=count)
        return None if found is None else _resized(found, *size)
    known = _with_count(KNOWN.get(name) or KnownSet(name=name, forms=_FORMS), split, count)
    if root is not None and (found := read(known, split, root)) is not None:
        return found
    if name != "digits" or (digits := read_digits()) is None:
        return None
    rows = slice(-DIGITS_TEST, None) if split == "test" else slice(-DIGITS_TEST)
    return known.image_set(split, digits[0][rows], digits[1][rows], name)


@checked
def load(name: str, split: str, folder: str | Path | None = None, *, count: int | None = None) -> ImageSet:
    """A data set from a folder, or fetched through ``datasets`` where no folder is named.

    Parameters
    ----------
    name
        of a known data set, as ``find`` takes it.
    split
        ``train`` or ``test``.
    folder
        as ``find`` takes it; None fetches what is not on this machine.
    count
        how many images there have to be, as ``find`` takes it.

    Raises
    ------
    UnknownNameError
        No such data set is known.
    ZooError
        It is not in the folder, or could not be fetched.
    IntegrityError
        Files are not what they should be.
    """
    return load_halves(name, folder, {split: count})[split]


@checked
def load_halves(
    name: str, folder: str | Path | None = None, counts: Mapping[str, int | None] | None = None
) -> dict[str, ImageSet]:
    """Several splits of a data set, fetched together where they are fetched; see ``load``.

    Parameters
    ----------
    name
        of a known data set, as ``find`` takes it.
    folder
        as ``load`` takes it.
    counts
        for each split how many images there have to be, as ``count`` of ``find``; both splits by default.
    """
    counts = {"train": None, "test": None} if counts is None else counts
    full_size, size = _sized(name)
    if size is not None:
        halves = load_halves(full_size, folder, counts)
        return {split: _resized(image_set, *size) for split, image_set in halves.items()}
    known, root = KNOWN.get(name), folder_of(folder)
    if known is None and name != "digits":
        raise UnknownNameError("data", "data set", name, ("digits", *KNOWN))
    found: dict[str, ImageSet] = {}
    if root is None and known is not None:
        return halves_from(name, tables.fetch(known), counts)
    for split, count in counts.items():
        image_set = find(name, root, split=split, count=count)
        if image_set is None and known is None:
            raise MissingExtraError("scikit-learn", "build")
        if image_set is None:
            assert known is not None and root is not None
            step = f"{known.source} Name its folder with --data or {FOLDER_VARIABLE}.".lstrip()
            raise ZooError(Problem(str(root), f"{split} images", f"{name} in a known form", "none", step))
        found[split] = image_set
    return found


@checked
def halves_from(
    name: str, splits: Mapping[str, Any], counts: Mapping[str, int | None] | None = None
) -> dict[str, ImageSet]:
    """Splits of a known data set from a ``datasets.DatasetDict``.

    Parameters
    ----------
    name
        of a known data set.
    splits
        with the names of splits and columns that the data set has on the hub.
    counts
        as in ``load_halves``; by default both splits, of any number of images.

    Raises
    ------
    UnknownNameError
        No such data set is known.
    IntegrityError
        A split or column is missing, classes are in another order, or a picture is damaged.
    """
    known = KNOWN.get(name)
    if known is None or known.table is None:
        raise UnknownNameError("data", "data set", name, TRAINING_SETS)
    if counts is None:
        known, counts = replace(known, counts={}), {"train": None, "test": None}
    return {
        split: tables.from_datasets(_with_count(known, split, count), split, splits) for split, count in counts.items()
    }


def is_known(name: str) -> bool:
    """Whether a name is that of a data set that ckptzoo knows, or of one with images of another size."""
    return _sized(name)[0] in ("digits", *KNOWN)


def not_a_set(name: str) -> ZooError:
    """The error for a text that is not the name of a set of inputs."""
    expected = "a data set and /test or /train, as mnist/test or mnist/train-100"
    step = "Choose such a one; inputs of your own are stored by ckptzoo predict ZOO SET --inputs FILE.npz."
    return ZooError(Problem("data", "set of inputs", expected, repr(name)[:100], step))


def set_of(name: str) -> tuple[str, str, int | None, str | None, int] | None:
    """Data set, split, number of examples, corruption and severity of a set of inputs; None for another name."""
    matched = _SET.fullmatch(name)
    if matched is None or not SET_NAME.fullmatch(name) or _is_other_split(matched[1], matched[4]):
        return None
    dataset, split, limit, corruption, severity = matched.groups()
    return dataset, split or "test", int(limit) if limit else None, corruption, int(severity or 0)


def _is_other_split(dataset: str, corruption: str | None) -> bool:
    """Whether what reads as a corruption is none, of a data set without any: mnist/validation-5."""
    return corruption is not None and not dataset.endswith("-c") and corruption.replace("-", "_") not in CORRUPTIONS


@checked
def find_corrupted(
    name: str, corruption: str, severity: int, folder: str | Path | None = None, *, count: int = 10_000
) -> ImageSet | None:
    """Test images of CIFAR-10 or CIFAR-100 under a corruption, where they are on this machine; else None.

    Parameters
    ----------
    name
        ``cifar10-c`` or ``cifar100-c``.
    corruption
        of ``CORRUPTIONS``: the 15 of the standard mean, ``STANDARD_CORRUPTIONS``, and ``speckle_noise``,
        ``gaussian_blur``, ``spatter`` and ``saturate``, which it leaves out.
    severity
        1 to 5.
    folder
        as in ``find``.
    count
        test images of each severity.

    Raises
    ------
    ZooError
        No such corruption or severity, or the data set has none.
    IntegrityError
        Files are not what they should be.
    """
    known = KNOWN.get(name)
    if known is None or not name.endswith("-c"):
        expected = " or ".join(item for item in KNOWN if item.endswith("-c"))
        raise ZooError(Problem("data", "set of corrupted images", expected, repr(name), "Choose one of them."))
    root = folder_of(folder)
    for candidate in () if root is None else _candidates(known, root):
        # both sets have files of the same names, so that the folder's name has to say which they are
        if known.is_named_by(candidate) and (candidate / "labels.npy").is_file():
            assert known.classes is not None
            return read_corrupted(known, candidate, corruption, severity, classes=known.classes, count=count)
    return None


def read(known: KnownSet, split: str, folder: Path) -> ImageSet | None:
    """A split of a data set, from the first form that is in a folder, or in those of its names in it; else None."""
    for form in known.forms:
        for candidate in _candidates(known, folder):
            if (found := form(known, split, candidate)) is not None:
                return found
    return None


@checked
def has_training_set(name: str) -> bool:
    """Whether a data set of this name can be loaded with a training set.

    Parameters
    ----------
    name
        as ``find`` takes it.
    """
    return _sized(name)[0] in ("digits", *TRAINING_SETS)


def _sized(name: str) -> tuple[str, tuple[int | None, int] | None]:
    """The data set of a name, and the channels and the side of its images where the name says them."""
    matched = _RESIZED.fullmatch(name)
    if matched is None or matched[1] not in KNOWN:
        return name, None
    return matched[1], (int(matched[2]) if matched[2] else None, int(matched[3]))


def _resized(image_set: ImageSet, channels: int | None, side: int) -> ImageSet:
    return image_set.reduced(side) if channels is None else image_set.padded(side, channels)


@checked
def folder_of(folder: str | Path | None) -> Path | None:
    """The folder, else the one that the environment names, else none.

    Parameters
    ----------
    folder
        one that was named, or None.
    """
    folder = folder if folder is not None else os.environ.get(FOLDER_VARIABLE) or None
    return None if folder is None else Path(folder)


def _candidates(known: KnownSet, root: Path) -> Iterator[Path]:
    for folder in (root / known.name, root):
        yield from (folder, *(folder / name for name in known.folders))


def _with_count(known: KnownSet, split: str, count: int | None) -> KnownSet:
    if count is None or count == known.counts.get(split):
        return known
    step = "Ask for as many as there are, or fetch the files again."
    return replace(known, counts={**known.counts, split: count}, source=step if split in known.counts else known.source)
