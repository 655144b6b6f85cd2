"""Does a table leave a module's outputs alone? Random group elements, in float64.

Weights without accidents, on which only what holds for all weights holds.
"""

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ckptzoo.errors import SymmetryError
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.symmetry import Fixed, Symmetry, Wreath
from ckptzoo.symmetry.action import apply
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.tracing.graph import HAND, InDouble

Weights = dict[str, NDArray[Any]]
"""Tensor name to array, without an axis of checkpoints."""


def generic_weights(
    own: Mapping[str, NDArray[Any]], parameters: Container[str], symmetry: Symmetry, rng: np.random.Generator
) -> Weights:
    """Random parameters and running statistics in float64; other buffers and integers as they are.

    All are uniform: weights with variance 2 / fan-in, gains in 0.5 to 1.5 with either sign, running variances in 0.5
    to 1.5, biases, shifts and running means in -1 to 1.

    Parameters
    ----------
    own : the module's weights, float64 where they are floats.
    parameters : names of those that are parameters.
    symmetry : tells the gains.
    """
    gains = {action.tensor for action in symmetry.actions if action.role == "gain"}
    return {
        name: _generic(name, value, name in gains, rng) if name in parameters or _is_statistic(name) else value.copy()
        for name, value in own.items()
    }


def near_weights(own: Mapping[str, NDArray[Any]], rng: np.random.Generator) -> Weights:
    """The module's weights, each multiplied by a number near 1."""
    return {
        name: value * rng.uniform(0.9, 1.1, value.shape) if value.dtype.kind == "f" else value.copy()
        for name, value in own.items()
    }


def _is_statistic(name: str) -> bool:
    return name.endswith(("running_mean", "running_var"))


def _generic(name: str, value: NDArray[Any], gain: bool, rng: np.random.Generator) -> NDArray[Any]:
    if value.dtype.kind != "f":
        return value.copy()
    if name.endswith("running_var"):
        return rng.uniform(0.5, 1.5, value.shape)
    long = sum(size > 1 for size in value.shape) > 1
    if gain or (name.endswith("weight") and not long):
        return rng.uniform(0.5, 1.5, value.shape) * rng.choice([-1.0, 1.0], value.shape)
    width = math.sqrt(6 / math.prod(value.shape[1:])) if long else 1.0
    return rng.uniform(-width, width, value.shape)


TOLERANCE = 1e-9
"""Largest relative difference of float64 outputs under an element of a table that is right."""
_ROUNDING = 2e-15
_DRAWS = 6
_ROWS = 4
_CHOICES = 16
_ELEMENTS, _SMALL = 4, 2**20
"""So many elements a trial for networks of fewer bytes, whose groups are small; one for others."""
_SPREAD = 0.3
_NO_EPS = 1e-300
"""torch refuses an eps of 0; beside any variance this is 0."""
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True, eq=False)
class _Trial:
    """Weights and inputs, and the outputs that they give, in evaluation or in training mode."""

    training: bool
    weights: Weights
    inputs: torch.Tensor
    outputs: tuple[NDArray[np.float64], ...]


class Verifier:
    """A module's outputs before and after group elements.

    In evaluation mode with eps unchanged, on the module's own weights and on generic ones; where there are BatchNorm
    modules, on generic ones in training mode with eps = 0 too.

    Parameters
    ----------
    module : in float64 and evaluation mode; what it computes is not changed.
    arch : of its state dict.
    symmetry : a table, which tells the gains.
    example : an input; the random ones have its shape, with four rows where the module takes them.
    """

    def __init__(self, module: nn.Module, arch: Architecture, symmetry: Symmetry, example: torch.Tensor) -> None:
        self._module, self._arch, self._symmetry = module, arch, symmetry
        self._parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
        self._rng = np.random.default_rng(0)
        self._elements = _ELEMENTS if arch.nbytes < _SMALL else 1
        self.notes: list[str] = []
        state = module.state_dict()
        self._own: Weights = {tensor.name: state[tensor.name].detach().cpu().numpy() for tensor in arch.tensors}
        self._example = example.repeat(-(-_ROWS // len(example)), *[1] * (example.ndim - 1))[:_ROWS]
        try:
            first = self._made(False, self._own, self._normal())
        except RuntimeError:
            self._example = example
            first = self._made(False, self._own, self._normal())
        self._trials = [first, self._made(False, self._generic(), first.inputs)]
        if any(isinstance(item, _BATCH_NORMS) for item in module.modules()):
            try:
                self._trials.append(self._made(True, self._trials[1].weights, first.inputs))
            except ValueError as error:
                self.notes.append(f"Not verified in training mode: {error}.")

    def worst(self, symmetry: Symmetry, draw: Callable[[], GroupElement]) -> float:
        """The largest relative difference of outputs that elements make: ``max |f(g . w) - f(w)| / max |f(w)|``.

        Trials whose outputs rounding alone changes are drawn anew. In training mode at eps = 0 there may be none
        that it does not change, where channels are the same for all inputs; then the notes say so.

        Raises
        ------
        SymmetryError
            There is none in evaluation mode.
        """
        found = 0.0
        for trial in tuple(self._trials):
            elements = [draw() for _ in range(self._elements)]
            gap = self._gap(symmetry, elements, trial)
            if not gap <= TOLERANCE and not self._steady(trial):
                self._trials.remove(trial)
                if (other := self._redrawn(trial)) is None:
                    continue
                self._trials.append(other)
                gap = self._gap(symmetry, elements, other)
            found = max(found, gap)
        return found

    def element(self, symmetry: Symmetry) -> GroupElement:
        """A random element that is not the identity on any group, and makes no running variance negative."""
        drawn = GroupElement.random(symmetry, _CHOICES, self._rng, spread=_SPREAD)
        perms: dict[str, NDArray[Any]] = {}
        for together in _moving_together(symmetry):
            still = [(drawn.perms[name] == np.arange(drawn.perms[name].shape[1])).all(axis=1) for name in together]
            row = int(np.sum(still, axis=0).argmin())
            perms.update({name: drawn.perms[name][[row]] for name in together})
        large = {item.group for action in symmetry.actions if action.exponent == 2 for item in action.segments}
        scales: dict[str, NDArray[Any]] = {}
        for name, scale in drawn.scales.items():
            row = int((scale == 1).sum(axis=1).argmin())
            scales[name] = np.maximum(scale[[row]], 1 / scale[[row]]) if name in large else scale[[row]]
        return GroupElement({**GroupElement.identity(symmetry, 1).perms, **perms}, scales)

    def _generic(self) -> Weights:
        return generic_weights(self._own, self._parameters, self._symmetry, self._rng)

    def _normal(self) -> torch.Tensor:
        return torch.from_numpy(self._rng.standard_normal(tuple(self._example.shape)))

    def _made(self, training: bool, weights: Weights, inputs: torch.Tensor) -> _Trial:
        return _Trial(training, weights, inputs, self._outputs(weights, inputs, training=training))

    def _gap(self, symmetry: Symmetry, elements: Iterable[GroupElement], trial: _Trial) -> float:
        worst, stack = 0.0, {name: value[None] for name, value in trial.weights.items()}
        for element in elements:
            moved = {name: value[0] for name, value in apply(element, stack, symmetry).items()}
            found = self._outputs(moved, trial.inputs, training=trial.training)
            worst = max(worst, _difference(trial.outputs, found))
        return worst

    def _steady(self, trial: _Trial) -> bool:
        """Whether rounding alone leaves the outputs as they are."""
        rounded = {
            name: value * self._rng.uniform(1 - _ROUNDING, 1 + _ROUNDING, value.shape)
            if value.dtype.kind == "f"
            else value
            for name, value in trial.weights.items()
        }
        found = self._outputs(rounded, trial.inputs, training=trial.training)
        return _difference(trial.outputs, found) <= TOLERANCE / 10

    def _redrawn(self, trial: _Trial) -> _Trial | None:
        """Other weights and inputs, generic ones and such as the module's and the example; None where all are bad."""
        for draw in range(_DRAWS):
            noise = self._normal()
            inputs = self._example * (1 + 0.1 * noise) if draw % 2 else noise
            weights = near_weights(self._own, self._rng) if draw % 2 else self._generic()
            made = self._made(trial.training, weights, inputs)
            if self._steady(made):
                return made
        if trial.training:
            self.notes.append("Not verified in training mode: at eps = 0 rounding alone changes the outputs.")
            return None
        raise SymmetryError(
            f"symmetry.trace: {type(self._module).__name__}: expected finite outputs that rounding in float64 changes "
            f"by at most {TOLERANCE / 10:g}, got others for {_DRAWS} draws of weights and inputs. {HAND}"
        )

    def _outputs(
        self, weights: Mapping[str, NDArray[Any]], inputs: torch.Tensor, *, training: bool
    ) -> tuple[NDArray[np.float64], ...]:
        state: dict[str, torch.Tensor] = {}
        for tensor in self._arch.tensors:
            value = torch.from_numpy(np.asarray(weights[tensor.name]))
            value = value if tensor.name in self._parameters else value.clone()
            state.update(dict.fromkeys((tensor.name, *tensor.aliases), value))
        with torch.no_grad(), InDouble(), _batch_statistics(self._module if training else None):
            made = torch.func.functional_call(self._module, state, (inputs.clone(),))
        return tuple(item.double().numpy().ravel() for item in _tensors(made))


def verified(
    module: nn.Module, arch: Architecture, symmetry: Symmetry, example: torch.Tensor
) -> tuple[Symmetry, float, tuple[str, ...]]:
    """A table that random elements show to be right.

    Groups whose permutations or scales alone change the outputs stay in place, or are not scaled.

    Parameters
    ----------
    module : in float64 and evaluation mode.
    arch : of its state dict.
    symmetry : the table to verify.
    example : an input, float64.

    Returns
    -------
    The table, the largest relative difference that a random element makes, and notes on what failed or could not be
    verified.

    Raises
    ------
    SymmetryError
        An element changes the outputs by more than 1e-9, and no group alone does.

    Notes
    -----
    Two forward passes in float64 for each of two or three trials.
    """
    verifier = Verifier(module, arch, symmetry, example)
    worst = verifier.worst(symmetry, lambda: verifier.element(symmetry))
    if not worst <= TOLERANCE:
        symmetry = _held(verifier, symmetry)
        worst = verifier.worst(symmetry, lambda: verifier.element(symmetry))
    if not worst <= TOLERANCE:
        raise SymmetryError(
            f"symmetry.trace: {type(module).__name__}: expected outputs that agree to {TOLERANCE:g} under random group "
            f"elements, got a relative difference of {worst:.3g}. {HAND}"
        )
    return symmetry, worst, tuple(verifier.notes)


def _held(verifier: Verifier, symmetry: Symmetry) -> Symmetry:
    """The table without what fails alone: permutations of groups that move together, and scales of each group."""
    identity = GroupElement.identity(symmetry, 1)
    groups = {group.id: group for group in symmetry.groups}

    def permuted(names: set[str]) -> GroupElement:
        drawn = verifier.element(symmetry).perms
        return GroupElement({**identity.perms, **{name: drawn[name] for name in names}}, identity.scales)

    def scaled(name: str) -> GroupElement:
        return GroupElement(identity.perms, {**identity.scales, name: verifier.element(symmetry).scales[name]})

    for together in _moving_together(symmetry):
        gap = verifier.worst(symmetry, lambda names=together: permuted(names))
        if not gap <= TOLERANCE:
            for name in sorted(together):
                groups[name] = replace(groups[name], perm=Fixed())
                verifier.notes.append(
                    f"Group {name!r} stays in place: its permutations change the outputs by {gap:.3g}."
                )
    for name in identity.scales:
        gap = verifier.worst(symmetry, lambda name=name: scaled(name))
        if not gap <= TOLERANCE:
            groups[name] = replace(groups[name], scale="none")
            verifier.notes.append(f"Group {name!r} is not scaled: its scales change the outputs by {gap:.3g}.")
    return Symmetry(tuple(groups.values()), symmetry.actions)


def _moving_together(symmetry: Symmetry) -> list[set[str]]:
    """Groups whose permutations depend on one another, but for those in place."""
    found: dict[str, set[str]] = {}
    for group in symmetry.groups:
        leader = symmetry.leader(group.id)
        if not isinstance(leader.perm, Fixed):
            key = f"blocks of {leader.perm.outer}" if isinstance(leader.perm, Wreath) else f"group {leader.id}"
            found.setdefault(key, set()).add(group.id)
    return list(found.values())


def _difference(one: Sequence[NDArray[np.float64]], two: Sequence[NDArray[np.float64]]) -> float:
    """The largest relative difference; infinite where a number is not finite."""
    worst = 0.0
    for first, second in zip(one, two, strict=True):
        if not (np.isfinite(first).all() and np.isfinite(second).all()):
            return float("inf")
        gap, size = np.abs(second - first).max(initial=0.0), np.abs(first).max(initial=0.0)
        worst = max(worst, float(gap / size) if size else float("inf") if gap else 0.0)
    return worst


def _tensors(made: Any) -> Iterator[torch.Tensor]:
    if isinstance(made, torch.Tensor):
        yield made
    elif isinstance(made, Mapping):
        yield from _tensors(tuple(made.values()))
    elif isinstance(made, (tuple, list)):
        for item in made:
            yield from _tensors(item)


@contextmanager
def _batch_statistics(module: nn.Module | None) -> Iterator[None]:
    """BatchNorms with the batch's statistics and without eps, for a while."""
    norms = [item for item in module.modules() if isinstance(item, _BATCH_NORMS)] if module is not None else []
    before = [(item, item.training, item.eps) for item in norms]
    for item in norms:
        item.training, item.eps = True, _NO_EPS
    try:
        yield
    finally:
        for item, training, eps in before:
            item.training, item.eps = training, eps
