"""The tensors that a network computes with, whatever was wrapped around it, pruned or normalised when it was saved.

torch keeps a pruned weight as ``weight_orig`` and ``weight_mask``, a normalised one as a magnitude and a direction or
with the vectors of its largest singular value, and wrappers put words into names. Files of one network by several of
these habits are of one architecture: that of the network without them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, SpecError
from ckptzoo.hub.contributions.matching import without_wrappers
from ckptzoo.hub.imports.mapped import loaded

Arrays = dict[str, NDArray[Any]]

_PARAMETRIZATIONS = ".parametrizations."
_WRAPPER_FACTS = {"n_averaged", "initted", "decay", "num_updates", "step"}
"""Numbers that ``AveragedModel`` and other keepers of averages have beside a network."""
_AVERAGES = {"module", "ema_model", "ema", "shadow", "averaged_model", "avg_model"}
"""Words that such keepers put before the names of the network's tensors."""
_CLEAR = 0.5
"""A square kernel is unfolded in the one of two ways whose residual is smaller by this factor."""


@dataclass(frozen=True)
class Effective:
    """A network's tensors without the changes that saving made.

    ``tensors`` has computed ones first in their module. ``names`` maps names in the state dict to those in ``tensors``
    where they differ; ``computed`` names the tensors that were computed from others; ``masks`` is by pruned tensor.
    ``facts`` is for ``extra``, ``notes`` says the same in words.
    """

    tensors: Mapping[str, NDArray[Any]]
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    computed: frozenset[str] = frozenset()
    masks: Mapping[str, NDArray[Any]] = field(default_factory=Arrays)
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    notes: tuple[str, ...] = ()


def effective(tensors: Mapping[str, NDArray[Any]], location: str) -> Effective:
    """Bring a state dict to the tensors that its network computes with.

    A pruned weight is ``weight_orig * weight_mask``. With weight normalisation it is ``g v / |v|``, the norm over all
    axes but those of ``g`` (Salimans and Kingma 2016, arXiv 1602.07868). With spectral normalisation it is
    ``W / (u' W v)``, as in evaluation mode (Miyato et al. 2018, arXiv 1802.05957). The last two are computed in double
    precision. Raises ``SpecError``: a tensor is there both as it is and in parts, or a kernel may be unfolded in two
    ways.

    >>> pruned = {"fc.weight_orig": np.array([2.0, 3.0]), "fc.weight_mask": np.array([1.0, 0.0])}
    >>> effective(pruned, "a.pt").tensors["fc.weight"].tolist()
    [2.0, 0.0]
    """
    plan = _plan(tuple((name, array.shape) for name, array in tensors.items()))
    if plan is None:
        return Effective(tensors)
    if plan.problem:
        step = "Save the network once, with one of them."
        raise SpecError(Problem(location, f"tensor {plan.problem!r}", "one of its forms", "two", step))
    arrays = {plan.names[name]: array for name, array in tensors.items()}
    facts: dict[str, Any] = {name: loaded(arrays.pop(name)).item() for name in plan.facts}
    masks: Arrays = {}
    done: dict[str, list[str]] = {}
    for rule in plan.rules:
        parts = [arrays.pop(part) for part in rule.parts]
        computed = rule.compute(*parts)
        if computed is None:
            step = "Save it after torch.nn.utils.remove_spectral_norm."
            expected, got = "one way to unfold the kernel", "two, of a kernel with as many inputs as outputs"
            raise SpecError(Problem(location, f"spectral normalisation of {rule.name!r}", expected, got, step))
        arrays[rule.name] = computed
        done.setdefault(rule.what, []).append(rule.name)
        if rule.what == _PRUNING:
            masks[rule.name] = parts[1]
    notes = tuple(_WORDS[change] for change in done)
    facts |= {change: names for change, names in done.items() if change != _PRUNING}
    ordered = {name: arrays[name] for name in plan.order}
    # a mask's tensor may have become another by a later rule
    masks = {_final(name, plan.rules): mask for name, mask in masks.items()}
    names = {name: _final(new, plan.rules) for name, new in plan.names.items()}
    return Effective(ordered, names, frozenset(rule.name for rule in plan.rules), masks, facts, notes)


_PRUNING, _WEIGHT_NORM, _SPECTRAL_NORM = "pruning", "weight_norm", "spectral_norm"
_WORDS = {
    _PRUNING: "pruned weights are weight_orig * weight_mask",
    _WEIGHT_NORM: "weight normalisation is computed: g v / |v|",
    _SPECTRAL_NORM: "spectral normalisation is computed, as in evaluation mode: W / (u' W v)",
}
_Compute = Callable[..., NDArray[Any] | None]


@dataclass(frozen=True)
class _Rule:
    """A tensor that is computed, and the tensors ``parts`` that it is computed from."""

    name: str
    parts: tuple[str, ...]
    what: str
    compute: _Compute


@dataclass
class _WeightChanges:
    """The changes of all state dicts with the same names and shapes."""

    names: dict[str, str]
    facts: list[str]
    rules: list[_Rule]
    order: list[str] = field(default_factory=list[str])
    problem: str = ""


@lru_cache(maxsize=1024)
def _plan(described: tuple[tuple[str, tuple[int, ...]], ...]) -> _WeightChanges | None:
    """Return the plan for names and shapes; None where nothing changes, as for most state dicts."""
    shapes = dict(described)
    facts = [name for name, shape in described if name in _WRAPPER_FACTS and shape in ((), (1,))]
    first = {name.partition(".")[0] for name in shapes if name not in facts}
    if (
        not facts
        or len(first) > 1
        or not first <= _AVERAGES
        or not all("." in name or name in facts for name in shapes)
    ):
        facts, first = [], {""}
    start = f"{first.pop()}."
    names = {name: without_wrappers(name.removeprefix(start)) for name in shapes}
    if len(set(names.values())) < len(names):
        names = {name: name for name in shapes}
    rest = {names[name]: shape for name, shape in described if name not in facts}
    plan = _WeightChanges(names, facts, [])
    positions = {name: position for position, name in enumerate(rest)}
    while rules := next((fitting for family in _FAMILIES if (fitting := list(family(rest)))), None):
        for rule in rules:
            if not rest.keys() >= set(rule.parts):
                continue
            if rule.name in rest:
                plan.problem = rule.name
                return plan
            plan.rules.append(rule)
            positions[rule.name] = min(positions[part] for part in rule.parts)
            rest[rule.name] = max((rest.pop(part) for part in rule.parts), key=len)
    if not plan.rules and not facts and all(name == new for name, new in names.items()):
        return None
    plan.order = _weights_first(sorted(rest, key=positions.__getitem__), {rule.name for rule in plan.rules})
    return plan


def _weights_first(names: Sequence[str], computed: set[str]) -> list[str]:
    """Order names so that computed ones come first: torch puts the parts of a weight after its bias."""
    by_module: dict[str, list[str]] = {}
    for name in names:
        by_module.setdefault(name.rpartition(".")[0], []).append(name)
    changed = {name.rpartition(".")[0] for name in computed}
    ordered: dict[str, None] = {}
    for name in names:
        module = name.rpartition(".")[0]
        own = [name]
        if module in changed:
            own = by_module.pop(module, [])
            own.sort(key=lambda other: (other not in computed, "bias" in other.rpartition(".")[2]))
        ordered |= dict.fromkeys(own)
    return list(ordered)


def _final(name: str, rules: Sequence[_Rule]) -> str:
    """Follow a tensor through the rules that take it, to the name of the last one computed."""
    for rule in rules:
        if name in rule.parts:
            name = rule.name
    return name


def _pruned(shapes: Mapping[str, tuple[int, ...]]) -> Iterator[_Rule]:
    for name in shapes:
        if name.endswith("_mask"):
            stem = name.removesuffix("_mask")
            if shapes.get(f"{stem}_orig") == shapes[name]:
                yield _Rule(stem, (f"{stem}_orig", name), _PRUNING, _masked)


def _normalised(shapes: Mapping[str, tuple[int, ...]]) -> Iterator[_Rule]:
    """Yield the names that the hooks of ``torch.nn.utils.weight_norm`` and ``spectral_norm`` gave."""
    for name, shape in shapes.items():
        stem = name[:-2]
        if name.endswith("_g") and f"{stem}_v" in shapes and _is_magnitude(shape, shapes[f"{stem}_v"]):
            yield _Rule(stem, (name, f"{stem}_v"), _WEIGHT_NORM, _rescaled)
        elif name.endswith("_u") and {f"{stem}_orig", f"{stem}_v"} <= set(shapes):
            parts = (f"{stem}_orig", name, f"{stem}_v")
            if _unfoldings(*(shapes[part] for part in parts)):
                yield _Rule(stem, parts, _SPECTRAL_NORM, _divided)


def _parametrised(shapes: Mapping[str, tuple[int, ...]]) -> Iterator[_Rule]:
    """Yield the names that ``torch.nn.utils.parametrize`` gives."""
    groups: dict[tuple[str, str], set[str]] = {}
    for name in shapes:
        before, separator, inside = f".{name}".rpartition(_PARAMETRIZATIONS)
        tensor, _, last = inside.partition(".")
        if separator and last:
            groups.setdefault((before, tensor), set()).add(last)
    for (before, tensor), inside in groups.items():
        stem = f"{before}{_PARAMETRIZATIONS}{tensor}".removeprefix(".")
        target = f"{before}.{tensor}".removeprefix(".")
        sizes = {last: shapes[f"{stem}.{last}"] for last in sorted(inside)}
        parts = tuple(f"{stem}.{last}" for last in sizes)
        # of torch.nn.utils.parametrizations.weight_norm: original0 is the magnitude g, original1 the direction v
        if set(sizes) == {"original0", "original1"} and _is_magnitude(*sizes.values()):
            yield _Rule(target, parts, _WEIGHT_NORM, _rescaled)
        elif set(sizes) == {"original", "0._u", "0._v"} and _unfoldings(
            sizes["original"], sizes["0._u"], sizes["0._v"]
        ):
            parts = tuple(f"{stem}.{last}" for last in ("original", "0._u", "0._v"))
            yield _Rule(target, parts, _SPECTRAL_NORM, _divided)


_FAMILIES = (_pruned, _normalised, _parametrised)
"""Masks go first, because anything may be pruned."""


def _is_magnitude(magnitude: tuple[int, ...], direction: tuple[int, ...]) -> bool:
    """Whether a shape is that of norms along all axes but one, or along all."""
    if magnitude in ((), (1,)):
        return len(direction) > 1
    if len(magnitude) != len(direction) or len(direction) < 2:
        return False
    return sum(size != 1 for size in magnitude) <= 1 and all(
        size in (1, whole) for size, whole in zip(magnitude, direction, strict=True)
    )


def _unfoldings(kernel: tuple[int, ...], left: tuple[int, ...], right: tuple[int, ...]) -> list[int]:
    """Return the axes of a kernel that may be the rows of the matrix whose singular vectors are given."""
    size = int(np.prod(kernel, dtype=np.int64))
    # torch unfolds along axis 0, transposed convolutions along axis 1 (torch.nn.utils.spectral_norm)
    axes = (0,) if len(kernel) == 2 and kernel[0] == kernel[1] else range(min(2, len(kernel)))
    return [axis for axis in axes if left == (kernel[axis],) and right == (size // max(1, kernel[axis]),)]


def _masked(original: NDArray[Any], mask: NDArray[Any]) -> NDArray[Any]:
    return original * mask.astype(original.dtype)


def _rescaled(magnitude: NDArray[Any], direction: NDArray[Any]) -> NDArray[Any]:
    sizes, vectors = magnitude.astype(np.float64), direction.astype(np.float64)
    if sizes.ndim != vectors.ndim:
        axes, sizes = None, sizes.reshape(())
    else:
        axes = tuple(axis for axis, size in enumerate(sizes.shape) if size == 1)
    norm = np.sqrt(np.square(vectors).sum(axis=axes, keepdims=True))
    with np.errstate(divide="ignore", invalid="ignore"):  # zeros have no direction, in torch too
        return (sizes * (vectors / norm)).astype(direction.dtype)


def _divided(original: NDArray[Any], left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any] | None:
    """Divide the kernel by its largest singular value; None where two axes may be the rows of its matrix."""
    kernel, left, right = (part.astype(np.float64) for part in (original, left, right))
    residuals: list[tuple[float, float]] = []
    for axis in _unfoldings(kernel.shape, left.shape, right.shape):
        product = np.moveaxis(kernel, axis, 0).reshape(len(left), -1) @ right
        sigma = float(left @ product)
        # near a singular vector what is left of the product is small
        residuals.append((float(np.linalg.norm(product - sigma * left)), sigma))
    residuals.sort()
    if len(residuals) > 1 and residuals[0][0] > _CLEAR * residuals[1][0]:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        return (kernel / residuals[0][1]).astype(original.dtype)
