"""Reads pickles as data: nothing that a pickle names is imported or called.

A pickle is a program for a stack machine, whose only ways out are the globals that it looks up, the persistent ids and
the registry of extension codes. Here every global becomes a class of this module, made for its name: calling it or
building it up stores what it was given. The classes for arrays, tensors and plain containers put their arguments
together; all others keep them as ``Inert`` objects. Machines are those of CPython's own ``pickle`` in C.

What stays possible is to exhaust memory or time, and to make the interpreter crash by nesting: so files of others are
read in a process of its own (``ckptzoo.hub.untrusted.reader``).

Why classes, and never functions or shared objects: the opcode BUILD may set attributes of what is on the stack, where
that has no ``__setstate__``. All classes here define one, which fails on the class itself, so that a file cannot change
them for the next one.
"""

import copyreg
import pickle  # noqa: TID251 - the one module that reads pickles; its find_class imports nothing
import re
from collections.abc import Callable
from math import prod
from typing import IO, Any, ClassVar

import numpy as np

from ckptzoo.hub.untrusted.tensor_forms import SPARSE
from ckptzoo.hub.untrusted.values import (
    MAX_NAME,
    Array,
    DType,
    Inert,
    InertError,
    Known,
    Mapping,
    Storage,
    TorchTensor,
    are_naturals,
    bytes_of,
    class_named,
    described,
)
from ckptzoo.schema.architecture import ITEMSIZE

STORAGE_DTYPES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "UntypedStorage": "uint8", "_UntypedStorage": "uint8",
}  # fmt: skip
"""The storages of ``torch``, and what their numbers are."""


class _Set(Known):
    def __new__(cls, items: Any = (), *_: Any) -> Any:
        return set(items) if isinstance(items, list | tuple | set | frozenset) else set()


class _Frozenset(Known):
    def __new__(cls, items: Any = (), *_: Any) -> Any:
        return frozenset(items) if isinstance(items, list | tuple | set | frozenset) else frozenset()


class _Bytearray(Known):
    def __new__(cls, content: Any = b"", *_: Any) -> Any:  # a number would be that many zeros
        return bytearray(bytes_of(content))


class _Bytes(Known):
    """Protocols 0 to 2 write empty bytes as a call without arguments."""

    def __new__(cls, content: Any = b"", *_: Any) -> Any:
        return bytes_of(content)


class _ComplexNumber(Known):
    def __new__(cls, real: Any = 0.0, imaginary: Any = 0.0) -> Any:
        return complex(float(real), float(imaginary)) if _is_real(real) and _is_real(imaginary) else None


class _Encode(Known):
    """``_codecs.encode``: bytes in pickles of protocols 0 to 2 are texts."""

    def __new__(cls, text: Any = "", codec: Any = "utf-8") -> Any:
        if not isinstance(text, str) or codec not in ("latin1", "latin-1", "ascii", "utf-8"):
            raise InertError("bytes", "a text of latin-1", described(text))
        return text.encode("latin-1" if codec != "utf-8" else "utf-8")


class _Reconstructor(Known):
    """``copyreg._reconstructor``: what protocols 0 and 1 make objects with."""

    def __new__(cls, kind: Any = None, *args: Any) -> Any:
        return Inert.__new__(kind, *args) if isinstance(kind, type) and issubclass(kind, Inert) else Inert(kind, *args)


class _First(Known):
    """A call that stands for its first argument: a parameter is its tensor, ``torch.Size`` its lengths."""

    def __new__(cls, value: Any = None, *_: Any) -> Any:
        return value


class _Device(Known):
    def __new__(cls, *words: Any) -> Any:
        return ":".join(str(word) for word in words if isinstance(word, str | int))


class _RebuildTensor(Known):
    def __new__(cls, storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> Any:
        dtype = storage.dtype if isinstance(storage, Storage) else ""
        return TorchTensor(storage, offset, shape, strides, dtype, _is_negative(rest[2:]))


class _RebuildTensorV3(Known):
    def __new__(cls, storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> Any:
        dtype = rest[2] if len(rest) > 2 else ""
        name = dtype.text if isinstance(dtype, DType) else getattr(dtype, "name", described(dtype))
        return TorchTensor(storage, offset, shape, strides, name.removeprefix("torch."), _is_negative(rest[3:]))


class _RebuildFromType(Known):
    """A tensor with attributes, or of a subclass: the tensor."""

    def __new__(cls, rebuild: Any, kind: Any, args: Any, *_: Any) -> Any:
        if isinstance(rebuild, type) and issubclass(rebuild, Known) and isinstance(args, tuple):
            return rebuild(*args)
        return class_named("torch._tensor._rebuild_from_type_v2")(rebuild, kind, args)


class _JaxArray(Known):
    """``jax._src.array._reconstruct_array``: numpy's way to make an array, its arguments and state, and jax's own."""

    def __new__(cls, make: Any, args: Any, state: Any, *_: Any) -> Any:
        if make is not Array:
            return Inert(make, args, state)
        array = Array()
        array.__setstate__(state)
        return array


class _Persistent(Known):
    """An object of NVIDIA's ``torch_utils.persistence`` (StyleGAN2-ADA, EDM): its class and its state are arguments."""

    def __new__(cls, described_by: Any = None, *_: Any) -> Any:
        facts = described_by.pairs if isinstance(described_by, Inert) else described_by
        facts = facts if isinstance(facts, dict) else {}
        made = class_named(f"persistent.{described(facts.get('class_name'))}")(described_by)
        if isinstance(facts.get("state"), dict):
            made.args, made.state = (), facts["state"]
        return made


class _Scalar(Known):
    """``numpy.core.multiarray.scalar``: one number."""

    def __new__(cls, dtype: Any = None, content: Any = b"", *_: Any) -> Any:
        known = isinstance(dtype, DType) and dtype.numpy_name in ITEMSIZE
        data = bytes_of(content) if known and isinstance(content, bytes | str) else b""
        return np.frombuffer(data, dtype.numpy)[0].item() if known and len(data) == dtype.numpy.itemsize else None


class _FromBuffer(Known):
    """``numpy.core.numeric._frombuffer``: arrays in pickles of protocol 5."""

    def __new__(cls, content: Any, dtype: Any, shape: Any, order: Any = "C", *_: Any) -> Any:
        array = Array()
        array.__setstate__((shape, dtype, order == "F", content))
        return array


_KNOWN: dict[str, type[Any]] = {
    "collections.OrderedDict": Mapping, "collections.defaultdict": Mapping, "collections.Counter": Mapping,
    "builtins.set": _Set, "builtins.frozenset": _Frozenset, "builtins.bytearray": _Bytearray, "builtins.bytes": _Bytes,
    "builtins.complex": _ComplexNumber, "_codecs.encode": _Encode, "copyreg._reconstructor": _Reconstructor,
    "torch._utils._rebuild_tensor": _RebuildTensor, "torch._utils._rebuild_tensor_v2": _RebuildTensor,
    "torch._utils._rebuild_tensor_v3": _RebuildTensorV3, "torch._utils._rebuild_parameter": _First,
    "torch._utils._rebuild_parameter_with_state": _First, "torch.nn.parameter.Parameter": _First,
    "torch._tensor._rebuild_from_type_v2": _RebuildFromType, "torch.Size": _First, "torch.device": _Device,
    "jax._src.array._reconstruct_array": _JaxArray, "numpy.dtype": DType,
    "torch_utils.persistence._reconstruct_persistent_obj": _Persistent,
    **SPARSE,
}  # fmt: skip
for _core in ("numpy.core", "numpy._core"):
    _KNOWN |= {
        f"{_core}.multiarray._reconstruct": Array,
        f"{_core}.multiarray.scalar": _Scalar,
        f"{_core}.numeric._frombuffer": _FromBuffer,
    }


class Unpickler(pickle.Unpickler):
    r"""Reads one pickle from a stream; ``load`` gives plain values, ``Mapping``, ``Numbers`` and ``Inert`` objects.

    Afterwards the stream is behind the pickle. ``storages`` are by key, filled as persistent ids name them; callers
    give them their ``content``. ``load_nested`` reads a file of torch.save that is in the pickle as bytes. ``globals``
    are the names that the pickle looked up, in order. Raises ``InertError`` where something that is put together here
    is not as its library writes it, and whatever the machine raises on bytes that are no pickle.

    >>> import io
    >>> reader = Unpickler(io.BytesIO(b"cos\nsystem\n(S'ls'\ntR."))
    >>> reader.load().args, list(reader.globals)
    (('ls',), ['os.system'])
    """

    def __init__(
        self,
        stream: IO[bytes],
        storages: dict[str, Storage] | None = None,
        load_nested: Callable[[bytes], Any] | None = None,
    ) -> None:
        # texts of Python 2 may be bytes of any kind, which come back from ``_bytes``
        super().__init__(stream, encoding="utf-8", errors="surrogateescape")
        _check_no_extension_codes()
        self.globals: dict[str, None] = {}
        self._storages, self._load_nested = storages, load_nested

    def find_class(self, module: str, name: str, /) -> Any:
        """Return the class that stands for a name."""
        # the names that Python 2 gave to modules
        module = {"__builtin__": "builtins", "copy_reg": "copyreg"}.get(module, module)
        full = f"{module}.{name}"[:MAX_NAME]
        self.globals[full] = None
        if full == "torch.storage._load_from_bytes" and self._load_nested is not None:
            return _nested(self._load_nested)
        return _KNOWN.get(full) or class_named(full)

    def persistent_load(self, pid: Any, /) -> Any:
        """Return the storage that a persistent id names, or the class of a module whose code old files carry along."""
        if isinstance(pid, tuple) and pid[:1] == ("module",) and pid[1:]:
            return pid[1]  # pid: ("module", class, its source file, its source)
        if self._storages is None or not _is_storage_id(pid):
            raise InertError("persistent id", "a storage of tensors", described(pid))
        kind, key, numel = pid[1], pid[2], pid[4]
        name = kind.name.rpartition(".")[2] if isinstance(kind, type) and issubclass(kind, Inert) else described(kind)
        if not isinstance(key, str) or not are_naturals((numel,)):
            raise InertError("storage", "a key and a number of elements", f"{described(key)}, {described(numel)}")
        dtype = STORAGE_DTYPES.get(name, name)
        storage = self._storages.setdefault(key, Storage(key, dtype, numel))
        if (storage.dtype, storage.numel) != (dtype, numel):
            raise InertError(f"storage {key[:80]!r}", "one type and size", "two")
        return _piece(storage, pid[5]) if len(pid) == 6 and pid[5] is not None else storage


_MACHINE: Any = pickle._Unpickler  # pyright: ignore[reportPrivateUsage]
"""CPython's machine in Python; pickle's public name for it is the one in C."""
_KIND = re.compile(r"([a-zA-Z])(\d{1,9})")
"""numpy's code of a dtype: its kind, and the bytes of an item, for texts the characters."""
_MAX_NESTED = 3


class JoblibUnpickler(_MACHINE):
    """Reads a pickle of joblib, in which the bytes of each array follow the object that describes it.

    Only CPython's machine in Python can tell where the next byte of a pickle is; it looks names up in the same
    way, and builds the same classes. ``level`` counts the pickles that this one is in. Raises ``InertError``
    where an array is not as joblib writes it.
    """

    find_class = Unpickler.find_class
    persistent_load = Unpickler.persistent_load
    _storages = _load_nested = None

    def __init__(self, stream: IO[bytes], level: int = 0) -> None:
        super().__init__(stream, encoding="utf-8", errors="surrogateescape")
        _check_no_extension_codes()
        self.globals: dict[str, None] = {}
        self._stream, self._level = stream, level

    def load_build(self) -> None:
        """Build an object; one that describes an array is replaced by the array, whose bytes are next."""
        super().load_build()
        built = self.stack[-1]
        if isinstance(built, Inert) and built.name == "joblib.numpy_pickle.NumpyArrayWrapper":
            self.stack[-1] = self._array(built.attributes)

    def _array(self, described_by: dict[Any, Any]) -> Any:
        shape: Any = described_by.get("shape")
        dtype = described_by.get("dtype")
        if not are_naturals(shape) or not isinstance(dtype, DType):
            raise InertError("array of joblib", "a shape and a dtype", described(shape))
        kind = _KIND.fullmatch(dtype.text)
        if kind is None:
            raise InertError("array of joblib", "a dtype of numpy", dtype.text[:80])
        if kind[1] == "O":  # objects are a pickle of their own
            if self._level >= _MAX_NESTED:
                raise InertError("pickle", f"at most {_MAX_NESTED} pickles of joblib within one another", "more")
            return JoblibUnpickler(self._stream, self._level + 1).load()
        # since joblib 1.3 a byte says how many follow it before the numbers, which begin at a multiple of 16 bytes
        if described_by.get("numpy_array_alignment_bytes") is not None:
            self._stream.read(int.from_bytes(self._stream.read(1)))
        # a character of numpy's texts takes 4 bytes (UCS-4)
        nbytes = prod(shape) * int(kind[2]) * (4 if kind[1] == "U" else 1)
        position = self._stream.tell()
        left = self._stream.seek(0, 2) - position
        self._stream.seek(position)
        if nbytes > left:
            raise InertError(f"array of shape {shape}"[:200], f"{nbytes} bytes", str(left))
        array = Array()
        array.__setstate__((shape, dtype, described_by.get("order") == "F", self._stream.read(nbytes)))
        return array

    # a copy: the class's own table is that of every unpickler in Python
    dispatch: ClassVar[dict[int, Any]] = {**_MACHINE.dispatch, pickle.BUILD[0]: load_build}


def _check_no_extension_codes() -> None:
    if copyreg._inverted_registry:  # pyright: ignore[reportAttributeAccessIssue]
        # an extension code stands for an object of this process, which find_class does not always see
        raise InertError("this process", "no extension codes of copyreg", "some")


def _is_storage_id(pid: Any) -> bool:
    # torch.save writes ("storage", class, key, device, numel), and before zip archives the view of another storage
    return isinstance(pid, tuple) and len(pid) in (5, 6) and pid[0] == "storage"


def _piece(root: Storage, view: Any) -> Storage:
    """Return a storage that is a piece of another one, as old versions of torch wrote."""
    key, offset, numel = view if isinstance(view, tuple) and len(view) == 3 else (None, -1, -1)
    if not are_naturals((offset, numel)) or offset + numel > root.numel:
        raise InertError(f"storage {root.key[:80]!r}", f"a piece of its {root.numel} elements", described(view))
    piece = Storage(f"{root.key}[{described(key)}]", root.dtype, numel)
    piece.views = root.views
    size = ITEMSIZE.get(root.dtype, 1)
    piece.content = lambda: memoryview(root.content() if root.content else b"")[offset * size : (offset + numel) * size]
    return piece


def _nested(load: Callable[[bytes], Any]) -> type[Known]:
    class Nested(Known):
        __slots__ = ()

        def __new__(cls, content: Any = b"", *_: Any) -> Any:
            return load(bytes_of(content))

    return Nested


def _is_negative(rest: tuple[Any, ...]) -> bool:
    """Whether torch's metadata of a tensor say that its numbers are to be negated."""
    return bool(rest) and isinstance(rest[0], dict) and rest[0].get("neg") is True


def _is_real(value: Any) -> bool:
    # float() of an integer from 2**1024 on raises OverflowError
    return type(value) in (int, float) and abs(value) < 2.0**1000
