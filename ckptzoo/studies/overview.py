"""What does this zoo look like? Accuracies, marginals of the weights per layer, and two output weights together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rich.console import RenderableType

from ckptzoo.arguments import Seed, checked
from ckptzoo.console import columns
from ckptzoo.errors import Problem, ZooError
from ckptzoo.loader.flags import usable_rows
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.studies.inventory import Inventory, inventory
from ckptzoo.studies.shared.result import Spread, StudyResult
from ckptzoo.studies.shared.selection import BATCH_BYTES, evenly, weight_names
from ckptzoo.studies.shared.value_histograms import TensorHistogram, histograms
from ckptzoo.text import Progress

MAX_PANELS = 24
"""More weight tensors than this are thinned out evenly."""
MAX_POINTS = 20_000
"""The most points of the scatter; more checkpoints than this are sampled."""
MIN_STEPS = 3
"""The minimum number of measured steps of a member that make a trajectory."""


@dataclass(frozen=True, eq=False)
class WeightPair:
    """The first and the last incoming weight of the first output neuron, in one or two variants.

    ``names`` are the names of the two weights, such as ``fc.weight[0, 0]``; ``points`` maps variants to (n, 2), the
    same checkpoints in each; at most ``MAX_POINTS``, drawn with the seed.
    """

    names: tuple[str, str]
    points: dict[str, NDArray[np.float64]]

    def above(self, variant: str) -> float:
        """The fraction of points whose second weight is the larger one; 1/2 where the cloud is symmetric."""
        first, second = self.points[variant].T
        return float((second > first).mean() + 0.5 * (second == first).mean())

    def correlation(self, variant: str) -> float:
        """Pearson's correlation of the two weights; NaN for fewer than two different points."""
        centred = self.points[variant] - self.points[variant].mean(axis=0)
        first, second = centred.T
        scale = np.sqrt((first @ first) * (second @ second))
        return float(first @ second / scale) if scale > 0 else float("nan")


@dataclass(frozen=True, eq=False)
class AccuracyTrajectories:
    """Test accuracies (M, S) at ``steps`` (S,) that rise, NaN where a member has no measured checkpoint."""

    steps: NDArray[np.int64]
    accuracies: NDArray[np.float64]

    def to_json(self) -> list[dict[str, Any]]:
        """For each step how many members there are, and the mean, least and largest accuracy among them."""
        rows: list[dict[str, Any]] = []
        for step, column in zip(self.steps.tolist(), self.accuracies.T, strict=True):
            known = column[np.isfinite(column)]
            figures = {"mean": float(known.mean()), "lowest": float(known.min()), "highest": float(known.max())}
            rows.append({"step": step, "members": len(known), **figures})
        return rows


@dataclass(frozen=True, eq=False)
class Overview(StudyResult):
    """The accuracies, weight distributions and trajectories of a zoo.

    Drawn as ``accuracy.png``, ``marginals.png``, ``scatter.png`` and ``trajectories.png``, without those for which the
    zoo has nothing to show. ``variants`` are ``raw``, and the derived one where there is one; ``shown`` counts the
    checkpoints whose weights are shown: each member's last step, finite and not diverged. ``accuracies`` are the known
    test accuracies of these, and ``diverged`` those of the others, NaN where none was measured. ``marginals`` are those
    of the weight tensors, in the architecture's order, without those beyond ``MAX_PANELS``, which are ``left_out``,
    evenly spaced through the network. ``pair`` is None where no tensor has an output neuron with two incoming weights,
    and ``trajectories`` where no member has several steps.
    """

    file: ClassVar[str] = "summary.json"

    inventory: Inventory
    variants: tuple[str, ...]
    shown: int
    accuracies: NDArray[np.float64]
    diverged: NDArray[np.float64]
    marginals: tuple[TensorHistogram, ...]
    left_out: tuple[str, ...]
    pair: WeightPair | None
    trajectories: AccuracyTrajectories | None

    def to_json(self) -> dict[str, Any]:
        """Every figure by name, without the densities and the points."""
        spread = Spread.of(self.accuracies)
        pair = self.pair
        return {
            "inventory": self.inventory.to_json(),
            "variants": list(self.variants),
            "shown": self.shown,
            "test_accuracy": None if spread is None else spread.to_json(),
            "diverged": len(self.diverged),
            "marginals": [
                {"tensor": item.tensor, "shape": list(item.shape), "mean": item.mean, "sd": item.sd}
                for item in self.marginals
            ],
            "left_out": list(self.left_out),
            "pair": None
            if pair is None
            else {
                "names": list(pair.names),
                "points": len(pair.points[layout.RAW]),
                "above_diagonal": {name: pair.above(name) for name in self.variants},
                "correlation": {name: pair.correlation(name) for name in self.variants},
            },
            "trajectories": None if self.trajectories is None else self.trajectories.to_json(),
        }

    def _lines(self) -> Iterator[RenderableType]:
        yield from self.inventory.lines()
        yield ""
        table = columns("tensor")
        table.add_column("shape")
        for variant in self.variants:
            table.add_column(f"{variant}: mean", justify="right", no_wrap=True)
            table.add_column("sd", justify="right", no_wrap=True)
        for item in self.marginals:
            figures = [f"{value:.4g}" for name in self.variants for value in (item.mean[name], item.sd[name])]
            table.add_row(item.tensor, " x ".join(map(str, item.shape)), *figures)
        yield table
        if self.pair is not None:
            shares = ", ".join(f"{self.pair.above(name):.1%} {name}" for name in self.variants)
            yield f"\n{self.pair.names[1]} is larger than {self.pair.names[0]}: {shares}"


@checked
def overview(zoo: Zoo, variant: str | None = None, *, seed: Seed = 0, progress: Progress | None = None) -> Overview:
    """Look at a zoo or at a selection of one.

    Symmetry removal changes what the weights look like and not what the networks compute: the cloud of two
    incoming weights of one neuron is symmetric about the diagonal as trained (exchanging two hidden neurons maps
    a network onto an equally likely one) and no longer so in a gauge. After arXiv 2310.08287, figure 1.

    Parameters
    ----------
    zoo
        what ``ckptzoo.open`` gives, or a selection of it.
    variant
        shown beside ``raw``; by default the first one that was derived, if any.
    seed
        draws the points of the scatter where there are more than ``MAX_POINTS`` checkpoints.
    progress
        called as weights are read.

    Raises
    ------
    UnknownNameError
        No such variant.
    ZooError
        No checkpoint is finite and did not diverge, or the variant lacks some of them.

    Notes
    -----
    Reads the shown tensors once in every variant, in memory of a few batches of 16 MB.

    Examples
    --------
    >>> from ckptzoo.studies.overview import overview
    >>> found = overview(ckptzoo.open("cards/mnist-optunet"), "canonical")
    >>> [round(found.pair.above(variant), 2) for variant in found.variants]
    [0.51, 0.65]
    """
    last = zoo.last_steps()
    usable = usable_rows(last)
    good = last.take(usable)
    if not len(good):
        expected, got = "at least one that is finite and did not diverge", f"none of {len(last)}"
        raise ZooError(Problem(zoo.name, "checkpoints", expected, got, "Select others."))
    derived = [name for name in zoo.variants if name != layout.RAW][:1] if variant is None else [variant]
    variants = tuple(dict.fromkeys([layout.RAW, *derived]))
    tensors = weight_names(zoo.arch)
    shown = [tensors[index] for index in evenly(len(tensors), MAX_PANELS)]
    accuracy = last.column("test_accuracy").to_numpy().astype(np.float64)
    return Overview(
        inventory=inventory(zoo),
        variants=variants,
        shown=len(good),
        accuracies=accuracy[np.isfinite(accuracy) & usable],
        diverged=accuracy[~usable],
        marginals=histograms(good, shown, variants, progress),
        left_out=tuple(name for name in tensors if name not in shown),
        pair=pair_of(good, variants, seed=seed),
        trajectories=trajectories_of(zoo.metadata),
    )


def pair_of(zoo: Zoo, variants: Sequence[str], *, seed: int) -> WeightPair | None:
    """The pair of the last matrix of a zoo, or else of its last weight tensor.

    ``variants`` are the gauges that are compared; ``seed`` determines the drawn checkpoints where there are more than
    ``MAX_POINTS``. Returns None where no output neuron has two incoming weights.
    """
    tensors = [zoo.arch[name] for name in weight_names(zoo.arch) if len(zoo.arch[name].shape) > 1]
    # the last matrix is that of the output layer; networks of convolutions alone have none
    candidates = [tensor for tensor in tensors if len(tensor.shape) == 2] or tensors
    if not candidates or candidates[-1].size // candidates[-1].shape[0] < 2:
        return None
    name, shape = candidates[-1].name, candidates[-1].shape
    last = candidates[-1].size // shape[0] - 1
    rows = np.arange(len(zoo))
    if len(zoo) > MAX_POINTS:
        # sorted, as rows are read in the order of the files
        rows = np.sort(np.random.default_rng(seed).choice(len(zoo), MAX_POINTS, replace=False))
    chosen = zoo.take(rows)
    points = {
        variant: np.concatenate(
            [_ends(batch[name]) for batch in chosen.batches(name, variant=variant, max_bytes=BATCH_BYTES)]
        )
        for variant in variants
    }
    indices = [np.unravel_index(flat, shape[1:]) for flat in (0, last)]
    labels = [f"{name}[{', '.join(['0', *(str(int(number)) for number in index)])}]" for index in indices]
    return WeightPair((labels[0], labels[1]), points)


def _ends(weights: NDArray[np.generic]) -> NDArray[np.float64]:
    """(K, 2) first and last incoming weight of the first output neuron from (K, out, ...)."""
    incoming = weights[:, 0].reshape(len(weights), -1)
    return incoming[:, [0, -1]].astype(np.float64)


def trajectories_of(metadata: pa.Table) -> AccuracyTrajectories | None:
    """The trajectories of a zoo's rows; None where fewer than ``MIN_STEPS`` steps were measured of any member."""
    accuracy = metadata["test_accuracy"].fill_null(float("nan")).to_numpy().astype(np.float64)
    # a row without a step has no place along the training
    step = metadata["step"].fill_null(-1).to_numpy()
    known = np.isfinite(accuracy) & (step >= 0)
    members = metadata["member"].combine_chunks().dictionary_encode().indices.fill_null(-1).to_numpy()[known]
    owners, row = np.unique(members, return_inverse=True)
    steps, column = np.unique(step[known], return_inverse=True)
    table = np.full((len(owners), len(steps)), np.nan)
    table[row, column] = accuracy[known]
    enough = np.isfinite(table).sum(1) >= MIN_STEPS
    table = table[enough]
    shared = np.isfinite(table).any(0)
    return AccuracyTrajectories(steps[shared], table[:, shared]) if enough.any() else None
