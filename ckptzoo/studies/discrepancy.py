"""How far apart are two sets of checkpoints, layer by layer? Maximum mean discrepancy as arXiv 2310.08287 has it."""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rich.console import RenderableType

from ckptzoo.arguments import Seed, Size, checked
from ckptzoo.console import columns, facts
from ckptzoo.errors import Problem, ZooError
from ckptzoo.format.saved_blocks import SavedBlocks
from ckptzoo.loader.checkpoint import import_torch
from ckptzoo.loader.flags import finite_networks
from ckptzoo.loader.zoo import Zoo
from ckptzoo.measure.distances import Distances
from ckptzoo.measure.kernels import Rule
from ckptzoo.measure.mmd import p_value
from ckptzoo.schema import layout
from ckptzoo.schema.documents import Document, JsonFields, digest_of
from ckptzoo.studies.shared.result import StudyResult
from ckptzoo.studies.shared.selection import blocks, parameter_names, parameters_by_layer, table_of
from ckptzoo.text import Progress, counted, printable

BLOCK_BYTES = 256 * 2**20
"""Weights of both zoos that are held at a time, where their rows are no views of a file."""

_SUMS, _COLUMNS = "sums", "columns"
"""The tensor and the fact of a block that is kept."""

Values = NDArray[np.float64]


@dataclass(frozen=True)
class ComparedSet:
    """One of the two sets.

    ``variant`` is the gauge of its weights; ``checkpoints`` counts the compared ones; ``left`` counts those left out
    because they are not finite, and ``kept`` the compared ones that the gauge left as trained, because they are not
    representable in it.
    """

    name: str
    variant: str
    checkpoints: int
    left: int
    kept: int

    def __str__(self) -> str:
        text = f"{self.name}, {self.variant}: {counted(self.checkpoints, 'checkpoint')}"
        text += f"; {self.left:,} left out, not finite" if self.left else ""
        return text + (f"; {self.kept:,} as trained, not representable in the gauge" if self.kept else "")


@dataclass(frozen=True, eq=False)
class LayerDiscrepancy(
    JsonFields,
    without=("null", "squares"),
    derived=("median", "mean", "most", "p", "spread", "offset"),
    named={"most": "max"},
):
    """A layer or a tensor.

    ``mmd2`` has (20,) estimates, 10 of Laplace kernels and 10 of Gaussian ones, with their (20,) ``bandwidths``;
    ``null`` has the (B,) medians after exchanges of checkpoints, None where there were none; ``squares`` are the (3,)
    mean squared Euclidean distances of different checkpoints: within X, within Y, and across.
    """

    name: str
    parameters: int
    mmd2: Values
    bandwidths: Values
    null: Values | None
    squares: Values

    @property
    def median(self) -> float:
        return float(np.median(self.mmd2))

    @property
    def mean(self) -> float:
        return float(self.mmd2.mean())

    @property
    def most(self) -> float:
        """The largest of the twenty."""
        return float(self.mmd2.max())

    @property
    def p(self) -> float | None:
        """The p-value of the median; None without exchanges."""
        return None if self.null is None else p_value(self.median, self.null)

    @property
    def spread(self) -> float | None:
        """The root mean square of Y's checkpoints about their mean, over X's; None where X's are all equal."""
        within_x, within_y, _ = self.squares
        return float(np.sqrt(within_y / within_x)) if within_x > 0 else None

    @property
    def offset(self) -> float | None:
        """How far the two means are apart, in units of how far X's checkpoints are from theirs; unbiased in the square.
        None where X's are all equal; 0 where the unbiased square is negative.
        """
        # |E x - E y|^2 = E|x - y|^2 - (E|x - x'|^2 + E|y - y'|^2) / 2, and E|x - x'|^2 is twice X's variance
        within_x, within_y, across = self.squares
        return float(np.sqrt(max(0.0, 2 * across - within_x - within_y) / within_x)) if within_x > 0 else None


@dataclass(frozen=True, eq=False)
class Discrepancy(StudyResult, derived=("median", "mean", "most", "p"), named={"rule": "bandwidths", "most": "max"}):
    """The squared maximum mean discrepancy between two sets of checkpoints; drawn as ``mmd.png``.

    ``rule`` is the rule of the bandwidths: ``paper``, ``fixed`` or ``given``; ``shared`` counts members of one zoo that
    are in both sets; ``layers`` and ``tensors`` are in the architecture's order, and tensors have p-values only where
    they are a layer alone; ``left_out`` names the buffers, and the parameters that are not of floating point.
    """

    file: ClassVar[str] = "mmd.json"

    x: ComparedSet
    y: ComparedSet
    architecture: str
    rule: str
    permutations: int
    seed: int
    shared: int
    layers: tuple[LayerDiscrepancy, ...]
    tensors: tuple[LayerDiscrepancy, ...]
    left_out: tuple[str, ...]

    @property
    def weights(self) -> Values:
        """(L,) the layers' shares of the parameters."""
        sizes = np.array([item.parameters for item in self.layers], np.float64)
        return sizes / sizes.sum()

    @property
    def median(self) -> float:
        """Average over layers of the medians, weighted by their parameters."""
        return float(self.weights @ [item.median for item in self.layers])

    @property
    def mean(self) -> float:
        return float(self.weights @ [item.mean for item in self.layers])

    @property
    def most(self) -> float:
        """Average over layers of the largest."""
        return float(self.weights @ [item.most for item in self.layers])

    @property
    def null(self) -> Values | None:
        """(B,) the average of the medians after exchanges of checkpoints; None where there were none."""
        nulls = [item.null for item in self.layers if item.null is not None]
        return self.weights @ np.stack(nulls) if nulls else None

    @property
    def p(self) -> float | None:
        """The p-value of the average of the medians; None without exchanges."""
        null = self.null
        return None if null is None else p_value(self.median, null)

    def to_json(self) -> Document:
        """Every figure by name, without the exchanges themselves."""
        return {**super().to_json(), "parameters": sum(item.parameters for item in self.layers)}

    def _lines(self) -> Iterator[RenderableType]:
        yield facts(self._facts())
        yield "\n100 MMD²: median, mean and largest of twenty kernels"
        table = columns("layer", "parameters", "median", "mean", "max", *(["p"] if self.permutations > 0 else []))
        total = sum(item.parameters for item in self.layers)
        for item in self.layers:
            table.add_row(printable(item.name), f"{item.parameters:,}", *_cells(item))
        table.add_row("weighted average", f"{total:,}", *_cells(self), style="bold")
        yield table

    def _facts(self) -> list[tuple[str, str]]:
        kernels = {"paper": "from distances between X and Y", "fixed": "from distances within X", "given": "given"}
        rows = [("X", str(self.x)), ("Y", str(self.y)), ("bandwidths", kernels[self.rule])]
        if self.permutations:
            rows.append(("p-values", f"{counted(self.permutations, 'permutation')}, seed {self.seed}"))
        if self.shared:
            bias = "the estimate, unbiased for independent draws, is then too low, and may be below 0"
            rows.append(("in both", f"{counted(self.shared, 'member')}: {bias}"))
        if self.left_out:
            shown = ", ".join(self.left_out[:3]) + (", ..." if len(self.left_out) > 3 else "")
            rows.append(("not compared", f"{counted(len(self.left_out), 'tensor')} that are no weights: {shown}"))
        return rows


def _cells(item: LayerDiscrepancy | Discrepancy) -> list[str]:
    figures = [f"{100 * value:.3f}" for value in (item.median, item.mean, item.most)]
    return figures if item.p is None else [*figures, f"{item.p:.3g}"]


@checked
def mmd(
    zoo_x: Zoo,
    zoo_y: Zoo,
    variant: str = layout.RAW,
    variant_y: str | None = None,
    *,
    bandwidths: Rule | ArrayLike = "paper",
    permutations: Size = 0,
    seed: Seed = 0,
    device: Any = None,
    saved_in: str | Path | None = None,
    progress: Progress | None = None,
) -> Discrepancy:
    r"""Compare two sets of checkpoints of one architecture, such as a target posterior and a method's samples.

    For every layer, all its parameters in one vector, the twenty unbiased estimates of the squared maximum mean
    discrepancy of ``ckptzoo.measure.mmd2``; of them the median (and mean and largest); and their average over layers,
    weighted by the numbers of parameters:

    .. math:: \sum_l \frac{P_l}{\sum_k P_k} \operatorname{median}_{i = 1 \dots 20} \mathrm{MMD}_i^2(X_l, Y_l)

    (arXiv 2310.08287, whose tables print 100 times that.) Tensors are measured one by one too. Floating-point
    parameters count; buffers do not: BatchNorm's running statistics follow from weights and data.

    Parameters
    ----------
    zoo_x
        the target's checkpoints: every draw of a posterior, which is a member of its own, and the last step of each
        training run; those that are not finite are left out and counted.
    zoo_y
        the others, alike. The estimate is for independent draws: members of one zoo that are in both are counted, with
        a warning.
    variant, variant_y
        the gauge of each; that of Y is X's where it is not given.
    bandwidths
        as in ``ckptzoo.measure.mmd2``.
    permutations
        how many exchanges of checkpoints between X and Y to compare with; 0 for no p-values. The same ones serve every
        layer, so that the average has a p-value of its own.
    seed
        of the exchanges.
    device
        None for numpy; else torch computes there, ``"cpu"`` included.
    saved_in
        a folder in which the distances of each block of columns are kept; those that are there are not measured again.
        See ``measure_share``.
    progress
        called with the bytes of weights read and the bytes in all.

    Raises
    ------
    UnknownNameError
        No such variant or rule.
    MissingExtraError
        A device is given, and torch is not installed.
    IntegrityError
        Distances that were kept are damaged.
    ZooError
        The zoos' parameters differ, or one has fewer than two finite checkpoints.

    Notes
    -----
    Columns stream: memory is 32 bytes a pair of checkpoints and at most ``BLOCK_BYTES`` of weights, with some copies
    of 16 MiB beside, for layers of any width. A variant that stores only its group elements is computed again for each
    ``BLOCK_BYTES`` of a tensor, so store the weights of large networks. Tested in
    ``tests/studies/test_discrepancy.py``.

    Examples
    --------
    >>> from ckptzoo.studies import mmd
    >>> members, samples = ckptzoo.open("cards/mnist-optunet"), ckptzoo.open("cards/mnist-optunet-posteriors")
    >>> swag, sghmc = (mmd(members[:128], samples.where({"method": name})) for name in ("swag", "sghmc"))
    >>> round(swag.median, 2), round(sghmc.median, 2)
    (0.21, 0.15)
    """
    sides = _Sides(zoo_x, zoo_y, variant, variant if variant_y is None else variant_y, device, saved_in)
    x, y, side_x, side_y, shapes = sides.x, sides.y, sides.side_x, sides.side_y, sides.shapes
    shared = _shared(x, y)
    if shared:
        members = f"{counted(shared, 'member')} of {side_x.name} {'are' if shared > 1 else 'is'} in both"
        warnings.warn(f"mmd: {members}; the estimate is for independent draws.", UserWarning, stacklevel=2)
    numbers = {name: [block.number for block in sides.blocks if block.tensor == name] for name in shapes}
    total, done = sum(block.nbytes for block in sides.blocks), 0

    def measured(name: str, distances: Distances, exchanges: int) -> LayerDiscrepancy:
        kernels = distances.bandwidths(bandwidths)
        mmd2, null = distances.mmd2(kernels), None
        if exchanges:
            null = np.median(distances.null(kernels, permutations=exchanges, seed=seed), axis=0)
        return LayerDiscrepancy(name, distances.columns, mmd2, kernels, null, distances.mean_squares())

    layers: list[LayerDiscrepancy] = []
    tensors: list[LayerDiscrepancy] = []
    for layer, names in parameters_by_layer(zoo_x.arch).items():
        whole = Distances(len(x), len(y))
        for name in names:
            distances = whole if len(names) == 1 else Distances(len(x), len(y))
            for number in numbers[name]:
                distances.include(sides.distances(number))
                done += sides.blocks[number].nbytes
                if progress is not None:
                    progress(done, total)
            if distances is not whole:
                tensors.append(measured(name, distances, 0))
                whole.include(distances)  # distances are sums over columns: those of the tensors add up
        layers.append(measured(layer, whole, permutations))
        if len(names) == 1:
            # a tensor that is a layer alone is not measured twice
            tensors.append(replace(layers[-1], name=names[0]))
    return Discrepancy(
        x=side_x,
        y=side_y,
        architecture=zoo_x.arch.name,
        rule=bandwidths if isinstance(bandwidths, str) else "given",
        permutations=permutations,
        seed=seed,
        shared=shared,
        layers=tuple(layers),
        tensors=tuple(tensors),
        left_out=tuple(name for name in zoo_x.arch.names if name not in shapes),
    )


def measure_share(
    zoo_x: Zoo,
    zoo_y: Zoo,
    saved_in: str | Path,
    share: tuple[int, int] = (0, 1),
    variant: str = layout.RAW,
    variant_y: str | None = None,
    *,
    device: Any = None,
    progress: Progress | None = None,
) -> tuple[int, int]:
    """Measure the distances of a share of the blocks of columns, for ``mmd`` with the same ``saved_in``.

    Parameters
    ----------
    zoo_x, zoo_y, variant, variant_y, device, progress
        as for ``mmd``.
    saved_in
        a folder that all who share the work share, or whose files are brought together.
    share
        ``(i, n)`` for every n-th block, from the i-th, counted from 0. What is there is not measured again.

    Returns
    -------
    tuple[int, int]
        How many blocks are in the folder, and how many there are in all.

    Notes
    -----
    A block has at most ``BLOCK_BYTES`` of weights, and its file 16 bytes a pair of checkpoints. ``mmd`` adds up blocks
    in their order, so that its bits do not depend on who measured what.

    Examples
    --------
    >>> from ckptzoo.studies.discrepancy import measure_share, mmd
    >>> zoo = ckptzoo.open("cards/mnist-optunet")
    >>> measure_share(zoo[:64], zoo[64:128], "kept", share=(0, 2))
    (2, 4)
    >>> measure_share(zoo[:64], zoo[64:128], "kept", share=(1, 2))
    (4, 4)
    >>> round(mmd(zoo[:64], zoo[64:128], saved_in="kept").median, 3)
    -0.001
    """
    sides = _Sides(zoo_x, zoo_y, variant, variant if variant_y is None else variant_y, device, saved_in)
    # every n-th block, so that the blocks of a large tensor are spread over all shares
    chosen = sides.blocks[share[0] :: share[1]]
    total, done = sum(block.nbytes for block in chosen), 0
    for block in chosen:
        sides.distances(block.number)
        done += block.nbytes
        if progress is not None:
            progress(done, total)
    return sum(sides.is_saved(block.number) for block in sides.blocks), len(sides.blocks)


@dataclass(frozen=True)
class _ColumnBlock:
    """Columns of a tensor: their number among all blocks, their indices, and the bytes of both zoos' weights there."""

    number: int
    tensor: str
    index: tuple[int | slice, ...]
    nbytes: int


class _Sides:
    """The checkpoints of both sets, and the blocks of columns that their distances are measured in."""

    def __init__(
        self, zoo_x: Zoo, zoo_y: Zoo, variant_x: str, variant_y: str, device: Any, saved_in: str | Path | None
    ) -> None:
        self.shapes = _shapes(zoo_x, zoo_y)
        (self.x, self.side_x), (self.y, self.side_y) = _chosen(zoo_x, variant_x), _chosen(zoo_y, variant_y)
        self._device, self._torch = device, None if device is None else _torch_on(device)
        self.blocks: list[_ColumnBlock] = []
        for name, shape in self.shapes.items():
            nbytes, size = sum(tensor.nbytes for tensor in self._tensors(name)), math.prod(shape)
            # max: a tensor may have an axis of size 0
            limit = max(1, BLOCK_BYTES // (nbytes // max(1, size) or 1))
            for index in blocks(shape, limit):
                elements = math.prod(np.empty(shape, np.bool_)[index].shape)
                self.blocks.append(_ColumnBlock(len(self.blocks), name, index, elements * nbytes // max(1, size)))
        self._saved = None
        if saved_in is not None:
            # sums of other blocks, or on another device, differ in their last bits
            kinds = [_digest(self.x, variant_x), _digest(self.y, variant_y), BLOCK_BYTES, str(device)]
            self._saved = SavedBlocks(Path(saved_in), digest_of(kinds))

    def is_saved(self, number: int) -> bool:
        """Whether the distances of a block are in the folder; those of no columns need no file."""
        return self._saved is not None and (self._saved.has(number) or not self.blocks[number].nbytes)

    def distances(self, number: int) -> Distances:
        """Return the distances of a block: kept ones, else measured ones, which are kept where there is a folder."""
        if self._saved is not None and self._saved.has(number):
            return self._loaded(self._saved, number)
        block, measured = self.blocks[number], Distances(len(self.x), len(self.y))
        arrays = [tensor[:, *block.index] for tensor in self._tensors(block.tensor)]
        if self._torch is not None:
            arrays = [self._on_device(array) for array in arrays]
        measured.add(*arrays)
        if self._saved is not None and measured.columns:
            self._saved.store(number, {_SUMS: measured.sums()}, {_COLUMNS: str(measured.columns)})
        return measured

    def _loaded(self, saved: SavedBlocks, number: int) -> Distances:
        arrays, facts = saved.load(number)
        like = None if self._torch is None else self._on_device(np.zeros(1, np.float32))
        try:
            return Distances.from_sums(len(self.x), len(self.y), int(facts[_COLUMNS]), arrays[_SUMS], like)
        except (KeyError, ValueError) as error:
            raise saved.damaged(number, str(error)[:200]) from error

    def _on_device(self, array: NDArray[Any]) -> Any:
        assert self._torch is not None
        return self._torch.owned(array).to(self._device)

    def _tensors(self, name: str) -> tuple[Any, Any]:
        return self.x[name, self.side_x.variant], self.y[name, self.side_y.variant]


def _digest(zoo: Zoo, variant: str) -> str:
    """The facts that determine the weights of a selection: its ids, and the parts that hold them."""
    trees = [zoo.contents.raw, *([zoo.contents.derived(variant)] if variant != layout.RAW else [])]
    parts = [part.digest for tree in trees for part in tree.parts]
    return digest_of({"architecture": zoo.arch.digest, "variant": variant, "parts": parts, "ids": list(zoo.ids)})


def _torch_on(device: Any) -> Any:
    """``ckptzoo.loader.torch``, if torch can compute there."""
    torch = import_torch()
    torch.device_of(device, "mmd")
    return torch


def _shapes(zoo_x: Zoo, zoo_y: Zoo) -> dict[str, tuple[int, ...]]:
    """The floating-point parameters, which must be the same in both."""
    shapes_x, shapes_y = ({name: zoo.arch[name].shape for name in parameter_names(zoo.arch)} for zoo in (zoo_x, zoo_y))
    different = [
        f"{name} {shapes_x.get(name, 'missing')} and {shapes_y.get(name, 'missing')}"
        for name in dict.fromkeys([*shapes_x, *shapes_y])
        if shapes_x.get(name) != shapes_y.get(name)
    ]
    if different or not shapes_x:
        more = f"; {len(different) - 8} more" if len(different) > 8 else ""
        got = "; ".join(different[:8]) + more or "no floating-point parameter"
        step = "Compare zoos of one architecture."
        raise ZooError(Problem(f"{zoo_x.name} and {zoo_y.name}", "parameters", "the same shapes", got, step))
    return shapes_x


def _chosen(zoo: Zoo, variant: str) -> tuple[Zoo, ComparedSet]:
    """Each member's last step, without those that are not finite."""
    if variant != layout.RAW:
        table_of(zoo, variant)
    last = zoo.last_steps()
    finite = last.take(finite_networks(last))
    if len(finite) < 2:
        got = f"{len(finite)} of {len(last)}"
        raise ZooError(Problem(zoo.name, "checkpoints", "2 or more that are finite", got, "Select others."))
    as_trained = 0
    if variant != layout.RAW and variant in zoo.variants:
        as_trained = int((~finite.variant_metadata(variant)["gauged"].to_numpy().astype(np.bool_)).sum())
    return finite, ComparedSet(zoo.name, variant, len(finite), len(last) - len(finite), as_trained)


def _shared(x: Zoo, y: Zoo) -> int:
    """Members that are in both selections of one zoo."""
    # ids of members mean something within one zoo only
    if x.contents.identity != y.contents.identity:
        return 0
    return len({*x.column("member").to_pylist()} & {*y.column("member").to_pylist()})
