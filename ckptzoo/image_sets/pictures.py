"""Decoding of JPEG and PNG pictures to arrays, and the memory-mapped files that keep what was decoded.

A file appears by one rename, in a folder of the cache that ``ckptzoo cache`` lists and prunes, under a digest of what
it was decoded from: another picture, or another version of the decoder, is another file.
"""

import contextlib
import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ckptzoo.environment import cache_root
from ckptzoo.errors import IntegrityError, Problem, ZooError, require
from ckptzoo.image_sets.image_set import Images, file_error, first_line
from ckptzoo.remote.cache import temporary_file
from ckptzoo.text import size as size_text

CACHE_ADDRESS = "decoded image sets"
"""The address that ``ckptzoo cache ls`` shows."""
_CACHE_FOLDER = "decoded-image-sets"
_VERSION = 1
"""Raised when the same pictures are decoded to other values; part of the digest."""
_BLOCK = 512
"""Pictures that are decoded and written at a time; 6 MB at 64x64."""
_MAX_PIXELS = 2**24
"""The maximum number of pixels of a picture that is scaled down."""
_FORMATS = ("JPEG", "PNG")
_MODES = ("1", "L", "P", "RGB", "CMYK")
"""Modes of Pillow that are read; others have 16 bits a channel, or transparency."""


class EncodedPicture(NamedTuple):
    """An encoded picture; ``where`` is its origin, for messages, and ``content`` is a file, or its bytes."""

    where: str
    content: Path | bytes


class Shape(NamedTuple):
    """The format to which pictures are decoded.

    ``size`` is the number of pixels of a side; ``channels`` is 1 or 3: grey pictures become RGB, or colour ones grey;
    ``scaled`` says whether pictures of any size are scaled to this one, without keeping their aspect; else they have
    it.
    """

    size: int
    channels: int = 3
    scaled: bool = False


def decode(picture: EncodedPicture, shape: Shape) -> Images:
    """Decode a picture to (C, S, S) uint8. Scaling is Pillow's bilinear filter, whose support grows with the scale, so
    that it does not alias. Raises ``IntegrityError`` if it is no JPEG or PNG picture, is damaged, or has another size.
    """
    module: Any = require("PIL.Image", "hub", package="pillow")
    where, content = picture
    try:
        with module.open(io.BytesIO(content) if isinstance(content, bytes) else content, formats=_FORMATS) as found:
            width, height = found.size  # known before anything is decoded
            if not shape.scaled and (width, height) != (shape.size, shape.size):
                expected = f"{shape.size} x {shape.size} pixels"
                raise file_error(where, "picture", expected, f"{width} x {height}")
            if width * height > _MAX_PIXELS:
                raise file_error(where, "picture", f"at most {_MAX_PIXELS:,} pixels", f"{width} x {height}")
            if found.mode not in _MODES:
                raise file_error(where, "picture", f"one of the modes {', '.join(_MODES)}", found.mode)
            # some JPEG files of TinyImageNet are grey
            pixels = found.convert("L" if shape.channels == 1 else "RGB")
    except IntegrityError:
        raise
    # Pillow raises OSError, SyntaxError, ValueError, struct.error and errors of its own
    except Exception as error:
        raise file_error(where, "picture", "a whole JPEG or PNG", first_line(error)) from error
    if shape.scaled:
        pixels = pixels.resize((shape.size, shape.size), module.Resampling.BILINEAR)
    array = np.asarray(pixels, np.uint8).reshape(shape.size, shape.size, shape.channels)
    return np.ascontiguousarray(array.transpose(2, 0, 1))


def decode_all(pictures: Sequence[EncodedPicture], shape: Shape) -> Images:
    """(N, C, S, S) uint8, in memory; errors are those of ``decode``."""
    images = np.empty((len(pictures), shape.channels, shape.size, shape.size), np.uint8)
    start = 0
    for block in _blocks(pictures, shape):
        images[start : start + len(block)] = block
        start += len(block)
    return images


def decode_to_cache(pictures: Sequence[EncodedPicture], shape: Shape) -> Images:
    """(N, C, S, S) uint8, a memory map of a file in the cache, which is written where it is not there.

    Raises ``IntegrityError`` as in ``decode``, and nothing is then written, and ``ZooError`` if the cache cannot be
    written. 3,500 pictures of 64x64 a second of processor time (JPEG files of 1.8 kB); what is there already costs a
    look at the size and time of each file, 8 microseconds.
    """
    key = _digest(pictures, shape)
    path = cache_root() / _CACHE_FOLDER / "blobs" / key[:2] / f"{key}.npy"
    dimensions = (len(pictures), shape.channels, shape.size, shape.size)
    if (found := _open(path, dimensions)) is None:
        _write(path, dimensions, _blocks(pictures, shape))
        found = _open(path, dimensions)
    if found is None:
        raise _cache_error(path, "a file that can be read back", "none")
    return found


def _blocks(pictures: Sequence[EncodedPicture], shape: Shape) -> Iterator[Images]:
    # Pillow decodes without holding the interpreter's lock
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(cores) as pool:
        for start in range(0, len(pictures), _BLOCK):
            yield np.stack(list(pool.map(lambda item: decode(item, shape), pictures[start : start + _BLOCK])))


def _digest(pictures: Sequence[EncodedPicture], shape: Shape) -> str:
    """The digest of the bytes of pictures, or of names, sizes and times of files, and of what decodes them."""
    features: Any = require("PIL.features", "hub", package="pillow")
    decoder = [_VERSION, features.version("pil"), features.version("jpg"), *shape]
    total = hashlib.sha256(json.dumps(decoder).encode())
    for where, content in pictures:
        if isinstance(content, bytes):
            total.update(b"%d " % len(content))
            total.update(content)
            continue
        try:
            facts = content.stat()
        except OSError as error:
            raise file_error(where, "picture", "a file", first_line(error)) from error
        total.update(f"{content.absolute()} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return total.hexdigest()


def _open(path: Path, dimensions: tuple[int, ...]) -> Images | None:
    """Return the memory map where the file is there and whole."""
    try:
        # copy-on-write, because torch warns of arrays that it may not write to
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    # numpy reads a header as Python text, so that it may raise a SyntaxError or a TokenError beside OSError, ValueError
    except Exception:
        return None
    with contextlib.suppress(OSError):  # a disk that can only be read
        os.utime(path)  # what was not used for longest is removed first
    return array if array.dtype == np.uint8 and array.shape == dimensions else None


def _write(path: Path, dimensions: tuple[int, ...], blocks: Iterator[Images]) -> None:
    """Write blocks one after another; a full disk is an error of ``write`` then, and no fault of a memory map."""
    nbytes = int(np.prod(dimensions))
    with _disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        address = cache_root() / _CACHE_FOLDER / "address.json"
        if not address.exists():
            address.write_text(json.dumps({"address": CACHE_ADDRESS}))
        free = shutil.disk_usage(path.parent).free
    if free < nbytes:
        raise _cache_error(path, f"{size_text(nbytes)} of free disk", size_text(free))
    with contextlib.ExitStack() as stack:
        with _disk_errors(path):
            temporary, file = stack.enter_context(temporary_file(path.parent))
            header = {"descr": "|u1", "fortran_order": False, "shape": dimensions}
            np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            with _disk_errors(path):
                file.write(block.data)
        with _disk_errors(path):
            file.flush()
            # before the rename, so that no crash leaves the name with half of the bytes
            os.fsync(file.fileno())
            temporary.replace(path)


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _cache_error(path, "to write it", error.strerror or first_line(error)) from error


def _cache_error(path: Path, expected: str, got: str) -> ZooError:
    step = "Make room, or name another folder in CKPTZOO_CACHE."
    return ZooError(Problem(str(path.parent.parent.parent), "cache of decoded pictures", expected, got, step))
