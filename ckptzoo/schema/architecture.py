"""The architecture: which tensors a checkpoint has, in which order."""

import math
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, cast

from ckptzoo.errors import MAX_PROBLEMS, Problem, SpecError
from ckptzoo.schema.documents import Document, digest_of

ITEMSIZE = {
    "float64": 8, "int64": 8, "uint64": 8,
    "float32": 4, "int32": 4, "uint32": 4,
    "float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2,
    "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
"""Bytes an element, for every dtype a zoo can hold."""

TENSOR_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_:+\-]*(\.[A-Za-z0-9_:+\-]+)*")
"""Dotted words of letters, digits, ``_ : + -``: what PyTorch's modules make, and nothing that leaves a folder."""
# documents of zoos are untrusted: these bound what is allocated because of them
MAX_NAME = 512
MAX_TENSORS = 100_000
MAX_CHECKPOINT_BYTES = 2**40
_BUFFERS = {
    "running_mean", "running_var", "num_batches_tracked", "n_averaged", "mask", "masks", "weight_u", "_u", "_v",
    "moving_mean", "moving_variance",
}  # fmt: skip
"""Names in PyTorch and Keras of the buffers of BatchNorm, of averages, masks, and vectors of spectral normalisation."""


@dataclass(frozen=True)
class Tensor:
    """One named array of a checkpoint.

    Parameters
    ----------
    name
        the name in the state dict, such as ``conv1.weight``.
    shape
        its shape in one checkpoint; ``()`` is a scalar, and a side of 0 makes a tensor without elements.
    dtype
        a key of ``ITEMSIZE``.
    kind
        ``"parameter"`` or ``"buffer"``.
    aliases
        other names of the same storage (tied weights); stored once, restored under every name.

    Examples
    --------
    >>> tensor = ckptzoo.Tensor("conv1.weight", (2, 1, 4, 4))
    >>> tensor.layer, tensor.size, tensor.nbytes
    ('conv1', 32, 128)
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    kind: str = "parameter"
    aliases: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Elements in one checkpoint."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in one checkpoint."""
        return self.size * ITEMSIZE[self.dtype]

    @property
    def layer(self) -> str:
        """The module the tensor belongs to: ``conv1`` for ``conv1.weight``."""
        return self.name.rpartition(".")[0] or self.name


@dataclass(frozen=True)
class Architecture:
    """The tensors of a checkpoint in order, and the forward function's name where one is known.

    Parameters
    ----------
    name
        what people call it, such as ``optunet``.
    tensors
        in the order of the state dict.
    forward
        a name in ``ckptzoo.archs``, or None.
    input_shape
        the shape of one input without its batch axis, or None.

    Examples
    --------
    >>> state_dict = {"fc.weight": np.zeros((10, 4), np.float32), "fc.bias": np.zeros(10, np.float32)}
    >>> arch = ckptzoo.Architecture.of(state_dict, name="linear")
    >>> arch["fc.weight"].shape, arch.layers
    ((10, 4), {'fc': ('fc.weight', 'fc.bias')})
    """

    name: str
    tensors: tuple[Tensor, ...]
    forward: str | None = None
    input_shape: tuple[int, ...] | None = None
    _by_name: dict[str, Tensor] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        problems = tuple(islice(_problems(self), MAX_PROBLEMS + 1))
        if problems:
            raise SpecError(problems)
        object.__setattr__(self, "_by_name", {tensor.name: tensor for tensor in self.tensors})

    @classmethod
    def of(
        cls,
        state_dict: Mapping[str, Any],
        *,
        name: str,
        forward: str | None = None,
        input_shape: tuple[int, ...] | None = None,
    ) -> "Architecture":
        """Read it off an example state dict of numpy arrays or torch tensors.

        Tensors that share their storage become one tensor with aliases. Which tensors are buffers, ``kind_of`` says.

        Parameters
        ----------
        state_dict
            arrays or tensors of one network by name.
        name
            what the architecture is called.
        forward
            a name in ``ckptzoo.archs`` whose module computes the outputs, where there is one.
        input_shape
            of one input, without the axis of examples.
        """
        odd = [key for key, value in state_dict.items() if not hasattr(value, "shape") or not hasattr(value, "dtype")]
        if odd:
            got = f"{type(state_dict[odd[0]]).__name__} under {odd[0]!r}"
            step = "Pass the state dict itself, model.state_dict()."
            raise SpecError(Problem(f"architecture {name!r}", "state dict", "names and arrays", got, step))
        first: dict[Any, str] = {}
        aliases: dict[str, list[str]] = {}
        for key, value in state_dict.items():
            storage = _storage(value)
            if storage is not None and storage in first:
                aliases[first[storage]].append(key)
            else:
                first[storage if storage is not None else key] = key
                aliases[key] = []
        tensors = tuple(
            Tensor(
                key,
                tuple(int(size) for size in state_dict[key].shape),
                str(state_dict[key].dtype).removeprefix("torch."),
                kind_of(key, str(state_dict[key].dtype).removeprefix("torch."), state_dict),
                tuple(others),
            )
            for key, others in aliases.items()
        )
        return cls(name, tensors, forward, input_shape)

    @classmethod
    def from_json(cls, content: Document, *, location: str = "architecture.json") -> "Architecture":
        """Read the content of ``architecture.json``.

        Parameters
        ----------
        content
            of the document, without its digest.
        location
            what messages call it.

        Raises
        ------
        SpecError
            With every problem found.
        """
        step = "Write the file again with ckptzoo."
        try:
            tensors = tuple(
                Tensor(
                    str(item["name"]),
                    tuple(item["shape"]),
                    item["dtype"],
                    item["kind"],
                    tuple(item["aliases"]),
                )
                for item in content["tensors"]
            )
            shape = content["input_shape"]
            return cls(content["name"], tensors, content["forward"], None if shape is None else tuple(shape))
        # whatever of another form the content is
        except (KeyError, TypeError, AttributeError) as error:
            got = f"{type(error).__name__} {error}"
            raise SpecError(Problem(location, "fields", "those of docs/format.md", got, step)) from error

    def to_json(self) -> Document:
        """The content of ``architecture.json``."""
        return {
            "name": self.name,
            "forward": self.forward,
            "input_shape": None if self.input_shape is None else list(self.input_shape),
            "tensors": [
                {
                    "name": tensor.name,
                    "shape": list(tensor.shape),
                    "dtype": tensor.dtype,
                    "kind": tensor.kind,
                    "aliases": list(tensor.aliases),
                }
                for tensor in self.tensors
            ],
        }

    @property
    def digest(self) -> str:
        """``sha256:...`` of the content."""
        return digest_of(self.to_json())

    def __getitem__(self, name: str) -> Tensor:
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors' names in order."""
        return tuple(self._by_name)

    @property
    def layers(self) -> dict[str, tuple[str, ...]]:
        """Module name to its tensors' names, in order."""
        layers: dict[str, list[str]] = {}
        for tensor in self.tensors:
            layers.setdefault(tensor.layer, []).append(tensor.name)
        return {layer: tuple(names) for layer, names in layers.items()}

    def named(self, name: str) -> tuple[str, ...]:
        """Names of the tensors that a name stands for: a tensor or its alias, a layer, or a module of layers.

        A module that has tensors of its own is a layer, and stands for these alone. Nothing has the name where the
        result is empty.

        Parameters
        ----------
        name
            of a tensor, a layer or a module.

        Examples
        --------
        >>> state_dict = {name: np.zeros(2, np.float32) for name in ("body.0.bias", "body.2.bias", "head.bias")}
        >>> arch = ckptzoo.Architecture.of(state_dict, name="nested")
        >>> arch.named("body"), arch.named("body.2"), arch.named("head.bias"), arch.named("bod")
        (('body.0.bias', 'body.2.bias'), ('body.2.bias',), ('head.bias',), ())
        """
        if name in self:
            return (name,)
        within = self.layers.get(name) or tuple(other for other in self.names if other.startswith(f"{name}."))
        return within or tuple(tensor.name for tensor in self.tensors if name in tensor.aliases)

    @property
    def parameters(self) -> int:
        """Number of parameters of one checkpoint, buffers left out."""
        return sum(tensor.size for tensor in self.tensors if tensor.kind == "parameter")

    @property
    def nbytes(self) -> int:
        """Bytes of one checkpoint."""
        return sum(tensor.nbytes for tensor in self.tensors)


def kind_of(name: str, dtype: str, names: Container[str] = ()) -> str:
    """Whether a tensor is a buffer or a parameter, by its name and dtype.

    Integers and truth values are buffers, and so are the statistics and counters of BatchNorm, masks, and the vectors
    of spectral normalisation. ``dtype`` is a key of ``ITEMSIZE``, and ``names`` are those of all its tensors.

    Examples
    --------
    >>> kind_of("bn.running_mean", "float32"), kind_of("atomic_numbers", "int64"), kind_of("fc.weight", "float32")
    ('buffer', 'buffer', 'parameter')
    """
    last = name.rpartition(".")[2]
    is_float = "float" in dtype
    is_singular_vector = last.endswith(("_u", "_v")) and f"{name[:-2]}_orig" in names
    is_buffer = not is_float or last in _BUFFERS or last.endswith("_mask") or is_singular_vector
    return "buffer" if is_buffer else "parameter"


def architecture_difference(expected: Architecture, got: Architecture) -> str:
    """How the tensors of one architecture differ from those of another, in a few words; empty where they do not.

    >>> first = Architecture("a", (Tensor("fc.weight", (2, 3)), Tensor("fc.bias", (2,))))
    >>> architecture_difference(first, Architecture("b", (Tensor("fc.weight", (2, 4)), Tensor("out.bias", (2,)))))
    "'fc.weight' is (2, 4) float32 and not (2, 3) float32; no 'fc.bias'; and 'out.bias'"
    """
    specs = {tensor.name: f"{tensor.shape} {tensor.dtype}" for tensor in got.tensors}
    return tensor_difference({tensor.name: f"{tensor.shape} {tensor.dtype}" for tensor in expected.tensors}, specs)


def tensor_difference(expected: Mapping[str, str], got: Mapping[str, str]) -> str:
    """How tensors, each as its shape and dtype, differ from those that are expected; the first three of each kind."""
    wrong = [
        f"{name!r} is {got[name]} and not {spec}" for name, spec in expected.items() if got.get(name, spec) != spec
    ]
    lacking = [repr(name) for name in expected if name not in got]
    unknown = [repr(name) for name in got if name not in expected]
    texts = [_first(wrong), f"no {_first(lacking)}" if lacking else "", f"and {_first(unknown)}" if unknown else ""]
    if not any(texts) and list(expected) != list(got):
        return "the same in another order"
    return "; ".join(text for text in texts if text)


def _first(items: Sequence[str], limit: int = 3) -> str:
    return ", ".join(items[:limit]) + (f" and {len(items) - limit} more" if len(items) > limit else "")


def _storage(value: Any) -> Any:
    """The memory of an array, by which tied tensors are found; None where it is unknown or empty."""
    if hasattr(value, "data_ptr"):
        # a view of another shape is no alias: it could not take the place of the tensor
        return (value.data_ptr(), tuple(value.shape), tuple(value.stride())) if value.numel() else None
    interface = getattr(value, "__array_interface__", None)
    return (interface["data"][0], tuple(value.shape), value.strides) if interface and value.size else None


def name_problem(name: object) -> str | None:
    """Why a tensor's name cannot be accepted, or None."""
    if not isinstance(name, str) or not name:
        return "an empty name"
    if len(name) > MAX_NAME:
        return f"{len(name)} characters"
    # safetensors has this key in its header for texts
    return None if TENSOR_NAME.fullmatch(name) and name != "__metadata__" else repr(name)


def _problems(arch: Architecture) -> Iterator[Problem]:
    location = f"architecture {arch.name!r}"
    step = "Correct the declaration."
    rule = f"letters, digits, _ : + - in dotted words, at most {MAX_NAME} characters"
    name, tensors = cast(object, arch.name), cast(object, arch.tensors)
    if not isinstance(name, str) or not name:
        yield Problem(location, "name", "a name", repr(name), step)
    if not isinstance(tensors, tuple | list) or not all(isinstance(item, Tensor) for item in cast(Any, tensors)):
        yield Problem(location, "tensors", "several Tensor", type(arch.tensors).__name__, step)
        return
    if not 1 <= len(arch.tensors) <= MAX_TENSORS:
        yield Problem(location, "tensors", f"1 to {MAX_TENSORS}", str(len(arch.tensors)), step)
    if arch.input_shape is not None and not _is_shape(arch.input_shape):
        yield Problem(location, "input_shape", "positive integers", repr(arch.input_shape), step)
    seen: set[str] = set()
    total = 0
    for tensor in arch.tensors:
        for name in (tensor.name, *tensor.aliases):
            if (got := name_problem(name)) is not None:
                yield Problem(location, "tensor name", rule, got, step)
            elif name in seen:
                yield Problem(location, f"tensor {name!r}", "each name once", "it twice", step)
            else:
                seen.add(name)
        if tensor.dtype not in ITEMSIZE:
            expected = "one of " + ", ".join(ITEMSIZE)
            yield Problem(location, f"dtype of {tensor.name!r}", expected, repr(tensor.dtype), step)
        elif not _is_shape(tensor.shape, least=0):
            yield Problem(location, f"shape of {tensor.name!r}", "integers from 0", repr(tensor.shape), step)
        else:
            total += tensor.nbytes
        if tensor.kind not in ("parameter", "buffer"):
            yield Problem(location, f"kind of {tensor.name!r}", "'parameter' or 'buffer'", repr(tensor.kind), step)
    if arch.tensors and not total and all(tensor.dtype in ITEMSIZE for tensor in arch.tensors):
        yield Problem(location, "elements of a checkpoint", "at least one", "none", step)
    if total > MAX_CHECKPOINT_BYTES:
        yield Problem(location, "bytes of a checkpoint", f"at most {MAX_CHECKPOINT_BYTES}", str(total), step)


def _is_shape(shape: tuple[Any, ...], *, least: int = 1) -> bool:
    # sizes are bounded one by one, so that no product of untrusted ones grows without end
    return (
        hasattr(shape, "__len__")
        and len(shape) <= 16
        and all(type(size) is int and least <= size < 2**40 for size in shape)
    )
