"""A stranger's state dict under the names, shapes and dtypes of a zoo, or everything that keeps it from fitting."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, SpecError
from ckptzoo.format.header import numpy_dtype
from ckptzoo.hub.contributing.naming import COUNTER, matched
from ckptzoo.spec.architecture import Architecture, Tensor
from ckptzoo.words import printable, shortened

State = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Fitted:
    """A state dict, or K of them stacked, as the zoo stores it.

    Parameters
    ----------
    weights : tensor name to (K, *shape) of the zoo's dtypes.
    stacked : whether the file held K checkpoints stacked; else K is 1.
    notes : what was done to make it fit.
    rounded : tensors whose values were rounded, to the dtype they had.
    """

    weights: dict[str, NDArray[Any]]
    stacked: bool
    notes: tuple[str, ...] = ()
    rounded: Mapping[str, str] = field(default_factory=dict)


def fit(state: State, arch: Architecture, names: Mapping[str, str], *, cast: bool, where: str) -> Fitted:
    """Bring a state dict under an architecture's names.

    The names that a table gives come first. Of the others ``module.`` and ``_orig_mod.`` are left out wherever they
    stand, and a first word that all of them share (``model.``, ``net.``) is left out or put in front, if they fit
    then. BatchNorm's counters may be lacking, which makes them 0, or be too many. Values of other dtypes are taken
    where none changes, and rounded if ``cast`` says so.

    Parameters
    ----------
    state : names to arrays, tied ones under each of their names; or to (K, *shape), K checkpoints stacked.
    names : old to new, ``*`` for any text.

    Raises
    ------
    NamesError
        Names do not fit.
    SpecError
        Shapes or dtypes do not, or tied tensors differ; with every problem.
    """
    note, by_new = matched({name: array.shape for name, array in state.items()}, arch, names, where=where)
    held = {name for item in arch.tensors for name in (item.name, *item.aliases)}
    problems: list[Problem] = []
    lead, stacked = _lead(by_new, state, arch)
    notes = [note] if note else []
    made = _Made(where, cast, lead, problems)
    for tensor in arch.tensors:
        own = [name for name in (tensor.name, *tensor.aliases) if name in by_new]
        if own:
            made.add(tensor, {name: state[by_new[name]] for name in own})
        else:
            made.weights[tensor.name] = np.zeros((*lead, *tensor.shape), numpy_dtype(tensor.dtype))
    if problems:
        raise SpecError(problems)
    counters = [item.name for item in arch.tensors if item.name.endswith(COUNTER)]
    if lacking := [name for name in counters if name not in by_new]:
        notes.append(f"{len(lacking)} counters of batches, which the file lacks, are 0")
    if extra := [name for name in by_new if name not in held]:
        notes.append(f"{len(extra)} counters of batches, which the zoo lacks, are left out")
    weights = made.weights if stacked else {name: array[None] for name, array in made.weights.items()}
    return Fitted(weights, stacked, (*notes, *made.notes()), made.rounded)


@dataclass
class _Made:
    """Tensors of the zoo's shapes and dtypes, and what was wrong with the others."""

    where: str
    cast: bool
    lead: tuple[int, ...]
    problems: list[Problem]
    weights: dict[str, NDArray[Any]] = field(default_factory=dict)
    rounded: dict[str, str] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)

    def add(self, tensor: Tensor, given: State) -> None:
        """Take a tensor that the file has under one or several of its names."""
        first = next(iter(given.values()))
        expected = (*self.lead, *tensor.shape)
        for name, array in given.items():
            if array.shape != expected:
                step = "Check that it is the same architecture."
                self._wrong(name, f"shape {expected}", f"{array.shape}", step)
                return
            if array.dtype != first.dtype or array.tobytes() != first.tobytes():
                step = "Make a zoo of an architecture in which they are not tied."
                self._wrong(name, f"the values of {next(iter(given))!r}, which it is tied to", "others", step)
                return
        self.weights[tensor.name] = self._cast(tensor, first)

    def notes(self) -> list[str]:
        """What was done to dtypes."""
        exact = [name for name in self.changed if name not in self.rounded]
        told = [f"{len(exact)} tensors in another precision that holds the same values"] if exact else []
        return told + ([f"{len(self.rounded)} tensors rounded, as cast = true allows"] if self.rounded else [])

    def _cast(self, tensor: Tensor, array: NDArray[Any]) -> NDArray[Any]:
        wanted = numpy_dtype(tensor.dtype)
        if array.dtype == wanted:
            return array
        integral, whole = array.dtype.kind in "iub", wanted.kind in "iub"
        with np.errstate(over="ignore", invalid="ignore"):
            made = array.astype(wanted)
            back = made.astype(array.dtype)
        same = bool(np.all((back == array) | ((array != array) & (back != back)))) if array.size else True
        self.changed.append(tensor.name)
        if same:
            return made
        if not self.cast or (whole and not integral):
            step = "Say cast = true in contribution.toml if the values may be rounded."
            step = "Check that it is the same architecture." if whole and not integral else step
            self._wrong(tensor.name, tensor.dtype, f"{array.dtype} with values that would change", step)
        self.rounded[tensor.name] = str(array.dtype)
        return made

    def _wrong(self, name: str, expected: str, got: str, step: str) -> None:
        shown = shortened(printable(name), 80)
        self.problems.append(Problem(self.where, f"tensor {shown!r}", expected, got, step))


def _lead(by_new: Mapping[str, str], state: State, arch: Architecture) -> tuple[tuple[int, ...], bool]:
    """``(K,)`` where every tensor has one more axis in front, of one length; else ``()``."""
    leads: set[tuple[int, ...]] = set()
    for tensor in arch.tensors:
        for name in (tensor.name, *tensor.aliases):
            if name in by_new:
                shape = state[by_new[name]].shape
                leads.add(shape[:1] if shape[1:] == tensor.shape and len(shape) == len(tensor.shape) + 1 else ())
    return (leads.pop(), True) if len(leads) == 1 and () not in leads else ((), False)
