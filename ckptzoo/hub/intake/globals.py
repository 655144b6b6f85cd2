"""Which globals a pickle may name, what the others usually are, and what to do about them.

Accepted are those of ``torch.load(weights_only=True)`` that make dense tensors and plain containers.
"""

from ckptzoo.spec.architecture import ITEMSIZE

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
