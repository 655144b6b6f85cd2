"""Reads .npy arrays and .npz archives of them as data."""

from io import BytesIO
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.hub.untrusted.archives import check_archive
from ckptzoo.hub.untrusted.errors import reject
from ckptzoo.hub.untrusted.formats import Form, begins, first_member
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.schema.architecture import ITEMSIZE
from ckptzoo.text import excerpt

_MAX_HEADER = 10_000
"""Characters of an array's header; numpy's own default."""
_MAX_DIMENSIONS = 32
_MAX_TEXTS, _MAX_TEXT_BYTES = 1024, 4096
"""Texts of an array, and bytes of one, at four a character."""
_STEP = "Save it again with numpy.savez and plain arrays of numbers."


def read_npz(data: bytes, *, location: str, limits: Limits, with_texts: bool = False) -> dict[str, Any]:
    """The arrays of an archive, by name, in the archive's order.

    Parameters
    ----------
    with_texts
        whether arrays of texts are taken, as lists; they are refused otherwise.

    Raises
    ------
    IntegrityError
        The archive is torch's or damaged; a member is no array, holds objects or another dtype, or is larger than it
        declares.
    """
    archive = check_archive(data, location=location, limits=limits)
    if archive.file_format != "npz":
        reject(location, "format", NPZ.words, "a file of torch.save", _STEP)
    members = {name.removesuffix(".npy"): name for name in archive.infos}
    found: dict[str, Any] = {}
    for name, member in members.items():
        content = archive.read(member)
        texts = _read_texts(content) if with_texts else None
        found[name] = read_npy(content, name=name, location=location, limits=limits) if texts is None else texts
    return found


def _read_texts(content: bytes | memoryview) -> list[str] | None:
    """A short array of texts; None for any other array."""
    stream = BytesIO(content)
    try:
        shape, _, dtype = _read_header(stream)
    except Exception:  # as in read_npy, which names what is wrong
        return None
    if dtype.kind != "U" or len(shape) > 1 or prod(shape) > _MAX_TEXTS or not 0 < dtype.itemsize <= _MAX_TEXT_BYTES:
        return None
    if len(content) - stream.tell() != prod(shape) * dtype.itemsize:
        return None
    return [str(text) for text in np.atleast_1d(np.frombuffer(content, dtype, offset=stream.tell()))]


def read_npy(content: bytes | memoryview, *, name: str, location: str, limits: Limits) -> NDArray[Any]:
    """One array, C-contiguous, in this machine's byte order.

    Raises
    ------
    IntegrityError
        It is no array of plain numbers, or not as large as it declares.
    """
    what = f"array {excerpt(name)!r}"
    stream = BytesIO(content)
    try:
        shape, fortran, dtype = _read_header(stream)
    except Exception as error:  # numpy parses the header with ast; what that raises is not documented
        reject(location, what, "a header of numpy.save", f"{type(error).__name__}: {error}", _STEP)
    if dtype.hasobject:
        reject(location, what, "plain numbers", "Python objects, which are pickled", _STEP)
    if dtype.name not in ITEMSIZE:
        reject(location, f"dtype of {excerpt(name)!r}", "one of " + ", ".join(ITEMSIZE), dtype, _STEP)
    if len(shape) > _MAX_DIMENSIONS or any(type(length) is not int or length < 0 for length in shape):
        reject(location, f"shape of {excerpt(name)!r}", f"at most {_MAX_DIMENSIONS} integers from 0", shape, _STEP)
    nbytes, start = prod(shape) * dtype.itemsize, stream.tell()
    if nbytes != len(content) - start:
        reject(location, what, f"{nbytes} bytes from its shape", f"{len(content) - start} in the file", _STEP)
    if nbytes > limits.tensor_bytes:
        reject(location, what, f"at most {limits.tensor_bytes} bytes", f"{nbytes} bytes", _STEP)
    array = np.frombuffer(content, dtype, offset=start).reshape(shape, order="F" if fortran else "C")
    return np.ascontiguousarray(array, dtype.newbyteorder("=")).reshape(shape)


def _read_header(stream: BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream, max_header_size=_MAX_HEADER)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(stream, max_header_size=_MAX_HEADER)
    raise ValueError(f"version {version}")


def _is_npz(head: bytes, path: str) -> bool:
    """Tells an archive of arrays; what is called ``.zip`` is one of files, each with an array."""
    member = first_member(head)
    return member is not None and member.endswith(".npy") and not path.lower().endswith(".zip")


NPZ = Form(
    "npz",
    "an .npz archive",
    "a zip archive that begins with a `.npy`",
    _is_npz,
    read=lambda data, location, limits, strict: read_npz(data, location=location, limits=limits, with_texts=not strict),
    becomes="one network of its arrays; vectors with `--layout`, samples with `--stacked`",
    facts="scalars among the arrays",
)
NPY = Form(
    "npy",
    "an array of numpy.save",
    "`93` `NUMPY`",
    begins(b"\x93NUMPY"),
    read=lambda data, location, limits, strict: {
        "array": read_npy(data, name="array", location=location, limits=limits)
    },
    becomes="vectors with `--layout`; a folder of arrays that are named like tensors is one network",
)
