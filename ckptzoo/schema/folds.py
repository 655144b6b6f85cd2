"""Additive freedoms of a network, as data: numbers that can be added to its tensors and leave its function as it is.

A fold fixes one of them by a change of the weights that keeps the function in evaluation mode: a key's bias becomes 0,
the shift of a LayerNorm moves into the biases behind it, what writes a stream that only LayerNorms read is centred.
``ckptzoo.symmetry.fold`` applies them, in the order of the table.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ckptzoo.errors import Problem
from ckptzoo.schema.architecture import Architecture, name_problem
from ckptzoo.schema.documents import Document

KINDS = ("zero", "shift", "match", "centre")
MAX_FOLDS = 100_000
"""The maximum number of folds of a table, and of targets of all of them."""
_MAX_TOGETHER = 1000
"""The maximum number of folds of one tensor, which are compared with each other."""
_MAX_AXES = 8
_MAX_SIZE = 2**31
_FLOATS = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True)
class TensorPart:
    """A box of a tensor, and the axis along which its channels are.

    Parameters
    ----------
    tensor
        its name.
    axis
        of the channels, counted without the leading axis of stacked checkpoints.
    start, shape
        for each axis of the tensor the first position, and the number of them.
    """

    tensor: str
    axis: int
    start: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def channels(self) -> int:
        """The number of channels."""
        return self.shape[self.axis]

    @property
    def slices(self) -> tuple[slice, ...]:
        """The box as an index."""
        return tuple(slice(first, first + size) for first, size in zip(self.start, self.shape, strict=True))


@dataclass(frozen=True)
class Target:
    """Where a vector goes that a fold takes out of its part.

    Parameters
    ----------
    into
        ``into += W v`` for every position along its other axes; None where the weight itself takes it, in the means of
        its rows (``match`` only).
    weight
        W, a matrix whose ``axis`` reads the vector; None for ``into += v``.
    offset
        the first entry of v that is read; as many are as the weight reads, or ``into`` has.
    """

    into: TensorPart | None
    weight: TensorPart | None = None
    offset: int = 0

    @property
    def channels(self) -> int:
        """How many entries of v it takes."""
        taken = self.weight or self.into
        assert taken is not None
        return taken.channels


@dataclass(frozen=True)
class Fold:
    """One additive freedom, and how it is fixed.

    Parameters
    ----------
    kind
        ``"zero"``: the part becomes 0, and nothing else changes (the bias of keys).

        ``"shift"``: the vector v, the mean of the part over all axes but the channels', is taken out of it and goes
        into the targets (the bias of values, the shift of a LayerNorm, positions against tokens).

        ``"match"``: the same for v = part - gain, so that the part becomes equal to the gain. After a LayerNorm whose
        readers have no bias the means of their rows can hold one, as long as the shift is not 0.

        ``"centre"``: the mean along the channels of ``part * gain`` becomes 0, by a multiple of 1 / gain in each line.
        Where the part is a matrix that reads a LayerNorm, v is that mean for every line, times the sum of
        ``shift / gain``.
    part
        what is fixed.
    targets
        what takes v; none where nothing sees it.
    gain
        of ``match`` and ``centre``: one number a channel; None for ones.
    shift
        of ``centre``, beside targets: the shift of the LayerNorm.
    """

    kind: str
    part: TensorPart
    targets: tuple[Target, ...] = ()
    gain: TensorPart | None = None
    shift: TensorPart | None = None

    @property
    def parts(self) -> Iterator[TensorPart]:
        """All parts that it names."""
        into = (item for target in self.targets for item in (target.into, target.weight))
        return (item for item in (self.part, self.gain, self.shift, *into) if item is not None)

    @property
    def written(self) -> set[str]:
        """The tensors that it changes."""
        into = (target.into or target.weight for target in self.targets)
        return {item.tensor for item in (self.part, *into) if item is not None}


def dimensions(folds: Sequence[Fold]) -> tuple[int, ...]:
    """The number of dimensions that each fold fixes beside those before it.

    A shift fixes one number a channel, a centring one a line. Sums over two axes of one tensor have their own sum in
    common: centred rows and centred columns of an (m, n) matrix are m + n - 1 numbers. ``folds`` are a table's folds.
    """
    by_tensor: dict[str, list[Fold]] = {}
    found: list[int] = []
    for fold in folds:
        others = by_tensor.setdefault(fold.part.tensor, [])
        size = math.prod(fold.part.shape) // fold.part.channels if fold.kind == "centre" else fold.part.channels
        found.append(size - sum(_common(fold, other) for other in others))
        others.append(fold)
    return tuple(found)


def _summed(fold: Fold) -> set[int]:
    """The axes of the part over which its sums become 0 (or another number that is fixed)."""
    centre = fold.kind == "centre"
    # a centre sums along its axis, line by line; the others over all axes but theirs
    return {axis for axis, size in enumerate(fold.part.shape) if size > 1 and (axis == fold.part.axis) == centre}


def _common(fold: Fold, other: Fold) -> int:
    """The number of sums that two folds of one tensor both fix."""
    own, others = _summed(fold), _summed(other)
    common = 1
    for axis, (mine, its) in enumerate(zip(fold.part.slices, other.part.slices, strict=True)):
        inside, around = its.start <= mine.start and mine.stop <= its.stop, mine.start <= its.start
        around = around and its.stop <= mine.stop
        # two boxes along one summed axis are apart, as ``_apart`` requires
        if axis in own and axis in others:
            return 0
        if axis in own or axis in others:
            common *= inside if axis in own else around
        else:
            common *= max(0, min(mine.stop, its.stop) - max(mine.start, its.start))
    return int(common)


def fold_problems(folds: tuple[Fold, ...]) -> Iterator[Problem]:
    """Everything wrong with folds, whatever the architecture."""
    most = max(len(folds), sum(len(fold.targets) for fold in folds))
    # before anything that takes time for each
    if most > MAX_FOLDS:
        yield _problem("folds", f"at most {MAX_FOLDS}, and as many targets", most)
        return
    are_right = True
    for number, fold in enumerate(folds):
        for problem in _of_fold(f"fold {number}", fold):
            are_right = False
            yield problem
    if are_right:
        yield from _apart(folds)


def _problem(what: str, expected: str, got: object) -> Problem:
    return Problem("symmetry", what, expected, str(got), "Correct the symmetry table.")


def _natural(value: Any, least: int = 0) -> bool:
    return type(value) is int and least <= value <= _MAX_SIZE


def _of_fold(what: str, fold: Fold) -> Iterator[Problem]:
    if fold.kind not in KINDS:
        yield _problem(f"{what}: kind", " or ".join(KINDS), repr(fold.kind))
        return
    if wrong := [problem for part in fold.parts for problem in _of_part(what, part)]:
        yield from wrong
        return
    what = f"{what}, of {fold.part.tensor!r}"
    if bool(fold.targets) != (fold.kind in ("shift", "match") or fold.shift is not None):
        expected = "some for a shift, a match or a centre beside a shift, else none"
        yield _problem(f"{what}: targets", expected, len(fold.targets))
    if fold.gain is not None and (fold.kind not in ("match", "centre") or not _vector(fold.gain, fold.part.channels)):
        yield _problem(f"{what}: gain", "one number a channel, for a match or a centre", repr(fold.gain))
    if fold.kind in ("zero", "match") and math.prod(fold.part.shape) != fold.part.channels:
        yield _problem(f"{what}: shape", "a vector", fold.part.shape)
    lines = fold.part.channels
    if fold.shift is not None:
        if fold.kind != "centre" or len(fold.part.shape) != 2 or not _vector(fold.shift, lines):
            yield _problem(f"{what}: shift", "one number a channel, for a centre of a matrix", repr(fold.shift))
            return
        lines = fold.part.shape[1 - fold.part.axis]
    for target in fold.targets:
        yield from _of_target(f"{what}: target", fold, target, lines)


def _vector(part: TensorPart | None, channels: int) -> bool:
    return part is not None and part.channels == channels == math.prod(part.shape)


def _of_target(what: str, fold: Fold, target: Target, entries: int) -> Iterator[Problem]:
    if target.weight is None and target.into is None:
        yield _problem(what, "a part that takes the vector, or a weight", "neither")
        return
    if not _natural(target.offset) or target.offset + target.channels > entries:
        yield _problem(what, f"some of {entries} numbers", f"{target.channels} from {target.offset!r} on")
    if target.into is None and (fold.kind != "match" or target.channels != entries):
        yield _problem(what, "a part that takes the vector", "none")
    if target.weight is None:
        return
    if len(target.weight.shape) != 2:
        yield _problem(f"{what}: weight", "a matrix", target.weight.shape)
    elif target.into is not None and target.into.channels != target.weight.shape[1 - target.weight.axis]:
        expected = f"{target.weight.shape[1 - target.weight.axis]} channels, as the weight writes"
        yield _problem(what, expected, target.into.channels)


def _of_part(what: str, part: TensorPart) -> Iterator[Problem]:
    if (got := name_problem(part.tensor)) is not None:
        yield _problem(what, "the name of a tensor", got)
    what = f"{what}: part of {part.tensor!r}"
    axes = len(part.shape)
    if not 1 <= axes <= _MAX_AXES or len(part.start) != axes:
        yield _problem(what, f"1 to {_MAX_AXES} axes with a start and a size", f"{part.start!r} and {part.shape!r}")
    elif not _natural(part.axis) or part.axis >= axes:
        yield _problem(f"{what}: axis", f"one of {axes}", repr(part.axis))
    elif not all(map(_natural, part.start)) or not all(_natural(size, 1) for size in part.shape):
        yield _problem(what, "starts of 0 or more and sizes of 1 or more", f"{part.start!r} and {part.shape!r}")


def _apart(folds: tuple[Fold, ...]) -> Iterator[Problem]:
    """Compare what folds fix, which must not be the same, as it would be counted twice."""
    by_tensor: dict[str, list[Fold]] = {}
    for fold in folds:
        by_tensor.setdefault(fold.part.tensor, []).append(fold)
    for name, several in by_tensor.items():
        if len(several) > _MAX_TOGETHER:
            yield _problem(f"folds of {name!r}", f"at most {_MAX_TOGETHER}", len(several))
            continue
        if len({len(fold.part.shape) for fold in several}) > 1:
            yield _problem(f"folds of {name!r}", "parts of as many axes", "others")
            continue
        for first, second in itertools.combinations(several, 2):
            # sums along different axes may be fixed at the same entries
            if (first.kind == "centre", first.part.axis) != (second.kind == "centre", second.part.axis):
                continue
            boxes = zip(first.part.slices, second.part.slices, strict=True)
            if all(one.start < two.stop and two.start < one.stop for one, two in boxes):
                yield _problem(f"folds of {name!r}", "parts that are apart", "two of one kind for the same channels")


def fold_problems_with(folds: tuple[Fold, ...], arch: Architecture) -> Iterator[Problem]:
    """Everything that does not fit between folds and an architecture."""
    for number, fold in enumerate(folds):
        for part in fold.parts:
            what = f"fold {number}: part of {part.tensor!r}"
            if part.tensor not in arch:
                yield _problem(what, f"a tensor of {arch.name}", "no such tensor")
                continue
            tensor = arch[part.tensor]
            if not part_fits(part, tensor.shape):
                yield _problem(what, f"a box of shape {tensor.shape}", f"{part.start} and {part.shape}")
            if tensor.dtype not in _FLOATS:
                yield _problem(what, "a floating-point tensor", tensor.dtype)


def part_fits(part: TensorPart, shape: tuple[int, ...]) -> bool:
    """Whether a tensor of this shape has the part."""
    return len(shape) == len(part.shape) and all(
        item.stop <= size for item, size in zip(part.slices, shape, strict=True)
    )


def fold_to_json(fold: Fold) -> Document:
    """A fold in ``symmetry.json``; what it lacks is left out."""
    named = {"gain": fold.gain, "shift": fold.shift}
    return {
        "kind": fold.kind,
        "part": _part_to_json(fold.part),
        **({"targets": [_target_to_json(target) for target in fold.targets]} if fold.targets else {}),
        **{name: _part_to_json(part) for name, part in named.items() if part is not None},
    }


def _part_to_json(part: TensorPart) -> Document:
    return {"tensor": part.tensor, "axis": part.axis, "start": list(part.start), "shape": list(part.shape)}


def _target_to_json(target: Target) -> Document:
    named = {"into": target.into, "weight": target.weight}
    parts: Document = {name: _part_to_json(part) for name, part in named.items() if part is not None}
    return {**parts, "offset": target.offset}


def fold_from_json(item: Document) -> Fold:
    """A fold of ``symmetry.json``; raises ``KeyError``, ``TypeError`` or ``AttributeError`` for other fields."""
    _only(item, {"kind", "part"}, {"targets", "gain", "shift"})
    named = {name: _part(item[name]) for name in ("gain", "shift") if name in item}
    targets = tuple(_target(target) for target in item.get("targets", ()))
    return Fold(item["kind"], _part(item["part"]), targets, **named)


def _target(item: Document) -> Target:
    _only(item, {"offset"}, {"into", "weight"})
    named = {name: _part(item[name]) for name in ("into", "weight") if name in item}
    return Target(named.get("into"), named.get("weight"), item["offset"])


def _part(item: Document) -> TensorPart:
    _only(item, {"tensor", "axis", "start", "shape"})
    return TensorPart(item["tensor"], item["axis"], tuple(item["start"]), tuple(item["shape"]))


def _only(item: Document, required: set[str], optional: set[str] | None = None) -> None:
    if not required <= set(item) <= required | (optional or set()):
        raise KeyError(f"{', '.join(sorted(item))} instead of {', '.join(sorted(required | (optional or set())))}")
