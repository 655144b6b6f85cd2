"""One tensor of many checkpoints, read when it is indexed."""

import inspect
from collections.abc import Callable, Collection, Iterator
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, ZooError
from ckptzoo.loader.checkpoint import import_torch
from ckptzoo.loader.readers import CastReader, TensorReader, float_dtype
from ckptzoo.loader.shard_index import ShardMaps

_BASIC = (int, np.integer, slice, type(Ellipsis), type(None))
"""Keys of numpy's basic indexing, which makes views; a list or an array among them makes a copy."""

_CPU = (1, 0)
"""The device of DLPack's ``kDLCPU``."""


class StackedTensor:
    """A tensor of N checkpoints as a lazy array ``(N, *shape)``.

    Indexing reads: ``W[3]``, ``W[10:20]``, ``W[[5, 1]]``, ``W[mask]``, ``W[:, 0]``, ``np.asarray(W)``. Rows that
    are evenly spaced in one shard come as a read-only view of the file, others as a copy. Rows of a variant that
    stores only its group elements are computed, and are arrays of their own with the same bits.

    Arithmetic and the methods of arrays are left to what was read: ``W[:].mean()``. ``np.mean(W)``, and
    ``xp.from_dlpack(W)`` of any library that has the array API standard, read it too. It has no
    ``__array_namespace__``: libraries would calculate with what has one as if it were an array.

    Parameters
    ----------
    reader
        of the tensor, for every row of a tree.
    rows
        (N,) int64, the checkpoints' rows of the tree.
    name
        what was asked for, an alias perhaps.

    Notes
    -----
    Costs no memory of its own; a copy costs the bytes asked for, and computing adds some pieces of 32 MiB.
    """

    def __init__(self, reader: TensorReader, rows: NDArray[np.int64], *, name: str) -> None:
        self._reader, self._rows, self.name = reader, rows, name
        self.shape: tuple[int, ...] = (len(rows), *reader.shape)
        self.dtype: np.dtype[Any] = reader.dtype

    @property
    def ndim(self) -> int:
        """Number of axes, that of the checkpoints included."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Elements in all."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Bytes in all."""
        return self.size * self.dtype.itemsize

    def astype(self, dtype: Any) -> "StackedTensor":
        """The same tensor, whose rows are cast when they are read.

        Parameters
        ----------
        dtype
            float64, float32, float16 or bfloat16, as a name or as numpy or torch have it.

        Raises
        ------
        ZooError
            It is another dtype, or the tensor holds no floating-point numbers.
        """
        wanted = float_dtype(dtype, self.name)
        if self.dtype.kind in "iub":
            step = "Read it first: cast what zoo[name][:] gives."
            raise ZooError(Problem(self.name, "dtype", "floating-point numbers", str(self.dtype), step))
        return StackedTensor(CastReader(self._reader, wanted), self._rows, name=self.name)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<{self.name} {self.shape} {self.dtype}, read when used, {self._reader.source}>"

    def _repr_html_(self) -> str:
        from ckptzoo.loader.notebook import tensor_html

        return tensor_html(self.name, self.shape, self.dtype, self.nbytes, self._reader.source)

    def __getitem__(self, key: Any) -> NDArray[Any]:
        first, *others = key if isinstance(key, tuple) else (key,)
        # numpy combines several arrays in a key by rules of its own, so those keys read everything first
        if first is Ellipsis or first is None or not all(isinstance(item, _BASIC) for item in others):
            return np.asarray(self)[key]
        rows = self._rows[first]
        if isinstance(rows, np.integer):
            return self._reader.gather(np.array([rows]), tuple(others))[0]
        if rows.ndim != 1:
            raise IndexError(f"{self.name}: rows: expected an integer, a slice, a list or a mask, got {first!r}.")
        return self._reader.gather(rows, tuple(others))

    def __iter__(self) -> Iterator[NDArray[Any]]:
        for view in self.views():
            yield from view

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        # numpy 2 passes copy: False forbids one, None allows one, True asks for one
        array = self._reader.gather(self._rows)
        is_view = not array.flags.writeable
        if copy is False and (not is_view or (dtype is not None and array.dtype != dtype)):
            raise ValueError(f"{self.name}: a view: expected rows of one shard in their own dtype, got others.")
        return array.astype(dtype or array.dtype, copy=bool(copy) and is_view)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        # consumers may write to what they get, whatever the capsule says: a map of their own never reaches the file
        array = self._reader.gather(self._rows, private=ShardMaps())
        if copy is False and self._reader.gather(self._rows).flags.writeable:
            raise BufferError(f"{self.name}: a view: expected rows of one shard in their own dtype, got others.")
        if dl_device not in (None, _CPU):
            raise BufferError(f"{self.name}: device: expected {_CPU}, the CPU, got {dl_device}.")
        # numpy exports no dtype of others
        exporter = import_torch().tensor_of(array) if array.dtype.name == "bfloat16" else array
        asked = {"stream": stream, "max_version": max_version, "dl_device": dl_device, "copy": copy}
        taken = _dlpack_keywords(exporter)
        return exporter.__dlpack__(**{key: value for key, value in asked.items() if value is not None and key in taken})

    def views(self) -> Iterator[NDArray[Any]]:
        """The rows in order: a read-only view for every run of rows in one shard, or computed pieces of 32 MiB."""
        return self._reader.runs(self._rows)

    def __getattr__(self, attribute: str) -> NoReturn:
        # called for attributes that are not there; dunders are asked for by numpy, torch, copy and pickle
        if attribute.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no {attribute!r}")
        name = self.__dict__.get("name", "a tensor")
        raise AttributeError(_read_first(name, f"attribute {attribute!r}", f"zoo[{name!r}][:].{attribute}"))


def _dlpack_keywords(exporter: Any) -> Collection[str]:
    """Return the keywords that a library's export takes; without them it is of DLPack's first version, which all read.

    numpy before 2.1 and torch before 2.9 take ``stream`` alone.
    """
    try:
        return inspect.signature(exporter.__dlpack__).parameters
    except ValueError:  # a method in C need not say what it takes
        is_old = np.lib.NumpyVersion(np.__version__) < "2.1.0"
        return ("stream",) if is_old else ("stream", "max_version", "dl_device", "copy")


def _read_first(name: str, what: str, example: str) -> str:
    return str(Problem(name, what, "an array in memory", "a lazy tensor", f"Read it first: {example}."))


def _refusing(operator: str) -> Callable[..., NoReturn]:
    """A method that says how to read a tensor before calculating with it."""

    def refuse(self: StackedTensor, *_: object) -> NoReturn:
        raise TypeError(_read_first(self.name, f"operator {operator}", f"zoo[{self.name!r}][:]"))

    return refuse


_OPERATORS = {
    "+": ("add", "radd", "iadd", "pos"),
    "-": ("sub", "rsub", "isub", "neg"),
    "*": ("mul", "rmul", "imul"),
    "/": ("truediv", "rtruediv", "itruediv"),
    "//": ("floordiv", "rfloordiv", "ifloordiv"),
    "%": ("mod", "rmod", "imod"),
    "**": ("pow", "rpow", "ipow"),
    "@": ("matmul", "rmatmul", "imatmul"),
    "&": ("and", "rand", "iand"),
    "|": ("or", "ror", "ior"),
    "^": ("xor", "rxor", "ixor"),
    "<": ("lt",),
    "<=": ("le",),
    ">": ("gt",),
    ">=": ("ge",),
    "==": ("eq",),
    "!=": ("ne",),
    "abs": ("abs",),
    "~": ("invert",),
    "float": ("float",),
    "int": ("int",),
}
for _operator, _methods in _OPERATORS.items():
    for _method in _methods:
        setattr(StackedTensor, f"__{_method}__", _refusing(_operator))
# a class that has __eq__ has no hash of its own
StackedTensor.__hash__ = object.__hash__
