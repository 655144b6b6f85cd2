"""Scans a pickle without running it: every global it names, and every tensor it declares.

A pickle is a program for a stack machine. The scan follows the stack and builds nothing: a global stays a name, a call
is only recorded. What is wrong is therefore reported by name before ``torch.load(weights_only=True)`` sees the file.
Accepted are the globals of ``torch.load(weights_only=True)`` that make dense tensors and plain containers.
"""

import pickletools
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import IO, Any

from ckptzoo.errors import IntegrityError
from ckptzoo.hub.untrusted.errors import reject
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.schema.architecture import ITEMSIZE
from ckptzoo.text import excerpt

# Names of ``torch``: its storages with the bytes of one number, and what its pickles call to make tensors.
STORAGE_ITEMSIZES = {
    "DoubleStorage": 8, "FloatStorage": 4, "HalfStorage": 2, "BFloat16Storage": 2, "LongStorage": 8,
    "IntStorage": 4, "ShortStorage": 2, "CharStorage": 1, "ByteStorage": 1, "BoolStorage": 1, "UntypedStorage": 1,
}  # fmt: skip
TENSOR_REBUILDERS = {
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
}
PARAMETER_REBUILDERS = {"torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state"}
_PLAIN_GLOBALS = {
    "collections.OrderedDict", "collections.Counter", "torch.Size", "torch.device", "torch.nn.parameter.Parameter",
    "_codecs.encode", "builtins.set", "builtins.bytearray", "builtins.complex",
}  # fmt: skip
_TENSOR_KINDS = {
    "torch._utils._rebuild_sparse_tensor": "a sparse tensor",
    "torch.serialization._get_layout": "a sparse tensor",
    "torch._utils._rebuild_sparse_csr_tensor": "a sparse tensor",
    "torch._utils._rebuild_qtensor": "a quantized tensor",
    "torch._utils._rebuild_meta_tensor_no_storage": "a meta tensor, which has no numbers",
    "torch._utils._rebuild_nested_tensor": "a nested tensor",
    "torch._utils._rebuild_wrapper_subclass": "a tensor subclass",
    "torch._tensor._rebuild_from_type_v2": "a tensor subclass, or a tensor with attributes",
    "torch._utils._rebuild_device_tensor_from_numpy": "a tensor of another device",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": "a tensor of another device",
}
# Modules whose names in a pickle mean that somebody tries to run code, rather than that an object was saved whole.
_CODE_MODULES = {
    "os", "posix", "nt", "subprocess", "sys", "builtins", "__builtin__", "runpy", "importlib", "shutil", "socket",
    "webbrowser", "pty", "code", "commands", "ctypes", "pip", "timeit", "pdb", "operator", "functools", "asyncio",
}  # fmt: skip
NEXT_STEPS = {
    "numpy": "Save numbers as float(x) or int(x), arrays as torch.from_numpy(x).",
    "argparse": "Save vars(args), or leave the arguments out.",
    "code": "Do not load this file: it names what would run when it is loaded.",
    "tensor": "Save dense tensors: x.dequantize(), x.to_dense(), x.real, x.data.clone().",
    "": "Load it where it was made and save model.state_dict() instead.",
}


def is_allowed(name: str) -> bool:
    """Whether a global makes a dense tensor or a plain container."""
    module, _, last = name.rpartition(".")
    if last in STORAGE_ITEMSIZES and module in ("torch", "torch.storage", "torch.cuda"):
        return True
    return (
        name in _PLAIN_GLOBALS
        or name in TENSOR_REBUILDERS
        or name in PARAMETER_REBUILDERS
        or (module == "torch" and last in ITEMSIZE)
    )


def describe_global(name: str) -> str:
    """A global's name, and in plain words what it makes, where that is known."""
    return f"{name} ({_TENSOR_KINDS[name]})" if name in _TENSOR_KINDS else name


def next_step_for(forbidden: list[str]) -> str:
    """What the owner of a file that names these globals can do."""
    if any(name.partition(".")[0] in _CODE_MODULES for name in forbidden):
        return NEXT_STEPS["code"]
    if any(name in _TENSOR_KINDS or (name.startswith("torch.") and name.count(".") == 1) for name in forbidden):
        return NEXT_STEPS["tensor"]
    return NEXT_STEPS.get(forbidden[0].partition(".")[0], NEXT_STEPS[""])


@dataclass(frozen=True)
class Storage:
    """Numbers in a file: a key, the bytes of one number, and the number of them."""

    key: str
    itemsize: int
    numel: int

    @property
    def nbytes(self) -> int:
        """Bytes of all numbers."""
        return self.itemsize * self.numel


@dataclass(frozen=True)
class _Global:
    name: str


@dataclass
class _Object:
    """A value whose content the scan does not need: only that it is on the stack."""


_MARK = _Object()
_OBJECT = _Object()
_TENSOR = _Object()


# Operations of pickles, as ``pickletools`` names them: those that push a known value, those that push their argument.
_PUSHED_VALUES: dict[str, Any] = {
    "MARK": _MARK, "NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": (),
    "EMPTY_LIST": _OBJECT, "EMPTY_DICT": _OBJECT, "EMPTY_SET": _OBJECT, "EXT1": _OBJECT, "EXT2": _OBJECT,
    "EXT4": _OBJECT, "NEXT_BUFFER": _OBJECT,
}  # fmt: skip
_ARGUMENT_PUSHED = {
    "BININT", "BININT1", "BININT2", "BINFLOAT", "BINUNICODE", "SHORT_BINSTRING", "LONG1",
    "INT", "LONG", "LONG4", "FLOAT", "STRING", "BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
}  # fmt: skip
_TORCH_OPERATIONS = {
    "PROTO", "STOP", "GLOBAL", "NEWOBJ", "REDUCE", "BUILD", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "MARK",
    "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "NONE", "NEWTRUE", "NEWFALSE", "EMPTY_TUPLE", "EMPTY_LIST", "EMPTY_DICT",
    "EMPTY_SET", "BININT", "BININT1", "BININT2", "BINFLOAT", "BINUNICODE", "SHORT_BINSTRING", "BINPERSID", "BINGET",
    "LONG_BINGET", "BINPUT", "LONG_BINPUT", "LONG1",
}  # fmt: skip
"""The operations of ``torch._weights_only_unpickler``."""


@dataclass
class PickleScan:
    """What one pickle declares."""

    location: str
    limits: Limits
    globals: dict[str, None] = field(default_factory=dict[str, None])
    storages: dict[str, Storage] = field(default_factory=dict[str, Storage])
    views: dict[tuple[Any, ...], int] = field(default_factory=dict[tuple[Any, ...], int])
    unknown_operations: dict[str, None] = field(default_factory=dict[str, None])
    """Names of operations that ``torch.load(weights_only=True)`` does not know."""

    @property
    def forbidden(self) -> list[str]:
        """The globals that are neither dense tensors nor plain containers."""
        return [name for name in self.globals if not is_allowed(name)]


def scan_pickle(stream: IO[bytes], *, location: str, limits: Limits) -> PickleScan:
    """Follow one pickle, from the stream's position to the pickle's end.

    Raises
    ------
    IntegrityError
        Not a whole pickle; globals other than tensors and plain containers (each is named); tensors that are not dense
        numbers, reach beyond what is stored, or are larger than the limits.

    Notes
    -----
    Time and memory follow the length of the pickle, not what it would make: nested copies of one object cost one step
    each. Tested in tests/hub/untrusted/test_pickle_scan.py.
    """
    scan = PickleScan(location, limits)
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    try:
        for code, argument in _operations(stream, limits):
            _follow(code, argument, stack, memo, scan)
    except IntegrityError:
        if scan.forbidden:
            _reject_unsuitable(scan)
        raise
    except Exception as error:  # pickletools and a stack that runs empty raise whatever they like
        if not scan.unknown_operations and not scan.forbidden:
            reject(location, "pickle", "a whole pickle", f"{type(error).__name__}: {error}")
    _reject_unsuitable(scan)
    return scan


def _operations(stream: IO[bytes], limits: Limits) -> Iterator[tuple[str, Any]]:
    start = stream.tell()
    for code, argument, at in pickletools.genops(stream):
        if (at or 0) - start > limits.pickle_bytes:
            raise ValueError(f"more than {limits.pickle_bytes} bytes")
        yield code.name, argument


def _follow(code: str, argument: Any, stack: list[Any], memo: dict[int, Any], scan: PickleScan) -> None:
    """One operation: pop and push as the unpickler would, and note names and tensors."""
    if code in _PUSHED_VALUES:
        stack.append(_PUSHED_VALUES[code])
    elif code in _ARGUMENT_PUSHED:
        stack.append(argument)
    elif code in ("BINGET", "LONG_BINGET", "GET"):
        stack.append(memo[int(argument)])
    elif code in ("BINPUT", "LONG_BINPUT", "PUT"):
        memo[int(argument)] = stack[-1]
    elif code == "MEMOIZE":
        memo[len(memo)] = stack[-1]
    elif code in ("GLOBAL", "INST"):
        if code == "INST":
            _pop_to_mark(stack)
        stack.append(_note_global(".".join(argument.split(" ", 1)), scan))
    elif code == "STACK_GLOBAL":
        name, module = stack.pop(), stack.pop()
        stack.append(_note_global(f"{_brief(module)}.{_brief(name)}", scan))
    elif code == "TUPLE":
        stack.append(tuple(_pop_to_mark(stack)))
    elif code in ("TUPLE1", "TUPLE2", "TUPLE3"):
        count = int(code[-1])
        if len(stack) < count:
            raise IndexError("the stack is empty")
        stack[-count:] = [tuple(stack[-count:])]
    elif code in ("REDUCE", "NEWOBJ"):
        arguments, called = stack.pop(), stack.pop()
        stack.append(_note_call(called, arguments, scan))
    elif code == "BINPERSID":
        stack.append(_note_storage(stack.pop(), scan))
    elif code in ("APPENDS", "SETITEMS", "ADDITEMS", "POP_MARK", "LIST", "DICT", "FROZENSET", "OBJ"):
        _pop_to_mark(stack)
        if code in ("LIST", "DICT", "FROZENSET", "OBJ"):
            stack.append(_OBJECT)
    elif code in ("APPEND", "BUILD", "POP"):
        stack.pop()
        if code == "BUILD" and stack[-1] is not _OBJECT:
            reject(scan.location, "pickle", "tensors that stay as they were made", "one that is built a second time")
    elif code == "SETITEM":
        del stack[-2:]
    elif code == "DUP":
        stack.append(stack[-1])
    elif code == "NEWOBJ_EX":
        del stack[-3:]
        stack.append(_OBJECT)
    if code not in _TORCH_OPERATIONS:
        scan.unknown_operations[code] = None
        if code.startswith("EXT"):
            scan.globals[f"copyreg extension {argument}"] = None
        if code == "PERSID":
            stack.append(_OBJECT)


def _pop_to_mark(stack: list[Any]) -> list[Any]:
    for index in range(len(stack) - 1, -1, -1):
        if stack[index] is _MARK:
            items = stack[index + 1 :]
            del stack[index:]
            return items
    raise IndexError("no mark on the stack")


def _note_global(name: str, scan: PickleScan) -> _Global:
    # Python 2's name of the module, which Python 3's unpickler translates for protocols below 3.
    old = name.removeprefix("__builtin__.")
    name = f"builtins.{old}" if old != name else name
    scan.globals[name] = None
    return _Global(name)


def _note_call(called: Any, arguments: Any, scan: PickleScan) -> Any:
    name = called.name if isinstance(called, _Global) else ""
    if name not in TENSOR_REBUILDERS | PARAMETER_REBUILDERS | {"torch.nn.parameter.Parameter", "torch.Size"}:
        return _OBJECT
    if not isinstance(arguments, tuple) or not arguments:
        reject(scan.location, name, "its arguments", _brief(arguments))
    if name == "torch.Size":
        return arguments[0]
    if name in TENSOR_REBUILDERS:
        _note_view(arguments, scan, typed=name.endswith("_v3"))
    return _TENSOR


def _note_storage(pid: Any, scan: PickleScan) -> Any:
    location = scan.location
    if not isinstance(pid, tuple) or len(pid) not in (5, 6) or pid[0] not in ("storage", b"storage"):
        reject(location, "persistent id", "a storage of tensors", type(pid).__name__)
    _, kind, key, _, numel = pid[:5]
    name = kind.name.rpartition(".")[2] if isinstance(kind, _Global) else ""
    if name not in STORAGE_ITEMSIZES:
        reject(location, "storage", "one of " + ", ".join(ITEMSIZE), name or "nothing", NEXT_STEPS["tensor"])
    if not isinstance(key, str) or type(numel) is not int or numel < 0:
        reject(location, "storage", "a key and a number of elements", f"{_brief(key)}, {_brief(numel)}")
    storage = Storage(key, STORAGE_ITEMSIZES[name], numel)
    if scan.storages.setdefault(key, storage) != storage:
        reject(location, f"storage {key!r}", "one type and size", "two")
    if storage.nbytes > scan.limits.tensor_bytes:
        reject(location, f"storage {key!r}", f"at most {scan.limits.tensor_bytes} bytes", f"{storage.nbytes} bytes")
    if len(pid) == 6 and pid[5] is not None:
        return _storage_piece(storage, pid[5], scan)
    return storage


def _storage_piece(root: Storage, view: Any, scan: PickleScan) -> Storage:
    """A storage that is a piece of another one, as old versions of torch wrote."""
    key, offset, numel = view if isinstance(view, tuple) and len(view) == 3 else (None, -1, -1)
    if not _are_naturals((offset, numel)) or offset + numel > root.numel:
        reject(scan.location, f"storage {root.key!r}", f"a piece of its {root.numel} elements", _brief(view))
    return Storage(f"{root.key}[{_brief(key)}]", root.itemsize, numel)


def _note_view(arguments: tuple[Any, ...], scan: PickleScan, *, typed: bool) -> None:
    """A tensor: a storage, an offset, a shape and strides; all its numbers must be inside the storage."""
    location, limits = scan.location, scan.limits
    if len(arguments) < 4 or not isinstance(arguments[0], Storage):
        reject(location, "tensor", "a storage, an offset, a shape and strides", f"{len(arguments)} arguments")
    storage, offset, size, stride = arguments[:4]
    itemsize = storage.itemsize
    if typed:
        dtype = (
            arguments[6].name.removeprefix("torch.") if len(arguments) > 6 and isinstance(arguments[6], _Global) else ""
        )
        if dtype not in ITEMSIZE:
            reject(
                location, "dtype of a tensor", "one of " + ", ".join(ITEMSIZE), dtype or "nothing", NEXT_STEPS["tensor"]
            )
        itemsize = ITEMSIZE[dtype]
    if (
        not _are_naturals((offset,))
        or not _are_naturals(size)
        or not _are_naturals(stride)
        or not len(size) == len(stride) <= 32
    ):
        got = f"{_brief(offset)}, {_brief(size)}, {_brief(stride)}"
        reject(location, "tensor", "an offset, a shape and as many strides, integers from 0", got)
    # The last number is that of the largest index on every axis; where an axis is empty there is none.
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True)) + 1 if all(size) else 0
    if last * itemsize > storage.nbytes:
        got = f"the last at {last} of {storage.nbytes // itemsize}"
        reject(location, f"tensor of shape {excerpt(size)}", "numbers inside its storage", got)
    scan.views[(storage.key, itemsize, offset, size, stride)] = prod(size) * itemsize
    if len(scan.views) > limits.tensors * 4:
        reject(location, "tensors", f"at most {limits.tensors * 4}", "more")


def _brief(value: Any) -> str:
    """An untrusted value in a few characters; containers, which may be endless, by their type."""
    return excerpt(value, 80) if isinstance(value, str | int | bytes) else f"a {type(value).__name__}"


def _are_naturals(value: Any) -> bool:
    return isinstance(value, tuple) and all(type(item) is int and 0 <= item < 2**62 for item in value)


def _reject_unsuitable(scan: PickleScan) -> None:
    """Refuse what is not tensors and plain containers, by name, and what is too large."""
    location, limits = scan.location, scan.limits
    if forbidden := scan.forbidden:
        words = [describe_global(name) for name in forbidden]
        got = ", ".join(excerpt(name, 80) for name in words[:5]) + (f" and {len(words) - 5} more" * (len(words) > 5))
        reject(location, "pickle", "tensors and plain containers", excerpt(got, 400), next_step_for(forbidden))
    if scan.unknown_operations:
        got = f"the operations {', '.join(sorted(scan.unknown_operations))}"
        step = "Save it again with torch.save and its default pickle_protocol."
        reject(location, "pickle", "the operations of protocol 2 that torch.save writes", excerpt(got), step)
    total = sum(scan.views.values())
    if total > limits.tensor_bytes:
        got = f"{total} bytes from their shapes"
        reject(location, "tensors", f"at most {limits.tensor_bytes} bytes written out", got)
    # a stride of 0 shows one number many times
    stored = sum(storage.nbytes for storage in scan.storages.values())
    if total > max(limits.always_allowed, limits.expansion * stored):
        got = f"{total} bytes from their shapes, of {stored} stored"
        reject(location, "tensors", f"at most {limits.expansion} times their storages written out", got)
