"""How do two checkpoints differ, layer by layer, as they are and after alignment?"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Table

from ckptzoo.arguments import checked
from ckptzoo.console import columns, facts
from ckptzoo.errors import Problem, SymmetryError, ZooError
from ckptzoo.loader.checkpoint import Checkpoint
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.documents import Document, JsonFields
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.studies.shared.result import StudyResult
from ckptzoo.studies.shared.selection import parameters_by_layer
from ckptzoo.symmetry import align
from ckptzoo.text import Progress, counter, printable, shortened

ALL = "all layers"
"""The name of the line of all parameters together."""
_NAMED = 3
"""The number of tensors of each kind that a message about other architectures names."""

Read = Callable[[str], NDArray[Any]]


@dataclass(frozen=True)
class LayerDifference(JsonFields, derived=("relative",)):
    """The difference of one layer's parameters: its norm, and the angle in degrees, NaN where one of them is zero."""

    layer: str
    size: int
    first: float
    second: float
    distance: float
    angle: float

    @property
    def relative(self) -> float:
        """The distance over the first norm; 0 where both are zero."""
        return self.distance / self.first if self.first else (math.inf if self.distance else 0.0)


@dataclass(frozen=True, eq=False)
class DifferenceStudy(StudyResult, without=("names",), derived=("is_identical",), named={"is_identical": "identical"}):
    """The difference of two checkpoints by layer, drawn as ``differences.png``.

    ``architecture`` is the first's; ``layers`` are compared as they are, in the last line all parameters together;
    ``aligned`` is the same after the second was aligned with the first, empty where it was not, for the reason
    ``not_aligned``; ``equal_tensors`` of all ``tensors``, with buffers, have the same bits; ``buffers`` names the
    buffers that differ.
    """

    file: ClassVar[str] = "differences.json"

    names: tuple[str, str]
    architecture: str
    layers: tuple[LayerDifference, ...]
    aligned: tuple[LayerDifference, ...]
    not_aligned: str | None
    equal_tensors: int
    tensors: int
    buffers: tuple[str, ...]

    @property
    def is_identical(self) -> bool:
        """Whether all tensors have the same bits."""
        return self.equal_tensors == self.tensors

    def to_json(self) -> Document:
        first, second = self.names
        return {**super().to_json(), "first": first, "second": second}

    def _lines(self) -> Iterator[RenderableType]:
        same = "all have the same bits" if self.is_identical else f"{self.equal_tensors:,} have the same bits"
        rows = [
            ("first", self.names[0]),
            ("second", self.names[1]),
            ("tensors", f"{self.tensors:,} of {self.architecture}; {same}"),
        ]
        if self.buffers:
            listed = ", ".join(self.buffers[:_NAMED]) + (", ..." if len(self.buffers) > _NAMED else "")
            rows.append(("buffers", f"{len(self.buffers):,} differ: {listed}"))
        yield facts(rows)
        yield ""
        yield self._table()
        yield ""
        if self.not_aligned is None:
            yield "Aligned: channels of the second were put in the order that brings it closest to the first."
        else:
            yield printable(f"Not aligned: {self.not_aligned}")

    def _table(self) -> Table:
        names = ("parameters", "norm", "second norm", "difference", "relative", "angle")
        table = columns("layer", *names, *(("aligned", "relative", "angle") if self.aligned else ()))
        aligned = {item.layer: item for item in self.aligned}
        for item in self.layers:
            cells = [f"{item.size:,}", f"{item.first:.4g}", f"{item.second:.4g}", *_cells(item)]
            cells += _cells(aligned[item.layer]) if self.aligned else []
            table.add_row(printable(item.layer), *cells)
        return table


@checked
def differences(
    first: Checkpoint,
    second: Checkpoint,
    symmetry: Symmetry | None = None,
    *,
    names: tuple[str, str] | None = None,
    progress: Progress | None = None,
) -> DifferenceStudy:
    """Measure how two checkpoints of one architecture differ: norms, distances and angles by layer.

    Parameters
    ----------
    first, second
        of one zoo or of two; tensors are compared by their names, in float64, whatever their dtypes.
    symmetry
        a table of the architecture's symmetries, by which the second is aligned with the first
        (``ckptzoo.symmetry.align``, by weights); None for the weights as they are alone.
    names
        of both, for people; by default their ids.
    progress
        called with the number of tensors.

    Raises
    ------
    ZooError
        They have tensors of other names or shapes; the message says which.
    SymmetryError
        The table is that of another architecture.

    Notes
    -----
    Memory for one tensor of each in float64; aligning needs both whole, with copies in float64. Angles are from
    ``4 |a| |b| sin^2(angle / 2) = |a - b|^2 - (|a| - |b|)^2``, which is exact where both are close. Tested in
    tests/studies/test_differences.py.

    Examples
    --------
    >>> from ckptzoo.studies.differences import differences
    >>> zoo = ckptzoo.open("cards/mnist-optunet")
    >>> found = differences(zoo[0], zoo[1], zoo.symmetry)
    >>> [item.layer for item in found.layers]
    ['conv1', 'conv2', 'fc', 'all layers']
    >>> found.aligned[-1].distance < found.layers[-1].distance
    True
    """
    names = names or (first.id, second.id)
    shared = _shared_names(first.arch, second.arch, names)
    by_layer = parameters_by_layer(first.arch)
    advance = counter(len(shared), progress)
    layers = _compared(by_layer, first.__getitem__, lambda name: second[shared[name]])
    equal, buffers = 0, list[str]()
    for tensor in first.arch.tensors:
        is_equal = _same_bits(first[tensor.name], second[shared[tensor.name]])
        equal += is_equal
        if not is_equal and tensor.kind == "buffer":
            buffers.append(tensor.name)
        advance()
    aligned: tuple[LayerDifference, ...] = ()
    not_aligned: str | None = "no symmetry table is known for it."
    if symmetry is not None:
        aligned, not_aligned = _aligned(by_layer, first, second, shared, symmetry)
    tensors = len(first.arch.tensors)
    return DifferenceStudy(names, first.arch.name, layers, aligned, not_aligned, equal, tensors, tuple(buffers))


def _shared_names(first: Architecture, second: Architecture, names: tuple[str, str]) -> dict[str, str]:
    """Map the first's tensor names to the second's; raises ``ZooError`` for missing tensors or other shapes."""
    # tied tensors are stored once, and not by both under the same of their names
    known = {name: tensor for tensor in second.tensors for name in (tensor.name, *tensor.aliases)}
    own = {name: tensor for tensor in first.tensors for name in (tensor.name, *tensor.aliases)}
    lacking = [repr(name) for name in own if name not in known]
    besides = [repr(name) for name in known if name not in own]
    others = [
        f"{name!r} is {known[name].shape} and not {tensor.shape}"
        for name, tensor in own.items()
        if name in known and known[name].shape != tensor.shape
    ]
    said = [(lacking, "no {}"), (besides, "{} besides"), (others, "{}")]
    if any(items for items, _ in said):
        got = "; ".join(form.format(_listed(items)) for items, form in said if items)
        location, step = shortened(f"compare: {names[1]}", 300), "Compare checkpoints of one architecture."
        raise ZooError(Problem(location, "tensors", f"those of {names[0]}", got, step))
    return {tensor.name: known[tensor.name].name for tensor in first.tensors}


def _listed(items: list[str]) -> str:
    more = f" and {len(items) - _NAMED:,} more" if len(items) > _NAMED else ""
    return ", ".join(items[:_NAMED]) + more


def _compared(by_layer: Mapping[str, list[str]], first: Read, second: Read) -> tuple[LayerDifference, ...]:
    """A line for each layer, and one for all of them together."""
    sums, sizes = np.zeros((len(by_layer), 3)), list[int]()
    for number, tensors in enumerate(by_layer.values()):
        sizes.append(0)
        for name in tensors:
            # squares of float16 overflow from 256 on
            ours, theirs = np.asarray(first(name)).astype(np.float64), np.asarray(second(name)).astype(np.float64)
            # not finite ones give infinities and NaN, which are shown
            with np.errstate(invalid="ignore", over="ignore"):
                sums[number] += [np.square(array).sum() for array in (ours, theirs, ours - theirs)]
            sizes[-1] += ours.size
    lines = [_line(*item) for item in zip(by_layer, sizes, sums, strict=True)]
    return (*lines, _line(ALL, sum(sizes), sums.sum(0)))


def _line(layer: str, size: int, squares: NDArray[np.float64]) -> LayerDifference:
    first, second, distance = (float(value) for value in np.sqrt(squares))
    angle = math.nan
    if first > 0 and second > 0 and math.isfinite(first * second):
        # the arccosine of a product near 1 would lose half of the digits of a small angle; rounding can leave [0, 1]
        sine = (distance**2 - (first - second) ** 2) / (4 * first * second)
        angle = math.degrees(2 * math.asin(math.sqrt(min(max(sine, 0.0), 1.0))))
    return LayerDifference(layer, size, first, second, distance, angle)


def _aligned(
    by_layer: Mapping[str, list[str]],
    first: Checkpoint,
    second: Checkpoint,
    shared: Mapping[str, str],
    symmetry: Symmetry,
) -> tuple[tuple[LayerDifference, ...], str | None]:
    """Return the lines after alignment, or why there are none."""
    symmetry.check(first.arch)
    try:
        aligned = align({name: second[own][None] for name, own in shared.items()}, dict(first), symmetry)
    except SymmetryError as error:
        return (), str(error)
    if not aligned.aligned.all():
        return (), "the second checkpoint is not finite."
    # with matrices the blocks of both are balanced, so that both are taken as they were compared
    balanced = aligned.reference
    lines = _compared(
        by_layer,
        lambda name: balanced[name][0] if name in balanced else first[name],
        lambda name: aligned.weights[name][0],
    )
    return lines, None


def _same_bits(first: NDArray[Any], second: NDArray[Any]) -> bool:
    # compared as bytes, as NaN differs from itself and -0.0 equals 0.0
    ours, theirs = np.ascontiguousarray(first), np.ascontiguousarray(second)
    return ours.dtype == theirs.dtype and np.array_equal(
        ours.reshape(-1).view(np.uint8), theirs.reshape(-1).view(np.uint8)
    )


def _cells(item: LayerDifference) -> list[str]:
    angle = "-" if math.isnan(item.angle) else f"{item.angle:.2f}°"
    return [f"{item.distance:.4g}", f"{item.relative:.2%}", angle]
