"""Surveys a pickle without running it: every global it names, and every tensor it declares.

A pickle is a program for a stack machine. The survey follows the stack and builds nothing: a global stays a name, a
call stays undone. So what is wrong is said by name before ``torch.load(weights_only=True)`` sees the file.

Which globals a pickle may name, what the others usually are, and what to do about them.

Accepted are those of ``torch.load(weights_only=True)`` that make dense tensors and plain containers.
"""

import pickletools
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import IO, Any

from ckptzoo.errors import IntegrityError
from ckptzoo.hub.untrusted.limits import Limits, reject, shown
from ckptzoo.schema.architecture import ITEMSIZE

STORAGES = {
    "DoubleStorage": 8, "FloatStorage": 4, "HalfStorage": 2, "BFloat16Storage": 2, "LongStorage": 8,
    "IntStorage": 4, "ShortStorage": 2, "CharStorage": 1, "ByteStorage": 1, "BoolStorage": 1, "UntypedStorage": 1,
}  # fmt: skip
VIEWS = {"torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3"}
WRAPPED = {"torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state"}
_PLAIN = {
    "collections.OrderedDict", "collections.Counter", "torch.Size", "torch.device", "torch.nn.parameter.Parameter",
    "_codecs.encode", "builtins.set", "builtins.bytearray", "builtins.complex",
}  # fmt: skip
_KINDS = {
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
_CODE = {
    "os", "posix", "nt", "subprocess", "sys", "builtins", "__builtin__", "runpy", "importlib", "shutil", "socket",
    "webbrowser", "pty", "code", "commands", "ctypes", "pip", "timeit", "pdb", "operator", "functools", "asyncio",
}  # fmt: skip
STEPS = {
    "numpy": "Save numbers as float(x) or int(x), arrays as torch.from_numpy(x).",
    "argparse": "Save vars(args), or leave the arguments out.",
    "code": "Do not load this file: it names what would run when it is loaded.",
    "tensor": "Save dense tensors: x.dequantize(), x.to_dense(), x.real, x.data.clone().",
    "": "Load it where it was made and save model.state_dict() instead.",
}


def is_allowed(name: str) -> bool:
    """Whether a global makes a dense tensor or a plain container."""
    module, _, last = name.rpartition(".")
    if last in STORAGES and module in ("torch", "torch.storage", "torch.cuda"):
        return True
    return name in _PLAIN or name in VIEWS or name in WRAPPED or (module == "torch" and last in ITEMSIZE)


def described(name: str) -> str:
    """A global's name, and in plain words what it makes, where that is known."""
    return f"{name} ({_KINDS[name]})" if name in _KINDS else name


def advice(strange: list[str]) -> str:
    """What the owner of a file that names these globals can do."""
    if any(name.partition(".")[0] in _CODE for name in strange):
        return STEPS["code"]
    if any(name in _KINDS or (name.startswith("torch.") and name.count(".") == 1) for name in strange):
        return STEPS["tensor"]
    return STEPS.get(strange[0].partition(".")[0], STEPS[""])


@dataclass(frozen=True)
class Storage:
    """Numbers in a file: a key, the bytes of one number, and how many."""

    key: str
    itemsize: int
    numel: int

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return self.itemsize * self.numel


@dataclass(frozen=True)
class _Name:
    name: str


@dataclass
class _Thing:
    """A container or an object that does not matter here."""


_MARK = _Thing()
_THING = _Thing()
_TENSOR = _Thing()


@dataclass
class PickleScan:
    """What one pickle declares."""

    location: str
    limits: Limits
    globals: dict[str, None] = field(default_factory=dict[str, None])
    storages: dict[str, Storage] = field(default_factory=dict[str, Storage])
    views: dict[tuple[Any, ...], int] = field(default_factory=dict[tuple[Any, ...], int])
    foreign: dict[str, None] = field(default_factory=dict[str, None])
    """Operations that ``torch.load(weights_only=True)`` does not know."""

    @property
    def strange(self) -> list[str]:
        """The globals that are neither dense tensors nor plain containers."""
        return [name for name in self.globals if not is_allowed(name)]


def scan_pickle(stream: IO[bytes], *, location: str, limits: Limits) -> PickleScan:
    """Follow one pickle from where the stream stands to its end.

    Raises
    ------
    IntegrityError
        Not a whole pickle; globals other than tensors and plain containers (each is named); tensors that are not dense
        numbers, reach beyond what is stored, or are larger than the limits.

    Notes
    -----
    Time and memory follow the length of the pickle, not what it would make: nested copies of one object cost one step
    each. Held by tests/hub/untrusted/test_pickle_scan.py.
    """
    made = PickleScan(location, limits)
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    try:
        for code, argument in _operations(stream, limits):
            _step(code, argument, stack, memo, made)
    except IntegrityError:
        if made.strange:
            _judge(made)
        raise
    except Exception as error:  # pickletools and a stack that runs empty raise whatever they like
        if not made.foreign and not made.strange:
            reject(location, "pickle", "a whole pickle", f"{type(error).__name__}: {error}")
    _judge(made)
    return made


def _operations(stream: IO[bytes], limits: Limits) -> Iterator[tuple[str, Any]]:
    start = stream.tell()
    for code, argument, at in pickletools.genops(stream):
        if (at or 0) - start > limits.pickle_bytes:
            raise ValueError(f"more than {limits.pickle_bytes} bytes")
        yield code.name, argument


def _step(code: str, argument: Any, stack: list[Any], memo: dict[int, Any], made: PickleScan) -> None:
    """One operation: pop and push as the machine would, and note names and tensors."""
    if code in _PUSHES:
        stack.append(_PUSHES[code])
    elif code in _VALUES:
        stack.append(argument)
    elif code in ("BINGET", "LONG_BINGET", "GET"):
        stack.append(memo[int(argument)])
    elif code in ("BINPUT", "LONG_BINPUT", "PUT"):
        memo[int(argument)] = stack[-1]
    elif code == "MEMOIZE":
        memo[len(memo)] = stack[-1]
    elif code in ("GLOBAL", "INST"):
        if code == "INST":
            _to_mark(stack)
        stack.append(_named(".".join(argument.split(" ", 1)), made))
    elif code == "STACK_GLOBAL":
        name, module = stack.pop(), stack.pop()
        stack.append(_named(f"{_word(module)}.{_word(name)}", made))
    elif code == "TUPLE":
        stack.append(tuple(_to_mark(stack)))
    elif code in ("TUPLE1", "TUPLE2", "TUPLE3"):
        many = int(code[-1])
        if len(stack) < many:
            raise IndexError("the stack is empty")
        stack[-many:] = [tuple(stack[-many:])]
    elif code in ("REDUCE", "NEWOBJ"):
        arguments, called = stack.pop(), stack.pop()
        stack.append(_called(called, arguments, made))
    elif code == "BINPERSID":
        stack.append(_storage(stack.pop(), made))
    elif code in ("APPENDS", "SETITEMS", "ADDITEMS", "POP_MARK", "LIST", "DICT", "FROZENSET", "OBJ"):
        _to_mark(stack)
        if code in ("LIST", "DICT", "FROZENSET", "OBJ"):
            stack.append(_THING)
    elif code in ("APPEND", "BUILD", "POP"):
        stack.pop()
        if code == "BUILD" and stack[-1] is not _THING:
            reject(made.location, "pickle", "tensors that stay as they were made", "one that is built a second time")
    elif code == "SETITEM":
        del stack[-2:]
    elif code == "DUP":
        stack.append(stack[-1])
    elif code == "NEWOBJ_EX":
        del stack[-3:]
        stack.append(_THING)
    if code not in _KNOWN:
        made.foreign[code] = None
        if code.startswith("EXT"):
            made.globals[f"copyreg extension {argument}"] = None
        if code == "PERSID":
            stack.append(_THING)


_PUSHES: dict[str, Any] = {
    "MARK": _MARK, "NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": (),
    "EMPTY_LIST": _THING, "EMPTY_DICT": _THING, "EMPTY_SET": _THING, "EXT1": _THING, "EXT2": _THING, "EXT4": _THING,
    "NEXT_BUFFER": _THING,
}  # fmt: skip
_VALUES = {
    "BININT", "BININT1", "BININT2", "BINFLOAT", "BINUNICODE", "SHORT_BINSTRING", "LONG1",
    "INT", "LONG", "LONG4", "FLOAT", "STRING", "BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
}  # fmt: skip
_KNOWN = {
    "PROTO", "STOP", "GLOBAL", "NEWOBJ", "REDUCE", "BUILD", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "MARK",
    "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "NONE", "NEWTRUE", "NEWFALSE", "EMPTY_TUPLE", "EMPTY_LIST", "EMPTY_DICT",
    "EMPTY_SET", "BININT", "BININT1", "BININT2", "BINFLOAT", "BINUNICODE", "SHORT_BINSTRING", "BINPERSID", "BINGET",
    "LONG_BINGET", "BINPUT", "LONG_BINPUT", "LONG1",
}  # fmt: skip
"""The operations of ``torch._weights_only_unpickler``."""


def _to_mark(stack: list[Any]) -> list[Any]:
    for at in range(len(stack) - 1, -1, -1):
        if stack[at] is _MARK:
            items = stack[at + 1 :]
            del stack[at:]
            return items
    raise IndexError("no mark on the stack")


def _named(name: str, made: PickleScan) -> _Name:
    old = name.removeprefix("__builtin__.")
    name = f"builtins.{old}" if old != name else name
    made.globals[name] = None
    return _Name(name)


def _called(called: Any, arguments: Any, made: PickleScan) -> Any:
    name = called.name if isinstance(called, _Name) else ""
    if name not in VIEWS | WRAPPED | {"torch.nn.parameter.Parameter", "torch.Size"}:
        return _THING
    if not isinstance(arguments, tuple) or not arguments:
        reject(made.location, name, "its arguments", _word(arguments))
    if name == "torch.Size":
        return arguments[0]
    if name in VIEWS:
        _view(arguments, made, typed=name.endswith("_v3"))
    return _TENSOR


def _storage(pid: Any, made: PickleScan) -> Any:
    where = made.location
    if not isinstance(pid, tuple) or len(pid) not in (5, 6) or pid[0] not in ("storage", b"storage"):
        reject(where, "persistent id", "a storage of tensors", type(pid).__name__)
    _, kind, key, _, numel = pid[:5]
    name = kind.name.rpartition(".")[2] if isinstance(kind, _Name) else ""
    if name not in STORAGES:
        reject(where, "storage", "one of " + ", ".join(ITEMSIZE), name or "nothing", STEPS["tensor"])
    if not isinstance(key, str) or type(numel) is not int or numel < 0:
        reject(where, "storage", "a key and a number of elements", f"{_word(key)}, {_word(numel)}")
    storage = Storage(key, STORAGES[name], numel)
    if made.storages.setdefault(key, storage) != storage:
        reject(where, f"storage {key!r}", "one type and size", "two")
    if storage.nbytes > made.limits.tensor_bytes:
        reject(where, f"storage {key!r}", f"at most {made.limits.tensor_bytes} bytes", f"{storage.nbytes} bytes")
    if len(pid) == 6 and pid[5] is not None:
        return _part(storage, pid[5], made)
    return storage


def _part(root: Storage, view: Any, made: PickleScan) -> Storage:
    """A storage that is a piece of another one, as old versions of torch wrote."""
    key, offset, numel = view if isinstance(view, tuple) and len(view) == 3 else (None, -1, -1)
    if not _natural((offset, numel)) or offset + numel > root.numel:
        reject(made.location, f"storage {root.key!r}", f"a piece of its {root.numel} elements", _word(view))
    return Storage(f"{root.key}[{_word(key)}]", root.itemsize, numel)


def _view(arguments: tuple[Any, ...], made: PickleScan, *, typed: bool) -> None:
    """A tensor: a storage, an offset, a shape and strides; it must lie inside the storage."""
    where, limits = made.location, made.limits
    if len(arguments) < 4 or not isinstance(arguments[0], Storage):
        reject(where, "tensor", "a storage, an offset, a shape and strides", f"{len(arguments)} arguments")
    storage, offset, size, stride = arguments[:4]
    itemsize = storage.itemsize
    if typed:
        dtype = (
            arguments[6].name.removeprefix("torch.") if len(arguments) > 6 and isinstance(arguments[6], _Name) else ""
        )
        if dtype not in ITEMSIZE:
            reject(where, "dtype of a tensor", "one of " + ", ".join(ITEMSIZE), dtype or "nothing", STEPS["tensor"])
        itemsize = ITEMSIZE[dtype]
    if not _natural((offset,)) or not _natural(size) or not _natural(stride) or not len(size) == len(stride) <= 32:
        got = f"{_word(offset)}, {_word(size)}, {_word(stride)}"
        reject(where, "tensor", "an offset, a shape and as many strides, integers from 0", got)
    last = offset + sum((many - 1) * step for many, step in zip(size, stride, strict=True)) + 1 if all(size) else 0
    if last * itemsize > storage.nbytes:
        got = f"the last at {last} of {storage.nbytes // itemsize}"
        reject(where, f"tensor of shape {shown(size)}", "numbers inside its storage", got)
    made.views[(storage.key, itemsize, offset, size, stride)] = prod(size) * itemsize
    if len(made.views) > limits.tensors * 4:
        reject(where, "tensors", f"at most {limits.tensors * 4}", "more")


def _word(value: Any) -> str:
    """A stranger's value in a few signs; containers, which may be endless, by their type."""
    return shown(value, 80) if isinstance(value, str | int | bytes) else f"a {type(value).__name__}"


def _natural(value: Any) -> bool:
    return isinstance(value, tuple) and all(type(item) is int and 0 <= item < 2**62 for item in value)


def _judge(made: PickleScan) -> None:
    """Refuse by name what is not tensors and plain containers, and what is too large."""
    where, limits = made.location, made.limits
    if strange := made.strange:
        words = [described(name) for name in strange]
        got = ", ".join(shown(name, 80) for name in words[:5]) + (f" and {len(words) - 5} more" * (len(words) > 5))
        reject(where, "pickle", "tensors and plain containers", shown(got, 400), advice(strange))
    if made.foreign:
        got = f"the operations {', '.join(sorted(made.foreign))}"
        step = "Save it again with torch.save and its default pickle_protocol."
        reject(where, "pickle", "the operations of protocol 2 that torch.save writes", shown(got), step)
    whole = sum(made.views.values())
    if whole > limits.tensor_bytes:
        got = f"{whole} bytes from their shapes"
        reject(where, "tensors", f"at most {limits.tensor_bytes} bytes written out", got)
