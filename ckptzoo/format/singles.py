"""Checkpoints that are added one at a time: each is checked at once, and many are written together."""

import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, SpecError
from ckptzoo.format.header import numpy_dtype
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.metadata import COLUMNS, value_problems

_WAITING_BYTES, _WAITING_ROWS = 8 * 2**20, 2**11
"""The largest numbers of bytes of weights and of rows that wait to be written together."""
_KINDS = {"string": str, "int64": int, "float64": float, "bool": bool, "timestamp": datetime}
_KIND_OF = {column.name: _KINDS[column.type] for column in COLUMNS}
"""The type that values of a column have as they come, if nothing has to be done with them."""
_INT64, _EXACT = range(-(2**63), 2**63), range(-(2**53), 2**53)
"""The integers that a column of integers holds, and those among them that float64 has all of."""
_VALUE_BYTES = 16
"""A value takes fewer bytes of a table, apart from those of its text."""


class Singles:
    """Checkpoints of one architecture that wait to be written, in the order in which they came."""

    def __init__(self, arch: Architecture) -> None:
        self._arch = arch
        self._room = min(_WAITING_ROWS, _WAITING_BYTES // max(1, arch.nbytes))
        self._rows: list[dict[str, Any]] = []

    @property
    def is_full(self) -> bool:
        """Whether no other checkpoint may come before these are written."""
        return len(self._rows) >= self._room

    @cached_property
    def _stacked(self) -> dict[str, NDArray[Any]]:
        return {
            tensor.name: np.empty((self._room, *tensor.shape), numpy_dtype(tensor.dtype))
            for tensor in self._arch.tensors
        }

    def take(self, weights: Mapping[str, Any], row: dict[str, Any]) -> bool:
        """Copy a checkpoint, whose row is that of ``plain_row``; False where its tensors are not those of the zoo."""
        if len(weights) != len(self._stacked):  # with the names of tied tensors, too
            return False
        at, arrays = len(self._rows), list[tuple[NDArray[Any], Any]]()
        for name, stacked in self._stacked.items():
            array = weights.get(name)
            if type(array) is not np.ndarray:
                if not hasattr(array, "detach"):
                    return False
                try:
                    array = as_numpy(array)
                except TypeError:
                    return False
            place = stacked[at, ...]  # without it a number, where a tensor has no axes
            if array.shape != stacked.shape[1:] or array.dtype != stacked.dtype:
                return False
            arrays.append((place, array))
        for place, array in arrays:
            place[...] = array
        self._rows.append(row)
        return True

    def taken(self) -> tuple[dict[str, NDArray[Any]], list[dict[str, Any]]]:
        """The checkpoints that wait, stacked, and their rows; none wait afterwards.

        The arrays are written to again by ``take``.
        """
        rows, self._rows = self._rows, []
        return {name: stacked[: len(rows)] for name, stacked in self._stacked.items()} if rows else {}, rows


def plain_row(row: Mapping[str, Any], *, location: str) -> dict[str, Any] | None:
    """A row as tables take it; None where something in it is wrong, or has to be looked at more closely."""
    plain = dict(row)
    for name, value in row.items():
        kind = _KIND_OF.get(name)
        if kind is None:
            return None
        if value is None or name == "finite":  # which is measured
            continue
        if not _is_plain(value, kind):
            value = plain[name] = json_of(value, location=location) if name == "extra" else number_of(value)
            if not _is_plain(value, kind):
                return None
    if type(id := plain.get("id")) is not str:
        return None
    if plain.get("member") is None:
        plain["member"] = id
    return None if any(value_problems([plain], location=location)) else plain


def _is_plain(value: Any, kind: type) -> bool:
    """Whether a table takes a value as it is."""
    if kind is str:
        return type(value) is str and value.isascii()
    if kind is int:
        return type(value) is int and value in _INT64
    if kind is float:
        return type(value) is float or (type(value) is int and value in _EXACT)
    if kind is datetime:
        return type(value) is datetime and value.tzinfo in (None, UTC)
    return type(value) is kind


def row_bytes(row: Mapping[str, Any]) -> int:
    """A number of bytes that a row takes of a table at most; its texts are ASCII."""
    return _VALUE_BYTES * len(COLUMNS) + sum(len(value) for value in row.values() if type(value) is str)


def number_of(value: Any) -> Any:
    """The number in an array or tensor without axes; anything else as it is."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def json_of(extra: Any, *, location: str) -> Any:
    """Facts of a row's own as JSON, numbers of numpy and torch as numbers; what is no mapping as it is."""
    if not isinstance(extra, Mapping):
        return extra

    def plain(value: Any) -> Any:
        if (number := number_of(value)) is value:
            raise TypeError(f"a {type(value).__name__}")
        return number

    try:
        return json.dumps(dict(extra), sort_keys=True, default=plain)
    except (TypeError, ValueError) as error:
        step = "Write numbers, texts, lists and dicts of these, with texts as keys."
        raise SpecError(Problem(location, "column 'extra'", "what JSON can hold", str(error)[:160], step)) from error


def as_numpy(value: Any) -> NDArray[Any]:
    """A numpy array over the memory of a numpy array or a torch tensor on the CPU; bfloat16 through ml_dtypes.

    Raises ``TypeError`` for a tensor whose numbers numpy cannot have: on the device ``meta``, sparse, quantised or
    nested ones, those not initialised, and those of other dtypes.
    """
    if not hasattr(value, "detach"):
        return np.asarray(value)
    try:
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # whose numpy() raises; torch is imported where there is such a tensor
            return value.contiguous().view(sys.modules["torch"].int16).numpy().view(numpy_dtype("bfloat16"))
        if value.is_conj() or value.is_neg():  # views of complex tensors, whose signs are to come
            value = value.resolve_conj().resolve_neg()
        return value.numpy()
    except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        kind = " ".join(str(getattr(value, fact, "")).removeprefix("torch.") for fact in ("layout", "dtype", "device"))
        raise TypeError(f"a {type(value).__name__} without such numbers ({kind})") from error
