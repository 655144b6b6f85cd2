"""Verification of a symmetry table: random group elements must not change a module's outputs, in float64.

It is done on the module's own weights, and on random ones, as trained or initial weights have accidents (zeros, equal
channels) under which a wrong table can keep the outputs.
"""

import functools
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils import _pytree as pytree

from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.folds import Fold
from ckptzoo.schema.groups import Fixed, Wreath, with_scaled_gates
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.action import apply
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.folds import commuting, fold
from ckptzoo.symmetry.matrices.tables import without_matrices
from ckptzoo.symmetry.matrix_action import gains_at_one
from ckptzoo.symmetry.tracing.example import Draw, Example
from ckptzoo.symmetry.tracing.graph import DECLARE_BY_HAND, Float64Mode
from ckptzoo.symmetry.tracing.matrix_claims import matrix_kind, may_be_turned, normalised_streams, with_kinds
from ckptzoo.symmetry.tracing.paired_gains import LAYOUTS, PairedGains, paired_gains, unpaired_gains, with_paired_gains
from ckptzoo.symmetry.tracing.shared_heads import shared_heads, with_heads_exchanged

Weights = dict[str, NDArray[Any]]
"""Tensor name to array, without an axis of checkpoints."""
TOLERANCE = 1e-9
"""Largest relative difference of float64 outputs under an element of a correct table."""
_ROUNDING = 2e-15
"""The relative change of weights, nine units in the last place, that must not change a trial's outputs."""
_DRAWS = 6
"""The number of draws of weights and inputs for a trial until the verification gives up."""
_ROWS, _FEW_ROWS = 4, 2
"""Examples in a trial; the second for networks of many bytes without BatchNorm, whose statistics need more."""
_CHOICES = 16
"""The number of random elements of which the one is taken that moves most groups."""
_ELEMENTS, _SMALL = 4, 2**20
"""Elements in a trial for networks of fewer bytes, whose groups are small; others have one."""
_SPREAD = 0.3
"""Standard deviation of the logarithms of random scales."""
_NO_EPS = 1e-300
"""torch refuses an eps of 0; added to any variance this is 0."""
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def verify_table(
    module: nn.Module,
    arch: Architecture,
    symmetry: Symmetry,
    example: Example,
    index_bounds: Mapping[int, int] | None = None,
    mixable: Container[str] = (),
    head_vectors: Sequence[tuple[str, str]] = (),
    normed: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Symmetry, float, tuple[str, ...]]:
    """Verify a table with random elements, and remove what fails.

    Groups whose permutations alone change the outputs stay in place; those whose scales alone do are not scaled. Folds
    that change them are left out. Then matrices are tried for the channels that they may mix, exchanges of heads of
    queries that share heads of keys, and scales between gains of queries and keys. It takes two forward passes in
    float64 for each of two or three trials.

    Returns the table, the largest relative difference that a random element makes, and notes on what failed or could
    not be verified. Raises ``SymmetryError`` where an element changes the outputs by more than 1e-9, and no group alone
    does.

    ``module`` is in float64 and evaluation mode. ``mixable`` are the groups that no operation takes channel by channel,
    and ``normed`` those whose channels an operation takes together, and which one; ``index_bounds`` are as ``Draw`` and
    ``head_vectors`` as ``paired_gains`` take them.
    """
    verifier = Verifier(module, arch, symmetry, example, index_bounds)
    worst = verifier.max_difference(symmetry, lambda: verifier.random_element(symmetry))
    if not worst <= TOLERANCE:
        symmetry = _drop_failing(verifier, symmetry)
        worst = verifier.max_difference(symmetry, lambda: verifier.random_element(symmetry))
    if not worst <= TOLERANCE:
        expected = f"outputs that agree to {TOLERANCE:g} under random group elements"
        got = f"a relative difference of {worst:.3g}"
        raise SymmetryError(Problem("symmetry.trace", type(module).__name__, expected, got, DECLARE_BY_HAND))
    symmetry = replace(symmetry, folds=_verified_folds(verifier, symmetry.folds))
    symmetry, gap = _with_matrices(verifier, symmetry, mixable, normed)
    _note_orthogonal(verifier, symmetry, normed)
    symmetry, exchanged = _with_shared_heads(verifier, symmetry)
    pairs = paired_gains(symmetry, arch, head_vectors)
    verifier.notes += [
        f"Factors between the entries of {first!r} and those of {second!r} are left out: their keys have one head."
        for first, second in unpaired_gains(symmetry, arch, head_vectors)
    ]
    symmetry, paired = _with_paired_gains(verifier, symmetry, arch, pairs)
    return commuting(symmetry), max(worst, gap, exchanged, paired), tuple(verifier.notes)


@dataclass(frozen=True, eq=False)
class _Trial:
    """Weights and inputs, and the outputs that they give, in evaluation or in training mode."""

    training: bool
    weights: Weights
    inputs: Example
    outputs: tuple[NDArray[np.float64], ...]


class Verifier:
    """A module's outputs before and after group elements.

    In evaluation mode with eps unchanged, on the module's own weights and on generic ones; where there are buffers in
    the state dict beside running statistics, with other values of these; where there are BatchNorm modules, on generic
    ones in training mode with eps = 0 too. The module is in float64 and evaluation mode, and what it computes is not
    changed. Gains have their role in the table. Random inputs have the shape of the example, with two or four rows
    where the module takes them, and ``index_bounds`` as in ``Draw``.
    """

    def __init__(
        self,
        module: nn.Module,
        arch: Architecture,
        symmetry: Symmetry,
        example: Example,
        index_bounds: Mapping[int, int] | None = None,
    ) -> None:
        self._module, self._arch, self._symmetry = module, arch, symmetry
        self._parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
        # always the same seed: a module's table does not change from run to run
        self._rng = np.random.default_rng(0)
        self._elements = _ELEMENTS if arch.nbytes < _SMALL else 1
        self.notes: list[str] = []
        self._unit: dict[_Trial, tuple[set[str], _Trial]] = {}
        self.shapes = {tensor.name: tensor.shape for tensor in arch.tensors}
        state = module.state_dict()
        self._module_weights: Weights = {
            tensor.name: state[tensor.name].detach().cpu().numpy() for tensor in arch.tensors
        }
        normalised = any(isinstance(item, _BATCH_NORMS) for item in module.modules())
        rows = _ROWS if normalised or arch.nbytes < _SMALL else _FEW_ROWS
        self._draw = Draw(example.rows(rows), index_bounds or {}, self._rng)
        try:
            first = self._trial(False, self._module_weights, self._draw.normal())
        except (RuntimeError, ValueError, IndexError):  # the module insists on another number of rows
            self._draw = Draw(example, index_bounds or {}, self._rng)
            first = self._trial(False, self._module_weights, self._draw.normal())
        self._trials = [first, self._trial(False, self._generic(), first.inputs)]
        self._trials += self._with_other_buffers()
        if normalised:
            try:
                self._trials.append(self._trial(True, self._trials[1].weights, first.inputs))
            except ValueError as error:
                # torch refuses statistics of one value a channel
                self.notes.append(f"Not verified in training mode: {error}.")

    def max_difference(self, symmetry: Symmetry, draw: Callable[[], GroupElement]) -> float:
        """Return the largest relative difference of outputs that elements make: ``max |f(g . w) - f(w)| / max |f(w)|``.

        Trials whose outputs change by rounding alone are drawn again. In training mode at eps = 0 there may be no other
        ones, where channels are the same for all inputs; then the notes say so. The gains of channels that orthogonal
        matrices mix are 1. Raises ``SymmetryError`` where in evaluation mode all draws of a trial change by rounding
        alone.
        """
        largest = 0.0
        if not symmetry.groups:
            return largest
        for trial in tuple(self._trials):
            elements = [draw() for _ in range(self._elements)]
            if gains := {gain.tensor for gain in gains_at_one(symmetry)}:
                largest = max(largest, self._max_gap(symmetry, elements, self._with_unit_gains(trial, gains)))
                continue
            gap = self._max_gap(symmetry, elements, trial)
            # The comparison is negated so that NaN counts as a difference.
            if not gap <= TOLERANCE and not self._is_stable(trial):
                self._trials.remove(trial)
                if (other := self._redraw(trial)) is None:
                    continue
                self._trials.append(other)
                gap = self._max_gap(symmetry, elements, other)
            largest = max(largest, gap)
        return largest

    def _with_unit_gains(self, trial: _Trial, gains: set[str]) -> _Trial:
        """Return the trial with gains of 1 in these tensors; the last ones are kept, as tables of one module agree."""
        if trial not in self._unit or self._unit[trial][0] != gains:
            ones = {name: np.ones_like(value) for name, value in trial.weights.items() if name in gains}
            made = self._trial(trial.training, trial.weights | ones, trial.inputs)
            self._unit[trial] = gains, made
        return self._unit[trial][1]

    def gap(self, symmetry: Symmetry) -> float:
        """Return ``max_difference`` for random elements of a table."""
        return self.max_difference(symmetry, lambda: self.random_element(symmetry))

    def fold_difference(self, folds: tuple[Fold, ...]) -> float:
        """Return the largest relative difference of outputs that folds make, in evaluation mode."""
        table, worst = Symmetry((), (), folds), 0.0
        for trial in self._trials:
            if not trial.training:
                folded = fold({name: value[None] for name, value in trial.weights.items()}, table)
                outputs = self._outputs(
                    {name: value[0] for name, value in folded.items()}, trial.inputs, training=False
                )
                worst = max(worst, _difference(trial.outputs, outputs))
        return worst

    def random_element(self, symmetry: Symmetry) -> GroupElement:
        """Return a random element that is not the identity on any group, and makes no running variance negative."""
        drawn = GroupElement.random(without_matrices(symmetry), _CHOICES, self._rng, spread=_SPREAD)
        perms: dict[str, NDArray[Any]] = {}
        for together in _moving_together(symmetry):
            identity = [(drawn.perms[name] == np.arange(drawn.perms[name].shape[1])).all(axis=1) for name in together]
            row = int(np.sum(identity, axis=0).argmin())
            perms.update({name: drawn.perms[name][[row]] for name in together})
        # Scales of running variances are 1 or more: smaller ones can make (variance + eps) s^2 - eps negative.
        normalised = {item.group for action in symmetry.actions if action.exponent == 2 for item in action.segments}
        scales: dict[str, NDArray[Any]] = {}
        for name, scale in drawn.scales.items():
            row = int((scale == 1).sum(axis=1).argmin())
            chosen = scale[[row]]
            size = np.abs(chosen)
            scales[name] = np.sign(chosen) * np.maximum(size, 1 / size) if name in normalised else chosen
        matrices = GroupElement.random(symmetry, 1, self._rng, spread=_SPREAD).matrices
        return GroupElement({**GroupElement.identity(symmetry, 1).perms, **perms}, scales, matrices)

    def _with_other_buffers(self) -> Iterator[_Trial]:
        """Yield trials with buffers that other checkpoints may have, of each kind for which the outputs are finite."""
        own = {name: value for name, value in self._module_weights.items() if self._is_buffer(name)}
        if not own:
            return
        tried, base = 0, self._trials[1]
        # one kind for large networks, whose passes take most of the time
        for kind in BUFFERS if self._elements > 1 else BUFFERS[:1]:
            for _ in range(_DRAWS):
                others = {name: kind(value, self._rng) for name, value in own.items()}
                try:
                    trial = self._trial(False, base.weights | others, base.inputs)
                except (RuntimeError, ValueError, IndexError):  # values that the module does not take
                    continue
                if self._is_stable(trial):
                    tried += 1
                    yield trial
                    break
        if not tried:
            named = ", ".join(map(repr, own))
            self.notes.append(f"Not verified with other values of buffers: they leave no finite outputs ({named}).")

    def _is_buffer(self, name: str) -> bool:
        """Whether a tensor is a buffer beside running statistics and what counts their batches."""
        shape = self._module_weights[name].shape
        return name not in self._parameters and not _is_statistic(name) and math.prod(shape) > 1

    def _generic(self) -> Weights:
        return generic_weights(self._module_weights, self._parameters, self._symmetry, self._rng)

    def _trial(self, training: bool, weights: Weights, inputs: Example) -> _Trial:
        return _Trial(training, weights, inputs, self._outputs(weights, inputs, training=training))

    def _max_gap(self, symmetry: Symmetry, elements: Iterable[GroupElement], trial: _Trial) -> float:
        worst, stack = 0.0, {name: value[None] for name, value in trial.weights.items()}
        for element in elements:
            moved = {name: value[0] for name, value in apply(element, stack, symmetry).items()}
            outputs = self._outputs(moved, trial.inputs, training=trial.training)
            worst = max(worst, _difference(trial.outputs, outputs))
        return worst

    def _is_stable(self, trial: _Trial) -> bool:
        """Whether the outputs stay the same where weights change by rounding alone."""
        rounded = {
            name: value * self._rng.uniform(1 - _ROUNDING, 1 + _ROUNDING, value.shape)
            if value.dtype.kind == "f"
            else value
            for name, value in trial.weights.items()
        }
        outputs = self._outputs(rounded, trial.inputs, training=trial.training)
        # a tenth of the bound, so that rounding alone makes no element fail
        return _difference(trial.outputs, outputs) <= TOLERANCE / 10

    def _redraw(self, trial: _Trial) -> _Trial | None:
        """Return a trial with other weights and inputs, random or near the module's; None where all fail."""
        for draw in range(_DRAWS):
            inputs = self._draw.near() if draw % 2 else self._draw.normal()
            weights = near_weights(self._module_weights, self._rng) if draw % 2 else self._generic()
            other = self._trial(trial.training, weights, inputs)
            if self._is_stable(other):
                return other
        if trial.training:
            self.notes.append("Not verified in training mode: at eps = 0 rounding alone changes the outputs.")
            return None
        expected = f"finite outputs that rounding in float64 changes by at most {TOLERANCE / 10:g}"
        got = f"others for {_DRAWS} draws of weights and inputs"
        name = type(self._module).__name__
        raise SymmetryError(Problem("symmetry.trace", name, expected, got, DECLARE_BY_HAND))

    def _outputs(
        self, weights: Mapping[str, NDArray[Any]], inputs: Example, *, training: bool
    ) -> tuple[NDArray[np.float64], ...]:
        state: dict[str, torch.Tensor] = {}
        for tensor in self._arch.tensors:
            value = torch.from_numpy(np.asarray(weights[tensor.name]))
            # buffers may be changed in place, as running statistics are
            value = value if tensor.name in self._parameters else value.clone()
            state.update(dict.fromkeys((tensor.name, *tensor.aliases), value))
        with torch.no_grad(), Float64Mode(), _batch_statistics(self._module if training else None):
            given = inputs.copy()
            outputs = torch.func.functional_call(self._module, state, given.args, dict(given.kwargs))
        tensors = (item for item in pytree.tree_leaves(outputs) if isinstance(item, torch.Tensor))
        return tuple(item.double().numpy().ravel() for item in tensors)


def _drop_failing(verifier: Verifier, symmetry: Symmetry) -> Symmetry:
    """Return the table without what fails alone: permutations of groups that move together, scales of each group."""
    identity = GroupElement.identity(symmetry, 1)
    groups = {group.id: group for group in symmetry.groups}

    def permuted(names: set[str]) -> GroupElement:
        drawn = verifier.random_element(symmetry).perms
        return GroupElement({**identity.perms, **{name: drawn[name] for name in names}}, identity.scales)

    def scaled(name: str) -> GroupElement:
        return GroupElement(identity.perms, {**identity.scales, name: verifier.random_element(symmetry).scales[name]})

    for together in _moving_together(symmetry):
        gap = verifier.max_difference(symmetry, lambda names=together: permuted(names))
        if not gap <= TOLERANCE:
            for name in sorted(together):
                groups[name] = replace(groups[name], perm=Fixed())
                verifier.notes.append(
                    f"Group {name!r} stays in place: its permutations change the outputs by {gap:.3g}."
                )
    for name in identity.scales:
        gap = verifier.max_difference(symmetry, lambda name=name: scaled(name))
        if not gap <= TOLERANCE:
            groups[name] = replace(groups[name], scale="none")
            verifier.notes.append(f"Group {name!r} is not scaled: its scales change the outputs by {gap:.3g}.")
    actions = (
        replace(action, signs=tuple(segment for segment in action.signs if groups[segment.group].flips))
        for action in symmetry.actions
    )
    kept = tuple(groups.values())
    return replace(symmetry, groups=kept, actions=with_scaled_gates(actions, kept))


def _verified_folds(verifier: Verifier, folds: tuple[Fold, ...]) -> tuple[Fold, ...]:
    """Return the folds that keep the outputs; halves of what changes them are tried apart, down to single folds."""
    if not folds:
        return ()
    gap = verifier.fold_difference(folds)
    if gap <= TOLERANCE:
        return folds
    if len(folds) == 1:
        (one,) = folds
        verifier.notes.append(f"{one.part.tensor!r} is not folded ({one.kind}): the outputs change by {gap:.3g}.")
        return ()
    half = len(folds) // 2
    return _verified_folds(verifier, folds[:half]) + _verified_folds(verifier, folds[half:])


def _note_orthogonal(verifier: Verifier, symmetry: Symmetry, normed: Mapping[str, str]) -> None:
    """Note the orthogonal matrices that keep the function and are not in the table, as no canonical form is known."""
    for name, why in normed.items():
        group = symmetry[name]
        if group.scale in ("none", "sign") and may_be_turned(symmetry, group):
            gap = verifier.gap(with_kinds(symmetry, {name: "orthogonal"}))
            if gap <= TOLERANCE:
                verifier.notes.append(
                    f"Orthogonal matrices that mix the channels of group {name!r} are left out: {why}."
                )


def _with_matrices(
    verifier: Verifier, symmetry: Symmetry, mixable: Container[str], normed: Container[str]
) -> tuple[Symmetry, float]:
    """Return the table with matrices for groups whose channels they may mix, where they keep the outputs. All are tried
    together, and one by one where that fails. The second item is the largest difference that they make.
    """
    kinds = {group.id: kind for group in symmetry.groups if (kind := matrix_kind(symmetry, group, mixable))}
    streams = dict.fromkeys(normalised_streams(symmetry, verifier.shapes, normed), "orthogonal_mean")
    kept = kinds | streams
    gap = verifier.gap(with_kinds(symmetry, kept)) if kept else 0.0
    if not gap <= TOLERANCE:
        kept = {}
        for name, kind in (kinds | streams).items():
            gap = verifier.gap(with_kinds(symmetry, {name: kind}))
            if gap <= TOLERANCE:
                kept[name] = kind
            elif name in kinds:
                verifier.notes.append(
                    f"Group {name!r} has scales and no matrices: these change the outputs by {gap:.3g}."
                )
        gap = verifier.gap(with_kinds(symmetry, kept)) if kept else 0.0
        if not gap <= TOLERANCE:
            return symmetry, 0.0
    for name in [name for name in streams if name in kept]:
        wider = {**kept, name: "orthogonal"}
        if (other := verifier.gap(with_kinds(symmetry, wider))) <= TOLERANCE:
            kept, gap = wider, max(gap, other)
    return with_kinds(symmetry, kept), gap


def _with_shared_heads(verifier: Verifier, symmetry: Symmetry) -> tuple[Symmetry, float]:
    """Return the table with groups of the heads that share others, where exchanging these keeps the outputs. All are
    tried together, and one by one where that fails. The second item is the largest difference that they make.
    """
    candidates = shared_heads(symmetry)
    table = functools.reduce(with_heads_exchanged, candidates, symmetry)
    gap = verifier.gap(table) if candidates else 0.0
    if gap <= TOLERANCE:
        return table, gap
    table, worst = symmetry, 0.0
    for names in candidates:
        wider = with_heads_exchanged(table, names)
        if wider is not table:
            gap = verifier.gap(wider)
            if gap <= TOLERANCE:
                table, worst = wider, max(worst, gap)
    return table, worst


def _with_paired_gains(
    verifier: Verifier, symmetry: Symmetry, arch: Architecture, pairs: Sequence[PairedGains]
) -> tuple[Symmetry, float]:
    """Return the table with scales between gains of queries and of keys, where these keep the outputs. All are tried
    together, in one layout after the other, and one by one where that fails in every layout.
    """
    worst = 0.0
    for layout in LAYOUTS if pairs else ():
        wider = with_paired_gains(symmetry, arch, pairs, layout)
        if wider is symmetry:  # a size does not fit with the layout
            continue
        gap = verifier.gap(wider)
        if gap <= TOLERANCE:
            return wider, gap
    for pair in pairs if len(pairs) > 1 else ():
        symmetry, gap = _with_paired_gains(verifier, symmetry, arch, [pair])
        worst = max(worst, gap)
    return symmetry, worst


def _moving_together(symmetry: Symmetry) -> list[set[str]]:
    """Return sets of groups whose permutations are one, without those in place."""
    together: dict[str, set[str]] = {}
    for group in symmetry.groups:
        leader = symmetry.leader(group.id)
        if not isinstance(leader.perm, Fixed):
            key = f"blocks of {leader.perm.outer}" if isinstance(leader.perm, Wreath) else f"group {leader.id}"
            together.setdefault(key, set()).add(group.id)
    return list(together.values())


def _difference(expected: Sequence[NDArray[np.float64]], outputs: Sequence[NDArray[np.float64]]) -> float:
    """Return the largest relative difference; infinite where a number is not finite."""
    worst = 0.0
    for first, second in zip(expected, outputs, strict=True):
        if not (np.isfinite(first).all() and np.isfinite(second).all()):
            return float("inf")
        gap, size = np.abs(second - first).max(initial=0.0), np.abs(first).max(initial=0.0)
        worst = max(worst, float(gap / size) if size else float("inf") if gap else 0.0)
    return worst


@contextmanager
def _batch_statistics(module: nn.Module | None) -> Iterator[None]:
    """A context in which BatchNorms use the batch's statistics, and no eps."""
    norms = [item for item in module.modules() if isinstance(item, _BATCH_NORMS)] if module is not None else []
    before = [(item, item.training, item.eps) for item in norms]
    for item in norms:
        item.training, item.eps = True, _NO_EPS
    try:
        yield
    finally:
        for item, training, eps in before:
            item.training, item.eps = training, eps


def generic_weights(
    own: Mapping[str, NDArray[Any]], parameters: Container[str], symmetry: Symmetry, rng: np.random.Generator
) -> Weights:
    """Return random parameters and running statistics in float64; other buffers and integers unchanged.

    All are uniform: weights with variance 2 / fan-in, gains in 0.5 to 1.5 with either sign, running variances in 0.5 to
    1.5, biases, shifts and running means in -1 to 1. ``own`` are the module's weights, float64 where they are floats,
    ``parameters`` the names of parameters; gains have their role in the table.
    """
    gains = {action.tensor for action in symmetry.actions if action.role == "gain"}
    return {
        name: _generic(name, value, name in gains, rng) if name in parameters or _is_statistic(name) else value.copy()
        for name, value in own.items()
    }


def near_weights(own: Mapping[str, NDArray[Any]], rng: np.random.Generator) -> Weights:
    """Return the module's weights, each multiplied by a number near 1."""
    return {
        name: value * rng.uniform(0.9, 1.1, value.shape) if value.dtype.kind == "f" else value.copy()
        for name, value in own.items()
    }


def permuted_buffer(value: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Return the same entries in other places, so that a permutation in a buffer stays one."""
    return rng.permutation(value.ravel()).reshape(value.shape)


def masked_buffer(value: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Return floats half of which are 0, random truth values, or integers of those in the buffer, some more often."""
    if value.dtype.kind == "b":
        return rng.random(value.shape) < 0.5
    if value.dtype.kind != "f":
        return rng.choice(value.ravel(), value.shape)
    return np.where(rng.random(value.shape) < 0.5, value, 0)


def drawn_buffer(value: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Return random numbers between the least and the largest in the buffer; near them where all are the same."""
    if value.dtype.kind != "f":
        low, high = int(value.min()), int(value.max())
        return rng.integers(low, high + 1, value.shape).astype(value.dtype)
    finite = value[np.isfinite(value)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    low, high = (low, high) if low < high else (0.5 * low, 1.5 * high) if low else (0.0, 1.0)
    return rng.uniform(min(low, high), max(low, high), value.shape)


BUFFERS = (permuted_buffer, masked_buffer, drawn_buffer)
"""Values that a buffer of another checkpoint may have, of the same dtype and in the range of the module's own."""


def _is_statistic(name: str) -> bool:
    return name.endswith(("running_mean", "running_var"))


def _generic(name: str, value: NDArray[Any], gain: bool, rng: np.random.Generator) -> NDArray[Any]:
    if value.dtype.kind != "f":
        return value.copy()
    if name.endswith("running_var"):
        return rng.uniform(0.5, 1.5, value.shape)
    matrix = sum(size > 1 for size in value.shape) > 1
    if gain or (name.endswith("weight") and not matrix):
        return rng.uniform(0.5, 1.5, value.shape) * rng.choice([-1.0, 1.0], value.shape)
    # A uniform number in -a .. a has variance a^2 / 3, which is 2 / fan-in for this a (He et al., arXiv 1502.01852).
    width = math.sqrt(6 / math.prod(value.shape[1:])) if matrix else 1.0
    return rng.uniform(-width, width, value.shape)
