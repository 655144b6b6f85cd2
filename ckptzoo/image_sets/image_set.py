"""Images with their labels, what is known of a data set before it is read, and checks that all its forms share."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.arguments import checked
from ckptzoo.errors import IntegrityError, Problem, SpecError, ZooError
from ckptzoo.text import brief_repr, excerpt

FOLDER_VARIABLE = "CKPTZOO_DATA"
"""The environment variable with the folder of data sets."""
Images = NDArray[np.uint8]
Labels = NDArray[np.int64]
MAX_BYTES = 8 * 2**30
"""The maximum number of bytes of the images of a set whose size is not otherwise bounded."""
REFETCH = "Fetch the file again."


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images and their labels.

    Parameters
    ----------
    name
        of the data set, such as ``mnist``.
    images
        (N, C, H, W) uint8, raw pixels; perhaps a memory map.
    labels
        (N,) int64, from 0.
    class_names
        in the order of the labels; None where the data set has none of its own, or they are not known.
    """

    name: str
    images: Images
    labels: Labels
    class_names: tuple[str, ...] | None = None

    __repr__ = brief_repr

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int | None) -> "ImageSet":
        """The first ``count`` images, as views; all of them where it is None.

        Parameters
        ----------
        count
            how many; None for all.

        Raises
        ------
        ZooError
            There are fewer.
        """
        if count is None:
            return self
        if count > len(self):
            expected, step = f"at most {len(self):,} examples", "Ask for fewer."
            raise ZooError(Problem(self.name, "images", expected, f"{count:,}", step))
        return ImageSet(self.name, self.images[:count], self.labels[:count], self.class_names)

    def reduced(self, side: int) -> "ImageSet":
        """The same images with sides of ``side`` pixels, each the mean of a block, rounded (a half to the even number).

        The name becomes ``<name>-<side>x<side>``.

        Parameters
        ----------
        side
            pixels of a side, which divide the present one.

        Raises
        ------
        ZooError
            The images are not square, or their side is no multiple.
        """
        N, C, height, width = self.images.shape
        if side < 1 or height != width or height % side:
            step = "Choose a divisor of it."
            expected = f"a side that divides {height} x {width} pixels"
            raise ZooError(Problem(self.name, "size", expected, str(side), step))
        blocks = self.images.reshape(N, C, side, height // side, side, width // side)
        # integers, so that the mean is rounded once
        sums = blocks.sum((3, 5), dtype=np.uint32)
        images = np.rint(sums / (height // side) ** 2).astype(np.uint8)
        return ImageSet(f"{self.name}-{side}x{side}", images, self.labels, self.class_names)

    def padded(self, side: int, channels: int) -> "ImageSet":
        """The same images amid black margins, with sides of ``side`` pixels; grey ones in ``channels`` equal channels.

        The name becomes ``<name>-<channels>x<side>x<side>``. Grey images are so shown to networks that take colours.
        Where the margins cannot be equal, the right and the lower one are wider by a pixel.

        Parameters
        ----------
        side
            pixels of a side, at least the present ones.
        channels
            the present number, or any where there is one.

        Raises
        ------
        ZooError
            The images are larger, or have another number of channels and more than one; or they would take more than
            8 GiB.

        Examples
        --------
        >>> digits = ImageSet("grey", np.full((2, 1, 28, 28), 255, np.uint8), np.zeros(2, np.int64))
        >>> digits.padded(32, 3).images.shape
        (2, 3, 32, 32)
        """
        N, C, height, width = self.images.shape
        if side < max(height, width):
            expected = f"a side of at least {max(height, width)} pixels, or one that divides it"
            raise ZooError(Problem(self.name, "size", expected, str(side), "Choose another one."))
        if channels < 1 or C not in (1, channels):
            expected = f"{C}, or any number of grey images"
            raise ZooError(Problem(self.name, "channels", expected, str(channels), "Choose another set."))
        if (size := N * channels * side**2) > MAX_BYTES:
            raise ZooError(Problem(self.name, "size", f"at most {MAX_BYTES:,} bytes", f"{size:,}", "Ask for fewer."))
        top, left = (side - height) // 2, (side - width) // 2
        images = np.zeros((N, channels, side, side), np.uint8)
        images[:, :, top : top + height, left : left + width] = self.images
        return ImageSet(f"{self.name}-{channels}x{side}x{side}", images, self.labels, self.class_names)

    @cached_property
    def digest(self) -> str:
        """``sha256:...`` of shapes and bytes of images and labels, and of the names of the classes where there are any.

        It is the same for every form that a data set may be stored in.
        """
        total = hashlib.sha256()
        for array in (self.images, self.labels):
            hash_array(total, array, f"{array.shape}")
        hash_class_names(total, self.class_names)
        return "sha256:" + total.hexdigest()

    def normalized(
        self, mean: float | Sequence[float], std: float | Sequence[float], limit: int | None = None
    ) -> NDArray[np.float32]:
        """``network_inputs`` of the first ``limit`` images.

        Parameters
        ----------
        mean
            of pixels between 0 and 1, one number or one a channel.
        std
            likewise.
        limit
            the number of images; None for all.
        """
        return network_inputs(self.images[:limit], mean, std)


@checked
def network_inputs(images: Images, mean: float | Sequence[float], std: float | Sequence[float]) -> NDArray[np.float32]:
    """(N, C, H, W) float32: ``(pixel / 255 - mean) / std``, computed in float64 and rounded once.

    Parameters
    ----------
    images
        (N, C, H, W) uint8, raw pixels.
    mean, std
        one number for all channels or one a channel.

    Raises
    ------
    ZooError
        There are other numbers than channels.

    Examples
    --------
    >>> network_inputs(np.full((1, 3, 1, 1), 255, np.uint8), (0.5, 0.5, 0.0), 0.5).ravel().tolist()
    [1.0, 1.0, 2.0]
    """
    if images.ndim != 4 or images.dtype != np.uint8:
        got, step = f"{images.shape} {images.dtype}", "Pass the images of an ImageSet."
        raise ZooError(Problem("images", "images", "(N, C, H, W) uint8", got, step))
    channels = images.shape[1]
    scale = [np.atleast_1d(np.array(values, np.float64)) for values in (mean, std)]
    for values in scale:
        if values.shape not in ((1,), (channels,)):
            expected, got = "one number or one a channel", f"{values.size} for images of {channels}"
            raise ZooError(Problem("images", "mean and std", expected, got, "Correct them."))
    inputs = np.empty(images.shape, np.float32)
    for channel, (centre, width) in enumerate(zip(*(np.broadcast_to(item, channels) for item in scale), strict=True)):
        # a pixel has 256 values, so that each is computed once
        inputs[:, channel] = ((np.arange(256) / 255 - centre) / width).astype(np.float32)[images[:, channel]]
    return inputs


def hash_array(total: Any, array: NDArray[Any], title: str) -> None:
    """Add ``<title> <dtype>`` and the bytes of an array to a hash of ``hashlib``."""
    # dtype.str has the byte order too, as in "<i8"
    total.update(f"{title} {array.dtype.str}\n".encode())
    # through a memory view, because a memory map of 1.2 GB need not be copied; an empty one has no view of bytes
    total.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def hash_class_names(total: Any, class_names: Sequence[str] | None) -> None:
    """Add class names, where there are any, to a hash; sets without them keep the digests of earlier versions."""
    if class_names is not None:
        total.update(f"class_names {json.dumps(list(class_names))}\n".encode())


@dataclass(frozen=True)
class HubTable:
    """Where a data set is on the Hugging Face hub, and how its table is laid out.

    ``address`` and ``configuration`` are as ``datasets.load_dataset`` takes them; ``splits`` are its names of ``train``
    and ``test``; ``sorted_names`` says whether its classes are sorted by name, and so numbered otherwise than those of
    the set.
    """

    address: str
    configuration: str | None = None
    image: str = "image"
    label: str = "label"
    splits: Mapping[str, str] = field(default_factory=lambda: {"train": "train", "test": "test"})
    sorted_names: bool = False


Form = Callable[["KnownSet", str, Path], "ImageSet | None"]
"""Reads ``train`` or ``test`` of a data set from a folder; None where the folder has no files of this form."""


@dataclass(frozen=True, kw_only=True)
class KnownSet:
    """Facts about a data set that are known before it is read.

    ``forms`` are the ways of storing it in a folder, of which the first that is there is read. ``counts`` are the
    images of ``train`` and ``test``; a split that is not named may have any number. Labels are below ``classes``, None
    for any number; ``class_names`` are in their order, None where they are not known, and ``spellings`` are other
    spellings of these. ``folders`` are what its archives unpack to. ``table`` is where ``datasets`` finds it, None
    where it does not, and ``source`` where people get its files: the next step where they are not there.
    """

    name: str
    forms: tuple[Form, ...]
    counts: Mapping[str, int] = field(default_factory=dict)
    size: int | None = None
    channels: int | None = None
    classes: int | None = None
    class_names: tuple[str, ...] | None = None
    spellings: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    table: HubTable | None = None
    source: str = ""

    def is_named_by(self, folder: Path) -> bool:
        """Whether a folder has the name of this set; some sets have files of the same names."""
        return folder.absolute().name in (self.name, *self.folders)

    def image_set(self, split: str, images: Images, labels: NDArray[Any], where: str) -> ImageSet:
        """Images and labels of a split, checked. Raises ``IntegrityError`` if their number, shape or range is not what
        is known. ``images`` are (N, C, H, W) uint8 and ``labels`` (N,) integers; ``where`` is their file or folder.
        """
        count = self.counts.get(split, len(images))
        if len(images) != count:
            raise file_error(where, f"{split} images", f"{count:,}", f"{len(images):,}", self.step)
        shape = (self.channels or images.shape[1], *(self.size or side for side in images.shape[2:]))
        if images.shape[1:] != shape:
            raise file_error(where, "images", f"{shape} each", f"{images.shape[1:]}", self.step)
        if labels.shape != (len(images),) or labels.dtype.kind not in "iu":
            expected = f"{len(images):,} integers"
            raise file_error(where, "labels", expected, f"{labels.dtype} {labels.shape}", self.step)
        least, largest = (int(labels.min()), int(labels.max())) if len(labels) else (0, 0)
        if least < 0 or (self.classes is not None and largest >= self.classes):
            expected = "from 0" if self.classes is None else f"0 to {self.classes - 1}"
            raise file_error(where, "labels", expected, f"{least} to {largest}", self.step)
        return ImageSet(self.name, images, labels.astype(np.int64), self.class_names)

    def check_class_names(self, names: Sequence[str], where: str) -> None:
        """Compare names of classes in the order of labels with those that are known, whatever their spelling. Raises
        ``IntegrityError`` if they are in another order, or others.
        """
        if self.class_names is None:
            return
        found = [self.spellings.get(name, name) for name in names]
        if len(found) != len(self.class_names):
            expected = f"{len(self.class_names)} names"
            raise file_error(where, "classes", expected, str(len(found)), self.step)
        for number, (name, expected) in enumerate(zip(found, self.class_names, strict=True)):
            if name != expected:
                raise file_error(where, f"name of class {number}", expected, excerpt(name, 40), self.step)

    @property
    def step(self) -> str:
        """The next step for files that are not as expected."""
        return self.source or REFETCH


def file_error(where: str | Path, what: str, expected: str, got: str, step: str = REFETCH) -> IntegrityError:
    """The error for a file that is not as expected, named without its folder."""
    location = where.name if isinstance(where, Path) else where
    return IntegrityError(Problem(location, what, expected, got, step))


def first_line(error: BaseException) -> str:
    """An error of a library on one line, its class first."""
    return excerpt(f"{type(error).__name__}: {error}".splitlines()[0], 160)


def check_split(name: str, split: str) -> None:
    """Refuse a split that is neither ``train`` nor ``test``. Raises ``SpecError`` for another name."""
    if split not in ("train", "test"):
        raise SpecError(Problem(name, "split", "train or test", repr(split), "Choose one of them."))
