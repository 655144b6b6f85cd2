"""Targets of networks that predict from weights: numbers joined to checkpoints by their ids."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from ckptzoo.arguments import checked
from ckptzoo.errors import Problem, UnknownNameError, ZooError
from ckptzoo.loader.zoo import Zoo

Target = str | Sequence[str] | Mapping[str, Any] | NDArray[Any]
Missing = Literal["error", "drop"]
_EXTRA = "extra."


@checked
def targets(zoo: Zoo, target: Target, *, missing: Missing = "error") -> tuple[Zoo, NDArray[Any]]:
    """The checkpoints that have a target, and their targets.

    Parameters
    ----------
    zoo
        a zoo or a selection, of N checkpoints.
    target
        a column of numbers or truth values, ``"test_accuracy"``; a number in the rows' ``extra``, ``"extra.optim.lr"``;
        a list of these; numbers (N,) or (N, m) in the zoo's order; or ``{id: number}`` (or ``{id: [number, ...]}``),
        whose other ids do not matter.
    missing
        ``"error"``, or ``"drop"`` for the checkpoints without one: null, NaN or no such id.

    Returns
    -------
    tuple[Zoo, NDArray[Any]]
        The zoo, or those of it that have all targets (M of them), and (M,) numbers, (M, m) of a list: int64 where all
        are integers or truth values, else float32.

    Raises
    ------
    UnknownNameError
        No such column.
    ZooError
        Targets are missing, are no numbers, or are not as many as there are checkpoints.

    Examples
    --------
    >>> import ckptzoo
    >>> zoo = ckptzoo.open("cards/mnist-optunet")
    >>> targets(zoo, ["test_accuracy", "test_loss"])[1].shape
    (8192, 2)
    """
    if missing not in ("error", "drop"):
        raise UnknownNameError(zoo.name, "missing", str(missing), ("error", "drop"))
    if isinstance(target, str):
        values, said = _column(zoo, target), repr(target)
    elif isinstance(target, Mapping):
        values, said = _joined(zoo, target), "given by id"
    elif isinstance(target, np.ndarray):
        values, said = _numbers(zoo, target, "given"), "given"
    elif not target:
        raise ZooError(Problem(zoo.name, "target", "one column or more", "none", "Leave target= out."))
    else:
        values = np.stack([_column(zoo, name) for name in target], axis=1)
        said = ", ".join(map(repr, target))
    if len(values) != len(zoo) or values.ndim not in (1, 2):
        step = "Give one for each checkpoint, in the order of zoo.ids."
        expected = f"({len(zoo)},) or ({len(zoo)}, m) numbers"
        raise ZooError(Problem(zoo.name, "target", expected, str(values.shape), step))
    # NaN stands for a target that is missing, in columns and in what is given
    absent = np.isnan(values).reshape(len(values), -1).any(axis=1)
    if count := int(absent.sum()):
        if missing == "error":
            first = zoo.ids[int(np.flatnonzero(absent)[0])]
            got = f"{count:,} without one, the first of them {first!r}"
            step = "Write missing='drop' to leave them out."
            raise ZooError(Problem(zoo.name, f"target {said}", f"one for all {len(zoo):,} checkpoints", got, step))
        zoo, values = zoo.take(~absent), values[~absent]
    # float64 holds every integer below 2^53
    whole = values.astype(np.int64) if (np.abs(values) < 2**53).all() else None
    # a column of floats stays one where its numbers happen to be whole
    if whole is not None and _whole(zoo, target):
        return zoo, whole
    # the dtype of networks' outputs
    return zoo, values.astype(np.float32)


def _whole(zoo: Zoo, target: Target) -> bool:
    """Whether targets are integers or truth values by their types."""
    if isinstance(target, np.ndarray):
        return target.dtype.kind in "iub"
    if isinstance(target, Mapping):
        return all(isinstance(value, int | np.integer | np.bool_) for value in target.values())
    names = [target] if isinstance(target, str) else target
    schema = zoo.contents.raw.rows.schema
    kinds = [None if name.startswith(_EXTRA) else schema.field(name).type for name in names]
    return all(kind is not None and (pa.types.is_integer(kind) or pa.types.is_boolean(kind)) for kind in kinds)


def _column(zoo: Zoo, name: str) -> NDArray[np.float64]:
    """A column, or a number within ``extra``, as float64 with NaN where it is missing."""
    values = zoo.column(name)
    kind = values.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        step = "Choose a column of numbers, or give numbers by id: target={id: number}."
        raise ZooError(Problem(zoo.name, f"target {name!r}", "numbers or truth values", str(kind), step))
    # Arrow makes NaN of a null among floats
    return values.cast(pa.float64()).to_numpy()


def _joined(zoo: Zoo, given: Mapping[str, Any]) -> NDArray[np.float64]:
    width = next((np.shape(value) for value in given.values()), ())
    absent = np.full(width, np.nan)
    return _numbers(zoo, [given.get(id, absent) for id in zoo.ids], "given by id")


def _numbers(zoo: Zoo, values: ArrayLike | list[Any], said: str) -> NDArray[np.float64]:
    if isinstance(values, list):
        values = [np.nan if value is None else value for value in values]
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "iufb":
            raise ValueError(f"{array.dtype.name} values")
    except ValueError as error:
        step = "Give numbers, one or the same number of them for each checkpoint."
        raise ZooError(Problem(zoo.name, f"target {said}", "numbers", str(error), step)) from error
    return array.astype(np.float64)
