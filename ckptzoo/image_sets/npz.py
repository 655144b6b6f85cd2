"""Arrays in .npz archives, one a split or several parts of it, and memory maps of .npy files; never a pickle."""

import json
import math
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import ZooError
from ckptzoo.image_sets.image_set import MAX_BYTES, Images, ImageSet, KnownSet, file_error, first_line
from ckptzoo.text import excerpt, size

_LABELS = ("labels", "fine_labels")
"""Names of the labels; CIFAR-100 calls its 100 classes fine labels."""
_NAMES_FILE, _NAMES_KEYS = "label_names.json", ("label_names", "fine_label_names")
_NAMES_BYTES = 2**20
_MAGIC = b"\x93NUMPY"
_REWRITE = "Fetch it again, or write it with numpy.savez(images=..., labels=...)."


def read_npz_files(known: KnownSet, split: str, folder: Path) -> ImageSet | None:
    """``<name>_<split>.npz``, or its parts ``<name>_<split>_0of5.npz`` to ``4of5``, in order; see ``Form``.

    Each holds ``images``, uint8 of (N, H, W), (N, H, W, C) or (N, C, H, W), and ``labels`` or ``fine_labels``. Names
    of classes may stand beside them in ``label_names.json``.
    """
    paths = _paths_of(known, split, folder)
    if not paths:
        return None
    # in memory twice while they are joined, as parts and as a whole
    images, labels = zip(*(_read_part(known, path) for path in paths), strict=True)
    shapes = sorted({array.shape[1:] for array in images})
    if len(shapes) > 1:
        raise file_error(paths[-1], "images", f"{shapes[0]} each, as in other parts", f"{shapes[-1]}", _REWRITE)
    _check_names(known, folder)
    where = paths[0].name if len(paths) == 1 else f"{paths[0].name} to {paths[-1].name}"
    return known.image_set(split, np.concatenate(images), np.concatenate(labels), where)


def _paths_of(known: KnownSet, split: str, folder: Path) -> list[Path]:
    """The archive of a split, or all its parts; empty where the folder has neither."""
    whole = folder / f"{known.name}_{split}.npz"
    if whole.is_file():
        return [whole]
    stem, places = f"{known.name}_{split}", {}
    for path in folder.glob(f"{stem}_*of*.npz"):
        if matched := re.fullmatch(rf"{re.escape(stem)}_(\d{{1,4}})of(\d{{1,4}})\.npz", path.name):
            places[int(matched[1]), int(matched[2])] = path
    if not places:
        return []
    parts = max(count for _, count in places)
    expected = [(number, parts) for number in range(parts)]
    if sorted(places) != expected:
        missing = [f"{stem}_{number}of{parts}.npz" for number, _ in expected if (number, parts) not in places]
        got = f"no {missing[0]}" if missing else f"{len(places)} parts"
        raise file_error(folder.name, f"parts of {known.name}", f"{parts} of {split}", got, "Fetch all parts again.")
    return [places[place] for place in expected]


def _read_part(known: KnownSet, path: Path) -> tuple[Images, NDArray[Any]]:
    with _readable(path), zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        total = sum(info.file_size for info in members.values())
        # sizes in a zip archive's directory may be false, hence the comparison with headers below
        if total > MAX_BYTES:  # before anything is unpacked
            raise file_error(path, "size", f"at most {size(MAX_BYTES)} unpacked", size(total), _REWRITE)
        key = next((name for name in _LABELS if name in members), None)
        if "images" not in members or key is None:
            got = excerpt(", ".join(members), 120) or "none"
            raise file_error(path, "arrays", "images and labels", got, _REWRITE)
        # what the header promises decides how much memory is taken, so it is compared with the file first
        shapes = [_check_header(path, archive, members[name], kinds) for name, kinds in (("images", "u"), (key, "iu"))]
        _check_image_shape(known, path, shapes[0])
        if shapes[1] != shapes[0][:1]:
            raise file_error(path, "labels", f"{shapes[0][0]} integers", f"{shapes[1]}", _REWRITE)
        arrays: list[NDArray[Any]] = []
        for name in ("images", key):
            with archive.open(members[name]) as file:
                arrays.append(np.lib.format.read_array(file, allow_pickle=False))
    return _channels_first(arrays[0]), arrays[1]


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except ZooError:
        raise
    # zipfile and zlib have errors of their own, and RuntimeError for encryption; numpy reads a header as Python text,
    # so that it may raise a SyntaxError or a TokenError
    except Exception as error:
        raise file_error(path, "file", "an .npz file", first_line(error), _REWRITE) from error


def _check_header(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo, kinds: str) -> tuple[int, ...]:
    """The shape of an array that is no larger than its file and holds integers."""
    with archive.open(member) as file:
        shape, dtype = _read_header(file)
    what = member.filename.removesuffix(".npy")
    what = "labels" if what in _LABELS else what
    if dtype.kind not in kinds or (what == "images" and dtype != np.uint8):
        expected = "uint8 pixels" if what == "images" else "integers"
        got = "Python objects, which are never unpickled" if dtype.hasobject else str(dtype)
        raise file_error(path, what, expected, got, _REWRITE)
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes > member.file_size:
        raise file_error(path, what, f"{size(nbytes)}, as its header says", size(member.file_size), _REWRITE)
    return shape


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"a .npy file of version {version[0]}.{version[1]}")
    shape, _, dtype = readers[version](file)
    return shape, dtype


def _check_image_shape(known: KnownSet, path: Path, shape: tuple[int, ...]) -> None:
    is_image = len(shape) == 3 or (len(shape) == 4 and (shape[1] in (1, 3) or shape[3] in (1, 3)))
    if not is_image or not math.prod(shape):
        expected = "uint8 of (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 channels"
        raise file_error(path, "images", expected, f"uint8 {shape}", _REWRITE)
    most = max(known.counts.values(), default=shape[0])
    if shape[0] > most:
        raise file_error(path, "images", f"at most {most:,}", f"{shape[0]:,}", known.step)


def _channels_first(images: NDArray[np.uint8]) -> Images:
    if images.ndim == 3:
        return images[:, None]
    return images if images.shape[1] in (1, 3) else np.ascontiguousarray(images.transpose(0, 3, 1, 2))


def _check_names(known: KnownSet, folder: Path) -> None:
    path = folder / _NAMES_FILE
    if known.class_names is None or not path.is_file():
        return
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(_NAMES_BYTES))
    except (OSError, ValueError) as error:
        raise file_error(path, "names of classes", "a JSON file", first_line(error)) from error
    found = content if isinstance(content, dict) else {}
    names = next((found[key] for key in _NAMES_KEYS if key in found), None)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise file_error(path, _NAMES_KEYS[-1], "a list of texts", excerpt(names, 60))
    known.check_class_names(names, path.name)


def map_npy(path: Path, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """A memory map of a .npy file. ``shape`` and ``dtype`` are the expected ones; the dtype ``integer`` allows all
    integer dtypes. Raises ``IntegrityError`` if there is no such file, or it holds something else.
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise file_error(path, "file", "a .npy file", "no such file") from error
    # numpy reads a header as Python text, so that it may raise a SyntaxError or a TokenError
    except Exception as error:
        with path.open("rb") as file:
            is_npy = file.read(len(_MAGIC)) == _MAGIC
        # numpy takes every file that it does not know for a pickle
        got = first_line(error) if is_npy else "another"
        if is_npy and "object" in str(error):
            got = "Python objects, which are never unpickled"
        raise file_error(path, "file", "a .npy file of numbers", got) from error
    if not isinstance(array, np.ndarray):
        raise file_error(path, "file", "a .npy file", "an archive")
    is_right = array.dtype.kind in "iu" if dtype == "integer" else array.dtype == np.dtype(dtype)
    if array.shape != shape or not is_right:
        raise file_error(path, "array", f"{dtype} {shape}", f"{array.dtype} {array.shape}")
    return array
