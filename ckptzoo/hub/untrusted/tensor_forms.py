"""Tensors that are no dense arrays: sparse ones of torch and scipy are read, for all others the form is named."""

import re
from collections.abc import Sequence
from math import prod
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ckptzoo.hub.untrusted.values import MAX_DIMENSIONS, Inert, InertError, Known, Numbers, are_naturals, described

UNREAD = {
    "torch._utils._rebuild_qtensor": "a quantized tensor",
    "torch._utils._rebuild_meta_tensor_no_storage": "a meta tensor, which has no numbers",
    "torch._utils._rebuild_nested_tensor": "a nested tensor",
    "torch._utils._rebuild_wrapper_subclass": "a tensor subclass",
    "torch._tensor._rebuild_from_type_v2": "a tensor subclass",
    "torch.nested._internal.nested_tensor._rebuild_njt": "a nested tensor",
    "torch._utils._rebuild_device_tensor_from_numpy": "a tensor of another device",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": "a tensor of another device",
    "torch.nn.parameter.UninitializedParameter": "an uninitialised parameter, which has no numbers",
    "torch.nn.parameter.UninitializedBuffer": "an uninitialised buffer, which has no numbers",
    "numpy.ma.core._mareconstruct": "a masked array",
}
"""Globals that make tensors whose numbers are not read, and what they are."""
_REBUILD = re.compile(r"torch\..*\b_rebuild_\w+|scipy\.sparse\..*_(matrix|array)")
"""Globals of the same kind that later versions may add, and the formats of scipy that are not read."""
_LAYOUTS = {"torch.sparse_coo", "torch.sparse_csr", "torch.sparse_csc", "torch.sparse_bsr", "torch.sparse_bsc"}
_MAX_DEPTH, _MAX_LOOKED_AT = 4, 1000
_FEW_BYTES = 16
"""More bytes than these in an object may be the numbers of a tensor; fewer are a key or a digest."""


class Sparse(Numbers):
    """A sparse tensor: ``read`` gives the dense one, of ``shape``, with duplicates summed.

    For ``torch.sparse_coo`` ``parts`` are indices ``(dimensions, n)`` and values ``(n, ...)``. For the other
    layouts they are pointers ``(rows + 1,)`` and indices ``(n,)`` along the compressed axis and the other one,
    and values ``(n, ...)``, which are blocks for ``bsr`` and ``bsc``.
    """

    __slots__ = ("_layout", "_parts", "shape")

    def __init__(self, layout: Any, parts: Sequence[Any], shape: Any) -> None:
        if layout not in _LAYOUTS or len(parts) != (2 if layout == "torch.sparse_coo" else 3):
            raise InertError("sparse tensor", "one of " + ", ".join(sorted(_LAYOUTS)), described(layout))
        if not are_naturals(shape) or len(shape) > MAX_DIMENSIONS or not all(isinstance(one, Numbers) for one in parts):
            raise InertError("sparse tensor", "indices, values and a shape", described(shape))
        self._layout, self._parts, self.shape = layout, tuple(cast(Sequence[Numbers], parts)), shape

    @property
    def dtype(self) -> str:
        return self._parts[-1].dtype

    @property
    def stored(self) -> tuple[int, int]:
        return id(self), sum(part.stored[1] for part in self._parts)

    def read(self) -> NDArray[Any]:
        """Return the dense array, whose size callers have checked."""
        *indices, values = (part.read() for part in self._parts)
        if any(part.dtype.kind not in "iu" for part in indices) or values.ndim < 1:
            raise InertError("sparse tensor", "integers as indices", ", ".join(str(part.dtype) for part in indices))
        if self._layout == "torch.sparse_coo":
            return _summed(indices[0], values, self.shape)
        return self._uncompressed(indices[0], indices[1], values)

    def _uncompressed(self, pointers: NDArray[Any], others: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
        kind, is_blocks = self._layout[-3:], self._layout[-3:].startswith("bs")
        block = values.shape[1:3] if is_blocks else (1, 1)
        dense = values.shape[3:] if is_blocks else values.shape[1:]
        if (
            pointers.ndim != 1
            or others.shape != values.shape[:1]
            or len(self.shape) != 2 + len(dense)
            or not all(block)
        ):
            raise InertError("sparse tensor", "one matrix", f"shapes {pointers.shape}, {others.shape}, {values.shape}")
        if any(length % size for length, size in zip(self.shape, block, strict=False)):
            raise InertError("sparse tensor", f"blocks that divide {self.shape}", str(block))
        grid = (self.shape[0] // block[0], self.shape[1] // block[1])
        along = 0 if kind[-1] == "r" else 1
        counts = np.diff(pointers.astype(np.int64))
        is_whole = len(pointers) == grid[along] + 1 and pointers[0] == 0 and pointers[-1] == len(others)
        if not is_whole or (counts < 0).any():
            raise InertError("sparse tensor", f"{grid[along] + 1} ascending pointers", f"{len(pointers)} others")
        compressed = np.repeat(np.arange(grid[along]), counts)
        indices = np.stack([compressed, others] if along == 0 else [others, compressed])
        if not is_blocks:
            return _summed(indices, values, self.shape)
        blocks = _summed(indices, values, (*grid, *block, *dense))
        return np.ascontiguousarray(blocks.swapaxes(1, 2)).reshape(self.shape)


def _summed(indices: NDArray[Any], values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the dense array of values at indices ``(dimensions, n)``."""
    if (
        indices.ndim != 2
        or len(indices) > len(shape)
        or ((indices.shape[1:], shape[len(indices) :]) != (values.shape[:1], values.shape[1:]))
    ):
        raise InertError("sparse tensor", f"indices and values of {shape}", f"shapes {indices.shape}, {values.shape}")
    for axis, numbers in enumerate(indices):
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < shape[axis]:
            expected = f"indices from 0 to {shape[axis] - 1} on axis {axis}"
            raise InertError("sparse tensor", expected, f"{numbers.min()} to {numbers.max()}")
    dense = np.zeros(shape, values.dtype)
    add = np.logical_or if values.dtype == bool else np.add
    # dense[indices] += values would count an index that comes twice once
    add.at(dense, tuple(indices), values)
    return dense


class SciPySparse(Sparse):
    """A matrix of scipy.sparse in one of the three usual formats; ``kind`` is the format in the name of its class."""

    __slots__ = ()
    kind = ""

    def __init__(self, *_: Any) -> None:
        self._layout, self._parts, self.shape = "", (), ()

    def __setstate__(self, state: Any) -> None:
        facts = state if isinstance(state, dict) else {}
        shape = facts.get("_shape", facts.get("shape"))
        if self.kind == "coo":
            # coords since scipy 1.11
            coordinates = facts.get("coords", (facts.get("row"), facts.get("col")))
            parts = (_Stacked(coordinates), facts.get("data"))
        else:
            parts = (facts.get("indptr"), facts.get("indices"), facts.get("data"))
        super().__init__(f"torch.sparse_{self.kind}", parts, shape)

    @property
    def dtype(self) -> str:
        """The dtype of the values; a matrix without a state has none."""
        return self._parts[-1].dtype if self._parts else "nothing"


class _Stacked(Numbers):
    """Arrays of one length as the rows of a matrix."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Any) -> None:
        is_rows = isinstance(rows, tuple | list) and 0 < len(rows) <= MAX_DIMENSIONS
        if not is_rows or not all(isinstance(row, Numbers) for row in rows):
            raise InertError("sparse matrix", "an array of indices for each axis", described(rows))
        self._rows = tuple(rows)

    @property
    def stored(self) -> tuple[int, int]:
        return id(self), sum(row.stored[1] for row in self._rows)

    def read(self) -> NDArray[Any]:
        rows = [row.read() for row in self._rows]
        if len({row.shape for row in rows}) != 1:
            raise InertError("sparse matrix", "indices of one length", "others")
        return np.stack(rows)


class GetLayout(Known):
    """``torch.serialization._get_layout``: the layout's name."""

    def __new__(cls, name: Any = "", *_: Any) -> Any:
        return name


class RebuildSparse(Known):
    """``torch._utils._rebuild_sparse_tensor``: a layout, and the parts followed by the shape."""

    def __new__(cls, layout: Any, data: Any, *_: Any) -> Any:
        if not isinstance(data, tuple) or len(data) < 3:
            raise InertError("sparse tensor", "indices, values and a shape", described(data))
        count = 2 if layout == "torch.sparse_coo" else 3
        # behind the shape of COO is whether it is coalesced
        return Sparse(layout, data[:count], data[count] if len(data) > count else None)


SPARSE: dict[str, type[Any]] = {
    "torch.serialization._get_layout": GetLayout,
    "torch._utils._rebuild_sparse_tensor": RebuildSparse,
    "torch._utils._rebuild_sparse_csr_tensor": RebuildSparse,
}
"""The globals of sparse tensors that are read, and the classes that stand for them."""
for _kind in ("coo", "csr", "csc"):
    _of_kind = type("SciPySparse", (SciPySparse,), {"__slots__": (), "kind": _kind, "__doc__": SciPySparse.__doc__})
    for _module in (_kind, f"_{_kind}"):  # private since scipy 1.8
        SPARSE |= {f"scipy.sparse.{_module}.{_kind}_{_form}": _of_kind for _form in ("matrix", "array")}


def unread_form(value: Any) -> str | None:
    """Return the form of a tensor whose numbers are not read; None for what is none.

    >>> from ckptzoo.hub.untrusted.values import class_named
    >>> unread_form(class_named("torch.nn.parameter.UninitializedBuffer")())
    'an uninitialised buffer, which has no numbers'
    """
    if not isinstance(value, Inert):
        return None
    words = UNREAD.get(value.name)
    if words is not None:
        kind = next((item.name for item in value.args if isinstance(item, type) and issubclass(item, Inert)), "")
        # (how to make it, its class, ...): the class is what people know it by
        own = value.args[1] if value.name.endswith("_rebuild_from_type_v2") and len(value.args) > 1 else None
        kind = own.name if isinstance(own, type) and issubclass(own, Inert) else kind
        return f"{words} ({kind})" if kind else words
    return f"an object of {value.name}" if _REBUILD.fullmatch(value.name) else None


def holds_numbers(value: Any) -> bool:
    """Whether an object of an unknown class has arrays or many bytes inside it, as an unknown tensor has."""
    stack, count = [(value, 0)], 0
    while stack and count < _MAX_LOOKED_AT:
        item, depth = stack.pop()
        count += 1
        if isinstance(item, Numbers | np.ndarray) and prod(item.shape) > 1:
            return True
        if isinstance(item, bytes | bytearray) and len(item) > _FEW_BYTES:
            return True
        if depth < _MAX_DEPTH:
            stack += [(inner, depth + 1) for inner in _inside(item)]
    return False


def _inside(value: Any) -> list[Any]:
    if isinstance(value, Inert):
        return [*value.args, value.state, *(value.items or ()), value.pairs]
    if isinstance(value, dict):
        return list(cast(dict[Any, Any], value).values())[:_MAX_LOOKED_AT]
    return list(cast(Sequence[Any], value))[:_MAX_LOOKED_AT] if isinstance(value, list | tuple) else []
