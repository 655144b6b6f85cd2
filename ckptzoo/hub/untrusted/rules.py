"""The globals that a contributed file may name, and the owner's next step where it names others."""

from collections.abc import Iterable

from ckptzoo.hub.untrusted.errors import reject
from ckptzoo.hub.untrusted.inert import STORAGE_DTYPES
from ckptzoo.hub.untrusted.tensor_forms import SPARSE, UNREAD
from ckptzoo.schema.architecture import ITEMSIZE
from ckptzoo.text import excerpt

_CONTAINERS_AND_TENSORS = {
    "collections.OrderedDict", "collections.Counter", "torch.Size", "torch.device", "torch.nn.parameter.Parameter",
    "_codecs.encode", "builtins.set", "builtins.bytearray", "builtins.complex", "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3", "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
}  # fmt: skip
_TENSOR_KINDS = {
    **dict.fromkeys(SPARSE, "a sparse tensor"),
    **UNREAD,
    "torch._tensor._rebuild_from_type_v2": "a tensor subclass, or a tensor with attributes",
}
# Modules whose names in a pickle mean that somebody tries to run code, rather than that an object was saved whole.
_CODE_MODULES = {
    "os", "posix", "nt", "subprocess", "sys", "builtins", "runpy", "importlib", "shutil", "socket",
    "webbrowser", "pty", "code", "commands", "ctypes", "pip", "timeit", "pdb", "operator", "functools", "asyncio",
}  # fmt: skip
VIEWS_STEP = "Save tensors that overlap as their own copies: x.clone()."
TENSOR_STEP = "Save dense tensors: x.dequantize(), x.to_dense(), x.data.clone()."
_OTHER_DTYPE_STEPS = {
    "complex": "Save its parts as real numbers: torch.view_as_real(x), or x.real and x.imag.",
    "structured": 'Save its fields as arrays of their own: x["name"].',
    "float8": "Save it in a dtype that holds its numbers: x.to(torch.float16).",
    "float4": "Save it in a dtype that holds its numbers: x.to(torch.float16).",
}
_STEPS = {
    "numpy": "Save numbers as float(x) or int(x), arrays as torch.from_numpy(x).",
    "argparse": "Save vars(args), or leave the arguments out.",
}
_NOT_LISTED = 5


def dtype_step(dtype: str, other: str = TENSOR_STEP) -> str:
    """Return the next step for a tensor of a dtype that no zoo holds, ``other`` where nothing is known of it.

    >>> dtype_step("structured")
    'Save its fields as arrays of their own: x["name"].'
    """
    return next((step for word, step in _OTHER_DTYPE_STEPS.items() if word in dtype.lower()), other)


def is_allowed(name: str) -> bool:
    """Whether a global makes a dense tensor or a plain container."""
    module, _, last = name.rpartition(".")
    if module in ("torch", "torch.storage", "torch.cuda") and last in STORAGE_DTYPES and last[0] != "_":
        return True
    return name in _CONTAINERS_AND_TENSORS or (module == "torch" and last in ITEMSIZE)


def check_globals(names: Iterable[str], *, location: str) -> None:
    """Refuse a file that names globals other than those of dense tensors and plain containers; the
    ``IntegrityError`` names the first five.
    """
    forbidden = [name for name in names if not is_allowed(name)]
    if not forbidden:
        return
    words = [f"{name} ({_TENSOR_KINDS[name]})" if name in _TENSOR_KINDS else name for name in forbidden]
    got = ", ".join(excerpt(word, 80) for word in words[:_NOT_LISTED])
    got += f" and {len(words) - _NOT_LISTED} more" * (len(words) > _NOT_LISTED)
    reject(location, "pickle", "tensors and plain containers", excerpt(got, 400), _step_for(forbidden))


def _step_for(forbidden: list[str]) -> str:
    if any(name.partition(".")[0] in _CODE_MODULES for name in forbidden):
        return "Do not load this file: it names what would run when it is loaded."
    if any(name in _TENSOR_KINDS or (name.startswith("torch.") and name.count(".") == 1) for name in forbidden):
        return TENSOR_STEP
    step = "Load it where it was made and save model.state_dict() instead."
    return _STEPS.get(forbidden[0].partition(".")[0], step)
