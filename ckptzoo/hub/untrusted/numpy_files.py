"""Reads .npy arrays, one or several in sequence, and .npz archives of them as data."""

import json
from collections.abc import Mapping
from io import BytesIO
from math import prod
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.format.header import numpy_dtype
from ckptzoo.hub.untrusted.archives import check_archive, stream_of
from ckptzoo.hub.untrusted.errors import reject
from ckptzoo.hub.untrusted.formats import FileForm, first_member
from ckptzoo.hub.untrusted.inert import Unpickler
from ckptzoo.hub.untrusted.layer_trees import LEAF_NAMES
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.hub.untrusted.objects import is_figure_name
from ckptzoo.hub.untrusted.values import Objects
from ckptzoo.schema.architecture import ITEMSIZE
from ckptzoo.text import excerpt

_MAX_HEADER = 10_000
"""Characters of an array's header; numpy's own default."""
_MAX_DIMENSIONS = 32
"""Axes of an array: the limit of numpy before version 2."""
_MAX_TEXTS, _MAX_TEXT_BYTES = 1024, 4096
"""Texts of an array, and bytes of one, at four a character."""
MAGIC = b"\x93NUMPY"
_MAX_LINE = 2**16
"""Bytes of the line of JSON that may stand before the arrays of a file of Equinox."""
_STEP = "Save it again with numpy.savez and plain arrays of numbers."


def read_npz(data: bytes | memoryview, *, location: str, limits: Limits, strict: bool = True) -> dict[str, Any]:
    """Return the arrays of an archive, by name, in the archive's order.

    With ``strict`` arrays of texts and of objects are refused; otherwise they are lists, and numbers without axes
    that are no tensors are plain values. Raises ``IntegrityError`` where the archive is torch's or damaged, or a
    member is no array, holds objects or another dtype, or is larger than it declares.
    """
    archive = check_archive(data, location=location, limits=limits)
    if archive.file_format != "npz":
        reject(location, "format", NPZ.words, "a file of torch.save", _STEP)
    members = {name.removesuffix(".npy"): name for name in archive.infos}
    found: dict[str, Any] = {}
    for name, member in members.items():
        content = archive.read(member)
        texts = None if strict else _read_texts(content)
        found[name] = (
            read_npy(content, name=name, location=location, limits=limits, strict=strict) if texts is None else texts
        )
    return found if strict else with_facts(found)


def with_facts(items: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same, where a number without axes that is no tensor of a network is a plain value, such as an epoch.

    A float is a tensor where it has the dtype of the others, and no name of a figure.

    >>> with_facts({"w": np.ones(2, np.float32), "epoch": np.array(3), "scale": np.array(2, np.float32)})["epoch"]
    3
    """
    arrays = {name: item for name, item in items.items() if isinstance(item, np.ndarray)}
    others = {item.dtype for item in arrays.values() if item.ndim}
    return {
        **items,
        **{
            name: item.item()
            for name, item in arrays.items()
            if not item.ndim
            and others
            and not name.isdecimal()
            and not LEAF_NAMES & {name.lower().replace("/", ".").rpartition(".")[2]}
            and (item.dtype not in others or item.dtype.kind in "iub" or is_figure_name(name))
        },
    }


def _read_texts(content: bytes | memoryview) -> list[str] | bytes | None:
    """Return a short array of texts, or the bytes of one with long texts; None for any other array."""
    stream = stream_of(content)
    try:
        shape, _, dtype = _read_header(stream)
    except Exception:  # as in read_npy, which names what is wrong
        return None
    nbytes, start = prod(shape) * dtype.itemsize, stream.tell()
    if dtype.kind not in "US" or len(shape) > 1 or prod(shape) > _MAX_TEXTS or len(content) - start != nbytes:
        return None
    if not 0 < dtype.itemsize <= _MAX_TEXT_BYTES:  # as TensorFlow's graph of objects
        return bytes(content[start:])
    texts = np.frombuffer(content, dtype, offset=start)
    return [text.decode("latin-1") if isinstance(text, bytes) else str(text) for text in texts]


def read_npy(
    content: bytes | memoryview, *, name: str, location: str, limits: Limits, strict: bool = True
) -> NDArray[Any]:
    """Read one array, C-contiguous, in this machine's byte order; one of objects as lists, where it is not refused.

    Raises ``IntegrityError`` where it is no array of plain numbers, or not as large as it declares.
    """
    array, rest = _read_array(content, name, location, limits, strict=strict)
    if rest:
        expected = f"{len(content) - rest} bytes from its shape"
        reject(location, f"array {excerpt(name)!r}", expected, f"{len(content)} in the file", _STEP)
    return array


def read_arrays(data: bytes | memoryview, *, location: str, limits: Limits, strict: bool) -> Any:
    """Read a file of numpy.save: an array, or several behind one another, by their places.

    Equinox writes several, and before them may be a line of JSON with the settings of the network. Raises
    ``IntegrityError`` where an array is not as large as it declares, or something else is behind it.
    """
    found: dict[str, Any] = {}
    view, settings = memoryview(data), None
    if bytes(data[: len(MAGIC)]) != MAGIC:
        head = bytes(data[:_MAX_LINE])
        line = head[: head.find(b"\n" + MAGIC) + 1]
        try:
            settings = json.loads(line)
        except (ValueError, RecursionError) as error:
            reject(location, "first line", "settings in JSON", f"{type(error).__name__}: {error}", _STEP)
        view = view[len(line) :]
    while view:
        if len(found) >= limits.tensors:
            reject(location, "arrays", f"at most {limits.tensors}", "more", _STEP)
        name = str(len(found)) if found else "array"
        found[name], rest = _read_array(view, name, location, limits, strict=strict)
        view = view[len(view) - rest :] if rest else view[:0]
    if len(found) == 1 and settings is None:
        (array,) = found.values()
        return array if isinstance(array, dict | list) else found
    arrays = {str(at): array for at, array in enumerate(found.values())}
    return arrays if settings is None else {"state_dict": arrays, "hyperparameters": settings}


def _read_array(
    content: bytes | memoryview, name: str, location: str, limits: Limits, *, strict: bool
) -> tuple[Any, int]:
    """Return an array, and the number of bytes after it."""
    what = f"array {excerpt(name)!r}"
    stream = stream_of(content)
    try:
        shape, fortran, dtype = _read_header(stream)
    except Exception as error:  # numpy parses the header with ast; what that raises is not documented
        reject(location, what, "a header of numpy.save", f"{type(error).__name__}: {error}", _STEP)
    if dtype.hasobject and not strict and dtype.names is None:
        return _objects(content[stream.tell() :], what, location), 0
    if dtype.hasobject:
        reject(location, what, "plain numbers", "Python objects, which are pickled", _STEP)
    if dtype == np.dtype("V2"):
        dtype = numpy_dtype("bfloat16")  # numpy has no name for it
    if dtype.name not in ITEMSIZE:
        reject(location, f"dtype of {excerpt(name)!r}", "one of " + ", ".join(ITEMSIZE), dtype, _STEP)
    if len(shape) > _MAX_DIMENSIONS or any(type(length) is not int or length < 0 for length in shape):
        reject(location, f"shape of {excerpt(name)!r}", f"at most {_MAX_DIMENSIONS} integers from 0", shape, _STEP)
    nbytes, start = prod(shape) * dtype.itemsize, stream.tell()
    if nbytes > len(content) - start or (nbytes < len(content) - start and strict):
        reject(location, what, f"{nbytes} bytes from its shape", f"{len(content) - start} in the file", _STEP)
    if nbytes > limits.tensor_bytes:
        reject(location, what, f"at most {limits.tensor_bytes} bytes", f"{nbytes} bytes", _STEP)
    if len(content) - start > nbytes and bytes(content[start + nbytes : start + nbytes + len(MAGIC)]) != MAGIC:
        reject(location, what, f"{nbytes} bytes from its shape", f"{len(content) - start} in the file", _STEP)
    array = np.frombuffer(content[start : start + nbytes], dtype).reshape(shape, order="F" if fortran else "C")
    # ascontiguousarray gives an array without axes one
    made = np.ascontiguousarray(array, dtype.newbyteorder("=")).reshape(shape)
    return made, len(content) - start - nbytes


def _objects(content: bytes | memoryview, what: str, location: str) -> Any:
    """Return the objects of an array, which are a pickle: read as data, by the reader that imports nothing."""
    try:
        made = Unpickler(BytesIO(content)).load()
    except MemoryError:
        raise
    except Exception as error:  # pickle raises whatever damaged bytes lead it to
        reject(location, what, "a whole pickle of its objects", f"{type(error).__name__}: {error}", _STEP)
    return made.value if isinstance(made, Objects) else made


def array_extent(head: bytes) -> tuple[int, int] | None:
    """Return the bytes of an array's header, and those of its numbers; None where it has no plain numbers, or where
    ``head``, its first bytes, ends before.
    """
    stream = BytesIO(head)
    try:
        shape, _, dtype = _read_header(stream)
    except Exception:  # as in read_npy, which names what is wrong
        return None
    if dtype.hasobject or dtype.kind in "USM" or any(type(length) is not int or length < 0 for length in shape):
        return None
    return stream.tell(), prod(shape) * dtype.itemsize


def _is_npy(head: bytes, path: str) -> bool:
    """Tells an array, and arrays behind a line of JSON."""
    return head.startswith(MAGIC) or (head[:1] == b"{" and b"}\n" + MAGIC in head)


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream, max_header_size=_MAX_HEADER)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(stream, max_header_size=_MAX_HEADER)
    # 3.0 differs in names of fields beyond latin-1 alone, which plain arrays do not have (numpy.lib.format)
    raise ValueError(f"version {version}")


def _is_npz(head: bytes, path: str) -> bool:
    """Tells an archive of arrays; what is called ``.zip`` is one of files, each with an array."""
    member = first_member(head)
    return member is not None and member.endswith(".npy") and not path.lower().endswith(".zip")


NPZ = FileForm(
    "npz",
    "an .npz archive",
    "a zip archive that begins with a `.npy`",
    _is_npz,
    read=lambda data, location, limits, strict: read_npz(data, location=location, limits=limits, strict=strict),
    becomes="one network of its arrays; vectors with `--layout`, samples with `--stacked`",
    facts="scalars among the arrays",
)
NPY = FileForm(
    "npy",
    "an array of numpy.save",
    "`93` `NUMPY`, also behind a line of JSON, as Equinox writes it",
    _is_npy,
    read=lambda data, location, limits, strict: read_arrays(data, location=location, limits=limits, strict=strict),
    becomes="vectors with `--layout`; a folder of arrays that are named like tensors is one network, and so are arrays "
    "behind one another (Equinox) and a dict or a list that was saved as an array of objects",
    facts="the settings of Equinox",
)
