"""Reads files of ``torch.save``, in both formats, and plain pickles, as data; torch is not needed."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import IntegrityError
from ckptzoo.hub.untrusted.archives import CheckedArchive, check_archive, stream_of
from ckptzoo.hub.untrusted.errors import reject
from ckptzoo.hub.untrusted.formats import LEGACY_MAGIC, FileForm, first_member
from ckptzoo.hub.untrusted.inert import JoblibUnpickler, Unpickler
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.hub.untrusted.rules import TENSOR_STEP, VIEWS_STEP, check_globals, dtype_step
from ckptzoo.hub.untrusted.values import InertError, Storage, TorchTensor
from ckptzoo.schema.architecture import ITEMSIZE

PLACES = "torch-places"
"""The form of a ``data.pkl`` without the numbers beside it, for ``read_places``."""
_PREFACE_PICKLES = 3
"""Pickles before the object's in the format before torch 1.6: a magic number, a version, facts about the machine."""
_ARRAYS_OF_JOBLIB = b"NumpyArrayWrapper"
"""The class by which joblib describes the arrays whose bytes stand in its pickles."""
_MAX_NESTED = 3
"""Levels of files of torch.save within one another: a pickle of a module holds one for each of its tensors."""


def read_torch(data: bytes | memoryview, *, location: str, limits: Limits, strict: bool, level: int = 0) -> Any:
    """Read a file of torch.save: plain values, ``Mapping``, ``Numbers`` and ``Inert`` objects.

    With ``strict`` names other than those of dense tensors and plain containers are refused; ``level`` counts the
    files of torch.save that this one is in. Arrays are views of ``data`` where they are stored as they are.
    Raises ``IntegrityError`` where it is not whole, declares more than the limits, or names what ``strict``
    refuses.
    """
    read = _read_legacy if bytes(data[: len(LEGACY_MAGIC)]) == LEGACY_MAGIC else _read_zip
    return read(data, location, limits, strict, level)


def read_pickle(data: bytes, *, location: str, limits: Limits) -> Any:
    """Read a plain pickle, with the files of torch.save inside it, and arrays that joblib wrote in it."""
    reader = _PickleReader(data, location, limits, strict=False, level=0)
    root = reader.load(of_joblib=_ARRAYS_OF_JOBLIB in data)
    _check_end(data, reader.stream.tell(), location)
    return root


def read_places(data: bytes, *, location: str, limits: Limits) -> Any:
    """Read the ``data.pkl`` of a file of torch.save alone: the tensors in it say where their numbers are."""
    reader = _PickleReader(data, location, limits, strict=False, level=0)
    root = reader.load(with_storages=True)
    reader.check_sizes()
    return root


def place_of(tensor: Any) -> NDArray[np.int64]:
    """Return the place of a tensor as integers: its storage's key, its first byte there, its dtype, its shape.

    The key is -1 where the numbers are not in one piece in a storage of a file of torch.save; dtypes are counted in the
    order of ``ITEMSIZE``.
    """
    dtype, shape = list(ITEMSIZE).index(str(tensor.dtype)), tuple(tensor.shape)
    if isinstance(tensor, TorchTensor) and tensor.is_contiguous and tensor.storage.key.isdecimal():
        return np.array([int(tensor.storage.key), tensor.offset * tensor.itemsize, dtype, *shape], np.int64)
    return np.array([-1, 0, dtype, *shape], np.int64)


class _PickleReader:
    """Reads the pickles that follow one another in a stream."""

    def __init__(self, data: bytes | memoryview, location: str, limits: Limits, *, strict: bool, level: int) -> None:
        self.stream, self.location, self.limits, self.strict, self.level = (
            stream_of(data),
            location,
            limits,
            strict,
            level,
        )
        self.storages: dict[str, Storage] = {}

    def load(self, *, with_storages: bool = False, of_joblib: bool = False) -> Any:
        """Return the next pickle's object."""
        location = self.location
        if of_joblib:
            reader = JoblibUnpickler(self.stream)
        else:
            reader = Unpickler(self.stream, self.storages if with_storages else None, self._load_nested)
        try:
            root = reader.load()
        except (MemoryError, IntegrityError):
            raise
        except Exception as error:  # pickle raises whatever damaged bytes lead it to
            if self.strict:
                check_globals(reader.globals, location=location)
            if isinstance(error, InertError):
                reject(location, error.what, error.expected, error.got, TENSOR_STEP)
            reject(location, "pickle", "a whole pickle", f"{type(error).__name__}: {error}")
        if self.strict:
            check_globals(reader.globals, location=location)
        return root

    def _load_nested(self, data: bytes) -> Any:
        if self.level >= _MAX_NESTED:
            raise InertError("pickle", f"at most {_MAX_NESTED} files of torch.save within one another", "more")
        return read_torch(data, location=self.location, limits=self.limits, strict=self.strict, level=self.level + 1)

    def check_sizes(self) -> None:
        """Refuse storages and tensors that are larger than the limits, or than what is stored."""
        location, limits = self.location, self.limits
        for storage in self.storages.values():
            # where objects of all kinds are read, the tensor that is wanted is named, and others are left out
            if storage.dtype not in ITEMSIZE and self.strict:
                expected = "one of " + ", ".join(ITEMSIZE)
                reject(location, "storage", expected, storage.dtype or "nothing", TENSOR_STEP)
            if storage.nbytes > limits.tensor_bytes:
                what = f"storage {storage.key[:80]!r}"
                reject(location, what, f"at most {limits.tensor_bytes} bytes", f"{storage.nbytes} bytes")
        stored = sum(storage.nbytes for storage in self.storages.values())
        shown = sum(sum(storage.views.values()) for storage in self.storages.values())
        if max(stored, shown) > limits.tensor_bytes:
            got = f"{max(stored, shown)} bytes from their shapes"
            reject(location, "tensors", f"at most {limits.tensor_bytes} bytes written out", got)
        # a stride of 0 shows one number many times
        if shown > max(limits.always_allowed, limits.views * stored):
            got = f"{shown} bytes from their shapes, of {stored} stored"
            reject(location, "tensors", f"at most {limits.views} times their storages written out", got, VIEWS_STEP)


def _read_zip(data: bytes | memoryview, location: str, limits: Limits, strict: bool, level: int) -> Any:
    archive = check_archive(data, location=location, limits=limits)
    if archive.file_format != "torch":
        reject(location, "format", TORCH.words, "an archive of arrays", "Save model.state_dict() with torch.save.")
    folder = archive.folder
    size = archive.infos[f"{folder}data.pkl"].file_size
    if size > limits.pickle_bytes:
        reject(location, "data.pkl", f"at most {limits.pickle_bytes} bytes", f"{size} bytes")
    # torch.save notes the order of its machine's bytes; older files have no such member
    if f"{folder}byteorder" in archive.infos and archive.read(f"{folder}byteorder") != b"little":
        reject(location, "numbers", "little-endian ones", "another order")
    reader = _PickleReader(bytes(archive.read(f"{folder}data.pkl")), location, limits, strict=strict, level=level)
    root = reader.load(with_storages=True)
    reader.check_sizes()
    for key, storage in reader.storages.items():
        if storage.dtype not in ITEMSIZE:
            continue
        member = archive.infos.get(f"{folder}data/{key}")
        if member is None or member.file_size != storage.nbytes:
            got = "no such member" if member is None else f"{member.file_size} bytes"
            reject(location, f"storage {key[:80]!r}", f"{storage.nbytes} bytes in the archive", got)
        storage.content = _member(archive, member.filename)
    return root


def _member(archive: CheckedArchive, name: str) -> Any:
    """Reads a member once, when it is first asked for."""
    content: list[Any] = []

    def read() -> Any:
        if not content:
            content.append(archive.read(name))
        return content[0]

    return read


def _read_legacy(data: bytes | memoryview, location: str, limits: Limits, strict: bool, level: int) -> Any:
    """Read the format before torch 1.6: pickles, followed by the numbers of each storage."""
    reader = _PickleReader(data, location, limits, strict=strict, level=level)
    *_, machine = [reader.load() for _ in range(_PREFACE_PICKLES)]
    if isinstance(machine, dict) and machine.get("little_endian") is False:
        reject(location, "numbers", "little-endian ones", "another order")
    root = reader.load(with_storages=True)
    reader.check_sizes()
    # what follows cannot be separated where the size of one is not known
    if unknown := next((item for item in reader.storages.values() if item.dtype not in ITEMSIZE), None):
        expected = "one of " + ", ".join(ITEMSIZE)
        reject(location, "storage", expected, unknown.dtype or "nothing", dtype_step(unknown.dtype))
    keys = reader.load()
    view, position = memoryview(data), reader.stream.tell()
    # each storage has its number of elements, in 8 bytes, and its numbers
    needed = sum(storage.nbytes + 8 for storage in reader.storages.values())
    if len(data) - position < needed:
        reject(location, "numbers", f"{needed} bytes behind the pickles", f"{len(data) - position} bytes")
    if not isinstance(keys, list) or set(map(str, keys)) != set(reader.storages) or len(keys) != len(reader.storages):
        reject(location, "numbers", "the keys of all storages", "others")
    for key in map(str, keys):
        storage = reader.storages[key]
        if int.from_bytes(view[position : position + 8], "little") != storage.numel:
            reject(location, f"storage {key[:80]!r}", f"{storage.numel} elements", "another number of them")
        position += 8
        storage.content = _slice(view, position, position + storage.nbytes)
        position += storage.nbytes
    _check_end(data, position, location)
    return root


def _check_end(data: bytes | memoryview, position: int, location: str) -> None:
    """Refuse what follows an object, as where several were written into one file one after the other."""
    # zeros are what file systems of fixed blocks fill up a file with
    if np.frombuffer(data, np.uint8)[position:].any():
        got = f"{len(data) - position} bytes behind it"
        reject(location, "content", "one object", got, "Save several objects as a list, or one in each file.")


def _slice(view: memoryview, start: int, stop: int) -> Any:
    return lambda: view[start:stop]


def _is_torch(head: bytes, path: str) -> bool:
    """Tells a file of torch.save: a zip archive that begins with the pickle in its folder, or the older mark."""
    member = first_member(head)
    if member is None:
        return head.startswith(LEGACY_MAGIC)
    return member.endswith("/data.pkl") and member.count("/") == 1


def _is_pickle(head: bytes, path: str) -> bool:
    """Tells a pickle; the protocols 0 and 1 have no mark, so that the suffix has to say it."""
    if head.startswith(b"]\x00\x00"):
        return False  # lzma-compressed bytes
    # protocols from 2 on begin with the opcode PROTO (PEP 307)
    if head[:1] == b"\x80":
        return head[1:2] in (b"\x00", b"\x01", b"\x02", b"\x03", b"\x04", b"\x05")
    return head[:1] in (b"(", b"}", b"]", b"c") and path.lower().endswith((".pkl", ".pickle", ".p", ".joblib"))


TORCH = FileForm(
    "torch",
    "a file of torch.save",
    "a zip archive that begins with `NAME/data.pkl`; before torch 1.6 a magic number. `.pt` `.pth` `.pth.tar` `.ckpt` "
    "`.bin` `.model` `.weights` or any other name",
    _is_torch,
    read=lambda data, location, limits, strict: read_torch(data, location=location, limits=limits, strict=strict),
    becomes="networks: state dicts, also in wrappers, lists, checkpoints of trainers, modules and agents that were "
    "pickled whole; Gaussians; vectors with `--layout`",
    facts="scalars and settings beside the tensors",
)
PICKLE = FileForm(
    "pickle",
    "a pickle",
    "`80` and a protocol from 0 to 5, or `.pkl`, `.pickle`; with arrays behind it where joblib wrote it",
    _is_pickle,
    read=lambda data, location, limits, strict: read_pickle(data, location=location, limits=limits),
    becomes="networks: nested layers of jax, Haiku and stax, arrays by name, networks of scikit-learn",
    facts="scalars and settings beside the arrays",
)
